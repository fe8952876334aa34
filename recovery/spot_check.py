"""Looks now and then whether a few blobs are still there, so that a loss is known before a reader or an audit meets it.

    from where the last look ended -> up to ROWS_AT_ONCE rows -> up to BLOBS_AT_ONCE of their tombstones -> the blob is
    gone: look again -> note what is lost, as a reader does

Disks do the same and call it a scrub. It goes round the store slowly, and proves nothing about what it has not come to.
But where a whole directory was emptied, or a bucket was replaced or expired, the first look finds it. *Failure*: it is
logged once for a row of failures; the next look begins where this one did.
"""

from __future__ import annotations

from changelog.base.errors import TieredError
from changelog.base.events import events
from changelog.base.observe import SILENT, Event, Observer
from changelog.base.runtime import Runtime
from changelog.log import ChangeLog
from recovery.dangling import SecondLook, look_at_all
from tiered.metadata import NS_PER_MS, is_expired
from tiered.notes.dangling import Dangling, DanglingNotes
from tiered.services.backends import Tiers

ROWS_AT_ONCE = 200
BLOBS_AT_ONCE = 16


class SpotCheck:
    """Call `look` now and then. `lost`: how many tombstones it has found so far whose blob is gone."""

    def __init__(self, tiers: Tiers, log: ChangeLog, runtime: Runtime, observer: Observer = SILENT) -> None:
        self.lost = 0
        self._tiers = tiers
        self._log = log
        self._runtime = runtime
        self._observer = observer
        self._start = b""
        self._fails = False

    async def look(self) -> None:
        """One look. Raises no `TieredError`."""
        try:
            await self._look()
            self._fails = False
        except TieredError as error:
            if not self._fails:
                events.warning("spot_check_failed", error)
            self._fails = True

    async def _look(self) -> None:
        page = await self._tiers.high_volume.scan("", self._start, ROWS_AT_ONCE)
        now_ns = self._runtime.wall_ns()
        found: list[Dangling] = []
        following = page.next_start
        for row in page.rows:
            if row.target is not None and not is_expired(row.deadline_ns, now_ns):
                if len(found) == BLOBS_AT_ONCE:
                    following = row.path.encode()
                    break
                found.append(Dangling(row.path, row.target, now_ns // NS_PER_MS))
        looks = await look_at_all(self._tiers, self._runtime, found)
        await self._note([each for each, (what, _) in zip(found, looks, strict=True) if what is SecondLook.LOST])
        self._start = following or b""

    async def _note(self, lost: list[Dangling]) -> None:
        notes = DanglingNotes(self._log, self._runtime)
        notes.close()  # so that it is written at once
        for each in lost:
            self.lost += 1
            self._observer.count(Event.DANGLING)
            events.error("dangling_tombstone", object=each.path, blob=each.blob)
            notes.add(each.path, each.blob)
        await notes.run()
