"""How a row's columns are read and written, and its checksum. Pure; no I/O.

The checksum covers the path and all columns but the deadline, which changes alone, and the flag of a condition. What
does not match it, or is no text, is damage: `CorruptRecordError`, which names the row.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

from changelog.base.errors import CorruptRecordError, InvalidRequestError
from changelog.change import ChangeId
from tiered.metadata import NS_PER_MS, Expiration, Metadata, decode_metadata, decode_policy, encode_metadata, encode_policy
from tiered.protocol.backends import Inline, RowState, Tombstone
from tiered.protocol.row_keys import printable
from tiered.text import quoted

COLUMNS = "r.token, r.target, r.policy, r.metadata, r.payload, r.deadline_ms, r.crc, r.conditional"
"""What `state` reads, in this order."""

_STAYS = json.dumps(encode_policy(None))
CHANGED = "does not match its checksum: bytes on the disk have changed; write or delete the object"

Stored = tuple[bool, bytes | None, str | None, bytes | None, bytes | None, int | None, int | None, bool]
"""Whether the row holds anything; target, policy, metadata, payload, deadline_ms, crc, conditional."""


def stored(path: bytes, token: ChangeId, state: RowState) -> Stored:
    """The columns of what a write of this token leaves in the row."""
    match state:
        case None:
            return False, None, None, None, None, None, None, False
        case Tombstone():
            target = state.target.encode()
            policy = _STAYS if state.expiration is None else json.dumps(encode_policy(state.expiration))
            crc = checksum(path, token, target, policy, None, None)
            return True, target, policy, None, None, _ms(state.deadline_ns), crc, state.conditional
        case Inline(metadata, payload):
            encoded = encode_metadata(metadata)
            crc = checksum(path, token, None, None, encoded, payload)
            return True, None, None, encoded, payload, _ms(state.deadline_ns), crc, False


def state(path: bytes, columns: Sequence[Any]) -> RowState:
    """What the columns `COLUMNS` say. `CorruptRecordError` names the row."""
    token, target, policy, metadata, payload, deadline_ms, crc, conditional = columns
    if target is None and payload is None:
        return None
    made_by = token_of(path, token)
    verify(path, made_by, target, policy, metadata, payload, crc)
    deadline_ns = ns(deadline_ms)
    if target is not None:
        return Tombstone(text_of(path, target), _policy(path, policy), deadline_ns, made_by, conditional)
    return Inline(metadata_of(path, metadata, deadline_ns, len(payload)), payload, made_by)


def verify(
    path: bytes, token: ChangeId | None, target: bytes | None, policy: str | None, metadata: bytes | None, payload: bytes | None,
    crc: int | None,
) -> None:  # fmt: skip
    """Raises `CorruptRecordError` if the checksum is another. None: nobody wrote one."""
    if crc is not None and crc != checksum(path, token, target, policy, metadata, payload):
        raise CorruptRecordError(f"the row {printable(path)} {CHANGED}")


def checksum(
    path: bytes, token: str | None, target: bytes | None, policy: str | None, metadata: bytes | None, payload: bytes | None
) -> int:
    """CRC-32 of the path and the columns. Each is preceded by its length, so no part of one is taken for another's."""
    crc = zlib.crc32(b"%d %b" % (len(path), path))
    for value in (
        None if token is None else token.encode(), target, None if policy is None else policy.encode(errors="surrogateescape"), metadata
    ):
        crc = zlib.crc32(b"-" if value is None else b"%d %b" % (len(value), value), crc)
    return zlib.crc32(payload, zlib.crc32(b"%d " % len(payload), crc)) if payload is not None else zlib.crc32(b"-", crc)


def token_of(path: bytes, token: Any) -> ChangeId | None:
    if token is None:
        return None
    try:
        return ChangeId(str(token))
    except InvalidRequestError:
        raise CorruptRecordError(f"the row {printable(path)} has {token} for its token, which is no change id") from None


def text_of(path: bytes, target: bytes) -> str:
    try:
        return target.decode()
    except UnicodeDecodeError:
        raise CorruptRecordError(f"the row {printable(path)} names the blob {target!r}, which is no UTF-8") from None


def metadata_of(path: bytes, metadata: bytes | None, deadline_ns: int | None, size: int) -> Metadata:
    if metadata is None:
        raise CorruptRecordError(f"the row {printable(path)} has a payload and no metadata")
    try:
        decoded = decode_metadata(metadata)
        if decoded.size == size and decoded.time_expires_ns == deadline_ns:  # as nearly always; to copy them costs more
            return decoded
        return decoded.with_facts(time_expires_ns=deadline_ns, size=size)
    except CorruptRecordError as error:
        raise CorruptRecordError(f"the row {printable(path)} breaks the format: {error}") from error


def _policy(path: bytes, policy: str | None) -> Expiration:
    try:
        return decode_policy(json.loads(policy or ""))
    except (ValueError, RecursionError, CorruptRecordError) as error:
        raise CorruptRecordError(f"the row {printable(path)} has {quoted(policy)} for its expiration policy, which is none") from error


def ns(deadline_ms: int | None) -> int | None:
    return None if deadline_ms is None else deadline_ms * NS_PER_MS


def _ms(deadline_ns: int | None) -> int | None:
    return None if deadline_ns is None else deadline_ns // NS_PER_MS
