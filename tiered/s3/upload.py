"""Uploads to S3 that are one request: `SinglePut`, whose bytes are gathered until `finalise`.

A blob of known size up to 8 MiB is one PutObject: create-only (`If-None-Match: *`), with its crc32c, and with the
metadata as `amend` left them. It has no session, so it may land late, and is sent once. What the service certainly did
not take (it was turned away, or another request for the name was under way) is sent again, for `Resuming.budget_s`.

All else is an upload in lanes (`tiered/protocol/upload_lanes.py`) of one or more parts (`tiered/s3/parts.py`), whose
last part is withheld until `finalise`.

*Failure*: 412 means that a blob has the name. Without an answer, or after one that proves nothing (a 500 may come after
the effect), the blob is looked at. If it has these bytes, it is stored; else `UnconfirmedError`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from changelog.base.errors import InvalidRequestError, UnavailableError, UnconfirmedError
from tiered.metadata import Metadata
from tiered.payload.chunks import Chunk, unchanging
from tiered.payload.crc32c import encode_crc, extend_crc
from tiered.protocol.resuming import Resuming
from tiered.s3.client import S3Client
from tiered.s3.errors import PASSING, Refusal
from tiered.s3.format import Stored, encode_metadata

SINGLE_BYTES_MAX = 8 * 1024 * 1024
"""Larger blobs go up in parts. A part has as many bytes, so either holds the same memory."""

EXISTS = ("PreconditionFailed",)


class SinglePut:
    """`Upload`, one request. `looked`: what the service tells of a blob. `before_end` is called before it is sent."""

    session: str | None = None

    def __init__(
        self, client: S3Client, resuming: Resuming, name: str, metadata: Metadata, size: int,
        looked: Callable[[str], Awaitable[Stored | None]], before_end: Callable[[Metadata | None], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._client = client
        self._resuming = resuming
        self._name = name
        self._metadata = metadata
        self._declared = size
        self._looked = looked
        self._before_end = before_end
        self._chunks: list[Chunk] = []
        self._size = 0
        self._crc = 0
        self._ended = False

    async def write(self, chunk: Chunk) -> None:
        """Holds one chunk; sends nothing."""
        self._refuse_if_ended()
        self._size += len(chunk)
        if self._size > self._declared:
            raise self._end(self._wrong_size("more than"))
        self._chunks.append(unchanging(chunk))
        self._crc = extend_crc(self._crc, chunk)

    def amend(self, metadata: Metadata) -> None:
        self._metadata = metadata

    async def finalise(self) -> None:
        """Sends the blob. `UnavailableError`: a blob of this name exists, or it was turned away.

        `UnconfirmedError`: nothing told the outcome.
        """
        self._refuse_if_ended()
        if self._size != self._declared:
            raise self._end(self._wrong_size("not"))
        body = bytes(self._chunks[0]) if len(self._chunks) == 1 else b"".join(self._chunks)
        self._end(None)
        named: dict[str, Any] = {"Key": self._name, **encode_metadata(self._name, self._metadata, crc32c=encode_crc(self._crc))}
        await self._before_end(None)
        try:
            await self._resuming.try_on(lambda: put_once(self._client, self._name, body, self._crc, named), _is_over)
        except UnconfirmedError as error:
            if not await self._is_there(error):
                raise

    async def abort(self) -> None:
        self._end(None)

    async def _is_there(self, unclear: UnconfirmedError) -> bool:
        """Whether the blob is what was sent."""
        try:
            found = await self._looked(self._name)
        except UnavailableError:
            return False
        return found is not None and (found.size, found.crc32c) == (self._size, encode_crc(self._crc))

    def _refuse_if_ended(self) -> None:
        if self._ended:
            raise InvalidRequestError(f"the upload of {self._name!r} has ended already; begin another")

    def _end(self, error: InvalidRequestError | None) -> InvalidRequestError:
        self._ended = True
        self._chunks = []
        return error or self._wrong_size("not")

    def _wrong_size(self, relation: str) -> InvalidRequestError:
        return InvalidRequestError(f"the payload of {self._name!r} has {self._size} bytes, {relation} the declared {self._declared}")


async def put_once(client: S3Client, name: str, body: bytes, crc: int, named: dict[str, Any]) -> str:
    """One create-only PutObject. Returns the tag of the object. `named`: its name and metadata."""
    doing = f"the upload of blob {name!r}"
    answer = await client.call(
        "put_object", doing, effect=True, accept=EXISTS, body=body, ContentLength=len(body), ChecksumCRC32C=encode_crc(crc),
        IfNoneMatch="*", **named,
    )  # fmt: skip
    if isinstance(answer, Refusal):
        raise UnavailableError(f"blob {name!r} exists already, and nothing is overwritten").coded("412", heard=True)
    return str(answer["ETag"]).strip('"')


def _is_over(error: object) -> bool:
    """Whether the request may not be sent again: it may have had its effect, or is refused for good."""
    return isinstance(error, UnconfirmedError) or getattr(error, "code", "") not in PASSING
