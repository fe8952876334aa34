"""What `compare` does: the ids that a caller's own rows name, beside the objects of a prefix.

    1. read     all ids, in any order, into a temporary table, which sorts them
    2. list     the prefix, in the same order
    3. merge    what only one side has is yielded

All ids are read before anything is listed, and whoever stores an object before the row that names it has stored it by
then. So no id is without its object because it is new. And a caller's iterator that fails yields nothing.

An object that no id names may be waiting for its row. It is yielded only if it was old when the comparison began: by
its revision, whose time is when its write began, and by its time of creation, because a copy keeps that. The writer's
clock told the one and the service's the other, so a grace is not to be shorter than clocks differ.

*Crash*: nothing is written, and the table has no name. *Failure*: what listings and temporary tables raise.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import anyio

from changelog.base.errors import CorruptRecordError, InvalidRequestError
from changelog.base.tasks import elsewhere_is_an_error
from changelog.base.threads import in_thread
from tiered.bulk import Requests, each_request
from tiered.errors import DanglingTombstoneError
from tiered.metadata import NS_PER_S
from tiered.object_id import ObjectId, ObjectPrefix
from tiered.services.backends import SWAP_AGE_MAX_S
from tiered.stored import Difference, Folder, ListEntry, ObjectHead
from tiered.text import check_flags, quoted

if TYPE_CHECKING:
    from changelog.sqlite.temporary import TemporaryTable

NS_PER_MS = 1_000_000
AT_ONCE = 1000
"""How many ids one call writes into the table, or reads from it."""

Listing = AsyncGenerator[ListEntry | Folder, None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared. Its values are checked: `InvalidRequestError` names what is wrong."""

    prefix: ObjectPrefix
    object_ids: Requests[ObjectId]
    grace: timedelta | None
    allow_empty: bool

    def __post_init__(self) -> None:
        if isinstance(self.object_ids, (str, bytes)) or not isinstance(self.object_ids, (AsyncIterable, Iterable)):
            raise InvalidRequestError(f"object_ids is an iterable or async iterable of ObjectId, not {quoted(self.object_ids)}")
        if self.grace is not None and (not isinstance(self.grace, timedelta) or self.grace < timedelta(0)):
            raise InvalidRequestError(f"grace is how old an object is at least, such as timedelta(days=1), not {quoted(self.grace)}")
        check_flags(allow_empty=self.allow_empty)

    def before_ns(self, now_ns: int, upload_age_max_s: float) -> int:
        """What was there at this time (Unix ns) is old. An upload takes up to `upload_age_max_s` and a day."""
        if self.grace is None:
            return now_ns - int((upload_age_max_s + 2 * SWAP_AGE_MAX_S) * NS_PER_S)
        return now_ns - self.grace // timedelta(microseconds=1) * 1000

    async def differences(
        self, listing: Callable[[], Listing], head: Callable[[ObjectId], Awaitable[ObjectHead | None]], before_ns: int
    ) -> AsyncGenerator[Difference, None]:
        """Yields them in the byte order of their paths. `listing` begins to list the prefix."""
        from changelog.sqlite.temporary import TemporaryTable  # noqa: PLC0415 - most stores load no SQLite

        threads = anyio.CapacityLimiter(1)
        table = await in_thread(partial(TemporaryTable, "CREATE TABLE named (path BLOB)"), threads, undo=TemporaryTable.close)
        try:
            await self._read_ids(table, threads)
            async with aclosing(_sorted(table, threads)) as named, aclosing(listing()) as listed:
                name = await anext(named, None)
                is_empty = name is None
                async for entry in listed:
                    assert isinstance(entry, ListEntry), "no delimiter makes folders"
                    path = entry.object_id.path.encode()
                    while name is not None and name < path:
                        yield Difference(ObjectId.parse(name.decode()), None)
                        name = await anext(named, None)
                    if name == path:
                        name = await anext(named, None)
                    elif await _was_there(entry, before_ns, head):
                        if is_empty and not self.allow_empty:
                            raise InvalidRequestError(
                                f"no id came, and there are objects, such as {entry.object_id}: "
                                "if your rows name none, pass allow_empty=True"
                            )
                        yield Difference(entry.object_id, entry)
                while name is not None:
                    yield Difference(ObjectId.parse(name.decode()), None)
                    name = await anext(named, None)
        finally:
            table.close()

    async def _read_ids(self, table: TemporaryTable, threads: anyio.CapacityLimiter) -> None:
        async def keep(some: list[tuple[bytes]]) -> None:
            await in_thread(partial(table.write, "INSERT INTO named VALUES (?)", some), threads)

        batch: list[tuple[bytes]] = []
        with elsewhere_is_an_error("nothing was compared: what the iterator of the ids awaited was cancelled elsewhere"):
            async with aclosing(each_request(self.object_ids)) as object_ids:
                async for object_id in object_ids:
                    batch.append((self._checked(object_id).path.encode(),))
                    if len(batch) == AT_ONCE:
                        await keep(batch)
                        batch = []
        await keep(batch)

    def _checked(self, object_id: object) -> ObjectId:
        if not isinstance(object_id, ObjectId):
            raise InvalidRequestError(f"pass each id as an ObjectId, not as {quoted(object_id)}: ObjectId.parse(text), if it is a path")
        if object_id not in self.prefix:
            raise InvalidRequestError(f"{object_id} is not within the prefix {quoted(self.prefix.path)}: pass the prefix of all your ids")
        return object_id


async def _sorted(table: TemporaryTable, threads: anyio.CapacityLimiter) -> AsyncGenerator[bytes, None]:
    """The paths in the order of their bytes, each once."""
    rows: Iterator[tuple[bytes]] = table.execute("SELECT path FROM named ORDER BY path")
    last = None
    while batch := await in_thread(lambda: list(islice(rows, AT_ONCE)), threads):
        for (path,) in batch:
            if path != last:
                yield path
            last = path


async def _was_there(entry: ListEntry, before_ns: int, head: Callable[[ObjectId], Awaitable[ObjectHead | None]]) -> bool:
    """Whether the object is older than that. What is damaged has no age, and is old."""
    made_ns = None if entry.revision is None else (entry.revision.created_ms + 1) * NS_PER_MS  # or some time before
    times_ns = [entry.time_created_ns, made_ns]
    if times_ns == [None, None] and entry.fault is None:
        try:
            found = await head(entry.object_id)
        except (CorruptRecordError, DanglingTombstoneError):
            return True
        if found is None:
            return False  # it is gone by now
        times_ns = [found.metadata.time_created_ns]
    return max((each for each in times_ns if each is not None), default=before_ns) <= before_ns
