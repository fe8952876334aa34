"""The status of a store as lines for people. Pure: no I/O, and no clock.

The answer comes first, then what to type, then the figures. Whatever others wrote (names, errors) goes through
`escape_controls`. Text is wrapped to the width of the terminal, but a name or a command is never broken, so that it can
be copied. What is not known is called unknown, and an estimate is called one.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from changelog.lease import DUE, EntryState
from recovery.display import ago, count, duration, escape_controls, rate, size_si
from recovery.last_audit import LastAudit
from recovery.states import Level
from recovery.statistics.columns import SourceRow
from recovery.statistics.persisted import AUDIT, FEED, RECOVERY
from recovery.status.as_json import moment
from recovery.status.judgement import advice, feed_orders, judge
from recovery.status.known import AGES_S, REPORT_AGE_MAX_S, SILENCE_MAX_S, Daemon, FeedSink, FeedStatus, SourceStatus, Status, StuckEntry
from recovery.typed_commands import TIERED, typed, with_typed
from tiered.metadata import NS_PER_MS

Item = TypeVar("Item")

LABEL = 10
BAR_MAX = 30
ERROR_MAX = 400
"""Characters of an error that are shown. `tiered log show` has all of it."""

BEGAN_S = 3600.0
"""If an audit took longer, the page says when it began: what it found is of that time."""

SHOWN_MAX, FEW_MAX = 10, 5
"""So many stuck entries, lost objects and workers are shown, and so many audits and daemons that are gone. The others
are counted."""

LABELS = {RECOVERY: "recovery", FEED: "updates", AUDIT: "auditing"}
UNITS = {RECOVERY: ("entry", "entries"), FEED: ("update", "updates"), AUDIT: ("blob", "blobs")}
READ = {FEED: ("row", "rows")}
"""What a source reads in its first pass, where that is not its unit."""


@dataclass(frozen=True, slots=True)
class StatusLine:
    """One line. `level`: the line is the answer, and is shown in that level's colour."""

    text: str
    level: Level | None = None


def status_lines(status: Status, width: int | None, tiered: str = TIERED) -> list[StatusLine]:
    """Returns the lines. `width`: columns of the terminal; None: no line is wrapped. `tiered`: how commands begin."""
    page = _StatusLines(width, tiered)
    judged = judge(status)
    page.answer(judged.headline, judged.level)
    for order in judged.orders:
        page.text("do", order.why)
        page.command(order.type)
    page.gap()
    page.text("store", f"{status.store.kind}, {status.store.name}")
    if (disk := status.disk) is not None:
        only = ", read-only" if disk.is_read_only else ""
        page.text("disk", f"{size_si(disk.free_bytes)} free of {size_si(disk.size_bytes)}{only}")
    if status.audits is not None and status.audits.whole is not None:
        page.text("contents", _contents(status.audits.whole, status.at_ms))
    page.text("at", moment(status.at_ms) or "unknown")
    _show_source(page, RECOVERY, status.sources.get(RECOVERY), status)
    _show_entries(page, status)
    _show_stuck(page, status)
    _show_daemons(page, status)
    if status.feed is not None:
        _show_feed(page, status.feed, status)
    _show_audit(page, status)
    _show_lost_reads(page, status)
    if (audit := status.sources.get(AUDIT)) is not None and not audit.total.snapshot_committed:
        _show_source(page, AUDIT, audit, status)
    for problem in status.problems:
        page.text("problem", problem)
    return page.lines


def feed_lines(status: Status, feed: FeedStatus, width: int | None, tiered: str = TIERED) -> list[StatusLine]:
    """Returns the lines about the change feed alone, as `tiered feed status` shows them. See `status_lines`."""
    page = _StatusLines(width, tiered)
    for order in feed_orders(status):
        page.text("do", order.why)
        page.command(order.type)
    if page.lines:
        page.gap()
    _show_feed(page, feed, status)
    for problem in status.problems:
        page.text("problem", problem)
    return page.lines


class _StatusLines:
    """The lines so far."""

    def __init__(self, width: int | None, tiered: str) -> None:
        self.lines: list[StatusLine] = []
        self.width = width
        self._tiered = tiered

    def answer(self, sentence: str, level: Level) -> None:
        self.lines += [StatusLine(line, level) for line in self._wrapped(escape_controls(sentence), "", "")]

    def gap(self) -> None:
        self.lines.append(StatusLine(""))

    def text(self, label: str, text: str) -> None:
        """Adds a text beside its label, with its commands as they are typed. The lines after the first are indented."""
        shown = escape_controls(with_typed(text, self._tiered))
        self.lines += [StatusLine(line) for line in self._wrapped(shown, f"{label:<{LABEL}}", " " * LABEL)]

    def more(self, text: str) -> None:
        self.text("", text)

    def first(self, items: Iterable[Item], most: int, others: str) -> Iterator[Item]:
        """Yields the first items. Then it says how many others there are."""
        shown, rest = (known := list(items))[:most], len(known) - most
        yield from shown
        if rest > 0:
            self.more(f"and {rest:,} {others}")

    def whole(self, label: str, text: str) -> None:
        """Adds a text that is not wrapped, such as a name."""
        self.lines.append(StatusLine(f"{label:<{LABEL}}{escape_controls(text)}"))

    def command(self, command: str | None) -> None:
        """Adds a command on a line of its own. It is not wrapped, because somebody will copy it."""
        if command is not None:
            self.lines.append(StatusLine(escape_controls(f"{' ' * LABEL}$ {typed(command, self._tiered)}")))

    def _wrapped(self, text: str, first: str, others: str) -> list[str]:
        if self.width is None:
            return [f"{first}{text}".rstrip()]
        found = textwrap.wrap(
            text, max(self.width, LABEL + 10), initial_indent=first, subsequent_indent=others, break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
        return found or [first.rstrip()]


# --- sources ---------------------------------------------------------------------------------------


def _show_source(page: _StatusLines, name: str, source: SourceStatus | None, status: Status) -> None:
    if source is None:
        if status.durable:
            is_said = any("statistics of recovery" in problem for problem in status.problems)
            page.text(LABELS[name], "unknown" if is_said else "unknown: no daemon has reported anything yet")
        return
    one, many = UNITS[name]
    row, found = source.total, status.verdict if name == RECOVERY else source.verdict
    soon = f", caught up in about {duration(found.caught_up_in_s)}" if found.caught_up_in_s else ""
    page.text(LABELS[name], f"{found.kind.word}{soon}")
    if not row.snapshot_committed and row.snapshot_records_known != 0:
        bar = snapshot_bar(row, BAR_MAX if page.width is None else min(BAR_MAX, max(10, page.width - LABEL - 2)))
        page.text("snapshot", f"{bar} {snapshot_words(row, *READ.get(name, (one, many)))}".strip())
    if found.inflow_per_s is None or found.drain_per_s is None:
        page.text("rates", "unknown: that takes a daemon that lives, and two reports within the last minute")
    else:
        page.text("rates", f"{rate(found.inflow_per_s)} come in, {rate(found.drain_per_s)} are dealt with")
    ago_s = (status.at_ms - source.reported_ms) / 1000
    if row.lag != 0:
        lag = "unknown" if row.lag is None else count(row.lag, one, many)
        past = row.lag is not None and (abs(ago_s) > REPORT_AGE_MAX_S or (name == RECOVERY and status.alive == 0))
        page.text("lag", f"unknown; it was {lag} at the last report" if past else lag)
    page.text("reported", ago(ago_s))
    if len(source.workers) > 1:
        for worker, each in page.first(source.workers.items(), SHOWN_MAX, "more workers"):
            done = "unknown" if each.processed_values is None else f"{each.processed_values:,}"
            page.more(f"{worker}: {done} {many} dealt with")


def snapshot_bar(row: SourceRow, columns: int) -> str:
    """Returns the bar of the first pass, as wide as `columns`. Empty if it is not known how far the pass is."""
    percentage = row.snapshot_percentage
    if percentage is None:
        return ""
    inner = columns - 2
    full = int(inner * percentage / 100)
    return f"[{'#' * full}{'-' * (inner - full)}]"


def snapshot_words(row: SourceRow, one: str, many: str) -> str:
    """Returns how far a first pass under way is, in words. A percentage of an estimate is called an estimate."""
    percentage, read, known = row.snapshot_percentage, row.snapshot_progress, row.snapshot_records_known
    if percentage is None:
        return "unknown" if read is None else f"at least {count(read, one, many)} read, of a number that is not known yet"
    if row.snapshot_known_estimated:
        return f"about {percentage:.0f} % (estimate), at least {read:,} read of about {count(known or 0, one, many)}"
    return f"{percentage:.0f} %, at least {read:,} of {count(known or 0, one, many)} read"


# --- entries ---------------------------------------------------------------------------------------


def _show_entries(page: _StatusLines, status: Status) -> None:
    entries = status.entries
    if not status.durable:
        page.text("entries", "none: no changelog is kept")
        return
    if not status.answers:
        page.text("entries", "unknown")
        return
    more = "" if entries.complete else " or more: not all were counted"
    page.text("entries", f"{entries.counted:,}{more}")
    for state in EntryState:
        if number := entries.by_state.get(state, 0):
            ages = entries.by_age.get(state, ())
            shown = ", ".join(f"{each:,} {words}" for each, words in zip(ages, AGE_WORDS, strict=True) if each)
            due = ", due now" if state in DUE else ""
            page.more(f"{state.name.lower()} {number:,} ({state.value}{due}){': ' if shown else ''}{shown}")
    if entries.undated:
        page.more(f"the age of {entries.undated:,} is not known")
    if entries.oldest_age_s is not None:
        of = "" if entries.complete else ", of those that were counted"
        page.text("oldest", f"{duration(entries.oldest_age_s)} old{of}: change {entries.oldest_id}")
    elif entries.complete:
        page.text("oldest", "there is none")


def _show_stuck(page: _StatusLines, status: Status) -> None:
    stuck = status.stuck
    if not status.durable:
        return
    if stuck.count is None:
        page.text("stuck", "unknown")
        return
    page.text("stuck", f"{stuck.count:,}{'' if stuck.complete else ' or more'}")
    for entry in stuck.entries[:SHOWN_MAX]:
        _show_stuck_entry(page, entry)
    if (rest := stuck.count - min(len(stuck.entries), SHOWN_MAX)) > 0:
        page.more(f"and {rest:,} more:")
        page.command("tiered log list --stuck")


def _show_stuck_entry(page: _StatusLines, entry: StuckEntry) -> None:
    page.whole("-", entry.key if entry.object is None else entry.object)
    since = moment(entry.since_ms) or "a time that is not known"
    claimed = "" if entry.attempt is None else f", claimed {count(entry.attempt, 'time')}"
    page.more(f"stuck since {since}{claimed}")
    error = entry.error if len(entry.error) <= ERROR_MAX else f"{entry.error[:ERROR_MAX]}…"
    page.more(error or "it has no error text")
    page.more(advice(entry.error))
    page.command(entry.command)


# --- the change feed -------------------------------------------------------------------------------


def _show_feed(page: _StatusLines, feed: FeedStatus, status: Status) -> None:
    page.text("feed", f"{feed.state.word}{': ' + feed.why if feed.why else ''}")
    checkpoint = feed.checkpoint
    if feed.frontier_ms is not None and feed.frontier_age_s is not None:
        page.text("frontier", f"complete up to {moment(feed.frontier_ms) or 'an unknown time'}, {ago(feed.frontier_age_s)}")
    elif checkpoint is not None:
        page.text("frontier", "none yet: no progress is published")
    if checkpoint is not None:
        begun = moment(checkpoint.generation) or "at an unknown time"
        page.more(f"generation {checkpoint.generation}, begun {begun}; epoch {checkpoint.epoch}")
        page.more(f"{count(checkpoint.records, 'update')} committed, {count(checkpoint.live, 'live reference')}")
        if (scan := checkpoint.scan) is not None:
            known = "" if scan.known is None else f" of {'about ' if scan.estimated else ''}{scan.known:,}"
            page.more(f"a pass over all rows is under way: {scan.read:,}{known} read")
        page.text("gap", "yes: no progress is published before a whole pass is complete" if checkpoint.gap else "no")
    kept = feed.kept
    if kept is None:
        page.text("waiting", "unknown")
    else:
        since = "" if feed.kept_age_s is None else f", the oldest for {duration(feed.kept_age_s)}"
        number = "too many entries to count"
        if kept.entries is not None:
            number = f"{'about ' if kept.estimated else ''}{count(kept.entries, 'entry', 'entries')}"
        page.text("waiting", f"{number}{since}; at most {duration(feed.hold_max_s)}, then recovery cleans up without the feed")
    for sink in feed.sinks:
        page.whole("sink", sink.name)
        page.more(_sink_words(sink, status.at_ms))
        if sink.error is not None and sink.failing_since_ms is not None:
            page.more(sink.error)
        if sink.unasked is not None:
            page.more(sink.unasked)
    if (source := status.sources.get(FEED)) is not None:
        _show_source(page, FEED, source, status)


def _sink_words(sink: FeedSink, now_ms: int) -> str:
    if not sink.known:
        return "unknown: its position could not be read"
    has = "has acknowledged nothing of this generation" if sink.acknowledged_ms is None else f"has all up to {moment(sink.acknowledged_ms)}"
    behind = "" if sink.behind_records is None else f", {count(sink.behind_records, 'update')} behind"
    late = "" if not sink.behind_s else f" and {duration(sink.behind_s)}"
    fails = "" if sink.failing_since_ms is None else f"; it fails since {ago((now_ms - sink.failing_since_ms) / 1000)}:"
    return f"{has}{behind}{late}{fails}"


# --- daemons, losses, audit --------------------------------------------------------------------------------


def _show_lost_reads(page: _StatusLines, status: Status) -> None:
    if (lost := status.lost_reads) is None or not lost.is_loss:
        return
    page.text("lost", "readers found these, and their blobs are gone:" if lost.objects else "readers found objects whose blobs are gone")
    for each in page.first(lost.objects, SHOWN_MAX, "more in 'tiered status --json'"):
        page.whole("-", each.path)
        page.more(f"first found {ago((status.at_ms - each.found_ms) / 1000)}; it named {each.blob}")
    if lost.more:
        page.more("and others, for which there was no place in the note: audit the whole store")


def _show_daemons(page: _StatusLines, status: Status) -> None:
    if not status.durable:
        return
    if status.daemons is None:
        page.text("daemons", "unknown")
        return
    alive = [each for each in status.daemons if each.alive]
    gone = [each for each in status.daemons if not each.alive]
    none = "none lives" if status.none_lives else "unknown"
    page.text("daemons", f"{len(alive):,} seen within the last {duration(SILENCE_MAX_S)}" if alive else none)
    for daemon in alive:
        page.more(_seen(daemon))
    for daemon in page.first(gone, FEW_MAX, "more that were seen within a day"):
        page.more(f"{_seen(daemon)}: {'ended' if daemon.ended else 'probably killed, or out of reach'}")


def _seen(daemon: Daemon) -> str:
    return f"{daemon.instance}, seen {duration(daemon.seen_s_ago)} ago"


def _contents(whole: LastAudit, at_ms: int) -> str:
    """What the store held when it was last audited as a whole."""
    live = "" if whole.live is None else f"{count(whole.live[0], 'object')} with a blob, {size_si(whole.live[1])}; "
    of = "" if whole.size is None else f", {size_si(whole.size)}"
    when = ago((at_ms * NS_PER_MS - whole.ended_ns) / 1e9)
    return f"{live}{count(whole.blobs, 'blob')} in all{of}, by the audit that ended {when} (small objects are not counted)"


def _show_audit(page: _StatusLines, status: Status) -> None:
    if status.audits is None or not status.durable:
        page.text("audit", "unknown")
        return
    if not status.audits.runs:
        page.text("audit", "none has ended yet, so nobody has looked for lost data")
    for audit in page.first(status.audits.runs, FEW_MAX, "earlier ones of other names"):
        _show_run(page, audit, status.at_ms)


def _show_run(page: _StatusLines, audit: LastAudit, at_ms: int) -> None:
    ago_s = (at_ms * NS_PER_MS - audit.ended_ns) / 1e9
    took_s = (audit.ended_ns - audit.started_ns) / 1e9
    began = f"began {ago(ago_s + took_s)}, " if took_s > BEGAN_S else ""  # what it says is of then
    page.text("audit", f"{audit.sentence} ({began}ended {ago(ago_s)})")
    page.whole("", f"in {audit.where}")


AGE_WORDS = (*(f"under {duration(bound)} old" for bound in AGES_S), f"over {duration(AGES_S[-1])} old")
