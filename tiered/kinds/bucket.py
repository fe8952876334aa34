"""What kinds of blobs in a bucket have in common: how they are named, and whose they are.

The owner of the blobs is verified when they are opened: a store would delete those of another one. With `verify` False
this was done before; the tiers still ask for the owner before they change anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from changelog.base.errors import ConfigurationError, TieredError, UnavailableError
from changelog.base.events import events
from changelog.base.runtime import Runtime
from tiered.buckets.owners import OWNERS
from tiered.kinds.kind import OpenRows, TrialNeeds
from tiered.provision.findings import Notice, clocks_apart
from tiered.services.backends import LongTermBackend
from tiered.services.capabilities import Ownership
from tiered.settings import TRIALS, GcsSettings, S3Settings, Settings, StoreSettings

if TYPE_CHECKING:
    from tiered.buckets.owned import BucketBlobs, OwnedBucket
    from tiered.transfer.upload_lanes import UploadLanes

At = TypeVar("At", GcsSettings, S3Settings)
B = TypeVar("B", bound="BucketBlobs")

_FAR_NS = 1 << 62


class BucketKind(ABC, Generic[At, B]):
    """`section`: of the settings. `scheme`: of addresses. `elsewhere`: how an audit calls an endpoint that is set."""

    section: str
    scheme: str
    elsewhere: str

    @abstractmethod
    def connect(self, at: At, runtime: Runtime, store: StoreSettings) -> AbstractAsyncContextManager[B]:
        """Opens the bucket, whoever owns it. Sends nothing yet. Names are those of the bucket."""

    @abstractmethod
    def owned(self) -> type[OwnedBucket[B]]:
        """The blobs of one store in it. Imports the service's packages."""

    @asynccontextmanager
    async def open(
        self, settings: Settings, runtime: Runtime, rows: OpenRows, *, writes: bool, verify: bool
    ) -> AsyncIterator[LongTermBackend]:
        at = self.at(settings)
        async with self.connect(at, runtime, settings.store) as bucket:
            blobs = self.owned()(bucket, at.bucket, at.prefix, rows.owner)
            if verify:
                await verify_owner(blobs, at.bucket, writes=writes)
            yield blobs

    def beside(self, settings: Settings, trial: str) -> Settings:
        at = self.at(settings)
        return settings.model_copy(update={self.section: at.model_copy(update={"prefix": f"{at.prefix}{TRIALS}{trial}/"})})

    async def trials(self, settings: Settings, runtime: Runtime) -> Sequence[str]:
        at = self.at(settings)
        async with self.connect(at, runtime, settings.store) as bucket:
            below = [f"{before}{at.prefix}{TRIALS}" for before in ("", OWNERS)]
            return sorted({name.removeprefix(each).partition("/")[0] for each in below for name in await bucket.names_below(each)})

    async def clear(self, settings: Settings, runtime: Runtime) -> None:
        at = self.at(settings)
        async with self.connect(at, runtime, settings.store) as bucket:
            await _empty(bucket, at.prefix)

    async def remove(self, settings: Settings, runtime: Runtime, trial: str) -> None:
        prefix = self.at(self.beside(settings, trial)).prefix
        async with self.connect(self.at(settings), runtime, settings.store) as bucket:
            unlisted = await _empty(bucket, prefix)
            for name in await bucket.names_below(f"{OWNERS}{prefix}"):  # the marker last: without it, nobody sees what is left
                await bucket.delete(name)
            if unlisted is not None:
                raise unlisted

    @abstractmethod
    async def told(self, settings: Settings, runtime: Runtime) -> Mapping[str, str]:
        """As of `TrialKind`."""

    def trial_needs(self, settings: Settings) -> TrialNeeds:
        below = f"objects below {TRIALS}…/ and {OWNERS}…, after the prefix of the settings"
        return TrialNeeds(below, "to make, read, list and delete objects and uploads in parts")

    async def clock(self, settings: Settings, runtime: Runtime) -> list[Notice]:
        """A note if the service's clock is far from this machine's. Nothing if it does not answer: others say so."""
        with suppress(TieredError):
            async with self.connect(self.at(settings), runtime, settings.store) as bucket:
                return clocks_apart(f"bucket {self.at(settings).bucket}", await bucket.now_ns(), runtime.wall_ns())
        return []

    def at(self, settings: Settings) -> At:
        found: At | None = getattr(settings, self.section)
        assert found is not None, "whoever chooses this kind has seen its section"
        return found

    def address(self, settings: Settings) -> str:
        at = self.at(settings)
        return f"{self.section}:{at.bucket}{at.prefix and f'/{at.prefix}'}"

    def inputs(self, settings: Settings) -> Mapping[str, str]:
        at = self.at(settings)
        named = {"bucket": at.bucket, "prefix": at.prefix, self.elsewhere: at.endpoint or ""}
        return {name: value for name, value in named.items() if value}

    def place(self, settings: Settings) -> str:
        return f"{self.scheme}://{self.at(settings).bucket}"


def between(headers: Mapping[str, str]) -> dict[str, str]:
    """What stands between us and a service, as far as the headers of an answer tell. Their names are in lower case."""
    server = headers.get("server", "").partition(" ")[0].partition("/")[0].lower()
    if server in _PROXIES:
        return {"in between": _PROXIES[server]}
    return {"in between": "a proxy"} if any(headers.get(name) for name in _FORWARDED) else {}


_PROXIES = {name.lower(): name for name in ("nginx", "openresty", "Apache", "Caddy", "envoy", "istio-envoy", "HAProxy", "Varnish", "Squid")}
_FORWARDED = ("via", "x-cache", "x-served-by")


async def _empty(bucket: BucketBlobs, prefix: str) -> TieredError | None:
    """Ends the uploads that are open below the prefix, and deletes what is there.

    Returns why uploads may be left: there are services without a list of them.
    """
    after: str | None = ""
    unlisted = None
    try:
        while after is not None:
            page = await bucket.open_sessions(_FAR_NS, after, 1000, prefix)
            for each in page.sessions:
                await bucket.cancel(each.session)
            after = page.next_after
    except TieredError as error:
        unlisted = error
    for name in await bucket.names_below(prefix):
        await bucket.delete(name)
    return unlisted


def lanes_of(store: StoreSettings) -> UploadLanes:
    from tiered.transfer.upload_lanes import UploadLanes

    return UploadLanes(memory_bytes=store.upload_memory_bytes)


async def verify_owner(blobs: Ownership, bucket: str, *, writes: bool) -> None:
    """Says now, not at the first large put, that the bucket is missing, forbidden or another store's."""
    try:
        if (ownerless := await blobs.check_owner()) is not None:
            if writes:
                raise ConfigurationError(ownerless)
            events.warning("bucket_without_owner", ownerless, bucket=bucket)
    except UnavailableError as error:  # small objects and the changelog work without the bucket
        events.warning("bucket_not_reached", error, bucket=bucket)
