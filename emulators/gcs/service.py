"""What each call of the GCS emulator does: a function from a call and its body to an answer, without I/O.

Each is one atomic step. The objects of the JSON API are here. Uploads, buckets and the XML API have modules of their
own, over the same buckets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from changelog.base.runtime import Runtime
from emulators.gcs.answers import GcsError, WireResponse
from emulators.gcs.bodies import batch_answer, batch_calls, json_object, object_in
from emulators.gcs.buckets import BucketsService
from emulators.gcs.conditions import check_preconditions, check_tags, of_source
from emulators.gcs.media import media
from emulators.gcs.objects import ObjectGeneration, check_fields
from emulators.gcs.parts import PartsService
from emulators.gcs.shown import Step, shown
from emulators.gcs.signatures import check_signature
from emulators.gcs.store import Bucket, bucket_of
from emulators.gcs.uploads import UploadsService
from emulators.gcs.wire import WireRequest, is_true, parse_int
from emulators.gcs.xml import xml_steps

REWRITTEN_AT_ONCE = 1024 * 1024


class GcsService:
    """The service. Tests may read `buckets`, `uploads` and `parts`.

    `merges_rewrites` True: as in Google's testbench, what the body of a rewrite leaves out stays as in the source.
    """

    def __init__(self, runtime: Runtime, fault_of: Callable[[WireRequest], GcsError | None] = lambda call: None) -> None:
        """`fault_of`: the error that a call of a batch gets instead of its effect, or None."""
        self.merges_rewrites = False
        self._fault_of = fault_of
        self._runtime = runtime
        self.of_buckets = BucketsService(runtime)
        self.buckets: dict[str, Bucket] = self.of_buckets.buckets
        self.accounts: dict[str, RSAPublicKey] = {}
        self.uploads = UploadsService(self.buckets, runtime)
        self.parts = PartsService(self.buckets, runtime)
        self._steps: dict[str, Step] = {
            "object.get": self._get, "object.read": self._read, "object.delete": self._delete, "object.patch": self._patch,
            "object.update": self._update, "object.rewrite": self._rewrite, "object.copy": self._copy, "object.move": self._move,
            "object.compose": self._compose, "object.restore": self._restore, "object.list": self._list, "batch": self._batch,
            **self.uploads.steps(), **self.of_buckets.steps(), **self.parts.steps(),
            **xml_steps(self.buckets, runtime),
        }  # fmt: skip

    def answer(self, call: WireRequest, body: bytes) -> WireResponse:
        """Carries the call out, or returns why not."""
        try:
            if call.of_xml:
                check_signature(call, self.accounts, self._runtime.wall_ns())
            return self._steps[call.kind](call, body)
        except GcsError as error:
            return call.refusal(error)

    def apply_lifecycle(self) -> list[str]:
        """Does what the service does about once a day. Returns the names of objects and uploads that it deleted."""
        gone = [name for bucket in self.buckets.values() for name in bucket.expire(self._runtime.wall_ns())]
        return [*gone, *self.parts.apply_lifecycle()]

    # --- objects

    def _get(self, call: WireRequest, body: bytes) -> WireResponse:
        if is_true(call.query, "softDeleted"):
            return shown(self._bucket(call).get_soft_deleted(call.name, call.query, self._runtime.wall_ns()).resource(), call)
        return shown(self._found(call).resource(), call)

    def _read(self, call: WireRequest, body: bytes) -> WireResponse:
        return media(self._found(call), call.headers)

    def _found(self, call: WireRequest) -> ObjectGeneration:
        """Returns the object that a read asks for, if its preconditions hold."""
        stored = self._bucket(call).get(call.name, call.query, reading=True)
        check_tags(call.headers, stored.etag)
        return stored

    def _delete(self, call: WireRequest, body: bytes) -> WireResponse:
        self._bucket(call).remove(call.name, call.query, self._runtime.wall_ns())
        return WireResponse(204)

    def _rewrite(self, call: WireRequest, body: bytes) -> WireResponse:
        """Copies an object. A large one takes several calls, each with the token that the last one returned."""
        source, target = self._source(call), self._target(call)
        check_fields(resource := json_object(body))
        size, told = len(source.payload), {"kind": "storage#rewriteResponse"}
        check_preconditions(call.query, target.objects.get(call.target[1]))
        done = _rewritten(call, source)
        if done < size:
            token = f"{source.generation}.{done}"
            half = {"totalBytesRewritten": str(done), "objectSize": str(size), "done": False, "rewriteToken": token}
            return shown({**told, **half}, call)
        # A body stands for all of the copy's metadata; without one they are the source's.
        if body and self.merges_rewrites:
            metadata = {**source.metadata, **(resource.get("metadata") or {})}
            resource = {**source.resource(), **resource, "metadata": metadata}
        stored = target.copy(source, call.target[1], resource if body else None, call.query, self._runtime.wall_ns())
        whole = {"totalBytesRewritten": str(size), "objectSize": str(size), "done": True, "resource": stored.resource()}
        return shown({**told, **whole}, call)

    def _copy(self, call: WireRequest, body: bytes) -> WireResponse:
        """Copies an object of any size in one call. A body is as in a rewrite."""
        resource = json_object(body) if body else None
        stored = self._target(call).copy(self._source(call), call.target[1], resource, call.query, self._runtime.wall_ns())
        return shown(stored.resource(), call)

    def _move(self, call: WireRequest, body: bytes) -> WireResponse:
        bucket, now_ns = self._bucket(call), self._runtime.wall_ns()
        return shown(bucket.move(call.name, of_source(call.query), call.target[1], call.query, now_ns).resource(), call)

    def _compose(self, call: WireRequest, body: bytes) -> WireResponse:
        asked, bucket = json_object(body), self._bucket(call)
        named = asked.get("sourceObjects")
        if not isinstance(named, list) or not all(isinstance(each, dict) and each.get("name") for each in named):
            raise GcsError(400, "Required: sourceObjects, a list of objects that each have a name", "required")
        sources = [bucket.get(str(each["name"]), _asked_of(each)) for each in named]
        stored = bucket.compose(sources, call.name, object_in(asked, "destination"), call.query, self._runtime.wall_ns())
        return shown(stored.resource(), call)

    def _source(self, call: WireRequest) -> ObjectGeneration:
        return self._bucket(call).get(call.name, of_source(call.query))

    def _target(self, call: WireRequest) -> Bucket:
        return bucket_of(self.buckets, call.target[0])

    def _restore(self, call: WireRequest, body: bytes) -> WireResponse:
        return shown(self._bucket(call).restore(call.name, call.query, self._runtime.wall_ns()).resource(), call)

    def _update(self, call: WireRequest, body: bytes) -> WireResponse:
        return shown(self._bucket(call).update(call.name, json_object(body), call.query, self._runtime.wall_ns()).resource(), call)

    def _patch(self, call: WireRequest, body: bytes) -> WireResponse:
        return shown(self._bucket(call).patch(call.name, json_object(body), call.query, self._runtime.wall_ns()).resource(), call)

    def _list(self, call: WireRequest, body: bytes) -> WireResponse:
        bucket = self._bucket(call)
        soft_deleted, versions = is_true(call.query, "softDeleted"), is_true(call.query, "versions")
        if is_true(call.query, "includeFoldersAsPrefixes") and call.query.get("delimiter") != "/":
            raise GcsError(400, "includeFoldersAsPrefixes needs the delimiter /")
        page = (
            bucket.soft_deleted(call.query, self._runtime.wall_ns()) if soft_deleted
            else bucket.versions(call.query) if versions and bucket.has_noncurrent
            else bucket.page(call.query)
        )  # fmt: skip
        found = {"nextPageToken": page.next_token, "prefixes": page.prefixes, "items": [each.resource() for each in page.objects]}
        return shown({"kind": "storage#objects", **{key: value for key, value in found.items() if value}}, call)

    def _batch(self, call: WireRequest, body: bytes) -> WireResponse:
        """Carries out each call by itself. A call that fails says so in its own part."""
        answers = []
        for content_id, method, target, headers, part in list(batch_calls(call.headers.get("Content-Type", ""), body)):
            try:
                inner = WireRequest.parse(method, target, headers)
                if inner.of_xml:
                    raise GcsError(404, f"Not Found: {target}")
                if inner.kind in ("batch", "object.read") or inner.kind.startswith("upload"):
                    raise GcsError(400, f"{inner.kind} is not allowed in a batch")
                if (fault := self._fault_of(inner)) is not None:
                    raise fault
            except GcsError as error:
                answers.append((content_id, error.answer()))
            else:
                answers.append((content_id, self.answer(inner, part)))
        return batch_answer(answers)

    def _bucket(self, call: WireRequest) -> Bucket:
        return bucket_of(self.buckets, call.bucket)


def _rewritten(call: WireRequest, source: ObjectGeneration) -> int:
    """Returns how many bytes are rewritten after this call. Without a maximum, a second call rewrites the rest."""
    maximum, token = parse_int(call.query, "maxBytesRewrittenPerCall"), call.query.get("rewriteToken")
    if maximum is not None and (maximum < REWRITTEN_AT_ONCE or maximum % REWRITTEN_AT_ONCE):
        raise GcsError(400, f"maxBytesRewrittenPerCall is {maximum}; it must be a multiple of {REWRITTEN_AT_ONCE}")
    if token is None:
        return min(maximum or REWRITTEN_AT_ONCE, len(source.payload))
    generation, _, done = token.partition(".")
    if generation != str(source.generation) or not done.isdecimal():
        raise GcsError(400, f"Invalid rewriteToken {token!r}: it is of another source")
    return min(int(done) + maximum, len(source.payload)) if maximum else len(source.payload)


def _asked_of(named: dict[str, Any]) -> dict[str, str]:
    """Returns the generation and the precondition of one source of a composition, as a read has them."""
    wanted = object_in(named, "objectPreconditions").get("ifGenerationMatch")
    asked = {"generation": named.get("generation"), "ifGenerationMatch": wanted}
    return {key: str(value) for key, value in asked.items() if value is not None}
