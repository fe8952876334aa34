"""What a restoration of lost blobs writes into the directory of its run, before and after it restores anything.

    RUN/restored/range-000017.parquet     up to a thousand dangling findings, in the order of the run

    name, end string                      a `RestoreOutcome`; `restorable`: it is to be restored, and may have been
    generation string, size int64         the deleted generation that is taken, and its bytes
    deleted, kept_until timestamp         when it was deleted, and until when the service keeps it
    restored string                       the generation that the blob has now
    run string                            the id of the audit's run

The metadata of the schema name its version, `tiered.schema`; missing: 1. A column is null where nothing is known. What
is to be restored is noted before the first of its file is restored. Each file appears whole, and is replaced as a
whole. *Failure*: `CorruptRecordError` names a file that cannot be read, or that is of another run;
`ConfigurationError`, one that newer software wrote. Older software wrote generations as int64; that is still read.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from changelog.base.errors import ConfigurationError, CorruptRecordError, newer_version
from recovery.audit.deleting.losses import Loss, RestoreOutcome
from recovery.audit.files.arrow import with_text_generations
from recovery.audit.files.directory import DirectoryFiles
from tiered.services.scans import Generation

RESTORED = "restored"
BATCH = 1000
TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([
    ("name", pa.string()), ("end", pa.string()), ("generation", pa.string()), ("size", pa.int64()), ("deleted", TIME),
    ("kept_until", TIME), ("restored", pa.string()), ("run", pa.string()),
])  # fmt: skip
_NUMBERS = ("size", "deleted", "kept_until")
VERSION = 1
_SCHEMA_VERSION = b"tiered.schema"


class LossNotes:
    """The notes of one run's restoration. All calls block."""

    def __init__(self, files: DirectoryFiles, run: str) -> None:
        self._files = files
        self._run = run

    def write(self, batch: int, losses: Sequence[Loss]) -> None:
        """Writes one batch: it replaces the file as a whole. Times lose what is less than a microsecond."""
        columns: dict[str, list[Any]] = {
            "name": [each.name for each in losses],
            "end": [each.end.value for each in losses],
            "generation": [each.generation for each in losses],
            "size": [each.size for each in losses],
            "deleted": [_us(each.deleted_ns) for each in losses],
            "kept_until": [_us(each.kept_until_ns) for each in losses],
            "restored": [each.restored for each in losses],
            "run": [self._run] * len(losses),
        }
        schema = SCHEMA.with_metadata({_SCHEMA_VERSION: str(VERSION)})
        table = pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)
        written = io.BytesIO()
        pq.write_table(table, written, compression="zstd")
        self._files.make(RESTORED)
        self._files.write(_name(batch), written.getvalue())

    def read(self, batch: int, names: Sequence[str]) -> dict[str, Loss]:
        """Returns what is noted of these names; empty if nothing was noted yet.

        Raises `CorruptRecordError` if the file breaks the format, or is of another run or of other names, and
        `ConfigurationError` if newer software wrote it.
        """
        where = f"{self._files.uri}/{_name(batch)}"
        content = self._files.read(_name(batch))
        if content is None:
            return {}
        try:
            stored = pq.read_table(io.BytesIO(content))
            version = int((stored.schema.metadata or {}).get(_SCHEMA_VERSION, b"1"))
            if version > VERSION:
                raise ConfigurationError(newer_version(where, version, f"version {VERSION}"))
            table = with_text_generations(stored)
            if not table.schema.equals(SCHEMA):
                raise ValueError("it has other columns")
            numbers = table.select(_NUMBERS).cast(pa.schema([(column, pa.int64()) for column in _NUMBERS]))
            told = table.select(["name", "end", "generation", "restored", "run"]).to_pydict()
            texts = zip(told["name"], told["end"], told["generation"], told["restored"], strict=True)
            losses = [_loss(*each, fact) for each, fact in zip(texts, numbers.to_pylist(), strict=True)]
        except ConfigurationError:  # which is a ValueError, too
            raise
        except (pa.ArrowException, OSError, ValueError, TypeError) as error:
            raise CorruptRecordError(f"{where} breaks the format: {error}") from None
        if set(told["run"]) != {self._run} or [each.name for each in losses] != list(names):
            raise CorruptRecordError(f"{where} is of another run, or of other findings: run the audit again, into another directory")
        return {each.name: each for each in losses}


def _loss(name: str, end: str, generation: Generation | None, restored: Generation | None, fact: dict[str, int | None]) -> Loss:
    size = fact["size"]
    if "" in (generation, restored) or (size is not None and size < 0):
        raise ValueError(f"{name!r} has generation {generation}, size {size} and restored {restored}")
    return Loss(name, RestoreOutcome(end), generation, size, _ns(fact["deleted"]), _ns(fact["kept_until"]), restored)


def _us(ns: int | None) -> int | None:
    return None if ns is None else ns // 1000


def _ns(us: int | None) -> int | None:
    return None if us is None else us * 1000


def _name(batch: int) -> str:
    return f"{RESTORED}/range-{batch:06d}.parquet"
