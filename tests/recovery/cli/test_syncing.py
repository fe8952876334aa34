"""`tiered sync` and `tiered cp -r`: what they print, what they end with, and what a kill leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recovery.cli.syncing import MAY_HEAL, ResultLines
from tests.given.command_line import Command
from tests.given.directories import HUGE, LARGE, SMALL, TREE, read_tree, write_tree
from tiered import ConditionFailedError, CorruptRecordError, InvalidRequestError, ObjectId, TieredError, UnavailableError
from tiered.directories import DirectoryReport, FileResult, Kind

OBJECT = ObjectId.create("photos", "a")
PREFIX = "photos/org.17/objects/2026"


@pytest.fixture
def tiered(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    command("put", "notes/objects/first", "-", stdin=b"so that there is a store")
    return command


def lines(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


def listed(tiered: Command) -> list[str]:
    return [line.removeprefix(f"{PREFIX}/") for line in tiered("ls", PREFIX).splitlines()]


# --- there and back ----------------------------------------------------------------------------------


def test_a_directory_goes_there_and_back_and_a_second_run_says_that_it_does_nothing(tiered: Command, tmp_path: Path) -> None:
    write_tree(tmp_path / "files", TREE)
    total = sum(map(len, TREE.values()))
    printed = tiered("sync", "files", PREFIX).splitlines()
    assert sorted(printed[:-1]) == sorted(f"copied  {path}  {len(content)} bytes" for path, content in TREE.items())
    assert printed[-1] == f"6 copied ({total:,} bytes), 0 unchanged, 0 deleted, 0 skipped, 0 failed"
    assert tiered("sync", "files", f"{PREFIX}/") == "nothing to do: 0 copied (0 bytes), 6 unchanged, 0 deleted, 0 skipped, 0 failed\n"
    tiered("sync", PREFIX, "back/again")
    assert read_tree(tmp_path / "back/again") == TREE
    assert tiered("sync", PREFIX, "back/again").startswith("nothing to do: ") and tiered.errors == ""


def test_cp_with_r_copies_and_never_deletes(tiered: Command, tmp_path: Path) -> None:
    write_tree(tmp_path / "files", TREE)
    tiered("cp", "-r", "files", PREFIX, "--jobs", "2")
    (tmp_path / "files/z").unlink()
    tiered("cp", "-r", "./files", PREFIX)
    tiered("cp", "--recursive", PREFIX, str(tmp_path / "back"))
    assert read_tree(tmp_path / "back") == TREE
    tiered("cp", "-r", f"{PREFIX}-none", "back", code=1)
    assert tiered.errors == f"tiered: there is no object below {PREFIX}-none\n"
    tiered("sync", f"{PREFIX}-none", "back")


def test_with_json_each_file_and_the_sum_are_lines(tiered: Command, tmp_path: Path) -> None:
    write_tree(tmp_path / "files", {"a": SMALL, "new\nline": SMALL})
    (tmp_path / "files/link").symlink_to("a")
    told = lines(tiered("sync", "files", PREFIX, "--json", code=3))
    assert {"result": "copied", "path": "a", "object": f"{PREFIX}/a", "size": 5} in told
    assert {"result": "skipped", "path": "link", "object": f"{PREFIX}/link", "size": None, "why": "it is a symbolic link"} in told
    failed, = (each for each in told if each.get("result") == "failed")
    assert failed["path"] == "new\nline" and "control character" in failed["why"] and tiered.errors.count("\n") == 2
    assert told[-1] == {"copied": 1, "bytes": 5, "unchanged": 0, "deleted": 0, "skipped": 1, "failed": 1, "dry_run": False}


def test_delete_is_tried_dry_first_and_prints_what_is_then_deleted(tiered: Command, tmp_path: Path) -> None:
    write_tree(tmp_path / "files", {"a": SMALL, "b": SMALL})
    tiered("sync", "files", PREFIX)
    (tmp_path / "files/b").rename(tmp_path / "files/c")
    dry = tiered("sync", "files", PREFIX, "--delete", "--dry-run")
    assert dry == "would copy  c  5 bytes\nwould delete  b\ndry run: 1 copied (5 bytes), 1 unchanged, 1 deleted, 0 skipped, 0 failed\n"
    assert listed(tiered) == ["a", "b"]
    assert tiered("sync", "files", PREFIX, "--delete").splitlines()[:2] == ["copied  c  5 bytes", "deleted  b"]
    assert listed(tiered) == ["a", "c"]
    tiered("sync", PREFIX, "files", "--delete")
    assert read_tree(tmp_path / "files") == {"a": SMALL, "c": SMALL}


def test_an_empty_source_deletes_nothing_unless_that_is_allowed(tiered: Command, tmp_path: Path) -> None:
    write_tree(tmp_path / "files", {"a": SMALL})
    (tmp_path / "mnt").mkdir()
    tiered("sync", "files", PREFIX)
    assert tiered("sync", "mnt", PREFIX, "--delete", code=3) == ""
    assert "'mnt' is empty" in tiered.errors and "--allow-empty" in tiered.errors
    tiered("sync", "photos/objects/none", "files", "--delete", code=3)
    assert read_tree(tmp_path / "files") == {"a": SMALL} and listed(tiered) == ["a"]
    tiered("sync", "mnt", PREFIX, "--delete", "--allow-empty")
    assert listed(tiered) == []


# --- what is wrong -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "message"), [
    (("sync", "files", "photos"), "neither 'files' nor 'photos' names objects"),
    (("sync", "photos/objects/a", "photos/objects/b"), "both name objects: write a directory as ./NAME"),
    (("sync", "./nowhere", PREFIX), "there is no directory 'nowhere'"),
    (("sync", "files", "photos/objects/../x"), "'..' segment"), (("sync", "files", PREFIX, "-j", "100000"), "concurrency is 100000"),
    (("sync", "store", PREFIX), "is in the store"), (("sync", PREFIX, "store"), "is in the store"),
    (("sync", "", PREFIX, "--delete"), "the directory is empty text"), (("sync", PREFIX, ""), "the directory is empty text"),
    (("cp", "-r", "", PREFIX), "the directory is empty text"), (("sync", "", "files"), "neither '' nor 'files'"),
    (("cp", "-r", "files", PREFIX, "--if-absent"), "leave them out with -r"),
    (("cp", "photos/objects/a", "photos/objects/b", "--jobs", "2"), "--jobs is for directories"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused(tiered: Command, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    write_tree(tmp_path / "files", {"a": SMALL})
    assert tiered(*arguments, code=3) == "" and message in tiered.errors and tiered.errors.count("\n") == 1


@pytest.mark.parametrize("command", [("sync",), ("cp", "-r")])
def test_a_new_store_is_made_as_by_put(tmp_path: Path, command: tuple[str, ...]) -> None:
    write_tree(tmp_path / "files", {"a": SMALL})
    tiered = Command(tmp_path)
    tiered("sync", "files", PREFIX, "--dry-run", code=3)
    assert not tiered.store.exists(), "a dry run makes nothing"
    tiered(*command, "files", PREFIX)
    assert listed(tiered) == ["a"]
    tiered.store = tmp_path / "another"
    tiered(*command, PREFIX, "files", code=3)
    assert "there is no store in" in tiered.errors and not tiered.store.exists()


@pytest.mark.parametrize(("errors", "heal", "said"), [
    ([UnavailableError("away")], MAY_HEAL, "1 of 1 failed; the same command does what is left"),
    ([InvalidRequestError("name")], MAY_HEAL, "1 of 1 failed; 1 of them will fail again until what is told is changed"),
    ([UnavailableError("away"), CorruptRecordError("damaged")], MAY_HEAL,
     "2 of 2 failed; the same command does what is left, but 1 of them will fail again until what is told is changed"),
    ([ConditionFailedError(OBJECT, None, "gone")], (*MAY_HEAL, ConditionFailedError), "the same command does what is left"),
    ([ConditionFailedError(OBJECT, None, "there")], MAY_HEAL, "will fail again until what is told is changed"),
])  # fmt: skip
def test_the_end_says_whether_the_same_command_may_do(
    capsys: pytest.CaptureFixture[str], errors: list[TieredError], heal: tuple[type[TieredError], ...], said: str
) -> None:
    told, report = ResultLines(False, heal), DirectoryReport()
    for error in errors:
        result = FileResult(Kind.FAILED, "a", why=str(error), error=error)
        told.add(result)
        report.add(result)
    told.end(report)
    assert capsys.readouterr().err.splitlines()[-1].endswith(said)


def test_a_directory_whose_name_looks_like_objects_is_meant_with_a_dot(tiered: Command, tmp_path: Path) -> None:
    write_tree(tmp_path / "photos/objects/x", {"a": SMALL})
    tiered("sync", "./photos/objects/x", PREFIX)
    assert listed(tiered) == ["a"]


def test_a_checksum_of_other_bytes_is_told_with_what_to_type(tiered: Command, tmp_path: Path) -> None:
    write_tree(tmp_path / "files", {"a": LARGE, "b": SMALL})
    tiered("sync", "files", PREFIX)
    write_tree(tmp_path / "files", {"a": LARGE[::-1]})
    tiered("update-metadata", f"{PREFIX}/b", "--custom", f"tiered-sha256={'0' * 64}")
    (tmp_path / "files/b").unlink()
    tiered("sync", PREFIX, "files", "--delete", code=3)
    assert "--remove-custom tiered-sha256" in tiered.errors and "nothing was deleted, because 1 could not be copied" in tiered.errors
    assert tiered.errors.splitlines()[-1] == "tiered: 1 of 2 failed; 1 of them will fail again until what is told is changed"
    tiered("update-metadata", f"{PREFIX}/b", "--remove-custom", "tiered-sha256")
    tiered("sync", PREFIX, "files", "--delete")
    assert read_tree(tmp_path / "files") == {"a": LARGE, "b": SMALL}


@pytest.mark.parametrize(("errors", "code"), [
    ([UnavailableError("away")], 4),
    ([UnavailableError("away"), ConditionFailedError(OBJECT, None, "gone"), UnavailableError("away")], 7),
    ([ConditionFailedError(OBJECT, None, "gone"), InvalidRequestError("name")], 3),
    ([InvalidRequestError("name"), CorruptRecordError("damaged"), UnavailableError("away")], 6),
])  # fmt: skip
def test_of_several_failures_the_one_that_another_attempt_does_not_mend_counts(errors: list[TieredError], code: int) -> None:
    told = ResultLines(dry_run=False)
    for error in errors:
        told.add(FileResult(Kind.FAILED, "a", why=str(error), error=error))
    assert told.code == code


# --- killed ------------------------------------------------------------------------------------------


DYING = """
import os, signal, sys
from recovery.cli.main import main
from recovery.cli.syncing import ResultLines

print_line, left = ResultLines._print, int(sys.argv.pop(1))

def print_and_die(self, result):
    global left
    print_line(self, result)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

ResultLines._print = print_and_die
main()
"""
"""Kills itself when it has printed so many lines. From outside, a busy machine would kill it too late."""


@pytest.mark.slow
@pytest.mark.parametrize("uploads", [True, pytest.param(False, marks=pytest.mark.night)])
def test_a_command_that_is_killed_leaves_whole_files_and_the_next_one_does_only_what_is_left(
    tiered: Command, tmp_path: Path, uploads: bool
) -> None:
    tree = {f"{number % 7}/{number:03}": HUGE[number:1_200_000] for number in range(60)}
    write_tree(tmp_path / "files", tree)
    if not uploads:
        tiered("sync", "files", PREFIX)
    sides = ["files", PREFIX] if uploads else [PREFIX, "back"]
    command = [sys.executable, "-c", DYING, "8", "--directory", str(tiered.store), "sync", *sides, "--json"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    copied = 0
    for _ in range(2):
        killed = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment, check=False)
        assert killed.returncode == -signal.SIGKILL
        done = lines(killed.stdout)
        assert len(done) == 8
        assert all(each["result"] == "copied" for each in done)
        copied += len(done)
        if not uploads:
            found = {path: content for path, content in read_tree(tmp_path / "back").items() if not path.endswith(".partial")}
            assert found.items() <= tree.items()
    end = lines(tiered("sync", *sides, "--json"))[-1]
    assert end["failed"] == 0 and end["copied"] + end["unchanged"] == len(tree) and end["unchanged"] >= copied
    if uploads:
        tiered("sync", PREFIX, "back")
    assert read_tree(tmp_path / "back") == tree, "and no partial file"
    assert lines(tiered("sync", *sides, "--json"))[-1]["unchanged"] == len(tree)
