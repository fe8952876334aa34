"""Judges what the join left: names that only the report has, and rows whose blob only the table knows.

    suspects, rows  ->  audit_range over backends that show only these, each looked up by its name now

The audit of a range is reused as it is, on two backends that stand in front of the real ones:

- `list` asks for each suspect, so the listing is of now. A blob that is gone, or that has another generation than the
  report says, is not in it.
- `redirects` reads the keys of the rows again. A row that names another blob by now is left out: its new blob is in the
  report and was joined, or is younger than the report.
- All else goes to the real backends: the changelog, the second look at blobs and rows.

So a suspect is read in the order L C R, then log, blob, row, like every blob of a live audit, and the same tables of
decisions judge it. Whatever the report or the export says, nobody is accused because of it.

*Failure*: as in `recovery.audit.sweeping.sweep`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from changelog.base.errors import CorruptRecordError
from changelog.base.runtime import Runtime
from changelog.log import ChangeLog
from recovery.audit.finding import Summary
from recovery.audit.manifest import Bounds, Cutoff
from recovery.audit.sweeping.judge import FindingSink
from recovery.audit.sweeping.sweep import audit_range
from recovery.audit.sweeping.tier_reads import POINT_READS, POINTS_AT_ONCE
from recovery.audit.sweeping.verify import READ_BUDGET_S
from tiered.protocol.backends import HighVolumeBackend, LongTermBackend, Tiers
from tiered.protocol.concurrent import map_concurrently
from tiered.protocol.retry import retry_read
from tiered.protocol.scans import BlobPage, CorruptRow, Generation, ListedBlob, Oddity, Redirect, RedirectPage

CHUNK = 25_000
"""How many candidates are judged at once: as many names as a window of the live audit has."""

EVERYTHING = Bounds(start="", end=None)


@dataclass(frozen=True, slots=True)
class Suspect:
    """A blob of the report that no live row names. `generation`, `size` (bytes): as the report says; None: not told."""

    name: str
    generation: Generation | None
    size: int | None


@dataclass(frozen=True, slots=True)
class SuspectRow:
    """A row to look at. `target`: the blob that it named; None: it told none.

    `key`: bytes, because a damaged key may be no text. `fault`: what is wrong with it, as the table told in this audit.
    Empty or None: the table is asked.
    """

    key: bytes
    target: str | None
    fault: str | None = None


async def judge(
    tiers: Tiers, log: ChangeLog, suspects: Sequence[Suspect], rows: Sequence[SuspectRow], cutoff: Cutoff, runtime: Runtime,
    found: FindingSink,
) -> Summary:  # fmt: skip
    """Judges up to `CHUNK` blobs and as many rows. `found` is called with the findings.

    The summary counts what was looked at here, and nothing else. Raises `TieredError` if something cannot be read.
    """
    narrow = Tiers(
        cast(HighVolumeBackend, _CandidateRows(tiers.high_volume, rows)), cast(LongTermBackend, _Blobs(tiers.long_term, suspects, runtime))
    )
    return await audit_range(narrow, log, EVERYTHING, cutoff, runtime, found, window_names=max(1, len(suspects)), suspects_only=True)


class _Blobs:
    """A long-term tier that lists only the suspects. Everything else is done by the real one."""

    def __init__(self, blobs: LongTermBackend, suspects: Sequence[Suspect], runtime: Runtime) -> None:
        self._blobs = blobs
        self._suspects = {suspect.name: suspect for suspect in suspects}
        self._names = sorted(self._suspects, key=str.encode)
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blobs, name)

    async def list(self, start: str, end: str | None, limit: int) -> BlobPage:
        names = [name for name in self._names if start <= name and (end is None or name < end)]
        page, rest = names[:limit], names[limit:]
        seen = await map_concurrently(self._look, page, POINTS_AT_ONCE)
        return BlobPage(
            [each for each in seen if isinstance(each, ListedBlob)], [each for each in seen if isinstance(each, Oddity)],
            rest[0] if rest else None,
        )  # fmt: skip

    async def _look(self, name: str) -> ListedBlob | Oddity | None:
        try:
            head = await retry_read(partial(self._blobs.head, name), self._runtime, READ_BUDGET_S)
        except CorruptRecordError as error:
            return Oddity(name, str(error), is_blob=True)
        suspected = self._suspects[name].generation
        if head is None or (suspected is not None and suspected != head.generation):
            return None
        return ListedBlob(name, head.size, head.created_ns, head.metadata.time_expires_ns, head.generation)


class _CandidateRows:
    """A high-volume tier that scans only the rows in question. Everything else is done by the real one."""

    redirect_columns = None
    """Hides that of the real one, which would scan all rows (`ColumnarRedirects`)."""

    def __init__(self, rows: HighVolumeBackend, suspects: Sequence[SuspectRow]) -> None:
        self._rows = rows
        self._asked = {(row.key, row.target) for row in suspects}
        self._told = {row.key: CorruptRow(row.key.decode(), row.fault, row.target) for row in suspects if row.fault}
        self._keys = sorted({row.key for row in suspects})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    async def redirects(self, start: bytes, end: bytes | None, limit: int) -> RedirectPage:
        keys = [key for key in self._keys if start <= key and (end is None or key < end)]
        page = await self._rows.redirects_at([key for key in keys[:POINT_READS] if key not in self._told])
        shown: list[Redirect] = [row for row in page.redirects if (row.path.encode(), row.target) in self._asked]
        reported = [self._told[key] for key in keys[:POINT_READS] if key in self._told]
        corrupt: list[CorruptRow] = [*page.corrupt, *reported]
        return RedirectPage(shown, corrupt, keys[POINT_READS] if len(keys) > POINT_READS else None)
