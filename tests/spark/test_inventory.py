"""The join of an inventory report with a table, on Spark; and whole audits of the emulators by their reports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from changelog.base.errors import ConfigurationError, UnavailableError
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from emulators.s3.servers import REGION
from emulators.up import BUILT_IN
from recovery.audit.deleting.candidates import Fate
from recovery.audit.deleting.deletion import Look, Wish, delete_orphans
from recovery.audit.deleting.gates import DeletionOptions
from recovery.audit.files.evidence import evidence
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.finding_classes import FindingClass
from recovery.audit.inventory import join, lines
from recovery.audit.inventory.engine import open_inventory
from recovery.audit.inventory.insights import open_report
from recovery.audit.inventory.lines import InventoryFiles
from recovery.audit.inventory.report import open_export
from recovery.audit.manifest import Bounds, Manifest
from recovery.audit.reporting.show import told_by
from recovery.audit.running.local import LocalEngine
from recovery.audit.running.plan import split
from recovery.audit.running.run import run_audit
from recovery.audit.running.work import AuditOptions
from tests.given.inventory_report import line, s3_line, write_export, write_report, write_s3_report
from tests.given.other_software import write_as_both
from tests.given.processes import StartedProcess
from tests.given.recovered import recover_all
from tests.given.repository import ROOT
from tests.given.s3_buckets import make_bucket
from tiered.kinds.chosen import provision
from tiered.metadata import Metadata
from tiered.object_id import ObjectId
from tiered.open import open_backends, open_storage
from tiered.protocol.scans import BlobInfo
from tiered.provision.findings import problems
from tiered.settings import S3Settings, Settings

pytestmark = pytest.mark.slow

NOW_NS = 1_790_000_000 * 10**9
BOUNDS = split(["b", "foo-", "ü"])


Row = tuple[str | bytes, str | None, int | None, str | None]


def rows_of(spark: SparkSession, *table: Row) -> DataFrame:
    """What a scan of these rows gives the join: key, target, deadline (microseconds), fault."""
    keys = [key.encode() if isinstance(key, str) else key for key, *_ in table]
    columns = {name: [row[place] for row in table] for place, name in enumerate(("", "target", "deadline_us", "fault")) if name}
    types = {"target": pa.string(), "deadline_us": pa.int64(), "fault": pa.string()}
    tombstones = pa.RecordBatch.from_pydict(
        {"key": pa.array(keys, pa.binary()), **{name: pa.array(columns[name], kind) for name, kind in types.items()}}
    )
    found = lines.judged(tombstones, NOW_NS // 1000) | {"key": tombstones["key"], "fault": tombstones["fault"]}
    return spark.createDataFrame(
        list(zip(*(found[name].to_pylist() if name in found else [None] * len(keys) for name in lines.SCANNED.names), strict=True)),
        join.SCANNED_COLUMNS,
    )


def left(spark: SparkSession, where: Path, names: Sequence[str], *table: Row, bounds: Sequence[Bounds] = BOUNDS) -> list[tuple[Any, ...]]:
    """Returns what is left of a report with these names: range, name, key, target."""
    now_ns = SystemRuntime().wall_ns()
    report = open_report(str(write_report(where, [line(name) for name in names], now_ns - 10**9, shards=2)), "b", SystemRuntime())
    blobs = join.read_report(spark, report, bounds)
    found = join.candidates(blobs, rows_of(spark, *table), InventoryFiles(report), bounds).collect()
    return sorted(
        ((row["range"], row["name"], row["key"] and bytes(row["key"]), row["target"]) for row in found if row["told"] is None), key=repr
    )


NAMES = ("a", "b", "foo/1", "foo-bar/2", "foo", "z", "ünïcode/é", "\U00010000/x")
TABLE: list[Row] = [
    ("foo", "foo/1", None, None),
    ("foo-bar", "foo-bar/2", NOW_NS // 1000 + 1, None),  # lives for another microsecond
    ("z", "z", NOW_NS // 1000, None),  # has passed
    ("ünïcode", "ünïcode/é", None, None),
    ("gone", "gone/3", None, None),
    ("gone", "gone/3", None, None),  # twice
    ("passed", "passed/4", 5, None),
    ("b", "b", None, None), ("b", "b", 5, None),  # by two rows, one of which has passed
    ("strange", "a", None, None),  # the blob of another object
    (b"\xff/", None, None, "no text"), ("damaged", None, None, "no cell"),
]  # fmt: skip


def test_what_both_do_not_have_in_common_is_left(spark: SparkSession, tmp_path: Path) -> None:
    assert left(spark, tmp_path, NAMES, *TABLE) == sorted([
        (1, "b", None, None),  # it is looked at, and the services say that a live row names it
        (1, "foo", None, None), (2, "z", None, None), (3, "\U00010000/x", None, None),
        (2, "gone/3", b"gone", "gone/3"), (2, "gone/3", b"gone", "gone/3"), (2, "passed/4", b"passed", "passed/4"),
        (0, "a", b"strange", "a"), (0, None, b"\xff/", None), (1, "damaged", b"damaged", None),
    ], key=repr)  # fmt: skip


def test_a_name_that_the_report_has_twice_is_left_once_for_each_row_of_the_report(spark: SparkSession, tmp_path: Path) -> None:
    found = left(spark, tmp_path, ["a", "a", "b", "b"], ("b", "b", None, None), ("b", "b", 5, None))
    assert found == [(0, "a", None, None), (0, "a", None, None), (1, "b", None, None), (1, "b", None, None)]


def test_names_with_one_hash_hide_an_orphan_and_make_none(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table: list[Row] = [("live", "live/1", None, None), ("gone", "gone/3", None, None)]
    found = left(spark, tmp_path, ["live/1", "lost/2"], *table)
    assert found == [(2, "gone/3", b"gone", "gone/3"), (2, "lost/2", None, None)]
    monkeypatch.setattr(join, "hashes", lambda name: (f.length(name), f.lit(1)))
    assert left(spark, tmp_path, ["live/1", "lost/2"], *table) == []


def test_two_names_that_share_one_of_their_hashes_are_two(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = join.hashes
    for place in (0, 1):
        monkeypatch.setattr(join, "hashes", lambda name, place=place: (f.lit(1), hashes(name)[1]) if place else (hashes(name)[0], f.lit(1)))
        assert len(left(spark, tmp_path, ["live/1", "lost/2"], ("live", "live/1", None, None), ("gone", "gone/3", None, None))) == 2


def test_the_two_hashes_are_independent(spark: SparkSession) -> None:
    """If the second one were seeded with the first one, names that share the first would share the second."""
    first, second = join.hashes(f.lit("some/objects/name"))
    chained = f.xxhash64(f.lit("some/objects/name"), f.lit("tiered"))
    [row] = spark.range(1).select(first, second, chained).collect()
    assert len(set(row)) == 3


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
    found = join.candidates(join.read_report(spark, report, BOUNDS), rows_of(spark), InventoryFiles(report), BOUNDS).collect()
    named = {row["name"]: (row["generation"], row["size"]) for row in found if row["told"] is None}
    assert named == {name: ("7", number) for number, name in enumerate(odd)}


# --- exports -------------------------------------------------------------------------------------


def test_an_export_gives_the_join_what_a_scan_gives(spark: SparkSession, tmp_path: Path) -> None:
    """Rows that are read a second time are those of the first time."""
    (tmp_path / "report").mkdir()
    report = open_report(
        str(write_report(tmp_path / "report", [line("a/1"), line("odd/4"), line("z/3")], SystemRuntime().wall_ns())), "b", SystemRuntime()
    )
    export = write_export(tmp_path / "export", {
        b"a": [("fm", b"r", 5, b"a/1")], b"nothing": [], b"gone": [("fm", b"r", 5, b"gone/2")], b"z": [("fg", b"r", 5, b"z/3")],
        b"strange": [("fm", b"r", 5, b"odd/4")], b"twice": [("fm", b"r", 5, b"twice/1"), ("fg", b"r", 9_000_000, b"twice/2")],
    })  # fmt: skip
    files = InventoryFiles(report, open_export(export, SystemRuntime()))
    rows = join.read_export(spark, files, BOUNDS, 9)
    found = [row for row in join.candidates(join.read_report(spark, report, BOUNDS), rows, files, BOUNDS).collect() if row["told"] is None]
    assert sorted((row["name"], bytes(row["key"]) if row["key"] else None, row["fault"]) for row in found if row["key"]) == [
        ("gone/2", b"gone", None), ("odd/4", b"strange", None), ("twice", b"twice", ""), ("twice/1", b"twice", None),
        ("twice/2", b"twice", None),
    ]  # fmt: skip
    assert [row["name"] for row in found if not row["key"]] == ["z/3"]  # its row has passed


# --- whole audits --------------------------------------------------------------------------------

OBJECTS = 14


@pytest.fixture(scope="module")
def services() -> Iterator[Settings]:
    """The emulators, in a process of their own: Arrow's client holds the interpreter's lock while it waits."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "emulators", "up", "--gcs-port", "0", "--bigtable-port", "0"]
    with StartedProcess(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT, env=environment) as up:
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
class InventoryWorld:
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


async def build(settings: Settings) -> InventoryWorld:
    """Before the report: orphans, one of them legacy, and a lost blob. After it: an overwrite, a delete, a put."""
    at = settings.gcs or settings.s3
    assert at is not None
    world = InventoryWorld(settings, at.bucket)
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
        if settings.s3 is None:
            world.rows = [*(line(blob.name, blob.size, blob.generation, at.bucket) for blob in page.blobs), line(None, bucket=at.bucket)]
        else:
            world.rows = [*(s3_line_of(blob, settings.s3) for blob in page.blobs), s3_line(None, bucket=at.bucket)]
            world.rows += [s3_line(f"{at.prefix}~t/{lost}/{number:012x}", 0, bucket=at.bucket) for number in range(3)]
        world.export = {row.path.encode(): [("fm", b"r", 5, row.target.encode())] for row in redirects.redirects}
        while await backends.tiers.long_term.now_ns() <= max(blob.created_ns for blob in page.blobs):
            pass  # it is told in whole seconds, and what is not older is not judged
        world.snapshot_ns = await backends.tiers.long_term.now_ns()
    async with open_storage(settings) as storage:
        await storage.put(object_id(1), b"y" * 21)
        await storage.delete(object_id(2))
        await storage.put(object_id(99), b"z" * 22)
    await recover_all(settings, within_s=120)  # deletes what a writer replaced and had no time for; else it is counted
    await write_as_both(settings, "media/objects/00+", "media/objects/00++")
    world.expected = sorted([
        ("mixed_writers", "media/objects/00+"), ("dangling", lost),
        ("legacy_orphan", "media/objects/legacy"), *(("orphan", name) for name in orphans),
    ])  # fmt: skip
    return world


def s3_line_of(blob: BlobInfo, at: S3Settings) -> dict[str, Any]:
    """What S3 reports of a blob. Its time may be told more exactly than the adapter tells it."""
    tag, _, second = blob.generation.rpartition("@")
    created = datetime.fromtimestamp(int(second), UTC).replace(microsecond=123_000)
    return s3_line(at.prefix + blob.name, blob.size, tag, at.bucket, created)


@pytest.fixture(scope="module")
def store(services: Settings) -> InventoryWorld:
    return anyio.run(build, services)


@pytest.fixture(scope="module")
def s3_store(services: Settings, versitygw_url: str) -> InventoryWorld:
    """A store whose rows are in Bigtable, and whose blobs are below a prefix of a bucket of S3."""
    assert services.bigtable is not None
    at = S3Settings(
        bucket="inventoried", prefix="tier/", endpoint=versitygw_url, region=REGION, addressing_style="path",
        timeout_s=60,  # a busy machine may take its time
    )  # fmt: skip
    table = services.bigtable.model_copy(update={"table": "s3-objects", "changelog_table": "s3-changelog"})
    settings = Settings(changelog="bigtable", inline_bytes_max=1, bigtable=table, s3=at)
    anyio.run(make_bucket, versitygw_url, at.bucket)
    assert problems(anyio.run(provision, settings)) == []
    return anyio.run(build, settings)


def audit(world: InventoryWorld, inventory: Path, to: Path, export: str | None = None) -> Manifest:
    """Without a grace, because what was planted is young."""
    with open_inventory(world.settings, str(inventory), export, SystemRuntime(), slots=2) as engine:
        options = AuditOptions(str(to), grace_s=0, insist=True, inventory=engine.evidence)
        return anyio.run(run_audit, world.settings, options, engine, SystemRuntime(), lambda _: None)


def found(to: Path) -> list[tuple[str, str]]:
    directory = RunDirectory.open(str(to))
    manifest = directory.read_manifest()
    assert manifest is not None
    return sorted((each.kind.value, each.name) for each in directory.findings(manifest.run))


def write(world: InventoryWorld, where: Path, form: str = "parquet") -> Path:
    """Writes the report of the world's service."""
    if world.settings.s3 is not None:
        return write_s3_report(where, world.rows, world.snapshot_ns, form=form, bucket=world.bucket)
    return write_report(where, world.rows, world.snapshot_ns, form=form)


@pytest.mark.parametrize(("given", "form", "exported"), [
    pytest.param("store", "parquet", False, marks=pytest.mark.sim), ("store", "csv", True), ("s3_store", "csv", False),
    pytest.param("s3_store", "parquet", True, marks=pytest.mark.sim),
])  # fmt: skip
def test_an_audit_by_report_finds_what_was_planted(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, given: str, form: str, exported: bool
) -> None:
    store: InventoryWorld = request.getfixturevalue(given)
    inventory = write(store, tmp_path / "report", form)
    export = write_export(tmp_path / "export", store.export) if exported else None
    manifest = audit(store, inventory, tmp_path / "run", export)
    assert manifest.complete, (manifest.doubts, manifest.failures)
    assert found(tmp_path / "run") == store.expected
    assert manifest.inventory is not None and manifest.inventory.report == str(inventory) and manifest.inventory.export == export
    assert manifest.cutoff.as_of_ns == store.snapshot_ns and "inventory report of 2026-" in manifest.engine
    assert any(note.startswith(f"the blobs are those of {inventory}, which shows the bucket ") for note in manifest.notes)
    assert "left out 1 row of the inventory report without a name that is text" in manifest.notes
    assert manifest.inventory.records == len(store.rows)
    assert any(note.startswith("S3 lists a bucket little by little") for note in manifest.notes) is (given == "s3_store")
    totals = {kind: (each.number, each.size) for kind, each in manifest.totals.items()}
    # The blobs of 01 and 02 are gone by now, and the export still names them.
    assert manifest.names == OBJECTS - 1 + 3 - (0 if exported else 2)
    assert (
        totals[FindingClass.ORPHAN] == (2, 6) and totals[FindingClass.LEGACY_ORPHAN] == (1, 3) and totals[FindingClass.DANGLING] == (1, 0)
    )
    assert (tmp_path / "run" / "report.html").exists()
    again = audit(store, inventory, tmp_path / "run", export)
    assert again.run == manifest.run and found(tmp_path / "run") == store.expected


def test_a_damaged_report_of_s3_is_refused_before_a_run_is_begun(spark: SparkSession, s3_store: InventoryWorld, tmp_path: Path) -> None:
    inventory = write(s3_store, tmp_path / "report", "csv")
    (shard,) = tmp_path.glob("report/data/*-1.csv.gz")
    stored = shard.read_bytes()
    shard.write_bytes(stored[:-9] + bytes([stored[-9] ^ 1]) + stored[-8:])
    with pytest.raises(ConfigurationError, match=r"-1.csv.gz has the MD5 [0-9a-f]{32}, and .* tells [0-9a-f]{32}: it was damaged"):
        audit(s3_store, inventory, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_only_with_the_same_report(spark: SparkSession, store: InventoryWorld, tmp_path: Path) -> None:
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


def test_a_report_that_lies_about_every_row_accuses_nobody(spark: SparkSession, store: InventoryWorld, tmp_path: Path) -> None:
    """An export that is empty, and a report whose names were never there: the services say what is so."""
    rows = [line(f"media/objects/never/{number}", bucket=store.bucket) for number in range(20)]
    inventory = write_report(tmp_path / "report", [*rows, *store.rows], store.snapshot_ns)
    audit(store, inventory, tmp_path / "run", write_export(tmp_path / "export", {b"unrelated": []}))
    assert found(tmp_path / "run") == [each for each in store.expected if each[0] != "dangling"]


def test_rows_of_another_bucket_and_rows_that_are_missing_are_refused(spark: SparkSession, store: InventoryWorld, tmp_path: Path) -> None:
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
    refused = pytest.raises(ConfigurationError, match=r"of what holds the blobs of this store \(directory\) no inventory can be read")
    with refused, open_inventory(Settings(directory=tmp_path), str(tmp_path), None, SystemRuntime()):
        pass


def test_what_a_run_by_report_found_is_shown_and_deleted(spark: SparkSession, store: InventoryWorld, tmp_path: Path) -> None:
    """It is the last one, because it takes the orphans away."""
    audit(store, write_report(tmp_path / "report", store.rows, store.snapshot_ns), tmp_path / "run")
    [first, second] = [name for kind, name in store.expected if kind == "orphan"]
    directory = RunDirectory.open(str(tmp_path / "run"))
    proof = evidence(directory, SystemRuntime().wall_ns())
    told = told_by(directory, proof, first)
    assert (told.complete, told.reported_ns, [each.kind for each in told.findings]) == (True, store.snapshot_ns, [FindingClass.ORPHAN])

    async def delete(asked: DeletionOptions) -> Look:
        return await delete_orphans(store.settings, Wish(str(tmp_path / "run"), asked, 10_000), SystemRuntime(), lambda _: None)

    with pytest.raises(ConfigurationError, match=r"2 orphans among 14 blobs, more than 1%: say that it is meant with --at-most 2"):
        anyio.run(delete, DeletionOptions())
    assert dict(anyio.run(delete, DeletionOptions(at_most=2)).done.numbers) == {Fate.DELETED: 2}
    left = anyio.run(listed, store.settings)
    assert not {first, second} & left and "media/objects/legacy" in left and len(left) == OBJECTS


async def listed(settings: Settings) -> set[str]:
    async with open_backends(settings, SystemRuntime()) as backends:
        return {blob.name for blob in (await backends.tiers.long_term.list("", None, 1000)).blobs}
