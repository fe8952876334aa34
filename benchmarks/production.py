"""All tables that are measured: `make bench`, or

    python -m benchmarks.production --size 1
    python -m benchmarks.production --only client_cpu --size 0.1

Each part is a module with `async def figures(size)`. It runs in its own process, on servers of its own, within `PART_S`
seconds. So what one part leaves behind (memory, threads, tables full of rows) does not affect another. If a part fails
or takes too long, the run says so, and the others go on.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import anyio

from benchmarks.harness import FIGURES, Figures, tell
from benchmarks.servers import started, unless_left_alone

PARTS = (
    "client_cpu", "postgres", "s3", "embedded", "objects", "large_files", "listing", "latency", "command", "audit", "feed",
    "feed_writer",
)  # fmt: skip
PART_S = 1800.0
PART_OPTION = "--part"


async def run_part(part: str, size: float) -> list[Figures]:
    module = import_module(f"benchmarks.{part}")
    gc.freeze()
    figures: list[Figures] = await module.figures(size)
    return figures


async def take_apart(part: str, size: float) -> list[Figures] | None:
    """Runs a part in its own process. None: it failed, and stderr says why."""
    try:
        async with started("benchmarks.production", PART_OPTION, part, "--size", f"{size:g}", within_s=PART_S * max(1.0, size)) as told:
            return FIGURES.validate_json(told)
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
        else:
            tell(part, figures, size, load, docs)
    return 1 if failures else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m benchmarks.production", description="What ours costs, beside what a user would pick.")
    parser.add_argument("--size", type=float, default=1.0, help="scales how much each part does")
    parser.add_argument("--docs", type=Path, help="a page with places for the figures, such as docs/benchmarks.md")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part (repeatable)")
    parser.add_argument(PART_OPTION, choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        print(FIGURES.dump_json(anyio.run(unless_left_alone, partial(run_part, arguments.part, arguments.size))).decode(), flush=True)
    else:
        sys.exit(anyio.run(main, arguments.only or list(PARTS), arguments.size, os.getloadavg()[0], arguments.docs))
