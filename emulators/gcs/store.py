"""Buckets of the GCS emulator, in memory: generations, preconditions, versions, soft deletion, expiry.

    Bucket.objects    name -> ObjectGeneration, the live ones; names are listed by the bytes of their UTF-8

No method awaits, so each is atomic. A custom time may only move forward. In a bucket with versioning, what was
overwritten or deleted becomes noncurrent. It can be listed, read and copied until its generation is deleted. Whatever
is deleted otherwise can be listed and restored for as long as the bucket's soft delete policy says. A bucket keeps the
last thousand generations of either kind, and no more than 256 MiB of soft-deleted ones.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from emulators.gcs.answers import GcsError
from emulators.gcs.conditions import check_preconditions
from emulators.gcs.lifecycle import applies, conditions_of
from emulators.gcs.listing import PAGE_MAX, ObjectPage, from_token, limit_of, page_of, token_of
from emulators.gcs.objects import (
    CONTENT_KEYS,
    NoncurrentObject,
    ObjectGeneration,
    SoftDeletedObject,
    check_fields,
    check_hashes,
    check_name,
    content_of,
    crc_of,
    from_ns,
    md5_of,
    merged,
    parse_time,
    rfc3339,
    storage_class_of,
)
from emulators.gcs.wire import is_true, parse_int

WEEK_S = 7 * 86_400
SOFT_DELETED_MAX, SOFT_DELETED_BYTES_MAX = 1000, 256 * 1024 * 1024
NONCURRENT_MAX = 1000
COMPOSED_MAX = 32


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
               told: Iterable[tuple[str, object]], now_ns: int, *, whole: bool = True,
               components: int | None = None) -> ObjectGeneration:  # fmt: skip
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
        storage_class = storage_class_of(resource, self.settings.get("storageClass") or "STANDARD")
        now, generation = from_ns(now_ns), self._next_generation(now_ns)
        stored = ObjectGeneration(
            self.name, name, payload, content_of(resource), metadata, custom_time, generation, now, now, crc32c, md5,
            storage_class=storage_class, components=components,
        )  # fmt: skip
        self._put(stored, now_ns)
        return stored

    def copy(self, source: ObjectGeneration, name: str, resource: Mapping[str, Any] | None, query: Mapping[str, str],
             now_ns: int) -> ObjectGeneration:  # fmt: skip
        """Copies an object into this bucket. `resource`: all of the copy's metadata; None: those of the source."""
        chosen = source.resource() if resource is None else resource
        return self.insert(name, source.payload, chosen, query, (), now_ns, whole=source.md5 is not None, components=source.components)

    def compose(self, sources: Sequence[ObjectGeneration], name: str, resource: Mapping[str, Any], query: Mapping[str, str],
                now_ns: int) -> ObjectGeneration:  # fmt: skip
        """Puts objects together, in one step. `resource`: the metadata of the composite, which has no MD5.

        Hashes in them are not looked at: Google's client sends those of what the composite replaces.
        """
        if not 1 <= len(sources) <= COMPOSED_MAX:
            raise GcsError(400, f"{len(sources)} source objects were given; 1 to {COMPOSED_MAX} are allowed")
        if len(classes := {each.storage_class for each in sources}) > 1:
            raise GcsError(400, f"The source objects have several storage classes: {', '.join(sorted(classes))}")
        payload, count = b"".join(each.payload for each in sources), sum(each.components or 1 for each in sources)
        told = {key: value for key, value in resource.items() if key not in ("crc32c", "md5Hash")}
        described = {"storageClass": sources[0].storage_class, **told}
        return self.insert(name, payload, described, query, (), now_ns, whole=False, components=count)

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
        """Returns one page of the live and the noncurrent generations, by name and generation."""
        return page_of([*self.objects.values(), *self._noncurrent], query, self.page_max)

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
        """Returns one page of what was deleted, by name and generation."""
        if is_true(query, "versions"):
            raise GcsError(400, "You can't set both versions and softDeleted")
        return page_of(self._kept(now_ns), query, self.page_max)

    def update(self, name: str, resource: Mapping[str, Any], query: Mapping[str, str], now_ns: int) -> ObjectGeneration:
        """Replaces an object's metadata. What is not in the resource is taken away."""
        gone, metadata = dict.fromkeys(self.get(name, query).metadata), resource.get("metadata") or {}
        replaced = {**gone, **metadata} if isinstance(metadata, dict) else metadata
        return self.patch(name, {**dict.fromkeys((*CONTENT_KEYS, "customTime")), **resource, "metadata": replaced}, query, now_ns)

    def patch(self, name: str, change: Mapping[str, Any], query: Mapping[str, str], now_ns: int) -> ObjectGeneration:
        check_fields(change)
        old = self._live(name, query)
        if storage_class_of(change, old.storage_class) != old.storage_class:
            raise GcsError(400, "The storage class of an object changes only when it is rewritten.")
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
        if query.get("matchGlob"):
            return page_of(self.objects.values(), query, self.page_max)
        prefix, delimiter, end = (query.get(key, "").encode() for key in ("prefix", "delimiter", "endOffset"))
        limit = limit_of(query, self.page_max)
        position = max(prefix, query.get("startOffset", "").encode(), from_token(query.get("pageToken", "")))
        objects: list[ObjectGeneration] = []
        page, beside = ObjectPage(objects, [], None), 0
        while (key := self._next(position, prefix, end)) is not None:
            if len(objects) + len(page.prefixes) - beside >= limit:
                return replace(page, next_token=token_of(position))
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
        conditions, now = conditions_of(self.settings, "Delete"), from_ns(now_ns)
        gone = [
            each.name for each in self.objects.values()
            if any(applies(condition, each.name, each.created, now, each.custom_time) for condition in conditions)
        ]  # fmt: skip
        for name in gone:
            self.remove(name, {}, now_ns)
        return gone


def bucket_of(buckets: Mapping[str, Bucket], name: str) -> Bucket:
    if name not in buckets:
        raise GcsError(404, "The specified bucket does not exist.", code="NoSuchBucket")
    return buckets[name]
