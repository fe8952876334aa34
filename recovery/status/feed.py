"""`FeedStatus`: what is known of the change feed, and how it is judged. Pure, but for `look_at_feed`.

It claims only what was read. A sign of life of the writer is a report of its statistics, or a frontier that is as young
as a writer that works keeps it. A figure that is not known is None.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

from changelog.base.runtime import Runtime
from changelog.key_values import KeyValueStore
from changelog.log import ChangeLog
from recovery.display import count
from recovery.feed.writer.checkpoint import NOTE, NOTHING_YET, Checkpoint
from recovery.feed.writer.positions import Position, read, sink_name
from recovery.feed.writer.source import RetainedEntries, count_kept
from recovery.statistics.verdict import SourceState, SourceVerdict
from tiered.kinds.chosen import address_of
from tiered.protocol.feed_off import FeedOffNotice, read_notices
from tiered.settings import FeedSettings, Settings
from tiered.text import quoted

YOUNG_PERIODS = 3
"""A frontier is young if it is no older than so many times `feed.progress_every_s`, and `YOUNG_S` seconds."""
YOUNG_S = 30.0

ENDED_S = 26 * 3600.0
"""After a writer has ended in good order, entries may wait for so many seconds. A job may write the feed each night."""

AHEAD_MAX_S = 60.0
"""By so many seconds the clock of a writer may be ahead. Beyond that a frontier is no sign of life."""

NEAR_SHARE = 0.8
"""The wait of the oldest entry is near its bound from this share of `feed.hold_max_s` on."""

Ask = Callable[[str, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Asks the changelog something. None: there was no answer, and a problem says so. It takes what is asked, in words."""


class FeedState(StrEnum):
    """The state of the feed in one word."""

    LIVE = "live"
    FIRST_PASS = "first pass"
    BEHIND = "behind"
    STALLED = "stalled"
    ENDED = "ended"
    NO_WRITER = "no writer yet"
    OFF = "off"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class FeedSink:
    """How far one sink is. `name` has no password.

    `acknowledged_ms`: it has all transactions up to this time (Unix ms); None: none of this generation. `records` and
    `behind_records`: how many updates it has, and how many are missing. `behind_s`: how many seconds of transactions
    are missing; None: it has none yet. `failing_since_ms`: since when no delivery succeeds (Unix ms); None: the last
    one did. `error`: why the last delivery failed. `known` False: its position could not be read, so nothing is known.
    """

    name: str
    acknowledged_ms: int | None = None
    records: int | None = None
    behind_records: int | None = None
    behind_s: float | None = None
    failing_since_ms: int | None = None
    error: str | None = None
    known: bool = True

    @property
    def unasked(self) -> str | None:
        """Why its writer may not learn that another store delivers there, too, as a clause. None: it asks the sink."""
        if self.name.startswith("kafka://"):
            return "a topic does not tell whether another store delivers there, too"
        if self.name.startswith(("http://", "https://")):
            return "only a receiver that lists its files tells whether another store delivers there, too"
        return None


@dataclass(frozen=True, slots=True)
class FeedStatus:
    """What is known of the feed. `why`: why it is in this state, as a sentence; empty: that needs no reason.

    `enabled`: the setting. `checkpoint`: None: there is none, or it could not be read. `frontier_ms`: up to this time
    the feed is complete (Unix ms); None: nothing is published yet. `frontier_age_s`: how long ago that was; 0: it lies
    ahead. `kept`: the entries that wait for the feed; None: they could not be read. `kept_age_s`: for how long the
    oldest of them waits. `hold_max_s`: how long they may wait. `store`: which store the settings name. `ahead_s`: by
    how many seconds the frontier lies ahead. `off`: that processes work, or have worked, with the feed off, and the
    writer has not read all rows since, as a sentence; empty: none did.
    """

    state: FeedState
    why: str
    enabled: bool
    checkpoint: Checkpoint | None
    frontier_ms: int | None
    frontier_age_s: float | None
    kept: RetainedEntries | None
    kept_age_s: float | None
    hold_max_s: float
    sinks: tuple[FeedSink, ...]
    store: str = ""
    ahead_s: float = 0.0
    off: str = ""

    @property
    def is_late(self) -> bool:
        """Whether it is known not to keep up: it stands still, is behind, or nobody has ever started its writer."""
        return self.state in (FeedState.STALLED, FeedState.BEHIND, FeedState.NO_WRITER)

    @property
    def near_bound(self) -> bool:
        """Whether the oldest entry that waits for the feed will soon be cleaned up without it."""
        return self.kept_age_s is not None and self.kept_age_s >= NEAR_SHARE * self.hold_max_s

    @property
    def failing(self) -> tuple[FeedSink, ...]:
        """The sinks whose last delivery failed."""
        return tuple(sink for sink in self.sinks if sink.failing_since_ms is not None)

    @property
    def pass_percentage(self) -> float | None:
        """How far the pass under way is, from 0 to 99. None: there is none, or it is not known how many rows there are.
        """
        scan = None if self.checkpoint is None else self.checkpoint.scan
        if scan is None or scan.known is None:
            return None
        return min(99.0, 100.0 * scan.read / scan.known) if scan.known else 0.0


Judged = Callable[[int, "SourceOfFeed | None"], FeedStatus | None]


async def look_at_feed(ask: Ask, log: ChangeLog, settings: Settings, runtime: Runtime) -> Judged:
    """Reads all that is stored of the feed. Returns a function that judges it.

    That function takes the service's time (Unix ms) and the statistics of the feed (None: there are none). It returns
    None if no feed is configured and none was ever begun, or if the changelog did not answer that.
    """
    enabled = settings.feed.enabled
    answer: tuple[bytes | None] | None = await ask("the checkpoint of the feed", partial(_read_note, log))
    raw = None if answer is None else answer[0]
    if not enabled and raw is None:
        return lambda now_ms, source: None
    checkpoint: Checkpoint | None = None if raw is None else await ask("the checkpoint of the feed", partial(_parsed, raw))
    unread = answer is None or (raw is not None and checkpoint is None)
    kept: RetainedEntries | None = await ask("the entries that wait for the feed", partial(count_kept, log, runtime))
    notices: Sequence[FeedOffNotice] | None = await ask("who works with the feed off", partial(read_notices, log))
    known: dict[str, Position | None] = {}
    for name in map(sink_name, settings.feed.to):
        found = await ask(f"the position of the sink {name}", partial(read, log, [name]))
        if found is not None:
            known[name] = found.get(name)
    sinks = tuple(_sink(sink_name(to), known, checkpoint) for to in settings.feed.to)

    def judged(now_ms: int, source: SourceOfFeed | None) -> FeedStatus:
        frontier_ms = checkpoint.frontier if checkpoint is not None and checkpoint.frontier > NOTHING_YET else None
        kept_ms = None if kept is None else kept.oldest_ms
        ages_s = [None if since is None else max(0.0, (now_ms - since) / 1000) for since in (frontier_ms, kept_ms)]
        feed = FeedStatus(
            FeedState.UNKNOWN, "", enabled, checkpoint, frontier_ms, ages_s[0], kept, ages_s[1], settings.feed.hold_max_s, sinks,
            address_of(settings), 0.0 if frontier_ms is None else max(0.0, (frontier_ms - now_ms) / 1000),
            off_reason(notices or (), now_ms),
        )  # fmt: skip
        state, why = judge(feed, settings.feed, source, unread=unread)
        return replace(feed, state=state, why=why)

    return judged


async def _read_note(log: KeyValueStore) -> tuple[bytes | None]:
    return (await log.read_note(NOTE),)


async def _parsed(raw: bytes) -> Checkpoint:
    return Checkpoint.from_bytes(raw)


def _sink(name: str, known: Mapping[str, Position | None], checkpoint: Checkpoint | None) -> FeedSink:
    if name not in known:
        return FeedSink(name, known=False)
    position = known[name]
    failing = (None, None) if position is None else (position.failing_since, position.error)
    if checkpoint is None:
        return FeedSink(name, failing_since_ms=failing[0], error=failing[1])
    here = position if position is not None and position.generation == checkpoint.generation else None
    at = None if here is None else here.acknowledged
    records = 0 if here is None else here.records
    return FeedSink(
        name, at, records, max(0, checkpoint.records - records),
        None if at is None else max(0.0, (checkpoint.timestamp - at) / 1000), *failing,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SourceOfFeed:
    """What the statistics of the feed say. `fresh`: they are of now. `ended`: the worker that reported them has ended.
    """

    verdict: SourceVerdict
    fresh: bool
    ended: bool


def judge(feed: FeedStatus, settings: FeedSettings, source: SourceOfFeed | None, *, unread: bool = False) -> tuple[FeedState, str]:
    """Returns the state of the feed, and why. `unread`: its checkpoint could not be read."""
    checkpoint = feed.checkpoint
    if unread:
        return FeedState.UNKNOWN, "Its checkpoint could not be read."
    if not feed.enabled:
        return FeedState.OFF, "feed.enabled is not set here, so changes leave no hints for it."
    if checkpoint is None:
        return FeedState.NO_WRITER, "No writer has ever begun it."
    if checkpoint.store != feed.store:
        return FeedState.STALLED, (
            f"It is the feed of the store {quoted(checkpoint.store)}, and this store is {quoted(feed.store)}:"
            " check the settings, or begin a new generation."
        )
    if checkpoint.closed:
        return _ended(feed)
    if why := _no_life(feed, settings, source):
        return FeedState.STALLED, why
    if feed.ahead_s > AHEAD_MAX_S and (source is None or not source.fresh):
        ahead = f"Its frontier lies {feed.ahead_s:,.0f} s ahead"
        return FeedState.UNKNOWN, f"{ahead}, so nobody knows how old it is: set the clock of its writer right."
    failing = feed.failing
    if failing and len(failing) == len(feed.sinks):
        return FeedState.STALLED, f"No sink takes anything: {_reasons(failing)}"
    if failing:
        return FeedState.BEHIND, f"A sink fails: {_reasons(failing)}"
    if source is not None and source.fresh and source.verdict.kind is SourceState.STALLED:
        return FeedState.STALLED, "Updates wait, and not every sink acknowledges any."
    if feed.off:
        return FeedState.BEHIND, feed.off
    percentage = feed.pass_percentage
    far = "" if percentage is None else f", about {percentage:.0f} % are read"
    if checkpoint.passed is None:
        return FeedState.FIRST_PASS, f"It publishes no progress before it has read all rows{far}."
    if checkpoint.withheld:
        return FeedState.BEHIND, f"Changes were cleaned up without it, so it reads all rows again before it publishes progress{far}."
    if source is not None and source.fresh and source.verdict.kind in (SourceState.FALLING_BEHIND, SourceState.CATCHING_UP):
        return FeedState.BEHIND, f"It is {source.verdict.kind.value}."
    if not _is_young(feed, settings):
        return FeedState.BEHIND, "Its frontier is old."
    if not all(sink.known for sink in feed.sinks):
        return FeedState.UNKNOWN, "How far a sink is could not be read."
    return FeedState.LIVE, ""


def _ended(feed: FeedStatus) -> tuple[FeedState, str]:
    """Judges a feed whose writer has ended in good order."""
    why = "Its writer has ended in good order, and no other one works"
    if feed.near_bound or (feed.kept_age_s is not None and feed.kept_age_s > ENDED_S):
        return FeedState.STALLED, f"{why}, although entries wait."
    if failing := feed.failing:
        state = FeedState.STALLED if len(failing) == len(feed.sinks) else FeedState.BEHIND
        return state, f"{why}, although a sink fails: {_reasons(failing)}"
    if any(sink.behind_records for sink in feed.sinks):
        if feed.frontier_age_s is None or feed.frontier_age_s > ENDED_S:
            return FeedState.STALLED, f"{why}, although a sink does not have all updates."
        return FeedState.ENDED, f"{why}. A sink does not have all updates yet."
    if feed.off:
        return FeedState.BEHIND, f"{why}. {feed.off}"
    if feed.checkpoint is not None and (feed.checkpoint.passed is None or feed.checkpoint.withheld):
        return FeedState.BEHIND, f"{why}. It publishes no progress before a writer has read all rows."
    return FeedState.ENDED, f"{why}."


def _no_life(feed: FeedStatus, settings: FeedSettings, source: SourceOfFeed | None) -> str:
    """Returns the sentence that no writer works. Empty: there is a sign of life."""
    if (source is not None and source.fresh and not source.ended) or _is_young(feed, settings):
        return ""
    if source is None:
        return "No writer gives a sign of life."
    return "Its writer has ended, and no other one works." if source.ended else "Its writer gives no sign of life any more."


def _is_young(feed: FeedStatus, settings: FeedSettings) -> bool:
    return feed.frontier_age_s is not None and feed.frontier_age_s <= max(YOUNG_S, YOUNG_PERIODS * settings.progress_every_s)


def _reasons(failing: Iterable[FeedSink]) -> str:
    return "; ".join(f"{sink.name}: {sink.error or 'it gave no reason'}" for sink in failing).rstrip(".") + "."


def off_reason(notices: Sequence[FeedOffNotice], now_ms: int) -> str:
    working = [quoted(notice.process) for notice in notices if not notice.is_over(now_ms)]
    if working:
        others = f", and {count(len(working) - 1, 'other')}" if working[1:] else ""
        return f"A process works with the feed off, so no progress is published: set feed.enabled there ({working[0]}{others})."
    return "Changes were made with the feed off, so it reads all rows before it publishes progress." if notices else ""
