"""What listings and audits need of the two tiers: pages of rows and of blobs, and the removal of one generation.

Every backend has these, as part of `HighVolumeBackend` and `LongTermBackend` (`backends.py`, which says what the errors
mean). No put and no get calls them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from changelog.change import ChangeId
from tiered.metadata import Metadata

# --- rows ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScannedRow:
    """One row of a scan: its key, and what the row tells without its payload.

    `deadline_ns`: the reader judges it (None: never, or it cannot be read). `token`: None, too, if it cannot be read.
    `target`: the blob that a tombstone names. `metadata`: of an inline object, with `size` only if the row tells the
    payload's size without reading the payload; of a large one as in `Tombstone`. None: only payload or blob would tell.
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


class RowScans(Protocol):
    """The high-volume tier, read in the order of its keys."""

    async def scan(self, prefix: str, start: bytes, limit: int, end: bytes | None = None) -> RowPage:
        """Up to `limit` rows with an object, whose keys begin with `prefix`, not before `start`, and before `end`.

        There is at least one row, unless there are no more. Rows that hold only marks are left out. So are rows of a
        changelog that shares the table (`OWN_PREFIXES`). A damaged row does not end the scan. Damage that only the
        payload shows is not noticed. `end` None: no end.
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


# --- blobs ---------------------------------------------------------------------------------------

Generation = str
"""Tells two blobs apart that had the same name one after the other.

Only equality means something. Never empty.
"""


class BlobInfo(Protocol):
    """One blob of a listing: size in bytes, creation and deadline in nanoseconds since 1970.

    The audit accuses a blob only if it still has this `generation`.
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
    def generation(self) -> Generation: ...


class ListedBlob(NamedTuple):
    """A `BlobInfo` that holds its values. A backend may have another one, which parses times only when asked.

    `seen`: what the backend that listed it remembers of it for `GenerationLookup`, if anything. Nobody else reads it.
    """

    name: str
    size: int
    created_ns: int
    deadline_ns: int | None
    generation: Generation
    seen: object = None


@dataclass(frozen=True, slots=True)
class Oddity:
    """Something in a listing that cannot be shown as a blob.

    `is_blob`: it is a blob with a corrupt record, and `name` is the blob's. Otherwise `name` says what lies there.
    `size` (bytes), `created_ns` and `generation`: as far as the listing tells them; else None. They may be those of the
    whole file, and of its last change.
    """

    name: str
    fault: str
    is_blob: bool
    size: int | None = None
    created_ns: int | None = None
    generation: Generation | None = None


@dataclass(frozen=True, slots=True)
class BlobPage:
    """Blobs in the byte order of their names. `next_start`: where the next page begins; None: the range has no more."""

    blobs: Sequence[BlobInfo]
    oddities: Sequence[Oddity]
    next_start: str | None


class Removal(Enum):
    """What became of the deletion of one generation."""

    DELETED = "this generation was deleted"
    ABSENT = "there is no blob of this name"
    REPLACED = "another generation has this name, and stays"


QUARANTINE = "~quarantine/"
"""Names below it are copies of what an audit deleted. It judges none, unless a row names one."""


class NotCopied(Enum):
    """Why nothing was copied."""

    ABSENT = "there is no blob of this name"
    REPLACED = "another generation has this name"
    TAKEN = "another blob has the name of the copy, and stays"
    EXPIRING = "the copy would be removed because of the deadline"
    TOO_LONG = "the service takes no name as long as that of the copy"


class BlobScans(Protocol):
    """The long-term tier, read in the order of its names, and what an audit does to a blob that it has read.

    The store itself calls none of it.
    """

    async def list(self, start: str, end: str | None, limit: int) -> BlobPage:
        """Up to `limit` blobs with names from `start` (inclusive) to `end` (exclusive; None: no end), maybe fewer."""

    async def delete_generation(self, name: str, generation: Generation) -> Removal:
        """Removes the blob, durably, only if it has this generation, as a listing or `head` told it.

        Safe to repeat: `ABSENT` also follows an attempt whose answer was lost.
        """

    async def set_aside(self, name: str, generation: Generation, copy: str) -> Generation | NotCopied:
        """Copies the blob to the name `copy`, below `QUARANTINE`, durably, only if it has this generation.

        Returns the generation of the copy, whose checksum and size are those of the blob. No deadline removes the copy,
        and it keeps that of the blob for `bring_back`. Never overwrites a blob. Safe to repeat: a copy that is there
        counts.
        """

    async def bring_back(self, copy: str, generation: Generation, name: str, now_ns: int) -> Generation | NotCopied:
        """Makes the blob `name` anew from a copy of this generation, with all its metadata and its deadline, durably.

        Returns the generation of the blob, which the name never had before: so whoever goes by an earlier one does
        nothing to it. If a blob of the same bytes is there, its own generation is returned. `EXPIRING`: the deadline
        had passed at `now_ns`. Never overwrites a blob. It may be repeated.
        """
