"""Buckets and objects of the GCS emulator, in memory: generations, preconditions, listings, lifecycle.

    Bucket.objects    name -> ObjectGeneration, the live ones; names are listed by the bytes of their UTF-8

No method awaits, so each is atomic. A custom time may only move forward. In a bucket with versioning, what was
overwritten or deleted becomes noncurrent. It can be listed, read and copied until its generation is deleted. Whatever
is deleted otherwise can be listed and restored for as long as the bucket's soft delete policy says. A bucket keeps the
last thousand generations of either kind, and no more than 256 MiB of soft-deleted ones.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import quote

import google_crc32c

from emulators.gcs.wire import GcsError, is_true

NAME_BYTES_MAX = 1024
METADATA_BYTES_MAX = 8192
PAGE_MAX = 1000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WEEK_S = 7 * 86_400
SOFT_DELETED_MAX, SOFT_DELETED_BYTES_MAX = 1000, 256 * 1024 * 1024
NONCURRENT_MAX = 1000
CONTENT_KEYS = ("contentType", "contentEncoding", "contentDisposition", "contentLanguage", "cacheControl")
FIELDS_LACKING = ("acl", "temporaryHold", "eventBasedHold", "retention", "contexts", "kmsKeyName", "customerEncryption")
CONDITIONS = {"age", "createdBefore", "customTimeBefore", "daysSinceCustomTime", "isLive", "matchesPrefix", "matchesSuffix"}
ABORT, CONDITIONS_OF_UPLOADS = "AbortIncompleteMultipartUpload", {"age", "matchesPrefix", "matchesSuffix"}


@dataclass(frozen=True, slots=True)
class ObjectGeneration:
    """One generation. `content`: type, encoding, ... by their JSON names. Hashes are base64, as on the wire.

    `md5` None: it was uploaded in several parts.
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

    @property
    def etag(self) -> str:
        return base64.b64encode(f"{self.generation}/{self.metageneration}".encode()).decode()

    def resource(self) -> dict[str, Any]:
        """Returns its metadata as the JSON API shows them. Numbers of 64 bits are text, and empty fields are absent."""
        times = {"timeCreated": self.created, "updated": self.updated, "timeFinalized": self.created, "customTime": self.custom_time}
        path = f"b/{quote(self.bucket, safe='')}/o/{quote(self.name, safe='')}"
        return {
            "kind": "storage#object", "id": f"{self.bucket}/{self.name}/{self.generation}", "bucket": self.bucket, "name": self.name,
            "selfLink": f"https://www.googleapis.com/storage/v1/{path}",
            "generation": str(self.generation), "metageneration": str(self.metageneration), "size": str(len(self.payload)),
            "storageClass": "STANDARD", "crc32c": self.crc32c, "etag": self.etag,
            **({} if self.md5 is None else {"md5Hash": self.md5}), **self.content,
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


def parse_int(query: Mapping[str, str], key: str) -> int | None:
    if key not in query:
        return None
    try:
        return int(query[key])
    except ValueError:
        raise GcsError(400, f"Invalid value for {key}: {query[key]} is no integer") from None


def check_name(name: str) -> None:
    size = len(name.encode())
    if not 0 < size <= NAME_BYTES_MAX:
        raise GcsError(400, f"The object name has {size} bytes; 1 to {NAME_BYTES_MAX} are allowed")
    if name in (".", "..") or "\r" in name or "\n" in name or name.startswith(".well-known/acme-challenge/"):
        raise GcsError(400, f"Invalid object name {name!r}")


def check_fields(resource: Mapping[str, Any]) -> None:
    """Raises `GcsError` 501 if a resource asks for what the emulator would not do."""
    asked = [field for field in FIELDS_LACKING if resource.get(field)]
    if asked or resource.get("storageClass") not in (None, "STANDARD"):
        raise GcsError.lacking(f"{(*asked, 'storageClass')[0]} of an object")


def check_preconditions(query: Mapping[str, str], current: ObjectGeneration | None, *, reading: bool = False) -> None:
    """Raises `GcsError` if a precondition does not hold. Generation 0 stands for absence.

    A failed *not* is 304 for reads. Every other failure is 412.
    """
    facts = {
        "Generation": current.generation if current else 0,
        "Metageneration": current.metageneration if current else 0,
    }
    for fact, actual in facts.items():
        wanted, unwanted = parse_int(query, f"if{fact}Match"), parse_int(query, f"if{fact}NotMatch")
        if wanted is not None and wanted != actual:
            raise GcsError(412, "At least one of the pre-conditions you specified did not hold.")
        if unwanted is not None and unwanted == actual:
            raise GcsError(304 if reading else 412, "At least one of the pre-conditions you specified did not hold.")


# --- what is stored ------------------------------------------------------------------------------


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
        except binascii.Error:
            raise GcsError(400, f"Invalid {kind} {told!r}: it is not base64") from None
        if differs:
            raise GcsError(400, f'Provided {kind.upper()} "{told}" doesn\'t match calculated {kind.upper()} "{actual}".')


def merged(old: Mapping[str, str], change: object) -> dict[str, str]:
    """Returns custom metadata after a JSON merge: null removes a key."""
    if change is None:
        return {}
    if not isinstance(change, dict) or not all(value is None or isinstance(value, str) for value in change.values()):
        raise GcsError(400, "Invalid metadata: it must be an object of strings")
    new = {key: value for key, value in {**old, **change}.items() if value is not None}
    if sum(len(key.encode()) + len(value.encode()) for key, value in new.items()) > METADATA_BYTES_MAX:
        raise GcsError(400, f"The custom metadata exceed {METADATA_BYTES_MAX} bytes")
    return new


def content_of(resource: Mapping[str, Any], old: Mapping[str, str] | None = None) -> dict[str, str]:
    both = {**(old or {}), **{key: resource[key] for key in CONTENT_KEYS if key in resource}}
    return {key: str(value) for key, value in both.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ObjectPage:
    objects: Sequence[ObjectGeneration | SoftDeletedObject | NoncurrentObject]
    prefixes: list[str]
    next_token: str | None


@dataclass(slots=True)
class Bucket:
    """A bucket. `settings`: its own resource, as created and patched. `page_max`: the most that one page lists."""

    name: str
    settings: dict[str, Any]
    objects: dict[str, ObjectGeneration] = field(default_factory=dict)
    page_max: int = PAGE_MAX
    _soft_deleted: deque[SoftDeletedObject] = field(default_factory=deque)
    _soft_deleted_bytes: int = 0
    _noncurrent: deque[NoncurrentObject] = field(default_factory=deque)
    _order: list[bytes] = field(default_factory=list)
    _last_generation: int = 0

    def get(self, name: str, query: Mapping[str, str], *, reading: bool = False) -> ObjectGeneration:
        """Returns an object.

        Raises 404 if it, or the generation that was asked for, does not exist; 412 or 304 by preconditions.
        """
        found, generation = self.objects.get(name), parse_int(query, "generation")
        if generation is not None and (found is None or found.generation != generation):
            found = next((each.stored for each in self._noncurrent if (each.name, each.generation) == (name, generation)), None)
        if found is None:
            raise GcsError(404, f"No such object: {self.name}/{name}")
        check_preconditions(query, found, reading=reading)
        return found

    def _live(self, name: str, query: Mapping[str, str]) -> ObjectGeneration:
        found = self.get(name, query)
        if found is not self.objects.get(name):
            raise GcsError.lacking("a change of a noncurrent generation")
        return found

    def insert(self, name: str, payload: bytes, resource: Mapping[str, Any], query: Mapping[str, str],
               told: Iterable[tuple[str, object]], now_ns: int, *, whole: bool = True) -> ObjectGeneration:  # fmt: skip
        """Creates or replaces an object in one step. If it raises `GcsError`, nothing changes.

        `told`: hashes besides those in `resource`. `whole` False: it came in several parts, so it gets no MD5.
        """
        check_name(name)
        check_fields(resource)
        crc32c, md5 = crc_of(payload), md5_of(payload) if whole else None
        check_hashes([*told, *((key, resource[where]) for key, where in (("crc32c", "crc32c"), ("md5", "md5Hash")) if where in resource)],
                     crc32c, md5)  # fmt: skip
        check_preconditions(query, self.objects.get(name))
        metadata = merged({}, resource.get("metadata"))
        custom_time = parse_time(resource["customTime"]) if resource.get("customTime") else None
        now, generation = from_ns(now_ns), self._next_generation(now_ns)
        stored = ObjectGeneration(self.name, name, payload, content_of(resource), metadata, custom_time, generation, now, now, crc32c, md5)
        self._put(stored, now_ns)
        return stored

    def copy(self, source: ObjectGeneration, name: str, resource: Mapping[str, Any] | None, query: Mapping[str, str],
             now_ns: int) -> ObjectGeneration:  # fmt: skip
        """Copies an object into this bucket. `resource`: all of the copy's metadata; None: those of the source."""
        return self.insert(name, source.payload, source.resource() if resource is None else resource, query, (), now_ns)

    def _next_generation(self, now_ns: int) -> int:
        self._last_generation = max(now_ns // 1000, self._last_generation + 1)
        return self._last_generation

    def _put(self, stored: ObjectGeneration, now_ns: int) -> None:
        name = stored.name
        if name not in self.objects:
            insort(self._order, name.encode())
        else:
            self._keep(self.objects[name], now_ns)
        self.objects[name] = stored

    @property
    def has_noncurrent(self) -> bool:
        return bool(self._noncurrent)

    @property
    def keeps_versions(self) -> bool:
        return bool((self.settings.get("versioning") or {}).get("enabled"))

    def remove(self, name: str, query: Mapping[str, str], now_ns: int) -> None:
        """Deletes an object. With `generation`, that generation is no version any more, live or not."""
        gone = self.get(name, query)
        for each in [each for each in self._noncurrent if each.stored is gone]:
            self._noncurrent.remove(each)
            self._soft_delete(gone, now_ns)
            return
        (self._soft_delete if "generation" in query else self._keep)(gone, now_ns)
        self._drop(name)

    def move(self, name: str, of_source: Mapping[str, str], target: str, query: Mapping[str, str], now_ns: int) -> ObjectGeneration:
        """Gives an object another name, in one step. The old one is not soft-deleted."""
        check_name(target)
        source, now = self._live(name, of_source), from_ns(now_ns)
        if name == target:
            raise GcsError(400, "The source and the destination of a move must have different names.")
        check_preconditions(query, self.objects.get(target))
        generation = self._next_generation(now_ns)
        moved = replace(source, name=target, generation=generation, metageneration=1, created=now, updated=now)
        self._put(moved, now_ns)
        self._drop(name)
        return moved

    def _drop(self, name: str) -> None:
        del self.objects[name]
        del self._order[bisect_left(self._order, name.encode())]

    def _keep(self, gone: ObjectGeneration, now_ns: int) -> None:
        if not self.keeps_versions:
            self._soft_delete(gone, now_ns)
            return
        self._noncurrent.append(NoncurrentObject(gone, from_ns(now_ns)))
        if len(self._noncurrent) > NONCURRENT_MAX:
            self._noncurrent.popleft()

    def versions(self, query: Mapping[str, str]) -> ObjectPage:
        """Returns one page of the live and the noncurrent generations, by name and generation.

        Its tokens are valid as long as nothing is written or deleted.
        """
        if query.get("delimiter"):
            raise GcsError.lacking("a delimiter where versions are listed")
        return self._page_of([*self.objects.values(), *self._noncurrent], query)

    def _page_of(self, listed: Iterable[ObjectGeneration | SoftDeletedObject | NoncurrentObject], query: Mapping[str, str]) -> ObjectPage:
        prefix, start, end = (query.get(key, "").encode() for key in ("prefix", "startOffset", "endOffset"))
        found = [
            each for each in listed
            if (name := each.name.encode()).startswith(prefix) and start <= name and (not end or name < end)
        ]  # fmt: skip
        found.sort(key=lambda each: (each.name.encode(), each.generation))
        limit = min(parse_int(query, "maxResults") or PAGE_MAX, self.page_max)
        first = parse_int(query, "pageToken") or 0
        return ObjectPage(found[first : first + limit], [], str(first + limit) if first + limit < len(found) else None)

    def _soft_delete(self, gone: ObjectGeneration, now_ns: int) -> None:
        kept_s = int((self.settings.get("softDeletePolicy") or {}).get("retentionDurationSeconds", 0))
        if kept_s:
            times = from_ns(now_ns), from_ns(now_ns) + timedelta(seconds=kept_s)
            self._soft_deleted.append(SoftDeletedObject(gone, *times))
            self._soft_deleted_bytes += len(gone.payload)
            while len(self._soft_deleted) > SOFT_DELETED_MAX or self._soft_deleted_bytes > SOFT_DELETED_BYTES_MAX:
                self._soft_deleted_bytes -= len(self._soft_deleted.popleft().stored.payload)

    def restore(self, name: str, query: Mapping[str, str], now_ns: int) -> ObjectGeneration:
        """Makes a live object of a soft-deleted generation, with its metadata. That generation stays soft-deleted.

        Raises 404 if the generation is not kept, and 412 by preconditions on the live object.
        """
        kept, now = self.get_soft_deleted(name, query, now_ns), from_ns(now_ns)
        check_preconditions(query, self.objects.get(name))
        fresh = self._next_generation(now_ns)
        stored = replace(kept.stored, generation=fresh, metageneration=1, created=now, updated=now)
        self._put(stored, now_ns)
        return stored

    def _kept(self, now_ns: int) -> Iterator[SoftDeletedObject]:
        return (each for each in self._soft_deleted if each.hard_delete > from_ns(now_ns))

    def get_soft_deleted(self, name: str, query: Mapping[str, str], now_ns: int) -> SoftDeletedObject:
        """Returns a deleted generation. Raises 404 if it is not kept."""
        generation = parse_int(query, "generation")
        if generation is None:
            raise GcsError(400, "Required parameter: generation", "required")
        for each in self._kept(now_ns):
            if (each.name, each.generation) == (name, generation):
                return each
        raise GcsError(404, f"No such object: {self.name}/{name}#{generation}")

    def soft_deleted(self, query: Mapping[str, str], now_ns: int) -> ObjectPage:
        """Returns one page of what was deleted, by name and generation.

        Its tokens are valid as long as nothing more is deleted."""
        if is_true(query, "versions"):
            raise GcsError(400, "You can't set both versions and softDeleted")
        if query.get("delimiter"):
            raise GcsError.lacking("a delimiter where soft-deleted objects are listed")
        return self._page_of(self._kept(now_ns), query)

    def update(self, name: str, resource: Mapping[str, Any], query: Mapping[str, str], now_ns: int) -> ObjectGeneration:
        """Replaces an object's metadata. What is not in the resource is taken away."""
        gone, metadata = dict.fromkeys(self.get(name, query).metadata), resource.get("metadata") or {}
        replaced = {**gone, **metadata} if isinstance(metadata, dict) else metadata
        return self.patch(name, {**dict.fromkeys((*CONTENT_KEYS, "customTime")), **resource, "metadata": replaced}, query, now_ns)

    def patch(self, name: str, change: Mapping[str, Any], query: Mapping[str, str], now_ns: int) -> ObjectGeneration:
        check_fields(change)
        old = self._live(name, query)
        custom_time = old.custom_time
        if "customTime" in change:
            custom_time = parse_time(change["customTime"]) if change["customTime"] is not None else None
            if old.custom_time and (custom_time is None or custom_time < old.custom_time):
                raise GcsError(400, f"The custom time can not be removed or set to before {rfc3339(old.custom_time)}")
        new = replace(
            old, content=content_of(change, old.content), custom_time=custom_time, updated=from_ns(now_ns),
            metadata=merged(old.metadata, change["metadata"]) if "metadata" in change else old.metadata,
            metageneration=old.metageneration + 1,
        )  # fmt: skip
        self.objects[name] = new
        return new

    def page(self, query: Mapping[str, str]) -> ObjectPage:
        """Returns one page of the listing. Its objects and prefixes together are at most `maxResults`.

        With `includeTrailingDelimiter`, an object that a prefix names whole is told beside it, and not counted.
        """
        prefix, delimiter, end = (query.get(key, "").encode() for key in ("prefix", "delimiter", "endOffset"))
        limit = parse_int(query, "maxResults") or PAGE_MAX
        if limit < 1:
            raise GcsError(400, f"Invalid maxResults {limit}")
        position = max(prefix, query.get("startOffset", "").encode(), _from_token(query.get("pageToken", "")))
        objects: list[ObjectGeneration] = []
        page, beside = ObjectPage(objects, [], None), 0
        while (key := self._next(position, prefix, end)) is not None:
            if len(objects) + len(page.prefixes) - beside >= min(limit, self.page_max):
                return replace(page, next_token=base64.urlsafe_b64encode(position).decode())
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            if cut < 0:
                objects.append(self.objects[key.decode()])
                position = key + b"\0"
            else:
                group = key[: cut + len(delimiter)]
                page.prefixes.append(group.decode())
                if group == key and is_true(query, "includeTrailingDelimiter"):
                    objects.append(self.objects[key.decode()])
                    beside += 1
                position = group[:-1] + bytes([group[-1] + 1])  # behind all names that begin with it; no byte of UTF-8 is 255
        return page

    def _next(self, position: bytes, prefix: bytes, end: bytes) -> bytes | None:
        index = bisect_left(self._order, position)
        key = self._order[index] if index < len(self._order) else None
        return key if key is not None and key.startswith(prefix) and (not end or key < end) else None

    def expire(self, now_ns: int) -> list[str]:
        """Deletes what a lifecycle rule says. Returns the names."""
        conditions = [rule["condition"] for rule in lifecycle_rules(self.settings) if rule["action"]["type"] == "Delete"]
        gone = [name for name, stored in self.objects.items() if any(_applies(each, stored, from_ns(now_ns)) for each in conditions)]
        old = [each for each in self._noncurrent if any(_applies(rule, each.stored, from_ns(now_ns), live=False) for rule in conditions)]
        for name in gone:
            self.remove(name, {}, now_ns)
        for each in old:
            self.remove(each.name, {"generation": str(each.generation)}, now_ns)
        return [*gone, *(each.name for each in old)]


def bucket_of(buckets: Mapping[str, Bucket], name: str) -> Bucket:
    if name not in buckets:
        raise GcsError(404, "The specified bucket does not exist.")
    return buckets[name]


def _from_token(token: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(token)
    except binascii.Error:
        raise GcsError(400, f"Invalid page token {token}") from None


# --- lifecycle -----------------------------------------------------------------------------------


def lifecycle_rules(settings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the rules of a bucket's settings.

    Raises 400 for a rule that this emulator lacks, so that no test depends on it.
    """
    rules = list((settings.get("lifecycle") or {}).get("rule", []))
    for rule in rules:
        unknown = set(rule.get("condition", {})) - CONDITIONS
        kind = rule.get("action", {}).get("type")
        if kind == ABORT and not set(rule.get("condition", {})) - CONDITIONS_OF_UPLOADS:
            continue
        if kind != "Delete" or not rule.get("condition") or unknown:
            raise GcsError(400, f"Invalid lifecycle rule {rule}: only {ABORT}, and Delete by {', '.join(sorted(CONDITIONS))}")
    return rules


def applies_to_upload(settings: Mapping[str, Any], name: str, begun: datetime, now: datetime) -> bool:
    """Tells whether a rule ends an upload of several parts."""
    return any(
        all(tests[key](wanted) for key, wanted in rule["condition"].items())
        for rule in lifecycle_rules(settings) if rule["action"]["type"] == ABORT
        for tests in [_of_name(name) | {"age": lambda days: now >= begun + timedelta(days=int(days))}]
    )  # fmt: skip


def _of_name(name: str) -> dict[str, Callable[[Any], bool]]:
    return {
        "matchesPrefix": lambda prefixes: name.startswith(tuple(prefixes)),
        "matchesSuffix": lambda suffixes: name.endswith(tuple(suffixes)),
    }


def _applies(condition: Mapping[str, Any], stored: ObjectGeneration, now: datetime, *, live: bool = True) -> bool:
    """Tells whether all of the condition holds."""
    custom = stored.custom_time
    tests: dict[str, Callable[[Any], bool]] = {
        "age": lambda days: now >= stored.created + timedelta(days=int(days)),
        "createdBefore": lambda day: stored.created.date() < date.fromisoformat(day),
        "customTimeBefore": lambda day: custom is not None and custom.astimezone(UTC).date() < date.fromisoformat(day),
        "daysSinceCustomTime": lambda days: custom is not None and now >= custom + timedelta(days=int(days)),
        "isLive": lambda wanted: bool(wanted) is live,
        **_of_name(stored.name),
    }
    return all(tests[key](wanted) for key, wanted in condition.items())
