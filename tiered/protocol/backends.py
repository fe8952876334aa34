"""What each of the two tiers must do. Begin here to add a backend.

Each row operation is atomic on its one row. It is safe to repeat with the same arguments, except where its docstring
says *once*. Whether a write may happen depends on whether a tombstone is *present*, expired or not; only readers judge
expiry. One contract suite per protocol runs on every implementation. *Failure*: `UnavailableError` (it certainly had no
effect), `UnconfirmedError` (it was sent and never answered, and may take effect now, later or never),
`CorruptRecordError` (stored bytes break the format).
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

from changelog.base.errors import InvalidRequestError, TieredError, UnavailableError
from changelog.change import ChangeId
from tiered.errors import RangeNotSatisfiableError
from tiered.metadata import SIZE_MAX, Expiration, Metadata
from tiered.text import quoted

MARK_AGE_MAX_S = 172_800
"""For how many seconds a row remembers a token: longer than any request of its change can still be sent."""

# --- high-volume tier ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inline:
    """An object whose payload is in the row. `token`: of the write that made it; None if older software made it."""

    metadata: Metadata
    payload: bytes
    token: ChangeId | None = None

    @property
    def deadline_ns(self) -> int | None:
        return self.metadata.time_expires_ns


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Redirects to the blob named `target`. `deadline_ns`: when it expires (nanoseconds since 1970; None: never).

    `expiration` None: the object stays, or other software wrote it, and the policy is the blob's. `conditional`: a
    write with a condition made it. Whoever lost the race to it was not superseded: a write just before it would have
    broken its condition.
    """

    target: str
    expiration: Expiration = None
    deadline_ns: int | None = None
    token: ChangeId | None = None
    conditional: bool = False


RowState = Inline | Tombstone | None
"""What a row holds, expired or not; None: nothing but marks, or no row at all."""


@dataclass(frozen=True, slots=True)
class Vacant:
    """A condition of a swap: nothing that lives at `at_ns` (nanoseconds since 1970) is in the row."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class Still:
    """A condition of a swap: the row still holds what was `seen`. `reserve` must have said so before."""

    seen: Inline | Tombstone


Only = Vacant | Still


@dataclass(frozen=True, slots=True)
class Row:
    """One row as it was read. `won` and `refused`: its marks, as far as the caller asked for them.

    `forgotten`: marks of the token in question may have been collected, so a missing mark proves nothing.
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
class ScannedRow:
    """One row of a scan: its key, and what the row tells without its payload.

    `deadline_ns`: the reader judges it (None: never, or it cannot be read). `token`: None, too, if it cannot be read.
    `target`: the blob that a tombstone names. `metadata`: of an inline object, with `size` only if the row tells the
    payload's size without reading the payload; None: a tombstone, or only the payload's bytes would tell.
    """

    path: str
    deadline_ns: int | None
    token: ChangeId | None = None
    target: str | None = None
    metadata: Metadata | None = None


@dataclass(frozen=True, slots=True)
class CorruptRow:
    """A row that a scan or an audit cannot read.

    `path`: its key; bytes that are no text are escaped. `fault`: what is wrong, in words. `target`: the blob that it
    seems to name, whatever else is damaged; None: it tells none.
    """

    path: str
    fault: str
    target: str | None = None


@dataclass(frozen=True, slots=True)
class RowPage:
    """Rows in the order of their keys. `next_start`: where the next page begins; None: there are no more.

    A row in `corrupt` is in `rows`, too, unless its key is no text. Of such a row nothing but the key is sure.
    """

    rows: Sequence[ScannedRow]
    corrupt: Sequence[CorruptRow]
    next_start: bytes | None


class Redirect(NamedTuple):
    """A tombstone as an audit reads it: row key, blob, and when it expires (nanoseconds since 1970; None: never)."""

    path: str
    target: str
    deadline_ns: int | None


@dataclass(frozen=True, slots=True)
class RedirectPage:
    """Tombstones in the order of their keys. `next_start`: where the next page begins; None: the range has no more."""

    redirects: Sequence[Redirect]
    corrupt: Sequence[CorruptRow]
    next_start: bytes | None


@dataclass(frozen=True, slots=True)
class RedirectColumns:
    """A page of tombstones, most of them in two columns: the key of each row, and the blob that it names.

    `paths` and `targets` are of equal length, in the order of the keys. `deadlines_ns`: when those of them expire that
    do (nanoseconds since 1970), by key. `others`: the rest of the page: what is damaged or has an unusual form. Its
    `next_start` is that of the page. Every row of the page is either in the columns or in `others`.
    """

    paths: Sequence[str]
    targets: Sequence[str]
    deadlines_ns: Mapping[str, int]
    others: RedirectPage


class HighVolumeBackend(Protocol):
    async def read(self, path: str, *, marks: ChangeId | bool = False) -> Row:
        """Reads the row's content and, if asked for, its marks, all from one consistent read.

        `marks`: a token, for the marks of that token; this costs the same however many marks the row has. True: all of
        its marks, for people who look at it.
        """

    async def reserve(self, path: str, token: ChangeId, seen: Inline | Tombstone) -> bool:
        """Reserves what the row holds for a swap of this token. False: the row does not hold what was `seen`.

        "What was seen" is the same write: a tombstone with the same target, or an object with the same token. An object
        without a token cannot be reserved. A later deadline changes nothing. The reservation ends with the next change
        of the row's content. It is safe to repeat, also late: it says what is there when it arrives.
        """

    async def swap(
        self, path: str, token: ChangeId, expected: str | None, state: RowState, deadline_s: float, only: Only | None = None
    ) -> bool:
        """The commit point. Takes effect at most once, ever, and leaves the mark *won*; or it conflicts.

        False, and nothing is written, if and only if the row has a mark of `token`, or a tombstone is present whose
        target is not `expected`, or the condition `only` is false. Otherwise the content of the row becomes `state`. It
        is no conflict if `expected` is not there any more. A condition `Still` may also be called false if there was no
        reservation of this token, or if it was two days ago.

        `deadline_s`: by `Runtime.boot_time()`. A request that has not left by then is never sent (`UnavailableError`),
        so that none can arrive after the marks of its token were collected.

        A tier that collects marks itself keeps a *horizon*: the youngest token whose mark it has collected. A token
        that is not younger conflicts, here and in the inline writes. `ClockBehindError` (nothing was written): the
        clock of this machine is behind the horizon.
        """

    async def settle(self, path: str, token: ChangeId) -> bool:
        """The fence. True (*live*) if a present tombstone targets `{path}/{token}`, or the row's token is this one.

        Otherwise it leaves the mark *refused*: from now on nothing with this token can take effect.
        """

    async def put_inline(self, path: str, token: ChangeId, state: Inline) -> bool:
        """*Once.* Writes an inline object. False if a tombstone is present, or the row has a mark of `token`."""

    async def delete_inline(self, path: str, token: ChangeId) -> bool:
        """*Once.* Removes an inline object, if any. False if a tombstone is present or a mark of `token` exists."""

    async def touch(self, path: str, seen: Inline | Tombstone, deadline_ns: int) -> bool:
        """Extends the deadline if the row still holds what was `seen` with an earlier one. Never shortens it."""

    async def scan(self, prefix: str, start: bytes, limit: int, end: bytes | None = None) -> RowPage:
        """Up to `limit` rows with an object, whose keys begin with `prefix`, not before `start`, and before `end`.

        There is at least one row, unless there are no more. Rows that hold only marks are left out. So are keys that
        begin with `~`, such as the changelog's. A damaged row does not end the scan. Damage that only the payload shows
        is not noticed. `end` None: no end.
        """

    async def redirects(self, start: bytes, end: bytes | None, limit: int) -> RedirectPage:
        """Up to `limit` tombstones of the keys from `start` (inclusive) to `end` (exclusive), in the keys' byte order.

        Expired and legacy ones are included. So are rows under `…/uploads/…`, in which other software notes an upload,
        if they name a blob. A row that could mean two blobs yields both, and is in `corrupt`. Inline objects are not
        looked at. A page may hold fewer than `limit`.
        """

    async def redirects_at(self, keys: Sequence[bytes]) -> RedirectPage:
        """The tombstones of the rows with these keys (some hundred at most). Rows without one are left out."""

    async def boundaries(self, count: int) -> Sequence[str]:
        """Keys, in order, that cut the table into about `count` parts of equal size, or into fewer."""


@runtime_checkable
class TellsColumns(Protocol):
    """A high-volume tier that reads tombstones in columns for less than one by one.

    What wraps a tier and changes `redirects` must change this, too, or hide it (`redirect_columns = None`).
    """

    async def redirect_columns(self, start: bytes, end: bytes | None, limit: int) -> RedirectColumns:
        """The page that `redirects` returns, with the same rows."""


# --- long-term tier ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes from `start` (inclusive) to `stop` (exclusive; None: the end). A negative `start` counts from the end.

    A `stop` beyond the end means the end. A `start` at or beyond the end, or after `stop`, is a
    `RangeNotSatisfiableError`, which tells the object's size. Byte 0 of an empty object is no error.
    """

    start: int
    stop: int | None = None

    def __post_init__(self) -> None:
        for bound in (self.start, 0 if self.stop is None else self.stop):
            if type(bound) is not int or abs(bound) > SIZE_MAX:
                raise InvalidRequestError(f"a range has whole numbers of bytes, as far as 2**63, not {quoted(bound)}")

    def within(self, size: int) -> tuple[int, int]:
        """The start and stop (bytes) that it means for an object of `size` bytes. Raises `RangeNotSatisfiableError`."""
        start = max(0, size + self.start) if self.start < 0 else self.start
        stop = size if self.stop is None else min(self.stop, size)
        if (start >= size and start > 0) or stop < start or (self.stop is not None and self.stop < 0):
            wrong = "is no range within" if self.stop is not None and stop < start else "begins after"
            told = f"the range {self.start}:{'' if self.stop is None else self.stop} {wrong} the object's {size} bytes"
            raise RangeNotSatisfiableError(told, size)
        return start, stop


class BlobInfo(Protocol):
    """One blob of a listing: its size in bytes, its creation and its deadline in nanoseconds since 1970.

    `generation`: a number that tells two blobs apart which had the same name one after the other. The audit accuses a
    blob only if it still has the generation that was listed.
    """

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
    """A `BlobInfo` that holds its values. A backend may have another one, which parses its times only when asked.

    `seen`: what the backend that listed it remembers of it for `TellsGenerations`, if anything. Nobody else reads it.
    """

    name: str
    size: int
    created_ns: int
    deadline_ns: int | None
    generation: int
    seen: object = None


@dataclass(frozen=True, slots=True)
class Oddity:
    """Something in a listing that cannot be shown as a blob.

    `is_blob`: it is a blob with a corrupt record, and `name` is the blob's. Otherwise `name` says what lies there.
    `size` (bytes), `created_ns` and `generation`: of such a blob, as far as the listing still tells them; else None.
    The size may be that of the whole file, and the time that of its last change.
    """

    name: str
    fault: str
    is_blob: bool
    size: int | None = None
    created_ns: int | None = None
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class BlobPage:
    """Blobs in the byte order of their names. `next_start`: where the next page begins; None: the range has no more."""

    blobs: Sequence[BlobInfo]
    oddities: Sequence[Oddity]
    next_start: str | None


@dataclass(frozen=True, slots=True)
class BlobHead:
    """All of a blob but its bytes. `size`: in bytes. `created_ns`: by the service's clock, nanoseconds since 1970.

    Without a service, `created_ns` is by the writer's clock, which may be wrong. Then `changed_ns` says when the blob
    was written or touched, by the clock of the machine that keeps it. `checksum`: of all of its bytes, such as
    `crc32c=yZRlqg==`; None: the tier keeps none of the whole.
    """

    metadata: Metadata
    size: int
    created_ns: int
    generation: int
    changed_ns: int | None = field(default=None, compare=False)
    checksum: str | None = field(default=None, compare=False)


class DamagedError(UnavailableError):
    """The bytes of a blob came damaged, or the disk failed to read them. Reading again may succeed."""


class BlobReader(Protocol):
    """An open blob. Its metadata, size (bytes) and checksum can be read at once, before its first byte.

    All of its bytes come from one generation, or an error is raised. `checksum`: as that of `BlobHead`.
    """

    metadata: Metadata
    size: int
    checksum: str | None

    def chunks(self) -> AsyncIterator[bytes]:
        """Yields the bytes of the range; call it once. After `aclose`, it raises, or yields what is left to the end.

        `UnavailableError`: the blob vanished on the way. `DamagedError`: its bytes do not match their checksum.
        """

    async def aclose(self) -> None:
        """Closes the blob. Safe to repeat."""


class Upload(Protocol):
    """A blob that is being uploaded. Nothing is visible before `finalise`."""

    session: str | None
    """The name by which recovery cancels it. None: it is a single request, which may land late."""

    async def write(self, chunk: bytes | memoryview) -> None:
        """Sends one chunk, but never the last byte of the blob before `finalise`. Waits when the service is slow."""

    async def finalise(self) -> None:
        """*Once.* Makes the blob visible, and durable before it returns. Never overwrites a blob.

        `UnavailableError`: the blob cannot appear any more (the upload was cancelled, a blob of this name exists, or
        the service refused), or it was damaged on its way and is there to be deleted. `ConfigurationError`,
        `InvalidRequestError` and `CorruptRecordError` are refusals, too. `UnconfirmedError`: all was sent, and the blob
        may appear now, later or never.
        """

    async def abort(self) -> None:
        """Gives the upload up, and does not wait for the service. Safe to repeat, and safe after `finalise`."""


@dataclass(frozen=True, slots=True)
class DeletedGeneration:
    """A deleted generation of a blob that can be restored until `kept_until_ns`. Times are nanoseconds since 1970.

    `kept_until_ns` None: it is noncurrent, in a bucket that keeps versions, until a rule or somebody removes it.
    `address`: the name that the service's own tools use for it.
    """

    address: str
    size: int
    generation: int
    deleted_ns: int
    kept_until_ns: int | None


class Removal(Enum):
    """What became of the deletion of one generation."""

    DELETED = "this generation was deleted"
    ABSENT = "there is no blob of this name"
    REPLACED = "another generation has this name, and stays"


QUARANTINE = "~quarantine/"
"""Names below it are copies of what an audit deleted. No row can name them: such a key belongs to the changelog."""


class NotCopied(Enum):
    """Why a generation was not copied. Nothing was changed."""

    ABSENT = "there is no blob of this name"
    REPLACED = "another generation has this name"
    TAKEN = "another blob has the name of the copy, and stays"
    EXPIRING = "the copy would be removed because of the deadline"
    TOO_LONG = "the service takes no name as long as that of the copy"


@runtime_checkable
class RestoresDeleted(Protocol):
    """A long-term tier whose service may keep deleted blobs for a while. The store itself restores none of them."""

    async def deleted_generations(self, name: str) -> Sequence[DeletedGeneration]:
        """The deleted generations that can still be restored, soft-deleted or noncurrent, oldest first."""

    async def restore(self, name: str, generation: int) -> int | None:
        """Makes the blob anew from a deleted generation, with its metadata, and returns its new generation.

        Never overwrites a blob. None, and nothing is changed: a blob has the name, or that generation is kept no more.
        May be repeated: then None also follows an attempt whose answer was lost.
        """


DELETIONS_MAX = 100
"""How many deletions one request takes."""


@runtime_checkable
class DeletesMany(Protocol):
    """A long-term tier whose service takes many deletions in one request."""

    async def delete_generations(self, blobs: Sequence[tuple[str, int]]) -> Sequence[Removal | TieredError]:
        """`delete_generation` of each name and generation, `DELETIONS_MAX` at most, in one request. Safe to repeat.

        Returns for each, in the same order, what became of it, or the error that its deletion alone would have raised.
        Each deletion is by itself: others may succeed. If this raises `UnconfirmedError`, each may have happened.
        """


@runtime_checkable
class CutsNames(Protocol):
    """A long-term tier that knows where its names can be cut without a request for each try."""

    async def cuts(self, start: str, end: str | None, count: int) -> Sequence[str]:
        """Names, in order, that cut those from `start` to `end` into about `count` parts of equal number, or fewer."""


@runtime_checkable
class ListsHeads(Protocol):
    """A long-term tier whose service tells what many blobs are in one request, if their names are near one another."""

    async def heads(self, names: Sequence[str]) -> Mapping[str, BlobHead]:
        """`head` of some of these blobs (1,000 at most), by name, in one request.

        Left out are blobs that do not exist, damaged ones, and those that a request for twice as many blobs, from the
        first of the names on, does not reach. Ask `head` for each of these.
        """


@runtime_checkable
class TellsGenerations(Protocol):
    """A long-term tier that looks again at many blobs of its listing for less than a listing costs."""

    async def generations(self, blobs: Sequence[BlobInfo]) -> Mapping[str, int]:
        """The generation that each of these blobs has now, by its name, if it is there and can be read.

        `blobs`: as this tier listed them.
        """


@runtime_checkable
class SharesNames(Protocol):
    """A long-term tier that must read all names of a directory to list some of them."""

    def share_names(self, label: str) -> None:
        """Lets all listings of this process that have this label share the names that they read.

        So a listing may miss a blob that was written after the first of them began. `label`: what belongs together,
        such as the id of an audit. Only the names of one label are kept.
        """


class Retention(StrEnum):
    """In which form a service still keeps a deleted blob, and bills it."""

    SOFT_DELETED = "soft_deleted"
    NONCURRENT = "noncurrent"


@dataclass(frozen=True, slots=True)
class KeptPage:
    """How many deleted generations a part of a listing has, and how many bytes. `next_token`: for the next page."""

    number: int
    size: int
    next_token: str | None


@runtime_checkable
class KeepsDeleted(Protocol):
    """A long-term tier whose service tells what it keeps of deleted blobs."""

    async def kept(self, what: Retention, start: str, end: str | None, token: str) -> KeptPage:
        """Counts deleted generations of the names from `start` (inclusive) to `end` (exclusive; None: no end).

        `token`: empty for the first page. Needs permissions that reading blobs does not need.
        """


@dataclass(frozen=True, slots=True)
class AbandonedUpload:
    """What is left of an upload whose process has died. `changed_ns`: when it last changed, nanoseconds since 1970."""

    name: str
    size: int
    changed_ns: int


@dataclass(frozen=True, slots=True)
class UploadPage:
    """Abandoned uploads in the order of their names. `next_start`: where the next page begins; None: no more."""

    uploads: Sequence[AbandonedUpload]
    next_start: str | None


@runtime_checkable
class ShowsUploads(Protocol):
    """A long-term tier in which uploads that were left behind can be seen."""

    async def abandoned_uploads(self, start: str, before_ns: int, limit: int) -> UploadPage:
        """Up to `limit` uploads that nobody can finish and that last changed before `before_ns`. Changes nothing."""


@runtime_checkable
class HasOwner(Protocol):
    """A long-term tier that may hold the blobs of several stores, and knows which of them are this store's."""

    async def check_owner(self) -> str | None:
        """None: this store owns the blobs that it sees. Else nobody owns them, and the sentence says what to run.

        Raises `ConfigurationError` if another store owns them, or some of them.
        """


class LongTermBackend(Protocol):
    async def open_upload(self, name: str, metadata: Metadata, size: int | None) -> Upload:
        """Begins a blob named `name`. `size`: in bytes; None: not known, and the blob ends with `finalise`.

        If the metadata have no time of creation, readers get the blob's own, by the service's clock.
        """

    async def open_copy(self, source: str, generation: int, name: str, metadata: Metadata) -> Upload:
        """Begins a blob named `name` that gets the bytes of the blob `source`, which the service copies itself.

        Nothing is written to it. `finalise` copies, without overwriting. Its `UnavailableError` may also mean that the
        source does not have this generation any more. The source stays as it is, and shares nothing with the copy.
        """

    async def cancel(self, session: str) -> None:
        """Ends an upload session, which can never be finalised from then on. No error if it is gone already."""

    async def open(self, name: str, range: ByteRange | None = None) -> BlobReader | None:
        """Opens a blob for reading. None: there is none. Raises `RangeNotSatisfiableError`."""

    async def head(self, name: str) -> BlobHead | None:
        """All of the blob but its bytes, expired or not. None: there is none."""

    async def delete(self, name: str) -> int | None:
        """Removes the blob, durably. No error if there is none.

        Returns how many bytes it took, 0 if there was none. None: the service does not tell.
        """

    async def delete_generation(self, name: str, generation: int) -> Removal:
        """Removes the blob, durably, only if it has this generation, as a listing or `head` told it.

        Safe to repeat: `ABSENT` also follows an attempt whose answer was lost.
        """

    async def set_aside(self, name: str, generation: int, copy: str) -> int | NotCopied:
        """Copies the blob to the name `copy`, which is below `QUARANTINE`, durably, only if it has this generation.

        Returns the generation of the copy, whose checksum and size are those of the blob. No deadline removes the copy,
        and it keeps that of the blob for `bring_back`. Never overwrites a blob. Safe to repeat: a copy that is there
        already counts as made.
        """

    async def bring_back(self, copy: str, generation: int, name: str, now_ns: int) -> int | NotCopied:
        """Makes the blob `name` anew from a copy of this generation, with all its metadata and its deadline, durably.

        Returns the generation of the blob. What was made has a generation that the name never had before. So whoever
        goes by one that was seen earlier does nothing to it. If a blob of the same bytes is there already, its own
        generation is returned. `EXPIRING`: the deadline had passed at `now_ns`. Never overwrites a blob. It may be
        repeated.
        """

    async def touch(self, name: str, deadline_ns: int) -> bool:
        """Extends the blob's deadline; never shortens it. False: there is no such blob."""

    async def list(self, start: str, end: str | None, limit: int) -> BlobPage:
        """Up to `limit` blobs with names from `start` (inclusive) to `end` (exclusive; None: no end), maybe fewer."""

    async def now_ns(self) -> int:
        """The service's clock, to about a second (nanoseconds since 1970). Without a service: this machine's clock."""


@dataclass(frozen=True, slots=True)
class Tiers:
    """Both tiers of one store. `local`: they are files of this machine, and no service that could be away.

    `inline_write_s_max`: no inline write of `high_volume` takes longer (seconds), because the backend ends it itself.
    """

    high_volume: HighVolumeBackend
    long_term: LongTermBackend
    local: bool = False
    inline_write_s_max: float = math.inf
