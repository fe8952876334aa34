"""The entries of the changelog that wait for an operator, for the report of a run.

An entry that is stuck protects the blobs that it names from being called orphans, for as long as it is stuck. So the
report names these entries: whoever wants the bytes back must mend them first.
"""

from __future__ import annotations

from functools import partial

from changelog.base.errors import TieredError
from changelog.base.runtime import Runtime
from changelog.change import Unreadable
from recovery.audit.manifest import ManifestStuckEntry
from recovery.audit.sweeping.tier_reads import ENTRIES_PAGE
from tiered.open import open_backends
from tiered.protocol.retry import retry_read
from tiered.settings import Settings

SHOWN_MAX = 50
BUDGET_S = 30.0


async def read_stuck(settings: Settings, runtime: Runtime) -> tuple[int | None, tuple[ManifestStuckEntry, ...]]:
    """Returns how many entries are stuck, and the first `SHOWN_MAX` of them.

    None: the changelog could not be read, so it is not known. Raises nothing: the audit is done by then.
    """
    number, shown = 0, list[ManifestStuckEntry]()
    try:
        async with open_backends(settings, runtime, writes=False, verify=False) as backends:
            start: str | None = ""
            while start is not None:
                page = await retry_read(partial(backends.log.entries, start, ENTRIES_PAGE), runtime, BUDGET_S)
                for entry in page.entries:
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
        return None, ()
    return number, tuple(shown)
