"""Reads what the embedded backend holds, for the demo's check: the rows in SQLite and the files of the blobs.

It knows the stored formats and uses none of the store's code.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import zlib
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from emulators.demo.checking.check import StoredRow, content_of
from recovery.prove.judge import Content

LOCK_WAIT_S = 0.3

_FOOTER = struct.Struct(">6sHqqQIII")


class StoredFiles:
    """Implements `Stored` on a store's directory. A place is a path below it.

    `late_s` is 0: nothing that a process did takes effect after it has ended.
    """

    late_s = 0.0

    def __init__(self, store: Path) -> None:
        self._store = store

    def rows(self) -> Iterator[StoredRow]:
        for path, target, metadata, payload in self._query("SELECT path, target, metadata, payload FROM rows"):
            yield StoredRow(path, target, None if target is not None else content_of(payload, metadata))

    def targets(self) -> dict[str, str]:
        return dict(self._query("SELECT path, target FROM rows WHERE target IS NOT NULL"))

    def absent(self, names: Collection[str]) -> set[str]:
        return {name for name in names if not (self._store / self.place(name)).exists()}

    def place(self, name: str) -> str:
        return str(Path("blobs") / blob_path(name))

    def places(self) -> list[str]:
        return self._files("blobs")

    def blob(self, place: str) -> Content | None:
        raw = (self._store / place).read_bytes()
        if len(raw) < _FOOTER.size:
            return None
        magic, version, _, _, size, metadata_size, crcs_crc, metadata_crc = _FOOTER.unpack(raw[-_FOOTER.size :])
        payload, metadata, crcs = raw[:size], raw[size : size + metadata_size], raw[size + metadata_size : -_FOOTER.size]
        whole = (magic, version, len(metadata), crcs, zlib.crc32(crcs), zlib.crc32(metadata))
        wanted = (b"tiered", 2, metadata_size, _block_crcs(payload), crcs_crc, metadata_crc)
        return content_of(payload, metadata) if whole == wanted else None

    def won(self) -> set[str]:
        return {token for (token,) in self._query("SELECT token FROM marks WHERE verdict = 'won'")}

    def uploads(self) -> list[str]:
        return self._files("uploads")

    def entries(self) -> list[tuple[str, str | None]]:
        return [(key, state) for key, state in self._query("SELECT key, state FROM changes")]

    def write_lock_is_free(self) -> bool:
        with closing(sqlite3.connect(self._store / "tiered.db", timeout=LOCK_WAIT_S, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
            except sqlite3.OperationalError:
                return False
        return True

    def _query(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._store / "tiered.db", timeout=5)) as connection:
            connection.execute("PRAGMA query_only=ON")
            return connection.execute(sql).fetchall()

    def _files(self, directory: str) -> list[str]:
        return [str(Path(parent, name).relative_to(self._store)) for parent, _, names in os.walk(self._store / directory) for name in names]


def _block_crcs(payload: bytes) -> bytes:
    """Returns the checksums of all blocks of 256 KiB."""
    return b"".join(zlib.crc32(payload[start : start + 262_144]).to_bytes(4, "big") for start in range(0, len(payload), 262_144))


def blob_path(name: str) -> Path:
    """Returns where the blob's file is, below `blobs/`."""
    text = "".join(map(_escape, name.encode()))
    parts = [text[start : start + 199] for start in range(0, len(text), 199)]
    return Path(*[part + "+" for part in parts[:-1]], parts[-1])


def _escape(byte: int) -> str:
    if byte in b"0123456789abcdefghijklmnopqrstuvwxyz":
        return chr(byte)
    return f"{'%' if byte < 0x30 else '=' if byte < 0x61 else '~'}{byte:02x}"
