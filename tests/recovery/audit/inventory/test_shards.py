"""The files of a report and of an export, read with Arrow."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import SystemRuntime
from recovery.audit.inventory import shards
from recovery.audit.inventory.insights import open_report
from recovery.audit.inventory.report import open_export
from tests.given.inventory_report import CELL, line, write_export, write_report

LEGACY = b'{"is_redirect_tombstone":true,"content_type":"x"}'


def test_numbers_that_cannot_be_read_are_null(tmp_path: Path) -> None:
    manifest = write_report(tmp_path, [line("a"), line("b")], SystemRuntime().wall_ns() - 10**9, form="csv", shards=1)
    (shard,) = tmp_path.glob("*_0.csv")
    shard.write_text(shard.read_text().replace(",20,", ",many,", 1))
    [(blobs, places)] = shards.read_report(open_report(str(manifest), "b", SystemRuntime()), 0)
    assert blobs.to_pylist() == [{"name": "a", "size": None, "generation": "7"}, {"name": "b", "size": 20, "generation": "7"}]
    assert places.tolist() == [0, 1]


def test_a_name_that_is_no_text_is_left_out_and_counted(tmp_path: Path) -> None:
    """Arrow does not check the text of a Parquet file."""
    manifest = write_report(tmp_path, [line("a"), line("b"), line("c")], SystemRuntime().wall_ns() - 10**9, shards=1)
    (shard,) = tmp_path.glob("*_0.parquet")
    table = pq.read_table(shard)
    damaged = pa.array([b"a", b"\xff", b"c"], pa.binary()).view(pa.string())
    pq.write_table(table.set_column(table.schema.get_field_index("name"), "name", damaged), shard)
    report = open_report(str(manifest), "b", SystemRuntime())
    [(blobs, places)] = shards.read_report(report, 0)
    assert blobs["name"].to_pylist() == ["a", "c"] and places.tolist() == [0, 2]
    assert shards.look_over(report, 0)["nameless"].to_pylist() == [1]


def test_the_tombstones_of_an_export_are_those_of_the_table(tmp_path: Path) -> None:
    export = write_export(tmp_path / "export", {
        b"a": [("fm", b"r", 5, b"a/1"), ("fm", b"t", 5, b"{}"), ("ff", b"w", 5, b"")],
        b"b": [("fg", b"r", 9_000_000, b"b/2")],
        b"newest": [("fm", b"r", 5, b"newest/old"), ("fm", b"r", 6, b"newest/new")],
        b"empty": [("fm", b"r", 5, b"")],
        b"legacy": [("fm", b"m", 5, LEGACY), ("fm", b"p", 5, b"")],
        b"legacy-expiring": [("fg", b"m", 7_000_000, LEGACY)],
        b"inline": [("fm", b"m", 5, b"{}"), ("fm", b"p", 5, b"payload")],
        b"inline-too": [("fm", b"m", 5, LEGACY), ("fpm", b"p", 5, b"payload")],
        b"marks": [("ff", b"x", 5, b"")],
        b"nothing": [],
        b"twice": [("fm", b"r", 5, b"twice/1"), ("fg", b"r", 9_000_000, b"twice/2")],
        b"\xff/": [("fm", b"r", 5, b"x")],
        b"target": [("fm", b"r", 5, b"\xfe")],
        b"~changelog/01/x": [("fc", b"c", 5, b"{}")],
        b"~notes/odd": [("fm", b"r", 5, b"x")],
        b"~theirs": [("fm", b"r", 5, b"~theirs/1")],
    })  # fmt: skip
    [path] = open_export(export, SystemRuntime())
    rows = [row for batch, _ in shards.read_export(path) for row in batch.to_pylist()]
    assert sorted((row["key"], row["target"], row["deadline_us"], row["fault"]) for row in rows if row["target"] is not None) == [
        (b"a", "a/1", None, None), (b"b", "b/2", 9_000_000, None), (b"empty", "empty", None, None), (b"legacy", "legacy", None, None),
        (b"legacy-expiring", "legacy-expiring", 7_000_000, None), (b"newest", "newest/new", None, None),
        (b"twice", "twice/1", None, None), (b"twice", "twice/2", 9_000_000, None), (b"~theirs", "~theirs/1", None, None),
    ]  # fmt: skip
    assert sorted(row["key"] for row in rows if row["fault"] is not None) == [b"target", b"twice", b"\xff/"]


def test_an_export_with_other_columns_is_refused(tmp_path: Path) -> None:
    for name, table in {
        "keyless": pa.table({"rowkey": [b"a"], "cells": pa.array([[]], pa.list_(CELL))}),
        "text": pa.table({"key": ["a"], "cells": pa.array([[]], pa.list_(CELL))}),
        "flat": pa.table({"key": [b"a"], "family": ["fm"]}),
        "other": pa.table({"key": [b"a"], "cells": pa.array([[]], pa.list_(pa.struct([("family", pa.string())])))}),
    }.items():
        (tmp_path / name).mkdir()
        with pytest.raises(ConfigurationError, match=r"holds no \*\.parquet of a Bigtable export"):
            open_export(str(tmp_path / name), SystemRuntime())
        pq.write_table(table, tmp_path / name / "part-0.parquet")
        with pytest.raises(ConfigurationError, match=r"part-0\.parquet is no Bigtable export: it must have key \(binary\)"):
            open_export(str(tmp_path / name), SystemRuntime())


@pytest.mark.parametrize(("prefix", "found"), [("", ["a/media/objects/k/1", "b/x", "é/y"]), ("a/", ["media/objects/k/1"]), ("é", ["/y"])])
def test_a_report_shows_the_blobs_of_the_store_only_and_without_their_prefix(tmp_path: Path, prefix: str, found: list[str]) -> None:
    rows = [line(name) for name in ("~owners/a/owner", "a/media/objects/k/1", "b/x", "é/y", *(["a/"] if prefix else []))]
    manifest = write_report(tmp_path, rows, SystemRuntime().wall_ns() - 10**9, shards=1)
    [(blobs, places)] = shards.read_report(open_report(str(manifest), "b", SystemRuntime(), prefix=prefix), 0)
    assert sorted(set(blobs["name"].to_pylist())) == found and len(places) == len(blobs)
