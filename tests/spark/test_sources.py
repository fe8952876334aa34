"""The store and its audits as tables of Spark, over a world in which everything is planted that an audit may find."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.functions import spark_partition_id
from pyspark.sql.types import StructType

from changelog.base.errors import TieredError
from changelog.base.runtime import SystemRuntime
from changelog.change import Unreadable
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import VERSION, Bounds, Failure
from recovery.sources.columns import OBJECTS
from recovery.sources.spark import BlobsDataSource, Changes, FindingsDataSource, Objects, Tombstones
from recovery.sources.stored_objects import ObjectsPage, read_objects
from tests.given.audit_grounds import embedded_ground
from tests.given.findings import NOW_NS, RUN, finding, manifest, write
from tests.given.planted_world import Planted, plant
from tiered.open import open_backends
from tiered.settings import Settings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Planted]:
    root = tmp_path_factory.mktemp("world")

    async def main() -> Planted:
        async with embedded_ground(root) as ground:
            planted = await plant(ground)
            key = f"~changelog/01/{planted.id()}"
            await ground.raw_entry(key, b'{"v":1,"id":"media/objects/huge","attempt":%d}' % 10**30)
            return planted

    return root, anyio.run(main)


def read(spark: SparkSession, table: str, **options: object) -> DataFrame:
    return spark.read.format(table).options(**{name: str(value) for name, value in options.items()}).load()


def direct(root: Path) -> dict[str, Any]:
    """What the backends themselves show."""

    async def main() -> dict[str, Any]:
        async with open_backends(Settings(directory=root, changelog="sqlite"), SystemRuntime(), writes=False) as backends:
            blobs = await backends.tiers.long_term.list("", None, 100_000)
            rows = await backends.tiers.high_volume.redirects(b"", None, 100_000)
            entries = await backends.log.entries("", 100_000)
            assert blobs.next_start is None and rows.next_start is None and entries.next_start is None
            return {"blobs": blobs, "rows": rows, "entries": entries.entries}

    return anyio.run(main)


def test_every_blob_is_a_row_whatever_the_number_of_partitions(spark: SparkSession, world: tuple[Path, Planted]) -> None:
    root, planted = world
    listed = direct(root)["blobs"]
    expected = Counter((blob.name, blob.size, blob.generation, None) for blob in listed.blobs)
    expected.update((oddity.name, None, None, oddity.fault) for oddity in listed.oddities)
    assert len(listed.oddities) >= 6 and len(listed.blobs) > 100
    for parallel in (1, 3):
        rows = read(spark, "tiered.blobs", directory=root, parallel=parallel).selectExpr("*", "unix_micros(created) AS us")
        found = rows.select("*", spark_partition_id().alias("part")).collect()
        assert Counter((row.name, row["size"], row.generation, row.error) for row in found) == expected
        assert (len({row.part for row in found}) > 1) == (parallel > 1)
    assert {"refs", "unicode", "(none)"} <= {row.usecase for row in found}
    [orphan] = [name for kind, name in planted.expected if kind is FindingClass.ORPHAN and "orphans/objects/refused" in name]
    [row] = [row for row in found if row.name == orphan]
    assert (row.form, row.object, row.revision) == ("revision", "orphans/objects/refused", orphan.rpartition("/")[2])
    blob = next(blob for blob in listed.blobs if blob.name == orphan)
    assert row.us == blob.created_ns // 1000 and row.deadline is None


def test_every_object_is_a_row_wherever_its_payload_is(spark: SparkSession, world: tuple[Path, Planted]) -> None:
    root, _ = world

    async def main() -> ObjectsPage:
        async with open_backends(Settings(directory=root), SystemRuntime(), writes=False) as backends:
            return await read_objects(backends.tiers, SystemRuntime(), b"", limit=100_000)

    told = [dict(zip(OBJECTS, row, strict=True)) for row in anyio.run(main).rows]
    expected = Counter((row["path"], row["tier"], row["size"], row["error"]) for row in told)
    rows = read(spark, "tiered.objects", directory=root, parallel=3).select("*", spark_partition_id().alias("part")).collect()
    assert Counter((row.path, row.tier, row["size"], row.error) for row in rows) == expected
    assert len({row.part for row in rows}) > 1 and {row.tier for row in rows} >= {"high-volume", "long-term"}
    some = read(spark, "tiered.objects", directory=root, prefix="unicode", blobs="false", parallel=1).select("usecase", "size").collect()
    assert some and {(row.usecase, row["size"]) for row in some} == {("unicode", None)}
    with pytest.raises(PySparkException, match="is no prefix"):
        read(spark, "tiered.objects", directory=root, prefix="unicode/what").collect()


def test_every_tombstone_is_a_row_and_so_is_a_damaged_one(spark: SparkSession, world: tuple[Path, Planted]) -> None:
    root, _ = world
    seen = direct(root)["rows"]
    expected = Counter((path, target, None if deadline is None else deadline // 1000, None) for path, target, deadline in seen.redirects)
    expected.update((row.path, row.target, None, row.fault) for row in seen.corrupt)
    assert len(seen.corrupt) >= 2
    rows = read(spark, "tiered.tombstones", directory=root, parallel=3).selectExpr("*", "unix_micros(deadline) AS us").collect()
    assert Counter((row.object, row.name, row.us, row.error) for row in rows) == expected


def test_every_entry_is_a_row_and_so_is_one_that_nobody_can_read(spark: SparkSession, world: tuple[Path, Planted]) -> None:
    root, _ = world
    entries = direct(root)["entries"]
    unreadable = {entry.key for entry in entries if isinstance(entry, Unreadable)}
    for parallel in (1, 99):
        rows = read(spark, "tiered.changes", directory=root, parallel=parallel).collect()
        assert Counter(row.key for row in rows) == Counter(entry.key for entry in entries)
        [huge] = [row for row in rows if row.object == "media/objects/huge"]
        assert huge.attempt is None and huge.error.startswith("attempt is 1000")
        assert {row.key for row in rows if row.error and row is not huge} == unreadable and unreadable
    stuck = [row for row in rows if row.stuck is not None]
    assert stuck and all(row.stuck_at is not None for row in stuck)
    good = next(row for row in rows if row.error is None and row.new is not None)
    assert good.id == good.key.rpartition("/")[2] and good.created is not None and "upload" not in good.asDict()


def test_only_the_columns_of_a_schema_are_read(spark: SparkSession, world: tuple[Path, Planted]) -> None:
    root, _ = world
    some = spark.read.format("tiered.blobs").schema("size bigint, name string").option("directory", str(root)).load()
    assert some.columns == ["size", "name"] and some.where("size is not null").count() == len(direct(root)["blobs"].blobs)
    wrong = spark.read.format("tiered.blobs").schema("size int").option("directory", str(root)).load
    with pytest.raises(PySparkException, match=r"tiered\.blobs has no column size int: its columns are `name` string"):
        wrong().collect()


def test_a_settings_file_names_the_store(spark: SparkSession, world: tuple[Path, Planted], tmp_path: Path) -> None:
    root, _ = world
    (tmp_path / "tiered.yaml").write_text(f"directory: {root}\nchangelog: noop\n")
    assert read(spark, "tiered.tombstones", config=tmp_path / "tiered.yaml").count() > 10
    with pytest.raises(PySparkException, match=r"this store keeps no changelog \(changelog: noop\), so tiered\.changes"):
        read(spark, "tiered.changes", config=tmp_path / "tiered.yaml").collect()


@pytest.mark.parametrize(("source", "options", "told"), [
    (BlobsDataSource, {}, "tiered.blobs has neither config nor directory: give option config"),
    (BlobsDataSource, {"config": "a", "directory": "b"}, "tiered.blobs has both config and directory"),
    (BlobsDataSource, {"dircetory": "b"}, "tiered.blobs has no option 'dircetory': it knows config, directory, parallel"),
    (BlobsDataSource, {"config": "{here}/none.yaml"}, "the settings file {here}/none.yaml does not exist"),
    (BlobsDataSource, {"directory": "{here}", "parallel": "many"}, "parallel 'many': give a whole number from 1 to 4096"),
    (BlobsDataSource, {"directory": "{here}"}, "there is no store in {here} on this machine: check the directory"),
    (Tombstones, {"directory": "{here}"}, "there is no store in {here} on this machine: check the directory"),
    (Changes, {"directory": "{here}"}, "there is no store in {here} on this machine: check the directory"),
    (Objects, {"directory": "{here}", "blobs": "no"}, "tiered.objects has blobs 'no': give true or false"),
    (FindingsDataSource, {}, "tiered.findings has no option run"),
    (FindingsDataSource, {"run": "{here}"}, "holds no run of an audit: give the directory"),
])  # fmt: skip
def test_wrong_options_are_refused_in_a_sentence(tmp_path: Path, source: type[DataSource], options: dict[str, str], told: str) -> None:
    given = {name: value.format(here=tmp_path) for name, value in options.items()}
    with pytest.raises(TieredError, match=re.escape(told.format(here=tmp_path))):
        source(given).reader(StructType())
    assert not list(tmp_path.iterdir())


# --- findings ------------------------------------------------------------------------------------


def started(tmp_path: Path, **facts: Any) -> RunDirectory:
    directory = RunDirectory.open(str(tmp_path / "run"))
    ranges = tuple(Bounds(start=start, end=end) for start, end in zip(["", "b", "c", "d"], ["b", "c", "d", None], strict=True))
    directory.begin(manifest(ranges=ranges, **facts))
    return directory


def test_the_findings_of_a_run_are_rows(spark: SparkSession, tmp_path: Path) -> None:
    directory = started(tmp_path, complete=True)  # it says so, and has not ended
    write(directory, 0)
    for number in (1, 2, 3):
        write(directory, number, finding(name=f"media/ü/{number}"), finding(FindingClass.DANGLING, size=None))
    for parallel in (1, 99):
        table = read(spark, "tiered.findings", run=tmp_path / "run", parallel=parallel)
        rows = table.selectExpr("*", "unix_micros(created) AS us").collect()
        assert sorted((row["class"], row.name, row.range, row.error) for row in rows) == sorted(
            row for number in (1, 2, 3) for row in
            (("orphan", f"media/ü/{number}", number, None), ("dangling", "media/objects/a/r", number, None))
        )  # fmt: skip
        assert {(row.us, row.run, row.complete) for row in rows} == {(NOW_NS // 1000, RUN, False)}


def test_a_range_that_was_not_audited_or_is_damaged_is_a_row_with_an_error(spark: SparkSession, tmp_path: Path) -> None:
    directory = started(tmp_path, failures=(Failure(range=2, error="the bucket did not answer"),))
    write(directory, 0, finding())
    path = write(directory, 1, finding())
    path.write_bytes(path.read_bytes()[:-9])
    rows = read(spark, "tiered.findings", run=tmp_path / "run").orderBy("range").collect()
    assert [(row.range, row["class"], row.error) for row in rows] == [
        (0, "orphan", None),
        (1, None, "findings/range-000001.parquet is cut off, or no Parquet file"),
        (2, None, "the bucket did not answer"),
        (3, None, "this range was not audited"),
    ]
    assert not any(row.complete for row in rows)


def test_a_file_whose_pages_are_damaged_ends_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    directory = started(tmp_path)
    for number in range(4):
        path = write(directory, number, *(finding(name=f"media/{number}/{each}") for each in range(50)))
        if number == 2:
            path.write_bytes(b"PAR1" + bytes(400) + path.read_bytes()[404:])
    rows = read(spark, "tiered.findings", run=tmp_path / "run").collect()
    assert Counter(row.range for row in rows if row.error is None) == {0: 50, 1: 50, 3: 50}
    [told] = [row for row in rows if row.error is not None]
    assert told.range == 2 and told.error.startswith("the findings of this range were not read to their end: ")
    assert "cannot be read" in told.error


def test_a_run_of_newer_software_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    started(tmp_path)
    path = tmp_path / "run" / "manifest.json"
    path.write_text(path.read_text().replace(f'"version": {VERSION}', '"version": 99'))
    with pytest.raises(PySparkException, match=f"manifest.json is of version 99, and this software reads {VERSION}: update it"):
        read(spark, "tiered.findings", run=tmp_path / "run").collect()
