"""Downloads of the GCS emulator: an object's bytes, or one range of them, with the headers that both APIs send."""

from __future__ import annotations

import re

from emulators.gcs.store import ObjectGeneration
from emulators.gcs.wire import GcsError, WireResponse


def media(stored: ObjectGeneration, wanted: str | None) -> WireResponse:
    """Returns the object's bytes. `wanted`: the header `Range`. Raises 416 if the range is empty."""
    size, headers = len(stored.payload), _headers(stored)
    span = _span(wanted, size)
    if span is None:
        return WireResponse(200, stored.payload, headers)
    start, stop = span
    return WireResponse(206, stored.payload[start:stop], {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{size}"})


def _headers(stored: ObjectGeneration) -> dict[str, str]:
    """Returns the headers of a download. The JSON API shows custom metadata only in the object's metadata, not here."""
    content = {re.sub("(?<=[a-z])(?=[A-Z])", "-", key).title(): value for key, value in stored.content.items()}
    encoding = stored.content.get("contentEncoding", "identity")
    return {
        **content, "ETag": stored.etag, "Accept-Ranges": "bytes",
        "X-Goog-Hash": f"crc32c={stored.crc32c}" + (f",md5={stored.md5}" if stored.md5 else ""),
        "X-Goog-Generation": str(stored.generation), "X-Goog-Metageneration": str(stored.metageneration),
        "X-Goog-Storage-Class": "STANDARD", "X-Goog-Stored-Content-Encoding": encoding,
        "X-Goog-Stored-Content-Length": str(len(stored.payload)),
        "Last-Modified": stored.updated.strftime("%a, %d %b %Y %H:%M:%S GMT"),
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
