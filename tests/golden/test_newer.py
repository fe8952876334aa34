"""What software of a later version has stored: each reader and writer refuses it by name, and changes nothing.

`INVENTORY` has each stored thing of docs/format.md that has a version of its own: how a later version of it looks, and
which commands and calls meet it. The entry of a change is elsewhere: nobody refuses it, it is left to newer software
(`tests/recovery/test_loop.py`, `tiered/testing/contracts/changelog.py`).
"""

from __future__ import annotations

import hashlib
import io
import json
import sqlite3
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import anyio
import pyarrow.parquet as pq
import pytest

from recovery.feed.sinks.sink import MARK
from tests.given.command_line import Command
from tests.given.waiting import becomes
from tests.golden.stored import unpacked, versions
from tiered import ConfigurationError, ObjectId, OutcomeUnknownError, Settings, open_storage
from tiered.settings import DATABASE_NAME


def sql(store: Path, statement: str, *values: object) -> None:
    database = sqlite3.connect(store / DATABASE_NAME)
    with closing(database), database:
        assert database.execute(statement, values).rowcount != 0, f"nothing to change: {statement}"


def database(here: Path) -> None:
    sql(here / "store", "PRAGMA user_version=3")


def note(name: str, version: int) -> Callable[[Path], None]:
    """The same note, of this version."""
    def change(here: Path) -> None:
        with closing(sqlite3.connect(here / "store" / DATABASE_NAME)) as stored:
            [(key, raw)] = stored.execute("SELECT name, value FROM notes WHERE name GLOB ?", (name,)).fetchall()
        later = json.dumps({**json.loads(raw), "v": version}).encode()
        sql(here / "store", "UPDATE notes SET value = ? WHERE name = ?", later, key)

    return change


def added(name: str, **fields: object) -> Callable[[Path], None]:
    """A note that the golden store does not have."""
    return lambda here: sql(here / "store", "INSERT INTO notes (name, value) VALUES (?, ?)", name, json.dumps(fields).encode())


def blob(here: Path) -> None:
    """The footer of a blob's file: `tiered`, then two bytes of version, 44 bytes before its end."""
    for path in (here / "store" / "blobs").rglob("*"):
        if path.is_file():
            raw = bytearray(path.read_bytes())
            assert raw[-44:-36] == b"tiered\x00\x02"
            struct.pack_into(">H", raw, len(raw) - 38, 3)
            path.write_bytes(raw)


def field(name: str, key: str, value: int) -> Callable[[Path], None]:
    def change(here: Path) -> None:
        text = json.loads((here / name).read_text("utf-8"))
        (here / name).write_text(json.dumps({**text, key: value}), "utf-8")

    return change


def footer(name: str, version: int) -> Callable[[Path], None]:
    def change(here: Path) -> None:
        table = pq.read_table(io.BytesIO((here / name).read_bytes()))
        metadata = {**(table.schema.metadata or {}), b"tiered.schema": str(version).encode()}
        pq.write_table(table.replace_schema_metadata(metadata), here / name)

    return change


def exported_rows(here: Path) -> None:
    """The footer of the part of an export, and its checksum."""
    part, manifest = here / "export/manifest-2/part-000000.parquet", here / "export/manifest.json"
    table, before = pq.read_table(part), hashlib.sha256(part.read_bytes()).hexdigest()
    told = {**json.loads(table.schema.metadata[b"tiered.export"]), "version": 2}
    pq.write_table(table.replace_schema_metadata({b"tiered.export": json.dumps(told).encode()}), part)
    manifest.write_text(manifest.read_text("utf-8").replace(before, hashlib.sha256(part.read_bytes()).hexdigest()), "utf-8")


@dataclass(frozen=True)
class Newer:
    """One stored thing. `golden`: the store that has it. `later`: makes it one of a later version.

    `commands`: which meet it, with STORE, RUN and the like as the golden directory has them. `says`: what each of them
    must say. `itself`: the pattern of the notes that stay, with all files. The writer of a feed has its progress in the
    log, and that goes on until a place or a position turns out to be newer. None: nothing at all changes.
    """

    thing: str
    golden: str
    later: Callable[[Path], None]
    commands: tuple[str, ...]
    says: str
    itself: str | None = None


OBJECT = "photos/org.17/project.-42/objects/two"
GET, HEAD, PUT, DELETE = f"get {OBJECT}", f"head {OBJECT}", f"put {OBJECT} -", f"rm {OBJECT}"
AUDIT = "audit run --engine local --parallel 1 --to HERE/new"
FEED = "feed run --once --to HERE/feed"
DELETION, RETURN = "audit delete HERE/runs/1 --class orphan --at-most 100 --yes", "audit restore HERE/runs/1 --yes"
EXPORT = ("export objects --to HERE/export", "export objects --to HERE/export --update", "export verify HERE/export",
          "import HERE/export --incomplete", "import HERE/export --incomplete --overwrite")  # fmt: skip

INVENTORY = [
    Newer("database", "audited", database, ("ls photos", GET, HEAD, PUT, DELETE, "recover --once", "status", "check", AUDIT, "log list"),
          "has format 3 and this software knows up to 2: install a newer tiered"),
    Newer("blob", "audited", blob, (GET, HEAD),
          "newer software wrote it, in version 3, and this one reads versions up to 2: install a newer tiered"),
    Newer("manifest of a run", "audited", field("runs/1/manifest.json", "version", 3),
          (DELETION, RETURN),
          "manifest.json is of version 3, and this software reads 2: update it to tiered 0.1.0 or later"),
    Newer("findings of a run", "audited", footer("runs/2/findings/range-000000.parquet", 4),
          ("audit run --engine local --parallel 1 --to HERE/runs/2",),
          "in version 4, and this one reads schemas 2 and 3: install a newer tiered"),
    Newer("plan of a deletion", "audited", field("runs/1/deleted/deletion.json", "version", 3),
          (DELETION, RETURN),
          "deletion.json, in version 3, and this one reads versions 1 and 2: install a newer tiered"),
    Newer("journal of a deletion", "audited", footer("runs/1/deleted/range-000000.parquet", 3),
          (RETURN,), "in version 3, and this one reads versions 1 and 2: install a newer tiered"),
    Newer("beginning of an export", "exported", field("export/begun.json", "version", 2), EXPORT[:1],
          "begun.json is of version 2, and this software knows 1: install tiered 0.1.0 or newer"),
    Newer("end of an export", "exported", field("export/manifest.json", "version", 2), EXPORT,
          "manifest.json is of version 2, and this software knows 1: install tiered 0.1.0 or newer"),
    Newer("rows of an export", "exported", exported_rows, EXPORT,
          "part-000000.parquet is of version 2, and this software knows 1: install tiered"),
    Newer("checkpoint of the feed", "fed", note("feed", 2),
          (FEED, f"{FEED} --new-generation", "feed status"), "newer software wrote the note feed, in version 2"),
    Newer("id of the feed", "fed", note("feed-id", 2), (FEED,), "newer software wrote the note feed-id, in version 2", "feed-id"),
    Newer("position of a sink", "fed", note("feed-sink-*", 2), (FEED,), "newer software wrote the note feed-sink-", "feed-sink-*"),
    Newer("mark of a place", "fed", field(f"feed/{MARK}", "v", 2), (FEED,),
          "_feed.json, in version 2, and this one reads version 1", "feed-id"),
    Newer("note of audits", "audited", note("audit/last", 3), ("status",), "newer software wrote the note audit/last"),
    Newer("note of what was found lost", "audited", added("reads/dangling", v=2, listed=[], unlisted_ms=None, more=1), ("status",),
          "newer software wrote the note reads/dangling, in version 2"),
    Newer("note of lost objects that a reader meets", "audited", added("reads/dangling", v=2, listed=[], unlisted_ms=None, more=1),
          ("get photos/org.17/project.-42/objects/lost",), "its data is lost"),
    Newer("statistics", "audited", note("statistics/audit", 2), ("status",), "written by newer software (version 2"),
]  # fmt: skip


def bytes_of(directory: Path, notes: str | None) -> dict[str, str | bytes]:
    """All that is stored, and not how SQLite keeps it: what a reader opens may be copied from its log into its file.

    `notes`: of the database only these notes; None: all of it.
    """
    files = {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file() and not path.name.startswith(DATABASE_NAME)}
    with closing(sqlite3.connect(directory / "store" / DATABASE_NAME)) as stored:
        if notes is not None:
            return files | {"notes": repr(stored.execute("SELECT * FROM notes WHERE name GLOB ?", (notes,)).fetchall())}
        return files | {"database": "\n".join(stored.iterdump()), "format": repr([*stored.execute("PRAGMA user_version")])}


def meets(newer: Newer, line: str, here: Path, tmp_path: Path) -> str:
    tiered = Command(tmp_path)
    tiered.store = here / "store"
    tiered.environment["TIERED_FEED__ENABLED"] = "true" if newer.golden == "fed" else "false"
    out = tiered(*line.replace("HERE", str(here)).split(), stdin=b"x" * 300, code=range(8))
    return f"exit code {tiered.ended}: {out} {tiered.errors}"


@pytest.mark.parametrize("newer", INVENTORY, ids=lambda newer: newer.thing)
def test_what_newer_software_has_stored_is_refused_and_stays_as_it_is(newer: Newer, tmp_path: Path) -> None:
    here, _ = unpacked(versions()[-1], newer.golden, tmp_path)
    newer.later(here)
    before = bytes_of(here, newer.itself)
    for line in newer.commands:
        said = meets(newer, line, here, tmp_path)
        assert newer.says in said and not said.startswith("exit code 0"), f"{line}: {said}"
        assert bytes_of(here, newer.itself) == before, f"{line} has changed something"


def test_a_put_that_is_under_way_when_newer_software_takes_the_store_over_is_not_told_ok(tmp_path: Path) -> None:
    """What follows belongs to newer software: it finds the entry, and all else as it was."""
    settings, here = Settings(directory=tmp_path / "store", inline_bytes_max=1), tmp_path
    object_id = ObjectId.create("photos", "cat")

    async def chunks() -> AsyncIterator[bytes]:
        yield b"first"
        await becomes(is_recorded)
        sql(here / "store", "PRAGMA user_version=3")
        yield b"last"

    async def entries() -> int:
        with closing(sqlite3.connect(here / "store" / DATABASE_NAME)) as stored:
            return int(stored.execute("SELECT count(*) FROM changes").fetchone()[0])

    async def is_recorded() -> bool:
        return await entries() == 1

    async def is_forgotten() -> bool:
        return await entries() == 0

    async def run() -> None:
        async with open_storage(settings) as storage:
            await storage.put(object_id, b"before")
            await becomes(is_forgotten)
            with pytest.raises(OutcomeUnknownError) as told:
                await storage.put(object_id, chunks())
            assert told.value.logged
            before = bytes_of(here, None)
            for call in (storage.get(object_id), storage.delete(object_id), storage.put(object_id, b"x"), storage.outcome(told.value)):
                with pytest.raises(ConfigurationError, match="install a newer tiered"):
                    await call
        assert bytes_of(here, None) == before and await is_recorded()
        sql(here / "store", "PRAGMA user_version=2")
        async with open_storage(settings) as storage:
            found = await storage.get(object_id)
            assert found is not None and await found.read() == b"before"

    anyio.run(run)
