"""Downloads of the GCS emulator: an object's bytes, or one range of them, with the headers that both APIs send.

What is stored with the encoding gzip is unpacked for a client that does not take gzip, unless `Cache-Control` says
`no-transform`. A range is of no account then, and the hashes are of what is stored.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Mapping
from datetime import UTC

from emulators.gcs.answers import GcsError, WireResponse
from emulators.gcs.objects import ObjectGeneration


def media(stored: ObjectGeneration, headers: Mapping[str, str]) -> WireResponse:
    """Returns the object's bytes. `headers`: those of the request, with `Range`. Raises 416 if the range is empty."""
    size, told = len(stored.payload), _headers(stored)
    unpacked = _unpacked(stored, headers.get("Accept-Encoding", ""))
    if unpacked is not None:
        del told["Content-Encoding"]
        return WireResponse(200, unpacked, {**told, "Warning": "214 UploadServer gunzipped"})
    span = _span(headers.get("Range"), size)
    if span is None:
        return WireResponse(200, stored.payload, told)
    start, stop = span
    return WireResponse(206, stored.payload[start:stop], {**told, "Content-Range": f"bytes {start}-{stop - 1}/{size}"})


def _unpacked(stored: ObjectGeneration, taken: str) -> bytes | None:
    """Returns the bytes without their gzip. None: they are sent as they are stored."""
    packed = stored.content.get("contentEncoding") == "gzip" and "no-transform" not in stored.content.get("cacheControl", "")
    if not packed or "gzip" in taken or "*" in taken:
        return None
    try:
        return gzip.decompress(stored.payload)
    except (OSError, EOFError, zlib.error):  # it only says so
        return None


def _headers(stored: ObjectGeneration) -> dict[str, str]:
    """Returns the headers of a download. The JSON API shows custom metadata only in the object's metadata, not here."""
    content = {re.sub("(?<=[a-z])(?=[A-Z])", "-", key).title(): value for key, value in stored.content.items()}
    return {
        "Content-Type": "application/octet-stream", **content, "ETag": stored.etag, "Accept-Ranges": "bytes", "X-Goog-Hash": stored.hashes,
        "X-Goog-Generation": str(stored.generation), "X-Goog-Metageneration": str(stored.metageneration),
        "X-Goog-Storage-Class": stored.storage_class,
        "X-Goog-Stored-Content-Encoding": stored.content.get("contentEncoding", "identity"),
        "X-Goog-Stored-Content-Length": str(len(stored.payload)),
        **({} if stored.components is None else {"X-Goog-Component-Count": str(stored.components)}),
        "Last-Modified": stored.updated.astimezone(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT"),
    }  # fmt: skip


def _span(header: str | None, size: int) -> tuple[int, int] | None:
    """Returns start and stop of one range. None: everything, also if the header makes no sense.

    Raises 416 if the range is empty.
    """
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", header or "")
    if not found or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    if first and last and int(last) < int(first):
        return None
    start, stop = (int(first), min(int(last) + 1, size) if last else size) if first else (max(0, size - int(last)), size)
    if start >= size:
        raise GcsError(416, "The requested range cannot be satisfied.", headers={"Content-Range": f"bytes */{size}"})
    return start, stop
