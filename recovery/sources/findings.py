"""Reads the findings of a run as rows.

The run directory decides which files count (`recovery.audit.ledger`). A file of another run, of another schema version,
or one that is cut off, does not count. Such a file, and a range without a file, is a row with an `error`. So whoever
counts orphans sees what was not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from changelog.base.errors import ConfigurationError, TieredError
from recovery.audit.ledger import SCHEMA, RunDirectory
from recovery.sources.columns import FINDINGS, Row


@dataclass(frozen=True, slots=True)
class Run:
    """A run as it was when the query was planned. `done`: its ranges that have a file.

    `faults`: the ranges that have none, or a damaged one, each with a sentence.
    """

    where: str
    run: str
    complete: bool
    done: tuple[int, ...]
    faults: tuple[tuple[int, str], ...]


def look(where: str) -> Run:
    """Reads the manifest and the footers of a run.

    Raises `ConfigurationError` if there is no run or if newer software wrote it, `CorruptRecordError` if its manifest
    is damaged.
    """
    directory = RunDirectory.open(where)
    manifest = directory.read_manifest()
    if manifest is None:
        raise ConfigurationError(f"{directory.uri} holds no run of an audit: give the directory that `tiered audit run` named")
    done = tuple(number for number, _ in directory.done(manifest.run))
    errors = {failure.range: failure.error for failure in manifest.failures}
    missing = [number for number in range(len(manifest.ranges)) if number not in done]
    faults = tuple((number, directory.faults.get(number) or errors.get(number) or "this range was not audited") for number in missing)
    return Run(directory.uri, manifest.run, manifest.complete, done, faults)


def rows(run: Run, numbers: Sequence[int], faults: Sequence[tuple[int, str]]) -> Iterator[list[Row]]:
    """Yields the findings of these ranges, page by page, and a row for each fault."""
    if faults:
        yield [_fault(run, number, sentence) for number, sentence in faults]
    directory = RunDirectory.open(run.where)
    for number in numbers:
        try:
            for batch in directory.batches(run.run, numbers=(number,)):
                columns = [_values(batch[name]) for name in SCHEMA.names]
                yield [(*values, run.complete, None) for values in zip(*columns, strict=True)]
        except TieredError as error:
            yield [_fault(run, number, f"the findings of this range were not read to their end: {error}")]


def _values(column: pa.Array) -> list[object]:
    """Returns plain values; times as microseconds, because a time may be later than Python's `datetime` can hold."""
    return list((column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist())


def _fault(run: Run, number: int, sentence: str) -> Row:
    values = {"range": number, "run": run.run, "complete": run.complete, "error": sentence}
    return tuple(values.get(name) for name in FINDINGS)
