"""Random callers, on all cores: some 200 episodes of the library and 5 of the command. Each run tries others.

A failure names the seed and shows its smallest recipe; `make callers SEED=…` replays it.
"""

from __future__ import annotations

import pytest

from emulators.callers.__main__ import sentence, violations
from emulators.callers.explore import explore


@pytest.mark.parametrize(("callers", "seeds"), [("library", 160), ("command", 5)])
def test_fresh_callers_are_told_what_is_documented(callers: str, seeds: int, said_at_the_end: list[str]) -> None:
    explored = explore(callers, seeds)
    said_at_the_end.append(f"fresh callers of the {callers}: {sentence(explored)}")
    assert explored.totals.worlds == seeds or explored.totals.violations
    assert not explored.totals.violations, "\n".join(violations(callers, explored))
