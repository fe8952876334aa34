"""`BigtableStack`: the real Bigtable adapters in a simulated world.

Each process reaches, over a `Link`, a server in memory.

    process's adapter --message--> LinkedChannel --Link.call("rows.swap")--> MemoryBigtable
                                   the plan chooses what happens to it       `-changed--> StackRows, MemoryLog:
                                                                                          states, won, …, observers

A message has the name of the protocol's call that sends it, so one plan serves both stacks. A call of several messages
has several points (a compare-and-swap that fails reads: "log.read"). Entries are renewed one by one. The error of a
fault is translated to what gRPC would have said, and the adapter judges by that.

`MemoryRows` and `MemoryLog` decode what is stored by themselves, row by row as it changes. They are told of every
effect, also if it comes late. *Crash*: as in `emulators.world.faults`. *Failure*: a row that no adapter may write fails
the world at once.
"""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

import grpc
from google.cloud.bigtable_admin_v2.types import GcRule

from changelog.base.errors import ConfigurationError, UnavailableError, UnconfirmedError
from changelog.base.runtime import Runtime
from changelog.bigtable.channel import BigtableTable, Message
from changelog.bigtable.log import CLOCK_KEY, FAMILY, BigtableChangeLog
from changelog.bigtable.row_merge import Cell
from changelog.change import DAEMON_PREFIX, DONE, LOG_PREFIX, NOTE_PREFIX, VALUE_PREFIX, Change, ChangeId, Entry
from changelog.log import ChangeLog, KeyRange, shard_ranges
from emulators.bigtable.faulty_channel import rpc_error
from emulators.bigtable.memory import Cells, MemoryBigtable, MemoryChannel
from emulators.world.faults import Process
from emulators.world.runtime import now_s
from tiered.bigtable.cells import EXPIRING, LEGACY_FAMILIES, MANUAL, MARKS
from tiered.bigtable.rows import BigtableRows
from tiered.metadata import decode_metadata, decode_policy
from tiered.protocol.backends import HighVolumeBackend, Inline, RowState, Tombstone
from tiered.provision.schema import CHANGELOG_FAMILIES, FAMILIES, OBJECT_FAMILIES
from tiered.testing.log import StoredEntry
from tiered.testing.service import Observer

T = TypeVar("T")

CONNECTION_LIVES_S = 3600.0
"""In seconds. A message may be given to gRPC and not leave, because its process stands still.

After this long it is lost with its connection.

The protocol depends on this: a swap's deadline is checked just before the message is given to gRPC (docs/protocol.md,
assumptions).
"""

ROWS_TABLE, LOG_TABLE = "projects/simulated/instances/world/tables/objects", "projects/simulated/instances/world/tables/changelog"
LEGACY = dict.fromkeys(LEGACY_FAMILIES, FAMILIES[MANUAL])


class BigtableStack:
    """Implements `Stack`. `runtime` is the server's.

    `beside`: the changelog is in the table of the rows, not in one of its own.
    """

    def __init__(self, runtime: Runtime, *, beside: bool = False) -> None:
        tables: dict[str, Mapping[str, GcRule]] = {ROWS_TABLE: {**OBJECT_FAMILIES, **LEGACY}, LOG_TABLE: CHANGELOG_FAMILIES}
        if beside:
            tables = {ROWS_TABLE: {**FAMILIES, **LEGACY}}
        self.server = MemoryBigtable(runtime, tables)
        self.rows = StackRows(self.server, ROWS_TABLE, runtime)
        self.log = MemoryLog(self.server, ROWS_TABLE if beside else LOG_TABLE, runtime)

    def rows_of(self, process: Process) -> HighVolumeBackend:
        return BigtableRows(BigtableTable(LinkedChannel(self.server, process), self.rows.table), process.runtime, LEGACY)

    def log_of(self, process: Process, shards: int | None = None) -> ChangeLog:
        table = BigtableTable(LinkedChannel(self.server, process), self.log.table)
        return ShardedLog(table, process.runtime, shards)


class LinkedChannel(MemoryChannel):
    """One process's connection. Every message on it is a call of the process's link."""

    def __init__(self, server: MemoryBigtable, process: Process) -> None:
        super().__init__(server)
        self._process = process

    async def send(self, method: str, request: Message) -> list[Message]:
        """Sends a message. An error of the server or of the link is raised as gRPC's own error."""
        given_at = now_s()

        async def asked() -> Any:
            if now_s() - given_at > CONNECTION_LIVES_S:
                return rpc_error(grpc.StatusCode.UNAVAILABLE, "recvmsg:Connection reset by peer (it was idle for too long)")
            return await self._asked(method, request)

        try:
            outcome = await self._process.link.call(call_name(method, request), asked)
        except UnconfirmedError as error:
            raise rpc_error(grpc.StatusCode.UNAVAILABLE, f"recvmsg:Connection reset by peer ({error})") from error
        except UnavailableError as error:
            raise rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, f"Quota exceeded ({error})") from error
        except ConfigurationError as error:
            raise rpc_error(grpc.StatusCode.PERMISSION_DENIED, f"Access denied ({error})") from error
        if isinstance(outcome, grpc.aio.AioRpcError):
            raise outcome
        messages: list[Message] = outcome
        return messages

    async def _asked(self, method: str, request: Message) -> Any:
        """Asks the server. Its refusal is returned as an answer, so it reaches only a caller that still waits."""
        try:
            return await super().send(method, request)
        except grpc.aio.AioRpcError as refused:
            return refused


class ShardedLog(BigtableChangeLog):
    """Records under `shards` shards, as software does that was built for them. None: as many as this software uses."""

    def __init__(self, table: BigtableTable, runtime: Runtime, shards: int | None = None) -> None:
        super().__init__(table, runtime)
        self._shards = shards
        self._sharded = WeakKeyDictionary[Change, Change]()  # kept as long as its change, which may be recorded again

    def ranges(self) -> Sequence[KeyRange]:
        return super().ranges() if self._shards is None else shard_ranges(self._shards)

    async def record(self, change: Change, owner: str) -> Entry:
        if self._shards is None:
            return await super().record(change, owner)
        if change not in self._sharded:
            self._sharded[change] = replace(change, id=_ShardedId(change.id, self._shards))
        return await super().record(self._sharded[change], owner)


class _ShardedId(ChangeId):
    def __new__(cls, text: str, shards: int) -> _ShardedId:
        sharded = super().__new__(cls, text)
        sharded._shards = shards
        return sharded

    _shards: int

    def row_key(self, shards: int | None = None) -> str:
        return super().row_key(self._shards if shards is None else shards)


# --- what a message is called ------------------------------------------------------------------------


def call_name(method: str, request: Message) -> str:
    """Returns the call of `HighVolumeBackend` or `ChangeLog` that sends such a message, such as `rows.swap`."""
    match method:
        case "SampleRowKeys":
            return "rows.boundaries"
        case "ReadRows" if request.rows.row_keys and request.filter.WhichOneof("filter") == "interleave":
            return "rows.redirects_at"
        case "ReadRows" if request.rows.row_keys:
            key = request.rows.row_keys[0]
            return "log.read_note" if _is_note(key) else "log.read_values" if _is_value(key) else f"{_service(key)}.read"
        case "ReadRows":
            return _scan_name(request)
        case "ReadModifyWriteRow":
            return "log.now_ms" if request.row_key == CLOCK_KEY else "log.announce"
        case "MutateRows":
            return _write_name(request.entries[0])
        case _:
            return _write_name(request)


def _scan_name(request: Message) -> str:
    start = request.rows.row_ranges[0].start_key_closed
    if request.filter.WhichOneof("filter") == "interleave":
        return "rows.redirects"
    if not start.startswith(LOG_PREFIX.encode()):
        by_age = any(each.HasField("timestamp_range_filter") for each in request.filter.chain.filters)
        if _is_value(start):
            return "log.collect" if by_age else "log.scan_values"
        if not start.startswith(DAEMON_PREFIX.encode()):
            return "rows.scan"
        return "log.collect" if by_age else "log.presences"
    if request.filter.WhichOneof("filter") == "cells_per_column_limit_filter":
        return "log.entries"
    return "log.kept" if request.filter.chain.filters[0].HasField("column_range_filter") else "log.stale"


def _write_name(row: Message) -> str:
    """Names a request that writes a row, or an entry of MutateRows, by what it would write."""
    service = _service(row.row_key)
    if service == "rows":
        return f"rows.{_row_write(row)}"
    return f"log.{_log_write(row)}"


def _row_write(row: Message) -> str:
    if not hasattr(row, "predicate_filter"):
        return "plant"  # no adapter writes without a predicate
    columns = [each.set_cell.column_qualifier[:2] for each in (*row.true_mutations, *row.false_mutations) if each.HasField("set_cell")]
    if b"w:" in columns:
        return "swap"
    if b"x" in columns:
        return "reserve"
    if row.true_mutations:
        return "touch"
    if b"r:" in columns:
        return "settle"
    return "put_inline" if columns else "delete_inline"


def _log_write(row: Message) -> str:
    if _is_note(row.row_key):
        return "swap_note"
    if _is_value(row.row_key):
        return _value_write(row)
    mutations = row.true_mutations or row.false_mutations if hasattr(row, "predicate_filter") else row.mutations
    set_columns = {each.set_cell.column_qualifier: each.set_cell.value for each in mutations if each.HasField("set_cell")}
    if not set_columns:
        return "collect" if row.row_key.startswith(DAEMON_PREFIX.encode()) else "forget"
    is_assembling = b"c" in set_columns and "assembling" in json.loads(set_columns[b"c"])
    if not hasattr(row, "predicate_filter") or row.false_mutations:
        return "open" if is_assembling else "record"
    if b"s" in set_columns:
        return "keep" if set_columns[b"s"] == DONE.encode() else "park"
    if any(each.delete_from_column.column_qualifier == b"s" for each in mutations if each.HasField("delete_from_column")):
        return "retry"
    if is_assembling:
        return "amend"
    if not json.loads(set_columns[b"c"])["owner"]:
        return "release"
    seen = row.predicate_filter.chain.filters[-1].value_range_filter.start_value_closed
    return "renew" if set_columns[b"c"] == seen else "claim"


def _value_write(row: Message) -> str:
    if hasattr(row, "predicate_filter"):
        return "collect"
    return "write_values" if row.mutations[0].HasField("set_cell") else "erase_values"


def _is_note(key: bytes) -> bool:
    return key.startswith(NOTE_PREFIX.encode())


def _is_value(key: bytes) -> bool:
    return key.startswith(VALUE_PREFIX.encode())


def _service(key: bytes) -> str:
    return "log" if key.startswith(b"~") else "rows"


# --- what is stored ----------------------------------------------------------------------------------


class Shown(dict[str, T]):
    """What the server has, decoded.

    To set an item puts a row on the server, without any protocol, and no observer is told.
    """

    def __init__(self, plant: Callable[[str, T | None], None]) -> None:
        self._plant = plant

    def __setitem__(self, name: str, item: T) -> None:
        self._plant(name, item)

    def __delitem__(self, name: str) -> None:
        self._plant(name, None)

    def show(self, name: str, item: T | None) -> None:
        """Notes that the row is this now. None: the row is absent."""
        if item is None:
            self.pop(name, None)
        else:
            super().__setitem__(name, item)


class StackRows(BigtableRows):
    """The rows themselves, without faults.

    Implements `InspectedRows`: `states`, `won` and `refused` are as in `SimulatedRows`.
    """

    def __init__(self, server: MemoryBigtable, table: str, runtime: Runtime) -> None:
        super().__init__(BigtableTable(MemoryChannel(server), table), runtime, LEGACY)
        self.table = table
        self._shown = Shown[Inline | Tombstone](self._plant)
        self.states: dict[str, Inline | Tombstone] = self._shown
        self.won: dict[str, dict[ChangeId, int]] = defaultdict(dict)
        self.refused: dict[str, dict[ChangeId, int]] = defaultdict(dict)
        self.observers: list[Observer] = []
        self._server = server
        server.changed.append(self._look)

    async def collect(self, limit: int) -> int:
        """Removes some of the cells in both tables that may go, at most `limit`. Returns how many."""
        chance = self._runtime.random
        return self._server.collect(chance, chance.choice((0.5, 1.0)), limit)

    def _look(self, table: str, key: bytes, cause: Message | None) -> None:
        if table != self.table or _service(key) != "rows":
            return
        path = key.decode()
        self._show(path, self._server.tables[table].rows.get(key, ()))
        for observe in self.observers:
            observe("rows.collect" if cause is None else _write_name(cause), path)

    def _show(self, path: str, cells: Cells) -> None:
        self._shown.show(path, _state(path, cells))
        for verdict, marks in ((b"w:", self.won), (b"r:", self.refused)):
            found = {
                ChangeId(cell.column[2:].decode()): cell.timestamp_us // 1000
                for cell in reversed(cells) if cell.family == MARKS and cell.column[:2] == verdict
            }  # fmt: skip
            if found or path in marks:
                marks[path] = found

    def _plant(self, path: str, state: RowState) -> None:
        """Stores what no adapter writes: a tombstone as older software left it, or nothing."""
        if isinstance(state, Tombstone) and state.token is None and state.deadline_ns is None and state.target == path:
            cells: Cells = (Cell(MANUAL, b"m", 0, b'{"is_redirect_tombstone":true}'), Cell(MANUAL, b"p", 0, b""))
        else:
            assert state is None, f"tell MemoryRows how to plant {state}"
            cells = ()
        marks = tuple(cell for cell in self._server.tables[self.table].rows.get(path.encode(), ()) if cell.family == MARKS)
        self._server.tables[self.table].put(path.encode(), (*marks, *cells))
        self._show(path, (*marks, *cells))


class MemoryLog(ShardedLog):
    """The changelog itself, without faults.

    Implements `InspectedLog`: `stored`, `presence`, `notes` and `values` are as in `SimulatedChangeLog`.
    """

    def __init__(self, server: MemoryBigtable, table: str, runtime: Runtime) -> None:
        super().__init__(BigtableTable(MemoryChannel(server), table), runtime)
        self.table = table
        self._shown = Shown[StoredEntry](self._plant)
        self.stored: dict[str, StoredEntry] = self._shown
        self.presence: dict[str, int] = {}
        self.notes: dict[str, bytes] = {}
        self.values: dict[str, tuple[bytes | None, int]] = {}
        self.observers: list[Observer] = []
        self._server = server
        server.changed.append(self._look)

    def sharded(self, shards: int) -> Self:
        """Returns the same log, as a process sees it that records under this many shards."""
        view = copy.copy(self)
        view._shards, view._sharded = shards, WeakKeyDictionary()
        return view

    def _look(self, table: str, key: bytes, cause: Message | None) -> None:
        if table != self.table or _service(key) != "log":
            return
        cells = {cell.column: cell for cell in reversed(self._server.tables[table].rows.get(key, ())) if cell.family == FAMILY}
        entry, state, name = cells.get(b"c"), cells.get(b"s"), key.decode()
        if key == CLOCK_KEY:
            return
        if name.startswith(DAEMON_PREFIX):
            self.presence.pop(name.removeprefix(DAEMON_PREFIX), None)
            if entry is not None:
                self.presence[name.removeprefix(DAEMON_PREFIX)] = entry.timestamp_us // 1000
            return
        if _is_note(key):
            name = name.removeprefix(NOTE_PREFIX)
            self.notes.pop(name, None)
            if (note := cells.get(b"n")) is not None:
                self.notes[name] = note.value
        elif _is_value(key):
            name = name.removeprefix(VALUE_PREFIX)
            self.values.pop(name, None)
            if (value := cells.get(b"v")) is not None:
                self.values[name] = (value.value or None, value.timestamp_us // 1000)
        else:
            text = None if state is None else state.value.decode()
            self._shown.show(name, None if entry is None else StoredEntry(entry.value, entry.timestamp_us // 1000, text))
        if cause is not None:  # no observer is told of collected older versions
            for observe in self.observers:
                observe(_write_name(cause), name)

    def _plant(self, key: str, stored: StoredEntry | None) -> None:
        cells: Cells = ()
        if stored is not None:
            cells = (Cell(FAMILY, b"c", stored.heartbeat_ms * 1000, stored.value),)
            if stored.state is not None:
                cells = (*cells, Cell(FAMILY, b"s", stored.heartbeat_ms * 1000, stored.state.encode()))
        self._server.tables[self.table].put(key.encode(), cells)
        self._shown.show(key, stored)


def _state(path: str, cells: Cells) -> RowState:
    """Returns what the row holds, by `formats.md`. An expiring row whose cells were partly collected counts as absent.
    """
    shown: dict[bytes, bytes] = {}
    deadlines_ns: set[int | None] = set()
    for cell in cells:
        if cell.family in (EXPIRING, MANUAL):
            shown.setdefault(cell.column, cell.value)
            deadlines_ns.add(cell.timestamp_us * 1000 if cell.family == EXPIRING else None)
        elif cell.family in LEGACY_FAMILIES:
            shown.setdefault(cell.column, cell.value)
    assert len(deadlines_ns) <= 1, f"the row {path} has several deadlines: {cells}"
    deadline_ns = next(iter(deadlines_ns), None)
    token = ChangeId(shown[b"v"].decode()) if b"v" in shown else None
    if b"r" in shown:
        assert b"m" not in shown and b"p" not in shown, f"the row {path} is an object and a tombstone: {cells}"
        policy: dict[str, Any] = json.loads(shown.get(b"t", b"{}"))
        return Tombstone(
            shown[b"r"].decode() or path, decode_policy(policy.get("expiration_policy")), deadline_ns, token, b"c" in shown
        )
    if b"m" in shown and shown[b"m"].startswith(b'{"is_redirect_tombstone":true'):
        return Tombstone(path, decode_metadata(shown[b"m"]).expiration, deadline_ns, token)
    if b"m" in shown and b"p" in shown:
        metadata, payload = decode_metadata(shown[b"m"]), shown[b"p"]
        return Inline(metadata.with_facts(time_expires_ns=deadline_ns, size=len(payload)), payload, token)
    assert not shown or deadline_ns is not None, f"the row {path} holds half an object: {cells}"
    return None
