"""What the entry of an upload keeps while it stays open: who claimed it, with which list of parts (pure).

The text is stored (docs/format.md). `assembling.py` says what is done with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from changelog.base.errors import CorruptRecordError, InvalidRequestError
from changelog.change import ChangeId, Entry
from tiered.metadata import Metadata, decode_metadata, encode_metadata
from tiered.protocol.appending import Appending
from tiered.protocol.conditions import Condition
from tiered.services.capabilities import Part

WHOLE_BYTES_MAX = 1024


@dataclass(frozen=True, slots=True)
class OpenUpload:
    """What it takes to complete an upload, besides its entry: the text that the entry keeps while it is assembling.

    `metadata`: those of the object, if they are `whole`. The blob has them all, and a compare-and-swap of an entry must
    be short: so of longer ones only what a completion needs, how it expires, and its size if that was declared. Older
    software kept no others. `until_ms`: when it is too old for a first
    claim. `since_ms`: when the first claim was that was not given back. Both by the log's clock, Unix ms. `digest` and
    `size` (bytes): of the list of parts that was claimed first. None: there was no claim. `size_max`: how many bytes
    the object may have, because a link to write it was signed for no more; None: nobody bounded it. `appending`: what
    was appended. None: nobody appends to it, or only older software did.
    """

    metadata: Metadata
    condition: Condition | None
    until_ms: int
    since_ms: int | None = None
    digest: str | None = None
    size: int | None = None
    size_max: int | None = None
    appending: Appending | None = None
    whole: bool = False

    @classmethod
    def begun(cls, metadata: Metadata, condition: Condition | None, until_ms: int, size_max: int | None) -> OpenUpload:
        """Of an upload that begins with these metadata."""
        kept = metadata.with_facts(time_expires_ns=None)  # it is counted from the completion
        whole = len(encode_metadata(kept)) <= WHOLE_BYTES_MAX
        needed = Metadata(metadata.expiration, size=metadata.size)
        return cls(kept if whole else needed, condition, until_ms, size_max=size_max, whole=whole)

    def encode(self) -> str:
        condition = None if self.condition is None else {"revision": self.condition.revision}
        value: dict[str, object] = {
            "metadata": encode_metadata(self.metadata).decode(), "condition": condition, "until": self.until_ms, "since": self.since_ms,
            "parts": self.digest, "size": self.size,
        }
        if self.size_max is not None:
            value["size_max"] = self.size_max
        if self.appending is not None:
            value["appending"] = self.appending.encode()
        if self.whole:
            value["whole"] = True
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def of(cls, entry: Entry) -> OpenUpload:
        """Of an entry that is assembling. `CorruptRecordError`: its text breaks the format."""
        try:
            value = json.loads(entry.assembling or "")
            told = value["condition"]
            revision = None if told is None else told["revision"]
            condition = None if told is None else Condition(None if revision is None else ChangeId(revision))
            until_ms, claim = value["until"], (value["since"], value["parts"], value["size"])
            size_max = value.get("size_max")  # older entries have none
            if size_max is not None and type(size_max) is not int:
                raise ValueError(f"its size_max is {size_max!r}")
            if type(until_ms) is not int or (claim != (None, None, None) and tuple(map(type, claim)) != (int, str, int)):
                raise ValueError(f"its time is {until_ms!r}, and its claim {claim}")
            appending = Appending.of(value.get("appending"))
            whole = value.get("whole") is True
            return cls(decode_metadata(value["metadata"].encode()), condition, until_ms, *claim, size_max, appending, whole)
        except (InvalidRequestError, ValueError, TypeError, KeyError, AttributeError, RecursionError, CorruptRecordError) as error:
            raise CorruptRecordError(f"the open upload {entry.change.id} of {entry.change.object} cannot be read: {error}") from None


def claimed(entry: Entry, claim: OpenUpload, old: str | None, owner: str, cleanup_after_ms: int) -> Entry:
    """The entry as an attempt claims it, which replaces `old`. Attempts are counted, so no value ever returns."""
    change = replace(entry.change, old=old)
    return replace(
        entry, change=change, owner=owner, attempt=entry.attempt + 1, cleanup_after_ms=cleanup_after_ms, assembling=claim.encode()
    )


def blob_of(entry: Entry) -> tuple[str, str]:
    """The name of the blob, and the session of its upload."""
    change = entry.change
    if change.new is None or change.upload is None:
        raise CorruptRecordError(f"the open upload {change.id} of {change.object} names no blob, or no session")
    return change.new, change.upload


def digest_of(parts: Sequence[Part]) -> str:
    """Tells lists of parts from one another. A listing of the service tells no checksums, so they do not count."""
    return hashlib.sha256("".join(f"{part.number} {part.size} {part.etag}\n" for part in parts).encode()).hexdigest()
