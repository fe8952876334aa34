"""Our file system beside gcsfs, on the same emulated GCS: ratios of CPU and of time, measured in one run.

    python -m benchmarks.files --size 1          some two minutes

Ours keeps rows and changelog in Google's Bigtable emulator and large payloads in our emulator of GCS. gcsfs keeps every
file in that emulator. The servers are processes of their own, so CPU is that of the client alone. One call is under way
at a time. Both file systems keep no listings. Rounds alternate. If gcsfs is not installed, nothing is measured.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread

from benchmarks.figures import Cell, Figures, options, tell
from benchmarks.rounds import Ratio, take_turns
from benchmarks.servers import BUCKET, PROJECT, started_servers
from tiered.filesystem.implementation import TieredFileSystem

ROUNDS = 9
KIB = 1024
SIZES = {"1 KiB": KIB, "2 MiB": 2 * KIB * KIB, "16 MiB": 16 * KIB * KIB}
TIMES = {"1 KiB": 40, "2 MiB": 8, "16 MiB": 2}
RANGE_BYTES = 64 * KIB
LISTED = {"1 KiB": 100, "2 MiB": 24}

NOT_INSTALLED = "gcsfs is not installed, so nothing is measured; install it with: pip install '.[dev]' -c constraints.txt"


@dataclass(frozen=True)
class FilesSide:
    """A file system, and the directory in it that the benchmark uses."""

    files: Any
    root: str


def is_installed() -> bool:
    return find_spec("gcsfs") is not None


def gcsfs_at(url: str, bucket: str) -> FilesSide:
    """gcsfs on an emulator. Its class for flat buckets, so that it does not ask for the kind of the bucket by gRPC."""
    from gcsfs.core import GCSFileSystem

    files = GCSFileSystem(endpoint_url=url, token="anon", project=PROJECT, use_listings_cache=False, skip_instance_cache=True)
    return FilesSide(files, f"{bucket}/gcsfs")


# --- what is measured ----------------------------------------------------------------------------

Work = Callable[[FilesSide, list[str]], None]


def write(payload: bytes, side: FilesSide, names: list[str]) -> None:
    for name in names:
        side.files.pipe_file(f"{side.root}/{name}", payload)


def read(payload: bytes, side: FilesSide, names: list[str]) -> None:
    for name in names:
        assert len(side.files.cat_file(f"{side.root}/{name}")) == len(payload)


def read_range(payload: bytes, side: FilesSide, names: list[str]) -> None:
    """Opens the file, and reads a part from its middle, as a reader of Parquet does."""
    for name in names:
        with side.files.open(f"{side.root}/{name}", "rb", cache_type="none") as file:
            file.seek(len(payload) // 2)
            assert len(file.read(RANGE_BYTES)) == min(RANGE_BYTES, len(payload) - len(payload) // 2)


def info(side: FilesSide, names: list[str]) -> None:
    for name in names:
        assert side.files.info(f"{side.root}/{name}")["type"] == "file"


def list_all(payload_bytes: int, side: FilesSide, names: list[str]) -> None:
    """Lists a directory with the size of each file."""
    found = side.files.ls(f"{side.root}/{names[0].partition('/')[0]}", detail=True)
    assert [each["size"] for each in found] == [payload_bytes] * len(names)


def took(work: Callable[[], None]) -> tuple[float, float]:
    """Returns the seconds of CPU and of the clock."""
    began, cpu = time.perf_counter(), time.process_time()
    work()
    return time.process_time() - cpu, time.perf_counter() - began


async def row(operation: str, what: str, sides: list[FilesSide], times: int, rounds: int, work: Callable[[FilesSide], None]) -> list[Cell]:
    """One line of the table. The first side is ours."""
    async def measured(side: FilesSide) -> tuple[float, float]:
        return await to_thread.run_sync(took, partial(work, side))

    ours, theirs = await take_turns([partial(measured, side) for side in sides], rounds)
    cpu = Ratio.of([each[0] for each in ours], [each[0] for each in theirs])
    clock = Ratio.of([each[1] for each in ours], [each[1] for each in theirs])
    least = [min(each[0] for each in side) / times * 1000 for side in (ours, theirs)]
    return [operation, what, *(f"{each:.2f}" for each in least), cpu, clock]


def fresh(what: str, numbers: Iterator[int], times: int) -> list[str]:
    return [f"{what.replace(' ', '')}/{next(numbers)}" for _ in range(times)]


async def compare(sides: list[FilesSide], size: float, rounds: int = ROUNDS) -> Figures:
    """`sides`: ours, then the other. `size` scales how many files are taken in each round."""
    rows: list[list[Cell]] = []
    for what, payload_bytes in SIZES.items():
        payload, times, numbers = os.urandom(payload_bytes), max(1, round(TIMES[what] * size)), count()

        def write_new(
            side: FilesSide, payload: bytes = payload, what: str = what, numbers: Iterator[int] = numbers, times: int = times
        ) -> None:
            write(payload, side, fresh(what, numbers, times))

        rows.append(await row("write", what, sides, times, rounds, write_new))
        names = fresh(what, numbers, times)
        for side in sides:
            await to_thread.run_sync(write, payload, side, names)
        rows.append(await row("read", what, sides, times, rounds, partial(_with, names, partial(read, payload))))
        rows.append(await row("open, read 64 KiB", what, sides, times, rounds, partial(_with, names, partial(read_range, payload))))
    for what, most in LISTED.items():
        listed = [f"listed{what.replace(' ', '')}/{number}" for number in range(max(2, round(most * size)))]
        for side in sides:
            await to_thread.run_sync(write, bytes(SIZES[what]), side, listed)
        rows.append(await row("info", what, sides, len(listed), rounds, partial(_with, listed, info)))
        list_them = partial(_with, listed, partial(list_all, SIZES[what]))
        rows.append(await row(f"list {len(listed)} files with sizes", what, sides, 1, rounds, list_them))
    columns = ["operation", "file", "tiered:// CPU ms", "gcsfs CPU ms", "CPU, of gcsfs", "time, of gcsfs"]
    notes = [
        "Below 1, tiered:// takes less. CPU ms: of the client, for one file or listing, the least of the rounds."
        f" Ratios are medians of {rounds} rounds.",
    ]  # fmt: skip
    return Figures("tiered:// beside gcsfs on emulators", columns, rows, notes, named_by=columns[:2])


def _with(names: list[str], work: Work, side: FilesSide) -> None:
    work(side, names)


async def main(size: float, load: float, docs: Path | None) -> None:
    async with started_servers() as servers:
        settings = servers.settings(await servers.new_table(), "bigtable")
        ours = FilesSide(TieredFileSystem(settings=settings, skip_instance_cache=True), "bench/objects")
        try:
            shown = await compare([ours, gcsfs_at(servers.gcs_url, BUCKET)], size)
        finally:
            await to_thread.run_sync(ours.files.close)
    tell("files", [shown], size, load, docs)


if __name__ == "__main__":
    arguments = options("files", "Our file system beside gcsfs.", "scales the number of files per round (1: some two minutes)").parse_args()
    if is_installed():
        anyio.run(main, arguments.size, arguments.load, arguments.docs)
    else:
        sys.stderr.write(f"{NOT_INSTALLED}\n")
