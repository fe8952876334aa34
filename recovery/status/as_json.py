"""The status as plain JSON. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import Any

from recovery.dangling import LostReads
from recovery.last_audit import LastAudit
from recovery.redaction import HIDDEN, redact_names
from recovery.statistics.columns import SourceRow
from recovery.statistics.persisted import RECOVERY
from recovery.statistics.verdict import SourceVerdict
from recovery.status.judgement import advice, judge
from recovery.status.known import AGES_S, FeedSink, FeedStatus, SourceStatus, Status, StuckEntry
from recovery.typed_commands import TIERED, typed, with_typed
from tiered.metadata import NS_PER_MS

COLUMNS = tuple(column.name for column in fields(SourceRow) if column.name not in ("source", "worker", "incarnation"))


def as_json(status: Status, *, show_objects: bool = True, tiered: str = TIERED) -> dict[str, Any]:
    """Returns the status as plain JSON, as `tiered status --json` and `/status.json` print it.

    What is not known is null. `show_objects` False: the names of objects and of their blobs are replaced by "…".
    `tiered`: how commands begin that mean this store.
    """
    def shown(text: str) -> str:
        return text if show_objects else redact_names(text)

    entries, stuck, audits, judged = status.entries, status.stuck, status.audits, judge(status)
    whole = None if audits is None else audits.whole
    return {
        "at": moment(status.at_ms),
        "level": judged.level.value,
        "headline": judged.headline,
        "orders": [{"why": with_typed(order.why, tiered), "type": typed(order.type, tiered)} for order in judged.orders],
        "tiered": tiered, "away": [*status.away, *status.refusing],
        "store": {"kind": status.store.kind, "name": status.store.name, "durable": status.durable, "answers": status.answers},
        "sources": {
            name: _source_json(source, status.verdict if name == RECOVERY else source.verdict) for name, source in status.sources.items()
        },
        "entries": {
            "by_state": {each.name: number for each, number in entries.by_state.items()},
            "by_age": {each.name: list(ages) for each, ages in entries.by_age.items()},
            "ages_s": list(AGES_S), "undated": entries.undated,
            "oldest_age_s": entries.oldest_age_s, "oldest_id": entries.oldest_id,
            "counted": entries.counted, "due": entries.due, "complete": entries.complete,
        },
        "stuck": {
            "count": stuck.count, "complete": stuck.complete,
            "entries": [_stuck_json(each, show_objects, tiered) for each in stuck.entries],
        },
        "daemons": None if status.daemons is None else [asdict(each) for each in status.daemons],
        "audits": None if audits is None else [_audit_json(audit, status.at_ms) for audit in audits.runs],
        "contents": None if whole is None else _contents_json(whole, status.at_ms),
        "lost_reads": None if status.lost_reads is None else _lost_reads_json(status.lost_reads, show_objects),
        "disk": None if status.disk is None else {
            "free_bytes": status.disk.free_bytes, "size_bytes": status.disk.size_bytes, "full": status.disk.is_full,
            "read_only": status.disk.is_read_only,
        },
        "feed": None if status.feed is None else feed_json(status.feed, show_objects=show_objects),
        "problems": [shown(each) for each in status.problems], "complete": status.complete,
    }  # fmt: skip


def _contents_json(whole: LastAudit, at_ms: int) -> dict[str, Any]:
    number, size = (None, None) if whole.live is None else whole.live
    return {
        "live_blobs": number, "live_bytes": size, "blobs": whole.blobs, "blob_bytes": whole.size, "run": whole.run,
        "age_s": _age_s(whole.ended_ns, at_ms),
    }  # fmt: skip


def _age_s(then_ns: int, at_ms: int) -> float:
    return max(0, at_ms - then_ns // NS_PER_MS) / 1000


def _audit_json(audit: LastAudit, at_ms: int) -> dict[str, Any]:
    return {
        "run": audit.run, "where": audit.where, "started": moment(audit.started_ns // NS_PER_MS),
        "ended": moment(audit.ended_ns // NS_PER_MS), "age_s": _age_s(audit.ended_ns, at_ms),
        "complete": audit.complete, "state": audit.state.word, "level": audit.state.level.value, "sentence": audit.sentence,
        "blobs": audit.blobs, "tombstones": audit.tombstones, "references": audit.references, "scope": audit.scope,
        "payloads_read": audit.verified, "lost": audit.lost,
        "findings": {kind: {"number": number, "bytes": size} for kind, (number, size) in audit.findings.items()},
    }  # fmt: skip


def _lost_reads_json(lost: LostReads, show_objects: bool) -> dict[str, Any]:
    return {
        "objects": [
            {"object": each.path if show_objects else HIDDEN, "blob": each.blob if show_objects else HIDDEN, "found": moment(each.found_ms)}
            for each in lost.objects
        ],
        "not_looked_at": lost.not_looked_at, "more": lost.more,
    }  # fmt: skip


def feed_json(feed: FeedStatus, *, show_objects: bool = True) -> dict[str, Any]:
    """Returns what is known of the change feed as plain JSON."""
    def shown(text: str) -> str:
        return text if show_objects else redact_names(text)

    checkpoint, kept = feed.checkpoint, feed.kept
    scan = None if checkpoint is None else checkpoint.scan
    return {
        "state": feed.state.word, "level": feed.state.level.value, "why": shown(feed.why), "enabled": feed.enabled,
        "frontier": moment(feed.frontier_ms), "frontier_age_s": feed.frontier_age_s,
        **{name: None if checkpoint is None else getattr(checkpoint, name) for name in ("epoch", "generation", "records", "live", "gap")},
        "pass": None if scan is None else {
            "read": scan.read, "known": scan.known, "estimated": scan.estimated, "withheld": scan.withheld,
            "percentage": feed.pass_percentage, "began": moment(scan.began),
        },
        "passed": None if checkpoint is None else moment(checkpoint.passed),
        "kept": None if kept is None else {
            "entries": kept.entries, "estimated": kept.estimated, "since": moment(kept.oldest_ms), "age_s": feed.kept_age_s,
            "hold_max_s": feed.hold_max_s,
        },
        "sinks": [_sink_json(sink, shown) for sink in feed.sinks],
    }  # fmt: skip


def _sink_json(sink: FeedSink, shown: Callable[[str], str]) -> dict[str, Any]:
    return {
        "name": sink.name, "known": sink.known, "acknowledged": moment(sink.acknowledged_ms), "records": sink.records,
        "behind_records": sink.behind_records, "behind_s": sink.behind_s, "failing_since": moment(sink.failing_since_ms),
        "error": None if sink.error is None else shown(sink.error), "unasked": sink.unasked,
    }


def _source_json(source: SourceStatus, verdict: SourceVerdict) -> dict[str, Any]:
    return {
        "total": _columns(source.total),
        "workers": {name: _columns(row) for name, row in source.workers.items()},
        "verdict": {**asdict(verdict), "kind": verdict.kind.word}, "level": verdict.kind.level.value,
        "percentage": source.total.snapshot_percentage,
        "reported": moment(source.reported_ms), "regressions": source.regressions,
    }  # fmt: skip


def _columns(row: SourceRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in COLUMNS}


def _stuck_json(entry: StuckEntry, show_objects: bool, tiered: str) -> dict[str, Any]:
    named = entry.object is not None
    return {
        "id": entry.id, "key": entry.key, "object": entry.object if show_objects or not named else HIDDEN,
        "error": entry.error if show_objects else entry.error_without_names,
        "since": moment(entry.since_ms), "attempt": entry.attempt, "advice": advice(entry.error),
        "type": typed(entry.command, tiered),
    }  # fmt: skip


def moment(unix_ms: int | None) -> str | None:
    """Returns a time in RFC 3339, to the second. None: it is not known, or no calendar has it."""
    if unix_ms is None:
        return None
    try:
        return datetime.fromtimestamp(unix_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return None
