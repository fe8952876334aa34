"""The contract suites of `tiered.testing.contracts` on the services of a trial: a line for each.

    Suite           one module of tests; `SUITES` is the table
    run_suites      runs each in a process of its own, one after another, and reads what it tells
    contract_plugin.py    what runs in that process: the fixtures, and the telling

The process is pytest as it comes: no configuration of the user's, no plugin but ours and anyio's, no variable of
pytest's or of Python's. It works in the user's directory, because his settings may name files by relative paths, and
keeps all that it writes in a private directory. Each test has an empty trial, which its fixture clears.

*Time*: all of it is bounded by `contracts_s`. A test that says nothing for `SILENT_S` ends its suite, and no other one.
*Crash* of prove, or its cancellation: the process ends, because its stdin does. Also when its time is over.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from anyio import CancelScope, open_process
from anyio.abc import Process

from changelog.base.errors import TieredError
from recovery.prove.contract_losses import cost_of, is_limit
from recovery.prove.hiding import hidden
from recovery.prove.probes.bench import Sizes
from recovery.prove.report import Line
from recovery.prove.trial import Trial, trial_kinds
from tiered.provision.probes import ELSE, Result
from tiered.settings import Settings

GIVEN, EVENTS, SAID = "given", "events", "said"
"""Files of the private directory: what the process is given, what it tells, and what pytest prints."""
SILENT_S = 45.0
POLL_S = 0.1
SAID_CHARS_MAX = 160
NAMED_MAX = 8
"""So many tests that failed are named in a line."""


@dataclass(frozen=True, slots=True)
class Suite:
    """`module`: of the tests. `promise`: as in `Line`. `cost`: of a test without a row in
    `contract_losses.py`. `is_needed`: a tier that cannot do it at all lacks something.
    """

    module: str
    promise: str
    cost: str
    is_needed: bool = True


SUITES: Sequence[Suite] = (
    Suite(
        "high_volume", "the rows keep each sentence of their contract",
        "the store rests on rows that do otherwise, and no other line says what may be lost",
    ),
    Suite(
        "long_term", "the blobs keep each sentence of their contract",
        "the store rests on blobs that do otherwise, and no other line says what may be lost",
    ),
    Suite(
        "parts", "uploads in parts keep each sentence of their contract",
        "an upload that several processes share may end in an object that nobody meant", is_needed=False,
    ),
    Suite(
        "changelog", "the changelog keeps each sentence of its contract",
        "recovery rests on a changelog that does otherwise, and what dead processes leave may stay",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Given:
    """What the process needs. `within_s`: it ends itself then."""

    settings: Settings
    within_s: float


@dataclass(slots=True)
class SuiteTold:
    """What a suite has told so far. `failed`: by the test's name, why. `tests`: how many there are; None: not yet."""

    events: int = 0
    tests: int | None = None
    under_way: str = ""
    ended: set[str] = field(default_factory=set)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def take(self, file: Path) -> None:
        """Reads what is new. The last line may be half written."""
        lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []
        for line in lines[self.events :]:
            event = json.loads(line)
            match event["is"]:
                case "collected":
                    self.tests = event["tests"]
                case "begun":
                    self.under_way = event["test"]
                case "skipped":
                    self.skipped.setdefault(event["test"], event["why"])
                case "failed":
                    if (before := self.failed.get(event["test"])) is None or is_limit(event["test"], before):
                        self.failed[event["test"]] = event["why"]  # of its cases, the one that tells of a loss
                case "ended":
                    self.ended.add(event["test"])
        self.events = len(lines)


async def run_suites(
    trial: Trial, sizes: Sizes, tell: Callable[[str], None], suites: Sequence[Suite] = SUITES, silent_s: float = SILENT_S
) -> list[Line]:
    """A line for each suite."""
    if missing := [name for name in ("pytest", "hypothesis") if find_spec(name) is None]:
        return [_untried(suite, f"needs {' and '.join(missing)}, which the extra 'testing' of this package brings") for suite in suites]
    lines = []
    ends_at = trial.runtime.monotonic() + sizes.contracts_s
    for suite in suites:
        left_s = ends_at - trial.runtime.monotonic()
        if left_s <= 0:
            lines.append(_untried(suite, f"the {sizes.contracts_s:g} s for all suites were over before it began"))
            continue
        tell(f"running the contract suite {suite.module}")
        try:
            for kind in trial_kinds(trial.settings):
                await kind.clear(trial.settings, trial.runtime)
        except TieredError as error:
            lines.append(_untried(suite, _short(f"the trial could not be emptied for it: {error}", trial.settings)))
            continue
        with TemporaryDirectory(prefix="tiered-prove-") as private:
            told, why = await _run(suite, Path(private), trial, left_s, silent_s)
        lines.append(_line(suite, told, why, trial.settings))
    return lines


async def _run(suite: Suite, private: Path, trial: Trial, left_s: float, silent_s: float) -> tuple[SuiteTold, str]:
    """What it told, and why it ended before its last test; empty: it did not."""
    runtime, told = trial.runtime, SuiteTold()
    _prepare(private, Given(trial.settings, left_s))
    began = heard_at = runtime.monotonic()
    async with await _started(suite, private) as process:
        try:
            while process.returncode is None:
                await runtime.sleep(POLL_S)
                before, now = told.events, runtime.monotonic()
                told.take(private / EVENTS)
                heard_at = now if told.events > before else heard_at
                if now - began >= left_s:
                    return told, "the time for all suites was over"
                if now - heard_at >= silent_s:
                    return told, f"nothing was heard for {silent_s:g} s"
        finally:
            with CancelScope(shield=True):
                if process.returncode is None:
                    process.kill()
                await process.wait()
    told.take(private / EVENTS)
    if process.returncode == 0 or (process.returncode == 1 and told.failed):  # pytest: all passed; some did not
        return told, ""
    return told, f"pytest ended with {process.returncode}: {_last_line(private)}"


def _prepare(private: Path, given: Given) -> None:
    (private / "pytest.ini").write_text("[pytest]\n")
    descriptor = os.open(private / GIVEN, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        pickle.dump(given, file)


async def _started(suite: Suite, private: Path) -> Process:
    arguments = [
        "-c", str(private / "pytest.ini"), "--noconftest", "-p", "anyio.pytest_plugin", "-p", "recovery.prove.contract_plugin",
        "-p", "no:cacheprovider", "--capture=no", "--tb=no", "--pyargs", f"tiered.testing.contracts.{suite.module}",
    ]  # fmt: skip
    theirs = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "PYTHON")) or key == "PYTHONHOME"}
    environment = {
        **theirs, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(private),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(private / "examples"),
        "PYTHONPATH": _import_paths(),
    }  # fmt: skip
    with _open_said(private) as said:
        return await open_process(
            [sys.executable, "-P", "-m", "pytest", *arguments],
            stdin=subprocess.PIPE, stdout=said, stderr=subprocess.STDOUT, env=environment,
        )  # fmt: skip


def _import_paths() -> str:
    """Those of this process, absolute: the suites are those of the code that runs here."""
    return os.pathsep.join(os.path.abspath(path) for path in sys.path)


def _open_said(private: Path) -> IO[bytes]:
    return (private / SAID).open("wb")


def _last_line(private: Path) -> str:
    said = (private / SAID).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return said[-1] if said else "it said nothing"


def _line(suite: Suite, told: SuiteTold, why: str, settings: Settings) -> Line:
    done = told.ended - told.skipped.keys()
    if told.failed:
        lost = {test for test, why in told.failed.items() if not is_limit(test, why)}
        count = f"{len(told.failed)} of {told.tests} tests failed"
        in_order = sorted(told.failed, key=lambda name: name not in lost)[:NAMED_MAX]
        named = [f"{name} ({_short(told.failed[name], settings)})" for name in in_order]
        more = [f"{len(told.failed) - NAMED_MAX} more"] if len(told.failed) > NAMED_MAX else []
        rest = f"; {_rest(told, why, settings)}" if why else ""
        said = f"{count}: {', '.join(named + more)}{rest}"
        if why and not lost:  # what was not run may lose data
            return _untried(suite, said)
        costs = [cost_of(name, told.failed[name]) or suite.cost for name in told.failed if name in lost or not lost]
        return replace(_said(suite, Result.BROKEN, said), cost="; ".join(dict.fromkeys(costs)), is_limit=not lost)
    if why:
        return _untried(suite, _rest(told, why, settings))
    if not done:
        return _untried(suite, _short(next(iter(told.skipped.values()), "it has no tests"), settings))
    skipped = f", {len(told.skipped)} left out" if told.skipped else ""
    return _said(suite, Result.HELD, f"{len(done)} tests passed{skipped}")


def _rest(told: SuiteTold, why: str, settings: Settings) -> str:
    if told.tests is None:
        return f"no test was begun: {_short(why, settings)}"
    under_way = f" during {told.under_way}" if told.under_way and told.under_way not in told.ended else ""
    return f"{len(told.ended)} of {told.tests} tests were over, and then {_short(why, settings)}{under_way}"


def _short(text: str, settings: Settings) -> str:
    """The first words, without what the settings name."""
    text = hidden(" ".join(text.split()), settings)
    return text if len(text) <= SAID_CHARS_MAX else f"{text[: SAID_CHARS_MAX - 1]}…"


def untried_suites(why: str) -> list[Line]:
    return [_untried(suite, why) for suite in SUITES]


def _untried(suite: Suite, said: str) -> Line:
    return _said(suite, Result.UNTRIED, said, "run it again, with what was missing")


def _said(suite: Suite, result: Result, said: str, cure: str = ELSE) -> Line:
    is_limit = result is Result.UNTRIED and not suite.is_needed
    return Line("contracts", suite.module, suite.promise, result, said, suite.cost, cure, is_limit)
