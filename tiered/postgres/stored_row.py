"""How a row's columns are read and written, and its checksum. Pure; no I/O.

The checksum covers the path and all columns but the deadline, which changes alone, and the flag of a condition. What
does not match it, or is no text, is damage: `CorruptRecordError`, which names the row.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from changelog.base.errors import CorruptRecordError, InvalidRequestError
from changelog.change import ChangeId
from tiered.buckets.row_keys import printable
from tiered.metadata import NS_PER_MS, described_by_row, encode_described, encode_metadata, encode_policy, metadata_of_row, policy_of_row
from tiered.services.backends import Inline, RowState, Tombstone

COLUMNS = "r.token, r.target, r.policy, r.metadata, r.payload, r.deadline_ms, r.crc, r.conditional"
"""What `state` reads, in this order."""

_STAYS = json.dumps(encode_policy(None))
CHANGED = "does not match its checksum: bytes on the disk have changed; write or delete the object"


class RowColumns(NamedTuple):
    """What a write leaves in the columns, in the order in which `change_row` takes them. `holds`: whether anything."""

    holds: bool = False
    target: bytes | None = None
    policy: str | None = None
    metadata: bytes | None = None
    payload: bytes | None = None
    deadline_ms: int | None = None
    crc: int | None = None
    conditional: bool = False


def stored(path: bytes, token: ChangeId, state: RowState) -> RowColumns:
    """The columns of what a write of this token leaves in the row."""
    match state:
        case None:
            return RowColumns()
        case Tombstone():
            target = state.target.encode()
            policy = _STAYS if state.expiration is None else json.dumps(encode_policy(state.expiration))
            told = None if state.metadata is None else encode_described(state.metadata)
            crc = checksum(path, token, target, policy, told, None)
            return RowColumns(True, target, policy, told, None, _ms(state.deadline_ns), crc, state.conditional)
        case Inline(metadata, payload):
            encoded = encode_metadata(metadata)
            crc = checksum(path, token, None, None, encoded, payload)
            return RowColumns(True, metadata=encoded, payload=payload, deadline_ms=_ms(state.deadline_ns), crc=crc)


def state(path: bytes, columns: Sequence[Any]) -> RowState:
    """What the columns `COLUMNS` say. `CorruptRecordError` names the row."""
    token, target, policy, metadata, payload, deadline_ms, crc, conditional = columns
    if target is None and payload is None:
        return None
    made_by = token_of(path, token)
    verify(path, made_by, target, policy, metadata, payload, crc)
    deadline_ns = ns(deadline_ms)
    if target is not None:
        told = described_by_row(metadata, deadline_ns)
        return Tombstone(text_of(path, target), policy_of_row(printable(path), policy), deadline_ns, made_by, conditional, told)
    return Inline(metadata_of_row(printable(path), metadata, deadline_ns, len(payload)), payload, made_by)


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


def ns(deadline_ms: int | None) -> int | None:
    return None if deadline_ms is None else deadline_ms * NS_PER_MS


def _ms(deadline_ns: int | None) -> int | None:
    return None if deadline_ns is None else deadline_ns // NS_PER_MS
