"""What S3 is asked about bytes that arrived, in the order of `tiered/transfer/arrival.py`.

The tag of an object of parts is that of their tags. So it says which parts were put together, and in which order; not
what they are.

*Failure*: `UnavailableError` of the code `DAMAGED`: the service has other bytes. If that is an object, it exists, and
is to be deleted. Another code: the service could not be asked.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from tiered.payload.chunks import Chunk
from tiered.payload.crc32c import encode_crc, extend_crc
from tiered.s3.client import S3Client
from tiered.s3.errors import Refusal, odd
from tiered.s3.format import Stored, computed_of, tag_of
from tiered.services.capabilities import Part
from tiered.transfer.arrival import UnprovenPart, damaged, is_md5, says_arrived


async def answer_proves(what: str, answer: Mapping[str, Any], body: Sequence[Chunk], crc: int) -> bool:
    """Whether the answer to a request that brought these bytes says that they arrived: 1 and 2. False: it says nothing.
    """
    return await says_arrived(what, computed_of(answer), tag_of(answer), body, crc)


async def is_there(client: S3Client, name: str, looked: Callable[[str], Awaitable[Stored | None]], body: Sequence[Chunk], crc: int) -> bool:
    """Whether the object is there, with these bytes: 3 and 4. `looked`: what the service tells of it.

    `UnavailableError`: it has others, or could not be asked.
    """
    found, what, size = await looked(name), f"blob {name!r}", sum(map(len, body))
    if found is None:
        return False
    if found.size != size:
        raise damaged(what, f"it has {found.size} bytes, not {size}")
    if not await says_arrived(what, found.computed, found.etag, body, crc):
        await read_back(client, name, found, encode_crc(crc))
    return True


async def prove_whole(client: S3Client, name: str, found: Stored, parts: Sequence[Part], crc32c: str | None, *, is_believed: bool) -> None:
    """Returns if an object has the bytes of these parts, in this order. `found`: what is told of it, after completion.

    `crc32c`: of all bytes; None: nobody knows, as others put the parts. `is_believed`: the crc32c that the service
    tells of objects of parts is right; else only one that is the same says something. `UnavailableError`: it has not.
    """
    if crc32c is not None and found.computed is not None:
        if found.computed == crc32c:
            return
        if is_believed:
            raise damaged(f"blob {name!r}", f"the crc32c of what arrived is {found.computed}, not {crc32c}")
    tags = [part.etag for part in parts]
    are_md5s = all(map(is_md5, tags))
    if are_md5s and found.etag == tag_of_parts(tags) and not any(isinstance(part, UnprovenPart) for part in parts):
        return
    if crc32c is not None:
        await read_back(client, name, found, crc32c)
    elif are_md5s and not found.is_encrypted:
        await _read_back_parts(client, name, found, parts)


def tag_of_parts(tags: Sequence[str]) -> str:
    """The tag of an object that is made of parts with these, which are MD5s."""
    joined = hashlib.md5(b"".join(map(bytes.fromhex, tags)), usedforsecurity=False).hexdigest()
    return f"{joined}-{len(tags)}"


async def crc_of(client: S3Client, name: str, found: Stored) -> str:
    """The crc32c of all bytes of the object, which is as it was found."""
    crc = 0
    async for chunk in _bytes_of(client, name, found):
        crc = extend_crc(crc, chunk)
    return encode_crc(crc)


async def read_back(client: S3Client, name: str, found: Stored, crc32c: str) -> None:
    if (there := await crc_of(client, name, found)) != crc32c:
        raise damaged(f"blob {name!r}", f"the crc32c of its bytes is {there}, not {crc32c}")


async def _read_back_parts(client: S3Client, name: str, found: Stored, parts: Sequence[Part]) -> None:
    """The same by the tags of the parts."""
    following, left, digest = iter(parts), 0, None
    part: Part | None = None
    async for chunk in _bytes_of(client, name, found):
        rest = memoryview(chunk)
        while rest:
            while left == 0:
                part, digest = next(following), hashlib.md5(usedforsecurity=False)
                left = part.size
            assert part is not None and digest is not None, "there is one that has bytes"
            digest.update(rest[:left])
            rest, left = rest[left:], max(0, left - len(rest))
            if left == 0 and digest.hexdigest() != part.etag:
                raise damaged(f"blob {name!r}", f"the bytes in the place of part {part.number} are not those of the part")


async def _bytes_of(client: S3Client, name: str, found: Stored) -> AsyncIterator[bytes]:
    doing, left = f"reading back blob {name!r}", found.size
    opened = await client.open_body(doing, Key=name, IfMatch=f'"{found.etag}"')
    assert not isinstance(opened, Refusal), "no code is accepted"
    body = opened[1]
    try:
        while chunk := await body.read():
            left -= len(chunk)
            yield chunk
    finally:
        body.close()
    if left:
        raise odd(doing, effect=False, what=f"with {found.size - left} bytes instead of {found.size}")
