"""Reads the findings of a run as rows.

The run directory decides which files count (`recovery.audit.files.ledger`). A file of another run, of another schema
version, or one that is cut off, does not count. Such a file, and a range without a file, is a row with an `error`. So
whoever counts orphans sees what was not looked at.

`complete` is not what the manifest says. The run is checked (`recovery.audit.files.evidence`), as a deletion does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from changelog.base.errors import TieredError
from changelog.base.runtime import SystemRuntime
from recovery.audit.files.evidence import evidence
from recovery.audit.files.ledger import SCHEMA, RunDirectory
from recovery.sources.columns import FINDINGS, TableRow


@dataclass(frozen=True, slots=True)
class FindingsRun:
    """A run as it was when the query was planned.

    `complete`: something may be deleted because of it. `done`: the keys of its parts that have a file, each with its
    range. `faults`: the ranges of parts that have none, or a damaged one, each with a sentence.
    """

    where: str
    run: str
    complete: bool
    done: tuple[tuple[str, int], ...]
    faults: tuple[tuple[int, str], ...]


def look(where: str) -> FindingsRun:
    """Checks a run. It reads the manifest and all findings.

    Raises `ConfigurationError` if there is no run or if newer software wrote it, `CorruptRecordError` if its manifest
    is damaged.
    """
    directory = RunDirectory.open(where)
    proven = evidence(directory, SystemRuntime().wall_ns())
    manifest = proven.manifest
    tiling = directory.tiling(manifest)
    done = tuple((piece.key, piece.range) for piece, _ in tiling.done)
    errors = {failure.range: failure.error for failure in manifest.failures}
    faults = tuple(
        (piece.range, directory.faults.get(piece.key) or errors.get(piece.range) or "this range was not audited")
        for piece in tiling.missing
    )
    return FindingsRun(directory.uri, manifest.run, proven.complete, done, faults)


def rows(run: FindingsRun, parts: Sequence[tuple[str, int]], faults: Sequence[tuple[int, str]]) -> Iterator[list[TableRow]]:
    """Yields the findings of these parts, page by page, and a row for each fault."""
    if faults:
        yield [_fault(run, number, sentence) for number, sentence in faults]
    directory = RunDirectory.open(run.where)
    for key, number in parts:
        try:
            for batch in directory.batches(run.run, keys=(key,)):
                columns = [_values(batch[name]) for name in SCHEMA.names]
                yield [(*values, run.complete, None) for values in zip(*columns, strict=True)]
        except TieredError as error:
            yield [_fault(run, number, f"the findings of this range were not read to their end: {error}")]


def _values(column: pa.Array) -> list[object]:
    """Returns plain values; times as microseconds, because a time may be later than Python's `datetime` can hold."""
    return list((column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist())


def _fault(run: FindingsRun, number: int, sentence: str) -> TableRow:
    values = {"range": number, "run": run.run, "complete": run.complete, "error": sentence}
    return tuple(values.get(name) for name in FINDINGS)
