"""The manifest of an inventory report is checked against its shards, and refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from changelog.base.errors import ConfigurationError
from recovery.audit.inventory import shards
from recovery.audit.inventory.insights import open_report
from recovery.audit.inventory.report import InventoryReport, ReportSummary, check_buckets, check_repeats, check_rows, oddities
from tests.given.inventory_report import CONFIG, FIELDS, NOW_NS, At, line, write_report

DAY_NS = 86_400 * 10**9
ROWS = [line(f"media/objects/{number}") for number in range(5)]
FORMS = ["csv", "parquet"]


def read(where: Path, bucket: str = "b", **options: Any) -> InventoryReport:
    return open_report(str(where), bucket, At(), **options)


def refusal(where: Path, bucket: str = "b", **options: Any) -> str:
    with pytest.raises(ConfigurationError) as raised:
        read(where, bucket, **options)
    return str(raised.value)


@pytest.mark.parametrize("form", FORMS)
def test_a_report_is_found_by_its_manifest_and_by_its_directory(tmp_path: Path, form: str) -> None:
    manifest = write_report(tmp_path, ROWS, NOW_NS - DAY_NS, form=form, shards=3)
    for where in (manifest, tmp_path, Path(f"{tmp_path}/")):
        report = read(where)
        assert [Path(shard).name for shard in report.shards] == [f"{CONFIG}_2026-09-20T14:13_{each}.{form}" for each in range(3)]
        assert (report.form, report.records, report.columns, report.delimiter) == (form, 5, FIELDS, ",")
        assert (report.evidence.report, report.evidence.snapshot_ns, report.evidence.records) == (str(manifest), NOW_NS - DAY_NS, 5)


def test_the_newest_report_of_a_directory_is_read(tmp_path: Path) -> None:
    newest = write_report(tmp_path, ROWS, NOW_NS - DAY_NS)
    for days in (2, 3):
        write_report(tmp_path, ROWS, NOW_NS - days * DAY_NS)
    assert read(tmp_path).evidence.report == str(newest)


def test_shards_that_are_told_with_their_bucket_are_looked_for_beside_the_manifest(tmp_path: Path) -> None:
    manifest = write_report(tmp_path, ROWS, NOW_NS - DAY_NS)
    told = json.loads(manifest.read_text())
    told["report_shards_file_names"] = [f"gs://reports/daily/{name}" for name in told["report_shards_file_names"]]
    manifest.write_text(json.dumps(told | {"records_processed": "5", "snapshot_time": "2026-09-20T14:13:20.123456789Z"}))
    report = read(manifest)
    assert report.records == 5 and report.shards[0].startswith(str(tmp_path))
    assert report.evidence.snapshot_ns == NOW_NS - DAY_NS + 123_456_000


@pytest.mark.parametrize(("told", "said"), [
    ({"snapshot_time": None}, "snapshot_time is not a time such as"),
    ({"snapshot_time": "yesterday"}, "snapshot_time is not a time such as"),
    ({"snapshot_time": "2026-09-20T14:13:20"}, "snapshot_time is not a time such as"),
    ({"records_processed": None}, "records_processed is not a number of rows"),
    ({"records_processed": -1}, "records_processed is not a number of rows"),
    ({"records_processed": True}, "records_processed is not a number of rows"),
    ({"report_shards_file_names": None}, "report_shards_file_names is not a list of names of files"),
    ({"report_shards_file_names": [7]}, "report_shards_file_names is not a list of names of files"),
    ({"report_shards_file_names": [], "shard_count": 0}, "names no shard, so the report shows nothing of the bucket"),
    ({"report_shards_file_names": ["a.csv", "a.csv"]}, "does not fit itself: it tells 2 shards and names 1: copy the whole report again"),
    ({"shard_count": 3}, "does not fit itself: it tells 3 shards and names 2"),
    ({"report_shards_file_names": ["a.csv", "b.parquet"]}, "names shards that are not all .csv or all .parquet"),
    ({"report_shards_file_names": ["a.orc", "b.orc"]}, "names shards that are not all .csv or all .parquet"),
    ({"report_shards_file_names": ["a.csv", "b.csv"]}, "names 2 shards, and 2 of them are not beside it (such as a.csv)"),
    ({"records_processed": 6}, "tells 6 rows, and its shards have 5: copy the whole report again"),
])  # fmt: skip
def test_a_manifest_that_does_not_fit_is_refused(tmp_path: Path, told: dict[str, Any], said: str) -> None:
    assert said in refusal(write_report(tmp_path, ROWS, NOW_NS - DAY_NS, **told))


def test_a_file_that_is_no_manifest_is_refused(tmp_path: Path) -> None:
    assert "holds no *manifest.json of an inventory report" in refusal(tmp_path)
    assert "none.json does not exist: name the manifest" in refusal(tmp_path / "none.json")
    for text in ("", "[]", "{", "[" * 100_000):
        (tmp_path / "x_manifest.json").write_text(text)
        assert "is no manifest of an inventory report: it is no JSON object" in refusal(tmp_path / "x_manifest.json")


@pytest.mark.parametrize("form", FORMS)
def test_columns_that_are_missing_or_renamed_are_refused(tmp_path: Path, form: str) -> None:
    fields = [field for field in FIELDS if field != "generation"]
    said = refusal(write_report(tmp_path, ROWS, NOW_NS - DAY_NS, form=form, fields=fields))
    assert "has no column generation (its columns are project, bucket, name, size" in said
    renamed = [dict(row, Name=row["name"]) for row in ROWS]
    fields = ["Name" if field == "name" else field for field in FIELDS]
    assert "has no column name (" in refusal(write_report(tmp_path, renamed, NOW_NS - DAY_NS, form=form, fields=fields))


def test_shards_with_different_columns_are_refused(tmp_path: Path) -> None:
    manifest = write_report(tmp_path, ROWS, NOW_NS - DAY_NS, form="csv")
    (shard,) = tmp_path.glob("*_1.csv")
    first, rest = shard.read_text().split("\n", 1)
    shard.write_text(f"{first.replace('project,bucket', 'bucket,project')}\n{rest}")
    assert "has other columns than" in refusal(manifest)
    shard.write_text("")
    assert "has no column bucket (its columns are )" in refusal(manifest)


def test_a_shard_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    manifest = write_report(tmp_path, ROWS, NOW_NS - DAY_NS)
    (shard,) = tmp_path.glob("*_1.parquet")
    shard.write_bytes(shard.read_bytes()[:-5])
    assert "_1.parquet is cut off, or no Parquet file: copy the report again" in refusal(manifest)
    shard.unlink()
    assert "names 2 shards, and 1 of them is not beside it" in refusal(manifest)


def test_a_report_of_another_bucket_is_refused(tmp_path: Path) -> None:
    config = {"object_metadata_report_options": {"storage_filters": {"bucket": "other"}}}
    said = "is a report of the bucket other, and the store is in b: give a report of b"
    assert said in refusal(write_report(tmp_path, ROWS, NOW_NS - DAY_NS, report_config=config))
    report = read(write_report(tmp_path, ROWS, NOW_NS - DAY_NS))
    check_buckets(report, "b", "b", "b")
    check_buckets(report, None, None, "b")
    for least, greatest in (("b", "other"), ("other", "other")):
        with pytest.raises(ConfigurationError, match=said):
            check_buckets(report, least, greatest, "b")


def test_a_report_without_all_its_rows_is_refused(tmp_path: Path) -> None:
    report = read(write_report(tmp_path, ROWS, NOW_NS - DAY_NS, form="csv"))
    check_rows(report, 5)
    with pytest.raises(ConfigurationError, match="tells 5 rows, and its shards have 4: copy the whole report again"):
        check_rows(report, 4)


def test_a_report_that_is_too_old_or_of_the_future_is_refused(tmp_path: Path) -> None:
    old = write_report(tmp_path / "old", ROWS, NOW_NS - 8 * DAY_NS)
    assert "is of 2026-09-13 14:13:20 UTC, and a report that is older than 168 h says little" in refusal(old)
    assert read(old, insist=True).records == 5
    assert "which is in the future: check the clock" in refusal(write_report(tmp_path / "new", ROWS, NOW_NS + DAY_NS))


@pytest.mark.parametrize("form", FORMS)
def test_a_shard_that_repeats_another_was_taken_for_the_one_that_is_missing(tmp_path: Path, form: str) -> None:
    write_report(tmp_path, [line(f"a/{number}") for number in range(8)], NOW_NS - DAY_NS, form=form, shards=4)
    first, second = sorted(tmp_path.glob(f"*.{form}"))[1:3]
    second.write_bytes(first.read_bytes())
    with pytest.raises(ConfigurationError, match=f"_1.{form} and .*_2.{form} list the same blobs, so others may be missing"):
        repeats(read(tmp_path))


def test_a_name_that_a_shard_lists_twice_is_refused_and_its_deleted_generations_are_not(tmp_path: Path) -> None:
    write_report(tmp_path / "1", [line("a"), line("a", generation=8, deleted=True), line("b"), line(None)], NOW_NS - DAY_NS, shards=1)
    repeats(read(tmp_path / "1"))
    write_report(tmp_path / "2", [line("a"), line("a", generation=8), line("b")], NOW_NS - DAY_NS, shards=1)
    with pytest.raises(ConfigurationError, match=r"_0.parquet lists 1 blob more than once: .*order the report with the column timeDeleted"):
        repeats(read(tmp_path / "2"))


def test_a_sketch_is_of_the_same_names_in_whatever_order_a_shard_lists_them() -> None:
    names = [f"a/objects/{number}".encode() for number in range(3 * shards.SKETCH)]
    one, other = list[tuple[int, int]](), list[tuple[int, int]]()
    for first in range(0, len(names), 700):
        one = shards.least(one, names[first : first + 700])
        other = shards.least(other, [*reversed(names), *names][first : first + 700])
    other = shards.least(shards.least(other, names), names[:5])
    assert one == other and len({each for _, each in one}) == shards.SKETCH
    assert [checksum for checksum, _ in one] == sorted(map(crc32, names))[: shards.SKETCH]
    assert shards.least([], names[:3]) != shards.least([], names[1:4]) and shards.least([], []) == []


def repeats(report: InventoryReport) -> None:
    looked = [row for shard in range(len(report.shards)) for row in shards.look_over(report, shard).to_pylist()]
    check_repeats(report, [(each["shard"], each["repeated"], each["sketch"]) for each in looked])


@pytest.mark.parametrize(("prefix", "facts", "said"), [
    ("", {"owners": 1, "shown": 5}, []),
    ("", {"owners": 0, "shown": 5}, ["lists nothing below ~owners/, where a bucket says whose blobs it holds: if it was ordered for"]),
    ("a/", {"owners": 0, "shown": 5}, []),
    ("a/", {"owners": 1, "shown": 0}, ["the inventory report shows no blob whose name begins with a/: was it ordered for other names?"]),
    ("a/", {"nameless": 2, "deleted": 5}, ["left out 2 rows of", "left out 5 rows of", "the inventory report shows no blob at all"]),
    ("", {"rows": 0}, ["the inventory report shows no blob at all"]),
])  # fmt: skip
def test_a_report_of_other_names_than_the_stores_is_noted(tmp_path: Path, prefix: str, facts: dict[str, int], said: list[str]) -> None:
    report = read(write_report(tmp_path, ROWS, NOW_NS - DAY_NS), prefix=prefix)
    counts = dict.fromkeys(("nameless", "deleted", "shown", "owners"), 0) | {"rows": 7} | facts
    found = list(oddities(report, ReportSummary(**counts, least="b", greatest="b")))
    assert len(found) == len(said) and all(part in note for part, note in zip(said, found, strict=True)), found
