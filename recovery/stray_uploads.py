"""Ends uploads in parts that nobody will complete: a process had begun one, and died before its entry was there.

    the tier's uploads that were begun an hour ago -> no entry of the change that their blob's name ends with -> cancel

Their parts cost money, and a bucket's rule ends them only after a month. An upload without an entry cannot become a
blob: its writer needs the entry first (without a changelog this looks at nothing). If the writer still lives, and only
stood still, its put fails, and nothing is lost. *Failure*: it is logged once for a row of failures.
"""

from __future__ import annotations

from changelog.base.errors import TieredError
from changelog.base.events import events
from changelog.change import ChangeId
from changelog.log import ChangeLog
from tiered.metadata import NS_PER_S
from tiered.services.backends import Tiers
from tiered.services.capabilities import PartUploads

STRAY_AGE_S = 3600
PAGE = 100


class StrayUploads:
    """Call `end` now and then. `ended`: how many it has ended."""

    def __init__(self, tiers: Tiers, log: ChangeLog) -> None:
        self.ended = 0
        self._blobs = tiers.long_term
        self._log = log
        self._fails = False

    async def end(self) -> None:
        """Goes through all uploads once. Raises no `TieredError`."""
        if not self._log.durable or not isinstance(self._blobs, PartUploads):
            return
        try:
            before_ns = await self._blobs.now_ns() - STRAY_AGE_S * NS_PER_S
            after: str | None = ""
            while after is not None:
                page = await self._blobs.open_sessions(before_ns, after, PAGE)
                for each in page.sessions:
                    await self._end_if_stray(each.name, each.session)
                after = page.next_after
            self._fails = False
        except TieredError as error:
            if not self._fails:
                events.warning("stray_uploads_not_ended", error)
            self._fails = True

    async def _end_if_stray(self, name: str, session: str) -> None:
        token = name.rpartition("/")[2]
        if ChangeId.matches(token) and await self._log.read(ChangeId(token)) is None:
            await self._blobs.cancel(session)
            self.ended += 1
            events.info("stray_upload_ended", blob=name)
