"""Whether other software writes beside this one: its writers wipe the marks of ours, so that objects can be lost.

A row of ours has a token, made when the row was written. Other software writes none, and its renewals take it away. Of
a row without a token two times are known:

    created     what its metadata or the revision of its blob say
    renewed     its deadline less its time to idle; `created`, if it has none

Other software wrote it at one of them at least. Which, nobody can tell: its renewal of a row of ours, and our renewal
of a row of its, look alike. So there is a mix if *both* times lie within one *era* of ours: writes of ours to the same
usecase, in the last `AGE_NS`, each less than `PAUSE_NS` after the one before. What is older has no mark that could be
missed. Whoever moves over, back, and over again an hour later, is never accused: one kind writes after the other, and
each of our eras ends before the next. Nor is who gives each kind usecases of its own: what keeps an object is in its
own row.

Some rows are looked at. So it may be known that there is a mix, and never that there is none. Reads only. *Failure*:
the error of the backend; nothing is known then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from changelog.base.errors import CorruptRecordError
from changelog.base.runtime import Runtime
from recovery.display import elapsed, moment
from tiered.metadata import NS_PER_MS, NS_PER_S, Metadata, TimeToIdle
from tiered.object_id import revision_of
from tiered.services.backends import HighVolumeBackend, LongTermBackend
from tiered.services.scans import ScannedRow

PAUSE_NS = 3300 * NS_PER_S
"""Less than the hour that a move waits, because clocks differ."""
CLOCKS_APART_NS = 60 * NS_PER_S
"""A time is within an era if it is this far from its ends, because clocks differ."""
AGE_NS = 2 * 86_400 * NS_PER_S
ROWS_AT_ONCE = 1000
PLACES, ROWS_A_PLACE = 8, 250
Era = list[tuple[int, str]]
"""Writes of ours in order: when, and the row's key."""
BLOBS_MAX = 16
"""So many blobs are asked for their time to idle. A tombstone does not tell it."""


@dataclass(frozen=True, slots=True)
class MixedWriters:
    """A row that other software wrote, or whose life it extended, by `theirs_ns`; and what this one wrote next to that.

    Times are nanoseconds since 1970.
    """

    theirs: str
    theirs_ns: int
    ours: str
    ours_ns: int

    @property
    def sentence(self) -> str:
        apart_s = (self.ours_ns - self.theirs_ns) / NS_PER_S
        order = "later" if apart_s >= 0 else "earlier"
        theirs = f"other software wrote {self.theirs}, or extended its life, by {moment(self.theirs_ns)}"
        return f"{theirs}, and this one wrote {self.ours} {elapsed(abs(apart_s))} {order}"


async def some_rows(rows: HighVolumeBackend, start: bytes, end: bytes | None, rows_max: int) -> list[ScannedRow]:
    """Returns the first `rows_max` rows with keys from `start` (inclusive) to `end` (exclusive; None: no end)."""
    found: list[ScannedRow] = []
    following: bytes | None = start
    while following is not None and len(found) < rows_max:
        page = await rows.scan("", following, min(ROWS_AT_ONCE, rows_max - len(found)), end)
        found += page.rows
        following = page.next_start
    return found


async def rows_here_and_there(rows: HighVolumeBackend, runtime: Runtime) -> list[ScannedRow]:
    """Returns up to `PLACES` * `ROWS_A_PLACE` rows, from places of the table that are chosen anew each time."""
    cuts = list(await rows.boundaries(PLACES * PLACES))
    starts = ["", *runtime.random.sample(cuts, min(len(cuts), PLACES - 1))]
    found: dict[str, ScannedRow] = {}
    for start in starts:
        found |= {row.path: row for row in await some_rows(rows, start.encode(), None, ROWS_A_PLACE)}
    return list(found.values())


async def find_mix(rows: Sequence[ScannedRow], blobs: LongTermBackend, now_ns: int) -> MixedWriters | None:
    """Returns what shows that other software and this one wrote at the same time. None: these rows do not show it.

    `now_ns`: nanoseconds since 1970.
    """
    eras = _eras(rows, now_ns)
    left = BLOBS_MAX
    for row in rows:
        created_ns = _created_ns(row)
        if created_ns is None or (era := _holding(eras.get(_usecase_of(row), ()), created_ns)) is None:
            continue
        metadata = row.metadata
        if row.target is not None:
            if not left:
                continue
            left -= 1
            metadata = await _metadata_of(blobs, row.target)
        renewed_ns = created_ns if metadata is None else _renewed_ns(row, metadata, created_ns)
        if metadata is not None and _holding([era], renewed_ns) is not None:
            ours_ns, ours = min(era, key=lambda write: abs(write[0] - renewed_ns))
            return MixedWriters(row.path, renewed_ns, ours, ours_ns)
    return None


def _eras(rows: Sequence[ScannedRow], now_ns: int) -> Mapping[str, Sequence[Era]]:
    """The eras of each usecase."""
    eras: dict[str, list[Era]] = {}
    tokens = sorted((row.token.created_ms * NS_PER_MS, row.path, _usecase_of(row)) for row in rows if row.token is not None)
    for written_ns, path, usecase in tokens:
        if written_ns < now_ns - AGE_NS:
            continue
        of_usecase = eras.setdefault(usecase, [])
        if not of_usecase or written_ns - of_usecase[-1][-1][0] >= PAUSE_NS:
            of_usecase.append([])
        of_usecase[-1].append((written_ns, path))
    return eras


def _holding(eras: Iterable[Era], time_ns: int) -> Era | None:
    within = (era for era in eras if era[0][0] + CLOCKS_APART_NS <= time_ns <= era[-1][0] - CLOCKS_APART_NS)
    return next(within, None)


def _usecase_of(row: ScannedRow) -> str:
    return row.path.partition("/")[0]


def _created_ns(row: ScannedRow) -> int | None:
    """When the content of a row without a token was written. None: it has a token, or nobody can tell."""
    if row.token is not None:
        return None
    if row.target is None:
        return None if row.metadata is None else row.metadata.time_created_ns
    revision = revision_of(row.path, row.target)
    return None if revision is None else revision.created_ms * NS_PER_MS


def _renewed_ns(row: ScannedRow, metadata: Metadata, created_ns: int) -> int:
    deadline_ns = metadata.time_expires_ns if row.deadline_ns is None else row.deadline_ns
    if not isinstance(metadata.expiration, TimeToIdle) or deadline_ns is None:
        return created_ns
    return deadline_ns - metadata.expiration.ns


async def _metadata_of(blobs: LongTermBackend, name: str) -> Metadata | None:
    try:
        blob = await blobs.head(name)
    except CorruptRecordError:
        return None
    return None if blob is None else blob.metadata
