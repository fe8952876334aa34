"""The figures of the production form, on Google's Bigtable emulator and ours of GCS: `make bench`, or

    python -m benchmarks.production --size 1                 some five minutes on two cores
    python -m benchmarks.production --only calls --size 0.1

Each part runs in a process of its own, on servers of its own, within `PART_S` seconds: what one leaves behind (memory,
threads, tables full of rows) is not another's. A part that fails or takes too long is said to have failed, and the others go on.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path

import anyio

from benchmarks.figures import Figures, dumped, loaded, put_into
from benchmarks.servers import ROOT, Servers, started_servers

PARTS = ("calls", "client_cpu", "latency", "memory", "recovery_rate")
"""Modules with `async def figures(servers, size)`."""

PART_S = 600.0
PART_OPTION = "--part"


async def run_part(part: str, size: float) -> list[Figures]:
    take: Callable[[Servers, float], Awaitable[list[Figures]]] = import_module(f"benchmarks.{part}").figures
    async with started_servers() as servers:
        return await take(servers, size)


def take_apart(part: str, size: float) -> list[Figures] | None:
    """In a process of its own. None: it failed, and has said why on stderr."""
    command = [sys.executable, "-m", "benchmarks.production", PART_OPTION, part, "--size", f"{size:g}"]
    try:
        ran = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=PART_S * max(1.0, size), check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as failed:
        print(f"{part} failed: {failed}", file=sys.stderr)
        return None
    return loaded(ran.stdout.decode().splitlines()[-1])


def main(parts: list[str], size: float, docs: Path | None) -> int:
    """Shows each part's figures as soon as they are there. Exit code 1: some failed."""
    failures = 0
    for part in parts:
        load = os.getloadavg()[0]
        figures = take_apart(part, size)
        if figures is None:
            failures += 1
            continue
        for each in figures:
            each.show()
        if docs is not None:
            put_into(docs, part, figures, size, load)
    return 1 if failures else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m benchmarks.production", description="Figures of the production form, on emulators.")
    parser.add_argument("--size", type=float, default=1.0, help="scales how much each part does (1: some five minutes)")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part (repeatable)")
    parser.add_argument("--docs", type=Path, help="a page with places for the figures, such as docs/benchmarks.md")
    parser.add_argument(PART_OPTION, choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        print(dumped(anyio.run(run_part, arguments.part, arguments.size)))
    else:
        sys.exit(main(arguments.only or list(PARTS), arguments.size, arguments.docs))
