"""What one command costs: `tiered put` and `get` of 1 KiB, each in a process of its own, beside `python -c pass`.

CPU is that of the process alone (`wait4`), so the servers do not count. The sides take turns, and the least of the
rounds is shown: a process that nobody disturbs. `python -m benchmarks.command --docs docs/benchmarks.md`
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from benchmarks.figures import Figures, put_into
from benchmarks.servers import BUCKET, INSTANCE, PROJECT, ROOT, Servers, started_servers

ROUNDS = 9
OBJECT = "bench/objects/one"
TIERED = ("-m", "recovery.cli.main")

Sides = Mapping[str, tuple[Sequence[str], Mapping[str, str]]]


def sides(directory: Path, servers: Servers | None, table: str) -> Sides:
    """Returns the arguments of each side, and its variables. `servers` None: embedded mode alone."""
    payload = directory / "payload"
    payload.write_bytes(os.urandom(1024))
    put, get = [*TIERED, "put", OBJECT, str(payload)], [*TIERED, "get", OBJECT]
    embedded = {"TIERED_DIRECTORY": str(directory / "store")}
    found: dict[str, tuple[Sequence[str], Mapping[str, str]]] = {
        "python -c pass": (["-c", "pass"], {}), "python -c 'import asyncio'": (["-c", "import asyncio"], {}),
        "put, embedded": (put, embedded), "get, embedded": (get, embedded),
    }  # fmt: skip
    if servers is not None:
        google = {
            "TIERED_BIGTABLE__PROJECT": PROJECT, "TIERED_BIGTABLE__INSTANCE": INSTANCE, "TIERED_BIGTABLE__TABLE": table,
            "TIERED_BIGTABLE__CHANGELOG_TABLE": table, "TIERED_BIGTABLE__EMULATOR_HOST": servers.bigtable_host,
            "TIERED_GCS__BUCKET": BUCKET, "TIERED_GCS__ENDPOINT": servers.gcs_url, "TIERED_CHANGELOG": "bigtable",
        }  # fmt: skip
        found |= {"put, Bigtable and GCS": (put, google), "get, Bigtable and GCS": (get, google)}
    return found


def run(arguments: Sequence[str], variables: Mapping[str, str]) -> tuple[float, float]:
    """Runs Python with these arguments. Returns the seconds of CPU and of the clock."""
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIERED_")}
    began = time.perf_counter()
    process = os.posix_spawn(
        sys.executable, [sys.executable, *arguments], environment | {"PYTHONPATH": str(ROOT), **variables}, file_actions=silent
    )
    _, status, used = os.wait4(process, 0)
    if status:
        raise SystemExit(f"{arguments} ended with {os.waitstatus_to_exitcode(status)}")
    return used.ru_utime + used.ru_stime, time.perf_counter() - began


def figures(compared: Sides, rounds: int) -> Figures:
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in compared}
    for _ in range(rounds):
        for name, (arguments, variables) in compared.items():
            taken[name].append(run(arguments, variables))
    least = {name: (min(cpu for cpu, _ in each), min(clock for _, clock in each)) for name, each in taken.items()}
    base = least["python -c pass"][0]
    rows = [[name, f"{cpu * 1000:.0f}", f"{clock * 1000:.0f}", f"{cpu / base:.0f}"] for name, (cpu, clock) in least.items()]
    return Figures(
        f"One command: the least of {rounds} rounds", ["", "CPU, ms", "clock, ms", "CPU beside pass"], rows,
        ["A put looks at the tables and at the bucket first; a get does not."],
    )  # fmt: skip


async def main(rounds: int, docs: Path | None) -> None:
    load = os.getloadavg()[0]
    async with started_servers() as servers:
        with TemporaryDirectory() as directory:
            shown = figures(sides(Path(directory), servers, await servers.new_table()), rounds)
    shown.show()
    if docs is not None:
        put_into(docs, "command", [shown], 1, load)


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m benchmarks.command", description="What one command costs.")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--docs", type=Path, help="the page that gets the figures")
    chosen = parser.parse_args()
    anyio.run(main, chosen.rounds, chosen.docs)
