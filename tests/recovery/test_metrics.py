"""The status as metrics: what is known is shown, what is not is left out, and a scrape never fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from changelog.lease import EntryState
from recovery.metrics import COUNTERS, GAUGES, StatusMetrics
from tests.given.statuses import ROW, STATUS


def shown(status: Mapping[str, Any] | None) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(StatusMetrics(lambda: status, lambda: 5.0))
    return registry


def test_the_columns_of_the_source_as_a_whole_are_shown() -> None:
    """A worker's own begin anew at a restart, and what is processed must never fall."""
    total = {column: value + 5 if type(value) is int else value for column, value in ROW.items()}
    registry = shown(STATUS | {"sources": {"recovery": STATUS["sources"]["recovery"] | {"total": total}}})
    for column in (*GAUGES, *COUNTERS):
        name = f"tiered_source_{column}" + ("_total" if column in COUNTERS else "")
        assert registry.get_sample_value(name, {"source": "recovery"}) == float(total[column])


def test_what_is_not_known_is_left_out() -> None:
    recovery = STATUS["sources"]["recovery"] | {"total": ROW | {"outstanding_values": None}}
    registry = shown(STATUS | {"sources": {"recovery": recovery}})
    assert registry.get_sample_value("tiered_source_outstanding_values", {"source": "recovery"}) is None
    assert registry.get_sample_value("tiered_source_processed_values", {"source": "recovery"}) == 70
    empty = shown(STATUS | {"entries": STATUS["entries"] | {"oldest_age_s": None}})
    assert empty.get_sample_value("tiered_entries_oldest_age_seconds") is None
    assert empty.get_sample_value("tiered_entries", {"state": "held"}) == 3


@pytest.mark.parametrize(("name", "labels", "value"), [
    ("tiered_entries", {"state": "held"}, 3), ("tiered_entries", {"state": "claimable"}, 0),
    ("tiered_entries_oldest_age_seconds", {}, 77.5), ("tiered_entries_stuck", {}, 1), ("tiered_entries_complete", {}, 1),
    ("tiered_daemons", {}, 1), ("tiered_status_level", {"level": "stuck"}, 1), ("tiered_status_level", {"level": "ok"}, 0),
    ("tiered_source_verdict", {"source": "recovery", "verdict": "catching up"}, 1),
    ("tiered_source_verdict", {"source": "recovery", "verdict": "healthy"}, 0),
    ("tiered_source_regressions_total", {"source": "recovery"}, 4), ("tiered_read_lost_objects", {}, 2),
    ("tiered_disk_read_only", {}, 1), ("tiered_disk_free_bytes", {}, 10**9),
])  # fmt: skip
def test_the_rest_of_the_status_is_shown(name: str, labels: dict[str, str], value: float) -> None:
    assert shown(STATUS).get_sample_value(name, labels) == value


@pytest.mark.parametrize(("part", "name"), [
    ({"lost_reads": None}, "tiered_read_lost_objects"), ({"disk": None}, "tiered_disk_read_only"), ({"daemons": None}, "tiered_daemons"),
    ({"store": {"kind": "embedded", "name": "s", "durable": False}}, "tiered_daemons"),
])  # fmt: skip
def test_of_what_nobody_can_know_there_is_no_metric(part: dict[str, Any], name: str) -> None:
    """Where no changelog is kept, no daemon can show itself: 0 of them was an alarm for ever."""
    assert shown(STATUS).get_sample_value(name) is not None
    assert shown(STATUS | part).get_sample_value(name) is None


@pytest.mark.parametrize("status", [None, STATUS])
def test_the_age_is_shown_with_and_without_a_status(status: Mapping[str, Any] | None) -> None:
    assert shown(status).get_sample_value("tiered_status_age_seconds") == 5


def test_before_the_first_status_there_is_only_its_age() -> None:
    assert [family.name for family in shown(None).collect()] == ["tiered_status_age_seconds"]


def broken() -> Mapping[str, Any]:
    raise OSError("no store")


@pytest.mark.parametrize("latest", [broken, dict, lambda: STATUS | {"entries": None}, lambda: STATUS | {"level": []}])
def test_a_status_that_cannot_be_read_costs_its_own_metrics_and_no_scrape(latest: Callable[[], Mapping[str, Any]]) -> None:
    registry = CollectorRegistry()
    registry.register(StatusMetrics(latest, lambda: 5.0))
    families = {family.name for family in text_string_to_metric_families(generate_latest(registry).decode())}
    assert ("tiered_daemons" in families) is (latest is not broken and latest() != {})


def test_names_that_an_enemy_chose_stay_in_their_label() -> None:
    enemy = 'x"} 1\ntiered_entries_stuck 0\n' + "y" * 500
    sources = {
        "recovery": STATUS["sources"]["recovery"] | {"workers": {enemy: ROW}, "verdict": {"kind": enemy}},
        enemy: STATUS["sources"]["recovery"],
    }
    status = STATUS | {"sources": sources, "level": enemy, "entries": STATUS["entries"] | {"by_state": {enemy: 5}}}
    families = {family.name: family for family in text_string_to_metric_families(generate_latest(shown(status)).decode())}
    assert [sample.value for sample in families["tiered_entries_stuck"].samples] == [1]
    labels = [sample.labels for family in families.values() for sample in family.samples]
    assert {each["source"] for each in labels if "source" in each} == {"recovery"}
    held = [sample.labels["verdict"] for sample in families["tiered_source_verdict"].samples if sample.value]
    assert held == ["unknown"]
    assert len(families["tiered_entries"].samples) == len(EntryState)
