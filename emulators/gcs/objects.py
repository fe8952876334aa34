"""Objects of the GCS emulator: one generation of each, what it may say of itself, and its hashes."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import google_crc32c

from emulators.gcs.answers import GcsError

NAME_BYTES_MAX = 1024
METADATA_BYTES_MAX = 8192
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CONTENT_KEYS = ("contentType", "contentEncoding", "contentDisposition", "contentLanguage", "cacheControl")
FIELDS_LACKING = ("acl", "temporaryHold", "eventBasedHold", "retention", "contexts", "kmsKeyName", "customerEncryption")
STORAGE_CLASSES = ("STANDARD", "NEARLINE", "COLDLINE", "ARCHIVE", "MULTI_REGIONAL", "REGIONAL", "DURABLE_REDUCED_AVAILABILITY")


@dataclass(frozen=True, slots=True)
class ObjectGeneration:
    """One generation. `content`: type, encoding, ... by their JSON names. Hashes are base64, as on the wire.

    `md5` None: it was uploaded in several parts, or composed. `components`: of how many objects it was composed.
    """

    bucket: str
    name: str
    payload: bytes
    content: Mapping[str, str]
    metadata: Mapping[str, str]
    custom_time: datetime | None
    generation: int
    created: datetime
    updated: datetime
    crc32c: str
    md5: str | None
    metageneration: int = 1
    storage_class: str = "STANDARD"
    components: int | None = None

    @property
    def etag(self) -> str:
        return base64.b64encode(f"{self.generation}/{self.metageneration}".encode()).decode()

    @property
    def xml_etag(self) -> str:
        """The tag of the XML API, with its quotes: the MD5 in hex, or what is none if the object has none."""
        return f'"{base64.b64decode(self.md5).hex()}"' if self.md5 else f'"-{self.etag}"'

    @property
    def hashes(self) -> str:
        """The value of the header `X-Goog-Hash`."""
        return f"crc32c={self.crc32c}" + (f",md5={self.md5}" if self.md5 else "")

    def resource(self) -> dict[str, Any]:
        """Returns its metadata as the JSON API shows them. Numbers of 64 bits are text, and empty fields are absent."""
        times = {
            "timeCreated": self.created, "updated": self.updated, "timeFinalized": self.created,
            "timeStorageClassUpdated": self.created, "customTime": self.custom_time,
        }  # fmt: skip
        path = f"b/{quote(self.bucket, safe='')}/o/{quote(self.name, safe='')}"
        return {
            "kind": "storage#object", "id": f"{self.bucket}/{self.name}/{self.generation}", "bucket": self.bucket, "name": self.name,
            "selfLink": f"https://www.googleapis.com/storage/v1/{path}",
            "generation": str(self.generation), "metageneration": str(self.metageneration), "size": str(len(self.payload)),
            "storageClass": self.storage_class, "crc32c": self.crc32c, "etag": self.etag,
            **({} if self.md5 is None else {"md5Hash": self.md5}), **self.content,
            **({} if self.components is None else {"componentCount": self.components}),
            **{key: rfc3339(time) for key, time in times.items() if time},
            **({"metadata": dict(self.metadata)} if self.metadata else {}),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _PastObject:
    stored: ObjectGeneration

    @property
    def name(self) -> str:
        return self.stored.name

    @property
    def generation(self) -> int:
        return self.stored.generation


@dataclass(frozen=True, slots=True)
class SoftDeletedObject(_PastObject):
    """A deleted generation, which can be listed and restored until its `hard_delete`."""

    soft_delete: datetime
    hard_delete: datetime

    def resource(self) -> dict[str, Any]:
        return {**self.stored.resource(), "softDeleteTime": rfc3339(self.soft_delete), "hardDeleteTime": rfc3339(self.hard_delete)}


@dataclass(frozen=True, slots=True)
class NoncurrentObject(_PastObject):
    """A generation that was overwritten or deleted while the bucket kept versions."""

    deleted: datetime

    def resource(self) -> dict[str, Any]:
        return {**self.stored.resource(), "timeDeleted": rfc3339(self.deleted)}


Listed = ObjectGeneration | SoftDeletedObject | NoncurrentObject


def rfc3339(time: datetime) -> str:
    exact = "milliseconds" if time.microsecond % 1000 == 0 else "microseconds"
    return time.astimezone(UTC).isoformat(timespec=exact).replace("+00:00", "Z")


def from_ns(ns: int) -> datetime:
    """Returns the time in whole milliseconds, as the service shows its own times."""
    return EPOCH + timedelta(milliseconds=ns // 1_000_000)


def parse_time(text: object) -> datetime:
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        raise GcsError(400, f"Invalid value {text}: not an RFC 3339 time") from None
    if time.tzinfo is None:
        raise GcsError(400, f"Invalid value {text}: an RFC 3339 time has an offset")
    return time


def check_name(name: str) -> None:
    size = len(name.encode())
    if not 0 < size <= NAME_BYTES_MAX:
        raise GcsError(400, f"The object name has {size} bytes; 1 to {NAME_BYTES_MAX} are allowed", code="KeyTooLong" if size else None)
    if name in (".", "..") or "\r" in name or "\n" in name or name.startswith(".well-known/acme-challenge/"):
        raise GcsError(400, f"Invalid object name {name!r}")


def check_fields(resource: Mapping[str, Any]) -> None:
    """Raises `GcsError` 501 if a resource asks for what the emulator would not do."""
    asked = [field for field in FIELDS_LACKING if resource.get(field)]
    if asked:
        raise GcsError.lacking(f"{asked[0]} of an object")


def check_resource(resource: Mapping[str, Any], storage_class: str) -> None:
    """Raises `GcsError` if an object may not be described like this. `storage_class`: where it names none."""
    check_fields(resource)
    merged({}, resource.get("metadata"))
    storage_class_of(resource, storage_class)
    if resource.get("customTime"):
        parse_time(resource["customTime"])


def storage_class_of(resource: Mapping[str, Any], default: str) -> str:
    asked = resource.get("storageClass") or default
    if asked not in STORAGE_CLASSES:
        raise GcsError(400, f"Invalid storage class {asked!r}", code="InvalidStorageClass")
    return str(asked)


def crc_of(payload: bytes) -> str:
    return base64.b64encode(google_crc32c.value(payload).to_bytes(4, "big")).decode()


def md5_of(payload: bytes) -> str:
    return base64.b64encode(hashlib.md5(payload, usedforsecurity=False).digest()).decode()


def check_hashes(expected: Iterable[tuple[str, object]], crc32c: str, md5: str | None) -> None:
    """Checks hashes. `expected`: (crc32c or md5, base64) as the client sent them. Other kinds are ignored.

    Raises `GcsError` 400.
    """
    for kind, told in expected:
        actual = {"crc32c": crc32c, "md5": md5}.get(kind)
        try:
            differs = actual is not None and base64.b64decode(str(told), validate=True) != base64.b64decode(actual)
        except ValueError:
            raise GcsError(400, f"Invalid {kind} {told!r}: it is not base64", code="InvalidDigest") from None
        if differs:
            raise GcsError(400, f'Provided {kind.upper()} "{told}" doesn\'t match calculated {kind.upper()} "{actual}".', code="BadDigest")


def merged(old: Mapping[str, str], change: object) -> dict[str, str]:
    """Returns custom metadata after a JSON merge: null removes a key."""
    if change is None:
        return {}
    if not isinstance(change, dict) or not all(value is None or isinstance(value, str) for value in change.values()):
        raise GcsError(400, "Invalid metadata: it must be an object of strings")
    new = {key: value for key, value in {**old, **change}.items() if value is not None}
    if sum(len(key.encode()) + len(value.encode()) for key, value in new.items()) > METADATA_BYTES_MAX:
        raise GcsError(400, f"The custom metadata exceed {METADATA_BYTES_MAX} bytes", code="MetadataTooLarge")
    return new


def content_of(resource: Mapping[str, Any], old: Mapping[str, str] | None = None) -> dict[str, str]:
    both = {**(old or {}), **{key: resource[key] for key in CONTENT_KEYS if key in resource}}
    return {key: str(value) for key, value in both.items() if value is not None}
