"""What was known of a session's metadata only at its end: an object beside the blob (`Beside.amendment`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from changelog.base.errors import InvalidRequestError
from tiered.metadata import Metadata
from tiered.payload.crc32c import encode_crc, extend_crc
from tiered.s3.answers import is_body_of
from tiered.s3.arrival import answer_proves, is_there
from tiered.s3.client import S3Client
from tiered.s3.errors import NO_KEY, Refusal, odd
from tiered.s3.format import Beside, Stored, decode_amended, encode_amended
from tiered.s3.upload import gone_at_once

_JSON = "application/json"


async def amend(
    client: S3Client, beside: Beside, looked: Callable[[str], Awaitable[Stored | None]], name: str, nonce: str, metadata: Metadata
) -> None:
    """Writes what is known of a session's metadata now. `looked`: as of `is_there`."""
    if (excess := beside.amendment_excess(name)) > 0:
        raise InvalidRequestError(
            f"the name of blob {name!r} leaves no room in S3 for metadata that are known only at the end: shorten the key or the"
            f" scopes by {excess} bytes, or tell them at the beginning"
        )
    body, doing = encode_amended(metadata), f"writing the last metadata of blob {name!r}"
    key, crc = beside.amendment(name, nonce), extend_crc(0, body)
    answer = await client.call(
        "put_object", doing, effect=True, body=body, ContentLength=len(body), Key=key, ChecksumCRC32C=encode_crc(crc),
        ContentType=_JSON,
    )  # fmt: skip
    assert not isinstance(answer, Refusal), "no code is accepted"
    if not await answer_proves(doing, answer, [body], crc) and not await is_there(client, key, looked, [body], crc):
        raise gone_at_once(key)


async def amended_of(client: S3Client, beside: Beside, name: str, nonce: str | None) -> Mapping[str, str] | None:
    """What was known of a session only at its end. None: nothing, or it was no session."""
    if nonce is None or beside.amendment_excess(name) > 0:
        return None
    doing = f"reading the last metadata of blob {name!r}"
    opened = await client.open_body(doing, accept=(NO_KEY,), Key=beside.amendment(name, nonce))
    if isinstance(opened, Refusal):
        return None
    body, read = opened[1], b""
    try:
        while chunk := await body.read():
            read += chunk
    finally:
        body.close()
    if opened[0].get("ContentType") != _JSON or not is_body_of(opened[0], read):
        raise odd(doing, effect=False, what="with what is no JSON, or has another ETag")
    return decode_amended(name, read)
