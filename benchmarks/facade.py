"""What the blocking API and the file system cost beside the asynchronous API: ratios, measured in one run.

    python -m benchmarks.facade --size 1          some 30 seconds

One operation is under way at a time, so the time is a latency. Each side has a store of its own. In memory, next to
nothing is left but the calls themselves. Rounds alternate. Trust the ratios, and not the times.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import anyio
from anyio import to_thread

import tiered.sync
from benchmarks.figures import Cell, Figures, options, tell
from benchmarks.rounds import Ratio, take_turns, timed
from tiered import ObjectId, Settings, TieredStorage, open_storage
from tiered.filesystem.implementation import TieredFileSystem
from tiered.testing import blocking_memory_storage, memory_storage

ROUNDS = 9
KIB = 1024
SIZES = {"1 KiB": KIB, "2 MiB": 2 * KIB * KIB}



def named(name: str) -> ObjectId:
    return ObjectId.create("bench", name)


# --- the sides -----------------------------------------------------------------------------------


def asynchronous(storage: TieredStorage) -> dict[str, Callable[[list[str], bytes], Awaitable[None]]]:
    async def put(names: list[str], payload: bytes) -> None:
        for name in names:
            await storage.put(named(name), payload)

    async def get(names: list[str], payload: bytes) -> None:
        for name in names:
            stored = await storage.get(named(name))
            assert stored is not None and len(await stored.read()) == len(payload)

    return {"put": put, "get": get}


def in_thread(put_one: Callable[[str, bytes], object], get_one: Callable[[str], bytes]) -> dict[str, Any]:
    """The same for calls that block, all of them in one thread."""
    def put_all(names: list[str], payload: bytes) -> None:
        for name in names:
            put_one(name, payload)

    def get_all(names: list[str], payload: bytes) -> None:
        for name in names:
            assert len(get_one(name)) == len(payload)

    run: Any = to_thread.run_sync
    return {"put": partial(run, put_all), "get": partial(run, get_all)}


def blocking(storage: tiered.sync.SyncTieredStorage) -> dict[str, Any]:
    def get(name: str) -> bytes:
        stored = storage.get(named(name))
        assert stored is not None
        return stored.read()

    return in_thread(lambda name, payload: storage.put(named(name), payload), get)


def files(fs: Any, root: str) -> dict[str, Any]:
    return in_thread(lambda name, payload: fs.pipe_file(f"{root}/{name}", payload), lambda name: fs.cat_file(f"{root}/{name}"))


@asynccontextmanager
async def sides(directory: Path | None) -> AsyncIterator[dict[str, dict[str, Any]]]:
    """The three sides on stores of their own: in memory, or in `directory`."""
    def settings(name: str) -> Settings:
        assert directory is not None
        return Settings(directory=directory / name)

    async with AsyncExitStack() as opened:
        store = await opened.enter_async_context(memory_storage() if directory is None else open_storage(settings("async")))

        def enter(stack: ExitStack) -> tuple[Any, Any]:
            if directory is None:
                return stack.enter_context(blocking_memory_storage()), stack.enter_context(blocking_memory_storage())
            return (
                stack.enter_context(tiered.sync.open_storage(settings("sync"))),
                stack.enter_context(tiered.sync.open_storage(settings("fsspec"))),
            )

        stack = ExitStack()
        first, second = await to_thread.run_sync(enter, stack)
        try:
            fs = TieredFileSystem(storage=second, skip_instance_cache=True)
            yield {"async": asynchronous(store), "sync": blocking(first), "fsspec": files(fs, "bench/objects")}
        finally:
            await to_thread.run_sync(stack.close)


# --- the run -------------------------------------------------------------------------------------


async def compare(where: str, compared: dict[str, dict[str, Any]], size: float) -> list[list[Cell]]:
    """One line for each operation and payload. The first side is what the others are compared with."""
    rows: list[list[Cell]] = []
    for what, payload_bytes in SIZES.items():
        payload, numbers, times = os.urandom(payload_bytes), count(), max(2, round((200 if payload_bytes == KIB else 20) * size))
        for operation in ("put", "get"):
            put = [f"{what}-{next(numbers)}" for _ in range(times)]
            if operation == "get":
                for side in compared.values():
                    await side["put"](put, payload)

            async def seconds(side: dict[str, Any], operation: str = operation, put: list[str] = put, payload: bytes = payload) -> float:
                return await timed(side[operation](put, payload))

            measured = await take_turns([partial(seconds, side) for side in compared.values()], ROUNDS)
            row: list[Cell] = [where, operation, what, f"{median(measured[0]) / times * 1000:.2f}"]
            for each in measured[1:]:
                row += [f"{median(each) / times * 1000:.2f}", Ratio.of(each, measured[0])]
            rows.append(row)
    return rows


async def measure(root: Path, size: float) -> Figures:
    rows: list[list[Cell]] = []
    for where, directory in (("memory", None), ("a directory", root)):
        async with sides(directory) as compared:
            rows += await compare(where, compared, size)
    columns = ["store", "operation", "payload", "async ms", "sync ms", "sync, of async", "fsspec ms", "fsspec, of async"]
    title = "Blocking API and file system beside the asynchronous API"
    return Figures(title, columns, rows, [f"Medians of {ROUNDS} rounds."], named_by=columns[:3])


if __name__ == "__main__":
    arguments = options(
        "facade", "What the blocking API and the file system cost.",
        "scales the number of operations per round (1: some 30 seconds)",
    ).parse_args()  # fmt: skip
    with TemporaryDirectory(prefix="tiered-bench-") as temporary:
        tables = [anyio.run(measure, Path(temporary), arguments.size)]
    tell("facade", tables, arguments.size, arguments.load, arguments.docs)
