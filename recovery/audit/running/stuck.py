"""The entries of the changelog that wait for an operator, and how many uploads are open, for the report of a run.

An entry that is stuck protects the blobs that it names from being called orphans, for as long as it is stuck. So the
report names these entries: whoever wants the bytes back must mend them first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from changelog.base.errors import TieredError
from changelog.base.runtime import Runtime
from changelog.change import Entry, Unreadable
from recovery.audit.manifest import ManifestStuckEntry
from recovery.audit.sweeping.tier_reads import ENTRIES_PAGE
from tiered.open import open_backends
from tiered.services.retry import retry_read
from tiered.settings import Settings

SHOWN_MAX = 50
BUDGET_S = 30.0


@dataclass(frozen=True, slots=True)
class StuckAndOpen:
    """How many entries are stuck, the first `SHOWN_MAX` of them, and how many are of uploads that are open.

    None: the changelog could not be read, so it is not known.
    """

    stuck: int | None = None
    shown: tuple[ManifestStuckEntry, ...] = ()
    open_uploads: int | None = None


async def read_stuck(settings: Settings, runtime: Runtime) -> StuckAndOpen:
    """Raises nothing: the audit is done by then."""
    number, shown, open_uploads = 0, list[ManifestStuckEntry](), 0
    try:
        async with open_backends(settings, runtime, writes=False, verify=False) as backends:
            start: str | None = ""
            while start is not None:
                page = await retry_read(partial(backends.log.entries, start, ENTRIES_PAGE), runtime, BUDGET_S)
                for entry in page.entries:
                    open_uploads += isinstance(entry, Entry) and entry.assembling is not None
                    if entry.stuck is None and not isinstance(entry, Unreadable):
                        continue
                    number += 1
                    if len(shown) < SHOWN_MAX:
                        error = entry.stuck.error if entry.stuck is not None else "it cannot be read"
                        of = None if isinstance(entry, Unreadable) else entry.change.object
                        since_ms = None if entry.stuck is None else entry.stuck.at_ms
                        shown.append(ManifestStuckEntry(key=entry.key, object=of, error=error, since_ms=since_ms))
                start = page.next_start
    except TieredError:
        return StuckAndOpen()
    return StuckAndOpen(number, tuple(shown), open_uploads)
