"""`export_objects`: writes all objects of a store to a place, part by part, and goes on where it was interrupted.

    1. begin     `begun.json`; or what is there is compared: another store or prefix is refused
    2. look      each part that is there: what has no whole file, or failed before, is fetched again. A part that is
                 damaged, and those after it, are made anew
    3. go on     list up to 10,000 objects, or for 5 minutes; fetch each; make the files durable; write the part
    4. end       `manifest.json`, with `complete` only if nothing failed

An export is no snapshot: each object is as it was at some moment between the beginning and the end, and all of it is
from one write. What is created meanwhile may be in it or not. What the API does not show is not in it: what has
expired, and rows that are no objects.

An update makes the parts of another round beside those that are there, and takes from these what has the same revision
and deadline. Only its end replaces `manifest.json`, so until then the export is what it was.

*Crash*: the next call goes on after the last part. Of the part that was under way, it takes what is whole: the size and
the crc32c are those that the store tells. *Failure* of an object: its row says why, and the next call tries it again.
*Failure* of the place ends the call, and nothing of the part is written. Memory holds the rows of one part.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from hashlib import sha256
from inspect import isawaitable
from typing import Any, NamedTuple

import anyio

from changelog.base.errors import ConfigurationError, CorruptRecordError, InvalidRequestError, TieredError, UnavailableError
from changelog.base.threads import in_thread
from tiered.bulk import Bulk, bounded_concurrency
from tiered.exports.manifest import (
    BEGUN,
    EXPORTED,
    FAILED,
    MANIFEST,
    PART_BYTES_MAX,
    VANISHED,
    BegunExport,
    EndedExport,
    ExportCounts,
    ExportRow,
    RowsPart,
    decode_begun,
    decode_ended,
    decode_part,
    encode_part,
    part_name,
    read_file,
    read_part,
    software,
    write_file,
)
from tiered.exports.payloads import PayloadSums, Summing, checksums_of, crc_of, payload_name
from tiered.exports.places import ExportPlace, open_place
from tiered.exports.verifying import rows_of, wrong_with
from tiered.kinds.chosen import blobs_kind, rows_kind
from tiered.limits.policies import IN_BULK
from tiered.metadata import as_datetime
from tiered.object_id import ALL, ObjectId, ObjectPrefix
from tiered.protocol.listing import ListRequest
from tiered.storage import TieredStorage
from tiered.stored import Folder, ListEntry, ObjectHead, StoredObject
from tiered.text import check_flags, quoted

PART_OBJECTS, PART_S = 10_000, 300.0
UNAVAILABLE_MAX = 100
"""After so many objects in a row that could not be read because something does not answer, a call gives up."""

OnExported = Callable[[ExportRow], object]


@dataclass(frozen=True, slots=True)
class ExportReport:
    """`exported`, `vanished`, `failed`: objects. `changed`: of those exported, replaced after they
    were listed. `bytes`: of the payloads.

    `fetched`: how many objects this call read from the store. `mended`: how many of them had no whole file before.
    `complete`: all objects that were listed are there, or had vanished. `left_out`: rows whose key is no object id, so
    that no call shows them; the log names each (`unparseable_row`, `corrupt_row`).
    """

    exported: int
    vanished: int
    failed: int
    changed: int
    bytes: int
    fetched: int
    mended: int
    complete: bool
    left_out: int = 0


async def export_objects(
    storage: TieredStorage, to: str | os.PathLike[str], prefix: ObjectPrefix = ALL, *, update: bool = False,
    verify: bool = False, concurrency: int | None = None, on_result: OnExported | None = None,
) -> ExportReport:  # fmt: skip
    """Exports the objects of a prefix to a directory, `gs://BUCKET/PREFIX` or `s3://BUCKET/PREFIX`, or goes on with it.

    Payloads are written as they are stored: those that `compress` made stay compressed. `update`: an export that has
    ended is brought up to date: all is listed again, what has changed is read, and files of what is gone are removed
    if it is complete. `verify`: what an earlier call wrote is read again and compared, and fetched anew if it differs;
    without it, only sizes in a directory are. `concurrency`: how many objects at once, as for `put_many`.
    `on_result` is called in the event loop with the row of each object that this call read, and may be an async
    function; what it raises ends the call.

    Open the store with `writes=False`, or each read extends a time to idle.

    Raises `ConfigurationError` (the place holds something else, or cannot be written), `UnavailableError` (the place or
    the store does not answer, or the disk is full: call again), `CorruptRecordError` (`begun.json` or `manifest.json`
    is damaged), and what a listing raises.
    """
    if not isinstance(storage, TieredStorage) or not isinstance(prefix, ObjectPrefix):
        raise InvalidRequestError("pass an open storage, a place, and an ObjectPrefix")
    check_flags(update=update, verify=verify)
    if on_result is not None and not callable(on_result):
        raise InvalidRequestError(f"on_result is a function, or None, not {quoted(on_result)}")
    concurrency = bounded_concurrency(concurrency, storage._settings.store)
    in_bulk = IN_BULK.set(True)
    try:
        async with open_place(to, storage._runtime, storage._settings, writes=True) as place:
            return await _Export(storage, place, prefix, verify, concurrency, on_result).carry_out(update=update)
    finally:
        IN_BULK.reset(in_bulk)


class _Export:
    """One call. `_resumed`: files of a call that was killed may be in the place."""

    def __init__(
        self, storage: TieredStorage, place: ExportPlace, prefix: ObjectPrefix, verify: bool, concurrency: int,
        on_result: OnExported | None,
    ) -> None:  # fmt: skip
        self._storage = storage
        self._runtime = storage._runtime
        self._place = place
        self._prefix = prefix
        self._verify = verify
        self._concurrency = concurrency
        self._on_result = on_result
        self._resumed = False
        self._counts = ExportCounts()
        self._parts: list[RowsPart] = []
        self._fetched = self._mended = self._unavailable = 0
        self._broken: TieredError | None = None
        self._round = 1
        self._earlier = _Earlier(None)

    async def carry_out(self, *, update: bool) -> ExportReport:
        self._begun = await self._begin()
        await self._place.claim()
        report = await self._go_on(update=update)
        await self._place.release()
        return report

    async def _go_on(self, *, update: bool) -> ExportReport:
        ended = await self._ended()
        if ended is None:
            return await self._carry_out(None)
        left = 0
        while ended.round > 1 and await self._place.size(part_name(left, ended.round - 1)) is not None:
            left += 1
        await self._remove_parts(ended.round - 1, left)
        if not update:
            self._round = ended.round
            return await self._carry_out(ended)
        self._round = ended.round + 1
        async with aclosing(rows_of(self._place, ended)) as rows:
            self._earlier = _Earlier(rows)
            report = await self._carry_out(None)
        if report.complete:
            await self._remove_unnamed(ended)
        await self._remove_parts(ended.round, len(ended.parts))
        return report

    async def _remove_unnamed(self, earlier: EndedExport) -> None:
        """Removes the files of an earlier round that no row names any more: what is gone must not stay with others."""
        now = await self._ended()
        assert now is not None, "it has just been written"
        async with aclosing(rows_of(self._place, earlier)) as before, aclosing(rows_of(self._place, now)) as after:
            row = await anext(after, None)
            async for old in before:
                while row is not None and row.path.encode() < old.path.encode():
                    row = await anext(after, None)
                if row is None or row.file != old.file:
                    await self._place.remove(old.file)

    async def _remove_parts(self, round: int, count: int) -> None:
        """The last one first, so that whoever goes on after a kill finds those that are left."""
        for number in reversed(range(count)):
            await self._place.remove(part_name(number, round))

    async def _carry_out(self, ended: EndedExport | None) -> ExportReport:
        changed = await self._look_at_parts()
        while not self._parts or self._parts[-1].end is not None:
            changed = True
            await self._write_next()
        if ended is None or changed or list(ended.parts) != self._parts:
            await self._read_back()
            ended = EndedExport(self._begun, self._now(), not self._counts.failed, self._round, self._counts, tuple(self._parts))
            await write_file(self._place, MANIFEST, ended.encode(), "application/json")
        return ExportReport(**asdict(self._counts), fetched=self._fetched, mended=self._mended, complete=ended.complete)

    async def _read_back(self) -> None:
        """Looks, in a bucket, whether the parts are those of this call, also if a late request of another one came."""
        for part in () if self._place.local else self._parts:
            content = await read_file(self._place, part.file, PART_BYTES_MAX)
            if content is None or sha256(content).hexdigest() != part.sha256:
                raise ConfigurationError(f"{self._place.name}/{part.file} was written by another call at the same time:"
                                         " give the same command again, once")  # fmt: skip

    # --- begin, look

    async def _begin(self) -> BegunExport:
        settings = self._storage._settings
        store = {**rows_kind(settings).inputs(settings), **blobs_kind(settings).inputs(settings)}
        wanted = BegunExport(f"{self._runtime.random.getrandbits(64):016x}", software(), store, self._prefix.path, self._now())
        text = await read_file(self._place, BEGUN)
        if text is None:
            if (stranger := await self._place.stranger()) is not None:
                raise InvalidRequestError(f"{self._place.name} holds {quoted(stranger)}, and no export: give an empty place")
            await write_file(self._place, BEGUN, wanted.encode(), "application/json", is_new=True)
            return wanted
        found = decode_begun(text, f"{self._place.name}/{BEGUN}")
        found.check_same(wanted, self._place.name)
        self._resumed = True
        return found

    async def _ended(self) -> EndedExport | None:
        text = await read_file(self._place, MANIFEST)
        if text is None:
            return None
        where = f"{self._place.name}/{MANIFEST}"
        ended = decode_ended(text, where)
        if ended.begun != self._begun:
            raise CorruptRecordError(f"{where} is of another export than {BEGUN}: export anew to another place")
        return ended

    async def _look_at_parts(self) -> bool:
        """Reads the parts that are there, up to the first that is damaged, and mends what they tell.

        Returns whether anything was changed.
        """
        end: str | None = None
        is_changed = False
        while not self._parts or end is not None:
            number = len(self._parts)
            try:
                read = await read_part(self._place, part_name(number, self._round), self._begun.export)
            except CorruptRecordError:
                read = None
            if read is None or read[0].after != end:  # from here on, all is listed again
                break
            part, rows = read
            mended = await self._mend(rows)
            if mended is not None:
                part, rows = await self._write_part(number, mended, part.after, part.end, part.left_out), mended
                is_changed = True
            self._keep(part, rows)
            end = part.end
        return is_changed

    def _keep(self, part: RowsPart, rows: Sequence[ExportRow]) -> None:
        self._parts.append(part)
        self._counts.left_out += part.left_out
        for row in rows:
            self._counts.add(row)

    async def _mend(self, rows: list[ExportRow]) -> list[ExportRow] | None:
        """The rows, with those fetched again that have no whole file. None: all have one."""
        wrong = {row.path: row async for row in self._each(rows, ExportRow, self._is_wrong) if row is not None}
        if not wrong:
            return None
        entries = [ObjectId.parse(path) for path in wrong]
        again = {row.path: row async for row in self._each(entries, ObjectId, self._fetch)}
        self._mended += sum(row.state == EXPORTED for row in again.values())
        return [again.get(row.path, row) for row in rows]

    async def _is_wrong(self, row: ExportRow) -> ExportRow | None:
        if row.sums is None:
            return row if row.state == FAILED else None
        if self._verify:
            return None if await self._on_place(wrong_with(self._place, row)) is None else row
        return row if self._place.local and await self._place.size(row.file) != row.sums.size else None

    # --- go on

    async def _write_next(self) -> None:
        """Lists and fetches the objects of one part, and writes it."""
        after = self._parts[-1].end if self._parts else None
        batch = _PartEntries(self._runtime.monotonic, PART_OBJECTS, PART_S)
        request = ListRequest(self._prefix, None if after is None else ObjectId.parse(after), None, None, metadata=False)
        listed = self._storage._lister.entries(request, batch.begin_page)
        async with aclosing(batch.take(listed)) as entries, aclosing(self._earlier.beside(entries)) as pairs:
            rows = [row async for row in self._each(pairs, _ListedObject, self._fetch_listed)]
        rows.sort(key=lambda row: row.path.encode())
        part = await self._write_part(len(self._parts), rows, after, batch.last if batch.is_cut else None, batch.left_out)
        self._keep(part, rows)

    async def _write_part(self, number: int, rows: list[ExportRow], after: str | None, end: str | None, left_out: int) -> RowsPart:
        await self._place.settle()
        name = part_name(number, self._round)

        def encoded() -> tuple[bytes, RowsPart]:
            content = encode_part(rows, self._begun, after, end, left_out)
            return content, decode_part(content, name, self._begun.export, f"{self._place.name}/{name}")[0]  # as readers will

        content, described = await in_thread(encoded, anyio.CapacityLimiter(1))  # it takes a second
        await write_file(self._place, described.file, content, "application/vnd.apache.parquet")
        return described

    async def _each(self, source: Any, kind: type[Any], work: Callable[[Any], Awaitable[Any]]) -> AsyncGenerator[Any, None]:
        """The results of some work on each, as they complete. A failure of the place ends it."""
        async with Bulk(source, kind, work, self._concurrency) as results:
            async for result in results:
                value = result.value
                if self._broken is not None:
                    raise self._broken
                yield value

    async def _fetch_listed(self, listed: _ListedObject) -> ExportRow:
        entry, earlier = listed
        if earlier is not None and await self._still_holds(entry, earlier):
            return earlier
        if entry.fault is not None:
            return await self._tell(ExportRow(entry.object_id.path, FAILED, f"it is damaged: {entry.fault}"))
        return await self._fetch(entry.object_id, listed=entry)

    async def _still_holds(self, entry: ListEntry, earlier: ExportRow) -> bool:
        """Whether the row of an earlier round is right, and its file whole as far as `_is_wrong` looks."""
        if entry.fault is not None or entry.revision is None or earlier.revision != entry.revision:
            return False
        if earlier.decoded().time_expires_ns != entry.time_expires_ns:  # a read has extended a time to idle
            return False
        return await self._is_wrong(earlier) is None

    async def _fetch(self, object_id: ObjectId, listed: ListEntry | None = None) -> ExportRow:
        """Reads an object and writes its file. The error of an object is its row. `listed` None: its file is mended."""
        if self._broken is not None:  # the place takes nothing any more
            raise self._broken
        if self._unavailable >= UNAVAILABLE_MAX:
            raise UnavailableError(f"given up after {UNAVAILABLE_MAX} objects in a row that could not be read; call again, which goes on")
        try:
            try:
                row = await self._read(object_id, listed)
            except FileExistsError:  # another call wrote the file meanwhile
                await self._on_place(self._place.look())
                self._resumed = True
                row = await self._read(object_id, listed)
            self._unavailable = 0
        except FileExistsError as error:
            raise self._of_place(UnavailableError(f"{error}: another call writes it, too; let one of them end")) from error
        except TieredError as error:
            if self._broken is not None:
                raise self._broken from error
            self._unavailable = self._unavailable + 1 if isinstance(error, UnavailableError) else 0
            row = ExportRow(object_id.path, FAILED, str(error))
        return await self._tell(row)

    async def _read(self, object_id: ObjectId, listed: ListEntry | None) -> ExportRow:
        stored = await self._storage.get(object_id, decompress=False)
        if stored is None:
            return ExportRow(object_id.path, VANISHED, "it was deleted, or has expired, after it was listed", read_us=self._us())
        async with stored:
            head, file = stored.head, payload_name(object_id.path, stored.revision)
            is_changed = listed is not None and listed.revision != head.revision
            if self._resumed and (size := await self._on_place(self._place.size(file))) is not None:
                if listed is not None and size == head.size and (sums := await self._whole_already(head, file)) is not None:
                    return ExportRow.of(head, sums, self._runtime.wall_ns(), is_changed=is_changed)
                await self._on_place(self._place.remove(file))
            sums = await self._save(stored, file)
        told = crc_of(head.checksum)
        if told is not None and sums.crc32c is not None and told != sums.crc32c:
            raise CorruptRecordError(f"{object_id}: its bytes have the crc32c {sums.crc32c}, and the store tells {told}")
        self._fetched += 1
        return ExportRow.of(head, sums, self._runtime.wall_ns(), is_changed=is_changed)

    async def _save(self, stored: StoredObject, file: str) -> PayloadSums:
        summing = Summing(_one(stored.in_memory) if stored.in_memory is not None else aiter(stored))
        try:
            await self._place.write(file, aiter(summing), stored.size, "application/octet-stream")
        except Exception as error:
            if summing.failed is None and isinstance(error, TieredError):
                raise self._of_place(error) from error
            raise
        return summing.sums()

    async def _whole_already(self, head: ObjectHead, file: str) -> PayloadSums | None:
        """The checksums of a file that a killed call left, if it has what the store tells. None: it is fetched anew."""
        crc = crc_of(head.checksum)
        if crc is None or head.revision is None:
            return None
        try:
            sums = await self._on_place(checksums_of(self._place.read(file)))
        except FileNotFoundError:
            return None
        return sums if sums.size == head.size and sums.crc32c == crc else None

    async def _on_place(self, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except TieredError as error:
            raise self._of_place(error) from error

    def _of_place(self, error: TieredError) -> TieredError:
        """Remembers that the place failed, and not the object: this ends the call."""
        self._broken = error
        return error

    async def _tell(self, row: ExportRow) -> ExportRow:
        if self._on_result is not None:
            answer = self._on_result(row)
            if isawaitable(answer):
                await answer
        return row

    def _us(self) -> int:
        return self._runtime.wall_ns() // 1000

    def _now(self) -> str:
        moment = as_datetime(self._runtime.wall_ns())
        assert moment is not None, "a clock tells a time"
        return moment.isoformat(timespec="milliseconds")


class _PartEntries:
    """Takes entries of a listing for one part. `last`: the path of the last one. `is_cut`: there may be more.

    `left_out`: how many rows are no objects, of those up to the last entry, or of all if it is not cut.
    """

    def __init__(self, monotonic: Callable[[], float], objects_max: int, seconds_max: float) -> None:
        self._monotonic = monotonic
        self._objects_max = objects_max
        self._until = monotonic() + seconds_max
        self.last: str | None = None
        self.is_cut = False
        self.left_out = 0
        self._of_page: Sequence[int] = ()
        self._taken_of_page = 0

    def begin_page(self, no_objects: Sequence[int]) -> None:
        """`no_objects`: as the listing tells them."""
        self.left_out += len(self._of_page)
        self._of_page, self._taken_of_page = no_objects, 0

    async def take(self, entries: AsyncGenerator[ListEntry | Folder, None]) -> AsyncGenerator[ListEntry, None]:
        taken = 0
        async with aclosing(entries):
            async for entry in entries:
                assert isinstance(entry, ListEntry), "without a delimiter there are no folders"
                taken, self.last = taken + 1, entry.object_id.path
                self._taken_of_page += 1
                yield entry
                if taken == self._objects_max or self._monotonic() > self._until:
                    self.is_cut = True
                    self.left_out += sum(before < self._taken_of_page for before in self._of_page)
                    return
        self.left_out += len(self._of_page)


class _ListedObject(NamedTuple):
    """An entry of the listing, and the row that an earlier round has of the object."""

    entry: ListEntry
    earlier: ExportRow | None


class _Earlier:
    """The rows of an earlier round, in the order of their paths; None: there is none."""

    def __init__(self, rows: AsyncIterator[ExportRow] | None) -> None:
        self._rows = rows
        self._next: ExportRow | None = None

    async def beside(self, entries: AsyncGenerator[ListEntry, None]) -> AsyncGenerator[_ListedObject, None]:
        """Each entry with its row. Both are in the same order, and a later call goes on."""
        async for entry in entries:
            path = entry.object_id.path.encode()
            while self._rows is not None and (self._next is None or self._next.path.encode() < path):
                self._next = await anext(self._rows, None)
                if self._next is None:
                    self._rows = None
            found = self._next
            yield _ListedObject(entry, found if found is not None and found.path.encode() == path else None)


async def _one(whole: memoryview) -> AsyncIterator[bytes]:
    if whole:
        yield bytes(whole)


