"""Opens a store only to look at it: a service that is away when it is opened keeps nothing else from being shown.

PostgreSQL is asked for the schema before anything else, so a store there cannot be opened while the server is down.
Then the rows and the changelog are stand-ins, each call of which raises that error, and the blobs are opened alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

from changelog.base.errors import UnavailableError
from changelog.base.runtime import Runtime
from changelog.log import ChangeLog
from changelog.noop import NoopChangeLog
from tiered.kinds.chosen import blobs_kind
from tiered.kinds.kind import OpenRows
from tiered.open import Backends, open_backends
from tiered.services.backends import HighVolumeBackend, LongTermBackend, Tiers
from tiered.services.capabilities import Ownership
from tiered.services.scans import BlobPage
from tiered.settings import Settings


class _Away:
    """Rows, or a changelog, that did not answer when they were opened."""

    durable = True

    def __init__(self, error: UnavailableError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*_: object, **__: object) -> None:
            raise self._error

        return call


class _Blobs:
    """Blobs in a bucket, while the rows do not say who its owner is: whose an absent one would be is not known.

    So `head` only finds out whether the bucket answers, and all else is the bucket's.
    """

    def __init__(self, bucket: LongTermBackend) -> None:
        self._bucket = bucket

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bucket, name)

    async def head(self, name: str) -> BlobPage:
        return await self._bucket.list(name, None, 1)


@asynccontextmanager
async def open_to_look(settings: Settings, runtime: Runtime) -> AsyncIterator[tuple[Backends, bool]]:
    """Yields what `gather` needs, and whether all of it was opened. It is not verified, and only reads.

    If the second is False, opening it again may do. Raises `ConfigurationError`, which says what to change.
    """
    async with AsyncExitStack() as stack:
        try:
            backends = await stack.enter_async_context(open_backends(settings, runtime, writes=False, verify=False))
        except UnavailableError as error:
            rows = cast(HighVolumeBackend, _Away(error))
            log = cast(ChangeLog, _Away(error)) if settings.logged else NoopChangeLog()
            opening = blobs_kind(settings).open(settings, runtime, OpenRows(rows, log, ""), writes=False, verify=False)
            blobs = await stack.enter_async_context(opening)
            yield Backends(Tiers(rows, cast(LongTermBackend, _Blobs(blobs)) if isinstance(blobs, Ownership) else blobs), log), False
        else:
            yield backends, True
