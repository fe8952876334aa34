"""Blobs in a bucket of an S3 service, or in a part of one: one session of aiobotocore -> S3Blobs -> OwnedS3Blobs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from changelog.base.runtime import Runtime
from tiered.kinds.bucket import BucketKind, between, lanes_of
from tiered.kinds.kind import needs_asyncio, needs_packages
from tiered.provision.findings import Notice, Provisioning
from tiered.provision.probes import ProbeOutcome, RequestSizes
from tiered.settings import S3Settings, Settings, StoreSettings

if TYPE_CHECKING:
    from tiered.s3.blobs import S3Blobs
    from tiered.s3.owned import OwnedS3Blobs


class S3Kind(BucketKind[S3Settings, "S3Blobs"]):
    section, scheme, elsewhere = "s3", "s3", "S3 endpoint"

    def owned(self) -> type[OwnedS3Blobs]:
        from tiered.s3.owned import OwnedS3Blobs

        return OwnedS3Blobs

    @asynccontextmanager
    async def connect(self, at: S3Settings, runtime: Runtime, store: StoreSettings) -> AsyncIterator[S3Blobs]:
        _needs()
        from tiered.s3.blobs import S3Blobs

        async with S3Blobs.connect(
            at.bucket, runtime, prefix=at.prefix, endpoint=at.endpoint, region=at.region, addressing_style=at.addressing_style,
            connections_max=at.connections_max, answer_timeout_s=at.timeout_s, lanes=lanes_of(store),
            upload_budget_s=store.answer_budget_s, whole_checksums=at.whole_checksums,
        ) as bucket:  # fmt: skip
            yield bucket

    async def inspect(self, settings: Settings, runtime: Runtime, owner: str | None) -> list[Notice]:
        _needs()
        from tiered.provision.s3 import inspect_bucket

        return [*await inspect_bucket(self.at(settings), runtime, owner), *await self.clock(settings, runtime)]

    async def try_requests(self, settings: Settings, runtime: Runtime, sizes: RequestSizes) -> list[ProbeOutcome[Any]]:
        _needs()
        from tiered.provision.s3_probes import try_probes

        at = self.at(settings)
        async with self.connect(at, runtime, settings.store) as ours, self.connect(at, runtime, settings.store) as other:
            return (await try_probes(ours, other, at.prefix, runtime, sizes, whole_checksums=at.whole_checksums))[0]

    async def provision(self, settings: Settings, runtime: Runtime, owner: str, wanted: Provisioning) -> list[Notice]:
        _needs()
        from tiered.provision.s3 import provision_bucket

        return await provision_bucket(self.at(settings), runtime, owner, wanted)

    async def excess(self, settings: Settings, runtime: Runtime) -> Sequence[str]:
        _needs()
        from tiered.provision.s3 import excess_of

        return await excess_of(self.at(settings), runtime)

    async def told(self, settings: Settings, runtime: Runtime) -> Mapping[str, str]:
        at = self.at(settings)
        async with self.connect(at, runtime, settings.store) as bucket:
            headers = await bucket.client.headers()
        region = headers.get("x-amz-bucket-region") or at.region or ""
        return {"version": server_of(headers.get("server", "")), **({"region": region} if _REGION.fullmatch(region) else {}),
                **between(headers)}


def server_of(header: str) -> str:
    """The server, as its header has it, if that is a server that others know: anything may stand in a header."""
    product, _, version = header.partition(" ")[0].partition("/")
    known = _SERVERS.get(product.lower())
    if known is None:
        return "of an unknown server"
    return f"{known} {version}" if re.fullmatch(r"\d{1,4}(\.\d{1,4}){0,3}", version) else known


def _needs() -> None:
    needs_asyncio("S3 needs asyncio, because aiobotocore does")
    with needs_packages("S3", "s3"):
        import tiered.s3.blobs  # noqa: F401


_REGION = re.compile(r"[a-z]{2}(-gov|-isob?)?-(central|(north|south)?(east|west)|north|south)-\d")
"""As AWS names its own. The region of another server may be its user's word."""
_SERVERS = {name.lower(): name for name in (
    "AmazonS3", "MinIO", "VERSITYGW", "Werkzeug", "Ceph", "SeaweedFS", "Garage", "Cloudflare", "Wasabi", "nginx", "Apache", "Caddy",
    "envoy", "HAProxy", "UploadServer", "Tigris",
)}  # fmt: skip
"""Servers of S3, and what stands before them."""

BLOBS = S3Kind()
