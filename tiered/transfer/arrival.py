"""What says that bytes arrived as they were sent. Without it no blob counts as stored, and no part as kept.

A service verifies the checksum that comes with bytes, or takes no notice of it and says nothing. So what it tells of
the bytes that it has is compared, before whoever wrote is told anything, and so before the swap. In this order, and the
first that can be compared decides:

    1  the crc32c in its answer                           no call more
    2  the ETag of its answer, if it is their MD5         no call more; the MD5 is only computed where 1 is missing
    3  the crc32c that it tells when it is asked          1 more
    4  the bytes themselves, read back                    1 more

A crc32c that differs is damage. A tag that differs says nothing: what is encrypted has another, and some services give
any. A part cannot be read back. So one of which neither 1 nor 2 tells is an `UnprovenPart`, and the whole must then be
proven by its own crc32c, or by its bytes. How a service is asked is in `tiered/s3/arrival.py` and `tiered/gcs/`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import astuple

from anyio.lowlevel import checkpoint

from changelog.base.errors import UnavailableError, UnconfirmedError
from tiered.payload.chunks import Chunk
from tiered.payload.crc32c import encode_crc
from tiered.services.capabilities import Part

DAMAGED = "BadDigest"
"""The code of the error: what S3 calls it, where it notices itself."""
_MD5 = re.compile(r"[0-9a-f]{32}")
_PIECE_BYTES = 1024 * 1024
"""So many bytes are hashed at a time, and then others have their turn: an MD5 is slow."""


class UnprovenPart(Part):
    """A part of which nothing says yet that its bytes arrived."""

    __slots__ = ()

    @classmethod
    def of(cls, part: Part) -> UnprovenPart:
        return cls(*astuple(part))


def damaged(what: str, why: str) -> UnavailableError:
    return UnavailableError(f"{what} was damaged on its way: {why}; try again").coded(DAMAGED, heard=True)


async def says_arrived(what: str, crc32c: str | None, tag: str, body: Sequence[Chunk], crc: int) -> bool:
    """Whether a service that tells this crc32c (base64) and this tag has these bytes: 1 and 2. False: it says nothing.

    `UnavailableError`: it has others.
    """
    if crc32c is not None:
        if crc32c != encode_crc(crc):
            raise damaged(what, f"the crc32c of what arrived is {crc32c}, not {encode_crc(crc)}")
        return True
    return is_md5(tag) and tag == await _md5_of(body)


def proven(name: str, part: Part) -> Part:
    """The part, for an upload that somebody else may complete, who knows nothing of its bytes.

    `UnconfirmedError`: nobody knows whether it arrived.
    """
    if isinstance(part, UnprovenPart):
        raise UnconfirmedError(
            f"part {part.number} of blob {name!r} is not known to have arrived: the service tells no crc32c of it, and its ETag is not the"
            " MD5 of its bytes. Try again; if that stays so, as where a bucket is encrypted with keys of its owner, put the object as a"
            " whole: that is read back"
        ).telling(heard=True)
    return part


def is_md5(tag: str) -> bool:
    """Whether it has the shape of one."""
    return _MD5.fullmatch(tag) is not None


async def _md5_of(body: Sequence[Chunk]) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    for chunk in body:
        for start in range(0, len(chunk), _PIECE_BYTES):
            digest.update(memoryview(chunk)[start : start + _PIECE_BYTES])
            await checkpoint()
    return digest.hexdigest()
