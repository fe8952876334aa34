"""The figures of the writer of the change feed: what it writes, what its calls are, and what a store pays for it.

    python -m benchmarks.production --only feed_writer --docs docs/benchmarks.md      all of it, some ten minutes
    python -m benchmarks.production --only feed_writer --size 0.01                    a quick look

    written      hints and the snapshot: updates per second and core, embedded and on the emulators, as JSON and as Avro
    calls        of one transaction, counted; and of the clean-up after each hint
    price        what a put over a large object takes with a feed, beside the same without one
    lag          from the answer of a put until a sink has acknowledged its update, under a steady load
    snapshot     a new generation over many references that are there already, in a process of its own

The CPU is that of the process of the writer, with its delivery to a directory and its clean-up. The services have
processes of their own.
"""

from __future__ import annotations

import gc
import json
import resource
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any, Literal, cast

import anyio

from benchmarks.figures import Cell, Figures
from benchmarks.rounds import Ratio, run_in_flight, take_turns, timed
from benchmarks.servers import Servers, started
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import BigtableTable, Channel, insecure_channel
from changelog.bigtable.log import BigtableChangeLog
from changelog.change import ChangeId
from recovery.feed.files import read_all
from recovery.feed.messages import Updates
from recovery.feed.reader import CdcReader
from recovery.feed.sinks.directory import DirectorySink
from recovery.feed.sinks.sink import Owner, Segment
from recovery.feed.view import FeedView
from recovery.feed.writer.cleaning import Cleaning
from recovery.feed.writer.source import FeedWriterCounts
from recovery.feed.writer.supervisor import FeedRun
from recovery.feed.writer.writer import FeedWriter, StepResult
from tiered import ObjectId, Settings
from tiered.bigtable.rows import BigtableRows
from tiered.gcs.blobs import GcsBlobs
from tiered.kinds.chosen import address_of
from tiered.object_id import blob_name
from tiered.open import Backends, open_backends
from tiered.protocol.backends import Tiers, Tombstone
from tiered.settings import FeedSettings, RecoverySettings
from tiered.storage import TieredStorage

HINTS, SNAPSHOT, SNAPSHOT_EMULATED = 5_000, 1_000_000, 20_000
HINTS_EACH = (1, 100, 1000)
PUTS, ROUNDS = 30, 5
RATE_PER_S, LOAD_S = 20.0, 20.0
POLLS_S = (2.0, 0.2)
LARGE, INLINE_BYTES_MAX = bytes(2), 1
MIB = 1024 * 1024
IN_FLIGHT = 16
RUN_S = 3000.0
RUNTIME = SystemRuntime()

Form = Literal["json", "avro"]

NOTE = (
    "The CPU of the writer's process, with the delivery to a directory and the clean-up; of Bigtable and GCS it is the client's part."
    " Read: CdcReader and FeedView, from the files."
)


def fed(**more: Any) -> FeedSettings:
    return FeedSettings(enabled=True, to=("a directory",), **more)


def embedded(directory: Path, **feed: Any) -> Settings:
    return Settings(directory=directory, inline_bytes_max=INLINE_BYTES_MAX, feed=fed(**feed))


async def emulated(servers: Servers, **feed: Any) -> Settings:
    recovery = RecoverySettings(late_upload_grace_s=1.0)
    return servers.settings(
        await servers.new_table(), "bigtable", inline_bytes_max=INLINE_BYTES_MAX, feed=fed(**feed), recovery=recovery
    )


# --- written ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rate:
    """What a run of the writer took, and what was read back. `size`: bytes of all files.

    `peak_mib`: how large the process ever was, before anything was read back.
    """

    updates: int
    cpu_s: float
    wall_s: float
    size: int
    read_s: float
    peak_mib: float


async def put_all(settings: Settings, objects: int) -> None:
    async with open_backends(settings, RUNTIME) as backends, TieredStorage(backends.tiers, backends.log, RUNTIME, settings) as storage:
        await run_in_flight(lambda number: storage.put(ObjectId.create("bench", f"{number:012}"), LARGE), range(objects), IN_FLIGHT)


async def publish(settings: Settings, directory: Path) -> Rate:
    """Publishes all, as `tiered feed run --once` does. Raises `AssertionError` if the view has another size."""
    async with open_backends(settings, RUNTIME) as backends:
        run = FeedRun(backends, RUNTIME, settings, {"feed": DirectorySink(directory, RUNTIME)}, once=True)
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        await run.run()
        wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    updates, peak_mib = run.written.updates, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    [folder] = (each for each in directory.iterdir() if each.is_dir())  # beside it lies what readers ask for
    files = sorted(folder.iterdir())
    began = time.process_time()
    view = FeedView()
    reader = CdcReader()
    for located in read_all(files):
        if (batch := reader.feed(located.message)) is not None:
            view.add(batch)
    read_s = time.process_time() - began
    assert len(view) == updates, f"the view has {len(view)} references, and {updates} were written"
    return Rate(updates, cpu_s, wall_s, sum(each.stat().st_size for each in files), read_s, peak_mib)


async def written(servers: Servers, size: float) -> Figures:
    rows, hints = [], max(20, round(HINTS * size))
    forms: tuple[tuple[str, Form], ...] = (("embedded, JSON", "json"), ("embedded, Avro", "avro"), ("emulators, JSON", "json"))
    for what, form in forms:
        with TemporaryDirectory(prefix="tiered-bench-") as directory:
            where = Path(directory)
            settings = embedded(where / "store", format=form) if what.startswith("embedded") else await emulated(servers, format=form)
            await put_all(settings, hints)
            rows.append(_row(f"{hints:,} new objects, {what}", await publish(settings, where / "feed")))
    return Figures("Writing the change feed", COLUMNS, rows, [NOTE])


COLUMNS = ["", "updates per s and core", "CPU, s", "all, s", "bytes per update", "updates read per s and core"]


def _row(what: str, rate: Rate) -> list[str]:
    return [
        what, f"{rate.updates / rate.cpu_s:,.0f}", f"{rate.cpu_s:.2f}", f"{rate.wall_s:.1f}", f"{rate.size / rate.updates:,.0f}",
        f"{rate.updates / rate.read_s:,.0f}",
    ]  # fmt: skip


# --- calls -----------------------------------------------------------------------------------------


class CountingChannel:
    """Implements `Channel` with another one, and counts the calls by method."""

    def __init__(self, channel: Channel) -> None:
        self.calls = Counter[str]()
        self._channel = channel

    def unary_unary(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        return self._counting(method, self._channel.unary_unary(method, request_serializer, response_deserializer))

    def unary_stream(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        return self._counting(method, self._channel.unary_stream(method, request_serializer, response_deserializer))

    def _counting(self, method: str, send: Any) -> Any:
        def begin(request: Any, **options: Any) -> Any:
            self.calls[method.rpartition("/")[2]] += 1
            return send(request, **options)

        return begin


METHODS = ("ReadRows", "CheckAndMutateRow", "MutateRow", "MutateRows")


@asynccontextmanager
async def counted_backends(settings: Settings) -> AsyncIterator[tuple[Backends, CountingChannel]]:
    """Opens a store on the emulators, whose calls to Bigtable are counted."""
    at, gcs = settings.bigtable, settings.gcs
    assert at is not None and gcs is not None and at.emulator_host is not None, "it is on the emulators"
    async with insecure_channel(at.emulator_host) as channel, GcsBlobs.connect(gcs.bucket, RUNTIME, endpoint=gcs.endpoint) as blobs:
        counting = CountingChannel(channel)
        table = BigtableTable(counting, f"projects/{at.project}/instances/{at.instance}/tables/{at.table}")
        yield Backends(Tiers(BigtableRows(table, RUNTIME), blobs), BigtableChangeLog(table, RUNTIME)), counting


async def count_transaction(settings: Settings, hints: int) -> tuple[Counter[str], Counter[str]]:
    """Returns the calls of one transaction of so many overwritten objects, and those of the clean-up after it."""
    async with counted_backends(settings) as (backends, counting):
        writer = FeedWriter(backends, RUNTIME, settings, address_of(settings), FeedWriterCounts())
        cleaning = Cleaning(writer, backends, RUNTIME, settings)
        await writer.open()
        await put_all(settings, hints)
        while await writer.step() is StepResult.MORE:
            pass
        await cleaning.clean_due()
        await put_all(settings, hints)
        before = counting.calls.copy()
        step = await writer.step()
        of_step = counting.calls - before
        assert step is StepResult.DONE and len(writer.covered) == hints, f"one transaction of {hints} hints, and not {len(writer.covered)}"
        before = counting.calls.copy()
        await cleaning.clean_due()
        assert not writer.covered, "all is cleaned up"
        return of_step, counting.calls - before


async def calls(servers: Servers, size: float, hints_each: tuple[int, ...] = HINTS_EACH) -> Figures:
    rows = []
    for hints in sorted({max(1, round(most * min(1.0, size))) for most in hints_each}):
        of_step, of_cleaning = await count_transaction(await emulated(servers), hints)
        rows.append([f"{hints:,}", *(f"{of_step[each]:,}" for each in METHODS), f"{of_step.total() / hints:.2f}",
                     f"{of_cleaning.total() / hints:.2f}"])  # fmt: skip
    exact = [*METHODS, "calls per hint"]  # how many hints the clean-up takes in one request is chance
    return Figures(
        "Calls to Bigtable for one transaction of the feed", ["hints", *exact, "and to clean up after each"], rows,
        [
            "Counted, not timed. Each hint is a put over a large object, so it has two updates. The clean-up is settle and forget;"
            " many hints share a request, and each old blob is deleted from GCS. A look that finds no hint is one ReadRows.",
        ],
        counted=exact,
    )


# --- price -----------------------------------------------------------------------------------------


async def price(servers: Servers, size: float) -> Figures:
    """Puts of 2 MiB over a large object, one after the other, with a feed and without."""
    rows: list[list[Cell]] = []
    puts, table = max(1, round(PUTS * size)), await servers.new_table()
    payload, names = bytes(2 * MIB), count()
    with_feed = servers.settings(table, "bigtable", feed=fed())
    without = servers.settings(await servers.new_table(), "bigtable")
    for what, operation in (
        ("put 2 MiB over large", lambda storage, name: storage.put(name, payload)),
        ("delete large", lambda storage, name: storage.delete(name)),
    ):  # fmt: skip

        async def run(settings: Settings, operation: Callable[..., Awaitable[object]] = operation) -> tuple[float, float]:
            """Returns the median latency, and the CPU of an operation with all that follows it in this process."""
            objects = [ObjectId.create("bench", f"{next(names)}") for _ in range(puts)]
            latencies = []
            async with open_backends(settings, RUNTIME) as backends:
                async with TieredStorage(backends.tiers, backends.log, RUNTIME, settings) as storage:
                    for each in objects:
                        await storage.put(each, payload)
                cpu = time.process_time()
                async with TieredStorage(backends.tiers, backends.log, RUNTIME, settings) as storage:
                    for each in objects:
                        latencies.append(await timed(operation(storage, each)))
                return median(latencies), (time.process_time() - cpu) / puts

        on, off = await take_turns([partial(run, with_feed), partial(run, without)], ROUNDS)
        for place, of in ((0, "latency"), (1, "CPU")):
            rows.append([
                f"{what}: {of}", *(f"{1000 * median(each[place] for each in side):.2f}" for side in (on, off)),
                Ratio.of([each[place] for each in on], [each[place] for each in off]),
            ])  # fmt: skip
    return Figures(
        "A large change with a change feed and without", ["", "with a feed, ms", "without, ms", "ratio"], rows,
        [
            "The CPU includes what comes after the answer. With a feed, its writer settles and deletes the old blob later,"
            " in another process: that CPU is in the first table.",
        ],
    )


# --- lag -------------------------------------------------------------------------------------------


class TimingSink:
    """A sink that notes when it has acknowledged the update of each blob."""

    name = "timing"

    def __init__(self) -> None:
        self.acknowledged: dict[str, float] = {}

    async def deliver(self, segment: Segment) -> None:
        blobs = [
            each.data["blob"] for message in segment.messages() if isinstance(message, Updates) for each in message.updates if each.diff > 0
        ]
        now = time.perf_counter()
        self.acknowledged |= dict.fromkeys(blobs, now)

    async def look(self, generation: int, since: int) -> None:
        return None

    async def claim(self, owner: Owner) -> bool:
        return False

    async def aclose(self) -> None:
        return None


async def lags(settings: Settings, seconds: float) -> list[float]:
    """Returns how many seconds after the answer of each put a sink had acknowledged its update."""
    answered: dict[str, float] = {}
    sink = TimingSink()
    async with (
        open_backends(settings, RUNTIME) as backends, TieredStorage(backends.tiers, backends.log, RUNTIME, settings) as storage,
        anyio.create_task_group() as tasks,
    ):  # fmt: skip
        run = FeedRun(backends, RUNTIME, settings, {sink.name: sink})
        tasks.start_soon(run.run)
        while not sink.acknowledged and not run.writer.waiting:  # its first pass has begun
            await anyio.sleep(0.05)

        async def put(number: int) -> None:
            object_id = ObjectId.create("bench", f"{number:08}")
            await storage.put(object_id, LARGE)
            answered[object_id.path] = time.perf_counter()

        began = time.perf_counter()
        async with anyio.create_task_group() as puts:
            for number in range(round(RATE_PER_S * seconds)):
                await anyio.sleep(max(0.0, began + number / RATE_PER_S - time.perf_counter()))
                puts.start_soon(put, number)
        with anyio.fail_after(30):
            while len(sink.acknowledged) < len(answered):
                await anyio.sleep(0.05)
        run.stop()
    of_object = {blob.rpartition("/")[0]: at for blob, at in sink.acknowledged.items()}
    return [of_object[path] - at for path, at in answered.items()]


async def lag(servers: Servers, size: float) -> Figures:
    rows, seconds = [], max(1.0, LOAD_S * size)
    for poll_s in POLLS_S:
        for what in ("embedded", "emulators"):
            with TemporaryDirectory(prefix="tiered-bench-") as directory:
                settings = embedded(Path(directory), poll_s=poll_s) if what == "embedded" else await emulated(servers, poll_s=poll_s)
                found = await lags(settings, seconds)
            cuts = quantiles(found, n=100, method="inclusive")
            rows.append([f"poll_s {poll_s:g}, {what}", *(f"{each:.2f}" for each in (cuts[49], cuts[98], max(found)))])
    return Figures(
        f"Lag of the feed at {RATE_PER_S:g} large puts a second", ["", "median, s", "99 of 100, s", "longest, s"], rows,
        ["From the answer of a put until the sink has acknowledged its update. Store, writer and sink are one process."],
    )


# --- snapshot --------------------------------------------------------------------------------------


def fill(directory: Path, references: int) -> None:
    """Writes rows straight into the database: a snapshot reads nothing else."""

    async def make() -> None:
        async with open_backends(embedded(directory), RUNTIME) as backends:
            await backends.tiers.high_volume.redirects(b"", None, 1)  # it makes the tables

    anyio.run(make)
    with closing(sqlite3.connect(directory / "tiered.db")) as connection, connection:
        connection.executemany("INSERT INTO rows (path, target, policy) VALUES (?, ?, '{}')", map(_row_of, range(references)))


def _row_of(number: int) -> tuple[str, str]:
    path = ObjectId.create("attachments", f"2026/{number:012}", (("org", f"{number % 97}"),)).path
    return path, blob_name(path, ChangeId.new(RUNTIME))


def snapshot_here(form: Form, references: int) -> Rate:
    with TemporaryDirectory(prefix="tiered-bench-") as directory:
        where = Path(directory)
        fill(where / "store", references)
        return anyio.run(publish, embedded(where / "store", format=form), where / "feed")


async def snapshot(servers: Servers, size: float) -> Figures:
    references, rows = max(200, round(SNAPSHOT * size)), []
    for form in ("json", "avro"):
        async with started("benchmarks.feed_writer", form, str(references), within_s=RUN_S) as told:  # a process of its own
            rate = Rate(**json.loads(told))
        rows.append([*_row(f"{references:,} references, embedded, {form}", rate), f"{rate.peak_mib:,.0f}"])
    few = max(20, round(SNAPSHOT_EMULATED * size))
    settings = await emulated(servers)
    async with open_backends(settings, RUNTIME) as backends:
        deadline_s = RUNTIME.boot_time() + 3600

        async def write(number: int) -> None:
            path, token = f"bench/objects/{number:012}", ChangeId.new(RUNTIME)
            await backends.tiers.high_volume.swap(path, token, None, Tombstone(blob_name(path, token), token=token), deadline_s)

        await run_in_flight(write, range(few), IN_FLIGHT)
    with TemporaryDirectory(prefix="tiered-bench-") as directory:
        rows.append([*_row(f"{few:,} references, emulators, json", await publish(settings, Path(directory) / "feed")), ""])
    return Figures("The first pass of a generation", [*COLUMNS, "writer, MiB"], rows, [NOTE])


# --- all -------------------------------------------------------------------------------------------

PARTS = (written, calls, price, lag, snapshot)


async def figures(servers: Servers, size: float) -> list[Figures]:
    return [await part(servers, size) for part in PARTS]


if __name__ == "__main__":
    print(json.dumps(asdict(snapshot_here(cast(Form, sys.argv[1]), int(sys.argv[2])))), flush=True)
