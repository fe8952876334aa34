"""What writers and daemons ask of the changelog does not grow with their product (docs/sizing.md)."""

from __future__ import annotations

import pytest

from benchmarks.recovery_growth import CallRates, count_calls

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fleets() -> dict[tuple[int, int], CallRates]:
    return {(writers, daemons): count_calls(writers, daemons) for writers in (10, 100) for daemons in (1, 10)}


def test_a_writer_pays_the_same_however_many_others_there_are(fleets: dict[tuple[int, int], CallRates]) -> None:
    """One renewal in 7.5 to 10 s for the entry that it has open."""
    for calls in fleets.values():
        assert calls.writer.keys() == {"renew"} and 1 / 10 <= calls.writer["renew"] <= 1 / 7


@pytest.mark.parametrize("daemons", [1, 10])
def test_a_daemon_pays_the_same_however_many_writers_there_are(fleets: dict[tuple[int, int], CallRates], daemons: int) -> None:
    assert fleets[100, daemons].daemon == pytest.approx(fleets[10, daemons].daemon, rel=0.1)


@pytest.mark.parametrize("writers", [10, 100])
def test_ten_daemons_scan_the_log_hardly_more_often_than_one(fleets: dict[tuple[int, int], CallRates], writers: int) -> None:
    alone, each = fleets[writers, 1].daemon, fleets[writers, 10].daemon
    assert alone["stale"] > 3, "16 ranges about every 4 s"
    assert 10 * each["stale"] <= 1.2 * alone["stale"]
    assert sum(each.values()) < sum(alone.values())
