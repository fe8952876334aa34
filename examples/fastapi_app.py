"""Serves the objects of a store over HTTP. Run it with: uvicorn --factory examples.fastapi_app:create_app

It streams both ways, answers ranges, and frees everything when a client goes away.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from math import ceil
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from tiered import (
    AtCapacityError,
    ByteRange,
    ConditionFailedError,
    ConfigurationError,
    InvalidRequestError,
    Metadata,
    ObjectHead,
    ObjectId,
    OffsetMismatchError,
    OutcomeUnknownError,
    RangeNotSatisfiableError,
    RateLimitedError,
    ServiceAwayError,
    Settings,
    StoredObject,
    TieredError,
    TieredStorage,
    UnavailableError,
    UploadEndedError,
    escape_scope,
    open_storage,
)
from tiered.asgi import LinkApp, precondition, wanted_range


# --8<-- [start:life]
def create_app(source: str | Settings | None = None) -> FastAPI:
    """Returns the application. `source`: the settings, or the path of a settings file."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        async with open_storage(source or os.environ.get("TIERED_CONFIG", "tiered.yaml")) as storage:
            app.state.storage = storage
            yield

    app = FastAPI(lifespan=life)
    app.add_api_route("/photos/{org}/{key:path}", upload, methods=["PUT"])
    app.add_api_route("/photos/{org}/{key:path}", download, methods=["GET"])
    app.add_api_route("/photos/{org}/{key:path}", look, methods=["HEAD"])
    app.add_api_route("/photos/{org}/{key:path}", remove, methods=["DELETE"])
    app.add_api_route("/photos/{org}/{key:path}", share, methods=["POST"])
    app.add_api_route("/uploads/{org}/{key:path}", begin, methods=["POST"])
    app.add_api_route("/uploads/{org}/{key:path}", offset, methods=["HEAD"])
    app.add_api_route("/uploads/{org}/{key:path}", append, methods=["PATCH"])
    app.mount("/links", LinkApp(lambda: app.state.storage))
    app.add_exception_handler(TieredError, answer_error)
    return app


def storage_of(request: Request) -> TieredStorage:
    storage: TieredStorage = request.app.state.storage
    return storage


def photo(org: str, key: str) -> ObjectId:
    return ObjectId.create("photos", key, scopes={"org": escape_scope(org)})
# --8<-- [end:life]


# --8<-- [start:upload]
async def upload(org: str, key: str, request: Request) -> Response:
    """Streams the body into the store. If the client goes away half-way, nothing is stored."""
    storage, object_id = storage_of(request), photo(org, key)
    metadata = Metadata(content_type=request.headers.get("content-type", "application/octet-stream"))
    condition = await condition_of(request, storage, object_id)
    try:
        done = await storage.put(object_id, request.stream(), metadata, **condition)
    except ClientDisconnect:
        return Response(status_code=400)  # nobody reads it
    return JSONResponse({"size": done.size}, status_code=201, headers={"ETag": f'"{done.revision}"'})
# --8<-- [end:upload]


async def condition_of(request: Request, storage: TieredStorage, object_id: ObjectId) -> dict[str, Any]:
    """What must be there for a change to take effect. `ConditionFailedError`: it is something else already."""
    if not (told := conditions(request)):
        return {}
    head = await storage.head(object_id)
    if precondition(told, etag(head), reads=False):
        raise ConditionFailedError(object_id, None if head is None else head.revision, f"what is there is not what {told} asks for")
    if head is None:
        return {"if_absent": True}
    return {} if head.revision is None else {"if_revision": head.revision}


def conditions(request: Request) -> dict[str, str]:
    """A client may send a list in several lines."""
    return {name: ", ".join(lines) for name in ("if-match", "if-none-match") if (lines := request.headers.getlist(name))}


def etag(there: StoredObject | ObjectHead | None) -> str | None:
    """None: nothing is there. Empty: older software wrote it, and nothing tells one write of it from another."""
    return None if there is None else "" if there.revision is None else f'"{there.revision}"'


async def remove(org: str, key: str, request: Request) -> Response:
    storage, object_id = storage_of(request), photo(org, key)
    condition = await condition_of(request, storage, object_id)
    if "if_absent" not in condition:
        await storage.delete(object_id, **condition)
    return Response(status_code=204)


async def begin(org: str, key: str, request: Request) -> Response:
    """Begins an upload that a phone may go on with after any cut, with other workers of the server, too, for days."""
    metadata = Metadata(content_type=request.headers.get("content-type", "application/octet-stream"))
    upload = await storage_of(request).begin_resumable(photo(org, key), metadata)
    return JSONResponse({"upload": upload.id}, status_code=201)


async def offset(org: str, key: str, upload: str, request: Request) -> Response:
    there = await storage_of(request).resumable(photo(org, key), upload).status()
    return Response(headers={"Upload-Offset": str(there), "Cache-Control": "no-store"})


async def append(org: str, key: str, upload: str, request: Request, final: bool = False) -> Response:
    """Takes bytes from an offset on. With the final ones, the upload becomes the object, in one step."""
    resumed, begins = storage_of(request).resumable(photo(org, key), upload), int(request.headers["upload-offset"])
    try:
        there = await resumed.append(begins, request.stream(), final=final)
    except OffsetMismatchError as error:
        return Response(status_code=409, headers={"Upload-Offset": str(error.offset)})
    except ClientDisconnect:
        return Response(status_code=400)  # nobody reads it; what came is kept
    if final:
        done = await resumed.finish()
        return JSONResponse({"size": done.size}, headers={"ETag": f'"{done.revision}"', "Upload-Offset": str(there)})
    return Response(status_code=204, headers={"Upload-Offset": str(there)})


# --8<-- [start:download]
async def download(org: str, key: str, request: Request) -> Response:
    storage, object_id = storage_of(request), photo(org, key)
    try:
        stored, wanted = await opened(request, storage, object_id)
    except RangeNotSatisfiableError as error:
        return Response(status_code=416, headers={"Content-Range": f"bytes */{error.size}"})
    if stored is None:
        return Response(status_code=404)
    headers = headers_of(stored)
    if status := precondition(conditions(request), etag(stored)):
        await stored.aclose()
        return Response(status_code=status, headers=headers)
    headers["Content-Length"] = str(stored.length)
    if wanted is None or stored.length == 0:
        return ObjectResponse(stored, headers=headers)
    headers["Content-Range"] = f"bytes {stored.start}-{stored.stop - 1}/{stored.size}"
    return ObjectResponse(stored, status_code=206, headers=headers)


class ObjectResponse(StreamingResponse):
    """Closes the object however the sending ends."""

    def __init__(self, stored: StoredObject, status_code: int = 200, headers: dict[str, str] | None = None) -> None:
        super().__init__(stored, status_code, headers)
        self._stored = stored

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stored:
            await super().__call__(scope, receive, send)
# --8<-- [end:download]


async def opened(request: Request, storage: TieredStorage, object_id: ObjectId) -> tuple[StoredObject | None, ByteRange | None]:
    """Opens the range that the client wants, and returns the range, too. Without one, it is the whole object.

    The open object is what `If-Range` is compared with: between a `head` and a `get` it could change.
    """
    wanted, part_of = wanted_range(request.headers.get("range")), request.headers.get("if-range")
    try:
        stored = await storage.get(object_id, wanted, decompress=False)
        if stored is None or wanted is None or part_of in (None, etag(stored)):
            return stored, wanted
        await stored.aclose()
    except RangeNotSatisfiableError:
        if part_of is None:
            raise
    return await storage.get(object_id, decompress=False), None


async def look(org: str, key: str, request: Request) -> Response:
    head = await storage_of(request).head(photo(org, key))
    if head is None:
        return Response(status_code=404)
    if status := precondition(conditions(request), etag(head)):
        return Response(status_code=status, headers=headers_of(head))
    return Response(headers=headers_of(head) | {"Content-Length": str(head.size)})


# --8<-- [start:links]
async def share(org: str, key: str, request: Request) -> Response:
    """Answers with a link that shows the object for an hour."""
    url = await storage_of(request).sign_get(photo(org, key), timedelta(hours=1))
    return Response(status_code=404) if url is None else JSONResponse({"url": url})
# --8<-- [end:links]


# --8<-- [start:errors]
async def answer_error(_: Request, error: Exception) -> Response:
    """Answers with a status that tells the client whether to try again."""
    match error:
        case UnavailableError() if not error.is_final:  # it did not happen
            status = 429 if isinstance(error, RateLimitedError) else 503
            return JSONResponse({"error": str(error)}, status, {"Retry-After": str(seconds_until_retry(error))})
        case ConditionFailedError():
            return JSONResponse({"error": str(error)}, 412)
        case OutcomeUnknownError():
            return JSONResponse({"error": "it may have happened"}, 504)
        case UploadEndedError():
            return JSONResponse({"error": str(error)}, 410)
        case InvalidRequestError() if not isinstance(error, ConfigurationError):
            return JSONResponse({"error": str(error)}, 400)
        case _:
            return JSONResponse({"error": "the store needs its operator"}, 500)
# --8<-- [end:errors]


def seconds_until_retry(error: UnavailableError) -> int:
    """HTTP tells whole seconds."""
    told = error.retry_after_s if isinstance(error, AtCapacityError | ServiceAwayError) else None
    return max(1, ceil(told or 1))


def headers_of(stored: StoredObject | ObjectHead) -> dict[str, str]:
    headers = {"Content-Type": stored.metadata.content_type, "Accept-Ranges": "bytes", "X-Content-Type-Options": "nosniff"}
    tag = etag(stored)
    return headers | {"ETag": tag} if tag else headers
