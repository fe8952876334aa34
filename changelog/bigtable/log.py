"""`BigtableChangeLog`, the changelog in a Bigtable table of its own or in the table of the rows.

    row key                          family fc (max versions 1)
    ~changelog/{shard:02x}/{id}      c  the entry, JSON (`changelog.change`); its timestamp is the last heartbeat
                                     s  absent: open; {"state":"stuck",…}; {"state":"done"} kept for the feed;
                                        its timestamp is since when
    ~daemon/{instance}               c  how often it announced itself; its timestamp is the server's time then
    ~daemon/~clock                   c  the same of whoever only asked for the time
    ~notes/{name}                    n  the value of the note
    ~values/{key}                    v  the value, empty if it was removed; its timestamp is the version

Timestamps are the server's, with two exceptions. The cell of a value has its version. Whatever order the writes arrive
in, only the cell with the highest version is ever read. And an entry that has no owner is dated 0: such an entry is
stale at once, and a search by time finds it. Entries that are recorded or forgotten at the same time share calls
(`changelog.bigtable.group_commit`). Each other change of an entry is one `CheckAndMutateRow`. It compares the exact
bytes of the newest `c` and replaces them. The same step removes older versions. So nothing can compare with an older
version, and a server whose clock is behind cannot write beneath one. Calls to the service, if nothing goes wrong:

    record, claim, release, keep, forget, announce, now_ms 1   renew 1 for each entry   retry, park 2   read 1
    entries, kept, presences 1 for a page              read_note, swap_note 1
    stale 1 if nothing is old, otherwise 2 for a page
    read_values, write_values, erase_values 1 for a portion (`changelog.log.portions`)   scan_values 1 for a page
    a compare-and-swap that fails: 1 more, see `_compare_and_mutate` and `swap_note`

The first `record` of a change does not compare, because nobody else can have an entry of a new id. A repeated one
writes nothing if another value is stored than the first one wrote.

*Crash* at any call: the whole entry is in the log, or nothing of it. A first `record` that was not confirmed may land
late, once:

    after the entry was forgotten     recovery finds a change that is settled, and forgets it again (I5)
    over a claim                      the claimer's renewal says NOT_YOURS; after the expiry the entry is stale and
                                      claimed again; two may clean up at once, which settling allows (I5)
    over a release                    what it waited for is lost, so the claimer waits for a whole new grace (I3)
    over a parked or kept one         it stays parked or kept

Nothing is deleted because an entry says so, only because a settled row does. So none of these harms I1, I2 or I4. Each
costs one more turn of recovery, and a failed attempt may not be counted (I6). `park` and `retry` read the state, and
then compare the value alone. If the entry is kept in between, it is parked, or open again. An operator or recovery has
it then, and the change is kept once more in the end. *Failure*: see `changelog.bigtable.channel`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from weakref import WeakSet

import anyio

from changelog.base.errors import LeaseLostError, TieredError, UnconfirmedError
from changelog.base.events import Once, events
from changelog.base.runtime import Runtime
from changelog.bigtable.channel import (
    DELETE_ROW,
    FIRST,
    NEWEST,
    SERVER_TIME,
    WITHOUT_VALUES,
    BigtableTable,
    KeySpan,
    Message,
    chain,
    column_is,
    delete_column,
    either,
    family_is,
    set_cell,
    timestamp_in,
    value_after,
    value_before,
    value_begins_not_with,
    value_from,
    value_is,
)
from changelog.bigtable.group_commit import GroupCommit
from changelog.bigtable.row_merge import CellRow
from changelog.bigtable.row_scan import ScannedCell
from changelog.change import (
    DAEMON_PREFIX,
    DONE,
    LOG_PREFIX,
    NOTE_PREFIX,
    READABLE,
    VALUE_PREFIX,
    Change,
    ChangeId,
    Entry,
    Stuck,
    Unreadable,
    decode,
    encode,
    encode_stuck,
)
from changelog.key_values import REMOVED_AGE_MAX_MS, ValuePage, check_note, check_values, portions
from changelog.lease import DUE, SET_BACK_MS, Renewal, entry_state
from changelog.log import LOG_END, PRESENCE_AGE_MAX_MS, EntryPage, KeyRange, shard_ranges

FAMILY = "fc"
CLOCK_KEY = b"~daemon/~clock"
"""The row that `now_ms` writes. It is the presence of nobody, and earlier software knows that, too."""
RENEWALS_AT_ONCE = 32
SHARDS_MAX = 256
PAGE_ROWS_MIN = 100
SUSPECTS_MAX = 10_000
"""So many rows are read with one request at most, if most of them turn out to be kept or parked, or wait."""
PRESENCES_PAGE = 1000
REQUEST_KEY_SHARE = 16
"""A ReadRows request may have 512 KiB, and a portion 4 MiB. So each byte of a key that is read counts as so many."""

_ENTRY, _STATE, _NOTE, _VALUE = b"c", b"s", b"n", b"v"
_REMOVED = b""
"""Stands for a value that was removed. No value is empty."""

Choice = Callable[[CellRow], Entry | Unreadable | None]

_CURRENT = chain(column_is(FAMILY, _ENTRY), NEWEST)
_CURRENT_NOTE = chain(column_is(FAMILY, _NOTE), NEWEST)
_CURRENT_VALUE = chain(column_is(FAMILY, _VALUE), NEWEST, value_from(b"\0"))
_WITH_STATE = chain(family_is(FAMILY), NEWEST)
_STATES = chain(column_is(FAMILY, _STATE), NEWEST, WITHOUT_VALUES)


class BigtableChangeLog:
    """Implements `ChangeLog` and `GarbageCollection`.

    `runtime`: its wall clock dates what is parked, until the server's time is read back, and tells which presence rows
    are old.
    """

    durable = True

    def __init__(self, table: BigtableTable, runtime: Runtime) -> None:
        self._table = table
        self._runtime = runtime
        self._writes = GroupCommit(table)
        self._forgets = GroupCommit(table, groups_in_flight=1)  # nobody waits for them, so they go in larger groups
        self._sent = WeakSet[Change]()
        self._told = Once()

    async def record(self, change: Change, owner: str) -> Entry:
        """As in `ChangeLog`. `LeaseLostError`: it was recorded before and has been claimed since, so recovery has it.
        """
        entry = Entry(change, change.id.row_key(), owner)
        raw = encode(entry)
        if change not in self._sent:
            self._sent.add(change)
            await self._writes.mutate(entry.key.encode(), set_cell(FAMILY, _ENTRY, raw, _timestamp_us(entry)))
            return entry
        another = chain(_CURRENT, either(value_before(raw), value_after(raw)))
        if await self._table.check_and_mutate(entry.key.encode(), another, otherwise=_replacing(entry)):
            raise LeaseLostError(f"change {change.id} of {change.object} was taken over by recovery")
        return entry

    async def open(self, entry: Entry) -> bool:
        return not await self._table.check_and_mutate(entry.key.encode(), _CURRENT, otherwise=_replacing(entry))

    async def amend(self, entry: Entry, by: Entry) -> bool:
        return await self._compare_and_mutate(entry, _replacing(by))

    async def renew(self, entries: Sequence[Entry]) -> Sequence[Renewal]:
        """As in `ChangeLog`; `RENEWALS_AT_ONCE` at a time. If one fails, only its own entry is FAILED."""
        renewals = [Renewal.FAILED] * len(entries)
        limiter = anyio.CapacityLimiter(RENEWALS_AT_ONCE)

        async def renew(index: int, entry: Entry) -> None:
            async with limiter:
                renewals[index] = await self._renew(entry)

        async with anyio.create_task_group() as tasks:
            for index, entry in enumerate(entries):
                tasks.start_soon(renew, index, entry)
        return renewals

    async def forget(self, entry: Entry) -> None:
        await self._forgets.mutate(entry.key.encode(), DELETE_ROW)

    async def release(self, entry: Entry, cleanup_after_ms: int | None = None) -> bool:
        return await self._compare_and_mutate(entry, _replacing(entry.released(cleanup_after_ms)))

    async def keep(self, entry: Entry) -> bool:
        return await self._compare_and_mutate(entry, [delete_column(FAMILY, _STATE), set_cell(FAMILY, _STATE, DONE.encode())])

    async def kept(self, within: KeyRange, limit: int) -> EntryPage:
        def wanted(row: CellRow) -> Entry | Unreadable | None:
            entry = _entry(row)
            return None if entry is None or entry.kept_ms is None else entry

        return await self._page(within, _WITH_STATE, wanted, limit)

    async def announce(self, instance: str) -> int:
        return await self._count(f"{DAEMON_PREFIX}{instance}".encode())

    async def now_ms(self) -> int:
        """As in `ChangeLog`. Bigtable tells its time only of a cell that it writes."""
        return await self._count(CLOCK_KEY)

    async def _count(self, key: bytes) -> int:
        """Counts one up in that row. Returns when, by the server's clock (Unix ms)."""
        cell = await self._table.increment(key, FAMILY, _ENTRY)
        return cell.timestamp_us // 1000

    def ranges(self) -> Sequence[KeyRange]:
        return shard_ranges()

    async def stale(self, within: KeyRange, now_ms: int, expiry_ms: int, limit: int) -> EntryPage:
        """As in `ChangeLog`.

        The service does not even send an entry that is renewed and begins like one of this version. No filter of
        Bigtable can say that a column is absent, so a second scan tells which of the others are kept or parked, and
        they are never decoded. Each of the two scans yields one cell of a row, which costs a fraction of two.

        If an entry that is renewed is unreadable further on, it is found once it is as old as the expiry.
        """
        suspects = chain(column_is(FAMILY, _ENTRY), NEWEST, either(
            timestamp_in(0, max(1, now_ms - expiry_ms) * 1000),
            timestamp_in((now_ms + SET_BACK_MS + 1) * 1000, 0),
            value_begins_not_with(READABLE),
        ), FIRST)  # fmt: skip
        found: list[Entry | Unreadable] = []
        rows_max = max(limit + 1, PAGE_ROWS_MIN)
        span: KeySpan | None = KeySpan(within.start.encode(), within.end.encode())
        while span is not None and len(found) <= limit:
            cells, span = await self._cells(span, suspects, rows_max)
            stated = await self._stated(cells)
            for key, _, _, timestamp_us, value in cells:
                if key not in stated and _is_text(key) and len(found) <= limit:
                    entry = decode(key.decode(), value, timestamp_us // 1000)
                    if entry_state(entry, now_ms, expiry_ms, attempts_max=1) in DUE:
                        found.append(entry)
            rows_max = max(rows_max, min(SUSPECTS_MAX, rows_max * 4))  # most of these rows are kept, parked or wait
        return EntryPage(tuple(found[:limit]), found[limit].key if len(found) > limit else None)

    async def _stated(self, cells: Sequence[ScannedCell]) -> set[bytes]:
        """The keys of the entries in these rows, and between them, that are kept or parked."""
        span: KeySpan | None = KeySpan(cells[0][0], cells[-1][0] + b"\0") if cells else None
        found: set[bytes] = set()
        while span is not None:
            states, span = await self._cells(span, _STATES, SUSPECTS_MAX)
            found.update(key for key, *_ in states)
        return found

    async def _cells(self, span: KeySpan, yields: Message, limit: int) -> tuple[Sequence[ScannedCell], KeySpan | None]:
        """The cells of the first `limit` rows of which the filter yields one, and what is left of the span."""
        scan, is_all = await self._table.read_bulk([span], yields, limit)
        return scan.cells, None if is_all else span.beginning(scan.last_key + b"\0")

    async def claim(self, entry: Entry, owner: str) -> Entry | None:
        claimed = entry.claimed_by(owner)
        return claimed if await self._compare_and_mutate(entry, _replacing(claimed)) else None

    async def park(self, entry: Entry | Unreadable, error: str) -> bool:
        if entry.kept_ms is None:
            row = await self._table.read(entry.key.encode())
            stored = None if row is None else _entry(row)
            if stored is None or stored.kept_ms is not None:
                return False
        stuck = encode_stuck(Stuck(error, self._runtime.wall_ns() // 1_000_000))
        return await self._compare_and_mutate(entry, [delete_column(FAMILY, _STATE), set_cell(FAMILY, _STATE, stuck.encode())])

    async def retry(self, entry: Entry | Unreadable) -> bool:
        row = await self._table.read(entry.key.encode())
        stored = None if row is None else _entry(row)
        if stored is None or stored.stuck is None:
            return False
        raw = entry.raw if isinstance(entry, Unreadable) else encode(entry.retried())
        # Dated 0, like every entry without an owner. An unreadable value is searched for by its age, too.
        return await self._compare_and_mutate(entry, [*_setting(raw, 0), delete_column(FAMILY, _STATE)])

    async def entries(self, start: str, limit: int, *, stuck_only: bool = False) -> EntryPage:
        def wanted(row: CellRow) -> Entry | Unreadable | None:
            entry = _entry(row)
            return entry if entry is not None and (entry.stuck or not stuck_only) else None

        return await self._page(KeyRange(max(start, LOG_PREFIX), LOG_END), NEWEST, wanted, limit)

    async def read(self, change_id: ChangeId) -> Entry | Unreadable | None:
        shards = (f"{LOG_PREFIX}{shard:02x}/{change_id}" for shard in range(SHARDS_MAX))
        keys = [key.encode() for key in (f"{LOG_PREFIX}{change_id}", *shards)]
        found = [entry for row in await self._table.read_all(keys) if (entry := _entry(row)) is not None]
        return found[0] if found else None

    async def presences(self) -> Sequence[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        span: KeySpan | None = KeySpan.prefix(DAEMON_PREFIX.encode())
        while span is not None:
            rows = await self._table.scan([span], _CURRENT, PRESENCES_PAGE)
            for row in rows:
                cell = _cell(row, _ENTRY)
                instance = row.key.decode(errors="replace").removeprefix(DAEMON_PREFIX)
                if cell is not None and row.key != CLOCK_KEY:
                    found.append((instance, cell[1]))
            span = span.beginning(rows[-1].key + b"\0") if len(rows) == PRESENCES_PAGE else None
        return found

    async def read_note(self, name: str) -> bytes | None:
        row = await self._table.read(_note_key(name), _CURRENT_NOTE)
        cell = None if row is None else _cell(row, _NOTE)
        return None if cell is None else cell[0]

    async def swap_note(self, name: str, expected: bytes | None, value: bytes) -> bool:
        """As in `ChangeLog`. If the comparison fails, the note is read: an earlier try may have written it."""
        check_note(value)
        setting = [delete_column(FAMILY, _NOTE), set_cell(FAMILY, _NOTE, value)]
        if expected is None:
            if not await self._table.check_and_mutate(_note_key(name), _CURRENT_NOTE, otherwise=setting):
                return True
        elif await self._table.check_and_mutate(_note_key(name), chain(_CURRENT_NOTE, value_is(expected)), then=setting):
            return True
        return await self.read_note(name) == value

    async def read_values(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        found: dict[str, bytes] = {}
        for portion in portions(keys, lambda key: REQUEST_KEY_SHARE * len(_value_key(key))):
            found.update(map(_named_value, await self._table.read_all(map(_value_key, portion), _CURRENT_VALUE)))
        return found

    async def write_values(self, values: Mapping[str, bytes | None], version: int) -> None:
        check_values(values, version)
        for portion in portions(values, lambda key: len(_value_key(key)) + len(values[key] or b"")):
            await self._write_portion([
                (_value_key(key), [set_cell(FAMILY, _VALUE, values[key] or _REMOVED, version * 1000)]) for key in portion
            ])

    async def scan_values(self, start: str, end: str, limit: int) -> ValuePage:
        """As in `ChangeLog`. The service does not even send a value that was removed."""
        found: dict[str, bytes] = {}
        span = KeySpan(_value_key(start), _value_key(end)).beginning(_value_key(start))
        while span is not None and len(found) <= limit:
            scan, is_all = await self._table.read_bulk([span], _CURRENT_VALUE, limit + 1 - len(found))
            for key, _, _, _, value in scan.cells:
                try:
                    found[key.decode().removeprefix(VALUE_PREFIX)] = value
                except UnicodeDecodeError:
                    if self._told.is_new(repr(key)):
                        events.warning("unreadable_key", "it is skipped: no value has such a key", key=repr(key))
            span = None if is_all else span.beginning(scan.last_key + b"\0")
        next_start = found.popitem()[0] if len(found) > limit else None
        return ValuePage(found, next_start)

    async def erase_values(self, keys: Sequence[str]) -> None:
        for portion in portions(keys, lambda key: len(_value_key(key))):
            await self._write_portion([(_value_key(key), [DELETE_ROW]) for key in portion])

    async def collect(self, limit: int) -> int:
        """Removes presence rows older than a day, and what is left of values that were removed long ago.

        At most `limit` of them in all. Returns how many. No GC rule can do this: it would keep the last version for
        ever.
        """
        now_ms = self._runtime.wall_ns() // 1_000_000
        presence = chain(column_is(FAMILY, _ENTRY), NEWEST, _before(now_ms - PRESENCE_AGE_MAX_MS))
        value = chain(column_is(FAMILY, _VALUE), NEWEST, value_before(b"\0"), _before(now_ms - REMOVED_AGE_MAX_MS))
        looked = removed = 0
        for prefix, old in ((DAEMON_PREFIX, presence), (VALUE_PREFIX, value)):
            if looked == limit:
                break
            rows = await self._table.scan([KeySpan.prefix(prefix.encode())], old, limit - looked)
            looked += len(rows)
            removed += sum([await self._table.check_and_mutate(row.key, old, then=[DELETE_ROW]) for row in rows])
        return removed

    async def _renew(self, entry: Entry) -> Renewal:
        """Renews one entry. Only entries that this software wrote are renewed, so their bytes are known."""
        predicate = chain(_CURRENT, value_is(encode(entry)))
        try:
            held = await self._table.check_and_mutate(entry.key.encode(), predicate, then=_replacing(entry))
        except TieredError:
            return Renewal.FAILED
        return Renewal.RENEWED if held else Renewal.NOT_YOURS

    async def _compare_and_mutate(self, seen: Entry | Unreadable, mutations: Sequence[Message]) -> bool:
        """Applies the mutations iff `seen` is what is stored.

        Older software may write the same entry in other bytes. If the bytes differ, the stored ones are read. If they
        mean the same, the stored bytes are compared with instead.
        """
        key, raw = seen.key.encode(), _value(seen)
        if await self._table.check_and_mutate(key, chain(_CURRENT, value_is(raw)), then=mutations):
            return True
        row = await self._table.read(key)
        stored, spelt = (None, None) if row is None else (_entry(row), _cell(row, _ENTRY))
        if stored is None or spelt is None or spelt[0] == raw or _value(stored) != raw:
            return False
        return await self._table.check_and_mutate(key, chain(_CURRENT, value_is(spelt[0])), then=mutations)

    async def _write_portion(self, rows: Sequence[tuple[bytes, Sequence[Message]]]) -> None:
        """Writes the rows.

        If certainly none was written, it raises the error of the first. Otherwise `UnconfirmedError` says how many may
        not be written.
        """
        failures = await self._table.mutate_rows(rows)
        failed = [failure for failure in failures if failure is not None]
        if not failed:
            return
        if len(failed) == len(rows) and not any(isinstance(failure, UnconfirmedError) for failure in failed):
            raise failed[0]
        raise UnconfirmedError(f"of {len(rows)} rows {len(failed)} may not be written, the first because {failed[0]}") from failed[0]

    async def _page(self, within: KeyRange, yields: Message, chosen: Choice, limit: int) -> EntryPage:
        """The first `limit` chosen entries of the range. The next page begins at the one after them.

        It reads `rows_max` rows with each request, until it has enough or the range ends.
        """
        rows_max = max(limit + 1, PAGE_ROWS_MIN)
        found: list[Entry | Unreadable] = []
        span: KeySpan | None = KeySpan(within.start.encode(), within.end.encode())
        while span is not None and len(found) <= limit:
            rows = await self._table.scan([span], yields, rows_max)
            found += [entry for entry in map(chosen, rows) if entry is not None]
            span = span.beginning(rows[-1].key + b"\0") if len(rows) == rows_max else None
        return EntryPage(tuple(found[:limit]), found[limit].key if len(found) > limit else None)


def _note_key(name: str) -> bytes:
    return f"{NOTE_PREFIX}{name}".encode()


def _value_key(key: str) -> bytes:
    return f"{VALUE_PREFIX}{key}".encode()


def _named_value(row: CellRow) -> tuple[str, bytes]:
    """The key and the value. `UnicodeDecodeError`: the key is not text."""
    return row.key.decode().removeprefix(VALUE_PREFIX), row.cells[0].value


def _before(time_ms: int) -> Message:
    return timestamp_in(0, max(1, time_ms) * 1000)


def _replacing(entry: Entry) -> list[Message]:
    return _setting(encode(entry), _timestamp_us(entry))


def _timestamp_us(entry: Entry) -> int:
    return SERVER_TIME if entry.owner else 0


def _setting(raw: bytes, timestamp_us: int) -> list[Message]:
    return [delete_column(FAMILY, _ENTRY), set_cell(FAMILY, _ENTRY, raw, timestamp_us)]


def _value(entry: Entry | Unreadable) -> bytes:
    return entry.raw if isinstance(entry, Unreadable) else encode(entry)


def _cell(row: CellRow, column: bytes) -> tuple[bytes, int] | None:
    """The value of a cell and its timestamp in ms since 1970; None: there is no such cell."""
    for cell in row.cells:
        if cell.family == FAMILY and cell.column == column:
            return cell.value, cell.timestamp_us // 1000
    return None


def _is_text(key: bytes) -> bool:
    return key.decode(errors="ignore").encode() == key


def _entry(row: CellRow) -> Entry | Unreadable | None:
    """The entry in a row; None: there is none, or its key is not text. The server dates its state."""
    value, state = _cell(row, _ENTRY), _cell(row, _STATE)
    if value is None or not _is_text(row.key):
        return None
    entry = decode(row.key.decode(), *value, None if state is None else state[0].decode(errors="replace"))
    if state is None:
        return entry
    if entry.stuck is None:
        return replace(entry, kept_ms=state[1])
    return replace(entry, stuck=replace(entry.stuck, at_ms=state[1]))
