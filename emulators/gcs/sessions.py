"""Resumable uploads of the GCS emulator.

Each is one session, from its start to an object, its cancellation, or its expiry a week later.

    open --last byte, all checks hold--> done (answers with its object from then on)
      |--cancelled, or a week old, or its checksum differed--> gone (410 for ever)
      |--a chunk below 256 KiB that does not end it--> spoilt (400 for ever, as Google's own tests show)

Bytes are kept from the front without gaps. What a client sends again is ignored. What would leave a gap is refused. If
a chunk does not end the upload, or breaks off, only whole multiples of 256 KiB are kept, and the answer's `Range` says
how much that is. Preconditions are checked when the session starts and again when it is finalised.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from emulators.gcs.answers import GcsError
from emulators.gcs.objects import ObjectGeneration

GRANULE = 256 * 1024
SESSION_AGE_MAX_NS = 7 * 86_400 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class ContentRange:
    """`bytes first-last/total`, each None for `*`. Without a `first`, the request asks for the status."""

    first: int | None
    last: int | None
    total: int | None

    @classmethod
    def parse(cls, text: str | None) -> ContentRange:
        """Reads the header. None: there was no header, so the body is the whole object.

        Raises `GcsError` 400 if it makes no sense.
        """
        if text is None:
            return cls(0, None, None)
        found = re.fullmatch(r"bytes (?:\*|(\d+)-(\d+|\*))/(\d+|\*)", text)
        if not found:
            raise GcsError(400, f"Failed to parse Content-Range header {text!r}")
        first, last, total = (None if part in (None, "*") else int(part) for part in found.groups())
        if (first is not None and last is not None and last < first) or (last is not None and total is not None and last >= total):
            raise GcsError(400, f"Invalid Content-Range {text!r}")
        return cls(first, last, total)

    @property
    def open_end(self) -> bool:
        """Whether the end of the body is the end of the object."""
        return self.first is not None and self.last is None and self.total is None


@dataclass(slots=True)
class Session:
    """One upload. `arrived`: the bytes from the front. `stored`: the object, once done.

    `query`: that of the start. `spoilt`: why nothing can be done with it any more but to cancel it.
    """

    id: str
    bucket: str
    name: str
    resource: dict[str, Any]
    query: Mapping[str, str]
    created_ns: int
    total: int | None
    arrived: bytearray = field(default_factory=bytearray)
    stored: ObjectGeneration | None = None
    gone: bool = False
    spoilt: str = ""

    @property
    def open(self) -> bool:
        return self.stored is None and not self.gone and not self.spoilt

    @property
    def complete(self) -> bool:
        return len(self.arrived) == self.total

    def check_open(self, now_ns: int) -> None:
        if now_ns - self.created_ns > SESSION_AGE_MAX_NS:
            self.gone = self.stored is None
        if self.gone:
            raise GcsError(410, "The upload session was cancelled or has expired.")

    def begin(self, sent: ContentRange) -> None:
        """Checks a request against what is known. If it raises `GcsError`, nothing of the request is kept."""
        if self.spoilt:
            raise GcsError(400, self.spoilt)
        if sent.total is not None and self.total not in (None, sent.total):
            raise GcsError(400, f"Invalid request. The total size was {self.total} byte(s) before and is {sent.total} now.")
        if sent.total is not None and sent.total < len(self.arrived):
            raise GcsError(400, f"Invalid request. {len(self.arrived)} byte(s) are there, more than the total of {sent.total}.")
        if sent.first is not None and sent.first > len(self.arrived):
            raise GcsError(400, f"Invalid request. According to the Content-Range header, the upload offset is {sent.first} byte(s), "
                                f"which exceeds already uploaded size of {len(self.arrived)} byte(s).")  # fmt: skip
        self.total = sent.total if self.total is None else self.total

    def take(self, position: int, chunk: bytes) -> None:
        """Keeps what is new of a chunk that starts at `position`. If the session has ended, it keeps none.

        Raises `GcsError` 503 on a gap: another request broke off in the meantime.
        """
        if not self.open:
            return
        held = len(self.arrived)
        if position > held:
            raise GcsError(503, "Another request of this upload broke off.")
        self.arrived += chunk[held - position :]

    def end(self, sent: ContentRange, count: int) -> None:
        """Notes that the body has ended, after `count` bytes. Raises `GcsError` 400 if the header had said otherwise.
        """
        if sent.first is None:
            return
        if sent.last is not None and count != (expected := sent.last - sent.first + 1):
            self.break_off()
            raise GcsError(400, f"Invalid request. There were {count} byte(s) in the request body. There should have been {expected} "
                                f"byte(s) (starting at offset {sent.first} and ending at offset {sent.last}).")  # fmt: skip
        if sent.open_end and self.total is None:
            self.total = sent.first + count
        if self.total is not None and len(self.arrived) > self.total:
            del self.arrived[self.total :]
            self.break_off()
            raise GcsError(400, f"Invalid request. More bytes were sent than the total of {self.total}.")
        if not self.complete:
            self.break_off()
            if count < GRANULE:
                self.spoilt = (
                    f"Invalid request.  The number of bytes uploaded is required to be equal or greater than {GRANULE}, except for the "
                    f"final request (it's recommended to be the exact multiple of {GRANULE}).  The received request contained {count} "
                    "bytes, which does not meet this requirement."
                )
                raise GcsError(400, self.spoilt)

    def break_off(self) -> None:
        """Keeps only whole granules."""
        if self.open:
            del self.arrived[len(self.arrived) // GRANULE * GRANULE :]
