"""What an audit leaves, as a data engineer opens it; and the audit itself on Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from pyspark.sql import SparkSession

from changelog.base.runtime import SystemRuntime
from recovery.audit.files.ledger import SCHEMA, RunDirectory
from recovery.audit.reporting.findings_feed import FindingsFeed
from recovery.audit.running.cluster import SparkEngine, open_spark
from recovery.audit.running.work import carry_out
from tests.given.audited_store import PLANTED, audit, found, plant
from tests.given.findings import NOW_NS, RUN, SUMMARY, finding, manifest, partition, write


@pytest.fixture
def engine(spark: SparkSession) -> Iterator[SparkEngine]:
    with open_spark(carry_out, slots=2) as engine:
        yield engine


def test_plain_spark_reads_the_findings_of_a_run(spark: SparkSession, tmp_path: Path) -> None:
    directory = RunDirectory.open(str(tmp_path / "run"))
    directory.begin(manifest())
    write(directory, 0)
    write(directory, 1, finding(), finding(name="media/ü\U0001f600"))
    with directory.writer(RUN, partition(2)) as unfinished:
        unfinished.add([finding(name="not yet")])
        rows = spark.read.parquet(str(tmp_path / "run" / "findings"))
        assert [field.name for field in rows.schema] == SCHEMA.names
        kinds = {field.name: field.dataType.simpleString() for field in rows.schema}
        assert (kinds["class"], kinds["size"], kinds["created"], kinds["range"]) == ("string", "bigint", "timestamp", "int")
        assert sorted(row["name"] for row in rows.collect()) == ["media/objects/a/r", "media/ü\U0001f600"]
        assert [row["micros"] for row in rows.selectExpr("unix_micros(created) AS micros").distinct().collect()] == [NOW_NS // 1000]


def test_plain_spark_reads_a_run_without_any_finding(spark: SparkSession, tmp_path: Path) -> None:
    directory = RunDirectory.open(str(tmp_path / "run"))
    directory.begin(manifest())
    for number in range(3):
        write(directory, number, summary=SUMMARY)
    rows = spark.read.parquet(str(tmp_path / "run" / "findings"))
    assert rows.count() == 0 and rows.where("class = 'orphan'").columns == SCHEMA.names


def test_audit_on_spark_finds_what_was_planted(engine: SparkEngine, tmp_path: Path) -> None:
    async def main() -> None:
        store = await plant(tmp_path / "store")
        manifest = await audit(store, tmp_path / "run", engine)
        assert manifest.complete and manifest.engine == engine.name and "pyspark" in manifest.versions

    anyio.run(main)
    assert found(tmp_path / "run") == PLANTED
    added = FindingsFeed.open(str(tmp_path / "feed"), SystemRuntime()).add(RunDirectory.open(str(tmp_path / "run")))
    assert added.found == added.now == len(PLANTED)
