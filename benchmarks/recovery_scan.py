"""What one pass of a recovery daemon costs while the changelog is full of entries that are not its business.

    nothing   the price of a pass itself
    renewed   open entries of writers that live
    kept      entries that wait for the change feed: old heartbeats, and a state

Every pass of every daemon pays this. Each entry was made ten minutes ago, so passes over recent changes see it, too.
The first table has the requests to the changelog, the messages and bytes that came back, and the CPU of both sides. The
daemon's memory is the peak of what Python allocated, in a pass of its own.

Google's emulator sends each row in a message of its own, which costs far more than the row. The service packs many rows
into a message. So the second table decodes kept rows from messages of 100 rows, without a server.
"""

from __future__ import annotations

import gc
import sqlite3
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from google.cloud.bigtable_v2.types import bigtable

from benchmarks.figures import Figures
from benchmarks.processes import cpu_s
from benchmarks.servers import Servers
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import BigtableTable, Channel, insecure_channel, set_cell
from changelog.bigtable.log import BigtableChangeLog
from changelog.bigtable.row_merge import RowMerge
from changelog.bigtable.row_scan import RowScan
from changelog.change import DONE, Change, ChangeId, Entry, decode, encode, encode_done
from changelog.log import ChangeLog
from recovery.loop import RecoveryLoop
from tiered import ObjectId
from tiered.object_id import blob_name
from tiered.open import open_backends
from tiered.settings import Settings

RUNTIME = SystemRuntime()
ENTRIES = {"nothing": (0, 0), "renewed": (100_000, 100_000), "kept": (10_000, 100_000)}
"""How many entries of a kind there are, on Bigtable and in SQLite. Kept ones are fewer where each is a message."""

PASSES = 3
MADE_BEFORE_MS = 600_000
HELD_MS = 600_000
"""The heartbeats of renewed entries are so far ahead, so that nobody has to renew them meanwhile."""

LOADED_AT_ONCE = 1000
DECODED, ROUNDS, ROWS_IN_MESSAGE = 10_000, 5, 100
_Rows = bigtable.ReadRowsResponse.pb()


@dataclass
class CountingScanChannel:
    """A channel that counts requests, and the messages and bytes of answers."""

    channel: Channel
    requests: int = 0
    messages: int = 0
    answered: int = 0

    def unary_unary(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        return self.channel.unary_unary(method, *self._counting(request_serializer, response_deserializer))

    def unary_stream(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        return self.channel.unary_stream(method, *self._counting(request_serializer, response_deserializer))

    def _counting(self, serialize: Callable[[Any], bytes], deserialize: Callable[[bytes], Any] | None) -> tuple[Any, Any]:
        def sent(request: Any) -> bytes:
            self.requests += 1
            return serialize(request)

        def received(raw: bytes) -> Any:
            self.messages += 1
            self.answered += len(raw)
            return raw if deserialize is None else deserialize(raw)

        return sent, received


Opens = Callable[[str, int], AbstractAsyncContextManager[tuple[RecoveryLoop, CountingScanChannel | None]]]
"""Opens a log with so many entries of a kind, and a recovery loop over it."""


@dataclass
class Passes:
    """What the passes over one log took. Times are seconds of one pass."""

    cpu: list[float] = field(default_factory=list)
    server_cpu: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    requests: float = 0.0
    messages: float = 0.0
    answered: float = 0.0
    peak_mib: float = 0.0


async def figures(servers: Servers, size: float) -> list[Figures]:
    rows = []
    for kind, counts in ENTRIES.items():
        sides: Mapping[str, Opens] = {"Bigtable": partial(_on_bigtable, servers), "SQLite": _on_sqlite}
        for (where, opens), count in zip(sides.items(), counts, strict=True):
            entries = round(count * size)
            async with opens(kind, entries) as (loop, counted):
                rows.append([where, kind, f"{entries:,}", *_cells(await _passes(loop, counted), counted)])
    columns = ["log", "entries", "how many", "ms", "daemon, CPU ms", "emulator, CPU ms", "requests", "messages", "KiB", "peak, MiB"]
    return [
        Figures("Recovery: a pass that finds nothing to do", columns, rows, [f"Medians of {PASSES} passes over the whole log."]),
        _decoding(max(100, round(DECODED * size))),
    ]


def _decoding(count: int) -> Figures:
    """What it costs to learn from packed messages that rows are kept."""
    entries = sorted(_entries(count), key=lambda entry: entry.key)
    whole = _messages(entries, lambda entry: {b"c": encode(entry), b"s": DONE.encode()})
    cells = _messages(entries, lambda _: {b"c": b"", b"s": b""})
    apart = [*_messages(entries, lambda entry: {b"c": encode(entry)}), *_messages(entries, lambda _: {b"s": b""})]

    def decode_whole() -> None:
        merge = RowMerge()
        for raw in whole:
            for row in merge.add(_Rows.FromString(raw).chunks):
                decode(row.key.decode(), row.cells[0].value, 0, row.cells[1].value.decode())

    def scan(messages: Sequence[bytes]) -> None:
        for part in (messages[: len(whole)], messages[len(whole) :]):
            found = RowScan()
            for raw in part:
                found.add(raw)

    sides: list[tuple[str, list[bytes], Callable[[], None]]] = [
        ("both cells with their values, each entry decoded", whole, decode_whole),
        ("both cells without values, in one scan", cells, partial(scan, cells)),
        ("the entry's value, and its state without one, in two scans (what `stale` does)", apart, partial(scan, apart)),
    ]
    rows = []
    for what, messages, work in sides:
        seconds = min(_timed(work) for _ in range(ROUNDS))
        rows.append([what, f"{seconds / count * 1e6:.1f}", f"{sum(map(len, messages)) / count:,.0f}"])
    return Figures("Recovery: an entry that is kept, in messages of 100 rows", ["", "CPU, µs", "bytes"], rows)


def _timed(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _messages(entries: Sequence[Entry], cells: Callable[[Entry], Mapping[bytes, bytes]]) -> list[bytes]:
    """Messages of ReadRows with 100 rows each. A row has these cells, by column."""
    packed = []
    for first in range(0, len(entries), ROWS_IN_MESSAGE):
        message = _Rows()
        for entry in entries[first : first + ROWS_IN_MESSAGE]:
            for place, (column, value) in enumerate(shown := cells(entry).items()):
                chunk = message.chunks.add(timestamp_micros=1_700_000_000_000_000, value=value, commit_row=place == len(shown) - 1)
                chunk.qualifier.value = column
                if place == 0:
                    chunk.row_key, chunk.family_name.value = entry.key.encode(), "fc"
        packed.append(message.SerializeToString())
    return packed


def _cells(passes: Passes, counted: CountingScanChannel | None) -> list[str]:
    answers = [f"{passes.requests:,.0f}", f"{passes.messages:,.0f}", f"{passes.answered / 1024:,.1f}"] if counted else [""] * 3
    server = f"{median(passes.server_cpu) * 1000:,.0f}" if counted else ""
    return [f"{median(passes.took) * 1000:,.1f}", f"{median(passes.cpu) * 1000:,.1f}", server, *answers, f"{passes.peak_mib:.1f}"]


async def _passes(loop: RecoveryLoop, counted: CountingScanChannel | None) -> Passes:
    await _pass(loop)  # warms up
    found = Passes()
    before = None if counted is None else replace(counted)
    for _ in range(PASSES):
        gc.collect()
        server, cpu, began = _emulator_s(), time.process_time(), time.perf_counter()
        await _pass(loop)
        found.took.append(time.perf_counter() - began)
        found.cpu.append(time.process_time() - cpu)
        found.server_cpu.append(_emulator_s() - server)
    if counted is not None and before is not None:
        for name in ("requests", "messages", "answered"):
            setattr(found, name, (getattr(counted, name) - getattr(before, name)) / PASSES)
    tracemalloc.start()
    await _pass(loop)
    found.peak_mib = tracemalloc.get_traced_memory()[1] / 1024**2
    tracemalloc.stop()
    return found


def _emulator_s() -> float:
    return cpu_s().get("cbtemulator", 0.0)


async def _pass(loop: RecoveryLoop) -> None:
    report = await loop.run_once()
    if report.seen or report.failed:
        raise AssertionError(f"there was nothing to do, and it did: {report}")


# --- the logs --------------------------------------------------------------------------------------


@asynccontextmanager
async def _on_bigtable(servers: Servers, kind: str, entries: int) -> AsyncIterator[tuple[RecoveryLoop, CountingScanChannel | None]]:
    table = await servers.new_table()
    settings = servers.settings(table, "bigtable")
    async with insecure_channel(servers.bigtable_host) as channel, open_backends(settings, RUNTIME) as backends:
        counted = CountingScanChannel(channel)
        rows = BigtableTable(counted, servers.full_name(table))
        left = _entries(entries)
        while batch := list(islice(left, LOADED_AT_ONCE)):
            failures = await rows.mutate_rows([(entry.key.encode(), _mutations(entry, kind)) for entry in batch])
            if any(failures):
                raise AssertionError(f"the log could not be filled: {failures}")
        yield _loop(backends.tiers, BigtableChangeLog(rows, RUNTIME), settings), counted


def _mutations(entry: Entry, kind: str) -> Sequence[Any]:
    written = set_cell("fc", b"c", encode(entry), entry.heartbeat_ms * 1000 if kind == "renewed" else _made_ms() * 1000)
    return [written] if kind == "renewed" else [written, set_cell("fc", b"s", DONE.encode())]


@asynccontextmanager
async def _on_sqlite(kind: str, entries: int) -> AsyncIterator[tuple[RecoveryLoop, CountingScanChannel | None]]:
    with TemporaryDirectory(prefix="tiered-bench-") as directory:
        settings = Settings(directory=Path(directory), changelog="sqlite")
        async with open_backends(settings, RUNTIME) as backends:
            await backends.log.announce("bench")  # makes the tables
            (file,) = [path for path in Path(directory).rglob("*") if path.suffix in (".db", ".sqlite", ".sqlite3")]
            with closing(sqlite3.connect(file)) as connection, connection:
                is_open, at_ms = kind == "renewed", _made_ms()
                connection.executemany("INSERT INTO changes VALUES (?, ?, ?, ?)", (
                    (entry.key, encode(entry), entry.heartbeat_ms if is_open else at_ms, None if is_open else encode_done(at_ms))
                    for entry in _entries(entries)
                ))
            connection.close()
            yield _loop(backends.tiers, backends.log, settings), None


def _loop(tiers: Any, log: ChangeLog, settings: Settings) -> RecoveryLoop:
    return RecoveryLoop(tiers, log, RUNTIME, settings)


def _made_ms() -> int:
    return RUNTIME.wall_ns() // 1_000_000 - MADE_BEFORE_MS


def _entries(count: int) -> Iterator[Entry]:
    """Entries of changes that were made one after another, until `MADE_BEFORE_MS` ago."""
    made_ms = _made_ms()
    for number in range(count):
        id_ = ChangeId.new(RUNTIME)
        change_id = ChangeId(f"{ChangeId.first(made_ms - (count - number) // 10)[:18]}{id_[18:]}")
        path = ObjectId.create("bench", str(number)).path
        change = Change(change_id, path, blob_name(path, change_id), None, "https://storage.googleapis.com/upload/" + "s" * 100)
        yield Entry(change, change_id.row_key(), "writer-0001", heartbeat_ms=made_ms + MADE_BEFORE_MS + HELD_MS)
