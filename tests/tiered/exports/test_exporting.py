"""An export goes on after a kill, finds damage, names what is missing, and calls nothing complete that is not."""

from __future__ import annotations

import hashlib
import io
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from threading import get_ident
from typing import Any

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from changelog.base.errors import ConfigurationError, CorruptRecordError, InvalidRequestError, TieredError, UnavailableError
from changelog.base.runtime import SystemRuntime
from emulators.gcs.server import GcsEmulator
from emulators.gcs.store import Bucket
from tests.given.exported_stores import LARGE, OBJECTS, filled, payload_files, settings_of, shown
from tests.given.processes import StartedProcess
from tests.given.repository import ROOT
from tests.given.small_disk import disk, mount
from tiered import ObjectId, ObjectPrefix, PutRequest, TieredStorage, open_storage
from tiered.exports import ExportReport, export_objects, exporting, import_objects, verify_export
from tiered.exports import manifest as exported_manifest
from tiered.exports.manifest import SCHEMA, ExportRow, decode_part
from tiered.exports.pages import bytes_of_column
from tiered.gcs.blobs import GcsBlobs
from tiered.open import open_backends
from tiered.services.backends import Tiers

__all__ = ["disk", "mount"]
pytestmark = pytest.mark.anyio


class KilledError(Exception):
    pass


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "PART_OBJECTS", 4)


def killed_after(count: int) -> Callable[[ExportRow], None]:
    seen = 0

    def tell(row: ExportRow) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            raise KilledError

    return tell


async def interrupted(storage: TieredStorage, place: str | Path, count: int) -> None:
    with pytest.raises(KilledError):
        await export_objects(storage, place, on_result=killed_after(count))


def manifest(place: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((place / "manifest.json").read_text())
    return found


# --- it goes on --------------------------------------------------------------------------------------

CHILD = """
import sys, anyio
from tests.given.exported_stores import settings_of
from tiered import open_storage
from tiered.exports import exporting, export_objects
from pathlib import Path
exporting.PART_OBJECTS = 4
seen = 0
async def tell(row):
    global seen
    seen += 1
    if seen == 11:
        print("here", flush=True)
        await anyio.sleep_forever()
async def main():
    async with open_storage(settings_of(Path(sys.argv[1])), writes=False) as storage:
        await export_objects(storage, sys.argv[2], on_result=tell)
anyio.run(main)
"""


def killed(store: Path, place: Path) -> None:
    """Kills a process that has fetched 11 objects."""
    command = [sys.executable, "-c", CHILD, str(store), str(place)]
    with StartedProcess(command, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}) as child:
        assert child.stdout is not None and child.stdout.readline() == b"here\n"
        child.send_signal(signal.SIGKILL)


@pytest.mark.slow
async def test_an_export_that_was_killed_goes_on_and_ends_with_the_same(tmp_path: Path, small_parts: None) -> None:
    place = tmp_path / "export"
    async with filled(tmp_path / "store") as storage:
        killed(tmp_path / "store", place)
        assert not (place / "manifest.json").exists() and len(list((place / "manifest").iterdir())) == 2
        (place / ".unfinished").mkdir(exist_ok=True)
        (place / ".unfinished/0123456789abcdef").write_bytes(b"half of a file")
        with pytest.raises(ConfigurationError, match="has not ended: give its command again"):
            await verify_export(place)
        done = await export_objects(storage, place)
        assert done.complete and (done.exported, done.fetched) == (OBJECTS, OBJECTS - 8), "two parts were there"
        assert not list((place / ".unfinished").glob("*")) and len(payload_files(place)) == OBJECTS
        assert (await verify_export(place)).complete
        again = await export_objects(storage, place)
        assert again == ExportReport(OBJECTS, 0, 0, 0, done.bytes, 0, 0, True, 0), "a second run has nothing to do"


@pytest.mark.slow
async def test_of_an_unfinished_part_what_has_the_checksum_of_the_store_is_not_read_again(tmp_path: Path) -> None:
    async with GcsEmulator() as server:
        server.create_bucket("blobs")
        runtime = SystemRuntime()
        async with (
            GcsBlobs.connect("blobs", runtime, endpoint=server.url) as blobs,
            open_backends(settings_of(tmp_path / "store"), runtime) as backends,
            TieredStorage(Tiers(backends.tiers.high_volume, blobs), backends.log, runtime, settings_of(tmp_path / "store")) as storage,
        ):
            for number in range(9):
                await storage.put(ObjectId.create("large", str(number)), LARGE + bytes(number))
            place = tmp_path / "export"
            with pytest.raises(KilledError):
                await export_objects(storage, place, concurrency=1, on_result=killed_after(9))
            whole = payload_files(place)
            assert len(whole) == 9
            whole[0].write_bytes(b"x" + whole[0].read_bytes()[1:])
            os.truncate(whole[1], 100)
            whole[2].unlink()
            done = await export_objects(storage, place)
            assert done.complete and done.fetched == 3 and (await verify_export(place)).complete


async def test_a_bucket_goes_on_too(tmp_path: Path, small_parts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    async with GcsEmulator() as server, filled(tmp_path / "store") as storage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.create_bucket("exports")
        await interrupted(storage, "gs://exports/e", 14)
        done = await export_objects(storage, "gs://exports/e")
        assert done.complete and done.exported == OBJECTS and (await verify_export("gs://exports/e")).complete
        bucket = server.buckets["exports"]
        damaged = next(name for name in bucket.objects if name.startswith("e/payloads/"))
        del bucket.objects[damaged]
        assert (await verify_export("gs://exports/e")).wrong == 1
        assert (await export_objects(storage, "gs://exports/e", verify=True)).mended == 1
        assert (await verify_export("gs://exports/e")).complete
        with pytest.raises(ConfigurationError, match="is a whole bucket: give a prefix"):
            await export_objects(storage, "gs://exports")


# --- damage ------------------------------------------------------------------------------------------


async def test_damage_among_good_files_is_found_and_mended(tmp_path: Path, small_parts: None) -> None:
    place = tmp_path / "export"
    async with filled(tmp_path / "store") as storage:
        await export_objects(storage, place)
        before = {path: path.read_bytes() for path in payload_files(place)}
        short, gone, flipped = [path for path, content in before.items() if len(content) > 200][:3]
        os.truncate(short, 150)
        gone.unlink()
        flipped.write_bytes(before[flipped][:-1] + bytes([before[flipped][-1] ^ 1]))
        checked = await verify_export(place)
        assert not checked.complete and checked.wrong == 3 and checked.whole == OBJECTS - 3
        said = " ".join(checked.first_wrong)
        assert "has 150 bytes, and not" in said and "is missing" in said and "has other bytes than were exported" in said
        done = await export_objects(storage, place)
        assert (done.mended, done.fetched) == (2, 2), "without verify, sizes are compared"
        done = await export_objects(storage, place, verify=True)
        assert (done.mended, done.complete) == (1, True)
        assert {path: path.read_bytes() for path in payload_files(place)} == before
        assert (await verify_export(place)).complete


@pytest.mark.parametrize("harm", [
    lambda place: os.truncate(place / "manifest/part-000002.parquet", 500),
    lambda place: (place / "manifest/part-000001.parquet").unlink(),
    pytest.param(
        lambda place: (place / "manifest/part-000001.parquet").write_bytes((place / "manifest/part-000002.parquet").read_bytes()),
        marks=pytest.mark.night,
    ),
    pytest.param(lambda place: (place / "manifest/part-000000.parquet").write_bytes(b""), marks=pytest.mark.night),
    lambda place: (place / "manifest.json").unlink(),
])  # fmt: skip
async def test_damage_of_the_manifest_is_no_export_and_the_same_command_mends_it(
    tmp_path: Path, small_parts: None, harm: Callable[[Path], None]
) -> None:
    place = tmp_path / "export"
    async with filled(tmp_path / "store") as storage:
        await export_objects(storage, place)
        harm(place)
        assert not await is_whole(place)
        async with open_storage(settings_of(tmp_path / "other")) as other:
            with pytest.raises((CorruptRecordError, ConfigurationError)):
                await import_objects(other, place)
        done = await export_objects(storage, place)
        assert done.complete and done.exported == OBJECTS and await is_whole(place)


async def is_whole(place: Path) -> bool:
    try:
        return (await verify_export(place)).complete
    except (CorruptRecordError, ConfigurationError):
        return False


MANIFESTS: list[tuple[dict[str, object], type[TieredError], str]] = [
    ({"version": 2, "software": "9.1"}, ConfigurationError, "is of version 2, and this software knows 1: install tiered 9.1 or newer"),
    ({"format": "other"}, CorruptRecordError, "its format is not tiered.export"),
    ({"counts": {"exported": 1}}, CorruptRecordError, "its totals are not those of its parts"),
    ({"complete": "yes"}, CorruptRecordError, "cannot be used"),
    ({"parts": []}, CorruptRecordError, "its parts do not follow one another"),
    ({"export": 7}, CorruptRecordError, "cannot be used"),
    ({"counts": {"exported": json.loads("[" * 600 + "]" * 600)}}, CorruptRecordError, "cannot be used"),
]  # fmt: skip


async def test_what_a_manifest_says_is_checked(tmp_path: Path) -> None:
    place = tmp_path / "export"
    async with filled(tmp_path / "store") as storage, open_storage(settings_of(tmp_path / "other")) as other:
        await export_objects(storage, place)
        files, right = payload_files(place), manifest(place)
        for change, kind, says in MANIFESTS:
            (place / "manifest.json").write_text(json.dumps(right | change))
            for call in (lambda: verify_export(place), lambda: export_objects(storage, place), lambda: import_objects(other, place)):
                with pytest.raises(kind, match=says):
                    await call()
            assert [entry async for entry in other.list()] == [] and payload_files(place) == files


# --- what changes meanwhile --------------------------------------------------------------------------


async def test_what_vanished_and_what_failed_is_named(tmp_path: Path) -> None:
    place, lost = tmp_path / "export", ObjectId.create("kept", "06")
    async with filled(tmp_path / "store") as storage:
        blobs = [path for path in (tmp_path / "store/blobs").rglob("*") if path.is_file()]
        content = {path: path.read_bytes() for path in blobs}
        for path in blobs:
            path.unlink()
        done = await export_objects(storage, place)
        assert not done.complete and done.failed == len(blobs) and manifest(place)["complete"] is False
        assert not (await verify_export(place)).complete
        async with open_storage(settings_of(tmp_path / "other")) as other:
            with pytest.raises(ConfigurationError, match=rf"is not complete: {len(blobs)} objects failed"):
                await import_objects(other, place)
            assert (await import_objects(other, place, incomplete=True)).copied == OBJECTS - len(blobs)
        for path, whole in content.items():
            path.write_bytes(whole)
        await storage.delete(lost)
        done = await export_objects(storage, place)
        assert done.complete and (done.exported, done.vanished, done.failed) == (OBJECTS - 1, 1, 0)
        assert done.fetched == done.mended == len(blobs) - 1
    assert (await verify_export(place)).complete


async def test_a_damaged_row_is_named_and_the_export_is_not_complete(tmp_path: Path) -> None:
    async with filled(tmp_path / "store"):
        pass
    with closing(sqlite3.connect(tmp_path / "store/tiered.db")) as database:
        database.execute("UPDATE rows SET metadata = '{' WHERE path LIKE 'kept/objects/00'")
        database.commit()
    async with open_storage(settings_of(tmp_path / "store"), writes=False) as storage:
        done = await export_objects(storage, tmp_path / "export")
        assert (done.complete, done.failed, done.exported) == (False, 1, OBJECTS - 1)
    rows = {row["path"]: row for row in pq.read_table(tmp_path / "export/manifest/part-000000.parquet").to_pylist()}
    assert rows["kept/objects/00"]["state"] == "failed" and "damaged" in rows["kept/objects/00"]["why"]
    checked = await verify_export(tmp_path / "export")
    assert (checked.wrong, checked.complete) == (0, False)


@pytest.mark.parametrize("part_objects", [4, pytest.param(9, marks=pytest.mark.night), 10_000])
async def test_rows_that_are_no_objects_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_objects: int) -> None:
    monkeypatch.setattr(exporting, "PART_OBJECTS", part_objects)
    async with filled(tmp_path / "store"):
        pass
    strays = ["0", "kept/objects/", "kept/x", "packed/no", "zz", "zzz"]
    with closing(sqlite3.connect(tmp_path / "store/tiered.db")) as database:
        columns = ", ".join(name for _, name, *_ in database.execute("PRAGMA table_info(rows)") if name != "path")
        for path in strays:
            database.execute(f"INSERT INTO rows (path, {columns}) SELECT ?, {columns} FROM rows WHERE path = 'kept/objects/00'", (path,))
        database.commit()
    place = tmp_path / "export"
    async with open_storage(settings_of(tmp_path / "store"), writes=False) as storage:
        await interrupted(storage, place, 9)
        done = await export_objects(storage, place, update=False)
        assert (done.left_out, done.complete, done.exported) == (len(strays), True, OBJECTS)
        next(iter(payload_files(place))).unlink()
        assert (await export_objects(storage, place)).left_out == len(strays)
        assert (await export_objects(storage, place, update=True)).left_out == len(strays)
        assert (await export_objects(storage, place, update=True)).left_out == len(strays)
        assert (await export_objects(storage, tmp_path / "kept", ObjectPrefix.create("kept"))).left_out == 2
    checked = await verify_export(place)
    assert checked.complete and checked.left_out == len(strays)


async def test_what_was_replaced_or_deleted_after_it_was_listed_is_named(tmp_path: Path) -> None:
    replaced, deleted = ObjectId.create("late", "1"), ObjectId.create("late", "2")
    async with filled(tmp_path / "store") as storage:
        for each in (replaced, deleted):
            await storage.put(each, b"before")

        async def meanwhile(row: ExportRow) -> None:
            if row.path == "kept/objects/00":  # the page is listed, and one object is fetched at a time
                await storage.put(replaced, LARGE)
                await storage.delete(deleted)

        done = await export_objects(storage, tmp_path / "export", concurrency=1, on_result=meanwhile)
        assert done.complete and (done.exported, done.changed, done.vanished) == (OBJECTS + 1, 1, 1)
    rows = {row["path"]: row for row in pq.read_table(tmp_path / "export/manifest/part-000000.parquet").to_pylist()}
    assert rows[str(replaced)]["why"] == "it was replaced after it was listed" and rows[str(replaced)]["size"] == len(LARGE)
    assert rows[str(deleted)]["state"] == "vanished" and rows[str(deleted)]["file"] is None
    assert (await verify_export(tmp_path / "export")).whole == OBJECTS + 1


# --- the place ---------------------------------------------------------------------------------------


async def test_another_store_or_prefix_or_other_files_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "export"
    async with filled(tmp_path / "store") as storage, filled(tmp_path / "other") as other:
        await export_objects(storage, place, ObjectPrefix.create("kept"))
        with pytest.raises(ConfigurationError, match="holds an export whose store is"):
            await export_objects(other, place, ObjectPrefix.create("kept"))
        with pytest.raises(ConfigurationError, match="whose prefix is kept/, and not empty"):
            await export_objects(storage, place)
        (tmp_path / "full").mkdir()
        (tmp_path / "full/mine").touch()
        (tmp_path / "full/.unfinished").mkdir()
        (tmp_path / "full/.unfinished/letter").touch()
        with pytest.raises(InvalidRequestError, match="holds 'mine', and no export: give an empty place"):
            await export_objects(storage, tmp_path / "full")
        (tmp_path / "full/mine").unlink()
        await export_objects(storage, tmp_path / "full")
        (tmp_path / "away").mkdir()
        (tmp_path / "away/0123456789abcdef").touch()
        (tmp_path / "linked").mkdir()
        (tmp_path / "linked/.unfinished").symlink_to(tmp_path / "away")
        with pytest.raises(ConfigurationError, match=r"\.unfinished is no directory, and files are made there: move it away"):
            await export_objects(storage, tmp_path / "linked")
        assert os.listdir(tmp_path / "away") == ["0123456789abcdef"] and os.listdir(tmp_path / "linked") == [".unfinished"]
        assert os.listdir(tmp_path / "full/.unfinished") == ["letter"], "what others have there was removed, and then they were refused"
        for inside in (tmp_path / "store", tmp_path / "store/export"):
            with pytest.raises(ConfigurationError, match=r"is in the store .*: give a place outside of it"):
                await export_objects(storage, inside)
        (tmp_path / "file").touch()
        for wrong in (tmp_path / "file", tmp_path / "file/x", "", "http://x/y", "gs:/x", 7, "x\0", "x" * 5000):
            with pytest.raises(TieredError):
                await export_objects(storage, wrong)  # type: ignore[arg-type]
            with pytest.raises(TieredError):
                await verify_export(wrong)  # type: ignore[arg-type]
        for arguments in (("x", place), (storage, place, "kept")):
            with pytest.raises(InvalidRequestError):
                await export_objects(*arguments)
        with pytest.raises(InvalidRequestError, match="on_result is a function"):
            await export_objects(storage, place, on_result=7)  # type: ignore[arg-type]
        more: list[dict[str, Any]] = [{"settings": "x"}, {"on_wrong": 7}, {"concurrency": True}]
        for each in more:
            with pytest.raises(InvalidRequestError):
                await verify_export(place, **each)
        with pytest.raises(InvalidRequestError, match="concurrency"):
            await export_objects(storage, place, concurrency=0)
    assert len(payload_files(place)) == 9


async def test_two_exports_do_not_write_to_one_directory(tmp_path: Path) -> None:
    async with filled(tmp_path / "store") as storage:
        async def second(row: ExportRow) -> None:
            with pytest.raises(ConfigurationError, match="another process writes an export to"):
                await export_objects(storage, tmp_path / "export")
            raise KilledError

        with pytest.raises(KilledError):
            await export_objects(storage, tmp_path / "export", on_result=second)
        assert (await export_objects(storage, tmp_path / "export")).complete


@pytest.fixture
async def bucket(monkeypatch: pytest.MonkeyPatch, anyio_backend: str) -> AsyncIterator[Bucket]:
    """An empty bucket `exports`, which variables lead to."""
    async with GcsEmulator() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server.create_bucket("exports")


@pytest.mark.parametrize("seen", [1, 6])
async def test_of_two_exports_to_one_bucket_the_earlier_one_ends_and_says_why(
    tmp_path: Path, small_parts: None, bucket: Bucket, seen: int
) -> None:
    async with filled(tmp_path / "store") as storage:
        count, later = 0, None

        async def meanwhile(row: ExportRow) -> None:
            nonlocal count, later
            count += 1
            if count == seen:
                later = await export_objects(storage, "gs://exports/e")

        with pytest.raises(ConfigurationError, match="another call has taken over the export in gs://exports/e"):
            await export_objects(storage, "gs://exports/e", on_result=meanwhile)
        assert later is not None and later.complete and later.exported == OBJECTS
        checked = await verify_export("gs://exports/e")
        assert checked.complete and checked.whole == OBJECTS
    assert not [name for name in bucket.objects if "/.writing/" in name]


async def test_a_file_that_another_call_wrote_meanwhile_is_written_again(tmp_path: Path, bucket: Bucket) -> None:
    async with filled(tmp_path / "store") as storage:
        await export_objects(storage, "gs://exports/first")

        def meanwhile(row: ExportRow) -> None:
            if row.path == "kept/objects/00":  # one object is fetched at a time
                for name in [each for each in bucket.objects if each.startswith("first/payloads/")]:
                    if (copy := f"e{name.removeprefix('first')}") not in bucket.objects:
                        bucket.insert(copy, b"half of it", {}, {}, (), 10**18)

        done = await export_objects(storage, "gs://exports/e", concurrency=1, on_result=meanwhile)
        assert done.complete and done.exported == OBJECTS and (await verify_export("gs://exports/e")).complete


async def test_an_export_whose_part_somebody_else_wrote_is_not_called_complete(tmp_path: Path, small_parts: None, bucket: Bucket) -> None:
    async with filled(tmp_path / "store") as storage:
        count = 0

        def meanwhile(row: ExportRow) -> None:  # a request of another call that was long on its way
            nonlocal count
            count += 1
            if count == 9:
                del bucket.objects["e/manifest/part-000000.parquet"]
                bucket.insert("e/manifest/part-000000.parquet", b"of another call", {}, {}, (), 10**18)

        with pytest.raises(ConfigurationError, match=r"part-000000.parquet was written by another call"):
            await export_objects(storage, "gs://exports/e", on_result=meanwhile)
        assert "e/manifest.json" not in bucket.objects
        assert (await export_objects(storage, "gs://exports/e")).complete and (await verify_export("gs://exports/e")).complete


async def test_what_stands_where_a_file_should_be_is_wrong_and_is_replaced(tmp_path: Path) -> None:
    place = tmp_path / "export"
    async with filled(tmp_path / "store") as storage:
        await export_objects(storage, place)
        linked, piped, folder, *_ = [path for path in payload_files(place) if path.stat().st_size > 200]
        linked.rename(tmp_path / "elsewhere")
        linked.symlink_to(tmp_path / "elsewhere")
        piped.unlink()
        os.mkfifo(piped)
        folder.unlink()
        folder.mkdir()
        with anyio.fail_after(30):
            checked = await verify_export(place)
            assert (checked.wrong, checked.complete) == (3, False)
            assert all("is no regular file" in each for each in checked.first_wrong)
            async with open_storage(settings_of(tmp_path / "other")) as other:
                report = await import_objects(other, place)
                assert (report.copied, report.failed) == (OBJECTS - 3, 3)
            folder.rmdir()
            done = await export_objects(storage, place)
        assert (done.mended, done.complete) == (3, True) and (await verify_export(place)).complete
        assert (tmp_path / "elsewhere").exists()


async def test_no_link_is_followed_on_the_way_either(tmp_path: Path) -> None:
    place = tmp_path / "export"
    async with filled(tmp_path / "store") as storage, open_storage(settings_of(tmp_path / "other")) as other:
        await export_objects(storage, place)
        (place / "payloads").rename(tmp_path / "elsewhere")
        (place / "payloads").symlink_to(tmp_path / "elsewhere")
        checked = await verify_export(place)
        assert checked.whole == 0 and checked.first_wrong and all("is no regular file" in each for each in checked.first_wrong)
        assert (await import_objects(other, place)).copied == 0
        report = await export_objects(storage, tmp_path / "whole")
        assert report.complete
        (tmp_path / "aside").mkdir()
        (tmp_path / "new").mkdir()
        (tmp_path / "new/payloads").symlink_to(tmp_path / "aside")
        with pytest.raises(TieredError, match="holds 'payloads', and no export"):
            await export_objects(storage, tmp_path / "new")
        with pytest.raises(ConfigurationError, match="payloads is a symbolic link, and no reader of an export follows one"):
            await export_objects(storage, place, verify=True)


def rewritten(place: Path, **columns: Callable[[list[Any]], list[Any]]) -> None:
    """Changes columns of a part, and `manifest.json` so that it is the part of it tells of."""
    part = place / "manifest/part-000000.parquet"
    table = pq.read_table(part)
    for name, change in columns.items():
        number = table.schema.get_field_index(name)
        field = table.schema.field(name)
        table = table.set_column(number, field, [pa.array(change(table.column(name).to_pylist()), field.type)])
    pq.write_table(table, part, compression="zstd")
    told = json.loads((place / "manifest.json").read_text())
    told["parts"][0]["sha256"] = hashlib.sha256(part.read_bytes()).hexdigest()
    (place / "manifest.json").write_text(json.dumps(told))


async def test_the_crc32c_and_the_size_in_the_metadata_are_compared_by_verify_and_by_import(tmp_path: Path) -> None:
    place = tmp_path / "export"
    async with filled(tmp_path / "store") as storage, open_storage(settings_of(tmp_path / "other")) as other:
        await export_objects(storage, place)
        rewritten(place, crc32c=lambda crcs: ["AAAAAQ==", *crcs[1:]])
        checked = await verify_export(place)
        assert checked.wrong == 1 and "has the crc32c " in checked.first_wrong[0] and ", and not AAAAAQ==" in checked.first_wrong[0]
        report = await import_objects(other, place)
        assert (report.failed, report.copied) == (1, OBJECTS - 1) and "has the crc32c " in str(report.failures[0].why)
        rewritten(place, metadata=lambda texts: [json.dumps({**json.loads(texts[0]), "size": 10**6}), *texts[1:]])
        assert "tell another size than" in (await verify_export(place)).first_wrong[0]
        with pytest.raises(CorruptRecordError, match="tell another size than"):
            await import_objects(other, place)


SMALL_PART = 1_000_000
LONG = "x" * 3000
NONE = {name: pa.nulls(9000, SCHEMA.field(name).type) for name in SCHEMA.names}
BOMBS: dict[str, tuple[Any, dict[str, Any]]] = {
    "dictionary": (pa.array([LONG] * 9000), {}),
    "zstd": (pa.array([LONG] * 9000), {"use_dictionary": False}),
    "delta": (pa.array([f"{LONG}{number}" for number in range(9000)]),
              {"use_dictionary": False, "column_encoding": {"why": "DELTA_BYTE_ARRAY"}}),
    "lists": (pa.array([[LONG]] * 9000), {}),
    "rows": (None, {}),
}  # fmt: skip
"""What is in the column `why` of a part of some kilobytes that has 27 MB or more in memory, and how it is written."""


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_part_that_would_be_too_much_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch, bomb: str) -> None:
    monkeypatch.setattr(exported_manifest, "PART_BYTES_MAX", SMALL_PART)
    texts, options = BOMBS[bomb]
    none = {name: pa.nulls(200_000, SCHEMA.field(name).type) for name in SCHEMA.names}
    into = io.BytesIO()
    pq.write_table(pa.table(none if texts is None else {**NONE, "why": texts}), into, compression="zstd", **options)
    assert len(into.getvalue()) < SMALL_PART // 4
    allocated = pa.default_memory_pool().max_memory()
    why = "it has more than|its texts have more|its column why|b'why'|it has a page of"
    with pytest.raises(CorruptRecordError, match=rf"cannot be used \(({why})"):
        decode_part(into.getvalue(), "part", "0", "here")
    assert pa.default_memory_pool().max_memory() <= allocated, "it took more than what it was made of"


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["zstd", "none", "snappy"])
def test_the_bytes_of_a_column_are_those_of_its_pages(version: str, compression: str) -> None:
    into = io.BytesIO()
    texts = [f"{number % 777}" * 10 for number in range(50_000)]
    table = pa.table({"a": texts, "b": pa.array(range(50_000), pa.int64())})
    pq.write_table(table, into, compression=compression, data_page_version=version, data_page_size=5000, write_page_checksum=True)
    group = pq.ParquetFile(into).metadata.row_group(0)
    for column in map(group.column, range(2)):
        pages = bytes_of_column(into.getvalue(), column)
        assert 0.8 * column.total_uncompressed_size < pages < column.total_uncompressed_size, "it counts the headers, too"
    for content in (into.getvalue()[:-5000], b"\xff" * len(into.getvalue()), b"\x1c" * len(into.getvalue()), b""):
        with pytest.raises(ValueError, match="page"):
            bytes_of_column(content, group.column(1))


@pytest.mark.slow
async def test_a_full_disk_ends_it_and_it_goes_on_when_there_is_room(tmp_path: Path, disk: Path) -> None:
    async with open_storage(settings_of(tmp_path / "store")) as storage:
        for number in range(20):
            await storage.put(ObjectId.create("a", f"{number:02}"), LARGE)
        (disk / "other").write_bytes(bytes(3_400_000))
        with pytest.raises(UnavailableError, match="No space left on device; mend that, and give the same command again"):
            await export_objects(storage, disk / "export")
        assert not (disk / "export/manifest.json").exists() and not list((disk / "export/.unfinished").glob("*"))
        (disk / "other").unlink()
        assert (await export_objects(storage, disk / "export")).complete
    assert (await verify_export(disk / "export")).complete


async def test_a_directory_that_may_not_be_written_is_named(unprivileged: Path) -> None:
    async with filled(unprivileged / "store") as storage:
        (unprivileged / "shut").mkdir(mode=0o500)
        with pytest.raises(ConfigurationError, match=r"shut.*: Permission denied; give another place"):
            await export_objects(storage, unprivileged / "shut/export")


async def test_parts_are_encoded_and_decoded_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()

    def noted(function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            threads.add(get_ident())
            return function(*arguments)

        return call

    monkeypatch.setattr(exporting, "encode_part", noted(exported_manifest.encode_part))
    decode_part = exported_manifest.decode_part
    for module in (exporting, exported_manifest):
        monkeypatch.setattr(module, "decode_part", noted(decode_part))
    async with filled(tmp_path / "store") as storage:
        await export_objects(storage, tmp_path / "export")
    await verify_export(tmp_path / "export")
    assert threads and get_ident() not in threads


BEGUN: list[tuple[Callable[[bytes], bytes], type[TieredError], str]] = [
    (lambda told: told[:-3], CorruptRecordError, "begun.json cannot be used"),
    (lambda told: told.replace(b'"version": 1', b'"version": 2'), ConfigurationError, "is of version 2, and this software knows 1"),
    (lambda told: told.replace(b'"version": 1', b'"version": 0'), CorruptRecordError, "begun.json cannot be used"),
    (lambda told: told.replace(b'"export": "', b'"export": "0'), CorruptRecordError, "is of another export than begun.json"),
]  # fmt: skip


async def test_what_begun_says_is_checked_and_nothing_is_changed(tmp_path: Path) -> None:
    place = tmp_path / "export"
    async with filled(tmp_path / "store") as storage:
        await export_objects(storage, place)
        right = (place / "begun.json").read_bytes()
        for harm, kind, says in BEGUN:
            (place / "begun.json").write_bytes(harm(right))
            before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
            for update in (False, True):
                with pytest.raises(kind, match=says):
                    await export_objects(storage, place, update=update)
            assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_foreign_cancellation_leaves_nothing_half_done_and_the_next_call_goes_on(tmp_path: Path, anyio_backend: str) -> None:
    place = tmp_path / "export"
    async with filled(tmp_path / "store") as storage:
        for count in (1, 5, 12):
            with anyio.CancelScope() as scope:
                await export_objects(storage, place, on_result=cancels_after(count, scope))
            assert scope.cancelled_caught and not list((place / ".unfinished").glob("*")) and not (place / "manifest.json").exists()
        assert (await export_objects(storage, place)).complete and (await verify_export(place)).complete


def cancels_after(count: int, scope: anyio.CancelScope) -> Callable[[ExportRow], None]:
    rows = []

    def tell(row: ExportRow) -> None:
        rows.append(row)
        if len(rows) == count:
            scope.cancel()

    return tell


# --- bounds ------------------------------------------------------------------------------------------


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.night
async def test_ten_thousand_objects_and_one_large_one_take_little_memory_and_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "PART_OBJECTS", 1000)
    large = 256 * 1024 * 1024
    async with open_storage(settings_of(tmp_path / "store")) as storage:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(large // (1 << 20)):
                yield bytes(1 << 20)

        await storage.put(ObjectId.create("large", "one"), chunks())
        requests = (PutRequest(ObjectId.create("small", str(number)), b"payload") for number in range(10_000))
        async with storage.put_many(requests, concurrency=48) as results:
            async for result in results:
                assert result.error is None
        open_files = 0

        def tell(_: ExportRow) -> None:
            nonlocal open_files
            open_files = max(open_files, len(os.listdir("/proc/self/fd")))

        files_before, memory_before = len(os.listdir("/proc/self/fd")), peak_bytes()
        done = await export_objects(storage, tmp_path / "export", on_result=tell)
        assert done.complete and done.exported == 10_001
        assert open_files - files_before < 64 and peak_bytes() - memory_before < large // 2
    async with open_storage(settings_of(tmp_path / "other")) as other:
        report = await import_objects(other, tmp_path / "export")
        assert report.copied == 10_001 and peak_bytes() - memory_before < large // 2


# --- an update ---------------------------------------------------------------------------------------


async def test_an_update_reads_what_has_changed_and_is_nothing_before_its_end(tmp_path: Path, small_parts: None) -> None:
    place = tmp_path / "export"
    async with filled(tmp_path / "store") as storage:
        await export_objects(storage, place)
        first = (place / "manifest.json").read_bytes()
        gone, changed, new = (ObjectId.create(*each) for each in (("kept", "02"), ("kept", "03"), ("new", "1")))
        await storage.delete(gone)
        await storage.put(changed, b"another")
        await storage.put(new, LARGE)
        with pytest.raises(KilledError):
            await export_objects(storage, place, update=True, on_result=killed_after(2))
        assert (place / "manifest.json").read_bytes() == first and (await verify_export(place)).complete
        done = await export_objects(storage, place, update=True)
        assert done.complete and done.exported == OBJECTS and done.fetched <= 2
        (place / "manifest/part-000000.parquet").write_bytes(b"what a kill has left")
        assert (await export_objects(storage, place)).fetched == 0
        assert manifest(place)["round"] == 2 and not list((place / "manifest").glob("*.parquet"))
        rows = {row["path"]: row for row in pq.read_table(place / "manifest-2").to_pylist()}
        assert str(gone) not in rows and rows[str(changed)]["size"] == 7 and rows[str(new)]["size"] == len(LARGE)
        assert (await verify_export(place)).whole == OBJECTS
        again = await export_objects(storage, place, update=True)
        assert again.complete and again.fetched == 0 and manifest(place)["round"] == 3
        async with open_storage(settings_of(tmp_path / "other")) as other:
            assert (await import_objects(other, place)).copied == OBJECTS
            assert await shown(other) == await shown(storage)
        assert len(payload_files(place)) == OBJECTS, "what is gone does not stay"
        payload_files(place)[0].unlink()
        assert not (await verify_export(place)).complete
        assert (await export_objects(storage, place, update=True)).complete and (await verify_export(place)).whole == OBJECTS
