"""`GcsFiles`: small files in a bucket that are no blobs of a store, such as those of a change feed.

A file is created in one request, and never replaced. The request names the crc32c of the bytes, and the service refuses
bytes that were damaged on their way. *Failure*: see `tiered.gcs.http`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Self

from changelog.base.errors import InvalidRequestError, UnavailableError
from changelog.base.runtime import Runtime
from changelog.google.authorize import Authorize
from tiered.gcs.answers import media
from tiered.gcs.http import ENDPOINT, REFUSAL_BYTES_MAX, GcsHttp, GcsRequest
from tiered.payload.crc32c import encode_crc, extend_crc
from tiered.stored import CHUNK_BYTES

BYTES_PER_ANSWER = 1024 * 1024
"""A file may take the time of one answer, and of one more for each so many bytes."""

_CREATED = "name,generation,crc32c"
_READ = "name,generation,size,crc32c"


class GcsFiles:
    """The files of a bucket. Open it with `async with GcsFiles.connect(…)`."""

    ALWAYS_CREATES_ONLY: ClassVar[bool] = True

    def __init__(self, http: GcsHttp, runtime: Runtime) -> None:
        self._http = http
        self._runtime = runtime

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, bucket: str, runtime: Runtime, *, endpoint: str | None, authorize: Authorize | None, connections_max: int,
        answer_timeout_s: float,
    ) -> AsyncIterator[Self]:  # fmt: skip
        """Opens the bucket; sends nothing yet. `endpoint` None: the real service. An emulator needs no `authorize`."""
        async with GcsHttp.connect(endpoint or ENDPOINT, bucket, authorize, connections_max, answer_timeout_s) as http:
            yield cls(http, runtime)

    async def create(self, name: str, content: bytes, content_type: str) -> bool:
        """Creates a file. Returns False if one of this name is there, which stays as it is.

        `UnconfirmedError`: no answer came. It may be there, or appear later.
        """
        boundary = f"{self._runtime.random.getrandbits(128):032x}"
        crc32c = encode_crc(extend_crc(0, content))
        resource = json.dumps({"name": name, "contentType": content_type, "crc32c": crc32c})
        before = (
            f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{resource}\r\n"
            f"--{boundary}\r\nContent-Type: {content_type}\r\n\r\n".encode()
        )
        after = f"\r\n--{boundary}--\r\n".encode()
        size = len(before) + len(content) + len(after)
        doing = f"creating {name!r}"
        answer = await self._http.call(GcsRequest(
            "POST", self._http.uploads_url(uploadType="multipart", ifGenerationMatch="0", fields=_CREATED), doing,
            self._http.an_object(name, _CREATED), accept=(200, 201, 412), body=_chunks(before, content, after), effect=True,
            answers=_answers(len(content)),
            headers={"Content-Type": f"multipart/related; boundary={boundary}", "Content-Length": str(size)},
        ))  # fmt: skip
        if answer.status != 412 and answer.told["crc32c"] != crc32c:
            raise self._http.odd(answer, doing, effect=True)
        return answer.status != 412

    async def is_equal(self, name: str, content: bytes) -> bool:
        """Returns whether the file has these bytes. They are read, not believed. `UnavailableError`: there is no file.
        """
        doing = f"reading {name!r}"
        told = await self._http.resource(name, _READ)
        if told is None:
            raise UnavailableError(f"{doing} failed: it was there, and is gone").coded("404")
        return int(told["size"]) == len(content) and await self._bytes(name, told, doing) == content

    async def read(self, name: str, bytes_max: int) -> bytes | None:
        """Returns the file, or None if there is none. `InvalidRequestError`: it has more bytes."""
        doing = f"reading {name!r}"
        told = await self._http.resource(name, _READ)
        if told is None:
            return None
        if (size := int(told["size"])) > bytes_max:
            raise InvalidRequestError(f"{name!r} has {size} bytes, and may have {bytes_max}")
        return await self._bytes(name, told, doing)

    async def _bytes(self, name: str, told: Mapping[str, Any], doing: str) -> bytes:
        """The bytes of the generation that was told of."""
        url, size = self._http.object_url(name, alt="media", generation=told["generation"]), int(told["size"])
        answer = await self._http.call(GcsRequest(
            "GET", url, doing, media, accept=(200, 404), answers=_answers(size), answer_bytes_max=max(size, REFUSAL_BYTES_MAX)
        ))
        if answer.status == 404:
            raise UnavailableError(f"{doing} failed: it is gone since; try again").coded("404", heard=True)
        if encode_crc(extend_crc(0, answer.body)) != told["crc32c"]:
            raise UnavailableError(f"{doing} failed: it was damaged on its way; try again").telling(heard=True)
        return answer.body

    async def names(self, prefix: str, start: str) -> AsyncGenerator[str, None]:
        """Yields the names that begin like this and are not before `start`, in order, page by page.

        Files without a byte are left out.
        """
        doing = f"listing files whose names begin with {prefix!r}"
        query = {"prefix": prefix, "startOffset": start, "fields": "kind,items(name,size),nextPageToken"}
        async for page in self._http.pages(query, doing):
            for item in page.get("items", []):
                if item.get("size") != "0":
                    yield str(item["name"])

    async def has_any(self, prefix: str) -> bool:
        """Returns whether a file has a name that begins like this."""
        doing = f"looking for files whose names begin with {prefix!r}"
        query = {"prefix": prefix, "maxResults": "1", "fields": "kind,items(name),nextPageToken"}
        async for page in self._http.pages(query, doing):
            if page.get("items"):
                return True
        return False


async def _chunks(before: bytes, content: bytes, after: bytes) -> AsyncIterator[bytes]:
    """A body in chunks: the library would write a large one at once, and the event loop would wait meanwhile."""
    yield before
    for start in range(0, len(content), CHUNK_BYTES):
        yield content[start : start + CHUNK_BYTES]
    yield after


def _answers(size: int) -> int:
    return 1 + size // BYTES_PER_ANSWER
