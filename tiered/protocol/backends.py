"""The two tiers as the store sees them: what every backend must do, and nothing more.

Each row operation is atomic on its one row and safe to repeat with the same arguments, except where it
says *once*. Write predicates go by the tombstone being *present*, expired or not; readers judge expiry.
One contract suite per protocol runs on every implementation. *Failure*: `UnavailableError` (it certainly
had no effect), `UnconfirmedError` (sent and never answered: it may take effect now, later or never),
`CorruptRecordError` (stored bytes break the format).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from changelog.base.errors import InvalidRequestError
from changelog.change import ChangeId
from tiered.metadata import SIZE_MAX, Expiration, Metadata
from tiered.text import shown

MARK_AGE_MAX_S = 172_800
"""How long a row remembers a token: longer than any request of its change can still be sent."""

# --- high-volume tier ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inline:
    """An object whose payload is in the row. `token` is the write that made it, None if older software did."""

    metadata: Metadata
    payload: bytes
    token: ChangeId | None = None

    @property
    def deadline_ns(self) -> int | None:
        return self.metadata.time_expires_ns


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Redirects to the blob named `target`. `deadline_ns`: when it expires, nanoseconds since 1970."""

    target: str
    expiration: Expiration = None
    deadline_ns: int | None = None
    token: ChangeId | None = None


RowState = Inline | Tombstone | None
"""What a row holds, expired or not; None: nothing but marks, or no row at all."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row as read. `won` and `refused` are its marks, as far as they were asked for.

    `forgotten`: marks of the token that was asked about may have been collected, so one that is missing proves nothing.
    """

    state: RowState
    won: frozenset[ChangeId] = frozenset()
    refused: frozenset[ChangeId] = frozenset()
    forgotten: bool = False

    @property
    def target(self) -> str | None:
        """The blob that a present tombstone names."""
        return self.state.target if isinstance(self.state, Tombstone) else None


@dataclass(frozen=True, slots=True)
class RowName:
    """One row of a scan: its key, and its deadline for the reader to judge (None: never, or it cannot be read)."""

    path: str
    deadline_ns: int | None


@dataclass(frozen=True, slots=True)
class CorruptRow:
    """A row that a scan or an audit cannot read. `path`: its key, bytes that are no text escaped. `fault`: what is wrong, in words."""

    path: str
    fault: str


@dataclass(frozen=True, slots=True)
class RowPage:
    """Rows in the order of their keys. `next_start` is where the next page begins; None: there are no more.

    A row in `corrupt` is among `rows` as well, unless its key is no text.
    """

    rows: Sequence[RowName]
    corrupt: Sequence[CorruptRow]
    next_start: bytes | None


class Redirect(NamedTuple):
    """A tombstone as an audit reads it: row key, blob, and when it expires (nanoseconds since 1970; None: never)."""

    path: str
    target: str
    deadline_ns: int | None


@dataclass(frozen=True, slots=True)
class RedirectPage:
    """Tombstones in the order of their keys. `next_start` is where the next page begins; None: the range is exhausted."""

    redirects: Sequence[Redirect]
    corrupt: Sequence[CorruptRow]
    next_start: bytes | None


class HighVolumeBackend(Protocol):
    async def read(self, path: str, *, marks: ChangeId | bool = False) -> Row:
        """The row's state and, if asked, marks, from one consistent read.

        `marks`: a token for its own, which costs the same however many the row has; True for all of them, as people look at it.
        """

    async def swap(self, path: str, token: ChangeId, expected: str | None, state: RowState, deadline_s: float) -> bool:
        """The commit point. Takes effect, at most once for ever, and leaves the mark *won*; or conflicts.

        `deadline_s`: by `Runtime.boot_time()`. A request that has not left by then is never sent
        (`UnavailableError`), so that none can arrive when its token's marks have been collected.

        False, nothing written, iff a mark of `token` exists or a tombstone is present whose target is not
        `expected`. Otherwise the row's state becomes `state`. Absence is no precondition.

        A tier that collects marks itself keeps a *horizon*: a token that is not younger than every one whose mark it has collected
        conflicts, here and in the inline writes. `ClockBehindError` (nothing was written): this machine's clock is behind the horizon.
        """

    async def settle(self, path: str, token: ChangeId) -> bool:
        """The fence. True (*live*) iff a present tombstone targets `{path}/{token}` or the row's token is this one.

        Otherwise leaves the mark *refused*: from now on nothing with this token can take effect.
        """

    async def put_inline(self, path: str, token: ChangeId, state: Inline) -> bool:
        """*Once.* Replaces an inline object or nothing. False iff a tombstone is present or a mark of `token` exists."""

    async def delete_inline(self, path: str, token: ChangeId) -> bool:
        """*Once.* Removes an inline object or nothing. False iff a tombstone is present or a mark of `token` exists."""

    async def touch(self, path: str, seen: Inline | Tombstone, deadline_ns: int) -> bool:
        """Extends the deadline iff the row still holds what was `seen` and its deadline is earlier. Never shortens."""

    async def scan(self, prefix: str, start: bytes, limit: int) -> RowPage:
        """The rows that hold an object and begin with `prefix`, of the keys from `start` on: at most `limit`, and one if there is one.

        Rows of marks only, and those that begin with `~`, as the changelog's do, are none. One that is damaged ends nothing.
        """

    async def redirects(self, start: bytes, end: bytes | None, limit: int) -> RedirectPage:
        """The tombstones, expired or not, legacy or not, of the keys from `start` (inclusive) to `end` (exclusive), in bulk.

        At most `limit`, and maybe fewer. Markers of uploads that name a blob are among them; a row that could mean two blobs
        yields both, and is corrupt. Inline objects are not looked at. The order is that of the keys' bytes.
        """

    async def redirects_at(self, keys: Sequence[bytes]) -> RedirectPage:
        """The same of some hundred rows by their keys; those without a tombstone are left out."""

    async def boundaries(self, count: int) -> Sequence[str]:
        """Keys, in order, that split the table into about `count` parts of the same size; fewer where nobody can tell."""


# --- long-term tier ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes `start` (inclusive) to `stop` (exclusive; None: the end). A negative `start` counts from the end.

    A `stop` beyond the end is cut; a `start` at or beyond it is an `InvalidRequestError`.
    """

    start: int
    stop: int | None = None

    def __post_init__(self) -> None:
        for bound in (self.start, 0 if self.stop is None else self.stop):
            if type(bound) is not int or abs(bound) > SIZE_MAX:
                raise InvalidRequestError(f"a range has whole numbers of bytes, as far as 2**63, not {shown(bound)}")

    def within(self, size: int) -> tuple[int, int]:
        """The (start, stop) it means for `size` bytes."""
        start = max(0, size + self.start) if self.start < 0 else self.start
        stop = size if self.stop is None else min(self.stop, size)
        if (start >= size and start > 0) or stop < start or (self.stop is not None and self.stop < 0):
            wrong = "is no range within" if self.stop is not None and stop < start else "begins after"
            raise InvalidRequestError(f"{self.start}:{'' if self.stop is None else self.stop} {wrong} the object's {size} bytes")
        return start, stop


class BlobInfo(Protocol):
    """One blob of a listing: size in bytes, creation and deadline in nanoseconds since 1970."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def created_ns(self) -> int: ...
    @property
    def deadline_ns(self) -> int | None: ...
    @property
    def generation(self) -> int: ...


class ListedBlob(NamedTuple):
    """A `BlobInfo` of these values. One that reads its times when they are asked for is not."""

    name: str
    size: int
    created_ns: int
    deadline_ns: int | None
    generation: int


@dataclass(frozen=True, slots=True)
class Oddity:
    """What a listing cannot show as a blob. `is_blob`: `name` is a blob's whose record is corrupt; else it says what lies there."""

    name: str
    fault: str
    is_blob: bool


@dataclass(frozen=True, slots=True)
class BlobPage:
    """Blobs in the byte order of their names. `next_start` is where the next page begins; None: the range is exhausted."""

    blobs: Sequence[BlobInfo]
    oddities: Sequence[Oddity]
    next_start: str | None


@dataclass(frozen=True, slots=True)
class BlobHead:
    """What a blob is: all but its bytes. `size`: how many they are. `created_ns`: by the service's clock, nanoseconds since 1970."""

    metadata: Metadata
    size: int
    created_ns: int
    generation: int


class BlobReader(Protocol):
    """An open blob. Its metadata is known; its bytes come from this one generation or not at all."""

    metadata: Metadata
    size: int

    def pieces(self) -> AsyncIterator[bytes]:
        """The bytes of the range, once. `UnavailableError` if the blob vanishes on the way."""

    async def aclose(self) -> None:
        """Gives up what it holds. Safe to repeat."""


class Upload(Protocol):
    """A blob on its way: nothing is visible before `finalise`."""

    session: str | None
    """What recovery cancels it by; None for a single request, which may land late."""

    async def write(self, piece: bytes | memoryview) -> None:
        """Sends one piece, never the last byte of the blob before `finalise`. Holds back the caller when it is slow."""

    async def finalise(self) -> None:
        """Makes the blob visible, create-only, durable before it returns. *Once.*"""

    async def abort(self) -> None:
        """Gives the upload up without waiting for the service to agree. Safe to repeat and after `finalise`."""


@dataclass(frozen=True, slots=True)
class SoftDeleted:
    """A generation of a blob that was deleted and can be restored until `kept_until_ns`. Times in nanoseconds since 1970.

    `address`: what the service's own tools call it.
    """

    address: str
    size: int
    generation: int
    deleted_ns: int
    kept_until_ns: int


@runtime_checkable
class SoftDeletes(Protocol):
    """A long-term tier whose service may keep for a while what was deleted."""

    async def soft_deleted(self, name: str) -> Sequence[SoftDeleted]:
        """The deleted generations of the blob that can still be restored, oldest first. Only to look: the store never restores."""


class LongTermBackend(Protocol):
    async def open_upload(self, name: str, metadata: Metadata, size: int | None) -> Upload:
        """Begins a blob named `name`. `size` in bytes if it is known; None streams until `finalise`.

        Metadata without a time of creation are read with that of the blob, by the service's clock.
        """

    async def cancel(self, session: str) -> None:
        """Ends an upload session: it can never be finalised any more. One that is gone is no error."""

    async def open(self, name: str, range: ByteRange | None = None) -> BlobReader | None:
        """Opens a blob for reading; None: there is none. `InvalidRequestError` for a range outside of it."""

    async def head(self, name: str) -> BlobHead | None:
        """What the blob is, expired or not; None: there is none."""

    async def delete(self, name: str) -> None:
        """Removes the blob, durably. What is absent is deleted already."""

    async def touch(self, name: str, deadline_ns: int) -> bool:
        """Extends the blob's deadline, never shortens it. False: there is no such blob."""

    async def list(self, start: str, end: str | None, limit: int) -> BlobPage:
        """The blobs named from `start` (inclusive) to `end` (exclusive; None: no end). At most `limit`, and maybe fewer."""

    async def now_ns(self) -> int:
        """The service's clock, nanoseconds since 1970, to a second or so; where there is no service, this machine's."""


@dataclass(frozen=True, slots=True)
class Tiers:
    """Both of them, as everything above takes them."""

    high_volume: HighVolumeBackend
    long_term: LongTermBackend
