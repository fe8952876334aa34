"""What the embedded store costs beside the bare system: ratios, measured side by side in one run.

    python -m benchmarks.embedded --size 1        some 40 seconds on a quiet machine

Each line compares a store's put with what a user would write instead: one SQLite insert per transaction
(`synchronous=FULL`), or a temporary file that is written, fsynced and renamed. Payloads, number in flight and disk are
the same. Both run in threads, as an async service would have to. Rounds alternate, so other work on the machine affects
both alike. The table shows medians of the rounds, and the ratios between which the middle half of them lies. Every put
has a new name. A ratio above 1 means that the store takes longer. Trust the ratio, not the times.

It is done twice. On a disk, the time is mostly that of the syncs, which both sides make. In a memory disk a sync costs
nothing, so all of the time is CPU. `embedded_profile.py` says where that CPU goes.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

import anyio
from anyio import to_thread

from benchmarks import embedded_profile
from benchmarks.figures import Cell, Figures, options, tell
from benchmarks.rounds import Ratio, run_in_flight, take_turns, timed
from tiered import ObjectId, Settings, TieredStorage, open_storage

KIB = 1024
ROUNDS = 9
SMALL_BYTES = 1 * KIB
LARGE_BYTES = 2 * KIB * KIB

class EmbeddedSide(NamedTuple):
    """`put` stores a payload durably under a new name. `delete` removes it again, and is not measured.

    Files that stay would fill a memory disk, and new pages of memory cost more than those that were used before.
    """

    put: Callable[[str, bytes], Awaitable[object]]
    delete: Callable[[str], Awaitable[object]]


@dataclass(frozen=True)
class EmbeddedCase:
    """One line of the table. A round is `puts` payloads of `size_bytes` each, `in_flight` of them at once."""

    what: str
    left: EmbeddedSide
    beside: str
    right: EmbeddedSide
    size_bytes: int
    in_flight: int
    puts: int


class PutCost(NamedTuple):
    """One round of one side, per put: seconds on the clock, and seconds of CPU in all threads."""

    clock_s: float
    cpu_s: float


async def compare(case: EmbeddedCase, names: count[int]) -> list[Cell]:
    """Returns the cells of the case: both sides' times, the ratio of the times, and that of the CPU."""
    payload = os.urandom(case.size_bytes)

    async def measured(side: EmbeddedSide) -> PutCost:
        chosen = [f"{name:08}" for name in islice(names, case.puts)]
        cpu = time.process_time()
        clock_s = await timed(run_in_flight(lambda name: side.put(name, payload), chosen, case.in_flight))
        cpu_s = time.process_time() - cpu
        await run_in_flight(side.delete, chosen, 16)
        return PutCost(clock_s / case.puts, cpu_s / case.puts)

    # The order alternates, because the disk may still be busy with what the first has written.
    left, right = await take_turns([lambda: measured(case.left), lambda: measured(case.right)], ROUNDS)
    clock, cpu = (Ratio.of([each[column] for each in left], [each[column] for each in right]) for column in (0, 1))
    return [
        case.what, str(case.in_flight), case.beside,
        *(f"{median(each.clock_s for each in side) * 1000:.2f}" for side in (left, right)), clock,
        *(f"{median(each.cpu_s for each in side) * 1000:.2f}" for side in (left, right)), cpu,
    ]


# --- what is compared ----------------------------------------------------------------------------


@asynccontextmanager
async def store(directory: Path, changelog: Literal["noop", "sqlite"]) -> AsyncIterator[EmbeddedSide]:
    def into(storage: TieredStorage) -> EmbeddedSide:
        return EmbeddedSide(
            lambda name, payload: storage.put(ObjectId.create("bench", name), payload),
            lambda name: storage.delete(ObjectId.create("bench", name)),
        )

    async with open_storage(Settings(directory=directory, changelog=changelog)) as storage:
        yield into(storage)


@asynccontextmanager
async def bare_sqlite(path: Path) -> AsyncIterator[EmbeddedSide]:
    one_at_a_time = anyio.CapacityLimiter(1)
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "CREATE TABLE object (name TEXT PRIMARY KEY, payload BLOB)"):
        connection.execute(statement)

    async def put(name: str, payload: bytes) -> None:
        await to_thread.run_sync(connection.execute, "INSERT INTO object VALUES (?, ?)", (name, payload), limiter=one_at_a_time)

    async def delete(name: str) -> None:
        await to_thread.run_sync(connection.execute, "DELETE FROM object WHERE name = ?", (name,), limiter=one_at_a_time)

    yield EmbeddedSide(put, delete)
    connection.close()


@asynccontextmanager
async def bare_files(directory: Path) -> AsyncIterator[EmbeddedSide]:
    directory.mkdir()
    folder = os.open(directory, os.O_RDONLY)

    def write(name: str, payload: bytes) -> None:
        temporary = directory / f"{name}.tmp"
        with temporary.open("xb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(directory / name)
        os.fsync(folder)

    async def put(name: str, payload: bytes) -> None:
        await to_thread.run_sync(write, name, payload)

    def unlink(name: str) -> None:
        (directory / name).unlink()
        os.fsync(folder)  # as the store does it, so that it is over when the next round begins

    async def delete(name: str) -> None:
        await to_thread.run_sync(unlink, name)

    yield EmbeddedSide(put, delete)
    os.close(folder)


# --- the run -------------------------------------------------------------------------------------


async def measure(root: Path, disk: str, size: float) -> list[list[Cell]]:
    """The lines of one disk. `root`: a directory on it, which is made."""
    names = count()
    rows: list[list[Cell]] = []
    root.mkdir()
    async with AsyncExitStack() as opened:
        noop = await opened.enter_async_context(store(root / "noop", "noop"))
        logged = await opened.enter_async_context(store(root / "sqlite", "sqlite"))
        insert = await opened.enter_async_context(bare_sqlite(root / "bare.db"))
        rename = await opened.enter_async_context(bare_files(root / "bare"))
        small, large = max(2, round(300 * size)), max(2, round(20 * size))
        for in_flight in (1, 16):
            for case in (
                EmbeddedCase("1 KiB", logged, "bare SQLite insert", insert, SMALL_BYTES, in_flight, small),
                EmbeddedCase("2 MiB", logged, "bare write, fsync, rename", rename, LARGE_BYTES, in_flight, large),
                EmbeddedCase("2 MiB", logged, "the same without a changelog", noop, LARGE_BYTES, in_flight, large),
            ):
                rows.append([disk, *await compare(case, names)])
    return rows


async def figures(disk: Path, memory: Path, size: float) -> list[Figures]:
    rows = [*await measure(disk / "puts", "disk", size), *await measure(memory / "puts", "memory", size)]
    columns = ["where", "put", "in flight", "beside", "ms", "theirs", "ratio", "CPU ms", "their CPU ms", "CPU ratio"]
    notes = ["CPU: of all threads of the process, of which the kernel's part in writing a file is one."]
    named_by = ("where", "put", "in flight", "beside")
    title = f"Embedded store: medians of {ROUNDS} rounds"
    return [Figures(title, columns, rows, notes, named_by=named_by), *await embedded_profile.figures(memory, size)]


if __name__ == "__main__":
    parser = options(
        "embedded", "What the embedded store costs beside the bare system.",
        "scales the number of puts per round (1: some 40 seconds)",
    )  # fmt: skip
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="where the disk to measure is mounted (/var/tmp)")
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="where a memory disk is mounted (/dev/shm)")
    arguments = parser.parse_args()
    with (
        TemporaryDirectory(prefix="tiered-bench-", dir=arguments.directory) as on_disk,
        TemporaryDirectory(prefix="tiered-bench-", dir=arguments.memory) as in_memory,
    ):
        tables = anyio.run(figures, Path(on_disk), Path(in_memory), arguments.size)
    tell("embedded", tables, arguments.size, arguments.load, arguments.docs)
