"""Reads a file of findings to its end, and says what is wrong with it.

    examined(files, partition, header, manifest) -> sentences

A footer is written by whoever writes the rows, and a file can be damaged or edited afterwards. So the bytes are
compared with the checksum, the rows with what the footer counted, and each finding with what its verdict needs: an
orphan was created before the cut-off, was looked at twice, and has a name of this part.

It blocks, and holds one group of rows in memory. *Failure*: `UnavailableError` or `ConfigurationError` if the file
cannot be read now. Then nothing is known about it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import reduce
from hashlib import sha256
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recovery.audit.files.arrow import text_generations
from recovery.audit.files.directory import COPY_BYTES, DirectoryFiles
from recovery.audit.files.ledger import FINDINGS, ROW_GROUP, SCHEMA, SEALED, file_of, sealed
from recovery.audit.files.partitions import Header, Partition
from recovery.audit.finding_classes import LOST_BLOBS, ORPHANS
from recovery.audit.manifest import CLOCKS_NS, Bounds, Manifest

_FOOTER_END = 8
"""The last bytes of a Parquet file: the length of the footer (4, little-endian), and PAR1."""


def examined(files: DirectoryFiles, partition: Partition, header: Header, manifest: Manifest) -> Iterator[str]:
    """Yields what is wrong with the file of a part, one sentence each."""
    name = f"{FINDINGS}/{file_of(partition.key)}"
    path = f"{files.path}/{name}"
    with files.explained("be read", name):
        try:
            if not _is_sealed(files, path, header):
                yield f"{name} is damaged or was changed: its checksum does not fit"
                return
            with pq.ParquetFile(path, filesystem=files.filesystem) as file:
                if not text_generations(file.schema_arrow).equals(SCHEMA):
                    yield f"{name} does not have the columns of a file of findings"
                    return
                yield from (f"{name} {fault}" for fault in _rows(file, partition, header, manifest))
        except (pa.ArrowException, FileNotFoundError) as error:
            yield f"{name} cannot be read to its end ({' '.join(str(error).split())[:200]})"


def _is_sealed(files: DirectoryFiles, path: str, header: Header) -> bool:
    """Tells whether the bytes before the footer, and what the footer says, are what was written."""
    summed = sha256()
    with files.filesystem.open_input_file(path) as file:
        size, left = file.size(), header.length
        while left > 0 and (partition := file.read(min(left, COPY_BYTES))):
            summed.update(partition)
            left -= len(partition)
        footer = file.read()
    if left or header.length + len(footer) != size or len(footer) < _FOOTER_END:
        return False
    if int.from_bytes(footer[-_FOOTER_END:-4], "little") + _FOOTER_END != len(footer):
        return False
    told = pq.read_metadata(path, filesystem=files.filesystem).metadata or {}
    says = {key: told.get(f"tiered.{key}".encode(), b"").decode(errors="replace") for key in SEALED}
    return sealed(summed, says) == header.sha256


def _rows(file: Any, partition: Partition, header: Header, manifest: Manifest) -> Iterator[str]:
    counted: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for rows in file.iter_batches(ROW_GROUP):
        counted.update({each["values"]: each["counts"] for each in pc.value_counts(rows["class"]).to_pylist()})
        for fault, wrong in _faults(rows, partition, header.audited, manifest):
            faults[fault] += pc.sum(pc.fill_null(wrong, True)).as_py() or 0
    number = sum(counted.values())
    if number != header.rows:
        yield f"holds {number} findings, and its footer says {header.rows}"
    expected = {each.value: count.number for each, count in header.summary.totals().items() if each.finding is not None and count.number}
    for class_ in sorted({*expected, *counted}, key=str):
        if expected.get(class_, 0) != counted[class_]:
            yield f"holds {counted[class_]} findings of the class {class_}, and its footer counts {expected.get(class_, 0)}"
    for fault, times in faults.items():
        if times:
            yield f"holds {times} findings {fault}"


def _faults(rows: Any, partition: Partition, bounds: Bounds, manifest: Manifest) -> Iterator[tuple[str, Any]]:
    """Yields pairs: what is wrong, and for each row whether it is."""
    orphan = pc.is_in(rows["class"], pa.array([class_.value for class_ in ORPHANS]))
    of_blob = pc.is_in(rows["class"], pa.array([class_.value for class_ in (*ORPHANS, *LOST_BLOBS)]))
    yield "of another run or range", pc.or_(pc.not_equal(rows["run"], manifest.run), pc.not_equal(rows["range"], partition.range))
    outside = pc.less(rows["name"], bounds.start)
    if bounds.end is not None:
        outside = pc.or_(outside, pc.greater_equal(rows["name"], bounds.end))
    yield "whose names are not in its range", pc.and_(of_blob, outside)
    times = {name: rows[name].cast(pa.int64()) for name in ("created", "listed", "logged", "scanned", "confirmed")}
    before_us = -(-manifest.cutoff.created_before_ns // 1000)
    young = pc.greater_equal(times["created"], max(before_us, -(2**63)))  # a grace may be longer than 64 bits can say
    yield "that are orphans though they are younger than the cut-off", pc.and_(orphan, pc.fill_null(young, True))
    yield "that are orphans or dangling and were not looked at twice", pc.and_(of_blob, pc.is_null(times["confirmed"]))
    yield "that were read in the wrong order", _out_of_order([times["listed"], times["logged"], times["scanned"], times["confirmed"]])


def _out_of_order(times: list[Any]) -> Any:
    """Tells for each row whether a time is before the one that precedes it. A time that is null is in order."""
    slack = CLOCKS_NS // 1000
    late = [pc.fill_null(pc.less(pc.add(after, slack), before), False) for before, after in pairwise(times)]
    return reduce(pc.or_, late)
