"""Blobs in a bucket of an S3 service, or in a part of one: one session of aiobotocore -> S3Blobs -> OwnedS3Blobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from changelog.base.runtime import Runtime
from tiered.kinds.bucket import BucketKind, verify_owner
from tiered.kinds.kind import OpenRows, needs_asyncio, needs_packages
from tiered.protocol.backends import LongTermBackend
from tiered.provision.findings import Notice, Provisioning
from tiered.settings import S3Settings, Settings

if TYPE_CHECKING:
    from tiered.s3.blobs import S3Blobs


class S3Kind(BucketKind):
    section, scheme, elsewhere = "s3", "s3", "S3 endpoint"

    @asynccontextmanager
    async def open(
        self, settings: Settings, runtime: Runtime, rows: OpenRows, *, writes: bool, verify: bool
    ) -> AsyncIterator[LongTermBackend]:
        at = _section(settings)
        async with self.connect(at, runtime, settings.store.answer_budget_s) as bucket:
            from tiered.s3.owned import OwnedS3Blobs

            blobs = OwnedS3Blobs(bucket, at.bucket, at.prefix, rows.owner)
            if verify:
                await verify_owner(blobs, at.bucket, writes=writes)
            yield blobs

    @asynccontextmanager
    async def connect(self, at: S3Settings, runtime: Runtime, upload_budget_s: float) -> AsyncIterator[S3Blobs]:
        """Opens the bucket, whoever owns it. Sends nothing yet. Names are those of the bucket."""
        needs_asyncio("S3 needs asyncio, because aiobotocore does")
        with needs_packages("S3", "s3"):
            from tiered.protocol.upload_lanes import UploadLanes
            from tiered.s3.blobs import S3Blobs
        lanes = UploadLanes(at.upload_lanes, at.upload_lanes_from_bytes, at.upload_part_bytes, at.upload_memory_bytes)
        async with S3Blobs.connect(
            at.bucket, runtime, prefix=at.prefix, endpoint=at.endpoint, region=at.region, addressing_style=at.addressing_style,
            connections_max=at.connections_max, answer_timeout_s=at.timeout_s, lanes=lanes,
            upload_budget_s=upload_budget_s, whole_checksums=at.whole_checksums,
        ) as bucket:  # fmt: skip
            yield bucket

    async def inspect(self, settings: Settings, runtime: Runtime, owner: str | None) -> list[Notice]:
        needs_asyncio("S3 needs asyncio, because aiobotocore does")
        with needs_packages("S3", "s3"):
            from tiered.provision.s3 import inspect_bucket

        return await inspect_bucket(_section(settings), runtime, owner)

    async def provision(self, settings: Settings, runtime: Runtime, owner: str, wanted: Provisioning) -> list[Notice]:
        needs_asyncio("S3 needs asyncio, because aiobotocore does")
        with needs_packages("S3", "s3"):
            from tiered.provision.s3 import provision_bucket

        return await provision_bucket(_section(settings), runtime, owner, wanted)


BLOBS = S3Kind()


def _section(settings: Settings) -> S3Settings:
    assert settings.s3 is not None, "whoever chooses this kind has seen its section"
    return settings.s3
