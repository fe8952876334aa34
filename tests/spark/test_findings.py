"""What an audit leaves, as a data engineer opens it."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from recovery.audit.files.ledger import SCHEMA, RunDirectory
from tests.given.findings import NOW_NS, RUN, SUMMARY, finding, manifest, partition, write


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
