"""Lists of the parts of a blob: what a caller, the service and the blob say of them must agree (pure).

Used by tiers whose service keeps parts by their crc32c and ETag, as GCS and S3 do. Neither service looks at the sizes
and checksums that a caller tells with a completion.
"""

from __future__ import annotations

from collections.abc import Sequence

from changelog.base.errors import InvalidRequestError
from tiered.payload.crc32c import decode_crc, encode_crc
from tiered.payload.crcs import CRC32C, join_crcs
from tiered.services.backends import SessionEndedError
from tiered.services.capabilities import Part

CRC = "crc32c="
"""How the checksum of a part begins."""


def joined_crc(parts: Sequence[Part]) -> str | None:
    """The crc32c of the parts one behind the other, as base64. None: that of a part is not known.

    `InvalidRequestError`: a checksum is no crc32c.
    """
    crcs: list[tuple[int, int]] = []
    for part in parts:
        if part.checksum is None:
            return None
        try:
            crcs.append((decode_crc(part.checksum.removeprefix(CRC)), part.size))
        except ValueError as error:
            raise InvalidRequestError(f"the checksum of a part is no crc32c: {error}; pass what upload_part has told, or None") from None
    return encode_crc(join_crcs(crcs, CRC32C))


def compare_sizes(name: str, parts: Sequence[Part], listed: Sequence[Part]) -> None:
    """Raises `InvalidRequestError` if one of the parts is not listed with its size."""
    sizes = {part.number: part.size for part in listed}
    if wrong := [part.number for part in parts if sizes.get(part.number) != part.size]:
        why = f"part {wrong[0]} of blob {name!r} is not there, or was uploaded again; list them"
        raise InvalidRequestError(why).telling(heard=True)


def compare_stored(name: str, parts: Sequence[Part], size: int, crc32c: str | None) -> None:
    """Raises `SessionEndedError` if a blob is not what these parts are. `crc32c` None: nobody tells the blob's."""
    wanted, crc = sum(part.size for part in parts), joined_crc(parts)
    if size != wanted or (crc is not None and crc32c not in (None, crc)):
        raise SessionEndedError(
            f"blob {name!r} is not what its parts are: it has {size} bytes and the crc32c {crc32c}, and they have {wanted} and"
            f" {crc or 'one that is not known'}; delete it, try again"
        ).telling(heard=True)


def gone(name: str, doing: str) -> SessionEndedError:
    """The error of a call whose session has ended."""
    why = f"the upload of blob {name!r} was cancelled or completed before, or is so old that the bucket ended it"
    return SessionEndedError(f"{doing} failed: {why}").coded("404", heard=True)
