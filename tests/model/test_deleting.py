"""The deletion of orphans on paper (docs/protocol/deleting.py): it holds, and each of its guards is needed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from docs.protocol.deleting import GUARDS, OURS, Deletions
from docs.protocol.search import check
from tests.given.heard_model import HeardScenario
from tests.suites import share

SCENARIOS = {
    "orphan": Deletions(),
    "wrong finding": Deletions(row="x"),
    "two deletions": Deletions(row="x", writers=(("a", True),), deletions=2),
    "older object": Deletions(other="x", writers=(("a", True),)),
    "older writer": Deletions(writers=(("a", True),), older=True),
    "older writer, two deletions": Deletions(writers=(), older=True, deletions=2),
    "quarantine": Deletions(writers=(), runs=(0, 0), restorations=(0, 0)),
    "quarantine, a later run": Deletions(writers=(), runs=(0, 0, 1), restorations=(0, 0, 1)),
}
MISSED = {
    "log": ("orphan", "SPOILT"),
    "both_readings": ("older object", "DANGLING"),
    "settle": ("orphan", "UNSETTLED"),
    "generation": ("older writer", "DANGLING"),
    "new_generation": ("quarantine", "LOST"),
    "copy_stays": ("quarantine", "LOST"),
    "own_copies": ("quarantine, a later run", "LOST"),
}


@pytest.mark.parametrize("name", share(list(SCENARIOS), 4))
def test_a_deletion_loses_nothing_and_spoils_no_change_in_any_schedule_however_wrong_its_finding(name: str) -> None:
    result = check(SCENARIOS[name])
    assert str(result) == "holds", "\n".join(line for trace in result.found.values() for line in trace)


@pytest.mark.parametrize("guard", GUARDS)
def test_each_guard_is_missed(guard: str) -> None:
    name, kind = MISSED[guard]
    found = check(replace(SCENARIOS[name], guards=OURS.without(guard)), until=kind).found
    assert kind in found


def test_without_a_changelog_a_change_may_be_spoilt_and_nothing_is_lost() -> None:
    blind = Deletions(OURS.without("log"))
    assert list(check(blind).found) == ["SPOILT"]


def test_without_a_changelog_only_the_settle_keeps_data() -> None:
    blind = Deletions(OURS.without("log").without("settle"))
    assert check(blind, until="DANGLING").found


@pytest.mark.parametrize(
    ("scenario", "happens"),
    [
        (SCENARIOS["two deletions"], {"deletion: deletes x", "deletion: x is gone"}),
        (SCENARIOS["older writer"], {"deletion: x is another generation"}),
        (Deletions(OURS.without("log")), {"deletion: settles a, live"}),
        (SCENARIOS["quarantine, a later run"], {
            "deletion of run 0: x is another generation, or gone", "restoration of run 0: leaves the copy of x",
            "restoration of run 0: finds x", "restoration of run 1: removes its copy", "deletion: x is another generation",
        }),
    ],
)  # fmt: skip
def test_what_the_model_is_about_happens(scenario: Deletions, happens: set[str]) -> None:
    """A deletion that does nothing would be safe, too."""
    heard = HeardScenario(scenario)
    check(heard)
    assert happens <= heard.labels
