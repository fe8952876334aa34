"""A blob as a GCS object: `Metadata` to and from the JSON resource of the service. Pure; no I/O.

    contentType, contentEncoding, …   the fields of metadata that are headers
    customTime                        the deadline
    contentDisposition                `inline; created-ns=…`: a time of creation that the caller told, nanoseconds since
                                      1970; otherwise it is `timeCreated`
    metadata                          the rest, as entries (`tiered/buckets/blob_entries.py`)

Other software shows each key of `metadata` to its users, or fails on it, and no content disposition. Links say one of
their own. What another content disposition says is not read. *Failure*: a blob that breaks the format is a
`CorruptRecordError` that names it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from changelog.base.errors import CorruptRecordError
from tiered.buckets.blob_entries import (
    DAY_S,
    HEADERS,
    OTHER_HEADERS,
    OURS,
    PACKED,
    decode_entries,
    dump_json,
    encode_entries,
    fields_of_headers,
    headers_of,
    is_said,
    pack,
    said_by_headers,
    unpack,
)
from tiered.metadata import NS_PER_MS, NS_PER_S, Metadata, no_metadata
from tiered.services.capabilities import DeletedGeneration
from tiered.services.scans import BlobInfo, Generation, ListedBlob, Oddity

T = TypeVar("T")

LISTING = "storage#objects"
"""The kind of every listing. What has another one does not come from the service."""



def _key(header: str) -> str:
    return header[0].lower() + header[1:].replace("-", "")


_KEYS = {header: _key(header) for header in HEADERS}
"""Which key of a resource is a header that a field is kept in."""
TEXT_KEYS = (*_KEYS.values(), "contentDisposition")
_TEXTS = ",".join(TEXT_KEYS)

RESOURCE_FIELDS = f"name,size,generation,metageneration,timeCreated,customTime,{_TEXTS},crc32c,metadata"
"""The fields of a resource that `decode_resource` reads."""

EDITABLE_FIELDS = "contentType,contentEncoding,contentDisposition,contentLanguage,cacheControl,storageClass,customTime,metadata"
"""What a copy has from its source, unless its request says something else."""

CHECKED_FIELDS = f"name,generation,size,crc32c,customTime,{_TEXTS},metadata"
"""The fields of a new blob's resource that are compared with what was sent."""

GENERATION_FIELDS = "name,generation"
LISTED_HEAD_FIELDS = f"kind,items({RESOURCE_FIELDS})"
LISTED_FIELDS = "kind,items(name,size,generation,timeCreated,customTime),nextPageToken"
NONCURRENT_FIELDS = "kind,items(name,size,generation,timeDeleted),nextPageToken"
KEPT_FIELDS = "kind,items(name,size,generation,softDeleteTime,timeDeleted),nextPageToken"
SOFT_DELETED_FIELDS = "kind,items(name,size,generation,softDeleteTime,hardDeleteTime),nextPageToken"

_SET_ASIDE = "tiered-quarantined-deadline"
"""Of a copy in quarantine: the custom time of its blob. Keys of callers' entries begin with `x-snme-`."""

_CREATED = re.compile(r"inline; created-ns=(-?[0-9]{1,30})")

OTHER_KEYS = {_key(header): header.lower() for header in OTHER_HEADERS}
"""The other headers, by their keys in a resource. Blobs of ours use one of them, for a time."""


def is_told_time(key: str, value: object) -> bool:
    """Whether a header is a time of creation that a caller told."""
    return key == "contentDisposition" and _CREATED.fullmatch(str(value)) is not None


@dataclass(frozen=True, slots=True)
class Resource:
    """One generation of a blob, as the service describes it. `crc32c` is base64; None: the service did not tell it."""

    metadata: Metadata
    size: int
    generation: Generation
    metageneration: int
    created_ns: int
    crc32c: str | None


# --- metadata ----------------------------------------------------------------------------------------


def encode_resource(name: str, metadata: Metadata) -> bytes:
    """The resource that creates the blob. Equal metadata always give the same bytes."""
    resource = {
        "name": name,
        **{_KEYS[header]: told for header, told in headers_of(metadata).items()},
        "contentDisposition": None if metadata.time_created_ns is None else f"inline; created-ns={metadata.time_created_ns}",
        "customTime": None if metadata.time_expires_ns is None else encode_time(metadata.time_expires_ns),
        "metadata": encode_entries(metadata),
    }
    return dump_json({key: value for key, value in resource.items() if value is not None}).encode()


def encode_amended(metadata: Metadata) -> bytes:
    """The change of a resource that gives the blob these custom metadata, and takes none away."""
    return dump_json({"metadata": encode_entries(metadata)}).encode()


def encode_unpacked(told: Mapping[str, Any]) -> bytes | None:
    """The change of a resource that makes entries of their own of what came packed. None: nothing did."""
    entries = told.get("metadata") or {}
    unpacked = unpack(entries)
    return None if unpacked is entries else dump_json({"metadata": {**unpacked, PACKED: None}}).encode()


def encode_headers(name: str, metadata: Metadata, *, packs: bool = True) -> dict[str, str]:
    """The headers that begin an upload in parts, instead of the resource. Keys of metadata arrive in lower case.

    `packs` False: entries that no header carries are left out.
    """
    resource = json.loads(encode_resource(name, metadata))
    custom: dict[str, str] = resource["metadata"]
    said = said_by_headers(custom)
    if packs:
        said = pack(custom, said)
    named = {**_KEYS, "Content-Disposition": "contentDisposition", "x-goog-custom-time": "customTime"}
    headers = {header: resource[key] for header, key in named.items() if key in resource}
    return {**headers, **{f"x-goog-meta-{key}": value for key, value in said.items()}}


def are_headers(metadata: Metadata) -> bool:
    """Whether headers carry all of these metadata as they are."""
    return all(is_said(key, value) for key, value in encode_entries(metadata).items())


def encode_set_aside(source: Mapping[str, Any]) -> bytes:
    """The resource of a copy that no deadline removes. `source`: the blob's `EDITABLE_FIELDS`. Empty: as the blob."""
    if "customTime" not in source:
        return b""
    kept = {key: value for key, value in source.items() if key != "customTime"}
    return dump_json({**kept, "metadata": {**(source.get("metadata") or {}), _SET_ASIDE: source["customTime"]}}).encode()


def encode_brought_back(name: str, copy: Mapping[str, Any]) -> tuple[bytes, int | None]:
    """The resource of the blob that such a copy was made of, and its deadline (nanoseconds since 1970)."""
    metadata = dict(_FieldReader(name, copy).metadata())
    set_aside = metadata.pop(_SET_ASIDE, None)
    if set_aside is None:
        return b"", _FieldReader(name, copy).time("customTime")
    blob = {**copy, "customTime": set_aside, "metadata": metadata}
    return dump_json(blob).encode(), _FieldReader(name, blob).time("customTime")


def differing(name: str, metadata: Metadata, told: Mapping[str, Any]) -> list[str]:
    """The keys of a new blob's resource that differ from what was sent, by what the service told of it.

    Times are compared by the millisecond. Of custom metadata, the keys of others are not compared, which readers ignore
    and Google's testbench adds. Nor are empty values, outer spaces and the case of a key: a service may change them.
    """
    sent = json.loads(encode_resource(name, metadata))
    different = [key for key in TEXT_KEYS if (told.get(key) or "") != sent.get(key, "")]
    different += [] if _ms(told.get("customTime")) == _ms(sent.get("customTime")) else ["customTime"]
    here, there = (_spelt_alike(unpack(each.get("metadata") or {})) for each in (sent, told))
    return [*different, *sorted(key for key in here.keys() | there.keys() if here.get(key) != there.get(key))]


def _spelt_alike(metadata: Mapping[str, Any]) -> dict[str, str]:
    return {key.lower(): str(value).strip() for key, value in metadata.items() if value and key.lower().startswith(OURS)}


def is_earlier(told: object, deadline_ns: int) -> bool:
    """Whether a custom time that was told is earlier than this one, by the millisecond. If there is none, it is."""
    time_ms = _ms(told)
    return time_ms is None or time_ms < deadline_ns // NS_PER_MS


def _ms(time: object) -> int | None:
    try:
        return decode_time(str(time)) // NS_PER_MS
    except ValueError:
        return None


def decode_resource(name: str, resource: Mapping[str, Any]) -> Resource:
    """Reads the service's JSON of one blob. `CorruptRecordError` names the blob and the key that breaks the format."""
    stored = _FieldReader(name, resource)
    told = decode_entries(stored.metadata(), stored.corrupt)
    size = stored.number("size")
    told |= fields_of_headers(lambda header: stored.text(_KEYS[header]))
    told |= {"time_created_ns": stored.told_created_ns(told["time_created_ns"]), "time_expires_ns": stored.time("customTime"), "size": size}
    metadata = no_metadata().with_facts(**told)
    return Resource(
        metadata, size, stored.generation(), stored.number("metageneration"), stored.created_ns(), stored.text("crc32c")
    )


@dataclass(frozen=True, slots=True)
class _FieldReader:
    """A resource whose values are read with errors that name the blob."""

    name: str
    resource: Mapping[str, Any]

    def text(self, key: str) -> str | None:
        value = self.resource.get(key)
        if value is not None and not isinstance(value, str):
            raise self.corrupt(key, f"is {value!r}, not text")
        return value

    def number(self, key: str) -> int:
        """Reads a number. The service writes numbers of 64 bits as text."""
        return int(self._digits(key))

    def generation(self) -> Generation:
        """The service's number, as the text that it is."""
        return self._digits("generation")

    def _digits(self, key: str) -> str:
        value = self.text(key)
        if value is None or not re.fullmatch(r"[0-9]{1,20}", value):
            raise self.corrupt(key, f"is {value!r}, not a number")
        return value

    def time(self, key: str) -> int | None:
        value = self.text(key)
        try:
            return None if value is None else decode_time(value)
        except ValueError:
            raise self.corrupt(key, f"is {value!r}, not a time") from None

    def created_ns(self) -> int:
        """The time of creation by the service's clock, in nanoseconds since 1970."""
        return self.needed_time("timeCreated")

    def told_created_ns(self, by_entry_ns: int | None) -> int:
        """The time of creation that a caller told, also by an entry of before; else that of the service."""
        told = _CREATED.fullmatch(self.text("contentDisposition") or "")
        if told is not None:
            return int(told[1])
        return self.created_ns() if by_entry_ns is None else by_entry_ns

    def needed_time(self, key: str) -> int:
        time_ns = self.time(key)
        if time_ns is None:
            raise self.corrupt(key, "is missing")
        return time_ns

    def metadata(self) -> Mapping[str, str]:
        value = self.resource.get("metadata") or {}
        if not isinstance(value, Mapping) or not all(isinstance(text, str) for text in value.values()):
            raise self.corrupt("metadata", f"is {value!r}, not text by key")
        return unpack(value)

    def corrupt(self, key: str, fault: str) -> CorruptRecordError:
        return CorruptRecordError(f"blob {self.name!r} breaks the format: {key} {fault}")


# --- listings ----------------------------------------------------------------------------------------

_SomeTime = Annotated[datetime, msgspec.Meta(tz=True)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Text = Annotated[str, msgspec.Meta(min_length=1)]


class _Listed(msgspec.Struct, gc=False):
    """A `BlobInfo`. Converting its times takes as long as all the rest, so it is done only when they are asked for."""

    name: str
    size: _Count
    generation: _Text
    time_created: _SomeTime = msgspec.field(name="timeCreated")
    custom_time: _SomeTime | None = msgspec.field(name="customTime", default=None)

    @property
    def created_ns(self) -> int:
        return _ns(self.time_created)

    @property
    def deadline_ns(self) -> int | None:
        return None if self.custom_time is None else _ns(self.custom_time)


class _ListingBody(msgspec.Struct):
    kind: str = ""
    items: list[_Listed] = []
    next_page_token: str | None = msgspec.field(name="nextPageToken", default=None)


_PAGE = msgspec.json.Decoder(_ListingBody, strict=False)  # numbers come as text


def renamed(blob: BlobInfo, name: str) -> BlobInfo:
    """The blob of a listing under another name. The one that was passed is no longer used."""
    if isinstance(blob, _Listed):
        blob.name = name  # a copy would take as long as decoding it took
        return blob
    assert isinstance(blob, ListedBlob), "no other kind is made here"
    return blob._replace(name=name)


class ListingPage(NamedTuple):
    """One page as the service gave it.

    `names`: all names on it, also of those whose record is corrupt. `token`: asks the service for the next page.
    """

    blobs: Sequence[BlobInfo]
    oddities: Sequence[Oddity]
    names: Sequence[str]
    token: str | None


def decode_listing(body: bytes) -> ListingPage | None:
    """Decodes a page fast. None: it is no listing, or `decode_listing_by_item` says what on it breaks the format."""
    try:
        page = _PAGE.decode(body)
    except msgspec.DecodeError:
        return None
    if page.kind != LISTING or not _are_numbers(page.items):
        return None
    return ListingPage(page.items, (), [item.name for item in page.items], page.next_page_token)


def _are_numbers(blobs: Sequence[_Listed]) -> bool:
    """Whether all generations are numbers, which are texts to the rest of the program. All at once is fastest."""
    digits = "".join(map(attrgetter("generation"), blobs))
    return not blobs or (digits.isascii() and digits.isdigit())


def decode_listing_by_item(page: Mapping[str, Any]) -> ListingPage:
    """The same, but slowly: an item that breaks the format becomes an oddity, and the others are still read."""
    blobs: list[BlobInfo] = []
    oddities: list[Oddity] = []
    names: list[str] = []
    for item in page.get("items", []):
        name = item.get("name") if isinstance(item, Mapping) else None
        if not isinstance(name, str):
            oddities.append(Oddity(repr(item)[:200], "the listing has it without a name", is_blob=False))
            continue
        names.append(name)
        try:
            blobs.append(_decode_listed(_FieldReader(name, item)))
        except CorruptRecordError as error:
            oddities.append(_decode_oddity(_FieldReader(name, item), str(error)))
    token = page.get("nextPageToken")
    return ListingPage(blobs, oddities, names, None if token is None else str(token))


def _decode_listed(stored: _FieldReader) -> ListedBlob:
    return ListedBlob(stored.name, stored.number("size"), stored.created_ns(), stored.time("customTime"), stored.generation())


def _decode_oddity(stored: _FieldReader, fault: str) -> Oddity:
    """The oddity of a blob whose record is corrupt, with those of its facts that can still be read."""

    def readable(read: Callable[[], T]) -> T | None:
        try:
            return read()
        except CorruptRecordError:
            return None

    size, created_ns = readable(lambda: stored.number("size")), readable(stored.created_ns)
    return Oddity(stored.name, fault, True, size, created_ns, readable(stored.generation))


def decode_kept(page: Mapping[str, Any], deleted: str, start: str, end: str | None) -> Sequence[int]:
    """The sizes (bytes) of the generations that have the time `deleted`.

    Their names lie between `start` and `end` (exclusive).
    """
    items = [_FieldReader(str(item.get("name")), item) for item in page.get("items", []) if deleted in item]
    return [stored.number("size") for stored in items if start <= stored.name and (end is None or stored.name < end)]


def decode_deleted(bucket: str, name: str, item: Mapping[str, Any]) -> DeletedGeneration:
    """A soft-deleted or a noncurrent generation. A live one has neither time, and is a `CorruptRecordError`."""
    stored = _FieldReader(name, item)
    generation, size = stored.generation(), stored.number("size")
    address = f"gs://{bucket}/{name}#{generation}"
    if "softDeleteTime" in item:
        return DeletedGeneration(address, size, generation, stored.needed_time("softDeleteTime"), stored.needed_time("hardDeleteTime"))
    return DeletedGeneration(address, size, generation, stored.needed_time("timeDeleted"), None)


# --- times ------------------------------------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?([Zz]|[+-][0-9]{2}:[0-9]{2})")


def encode_time(ns: int) -> str:
    """RFC 3339 with milliseconds where these are exact, otherwise with whole microseconds."""
    time = _EPOCH + timedelta(microseconds=ns // 1000)
    exact = "milliseconds" if time.microsecond % 1000 == 0 else "microseconds"
    return time.isoformat(timespec=exact).replace("+00:00", "Z")


def decode_time(text: str) -> int:
    """Nanoseconds since 1970. Raises `ValueError`."""
    found = TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no RFC 3339 time")
    seconds, fraction, offset = found.groups()
    return _ns(datetime.fromisoformat(seconds + offset.upper())) + int((fraction or "").ljust(9, "0"))


def _ns(time: datetime) -> int:
    since = time - _EPOCH
    return (since.days * DAY_S + since.seconds) * NS_PER_S + since.microseconds * 1000
