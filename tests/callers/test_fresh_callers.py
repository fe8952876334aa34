"""Random callers, on all cores, for TIERED_SIM_SECONDS seconds (4). Each run of the tests tries others.

A failure names the seed and shows its smallest recipe; `make callers SEED=…` replays it.
"""

from __future__ import annotations

import os
from random import SystemRandom

import pytest

from emulators.callers.__main__ import report
from emulators.callers.explore import FIRST_SEED_MAX, explore

SECONDS = min(20.0, float(os.environ.get("TIERED_SIM_SECONDS", "4")))


@pytest.mark.parametrize(("command", "seconds"), [(False, SECONDS), (True, SECONDS / 2)], ids=["the library", "the command"])
def test_fresh_callers_are_told_what_is_documented(command: bool, seconds: float, said_at_the_end: list[str]) -> None:
    explored = explore(SystemRandom().randrange(FIRST_SEED_MAX), seconds=seconds, command=command)
    said_at_the_end.append(f"fresh callers: {explored}")
    assert explored.episodes, "nothing was run"
    assert not explored.violations, "\n".join(report(explored, command_line=command))


def test_a_machine_that_is_slow_to_start_runs_something_all_the_same() -> None:
    assert explore(1, seconds=0.01, jobs=1).episodes
