"""Runs steps one after another, until one fails.

What a step prints goes to build/release/NAME.log, and is shown from there while it runs: a process that a step leaves
behind can hold its output open, and cannot hold the release up.

*Ended by Ctrl-C, SIGTERM or SIGHUP*: the step gets SIGINT, with all that it has started, and some time to clean up.
After `kill -9` it goes on alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from emulators.release.steps import ReleaseStep

NOT_PROVED = ("not proved: ", "SKIPPED [")
"""Begin the lines of what a step left out: our own, and those of `pytest -ra`."""
LOOK_S, CLEAN_UP_S = 0.1, 30.0
OF_MAKE = frozenset({"ARGS", "MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL"})
"""By these a `make` within `make release` would take the arguments of the release for its own."""


@dataclass(frozen=True)
class EndedStep:
    """A step that ended. `code`: its exit code. `left_out`: what it said that it did not prove. `took_s`: seconds.

    `earlier`: in another run of this commit.
    """

    step: ReleaseStep
    code: int
    left_out: tuple[str, ...]
    took_s: float
    earlier: bool = False


def run_all(
    steps: Sequence[ReleaseStep], earlier: Sequence[EndedStep], root: Path, logs: Path, say: Callable[[str], object],
    keep: Callable[[Sequence[EndedStep]], object],
) -> list[EndedStep]:  # fmt: skip
    """Returns the steps that ended, in order; the last one may have failed, and those after it did not run.

    `earlier`: those that need not run again. `keep` is called with all that ended so far, after each.
    """
    passed = {each.step: each for each in earlier}
    ran: list[EndedStep] = []
    for number, step in enumerate(steps, start=1):
        say(f"\n=== {number} of {len(steps)}: {step.name} (about {step.minutes:g} min): {step.command}\n")
        ran.append(passed.get(step) or run(step, root, logs / f"{step.name}.log", say))
        ended = "passed in an earlier run" if ran[-1].earlier else "passed" if ran[-1].code == 0 else f"failed with {ran[-1].code}"
        say(f"=== {step.name}: {ended}\n")
        keep(ran)
        if ran[-1].code != 0:
            break
    return ran


def run(step: ReleaseStep, root: Path, log: Path, say: Callable[[str], object]) -> EndedStep:
    """Runs a step at `root`, in a shell, without input. One that there is not ends with the shell's 126 or 127."""
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log.open("wb") as into, log.open(encoding="utf-8", errors="replace") as shown:
        process = subprocess.Popen(
            ["sh", "-c", step.command], cwd=root, stdin=subprocess.DEVNULL, stdout=into, stderr=subprocess.STDOUT,
            env={name: value for name, value in os.environ.items() if name not in OF_MAKE}, start_new_session=True,
        )
        try:
            while process.poll() is None:
                _show(shown, say)
                time.sleep(LOOK_S)
        except BaseException:
            _end(process)
            raise
        _show(shown, say)
    lines = log.read_text("utf-8", errors="replace").splitlines()
    left_out = tuple(dict.fromkeys(line.removeprefix("not proved: ") for line in lines if line.startswith(NOT_PROVED)))
    return EndedStep(step, process.returncode, left_out, time.monotonic() - began)


def let_signals_end_it() -> None:
    """SIGTERM and SIGHUP end this process as Ctrl-C does: what it has begun is ended first. `nohup` still holds."""
    for each in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, lambda number, _: sys.exit(128 + number))


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(CLEAN_UP_S)
    finally:  # at once, if a second signal comes
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _show(log: IO[str], say: Callable[[str], object]) -> None:
    if text := log.read():
        say(text)
