"""Reports of S3 Inventory: found, refused in one sentence if they do not fit themselves, and read."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from changelog.base.errors import ConfigurationError, CorruptRecordError
from emulators.s3.servers import REGION
from recovery.audit.files.directory import DirectoryFiles
from recovery.audit.inventory import s3, shards
from recovery.audit.inventory.report import InventoryReport, check_buckets, check_repeats, check_sums
from tests.given.inventory_report import (
    NOW_NS,
    S3_CURRENT,
    S3_FIELDS,
    At,
    rewrite_s3_shard,
    s3_line,
    sign_s3_manifest,
    write_report,
    write_s3_report,
)
from tests.given.s3_buckets import make_bucket
from tiered.s3.format import generation_of

DAY_NS = 86_400 * 10**9
SNAPSHOT_NS = NOW_NS - DAY_NS
ROWS = [s3_line(f"media/objects/{number}") for number in range(5)]
FORMS = ["csv", "parquet"]
TAG = "3858f62230ac3c915f300c664312c63f"
GENERATION = f"{TAG}@{int(datetime(2026, 11, 1, 2, 3, 4, tzinfo=UTC).timestamp())}"


def read(where: Path, bucket: str = "b", **options: Any) -> InventoryReport:
    return s3.open_report(str(where), bucket, At(), **options)


def refusal(where: Path, bucket: str = "b", **options: Any) -> str:
    with pytest.raises(ConfigurationError) as raised:
        read(where, bucket, **options)
    return str(raised.value)


def blobs_of(report: InventoryReport) -> list[dict[str, Any]]:
    return [
        blob for shard in range(len(report.shards)) for blobs, _ in shards.read_report(report, shard) for blob in blobs.to_pylist()
    ]  # fmt: skip


def looked(report: InventoryReport) -> list[dict[str, Any]]:
    return [row for shard in range(len(report.shards)) for row in shards.look_over(report, shard).to_pylist()]


def total(report: InventoryReport) -> dict[str, int]:
    names = ("rows", "nameless", "deleted", "bucketless", "repeated", "shown", "owners")
    return {name: number for name in names if (number := sum(each[name] for each in looked(report)))}


def repeats(report: InventoryReport) -> None:
    seen = looked(report)
    check_sums(report, [(each["shard"], each["sum"]) for each in seen])
    check_repeats(report, [(each["shard"], each["repeated"], each["sketch"]) for each in seen])


def damage(manifest: Path, change: Callable[[bytes], bytes], suffix: str = "-1.csv.gz") -> None:
    """Changes a shard of CSV, as if the service had written it so."""
    (shard,) = manifest.parents[1].glob(f"data/*{suffix}")
    rewrite_s3_shard(manifest, shard, gzip.compress(change(gzip.decompress(shard.read_bytes())), mtime=0))


# --- where it lies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_report_is_found_by_its_manifest_its_directory_and_its_configuration(tmp_path: Path, form: str) -> None:
    manifest = write_s3_report(tmp_path, ROWS, SNAPSHOT_NS, form=form, shards=3)
    for where in (manifest, manifest.parent, tmp_path, Path(f"{tmp_path}/")):
        report = read(where)
        assert [Path(shard).parent for shard in report.shards] == [tmp_path / "data"] * 3
        assert (report.form, report.records) == (form, None if form == "csv" else 5)
        assert report.columns == ("bucket", "key", "size", "last_modified_date", "e_tag", *report.columns[5:])
        assert (report.evidence.report, report.evidence.snapshot_ns) == (str(manifest), SNAPSHOT_NS)
        assert total(report) == {"rows": 5, "shown": 5}
    assert read(tmp_path).sums == tuple(each["MD5checksum"] for each in json.loads(manifest.read_text())["files"])


def test_the_newest_report_that_is_finished_is_read(tmp_path: Path) -> None:
    for days in (3, 2):
        expected = write_s3_report(tmp_path, ROWS, NOW_NS - days * DAY_NS)
    unfinished = write_s3_report(tmp_path, ROWS, SNAPSHOT_NS)
    unfinished.with_name("manifest.checksum").unlink()
    assert read(tmp_path).evidence.report == str(expected)
    assert "has no manifest.checksum, so the report may not be finished" in refusal(unfinished)
    (tmp_path / "hive").mkdir()
    assert "holds no report of S3 Inventory, which is a directory such as 2026-11-21T01-00Z" in refusal(tmp_path / "hive")


@pytest.mark.parametrize("place", ["../data", "data", "."])
def test_shards_of_a_copy_are_looked_for_around_the_manifest(tmp_path: Path, place: str) -> None:
    manifest = write_s3_report(tmp_path / "was", ROWS, SNAPSHOT_NS)
    copy = tmp_path / "copy" / "report"
    shutil.copytree(manifest.parent, copy)
    shutil.copytree(tmp_path / "was" / "data", copy / place, dirs_exist_ok=True)
    assert {Path(shard).parent for shard in read(copy).shards} == {(copy / place).resolve()}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_report_is_read_where_the_service_wrote_it(tmp_path: Path, moto_url: str, form: str) -> None:
    """The last manifest lies elsewhere in the bucket of the reports, and names the keys of its files."""
    anyio.run(make_bucket, moto_url, bucket := f"reports-{form}")
    asked = f"?endpoint_override={moto_url.removeprefix('http://')}&scheme=http&region={REGION}"
    destination: dict[str, Any] = {"destinationBucket": f"arn:aws:s3:::{bucket}"}
    for days in (2, 1):
        newest = write_s3_report(tmp_path, ROWS, NOW_NS - days * DAY_NS, form=form, **destination)
    written = [(f"{bucket}/reports/b/tiered-daily/{file.relative_to(tmp_path)}", file) for file in tmp_path.rglob("*.*")]
    copied = [(f"{bucket}/elsewhere/{file.name}", file) for file in newest.parent.iterdir()]
    filesystem = DirectoryFiles.at(f"s3://{bucket}/x{asked}", At()).filesystem
    for place, file in (*written, *copied):
        with filesystem.open_output_stream(place, compression=None) as stream:
            stream.write(file.read_bytes())
    for where in (f"reports/b/tiered-daily{asked}", f"reports/b/tiered-daily/{newest.parent.name}{asked}", f"elsewhere{asked}"):
        report = s3.open_report(f"s3://{bucket}/{where}", "b", At())
        assert report.evidence.snapshot_ns == SNAPSHOT_NS
        assert sorted(blob["name"] for blob in blobs_of(report)) == [row["Key"] for row in ROWS]
        repeats(report)


def test_a_uri_keeps_what_follows_its_question_mark() -> None:
    assert s3._other("s3://r/a/b/day?region=x", "../data") == "s3://r/a/b/data?region=x"
    assert s3._other("s3://r/a/?region=x", "day") == "s3://r/a/day?region=x"
    assert s3._other("s3://r/a/day", "../../x//y/.") == "s3://r/x/y" and s3._other("/a/day", "../data") == "/a/data"


# --- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(("told", "said"), [
    ({"creationTimestamp": None}, "creationTimestamp is not a number of milliseconds since 1970"),
    ({"creationTimestamp": "yesterday"}, "creationTimestamp is not a number of milliseconds since 1970"),
    ({"creationTimestamp": "9" * 40}, "creationTimestamp is not a number of milliseconds since 1970"),
    ({"sourceBucket": None}, "sourceBucket is not the name of a bucket"),
    ({"sourceBucket": "other"}, "is a report of the bucket other, and the store is in b: give a report of b"),
    ({"fileFormat": "ORC"}, "is a report in ORC, which is not read here: order it in CSV or Parquet"),
    ({"fileFormat": None}, "fileFormat is not CSV or Parquet"),
    ({"files": None}, "files is not a list of files"),
    ({"files": []}, "names no shard, so the report shows nothing of the bucket"),
    ({"files": ["a"]}, "files is not a list of files"),
    ({"files": [{"key": "a/..", "size": 1, "MD5checksum": "0" * 32}]}, "files is not a list of files, each with the key of one"),
    ({"files": [{"key": "a", "size": -1, "MD5checksum": "0" * 32}]}, "each with size and MD5checksum (a is not)"),
    ({"files": [{"key": "a", "size": True, "MD5checksum": "0" * 32}]}, "each with size and MD5checksum (a is not)"),
    ({"files": [{"key": "a", "size": 1, "MD5checksum": "?"}]}, "each with size and MD5checksum (a is not)"),
    ({"files": [{"key": "d/a", "size": 1, "MD5checksum": "0" * 32}] * 2}, "does not fit itself: it names a file more than once"),
    ({"files": [{"key": "d/a", "size": 1, "MD5checksum": "0" * 32}]}, "1 of them is not there whole (such as d/a, which is not there)"),
])  # fmt: skip
def test_a_manifest_that_does_not_fit_is_refused(tmp_path: Path, told: dict[str, Any], said: str) -> None:
    assert said in refusal(write_s3_report(tmp_path, ROWS, SNAPSHOT_NS, **told))


def test_a_manifest_that_was_changed_is_refused(tmp_path: Path) -> None:
    manifest = write_s3_report(tmp_path, ROWS, SNAPSHOT_NS)
    manifest.write_text(manifest.read_text().replace("2016-11-30", "2016-11-31"))
    assert "and manifest.checksum tells another one: copy the whole report again" in refusal(manifest)
    manifest.write_text(manifest.read_text()[:-9])
    assert "and manifest.checksum tells another one" in refusal(manifest)
    sign_s3_manifest(manifest)
    assert "is no manifest of an inventory report: it is no JSON object" in refusal(manifest)
    manifest.unlink()
    assert "manifest.json does not exist: name the manifest" in refusal(manifest)


def test_a_report_of_google_is_refused_by_what_it_lacks(tmp_path: Path) -> None:
    manifest = write_report(tmp_path, [], SNAPSHOT_NS)
    sign_s3_manifest(manifest)
    assert "is no manifest of an inventory report: creationTimestamp is not" in refusal(manifest)


def test_a_report_that_is_too_old_or_of_the_future_is_refused(tmp_path: Path) -> None:
    old = write_s3_report(tmp_path / "old", ROWS, NOW_NS - 8 * DAY_NS)
    assert "a report that is older than 168 h says little" in refusal(old)
    assert read(old, insist=True).records == 5
    assert "which is in the future: check the clock" in refusal(write_s3_report(tmp_path / "new", ROWS, NOW_NS + DAY_NS))


@pytest.mark.parametrize("form", FORMS)
def test_columns_that_are_missing_are_refused_with_the_fields_to_order(tmp_path: Path, form: str) -> None:
    said = refusal(write_s3_report(tmp_path / "1", ROWS, SNAPSHOT_NS, form=form, fields=S3_CURRENT[:3]))
    assert "has no column last_modified_date (its columns are bucket, key, size): order the report with the fields Size, Last" in said
    fields = [field for field in S3_FIELDS if field != "IsLatest"]
    assert "has no column is_latest (" in refusal(write_s3_report(tmp_path / "2", ROWS, SNAPSHOT_NS, form=form, fields=fields))


def test_a_shard_of_another_size_is_refused_before_it_is_read(tmp_path: Path) -> None:
    manifest = write_s3_report(tmp_path, ROWS, SNAPSHOT_NS, form="csv")
    (shard,) = tmp_path.glob("data/*-1.csv.gz")
    size = shard.stat().st_size
    shard.write_bytes(shard.read_bytes()[:-5])
    said = refusal(manifest)
    assert f"names 2 shards, and 1 of them is not there whole (such as reports/b/tiered-daily/data/{shard.name}, which has" in said
    assert f"{size - 5} bytes and not {size}" in said
    shard.unlink()
    assert "which is not there): copy the whole report, with its directory data" in refusal(manifest)


@pytest.mark.parametrize("form", FORMS)
def test_a_shard_with_other_bytes_is_refused_and_not_read(tmp_path: Path, form: str) -> None:
    report = read(write_s3_report(tmp_path, ROWS, SNAPSHOT_NS, form=form))
    (shard,) = tmp_path.glob("data/*-1.*")
    stored = bytearray(shard.read_bytes())
    stored[len(stored) // 2] ^= 1
    shard.write_bytes(stored)
    seen = looked(report)
    assert [each["rows"] for each in seen] == [3, 0]
    with pytest.raises(ConfigurationError, match=r"-1\..* has the MD5 [0-9a-f]{32}, and .* tells [0-9a-f]{32}: it was damaged"):
        check_sums(report, [(each["shard"], each["sum"]) for each in seen])


@pytest.mark.parametrize("keep", [-3, 40])
def test_a_compressed_shard_that_the_service_cut_off_is_no_shorter_shard(tmp_path: Path, keep: int) -> None:
    manifest = write_s3_report(tmp_path, ROWS * 40, SNAPSHOT_NS, form="csv", shards=1)
    (shard,) = tmp_path.glob("data/*.gz")
    rewrite_s3_shard(manifest, shard, shard.read_bytes()[:keep])
    with pytest.raises(CorruptRecordError, match=r"csv.gz cannot be read \(Truncated compressed stream\): copy the report again"):
        looked(read(manifest))


def test_one_damaged_line_among_good_ones_is_refused(tmp_path: Path) -> None:
    manifest = write_s3_report(tmp_path, ROWS, SNAPSHOT_NS, form="csv")
    damage(manifest, lambda lines: lines + b'"b","media/objects/9"\n')
    with pytest.raises(CorruptRecordError, match=r"cannot be read \(CSV parse error: Expected 6 columns, got 2.*copy the report again"):
        looked(read(manifest))


def test_shards_with_the_same_blobs_and_a_blob_that_is_listed_twice_are_refused(tmp_path: Path) -> None:
    manifest = write_s3_report(tmp_path / "1", [s3_line(f"a/{number}") for number in range(8)], SNAPSHOT_NS, form="csv", shards=4)
    first = gzip.decompress(next(iter((tmp_path / "1" / "data").glob("*-1.csv.gz"))).read_bytes())
    damage(manifest, lambda _: first, "-2.csv.gz")
    with pytest.raises(ConfigurationError, match=r"list the same blobs, so others may be missing .*: copy the whole report again$"):
        repeats(read(manifest))
    for marked in (False, True):
        rows = [s3_line("a"), s3_line("a", latest=False), s3_line("a", latest=False, marker=True), s3_line("~t/a/0123456789ab")]
        more = [s3_line("a")] if marked else [s3_line("~t/a/0123456789ab")]
        written = write_s3_report(tmp_path / f"{marked}", [*rows, *more], SNAPSHOT_NS, shards=1, fields=tuple(S3_FIELDS))
        if marked:
            with pytest.raises(ConfigurationError, match=r"lists 1 blob more than once: copy the whole report again$"):
                repeats(read(written))
        else:
            repeats(read(written))


# --- what is read ----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_odd_names_are_decoded_as_the_service_encodes_them(tmp_path: Path, form: str) -> None:
    odd = [
        "plain/objects/k", 'quote"d/objects/,comma', "line\nbreak/objects/k", "ü/objects/\U0001f600", " space /objects/ ",
        "plus+/objects/+", "percent%20/objects/%", "back\\slash/objects/\\", "null", "NaN", "a//b", "\x01/objects/\x7f",
    ]  # fmt: skip
    report = read(write_s3_report(tmp_path, [s3_line(name, size=number) for number, name in enumerate(odd)], SNAPSHOT_NS, form=form))
    found = {blob["name"]: (blob["size"], blob["generation"]) for blob in blobs_of(report)}
    assert found == {name: (number, GENERATION) for number, name in enumerate(odd)}
    repeats(report)


def test_a_space_may_be_told_as_a_plus_sign_or_in_digits() -> None:
    told = pa.array([b"a+b", b"a%20b", b"a%2Bb", b"a%2bb", b"%C3%BC", b"a%", b"a%zz", b"%FF", b"\xff", None, b""], pa.binary())
    assert s3.decoded_keys(told).to_pylist() == ["a b", "a b", "a+b", "a+b", "ü", None, None, None, None, None, ""]
    assert s3.decoded_keys(pa.array([], pa.binary())).to_pylist() == []


def test_a_generation_is_the_tag_and_the_second_however_exactly_the_time_is_told() -> None:
    tags = pa.array([TAG, f'"{TAG}"', "0cc175b9c0f1b6a831c399e269772661-3", None, TAG, TAG])
    second = 1_793_498_584
    times = pa.array([
        "2026-11-01T02:03:04Z", "2026-11-01T02:03:04.999Z", "2026-11-01T02:03:04.000Z", "2026-11-01T02:03:04.000Z", None, "yesterday",
    ])  # fmt: skip
    batch = pa.RecordBatch.from_pydict({"e_tag": tags, "last_modified_date": times})
    assert generation_of(TAG, second * 10**9 + 999_999_999) == f"{TAG}@{second}"
    found = [f"{TAG}@{second}", f"{TAG}@{second}", f"0cc175b9c0f1b6a831c399e269772661-3@{second}", None, None, None]
    assert s3.generations(batch).to_pylist() == found
    for unit, more in (("s", 0), ("ms", 999), ("us", 999_999), ("ns", 999_999_999)):
        stamp = pa.array([second * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit] + more]).cast(pa.timestamp(unit, "UTC"))
        batch = pa.RecordBatch.from_pydict({"e_tag": tags.slice(0, 1), "last_modified_date": stamp})
        assert s3.generations(batch).to_pylist() == found[:1]


@pytest.mark.parametrize("form", FORMS)
def test_only_versions_that_are_there_are_blobs(tmp_path: Path, form: str) -> None:
    rows = [
        s3_line("is/1"), s3_line("was/2", latest=False), s3_line("deleted/3", size=None, tag=None, marker=True),
        s3_line("deleted/3", latest=False), s3_line("again/4"), s3_line("again/4", latest=False, tag="0" * 32),
    ]  # fmt: skip
    report = read(write_s3_report(tmp_path, rows, SNAPSHOT_NS, form=form, fields=tuple(S3_FIELDS), shards=1))
    assert sorted((blob["name"], blob["generation"]) for blob in blobs_of(report)) == [("again/4", GENERATION), ("is/1", GENERATION)]
    assert total(report) == {"rows": 6, "deleted": 4, "shown": 2}
    repeats(report)


def test_values_that_cannot_be_read_are_null_and_names_are_left_out_and_counted(tmp_path: Path) -> None:
    manifest = write_s3_report(tmp_path, [s3_line("a"), s3_line("b"), s3_line("c"), s3_line("d")], SNAPSHOT_NS, form="csv", shards=1)
    damage(manifest, lambda lines: lines.replace(b'"a","20"', b'"a","many"').replace(b'"c"', b'"%FF"'), ".gz")
    report = read(manifest)
    assert [(blob["name"], blob["size"]) for blob in blobs_of(report)] == [("a", None), ("b", 20), ("d", 20)]
    assert total(report) == {"rows": 4, "nameless": 1, "shown": 3}
    [(_, places)] = shards.read_report(report, 0, lambda first, last: np.array([3]))
    assert places.tolist() == [3]


def test_a_name_on_parquet_that_is_no_text_is_left_out_and_counted(tmp_path: Path) -> None:
    manifest = write_s3_report(tmp_path, [s3_line("a"), s3_line("b"), s3_line("c")], SNAPSHOT_NS, shards=1)
    (shard,) = tmp_path.glob("data/*.parquet")
    table = pq.read_table(shard)
    damaged = pa.array([b"a", b"\xff", b"c"], pa.binary()).view(pa.string())
    pq.write_table(table.set_column(table.schema.get_field_index("key"), "key", damaged), tmp_path / "damaged")
    rewrite_s3_shard(manifest, shard, (tmp_path / "damaged").read_bytes())
    report = read(manifest)
    assert [blob["name"] for blob in blobs_of(report)] == ["a", "c"] and total(report) == {"rows": 3, "nameless": 1, "shown": 2}


@pytest.mark.parametrize("form", FORMS)
def test_a_report_without_rows_shows_nothing(tmp_path: Path, form: str) -> None:
    report = read(write_s3_report(tmp_path, [], SNAPSHOT_NS, form=form))
    assert blobs_of(report) == [] and total(report) == {}
    repeats(report)


@pytest.mark.parametrize(("prefix", "found", "owners"), [
    ("", ["a/media/objects/k/1", "a/~t/media/objects/k/1/0123456789ab", "b/x", "~quarantine/l/r/x"], 1), ("a/", ["media/objects/k/1"], 1),
])  # fmt: skip
def test_what_lies_beside_the_blobs_is_none_of_them(tmp_path: Path, prefix: str, found: list[str], owners: int) -> None:
    """A live audit sees copies in quarantine, too, so they are shown."""
    names = [
        "~owners/a/owner", "a/media/objects/k/1", "a/~t/media/objects/k/1/0123456789ab", "b/x", "~t/b/x/0123456789ab", "~m/b/x/77",
        "~probe/1", "~quarantine/l/r/x",
    ]  # fmt: skip
    report = read(write_s3_report(tmp_path, [s3_line(name) for name in names], SNAPSHOT_NS), prefix=prefix)
    assert sorted(blob["name"] for blob in blobs_of(report)) == found
    assert total(report) == {"rows": 8, "shown": len(found), "owners": owners}


def test_rows_of_another_bucket_are_refused(tmp_path: Path) -> None:
    report = read(write_s3_report(tmp_path, [*ROWS, s3_line("x", bucket="zebra")], SNAPSHOT_NS, form="csv", shards=1))
    [seen] = looked(report)
    with pytest.raises(ConfigurationError, match="is a report of the bucket zebra, and the store is in b"):
        check_buckets(report, seen["least"], seen["greatest"], "b")
