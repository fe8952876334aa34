"""An export of all objects is whole or is not there, and goes on where it was interrupted."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pyarrow.parquet as pq
import pytest

from changelog.base.errors import ConfigurationError, CorruptRecordError, UnavailableError
from changelog.base.runtime import SystemRuntime
from recovery.sources import parquet
from recovery.sources.parquet import ObjectCounts, ObjectsExport, export_table
from tests.given.command_line import Command
from tests.given.repository import ROOT
from tests.given.small_disk import Mount, disk, fill, mount
from tiered import ObjectId, open_storage
from tiered.settings import Settings

__all__ = ["disk", "mount"]
OBJECTS = 12


class KilledExportError(Exception):
    pass


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A store of 12 objects, of which a part of an export holds 5."""
    monkeypatch.setattr(parquet, "PART_ROWS", 5)
    return filled(tmp_path / "store")


def filled(directory: Path) -> Settings:
    settings = Settings(directory=directory, inline_bytes_max=3)

    async def main() -> None:
        async with open_storage(settings) as storage:
            for number in range(OBJECTS):
                await storage.put(ObjectId("media", (("org", "17"),), f"{number:02}"), b"x" * number)

    anyio.run(main)
    return settings


async def store_one(settings: Settings, object_id: ObjectId, payload: bytes) -> None:
    async with open_storage(settings) as storage:
        await storage.put(object_id, payload)


def export(settings: Settings, to: Path | str, told: Callable[[ObjectCounts], None] = lambda _: None, **how: Any) -> ObjectsExport:
    async def main() -> ObjectsExport:
        return await export_table(settings, str(to), SystemRuntime(), told=told, **how)

    return anyio.run(main)


def interrupted(settings: Settings, to: Path) -> Path:
    def told(counts: ObjectCounts) -> None:
        if counts.objects > 5:
            raise KilledExportError

    with pytest.raises(KilledExportError):
        export(settings, to, told)
    return to.with_name(f"{to.name}.unfinished")


def rows_of(directory: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(sorted(directory.glob("*.parquet")), page_checksum_verification=True).to_pylist()
    return found


def test_an_export_that_was_killed_is_not_there_and_goes_on(settings: Settings, tmp_path: Path) -> None:
    to = tmp_path / "deep" / "table"
    unfinished = interrupted(settings, to)
    assert not to.exists() and [path.name for path in sorted(unfinished.iterdir())] == [
        "manifest.json", "part-000000.parquet", "part-000001.parquet"]  # fmt: skip
    (unfinished / "_part-000002.parquet.00ff.tmp").write_bytes(b"half of a part")
    before = {path.name: path.stat().st_mtime_ns for path in unfinished.glob("*.parquet")}
    done = export(settings, to)
    assert not unfinished.exists() and {path.name for path in to.iterdir()} == {"manifest.json", *before, "part-000002.parquet"}
    assert {name: (to / name).stat().st_mtime_ns for name in before} == before, "what was written is not written again"
    rows = rows_of(to)
    assert [(row["key"], row["size"], row["tier"]) for row in rows] == [
        (f"{number:02}", number, "high-volume" if number <= 3 else "long-term") for number in range(OBJECTS)]  # fmt: skip
    assert done.counts == ObjectCounts(OBJECTS, 4, 8, 0, 0, 0, sum(range(OBJECTS)))
    told = json.loads((to / "manifest.json").read_text())
    assert told["ended"] is not None and [each["rows"] for each in told["files"]] == [5, 5, 2]
    assert all(told["began"] <= row["read"].isoformat(timespec="milliseconds") <= told["ended"] for row in rows), "no snapshot, but bounded"
    footer = json.loads(pq.read_metadata(to / "part-000001.parquet").metadata[b"tiered.export"])
    assert footer["export"] == told["export"] and footer["began"] <= footer["ended"] <= told["ended"]
    with pytest.raises(ConfigurationError, match="holds an export already: give another directory"):
        export(settings, to)


def test_a_prefix_and_no_blobs_are_kept_by_an_export_that_goes_on(settings: Settings, tmp_path: Path) -> None:
    unfinished = interrupted(settings, tmp_path / "table")
    other = filled(tmp_path / "other")
    for which, how, said in (
        (settings, {"prefix": "media"}, "prefix of paths was none, and is media now"),
        (settings, {"blobs": False}, "blobs was asked for, and is not asked for now"), (other, {}, "directory was "),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match=said):
            export(which, tmp_path / "table", **how)
    assert len(list(unfinished.iterdir())) == 3
    one = export(settings, tmp_path / "one", prefix="media/org.17/objects/1", blobs=False)
    counts = export(settings, tmp_path / "asked", prefix="media/org.17/objects/1").counts
    assert one.counts == counts and counts.large == 2 and counts.bytes > 0, "the rows tell what the blobs would"
    assert [row["key"] for row in rows_of(tmp_path / "one")] == ["10", "11"]
    none = export(settings, tmp_path / "none", prefix="media/org.1")
    assert none.counts.objects == 0 and rows_of(tmp_path / "none") == []


@pytest.mark.parametrize(("harm", "kind", "said"), [
    (lambda here: os.truncate(here / "part-000001.parquet", 900), CorruptRecordError, "part-000001.parquet cannot be used, because it is"),
    (lambda here: (here / "part-000000.parquet").unlink(), CorruptRecordError, "a part before it is not there"),
    (lambda here: (here / "manifest.json").write_text("{}"), CorruptRecordError, "is no manifest of an export"),
    (lambda here: (here / "manifest.json").unlink(), ConfigurationError, "holds part-000000.parquet and no manifest.json"),
    (lambda here: [(here / name).touch() for name in ("_mine.tmp", "notes.txt")], ConfigurationError,
     "holds notes.txt, which is of no export"),
    (lambda here: rewrite(here, "version", 99), ConfigurationError, "in version 99, and this one reads version 1: install a newer tiered"),
    (lambda here: later(here / "part-000000.parquet"), ConfigurationError,
     "part-000000.parquet, in version 2, and this one reads version 1: install a newer tiered"),
    (lambda here: rewrite(here, "export", "00"), CorruptRecordError, "it is of another export"),
    (lambda here: rewrite(here, "began", 5), CorruptRecordError, "is no manifest of an export"),
])  # fmt: skip
def test_what_is_read_back_is_checked(
    settings: Settings, tmp_path: Path, harm: Callable[[Path], object], kind: type[Exception], said: str
) -> None:
    here = interrupted(settings, tmp_path / "table")
    harm(here)
    before = sorted(here.iterdir())
    with pytest.raises(kind, match=said):
        export(settings, tmp_path / "table")
    assert sorted(here.iterdir()) == before and not (tmp_path / "table").exists()


def rewrite(here: Path, name: str, value: object) -> None:
    told = json.loads((here / "manifest.json").read_text())
    (here / "manifest.json").write_text(json.dumps({**told, name: value}))


def later(part: Path) -> None:
    table, footer = pq.read_table(part), json.loads(pq.read_metadata(part).metadata[b"tiered.export"])
    with pq.ParquetWriter(part, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"tiered.export": json.dumps({**footer, "version": 2})})


def test_a_place_that_is_none_is_refused_before_anything_is_written(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "store")
    (tmp_path / "roomy").mkdir()
    (tmp_path / "elsewhere").symlink_to(tmp_path / "roomy")
    before = sorted(tmp_path.rglob("*"))
    for to, said in (
        (tmp_path / "file", "is a file, or a directory that is not empty"), (tmp_path / "mine", "that is not empty"),
        (tmp_path / "file/table", "a file is in the way"), (tmp_path / "store/table", "is in the store"),
        (tmp_path / "link/table", "is in the store"), (tmp_path / "elsewhere", "is a symbolic link"), ("", "the export is empty"),
        ("gs://bucket/table", "is not on this machine"), ("s3://bucket.invalid/table", "is not on this machine"),
        ("sftp://host/table", "is not on this machine"),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match=said):
            export(settings, to)
    with pytest.raises(ConfigurationError, match="there is no store in"):
        export(Settings(directory=tmp_path / "nowhere"), tmp_path / "table")
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "empty").mkdir()
    assert export(settings, tmp_path / "empty").counts.objects == OBJECTS, "mktemp makes such a directory"


def test_query_of_the_page_tells_the_numbers_of_each_night_and_their_growth(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    duckdb = pytest.importorskip("duckdb")
    _, _, page = (ROOT / "docs/audit.md").read_text("utf-8").partition("### Numbers of each night\n")
    query = page.partition("```sql\n")[2].partition("```")[0]
    export(settings, tmp_path / "tables/day=2026-11-29")
    anyio.run(store_one, settings, ObjectId("media", (("org", "17"),), "new"), b"x" * 100)
    anyio.run(store_one, settings, ObjectId("other", (), "new"), b"x")
    export(settings, tmp_path / "tables/day=2026-11-30")
    interrupted(settings, tmp_path / "tables/day=2026-12-01")
    monkeypatch.chdir(tmp_path)
    told = [(str(day), *rest) for day, *rest in duckdb.connect().execute(query).fetchall()]
    assert told == [
        ("2026-11-29", "media", "17", OBJECTS, 66, None), ("2026-11-30", "media", "17", OBJECTS + 1, 166, 100),
        ("2026-11-30", "other", None, 1, 1, None),
    ]  # fmt: skip


def test_only_one_process_exports_to_a_place(settings: Settings, tmp_path: Path) -> None:
    here = interrupted(settings, tmp_path / "table")
    held = os.open(here, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(ConfigurationError, match="another process exports to"):
        export(settings, tmp_path / "table")
    os.close(held)
    assert export(settings, tmp_path / "table").counts.objects == OBJECTS


def test_a_full_and_a_read_only_disk_are_one_sentence_and_nothing_half(settings: Settings, disk: Path, mount: Mount) -> None:
    (to := disk / "out").mkdir()
    here = interrupted(settings, to / "table")
    filler = fill(disk)
    with pytest.raises(UnavailableError, match="cannot be written: the disk is full; free space and run it again"):
        export(settings, to / "table")
    assert sorted(path.name for path in here.iterdir()) == ["manifest.json", "part-000000.parquet", "part-000001.parquet"]
    filler.unlink()
    mount(disk, "-o", "remount,ro")
    with pytest.raises(ConfigurationError, match="it is read-only"):
        export(settings, to / "table")
    mount(disk, "-o", "remount,rw")
    assert export(settings, to / "table").counts.objects == OBJECTS


def test_the_command_tells_damage_by_its_exit_code_and_the_table_is_whole(tmp_path: Path) -> None:
    filled(tmp_path / "store")
    tiered = Command(tmp_path)
    tiered("mv", "media/org.17/objects/11", "media/org.18/objects/renamed")
    with closing(sqlite3.connect(tmp_path / "store/tiered.db")) as database:
        database.execute("UPDATE rows SET metadata = '{' WHERE path LIKE '%/01'")
        database.execute("INSERT INTO rows (path, payload, metadata) VALUES (x'6162', x'', x'7b7d')")
        database.commit()
    told = json.loads(tiered("export", "table", "--to", "table", "--json", code=6))
    assert told["counts"]["damaged"] == 2 and tiered.errors.startswith("tiered: 2 of them are damaged, or lost their blob")
    rows = {row["path"]: row for row in rows_of(tmp_path / "table")}
    assert {path for path, row in rows.items() if row["error"] is not None} == {"ab", "media/org.17/objects/01"}
    renamed = rows["media/org.18/objects/renamed"]
    assert renamed["size"] == 11 and renamed["scopes"] == [{"name": "org", "value": "18"}] and len(rows) == OBJECTS + 1
    assert "holds an export already" in (tiered("export", "table", "--to", "table", code=3) or tiered.errors)
