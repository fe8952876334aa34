"""Whether a new blob is what was sent, and what was known of it only at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from changelog.base.errors import ConfigurationError, UnavailableError, UnconfirmedError
from tiered.gcs.format import CHECKED_FIELDS, differing, encode_amended
from tiered.gcs.http import JSON, GcsHttp, GcsRequest
from tiered.metadata import Metadata
from tiered.transfer.resuming import Resuming

_CRC = "crc32c"


async def check_stored(http: GcsHttp, name: str, metadata: Metadata, told: Mapping[str, Any], crc32c: str | None = None) -> None:
    """Raises if a new blob is not what was sent: then it exists, and is to be deleted. `crc32c` None: not compared.

    `UnavailableError`: its bytes differ. `ConfigurationError`: its metadata do. A lifetime that is left over would end
    an object that stays. Both are only said of what two answers tell.
    """
    if not _differing(name, metadata, told, crc32c):
        return
    try:
        looked_at = await http.resource(name, CHECKED_FIELDS)
    except UnavailableError as error:
        raise UnconfirmedError(f"blob {name!r} was stored as something else than was sent, and nobody told it again: {error}") from error
    if looked_at is None:
        raise UnavailableError(f"blob {name!r} was stored, and somebody deleted it at once").coded("404", heard=True)
    wrong = _differing(name, metadata, looked_at, crc32c)
    if _CRC in wrong:
        why = f"was damaged on its way, or its payload was changed before it was read again: its crc32c is {looked_at[_CRC]}, not {crc32c}"
        raise UnavailableError(f"blob {name!r} {why}; delete it, try again").telling(heard=True)
    if wrong:
        raise ConfigurationError(
            f"blob {name!r} was stored by {http.endpoint} with other metadata than were sent ({', '.join(wrong)}), so it is not used;"
            " this service does not replace metadata as Google Cloud Storage does: use another, or put the object anew"
        ).telling(heard=True)


def _differing(name: str, metadata: Metadata, told: Mapping[str, Any], crc32c: str | None) -> list[str]:
    return [*([_CRC] if crc32c not in (None, told[_CRC]) else []), *differing(name, metadata, told)]


async def amend_stored(http: GcsHttp, resuming: Resuming, name: str, metadata: Metadata) -> None:
    """Tells the service of a blob that it has stored what was known only at the payload's end.

    The request is sent again if it fails: it may come twice, and late, because no other write has this blob.
    """
    await resuming.try_on(lambda: _amend(http, name, metadata), lambda error: error.code == "404")


async def _amend(http: GcsHttp, name: str, metadata: Metadata) -> None:
    doing, url = f"setting the metadata of blob {name!r}", http.object_url(name, fields=CHECKED_FIELDS)
    body, shape = encode_amended(metadata), http.an_object(name, CHECKED_FIELDS)
    request = GcsRequest("PATCH", url, doing, shape, accept=(200, 404), headers=JSON, body=body, effect=True)
    try:
        try:
            answer = await http.call(request)
        except UnconfirmedError:
            answer = await http.call(request)
        if answer.status == 404:
            raise UnavailableError(f"{doing} failed: it is gone, because somebody took this write for abandoned; try again").coded(
                "404", heard=True
            )
        await check_stored(http, name, metadata, answer.told)
    except UnconfirmedError as error:
        raise UnavailableError(f"blob {name!r} was stored without its last metadata, and is not used: {error}") from error
