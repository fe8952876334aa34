"""Notices that a process works with the change feed off. It forgets finished changes without keeping them for the feed.

    value feed-off/{process}    "{version} working" or "{version} ended"; its version: ms since 1970, by the log's clock

    tell   before a change is cleaned up, unless it was told within `TELL_EVERY_S`: two calls
    end    nothing more is forgotten: "ended"; where no feed was ever begun, the notice is removed

Whoever is about to publish progress looks at the notices first. A process has changed its row before it tells, and
forgets the change afterwards. So a pass over all rows that begins after the end of a notice finds what it is about. A
notice is over when it says so, or when it is older than its process may rely on it. It is removed only after the feed
has a gap, and at the version that was read: a later notice of the same process counts.

*Crash*: the notice gets old. *Failure* to tell: an error is raised, and the change is not forgotten. A late write of an
older notice changes nothing. One that arrives after the removal by `end` only makes the feed read all rows once more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from changelog.base.errors import TieredError
from changelog.base.events import events
from changelog.base.runtime import Runtime
from changelog.key_values import VERSION_MAX, KeyValueStore
from changelog.log import ChangeLog

FEED_NOTE = "feed"
"""The note of the changelog that is there once a feed was begun."""

TELL_EVERY_S = 300.0
MARGIN_S = 60.0
"""The log's clock and the process's own may go apart by so much within `TELL_EVERY_S` (seconds)."""

OVER_AFTER_MS = round((TELL_EVERY_S + MARGIN_S) * 1000)

AHEAD_MAX_MS = 24 * 3600 * 1000
"""A notice that lies further ahead is damaged, or the log's clock went back. It must not hold the feed for ever."""

END_BUDGET_S = 5.0
"""How long the end of a process waits until its notice is ended (seconds)."""

PREFIX, PREFIX_END = "feed-off/", "feed-off0"
PAGE = 500
WORKING, ENDED = "working", "ended"


@dataclass(frozen=True, slots=True)
class FeedOffNotice:
    """What one process has told. `version`: when (ms since 1970, by the log's clock); 0: it cannot be read.

    `ended`: it forgets nothing more. One that cannot be read counts as ended: it is removed after the next gap.
    """

    process: str
    version: int
    ended: bool

    def is_over(self, now_ms: int) -> bool:
        """Whether its process forgets nothing more without telling anew. `now_ms`: the log's present time (Unix ms)."""
        return self.ended or not -AHEAD_MAX_MS <= now_ms - self.version < OVER_AFTER_MS


class FeedOffNotifier:
    """Tells that this process works with the feed off. Many tasks may call `tell` at the same time.

    `instance`: how the process is called, so that an operator finds it. The time of its first notice is added to that.
    """

    def __init__(self, log: ChangeLog, runtime: Runtime, instance: str) -> None:
        self._log = log
        self._runtime = runtime
        self._instance = instance
        self._key: str | None = None
        self._version = 0
        self._told_s = -math.inf
        self._telling = anyio.Lock()

    async def tell(self) -> None:
        """Returns once the log says that this process works with the feed off.

        Raises as `KeyValueStore.write_values`.
        """
        if not self._log.durable or self._is_told():
            return
        async with self._telling:
            while not self._is_told():
                began_s = self._runtime.boot_time()
                now_ms = await self._log.now_ms()
                self._key = self._key or f"{PREFIX}{self._instance}-{now_ms}"
                await self._write(self._key, now_ms, WORKING)
                self._told_s = began_s

    async def end(self) -> None:
        """Says that nothing more is forgotten, within `END_BUDGET_S`. An error is logged: the notice gets old then."""
        if self._key is None:
            return
        self._told_s = -math.inf
        with anyio.move_on_after(END_BUDGET_S, shield=True) as bounded:
            try:
                async with self._telling:
                    await self._end(self._key)
            except TieredError as error:
                events.info("feed_off_not_ended", error, instance=self._instance)
        if bounded.cancelled_caught:
            events.info("feed_off_not_ended", f"no answer within {END_BUDGET_S:g} s", instance=self._instance)

    async def _end(self, key: str) -> None:
        if await self._log.read_note(FEED_NOTE) is None:  # a feed that begins from now on reads all rows first
            await self._log.erase_values([key])
        else:
            await self._write(key, self._version, ENDED)

    async def _write(self, key: str, version: int, state: str) -> None:
        """Each notice has a version two above the one before, at least: its removal has the one between."""
        self._version = max(version, self._version + 2)
        await self._log.write_values({key: f"{self._version} {state}".encode()}, self._version)

    def _is_told(self) -> bool:
        return self._runtime.boot_time() - self._told_s < TELL_EVERY_S


async def read_notices(log: KeyValueStore) -> Sequence[FeedOffNotice]:
    """All notices that are there. Raises as `KeyValueStore.scan_values`."""
    found: list[FeedOffNotice] = []
    start: str | None = PREFIX
    while start is not None:
        page = await log.scan_values(start, PREFIX_END, PAGE)
        found += [_notice(key.removeprefix(PREFIX), value) for key, value in page.values.items()]
        start = page.next_start
    return found


async def remove_notices(log: KeyValueStore, notices: Sequence[FeedOffNotice]) -> None:
    """Removes notices that are over, unless their processes have told anew. Only after the feed has got a gap for them.
    """
    if damaged := [f"{PREFIX}{notice.process}" for notice in notices if not notice.version]:
        await log.erase_values(damaged)
    for notice in notices:
        if notice.version:
            await log.write_values({f"{PREFIX}{notice.process}": None}, notice.version + 1)


def _notice(process: str, value: bytes) -> FeedOffNotice:
    version, _, state = value.decode("ascii", "replace").partition(" ")
    number = int(version) if version.isascii() and version.isdecimal() and len(version) < 20 else 0
    if state not in (WORKING, ENDED) or not 0 < number < VERSION_MAX:
        return FeedOffNotice(process, 0, ended=True)
    return FeedOffNotice(process, number, state == ENDED)
