"""Uploads to S3 that are one request: `SinglePut`, whose bytes are gathered until `finalise`.

A blob of known size up to 8 MiB is one PutObject: create-only (`If-None-Match: *`), with its crc32c, and with the
metadata as `amend` left them. It has no session, so it may land late, and is sent once. What the service certainly did
not take (it was turned away, or another request for the name was under way) is sent again, for `Resuming.budget_s`.

All else is an upload in lanes (`tiered/transfer/upload_lanes.py`) of one or more parts (`tiered/s3/parts.py`), whose
last part is withheld until `finalise`.

It is stored when something says that its bytes arrived. *Failure*: 412 means that a blob has the name.
Without an answer, or after one that proves nothing (a 500 may come after the effect), the blob is looked at. If it has
these bytes, it is stored; if it has others, it is `UnavailableError`; if it is not there, `UnconfirmedError`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from changelog.base.errors import UnavailableError, UnconfirmedError
from tiered.metadata import Metadata
from tiered.payload.chunks import Chunk, unchanging
from tiered.payload.crc32c import encode_crc, extend_crc
from tiered.s3.arrival import answer_proves, is_there
from tiered.s3.client import S3Client
from tiered.s3.errors import PASSING, Refusal
from tiered.s3.format import Stored, encode_metadata
from tiered.transfer.arrival import DAMAGED
from tiered.transfer.counted import CountedUpload
from tiered.transfer.resuming import Resuming

SINGLE_BYTES_MAX = 8 * 1024 * 1024
"""Larger blobs go up in parts, of which more than one is held."""

EXISTS = ("PreconditionFailed",)


class SinglePut(CountedUpload):
    """`Upload`, one request. `looked`: what the service tells of a blob. `before_end` is called before it is sent."""

    def __init__(
        self, client: S3Client, resuming: Resuming, name: str, metadata: Metadata, size: int,
        looked: Callable[[str], Awaitable[Stored | None]], before_end: Callable[[Metadata | None], Awaitable[None]],
    ) -> None:  # fmt: skip
        super().__init__(name, size)
        self._client = client
        self._resuming = resuming
        self._metadata = metadata
        self._looked = looked
        self._before_end = before_end
        self._chunks: list[Chunk] = []
        self._crc = 0

    async def write(self, chunk: Chunk) -> None:
        """Holds one chunk; sends nothing."""
        self._count(len(chunk))
        self._chunks.append(unchanging(chunk))
        self._crc = extend_crc(self._crc, chunk)

    async def finalise(self) -> None:
        """Sends the blob. `UnavailableError`: a blob of this name exists, or it was turned away.

        `UnconfirmedError`: nothing told the outcome.
        """
        self._count_all()
        body = self._chunks
        self._end()
        metadata = self._amended or self._metadata
        named: dict[str, Any] = {"Key": self._name, **encode_metadata(self._name, metadata, crc32c=encode_crc(self._crc))}
        await self._before_end(None)
        try:
            if await self._resuming.try_on(lambda: put_once(self._client, self._name, body, self._crc, named), _is_over):
                return
        except UnconfirmedError:
            try:
                if await self._is_there(body):
                    return
            except UnavailableError as failure:
                if failure.code == DAMAGED:
                    raise
            raise
        if not await self._resuming.try_on(lambda: self._is_there(body), lambda error: error.code == DAMAGED):
            raise gone_at_once(self._name)

    async def abort(self) -> None:
        self._end()

    async def _is_there(self, body: Sequence[Chunk]) -> bool:
        return await is_there(self._client, self._name, self._looked, body, self._crc)

    def _end(self, error: Exception | None = None) -> Exception:
        self._chunks = []
        return super()._end(error)


async def put_once(client: S3Client, name: str, body: Sequence[Chunk], crc: int, named: dict[str, Any]) -> bool:
    """One create-only PutObject. Returns whether its answer says that the bytes arrived; if not, look (`is_there`).

    `named`: its name and metadata.
    """
    doing = f"the upload of blob {name!r}"
    answer = await client.call(
        "put_object", doing, effect=True, accept=EXISTS, body=body, ContentLength=sum(map(len, body)), ChecksumCRC32C=encode_crc(crc),
        IfNoneMatch="*", **named,
    )  # fmt: skip
    if isinstance(answer, Refusal):
        raise UnavailableError(f"blob {name!r} exists already, and nothing is overwritten").coded("412", heard=True)
    return await answer_proves(f"blob {name!r}", answer, body, crc)


def gone_at_once(name: str) -> UnavailableError:
    return UnavailableError(f"blob {name!r} was put there, and somebody deleted it at once; try again").telling(heard=True)


def _is_over(error: object) -> bool:
    """Whether the request may not be sent again: it may have had its effect, or is refused for good."""
    return isinstance(error, UnconfirmedError) or getattr(error, "code", "") not in PASSING
