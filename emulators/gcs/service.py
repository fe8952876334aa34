"""What each call of the GCS emulator does: a function from a call and its body to an answer, without I/O.

Each is one atomic step. `emulators.gcs.server` reads the whole body first, so a body that breaks off has no effect.
Only the bytes of a resumable upload are kept as they arrive, by `arrive` below.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from changelog.base.runtime import Runtime
from emulators.gcs.media import media
from emulators.gcs.parts import PartsService
from emulators.gcs.sessions import SESSION_AGE_MAX_NS, ContentRange, Session
from emulators.gcs.store import (
    WEEK_S,
    Bucket,
    ObjectGeneration,
    bucket_of,
    check_fields,
    check_name,
    check_preconditions,
    from_ns,
    lifecycle_rules,
    rfc3339,
)
from emulators.gcs.wire import (
    GcsError,
    WireRequest,
    WireResponse,
    XmlError,
    batch_answer,
    batch_calls,
    is_true,
    json_object,
    multipart_upload,
    parse_fields,
    select,
)
from emulators.gcs.xml import xml_steps

REWRITTEN_AT_ONCE = 1024 * 1024
LATE_METADATA = "x-goog-meta-"


class GcsService:
    """The service. Tests may read `buckets` and `sessions` (by upload id).

    `merges_rewrites` True: as in Google's testbench, what the body of a rewrite leaves out stays as in the source.
    """

    def __init__(self, runtime: Runtime, fault_of: Callable[[WireRequest], GcsError | None] = lambda call: None) -> None:
        """`fault_of`: the error that a call of a batch gets instead of its effect, or None."""
        self.merges_rewrites = False
        self._fault_of = fault_of
        self.buckets: dict[str, Bucket] = {}
        self.sessions: dict[str, Session] = {}
        self.accounts: dict[str, RSAPublicKey] = {}
        self.parts = PartsService(self.buckets, runtime)
        self._runtime = runtime
        self._steps: dict[str, Callable[[WireRequest, bytes], WireResponse]] = {
            "upload.media": self._upload_media, "upload.multipart": self._upload_multipart, "upload.start": self._start,
            "upload.put": self._finish, "upload.status": self._finish, "upload.cancel": self._cancel,
            "object.get": self._get, "object.read": self._read, "object.delete": self._delete, "object.patch": self._patch,
            "object.update": self._update, "object.rewrite": self._rewrite, "object.copy": self._copy, "object.move": self._move,
            "object.restore": self._restore, "object.list": self._list, "batch": self._batch,
            "bucket.create": self._create_bucket, "bucket.get": self._get_bucket, "bucket.list": self._list_buckets,
            "bucket.patch": self._patch_bucket, "bucket.delete": self._delete_bucket,
            **xml_steps(self.buckets, runtime, self.accounts), **self.parts.steps(),
        }  # fmt: skip

    def answer(self, call: WireRequest, body: bytes) -> WireResponse:
        """Carries the call out, or returns why not."""
        try:
            return self._steps[call.kind](call, body)
        except GcsError as error:
            return (XmlError(error) if call.kind.startswith("xml.") else error).answer()

    def apply_lifecycle(self) -> list[str]:
        """Does what the service does about once a day. Returns the names of objects and uploads that it deleted."""
        gone = [name for bucket in self.buckets.values() for name in bucket.expire(self._runtime.wall_ns())]
        return [*gone, *self.parts.apply_lifecycle()]

    # --- uploads

    def _upload_media(self, call: WireRequest, body: bytes) -> WireResponse:
        return self._insert(call, body, {}, call.headers.get("Content-Type"))

    def _upload_multipart(self, call: WireRequest, body: bytes) -> WireResponse:
        resource, content_type, media = multipart_upload(call.headers.get("Content-Type", ""), body)
        return self._insert(call, media, resource, content_type)

    def _insert(self, call: WireRequest, payload: bytes, resource: dict[str, Any], content_type: str | None) -> WireResponse:
        bucket = self._bucket(call)
        complete = _described(resource, call, content_type)
        stored = bucket.insert(complete["name"], payload, complete, call.query, _told_hashes(call), self._runtime.wall_ns())
        return _shown(stored.resource(), call)

    def _start(self, call: WireRequest, body: bytes) -> WireResponse:
        bucket = self._bucket(call)
        resource = _described(json_object(body), call, call.headers.get("X-Upload-Content-Type"))
        name, size = resource["name"], call.headers.get("X-Upload-Content-Length")
        check_name(name)
        check_preconditions(call.query, bucket.objects.get(name))
        now = self._runtime.wall_ns()
        self._forget_sessions(now)
        upload_id = f"{self._runtime.random.getrandbits(128):032x}"
        total = int(size) if size is not None and size.isdecimal() else None
        self.sessions[upload_id] = Session(upload_id, bucket.name, name, resource, call.query, now, total)
        root = f"http://{call.headers.get('Host', '127.0.0.1')}/upload/storage/v1/b/{bucket.name}/o"
        return WireResponse(
            200, headers={"Location": f"{root}?uploadType=resumable&upload_id={upload_id}", "X-GUploader-UploadID": upload_id}
        )

    def _forget_sessions(self, now_ns: int) -> None:
        """Forgets sessions a week after they expired. They are in order of age."""
        while self.sessions and now_ns - (oldest := next(iter(self.sessions.values()))).created_ns > 2 * SESSION_AGE_MAX_NS:
            del self.sessions[oldest.id]

    def arrive(self, call: WireRequest) -> tuple[Session, ContentRange]:
        """Returns the session to which the body of this request is to be added, and its range.

        Raises `GcsError` if it must not be.
        """
        session = self._session(call)
        sent = ContentRange.parse(call.headers.get("Content-Range"))
        if session.stored is None:
            session.begin(sent)
        return session, sent

    def _session(self, call: WireRequest) -> Session:
        session = self.sessions.get(call.query.get("upload_id", ""))
        if session is None:
            raise GcsError(404, "No such upload session.")
        session.check_open(self._runtime.wall_ns())
        return session

    def _finish(self, call: WireRequest, body: bytes) -> WireResponse:
        """Finalises the session if it is complete. The body is in it already."""
        session = self._session(call)
        if session.stored is None and session.complete:
            session.stored = self._finalise(session, call).resource()
            session.arrived.clear()
        if session.stored is not None:
            return _shown(session.stored, call)
        held = len(session.arrived)
        return WireResponse(308, headers={"Range": f"bytes=0-{held - 1}"} if held else {})

    def _finalise(self, session: Session, call: WireRequest) -> ObjectGeneration:
        """Makes the object and checks it. A wrong checksum ends the session.

        After a failed precondition the client may try again.
        """
        late = {key[len(LATE_METADATA) :].lower(): value for key, value in call.headers.items() if key.lower().startswith(LATE_METADATA)}
        metadata = {**(session.resource.get("metadata") or {}), **late}
        bucket = self._bucket(call)
        try:
            return bucket.insert(session.name, bytes(session.arrived), {**session.resource, "metadata": metadata}, session.query,
                                 _told_hashes(call), self._runtime.wall_ns())  # fmt: skip
        except GcsError as error:
            session.gone = error.status == 400
            raise

    def _cancel(self, call: WireRequest, body: bytes) -> WireResponse:
        """Cancels the session. After 499 it can never be finalised.

        An object that was finalised stays, and the answer is 404.
        """
        session = self._session(call)
        if session.stored is not None:
            raise GcsError(404, "The upload session is complete.")
        session.gone = True
        session.arrived.clear()
        return WireResponse(499)

    # --- objects

    def _get(self, call: WireRequest, body: bytes) -> WireResponse:
        if is_true(call.query, "softDeleted"):
            return _shown(self._bucket(call).get_soft_deleted(call.name, call.query, self._runtime.wall_ns()).resource(), call)
        return _shown(self._bucket(call).get(call.name, call.query, reading=True).resource(), call)

    def _read(self, call: WireRequest, body: bytes) -> WireResponse:
        return media(self._bucket(call).get(call.name, call.query, reading=True), call.headers.get("Range"))

    def _delete(self, call: WireRequest, body: bytes) -> WireResponse:
        self._bucket(call).remove(call.name, call.query, self._runtime.wall_ns())
        return WireResponse(204)

    def _rewrite(self, call: WireRequest, body: bytes) -> WireResponse:
        """Copies an object. A large one takes a second call, with the token that the first one returns."""
        source, target = self._source(call), self._target(call)
        check_fields(resource := json_object(body))
        size = len(source.payload)
        check_preconditions(call.query, target.objects.get(call.target[1]))
        told = {"kind": "storage#rewriteResponse", "objectSize": str(size), "totalBytesRewritten": str(size)}
        if size > REWRITTEN_AT_ONCE and call.query.get("rewriteToken") != str(source.generation):
            half = {"totalBytesRewritten": str(REWRITTEN_AT_ONCE), "done": False, "rewriteToken": str(source.generation)}
            return _shown({**told, **half}, call)
        # A body stands for all of the copy's metadata; without one they are the source's.
        if body and self.merges_rewrites:
            metadata = {**source.metadata, **(resource.get("metadata") or {})}
            resource = {**source.resource(), **resource, "metadata": metadata}
        stored = target.copy(source, call.target[1], resource if body else None, call.query, self._runtime.wall_ns())
        return _shown({**told, "done": True, "resource": stored.resource()}, call)

    def _copy(self, call: WireRequest, body: bytes) -> WireResponse:
        """Copies an object of any size in one call. A body is as in a rewrite."""
        resource = json_object(body) if body else None
        stored = self._target(call).copy(self._source(call), call.target[1], resource, call.query, self._runtime.wall_ns())
        return _shown(stored.resource(), call)

    def _move(self, call: WireRequest, body: bytes) -> WireResponse:
        bucket, now_ns = self._bucket(call), self._runtime.wall_ns()
        return _shown(bucket.move(call.name, of_source(call.query), call.target[1], call.query, now_ns).resource(), call)

    def _source(self, call: WireRequest) -> ObjectGeneration:
        return self._bucket(call).get(call.name, of_source(call.query))

    def _target(self, call: WireRequest) -> Bucket:
        return bucket_of(self.buckets, call.target[0])

    def _restore(self, call: WireRequest, body: bytes) -> WireResponse:
        return _shown(self._bucket(call).restore(call.name, call.query, self._runtime.wall_ns()).resource(), call)

    def _update(self, call: WireRequest, body: bytes) -> WireResponse:
        return _shown(self._bucket(call).update(call.name, json_object(body), call.query, self._runtime.wall_ns()).resource(), call)

    def _patch(self, call: WireRequest, body: bytes) -> WireResponse:
        return _shown(self._bucket(call).patch(call.name, json_object(body), call.query, self._runtime.wall_ns()).resource(), call)

    def _list(self, call: WireRequest, body: bytes) -> WireResponse:
        bucket = self._bucket(call)
        soft_deleted = is_true(call.query, "softDeleted")
        versions = is_true(call.query, "versions")
        page = (
            bucket.soft_deleted(call.query, self._runtime.wall_ns()) if soft_deleted
            else bucket.versions(call.query) if versions and bucket.has_noncurrent
            else bucket.page(call.query)
        )  # fmt: skip
        found = {"nextPageToken": page.next_token, "prefixes": page.prefixes, "items": [each.resource() for each in page.objects]}
        return _shown({"kind": "storage#objects", **{key: value for key, value in found.items() if value}}, call)

    def _batch(self, call: WireRequest, body: bytes) -> WireResponse:
        """Carries out each call by itself. A call that fails says so in its own part."""
        answers = []
        for content_id, method, target, headers, part in list(batch_calls(call.headers.get("Content-Type", ""), body)):
            try:
                inner = WireRequest.parse(method, target, headers)
                if inner.kind in ("batch", "object.read") or inner.kind.startswith("upload"):
                    raise GcsError(400, f"{inner.kind} is not allowed in a batch")
                if (fault := self._fault_of(inner)) is not None:
                    raise fault
            except GcsError as error:
                answers.append((content_id, error.answer()))
            else:
                answers.append((content_id, self.answer(inner, part)))
        return batch_answer(answers)

    # --- buckets

    def _bucket(self, call: WireRequest) -> Bucket:
        return bucket_of(self.buckets, call.bucket)

    def create_bucket(self, name: str, settings: Mapping[str, Any] | None = None) -> Bucket:
        """Creates a bucket, as the call does. Raises `GcsError` if it exists or its settings are not allowed."""
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", name):
            raise GcsError(400, f"Invalid bucket name: '{name}'")
        if name in self.buckets:
            raise GcsError(409, "Your previous request to create the named bucket succeeded and you already own it.")
        now = rfc3339(from_ns(self._runtime.wall_ns()))
        soft_delete = {"retentionDurationSeconds": str(WEEK_S), "effectiveTime": now}
        fixed = {"kind": "storage#bucket", "id": name, "name": name, "timeCreated": now, "updated": now, "metageneration": "1"}
        chosen = {"location": "US", "storageClass": "STANDARD", "softDeletePolicy": soft_delete, **(settings or {})}
        lifecycle_rules(chosen)
        self.buckets[name] = Bucket(name, {**chosen, **fixed})
        return self.buckets[name]

    def _create_bucket(self, call: WireRequest, body: bytes) -> WireResponse:
        settings = json_object(body)
        return _shown(self.create_bucket(str(settings.get("name", "")), settings).settings, call)

    def _get_bucket(self, call: WireRequest, body: bytes) -> WireResponse:
        return _shown(self._bucket(call).settings, call)

    def _list_buckets(self, call: WireRequest, body: bytes) -> WireResponse:
        found = [bucket.settings for name, bucket in sorted(self.buckets.items()) if name.startswith(call.query.get("prefix", ""))]
        return _shown({"kind": "storage#buckets", "items": found}, call)

    def _patch_bucket(self, call: WireRequest, body: bytes) -> WireResponse:
        bucket = self._bucket(call)
        both = {**bucket.settings, **json_object(body)}
        lifecycle_rules(both)
        both["metageneration"] = str(int(bucket.settings["metageneration"]) + 1)
        both["updated"] = rfc3339(from_ns(self._runtime.wall_ns()))
        bucket.settings = {key: value for key, value in both.items() if value is not None}
        return _shown(bucket.settings, call)

    def _delete_bucket(self, call: WireRequest, body: bytes) -> WireResponse:
        if self._bucket(call).objects:
            raise GcsError(409, "The bucket you tried to delete is not empty.")
        del self.buckets[call.bucket]
        return WireResponse(204)


def of_source(query: Mapping[str, str]) -> dict[str, str]:
    """Returns the preconditions and the generation of a copy's source, as those of a read are called."""
    named = {key: value for key, value in query.items() if key.startswith("ifSource")}
    wanted = {key.replace("ifSource", "if", 1): value for key, value in named.items()}
    return {**wanted, **({"generation": query["sourceGeneration"]} if "sourceGeneration" in query else {})}


def _described(resource: dict[str, Any], call: WireRequest, content_type: str | None) -> dict[str, Any]:
    """Returns an upload's metadata, completed from the query and the headers."""
    by_query = {key: call.query[key] for key in ("name", "contentEncoding") if key in call.query}
    name = str(resource.get("name") or by_query.get("name") or "")
    if not name:
        raise GcsError(400, "Required parameter: name", "required")
    return {"contentType": content_type or "application/octet-stream", **by_query, **resource, "name": name}


def _told_hashes(call: WireRequest) -> list[tuple[str, object]]:
    """Returns the hashes of `X-Goog-Hash: crc32c=...,md5=...`, which may come several times."""
    told = [pair.strip().partition("=") for header in call.headers.getall("X-Goog-Hash", []) for pair in header.split(",")]
    return [(kind, value) for kind, _, value in told]


def _shown(resource: Mapping[str, Any], call: WireRequest) -> WireResponse:
    """Returns the resource as an answer. With `fields`, only these fields."""
    answer = WireResponse.of_json(select(resource, parse_fields(call.query["fields"])) if call.query.get("fields") else resource)
    etag = resource.get("etag")
    return WireResponse(200, answer.body, {**answer.headers, "ETag": etag}) if etag else answer
