"""`tiered check` and `tiered provision` of embedded stores, and of a Bigtable and a GCS that are not there."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from changelog.base.errors import ConfigurationError
from changelog.sqlite.checkpoints import has_reset_bug
from recovery.cli.deployment import show_findings, summed
from tests.given.command_line import Command
from tiered.provision.findings import Notice, NoticeKind, ok, problem

NOWHERE = {"BIGTABLE_EMULATOR_HOST": "127.0.0.1:1", "STORAGE_EMULATOR_HOST": "http://127.0.0.1:1"}
PRODUCTION = "changelog: bigtable\nbigtable: {project: project, instance: i}\ngcs: {bucket: blobs}\n"
OF_SQLITE = "note" if has_reset_bug(sqlite3.sqlite_version_info) else "ok"
WITHOUT_GOOGLE = "import sys; sys.modules['google'] = None; from recovery.cli.main import main; main()"


@pytest.fixture
def tiered(tmp_path: Path) -> Command:
    (tmp_path / "production.yaml").write_text(PRODUCTION)
    command = Command(tmp_path, store=False)
    command.environment |= NOWHERE
    return command


@pytest.fixture
def stored(tiered: Command) -> Command:
    tiered("-d", "store", "put", "a/objects/k", "-", stdin=b"payload")
    return tiered


def test_a_store_that_is_well_is_said_to_be_so(stored: Command) -> None:
    lines = stored("-d", "store", "check").splitlines()
    [sqlite] = [line for line in lines if "SQLite 3" in line]
    lines.remove(sqlite)
    assert tuple(lines) == (
        f"ok      {stored.store}/tiered.db can be written, and SQLite finds it whole",
        "ok      all 1 rows in it match their checksums; blobs are verified when they are read",
        f"ok      {stored.store} can hold blobs",
    )
    assert sqlite.startswith(f"{OF_SQLITE:8}SQLite {sqlite3.sqlite_version} runs, which ")
    found = json.loads(stored("-d", "store", "check", "--json"))
    assert found["ok"] is True and [each["kind"] for each in found["findings"]] == ["ok", "ok", OF_SQLITE, "ok"]


def test_a_store_that_is_not_there_is_not_made(tiered: Command) -> None:
    tiered("-d", "store", "check", code=3)
    assert "there is no store in" in tiered.errors and not tiered.store.exists()


@pytest.mark.parametrize(("start", "stop"), [(4096, None), (2 * 4096 + 100, 3 * 4096)], ids=["unreadable", "contradicts-itself"])
def test_a_damaged_database_is_a_problem(stored: Command, start: int, stop: int | None) -> None:
    with closing(sqlite3.connect(stored.store / "tiered.db")) as connection, connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    connection.close()
    size = (stored.store / "tiered.db").stat().st_size
    with (stored.store / "tiered.db").open("r+b") as file:
        file.seek(start)
        file.write(b"\xff" * ((stop or size) - start))
    said = stored("-d", "store", "check", code=3)
    [problem, _, blobs] = said.splitlines()
    assert problem.startswith(f"problem {stored.store}/tiered.db is damaged: restore it from a backup (") and blobs.startswith("ok ")
    assert "must be mended" in stored.errors


def test_a_file_where_blobs_should_be_is_a_problem_and_the_database_is_looked_at_all_the_same(stored: Command) -> None:
    for part in ("blobs", "uploads"):
        for path in sorted((stored.store / part).rglob("*"), reverse=True):
            path.rmdir()
        (stored.store / part).rmdir()
        (stored.store / part).write_text("in the way")
    found = json.loads(stored("-d", "store", "check", "--json", code=3))
    assert [each["kind"] for each in found["findings"]] == ["ok", "ok", OF_SQLITE, "problem"] and found["ok"] is False
    assert "cannot hold blobs" in found["findings"][3]["sentence"]
    assert stored("-d", "store", "check", code=3).startswith("problem ") and stored("-d", "store", "check", code=3).count("problem ") == 1


def test_bit_rot_in_a_row_is_a_problem_that_names_the_object_and_is_not_read(stored: Command) -> None:
    stored("-d", "store", "put", "a/objects/well", "-", stdin=b"payload")
    with closing(sqlite3.connect(stored.store / "tiered.db")) as connection, connection:
        connection.execute("UPDATE rows SET payload = CAST('pbyload' AS BLOB) WHERE path = 'a/objects/k'")
    connection.close()
    problem = next(line for line in stored("-d", "store", "check", code=3).splitlines() if line.startswith("problem"))
    assert "a/objects/k" in problem and "does not match its checksum" in problem
    assert stored("-d", "store", "get", "a/objects/well") == "payload"
    stored("-d", "store", "get", "a/objects/k", code=6)
    assert "a/objects/k" in stored.errors and "checksum" in stored.errors
    stored("-d", "store", "put", "a/objects/k", "-", stdin=b"again")
    assert "all 2 rows in it match their checksums" in stored("-d", "store", "check")


@pytest.mark.parametrize("emptied", [True, False])
def test_a_lost_database_beside_blobs_is_refused_by_every_command_and_nothing_is_made_anew(stored: Command, emptied: bool) -> None:
    stored("-d", "store", "put", "a/objects/large", "-", stdin=bytes(2 << 20))
    for path in stored.store.glob("tiered.db*"):
        path.unlink()
    if emptied:
        (stored.store / "tiered.db").touch()
    commands = [("put", "a/objects/k", "-"), *([("check",), ("get", "a/objects/large"), ("ls",)] if emptied else [])]
    for command in commands:
        said = stored("-d", "store", *command, code=3) + stored.errors
        assert "restore the database from a backup, or move store/blobs away to begin anew" in said.replace(f"{stored.directory}/", "")
        assert not (stored.store / "tiered.db").exists() or (stored.store / "tiered.db").stat().st_size == 0
    for path in sorted((stored.store / "blobs").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    stored("-d", "store", "put", "a/objects/k", "-", stdin=b"anew")
    assert stored("-d", "store", "get", "a/objects/k") == "anew"


def test_a_store_without_a_changelog_gets_a_note(stored: Command) -> None:
    (stored.directory / "tiered.yaml").write_text("directory: store\nchangelog: noop\n")
    assert "\nnote    no changelog is kept" in f"\n{stored('-c', 'tiered.yaml', 'check')}"


def test_provisioning_an_embedded_store_says_that_nothing_is_needed_and_makes_nothing(tiered: Command) -> None:
    assert tiered("-d", "store", "provision") == f"ok      nothing is needed: the first put makes the directory {tiered.store}\n"
    assert not tiered.store.exists()


@pytest.mark.parametrize("command", [("check",), ("provision", "--dry-run")])
def test_where_nobody_listens_both_addresses_are_named_and_the_exit_code_is_3(tiered: Command, command: tuple[str, ...]) -> None:
    lines = tiered("-c", "production.yaml", *command, code=3).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "problem Bigtable does not answer at 127.0.0.1", "problem GCS does not answer at http",
    ]
    assert tiered.errors == "tiered: 2 of these must be mended, see: problem\n"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check", "provision"])
def test_without_the_extra_it_says_what_to_install(tiered: Command, command: str) -> None:
    assert tiered("-c", "production.yaml", command, code=3, python=("-c", WITHOUT_GOOGLE)) == ""
    assert "which is missing: pip install 'tiered[gcp]'" in tiered.errors and tiered.errors.count("\n") == 1


def test_an_index_without_a_row_was_whole(stored: Command) -> None:
    """SQLite's quick check compares no index with its table. A key that its index lacks is not found."""
    with closing(sqlite3.connect(stored.store / "tiered.db")) as connection, connection:
        connection.execute("PRAGMA writable_schema = 1")
        index = connection.execute("SELECT * FROM sqlite_schema WHERE name = 'rows_by_deadline'").fetchone()
        connection.execute("DELETE FROM sqlite_schema WHERE name = 'rows_by_deadline'")
    connection.close()
    with closing(sqlite3.connect(stored.store / "tiered.db")) as connection, connection:
        connection.execute("UPDATE rows SET deadline_ms = 1")
        connection.execute("PRAGMA writable_schema = 1")
        connection.execute("INSERT INTO sqlite_schema VALUES (?, ?, ?, ?, ?)", index)
    connection.close()
    [problem, *_] = stored("-d", "store", "check", code=3).splitlines()
    assert "missing from index rows_by_deadline" in problem


def test_blobs_that_are_not_mounted_were_lost_for_readers_and_made_anew_by_the_next_writer(stored: Command) -> None:
    stored("-d", "store", "put", "a/objects/large", "-", stdin=bytes(2 << 20))
    blobs, elsewhere = stored.store / "blobs", stored.directory / "elsewhere"
    blobs.rename(elsewhere)
    for command, code, says in (
        (("get", "a/objects/large"), 3, "store/blobs is gone: put it back, or mount it"),
        (("head", "a/objects/large"), 3, "store/blobs is gone: put it back, or mount it"),
        (("put", "a/objects/k", "-"), 3, "store/blobs is gone, and rows of the store name blobs in it: put it back, or mount it"),
        (("recover", "--once"), 3, "store/blobs is gone"),
        (("check",), 3, "store/blobs is gone"),
    ):
        said = stored("-d", "store", *command, code=code)
        assert says in said + stored.errors and "is lost" not in said + stored.errors and not blobs.exists()
    assert stored("-d", "store", "get", "a/objects/k") == "payload", "a row needs no blob"
    blobs.mkdir()
    assert "store/blobs is empty" in stored("-d", "store", "check", code=3)
    blobs.rmdir()
    elsewhere.rename(blobs)
    assert stored("-d", "store", "check") and stored("-d", "store", "get", "a/objects/large")


SERVICE = [Notice(NoticeKind.NOTE, f"http://s3 ignores {what}: update it", lasts=True) for what in ("one thing", "another", "a third")]
OWN = [ok("all is there"), Notice(NoticeKind.NOTE, "a thing costs money"), problem("a thing is missing")]


def test_what_a_service_does_less_is_counted_in_one_note_until_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Seven such notes stood above the problem, at each check."""
    with pytest.raises(ConfigurationError, match="1 of these"):
        show_findings(summed([*SERVICE, *OWN]))
    kinds = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert [kind for kind, _ in kinds] == ["problem", "note", "note", "ok"]
    assert kinds[2][1].startswith("3 things the service does less") and "'tiered check --verbose'" in kinds[2][1]
    assert summed([SERVICE[0], *OWN]) == [SERVICE[0], *OWN], "one takes no more room than the line about it"
