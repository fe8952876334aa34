"""`tiered export` and `tiered import`: what they print, and their exit codes."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.given.command_line import OBJECT, Command
from tests.given.exported_stores import payload_files

OTHER = "photos/objects/large"


@pytest.fixture
def stored(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    command("put", OBJECT, "-", stdin=b"small")
    command("put", OTHER, "-", "--ttl", "36h", stdin=b"large" * 500_000)
    return command


def to(stored: Command, *words: str, code: int = 0) -> str:
    """Runs a command on another store."""
    return stored("-d", "other", *words, code=code, store=False)


def test_all_objects_leave_and_come(stored: Command) -> None:
    said = stored("export", "objects", "--to", "out")
    assert said == "complete: 2 objects with 2,500,005 bytes, of which 2 were read now\n"
    assert json.loads(stored("export", "objects", "--to", "out", "--json")) == {
        "exported": 2, "vanished": 0, "failed": 0, "changed": 0, "bytes": 2_500_005, "fetched": 0, "mended": 0,
        "complete": True, "left_out": 0,
    }  # fmt: skip
    assert stored("export", "verify", "out", store=False) == (
        "complete: 2 files with 2,500,005 bytes are as the manifest says, 0 are not\n")  # fmt: skip
    assert to(stored, "import", "out", "--dry-run", code=3) == "", "a dry run makes no store"
    *lines, last = to(stored, "import", "out").splitlines()
    assert sorted(lines) == [f"copied  {OTHER}  2500000 bytes", f"copied  {OBJECT}  5 bytes"]
    assert last == "2 copied (2,500,005 bytes), 0 unchanged, 0 deleted, 0 skipped, 0 failed"
    assert to(stored, "import", "out").startswith("nothing to do: 0 copied (0 bytes), 2 unchanged")
    assert to(stored, "get", OBJECT) == "small"
    told = [json.loads(stored("head", OTHER, "--json")), json.loads(to(stored, "head", OTHER, "--json"))]
    assert told[0].pop("revision") != told[1].pop("revision") and told[0] == told[1]


@pytest.mark.parametrize("what", ["objects", "table"])
def test_an_export_of_nothing_says_that_the_prefix_has_none(stored: Command, what: str) -> None:
    assert "0 objects with 0 bytes" in stored("export", what, "--prefix", "phtoos", "--to", "out")
    assert "no object is below phtoos: look how it is spelled\n" in stored.errors
    assert "2 objects" in stored("export", what, "--prefix", "photos", "--to", "some") and "no object" not in stored.errors


def test_an_export_is_brought_up_to_date(stored: Command) -> None:
    stored("export", "objects", "--to", "out")
    stored("put", OBJECT, "-", stdin=b"other")
    assert "of which 0 were read now" in stored("export", "objects", "--to", "out")
    assert "of which 1 were read now" in stored("export", "objects", "--to", "out", "--update")
    assert stored("export", "verify", "out").startswith("complete: 2 files")


def test_what_is_wrong_is_named_and_the_exit_code_is_6(stored: Command, tmp_path: Path) -> None:
    stored("export", "objects", "--to", "out")
    [damaged] = [path for path in payload_files(tmp_path / "out") if path.stat().st_size == 5]
    damaged.write_bytes(b"smell")
    assert stored("export", "verify", "out", code=6).startswith("NOT COMPLETE: 1 files with 2,500,000 bytes")
    assert f"{OBJECT}: its file payloads/" in stored.errors and "has other bytes than were exported" in stored.errors
    to(stored, "import", "out", code=6)
    assert "has other bytes than were exported" in stored.errors
    assert "1 were mended" in stored("export", "objects", "--to", "out", "--verify")
    stored("export", "verify", "out")
    for blob in (tmp_path / "store/blobs").rglob("*"):
        if blob.is_file():
            blob.unlink()
    assert stored("export", "objects", "--to", "again", code=6).startswith("NOT COMPLETE: 1 objects with 5 bytes")
    assert f"{OTHER} was not exported" in stored.errors and "the same command tries again" in stored.errors
    to(stored, "import", "again", code=3)
    assert "is not complete: 1 objects failed" in stored.errors
    to(stored, "import", "again", "--incomplete")


def test_rows_that_are_no_objects_are_told_and_the_exit_code_is_6(stored: Command, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "store/tiered.db")) as database:
        database.execute("UPDATE rows SET path = 'stray' WHERE path = ?", (OBJECT,))
        database.commit()
    for words in (["objects", "--to", "out"], ["verify", "out"]):
        assert stored("export", *words, code=6).startswith("complete: 1 ")
        assert "not in it: 1 rows of the store that are no objects; the log of `export objects` names them" in stored.errors
    stored("export", "objects", "--to", "again", code=6)
    assert "'stray' is not an object id" in stored.errors


def test_files_come_below_a_prefix_and_nothing_is_overwritten_unasked(stored: Command, tmp_path: Path) -> None:
    (tmp_path / "files/2026").mkdir(parents=True)
    (tmp_path / "files/2026/cat.jpg").write_bytes(b"a cat")
    stored("import", "files", "--into", "photos/org.17/objects", code=7)
    assert "another object is there, and was not overwritten" in stored.errors
    into = ["import", "files", "--into", "photos/org.17/objects"]
    assert "would copy  2026/cat.jpg  5 bytes" in stored(*into, "--overwrite", "--dry-run")
    assert stored("get", OBJECT) == "small"
    assert "skipped  2026/cat.jpg: another object is there" in stored(*into, "--skip-existing")
    stored("import", "files", "--into", "photos/org.17/objects", "--overwrite")
    assert stored("get", OBJECT) == "a cat"
    pattern = ["import", "files", "--match", "{year}/{rest}", "--into", "photos/year.{year}/objects/{rest}"]
    assert stored(*pattern, "--dry-run").startswith("would copy  2026/cat.jpg -> photos/year.2026/objects/cat.jpg  5 bytes\n")
    told = json.loads(stored(*pattern, "--json").splitlines()[0])
    assert (told["path"], told["object"]) == ("2026/cat.jpg", "photos/year.2026/objects/cat.jpg")
    assert stored("get", "photos/year.2026/objects/cat.jpg") == "a cat"
    for words, says in (
        (["--match", "{a}"], "--match is of --into"), (["--into", "p/objects/{a}"], "say with --match which part of a name each is"),
        (["--into", "photos"], "names no objects"), (["--overwrite", "--skip-existing"], "exclude each other"), ([], "holds no export"),
    ):  # fmt: skip
        stored("import", "files", *words, code=3)
        assert says in stored.errors
