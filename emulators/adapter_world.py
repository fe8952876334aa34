"""`AdapterWorld`: the real adapters on emulators, used by many processes at once, and what those processes are told.

`ServedWorld` is what it has in common with `emulators.server_world`.

    one Bigtable table     holds rows and changelog; each process reaches it through a `FaultyChannel` of its own
    one long-term tier     each process opens it through its `Link`, which can fail at each call of the protocol
    a case                 one process, one object that only it uses, one fault; the object's key is the case's name

It is like `emulators.world.deployment`, but with real time and real servers. Nothing can look at the state after every
effect here. So I2 is checked before each deletion: a token that was refused stays refused, and this keeps I1. All other
invariants are checked by `findings`, which reads everything without faults when all is quiet. The tests decide which
process crashes, and when.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar, cast

import anyio

from changelog.base.errors import TieredError
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import BigtableTable, Channel, delete_column, set_cell
from changelog.bigtable.log import FAMILY, BigtableChangeLog
from changelog.change import Entry, Unreadable, encode
from changelog.log import ChangeLog, KeyRange
from emulators.bigtable.faulty_channel import FaultyChannel, Script, WireMode
from emulators.world.client import Client
from emulators.world.faults import Network, Plan, Process, no_faults
from emulators.world.history import RegisterHistory
from recovery.loop import RecoveryLoop
from tiered.bigtable.rows import BigtableRows
from tiered.metadata import NS_PER_S
from tiered.object_id import revision_of
from tiered.services.backends import HighVolumeBackend, LongTermBackend, Row, Tiers
from tiered.services.capabilities import BatchDeletion
from tiered.services.scans import BlobInfo, Generation, Removal
from tiered.settings import Settings
from tiered.storage import TieredStorage

PAGE = 1000
READERS_MAX = 16
DRAIN_PASSES_MAX = 60
DRAIN_PAUSE_S = 0.1
HOUR_MS = 3_600_000

M = TypeVar("M", bound=Enum)
"""What may happen to a call on the wire."""

OpensBlobs = Callable[[Process], AbstractAsyncContextManager[LongTermBackend]]


class Wire(Protocol):
    """The calls of one process. `points`: those made so far, `reads`: those without effect, `trace`: what happened."""

    points: list[str]
    reads: set[str]
    trace: list[str]


class WallClock(SystemRuntime):
    """The machine's own clocks, but with a wall clock that is `skew_s` seconds ahead."""

    def __init__(self, skew_s: float) -> None:
        super().__init__()
        self._skew_ns = round(skew_s * NS_PER_S)

    def wall_ns(self) -> int:
        return super().wall_ns() + self._skew_ns


class _OneEntry:
    """A log as far as one entry goes: recoverers that are to have a fault meet only the entry that is theirs."""

    def __init__(self, log: ChangeLog, key: str) -> None:
        self._log = log
        self._key = key

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def ranges(self) -> Sequence[KeyRange]:
        return [KeyRange(self._key, f"{self._key}0")]


class ServedWorld(ABC, Generic[M]):
    """One deployment on servers. `rows` and `log` are the real ones, without faults. `wires`: of each process, the last
    one last.

    `network` holds the late requests of the long-term tier; the caller makes it and moves it on.
    """

    wires: Sequence[Wire]

    def __init__(self, rows: HighVolumeBackend, log: ChangeLog, network: Network, settings: Settings) -> None:
        self.history = RegisterHistory()
        self.network = network
        self.rows = rows
        self.log = log
        self.unsettled: list[str] = []
        self._settings = settings
        self._recorded: set[str] = set()

    @abstractmethod
    def _opened(
        self, process: Process, script: Callable[[str], M | None]
    ) -> AbstractAsyncContextManager[tuple[HighVolumeBackend, LongTermBackend, ChangeLog]]:
        """Opens the backends in this process, with a wire of its own."""

    @abstractmethod
    def blobs(self, process: Process) -> AbstractAsyncContextManager[LongTermBackend]:
        """Opens the real long-term tier."""

    @abstractmethod
    async def deliver(self, *, once_more: bool = False) -> int:
        """Lets the late requests of all processes to rows and log arrive now. Returns how many there were."""

    @abstractmethod
    async def set_back(self, entry: Entry, by_ms: int) -> None:
        """Lets the last heartbeat of an entry have been so much earlier."""

    @abstractmethod
    async def still_open(self, sessions: Collection[str]) -> Collection[str]:
        """Returns those of the upload sessions that could still be finalised."""

    def process(self, name: str, plan: Plan = no_faults, skew_s: float = 0.0) -> Process:
        return Process(name, WallClock(skew_s), self.network, plan)

    @asynccontextmanager
    async def client(
        self, process: Process, script: Callable[[str], M | None] = lambda _: None, settings: Settings | None = None
    ) -> AsyncIterator[Client]:
        """Opens a store in this process."""
        async with self._opened(process, script) as (rows, blobs, log):
            tiers = self._tiers(process, rows, blobs)
            async with TieredStorage(tiers, log, process.runtime, settings or self._settings) as storage:
                client = Client(process, storage, self.history)
                yield client
                if not await storage.aclose():
                    client.note_end()

    @asynccontextmanager
    async def recovery(
        self, process: Process, script: Callable[[str], M | None] = lambda _: None, key: str | None = None,
        settings: Settings | None = None,
    ) -> AsyncIterator[RecoveryLoop]:  # fmt: skip
        """Opens a recovery loop in this process. `key`: of the only entry that it shall see."""
        async with self._opened(process, script) as (rows, blobs, log):
            seen = log if key is None else cast(ChangeLog, _OneEntry(log, key))
            yield RecoveryLoop(self._tiers(process, rows, blobs), seen, process.runtime, settings or self._settings)

    def _tiers(self, process: Process, rows: HighVolumeBackend, blobs: LongTermBackend) -> Tiers:
        return Tiers(rows, self._linked(process, cast(LongTermBackend, _Watched(blobs, self.rows, self.unsettled))))

    def _linked(self, process: Process, blobs: LongTermBackend) -> LongTermBackend:
        return blobs

    # --- the end -----------------------------------------------------------------------------------

    async def age(self) -> dict[str, str]:
        """Makes every open entry look as if its owner had died an hour ago.

        Returns the keys of these entries, by the paths of their objects.
        """
        aged: dict[str, str] = {}
        for entry in await self._entries():
            if isinstance(entry, Entry) and entry.owner and not entry.stuck:
                await self.set_back(entry, HOUR_MS)
                aged[entry.change.object] = entry.key
        return aged

    async def drain(self) -> None:
        """Recovers without faults until no entry is open, for some seconds at most.

        All other processes must have ended.
        """
        process = self.process("drain")
        for _ in range(DRAIN_PASSES_MAX):
            entries = await self._entries()
            self._recorded |= {entry.change.upload for entry in entries if isinstance(entry, Entry) and entry.change.upload}
            if all(entry.stuck for entry in entries) and self.network.quiet:
                return
            await self.age()
            async with self.recovery(process) as recovery:  # a new loop each time, which reads the clock anew
                await recovery.run_once()
            await process.runtime.sleep(DRAIN_PAUSE_S)

    async def findings(self) -> list[str]:
        """Returns a sentence for each breach of I1-I7.

        Call it when all processes have ended, the log is drained and no late request is left.
        """
        async with self.blobs(self.process("auditor")) as blobs:
            found = await all_blobs(blobs)
        rows = await self._all_rows()
        named = {row.target: path for path, row in rows.items() if row.target is not None}
        return [
            *(f"I1 no dangling: {path} names {target}, which does not exist" for target, path in named.items() if target not in found),
            *self.unsettled,
            *(f"I3 no leak: the blob {name} is named by no row" for name in found if name not in named),
            *(f"I3 no leak: the upload {session} is open" for session in sorted(await self.still_open(self._recorded))),
            *(f"I4 honest: {sentence}" for sentence in self.history.unexplained()),
            *(f"I6 drained: the entry {entry.key} is left: {entry}" for entry in await self._entries()),
            *(f"{path} outlives its blob {name}" for name, path in named.items() if name in found and _outlives(rows[path], found[name])),
        ]

    async def _entries(self) -> list[Entry | Unreadable]:
        page = await self.log.entries("", PAGE)
        entries = list(page.entries)
        while page.next_start is not None:
            page = await self.log.entries(page.next_start, PAGE)
            entries += page.entries
        return entries

    async def _all_rows(self) -> dict[str, Row]:
        page = await self.rows.scan("", b"", PAGE)
        names = list(page.rows)
        while page.next_start is not None:
            page = await self.rows.scan("", page.next_start, PAGE)
            names += page.rows
        rows: dict[str, Row] = {}
        limiter = anyio.CapacityLimiter(READERS_MAX)

        async def read(path: str) -> None:
            async with limiter:
                rows[path] = await self.rows.read(path)

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(read, name.path)
        return rows


class AdapterWorld(ServedWorld[WireMode]):
    """One deployment on the emulator of Bigtable.

    `is_open` says whether an upload session could still be finalised. `hang_s`: how many seconds a call waits that gets
    no answer.
    """

    def __init__(
        self, channel: Channel, table: str, opens_blobs: OpensBlobs, is_open: Callable[[str], bool], network: Network,
        settings: Settings, hang_s: float,
    ) -> None:
        self.wires: list[FaultyChannel] = []
        self.table = BigtableTable(channel, table)
        super().__init__(BigtableRows(self.table, SystemRuntime()), BigtableChangeLog(self.table, SystemRuntime()), network, settings)
        self._channel = channel
        self._opens_blobs = opens_blobs
        self._is_open = is_open
        self._hang_s = hang_s

    @asynccontextmanager
    async def _opened(self, process: Process, script: Script) -> AsyncIterator[tuple[HighVolumeBackend, LongTermBackend, ChangeLog]]:
        wire = FaultyChannel(self._channel, process, script, self._hang_s)
        self.wires.append(wire)
        table = BigtableTable(wire, self.table.name)
        async with self._opens_blobs(process) as blobs:
            yield BigtableRows(table, process.runtime), blobs, BigtableChangeLog(table, process.runtime)

    def _linked(self, process: Process, blobs: LongTermBackend) -> LongTermBackend:
        """The same, whose calls can fail by the process's plan."""
        return process.link.blobs(blobs)

    def blobs(self, process: Process) -> AbstractAsyncContextManager[LongTermBackend]:
        return self._opens_blobs(process)

    async def deliver(self, *, once_more: bool = False) -> int:
        return sum([await wire.deliver(once_more=once_more) for wire in self.wires])

    async def set_back(self, entry: Entry, by_ms: int) -> None:
        cell = set_cell(FAMILY, b"c", encode(entry), (entry.heartbeat_ms - by_ms) * 1000)
        await self.table.mutate(entry.key.encode(), delete_column(FAMILY, b"c"), cell)

    async def still_open(self, sessions: Collection[str]) -> Collection[str]:
        return [session for session in sessions if self._is_open(session)]


class _Watched:
    """A long-term tier that looks at the row before each deletion (I2). It passes on everything else."""

    def __init__(self, blobs: LongTermBackend, rows: HighVolumeBackend, unsettled: list[str]) -> None:
        self._blobs = blobs
        self._rows = rows
        self._unsettled = unsettled

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blobs, name)

    async def delete(self, name: str) -> int | None:
        if not await self._is_settled(name):
            self._unsettled.append(f"I2 settle first: the blob {name} was deleted, and no row had refused its revision")
        return await self._blobs.delete(name)

    async def delete_generation(self, name: str, generation: Generation) -> Removal:
        if not await self._is_settled(name):
            self._unsettled.append(f"I2 settle first: the blob {name} was deleted, and no row had refused its revision")
        return await self._blobs.delete_generation(name, generation)

    async def delete_generations(self, blobs: Sequence[tuple[str, Generation]]) -> Sequence[Removal | TieredError]:
        for name, _ in blobs:
            if not await self._is_settled(name):
                self._unsettled.append(f"I2 settle first: the blob {name} was deleted, and no row had refused its revision")
        return await cast(BatchDeletion, self._blobs).delete_generations(blobs)

    async def _is_settled(self, blob: str) -> bool:
        """Returns whether the blob's revision was refused. If its name has none, its row must no longer name it."""
        path = blob.rpartition("/")[0]
        revision = revision_of(path, blob)
        row = await self._rows.read(blob if revision is None else path, marks=True)
        if revision is not None:
            return revision in row.refused and row.target != blob
        return row.target != blob and (row.state is not None or bool(row.won))


async def all_blobs(blobs: LongTermBackend) -> dict[str, BlobInfo]:
    found: dict[str, BlobInfo] = {}
    start: str | None = ""
    while start is not None:
        page = await blobs.list(start, None, PAGE)
        found |= {blob.name: blob for blob in page.blobs}
        start = page.next_start
    return found


def _outlives(row: Row, blob: BlobInfo) -> bool:
    """Returns whether the row expires after its blob. It must not: a touch extends the blob first."""
    if blob.deadline_ns is None or row.state is None:
        return False
    return row.state.deadline_ns is None or row.state.deadline_ns > blob.deadline_ns
