"""`BucketSink`: a bucket of a cloud, with the same names as in a directory.

    gs://bucket/prefix/_feed.json                                                     whose feed it is
    gs://bucket/prefix/generation-0001795000000000/0000000000000000000.json
    s3://…                                                                            the same

Objects are created, never replaced. If a name is taken, the object is read and compared. Of S3 there are services that
replace an object although they are told not to. So before the first delivery to one, the mark is created again with
the bytes that it has: that must be refused.

`BucketFiles` is what a cloud must offer. `gcs.py` and `s3.py` have the two. *Failure*: see `Sink`. Runs on asyncio
only, like the store's own adapters for buckets.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager
from typing import Protocol, TypeVar
from urllib.parse import unquote

import anyio

from changelog.base.errors import ConfigurationError, InvalidRequestError, UnavailableError, UnconfirmedError
from recovery.display import escape_controls
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
    is_foreign,
    time_of,
)
from tiered.buckets.owners import OWNERS, owned_prefix, taken
from tiered.settings import GcsSettings, S3Settings
from tiered.sinks import Place

CONNECTIONS = 4
Section = TypeVar("Section", GcsSettings, S3Settings)


def settings_of(place: Place, section: type[Section], known: Section | None) -> Section:
    """Returns those of the bucket of a place: its service and limits are the store's. `ConfigurationError`: it is none.
    """
    try:
        return section(**{**({} if known is None else known.model_dump()), "bucket": place.authority})
    except ValueError:
        raise place.no_target() from None


def prefix_of(place: Place) -> str:
    """Returns how names in the bucket of a place begin. `ConfigurationError`: no name begins so."""
    prefix = unquote(place.path).strip("/")
    if "//" in prefix or any(part in (".", "..") for part in prefix.split("/")) or prefix != escape_controls(prefix):
        raise ConfigurationError(
            f"{escape_controls(place.shown)} is no prefix of objects: give one such as {place.scheme}://bucket/feeds/live"
        )
    return prefix


class BucketFiles(Protocol):
    """The files of a bucket.

    Each call raises `UnavailableError`, or `ConfigurationError` if somebody must change something first.
    `ALWAYS_CREATES_ONLY`: no service of this kind replaces a file.
    """

    @property
    def ALWAYS_CREATES_ONLY(self) -> bool: ...

    async def create(self, name: str, content: bytes, content_type: str) -> bool:
        """Creates a file in one request. False: one of this name is there, and stays as it is. `UnconfirmedError`:
        nobody knows. `InvalidRequestError`: the service does not take such a file."""

    async def is_equal(self, name: str, content: bytes) -> bool:
        """Returns whether the file has these bytes. They are read. `UnavailableError`: there is no file."""

    async def read(self, name: str, bytes_max: int) -> bytes | None:
        """Returns the file. None: there is none. `InvalidRequestError`: it has more bytes."""

    def names(self, prefix: str, start: str) -> AsyncGenerator[str, None]:
        """Yields the names that begin like this and are not before `start`, in order, without empty files."""

    async def has_any(self, prefix: str) -> bool:
        """Returns whether a file has a name that begins like this."""


OpenFiles = Callable[[AsyncExitStack], Awaitable[BucketFiles]]
"""Opens the files, which are closed with the stack."""


class BucketSink:
    """A `Sink`. `bucket`: its address, such as `gs://bucket`. `prefix`: of all names; empty: none."""

    def __init__(self, bucket: str, prefix: str, open_files: OpenFiles) -> None:
        self.name = f"{bucket}/{prefix}".rstrip("/")
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._open_files = open_files
        self._opening = anyio.Lock()
        self._open = AsyncExitStack()
        self._files: BucketFiles | None = None
        self._is_tried = False
        """Whether this service is known to create only."""
        self._known: set[str] = set()
        """The folders of which this process knows that their first file is there."""

    async def deliver(self, segment: Segment) -> None:
        with self._explained(segment.path):
            files = await self._opened()
            await self._look_for_first(files, segment)
            name = f"{self._prefix}{segment.path}"
            if not await files.create(name, segment.data, CONTENT_TYPES[segment.suffix]) and not await files.is_equal(name, segment.data):
                raise segment.other_bytes(self.name)
            self._known.add(segment.folder)

    async def look(self, generation: int, since: int) -> SinkContent:
        with self._explained("questions"):
            files = await self._opened()
            raw = await files.read(f"{self._prefix}{MARK}", MARK_BYTES_MAX)
            owner = None if raw is None else Owner.from_bytes(raw, f"{self.name}/{MARK}")
            if raw is not None:
                await self._try_to_replace(files, raw)
            folder = f"{self._prefix}{folder_of(generation)}/"
            names = [name.removeprefix(folder) async for name in files.names(folder, f"{folder}{since:019d}" if since else folder)]
            times = [known[0] for name in names if (known := time_of(name)) is not None]
            return SinkContent(owner, await self._newest(files), tuple(times), tuple(filter(is_foreign, names)))

    async def _newest(self, files: BucketFiles) -> int | None:
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
        """A feed that is there already goes on, also in a bucket that got an owner later."""
        with self._explained(f"the mark {MARK}"):
            files = await self._opened()
            owned = [each async for name in files.names(OWNERS, OWNERS) if (each := owned_prefix(name)) is not None]
            if (wrong := taken(self._bucket, self._prefix, owned)) is not None:
                raise ConfigurationError(f"{wrong}: give the feed a bucket without a store")
            await files.create(f"{self._prefix}{MARK}", owner.to_bytes(), MARK_TYPE)
            return True

    async def aclose(self) -> None:
        self._files = None
        await self._open.aclose()

    async def _opened(self) -> BucketFiles:
        async with self._opening:
            if self._files is None:
                self._files = await self._open_files(self._open)
            return self._files

    async def _try_to_replace(self, files: BucketFiles, mark: bytes) -> None:
        """Refuses a service that replaces what it was told to create: a feed would overwrite another's, unseen."""
        if files.ALWAYS_CREATES_ONLY or self._is_tried:
            return
        if await files.create(f"{self._prefix}{MARK}", mark, MARK_TYPE):
            raise ConfigurationError(
                f"{self.name} replaces objects that it was told only to create (If-None-Match: *): give a bucket of another service, or"
                " a newer version of this one"
            )
        self._is_tried = True

    async def _look_for_first(self, files: BucketFiles, segment: Segment) -> None:
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
