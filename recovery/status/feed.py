"""What is read of the change feed, and the state that it is in. Pure, but for `look_at_feed`.

It claims only what was read. A sign of life of the writer is a report of its statistics, or a frontier that is as young
as a writer that works keeps it. A figure that is not known is None.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from changelog.base.runtime import Runtime
from changelog.key_values import KeyValueStore
from changelog.log import ChangeLog
from recovery.display import count
from recovery.feed.writer.checkpoint import NOTE, NOTHING_YET, Checkpoint
from recovery.feed.writer.positions import Position, read, sink_name
from recovery.feed.writer.source import RetainedEntries, count_kept
from recovery.states import (
    CATCHING_UP,
    FALLING_BEHIND,
    FEED_BEHIND,
    FEED_ENDED,
    FEED_FIRST_PASS,
    FEED_LIVE,
    FEED_NO_WRITER,
    FEED_OFF,
    FEED_STALLED,
    FEED_UNKNOWN,
    STALLED,
    State,
)
from recovery.status.known import FeedSink, FeedStatus, SourceStatus
from tiered.kinds.chosen import address_of
from tiered.notes.feed_off import FeedOffNotice, read_notices
from tiered.settings import FeedSettings, Settings
from tiered.text import quoted

YOUNG_PERIODS = 3
"""A frontier is young if it is no older than so many times `feed.progress_every_s`, and `YOUNG_S` seconds."""
YOUNG_S = 30.0

ENDED_S = 26 * 3600.0
"""After a writer has ended in good order, entries may wait for so many seconds. A job may write the feed each night."""

AHEAD_MAX_S = 60.0
"""By so many seconds the clock of a writer may be ahead. Beyond that a frontier is no sign of life."""

Ask = Callable[[str, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Asks the changelog something. None: there was no answer, and a problem says so. It takes what is asked, in words."""


async def look_at_feed(ask: Ask, log: ChangeLog, settings: Settings, runtime: Runtime, now_ms: int) -> FeedStatus | None:
    """Reads all that is stored of the feed. `now_ms`: the service's time (Unix ms). `state_of` judges it afterwards.

    None: no feed is configured and none was ever begun, or the changelog did not answer that.
    """
    enabled = settings.feed.enabled
    answer: tuple[bytes | None] | None = await ask("the checkpoint of the feed", partial(_read_note, log))
    raw = None if answer is None else answer[0]
    if not enabled and raw is None:
        return None
    checkpoint: Checkpoint | None = None if raw is None else await ask("the checkpoint of the feed", partial(_parsed, raw))
    kept: RetainedEntries | None = await ask("the entries that wait for the feed", partial(count_kept, log, runtime))
    notices: Sequence[FeedOffNotice] | None = await ask("who works with the feed off", partial(read_notices, log))
    known: dict[str, Position | None] = {}
    for name in map(sink_name, settings.feed.to):
        found = await ask(f"the position of the sink {name}", partial(read, log, [name]))
        if found is not None:
            known[name] = found.get(name)
    frontier_ms = checkpoint.frontier if checkpoint is not None and checkpoint.frontier > NOTHING_YET else None
    frontier_age_s, kept_age_s = (
        None if since is None else max(0.0, (now_ms - since) / 1000) for since in (frontier_ms, None if kept is None else kept.oldest_ms)
    )
    return FeedStatus(
        FEED_UNKNOWN, "", enabled, checkpoint, frontier_ms, frontier_age_s, kept, kept_age_s, settings.feed.hold_max_s,
        tuple(_sink(sink_name(to), known, checkpoint) for to in settings.feed.to), address_of(settings),
        0.0 if frontier_ms is None else max(0.0, (frontier_ms - now_ms) / 1000), off_reason(notices or (), now_ms),
        unread=answer is None or (raw is not None and checkpoint is None),
    )  # fmt: skip


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


def state_of(feed: FeedStatus, settings: FeedSettings, source: SourceStatus | None) -> tuple[State, str]:
    """Returns the state of the feed, and why. `source`: its statistics."""
    checkpoint, fresh = feed.checkpoint, None if source is None or not source.fresh else source
    if feed.unread:
        return FEED_UNKNOWN, "Its checkpoint could not be read."
    if not feed.enabled:
        return FEED_OFF, "feed.enabled is not set here, so changes leave no hints for it."
    if checkpoint is None:
        return FEED_NO_WRITER, "No writer has ever begun it."
    if checkpoint.store != feed.store:
        return FEED_STALLED, (
            f"It is the feed of the store {quoted(checkpoint.store)}, and this store is {quoted(feed.store)}:"
            " check the settings, or begin a new generation."
        )
    if checkpoint.closed:
        return _ended(feed, checkpoint)
    if not (fresh is not None and fresh.workers) and not _is_young(feed, settings):
        if source is None:
            return FEED_STALLED, "No writer gives a sign of life."
        ended = "Its writer has ended, and no other one works."
        return FEED_STALLED, "Its writer gives no sign of life any more." if source.workers else ended
    if feed.ahead_s > AHEAD_MAX_S and fresh is None:
        ahead = f"Its frontier lies {feed.ahead_s:,.0f} s ahead"
        return FEED_UNKNOWN, f"{ahead}, so nobody knows how old it is: set the clock of its writer right."
    if failing := feed.failing:
        if len(failing) == len(feed.sinks):
            return FEED_STALLED, f"No sink takes anything: {_reasons(failing)}"
        return FEED_BEHIND, f"A sink fails: {_reasons(failing)}"
    if fresh is not None and fresh.verdict.kind is STALLED:
        if all(sink.known and not sink.behind_records for sink in feed.sinks):
            return FEED_STALLED, "Every sink has all updates, and entries wait that nobody finishes."
        return FEED_STALLED, "Updates wait, and not every sink acknowledges any."
    if feed.off:
        return FEED_BEHIND, feed.off
    percentage = feed.pass_percentage
    far = "" if percentage is None else f", about {percentage:.0f} % are read"
    if checkpoint.passed is None:
        return FEED_FIRST_PASS, f"It publishes no progress before it has read all rows{far}."
    if checkpoint.withheld:
        return FEED_BEHIND, f"Changes were cleaned up without it, so it reads all rows again before it publishes progress{far}."
    if fresh is not None and fresh.verdict.kind in (FALLING_BEHIND, CATCHING_UP):
        return FEED_BEHIND, f"It is {fresh.verdict.kind.word}."
    if not _is_young(feed, settings):
        return FEED_BEHIND, "Its frontier is old."
    if not all(sink.known for sink in feed.sinks):
        return FEED_UNKNOWN, "How far a sink is could not be read."
    return FEED_LIVE, ""


def _ended(feed: FeedStatus, checkpoint: Checkpoint) -> tuple[State, str]:
    """Judges a feed whose writer has ended in good order."""
    why = "Its writer has ended in good order, and no other one works"
    if feed.near_bound or (feed.kept_age_s is not None and feed.kept_age_s > ENDED_S):
        return FEED_STALLED, f"{why}, although entries wait."
    if failing := feed.failing:
        return FEED_STALLED if len(failing) == len(feed.sinks) else FEED_BEHIND, f"{why}, although a sink fails: {_reasons(failing)}"
    if any(sink.behind_records for sink in feed.sinks):
        if feed.frontier_age_s is None or feed.frontier_age_s > ENDED_S:
            return FEED_STALLED, f"{why}, although a sink does not have all updates."
        return FEED_ENDED, f"{why}. A sink does not have all updates yet."
    if feed.off:
        return FEED_BEHIND, f"{why}. {feed.off}"
    if checkpoint.passed is None or checkpoint.withheld:
        return FEED_BEHIND, f"{why}. It publishes no progress before a writer has read all rows."
    return FEED_ENDED, f"{why}."


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
