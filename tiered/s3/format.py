"""A blob as an object of S3: `Metadata` to and from headers, and the names beside it (pure; no I/O).

    Content-Type, Content-Encoding, …    the fields of metadata that are headers
    x-amz-meta-{key}                 entries (`tiered/buckets/blob_entries.py`), and of our own, which nobody sees:
        x-snme-tiered-created        a time of creation that the caller told, nanoseconds since 1970
        x-snme-tiered-expires        the deadline at its creation, likewise
        x-snme-tiered-nonce          of an upload that is a session: tells its blob from every other of the name, and
                                     names what `amend` brought
        x-snme-tiered-crc32c         of all bytes, base64: for services that keep no checksum of the whole
        x-snme-tiered-source         of a copy by the audit: the generation that it was made of
        x-snme-tiered-name           crc32c of its name, base64: some services find a blob under other names, too

    PREFIX~t/{name}/{12 hex digits}  a deadline of the blob, Unix ms: an empty object; of several, the latest counts
    PREFIX~m/{name}/{nonce}          entries that were known only at the end of a session, as JSON; they replace its own
    PREFIX~probe/…                   what `tiered check` tries a service with, and removes

A generation is `{ETag}@{second}`: the service's tag and the second of creation, which every listing tells, too. Two
objects of one name have the same one only if equal bytes were put in the same way in the same second. A name belongs to
one change, so only a copy that is brought back makes one again, and that one is put in another way (`copies.py`).

S3 takes 2 KiB of metadata. What no header carries is packed, and so is a custom entry that has a key of ours, or all of
it if that is what it takes. *Failure*: more is an `InvalidRequestError`; a blob that breaks the format is a
`CorruptRecordError` that names it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from changelog.base.errors import CorruptRecordError, InvalidRequestError
from tiered.buckets.blob_entries import (
    CUSTOM,
    HEADERS,
    OTHER_HEADERS,
    decode_entries,
    dump_json,
    encode_entries,
    fields_of_headers,
    headers_of,
    pack,
    said_by_headers,
    unpack,
)
from tiered.metadata import DEADLINE_MAX_NS, NS_PER_MS, NS_PER_S, Metadata, no_metadata
from tiered.payload.crc32c import encode_crc, extend_crc
from tiered.services.backends import BlobHead
from tiered.services.scans import QUARANTINE, Generation

METADATA_BYTES_MAX = 2048
"""How many bytes of keys and values S3 takes beside an object."""
NAME_BYTES_MAX = 1024
MARKERS, AMENDED, PROBES = "~t/", "~m/", "~probe/"
_MARKER_BYTES = len(MARKERS) + 13
_AMENDMENT_BYTES = len(AMENDED) + 17
_HEX_DIGITS = 12
_CREATED, _EXPIRES, _NONCE, _CRC, _SOURCE, _NAME = _HIDDEN = tuple(
    f"{CUSTOM}tiered-{key}" for key in ("created", "expires", "nonce", "crc32c", "source", "name")
)
_CRC_TOLD = re.compile(r"[A-Za-z0-9+/]{6}==")
_MARKER = re.compile(rf"(.+)/([0-9a-f]{{{_HEX_DIGITS}}})", re.DOTALL)
_DIGITS, _NANOSECONDS = re.compile(r"[0-9]{1,30}"), re.compile(r"-?[0-9]{1,30}")


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as the service tells it. `crc32c`: base64, of all bytes; None: nobody tells.

    `version`: None: the bucket keeps no versions. `nonce`, `source`: as the metadata tell them. `computed`: the crc32c
    of all bytes that the service tells itself; None: it tells none. `is_encrypted`: with keys that make its tag no MD5.
    """

    metadata: Metadata
    size: int
    etag: str
    created_ns: int
    crc32c: str | None
    version: str | None
    nonce: str | None
    source: str | None
    computed: str | None
    is_encrypted: bool

    @property
    def generation(self) -> Generation:
        return generation_of(self.etag, self.created_ns)

    @property
    def checksum(self) -> str | None:
        return None if self.crc32c is None else f"crc32c={self.crc32c}"

    @property
    def head(self) -> BlobHead:
        return BlobHead(self.metadata, self.size, self.created_ns, self.generation, checksum=self.checksum)

    def expiring(self, deadline_ns: int | None) -> Stored:
        """The same with a later deadline, if it is one."""
        own = self.metadata.time_expires_ns
        if deadline_ns is None or own is None or ms_of(deadline_ns) <= ms_of(own):
            return self
        return replace(self, metadata=self.metadata.with_facts(time_expires_ns=deadline_ns))


def generation_of(etag: str, created_ns: int) -> Generation:
    return f"{etag}@{created_ns // NS_PER_S}"


# --- metadata ----------------------------------------------------------------------------------------


def encode_metadata(
    name: str, metadata: Metadata, *, nonce: str | None = None, crc32c: str | None = None, source: str | None = None
) -> dict[str, Any]:
    """The arguments of a call that creates the blob. `InvalidRequestError`: S3 does not take as many."""
    ours = {
        _CREATED: _text(metadata.time_created_ns), _EXPIRES: _text(metadata.time_expires_ns), _NONCE: nonce, _CRC: crc32c, _SOURCE: source,
        _NAME: _sum_of(name),
    }  # fmt: skip
    entries = _fitted(name, encode_entries(metadata), {key: value for key, value in ours.items() if value is not None})
    return {"Metadata": entries, **{_ARGUMENTS[header]: told for header, told in headers_of(metadata).items()}}


def _argument(header: str) -> str:
    return header.replace("-", "")


def is_written_as(name: str, answer: Mapping[str, Any]) -> bool | None:
    """Whether the object was written under this name. None: it does not tell, as a blob of an earlier release."""
    there = next((value for key, value in (answer.get("Metadata") or {}).items() if key.lower() == _NAME), None)
    return None if there is None else there == _sum_of(name)


def _sum_of(name: str) -> str:
    return encode_crc(extend_crc(0, name.encode()))


def _text(ns: int | None) -> str | None:
    return None if ns is None else str(ns)


def _fitted(name: str, entries: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    most = METADATA_BYTES_MAX - _bytes_of(ours)
    for said in ({key: value for key, value in said_by_headers(entries).items() if key not in _HIDDEN}, {}):
        fitted = pack(entries, said)
        if _bytes_of(fitted) <= most:
            return {**fitted, **ours}
    raise InvalidRequestError(
        f"the metadata of blob {name!r} take {_bytes_of(fitted)} bytes when they are packed, and S3 keeps {METADATA_BYTES_MAX} beside an"
        f" object, of which {METADATA_BYTES_MAX - most} are ours: shorten them"
    )


def _bytes_of(entries: Mapping[str, str]) -> int:
    return sum(len(key) + len(value) for key, value in entries.items())


def encode_amended(metadata: Metadata) -> bytes:
    """All entries of the blob, as they replace those of its beginning."""
    return dump_json(encode_entries(metadata)).encode()


def decode_amended(name: str, body: bytes) -> Mapping[str, str]:
    try:
        entries = json.loads(body)
    except (ValueError, RecursionError):
        entries = None
    if not isinstance(entries, dict) or not all(isinstance(value, str) for value in entries.values()):
        raise CorruptRecordError(f"blob {name!r} breaks the format: what was amended of it is no JSON of text by key")
    return entries


def nonce_of(answer: Mapping[str, Any]) -> str | None:
    nonce: str | None = (answer.get("Metadata") or {}).get(_NONCE)
    return nonce


def decode_object(name: str, answer: Mapping[str, Any], *, size: int | None = None, amended: Mapping[str, str] | None = None) -> Stored:
    """Reads the answer to HeadObject or GetObject. `size`: of the whole, if the answer has a range of it.

    `amended`: entries that replace those of the blob. `CorruptRecordError` names the blob and what breaks the format.
    """

    def corrupt(key: str, fault: str) -> CorruptRecordError:
        return CorruptRecordError(f"blob {name!r} breaks the format: {key} {fault}")

    there: dict[str, str] = {key.lower(): value for key, value in (answer.get("Metadata") or {}).items()}
    expires = there.get(_EXPIRES)
    if expires is not None and (not _DIGITS.fullmatch(expires) or int(expires) > DEADLINE_MAX_NS):
        raise corrupt(_EXPIRES, f"is {expires!r}, not nanoseconds since 1970")
    told_created = _NANOSECONDS.fullmatch(there.get(_CREATED, ""))
    entries = unpack({key: value for key, value in there.items() if key not in _HIDDEN}) if amended is None else amended
    told = decode_entries(entries, corrupt)
    whole = answer["ContentLength"] if size is None else size
    created_ns = ns_of(answer["LastModified"])
    told |= fields_of_headers(lambda header: answer.get(_ARGUMENTS[header]))
    told |= {
        "time_created_ns": int(told_created[0]) if told_created else created_ns, "size": whole,
        "time_expires_ns": None if expires is None else int(expires),
    }  # fmt: skip
    computed = computed_of(answer)
    crc, version = there.get(_CRC) or computed, answer.get("VersionId")
    return Stored(
        no_metadata().with_facts(**told), whole, tag_of(answer), created_ns, crc if crc is not None and _CRC_TOLD.fullmatch(crc) else None,
        None if version in (None, "null") else version, there.get(_NONCE), there.get(_SOURCE), computed, is_encrypted(answer),
    )  # fmt: skip


def is_encrypted(answer: Mapping[str, Any]) -> bool:
    """Whether with keys that the bucket's owner chose: then its tag is no MD5."""
    return "SSECustomerAlgorithm" in answer or str(answer.get("ServerSideEncryption", "")).startswith("aws:kms")


def computed_of(answer: Mapping[str, Any]) -> str | None:
    """The crc32c of all bytes that the service tells itself. None: it tells none, or one of the checksums of parts."""
    is_of_whole = answer.get("ChecksumType") == "FULL_OBJECT" or not parts_of(tag_of(answer))
    told = str(answer.get("ChecksumCRC32C", ""))
    return told if is_of_whole and _CRC_TOLD.fullmatch(told) else None


def tag_of(answer: Mapping[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


def ns_of(time: datetime) -> int:
    """Nanoseconds since 1970, of the whole second: an answer with one object tells no more, and a listing might."""
    return int(time.timestamp()) * NS_PER_S


def parts_of(etag: str) -> int:
    """Of how many parts an object was made. 0: it was put whole."""
    found = re.fullmatch(r".+-([0-9]{1,5})", etag)
    return int(found[1]) if found else 0


_ARGUMENTS = {header: _argument(header) for header in HEADERS}
OTHER_ARGUMENTS = {"ExpiresString": "expires"} | {_argument(header): header.lower() for header in OTHER_HEADERS}
"""The other headers that the service shows, as its answers name them. No blob of ours has them."""


# --- names beside a blob -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Beside:
    """The names of what lies beside the blobs below a prefix. Names are whole."""

    prefix: str

    @property
    def markers(self) -> str:
        """How the names of all markers begin."""
        return f"{self.prefix}{MARKERS}"

    @property
    def amendments(self) -> str:
        return f"{self.prefix}{AMENDED}"

    @property
    def probes(self) -> str:
        return f"{self.prefix}{PROBES}"

    def hides(self, name: str) -> bool:
        return name.startswith((self.markers, self.amendments, self.probes))

    def marker(self, name: str, deadline_ns: int) -> str:
        return f"{self.of(name)}{ms_of(deadline_ns):0{_HEX_DIGITS}x}"

    def of(self, name: str) -> str:
        """How the names of the markers of one blob begin."""
        return f"{self.markers}{name.removeprefix(self.prefix)}/"

    def amendment(self, name: str, nonce: str) -> str:
        return f"{self.amendments}{name.removeprefix(self.prefix)}/{nonce}"

    def amendment_excess(self, name: str) -> int:
        """By how many bytes the name is too long to have an amendment beside it."""
        return len(name.encode()) - (NAME_BYTES_MAX - _AMENDMENT_BYTES)

    def blob_of(self, marker: str) -> tuple[str, int] | None:
        """The blob of a marker, and its deadline (ns since 1970). None: it is no marker."""
        found = _MARKER.fullmatch(marker.removeprefix(self.markers)) if marker.startswith(self.markers) else None
        return None if found is None else (self.prefix + found[1], int(found[2], 16) * NS_PER_MS)

    def blob_of_amendment(self, name: str) -> str:
        return self.prefix + name.removeprefix(self.amendments).rpartition("/")[0]

    def check(self, name: str, metadata: Metadata) -> None:
        """`InvalidRequestError`: the name is too long for S3, or for its marker."""
        many = len(name.encode()) - NAME_BYTES_MAX
        if many > 0:
            raise InvalidRequestError(
                f"the name of blob {name!r} has {NAME_BYTES_MAX + many} bytes, and S3 takes {NAME_BYTES_MAX}: shorten the key or the scopes"
            )
        if metadata.time_expires_ns is not None and not is_copy(name, self.prefix) and many + _MARKER_BYTES > 0:
            raise InvalidRequestError(
                f"the name of blob {name!r} has {NAME_BYTES_MAX + many} bytes, and one that expires may have"
                f" {NAME_BYTES_MAX - _MARKER_BYTES} in S3: shorten the key or the scopes by {many + _MARKER_BYTES}, or let it not expire"
            )


def is_copy(name: str, prefix: str) -> bool:
    """Whether it is a copy in quarantine, which no deadline removes."""
    return name.removeprefix(prefix).startswith(QUARANTINE)


def ms_of(deadline_ns: int) -> int:
    """A deadline in whole milliseconds, never earlier than it is."""
    return -(-deadline_ns // NS_PER_MS)


def before(name: str) -> str:
    """A name just before this one: what S3 shall list after. Nothing that follows it, and precedes `name`, is left out
    by a listing that drops what comes before `name`."""
    if name.endswith("\0"):
        return name[:-1]
    last = ord(name[-1])
    lower = last - 1 if not 0xD800 <= last - 1 <= 0xDFFF else 0xD7FF
    if lower < 0x20:
        return name[:-1]
    return f"{name[:-1]}{chr(lower)}" + "\U0010ffff" * (len(name.encode()) + 4 <= NAME_BYTES_MAX)
