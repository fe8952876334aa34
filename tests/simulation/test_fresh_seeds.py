"""500 random seeds, on all cores; TIERED_SIM_SECONDS explores for so long instead. Each run of the tests tries others.

A failure names the seed and shows the smallest run; `make sim SEED=…` replays it. The summary says which seeds ran.
"""

from __future__ import annotations

import os

import pytest

from emulators.simulation import seed_report as report
from emulators.simulation.explore import explore

WORLDS = 500
SECONDS = os.environ.get("TIERED_SIM_SECONDS")


@pytest.mark.timeout(0)  # SECONDS may be many
def test_fresh_seeds_keep_every_invariant_and_meet_what_must_be_met(said_at_the_end: list[str]) -> None:
    explored = explore(WORLDS) if SECONDS is None else explore(seconds=float(SECONDS))
    said_at_the_end.append("fresh seeds: " + ", ".join(f"{name} {value}" for name, value in report.figures(explored)))
    found = [*report.problems(explored), *report.first_violation(explored)]
    assert not found, "\n".join(found)
