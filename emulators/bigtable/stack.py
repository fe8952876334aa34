"""`BigtableStack`: the real Bigtable adapters in a simulated world.

Each process reaches, over a `Link`, a server in memory.

    process's adapter --message--> LinkedChannel --Link.call("rows.swap")--> MemoryBigtable
    (adapters.py)                  the plan chooses what happens to it       `-changed--> StackRows, MemoryLog:
                                   (linked.py)                                            states, won, …, observers

The adapters are those of the process's code. Entries are renewed one by one.

`MemoryRows` and `MemoryLog` decode what is stored by themselves, row by row as it changes. They are told of every
effect, also if it comes late. *Crash*: as in `emulators.world.faults`. *Failure*: a row that no adapter may write fails
the world at once.
"""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

from google.cloud.bigtable_admin_v2.types import GcRule

from changelog.base.runtime import Runtime
from changelog.bigtable.channel import BigtableTable, Message
from changelog.bigtable.log import CLOCK_KEY, FAMILY
from changelog.bigtable.row_merge import Cell
from changelog.change import DAEMON_PREFIX, NOTE_PREFIX, VALUE_PREFIX, ChangeId
from changelog.log import ChangeLog
from emulators.bigtable.adapters import LEGACY, ShardedLog, log_on, rows_on
from emulators.bigtable.linked import LinkedChannel, is_note, is_value, service_of, write_name
from emulators.bigtable.memory import Cells, MemoryBigtable, MemoryChannel
from emulators.world.faults import Process
from tiered.bigtable.cells import EXPIRING, LEGACY_FAMILIES, MANUAL, MARKS
from tiered.bigtable.rows import BigtableRows
from tiered.metadata import decode_metadata, decode_policy, described_by_row
from tiered.provision.schema import CHANGELOG_FAMILIES, FAMILIES, OBJECT_FAMILIES
from tiered.services.backends import HighVolumeBackend, Inline, RowState, Tombstone
from tiered.testing.log import StoredEntry
from tiered.testing.service import Observer

T = TypeVar("T")

ROWS_TABLE, LOG_TABLE = "projects/simulated/instances/world/tables/objects", "projects/simulated/instances/world/tables/changelog"


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
        return process.code.own(rows_on)(LinkedChannel(self.server, process), self.rows.table, process.runtime)

    def log_of(self, process: Process, shards: int | None = None) -> ChangeLog:
        return process.code.own(log_on)(LinkedChannel(self.server, process), self.log.table, process.runtime, shards)


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
        if table != self.table or service_of(key) != "rows":
            return
        path = key.decode()
        self._show(path, self._server.tables[table].rows.get(key, ()))
        for observe in self.observers:
            observe("rows.collect" if cause is None else write_name(cause), path)

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
        if table != self.table or service_of(key) != "log":
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
        if is_note(key):
            name = name.removeprefix(NOTE_PREFIX)
            self.notes.pop(name, None)
            if (note := cells.get(b"n")) is not None:
                self.notes[name] = note.value
        elif is_value(key):
            name = name.removeprefix(VALUE_PREFIX)
            self.values.pop(name, None)
            if (value := cells.get(b"v")) is not None:
                self.values[name] = (value.value or None, value.timestamp_us // 1000)
        else:
            text = None if state is None else state.value.decode()
            self._shown.show(name, None if entry is None else StoredEntry(entry.value, entry.timestamp_us // 1000, text))
        if cause is not None:  # no observer is told of collected older versions
            for observe in self.observers:
                observe(write_name(cause), name)

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
            shown[b"r"].decode() or path, decode_policy(policy.get("expiration_policy")), deadline_ns, token, b"c" in shown,
            described_by_row(shown.get(b"d"), deadline_ns),
        )
    if b"m" in shown and shown[b"m"].startswith(b'{"is_redirect_tombstone":true'):
        return Tombstone(path, decode_metadata(shown[b"m"]).expiration, deadline_ns, token)
    if b"m" in shown and b"p" in shown:
        metadata, payload = decode_metadata(shown[b"m"]), shown[b"p"]
        return Inline(metadata.with_facts(time_expires_ns=deadline_ns, size=len(payload)), payload, token)
    assert not shown or deadline_ns is not None, f"the row {path} holds half an object: {cells}"
    return None
