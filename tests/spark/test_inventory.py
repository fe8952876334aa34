"""The join of an inventory report with a table, on Spark; and whole audits of the emulators by their reports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from changelog.base.errors import ConfigurationError, UnavailableError
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from emulators.up import BUILT_IN
from recovery.audit.inventory import join
from recovery.audit.inventory.engine import open_inventory
from recovery.audit.inventory.report import open_export, open_report
from recovery.audit.ledger import RunDirectory
from recovery.audit.local import LocalEngine
from recovery.audit.manifest import Manifest
from recovery.audit.plan import split
from recovery.audit.run import run_audit
from recovery.audit.verdicts import Kind
from recovery.audit.work import AuditOptions
from tests.given.inventory_report import line, write_report
from tests.given.repository import ROOT
from tiered.metadata import Metadata
from tiered.object_id import ObjectId
from tiered.open import open_backends, open_storage
from tiered.settings import Settings

pytestmark = pytest.mark.slow

NOW_NS = 1_790_000_000 * 10**9
BOUNDS = split(["b", "foo-", "ü"])


def table_of(spark: SparkSession, rows: Sequence[tuple[str | bytes, str | None, int | None, str | None]]) -> DataFrame:
    return spark.createDataFrame([(key.encode() if isinstance(key, str) else key, *rest) for key, *rest in rows], join.ROW_COLUMNS)


def blobs_of(spark: SparkSession, *names: str) -> DataFrame:
    return spark.createDataFrame([(name, 7, 20) for name in names], "name string, generation bigint, size bigint")


def left(found: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(((row["range"], row["name"], row["key"] and bytes(row["key"]), row["target"]) for row in found.collect()), key=repr)


NAMES = ("a", "b", "foo/1", "foo-bar/2", "foo", "z", "ünïcode/é", "\U00010000/x")
TABLE: list[tuple[str | bytes, str | None, int | None, str | None]] = [
    ("foo", "foo/1", None, None),
    ("foo-bar", "foo-bar/2", NOW_NS // 1000 + 1, None),  # lives for another microsecond
    ("z", "z", NOW_NS // 1000, None),  # has passed
    ("ünïcode", "ünïcode/é", None, None),
    ("gone", "gone/3", None, None),
    ("gone", "gone/3", None, None),  # twice
    ("passed", "passed/4", 5, None),
    ("b", "b", None, None), ("b", "b", 5, None),  # by two rows, one of which has passed
    ("strange", "a", None, None),  # the blob of another object
    (b"\xff/", None, None, "no text"),
]  # fmt: skip


def test_what_both_do_not_have_in_common_is_left(spark: SparkSession) -> None:
    found = left(join.candidates(blobs_of(spark, *NAMES), table_of(spark, TABLE), BOUNDS, NOW_NS // 1000))
    assert found == sorted([
        (1, "b", None, None),  # it is looked at, and the services say that a live row names it
        (1, "foo", None, None), (2, "z", None, None), (3, "\U00010000/x", None, None),
        (2, "gone/3", b"gone", "gone/3"), (2, "gone/3", b"gone", "gone/3"), (2, "passed/4", b"passed", "passed/4"),
        (0, "a", b"strange", "a"), (0, None, b"\xff/", None),
    ], key=repr)  # fmt: skip


def test_a_small_and_a_large_number_of_candidates_are_named_alike(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    small = left(join.candidates(blobs_of(spark, *NAMES), table_of(spark, TABLE), BOUNDS, NOW_NS // 1000))
    monkeypatch.setattr(join, "BROADCAST_MAX", -1)
    assert left(join.candidates(blobs_of(spark, *NAMES), table_of(spark, TABLE), BOUNDS, NOW_NS // 1000)) == small


def test_names_with_one_hash_hide_an_orphan_and_make_none(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs, table = blobs_of(spark, "live/1", "lost/2"), table_of(spark, [("live", "live/1", None, None), ("gone", "gone/3", None, None)])
    assert left(join.candidates(blobs, table, BOUNDS, 0)) == [(2, "gone/3", b"gone", "gone/3"), (2, "lost/2", None, None)]
    monkeypatch.setattr(join, "hashes", lambda name: (f.length(name), f.lit(1)))
    assert left(join.candidates(blobs, table, BOUNDS, 0)) == []


def test_the_two_hashes_are_independent(spark: SparkSession) -> None:
    """If the second one were seeded with the first one, names that share the first would share the second."""
    first, second = join.hashes(f.lit("some/objects/name"))
    chained = f.xxhash64(f.lit("some/objects/name"), f.lit("tiered"))
    [row] = spark.range(1).select(first, second, chained).collect()
    assert len(set(row)) == 3


def test_ranges_are_found_in_the_order_of_bytes(spark: SparkSession) -> None:
    names = ["", "a", "b", "b\0", "foo", "foo-", "foo-bar", "foo/", "zzz", "ü", "ü/é", "\uffee", "\U00010000"]
    for bounds in (BOUNDS, split([]), split(["\uffee", "\U00010000"]), split([f"{number:03}" for number in range(63)])):
        expected = [max(number for number, each in enumerate(bounds) if each.start.encode() <= name.encode()) for name in names]
        frame = spark.createDataFrame([(name,) for name in names], "name string")
        found = {row["name"]: row["range"] for row in frame.withColumn("range", join.range_of(f.col("name"), bounds)).collect()}
        assert [found[name] for name in names] == expected


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_report_is_read_with_odd_names_and_without_those_that_are_null(spark: SparkSession, tmp_path: Path, form: str) -> None:
    odd = [
        "plain/objects/k", 'quote"d/objects/,comma', "line\nbreak/objects/k", "ü/objects/\U0001f600", " space /objects/ ",
        "back\\slash/objects/\\", "null", "NaN",
    ]  # fmt: skip
    rows = [*(line(name, size=number) for number, name in enumerate(odd)), line(None), line("gone/objects/k", deleted=True)]
    now_ns = SystemRuntime().wall_ns()
    report = open_report(str(write_report(tmp_path, rows, now_ns - 10**9, form=form, shards=3)), "b", SystemRuntime())
    seen = join.look_over(spark, report)
    assert (seen.rows, seen.nameless, seen.deleted, seen.least, seen.greatest) == (10, 1, 1, "b", "b")
    found = {row["name"]: (row["generation"], row["size"]) for row in join.read_report(spark, report).collect()}
    assert found == {name: (7, number) for number, name in enumerate(odd)}


def test_numbers_that_cannot_be_read_are_null(spark: SparkSession, tmp_path: Path) -> None:
    manifest = write_report(tmp_path, [line("a"), line("b")], SystemRuntime().wall_ns() - 10**9, form="csv", shards=1)
    (shard,) = tmp_path.glob("*_0.csv")
    shard.write_text(shard.read_text().replace(",20,", ",many,", 1))
    rows = join.read_report(spark, open_report(str(manifest), "b", SystemRuntime())).collect()
    assert [(row["name"], row["size"], row["generation"]) for row in rows] == [("a", None, 7), ("b", 20, 7)]


def test_blobs_and_rows_are_counted_by_range(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = blobs_of(spark, "a", "a/objects/1", "a/objects/2", "z/objects/3", "/x")
    counted = join.counted(blobs, BOUNDS)
    assert {number: sorted((each.usecase, each.number, each.size) for each in shares) for number, shares in counted.items()} == {
        0: [("(none)", 2, 40), ("a", 2, 40)], 2: [("z", 1, 20)],
    }  # fmt: skip
    assert join.rows_counted(table_of(spark, TABLE), BOUNDS) == {0: 1, 1: 2, 2: 6, 3: 1}
    monkeypatch.setattr(join, "USECASE_ROWS_MAX", 2)
    assert [(each.usecase, each.number) for each in join.counted(blobs, BOUNDS)[0]] == [("(others)", 4)]


# --- exports -------------------------------------------------------------------------------------

CELL = pa.struct([("family", pa.string()), ("qualifier", pa.binary()), ("timestamp", pa.int64()), ("value", pa.binary())])
LEGACY = b'{"is_redirect_tombstone":true,"content_type":"x"}'


def write_export(path: Path, rows: dict[bytes, list[tuple[str, bytes, int, bytes]]]) -> str:
    cells = [[dict(zip(("family", "qualifier", "timestamp", "value"), cell, strict=True)) for cell in each] for each in rows.values()]
    path.mkdir()
    pq.write_table(pa.table({"key": pa.array(list(rows), pa.binary()), "cells": pa.array(cells, pa.list_(CELL))}), path / "part-0.parquet")
    return str(path)


def test_the_tombstones_of_an_export_are_those_of_the_table(spark: SparkSession, tmp_path: Path) -> None:
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
        b"~odd": [("fm", b"r", 5, b"x")],
    })  # fmt: skip
    rows = join.read_export(spark, open_export(export, SystemRuntime())).collect()
    assert sorted((bytes(row["key"]), row["target"], row["deadline_us"], row["fault"]) for row in rows if row["target"] is not None) == [
        (b"a", "a/1", None, None), (b"b", "b/2", 9_000_000, None), (b"empty", "empty", None, None), (b"legacy", "legacy", None, None),
        (b"legacy-expiring", "legacy-expiring", 7_000_000, None), (b"newest", "newest/new", None, None),
        (b"twice", "twice/1", None, None), (b"twice", "twice/2", 9_000_000, None),
    ]  # fmt: skip
    assert sorted(bytes(row["key"]) for row in rows if row["fault"] is not None) == [b"target", b"twice", b"\xff/"]


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


# --- whole audits --------------------------------------------------------------------------------

OBJECTS = 14


@pytest.fixture(scope="module")
def services() -> Iterator[Settings]:
    """The emulators, in a process of their own: Arrow's client holds the interpreter's lock while it waits."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "emulators", "up", "--gcs-port", "0", "--bigtable-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT, env=environment) as up:
        assert up.stdout is not None
        addresses = dict(up.stdout.readline().strip().split("=") for _ in range(2))
        assert BUILT_IN.bigtable is not None and BUILT_IN.gcs is not None
        yield Settings(
            changelog="bigtable", inline_bytes_max=1,
            bigtable=BUILT_IN.bigtable.model_copy(update={"emulator_host": addresses["BIGTABLE_EMULATOR_HOST"]}),
            gcs=BUILT_IN.gcs.model_copy(update={"endpoint": addresses["STORAGE_EMULATOR_HOST"]}),
        )  # fmt: skip
        up.send_signal(signal.SIGTERM)


@dataclass
class World:
    """A store with something to find in it. `rows`: of its inventory report. `export`: the rows of its table."""

    settings: Settings
    bucket: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    export: dict[bytes, list[tuple[str, bytes, int, bytes]]] = field(default_factory=dict)
    snapshot_ns: int = 0
    expected: list[tuple[str, str]] = field(default_factory=list)


async def upload(settings: Settings, name: str, payload: bytes = b"abc") -> None:
    async with open_backends(settings, SystemRuntime()) as backends:
        opened = await backends.tiers.long_term.open_upload(name, Metadata(), len(payload))
        await opened.write(payload)
        await opened.finalise()


async def build(settings: Settings) -> World:
    """Before the report: orphans, one of them legacy, and a lost blob. After it: an overwrite, a delete, a put."""
    assert settings.gcs is not None
    world = World(settings, settings.gcs.bucket)
    runtime = SystemRuntime()

    def object_id(number: int) -> ObjectId:
        return ObjectId("media", (), f"{number:02}")

    async with open_storage(settings) as storage:
        for number in range(OBJECTS):
            await storage.put(object_id(number), b"x" * 20)
    async with open_backends(settings, runtime) as backends:
        targets = {number: (await backends.tiers.high_volume.read(f"media/objects/{number:02}")).target for number in range(OBJECTS)}
        lost = targets[5]
        assert lost is not None
        await backends.tiers.long_term.delete(lost)
        orphans = [f"media/objects/{key}/{ChangeId.new(runtime)}" for key in ("03", "77")]
        for name in [*orphans, "media/objects/legacy"]:
            await upload(settings, name)
        page = await backends.tiers.long_term.list("", None, 1000)
        redirects = await backends.tiers.high_volume.redirects(b"", None, 1000)
        world.rows = [line(blob.name, blob.size, blob.generation, world.bucket) for blob in page.blobs] + [line(None, bucket=world.bucket)]
        world.export = {row.path.encode(): [("fm", b"r", 5, row.target.encode())] for row in redirects.redirects}
        while await backends.tiers.long_term.now_ns() <= max(blob.created_ns for blob in page.blobs):
            pass  # it is told in whole seconds, and what is not older is not judged
        world.snapshot_ns = await backends.tiers.long_term.now_ns()
    async with open_storage(settings) as storage:
        await storage.put(object_id(1), b"y" * 21)
        await storage.delete(object_id(2))
        await storage.put(object_id(99), b"z" * 22)
    world.expected = sorted([
        ("dangling", lost), ("legacy_orphan", "media/objects/legacy"), *(("orphan", name) for name in orphans),
    ])  # fmt: skip
    return world


@pytest.fixture(scope="module")
def store(services: Settings) -> World:
    return anyio.run(build, services)


def audit(world: World, inventory: Path, to: Path, export: str | None = None) -> Manifest:
    """Without a grace, because what was planted is young."""
    with open_inventory(world.settings, str(inventory), export, SystemRuntime(), slots=2) as engine:
        options = AuditOptions(str(to), grace_s=0, insist=True, inventory=engine.evidence)
        return anyio.run(run_audit, world.settings, options, engine, SystemRuntime(), lambda _: None)


def found(to: Path) -> list[tuple[str, str]]:
    directory = RunDirectory.open(str(to))
    manifest = directory.read_manifest()
    assert manifest is not None
    return sorted((each.kind.value, each.name) for each in directory.findings(manifest.run))


@pytest.mark.parametrize(("form", "exported"), [("parquet", False), ("csv", True)])
def test_an_audit_by_report_finds_what_was_planted(
    spark: SparkSession, store: World, tmp_path: Path, form: str, exported: bool
) -> None:
    inventory = write_report(tmp_path / "report", store.rows, store.snapshot_ns, form=form)
    export = write_export(tmp_path / "export", store.export) if exported else None
    manifest = audit(store, inventory, tmp_path / "run", export)
    assert manifest.complete, (manifest.doubts, manifest.failures)
    assert found(tmp_path / "run") == store.expected
    assert manifest.inventory is not None and manifest.inventory.report == str(inventory) and manifest.inventory.export == export
    assert manifest.cutoff.as_of_ns == store.snapshot_ns and "inventory report of 2026-" in manifest.engine
    assert any(note.startswith(f"the blobs are those of {inventory}, which shows the bucket ") for note in manifest.notes)
    assert "left out 1 row of the inventory report without a name that is text" in manifest.notes
    totals = {kind: (each.number, each.size) for kind, each in manifest.totals.items()}
    # The blobs of 01 and 02 are gone by now, and the export still names them.
    assert manifest.names == OBJECTS - 1 + 3 - (0 if exported else 2)
    assert totals[Kind.ORPHAN] == (2, 6) and totals[Kind.LEGACY_ORPHAN] == (1, 3) and totals[Kind.DANGLING] == (1, 0)
    assert (tmp_path / "run" / "report.html").exists()
    again = audit(store, inventory, tmp_path / "run", export)
    assert again.run == manifest.run and found(tmp_path / "run") == store.expected


def test_a_run_goes_on_only_with_the_same_report(spark: SparkSession, store: World, tmp_path: Path) -> None:
    inventory = write_report(tmp_path / "report", store.rows, store.snapshot_ns)
    first = audit(store, inventory, tmp_path / "run")
    assert first.complete
    (tmp_path / "run" / "findings" / "range-000000.parquet").unlink()
    path = tmp_path / "run" / "manifest.json"
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "ended_ns": None, "complete": False}))
    options = AuditOptions(str(tmp_path / "run"), grace_s=0, insist=True)
    with pytest.raises(ConfigurationError, match=r"holds a run that took its blobs from .*: give the same again, or another directory"):
        anyio.run(run_audit, store.settings, options, LocalEngine(1), SystemRuntime(), lambda _: None)
    assert audit(store, inventory, tmp_path / "run").run == first.run
    assert found(tmp_path / "run") == store.expected


def test_a_report_that_lies_about_every_row_accuses_nobody(spark: SparkSession, store: World, tmp_path: Path) -> None:
    """An export that is empty, and a report whose names were never there: the services say what is so."""
    rows = [line(f"media/objects/never/{number}", bucket=store.bucket) for number in range(20)]
    inventory = write_report(tmp_path / "report", [*rows, *store.rows], store.snapshot_ns)
    audit(store, inventory, tmp_path / "run", write_export(tmp_path / "export", {b"unrelated": []}))
    assert found(tmp_path / "run") == [each for each in store.expected if each[0] != "dangling"]


def test_rows_of_another_bucket_and_rows_that_are_missing_are_refused(spark: SparkSession, store: World, tmp_path: Path) -> None:
    rows = [*store.rows, line("media/objects/x", bucket="zebra")]
    inventory = write_report(tmp_path / "other", rows, store.snapshot_ns)
    with pytest.raises(ConfigurationError, match=f"is a report of the bucket zebra, and the store is in {store.bucket}"):
        audit(store, inventory, tmp_path / "run")
    inventory = write_report(tmp_path / "short", store.rows, store.snapshot_ns, form="csv", records_processed=len(store.rows) + 1)
    with pytest.raises(ConfigurationError, match=rf"tells {len(store.rows) + 1} rows, and its shards have {len(store.rows)}: copy"):
        audit(store, inventory, tmp_path / "run")
    (shard,) = tmp_path.glob("short/*_1.csv")
    shard.write_text(shard.read_text() + "p,b\n")
    with pytest.raises(UnavailableError, match=r"cannot be read .*: copy the report again"):
        audit(store, inventory, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_report_is_refused_for_a_store_in_a_directory(tmp_path: Path) -> None:
    refused = pytest.raises(ConfigurationError, match="an inventory report is of a bucket, and this store is in a directory")
    with refused, open_inventory(Settings(directory=tmp_path), str(tmp_path), None, SystemRuntime()):
        pass
