"""Reads the objects of a store as rows: what their rows tell, and of large ones what their blobs tell.

    scan a page of rows  ->  ask for the blobs that they name, many in one call  ->  look again at the rest

Size, policy and content type of a large object are its blob's, and its time of creation that of the row, if it tells
one. Without asking, all are what the row tells. A blob never changes, so they are those of the revision that the row
named. If a blob is not there, the row is read again. The object may have been overwritten meanwhile: then the row of
the table is about what is there now. It may have been deleted: then there is none. A blob that is gone although the
row, read after that, still names it, is lost, unless the object has expired.

Memory holds one page. *Failure*: `UnavailableError` if a service stays away for `READ_BUDGET_S`, `ConfigurationError`
if something is set up wrongly. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from changelog.base.errors import ConfigurationError, CorruptRecordError, InvalidRequestError
from changelog.base.runtime import Runtime
from recovery.audit.names import is_of, usecase_of
from recovery.audit.sweeping.verify import READ_BUDGET_S
from recovery.sources.columns import TableRow, us_of
from tiered.metadata import COLUMNS, NS_PER_S, Expiration, Metadata, TimeToIdle, TimeToLive, columns_of, is_expired
from tiered.object_id import ObjectId, revision_of
from tiered.services.backends import BlobHead, Inline, Tiers, Tombstone
from tiered.services.capabilities import BatchHeads
from tiered.services.concurrent import map_concurrently
from tiered.services.retry import retry_read
from tiered.services.scans import CorruptRow, ScannedRow
from tiered.stored import Tier

ROWS_PAGE = 5000
HEADS_PAGE = 1000
HEADS_LISTED_MIN = 13
"""As in a listing (`tiered.protocol.listing`): from so many blobs on, one call for all of them costs less."""

AT_ONCE = 16
LOOKS_MAX = 5
"""How often an object is looked at that is overwritten each time."""


class ObjectsPage(NamedTuple):
    """Rows of the table, in the order of their keys, and where the next page begins. None: there is no more."""

    rows: list[TableRow]
    next_start: bytes | None


async def read_objects(
    tiers: Tiers, runtime: Runtime, start: bytes, end: bytes | None = None, *, blobs: bool = True, limit: int = ROWS_PAGE
) -> ObjectsPage:
    """Reads up to `limit` rows of the store with the keys from `start` (inclusive) to `end` (exclusive; None: no end).

    `blobs`: whether the blobs of large objects are asked for; without, what only they tell is null, and none is lost.
    """
    read_ns = runtime.wall_ns()
    page = await retry_read(partial(tiers.high_volume.scan, "", start, limit, end), runtime, READ_BUDGET_S)
    faults = {row.path: row.fault for row in page.corrupt}
    paths = {row.path for row in page.rows}
    found: list[TableRow] = [_damaged(row, read_ns) for row in page.corrupt if row.path not in paths]
    sound = [row for row in page.rows if row.path not in faults]
    found += [_damaged(CorruptRow(row.path, faults[row.path], row.target), read_ns) for row in page.rows if row.path in faults]
    reading = _Reading(tiers, runtime, read_ns)
    heads = await reading.heads([row.target for row in sound if row.target is not None]) if blobs else {}
    doubtful = [row for row in sound if _is_doubtful(row, heads, blobs)]
    left = set(map(id, doubtful))
    found += [_row(row, heads.get(row.target or ""), read_ns) for row in sound if id(row) not in left]
    found += filter(None, await map_concurrently(partial(reading.look_again, blobs=blobs), doubtful, AT_ONCE) if doubtful else ())
    found.sort(key=_path)
    return ObjectsPage(found, page.next_start)


class _Reading:
    def __init__(self, tiers: Tiers, runtime: Runtime, read_ns: int) -> None:
        self._tiers = tiers
        self._runtime = runtime
        self._read_ns = read_ns

    async def heads(self, names: Sequence[str]) -> Mapping[str, BlobHead]:
        """What calls for many blobs tell. They may leave out any of them."""
        blobs, found = self._tiers.long_term, dict[str, BlobHead]()
        if not isinstance(blobs, BatchHeads):
            return found
        for first in range(0, len(names), HEADS_PAGE):
            some = names[first : first + HEADS_PAGE]
            if len(some) < HEADS_LISTED_MIN:
                break
            try:
                found |= await retry_read(partial(blobs.heads, some), self._runtime, READ_BUDGET_S)
            except (ConfigurationError, InvalidRequestError):  # who may not list may still look at each
                break
        return found

    async def look_again(self, row: ScannedRow, *, blobs: bool) -> TableRow | None:
        """The row of one object, from its blob and, if that is not there, its row as it is now. None: it is gone."""
        missing: str | None = None
        try:
            if row.target is not None:
                if (head := await self._head(row.target)) is not None:
                    return _row(row, head, self._read_ns)
                missing = row.target
            for _ in range(LOOKS_MAX):
                read_ns = self._runtime.wall_ns()
                state = (await retry_read(partial(self._tiers.high_volume.read, row.path), self._runtime, READ_BUDGET_S)).state
                if state is None:
                    return None
                row = _scanned(row.path, state)
                if row.target is None or not blobs:
                    return _row(row, None, read_ns)
                if row.target == missing:
                    lost = None if is_expired(row.deadline_ns, read_ns) else f"its blob {row.target!r} does not exist: its data is lost"
                    return _row(row, None, read_ns, lost)
                if (head := await self._head(row.target)) is not None:
                    return _row(row, head, read_ns)
                missing = row.target
        except ConfigurationError:  # such as a permission that is missing: that says nothing about the object
            raise
        except (CorruptRecordError, InvalidRequestError) as error:  # a name that no service takes, too
            return _row(row, None, self._read_ns, str(error))
        return _row(row, None, self._read_ns, f"it was overwritten {LOOKS_MAX} times while it was being read")

    async def _head(self, name: str) -> BlobHead | None:
        return await retry_read(partial(self._tiers.long_term.head, name), self._runtime, READ_BUDGET_S)


def _is_doubtful(row: ScannedRow, heads: Mapping[str, BlobHead], blobs: bool) -> bool:
    """Tells whether the row and `heads` do not tell all that can be known."""
    if row.target is not None:
        return blobs and row.target not in heads
    return row.metadata is None or row.metadata.size is None


def _scanned(path: str, state: Inline | Tombstone) -> ScannedRow:
    if isinstance(state, Tombstone):
        return ScannedRow(path, state.deadline_ns, state.token, state.target, state.metadata)
    metadata = state.metadata.with_facts(size=len(state.payload))
    return ScannedRow(path, state.deadline_ns, state.token, metadata=metadata)


def _row(row: ScannedRow, head: BlobHead | None, read_ns: int, fault: str | None = None) -> TableRow:
    """`head`: of the blob that the row names."""
    scopes, key, misnamed = _parts(row.path)
    deadline_ns, metadata, size, created_ns, target = row.deadline_ns, row.metadata, None, None, row.target
    if head is not None:
        # A row of other software may have no deadline. Readers then see the object until its blob is gone.
        deadline_ns = head.metadata.time_expires_ns if deadline_ns is None else deadline_ns
        told_ns = head.metadata.time_created_ns if metadata is None else metadata.time_created_ns
        metadata, size, created_ns = head.metadata, head.size, told_ns or head.created_ns
    elif metadata is not None:
        size, created_ns = metadata.size, metadata.time_created_ns
    strange = None if target is None or is_of(row.path, target) else f"it names {target!r}, a blob that is not its own"
    policy, lifetime_s = _policy(metadata)
    return (
        row.path, usecase_of(row.path), scopes, key, (Tier.HIGH_VOLUME if target is None else Tier.LONG_TERM).value, size,
        us_of(created_ns), us_of(deadline_ns), is_expired(row.deadline_ns, read_ns), policy, lifetime_s,
        *columns_of(metadata).values(), row.token if target is None else revision_of(row.path, target), target,
        us_of(read_ns), "; ".join(filter(None, (fault, strange, misnamed))) or None,
    )  # fmt: skip


def _damaged(row: CorruptRow, read_ns: int) -> TableRow:
    """Nothing but the key of such a row is sure."""
    scopes, key, _ = _parts(row.path)
    return row.path, usecase_of(row.path), scopes, key, *(None,) * (8 + len(COLUMNS)), row.target, us_of(read_ns), row.fault


def _parts(path: str) -> tuple[list[dict[str, str]] | None, str | None, str | None]:
    """The scopes and the key of a path, or why it is none."""
    try:
        object_id = ObjectId.parse(path)
    except InvalidRequestError as error:
        return None, None, f"nobody finds it by its key: {error}"
    return [{"name": name, "value": value} for name, value in object_id.scopes], object_id.key, None


def _policy(metadata: Metadata | None) -> tuple[str | None, float | None]:
    if metadata is None:
        return None, None
    expiration: Expiration = metadata.expiration
    match expiration:
        case TimeToLive():
            return "time_to_live", expiration.ns / NS_PER_S
        case TimeToIdle():
            return "time_to_idle", expiration.ns / NS_PER_S
    return "manual", None


def _path(row: TableRow) -> str:
    return str(row[0])
