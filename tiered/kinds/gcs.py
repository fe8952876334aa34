"""Blobs in a bucket of GCS, or in a part of one: one HTTP session -> GcsBlobs -> OwnedBlobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from anyio import CapacityLimiter

from changelog.base.runtime import Runtime
from changelog.base.threads import in_thread
from tiered.kinds.bucket import BucketKind, verify_owner
from tiered.kinds.kind import OpenRows, needs_asyncio, needs_packages
from tiered.protocol.backends import LongTermBackend
from tiered.provision.findings import Notice, Provisioning, findings_of
from tiered.settings import GcsSettings, Settings

if TYPE_CHECKING:
    from tiered.gcs.blobs import GcsBlobs


class GcsKind(BucketKind):
    section, scheme, elsewhere = "gcs", "gs", "GCS emulator"

    @asynccontextmanager
    async def open(
        self, settings: Settings, runtime: Runtime, rows: OpenRows, *, writes: bool, verify: bool
    ) -> AsyncIterator[LongTermBackend]:
        at = _section(settings)
        async with self.connect(at, runtime, settings.store.answer_budget_s) as bucket:
            from tiered.gcs.owned import OwnedBlobs

            blobs = OwnedBlobs(bucket, at.bucket, at.prefix, rows.owner)
            if verify:
                await verify_owner(blobs, at.bucket, writes=writes)
            yield blobs

    @asynccontextmanager
    async def connect(self, at: GcsSettings, runtime: Runtime, upload_budget_s: float) -> AsyncIterator[GcsBlobs]:
        """Opens the bucket, whoever owns it. Sends nothing yet. Names are those of the bucket."""
        needs_asyncio("GCS needs asyncio, because aiohttp does")
        with needs_packages("GCS", "gcp"):
            from tiered.gcs.blobs import GcsBlobs
            from tiered.gcs.http import SCOPE
            from tiered.protocol.upload_lanes import UploadLanes
        authorize = sign = None
        if at.endpoint is None:
            from changelog.google.signing import GoogleSigner
            from changelog.google.tokens import GoogleAuthorization

            authorize = await GoogleAuthorization.default(runtime, SCOPE)
            sign = GoogleSigner(authorize)
        lanes = UploadLanes(at.upload_lanes, at.upload_lanes_from_bytes, at.upload_part_bytes, at.upload_memory_bytes)
        async with GcsBlobs.connect(
            at.bucket, runtime, endpoint=at.endpoint, authorize=authorize, connections_max=at.connections_max,
            answer_timeout_s=at.timeout_s, lanes=lanes, upload_budget_s=upload_budget_s, sign=sign,
        ) as bucket:  # fmt: skip
            yield bucket

    async def inspect(self, settings: Settings, runtime: Runtime, owner: str | None) -> list[Notice]:
        with needs_packages("GCS", "gcp"):
            from tiered.provision.bucket import inspect_bucket

        look = partial(inspect_bucket, _section(settings), _project(settings), owner)
        return await in_thread(partial(findings_of, look), CapacityLimiter(1), abandon_on_cancel=True)

    async def provision(self, settings: Settings, runtime: Runtime, owner: str, wanted: Provisioning) -> list[Notice]:
        with needs_packages("GCS", "gcp"):
            from tiered.provision.bucket import provision_bucket

        work = partial(provision_bucket, _section(settings), _project(settings), owner, wanted)
        return await in_thread(partial(findings_of, work), CapacityLimiter(1))


BLOBS = GcsKind()


def _section(settings: Settings) -> GcsSettings:
    assert settings.gcs is not None, "whoever chooses this kind has seen its section"
    return settings.gcs


def _project(settings: Settings) -> str | None:
    """Where a new bucket is made. None: in the project of the credentials."""
    return None if settings.bigtable is None else settings.bigtable.project
