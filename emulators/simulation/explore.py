"""Runs seeds on several processes, until enough are done, the time is over, or one violates an invariant.

    explore  --"12000 20"-->  worker: run(Recipe.of(12000), coverage), …
             <----"@12000"--          which seed it is at
             <----{totals}--          the totals of the twenty

A worker gets a few seeds at a time, so the seeds that were run have no gap. It ends after some thousand seeds, so its
memory stays small whatever a run leaves behind. *Crash*: a worker that dies, or a world that does not end, raises
`WorkerError`, which names the seed.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Self

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from changelog.base.runtime import SystemRuntime
from emulators.simulation.coverage import RARE
from emulators.simulation.totals import Totals

SEEDS_AT_ONCE = 20
SEEDS_OF_A_WORKER = 2000
SEED_ENDS_WITHIN_S = 300.0
"""Real seconds. A world takes a few hundredths of one."""
SEEDS_TO_TELL_MIN, SEEDS_TO_TELL_ALL = 2000, 30_000
"""So many seeds meet everything required except what is rare. The second number meets that as well.
"""
FIRST_SEED_MAX = 10**9
LINE_BYTES_MAX = 2**24
WORKER = (sys.executable, "-m", "emulators.simulation.worker")


class WorkerError(Exception):
    """A worker died, or did not end a seed in time."""


@dataclass(slots=True)
class ExploredSeeds:
    """The seeds from `first` on that were run, on `jobs` processes in `elapsed_s` real seconds."""

    first: int
    jobs: int
    totals: Totals = field(default_factory=Totals)
    elapsed_s: float = 0.0

    @property
    def last(self) -> int:
        return self.first + self.totals.worlds - 1

    @property
    def seeds_per_s(self) -> float:
        """Seeds per second of one core that does nothing else."""
        return self.totals.worlds / self.totals.cpu_s if self.totals.cpu_s else 0.0

    def missing(self) -> list[str]:
        """Returns what was never met, as far as that many worlds can tell."""
        if self.totals.worlds < SEEDS_TO_TELL_MIN:
            return []
        return self.totals.coverage.missing(but=RARE if self.totals.worlds < SEEDS_TO_TELL_ALL else frozenset())


Tell = Callable[[ExploredSeeds], None]


def explore(
    seeds: int | None = None,
    seconds: float | None = None,
    first: int | None = None,
    jobs: int | None = None,
    *,
    keep_going: bool = False,
    tell: Tell = lambda explored: None,
    worker: Sequence[str] = WORKER,
) -> ExploredSeeds:
    """Runs seeds and returns what was explored.

    It runs at most `seeds` seeds for about `seconds`, from `first` on (None: a random one), on `jobs` processes (None:
    one for each core). It ends at the first violation, unless `keep_going` is set. `tell` is called with what was
    explored so far. Raises `WorkerError`; what was explored is not returned then.
    """
    if seeds is None and seconds is None:
        raise ValueError("say how many seeds, or how many seconds")
    first = SystemRuntime().random.randrange(FIRST_SEED_MAX) if first is None else first
    explorer = _Explorer(ExploredSeeds(first, jobs or os.cpu_count() or 1), seeds, seconds, keep_going, tell, tuple(worker))
    failed: list[WorkerError] = []
    try:
        anyio.run(explorer.run)
    except* WorkerError as group:
        failed = [error for error in group.exceptions if isinstance(error, WorkerError)]
    if failed:
        raise failed[0]
    return explorer.explored


class _Explorer:
    def __init__(
        self, explored: ExploredSeeds, seeds: int | None, seconds: float | None, keep_going: bool, tell: Tell, worker: tuple[str, ...]
    ) -> None:
        self.explored = explored
        self._seeds = seeds
        self._seconds = seconds
        self._keep_going = keep_going
        self._tell = tell
        self._worker = worker
        self._clock = SystemRuntime()
        self._began = self._clock.monotonic()
        self._asked = 0

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(self.explored.jobs):
                tasks.start_soon(self._keep_asking)

    async def _keep_asking(self) -> None:
        """Uses one worker after the other. Each is replaced when it has run its share."""
        while self._goes_on():
            async with _SeedWorker(self._worker) as worker:
                for _ in range(SEEDS_OF_A_WORKER // SEEDS_AT_ONCE):
                    if (count := self._next()) == 0:
                        return
                    self._add(await worker.ask(self.explored.first + self._asked - count, count))

    def _next(self) -> int:
        """Returns how many seeds to run now, and counts them as asked for."""
        left = SEEDS_AT_ONCE if self._seeds is None else min(SEEDS_AT_ONCE, self._seeds - self._asked)
        count = left if self._goes_on() else 0
        self._asked += count
        return count

    def _goes_on(self) -> bool:
        in_time = self._seconds is None or self._clock.monotonic() - self._began < self._seconds
        some_left = self._seeds is None or self._asked < self._seeds
        return in_time and some_left and (self._keep_going or not self.explored.totals.violations)

    def _add(self, totals: Totals) -> None:
        self.explored.totals.add(totals)
        self.explored.elapsed_s = self._clock.monotonic() - self._began
        self._tell(self.explored)


class _SeedWorker:
    """One worker process, for `async with`. `ask` runs seeds in it."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._process: Process = await self._stack.enter_async_context(await anyio.open_process(self._command, stderr=None))
        assert self._process.stdout is not None and self._process.stdin is not None, "both are pipes"
        self._answers = BufferedByteReceiveStream(self._process.stdout)
        self._requests = self._process.stdin
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def ask(self, first: int, count: int) -> Totals:
        seed, limit_s = str(first), math.inf
        try:
            await self._requests.send(f"{first} {count}\n".encode())
            while (line := await self._line(limit_s)).startswith(b"@"):
                seed, limit_s = line[1:].decode(), SEED_ENDS_WITHIN_S  # from here on: the interpreter's start has no limit
            return Totals.from_json(json.loads(line))
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
            code = await self._process.wait()
            raise WorkerError(f"the worker that ran seed {seed} died with exit code {code}; {replay(seed)}") from None
        except TimeoutError:
            self._process.kill()
            raise WorkerError(f"seed {seed} did not end within {SEED_ENDS_WITHIN_S:g} s; {replay(seed)}") from None

    async def _line(self, limit_s: float) -> bytes:
        with anyio.fail_after(limit_s):
            return await self._answers.receive_until(b"\n", LINE_BYTES_MAX)


def replay(seed: int | str) -> str:
    return f"replay it with: make sim SEED={seed}"
