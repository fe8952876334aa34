"""Serves the objects of a store over HTTP with Flask. Run it: gunicorn --threads 8 'examples.flask_app:create_app()'

It streams both ways and answers ranges, with calls that block. It leaves out the conditions (`If-None-Match`,
`If-Range`) that examples/fastapi_app.py has.
"""

from __future__ import annotations

import os
from math import ceil

from flask import Flask, Response, request
from flask.typing import ResponseReturnValue

from examples.process_store import ProcessStore
from tiered import (
    AtCapacityError,
    ByteRange,
    ConfigurationError,
    InvalidRequestError,
    Metadata,
    ObjectId,
    OutcomeUnknownError,
    RangeNotSatisfiableError,
    RateLimitedError,
    ServiceAwayError,
    Settings,
    TieredError,
    UnavailableError,
    escape_scope,
)


def create_app(source: str | Settings | None = None) -> Flask:
    """Returns the application. `source`: the settings, or the path of a settings file."""
    app = Flask(__name__)
    store = app.extensions["tiered"] = ProcessStore(source or os.environ.get("TIERED_CONFIG", "tiered.yaml"))

    # --8<-- [start:app]
    @app.put("/photos/<org>/<path:key>")
    def upload(org: str, key: str) -> ResponseReturnValue:
        """Streams the body into the store. If the client goes away half-way, nothing is stored."""
        if "Transfer-Encoding" in request.headers and not request.environ.get("wsgi.input_terminated"):
            return {"error": "say how long the body is"}, 411  # this server does not tell, and Flask takes the body for empty
        content_type = request.content_type or "application/octet-stream"
        metadata = Metadata(content_type=content_type, size=request.content_length)
        done = store().put(photo(org, key), iter(lambda: request.stream.read(65_536), b""), metadata)
        return {"size": done.size}, 201, {"ETag": f'"{done.revision}"'}
    # --8<-- [end:app]

    @app.get("/photos/<org>/<path:key>")
    def download(org: str, key: str) -> ResponseReturnValue:
        wanted = asked_range()
        try:
            stored = store().get(photo(org, key), wanted, decompress=False)
        except RangeNotSatisfiableError as error:
            return "", 416, {"Content-Range": f"bytes */{error.size}"}
        if stored is None:
            return "", 404
        headers = {"Content-Length": str(stored.length), "Accept-Ranges": "bytes"}
        if stored.revision is not None:  # older software writes objects without a revision
            headers["ETag"] = f'"{stored.revision}"'
        if wanted is not None and stored.length:
            headers["Content-Range"] = f"bytes {stored.start}-{stored.stop - 1}/{stored.size}"
        status = 206 if "Content-Range" in headers else 200
        # The server closes the response when it is sent or the client has gone, and the response closes the object.
        return Response(stored, status, headers, content_type=stored.metadata.content_type)

    @app.delete("/photos/<org>/<path:key>")
    def remove(org: str, key: str) -> ResponseReturnValue:
        store().delete(photo(org, key))
        return "", 204

    app.register_error_handler(TieredError, answer_error)
    return app


def photo(org: str, key: str) -> ObjectId:
    return ObjectId.create("photos", key, scopes={"org": escape_scope(org)})


def asked_range() -> ByteRange | None:
    """Returns the one range that the client wants. None: the whole object, which HTTP allows for all other ranges."""
    if request.range is None or request.range.units != "bytes" or len(request.range.ranges) != 1 or "If-Range" in request.headers:
        return None
    [(start, stop)] = request.range.ranges
    return ByteRange(start, stop)


def answer_error(error: TieredError) -> ResponseReturnValue:
    match error:
        case UnavailableError() if not error.is_final:
            told = error.retry_after_s if isinstance(error, AtCapacityError | ServiceAwayError) else None
            status = 429 if isinstance(error, RateLimitedError) else 503
            return {"error": str(error)}, status, {"Retry-After": str(max(1, ceil(told or 1)))}
        case OutcomeUnknownError():
            return {"error": "it may have happened"}, 504
        case InvalidRequestError() if not isinstance(error, ConfigurationError):
            return {"error": str(error)}, 400
        case _:
            return {"error": "the store needs its operator"}, 500
