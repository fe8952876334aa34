"""What a task gives to the join, and what it reads again after the join. Without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from changelog.base.runtime import SystemRuntime
from recovery.audit.inventory import lines, shards
from recovery.audit.inventory.insights import open_report
from recovery.audit.inventory.lines import ROW_BITS, InventoryCounts, InventoryFiles, LineCount
from recovery.audit.inventory.report import open_export
from recovery.audit.names import is_of, usecase_of
from recovery.audit.running.plan import split
from tests.given.inventory_report import line, write_export, write_report

BOUNDS = split(["b", "foo-", "ü"])
NAMES = [
    "", "/", "/x", "a", "a/", "a/b", "a/b/c", "a-/b", "b", "b\0", "foo", "foo-", "foo-bar", "foo-bar/r", "foo/", "foo/r", "zzz", "ü", "ü/é",
    "\uffee", "\U00010000",
]  # fmt: skip


def texts(*values: str | None) -> Any:
    return pa.array(values, pa.string())


def batches(*numbers: int) -> list[Any]:
    return [pa.RecordBatch.from_pydict({"id": list(numbers)})]


def rows_of(found: Iterable[Any]) -> list[dict[str, Any]]:
    return [row for batch in found for row in batch.to_pylist()]


def test_a_usecase_is_read_as_everywhere_else() -> None:
    assert lines.usecases(texts(*NAMES)).to_pylist() == [usecase_of(name) for name in NAMES]


def test_a_row_names_its_own_blob_as_everywhere_else() -> None:
    pairs = [(key, target) for key in NAMES for target in NAMES]
    keys = pa.array([key.encode() for key, _ in pairs], pa.binary())
    assert lines.is_own(keys, texts(*(target for _, target in pairs))).to_pylist() == [is_of(*pair) for pair in pairs]
    assert lines.is_own(keys[3:7], texts(*(target for _, target in pairs))[3:7]).to_pylist() == [is_of(*pair) for pair in pairs[3:7]]
    assert lines.is_own(pa.array([b"\xff", b"a"], pa.binary()), texts(None, None)).to_pylist() == [False, False]
    assert lines.is_own(pa.array([], pa.binary()), texts()).to_pylist() == []


@pytest.mark.parametrize("bounds", [BOUNDS, split([]), split(["\uffee", "\U00010000"]), split(NAMES[1:])])
def test_ranges_are_found_in_the_order_of_bytes(bounds: Any) -> None:
    expected = [max(number for number, each in enumerate(bounds) if each.start.encode() <= name.encode()) for name in NAMES]
    counts = InventoryCounts(bounds)
    assert [counts.range_of(name) for name in NAMES] == expected
    counts.add_rows(texts(None, *reversed(NAMES)))
    assert {told.range: told.number for told in counts.told()} == {number: expected.count(number) for number in expected}


def test_blobs_and_rows_are_counted_by_range(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = InventoryCounts(BOUNDS)
    counts.add_blobs(texts("z/objects/3", "a", "a/objects/1", "a/objects/2", "/x"), pa.array([20, 20, None, 20, 20], pa.int64()))
    counts.add_blobs(texts("a/objects/1"), pa.array([2**62], pa.int64()))
    counts.add_blobs(texts(), pa.array([], pa.int64()))
    counts.add_rows(texts("a", None, "foo-bar/1"))
    assert sorted(counts.told(), key=repr) == sorted([
        LineCount(0, "(none)", 2, 40), LineCount(0, "a", 3, 2**62 + 20), LineCount(2, "z", 1, 20), LineCount(0, None, 1, 0),
        LineCount(2, None, 1, 0),
    ], key=repr)  # fmt: skip
    monkeypatch.setattr(lines, "USECASES_MAX", 2)
    counts.add_blobs(texts("y/1"), pa.array([7], pa.int64()))
    assert [told for told in counts.told() if told.usecase] == [LineCount(0, "(others)", 5, 2**62 + 60), LineCount(2, "(others)", 2, 27)]


def test_a_file_is_read_again_at_the_rows_that_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was left out before a row, its place leads to it."""
    monkeypatch.setattr(shards, "BATCH", 3)
    listed = [line(None), line("gone/1", deleted=True), *(line(f"a/{number}", size=number) for number in range(7)), line("")]
    report = open_report(str(write_report(tmp_path / "report", listed, SystemRuntime().wall_ns() - 10**9, shards=1)), "b", SystemRuntime())
    table = {b"~notes/x": [("fm", b"r", 5, b"x")], b"none": [], **{f"k{number}".encode(): [("fm", b"r", 5, b"a/9")] for number in range(6)}}
    files = InventoryFiles(report, open_export(write_export(tmp_path / "export", table), SystemRuntime()))
    blobs = [row for row in rows_of(lines.of_blobs(report, BOUNDS, batches(0))) if row["name"]]
    rows = [row for row in rows_of(lines.of_export(files, BOUNDS, 9, batches(0))) if row["target"]]
    assert (
        len(blobs) == 7
        and len(rows) == 6
        and {row["at"] >> ROW_BITS for row in blobs} == {0}
        and {row["at"] >> ROW_BITS for row in rows} == {1}
    )
    at = sorted([blobs[0]["at"], blobs[4]["at"], blobs[4]["at"], blobs[6]["at"], rows[2]["at"], rows[5]["at"]])
    told = json.dumps(LineCount(3, "a", 7, 21))
    asked = [
        {"at": None, "key": None, "target": None, "fault": None, "told": told},
        {"at": None, "key": b"\xff", "target": None, "fault": "no text", "told": None},
        *({"at": each, "key": None, "target": None, "fault": None, "told": None} for each in at),
    ]  # fmt: skip
    schema = pa.schema([("at", pa.int64()), *((name, lines.CANDIDATE.field(name).type) for name in ("key", "target", "fault", "told"))])
    parts = [pa.RecordBatch.from_pylist(asked[first : first + 3], schema) for first in range(0, len(asked), 3)]
    found = [tuple(row.values()) for row in rows_of(lines.named(files, BOUNDS, parts))]
    assert found == [
        (3, None, None, None, None, None, None, told), (0, None, None, None, b"\xff", None, "no text", None),
        (0, "a/0", "7", 0, None, None, None, None), (0, "a/4", "7", 4, None, None, None, None), (0, "a/6", "7", 6, None, None, None, None),
        (0, "a/9", None, None, b"k2", "a/9", None, None), (0, "a/9", None, None, b"k5", "a/9", None, None),
    ]  # fmt: skip
