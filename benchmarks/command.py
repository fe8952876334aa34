"""What one command costs: `tiered put` and `get` of 1 KiB, each in a process of its own, beside `python -c pass`.

CPU is that of the process alone (`wait4`), so the servers do not count.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from anyio import to_thread

from benchmarks.harness import ROOT, Cell, Figures, Ratio, Spent, few, take_turns
from benchmarks.servers import INSTANCE, PROJECT, started_servers

ROUNDS = 9
OBJECT = "bench/objects/one"
TIERED = ("-P", "-m", "recovery.cli.main")      # -P: the modules of PYTHONPATH, and not those of the working directory


def run(arguments: Sequence[str], variables: Mapping[str, str]) -> Spent:
    """Runs Python with these arguments, silently."""
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TIERED_", "PYTHON"))}
    began = time.perf_counter()
    process = os.posix_spawn(
        sys.executable, [sys.executable, *arguments], environment | {"PYTHONPATH": str(ROOT), **variables}, file_actions=silent
    )
    _, status, used = os.wait4(process, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(f"python {' '.join(arguments)} ended with {code}")
    return Spent(time.perf_counter() - began, used.ru_utime + used.ru_stime)


async def figures(size: float) -> list[Figures]:
    async with started_servers() as servers:
        with TemporaryDirectory() as directory:
            payload, table = Path(directory) / "payload", await servers.new_table()
            payload.write_bytes(os.urandom(1024))
            put, get = [*TIERED, "put", OBJECT, str(payload)], [*TIERED, "get", OBJECT]
            embedded = {"TIERED_DIRECTORY": str(Path(directory) / "store")}
            google = {
                "TIERED_BIGTABLE__PROJECT": PROJECT, "TIERED_BIGTABLE__INSTANCE": INSTANCE, "TIERED_BIGTABLE__TABLE": table,
                "TIERED_BIGTABLE__CHANGELOG_TABLE": table, "TIERED_BIGTABLE__EMULATOR_HOST": servers.bigtable_host,
                "TIERED_GCS__BUCKET": table, "TIERED_GCS__ENDPOINT": servers.gcs_url, "TIERED_CHANGELOG": "bigtable",
            }  # fmt: skip
            sides: dict[str, tuple[Sequence[str], Mapping[str, str]]] = {
                "python -c pass": (["-c", "pass"], {}), "python -c 'import asyncio'": (["-c", "import asyncio"], {}),
                "put, embedded": (put, embedded), "get, embedded": (get, embedded),
                "put, Bigtable and GCS": (put, google), "get, Bigtable and GCS": (get, google),
            }  # fmt: skip
            rounds = few(ROUNDS, size)
            taken = await take_turns([partial(to_thread.run_sync, run, *side) for side in sides.values()], rounds)
    rows: list[list[Cell]] = []
    for name, each in zip(sides, taken, strict=True):
        beside = Ratio.of([one.cpu_s for one in each], [one.cpu_s for one in taken[0]], digits=1) if rows else ""
        times = (f"{median(seconds) * 1000:.0f}" for seconds in ([one.cpu_s for one in each], [one.clock_s for one in each]))
        rows.append([name, *times, beside])
    note = f"Medians of {rounds} rounds. A put looks at the tables and at the bucket first; a get does not."
    return [Figures("One command", ["", "CPU, ms", "clock, ms", "CPU beside pass"], rows, [note])]
