"""A collector for prometheus-client that shows the latest status of recovery, of the feed and of the audit as metrics.

    registry.register(StatusMetrics(latest, age_s))

`latest` returns what `tiered status --json` prints, or None as long as there is none. It is called at each scrape and
must be quick: the daemon gathers its status beside, and this shows the last one. `age_s` says how old that is, in
seconds; if there is none, since when it is awaited. It follows no clock that somebody sets. A figure that is not known
(null) is left out, and so is a part that cannot be read: a scrape never fails because of it.

Several daemons show the same figures, because these are about the store and not about the daemon. So a query takes
`max by (source)`. The figures are those of a source as a whole, because a worker's begin anew at each restart.
docs/metrics.md has a line for each metric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from changelog.base.events import events
from changelog.lease import EntryState
from recovery import states

SOURCES = ("recovery", "feed", "audit")
LABEL_CHARACTERS_MAX = 120
"""So much of the name of a sink is shown."""

GAUGES: Mapping[str, str] = {
    "snapshot_records_known": "Size of the initial pass, in the unit of the source.",
    "snapshot_known_estimated": "1: the size of the initial pass is an estimate.",
    "snapshot_progress": "Records of the initial pass read so far, a lower bound.",
    "snapshot_committed": "1: the initial pass is complete and durable.",
    "outstanding_values": "All that the source has produced, in its own unit.",
    "processed_values": "How much of that is durably dealt with.",
}
COUNTERS: Mapping[str, str] = {
    "messages_received": "Messages read.",
    "bytes_received": "Their bytes.",
    "updates_staged": "Updates begun.",
    "updates_committed": "Updates that are durable.",
}


class StatusMetrics(Collector):
    def __init__(self, latest: Callable[[], Mapping[str, Any] | None], age_s: Callable[[], float]) -> None:
        self._latest = latest
        self._age_s = age_s

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("tiered_status_age_seconds", "How long ago the figures of the status were gathered.", self._age_s())
        try:
            status = self._latest()
        except Exception as error:  # noqa: BLE001 - the other metrics of this scrape are good
            events.warning("status_not_shown", error, exc_info=error)
            return
        if status is None:
            return
        for part in (_sources, _verdicts, _entries, _daemons, _level, _disk, _audits, _lost_reads, _feed):
            try:
                shown = list(part(status))
            except Exception as error:  # noqa: BLE001 - the others are good
                events.warning("status_not_shown", error, exc_info=error)
            else:
                yield from shown

    def describe(self) -> Iterable[Metric]:
        """For the registry, which would call `collect` otherwise, before there is a status."""
        return []


def _sources(status: Mapping[str, Any]) -> Iterator[Metric]:
    rows = [((source,), status["sources"][source]["total"]) for source in SOURCES if source in status["sources"]]
    labels = ("source",)
    families: list[tuple[str, GaugeMetricFamily | CounterMetricFamily]] = [
        *((column, GaugeMetricFamily(f"tiered_source_{column}", text, labels=labels)) for column, text in GAUGES.items()),
        *((column, CounterMetricFamily(f"tiered_source_{column}", text, labels=labels)) for column, text in COUNTERS.items()),
    ]
    for column, family in families:
        for names, row in rows:
            if (value := row[column]) is not None:
                family.add_metric(names, float(value))
        yield family
    text = "What vanished from the source although no worker dealt with it."
    regressions = CounterMetricFamily("tiered_source_regressions", text, labels=("source",))
    for source in SOURCES:
        if source in status["sources"]:
            regressions.add_metric((source,), status["sources"][source]["regressions"])
    yield regressions


def _verdicts(status: Mapping[str, Any]) -> Iterator[Metric]:
    family = GaugeMetricFamily("tiered_source_verdict", "1 for the verdict that holds, 0 for the others.", labels=("source", "verdict"))
    for source in SOURCES:
        if source in status["sources"]:
            _add_states(family, (source,), states.words(states.PACES), status["sources"][source]["verdict"]["kind"])
    yield family


def _entries(status: Mapping[str, Any]) -> Iterator[Metric]:
    entries = status["entries"]
    by_state = GaugeMetricFamily("tiered_entries", "Entries in the changelog, by state.", labels=("state",))
    if entries["by_state"] or entries["complete"]:  # otherwise nothing was counted, which is not 0
        for each in EntryState:
            by_state.add_metric((each.name.lower(),), entries["by_state"].get(each.name, 0))
        yield by_state
    yield GaugeMetricFamily("tiered_entries_complete", "1: every entry was counted; 0: there are more.", float(entries["complete"]))
    if entries["oldest_age_s"] is not None:
        yield GaugeMetricFamily("tiered_entries_oldest_age_seconds", "Age of the oldest entry.", entries["oldest_age_s"])
    if status["stuck"]["count"] is not None:
        yield GaugeMetricFamily("tiered_entries_stuck", "Entries that wait for an operator.", status["stuck"]["count"])


def _daemons(status: Mapping[str, Any]) -> Iterator[Metric]:
    if status["daemons"] is None or not status["store"].get("durable", True):  # where no changelog is kept, none can show itself
        return
    alive = sum(bool(daemon["alive"]) for daemon in status["daemons"])
    yield GaugeMetricFamily("tiered_daemons", "Recovery daemons that are alive, by their presence rows.", alive)


def _level(status: Mapping[str, Any]) -> Iterator[Metric]:
    family = GaugeMetricFamily("tiered_status_level", "1 for the level that holds, 0 for the others.", labels=("level",))
    _add_states(family, (), tuple(states.Level), status["level"])
    yield family


def _disk(status: Mapping[str, Any]) -> Iterator[Metric]:
    if (disk := status["disk"]) is not None:
        yield GaugeMetricFamily("tiered_disk_free_bytes", "What may still be written to the disk of the store.", disk["free_bytes"])
        yield GaugeMetricFamily("tiered_disk_size_bytes", "How large that disk is.", disk["size_bytes"])
        yield GaugeMetricFamily("tiered_disk_read_only", "1: it is mounted for reading only.", float(disk["read_only"]))


def _audits(status: Mapping[str, Any]) -> Iterator[Metric]:
    if status["audits"] is None:
        return
    whole = next((audit for audit in status["audits"] if audit["complete"] and not audit["scope"]), None)
    for name, complete, text in (
        ("tiered_audit_lost_objects", True, "Lost objects that audits found, and no later audit found mended."),
        ("tiered_audit_suspected_objects", False, "The same, of audits whose evidence is not complete."),
    ):
        lost = sum(audit["lost"] for audit in status["audits"] if audit["complete"] is complete)
        if lost or whole is not None:  # if nobody has looked, 0 would be a claim
            yield GaugeMetricFamily(name, text, lost)
    if whole is None:
        return
    yield GaugeMetricFamily("tiered_audit_age_seconds", "How long ago the last complete audit of the whole store ended.", whole["age_s"])
    findings = GaugeMetricFamily("tiered_audit_findings", "What that audit found, by class.", labels=("class",))
    for kind, found in whole["findings"].items():
        findings.add_metric((kind,), found["number"])
    yield findings


def _lost_reads(status: Mapping[str, Any]) -> Iterator[Metric]:
    if (lost := status.get("lost_reads")) is not None:
        text = "Objects that readers found lost, and that no later look found mended."
        yield GaugeMetricFamily("tiered_read_lost_objects", text, len(lost["objects"]) + bool(lost["more"]))


def _feed(status: Mapping[str, Any]) -> Iterator[Metric]:
    feed = status.get("feed")
    if feed is None:
        return
    state = GaugeMetricFamily("tiered_feed_state", "1 for the state of the change feed that holds, 0 for the others.", labels=("state",))
    _add_states(state, (), states.words(states.FEED_STATES), feed["state"])
    yield state
    kept = feed["kept"] or {}
    for name, text, value in (
        ("tiered_feed_frontier_age_seconds", "How long ago the time was up to which the feed is complete.", feed["frontier_age_s"]),
        ("tiered_feed_gap", "1: no progress is published before all rows are read again.", feed["gap"]),
        ("tiered_feed_epoch", "How many writers have opened this feed.", feed["epoch"]),
        ("tiered_feed_live_references", "References in the feed.", feed["live"]),
        ("tiered_feed_waiting_entries", "Entries that wait for the feed.", kept.get("entries")),
        ("tiered_feed_waiting_oldest_age_seconds", "For how long the oldest of them waits.", kept.get("age_s")),
        ("tiered_feed_hold_max_seconds", "For how long they may wait: feed.hold_max_s.", kept.get("hold_max_s")),
    ):
        if value is not None:
            yield GaugeMetricFamily(name, text, float(value))
    yield from _feed_sinks(feed["sinks"])


def _feed_sinks(sinks: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    records = GaugeMetricFamily("tiered_feed_sink_behind_updates", "Updates that the sink has not acknowledged.", labels=("sink",))
    seconds = GaugeMetricFamily("tiered_feed_sink_behind_seconds", "Seconds of transactions that it has not.", labels=("sink",))
    failing = GaugeMetricFamily("tiered_feed_sink_failing", "1: the last delivery to the sink failed.", labels=("sink",))
    for sink in sinks:
        names = (str(sink["name"])[:LABEL_CHARACTERS_MAX],)
        for family, value in ((records, sink["behind_records"]), (seconds, sink["behind_s"])):
            if value is not None:
                family.add_metric(names, float(value))
        if sink["known"]:
            failing.add_metric(names, float(sink["failing_since"] is not None))
    yield from (records, seconds, failing)


def _add_states(family: GaugeMetricFamily, names: tuple[str, ...], states: tuple[str, ...], state: str) -> None:
    """One sample for each state. What is in no list counts as `unknown`."""
    held = state if state in states else "unknown"
    for each in states:
        family.add_metric((*names, each), float(each == held))
