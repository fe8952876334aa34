"""An import overwrites nothing unasked, stores no other bytes than were meant, and names what it leaves out."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from changelog.base.errors import ConfigurationError, CorruptRecordError, InvalidRequestError, TieredError, UnavailableError
from changelog.base.runtime import SystemRuntime
from emulators.gcs.server import GcsEmulator
from tests.given.exported_stores import LARGE, OBJECTS, filled, payload_files, settings_of, shown
from tests.given.owned_bucket import give
from tests.given.s3_buckets import new_feed_bucket
from tiered import (
    ConditionFailedError,
    Metadata,
    ObjectId,
    ObjectPrefix,
    PutRequest,
    Settings,
    TieredStorage,
    TimeToIdle,
    TimeToLive,
    open_storage,
)
from tiered.buckets.blob_entries import HEADERS, headers_of
from tiered.directories import FileResult, Kind
from tiered.exports import Existing, NamePattern, export_objects, exporting, import_objects, importing, verify_export
from tiered.exports.sources import open_source
from tiered.testing import memory_storage

pytestmark = pytest.mark.anyio
INTO = ObjectPrefix.create("photos", "2026/", {"org": 17})
DAY_NS = 24 * 3600 * 10**9


@pytest.fixture
async def export(tmp_path: Path, anyio_backend: str) -> Path:
    async with filled(tmp_path / "store") as storage:
        await export_objects(storage, tmp_path / "export")
    return tmp_path / "export"


@pytest.fixture
async def other(tmp_path: Path, anyio_backend: str) -> AsyncIterator[TieredStorage]:
    async with open_storage(settings_of(tmp_path / "other")) as storage:
        yield storage


def kept(metadata: Metadata) -> dict[str, str]:
    """Headers and custom entries that came along: a header is in the field that it is, else in an entry."""
    in_fields = {header.lower(): told for header, told in headers_of(metadata).items()}
    assert not metadata.custom.keys() & {header.lower() for header in HEADERS}
    return {**metadata.custom, **in_fields}


# --- an export ---------------------------------------------------------------------------------------


async def test_what_is_there_is_overwritten_only_if_that_is_asked_for(export: Path, other: TieredStorage) -> None:
    here, meta = ObjectId.create("kept", "03"), ObjectId.create("kept", "00")
    await other.put(here, b"mine")
    await import_objects(other, export, incomplete=True)
    await other.update_metadata(meta, lambda found: replace(found, custom={"a": "2"}))
    before = await shown(other)
    refused = await import_objects(other, export)
    assert (refused.unchanged, refused.copied, refused.failed) == (OBJECTS - 2, 0, 2)
    assert all(isinstance(each.error, ConditionFailedError) for each in refused.failures)
    assert {each.path for each in refused.failures} == {str(here), str(meta)}
    skipped = await import_objects(other, export, existing=Existing.SKIP)
    assert (skipped.skipped, skipped.failed) == (2, 0) and await shown(other) == before
    dry = await import_objects(other, export, existing=Existing.OVERWRITE, dry_run=True)
    assert dry.copied == 2 and await shown(other) == before
    assert (await import_objects(other, export, existing=Existing.OVERWRITE)).copied == 2
    assert (await import_objects(other, export)).unchanged == OBJECTS


async def test_two_imports_at_once_end_well_and_another_writer_is_never_overwritten(export: Path, other: TieredStorage) -> None:
    reports = []

    async def once() -> None:
        reports.append(await import_objects(other, export))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(once)
        tasks.start_soon(once)
    assert [each.failures for each in reports] == [[], []]
    assert sum(each.copied for each in reports) == OBJECTS and sum(each.unchanged for each in reports) == OBJECTS
    assert len(await shown(other)) == OBJECTS


@pytest.mark.parametrize(("existing", "kind"), [
    (Existing.REFUSE, Kind.FAILED), (Existing.SKIP, Kind.SKIPPED), (Existing.OVERWRITE, Kind.FAILED),
])  # fmt: skip
async def test_what_another_writer_puts_between_look_and_put_is_kept(
    tmp_path: Path, other: TieredStorage, existing: Existing, kind: Kind
) -> None:
    (files := tmp_path / "files").mkdir()
    (files / "a").write_bytes(LARGE)
    object_id = ObjectId.create("photos", "2026/a", {"org": 17})
    async with open_source(files, INTO, other._settings, SystemRuntime(), incomplete=False) as items:
        [item] = [each async for each in items]
    read, count = item.open, 0
    assert read is not None

    async def raced() -> AsyncGenerator[bytes, None]:
        nonlocal count
        count += 1
        await other.put(object_id, b"of another writer %d" % count)
        yield LARGE

    result = await importing._Import(other, existing, False).take(replace(item, open=raced))
    assert result.kind is kind
    stored = await other.get(object_id)
    assert stored is not None and await stored.read() == b"of another writer %d" % count


async def test_bytes_that_are_not_those_of_the_manifest_are_not_stored(export: Path, other: TieredStorage) -> None:
    flipped, short, gone, *_ = [path for path in payload_files(export) if path.stat().st_size > 200]
    flipped.write_bytes(b"x" + flipped.read_bytes()[1:])
    os.truncate(short, 150)
    gone.unlink()
    report = await import_objects(other, export)
    assert (report.copied, report.failed) == (OBJECTS - 3, 3)
    assert len(await shown(other)) == OBJECTS - 3
    said = " ".join(str(each.why) for each in report.failures)
    assert "has other bytes than were exported" in said and "has 150 bytes, and not" in said and "is missing in" in said


async def test_a_row_that_names_a_file_of_its_own_choice_is_refused(export: Path, other: TieredStorage) -> None:
    part = export / "manifest/part-000000.parquet"
    table = pq.read_table(part)
    place = table.schema.get_field_index("file")
    files = ["../../secret", *table.column("file").to_pylist()[1:]]
    pq.write_table(table.set_column(place, table.schema.field("file"), [pa.array(files)]), part)
    with pytest.raises(CorruptRecordError, match=r"the row of .* contradicts itself"):
        await import_objects(other, export)
    assert await shown(other) == {}


async def test_what_has_expired_is_left_out_and_told(tmp_path: Path) -> None:
    async with memory_storage(settings_of(tmp_path / "unused")) as storage:
        await storage.put(ObjectId.create("a", "lives"), b"1")
        await storage.put(ObjectId.create("a", "ends"), LARGE, Metadata(expiration=TimeToLive(timedelta(days=1))))
        await export_objects(storage, tmp_path / "export")
        await storage.delete(ObjectId.create("a", "lives"))
        storage.clock.advance(timedelta(days=2))
        results: list[FileResult] = []
        report = await import_objects(storage, tmp_path / "export", on_result=results.append)
        assert (report.copied, report.skipped) == (1, 1)
        assert [each.why for each in results if each.kind is Kind.SKIPPED] == ["it has expired"]


def unusable(export: Path, into: Path) -> list[Path]:
    """Exports that cannot be imported: of newer software, one that has not ended, and one that is damaged."""
    for name in ("newer", "begun", "damaged"):
        shutil.copytree(export, into / name)
    told = json.loads((export / "manifest.json").read_text())
    for file in ("begun.json", "manifest.json"):
        (into / "newer" / file).write_text(json.dumps({**told, "version": 2}))
    (into / "begun/manifest.json").unlink()
    (into / "damaged/manifest.json").write_bytes(b"{")
    return [into / name for name in ("newer", "begun", "damaged")]


async def test_what_is_no_export_is_told(tmp_path: Path, export: Path, other: TieredStorage) -> None:
    (tmp_path / "files").mkdir()
    for source, into, kind, says in (
        (tmp_path / "files", None, ConfigurationError, "holds no export: it has no manifest.json"),
        (tmp_path / "nowhere", None, ConfigurationError, "there is no directory"),
        (tmp_path / "nowhere", INTO, ConfigurationError, "there is no directory"),
        *((each, INTO, InvalidRequestError, "is an export, which tells the ids itself") for each in (export, *unusable(export, tmp_path))),
        (tmp_path / "other", INTO, ConfigurationError, "is in the store"),
        (tmp_path / "files", ObjectPrefix.create("photos"), InvalidRequestError, "key"),
        (tmp_path / "files", ObjectPrefix.create("~x", ""), InvalidRequestError, "must not start with '~'"),
        ("", INTO, InvalidRequestError, "is no place"), (7, INTO, InvalidRequestError, "a place is a path"),
        ("ftp://x/y", INTO, ConfigurationError, "is no place"),
    ):  # fmt: skip
        with pytest.raises(kind, match=says):
            await import_objects(other, source, into)  # type: ignore[arg-type]
    wrong: list[dict[str, Any]] = [{"existing": "skip"}, {"dry_run": 1}, {"incomplete": None}, {"concurrency": 0}, {"on_result": 7}]
    for arguments in wrong:
        with pytest.raises(InvalidRequestError):
            await import_objects(other, export, **arguments)
    assert await shown(other) == {}


# --- files and foreign objects -----------------------------------------------------------------------


async def test_the_files_of_a_directory(tmp_path: Path, other: TieredStorage) -> None:
    (files := tmp_path / "files").mkdir()
    (files / "sub").mkdir()
    (files / "sub/cat.jpg").write_bytes(b"cat")
    (files / "large.txt").write_bytes(LARGE)
    (files / "bad\x01name").touch()
    (files / "link").symlink_to("large.txt")
    results: list[FileResult] = []
    dry = await import_objects(other, files, INTO, dry_run=True)
    assert (dry.copied, dry.skipped, dry.failed) == (2, 1, 1) and await shown(other) == {}
    report = await import_objects(other, files, INTO, on_result=results.append)
    assert (report.copied, report.skipped, report.failed, report.bytes_copied) == (2, 1, 1, 3 + len(LARGE))
    assert "control character" in str(report.failures[0].why) and {each.path for each in results} == {
        "sub/cat.jpg", "large.txt", "bad\x01name", "link"}  # fmt: skip
    found = await shown(other)
    metadata, size, payload = found["photos/org.17/objects/2026/sub/cat.jpg"]
    assert (metadata.content_type, size, payload) == ("image/jpeg", 3, b"cat")
    assert metadata.time_created_ns == (files / "sub/cat.jpg").stat().st_mtime_ns and metadata.expiration is None
    again = await import_objects(other, files, INTO)
    assert (again.unchanged, again.copied) == (2, 0)
    (files / "large.txt").write_bytes(LARGE[::-1])
    assert (await import_objects(other, files, INTO)).failed == 2, "another object is there"
    assert (await import_objects(other, files, INTO, existing=Existing.OVERWRITE)).copied == 1
    assert (await shown(other))["photos/org.17/objects/2026/large.txt"][2] == LARGE[::-1]


async def test_the_objects_of_a_bucket_of_gcs(other: TieredStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    async with GcsEmulator() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        bucket = server.create_bucket("old")
        told = {"contentType": "image/png", "metadata": {"owner": "me"}}
        bucket.insert("p/zipped", b"x", {"contentEncoding": "gzip"}, {}, (), 10**18)
        bucket.insert("p/odd", b"x", {"metadata": {"no token": "x"}}, {}, (), 10**18)
        odd_headers = {
            "cacheControl": "max-age=60", "contentDisposition": "attachment; filename*=UTF-8''%C3%A4.txt", "contentLanguage": "de",
            "contentEncoding": "Identity",
        }  # fmt: skip
        bucket.insert("h/a", b"x", odd_headers, {}, (), 10**18)
        bucket.insert("h/b", b"x", {"contentDisposition": "inline; created-ns=5", "contentEncoding": "zstd, aws-chunked"}, {}, (), 10**18)
        assert (await import_objects(other, "gs://old/h", ObjectPrefix.create("headers", ""))).copied == 2
        shown_as, timed = [(await shown(other))[f"headers/objects/{name}"][0] for name in "ab"]
        assert (shown_as.compression, shown_as.filename) == (None, "%C3%A4.txt")
        assert kept(shown_as) == {
            "content-type": "application/octet-stream", "cache-control": "max-age=60", "content-language": "de",
            "content-disposition": "attachment; filename*=UTF-8''%C3%A4.txt",
        }  # fmt: skip
        assert (timed.compression, timed.custom, timed.time_created_ns) == ("Zstd", {}, 5)
        for name in "ab":
            await other.delete(ObjectId.create("headers", name))
        for name, payload in (("p/a.png", b"a"), ("p/sub/b.png", LARGE), ("p/", b""), ("p/bad\x01", b"x"), ("px", b"no"), ("o", b"no")):
            bucket.insert(name, payload, told, {}, (), 10**18)
        for _ in range(2):
            report = await import_objects(other, "gs://old/p", INTO)
            assert (report.copied + report.unchanged, report.skipped, report.failed) == (2, 1, 3)
        assert report.unchanged == 2
        found = await shown(other)
        assert set(found) == {"photos/org.17/objects/2026/a.png", "photos/org.17/objects/2026/sub/b.png"}
        metadata, _, payload = found["photos/org.17/objects/2026/sub/b.png"]
        assert (metadata.content_type, payload, metadata.expiration) == ("image/png", LARGE, None) and metadata.custom == {"owner": "me"}
        give(server, bucket="old")
        with pytest.raises(ConfigurationError, match="has its blobs alone: export its objects"):
            await import_objects(other, "gs://old/p", INTO)


@pytest.mark.parametrize(("names", "ids", "name", "object_id"), [
    ("users/{user}/{rest}", "photos/user.{user}/objects/{rest}", "users/17/2026/a.jpg", "photos/user.17/objects/2026/a.jpg"),
    ("{org}/{user}/x{rest}", "photos/org.{org}/user.{user}/objects/new/{rest}", "1/2/xa/b", "photos/org.1/user.2/objects/new/a/b"),
    ("{day}/{file}.jpg", "photos/objects/{day}/{file}", "2026/a.b.jpg", "photos/objects/2026/a.b"),
    ("{kind}/{rest}", "{kind}/objects/{rest}", "photos/a/objects/b", "photos/objects/a/objects/b"),
    ("{user}/{rest}", "p/user.{user}/objects/{rest}", "anna@example.com/a b", "p/user.anna+40example+2Ecom/objects/a b"),
    ("{user}/{rest}", "p/user.x-{user}/objects/{rest}", "a+b/c+d", "p/user.x-a+2Bb/objects/c+d"),
])  # fmt: skip
def test_an_id_is_made_of_a_name(names: str, ids: str, name: str, object_id: str) -> None:
    assert str(NamePattern(names, ids).id_of(name)) == object_id


@pytest.mark.parametrize(("name", "why"), [
    ("teams/17/a", "does not match 'users/{user}/{rest}'"), ("users/17/", "does not match"), ("users//a", "does not match"),
    ("users/" + "ä" * 200 + "/c", "at most 987 fit"), ("users/17/../a", "'..' segment"), ("users/\udcff/a", "not valid Unicode"),
])  # fmt: skip
def test_of_other_names_no_id_is_made(name: str, why: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        NamePattern("users/{user}/{rest}", "photos/user.{user}/objects/{rest}").id_of(name)
    assert why in str(error.value)


@pytest.mark.parametrize(("names", "ids", "why"), [
    ("users/{user}/{rest}", "photos/objects/{rest}", "do not have the same words"),
    ("{a}/{rest}", "p/objects/{rest}/{b}", "the same words"),
    ("{a}{b}", "p/objects/{a}/{b}", "two words in braces without a /"), ("{a}/{b}", "p/objects/{a}-{b}", "two words in braces without"),
    ("{a}/{a}", "p/objects/{a}", "each once"), ("a", "p/objects/a", "is no pattern"), ("{a", "p/objects/{a}", "is no pattern"),
    ("{a}", "p/{a}", "is no pattern of ids"), ("{a}", "p/{a}/objects/x", "is no pattern of ids"), ("{a}", "~p/objects/{a}", "~"),
    (7, "p/objects/{a}", "two texts"), ("{1}", "p/objects/{1}", "is no pattern"),
])  # fmt: skip
def test_a_pattern_that_could_make_one_object_of_two_names_is_none(names: Any, ids: str, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        NamePattern(names, ids)


async def test_names_become_scopes_and_a_dry_run_tells_the_ids(tmp_path: Path, other: TieredStorage) -> None:
    for name in ("users/17/2026/a", "users/18/b", "teams/1/c"):
        (path := tmp_path / "old" / name).parent.mkdir(parents=True)
        path.write_bytes(b"x")
    pattern = NamePattern("users/{user}/{rest}", "photos/user.{user}/objects/{rest}")
    for dry_run in (True, False):
        told: list[FileResult] = []
        report = await import_objects(other, tmp_path / "old", pattern, dry_run=dry_run, on_result=told.append)
        assert (report.copied, report.failed) == (2, 1) and "'teams/1/c' does not match" in str(report.failures[0].why)
        ids = {each.path: str(each.object_id) for each in told if each.object_id is not None}
        assert ids == {"users/17/2026/a": "photos/user.17/objects/2026/a", "users/18/b": "photos/user.18/objects/b"}
        assert set(await shown(other)) == (set() if dry_run else set(ids.values()))


async def test_what_a_dry_run_says_would_be_refused_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policies = {"small": {"object_bytes_max": 2}, "closed": {"closed": True}, "short": {"lifetime_max_s": 60}}
    told = {
        "small/large": "objects have at most 2 bytes", "closed/x": "no new objects are taken", "short/x": "it would stay until",
        "other/zipped": "has the Content-Encoding 'gzip', and of a stored object readers expect none but zstd",
        "other/umlaut": "garbles what is not ASCII", "other/token": "is no HTTP token", "other/" + "k" * 990: "at most 987 fit",
    }  # fmt: skip
    headers: dict[str, dict[str, Any]] = {
        "other/zipped": {"contentEncoding": "gzip"}, "other/umlaut": {"metadata": {"owner": "ä"}},
        "other/token": {"metadata": {"a b": "x"}},
    }  # fmt: skip
    async with GcsEmulator() as server, open_storage(Settings(directory=tmp_path, usecases=policies)) as storage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        bucket = server.create_bucket("old")
        for name in (*told, "other/x", "small/xy"):
            bucket.insert(name, b"large" if name == "small/large" else b"xy", headers.get(name, {}), {}, (), 10**18)
        pattern = NamePattern("{usecase}/{rest}", "{usecase}/objects/{rest}")
        refused = []
        for dry_run in (True, False):
            report = await import_objects(storage, "gs://old", pattern, dry_run=dry_run)
            assert (report.copied, report.failed) == (2, len(told)), report.failures
            refused.append({each.path: each.why for each in report.failures})
        assert refused[0] == refused[1] and [name for name, why in told.items() if why not in str(refused[0][name])] == []
        assert set(await shown(storage)) == {"other/objects/x", "small/objects/xy"}


@pytest.mark.slow
async def test_the_objects_of_a_bucket_of_s3(other: TieredStorage, moto_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    bucket = new_feed_bucket(moto_url)
    for name, payload in (("p/a", b"a"), ("p/sub/b", LARGE), ("q", b"no")):
        bucket.put(name, payload)
    bucket.put(
        "p/told", b"t", ContentType="text/css", Metadata={"owner": "me"}, CacheControl="no-store", ContentEncoding="aws-chunked",
        ContentDisposition='attachment; filename="a b.css"',
    )  # fmt: skip
    report = await import_objects(other, f"s3://{bucket.settings.bucket}/p", INTO)
    assert (report.copied, report.failures) == (3, [])
    found = await shown(other)
    assert found["photos/org.17/objects/2026/sub/b"][2] == LARGE
    told, _, _ = found["photos/org.17/objects/2026/told"]
    assert (told.content_type, told.filename, told.compression) == ("text/css", "a b.css", None)
    assert kept(told) == {
        "owner": "me", "content-type": "text/css", "cache-control": "no-store", "content-disposition": 'attachment; filename="a b.css"',
    }  # fmt: skip
    assert (await import_objects(other, f"s3://{bucket.settings.bucket}/p", INTO)).unchanged == 3
    everything = await import_objects(other, f"s3://{bucket.settings.bucket}", ObjectPrefix.create("all", ""))
    assert everything.copied == 4


@pytest.mark.slow
async def test_an_object_of_s3_that_is_replaced_between_two_looks_is_not_stored(
    other: TieredStorage, moto_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    bucket = new_feed_bucket(moto_url)
    bucket.put("p/a", b"before", ContentType="text/css")
    source = open_source(f"s3://{bucket.settings.bucket}/p", INTO, other._settings, SystemRuntime(), incomplete=False)
    async with source as items:
        [item] = [each async for each in items]
        assert item.ask is not None
        item = await item.ask()
        assert item.open is not None and item.crc32c is None, "so nothing else tells"
        assert b"".join([chunk async for chunk in item.open()]) == b"before"
        bucket.put("p/a", b"behind", ContentType="text/html")
        with pytest.raises(UnavailableError, match="was replaced while it was read; call again"):
            async for _ in item.open():
                pass
        bucket._client.delete_object(Bucket=bucket.settings.bucket, Key="p/a")
        with pytest.raises(InvalidRequestError, match="was deleted meanwhile"):
            async for _ in item.open():
                pass


async def test_a_file_that_is_replaced_between_two_looks_is_not_stored(tmp_path: Path, other: TieredStorage) -> None:
    (files := tmp_path / "files").mkdir()
    for name in ("a", "b", "c"):
        (files / name).write_bytes(LARGE)
    async with open_source(files, INTO, other._settings, SystemRuntime(), incomplete=False) as items:
        found = [each async for each in items]
        (files / "a").write_bytes(LARGE[::-1])
        (files / "b").write_bytes(LARGE + b"grown")
        (files / "c").unlink()
        for item, says in zip(found, ("was changed while it was read", "was changed while it was read", "was deleted"), strict=True):
            assert item.open is not None
            with pytest.raises(TieredError, match=says):
                async for _ in item.open():
                    pass


async def test_names_and_files_of_every_kind(unprivileged: Path) -> None:
    (files := unprivileged / "files").mkdir()
    (files / "empty").touch()
    (files / "shut").write_bytes(b"x")
    (files / "shut").chmod(0)
    (files / "dark").mkdir(mode=0)
    os.mkfifo(files / "pipe")
    Path(os.fsdecode(os.fsencode(files) + b"/\xff")).touch()
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(files / "socket"))
    async with open_storage(settings_of(unprivileged / "store")) as storage:
        results: list[FileResult] = []
        with anyio.fail_after(60):
            report = await import_objects(storage, files, INTO, on_result=results.append)
        assert (report.copied, report.skipped, report.failed) == (1, 2, 3)
        assert {each.path for each in results if each.kind is Kind.FAILED} == {"shut", "dark", "\udcff"}
        assert set(await shown(storage)) == {"photos/org.17/objects/2026/empty"}


async def test_of_an_export_with_a_damaged_part_the_rest_is_verified_and_is_taken_if_that_is_asked_for(
    tmp_path: Path, other: TieredStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "PART_OBJECTS", 4)
    async with filled(tmp_path / "store") as storage:
        await export_objects(storage, tmp_path / "export")
    parts = sorted((tmp_path / "export/manifest").iterdir())
    content = bytearray(parts[1].read_bytes())
    content[len(content) // 2] ^= 1
    parts[1].write_bytes(content)
    parts[3].unlink()
    said: list[str] = []
    verified = await verify_export(tmp_path / "export", on_wrong=said.append)
    assert (verified.whole, verified.wrong, verified.complete) == (OBJECTS - 8, 2, False) and verified.first_wrong == said
    assert "part-000001.parquet" in said[0] and "part-000003.parquet is not the part" in said[1]
    with pytest.raises(CorruptRecordError, match=r"part-000001\.parquet"):
        await import_objects(other, tmp_path / "export")
    report = await import_objects(other, tmp_path / "export", incomplete=True)
    assert (report.copied + report.unchanged, report.failed) == (OBJECTS - 8, 2) and len(await shown(other)) == OBJECTS - 8
    assert [each.path for each in report.failures] == ["manifest/part-000001.parquet", "manifest/part-000003.parquet"]
    assert all(isinstance(each.error, CorruptRecordError) for each in report.failures)


# --- a deadline that is kept -------------------------------------------------------------------------


async def put(storage: TieredStorage, metadata: Metadata, payload: bytes = b"x", **more: Any) -> Exception | None:
    async with storage.put_many([PutRequest(ObjectId.create("a", "k"), payload, metadata, **more)]) as results:
        [error] = [result.error async for result in results]
    return error


@pytest.mark.parametrize("payload", [b"small", LARGE])
async def test_a_deadline_is_kept_only_where_that_is_asked_for(other: TieredStorage, payload: bytes) -> None:
    ends = SystemRuntime().wall_ns() // 10**6 * 10**6 + DAY_NS
    for expiration in (TimeToLive(timedelta(days=9)), TimeToIdle(timedelta(days=9))):
        metadata = Metadata(expiration=expiration, time_expires_ns=ends, time_created_ns=5)
        for keeps in (True, False):
            assert await put(other, metadata, payload, keep_deadline=keeps) is None
            head = await other.head(ObjectId.create("a", "k"))
            assert head is not None and head.metadata.expiration == expiration and head.metadata.time_created_ns == 5
            assert (head.metadata.time_expires_ns == ends) is keeps


async def test_a_deadline_that_cannot_be_kept_is_refused(other: TieredStorage) -> None:
    life = TimeToLive(timedelta(days=9))
    for metadata, keeps, says in (
        (Metadata(expiration=life), True, "needs both expiration and time_expires_ns"),
        (Metadata(time_expires_ns=2**60), True, "needs both expiration and time_expires_ns"),
        (Metadata(expiration=life, time_expires_ns=1), True, "has expired already"), (Metadata(), 1, "keep_deadline is True or False"),
    ):  # fmt: skip
        error = await put(other, metadata, keep_deadline=keeps)
        assert isinstance(error, InvalidRequestError) and says in str(error)
    assert await shown(other) == {}


def test_where_arrow_is_not_installed_whoever_imports_is_told_of_imports() -> None:
    code = "import sys; sys.modules['pyarrow'] = None; import tiered.exports"
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert "ConfigurationError: an import and an export need pyarrow: pip install" in ended.stderr
