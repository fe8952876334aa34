"""The `tiered` command as its users meet it: output, errors, exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from tests.given.command_line import OBJECT, OWN_PROCESS, Command, plant, shell, unwritable
from tests.given.processes import StartedProcess
from tiered.embedded.blobs import FileBlobs
from tiered.metadata import Metadata, TimeToLive
from tiered.object_id import ObjectId
from tiered.open import open_storage
from tiered.settings import Settings


@pytest.fixture
def tiered(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.mark.slow
def test_object_is_put_fetched_and_missed_by_processes(tiered: Command) -> None:
    tiered("put", OBJECT, "-", stdin=b"meow" * 500_000, python=OWN_PROCESS)
    assert tiered("get", OBJECT, python=OWN_PROCESS) == "meow" * 500_000
    assert tiered("rm", OBJECT)
    assert tiered("get", OBJECT, code=1, python=OWN_PROCESS) == ""
    assert tiered.errors == f"tiered: there is no object {OBJECT}, or it has expired\n"


def test_object_is_put_listed_shown_fetched_and_removed(tiered: Command, tmp_path: Path) -> None:
    (tmp_path / "cat").write_bytes(b"meow" * 500_000)
    assert "long-term" in tiered("put", OBJECT, "cat", "--content-type", "image/jpeg", "--custom", "a=b", "--ttl", "36h")
    assert tiered("ls") == OBJECT + "\n"
    head = json.loads(tiered("head", OBJECT, "--json"))
    assert (head["size"], head["tier"], head["metadata"]["custom"]) == (2_000_000, "long-term", {"a": "b"})
    assert head["expires"] > head["created"]
    assert tiered("get", OBJECT, "--range", "2:6") == "owme"
    assert json.loads(tiered("get", OBJECT, "--json", "-o", "copy"))["size"] == 2_000_000
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "cat").read_bytes()
    assert json.loads(tiered("rm", OBJECT, "--json")) == {"object": OBJECT, "deleted": True}
    assert tiered("ls") == ""
    assert tiered("get", OBJECT, code=1) == ""
    assert OBJECT in tiered.errors


def test_command_without_any_settings_says_where_they_go(tiered: Command) -> None:
    tiered("ls", store=False, code=3)
    assert tiered.errors.startswith("tiered: there are no settings: give --config FILE or set TIERED_CONFIG, or --directory DIR")
    tiered.environment["TIERED_LEASE__EXPIRY_S"] = "40"
    tiered("ls", store=False, code=3)
    assert tiered.errors.startswith("tiered: directory is not set: ")


def test_a_payload_is_compressed_and_fetched_as_it_was_or_raw(tiered: Command, tmp_path: Path) -> None:
    (tmp_path / "cat").write_bytes(b"meow" * 500_000)
    size = json.loads(tiered("put", OBJECT, "cat", "--compress", "--json"))["size"]
    assert size < 2000 and json.loads(tiered("head", OBJECT, "--json"))["metadata"]["compression"] == "Zstd"
    assert tiered("get", OBJECT) == "meow" * 500_000
    tiered("get", OBJECT, "-o", "copy")
    tiered("get", OBJECT, "-o", "raw", "--raw")
    tiered("get", OBJECT, "-o", "start", "--raw", "--range", "0:4")
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "cat").read_bytes()
    assert len((tmp_path / "raw").read_bytes()) == size and (tmp_path / "start").read_bytes() == b"\x28\xb5\x2f\xfd"
    tiered("get", OBJECT, "--range", "0:4", code=3)
    assert "--raw" in tiered.errors


def test_listing_takes_a_prefix_and_a_limit(tiered: Command) -> None:
    for key in ("a/objects/1", "a/objects/2", "b/objects/1"):
        tiered("put", key, "-")
    assert tiered("ls", "a/") == "a/objects/1\na/objects/2\n"
    assert json.loads(tiered("ls", "--limit", "1", "--json"))["object"] == "a/objects/1"


def test_listing_shows_folders_sizes_and_what_comes_after_an_object(tiered: Command, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 2_000_000)
    tiered("put", "a/org.1/objects/large", "large")
    tiered("put", "a/org.17/objects/small", "-", stdin=b"small")
    assert tiered("ls", "a/org.1") == "a/org.1/objects/large\n"
    assert tiered("ls", "a", "--folders") == "a/org.1/\na/org.17/\n"
    assert json.loads(tiered("ls", "a/org.17", "--folders", "--json")) == {"folder": "a/org.17/objects/"}
    assert tiered("ls", "--start-after", "a/org.1/objects/large") == "a/org.17/objects/small\n"
    plain, whole = (json.loads(tiered("ls", "a/org.1", "--json", *long)) for long in ([], ["--long"]))
    assert plain == {name: whole[name] for name in plain} and whole["size"] == 2_000_000 and whole["created"]
    assert (plain["tier"], plain["revision"], "fault" in plain) == ("long-term", whole["revision"], False)
    lines = [line.split() for line in tiered("ls", "--long").splitlines()]
    small = json.loads(tiered("ls", "a/org.17", "--json"))
    assert [(line[0], line[3]) for line in lines] == [("2000000", whole["revision"]), ("5", small["revision"])]
    tiered("ls", "a/org", code=3)
    assert "is neither NAME.VALUE nor 'objects'" in tiered.errors


# --- conditions, copies and changed metadata -------------------------------------------------------


def revision(tiered: Command, object_id: str = OBJECT) -> str:
    found: str = json.loads(tiered("head", object_id, "--json"))["revision"]
    return found


def test_a_condition_that_does_not_hold_has_an_exit_code_of_its_own_and_names_what_was_found(tiered: Command) -> None:
    tiered("put", OBJECT, "-", "--if-absent", stdin=b"first")
    first = revision(tiered)
    assert tiered("put", OBJECT, "-", "--if-absent", stdin=b"second", code=7) == ""
    assert tiered.errors == f"tiered: {OBJECT} was not changed: revision {first} is there, and the condition is that nothing is\n"
    tiered("put", OBJECT, "-", "--if-revision", first, stdin=b"third")
    third = revision(tiered)
    assert tiered("rm", OBJECT, "--if-revision", first, code=7) == ""
    assert third in tiered.errors
    found = json.loads(tiered("rm", OBJECT, "--if-revision", first, "--json", code=7))
    assert found == {"object": OBJECT, "changed": False, "revision": third}
    assert tiered("get", OBJECT) == "third"
    tiered("rm", OBJECT, "--if-revision", third)
    assert json.loads(tiered("rm", OBJECT, "--if-revision", third, "--json", code=7))["revision"] is None


@pytest.mark.parametrize("how", ["full", "closed"])
def test_exit_code_of_a_failure_stays_where_its_output_cannot_be_written(tiered: Command, how: str) -> None:
    plant(tiered.store, "someone/objects/else")
    tiered("put", OBJECT, "-")
    tiered("recover", "--once", code=6)
    for arguments, code in (("put", OBJECT, "-", "--if-absent", "--json"), 7), (("check",), 6):
        with unwritable(how) as stdout:
            tiered(*arguments, stdout=stdout, code=code)
        assert tiered.errors.count("\n") == 1, tiered.errors


def test_a_file_with_another_checksum_is_not_stored(tiered: Command) -> None:
    right = "crc32c=4waSgw=="
    md5 = "md5:25f9e794323b453885f5181f1b624d0b"
    assert "high-volume" in tiered("put", OBJECT, "-", "--checksum", right, "--checksum", md5, stdin=b"123456789")
    assert json.loads(tiered("head", OBJECT, "--json"))["checksum"] == right
    first = revision(tiered)
    tiered("put", OBJECT, "-", "--checksum", md5, "--checksum", "crc32c:00000000", stdin=b"123456789", code=3)
    assert tiered.errors == "tiered: the crc32c of the payload is e3069283, and 00000000 was declared: other bytes came than were meant\n"
    for wrong, said in ([md5, right, right], "names 'crc32c' twice"), (["4waSgw"], "is not NAME:VALUE"), ([":x"], "is not NAME:VALUE"):
        tiered("put", OBJECT, "-", *(each for text in wrong for each in ("--checksum", text)), stdin=b"123456789", code=3)
        assert said in tiered.errors
    assert revision(tiered) == first


def test_objects_are_copied_and_moved_within_the_store(tiered: Command, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"meow" * 500_000)
    tiered("put", OBJECT, "large", "--custom", "a=b")
    copied = json.loads(tiered("cp", OBJECT, "a/objects/copy", "--if-absent", "--json"))
    assert copied == {
        "object": "a/objects/copy", "source": OBJECT, "revision": revision(tiered, "a/objects/copy"), "tier": "long-term",
        "size": 2_000_000,
    }  # fmt: skip
    assert "a/objects/copy was not changed" in (tiered("mv", OBJECT, "a/objects/copy", "--if-absent", code=7) or tiered.errors)
    assert "a/objects/moved" in tiered("mv", "a/objects/copy", "a/objects/moved")
    assert tiered("ls") == f"a/objects/moved\n{OBJECT}\n"
    assert tiered("get", "a/objects/moved") == "meow" * 500_000
    assert json.loads(tiered("head", "a/objects/moved", "--json"))["metadata"]["custom"] == {"a": "b"}
    tiered("cp", "a/objects/copy", "a/objects/other", code=1)
    assert tiered.errors == "tiered: there is no object a/objects/copy, or it has expired\n"
    assert tiered("mv", OBJECT, "a/objects/moved", "--if-revision", revision(tiered, "a/objects/moved")) and OBJECT not in tiered("ls")


def test_metadata_are_changed_and_what_no_option_names_stays(tiered: Command) -> None:
    told = ("--content-type", "text/plain", "--filename", "cat.txt", "--origin", "scanner")
    tiered("put", OBJECT, "-", "--custom", "a=b", "--custom", "c=d", *told, stdin=b"cat")
    head, before = json.loads(tiered("head", OBJECT, "--json")), revision(tiered)
    assert (head["metadata"]["filename"], head["metadata"]["origin"]) == ("cat.txt", "scanner")
    tiered("update-metadata", OBJECT, "--custom", "e=f", "--remove-custom", "a", "--filename", "cat.jpg", "--if-revision", before)
    head = json.loads(tiered("head", OBJECT, "--json"))
    assert (head["metadata"]["custom"], head["metadata"]["filename"]) == ({"c": "d", "e": "f"}, "cat.jpg")
    assert head["metadata"]["content_type"] == "text/plain" and head["expires"] is None and head["revision"] != before
    tiered("update-metadata", OBJECT, "--content-type", "image/jpeg", "--if-revision", before, code=7)
    tiered("update-metadata", OBJECT, "--content-type", "image/jpeg", "--filename", "", "--ttl", "1h")
    head = json.loads(tiered("head", OBJECT, "--json"))
    assert head["metadata"]["content_type"] == "image/jpeg" and "filename" not in head["metadata"] and head["expires"]
    assert tiered("get", OBJECT) == "cat"


def test_a_text_that_is_not_ascii_is_refused_unless_the_setting_allows_it(tiered: Command) -> None:
    for command in (("put", OBJECT, "-", "--filename", "ü.pdf"), ("put", OBJECT, "-", "--custom", "a=ü")):
        tiered(*command, code=3)
        assert "'ü' (U+00FC) at position 0" in tiered.errors and "set store.unicode_metadata" in tiered.errors
    tiered.environment["TIERED_STORE__UNICODE_METADATA"] = "true"
    tiered("put", OBJECT, "-", "--filename", "ü.pdf", stdin=b"cat")
    del tiered.environment["TIERED_STORE__UNICODE_METADATA"]
    tiered("update-metadata", OBJECT, "--origin", "scanner")
    tiered("update-metadata", OBJECT, "--origin", "ü", code=3)
    metadata = json.loads(tiered("head", OBJECT, "--json"))["metadata"]
    assert (metadata["filename"], metadata["origin"]) == ("ü.pdf", "scanner")


def test_an_expiry_is_set_extended_and_taken_away(tiered: Command) -> None:
    def expires() -> object:
        return json.loads(tiered("head", OBJECT, "--json"))["expires"]

    tiered("put", OBJECT, "-")
    tiered("set-expiry", OBJECT, "--at", "2099-01-31T13:00:00+01:00")
    assert expires() == "2099-01-31T12:00:00.000+00:00"
    tiered("set-expiry", OBJECT, "--from-creation", "36h", "--extend-only")
    assert expires() == "2099-01-31T12:00:00.000+00:00"
    tiered("set-expiry", OBJECT, "--from-creation", "36h")
    assert expires() != "2099-01-31T12:00:00.000+00:00"
    tiered("set-expiry", OBJECT, "--never", "--if-revision", revision(tiered))
    assert expires() is None


@pytest.mark.parametrize(("arguments", "code", "says"), [
    (["get", "nonsense"], 3, "'nonsense' is not an object id"),
    (["put", "a/objects/../x", "-"], 3, "'.' or '..' segment"),
    (["put", OBJECT, "no-such-file"], 3, "no-such-file"),
    (["put", OBJECT, "-", "--ttl", "soon"], 3, "36h"),
    (["put", OBJECT, "-", "--ttl", "1h", "--tti", "1h"], 3, "not both"),
    (["put", OBJECT, "-", "--custom", "x"], 3, "KEY=VALUE"),
    (["put", OBJECT, "-", "--custom", "x=1", "--custom", "x=2"], 3, "--custom names 'x' twice"),
    (["put", OBJECT, "-", "--ttl", "99999999999d"], 3, "longer than any calendar"),
    (["put", OBJECT, "-", "--ttl", "999999999d"], 3, "9999"),
    (["get", "a/objects/other", "--range", "3:1"], 3, "is no range"),
    (["get", "a/objects/other", "-o", "no/such/directory"], 3, "cannot be written"),
    (["log", "show", "~changelog/zz/garbage"], 1, "no entry"),
    (["get", OBJECT, "--range", "x"], 3, "FIRST:END"),
    (["put", OBJECT, "-", "--if-revision", "7"], 3, "head OBJECT` shows"),
    (["put", OBJECT, "-", "--if-absent", "--if-revision", "018bcfe5-6800-7000-8000-000000000001"], 3, "--if-absent and --if-revision"),
    (["cp", "a/objects/other", "a/objects/other"], 3, "onto itself"),
    (["mv", OBJECT, "a/objects/x"], 1, "there is no object"),
    (["update-metadata", "a/objects/other"], 3, "nothing is to be changed"),
    (["set-expiry", "a/objects/other"], 3, "--never"),
    (["set-expiry", "a/objects/other", "--at", "2099-01-01"], 3, "with a zone"),
    (["get", OBJECT, "--json"], 3, "--output"),
    (["head", OBJECT], 1, "there is no object"),
    (["log", "show", "x"], 3, "not a change id"),
    (["log", "show", "018bcfe5-6800-7000-8000-000000000001"], 1, "no entry"),
    (["log", "retry"], 3, "--all"),
    (["recover", "--limit", "3"], 3, "--once"),
    (["nonsense"], 2, "nonsense"),
])
def test_error_is_one_sentence_with_its_exit_code(tiered: Command, arguments: list[str], code: int, says: str) -> None:
    tiered("put", "a/objects/other", "-")
    assert tiered(*arguments, code=code) == ""
    assert says in tiered.errors
    if code != 2:
        assert tiered.errors.count("\n") == 1, tiered.errors


def test_settings_are_shown_with_where_they_come_from(tiered: Command, tmp_path: Path) -> None:
    (tmp_path / "tiered.yaml").write_text("directory: store\nchangelog: sqlite\nlease: {expiry_s: 40}\n")
    tiered.environment["TIERED_RECOVERY__IDLE_S"] = "7"
    shown = json.loads(tiered("--config", "tiered.yaml", "config", "show", "--json", store=False))
    assert shown["lease.expiry_s"] == {"value": 40.0, "from": "tiered.yaml"}
    assert shown["recovery.idle_s"] == {"value": 7.0, "from": "TIERED_RECOVERY__IDLE_S"}
    assert shown["inline_bytes_max"]["from"] == "default"


def test_settings_for_tuning_are_shown_if_they_are_set_or_asked_for(tiered: Command) -> None:
    tiered.environment["TIERED_RECOVERY__IDLE_S"] = "7"
    shown = tiered("config", "show")
    assert "daemon.http_port" in shown and "recovery.idle_s" in shown and "lease.expiry_s" not in shown
    hidden = re.fullmatch(r"tiered: (\d+) settings for tuning have their defaults and are not shown; --all shows them\n", tiered.errors)
    everything = tiered("config", "show", "--all")
    assert "lease.expiry_s" in everything and tiered.errors == ""
    assert hidden is not None and len(everything.splitlines()) - len(shown.splitlines()) == int(hidden[1])


@pytest.mark.parametrize(("text", "says"), [
    ("directory: store\nchangelock: sqlite\n", "changelog"),
    ("directory: store\nlease: {expiry_s: 0}\n", "lease.expiry_s"),
    ("changelog: sqlite\n", "directory"),
    ("- 1\n", "mapping"),
])
def test_settings_that_are_wrong_are_refused_in_a_sentence(tiered: Command, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "tiered.yaml").write_text(text)
    tiered("--config", "tiered.yaml", "ls", code=3, store=False)
    assert says in tiered.errors


def test_log_commands_say_that_a_noop_log_keeps_nothing(tiered: Command, tmp_path: Path) -> None:
    tiered("put", OBJECT, "-")
    (tmp_path / "tiered.yaml").write_text("directory: store\nchangelog: noop\n")
    tiered("--config", "tiered.yaml", "log", "list", code=3, store=False)
    assert "changelog: sqlite" in tiered.errors


def test_operator_sees_a_dead_change_recovers_it_and_retries_a_stuck_one(tiered: Command) -> None:
    dead, bad = plant(tiered.store, None), plant(tiered.store, "someone/objects/else")
    survey = json.loads(tiered("recover", "--dry-run", "--json"))
    assert {each["id"]: each["state"] for each in survey} == {dead: "claimable", bad: "claimable"}
    assert "someone/objects/else" in tiered("log", "show", bad)
    report = json.loads(tiered("recover", "--once", "--json", code=6))
    assert (report["recovered"], report["parked"]) == (1, 1)
    assert "log list --stuck" in tiered.errors
    stuck, = json.loads(tiered("log", "list", "--stuck", "--json"))
    assert stuck["id"] == bad and "someone/objects/else" in stuck["stuck"]["error"]
    assert bad in tiered("log", "list")
    assert json.loads(tiered("log", "show", stuck["key"], "--json"))["id"] == bad
    assert "1 given back" in tiered("log", "retry", "--all")
    assert json.loads(tiered("recover", "--once", "--json", code=6))["parked"] == 1
    tiered("log", "retry", bad)
    tiered("log", "retry", bad, code=1)
    assert "not stuck" in tiered.errors


def test_operator_sees_an_open_upload_and_gives_it_up(tiered: Command) -> None:
    async def begin() -> str:
        async with open_storage(Settings(directory=tiered.store)) as storage:
            upload = await storage.begin_multipart(ObjectId.create("videos", "a.mp4"))
            await upload.upload_part(1, b"part")
            return upload.id

    upload_id = anyio.run(begin)
    [listed] = json.loads(tiered("log", "list", "--json"))
    assert (listed["id"], listed["state"]) == (upload_id, "assembling") and listed["cleanup_after"]
    assert "assembling 1 (its upload is open" in tiered("status")
    assert "seen 0" in tiered("recover", "--once")
    assert "is given up" in tiered("log", "abort", upload_id)
    assert "the changelog is empty" in tiered("log", "list")
    assert not list((tiered.store / "uploads").iterdir())
    tiered("log", "abort", upload_id, code=1)
    dead = plant(tiered.store, None)
    tiered("log", "abort", dead, code=1)
    assert "no open upload" in tiered.errors


def expired(tiered: Command, count: int) -> Path:
    """The directory of that many blobs that expired long ago, and of one that never does."""
    tiered("put", OBJECT, "-", stdin=bytes(2_000_000))
    blobs = tiered.store / "blobs"

    async def write() -> None:
        store = await FileBlobs.open_directory(tiered.store, SystemRuntime())
        upload = await store.open_upload("old", Metadata(TimeToLive(ns=1), time_expires_ns=1_000_000), None)
        await upload.finalise()

    anyio.run(write)
    for number in range(1, count):
        os.link(blobs / "old", blobs / f"old{number}")
    return blobs


@pytest.mark.slow
def test_one_pass_collects_everything_without_a_changelog_too(tiered: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.daemon.COLLECT_PAGE", 300)
    blobs = expired(tiered, 1050)
    (tiered.store / "uploads" / ChangeId.new(SystemRuntime())).touch()
    (tmp_path / "tiered.yaml").write_text("directory: store\nchangelog: noop\n")
    report = json.loads(tiered("--config", "tiered.yaml", "recover", "--once", "--json", store=False))
    assert (report["collected"], report["seen"]) == (1051, 0)
    assert len(os.listdir(blobs)) == 1 and os.listdir(tiered.store / "uploads") == []
    tiered("--config", "tiered.yaml", "recover", "--dry-run", code=3, store=False)


def test_a_pass_that_had_to_leave_garbage_says_so_and_did_the_rest(tiered: Command) -> None:
    blobs = expired(tiered, 10)
    os.truncate(next(path for path in blobs.iterdir() if not path.name.startswith("old")), 0)
    plant(tiered.store, None)
    report = json.loads(tiered("recover", "--once", "--json", code=6))
    assert (report["collected"], report["recovered"]) == (10, 1)
    assert "1 file could not be looked at or collected, the first is 'photos/" in tiered.errors


def test_changes_that_are_not_stale_yet_are_spoken_of(tiered: Command) -> None:
    plant(tiered.store, None, released=False)
    nothing = tiered("recover", "--dry-run")
    assert nothing == f"nothing to recover yet: 1 entry is open, and `tiered -d {tiered.store} log list` says what it waits for\n"
    listed = tiered("log", "list")
    assert "  held: its owner renewed it lately  " in listed and "s ago" in listed


def test_an_entry_that_is_kept_for_the_change_feed_is_shown_as_what_it_is(tiered: Command) -> None:
    done, dead = plant(tiered.store, None, kept=True), plant(tiered.store, None)
    listed = {each["id"]: each for each in json.loads(tiered("log", "list", "--json"))}
    assert (listed[done]["state"], listed[dead]["state"]) == ("kept", "claimable")
    assert listed[done]["kept"] == json.loads(tiered("log", "show", done, "--json"))["kept"] is not None is listed[dead]["kept"]
    assert "  kept: its change is over, and it waits for the change feed  kept for " in tiered("log", "list")
    assert tiered("log", "list", "--stuck") == "no stuck entries (1 open)\n"
    tiered("log", "retry", done, code=1)
    assert "not stuck: its change is over, and it waits for the change feed" in tiered.errors
    assert json.loads(tiered("recover", "--once", "--json"))["seen"] == 1
    assert tiered("recover", "--dry-run") == "nothing to recover\n"
    [left] = json.loads(tiered("log", "list", "--json"))
    assert left["id"] == done


def test_an_entry_that_cannot_be_read_is_listed_with_why_and_nothing_twice(tiered: Command) -> None:
    plant(tiered.store, None)
    with closing(sqlite3.connect(tiered.store / "tiered.db")) as database, database:
        database.execute("UPDATE changes SET value = x'00'")
    [listed] = tiered("log", "list").splitlines()[1:]
    assert "  unreadable: recovery will park it  " in listed and listed.count("cannot be read: ") == 1
    tiered("recover", "--once", code=6)
    [listed] = tiered("log", "list").splitlines()[1:]
    assert "  parked: an operator must look  " in listed and listed.count("cannot be read: ") == 1


def test_environment_goes_over_the_directory_option_which_beats_a_settings_file_from_the_environment(tiered: Command) -> None:
    tiered.environment |= {"TIERED_LEASE__EXPIRY_S": "40", "TIERED_CONFIG": "elsewhere.yaml"}
    shown = json.loads(tiered("config", "show", "--json"))
    assert shown["lease.expiry_s"] == {"value": 40.0, "from": "TIERED_LEASE__EXPIRY_S"}
    assert shown["directory"] == {"value": str(tiered.store), "from": "--directory"}
    assert shown["changelog"] == {"value": "sqlite", "from": "default"}


# --- outputs ---------------------------------------------------------------------------------------


@pytest.fixture
def stored(tiered: Command) -> Command:
    tiered("put", OBJECT, "-", stdin=b"x" * 2_000_000)
    return tiered


def test_output_keeps_the_files_mode_and_follows_links(stored: Command, tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "real").chmod(0o600)
    (tmp_path / "link").symlink_to("real")
    stored("get", OBJECT, "-o", "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").stat().st_size == 2_000_000
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o600


@pytest.mark.slow
def test_output_that_is_no_plain_file_is_written_to_and_not_replaced(stored: Command, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["bash", "-c", "cat pipe > copy"], cwd=tmp_path)
    try:
        stored("get", OBJECT, "-o", "pipe")
        assert reader.wait(timeout=60) == 0
    finally:
        reader.kill()
        reader.wait()
    assert (tmp_path / "copy").stat().st_size == 2_000_000
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    stored("get", OBJECT, "-o", "/dev/full", code=4)
    assert "No space left on device" in stored.errors


FULL = "tiered: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("arguments", [f"get {OBJECT}", "ls", "config show", f"head {OBJECT} --json", "status"])
def test_output_that_cannot_be_written_is_told_in_a_sentence(stored: Command, arguments: str) -> None:
    with unwritable("full") as stdout:
        stored(*arguments.split(), stdout=stdout, code=4)
    assert stored.errors == FULL


@pytest.mark.parametrize("arguments", [f"get {OBJECT}", "ls", "config show", "status", "--help"])
def test_output_that_nobody_reads_to_its_end_is_no_error(stored: Command, arguments: str) -> None:
    with unwritable("closed") as stdout:
        stored(*arguments.split(), stdout=stdout)
    assert stored.errors == ""


@pytest.mark.slow
def test_a_process_that_cannot_write_its_output_adds_no_complaint_of_pythons_own(stored: Command) -> None:
    done = shell(stored, "tiered config show > /dev/full")
    assert (done.returncode, done.stderr.decode()) == (4, FULL)
    done = shell(stored, f"tiered get {OBJECT} | head -c 0")
    assert (done.returncode, done.stderr) == (0, b"")
    done = shell(stored, "tiered ls | head -c 0")
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
def test_put_of_a_stdin_that_comes_late_waits_for_it(tiered: Command) -> None:
    """Nobody else waits for the command's payload, so `store.payload_idle_s` is not for it."""
    tiered("put", OBJECT, "-")
    tiered.environment["TIERED_STORE__PAYLOAD_IDLE_S"] = "0.001"
    done = shell(tiered, f"(sleep 0.2; printf meow) | tiered put {OBJECT} -")
    assert (done.returncode, done.stderr) == (0, b"")
    assert tiered("get", OBJECT) == "meow"


@pytest.mark.slow
def test_put_of_an_open_stdin_is_interrupted_at_once(tiered: Command) -> None:
    command = [sys.executable, *OWN_PROCESS, "--directory", str(tiered.store), "put", OBJECT, "-"]
    with StartedProcess(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=tiered.environment) as writing:
        while not (tiered.store / "tiered.db").exists():
            time.sleep(0.05)
        time.sleep(0.5)
        writing.send_signal(signal.SIGINT)
        assert writing.wait(timeout=30) == 130


@pytest.mark.slow
def test_command_that_is_interrupted_while_it_starts_ends_without_a_traceback(tiered: Command, tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nsignal.pause()\n")
    tiered.environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(tmp_path), tiered.environment.get("PYTHONPATH"))))
    assert tiered("ls", code=130, python=OWN_PROCESS) == ""
    assert tiered.errors == ""


@pytest.mark.slow
def test_interrupts_that_were_ignored_stay_ignored(tiered: Command) -> None:
    """As a shell starts what runs in its background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    writing, daemon = [
        StartedProcess(
            [sys.executable, *OWN_PROCESS, "-d", str(tiered.store), *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=tiered.environment,
        )
        for command in (["put", OBJECT, "-"], ["recover"])
    ]  # fmt: skip
    with writing, daemon:
        assert daemon.stderr is not None
        assert any(b"recovery_started" in line for line in daemon.stderr)
        for each in (writing, daemon):
            each.send_signal(signal.SIGINT)
        writing.communicate(b"payload", timeout=60)
        daemon.send_signal(signal.SIGTERM)
        daemon.communicate(timeout=60)
        assert [each.returncode for each in (writing, daemon)] == [0, 0]
    assert tiered("get", OBJECT) == "payload"
