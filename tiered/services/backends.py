"""What a put and a get need of the two tiers. Begin here to add a backend.

What listings and audits need of them besides is in `scans.py`; what only some backends can do, in `capabilities.py`.

Each row operation is atomic on its one row. It is safe to repeat with the same arguments, except where its docstring
says *once*. Whether a write may happen depends on whether a tombstone is *present*, expired or not; only readers judge
expiry. One contract suite per protocol runs on every implementation. *Failure*: `UnavailableError` (it certainly had no
effect), `UnconfirmedError` (it was sent and never answered, and may take effect now, later or never),
`CorruptRecordError` (stored bytes break the format).
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from changelog.base.capability import Capability
from changelog.base.errors import InvalidRequestError, UnavailableError
from changelog.change import ChangeId
from tiered.errors import RangeNotSatisfiableError
from tiered.metadata import SIZE_MAX, Expiration, Metadata
from tiered.services.scans import BlobScans, Generation, RowScans
from tiered.text import quoted

MARK_AGE_MAX_S = 172_800
"""For how many seconds a row remembers a token: longer than any request of its change can still be sent."""

SWAP_AGE_MAX_S, SWAP_DEADLINE_S = 86_400, 30.0
"""A change that is older than the first sends no swap. A swap is sent so soon after its checks, or never."""

MARK_AGE_MIN_S = SWAP_AGE_MAX_S + SWAP_DEADLINE_S + 3600
"""A mark that is collected sooner lets a late swap through. An hour is for clocks that differ."""

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
    broken its condition. `metadata`: the blob's, with size, time of creation and this deadline; None: only the blob
    tells them, as always without a token.
    """

    target: str
    expiration: Expiration = None
    deadline_ns: int | None = None
    token: ChangeId | None = None
    conditional: bool = False
    metadata: Metadata | None = None


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


class HighVolumeBackend(RowScans, Protocol):
    """One row for each object. What listings and audits need besides is in `RowScans`."""

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
        self, path: str, token: ChangeId, expected: str | None, state: RowState, deadline_s: float, only: Only | None = None,
        since_ms: int | None = None,
    ) -> bool:  # fmt: skip
        """The commit point. Takes effect at most once, ever, and leaves the mark *won*; or it conflicts.

        False, and nothing is written, if and only if the row has a mark of `token`, or a tombstone is present whose
        target is not `expected`, or the condition `only` is false. Otherwise the content of the row becomes `state`. It
        is no conflict if `expected` is not there any more. A condition `Still` may also be called false if there was no
        reservation of this token, or if it was two days ago.

        `deadline_s`: by `Runtime.boot_time()`. A request that has not left by then is never sent (`UnavailableError`),
        so that none can arrive after the marks of its token were collected.

        A tier that collects marks itself keeps a *horizon*: the latest time at which a collected mark was written, or
        its token made. A token that is not younger conflicts, here and in the inline writes. `since_ms` (Unix ms)
        counts instead of when the token was made: nobody has sent anything with it before. `ClockBehindError` (nothing
        was written): the clock of this machine is behind the horizon.
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
        """Extends the deadline if the row still holds what was `seen` with an earlier one. Never shortens it.

        A tombstone tells the metadata of `seen` from then on.
        """


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
            message = f"the range {self.start}:{'' if self.stop is None else self.stop} {wrong} the object's {size} bytes"
            raise RangeNotSatisfiableError(message, size)
        return start, stop


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
    generation: Generation
    changed_ns: int | None = field(default=None, compare=False)
    checksum: str | None = field(default=None, compare=False)


class DamagedError(UnavailableError):
    """The bytes of a blob came damaged, or the disk failed to read them. Reading again may succeed."""


class SessionEndedError(UnavailableError):
    """An upload in parts has ended, for ever: what is not a blob by now never becomes one."""


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


class BlobRanges(Protocol):
    """Ranges of one generation of a blob, and how what they gave is verified as a whole."""

    async def open(self, start: int, stop: int) -> BlobReader | None:
        """Opens the bytes from `start` to `stop` (excluded). None: this generation is gone. Raises as `open` of a tier.

        The reader gives exactly these bytes, or raises `UnavailableError`.
        """

    def extend(self, check: int, chunk: bytes) -> int:
        """The check of some bytes and of those that follow them. That of no bytes is 0. It may run in a thread."""

    def check(self, parts: Sequence[tuple[int, int]]) -> None:
        """`parts`: the check and the number of the bytes of each, in order: all bytes that the blob was opened for.

        `DamagedError`: they are not what was stored. It returns also if the tier knows no checksum of them.
        """


@runtime_checkable
class RangedReader(Capability, Protocol):
    """What a `BlobReader` has besides if its blob comes faster in several ranges at once."""

    def ranges(self) -> BlobRanges:
        """From now on, the reader's own chunks are verified by nobody but `check`."""


class PendingBlob(Protocol):
    """A blob that is being made. Nothing is visible before `finalise`."""

    session: str | None
    """The name by which recovery cancels it. None: it is a single request, which may land late."""

    async def finalise(self) -> None:
        """*Once.* Makes the blob visible, and durable before it returns. Never overwrites a blob.

        `UnavailableError`: the blob cannot appear any more (the upload was cancelled, a blob of this name exists, or
        the service refused), or it was damaged on its way and is there to be deleted. `ConfigurationError`,
        `InvalidRequestError` and `CorruptRecordError` are refusals, too. `UnconfirmedError`: all was sent, and the blob
        may appear now, later or never.
        """

    async def abort(self) -> None:
        """Gives the upload up, and does not wait for the service. Safe to repeat, and safe after `finalise`."""


class Upload(PendingBlob, Protocol):
    """A blob whose bytes are written to it."""

    async def write(self, chunk: bytes | memoryview) -> None:
        """Sends one chunk, but never the last byte of the blob before `finalise`. Waits when the service is slow."""

    def amend(self, metadata: Metadata) -> None:
        """Lets `finalise` make the blob with these metadata, which differ in `custom` alone from those it was begun
        with. Call it after the last `write`, at most once. Sends nothing.

        A service may take them in a request of its own, after the blob. If that fails, `finalise` raises a refusal, and
        the blob is there to be deleted.
        """


@runtime_checkable
class RereadingUpload(Capability, Protocol):
    """What an `Upload` has besides if it goes on by itself after its connection broke."""

    def resume_with(self, reread: Callable[[int, int], AsyncIterator[bytes | memoryview]]) -> None:
        """Lets it have again what was written to it: the bytes from the first position up to the second.

        Call it before the first `write`. Sends nothing.
        """


class LongTermBackend(BlobScans, Protocol):
    """Immutable blobs by name. What audits need besides is in `BlobScans`."""

    async def open_upload(self, name: str, metadata: Metadata, size: int | None) -> Upload:
        """Begins a blob named `name`. `size`: in bytes; None: not known, and the blob ends with `finalise`.

        If the metadata have no time of creation, readers get the blob's own, by the service's clock.
        """

    async def open_copy(self, source: str, generation: Generation, name: str, metadata: Metadata) -> PendingBlob:
        """Begins a blob named `name` that gets the bytes of the blob `source`, which the service copies itself.

        `finalise` copies, without overwriting. Its `UnavailableError` may also mean that the
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

    async def touch(self, name: str, deadline_ns: int) -> bool:
        """Extends the blob's deadline; never shortens it. False: there is no such blob."""

    async def now_ns(self) -> int:
        """The service's clock, to about a second (nanoseconds since 1970). Without a service: this machine's clock."""


@dataclass(frozen=True, slots=True)
class Tiers:
    """Both tiers of one store. `local`: they are files of this machine, and no service.

    `inline_write_s_max`: no inline write of `high_volume` takes longer (seconds), because the backend ends it itself.
    """

    high_volume: HighVolumeBackend
    long_term: LongTermBackend
    local: bool = False
    inline_write_s_max: float = math.inf
