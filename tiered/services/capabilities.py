"""What only some backends can do. Whoever uses a capability asks `isinstance` first, and has a way without it.

The store itself uses two, `BatchHeads` for listings and `SignedUrls` for links; the audit uses the others.
`GarbageCollection`, which logs have, too, is in `changelog/log.py`. What wraps a backend
(`tiered/telemetry/observed.py`) takes its methods from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from changelog.base.capability import Capability
from changelog.base.errors import InvalidRequestError, TieredError
from changelog.log import GarbageCollection
from tiered.metadata import Metadata
from tiered.payload.chunks import Chunk
from tiered.services.backends import BlobHead
from tiered.services.scans import BlobInfo, Generation, RedirectPage, Removal
from tiered.text import plain, quoted

# --- of a high-volume tier -----------------------------------------------------------------------


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


@runtime_checkable
class ColumnarRedirects(Capability, Protocol):
    """A high-volume tier that reads tombstones in columns for less than one by one.

    What wraps a tier and changes `redirects` must change this, too, or hide it (`redirect_columns = None`).
    """

    async def redirect_columns(self, start: bytes, end: bytes | None, limit: int) -> RedirectColumns:
        """The page that `redirects` returns, with the same rows."""


@runtime_checkable
class ServerRole(Capability, Protocol):
    """A high-volume tier with a primary and standbys. A standby may lag: what it lacks or still shows proves nothing.

    It takes a standby only for who does not write, and only if no primary answers.
    """

    def primary_only(self) -> None:
        """From now on no standby is asked: each call is `UnavailableError` then. For who judges: a loss, "clean"."""

    def standby_answers(self) -> int:
        """How many answers came from a standby so far. What was read since it was the same came from the primary."""

    async def refuses_writes(self) -> str | None:
        """Why no write is taken now, as a sentence. None: writes are taken."""


# --- of a long-term tier -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeletedGeneration:
    """A deleted generation of a blob that can be restored until `kept_until_ns`. Times are nanoseconds since 1970.

    `kept_until_ns` None: it is noncurrent, in a bucket that keeps versions, until a rule or somebody removes it.
    `address`: the name that the service's own tools use for it.
    """

    address: str
    size: int
    generation: Generation
    deleted_ns: int
    kept_until_ns: int | None


@runtime_checkable
class BlobRestoration(Capability, Protocol):
    """A long-term tier whose service may keep deleted blobs for a while. The store itself restores none of them."""

    async def deleted_generations(self, name: str) -> Sequence[DeletedGeneration]:
        """The deleted generations that can still be restored, soft-deleted or noncurrent.

        They are in the order in which they were written, which the times of deletion do not always tell.
        """

    async def restore(self, name: str, generation: Generation) -> Generation | None:
        """Makes the blob anew from a deleted generation, with its metadata, and returns its new generation.

        Never overwrites a blob. None, and nothing is changed: a blob has the name, or that generation is kept no more.
        May be repeated: then None also follows an attempt whose answer was lost.
        """


PART_NUMBER_MAX = 10_000
PART_BYTES_MIN = 5 * 1024 * 1024
"""A service may refuse a blob if one of its parts, but the last, has fewer bytes."""

PART_BYTES_MAX = 128 * 1024 * 1024
"""A caller of the store may not upload a larger one: it is held in memory."""

PARTS_SESSION = "parts:"
"""With this begins the name of every session of an upload in parts."""

PARTS_DAYS_MAX = 30
"""After so many days, whoever keeps the parts of an upload that nobody completed may remove them."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part as it was uploaded last. `number`: its place, from 1 on; gaps do no harm. `size`: in bytes.

    `checksum`: such as `crc32c=yZRlqg==`; None: a listing of the service does not tell it. `etag`: what the service
    tells this upload of the number from an earlier one by.
    """

    number: int
    size: int
    checksum: str | None
    etag: str


@dataclass(frozen=True, slots=True)
class OpenSession:
    """An upload in parts that has not ended: the name of its blob, and its session."""

    name: str
    session: str


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Uploads in parts. `next_after`: where the next page begins; None: there are no more."""

    sessions: Sequence[OpenSession]
    next_after: str | None


def check_parts(name: str, parts: Sequence[Part]) -> None:
    """Raises `InvalidRequestError` if these cannot be the parts of a blob, in their order."""
    for part in parts:
        if type(part.number) is not int or type(part.size) is not int or part.size < 0 or not plain("the etag of a part", part.etag):
            raise InvalidRequestError(f"{quoted(part)} is no part of blob {name!r}: pass what upload_part or parts has told")
        if part.checksum is not None:
            plain("the checksum of a part", part.checksum)
    numbers = [part.number for part in parts]
    if not numbers:
        raise InvalidRequestError(f"{name!r} has no part yet: upload one (of no bytes, for an object of none), or abort the upload")
    if numbers != sorted(set(numbers)) or numbers[0] < 1 or numbers[-1] > PART_NUMBER_MAX:
        raise InvalidRequestError(
            f"the parts of blob {name!r} are no ascending numbers from 1 to {PART_NUMBER_MAX}: {numbers[:10]}"
        )


@runtime_checkable
class PartUploads(Capability, Protocol):
    """A long-term tier that takes the parts of one blob one by one, in any order, also at once, and from any process.

    A *session* is what recovery ends with `cancel`, for ever, whoever began it. It does not end with its process. A
    session of another bucket or of another blob is `CorruptRecordError` or `InvalidRequestError`, and nothing was sent.
    After its end, the calls that name it raise `SessionEndedError`.
    """

    async def begin_parts(self, name: str, metadata: Metadata) -> str:
        """Begins a blob named `name`, and returns its session. Nothing is visible before `complete_parts`."""

    async def put_part(self, name: str, session: str, number: int, payload: Sequence[Chunk]) -> Part:
        """Uploads one part, durably. Safe to repeat: the last upload of a number counts.

        `payload`: the bytes of the part, in chunks; they must not change meanwhile. If they arrive damaged, nothing of
        them is kept (`UnavailableError`). `UnconfirmedError`: it may take effect now, later or never.
        """

    async def parts(self, name: str, session: str) -> Sequence[Part]:
        """The parts that were uploaded, in the order of their numbers."""

    async def complete_parts(self, name: str, session: str, parts: Sequence[Part]) -> None:
        """Makes the blob of exactly these parts, in order, visible and durable. Other parts are dropped.

        Safe to repeat: if the session has ended, and there is a blob of this name that has the size of the parts and,
        where known, their checksum, then it is done. It may replace a blob of the same name.

        `InvalidRequestError`: one of them is not there, or was uploaded again since; nothing happened, and the session
        goes on. `SessionEndedError`: there is no blob, or it is not what its parts are, and is there to be deleted.
        `UnconfirmedError`: the blob may appear now, later or never.
        """

    async def open_sessions(self, before_ns: int, after: str, limit: int) -> SessionPage:
        """Uploads that have not ended, of those that were begun before then (ns since 1970). Changes nothing.

        `after`: empty for the first page. A page looks at `limit` uploads, so it may have fewer.
        """


DELETIONS_MAX = 100
"""How many deletions one request takes."""


@runtime_checkable
class BatchDeletion(Capability, Protocol):
    """A long-term tier whose service takes many deletions in one request."""

    async def delete_generations(self, blobs: Sequence[tuple[str, Generation]]) -> Sequence[Removal | TieredError]:
        """`delete_generation` of each name and generation, `DELETIONS_MAX` at most, in one request. Safe to repeat.

        Returns for each, in the same order, what became of it, or the error that its deletion alone would have raised.
        Each deletion is by itself: others may succeed. If this raises `UnconfirmedError`, each may have happened.
        """


@runtime_checkable
class NamePartitioning(Capability, Protocol):
    """A long-term tier that knows where its names can be cut without a request for each try."""

    async def cuts(self, start: str, end: str | None, count: int) -> Sequence[str]:
        """Names, in order, that cut those from `start` to `end` into about `count` parts of equal number, or fewer."""


@runtime_checkable
class BatchHeads(Capability, Protocol):
    """A long-term tier whose service tells what many blobs are in one request, if their names are near one another."""

    async def heads(self, names: Sequence[str]) -> Mapping[str, BlobHead]:
        """`head` of some of these blobs (1,000 at most), by name, in one request.

        Left out are blobs that do not exist, damaged ones, and those that a request for twice as many blobs, from the
        first of the names on, does not reach. Ask `head` for each of these.
        """


@runtime_checkable
class SignedUrls(Capability, Protocol):
    """A long-term tier whose service answers everybody who has a signed address."""

    async def sign_read(self, name: str, expires_in_s: int, disposition: str) -> str | None:
        """The address of a blob, good for so long. None: this service was opened in a way in which nobody signs.

        `disposition`: what is answered as `Content-Disposition`. When the blob is deleted, the address leads nowhere.
        `ConfigurationError`: the credentials cannot sign, and it says what they need. `UnavailableError`: nobody signed
        in time.
        """

    async def sign_part(self, name: str, session: str, number: int, expires_in_s: int) -> str | None:
        """The address to which anybody may PUT a part of an upload, of any size, for so long. Otherwise as `sign_read`.
        """


@runtime_checkable
class GenerationLookup(Capability, Protocol):
    """A long-term tier that looks again at some blobs of its listing for less than a request for each costs."""

    async def generations(self, blobs: Sequence[BlobInfo]) -> Mapping[str, Generation]:
        """The generation that each of these blobs has now, by its name, if it is there.

        `blobs`: as this tier listed them. One that cannot be read may be left out.
        """


@runtime_checkable
class SharedListing(Capability, Protocol):
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
    """How many deleted generations a part of a listing has, and how many bytes. `next_token`: for the next page.

    `last`: the last name of the page, also if nothing of it counts; None: the page was empty.
    """

    number: int
    size: int
    next_token: str | None
    last: str | None


@runtime_checkable
class RetentionUsage(Capability, Protocol):
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
class UploadListing(Capability, Protocol):
    """A long-term tier in which uploads that were left behind can be seen."""

    async def abandoned_uploads(self, start: str, before_ns: int, limit: int) -> UploadPage:
        """Up to `limit` uploads that nobody can finish and that last changed before `before_ns`. Changes nothing."""


@runtime_checkable
class Ownership(Capability, Protocol):
    """A long-term tier that may hold the blobs of several stores, and knows which of them are this store's."""

    async def check_owner(self) -> str | None:
        """None: this store owns the blobs that it sees. Else nobody owns them, and the sentence says what to run.

        Raises `ConfigurationError` if another store owns them, or some of them.
        """


ROW_CAPABILITIES: Sequence[type] = (GarbageCollection, ColumnarRedirects, ServerRole)
BLOB_CAPABILITIES: Sequence[type] = (
    GarbageCollection, BlobRestoration, BatchDeletion, NamePartitioning, BatchHeads, GenerationLookup, SharedListing, RetentionUsage,
    UploadListing, Ownership, PartUploads, SignedUrls,
)  # fmt: skip
LOG_CAPABILITIES: Sequence[type] = (GarbageCollection,)
"""What a high-volume tier, a long-term tier and a changelog may be able to do. A wrapper passes on each of these."""
