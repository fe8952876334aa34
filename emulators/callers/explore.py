"""Runs seeds on all cores, for a time or a number of seeds, until one shows a violation. Then makes its recipe small.

Each worker (`emulators.callers.worker`) runs a share of the seeds. A worker that dies, or says nothing for too long,
counts as a violation of the seed that it was running.
"""

from __future__ import annotations

import json
import math
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from emulators.callers.episode_recipe import EpisodeRecipe
from emulators.callers.episode_run import STUCK_AFTER_S, EpisodeResult, run
from tiered.settings import ENV_PREFIX

FIRST_SEED_MAX = 10**9
MEMORY = "/dev/shm"
"""Files go here if it exists. What a killed worker leaves behind is removed with it at the end."""

SILENT_AFTER_S = 5 * STUCK_AFTER_S
RUNS_TO_MAKE_SMALL = 60


@dataclass(slots=True)
class ExploredEpisodes:
    """What was explored. `violations`: (seed, kind, what)."""

    first: int
    episodes: int = 0
    calls: int = 0
    elapsed_s: float = 0.0
    grounds: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[int, str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        grounds = ", ".join(f"{count} {ground}" for ground, count in sorted(self.grounds.items()))
        return (
            f"{self.episodes} episodes from seed {self.first} ({grounds}), {self.calls} calls in {self.elapsed_s:.0f} s, "
            f"{len(self.violations)} violations"
        )


Tell = Callable[[ExploredEpisodes], None]


def explore(
    first: int, *, seeds: int | None = None, seconds: float | None = None, jobs: int | None = None, keep_going: bool = False,
    tell: Tell = lambda explored: None, command: bool = False,
) -> ExploredEpisodes:
    """Runs seeds from `first` on, and returns what was explored.

    It ends when `seeds` were run, `seconds` are over and something was run, or there is a violation, unless
    `keep_going` is set. `jobs`: how many processes; None: one for each core. `tell` is called from time to time.
    `command`: callers of the command.
    """
    explored, began, jobs = ExploredEpisodes(first), time.monotonic(), jobs or os.cpu_count() or 1
    said: queue.SimpleQueue[tuple[int, dict[str, Any] | None]] = queue.SimpleQueue()
    at, heard, goes_on = dict.fromkeys(range(jobs), first), dict.fromkeys(range(jobs), began), True
    workers: dict[int, subprocess.Popen[str]] = {}
    listeners: list[threading.Thread] = []

    def start(job: int, seed: int) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)} | {"TMPDIR": place}
        arguments = [sys.executable, "-m", "emulators.callers.worker", str(seed), str(jobs), *(["command"] if command else [])]
        worker = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)
        workers[job], heard[job] = worker, time.monotonic()
        listener = threading.Thread(target=_listen, args=(worker, job, said), daemon=True)
        listener.start()
        listeners.append(listener)

    def found(seed: int, kind: str, what: str) -> None:
        nonlocal goes_on
        explored.violations.append((seed, kind, what))
        goes_on = goes_on and keep_going

    with ExitStack() as at_the_end:
        place = at_the_end.enter_context(tempfile.TemporaryDirectory(prefix="callers-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None))
        at_the_end.callback(_end, workers, listeners)
        for job in range(jobs):
            start(job, first + job)
        enough, until = seeds or math.inf, began + (seconds or math.inf)
        while goes_on and explored.episodes < enough and (time.monotonic() < until or not explored.episodes):
            try:
                job, line = said.get(timeout=0.2)
            except queue.Empty:
                line = {}
            if line is None:
                code = workers[job].wait()
                if code != 0:
                    found(at[job], "hang", f"the worker died with exit code {code}")
                start(job, at[job] + jobs)
            elif "at" in line:
                at[job], heard[job] = line["at"], time.monotonic()
            elif line:
                heard[job] = time.monotonic()
                explored.episodes += line["worlds"]
                explored.calls += line["calls"]
                explored.grounds[line["ground"]] += line["worlds"]
                if line["violation"] is not None:
                    found(line["seed"], line["kind"], line["violation"])
            for silent in [each for each, when in heard.items() if time.monotonic() - when > SILENT_AFTER_S]:
                heard[silent] = time.monotonic()
                workers[silent].kill()  # its death is reported by the listener
            explored.elapsed_s = time.monotonic() - began
            tell(explored)
    return explored


def _listen(worker: subprocess.Popen[str], job: int, said: queue.SimpleQueue[tuple[int, dict[str, Any] | None]]) -> None:
    assert worker.stdout is not None, "a pipe"
    with worker.stdout:
        for line in worker.stdout:
            if line.endswith("\n"):  # the last line of a killed worker may be cut off
                said.put((job, json.loads(line)))
    said.put((job, None))


def _end(workers: dict[int, subprocess.Popen[str]], listeners: list[threading.Thread]) -> None:
    for worker in workers.values():
        worker.kill()
        worker.wait()
    for listener in listeners:  # each closes its pipe
        listener.join()


def smallest(result: EpisodeResult) -> EpisodeResult:
    """Returns a run with as few steps as show a violation of the same kind.

    It tries to leave out half of the steps, then a quarter, and so on down to one.
    """
    assert result.violation is not None, "one that shows something"
    kind, left = result.violation.kind, RUNS_TO_MAKE_SMALL
    if kind == "hang":
        return result  # each further run would take as long
    size = max(1, len(result.recipe.steps) // 2)
    while size >= 1:
        for start in range(0, len(result.recipe.steps), size):
            part = frozenset(step.number for step in result.recipe.steps[start : start + size])
            if left <= 0 or not part:
                break
            left -= 1
            tried = run(result.recipe.without(part))
            if tried.violation is not None and tried.violation.kind == kind:
                result = tried
                break
        else:
            size //= 2
            continue
        if left <= 0:
            break
    return result


def replayed(seed: int, *, whole: bool = False) -> tuple[bool, Iterator[str]]:
    """Runs a seed. Returns whether all went well, and what it chose, how the calls ended, and the verdict.

    If there is a violation, that is its smallest recipe, unless `whole` is set.
    """
    result = run(EpisodeRecipe.of(seed))
    if result.violation is not None and not whole:
        result = smallest(result)
    return result.violation is None, _lines(result)


def _lines(result: EpisodeResult) -> Iterator[str]:
    yield from result.recipe.words()
    yield "what they told:"
    yield from (f"  {line}" for line in result.trace)
    found: BaseException | None = result.violation
    if found is None:
        yield "every call kept its word"
        return
    yield f"violation: {found}"
    if found.__cause__ is not None:
        yield from "".join(traceback.format_exception(found.__cause__)).splitlines()
