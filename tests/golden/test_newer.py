"""What software of a later version has stored: each reader and writer refuses it by name, and changes nothing.

`INVENTORY` has each stored thing of docs/format.md that has a version of its own: how a later version of it looks, and
which commands and calls meet it. The entry of a change is elsewhere: nobody refuses it, it is left to newer software
(`tests/recovery/test_loop.py`, `tiered/testing/contracts/changelog.py`).
"""

from __future__ import annotations

import io
import json
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import anyio
import pyarrow.parquet as pq
import pytest

from changelog.base.errors import ConfigurationError
from recovery.feed.avro import ContainerReader, ContainerWriter
from recovery.feed.sinks.sink import MARK
from tests.given.command_line import Command
from tests.golden.clock import HOUR_S, GoldenRuntime
from tests.golden.make import fed_settings, opened, publish
from tests.golden.stored import move, read_expected, unpack, versions
from tiered.postgres import open as postgres
from tiered.postgres.schema import VERSION as SCHEMA
from tiered.protocol.owners import conflict, decode_markers, encode_marker, marker_name
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
        sql(here / "store", "UPDATE notes SET value = ? WHERE name = ?", json.dumps({"v": version} | json.loads(raw) | {"v": version}).encode(), key)

    return change


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


def findings(here: Path) -> None:
    path = here / "findings" / "run-000000.avro"
    with closing(ContainerReader(io.BytesIO(path.read_bytes()))) as reader:
        messages = [message for message, _ in reader]
        schema, metadata = reader.schema, reader.metadata
    with path.open("wb") as file:
        writer = ContainerWriter(file, schema, metadata={**metadata, "tiered.feed": "2"})
        for message in messages:
            writer.write(message)
        writer.flush()


@dataclass(frozen=True)
class Newer:
    """One stored thing. `golden`: the store that has it. `later`: makes it one of a later version.

    `commands`: which meet it, with STORE, RUN and the like as the golden directory has them. `says`: what each of them
    must say. `code`: with which exit codes they end.
    """

    thing: str
    golden: str
    later: Callable[[Path], None]
    commands: tuple[str, ...]
    says: str
    code: range = range(1, 8)


GET, PUT, DELETE = "get photos/org.17/project.-42/objects/two", "put photos/org.17/project.-42/objects/two -", "rm photos/org.17/project.-42/objects/two"
READERS = ("ls photos", GET, "stat photos/org.17/project.-42/objects/two")
AUDIT = "audit start --to HERE/new --grace 0s"

INVENTORY = [
    Newer("database", "audited", database, (*READERS, PUT, DELETE, "recover --once", "status", "check", AUDIT, "log list"),
          "has format 3 and this software knows up to 2; upgrade this software"),
    Newer("blob", "audited", blob, (GET, "stat photos/org.17/project.-42/objects/two"),
          "newer software wrote it, in version 3, and this one reads versions up to 2: install a newer tiered"),
    Newer("manifest of a run", "audited", field("runs/1/manifest.json", "version", 3),
          ("audit report HERE/runs/1", "audit delete HERE/runs/1 --at-most 100", "audit restore HERE/runs/1"),
          "manifest.json is of version 3, and this software reads 2: update it to tiered 0.1.0 or later"),
    Newer("findings of a run", "audited", footer("runs/2/findings/range-000000.parquet", 4),
          ("audit start --to HERE/runs/2",), "in version 4, and this one reads schemas 2 and 3: install a newer tiered"),
    Newer("order of a deletion", "audited", field("runs/1/deleted/deletion.json", "version", 3),
          ("audit delete HERE/runs/1 --at-most 100", "audit restore HERE/runs/1"),
          "deletion.json, in version 3, and this one reads versions 1 and 2: install a newer tiered"),
    Newer("journal of a deletion", "audited", footer("runs/1/deleted/range-000000.parquet", 3),
          ("audit restore HERE/runs/1",), "in version 3, and this one reads versions 1 and 2: install a newer tiered"),
    Newer("note of audits", "audited", note("audit/last", 3), ("status",), "newer software wrote the note audit/last"),
    Newer("statistics", "audited", note("statistics/audit", 2), ("statistics",), "written by newer software (version 2"),
]  # fmt: skip


def bytes_of(directory: Path) -> dict[str, bytes]:
    """All that is stored, and not how SQLite keeps it: what a reader opens may be copied from its log into its file."""
    files = {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file() and not path.name.startswith(DATABASE_NAME)}
    with closing(sqlite3.connect(directory / "store" / DATABASE_NAME)) as stored:
        return files | {"database": "\n".join(stored.iterdump()).encode(), "version": repr(stored.execute("PRAGMA user_version").fetchone()).encode()}


def meets(newer: Newer, line: str, here: Path, tmp_path: Path) -> str:
    tiered = Command(tmp_path)
    tiered.store = here / "store"
    out = tiered(*line.replace("HERE", str(here)).split(), stdin=b"x" * 300, code=range(8))
    return f"exit code {tiered.ended}: {out} {tiered.errors}"


@pytest.mark.parametrize("newer", INVENTORY, ids=lambda newer: newer.thing)
def test_what_newer_software_has_stored_is_refused_and_stays_as_it_is(newer: Newer, tmp_path: Path) -> None:
    version = versions()[-1]
    here = unpack(version, newer.golden, tmp_path)
    move(here, read_expected(version, newer.golden)["made_in"])
    newer.later(here)
    before = bytes_of(here)
    for line in newer.commands:
        said = meets(newer, line, here, tmp_path)
        assert newer.says in said and not said.startswith("exit code 0"), f"{line}: {said}"
        assert bytes_of(here) == before, f"{line} has changed something"
