"""The failures of the published protocol, as named regressions: each breaks it unfenced, and leaves ours whole.

What happens in each, step by step, is told where it is written: `emulators.simulation.published`.
"""

from __future__ import annotations

import pytest

import emulators.world.deployment
import emulators.world.stack
import tiered.protocol.finishing
from emulators.simulation.published import SCHEDULES, play, play_unfenced
from emulators.simulation.unfenced import PUBLISHED, unfenced
from tiered.protocol.reading import Reader
from tiered.protocol.writing import Writer


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_published_failure_breaks_the_unfenced_protocol(name: str) -> None:
    schedule = SCHEDULES[name]
    played = play_unfenced(schedule)
    assert played.missing == [], "the schedule did not happen"
    assert schedule.breaks in {finding.partition(":")[0] for finding in played.findings}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_published_failure_leaves_our_protocol_whole(name: str) -> None:
    schedule = SCHEDULES[name]
    played = play(schedule)
    assert played.missing == [], "the schedule did not happen"
    assert (played.findings, played.answer, played.left) == ([], schedule.answer, schedule.left)


def test_the_fence_is_back_when_the_naive_protocol_was_played() -> None:
    fenced = what_is_replaced()
    with unfenced(PUBLISHED):
        assert not any(now is before for now, before in zip(what_is_replaced(), fenced, strict=True))
    assert what_is_replaced() == fenced


def what_is_replaced() -> list[object]:
    rows, blobs = vars(emulators.world.stack)["SimulatedRows"], vars(emulators.world.deployment)["SimulatedBlobs"]
    return [rows, blobs, Writer._commit, Reader._follow, tiered.protocol.finishing.waits_for_late_upload]
