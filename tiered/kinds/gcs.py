"""Blobs in a bucket of GCS, or in a part of one: one HTTP session -> GcsBlobs -> OwnedBlobs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio import CapacityLimiter

from changelog.base.runtime import Runtime
from changelog.base.threads import in_thread
from tiered.kinds.bucket import BucketKind, between, lanes_of
from tiered.kinds.kind import needs_asyncio, needs_packages
from tiered.provision.findings import Notice, Provisioning, findings_of
from tiered.provision.probes import NotTriedError, ProbeOutcome, RequestSizes
from tiered.settings import GcsSettings, Settings, StoreSettings

if TYPE_CHECKING:
    from tiered.gcs.blobs import GcsBlobs
    from tiered.gcs.owned import OwnedBlobs


class GcsKind(BucketKind[GcsSettings, "GcsBlobs"]):
    section, scheme, elsewhere = "gcs", "gs", "GCS emulator"

    def owned(self) -> type[OwnedBlobs]:
        from tiered.gcs.owned import OwnedBlobs

        return OwnedBlobs

    @asynccontextmanager
    async def connect(self, at: GcsSettings, runtime: Runtime, store: StoreSettings) -> AsyncIterator[GcsBlobs]:
        needs_asyncio("GCS needs asyncio, because aiohttp does")
        with needs_packages("GCS", "gcp"):
            from tiered.gcs.blobs import GcsBlobs
            from tiered.gcs.http import SCOPE
        authorize = sign = None
        if at.endpoint is None:
            from changelog.google.signing import GoogleSigner
            from changelog.google.tokens import GoogleAuthorization

            authorize = await GoogleAuthorization.default(runtime, SCOPE)
            sign = GoogleSigner(authorize)
        async with GcsBlobs.connect(
            at.bucket, runtime, endpoint=at.endpoint, authorize=authorize, connections_max=at.connections_max,
            answer_timeout_s=at.timeout_s, lanes=lanes_of(store), upload_budget_s=store.answer_budget_s, sign=sign,
        ) as bucket:  # fmt: skip
            yield bucket

    async def inspect(self, settings: Settings, runtime: Runtime, owner: str | None) -> list[Notice]:
        with needs_packages("GCS", "gcp"):
            from tiered.provision.bucket import inspect_bucket

        look = partial(inspect_bucket, self.at(settings), _project(settings), owner)
        found = await in_thread(partial(findings_of, look), CapacityLimiter(1), abandon_on_cancel=True)
        return [*found, *await self.clock(settings, runtime)]

    async def try_requests(self, settings: Settings, runtime: Runtime, sizes: RequestSizes) -> list[ProbeOutcome[Any]]:
        at = self.at(settings)
        async with self.connect(at, runtime, settings.store) as ours, self.connect(at, runtime, settings.store) as other:
            from tiered.provision.gcs_probes import try_requests

            return await try_requests(ours.http, other.http, at.prefix, sizes)

    async def provision(self, settings: Settings, runtime: Runtime, owner: str, wanted: Provisioning) -> list[Notice]:
        with needs_packages("GCS", "gcp"):
            from tiered.provision.bucket import provision_bucket

        work = partial(provision_bucket, self.at(settings), _project(settings), owner, wanted)
        return await in_thread(partial(findings_of, work), CapacityLimiter(1))

    async def told(self, settings: Settings, runtime: Runtime) -> Mapping[str, str]:
        from tiered.provision.bucket import location_of

        at = self.at(settings)
        async with self.connect(at, runtime, settings.store) as bucket:
            headers = await bucket.headers("asking what answers")
        location = await in_thread(partial(location_of, at, _project(settings)), CapacityLimiter(1), abandon_on_cancel=True)
        known = {"region": location} if _LOCATION.fullmatch(location) else {}
        return {"version": "another server of its API" if at.endpoint else "Google's service", **known, **between(headers)}


    async def excess(self, settings: Settings, runtime: Runtime) -> Sequence[str]:
        from tiered.provision.bucket import excess_of, open_client

        at = self.at(settings)
        if at.endpoint is not None:
            raise NotTriedError("only Google's service tells what an identity may do")

        def ask() -> list[str]:
            with open_client(at, _project(settings)) as client:
                return excess_of(client, at)

        return await in_thread(ask, CapacityLimiter(1), abandon_on_cancel=True)


_LOCATION = re.compile(
    r"US|EU|ASIA|NAM4|EUR[458]|ASIA1|(AFRICA|ASIA|AUSTRALIA|EUROPE|ME|NORTHAMERICA|SOUTHAMERICA|US)-(CENTRAL|(NORTH|SOUTH)?(EAST|WEST)?)\d{1,2}"
)
"""As Google names its own. That of another server may be its user's word."""

BLOBS = GcsKind()


def _project(settings: Settings) -> str | None:
    """Where a new bucket is made. None: in the project of the credentials."""
    return None if settings.bigtable is None else settings.bigtable.project
