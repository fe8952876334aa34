"""`BigtableRows`, the high-volume tier in a Bigtable table.

    family fg    of an object that expires: each cell's timestamp *is* the deadline (GC: max age 1 s)
    family fm    of one that does not: server timestamps (no GC)
                 p  payload        m  metadata, JSON              an inline object
                 r  blob's name    t  {"expiration_policy":…}     a tombstone
                 v  token of the write
                 c  (empty) it had a condition             a tombstone only
                 d  metadata of the blob, JSON, with v     a tombstone only; other software passes over it
    family ff    w:{token} won, r:{token} refused (GC: max age 2 d)
                 x  a token for which the content is reserved; the next change of the content removes it

Each operation is ONE `CheckAndMutateRow`. Its predicate yields a cell exactly when there is a conflict (swap, inline
writes), or when the row shows what is asked for (settle, touch). I2, I4 and I5 rest on that. Predicates go by presence,
expired or not. "Not X" is written as two open ranges of values: Bigtable documents that a Condition filter is not
atomic with its branches, and a regex is slow. Data is deleted by `DeleteFromFamily`, never by row, because that would
delete the marks, too. A row that has only marks is an absent object.

No predicate can yield a cell for a row that has none, so none can say "the object is not there any more". `reserve`
therefore notes in `ff:x` that the object is there, and every write of content removes the note. The predicate of a swap
`Still` is then about one family: of the marks of its token and the note with its token, the first is the note. `r:` and
`w:` sort before `x`, so a mark hides the note.

Other software's rows are read, too, and the next write replaces them: a payload in `fpg` or `fpm` (one more call); `m`
alone (an empty object); `p` alone (default metadata); no `t` (the blob has the lifetime; a touch keeps this form);
deadlines in whole seconds; a tombstone that is
`{"is_redirect_tombstone":true…` in `m`, or that has an empty `r` (both mean the blob named by the path itself). Rows
under `…/uploads/…` are no objects, and neither are those that `spans.py` leaves out. `fpg` and `fpm` are of a form that
was planned there and given up: if a table has them, every write clears them together with the other data. A payload
there without an `m` was left by software that did not clear it, and belongs to no object.

Calls: read, reserve, swap, settle, put_inline, delete_inline, touch 1; scan 1 for a page; touch of a row without a
token 2; for bulk reads see `tiered/bigtable/redirects.py`. Reads without marks that are asked for at the same moment
share one call (`changelog/bigtable/shared_reads.py`).

*Crash* at any call: the row is as before or as after. *Failure*: see `changelog.bigtable.channel`. A swap is not sent
after its deadline by the boot-time clock, and a swap that was sent is given up by then. This module knows no blobs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from changelog.base.errors import CorruptRecordError, UnavailableError
from changelog.base.runtime import Runtime
from changelog.bigtable.channel import (
    FIRST,
    NEWEST,
    SERVER_TIME,
    WITHOUT_VALUES,
    BigtableTable,
    KeySpan,
    Message,
    Stamp,
    after_prefix,
    chain,
    column_is,
    delete_column,
    delete_family,
    either,
    family_is,
    set_cell,
    timestamp_in,
    value_after,
    value_before,
    value_between,
    value_is,
)
from changelog.bigtable.row_merge import Cell, CellRow
from changelog.bigtable.shared_reads import SharedReads
from changelog.change import ChangeId
from tiered.bigtable import redirects
from tiered.bigtable.cells import (
    CONDITIONAL,
    DATA_FAMILIES,
    DESCRIBED,
    EXPIRING,
    LEGACY_FAMILIES,
    LEGACY_TOMBSTONE,
    LEGACY_TOMBSTONES,
    MANUAL,
    MARKS,
    METADATA,
    NS_PER_US,
    PAYLOAD,
    POLICY,
    TARGET,
    TARGETS,
    TOKEN,
)
from tiered.bigtable.spans import object_spans
from tiered.buckets.row_keys import corrupt_row, is_text
from tiered.metadata import (
    NS_PER_S,
    Expiration,
    Metadata,
    decode_metadata,
    decode_policy,
    described_by_row,
    encode_described,
    encode_metadata,
    encode_policy,
    is_expired,
    whole_ms,
)
from tiered.object_id import blob_name
from tiered.services.backends import Inline, Only, Row, RowState, Still, Tombstone, Vacant
from tiered.services.capabilities import RedirectColumns
from tiered.services.scans import CorruptRow, RedirectPage, RowPage, ScannedRow

CLOCKS_APART_MAX_NS = 600 * NS_PER_S

_WON, _REFUSED, _RESERVED = "w:", "r:", b"x"
_TOMBSTONES = [*TARGETS, *LEGACY_TOMBSTONES]
_STATE = chain(either(*map(family_is, DATA_FAMILIES)), NEWEST)
_WITHOUT_PAYLOAD = chain(
    either(
        *(chain(column_is(family, PAYLOAD), WITHOUT_VALUES) for family in DATA_FAMILIES),
        *(column_is(family, column) for family in DATA_FAMILIES for column in (METADATA, TARGET, TOKEN, DESCRIBED)),
    ),
    NEWEST,
)


class BigtableRows:
    """Implements `HighVolumeBackend`.

    `runtime`: its wall clock tells a row that is half collected from a corrupt one; its boot-time clock judges a swap's
    deadline. `payload_families`: those of `LEGACY_FAMILIES` that the table has.
    """

    def __init__(self, table: BigtableTable, runtime: Runtime, payload_families: Collection[str] = ()) -> None:
        self._table = table
        self._contents = SharedReads(table, _STATE)
        self._runtime = runtime
        self._clear = [delete_family(family) for family in (*DATA_FAMILIES, *payload_families)]
        # The marks' family comes first: where a table lacks it, because it was handed back, an emulator stops there.
        self._replace = [delete_column(MARKS, _RESERVED), *self._clear]
        self._inline = Stamp(lambda token: table.to_check_and_mutate(b"", _MARKED_OR_LARGE(token), otherwise=self._replace), _A_TOKEN)
        """For a token: the request of an inline write, without the row's key and the cells that it writes."""

    async def read(self, path: str, *, marks: ChangeId | bool = False) -> Row:
        if not marks:
            row = await self._contents.read(path.encode())
        else:
            row = await self._table.read(path.encode(), NEWEST if marks is True else _STATE_AND_MARKS(marks))
        if row is not None and marks is not True and _lacks_payload(row):
            row = await self._table.read(path.encode())  # other software keeps the payload in a family of its own
        if row is None:
            return Row(None)
        state = _decode(path, row, self._runtime.wall_ns())
        return Row(state, *_marks(path, row, marks)) if marks else Row(state)

    async def reserve(self, path: str, token: ChangeId, seen: Inline | Tombstone) -> bool:
        column, value = (TARGET, seen.target) if isinstance(seen, Tombstone) else (TOKEN, seen.token)
        if value is None or value == path:  # older software wrote it
            return False
        same = chain(either(*(column_is(family, column) for family in DATA_FAMILIES)), value_is(value.encode()))
        return await self._table.check_and_mutate(path.encode(), same, then=[set_cell(MARKS, _RESERVED, token.encode())])

    async def swap(
        self, path: str, token: ChangeId, expected: str | None, state: RowState, deadline_s: float, only: Only | None = None,
        since_ms: int | None = None,
    ) -> bool:  # fmt: skip
        left_s = deadline_s - self._runtime.boot_time()
        if left_s <= 0:
            raise UnavailableError(f"the swap of {token} at {path} waited too long for its turn; it was not sent").telling(heard=False)
        writes = [*self._replace, *_cells(state, token), set_cell(MARKS, f"{_WON}{token}".encode(), b"")]
        if isinstance(only, Still):
            return await self._table.check_and_mutate(path.encode(), _reserved(token), then=writes, timeout_s=left_s)
        conflict = _MARKED_OR_LARGE(token) if expected is None else either(*_marked(token), *_targets_another(path, expected))
        if only is not None:
            conflict = either(conflict, *_lives(only))
        return not await self._table.check_and_mutate(path.encode(), conflict, otherwise=writes, timeout_s=left_s)

    async def settle(self, path: str, token: ChangeId) -> bool:
        live = either(*(
            chain(column_is(family, column), value_is(value.encode()))
            for family in DATA_FAMILIES for column, value in ((TARGET, blob_name(path, token)), (TOKEN, token))
        ))  # fmt: skip
        refused = set_cell(MARKS, f"{_REFUSED}{token}".encode(), b"")
        return await self._table.check_and_mutate(path.encode(), live, otherwise=[refused])

    async def put_inline(self, path: str, token: ChangeId, state: Inline) -> bool:
        return await self._replace_inline(path, token, state)

    async def delete_inline(self, path: str, token: ChangeId) -> bool:
        return await self._replace_inline(path, token, None)

    async def touch(self, path: str, seen: Inline | Tombstone, deadline_ns: int) -> bool:
        deadline_ns = whole_ms(deadline_ns)
        if seen.deadline_ns is None or seen.deadline_ns >= deadline_ns:
            return False
        if seen.token is None:
            same = await self._untokened(path, seen)
        else:
            earlier = timestamp_in(0, deadline_ns // NS_PER_US)
            same = chain(column_is(EXPIRING, TOKEN), value_is(seen.token.encode()), earlier)
        if same is None:
            return False
        return await self._table.check_and_mutate(path.encode(), same, then=[*self._clear, *_cells(_until(seen, deadline_ns), seen.token)])

    async def scan(self, prefix: str, start: bytes, limit: int, end: bytes | None = None) -> RowPage:
        rows: list[ScannedRow] = []
        corrupt: list[CorruptRow] = []
        following: bytes | None = start
        while following is not None and not rows and not corrupt:
            found = await self._table.scan(_spans(prefix.encode(), following, end), _WITHOUT_PAYLOAD, limit)
            for row in found:
                if not is_text(row.key):
                    corrupt.append(corrupt_row(row.key, b""))
                elif not _is_upload(row.key) and any(cell.column not in (TOKEN, DESCRIBED) for cell in row.cells):
                    try:
                        rows.append(_scanned(row))
                    except CorruptRecordError as error:
                        rows.append(ScannedRow(row.key.decode(), _deadline_ns(row)))
                        corrupt.append(CorruptRow(row.key.decode(), str(error)))
            following = None if len(found) < limit else found[-1].key + b"\0"
        return RowPage(rows, corrupt, following)

    async def redirects(self, start: bytes, end: bytes | None, limit: int) -> RedirectPage:
        return await redirects.redirects(self._table, start, end, limit)

    async def redirect_columns(self, start: bytes, end: bytes | None, limit: int) -> RedirectColumns:
        return await redirects.redirect_columns(self._table, start, end, limit)

    async def redirects_at(self, keys: Sequence[bytes]) -> RedirectPage:
        return await redirects.redirects_at(self._table, keys)

    async def boundaries(self, count: int) -> Sequence[str]:
        return await redirects.boundaries(self._table, count)

    async def _replace_inline(self, path: str, token: ChangeId, state: Inline | None) -> bool:
        request = self._inline(token)
        request.row_key = path.encode()
        request.false_mutations.extend(_cells(state, token))
        return not await self._table.send(request)

    async def _untokened(self, path: str, seen: Inline | Tombstone) -> Message | None:
        """A predicate for a row that older software wrote: its first cell, with value and deadline.

        None: the row has changed.

        A later write has another deadline in its cell, or is the same in every way.
        """
        row = await self._table.read(path.encode())
        if row is None or _decode(path, row, self._runtime.wall_ns()) != seen:
            return None
        cell = next(cell for cell in row.cells if cell.family == EXPIRING and cell.column in (METADATA, PAYLOAD, TARGET))
        exactly = timestamp_in(cell.timestamp_us, cell.timestamp_us + 1000)
        return chain(column_is(EXPIRING, cell.column), value_is(cell.value), exactly)


# --- predicates --------------------------------------------------------------------------------------


def _marked(token: ChangeId) -> Iterator[Message]:
    return (column_is(MARKS, f"{verdict}{token}".encode()) for verdict in (_WON, _REFUSED))


_A_TOKEN = "00000000-0000-7000-8000-000000000000"

_MARKED_OR_LARGE = Stamp(lambda token: either(*_marked(ChangeId(token)), *_TOMBSTONES), _A_TOKEN)
"""For a token: yields a cell iff the row has a mark of this token, or a tombstone."""

_STATE_AND_MARKS = Stamp(
    lambda token: chain(either(*map(family_is, DATA_FAMILIES), *_marked(ChangeId(token))), NEWEST), _A_TOKEN
)
"""For a token: yields the row's data and the marks of this token alone."""


def _reserved(token: ChangeId) -> Message:
    """A filter that yields a cell iff the content is reserved for the token, and the row has no mark of it."""
    column = column_is(MARKS, _RESERVED)
    return chain(either(*_marked(token), chain(column, value_is(token.encode()))), FIRST, column)


def _lives(vacant: Vacant) -> Iterator[Message]:
    """Filters that yield a cell iff the row has content that has not expired by then."""
    yield family_is(MANUAL)
    yield chain(family_is(EXPIRING), timestamp_in(vacant.at_ns // NS_PER_US + 1, 0))


def _targets_another(path: str, expected: str) -> list[Message]:
    """Filters that yield a cell iff a tombstone is present whose target is not `expected`."""
    value = expected.encode()
    if expected == path:  # an empty target and every legacy tombstone mean the same blob
        another, legacy = either(value_between(b"", value), value_after(value)), []
    else:
        another, legacy = either(value_before(value), value_after(value)), LEGACY_TOMBSTONES
    return [*(chain(target, another) for target in TARGETS), *legacy]


# --- one state as cells --------------------------------------------------------------------------------


def _cells(state: RowState, token: ChangeId | None) -> Iterator[Message]:
    """The mutations that write the state, in the current form."""
    if state is None:
        return
    family = MANUAL if state.deadline_ns is None else EXPIRING
    timestamp_us = SERVER_TIME if state.deadline_ns is None else whole_ms(state.deadline_ns) // NS_PER_US
    match state:
        case Inline(metadata, payload):
            columns = {PAYLOAD: payload, METADATA: encode_metadata(metadata)}
        case Tombstone(target, expiration):
            columns = {TARGET: target.encode()}
            if token is not None or expiration is not None:  # else the lifetime is the blob's, as other software writes it
                columns[POLICY] = _encode_policy(expiration)
            columns |= {CONDITIONAL: b""} if state.conditional else {}
            if state.metadata is not None and token is not None:
                columns[DESCRIBED] = encode_described(state.metadata)
    if token is not None:
        columns[TOKEN] = token.encode()
    for column, value in columns.items():
        yield set_cell(family, column, value, timestamp_us)


def _until(state: Inline | Tombstone, deadline_ns: int) -> Inline | Tombstone:
    if isinstance(state, Tombstone):
        return replace(state, deadline_ns=deadline_ns)
    return replace(state, metadata=state.metadata.with_facts(time_expires_ns=deadline_ns))


@dataclass(frozen=True, slots=True)
class _RowImage:
    """The data cells of one row, by column. They are all of one family and, if they expire, have one deadline."""

    path: str
    cells: dict[bytes, Cell]
    deadline_ns: int | None

    def value(self, column: bytes) -> bytes | None:
        return self.cells[column].value if column in self.cells else None

    def text(self, column: bytes) -> str | None:
        value = self.value(column)
        try:
            return None if value is None else value.decode()
        except UnicodeDecodeError as error:
            raise self.corrupt(f"its column {column.decode()} is no UTF-8") from error

    def corrupt(self, fault: str) -> CorruptRecordError:
        return CorruptRecordError(f"the row {self.path} breaks the format: {fault}")


def _decode(path: str, row: CellRow, now_ns: int) -> RowState:
    """The row's state. Half of an expired object is left while Bigtable collects it, and counts as absent.

    Bigtable goes by its own clock. So the half is that of an expired object if it expires by a clock that is ahead.
    """
    shown = _state_of(path, row)
    target, metadata, payload = shown.value(TARGET), shown.value(METADATA), shown.value(PAYLOAD)
    if target is not None and metadata is None and payload is None:
        named, token, conditional = shown.text(TARGET) or path, _token(shown), shown.value(CONDITIONAL) is not None
        return Tombstone(named, _decode_policy(shown), shown.deadline_ns, token, conditional, _described(shown, named, token))
    if metadata is not None and metadata.startswith(LEGACY_TOMBSTONE) and target is None and not payload:
        return Tombstone(path, _metadata(shown, metadata, 0).expiration, shown.deadline_ns, _token(shown))
    if target is not None:
        raise shown.corrupt("it is an object and a tombstone")
    if metadata is not None and payload is not None:
        return Inline(_metadata(shown, metadata, len(payload)), payload, _token(shown))
    if (metadata is None and payload is None) or is_expired(shown.deadline_ns, now_ns + CLOCKS_APART_MAX_NS):
        return None
    return _decode_half(shown, metadata, payload)


def _decode_half(shown: _RowImage, metadata: bytes | None, payload: bytes | None) -> Inline:
    """An object without metadata, or an empty object without a payload. Other software writes these; we never do (I7).
    """
    if payload is not None and shown.value(TOKEN) is None:
        return Inline(_metadata(shown, b"{}", len(payload)), payload)
    if metadata is not None and shown.value(TOKEN) is None and not _declared_size(shown, metadata):
        return Inline(_metadata(shown, metadata, 0), b"")
    raise shown.corrupt("it has metadata and no payload" if payload is None else "it has a payload and no metadata")


def _state_of(path: str, row: CellRow) -> _RowImage:
    cells = {cell.column: cell for cell in row.cells if cell.family in DATA_FAMILIES}
    families = {cell.family for cell in row.cells if cell.family in DATA_FAMILIES}
    timestamps = {cell.timestamp_us for cell in cells.values()}
    deadline_ns = timestamps.pop() * NS_PER_US if families == {EXPIRING} else None
    shown = _RowImage(path, cells, deadline_ns)
    if len(families) > 1:
        raise shown.corrupt("it both expires and does not")
    if deadline_ns is not None and timestamps:
        raise shown.corrupt("its cells have different deadlines")
    if METADATA in cells and PAYLOAD not in cells:
        apart = (cell for cell in row.cells if LEGACY_FAMILIES.get(cell.family) in families)
        cells.update((PAYLOAD, cell) for cell in apart if _is_of(cell, cells[METADATA]))
    return shown


def _is_of(payload: Cell, metadata: Cell) -> bool:
    """Whether a payload in a family of its own was written together with this metadata.

    If they expire, they do so together.
    """
    return payload.column == PAYLOAD and (metadata.family != EXPIRING or payload.timestamp_us == metadata.timestamp_us)


def _lacks_payload(row: CellRow) -> bool:
    columns = {cell.column: cell.value for cell in row.cells}
    return METADATA in columns and PAYLOAD not in columns and not columns[METADATA].startswith(LEGACY_TOMBSTONE)


def _metadata(shown: _RowImage, raw: bytes, size: int) -> Metadata:
    """Decodes metadata. The cell's deadline and the payload's size override what the JSON says (I7)."""
    try:
        return decode_metadata(raw).with_facts(time_expires_ns=shown.deadline_ns, size=size)
    except CorruptRecordError as error:
        raise shown.corrupt(str(error)) from error


def _described(shown: _RowImage, target: str, token: ChangeId | None) -> Metadata | None:
    """What the row tells of its blob's metadata. A cell that other software may have left of an earlier blob does not
    count."""
    is_of_this = token is not None and target == blob_name(shown.path, token)
    return described_by_row(shown.value(DESCRIBED), shown.deadline_ns) if is_of_this else None


def _declared_size(shown: _RowImage, raw: bytes) -> int | None:
    try:
        return decode_metadata(raw).size
    except CorruptRecordError as error:
        raise shown.corrupt(str(error)) from error


def _encode_policy(expiration: Expiration) -> bytes:
    policy = encode_policy(expiration)
    return json.dumps({} if policy is None else {"expiration_policy": policy}, separators=(",", ":")).encode()


def _decode_policy(shown: _RowImage) -> Expiration:
    raw = shown.value(POLICY)
    if raw is None:
        return None
    try:
        value = json.loads(raw)
        return decode_policy(value.get("expiration_policy"))
    except (ValueError, RecursionError, AttributeError, CorruptRecordError) as error:
        raise shown.corrupt(f"its column t is {raw[:200]!r}, which is no expiration policy") from error


def _token(shown: _RowImage) -> ChangeId | None:
    token = shown.text(TOKEN)
    if token is None:
        return None
    if not ChangeId.matches(token):
        raise shown.corrupt(f"its token is {token!r}, which is no change id")
    return ChangeId(token)


def _marks(path: str, row: CellRow, wanted: ChangeId | bool) -> tuple[frozenset[ChangeId], frozenset[ChangeId]]:
    """(won, refused): all marks, or those of one token."""
    marks = [cell.column.decode(errors="replace") for cell in row.cells if cell.family == MARKS and cell.column != _RESERVED]
    if wanted is not True:
        marks = [mark for mark in marks if mark[2:] == wanted]
    if foreign := [mark for mark in marks if mark[:2] not in (_WON, _REFUSED) or not ChangeId.matches(mark[2:])]:
        raise CorruptRecordError(f"the row {path} has a mark {foreign[0]!r}, which is w: or r: and no change id")
    won, refused = (frozenset(ChangeId(mark[2:]) for mark in marks if mark[:2] == verdict) for verdict in (_WON, _REFUSED))
    return won, refused


# --- scanning ----------------------------------------------------------------------------------------


def _spans(prefix: bytes, start: bytes, end: bytes | None) -> list[KeySpan]:
    """The keys of objects that begin with `prefix`, from `start` up to `end`."""
    ends = [each for each in (after_prefix(prefix) or None, end) if each is not None]
    return object_spans(max(prefix, start), min(ends, default=None))


def _scanned(row: CellRow) -> ScannedRow:
    """The row without its payload. `CorruptRecordError`: it breaks the format, as far as this shows."""
    path = row.key.decode()
    shown = _state_of(path, row)
    target, metadata = shown.value(TARGET), shown.value(METADATA)
    if target is not None:
        if metadata is not None or PAYLOAD in shown.cells:
            raise shown.corrupt("it is an object and a tombstone")
        named, token = shown.text(TARGET) or path, _token(shown)
        return ScannedRow(path, shown.deadline_ns, token, named, _described(shown, named, token))
    if metadata is not None and metadata.startswith(LEGACY_TOMBSTONE):
        return ScannedRow(path, shown.deadline_ns, _token(shown), path)
    if metadata is None:
        return ScannedRow(path, shown.deadline_ns, _token(shown))
    try:
        described = decode_metadata(metadata).with_facts(time_expires_ns=shown.deadline_ns)
    except CorruptRecordError as error:
        raise shown.corrupt(str(error)) from error
    return ScannedRow(path, shown.deadline_ns, _token(shown), metadata=described)


def _deadline_ns(row: CellRow) -> int | None:
    """The deadline of a row that cannot be read, by its first cell."""
    cell = row.cells[0]
    return cell.timestamp_us * NS_PER_US if cell.family == EXPIRING else None


def _is_upload(key: bytes) -> bool:
    """Whether the key is of a resumable upload of older software: it has `uploads` where an object's has `objects`."""
    kind = next((segment for segment in key.split(b"/")[1:] if segment in (b"objects", b"uploads")), b"")
    return kind == b"uploads"
