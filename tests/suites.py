"""Two suites: what `make test` runs, and what is left to `make night`.

A test with the mark `night`, and one that lies in one of `PLACES`, runs in `make night` alone. `REASONS` is the rule;
the table in CONTRIBUTING has the same words. `pytest -m night` runs what is left to the night, and `-m "night or not
night"` runs all.

A matrix has too many cases for each push. `share` leaves a push some of them, others for the next commit, and the night
has all. So it is with the parameters of a test that has many (`left_to_other_commits`).
"""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar
from zlib import crc32

import pytest

T = TypeVar("T")

ROOT = Path(__file__).parent
ALL = "TIERED_SIM_NIGHT"
"""The variable that makes a run have all cases of each matrix. `-m night` sets it."""
REASONS = {
    "repeats": "repeats at length what another test shows in `make test`, or shows it on trio, too",
    "tools": "looks at tools: emulators, benchmarks, the site",
    "releases": "looks at a release: what is built, installed and promised",
    "interpreters": "needs other interpreters, or other versions of packages",
    "servers": "needs a server that a push to other rooms cannot break",
}
PLACES = {
    "contracts/test_slow_backends.py": "repeats contracts/test_rows.py",
    "crash/test_chaos.py": "repeats crash/test_crash_on_servers.py",
    "crash/test_two_codes_beside.py": "releases",
    "crash/test_two_codes_in_turn.py": "releases",
    "emulators/": "tools",
    "examples/test_from_the_wheel.py": "releases",
    "production/test_restored_dump.py": "servers",
    "production/test_standby.py": "servers",
    "recovery/audit/deleting/test_on_emulators.py": "repeats recovery/audit/deleting/test_deletion.py",
    "recovery/audit/sweeping/test_live.py": "repeats simulation/test_fresh_seeds.py",
    "recovery/prove/test_kills_on_servers.py": "repeats recovery/prove/test_kills.py",
    "recovery/statistics/test_daemon.py": "repeats recovery/statistics/test_recovery_source.py",
    "simulation/test_coverage.py": "tools",
    "simulation/test_explore.py": "tools",
    "simulation/test_ledger.py": "tools",
    "simulation/test_two_codes.py": "releases",
    "spark/test_demo_audit.py": "tools",
    "spark/test_notebook.py": "tools",
    "test_baseline.py": "tools",
    "test_benchmarks.py": "tools",
    "test_extras.py": "releases",
    "test_front_door.py": "releases",
    "test_release.py": "releases",
    "tiered/asgi/test_browser.py": "repeats tiered/asgi/test_requests.py",
}
"""Folders and files below `tests/`, each with its reason. What repeats names the file that shows the same to a push."""
ON_BOTH_LOOPS = ("store/", "contracts/")
"""Their tests on trio run in each push: there the product's own code waits."""

MATRICES = (
    "callers/test_oracle.py", "claims/test_faults.py",
    "crash/test_crash_everywhere.py", "crash/test_crash_on_emulators.py", "crash/test_crash_on_servers.py",
    "crash/test_determinism.py", "crash/test_kill.py", "crash/test_killed_uploads.py", "crash/test_power_cuts.py", "model/",
    "production/test_mixes.py", "simulation/test_feed_worlds.py", "simulation/test_guards.py", "store/test_memory.py",
    "tiered/gcs/test_resuming.py", "tiered/s3/test_answers.py",
)  # fmt: skip
"""Of these, a push has a share. So the night has them, too."""
ROTATED = (
    "callers/", "changelog/", "crash/test_crash_on_emulators.py", "crash/test_crash_on_servers.py", "production/", "recovery/",
    "simulation/", "store/", "tiered/",
)  # fmt: skip
MANY, ROTATION = 6, 3
"""Of a test of these rooms that has many parameters, `pytest --thirds` runs a third, as a push does. Not so of what
backends must do, of the claims, and of what compares the tree with itself."""


def reason(item: pytest.Item, names: frozenset[str]) -> str | None:
    """Why this test is left to the night; None: `make test` runs it. `names`: the ids of all tests."""
    if item.get_closest_marker("night"):
        return "repeats"
    if "trio" in item.nodeid and not is_in(item.nodeid, ON_BOTH_LOOPS) and item.nodeid.replace("trio", "asyncio") in names:
        return "repeats"
    return next((why for place, why in PLACES.items() if is_in(item.nodeid, place)), None)


def is_in(name: str, places: str | tuple[str, ...]) -> bool:
    return name.removeprefix("tests/").startswith(places)


def may_run(expression: str, marks: Iterable[pytest.Mark | pytest.MarkDecorator]) -> bool:
    """Whether `-m EXPRESSION` may choose a test with these marks. Thousands that cannot run are not even made."""
    names = {mark.name for mark in marks}
    return ("night" not in names or "night" in expression) and ("slow" not in names or "not slow" not in expression)


def left_to_the_night(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Marks them, so that `-m night` finds them. It also finds that of which a push has a share."""
    names = frozenset(item.nodeid for item in items)
    night = {item for item in items if reason(item, names)}
    shared = {item for item in items if has_all() and is_in(item.nodeid, (*MATRICES, *ROTATED))}
    for item in night | shared:
        item.add_marker(pytest.mark.night)
    return night


def left_to_other_commits(names: Iterable[str]) -> set[str]:
    """Which of these ids of tests `--thirds` leaves out at this commit. It has some parameters of each."""
    tests: dict[str, list[str]] = defaultdict(list)
    for name in names:
        if is_in(name, ROTATED):
            tests[name.partition("[")[0]].append(name)
    # Other digits of the commit than those by which `share` may have chosen these parameters: else some never meet.
    first, left = int(commit(), 16) // 144, set[str]()
    for test, each in tests.items():
        if len(each) >= MANY:
            left |= {*each} - {*share(each, ROTATION, first + crc32(test.encode()))}
    return left


# --- a share of a matrix -------------------------------------------------------------------------


def begin(chosen: str) -> None:
    """`chosen`: the expression of this run's `-m`. What the run starts has all cases, too."""
    if "night" in chosen.replace("not night", ""):
        os.environ.setdefault(ALL, "1")


def has_all() -> bool:
    return ALL in os.environ


@cache
def commit() -> str:
    """The commit that is tested. Without git, or outside a repository, always the same."""
    try:
        told = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        told = ""
    return told or "0"


def share(cases: Sequence[T], of: int, begin: int = 0) -> Sequence[T]:
    """Returns every third one of the cases, if `of` is 3; where a run has all, all.

    The commit says which, and it is never none. `begin`: another number for each of several matrices that are alike, so
    that each has another share.
    """
    return cases if has_all() else cases[(int(commit(), 16) + begin) % max(1, min(of, len(cases))) :: of]


def said_of_shares() -> str:
    if has_all():
        return "Of all tests with many parameters, all were run."
    return f"Of tests with many parameters, the commit {commit()[:12]} chose a share; the night has all."
