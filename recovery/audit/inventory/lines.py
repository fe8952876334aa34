"""The lines that tasks give to the join, and the names of what it leaves. On an executor.

    a file of the report  ->  one line a blob: name, at                                       -.
                              and counts by range and usecase                                   |   join (join.py)
    a file of the export  ->  one line a tombstone: target, passed, look, at                    |
    or pages of the table     and counts by range                                             -'
    what the join left    ->  named: a second reading of the files, of the rows at `at` only

Each file is read once for all of this. The join needs neither keys nor sizes, so they stay in the files. `at` says
where a line came from: the number of the file, and the row in it. A count is a line of its own, with text in `told` and
nothing else. So counts go where their lines go. A task that Spark runs twice counts nothing twice, because Spark takes
the lines of one of its runs.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recovery.audit.finding import NO_USECASE, OTHERS
from recovery.audit.inventory import shards
from recovery.audit.inventory.arrays import texts
from recovery.audit.inventory.report import InventoryReport
from recovery.audit.manifest import Bounds
from recovery.sources.columns import TOMBSTONES, batch_of
from recovery.sources.reading import TablePartition, rows

ROW_BITS = 40
"""So many bits of `at` are the row's number in its file."""

USECASES_MAX = 10_000
"""How many pairs of range and usecase the task of a file counts one by one. With more, it counts them as of others."""

BLOB = pa.schema([("name", pa.string()), ("at", pa.int64()), ("told", pa.string())])
ROW = pa.schema([("target", pa.string()), ("passed", pa.bool_()), ("look", pa.bool_()), ("at", pa.int64()), ("told", pa.string())])
SCANNED = pa.schema([*ROW, ("key", pa.binary()), ("fault", pa.string())])
CANDIDATE = pa.schema([
    ("range", pa.int32()), ("name", pa.string()), ("generation", pa.string()), ("size", pa.int64()), ("key", pa.binary()),
    ("target", pa.string()), ("fault", pa.string()), ("told", pa.string()),
])  # fmt: skip


class LineCount(NamedTuple):
    """A count. `usecase`: of blobs; None: these are rows. `size`: bytes."""

    range: int
    usecase: str | None
    number: int
    size: int


@dataclass(frozen=True, slots=True)
class InventoryFiles:
    """The files of a report, and those of an export. A file's number is its place in both together."""

    report: InventoryReport
    export: tuple[str, ...] = ()

    @property
    def shards(self) -> int:
        return len(self.report.shards)


# --- to the join -----------------------------------------------------------------------------------


def look_over(report: InventoryReport, batches: Iterable[Any]) -> Iterator[Any]:
    for number in _numbers(batches):
        yield shards.look_over(report, number)


def of_blobs(report: InventoryReport, bounds: Sequence[Bounds], batches: Iterable[Any]) -> Iterator[Any]:
    """Yields the lines of these shards, as `BLOB` says. `batches`: the numbers of the shards."""
    for shard in _numbers(batches):
        counts = InventoryCounts(bounds)
        for blobs, places in shards.read_report(report, shard):
            counts.add_blobs(blobs["name"], blobs["size"])
            yield _batch(BLOB, len(places), name=blobs["name"], at=_at(shard, places))
        yield _with_counts(BLOB, counts)


def of_export(files: InventoryFiles, bounds: Sequence[Bounds], now_us: int, batches: Iterable[Any]) -> Iterator[Any]:
    """Yields the lines of these files of the export, as `ROW` says.

    `now_us`: a deadline that is not after this time has passed (microseconds since 1970).
    """
    for number in _numbers(batches):
        counts = InventoryCounts(bounds)
        for tombstones, places in shards.read_export(files.export[number]):
            counts.add_rows(tombstones["target"])
            yield _batch(ROW, len(places), at=_at(files.shards + number, places), **judged(tombstones, now_us))
        yield _with_counts(ROW, counts)


def of_table(settings: str, bounds: Sequence[Bounds], now_us: int, batches: Iterable[Any]) -> Iterator[Any]:
    """Yields the lines of the table's rows, as `SCANNED` says. `batches`: which of these ranges of keys.

    A table that is in use cannot be read a second time, so everything that may be needed goes along.
    """
    for number in _numbers(batches):
        counts = InventoryCounts(bounds)
        for page in rows("tiered.tombstones", settings, TablePartition(bounds[number].start, bounds[number].end)):
            found = batch_of(TOMBSTONES, page, ("object", "name", "deadline", "error"))
            tombstones = pa.RecordBatch.from_pydict({
                "key": pc.cast(found["object"], pa.binary()), "target": found["name"],
                "deadline_us": pc.cast(found["deadline"], pa.int64()), "fault": found["error"],
            })  # fmt: skip
            counts.add_rows(tombstones["target"])
            whole = {"key": tombstones["key"], "fault": tombstones["fault"]}
            yield _batch(SCANNED, len(page), **judged(tombstones, now_us), **whole)
        yield _with_counts(SCANNED, counts)


def judged(tombstones: Any, now_us: int) -> dict[str, Any]:
    """Returns what the join must know of these tombstones.

    `passed`: its deadline has passed. `look`: it is looked at whatever the report shows, because it has a fault, or
    names the blob of another object.
    """
    passed = pc.fill_null(pc.less_equal(tombstones["deadline_us"], now_us), False)
    look = pc.or_(pc.is_valid(tombstones["fault"]), pc.invert(is_own(tombstones["key"], tombstones["target"])))
    return {"target": tombstones["target"], "passed": passed, "look": look}


def is_own(keys: Any, targets: Any) -> Any:
    """Tells of each row whether it may name its blob, as `recovery.audit.names.is_of` does. False without a target."""
    whole = pc.fill_null(pc.cast(targets, pa.binary()), b"")
    offsets = np.frombuffer(whole.buffers()[1], np.int32)[whole.offset : whole.offset + len(whole) + 1]
    # Each target is cut in two, after as many bytes as its key and a slash have.
    cuts = np.empty(2 * len(whole) + 1, np.int32)
    cuts[0::2] = offsets
    cuts[1::2] = np.minimum(offsets[:-1] + pc.binary_length(keys).to_numpy(zero_copy_only=False) + 1, offsets[1:])
    partitions = pa.Array.from_buffers(pa.binary(), 2 * len(whole), [None, pa.py_buffer(cuts), whole.buffers()[2]])
    first = partitions.take(pa.array(np.arange(0, 2 * len(whole), 2)))
    below = pc.equal(first, pc.binary_join_element_wise(keys, b"", b"/"))
    return pc.and_(pc.is_valid(targets), pc.or_(below, pc.equal(whole, keys)))


def _numbers(batches: Iterable[Any]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _at(file: int, places: Any) -> Any:
    return pa.array((file << ROW_BITS) + places)


def _batch(schema: Any, length: int, **columns: Any) -> Any:
    """Returns a batch with these columns. The others are null."""
    return pa.RecordBatch.from_arrays(
        [columns.get(name, pa.nulls(length, schema.field(name).type)) for name in schema.names], schema=schema
    )


def _with_counts(schema: Any, counts: InventoryCounts) -> Any:
    texts = [json.dumps(each) for each in counts.told()]
    return _batch(schema, len(texts), told=pa.array(texts, pa.string()))


# --- counts ----------------------------------------------------------------------------------------


class InventoryCounts:
    """Counts blobs by range and usecase, and rows by the range of the blob that they name."""

    def __init__(self, bounds: Sequence[Bounds]) -> None:
        self._starts = [each.start for each in bounds]
        self._ends = [start.encode() for start in self._starts[1:]]
        self._blobs: dict[tuple[int, str], tuple[int, int]] = {}
        self._rows: dict[int, int] = {}

    def range_of(self, name: str) -> int:
        """Returns the number of the range in which a name lies. Names are in the order of their bytes."""
        return bisect_right(self._ends, name.encode())

    def add_blobs(self, names: Any, sizes: Any) -> None:
        for number, part in self._by_range(pa.table({"name": names, "size": sizes})):
            grouped = pa.table({"usecase": usecases(part["name"]), "size": part["size"]}).group_by("usecase", use_threads=False)
            found = grouped.aggregate([("size", "sum"), ([], "count_all")])
            for usecase, size, count in zip(*(found[name].to_pylist() for name in ("usecase", "size_sum", "count_all")), strict=True):
                self._add(number, usecase, count, size or 0)
        if len(self._blobs) > USECASES_MAX:
            several, self._blobs = self._blobs, {}
            for (number, _), counted in several.items():
                self._add(number, OTHERS, *counted)

    def add_rows(self, targets: Any) -> None:
        for number, part in self._by_range(pa.table({"name": targets.drop_null()})):
            self._rows[number] = self._rows.get(number, 0) + part.num_rows

    def told(self) -> Iterator[LineCount]:
        for (number, usecase), (count, size) in self._blobs.items():
            yield LineCount(number, usecase, count, size)
        for number, count in self._rows.items():
            yield LineCount(number, None, count, 0)

    def _add(self, number: int, usecase: str, count: int, size: int) -> None:
        counted = self._blobs.get((number, usecase), (0, 0))
        self._blobs[number, usecase] = (counted[0] + count, counted[1] + size)

    def _by_range(self, part: Any) -> Iterator[tuple[int, Any]]:
        """Yields the lines of each range. Names that are sorted are all in one or two, and little is compared."""
        if not part.num_rows:
            return
        ends = pc.min_max(part["name"])
        first, last = self.range_of(ends["min"].as_py()), self.range_of(ends["max"].as_py())
        if first == last:
            yield first, part
            return
        is_beyond = pc.greater_equal(part["name"], self._starts[(first + last + 1) // 2])
        for mask in (pc.invert(is_beyond), is_beyond):
            yield from self._by_range(part.filter(mask))


def usecases(names: Any) -> Any:
    """Returns the usecase of each name, as `recovery.audit.names.usecase_of` does."""
    parts = pc.split_pattern(names, "/", max_splits=1)
    first = pc.list_element(parts, 0)
    has_one = pc.and_(pc.equal(pc.list_value_length(parts), 2), pc.not_equal(first, ""))
    return pc.if_else(has_one, first, NO_USECASE)


# --- from the join ---------------------------------------------------------------------------------


def named(files: InventoryFiles, bounds: Sequence[Bounds], batches: Iterable[Any]) -> Iterator[Any]:
    """Yields the candidates, as `CANDIDATE` says, of what the join left.

    `batches`: at, key, target, fault, told; in the order of `at`. What has no `at` is yielded with its range. The rest
    is read from the files.
    """
    range_of = InventoryCounts(bounds).range_of
    wanted: dict[int, list[Any]] = {}
    for batch in batches:
        whole = batch.filter(pc.is_null(batch["at"]))
        if whole.num_rows:
            yield _candidates(whole, range_of)
        at = batch["at"].drop_null().to_numpy()
        for file in np.unique(at >> ROW_BITS).tolist():
            yield from _read_again(files, {other: wanted.pop(other) for other in list(wanted) if other != file}, range_of)
            wanted.setdefault(file, []).append(at[at >> ROW_BITS == file] & ((1 << ROW_BITS) - 1))
    yield from _read_again(files, wanted, range_of)


def _read_again(files: InventoryFiles, wanted: Mapping[int, Sequence[Any]], range_of: Callable[[str], int]) -> Iterator[Any]:
    """Yields the candidates at these rows of these files."""
    for file, several in wanted.items():
        places = np.unique(np.concatenate(several))

        def chosen(first: int, last: int, places: Any = places) -> Any:
            return places[slice(*np.searchsorted(places, (first, last)))]

        is_of_report = file < files.shards
        found = (
            shards.read_report(files.report, file, chosen) if is_of_report
            else shards.read_export(files.export[file - files.shards], chosen)
        )  # fmt: skip
        for batch, _ in found:
            if batch.num_rows:
                yield _candidates(batch, range_of)


def _candidates(found: Any, range_of: Callable[[str], int]) -> Any:
    """Returns these lines with their names and ranges."""
    columns = {name: found[name] for name in found.schema.names if name in CANDIDATE.names}
    if "key" in columns:
        columns["name"] = pc.coalesce(columns["target"], texts(columns["key"]))
    counted = (
        [None if text is None else LineCount(*json.loads(text)).range for text in columns["told"].to_pylist()] if "told" in columns else []
    )
    names = columns["name"].to_pylist()
    numbers = counted or [None] * len(names)
    ranges = [number if number is not None else 0 if name is None else range_of(name) for number, name in zip(numbers, names, strict=True)]
    return _batch(CANDIDATE, len(names), range=pa.array(ranges, pa.int32()), **columns)
