"""Listings: the entries of a prefix in the byte order of their paths, read page by page while others write.

    scan        one page of rows; expired rows and rows that are no objects are left out
    folders     all paths that are the same up to a delimiter become one entry, and the rest of the folder is skipped
    metadata    only if asked for. Where the row of a large object does not tell them, each costs a call to its blob
                (HEADS_AT_ONCE run at once). Many of one page cost one together, if the service has a call for many

An object that is written or deleted meanwhile may be listed or not. All of one entry is from one write (I7). A damaged
row does not end a listing: its entry says what is wrong. A row whose key is no object id is only logged.

A page token holds the place where the next page begins, and a digest of prefix and delimiter. It is no secret and needs
none: whatever somebody writes into it, only objects of the caller's own prefix are listed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from changelog.base.errors import ConfigurationError, CorruptRecordError, InvalidRequestError
from changelog.base.events import events
from changelog.base.observe import SILENT, Observer
from changelog.base.runtime import Runtime
from tiered.errors import DanglingTombstoneError
from tiered.limits.admission import Slot
from tiered.metadata import is_expired
from tiered.object_id import ROW_KEY_BYTES_MAX, ObjectId, ObjectPrefix, revision_of
from tiered.protocol.reading import Reader, head_of_blob
from tiered.services.backends import BlobHead, Tiers, Tombstone
from tiered.services.capabilities import BatchHeads
from tiered.services.concurrent import map_concurrently
from tiered.services.guarded import GuardedServices
from tiered.services.scans import ScannedRow
from tiered.settings import Settings
from tiered.stored import Folder, ListEntry, ListPage, ObjectHead, Tier
from tiered.text import check_flags, plain, quoted

LIST_PAGE_MAX = 1000
"""How many entries one page has at most, and how many rows one request reads."""
METADATA_PAGE_MAX = 100
"""How many rows one request reads if each may cost a call for its metadata: so the first entries come soon."""
HEADS_AT_ONCE = 16
HEADS_LISTED_MIN = 13
"""From so many large objects of one page on, their blobs are listed. A listing is billed as 12.5 heads are."""

_TOKEN_FORMAT = b"\x01"
_DIGEST_BYTES, _CRC_BYTES = 8, 4
_TOKEN_BYTES_MAX = _DIGEST_BYTES + ROW_KEY_BYTES_MAX + 1


@dataclass(frozen=True, slots=True)
class ListRequest:
    """What is listed. Its values are checked: `InvalidRequestError` names what is wrong.

    `limit`: how many entries at most; None: all.
    """

    prefix: ObjectPrefix
    start_after: ObjectId | ObjectPrefix | None
    limit: int | None
    delimiter: str | None
    metadata: bool

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, ObjectPrefix):
            raise InvalidRequestError(
                f"a prefix is ObjectPrefix.create('photos', scopes={{'org': '17'}}) or ObjectPrefix.parse(text), not {quoted(self.prefix)}"
            )
        if self.limit is not None and (type(self.limit) is not int or self.limit < 1):
            raise InvalidRequestError(f"limit is {quoted(self.limit)}: pass a number of entries from 1 on, or None for all")
        check_flags(metadata=self.metadata)
        self._check_start_after()
        if self.delimiter is not None:
            object.__setattr__(self, "delimiter", self._checked_delimiter())

    def _check_start_after(self) -> None:
        if self.start_after is None:
            return
        if not isinstance(self.start_after, (ObjectId, ObjectPrefix)):
            raise InvalidRequestError(f"start_after is an ObjectId, or the prefix of a Folder, not {quoted(self.start_after)}")
        if not self.start_after.path.startswith(self.prefix.path) or not self.start_after.path:
            raise InvalidRequestError(f"start_after {quoted(self.start_after.path)} is not within the prefix {quoted(self.prefix.path)}")

    def _checked_delimiter(self) -> str:
        delimiter = plain("the delimiter", self.delimiter)
        if not delimiter:
            raise InvalidRequestError("the delimiter is empty: pass '/', or None for a listing without folders")
        if self.prefix.key is None and delimiter != "/":
            raise InvalidRequestError(
                f"the delimiter {quoted(delimiter)} cuts keys only, and this prefix has no key: "
                "give it one, ObjectPrefix.create('photos', '', scopes=…), or pass '/'"
            )
        return delimiter

    @property
    def start(self) -> bytes:
        """The key at which the listing begins."""
        match self.start_after:
            case None:
                return b""
            case ObjectId():
                return _after(self.start_after.path)
            case ObjectPrefix():
                return _after_all_of(self.start_after.path)

    def folder_of(self, path: str) -> str | None:
        """What the path of an object and those of its folder begin with; None: it is in no folder."""
        if self.delimiter is None:
            return None
        end = path.find(self.delimiter, len(self.prefix.path))
        return None if end < 0 else path[: end + len(self.delimiter)]

    def rows_max(self, wanted: int | None, told: bool) -> int:
        """How many rows to ask for if so many entries are `wanted` (None: all, or nobody knows where they are). `told`:
        the rows before told their metadata, so those that follow probably do.
        """
        page = METADATA_PAGE_MAX if self.metadata and not told else LIST_PAGE_MAX
        return page if wanted is None or self.delimiter is not None else min(page, wanted)

    # --- page tokens -----------------------------------------------------------------------------

    def token(self, start: bytes) -> str:
        """A page token for the page that begins at the key `start`."""
        raw = self._digest() + start.removeprefix(self.prefix.path.encode())
        return base64.urlsafe_b64encode(_TOKEN_FORMAT + _crc(raw) + raw).decode().rstrip("=")

    def start_of(self, token: str) -> bytes:
        """The key at which the page of this token begins. `InvalidRequestError`: the token is not of this listing."""
        text = plain("page_token", token)
        try:
            raw = base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (ValueError, binascii.Error):
            raw = b""
        told, body = raw[1 : 1 + _CRC_BYTES], raw[1 + _CRC_BYTES :]
        if raw[:1] != _TOKEN_FORMAT or not _DIGEST_BYTES <= len(body) <= _TOKEN_BYTES_MAX or told != _crc(body):
            raise InvalidRequestError(f"page_token {quoted(text)} is none: pass the next_page_token of a ListPage as it is, or None")
        if body[:_DIGEST_BYTES] != self._digest():
            raise InvalidRequestError("page_token is of another listing: pass it with the prefix and delimiter of the page that gave it")
        return self.prefix.path.encode() + body[_DIGEST_BYTES:]

    def _digest(self) -> bytes:
        return hashlib.sha256(ascii((self.prefix.path, self.delimiter)).encode()).digest()[:_DIGEST_BYTES]


class _Item(NamedTuple):
    """An entry, the row that it was made from (None: a folder), and the key after all that it stands for."""

    entry: ListEntry | Folder
    row: ScannedRow | None
    after: bytes


class Lister:
    """Carries listings out. `enter`: takes a slot for each request, and is told whether the listing has begun before.
    """

    def __init__(
        self, tiers: Tiers, runtime: Runtime, settings: Settings, reader: Reader, services: GuardedServices,
        enter: Callable[[ObjectPrefix, bool], Awaitable[Slot]], observer: Observer = SILENT,
    ) -> None:
        self._tiers = tiers
        self._runtime = runtime
        self._reader = reader
        self._services = services
        self._enter = enter
        self._observer = observer

    async def entries(
        self, listing: ListRequest, on_no_objects: Callable[[Sequence[int]], None] | None = None
    ) -> AsyncGenerator[ListEntry | Folder, None]:
        """Yields the entries up to the limit.

        `on_no_objects` is called before the entries of each page of rows. It gets, for each row whose key is no object
        id, how many entries of this page come before it; 0 if the key is no text, because then nobody knows.
        """
        start: bytes | None = listing.start
        left = wanted = listing.limit
        has_begun = told = False
        while start is not None and left != 0:
            with self._observer.operation("list"), await self._enter(listing.prefix, has_begun):
                no_objects: list[int] = []
                items, start = await self._read(listing, start, wanted, told, no_objects)
                told = _are_told(items)
                if left is not None and len(items) > left:
                    items, start = items[:left], items[left - 1].after
                found = await self._finished(listing, items)
            has_begun = True
            if on_no_objects is not None:
                on_no_objects(no_objects)
            for entry in found:
                yield entry
            left = None if left is None else left - len(found)
            wanted = left if found else None  # among rows that have expired, few rows at a time would take many calls

    async def page(self, listing: ListRequest, token: str | None) -> ListPage:
        """The first page, or the one of this token. It has `limit` entries, unless there are no more."""
        assert listing.limit is not None, "a page has a limit"
        start = listing.start if token is None else listing.start_of(token)
        items: list[_Item] = []
        wanted: int | None = listing.limit + 1
        has_begun = told = False
        while True:
            with self._observer.operation("list"), await self._enter(listing.prefix, has_begun):
                more, following = await self._read(listing, start, wanted, told)
                items, told = items + more, _are_told(more)
                if following is None or len(items) > listing.limit:  # one more shows that there is a next page
                    found = await self._finished(listing, items[: listing.limit])
                    break
            has_begun, start, wanted = True, following, listing.limit + 1 - len(items) if more else None
        next_token = listing.token(items[listing.limit - 1].after) if len(items) > listing.limit else None
        return ListPage(tuple(found), next_token)

    async def _read(
        self, listing: ListRequest, start: bytes, wanted: int | None, told: bool, no_objects: list[int] | None = None
    ) -> tuple[list[_Item], bytes | None]:
        """The entries of one page of rows, and where the next page begins. Adds to `no_objects`, as `entries` tells."""
        rows_max = listing.rows_max(wanted, told)
        page = await self._services.rows.read(self._tiers.high_volume.scan, listing.prefix.path, start, rows_max)
        now_ns = self._runtime.wall_ns()
        for damaged in page.corrupt:
            events.warning("corrupt_row", damaged.fault, path=damaged.path)
        faults = {damaged.path: damaged.fault for damaged in page.corrupt}
        items: list[_Item] = []
        no_objects = [] if no_objects is None else no_objects
        if faults:
            no_objects += [0] * len(faults.keys() - {row.path for row in page.rows})
        skipped: str | None = None
        for row in page.rows:
            if (skipped is not None and row.path.startswith(skipped)) or is_expired(row.deadline_ns, now_ns):
                continue
            skipped = None
            if (object_id := _parse_stored(row.path)) is None:
                no_objects.append(len(items))
                continue
            if (skipped := listing.folder_of(row.path)) is not None:
                items.append(_Item(Folder(ObjectPrefix.parse(skipped)), None, _after_all_of(skipped)))
            else:
                items.append(_Item(_entry(object_id, row, faults.get(row.path)), row, _after(row.path)))
        if skipped is not None and page.next_start is not None:
            return items, max(page.next_start, _after_all_of(skipped))
        return items, page.next_start

    # --- metadata --------------------------------------------------------------------------------

    async def _finished(self, listing: ListRequest, items: list[_Item]) -> list[ListEntry | Folder]:
        """The entries, with metadata if they were asked for. Without objects that are gone meanwhile."""
        if not listing.metadata:
            return [item.entry for item in items]
        rows = [item.row for item in items if item.row is not None and item.row.metadata is None]
        blobs = await self._listed_blobs([row.target for row in rows if row.target is not None])
        known = [_with_metadata(item, blobs) for item in items]
        others = [item for item, entry in zip(items, known, strict=True) if entry is None]
        looked_at = iter(await map_concurrently(self._looked_at, others, HEADS_AT_ONCE) if others else ())
        found = [next(looked_at) if entry is None else entry for entry in known]
        return [entry for entry in found if entry is not None]

    async def _listed_blobs(self, names: list[str]) -> Mapping[str, BlobHead]:
        """What one call tells of these blobs, if the service has such a call. It may leave out any of them."""
        blobs = self._tiers.long_term
        if len(names) < HEADS_LISTED_MIN or not isinstance(blobs, BatchHeads):
            return {}
        try:
            return await self._services.blobs.read(blobs.heads, names)
        except (ConfigurationError, InvalidRequestError):  # who may not list may still look at each
            return {}

    async def _looked_at(self, item: _Item) -> ListEntry | None:
        entry, row, _ = item
        assert row is not None and not isinstance(entry, Folder), "of a folder all is known"
        try:
            head = await self._head(entry.object_id, row)
        except ConfigurationError:  # such as a permission that is missing: that says nothing about the object
            raise
        except (CorruptRecordError, DanglingTombstoneError, InvalidRequestError) as error:  # a name that no service takes, too
            events.warning("corrupt_row", error, path=row.path)
            return replace(entry, fault=str(error))
        return None if head is None else _entry_of(head)

    async def _head(self, object_id: ObjectId, row: ScannedRow) -> ObjectHead | None:
        """None: the object is gone, or it has expired. If it was overwritten, what is there now."""
        if (target := row.target) is not None:
            blob = await self._services.blobs.read(self._tiers.long_term.head, target)
            if blob is not None:
                return _head_of(object_id, row, target, blob)
        return await self._reader.head(object_id)


def _are_told(items: Sequence[_Item]) -> bool:
    return bool(items) and all(item.row is None or item.row.metadata is not None for item in items)


def _with_metadata(item: _Item, blobs: Mapping[str, BlobHead]) -> ListEntry | Folder | None:
    """The entry with its metadata. None: neither its row nor `blobs` tell them."""
    entry, row, _ = item
    if row is None or isinstance(entry, Folder) or entry.fault is not None:
        return entry
    if row.metadata is not None and row.metadata.size is not None:
        return replace(entry, metadata=row.metadata)
    if row.target is not None and (blob := blobs.get(row.target)) is not None:
        return _entry_of(_head_of(entry.object_id, row, row.target, blob))
    return None


def _head_of(object_id: ObjectId, row: ScannedRow, target: str, blob: BlobHead) -> ObjectHead:
    return head_of_blob(object_id, Tombstone(target, None, row.deadline_ns, row.token), blob)


def _entry(object_id: ObjectId, row: ScannedRow, fault: str | None) -> ListEntry:
    tier, revision = (Tier.HIGH_VOLUME, row.token) if row.target is None else (Tier.LONG_TERM, revision_of(row.path, row.target))
    size, created_ns = (None, None) if row.metadata is None else (row.metadata.size, row.metadata.time_created_ns)
    return ListEntry(object_id, tier, revision, size, created_ns, row.deadline_ns, fault=fault)


def _entry_of(head: ObjectHead) -> ListEntry:
    created_ns, expires_ns = head.metadata.time_created_ns, head.metadata.time_expires_ns
    return ListEntry(head.object_id, head.tier, head.revision, head.size, created_ns, expires_ns, head.metadata)


def _parse_stored(path: str) -> ObjectId | None:
    try:
        return ObjectId.parse(path)
    except InvalidRequestError as error:
        events.warning("unparseable_row", f"it is skipped: {error}")
        return None


def _after(path: str) -> bytes:
    return path.encode() + b"\0"


def _after_all_of(path: str) -> bytes:
    """The key after all keys that begin with this path. The last byte of UTF-8 is never the largest byte there is."""
    raw = path.encode()
    return raw[:-1] + bytes((raw[-1] + 1,))


def _crc(raw: bytes) -> bytes:
    return zlib.crc32(raw).to_bytes(_CRC_BYTES, "big")
