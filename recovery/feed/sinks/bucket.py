"""`BucketSink`: a bucket of Google Cloud Storage, with the same names as in a directory.

    gs://bucket/prefix/_feed.json                                                     whose feed it is
    gs://bucket/prefix/generation-0001795000000000/0000000000000000000.json

Objects are created, never replaced. If a name is taken, the object is read and compared. *Failure*: see `Sink`. Runs on
asyncio only, like the store's own adapter for buckets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager

import anyio

from changelog.base.errors import ConfigurationError, CorruptRecordError, InvalidRequestError, UnavailableError, UnconfirmedError
from changelog.base.runtime import Runtime
from changelog.google.tokens import GoogleAuthorization
from recovery.feed.sinks.sink import (
    CONTENT_TYPES,
    MARK,
    MARK_BYTES_MAX,
    MARK_TYPE,
    Owner,
    Segment,
    SinkContent,
    folder_of,
    generation_of,
    time_of,
)
from tiered.gcs.bucket_files import GcsFiles
from tiered.gcs.http import SCOPE
from tiered.settings import GcsSettings

CONNECTIONS = 4


class BucketSink:
    """A `Sink`. `gcs`: the bucket, its endpoint and the time limit. `prefix`: of all names; empty: none."""

    def __init__(self, gcs: GcsSettings, prefix: str, runtime: Runtime) -> None:
        self.name = f"gs://{gcs.bucket}/{prefix}".rstrip("/")
        self._gcs = gcs
        self._prefix = f"{prefix}/" if prefix else ""
        self._runtime = runtime
        self._opening = anyio.Lock()
        self._open = AsyncExitStack()
        self._files: GcsFiles | None = None
        self._known: set[str] = set()
        """The folders of which this process knows that their first file is there."""

    async def deliver(self, segment: Segment) -> None:
        with self._explained(segment.path):
            files = await self._opened()
            await self._look_for_first(files, segment)
            name = f"{self._prefix}{segment.path}"
            if not await files.create(name, segment.data, CONTENT_TYPES[segment.suffix]) and not await files.is_equal(name, segment.data):
                raise CorruptRecordError(
                    f"{self.name}/{segment.path} has other bytes than the feed ({len(segment.data)} bytes, sha256 {segment.sha256}):"
                    " it stays as it is; find out who wrote it, and move it away"
                )
            self._known.add(segment.folder)

    async def look(self, generation: int, since: int) -> SinkContent:
        with self._explained("questions"):
            files = await self._opened()
            raw = await files.read(f"{self._prefix}{MARK}", MARK_BYTES_MAX)
            owner = None if raw is None else Owner.from_bytes(raw, f"{self.name}/{MARK}")
            folder = f"{self._prefix}{folder_of(generation)}/"
            times = [
                known[0] async for name in files.names(folder, f"{folder}{since:019d}")
                if (known := time_of(name.removeprefix(folder))) is not None
            ]  # fmt: skip
            return SinkContent(owner, await self._newest(files), tuple(times))

    async def _newest(self, files: GcsFiles) -> int | None:
        """Returns the latest generation of which a file is there. Each question passes the files of one by."""
        newest, prefix = None, f"{self._prefix}generation-"
        start = prefix
        while True:
            async with aclosing(files.names(prefix, start)) as names:
                name = await anext(names, None)
            if name is None:
                return newest
            folder = name.removeprefix(self._prefix).partition("/")[0]
            newest = generation_of(folder) or newest
            start = f"{self._prefix}{folder}0"  # the first name after all of this folder

    async def claim(self, owner: Owner) -> bool:
        with self._explained(f"the mark {MARK}"):
            await (await self._opened()).create(f"{self._prefix}{MARK}", owner.to_bytes(), MARK_TYPE)
            return True

    async def aclose(self) -> None:
        self._files = None
        await self._open.aclose()

    async def _opened(self) -> GcsFiles:
        async with self._opening:
            if self._files is None:
                gcs = self._gcs
                authorize = None if gcs.endpoint else await GoogleAuthorization.default(self._runtime, SCOPE)
                self._files = await self._open.enter_async_context(GcsFiles.connect(
                    gcs.bucket, self._runtime, endpoint=gcs.endpoint, authorize=authorize, connections_max=CONNECTIONS,
                    answer_timeout_s=gcs.timeout_s,
                ))  # fmt: skip
            return self._files

    async def _look_for_first(self, files: GcsFiles, segment: Segment) -> None:
        """Refuses a later segment if the bucket has lost the first one of its generation."""
        if segment.time == 0 or segment.folder in self._known:
            return
        if not await files.has_any(f"{self._prefix}{segment.folder}/{0:019d}."):
            raise UnavailableError(
                f"{self.name}/{segment.folder} has no first file, and {segment.name} of the feed is a later one: what was delivered"
                " before is gone; bring it back, or begin a new generation of the feed"
            )
        self._known.add(segment.folder)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """A segment can be delivered again, so an unknown outcome is no more than an answer that did not come."""
        try:
            yield
        except UnconfirmedError as error:
            raise UnavailableError(f"{self.name}: {error}").coded(error.code) from error
        except ConfigurationError:
            raise
        except InvalidRequestError as error:
            raise ConfigurationError(f"{self.name} does not take {what} of the feed: {error}").coded(error.code) from error
