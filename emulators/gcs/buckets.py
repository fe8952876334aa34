"""Buckets of the GCS emulator, as the JSON API creates, shows, changes and deletes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from changelog.base.runtime import Runtime
from emulators.gcs.answers import GcsError, WireResponse
from emulators.gcs.bodies import json_object, object_in
from emulators.gcs.conditions import check_preconditions, check_tags
from emulators.gcs.lifecycle import lifecycle_rules
from emulators.gcs.objects import from_ns, rfc3339, storage_class_of
from emulators.gcs.shown import Step, shown
from emulators.gcs.store import WEEK_S, Bucket, bucket_of
from emulators.gcs.wire import WireRequest

FIXED = ("kind", "id", "name", "timeCreated", "location", "storageClass", "softDeletePolicy")
"""What an update does not take away."""


@dataclass(frozen=True, slots=True)
class _Settings:
    """As `check_preconditions` asks for it. A bucket has no generation."""

    metageneration: int
    generation: int = 0


class BucketsService:
    """`buckets`: by name."""

    def __init__(self, runtime: Runtime) -> None:
        self.buckets: dict[str, Bucket] = {}
        self._runtime = runtime

    def steps(self) -> dict[str, Step]:
        return {
            "bucket.create": self._create, "bucket.get": self._get, "bucket.list": self._list, "bucket.patch": self._patch,
            "bucket.update": self._update, "bucket.delete": self._delete,
        }  # fmt: skip

    def create(self, name: str, settings: Mapping[str, Any] | None = None) -> Bucket:
        """Creates a bucket, as the call does. Raises `GcsError` if it exists or its settings are not allowed."""
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", name):
            raise GcsError(400, f"Invalid bucket name: '{name}'", code="InvalidBucketName")
        if name in self.buckets:
            told = "Your previous request to create the named bucket succeeded and you already own it."
            raise GcsError(409, told, code="BucketAlreadyOwnedByYou")
        now = self._now()
        soft_delete = {"retentionDurationSeconds": str(WEEK_S), "effectiveTime": now}
        fixed = {"kind": "storage#bucket", "id": name, "name": name, "timeCreated": now, "updated": now, "metageneration": "1"}
        chosen = {"location": "US", "storageClass": "STANDARD", "softDeletePolicy": soft_delete, **(settings or {})}
        _check(chosen)
        self.buckets[name] = Bucket(name, {**chosen, **fixed})
        return self.buckets[name]

    def delete(self, name: str) -> None:
        if bucket_of(self.buckets, name).objects:
            raise GcsError(409, "The bucket you tried to delete is not empty.", code="BucketNotEmpty")
        del self.buckets[name]

    def _now(self) -> str:
        return rfc3339(from_ns(self._runtime.wall_ns()))

    def _found(self, call: WireRequest, *, reading: bool = False) -> Bucket:
        bucket = bucket_of(self.buckets, call.bucket)
        check_preconditions(call.query, _Settings(int(bucket.settings["metageneration"])), reading=reading)
        return bucket

    def _create(self, call: WireRequest, body: bytes) -> WireResponse:
        settings = json_object(body)
        return _shown(self.create(str(settings.get("name", "")), settings), call)

    def _get(self, call: WireRequest, body: bytes) -> WireResponse:
        bucket = self._found(call, reading=True)
        check_tags(call.headers, _etag(bucket))
        return _shown(bucket, call)

    def _list(self, call: WireRequest, body: bytes) -> WireResponse:
        return shown({"kind": "storage#buckets", "items": [_resource(bucket) for _, bucket in sorted(self.buckets.items())]}, call)

    def _patch(self, call: WireRequest, body: bytes) -> WireResponse:
        bucket = self._found(call)
        return self._changed(bucket, {**bucket.settings, **json_object(body)}, call)

    def _update(self, call: WireRequest, body: bytes) -> WireResponse:
        """Replaces the settings. What is not in the body is taken away, but for what a bucket always has."""
        bucket = self._found(call)
        fixed = {key: bucket.settings[key] for key in FIXED if key in bucket.settings}
        return self._changed(bucket, {**fixed, **json_object(body)}, call)

    def _changed(self, bucket: Bucket, settings: Mapping[str, Any], call: WireRequest) -> WireResponse:
        _check(settings)
        metageneration = str(int(bucket.settings["metageneration"]) + 1)
        own = {"name": bucket.name, "id": bucket.name, "metageneration": metageneration, "updated": self._now()}
        bucket.settings = {key: value for key, value in {**settings, **own}.items() if value is not None and key != "etag"}
        return _shown(bucket, call)

    def _delete(self, call: WireRequest, body: bytes) -> WireResponse:
        self.delete(self._found(call).name)
        return WireResponse(204)


def _check(settings: Mapping[str, Any]) -> None:
    """Raises `GcsError` 400 unless the settings that the emulator heeds make sense."""
    lifecycle_rules(settings)
    object_in(settings, "versioning")
    storage_class_of(settings, "STANDARD")
    kept = object_in(settings, "softDeletePolicy").get("retentionDurationSeconds", 0)
    if not str(kept).isdecimal():
        raise GcsError(400, f"Invalid value for softDeletePolicy.retentionDurationSeconds: {kept!r}")


def _etag(bucket: Bucket) -> str:
    return f"CA{bucket.settings['metageneration']}="


def _resource(bucket: Bucket) -> dict[str, Any]:
    return {**bucket.settings, "etag": _etag(bucket)}


def _shown(bucket: Bucket, call: WireRequest) -> WireResponse:
    return shown(_resource(bucket), call)
