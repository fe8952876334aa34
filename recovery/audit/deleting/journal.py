"""What a deletion writes into the directory of its run, before and after it deletes anything.

    RUN/deleted/deletion.json                       what is deleted, and how; written when all files below are there
    RUN/deleted/range-000017.parquet                one batch: first what is intended, then what became of it

    name, object, revision, generation string   size int64
    fate string                     `intended`, or a `DeleteOutcome`
    aside, aside_generation string                   where its copy is; null without a quarantine
    run string                      the id of the audit's run

The key-value metadata of the footer are `tiered.schema`, `tiered.run` and `tiered.batch`. A batch is done if and only
if nothing in its file is only intended. All batches are written as intended before the first deletion. So whatever is
deleted was noted before. What is read back is checked. The object and the revision must be those of the name. A copy
must be of this name, and below `~quarantine/`: a restoration deletes what is noted there, and no row can name it.

This is version 2. Version 1, whose generations are int64, is still read; what is written again has version 2.

*Crash* at any moment, of anything: each file is there whole, in its old or its new form. A batch that is not done is
carried out again; that is safe. *Failure*: `CorruptRecordError` names a file that was cut off, or is of another run.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from changelog.base.errors import ConfigurationError, CorruptRecordError, newer_version
from recovery.audit.deleting.candidates import Candidate, DeleteOutcome
from recovery.audit.files.arrow import text_generations, with_text_generations
from recovery.audit.files.directory import DirectoryFiles
from tiered.services.scans import QUARANTINE, Generation

DELETED, DELETION = "deleted", "deletion.json"
VERSION = 2
READ_VERSIONS = (1, 2)
_READS = "versions 1 and 2"
BATCH = 1000
INTENDED = "intended"
SCHEMA = pa.schema([
    ("name", pa.string()), ("object", pa.string()), ("revision", pa.string()), ("size", pa.int64()), ("generation", pa.string()),
    ("fate", pa.string()), ("aside", pa.string()), ("aside_generation", pa.string()), ("run", pa.string()),
])  # fmt: skip


@dataclass(frozen=True, slots=True)
class DeletionPlan:
    """What is to be deleted, fixed before the first deletion.

    `run`: the id of the audit's run. `number`, `size`: how many candidates there are, and their bytes. `quarantine`:
    the prefix of the copies; None: there are none. `began_ns`: nanoseconds since 1970.
    """

    run: str
    number: int
    size: int
    batches: int
    quarantine: str | None
    began_ns: int


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy in the quarantine: its name, and its generation."""

    name: str
    generation: Generation


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One candidate in the journal. `outcome` None: its deletion is intended, and nobody knows what became of it."""

    candidate: Candidate
    outcome: DeleteOutcome | None = None
    copy: Copy | None = None


@dataclass(frozen=True, slots=True)
class Sums:
    """How many candidates there are of each outcome, and how many bytes."""

    numbers: Counter[DeleteOutcome]
    sizes: Counter[DeleteOutcome]

    @classmethod
    def zero(cls) -> Sums:
        return cls(Counter(), Counter())

    def add(self, outcome: DeleteOutcome, size: int) -> None:
        self.numbers[outcome] += 1
        self.sizes[outcome] += size

    def merge(self, other: Sums) -> None:
        self.numbers.update(other.numbers)
        self.sizes.update(other.sizes)


class DeletionJournal:
    """The journal of one run's deletion. All calls block."""

    def __init__(self, files: DirectoryFiles, run: str) -> None:
        self.run = run
        self._files = files

    def plan(self) -> DeletionPlan | None:
        """Returns what is to be deleted, or None if no deletion was begun.

        Raises `CorruptRecordError` if the file is of another run, or breaks the format, and `ConfigurationError` if
        newer software wrote it.
        """
        text = self._files.read(f"{DELETED}/{DELETION}")
        if text is None:
            return None
        where = f"{self._files.uri}/{DELETED}/{DELETION}"
        try:
            line = json.loads(text)
            version = line.pop("version")
            if type(version) is int and version > VERSION:
                raise ConfigurationError(newer_version(where, version, _READS))
            if version not in READ_VERSIONS:
                raise CorruptRecordError(f"{where} has version {version!r}, and this software reads {_READS}")
            plan = DeletionPlan(**line)
            _check_plan(plan)
        except ConfigurationError:  # which is a ValueError, too
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CorruptRecordError(f"{where} breaks the format: {error}") from None
        if plan.run != self.run:
            raise CorruptRecordError(f"{where} is of another run than the manifest beside it")
        return plan

    def begin(self, plan: DeletionPlan, candidates: Iterable[Candidate]) -> DeletionPlan:
        """Writes all candidates as intended, and then the plan. Returns it with the counts filled in.

        It may be repeated: the same run gives the same files. A batch that is there already is left as it is. So a
        second process that begins at the same time does not take away what the first one has noted.

        Raises `CorruptRecordError` if batches were carried out, and their plan is gone.
        """
        self._files.make(DELETED)
        number, size, batches = 0, 0, 0
        waiting: list[JournalEntry] = []
        for candidate in candidates:
            waiting.append(JournalEntry(candidate))
            number, size = number + 1, size + candidate.size
            if len(waiting) == BATCH:
                self._intend(batches, waiting)
                batches, waiting = batches + 1, []
        if waiting:
            self._intend(batches, waiting)
            batches += 1
        plan = replace(plan, number=number, size=size, batches=batches)
        self._files.create(f"{DELETED}/{DELETION}", json.dumps({"version": VERSION, **asdict(plan)}, indent=1).encode())
        return self.plan() or plan

    def _intend(self, batch: int, entries: Sequence[JournalEntry]) -> None:
        name = f"{DELETED}/{_name(batch)}"
        self._files.create(name, self._written(batch, entries))
        found = self.read(batch)
        if found == entries or self.plan() is not None:
            return
        if any(each.outcome is not None for each in found):
            raise CorruptRecordError(
                f"{self._files.uri}/{DELETED}/{DELETION} is gone, and {name} was carried out: run the audit again"
            )
        self.write(batch, entries)

    def settle(self) -> None:
        """Makes what others have written here durable, before anything is deleted because of it."""
        self._files.settle(DELETED)

    # --- batches

    def write(self, batch: int, entries: Sequence[JournalEntry]) -> None:
        """Writes one batch: it replaces the file as a whole."""
        self._files.write(f"{DELETED}/{_name(batch)}", self._written(batch, entries))

    def _written(self, batch: int, entries: Sequence[JournalEntry]) -> bytes:
        rows = [
            {
                "name": each.candidate.name, "object": each.candidate.path, "revision": str(each.candidate.revision),
                "size": each.candidate.size, "generation": each.candidate.generation,
                "fate": INTENDED if each.outcome is None else each.outcome.value, "aside": each.copy and each.copy.name,
                "aside_generation": each.copy and each.copy.generation, "run": self.run,
            }
            for each in entries
        ]  # fmt: skip
        footer = {"schema": str(VERSION), "run": self.run, "batch": str(batch)}
        schema = SCHEMA.with_metadata({f"tiered.{key}": value for key, value in footer.items()})
        written = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows, schema), written, compression="zstd")
        return written.getvalue()

    def read(self, batch: int) -> list[JournalEntry]:
        """Returns the candidates of a batch. Raises `CorruptRecordError` if its file is gone or broken."""
        where = f"{DELETED}/{_name(batch)}"
        table = self._table(batch)
        try:
            entries = [_entry(row, self.run) for row in table.to_pylist()]
            if len({each.candidate.name for each in entries}) != len(entries):
                raise ValueError("a name is there twice")
        except ValueError as error:
            raise CorruptRecordError(f"{self._files.uri}/{where} breaks the format: {error}") from None
        return entries

    def sums(self, batch: int) -> Sums | None:
        """Returns the sums of a batch, or None if it is not done."""
        return sums_of(self.read(batch))

    def entries(self, plan: DeletionPlan) -> Iterator[tuple[int, list[JournalEntry]]]:
        """Yields the batches in their order.

        Raises `CorruptRecordError` at the end if they hold more or fewer candidates than the plan says.
        """
        number = 0
        for batch in range(plan.batches):
            entries = self.read(batch)
            number += len(entries)
            yield batch, entries
        if number != plan.number:
            raise CorruptRecordError(
                f"{self._files.uri}/{DELETED}/{DELETION} breaks the format: it counts {plan.number} candidates,"
                f" and its {plan.batches} batches {number}"
            )

    def tidy(self) -> None:
        """Deletes the temporary files of writers that were killed. Call it when all batches are done."""
        for seen in self._files.list(DELETED):
            if seen.name.startswith("_") and seen.name.endswith(".tmp"):
                self._files.remove(seen.path)

    def _table(self, batch: int) -> Any:
        name = f"{DELETED}/{_name(batch)}"
        content = self._files.read(name)
        if content is None:
            raise CorruptRecordError(f"{self._files.uri}/{name} is gone: what was intended there is not known; run the audit again")
        try:
            table = pq.read_table(io.BytesIO(content))
        except (pa.ArrowException, OSError) as error:
            raise CorruptRecordError(f"{self._files.uri}/{name} is cut off, or no Parquet file ({error})") from None
        metadata = table.schema.metadata or {}
        schema = _field_of(metadata, "schema")
        if schema.isdecimal() and int(schema) > VERSION:
            raise ConfigurationError(newer_version(f"{self._files.uri}/{name}", schema, _READS))
        is_known = schema in map(str, READ_VERSIONS)
        if not is_known or (_field_of(metadata, "run"), _field_of(metadata, "batch")) != (self.run, str(batch)):
            raise CorruptRecordError(f"{self._files.uri}/{name} is of another run, batch or version")
        if not text_generations(table.schema).equals(SCHEMA):
            raise CorruptRecordError(f"{self._files.uri}/{name} breaks the format: it has other columns")
        return with_text_generations(table)


def sums_of(entries: Iterable[JournalEntry]) -> Sums | None:
    """Returns the sums of these candidates, or None if one has no outcome yet."""
    sums = Sums.zero()
    for entry in entries:
        if entry.outcome is None:
            return None
        sums.add(entry.outcome, entry.candidate.size)
    return sums


def _check_plan(plan: DeletionPlan) -> None:
    for key in ("number", "size", "batches", "began_ns"):
        value = getattr(plan, key)
        if type(value) is not int or value < 0:
            raise ValueError(f"{key} is {value!r}")
    if plan.quarantine is not None and not isinstance(plan.quarantine, str):
        raise ValueError(f"quarantine is {plan.quarantine!r}")


def _entry(row: Mapping[str, Any], run: str) -> JournalEntry:
    name, generation, size, aside, aside_generation = (row[key] for key in ("name", "generation", "size", "aside", "aside_generation"))
    if name is None or not generation or size is None or size < 0 or row["run"] != run:
        raise ValueError(f"{name!r} has generation {generation}, size {size} and run {row['run']!r}")
    candidate = Candidate.named(name, generation, size)
    if candidate is None or (candidate.path, str(candidate.revision)) != (row["object"], row["revision"]):
        raise ValueError(f"{name!r} is not the name of revision {row['revision']} of {row['object']!r}")
    outcome = None if row["fate"] == INTENDED else DeleteOutcome(row["fate"])
    if aside is None:
        return JournalEntry(candidate, outcome)
    if not (aside.startswith(QUARANTINE) and aside.endswith(f"/{name}")) or not aside_generation:
        raise ValueError(f"{aside!r}, generation {aside_generation}, is no copy of {name!r} in a quarantine")
    return JournalEntry(candidate, outcome, Copy(aside, aside_generation))


def _name(batch: int) -> str:
    return f"range-{batch:06d}.parquet"


def _field_of(metadata: Mapping[bytes, bytes], key: str) -> str:
    return metadata.get(f"tiered.{key}".encode(), b"").decode(errors="replace")
