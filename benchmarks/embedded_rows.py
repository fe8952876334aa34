"""What a million rows cost an embedded store: listing them, opening the store, and `recover --once` without work.

    python -m benchmarks.embedded_rows --size 1        some 80 seconds on a quiet machine

The rows are stored by `SqliteRows` itself, as small objects, but 10,000 of them share a transaction. Half of the names
are short, and half are deep: eight folders, 190 bytes. The same is done with a hundredth of the rows, so the figures
show what grows with the number of rows. It runs in a memory disk: then the time on the clock is nearly that of the CPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import anyio

from benchmarks.command import TIERED, run
from benchmarks.figures import Figures, options, tell
from benchmarks.processes import resident_bytes
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from changelog.sqlite.database import Database
from changelog.sqlite.schema import Run
from tiered import Metadata, ObjectId, ObjectPrefix, Settings, TieredStorage, open_storage
from tiered.embedded.rows import SqliteRows
from tiered.protocol.backends import Inline
from tiered.protocol.listing import LIST_PAGE_MAX
from tiered.settings import DATABASE_NAME

T = TypeVar("T")
RUNTIME = SystemRuntime()
ROWS = 1_000_000
ROUNDS = 5
TOGETHER = 10_000
PAGED = 50_000
"""How many entries `list_page` gives. It reads rows as `list` does, so more would tell nothing new."""

PAYLOAD = os.urandom(100)
DEEP = "/".join(letter * 18 for letter in "abcdefgh")
USECASES = {"short": "{:08}", "deep": DEEP + "/{:08}"}
MIB = 1 << 20


class Together:
    """A `Database` whose writes are made later, many in one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._runs: list[Run[Any]] = []
        self.require: Callable[[Sequence[str | Run[None]]], None] = database.require

    async def write(self, run: Run[T], *, grows: bool = False) -> bool:
        self._runs.append(run)
        return True

    async def commit(self) -> None:
        runs, self._runs = self._runs, []
        made = await self._database.write(lambda connection: [run(connection) for run in runs], grows=True)
        assert all(made), "every row was new"


async def fill(directory: Path, rows: int) -> None:
    """Makes a store of so many rows, half of them with short names and half with deep ones."""
    async with Database.open(directory / DATABASE_NAME, RUNTIME) as database:
        together = Together(database)
        high_volume = SqliteRows(together, RUNTIME)  # type: ignore[arg-type]  # the part of a Database that it needs
        for usecase, key in USECASES.items():
            for first in range(0, rows // 2, TOGETHER):
                for number in range(first, min(first + TOGETHER, rows // 2)):
                    token = ChangeId.new(RUNTIME)
                    metadata = Metadata(size=len(PAYLOAD)).stamped(RUNTIME.wall_ns())
                    await high_volume.put_inline(ObjectId.create(usecase, key.format(number)).path, token, Inline(metadata, PAYLOAD, token))
                await together.commit()


# --- listings ------------------------------------------------------------------------------------


async def all_of(storage: TieredStorage, prefix: ObjectPrefix) -> AsyncIterator[object]:
    async for entry in storage.list(prefix):
        yield entry


async def in_pages(storage: TieredStorage, prefix: ObjectPrefix) -> AsyncIterator[object]:
    token: str | None = None
    for _ in range(PAGED // LIST_PAGE_MAX):
        page = await storage.list_page(prefix, page_token=token)
        for entry in page.entries:
            yield entry
        if (token := page.next_page_token) is None:
            return


async def listed(entries: AsyncIterator[object]) -> list[str]:
    """The cells of one listing. Memory is what the process grew by at its largest, looked at every 1,000 entries."""
    before, largest, slowest, number = resident_bytes(), 0, 0.0, 0
    clock, cpu = time.perf_counter(), time.process_time()
    last = clock
    async for _ in entries:
        number += 1
        if number % 1000 == 1:
            now = time.perf_counter()
            slowest, last = max(slowest, now - last), now
            largest = max(largest, resident_bytes() - before)
    took, used = time.perf_counter() - clock, time.process_time() - cpu
    return [f"{number:,}", f"{took / number * 1e6:.1f}", f"{used / number * 1e6:.1f}", f"{slowest * 1000:.0f}", f"{largest / MIB:.1f}"]


async def listings(stores: Sequence[Path]) -> Figures:
    rows = []
    for directory in stores:
        async with open_storage(Settings(directory=directory, changelog="sqlite")) as storage:
            for usecase in USECASES:
                for how, entries in (("list()", all_of), ("list_page()", in_pages)):
                    rows.append([f"{usecase} names, {how}", *await listed(entries(storage, ObjectPrefix.create(usecase)))])
    return Figures(
        "Listing an embedded store", ["", "objects", "µs per object", "CPU µs per object", "slowest 1,000, ms", "memory, MiB"], rows,
        ["Memory: by how much the process grew meanwhile. list_page() gives up to 1,000 entries and begins anew with each token.",
         f"It was asked for the first {PAGED:,} entries."],
    )


# --- opening and recovery ------------------------------------------------------------------------


async def opened_ms(directory: Path) -> float:
    """The CPU of opening and closing a store, in milliseconds."""
    began = time.process_time()
    async with open_storage(Settings(directory=directory, changelog="sqlite")):
        pass
    return (time.process_time() - began) * 1000


async def idle(stores: dict[int, Path]) -> Figures:
    opening: dict[int, list[float]] = {number: [] for number in stores}
    recovering: dict[int, list[float]] = {number: [] for number in stores}
    start: list[float] = []
    for _ in range(ROUNDS):
        start.append(run([*TIERED, "--version"], {})[0] * 1000)
        for number, directory in stores.items():
            opening[number].append(await opened_ms(directory))
            variables = {"TIERED_DIRECTORY": str(directory), "TIERED_CHANGELOG": "sqlite"}
            recovering[number].append(run([*TIERED, "recover", "--once"], variables)[0] * 1000)
    rows = [[f"{number:,} rows", f"{min(opening[number]):.1f}", f"{min(recovering[number]):.0f}"] for number in stores]
    return Figures(
        f"An idle embedded store: the least of {ROUNDS} rounds", ["", "open and close, CPU ms", "tiered recover --once, CPU ms"], rows,
        [f"`recover --once` is a process of its own. `tiered --version` took {min(start):.0f} ms."],
    )


async def figures(directory: Path, size: float) -> list[Figures]:
    many = max(2000, round(ROWS * size))
    stores = {number: directory / f"rows-{number}" for number in (0, many // 100, many)}
    for number, store in stores.items():
        async with open_storage(Settings(directory=store, changelog="sqlite")):
            pass
        await fill(store, number)
    return [await listings([stores[many // 100], stores[many]]), await idle(stores)]


if __name__ == "__main__":
    parser = options("embedded_rows", "What many rows cost an embedded store.", "scales the number of rows (1: a million, some 80 seconds)")
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="where a memory disk is mounted (/dev/shm)")
    arguments = parser.parse_args()
    with TemporaryDirectory(prefix="tiered-bench-", dir=arguments.memory) as temporary:
        tables = anyio.run(figures, Path(temporary), arguments.size)
    tell("embedded_rows", tables, arguments.size, arguments.load, arguments.docs)
