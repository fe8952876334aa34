"""What one command costs: `tiered put` and `get` of 1 KiB, each in a process of its own, beside `python -c pass`.

CPU is that of the process alone (`wait4`), so the servers do not count. The sides take turns, and the least of the
rounds is shown: a process that nobody disturbs. A second table has the CPU of each import.

    python -m benchmarks.command --docs docs/benchmarks.md
    python -m benchmarks.command --beside DIR       also the same commands of another checkout, in the same rounds
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from benchmarks.figures import Cell, Figures, tell
from benchmarks.rounds import Ratio
from benchmarks.servers import INSTANCE, PROJECT, ROOT, Servers, started_servers

ROUNDS = 9
OBJECT = "bench/objects/one"
TIERED = ("-P", "-m", "recovery.cli.main")      # -P: the modules of PYTHONPATH, and not those of the working directory

BESIDE = ", of the other checkout"

IMPORTED = {
    "asyncio": "asyncio", "anyio": "anyio anyio._backends._asyncio",
    "pydantic": "pydantic pydantic.main pydantic.types pydantic.functional_validators pydantic.plugin._loader pydantic.json_schema",
    "typer": "typer typer.main",
    "sqlite3": "sqlite3", "this project": "tiered recovery.cli.app recovery.cli.objects",
    "grpc": "grpc grpc.aio", "requests": "requests", "cryptography": "cryptography.x509 google.auth.crypt.es",
    "protobuf": "google.protobuf.message google.rpc.error_details_pb2", "google.api_core": "google.api_core.retry google.api_core.gapic_v1",
    "google.cloud.bigtable_v2": "google.cloud.bigtable_v2", "aiohttp": "aiohttp",
    "this project, for Bigtable and GCS": "tiered.bigtable.rows tiered.gcs.owned",
}  # fmt: skip
"""What a `get` loads, in this order, by what brings it. The rows from `grpc` on: only on Bigtable and GCS."""

ON_GOOGLE_FROM = "grpc"
TIMES_IMPORTS = """
import gc, json, sys, time
gc.set_threshold(50_000)
taken = {}
for name, modules in json.loads(sys.argv[1]).items():
    began = time.process_time()
    for module in modules.split():
        __import__(module)
    taken[name] = time.process_time() - began
print(json.dumps(taken))
"""

Sides = Mapping[str, tuple[Sequence[str], Mapping[str, str]]]


def sides(directory: Path, servers: Servers | None, table: str, beside: Path | None) -> Sides:
    """Returns the arguments of each side, and its variables. `servers` None: embedded mode alone.

    `beside`: another checkout, whose commands are sides, too.
    """
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
            "TIERED_GCS__BUCKET": table, "TIERED_GCS__ENDPOINT": servers.gcs_url, "TIERED_CHANGELOG": "bigtable",
        }  # fmt: skip
        found |= {"put, Bigtable and GCS": (put, google), "get, Bigtable and GCS": (get, google)}
    if beside is not None:
        other = {"PYTHONPATH": str(beside)}
        found |= {f"{name}{BESIDE}": (each[0], {**each[1], **other}) for name, each in found.items() if each[0][: len(TIERED)] == [*TIERED]}
    return found


def run(arguments: Sequence[str], variables: Mapping[str, str]) -> tuple[float, float]:
    """Runs Python with these arguments. Returns the seconds of CPU and of the clock."""
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TIERED_", "PYTHON"))}
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
    beside = ["CPU beside the other checkout"] if any(name.endswith(BESIDE) for name in compared) else []
    rows = [
        [
            name, f"{cpu * 1000:.0f}", f"{clock * 1000:.0f}", _ratio(taken, name, "python -c pass"),
            *(_ratio(taken, name, f"{name}{BESIDE}") for _ in beside),
        ] for name, (cpu, clock) in least.items()
    ]  # fmt: skip
    return Figures(
        "One command",
        ["", "CPU, ms", "clock, ms", "CPU beside pass", *beside], rows,
        [f"The times are the least of {rounds} rounds. A put looks at the tables and at the bucket first; a get does not."],
    )  # fmt: skip


def _ratio(taken: Mapping[str, list[tuple[float, float]]], name: str, beside: str) -> Cell:
    """The CPU of a side beside that of another one, round by round. Empty: there is no other one."""
    if name == beside or beside not in taken:
        return ""
    digits = 2 if beside.endswith(BESIDE) else 1
    return Ratio.of([cpu for cpu, _ in taken[name]], [cpu for cpu, _ in taken[beside]], digits=digits)


def imports(rounds: int) -> Figures:
    """What each import of a `get` costs, after those before it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TIERED_", "PYTHON"))}
    environment |= {"PYTHONPATH": str(ROOT), "PYDANTIC_DISABLE_PLUGINS": "__all__"}
    least: dict[str, float] = {}
    for _ in range(rounds):
        told = subprocess.run(
            [sys.executable, "-c", TIMES_IMPORTS, json.dumps(IMPORTED)], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for name, cpu in json.loads(told).items():
            least[name] = min(cpu, least.get(name, cpu))
    names = list(least)
    embedded = names[: names.index(ON_GOOGLE_FROM)]
    rows = [[name, f"{cpu * 1000:.0f}", "always" if name in embedded else "on Bigtable and GCS"] for name, cpu in least.items()]
    others = sum(cpu for name, cpu in least.items() if name in embedded and name != "this project") * 1000
    return Figures(
        f"What the imports of a get cost: the least of {rounds} rounds", ["import", "CPU, ms", "when"], rows,
        [f"The libraries of an embedded get take {others:.0f} ms together. Each is measured after those above it."],
    )  # fmt: skip


async def main(rounds: int, docs: Path | None, beside: Path | None) -> None:
    load = os.getloadavg()[0]
    async with started_servers() as servers:
        with TemporaryDirectory() as directory:
            shown = [figures(sides(Path(directory), servers, await servers.new_table(), beside), rounds), imports(rounds)]
    tell("command", shown, 1, load, docs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m benchmarks.command", description="What one command costs.")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--docs", type=Path, help="the page that gets the figures")
    parser.add_argument("--beside", type=Path, metavar="DIR", help="another checkout, whose commands run in the same rounds")
    chosen = parser.parse_args()
    anyio.run(main, chosen.rounds, chosen.docs, chosen.beside)
