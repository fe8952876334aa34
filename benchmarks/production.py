"""The figures of a store on Bigtable and GCS, on Google's Bigtable emulator and ours of GCS: `make bench`, or

    python -m benchmarks.production --size 1                 some five minutes on two cores
    python -m benchmarks.production --only calls --size 0.1

Each part runs in its own process, on its own servers, within `PART_S` seconds. So what one part leaves behind (memory,
threads, tables full of rows) does not affect another. If a part fails or takes too long, the run says so, and the
others go on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from pathlib import Path

import anyio

from benchmarks.figures import Figures, dumped, loaded, options, tell
from benchmarks.servers import Servers, started, started_servers, unless_left_alone

PARTS = (
    "calls", "client_cpu", "small_parts", "shared_reads", "large_parts", "large_reads", "large_writes", "event_loop", "latency", "memory",
    "recovery_rate", "recovery_scan", "recovery_growth", "deletions", "feed_writer", "objects",
)  # fmt: skip
"""Modules with `async def figures(servers, size)`."""

PART_S = 900.0
PART_OPTION = "--part"


async def run_part(part: str, size: float) -> list[Figures]:
    take: Callable[[Servers, float], Awaitable[list[Figures]]] = import_module(f"benchmarks.{part}").figures
    async with started_servers() as servers:
        return await take(servers, size)


async def take_apart(part: str, size: float) -> list[Figures] | None:
    """Runs a part in its own process. None: it failed, and stderr says why."""
    try:
        async with started("benchmarks.production", PART_OPTION, part, "--size", f"{size:g}", within_s=PART_S * max(1.0, size)) as told:
            return loaded(told)
    except TimeoutError:
        print(f"{part} took longer than {PART_S * max(1.0, size):.0f} s", file=sys.stderr)
    except anyio.IncompleteRead:
        print(f"{part} failed", file=sys.stderr)
    return None


async def main(parts: list[str], size: float, load: float, docs: Path | None) -> int:
    """Shows each part's figures as soon as they are there. Returns 1 if a part failed, else 0."""
    failures = 0
    for part in parts:
        figures = await take_apart(part, size)
        if figures is None:
            failures += 1
        elif figures:
            tell(part, figures, size, load, docs)
    return 1 if failures else 0


if __name__ == "__main__":
    size = "scales how much each part does (1: some ten minutes)"
    parser = options("production", "Figures of a store on Bigtable and GCS, on emulators.", size)
    parser.add_argument("--only", choices=PARTS, action="append", help="this part (repeatable)")
    parser.add_argument(PART_OPTION, choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        print(dumped(anyio.run(unless_left_alone, partial(run_part, arguments.part, arguments.size))), flush=True)
    else:
        sys.exit(anyio.run(main, arguments.only or list(PARTS), arguments.size, arguments.load, arguments.docs))
