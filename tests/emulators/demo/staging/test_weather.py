"""The demo's troubles: each kind comes, one at a time, and each ends; and a run that never had one is no success."""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random

import pytest

import emulators.demo.staging.weather
from emulators.demo.director import what_is_wrong
from emulators.demo.staging.stage import Service
from emulators.demo.staging.weather import LASTS_S, PAUSE_S, DemoWeather

ENDS = {"freeze": "thaw", "stall": "release", "cut": "mend"}
ALL_ENDS = {**ENDS, "crash": "restart"}
LONGEST_S = max(most for _, most in [*LASTS_S.values(), PAUSE_S])


class WeatherClock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> WeatherClock:
    clock = WeatherClock()
    monkeypatch.setattr(emulators.demo.staging.weather, "time", clock)
    return clock


def service(name: str, done: list[tuple[str, str]], ends: dict[str, str]) -> Service:
    return Service(name, *(partial(done.append, (name, step)) for pair in ends.items() for step in pair))


@pytest.mark.parametrize(("names", "ends"), [(("bigtable", "gcs"), ENDS), (("postgres", "s3"), ALL_ENDS)])
def test_of_every_kind_there_is_one_before_any_comes_again_and_each_ends_before_the_next(
    clock: WeatherClock, names: tuple[str, str], ends: dict[str, str]
) -> None:
    """A service that keeps all in memory is never killed."""
    done: list[tuple[str, str]] = []
    weather = DemoWeather([service(name, done, ends) for name in names], Random(1))
    for _ in range(4 * len(ends)):  # the beginning and the end of each of a deck
        assert weather.pass_by() is None, "not before its time"
        clock.now += LONGEST_S
        begun = len(done) % 2 == 0
        assert (weather.pass_by() is not None) is begun
        assert weather.still is (begun and done[-1][1] in ("freeze", "crash"))
    assert set(weather.happened.values()) == {1} and len(weather.happened) == 2 * len(ends)
    assert [(name, ends[step]) for name, step in done[::2]] == done[1::2]
    assert Counter(done[::2]) == {(name, step): 1 for name in names for step in ends}


def test_what_is_under_way_ends_when_the_weather_is_cleared(clock: WeatherClock) -> None:
    done: list[tuple[str, str]] = []
    weather = DemoWeather([service("gcs", done, ENDS)], Random(1))
    clock.now += LONGEST_S
    weather.pass_by()
    weather.clear()
    weather.clear()
    ((_, begun), (_, ended)) = done
    assert ENDS[begun] == ended and not weather.still


def test_without_services_there_is_no_weather(clock: WeatherClock) -> None:
    weather = DemoWeather([], Random(1))
    clock.now += LONGEST_S
    assert weather.pass_by() is None
    assert weather.happened == {}


@pytest.mark.parametrize(
    ("flaws", "acknowledged", "missing", "wrong"),
    [
        ({"lost": 0}, 1, [], None),
        ({"lost": 2, "false_no": 1}, 1, ["gcs_cuts"], "2 lost, 1 false-no"),
        ({"lost": 0}, 0, ["gcs_cuts"], "no operation was acknowledged, so nothing was tried"),
        ({"lost": 0}, 1, ["gcs_cuts", "late writes"], "there were no gcs cuts and no late writes, so that was not tried"),
    ],
)
def test_a_run_that_did_not_try_everything_is_no_success(
    flaws: dict[str, int], acknowledged: int, missing: list[str], wrong: str | None
) -> None:
    assert what_is_wrong(flaws, acknowledged, missing) == wrong
