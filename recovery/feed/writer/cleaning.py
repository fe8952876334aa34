"""What the store left to do: an old blob is deleted once the feed has committed that nothing references it any more.

This finishes the changes of the hints that a commit covers, by the rules of `tiered.protocol.finishing`. Anyone may
repeat it (I5), so it needs no lease. A blob that the row showed when it was read for the commit is left alone,
whatever the row shows by now, because its -1 is not committed. The change that replaced it has a hint of its own.

*Crash*: the hint is still kept; the next writer covers it again and repeats this. *Failure*: logged, and tried again
later; the feed goes on meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from changelog.base.errors import CorruptRecordError, TieredError
from changelog.base.events import events
from changelog.base.runtime import Runtime
from changelog.base.tasks import elsewhere_is_an_error
from recovery.feed.writer.writer import CoveredHint, FeedWriter
from tiered.open import Backends
from tiered.protocol.finishing import clean_up, settle_change, took_effect, waits_for_late_upload
from tiered.services.concurrent import map_concurrently
from tiered.services.retry import retry
from tiered.settings import Settings

LOOK_EVERY_S = 0.2
AGAIN_FIRST_S = 1.0


class Cleaning:
    """Cleans up after the covered hints of one writer. Run `run` beside it until it is cancelled."""

    def __init__(self, writer: FeedWriter, backends: Backends, runtime: Runtime, settings: Settings) -> None:
        self._writer = writer
        self._tiers = backends.tiers
        self._log = backends.log
        self._runtime = runtime
        self._budget_s = settings.store.cleanup_budget_s
        self._at_once = settings.recovery.concurrency_max
        self._again_max_s = settings.recovery.pause_max_s
        self._grace_ms = round(settings.recovery.late_upload_grace_s * 1000)
        self._late = writer.counts.late
        self._late.clear()
        self._due_at: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    async def run(self) -> None:
        while True:
            await self.clean_due()
            await self._runtime.sleep(LOOK_EVERY_S)

    def has_tried(self, hints: Iterable[str]) -> bool:
        """Whether each of these hints, by key, is done, or waits for another try."""
        return all(key not in self._writer.covered or key in self._due_at for key in hints)

    async def clean_due(self) -> None:
        """Cleans up after each covered hint whose time has come, some at once. Raises nothing."""
        now = self._runtime.monotonic()
        due = [(key, hint) for key, hint in self._writer.covered.items() if self._due_at.get(key, -math.inf) <= now]
        await map_concurrently(lambda hint: self._clean(*hint), due, self._at_once)

    async def _clean(self, key: str, hint: CoveredHint) -> None:
        change = hint.entry.change
        self._late.discard(key)
        try:
            with elsewhere_is_an_error("the clean-up was cancelled elsewhere"):
                wait_s = await retry(lambda: self._finish(hint), self._runtime, self._budget_s)
        except CorruptRecordError as error:
            wait_s = 0.0 if await self._is_parked(hint, error) else self._again_max_s
        except Exception as error:  # noqa: BLE001 - it is this hint's: the others go on
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            wait_s = min(self._again_max_s, AGAIN_FIRST_S * 2 ** min(failures - 1, 16))
            unforeseen = None if isinstance(error, TieredError) else error
            events.warning("feed_cleanup_failed", error, exc_info=unforeseen, id=change.id, object=change.object)
        if wait_s:
            self._due_at[key] = self._runtime.monotonic() + wait_s
            return
        self._writer.covered.pop(key, None)
        self._due_at.pop(key, None)
        self._failures.pop(key, None)

    async def _is_parked(self, hint: CoveredHint, error: CorruptRecordError) -> bool:
        """Sets the hint aside for an operator: no repetition will help. Returns whether that is done."""
        try:
            await self._log.park(hint.entry, str(error))
        except TieredError as unparked:
            events.warning("feed_cleanup_failed", unparked, id=hint.entry.change.id, object=hint.entry.change.object)
            return False
        events.error("entry_parked", error, id=hint.entry.change.id, object=hint.entry.change.object, verdict="parked")
        return True

    async def _finish(self, hint: CoveredHint) -> float:
        """Finishes the hint's change. Returns after how many seconds it is time for that; 0: it is done."""
        change = hint.entry.change
        if change.old == hint.shown:
            change = replace(change, old=None)
        live = change.new in (None, hint.shown) or await settle_change(self._tiers, change)
        if waits_for_late_upload(change, live):
            # A change that won had been uploaded by then, so nothing of it arrives late. The next one deletes its blob.
            row = await self._tiers.high_volume.read(change.object, marks=change.id)
            live = took_effect(change, live, row)
        if waits_for_late_upload(change, live) and hint.entry.kept_ms is not None:
            left_ms = hint.entry.kept_ms + self._grace_ms - await self._log.now_ms()
            if left_ms > 0:
                self._late.add(hint.entry.key)
                return left_ms / 1000
        await clean_up(self._tiers, change, live, lambda: None)
        await self._log.forget(hint.entry)
        return 0.0
