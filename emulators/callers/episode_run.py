"""Runs the episode of a seed in its event loop, and checks what can be seen only from outside.

That is errors of tasks and generators that nobody awaits, coroutines that were never awaited, and threads and files
that stay.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import anyio

from emulators.callers.episode import Episode
from emulators.callers.episode_recipe import EpisodeRecipe
from emulators.callers.ground import Embedded, Ground, SimulatedStoreGround
from emulators.callers.interrupt import How, Interrupt
from emulators.callers.verdict import EpisodeResult, Violation
from emulators.world.runtime import run_world
from tiered import CorruptRecordError

SWEEP_MAX = 40
ENDED_WITHIN_S = 10.0
STUCK_AFTER_S = 30.0
"""Real seconds for a whole episode, which takes some tenths of one.

After that its event loop is stopped, wherever it is.
"""


def run(recipe: EpisodeRecipe) -> EpisodeResult:
    """Runs a recipe. A sweep runs one world for each await of its step."""
    if recipe.sweep is None or all(step.number != recipe.sweep for step in recipe.steps):
        return _run_once(recipe)
    calls = 0
    for at in range(1, SWEEP_MAX + 1):
        steps = tuple(replace(step, interrupt=Interrupt(How.SCOPE, at)) if step.number == recipe.sweep else step for step in recipe.steps)
        result = _run_once(replace(recipe, steps=steps, sweep=None))
        calls += result.calls
        ended = any(line.startswith(f"{recipe.sweep} ") and line.endswith(": cancelled") for line in result.trace)
        if result.violation is not None or not ended:
            break
    result.calls, result.worlds = calls, at
    if result.violation is None:
        result.recipe = recipe
    return result


class EpisodeHung(BaseException):
    """Raised in the event loop's thread when an episode takes too long."""


def _waiting() -> list[str]:
    """Returns for each asyncio task what it waits for, from the inside to the outside."""
    with suppress(RuntimeError):  # this is trio's loop
        return [" < ".join([*_awaits(task.get_coro())][::-1]) for task in asyncio.all_tasks()]
    return []


def _awaits(coroutine: Any) -> Iterator[str]:
    while coroutine is not None:
        if (frame := getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)) is not None:
            yield f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)


@contextmanager
def _alarmed() -> Iterator[None]:
    """Stops the episode after `STUCK_AFTER_S`. It needs a signal, because code that never yields cannot be cancelled.
    """
    def raise_stuck(number: int, frame: FrameType | None) -> None:
        where = [f"{each.filename}:{each.lineno} {each.name}" for each in traceback.extract_stack(frame)]
        waiting = "; ".join(_waiting())
        raise EpisodeHung(f"no end within {STUCK_AFTER_S:g} s; the event loop was at {' < '.join(where[:-5:-1])}; tasks: {waiting}")

    former = signal.signal(signal.SIGALRM, raise_stuck)
    signal.setitimer(signal.ITIMER_REAL, STUCK_AFTER_S, STUCK_AFTER_S / 3)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def _run_once(recipe: EpisodeRecipe) -> EpisodeResult:
    ground: Ground = SimulatedStoreGround(recipe.seed) if recipe.ground == "simulated" else Embedded()
    episode = Episode(recipe, ground)
    result = EpisodeResult(recipe, worlds=1)
    try:
        with _alarmed(), _watched():
            if isinstance(ground, SimulatedStoreGround):
                run_world(episode.run, recipe.seed)
            elif recipe.ground == "embedded on trio":
                anyio.run(episode.run, backend="trio")
            else:
                asyncio.run(_with_handler(episode))
    except Violation as violation:
        result.violation = violation
    except (Exception, EpisodeHung) as error:  # noqa: BLE001 - whatever it is, the seed has caused it
        result.violation = _unforeseen(error)
    finally:
        ground.close()
    result.trace, result.calls = episode.trace, episode.calls
    return result


def _unforeseen(error: BaseException) -> Violation:
    """Makes a violation from a deadlock of the simulated world, or from an error that no call has raised."""
    while isinstance(error, BaseExceptionGroup):
        error = next((each for each in error.exceptions if isinstance(each, (Violation, EpisodeHung))), error.exceptions[0])
    if isinstance(error, Violation):
        return error
    kind = "hang" if isinstance(error, EpisodeHung) or "for ever" in str(error) else "raw error"
    if isinstance(error, CorruptRecordError):
        kind = "corrupt"
    violation = Violation(kind, f"the episode ended with {type(error).__name__}: {error}")
    violation.__cause__ = error
    return violation


async def _with_handler(episode: Episode) -> None:
    unheard: list[str] = []

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        unheard.append(f"{context['message']}: {error!r}")

    asyncio.get_running_loop().set_exception_handler(handle)
    await episode.run()
    gc.collect()
    await asyncio.sleep(0)
    if unheard:
        raise Violation("unheard", "; ".join(unheard)[:500])
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    others = [task for task in others if "ForeignTask" not in repr(task) and "sleep" not in repr(task.get_coro())]
    if others:
        raise Violation("left behind", f"tasks: {others}"[:500])


@contextmanager
def _watched() -> Iterator[None]:
    unheard: list[str] = []

    def hook(unraisable: Any) -> None:
        unheard.append(f"{unraisable.err_msg or 'ignored'}: {unraisable.exc_value!r} in {unraisable.object!r}")

    former, sys.unraisablehook = sys.unraisablehook, hook
    threads, files = _threads(), _files()
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield
            gc.collect()
        unheard += [f"{each.category.__name__}: {each.message}" for each in warned if not issubclass(each.category, DeprecationWarning)]
    finally:
        sys.unraisablehook = former
    if unheard:
        raise Violation("unheard", "; ".join(unheard)[:500])
    # What is left behind stays: a thread ends a little later.
    deadline = time.monotonic() + ENDED_WITHIN_S
    while (left := _left(threads, files)) and time.monotonic() < deadline:
        time.sleep(0.005)
    if left:
        raise Violation("left behind", left)


def _left(threads: set[threading.Thread], files: set[str]) -> str:
    """Returns what there is now, and was not before."""
    if more := _threads() - threads:
        return f"threads: {', '.join(sorted(str(each) for each in more))}"
    more_files = _files() - files
    return f"open files: {', '.join(sorted(more_files))}" if more_files else ""


def _threads() -> set[threading.Thread]:
    """Returns the threads that run now, without trio's, which trio keeps for later."""
    return {each for each in threading.enumerate() if not each.name.startswith("Trio thread")}


def _files() -> set[str]:
    """Returns what is open in this process but for pipes. The store opens none; libraries that other tests ran do."""
    found = set()
    for number in os.listdir("/proc/self/fd") if sys.platform == "linux" else ():
        try:
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
        except OSError:
            continue
    return {each for each in found if "/proc/" not in each and " pipe:" not in each}


logging.getLogger("asyncio").setLevel(logging.CRITICAL)
