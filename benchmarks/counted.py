"""A store on Bigtable and GCS whose calls are counted.

    Ledger          the calls in the order in which they began, and which had ended when the caller had the answer
    NotingChannel   a Bigtable channel that tells the ledger of each call, by the name of its purpose
    GcsEmulator     knows itself what it was asked; the ledger looks there whenever something else happens
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.calls import COUNTED, EMPTY_PASS, FIRST, LOOK_FOR_FEED, RENEWED, SECOND, TELL, CallsCase, Operation
from benchmarks.servers import BUCKET, Servers
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import BigtableTable, Channel, insecure_channel
from changelog.bigtable.log import BigtableChangeLog
from changelog.change import LOG_PREFIX, NOTE_PREFIX, VALUE_PREFIX, Change, ChangeId, Entry
from emulators.gcs.server import GcsEmulator
from recovery.loop import RecoveryLoop
from tiered import TieredStorage
from tiered.bigtable.rows import BigtableRows
from tiered.gcs.blobs import GcsBlobs
from tiered.notes.feed_off import FEED_NOTE, PREFIX
from tiered.object_id import blob_name
from tiered.services.backends import Tiers
from tiered.settings import FeedSettings

FEED_ROW = f"{NOTE_PREFIX}{FEED_NOTE}".encode()


@dataclass(eq=False)
class Noted:
    """One call. If it is not `done` when the caller has the answer, the answer did not wait for it.

    `cell_bytes`: the bytes of the cells that a call to Bigtable writes, with their row's key.
    """

    name: str
    done: bool = False
    cell_bytes: int = 0


class Ledger:
    """The calls in the order in which they began. GCS's are named `gcs …`. A call that has reached GCS counts as done.

    `telling`: the calls with which a process tells that the change feed is off. It makes them once in five minutes, and
    at its end. So they are neither in `before` nor in `after`, although each process counted here is a new one.
    """

    def __init__(self, server: GcsEmulator) -> None:
        self._server = server
        self._calls: list[Noted] = []
        self._before: set[Noted] = set()
        self._looked_at = len(server.calls)

    def note(self, name: str, cell_bytes: int = 0) -> Noted:
        self._look()
        self._calls.append(Noted(name, cell_bytes=cell_bytes))
        return self._calls[-1]

    @property
    def cell_bytes(self) -> dict[str, int]:
        """By the name of the call, the bytes of the cells that it wrote."""
        return {call.name: call.cell_bytes for call in self._calls if call.cell_bytes}

    def answered(self) -> None:
        self._look()
        self._before = {call for call in self._calls if call.done}

    def end(self) -> None:
        self._look()

    @property
    def before(self) -> list[str]:
        """The calls that the caller's answer waited for."""
        return [call.name for call in self._calls if call in self._before - self._telling()]

    @property
    def after(self) -> list[str]:
        return [call.name for call in self._calls if call not in self._before | self._telling()]

    @property
    def telling(self) -> list[str]:
        return [call.name for call in self._calls if call in self._telling()]

    def _telling(self) -> set[Noted]:
        """The clock of the log is asked right before the first one, by a call that others make, too."""
        told = [number for number, call in enumerate(self._calls) if call.name in (TELL, LOOK_FOR_FEED)]
        clock = [number for number in range(told[0]) if self._calls[number].name == "announce"][-1:] if told else []
        return {self._calls[number] for number in clock + told}

    def _look(self) -> None:
        """Writes down what GCS was asked since the last look."""
        new, self._looked_at = self._server.calls[self._looked_at :], len(self._server.calls)
        self._calls += [Noted(f"gcs {kind}", done=True) for kind in new]


class NotingChannel:
    """Implements `Channel` with another one, and notes each call in the ledger."""

    def __init__(self, channel: Channel) -> None:
        self.ledger: Ledger | None = None
        self._channel = channel

    def unary_unary(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        return self._noting(method, self._channel.unary_unary(method, request_serializer, response_deserializer))

    def unary_stream(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        return self._noting(method, self._channel.unary_stream(method, request_serializer, response_deserializer))

    def _noting(self, method: str, send: Any) -> Any:
        def begin(request: Any, **options: Any) -> Any:
            call = send(request, **options)
            if self.ledger is not None:
                noted = self.ledger.note(purpose(method.rpartition("/")[2], request), cell_bytes(request))
                call.add_done_callback(lambda _: setattr(noted, "done", True))
            return call

        return begin


def cell_bytes(request: Any) -> int:
    """The bytes of the cells that the request writes, not compressed.

    They are the row's key, and for each cell its family, its column, its time and its value.
    """
    rows = [(each.row_key, each.mutations) for each in getattr(request, "entries", ())]
    branches = [name for name in ("mutations", "true_mutations", "false_mutations") if hasattr(request, name)]
    rows += [(request.row_key, getattr(request, name)) for name in branches]
    return max((_row_bytes(key, mutations) for key, mutations in rows), default=0)


def _row_bytes(key: bytes, mutations: Sequence[Any]) -> int:
    cells = [each.set_cell for each in mutations if each.HasField("set_cell")]
    return sum(len(each.family_name) + len(each.column_qualifier) + 8 + len(each.value) for each in cells) + len(key) if cells else 0


def purpose(method: str, request: Any) -> str:
    """Names a call in the words of the protocol, by what the request would write."""
    if method == "ReadRows":
        return LOOK_FOR_FEED if list(request.rows.row_keys) == [FEED_ROW] else "read"
    if method == "ReadModifyWriteRow":
        return "announce"
    if method == "MutateRows":
        return " and ".join(dict.fromkeys(_purpose(entry.row_key, entry.mutations) for entry in request.entries))
    if method == "MutateRow":
        return _purpose(request.row_key, request.mutations)
    return _purpose(request.row_key, [*request.true_mutations, *request.false_mutations], bool(request.true_mutations))


def _purpose(key: bytes, mutations: Sequence[Any], on_match: bool = False) -> str:
    if key.startswith(LOG_PREFIX.encode()):
        if any(each.HasField("delete_from_row") for each in mutations):
            return "forget"
        if any(each.set_cell.column_qualifier == b"s" for each in mutations):
            return "keep"
        return "renew or claim" if on_match else "record"
    if key.startswith(f"{VALUE_PREFIX}{PREFIX}".encode()):
        return TELL
    cells = {(each.set_cell.family_name, each.set_cell.column_qualifier[:2]) for each in mutations if each.HasField("set_cell")}
    if ("ff", b"w:") in cells:
        return "swap"
    if ("ff", b"r:") in cells:
        return "settle"
    if on_match:
        return "touch"
    return "put" if cells else "delete"


class LaterRuntime(SystemRuntime):
    """A runtime whose wall clock can be moved forward."""

    later_s = 0.0

    def wall_ns(self) -> int:
        return super().wall_ns() + round(self.later_s * 1e9)


class CountedStore:
    """A store whose calls are counted.

    Each operation has its own `TieredStorage`, so that no other operation's work is under way.
    """

    def __init__(
        self, host: str, name: str, channel: Channel, blobs: GcsBlobs, server: GcsEmulator, runtime: LaterRuntime, feed: bool = False
    ) -> None:
        self.server = server
        self.runtime = runtime
        self.channel = NotingChannel(channel)
        table = BigtableTable(self.channel, name)
        self.tiers = Tiers(BigtableRows(table, runtime), blobs)
        self.log = BigtableChangeLog(table, runtime)
        settings = Servers(host, server.url).settings(name.rpartition("/")[2], "bigtable")
        self._settings = settings.model_copy(update={"feed": FeedSettings(enabled=feed)})

    async def run(self, *operations: Operation) -> None:
        """Runs operations without counting."""
        for operation in operations:
            async with self._store() as storage:
                await operation(storage)

    async def count(self, operation: Operation) -> Ledger:
        self.channel.ledger = ledger = Ledger(self.server)
        async with self._store() as storage:
            await operation(storage)
            ledger.answered()
        ledger.end()
        self.channel.ledger = None
        return ledger

    async def count_beside(self, work: Callable[[], Awaitable[object]]) -> list[str]:
        """Counts what happens beside operations, such as a pass of recovery."""
        self.channel.ledger = ledger = Ledger(self.server)
        await work()
        ledger.answered()
        self.channel.ledger = None
        return ledger.before

    def recovery(self) -> RecoveryLoop:
        return RecoveryLoop(self.tiers, self.log, self.runtime, self._settings)

    def _store(self) -> TieredStorage:
        return TieredStorage(self.tiers, self.log, self.runtime, self._settings)


@asynccontextmanager
async def counted_store(host: str, *, feed: bool = False) -> AsyncIterator[CountedStore]:
    """Opens a store on a table and in a bucket of its own. The emulator of GCS runs in this process.

    `feed`: with a change feed (`feed.enabled`), whose writer does not run.
    """
    runtime = LaterRuntime()
    async with GcsEmulator() as server:
        server.create_bucket(BUCKET)
        servers = Servers(host, server.url)
        name = servers.full_name(await servers.new_table())
        async with insecure_channel(host) as channel, GcsBlobs.connect(BUCKET, runtime, endpoint=server.url) as blobs:
            yield CountedStore(host, name, channel, blobs, server, runtime, feed)


async def count_beside(store: CountedStore) -> dict[str, list[str]]:
    """The calls of `BESIDE`, counted. Their order means nothing, because a pass reads its ranges in random order."""
    entry = await _dead_put(store)
    found = {RENEWED: await store.count_beside(lambda: store.log.renew([entry]))}
    await store.log.forget(entry)
    found[EMPTY_PASS] = await store.count_beside(store.recovery().run_once)
    for what, again_after_ms in ((FIRST, None), (SECOND, 1)):
        entry = await _dead_put(store)
        await store.log.release(entry, again_after_ms)
        counted = await store.count_beside(store.recovery().run_once)
        found[what] = list((Counter(counted) - Counter(found[EMPTY_PASS])).elements())
        if isinstance(left := await store.log.read(entry.change.id), Entry):
            await store.log.forget(left)
    return found


async def _dead_put(store: CountedStore) -> Entry:
    """The entry of a put whose writer died after the upload: nothing names the blob."""
    change_id = ChangeId.new(store.runtime)
    return await store.log.record(Change(change_id, COUNTED.path, blob_name(COUNTED.path, change_id)), "dead")


async def count_case(store: CountedStore, case: CallsCase) -> Ledger:
    await store.run(lambda storage: storage.delete(COUNTED), *case.first)
    store.runtime.later_s += case.later_s
    return await store.count(case.operation)
