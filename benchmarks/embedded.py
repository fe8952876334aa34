"""What the embedded store costs beside the bare system: ratios, measured side by side in one run.

    python -m benchmarks.embedded --size 1        some 15 seconds on a local SSD

Each line sets a store's put beside what a user would write instead, for the same payloads, at the same number
in flight, on the same disk: one SQLite insert per transaction (`synchronous=FULL`), or a temporary file that is
written, fsynced and renamed. Both run in threads, as an async service would have to. Rounds alternate, so that
what else the machine does hits both alike; shown are medians of the rounds, and between which ratios the middle half
of them lies. Every put is of a new name. A ratio above 1 means that the store takes longer; trust it, not the times.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Literal

import anyio
from anyio import to_thread
from rich.console import Console
from rich.table import Table

from tiered import ObjectId, Settings, TieredStorage, open_storage

KIB = 1024
ROUNDS = 9
SMALL_BYTES = 1 * KIB
LARGE_BYTES = 2 * KIB * KIB

Put = Callable[[str, bytes], Awaitable[object]]
"""Stores a payload durably under a new name."""


@dataclass(frozen=True)
class Case:
    """One line of the table: a round is `puts` payloads of `size_bytes` each, `in_flight` of them at once."""

    what: str
    left: Put
    beside: str
    right: Put
    size_bytes: int
    in_flight: int
    puts: int


async def compare(case: Case, names: count[int]) -> tuple[float, float, list[float]]:
    """Milliseconds per put of both, medians of the rounds; and of each round how many times `right`'s time `left` takes."""
    payload = os.urandom(case.size_bytes)
    left: list[float] = []
    right: list[float] = []
    for number in range(ROUNDS):
        # Who goes first alternates too: what one has written, the disk may still be busy with in the other's time.
        for put, seconds in [(case.left, left), (case.right, right)][:: 1 if number % 2 else -1]:
            seconds.append(await _seconds(put, payload, case, names))
    per_put = 1000 / case.puts
    return median(left) * per_put, median(right) * per_put, [one / other for one, other in zip(left, right, strict=True)]


async def _seconds(put: Put, payload: bytes, case: Case, names: count[int]) -> float:
    to_do = iter(range(case.puts))

    async def writer() -> None:
        for _ in to_do:
            await put(f"{next(names):08}", payload)

    began = time.perf_counter()
    async with anyio.create_task_group() as writers:
        for _ in range(case.in_flight):
            writers.start_soon(writer)
    return time.perf_counter() - began


# --- what is compared ----------------------------------------------------------------------------


@asynccontextmanager
async def store(directory: Path, changelog: Literal["noop", "sqlite"]) -> AsyncIterator[Put]:
    def into(storage: TieredStorage) -> Put:
        return lambda name, payload: storage.put(ObjectId.create("bench", name), payload)

    async with open_storage(Settings(directory=directory, changelog=changelog)) as storage:
        yield into(storage)


@asynccontextmanager
async def bare_sqlite(path: Path) -> AsyncIterator[Put]:
    one_at_a_time = anyio.CapacityLimiter(1)
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "CREATE TABLE object (name TEXT PRIMARY KEY, payload BLOB)"):
        connection.execute(statement)

    async def put(name: str, payload: bytes) -> None:
        await to_thread.run_sync(connection.execute, "INSERT INTO object VALUES (?, ?)", (name, payload), limiter=one_at_a_time)

    yield put
    connection.close()


@asynccontextmanager
async def bare_files(directory: Path) -> AsyncIterator[Put]:
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

    yield put
    os.close(folder)


# --- the run -------------------------------------------------------------------------------------


async def main(root: Path, size: float) -> None:
    title = f"Embedded store: medians of {ROUNDS} rounds"
    table = Table("put", "in flight", "ms", "beside", "ms", "ratio", "half of all rounds", title=title)
    names = count()
    async with AsyncExitStack() as opened:
        noop = await opened.enter_async_context(store(root / "noop", "noop"))
        logged = await opened.enter_async_context(store(root / "sqlite", "sqlite"))
        insert = await opened.enter_async_context(bare_sqlite(root / "bare.db"))
        rename = await opened.enter_async_context(bare_files(root / "bare"))
        small, large = max(2, round(300 * size)), max(2, round(20 * size))
        for in_flight in (1, 16):
            for case in (
                Case("1 KiB", logged, "bare SQLite insert", insert, SMALL_BYTES, in_flight, small),
                Case("2 MiB", logged, "bare write, fsync, rename", rename, LARGE_BYTES, in_flight, large),
                Case("2 MiB", logged, "the same without a changelog", noop, LARGE_BYTES, in_flight, large),
            ):
                left_ms, right_ms, ratios = await compare(case, names)
                low, middle, high = quantiles(ratios, n=4)
                table.add_row(
                    case.what, str(in_flight), f"{left_ms:.2f}", case.beside, f"{right_ms:.2f}", f"{middle:.2f}", f"{low:.2f} - {high:.2f}"
                )
    Console(width=100).print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m benchmarks.embedded", description="What the embedded store costs beside the bare system.")
    parser.add_argument("--size", type=float, default=1.0, help="scales the number of puts per round (1: some 15 seconds)")
    parser.add_argument("--directory", type=Path, help="where the disk to measure is mounted (default: the system's temporary directory)")
    arguments = parser.parse_args()
    with TemporaryDirectory(prefix="tiered-bench-", dir=arguments.directory) as temporary:
        anyio.run(main, Path(temporary), arguments.size)
