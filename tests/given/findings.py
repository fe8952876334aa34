"""Findings of a run, its manifest, and files of ranges that hold them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recovery.audit.files.ledger import RunDirectory
from recovery.audit.files.partitions import Partition
from recovery.audit.finding import Finding, Summary, Tally
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Bounds, Cutoff, Manifest

RUN = "0190aaaa-0000-7000-8000-000000000001"
NOW_NS = 1_790_000_000_123_456_000

SUMMARY = Summary(
    names=7, redirects=6, windows=2, entries_max=3, unreadable_max=1, dated_ahead=2,
    counts={
        "media": {FindingClass.ORPHAN: Tally(1, 10), FindingClass.REFERENCED: Tally(5, 500), FindingClass.DANGLING: Tally(1, 0)},
        "(none)": {FindingClass.FOREIGN: Tally(1, 0)},
    },
    ages={FindingClass.ORPHAN: Counter({3: 1})},
)  # fmt: skip
FINDING = Finding(
    FindingClass.ORPHAN, "media/objects/a/r", object="media/objects/a", revision="r", size=10, created_ns=NOW_NS, deadline_ns=None,
    generation=str(1 << 60), detail="why", listed_ns=NOW_NS, logged_ns=NOW_NS + 1000, scanned_ns=NOW_NS + 2000, confirmed_ns=None,
)  # fmt: skip
MANIFEST = Manifest(
    run=RUN, inputs={"directory": "/store"}, log_is_durable=True, cutoff=Cutoff(as_of_ns=NOW_NS, grace_s=3600),
    ranges=(Bounds(start="", end=None),), started_ns=NOW_NS,
)  # fmt: skip


def finding(kind: FindingClass = FindingClass.ORPHAN, name: str = FINDING.name, **facts: Any) -> Finding:
    return FINDING._replace(class_=kind, name=name, **facts)


def manifest(**facts: Any) -> Manifest:
    return MANIFEST.model_copy(update=facts)


def partition(number: int) -> Partition:
    """The first part of a range. Whether it fits the run's ranges is no matter to the ledger."""
    return Partition(number, Bounds(start="", end=None))


def write(directory: RunDirectory, number: int, *findings: Finding, run: str = RUN, summary: Summary = SUMMARY) -> Path:
    told = directory.read_manifest()
    ranges = () if told is None else told.ranges
    part = Partition(number, ranges[number]) if number < len(ranges) else partition(number)
    with directory.writer(run, part) as file:
        file.add(findings)
        file.commit(summary)
    return Path(directory.uri) / "findings" / f"range-{number:06d}.parquet"


def as_older_software_wrote(path: Path, version: int, *columns: str) -> None:
    """Writes a file of this version, whose generations are numbers, in place of one that has them in these columns."""
    table = pq.read_table(path)
    for column in columns:
        place = table.schema.get_field_index(column)
        table = table.set_column(place, pa.field(column, pa.int64()), table[column].cast(pa.int64()))
    told = {key: value for key, value in (pq.read_metadata(path).metadata or {}).items() if key.startswith(b"tiered.")}
    if b"tiered.schema" in told:
        told[b"tiered.schema"] = str(version).encode()
    pq.write_table(table.replace_schema_metadata(told), path, compression="zstd")
