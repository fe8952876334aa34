"""Golden stores stay what they were: a changed byte is told, and a release is made once."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from base64 import b64decode
from pathlib import Path
from typing import Any

import anyio
import pytest

from emulators.postgres.server import PostgresServer
from tests.golden import make
from tests.golden.stored import HERE, SUMS, GoldenError, checked, read_lines, unpack, versions, writing
from tiered.buckets.blob_entries import PACKED

BYTES_MAX = 300 * 1024
"""Of the golden stores of one release: they are in every clone for ever."""


@pytest.mark.parametrize("version", versions())
def test_golden_stores_are_the_files_that_were_made_and_small(version: str) -> None:
    directory = checked(version)
    assert sum(path.stat().st_size for path in directory.iterdir()) < BYTES_MAX


def test_the_first_release_has_golden_stores() -> None:
    assert "0.1.0" in versions()


@pytest.mark.parametrize("damage", ["changed", "missing", "added"])
def test_a_golden_store_that_was_changed_is_not_believed(damage: str, tmp_path: Path) -> None:
    shutil.copytree(HERE / "0.1.0", tmp_path / "0.1.0")
    path = tmp_path / "0.1.0" / "embedded.tar.xz"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    match damage:
        case "changed":
            path.write_bytes(raw)
        case "missing":
            path.unlink()
        case _:
            path.with_name("more.json").write_bytes(b"{}")
    with pytest.raises(GoldenError, match=re.escape("more.json" if damage == "added" else str(path))):
        checked("0.1.0", tmp_path)


def test_a_release_is_made_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    before = (HERE / "0.1.0" / SUMS).read_bytes()
    monkeypatch.setattr("sys.argv", ["make", "0.1.0"])
    assert make.main() == 1 and "made once" in capsys.readouterr().err
    assert (HERE / "0.1.0" / SUMS).read_bytes() == before


def test_making_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(into: Path) -> None:
        (into / "embedded.tar.xz").write_bytes(b"half")
        raise OSError("full")

    with pytest.raises(OSError, match="full"), writing(tmp_path / "9.9") as into:
        fail(into)
    assert not list(tmp_path.iterdir())


def undescribed(entry: bytes) -> bytes:
    """An entry without the metadata of an open upload. Since then, it keeps all of them."""
    told = json.loads(entry)
    if told.get("assembling") is not None:
        opened = json.loads(told["assembling"])
        told["assembling"] = {key: value for key, value in opened.items() if key not in ("metadata", "whole")}
    return json.dumps(told).encode()


UNDESCRIBED = "UPDATE rows SET metadata = NULL, crc = NULL WHERE target IS NOT NULL", "UPDATE changes SET value = undescribed(value)"
"""Since then, a tombstone tells the metadata of its blob. Whoever reads may lack them."""


def line_undescribed(line: dict[str, Any]) -> dict[str, Any]:
    """The same for a line."""
    if "cells" in line:
        cells = [cell for cell in line["cells"] if cell[1] != "d"]
        if line["row"].startswith("~changelog/"):
            cells = [[*cell[:3], undescribed(b64decode(cell[3])).decode() if cell[1] == "c" else cell[3]] for cell in cells]
        return {**line, "cells": cells}
    if line.get("table") == "rows" and line["row"]["target"] is not None:
        return {**line, "row": {**line["row"], "metadata": None, "crc": None}}
    if line.get("table") == "entries":
        return {**line, "row": {**line["row"], "value": undescribed(bytes.fromhex(line["row"]["value"][2:])).decode()}}
    return line


def logical(directory: Path) -> dict[str, object]:
    """All that is in an embedded store, but for how SQLite has arranged it. Files are compared byte by byte.

    What is compressed is left out: another version of that library may make other bytes.
    """
    database = sqlite3.connect(directory / "tiered.db")
    database.create_function("undescribed", 1, undescribed)
    for statement in UNDESCRIBED:
        database.execute(statement)
    tables = [name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]
    stored: dict[str, object] = {name: sorted(map(repr, database.execute(f"SELECT * FROM {name}"))) for name in tables}
    stored["schema"] = sorted(map(repr, database.execute("SELECT type, name, sql FROM sqlite_schema")))
    stored["version"] = database.execute("PRAGMA user_version").fetchone()
    database.close()
    files = [path for place in ("blobs", "uploads") for path in (directory / place).rglob("*") if path.is_file()]
    return stored | {str(path.relative_to(directory)): path.read_bytes() for path in files if "compressed" not in path.name}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what the dead had open, nobody has closed
def test_what_this_software_writes_is_what_the_newest_release_with_golden_stores_wrote(tmp_path: Path) -> None:
    """If this fails, a stored format has changed: docs/format.md says what to do."""
    version = versions()[-1]
    anyio.run(make.embedded, tmp_path / "now")
    now, then = logical(tmp_path / "now"), logical(unpack(version, "embedded", tmp_path))
    assert now.keys() == then.keys()
    for name in now:
        assert now[name] == then[name], f"{name} is not what {version} wrote"


def without_name(told: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in told.items() if key != "x-snme-tiered-name"}


def comparable(lines: list[dict[str, Any]]) -> list[str]:
    """Without what is compressed, payloads and headers: another version of a library may make other bytes.

    And without the text of functions, and the replica identity: `tiered provision` makes them anew, and they are not
    stored for anybody who reads. Nor does it matter whether a function of the server is named with its schema. In S3 a
    blob tells the name it was given since then, which who reads may lack. Rows and open uploads tell metadata since
    then, too, and a function is there that writes them.
    """
    lines = [{**line, "ddl": line["ddl"].partition(" AS $$")[0].replace("pg_catalog.", "")} if "ddl" in line else line for line in lines]
    lines = [line for line in lines if not re.search(r"REPLICA IDENTITY|\.renew_row\(", line.get("ddl", ""))]
    lines = [line_undescribed(json.loads(json.dumps(line), object_hook=without_name)) for line in lines]
    texts = [json.dumps(line, sort_keys=True) for line in lines if "and compressed/" not in str(line.get("blob") or line.get("object"))]
    return [text for text in texts if PACKED not in text]


@pytest.mark.parametrize("form", ["services", "postgres"])
def test_what_this_software_writes_into_services_is_what_that_release_wrote(form: str, request: pytest.FixtureRequest) -> None:
    """If this fails, a stored format has changed: docs/format.md says what to do."""
    version = versions()[-1]
    if form == "services":
        _, lines = anyio.run(make.on_services)
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        _, lines = anyio.run(make.on_postgres, server)
    now, then = comparable(lines), comparable(read_lines(version, form))
    assert len(now) > 50
    for ours, theirs in zip(now, then, strict=True):
        assert ours == theirs, f"{form} is not what {version} wrote"
