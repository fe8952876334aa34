"""Uploads of the GCS emulator in one request and in sessions. Those in several parts: `parts.py`.

    POST /upload/storage/v1/b/B/o?uploadType=...    media, multipart, or resumable, which begins a session

The server reads the whole body of a call first, so a body that breaks off has no effect. Only the bytes of a session
are kept as they arrive, by `arrive` below.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from changelog.base.runtime import Runtime
from emulators.gcs.answers import GcsError, WireResponse
from emulators.gcs.bodies import json_object, multipart_upload
from emulators.gcs.conditions import check_preconditions
from emulators.gcs.objects import ObjectGeneration, check_fields, check_name
from emulators.gcs.sessions import SESSION_AGE_MAX_NS, ContentRange, Session
from emulators.gcs.shown import Step, shown, told_hashes
from emulators.gcs.store import Bucket, bucket_of
from emulators.gcs.wire import WireRequest

LATE_METADATA = "x-goog-meta-"


class UploadsService:
    """`sessions`: those of resumable uploads, by their upload id. Those that ended stay here for a fortnight."""

    def __init__(self, buckets: Mapping[str, Bucket], runtime: Runtime) -> None:
        self.sessions: dict[str, Session] = {}
        self._buckets = buckets
        self._runtime = runtime

    def steps(self) -> dict[str, Step]:
        return {
            "upload.media": self._media, "upload.multipart": self._multipart, "upload.start": self._start,
            "upload.put": self._finish, "upload.status": self._finish, "upload.cancel": self._cancel,
        }  # fmt: skip

    # --- in one request

    def _media(self, call: WireRequest, body: bytes) -> WireResponse:
        return self._insert(call, body, {}, call.headers.get("Content-Type"))

    def _multipart(self, call: WireRequest, body: bytes) -> WireResponse:
        resource, content_type, media = multipart_upload(call.headers.get("Content-Type", ""), body)
        return self._insert(call, media, resource, content_type)

    def _insert(self, call: WireRequest, payload: bytes, resource: dict[str, Any], content_type: str | None) -> WireResponse:
        bucket = bucket_of(self._buckets, call.bucket)
        complete = _completed(resource, call, content_type)
        stored = bucket.insert(complete["name"], payload, complete, call.query, told_hashes(call), self._runtime.wall_ns())
        return shown(stored.resource(), call)

    # --- in a session

    def _start(self, call: WireRequest, body: bytes) -> WireResponse:
        resource = _completed(json_object(body), call, call.headers.get("X-Upload-Content-Type"))
        name, bucket, size = resource["name"], bucket_of(self._buckets, call.bucket), call.headers.get("X-Upload-Content-Length")
        check_name(name)
        check_fields(resource)
        check_preconditions(call.query, bucket.objects.get(name))
        now = self._runtime.wall_ns()
        self._forget(now)
        upload_id = f"{self._runtime.random.getrandbits(128):032x}"
        total = int(size) if size is not None and size.isdecimal() else None
        self.sessions[upload_id] = Session(upload_id, bucket.name, name, resource, call.query, now, total)
        path = f"/upload/storage/v1/b/{quote(bucket.name, safe='')}/o?uploadType=resumable&upload_id={upload_id}"
        location = f"http://{call.headers.get('Host', '127.0.0.1')}{path}"
        return WireResponse(200, headers={"Location": location, "X-GUploader-UploadID": upload_id})

    def _forget(self, now_ns: int) -> None:
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
            raise GcsError(404, "No such upload session.", code="NoSuchUpload")
        session.check_open(self._runtime.wall_ns())
        return session

    def _finish(self, call: WireRequest, body: bytes) -> WireResponse:
        """Finalises the session if it is complete. The body is in it already."""
        session = self._session(call)
        if session.stored is None and session.complete:
            session.stored = self._finalise(session, call)
            session.arrived.clear()
        if session.stored is not None:
            return shown(session.stored.resource(), call)
        held = len(session.arrived)
        return WireResponse(308, headers={"Range": f"bytes=0-{held - 1}"} if held else {})

    def _finalise(self, session: Session, call: WireRequest) -> ObjectGeneration:
        """Makes the object and checks it. A wrong checksum ends the session.

        After a failed precondition the client may try again.
        """
        late = {key[len(LATE_METADATA) :].lower(): value for key, value in call.headers.items() if key.lower().startswith(LATE_METADATA)}
        metadata = {**(session.resource.get("metadata") or {}), **late}
        bucket = bucket_of(self._buckets, session.bucket)
        try:
            return bucket.insert(session.name, bytes(session.arrived), {**session.resource, "metadata": metadata}, session.query,
                                 told_hashes(call), self._runtime.wall_ns())  # fmt: skip
        except GcsError as error:
            session.gone = error.status == 400
            raise

    def _cancel(self, call: WireRequest, body: bytes) -> WireResponse:
        """Cancels the session. After 499 it can never be finalised.

        An object that was finalised stays, and the answer is 404.
        """
        session = self._session(call)
        if session.stored is not None:
            raise GcsError(404, "The upload session is complete.", code="NoSuchUpload")
        session.gone = True
        session.arrived.clear()
        return WireResponse(499)


def _completed(resource: dict[str, Any], call: WireRequest, content_type: str | None) -> dict[str, Any]:
    """Returns an upload's metadata, completed from the query and the headers."""
    by_query = {key: call.query[key] for key in ("name", "contentEncoding") if key in call.query}
    name = str(resource.get("name") or by_query.get("name") or "")
    if not name:
        raise GcsError(400, "Required parameter: name", "required")
    return {"contentType": content_type or "application/octet-stream", **by_query, **resource, "name": name}
