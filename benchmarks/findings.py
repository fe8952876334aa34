"""What the audit of a directory costs, and what an orphan costs beside a blob that a row names.

    python -m benchmarks.findings --size 1        50,000 files and as many names of a bucket: a minute on two cores

    an embedded store on a memory disk     all blobs are orphans, or hardly any              <-- findings_side
    a table of Delta with the same files, none of which it knows                             <-- findings_side
    the two servers of `benchmarks.audit`, and half                                          <-- audit_side

Each side is a process (`metered`). The CPU of a side is that of all its processes from the moment when all is loaded
until it has found all orphans. Sides take turns. pyiceberg has no search for orphans, so it is not here.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import anyio
import pyarrow as pa

from benchmarks.audit_side import SideRequest
from benchmarks.audit_world import ORPHANS, name
from benchmarks.figures import Cell, Figures, options, tell
from benchmarks.findings_side import settings_of
from benchmarks.metered import Taken
from benchmarks.rounds import Ratio, take_turns
from benchmarks.servers import started
from changelog.change import ChangeId
from tiered import ObjectId, open_storage
from tiered.embedded.file import Checksums, encode_trailer, path_of
from tiered.embedded.rows import _write
from tiered.metadata import NS_PER_MS, Metadata
from tiered.protocol.backends import Tombstone
from tiered.settings import DATABASE_NAME

NAMES = 50_000
PAYLOAD_BYTES = 1000
ROUNDS = 3
RUN_S = 600.0
ALL, HALF, FEW = 1, 2, 1000
"""Every so manieth blob is an orphan."""

WHAT = {ALL: "all are orphans", HALF: "every second one is an orphan", FEW: "every 1,000th one is an orphan"}
MEMORY = Path("/dev/shm")
NOT_INSTALLED = "deltalake is not installed, so it is not measured; install it with: pip install -e '.[bench]' -c constraints.txt"


@dataclass(frozen=True)
class FindingsSide:
    """One line of a table. `command`: of the process. `orphans`: how many it must find. `alone`: it starts no process.
    """

    what: str
    command: tuple[str, ...]
    names: int
    orphans: int
    alone: bool = True


async def measure(side: FindingsSide) -> float:
    """Returns the CPU of a side, in seconds."""
    return (await taken_by(side))[0]


async def taken_by(side: FindingsSide) -> tuple[float, dict[str, float]]:
    """Returns the CPU of a side, and the CPU of each kind of process with its start, in seconds."""
    async with started("benchmarks.metered", sys.executable, "-m", *side.command, within_s=RUN_S) as line:
        taken = Taken.loaded(line)
    if taken.code or not taken.lines:
        raise SystemExit(f"{side.what} failed with exit code {taken.code}")
    ready = next(each for each in taken.lines if each.text == "ready")
    result = json.loads(taken.lines[-1].text)
    found = result["found"][0] if isinstance(result["found"], list) else result["found"]
    if found != side.orphans:
        raise AssertionError(f"{side.what} found {found} orphans and not {side.orphans}")
    return float(result["cpu_s"]) if side.alone else taken.lines[-1].cpu_s - ready.cpu_s, taken.kinds_s


def table(title: str, sides: Sequence[FindingsSide], runs: Sequence[Sequence[float]], notes: Sequence[str]) -> Figures:
    """The last side that ran in every round is what the others are compared with."""
    last = [each for each in runs if len(each) == ROUNDS][-1]
    rows: list[list[Cell]] = []
    for side, each in zip(sides, runs, strict=True):
        ratio: Cell = "" if len(each) < ROUNDS else "1" if each is last else Ratio.of(each, last)
        rows.append([side.what, f"{side.names:,}", f"{median(each):.2f}", f"{median(each) / side.names * 1e6:.1f}", ratio])
    beside = sides[runs.index(last)].what
    return Figures(title, ["", "names", "CPU, s", "CPU a name, µs", "ratio"], rows, [*notes, f"Ratios are to the line '{beside}'."])


# --- an embedded store -----------------------------------------------------------------------------


async def fill(store: Path, names: int, orphan_every: int) -> int:
    """Makes a store with so many blobs. Returns how many are orphans."""
    async with open_storage(settings_of(store)) as storage:
        await storage.put(ObjectId.create("bench", "one"), b"an audit refuses a table without any object")
    payload, checksums = os.urandom(PAYLOAD_BYTES), Checksums()
    checksums.add(memoryview(payload))
    orphans = 0
    with closing(sqlite3.connect(store / DATABASE_NAME)) as rows, rows:
        for number in range(names):
            blob = name(number).decode()
            revision = ChangeId(blob.rpartition("/")[2])
            path = store / "blobs" / path_of(blob)
            path.write_bytes(payload + encode_trailer(Metadata(), checksums, revision.created_ms * NS_PER_MS))
            if number % orphan_every == orphan_every // 2:
                orphans += 1
            else:  # all in one transaction: a swap for each would take longer than all that is measured
                _write(rows, blob.removesuffix(f"/{revision}"), revision, Tombstone(blob, None))
    return orphans


def fill_delta(table: Path, store: Path) -> None:
    """Makes a table of Delta that lies among the files of a store and knows none of them."""
    from deltalake import write_deltalake  # noqa: PLC0415 - it may be missing

    write_deltalake(str(table), pa.table({"one": [1]}))
    for file in (store / "blobs").iterdir():
        shutil.copy2(file, table / file.name)


async def directories(names: int, directory: Path) -> Figures:
    sides = []
    for every in (ALL, FEW):
        what = WHAT[every]
        store = directory / f"every-{every}"
        orphans = await fill(store, names, every)
        of_it = partial(_in_directory, store=store, directory=directory, names=names, orphans=orphans)
        sides += [of_it(f"{what}, one range", "directory_range"), of_it(f"{what}, ranges and files of a run", "directory_ranges")]
    store = directory / f"every-{ALL}"
    if find_spec("deltalake") is None:
        sys.stderr.write(f"{NOT_INSTALLED}\n")
    else:
        fill_delta(directory / "delta", store)
        vacuum = f"Delta's `vacuum` {version('deltalake')} (Rust), dry run"
        sides.append(_in_directory(vacuum, "delta", directory / "delta", directory, names, names))
    spark = _in_directory(f"{WHAT[ALL]}, under Spark, local[1], with its Java", "directory_spark", store, directory, names, names)
    workers = replace(spark, what="of that, its Python workers with their start")
    runs = await take_turns([partial(measure, side) for side in sides], ROUNDS)
    spark_s, kinds_s = await taken_by(spark)
    notes = [
        f"Files of {PAYLOAD_BYTES:,} bytes with their trailers in one directory, on a memory disk. Spark ran once. Delta compares names and"
        " ages: it reads no file, no log of changes and no second time.",
        "Goal: 50,000 orphans for 2 s, and under Spark for as much and its Java.",
    ]
    return table("Orphans in a directory", [*sides, spark, workers], [*runs, [spark_s], [kinds_s["worker"]]], notes)


def _in_directory(what: str, side: str, store: Path, directory: Path, names: int, orphans: int) -> FindingsSide:
    return FindingsSide(what, ("benchmarks.findings_side", side, str(store), str(directory)), names, orphans, side != "directory_spark")


# --- a bucket --------------------------------------------------------------------------------------


@asynccontextmanager
async def served(names: int, every: int, directory: Path) -> AsyncIterator[FindingsSide]:
    """Starts the servers of a bucket in which every so manieth blob is an orphan."""
    os.environ[ORPHANS] = str(every)
    async with started("benchmarks.audit_gcs") as url, started("benchmarks.audit_bigtable") as host:
        told = json.dumps(asdict(SideRequest(names, host.strip(), url.strip(), str(directory))))
        # Every 10,000th row names a blob that is not there: that name is no orphan.
        orphans = sum(number % every == every // 2 and number % 10_000 != 7777 for number in range(names))
        yield FindingsSide(WHAT[every], ("benchmarks.audit_side", "audit_sweep", told), names, orphans)


async def bucket(names: int, directory: Path) -> Figures:
    async with served(names, ALL, directory) as one, served(names, HALF, directory) as two, served(names, FEW, directory) as few:
        sides = [one, two, few]
        runs = await take_turns([partial(measure, side) for side in sides], ROUNDS)
    return table("Orphans in a bucket", sides, runs, ["`audit_range` in one process, one range."])


async def figures(size: float) -> list[Figures]:
    names = max(1000, round(NAMES * size))
    with TemporaryDirectory(prefix="tiered-bench-", dir=MEMORY if MEMORY.is_dir() else None) as directory:
        return [await directories(names, Path(directory)), await bucket(names, Path(directory))]


if __name__ == "__main__":
    arguments = options(
        "findings", "What an orphan costs, in a directory and in a bucket.",
        "times 50,000 names (1: a minute)",
    ).parse_args()  # fmt: skip
    measured = anyio.run(figures, arguments.size)
    tell("findings", measured, arguments.size, arguments.load, arguments.docs)
