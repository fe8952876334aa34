"""`tiered status` as users meet it: exit codes, JSON, --watch; stores that are read-only, damaged or out of reach."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from changelog.base.runtime import SystemRuntime
from recovery.cli.shared import choice
from recovery.last_audit import NOTE
from tests.given.command_line import OBJECT, OWN_PROCESS, Command, as_if_started, plant
from tests.given.repository import ROOT
from tiered import Settings
from tiered.open import open_backends
from tiered.settings import DATABASE_NAME

NOWHERE = {"BIGTABLE_EMULATOR_HOST": "127.0.0.1:1", "STORAGE_EMULATOR_HOST": "http://127.0.0.1:1"}
PRODUCTION = "changelog: {changelog}\nbigtable: {{project: project, instance: i, timeout_s: 1}}\ngcs: {{bucket: blobs, timeout_s: 1}}\n"


@pytest.fixture
def tiered(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    command("put", OBJECT, "-", stdin=b"payload")
    return command


def announce(store: Path, instance: str) -> None:
    async def call() -> None:
        async with open_backends(Settings(directory=store), SystemRuntime()) as backends:
            await backends.log.announce(instance)

    anyio.run(call)


def status(tiered: Command, code: int | range = 0) -> dict[str, Any]:
    return json.loads(tiered("status", "--json", code=code))  # type: ignore[no-any-return]


def test_the_guide_shows_what_is_printed(tiered: Command) -> None:
    [block] = re.findall(r"```\n\$ tiered -d store status\n(.*?)```", (ROOT / "docs/guides/operate.md").read_text("utf-8"), re.DOTALL)
    plant(tiered.store, None)
    assert varying(tiered("status", code=1), str(tiered.store)) == varying(block, "/srv/store")


def varying(text: str, store: str) -> str:
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|[\d.]+ [kMGTP]?B free of [\d.]+ [kMGTP]?B|\d{4}-\d\d-\d\dT\S+|\d+ s old", "…", text)
    return text.replace(store, "STORE").replace("-d STORE", "-d store")


# --- commands ----------------------------------------------------------------------------------------


def commands_of(found: dict[str, Any]) -> list[str]:
    return [each["type"] for each in (*found["orders"], *found["stuck"]["entries"]) if each["type"]]


def lines_with_commands(text: str) -> list[str]:
    return [line.strip().removeprefix("$ ") for line in text.splitlines() if line.strip().startswith("$ ")]


def test_every_command_that_is_shown_works_as_typed_with_the_settings_that_were_given(tiered: Command, tmp_path: Path) -> None:
    """Without `--config` they would open another store, or none."""
    config = tmp_path / "my settings/it's.yaml"
    config.parent.mkdir()
    config.write_text("directory: store\n")
    plant(tiered.store, "someone/objects/else")
    named = ("-c", "my settings/it's.yaml")
    for where in (named, ("-d", "store")):
        tiered(*where, "recover", "--once", store=False, code=6)
        printed = lines_with_commands(tiered(*where, "status", store=False, code=6))
        told = commands_of(json.loads(tiered(*where, "status", "--json", store=False, code=6)))
        assert len(printed) == 3 and sorted(printed) == sorted(told)
        log_lines = re.findall("`(.*?)`", tiered(*where, "recover", "--once", store=False, code=6) + tiered.errors)
        assert log_lines and all(line.startswith(shlex.join(("tiered", *where))) for line in log_lines)
        for command in printed:
            if not command.endswith(" recover"):  # the daemon, which would not end
                tiered(*shlex.split(command)[1:], store=False)


@pytest.mark.parametrize(("where", "environment", "begins"), [
    (["-c", "a b.yaml"], {}, "cd {here} && tiered -c {config}"), ([], {"TIERED_CONFIG": "a b.yaml"}, "cd {here} && tiered -c {config}"),
    (["-d", "store"], {}, "tiered -d {here}/store"), ([], {"TIERED_DIRECTORY": "store"}, "tiered -d {here}/store"),
    (["-d", "store"], {"TIERED_CONFIG": "a b.yaml"}, "tiered -d {here}/store"),
    ([], {"TIERED_DIRECTORY": "store", "TIERED_POSTGRES__DSN": "postgresql://127.0.0.1/rows"}, "tiered"),  # -d alone is another store
])  # fmt: skip
def test_a_command_on_the_page_means_the_same_store_in_any_shell(
    tiered: Command, tmp_path: Path, where: list[str], environment: dict[str, str], begins: str
) -> None:
    (tmp_path / "a b.yaml").write_text("directory: store\n")
    tiered.environment |= environment
    with as_if_started([], tmp_path, tiered.environment):
        config, directory = ([where[1]] if where[:1] == [option] else None for option in ("-c", "-d"))
        choice.add(config, directory, verbose=False, as_json=False)
        typed = choice.typed_anywhere(choice.settings())
    assert typed == begins.format(here=tmp_path, config=shlex.quote(str(tmp_path / "a b.yaml")))
    if begins.startswith("cd") and where:
        line = f"{typed} status".replace("&& tiered", f"&& {shlex.join((sys.executable, *OWN_PROCESS))}")
        done = subprocess.run(["sh", "-c", line], cwd="/", env=tiered.environment, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0 and f"embedded, {tiered.store}" in done.stdout.decode(), done.stderr


# --- exit codes --------------------------------------------------------------------------------------


def test_a_store_in_which_nothing_waits_is_well(tiered: Command) -> None:
    lines = tiered("status").splitlines()
    assert lines[:3] == [
        "Nothing waits for recovery, and no daemon lives.", "do        No daemon lives. Start one.",
        f"          $ tiered -d {tiered.store} recover",
    ]
    assert tiered.errors == "" and status(tiered)["level"] == "ok"


def test_entries_that_nobody_works_on_end_with_1(tiered: Command) -> None:
    plant(tiered.store, None)
    assert tiered("status", code=1).startswith("Nobody works on 1 entry that waits for recovery: no daemon lives.\n")
    assert status(tiered, code=1)["level"] == "behind"
    announce(tiered.store, "recovery-1")
    assert status(tiered)["level"] == "unknown"


def test_what_is_stuck_ends_with_6_until_it_is_given_back(tiered: Command) -> None:
    change = plant(tiered.store, "someone/objects/else")
    tiered("recover", "--once", code=6)
    told = tiered("status", code=6)
    assert told.startswith("1 entry is stuck and waits for you.")
    assert f"-         {OBJECT}\n" in told and "names the old blob" in told
    [command] = [line.strip().removeprefix("$ ") for line in told.splitlines() if "log retry" in line]
    assert command == f"tiered -d {tiered.store} log retry {change}"
    tiered(*command.split()[1:], store=False)
    assert status(tiered, code=1)["stuck"] == {"count": 0, "complete": True, "entries": []}


def test_a_store_that_does_not_answer_ends_with_4_and_a_status_all_the_same(tiered: Command, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(PRODUCTION.format(changelog="bigtable"))
    tiered.environment |= NOWHERE
    found = json.loads(tiered("-c", "p.yaml", "status", "--json", store=False, code=4))
    assert found["level"] == "unknown" and found["store"]["kind"] == "bigtable+gcs" and found["stuck"]["count"] is None
    assert any("the changelog, the checkpoint of the feed, the presence of daemons" in problem for problem in found["problems"])
    told = tiered("-c", "p.yaml", "status", store=False, code=4)
    assert "$ tiered -c p.yaml check\n" in told
    assert told.startswith("The changelog, the high-volume tier and the long-term tier do not answer. It is not known")


def test_a_postgresql_that_is_down_hides_nothing_else(tiered: Command, tmp_path: Path) -> None:
    """The store could not be opened, so one sentence was all."""
    tiered.environment |= {"TIERED_POSTGRES__DSN": "postgresql://tiered@127.0.0.1:1/tiered", "TIERED_DIRECTORY": str(tmp_path / "blobs")}
    (tmp_path / "blobs" / "blobs").mkdir(parents=True)
    found = json.loads(tiered("status", "--json", store=False, code=4))
    assert (found["level"], found["away"]) == ("unknown", ["changelog", "high-volume tier"]), "the blobs answer"
    assert found["store"] == {
        "kind": "postgres+directory", "name": "postgres:127.0.0.1:1/tiered/tiered+directory", "durable": True, "answers": False,
    }  # fmt: skip
    told = tiered("status", store=False, code=4)
    assert told.startswith("The changelog and the high-volume tier do not answer. It is not known whether recovery keeps up.\n")
    assert "\nstuck     unknown\n" in told and "connecting to" in told and "$ tiered check\n" in told
    assert "the checkpoint of the feed" in tiered("feed", "status", store=False, code=4)


def test_without_a_changelog_it_says_so(tiered: Command) -> None:
    tiered.environment["TIERED_CHANGELOG"] = "noop"
    told = tiered("status")
    assert told.startswith("No changelog is kept") and "Set 'changelog: sqlite'" in told and "entries   none: no changelog is kept" in told
    assert status(tiered)["level"] == "unknown"


def test_seconds_go_with_watch(tiered: Command) -> None:
    assert tiered("status", "5", code=3) == "" and "SECONDS goes with --watch" in tiered.errors
    for seconds in ("0", "nan", "inf", "-1", "x"):
        tiered("status", "--watch", "--", seconds, code=2)


# --- kinds of stores ---------------------------------------------------------------------------------


def test_a_store_of_an_earlier_version_has_no_notes_and_is_shown(tiered: Command) -> None:
    with closing(sqlite3.connect(tiered.store / DATABASE_NAME)) as connection, connection:
        connection.execute("DROP TABLE IF EXISTS notes")
    connection.close()
    assert status(tiered)["problems"] == [] and "audit     none has ended yet" in tiered("status")


def test_a_read_only_directory_is_shown(unprivileged: Path) -> None:
    tiered = Command(unprivileged)
    plant(tiered.store, None)
    paths = [tiered.store, *tiered.store.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        with pytest.raises(PermissionError):
            (tiered.store / "probe").touch()
        assert tiered("status", code=1).startswith("Nobody works on 1 entry")
    finally:
        tiered.store.chmod(0o755)


def test_damaged_entries_and_notes_are_shown_and_cannot_steer_the_terminal(tiered: Command) -> None:
    with closing(sqlite3.connect(tiered.store / DATABASE_NAME)) as connection, connection:
        for key in ("~changelog/00/\x1b[2J", "~changelog/00/x"):
            stuck = json.dumps({"state": "stuck", "error": "torn \x1b]0;title\x07 \u202e", "at": 1})
            connection.execute("INSERT INTO changes VALUES (?, ?, ?, ?)", (key, b"\xff{", 0, stuck))
        connection.execute("CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")
        connection.execute("INSERT INTO notes VALUES (?, ?)", (NOTE, b"\x1b?"))
    connection.close()
    told = tiered("status", code=6)
    assert told.startswith("2 entries are stuck") and all(line.isprintable() for line in told.splitlines())
    assert "log retry --all" in told and "log retry '~changelog/00/x'" in told
    assert "problem   the results of the audits could not be read" in told
    assert len(json.loads(tiered("status", "--json", code=6))["problems"]) == 1


# --- --watch -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("as_json", "number", "code"), [(False, signal.SIGINT, 130), (True, signal.SIGTERM, -signal.SIGTERM)])
def test_in_a_pipe_watch_prints_a_block_each_tick_until_it_is_ended(
    tiered: Command, as_json: bool, number: signal.Signals, code: int
) -> None:
    """A shell says 143 of what SIGTERM killed."""
    command = [sys.executable, *OWN_PROCESS, "-d", str(tiered.store), "status", "--watch", "0.2", *["--json"][:as_json]]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=tiered.environment, text=True)
    assert watching.stdout is not None
    blocks = 0
    for line in watching.stdout:
        blocks += "Nothing waits for recovery" in line
        assert not as_json or json.loads(line)["level"] == "ok"
        if blocks == 3:
            break
    watching.send_signal(number)
    _, errors = watching.communicate(timeout=60)
    assert (watching.returncode, errors) == (code, "")


@pytest.mark.slow
def test_on_a_narrow_terminal_watch_draws_again_and_keeps_the_answer_in_sight(tiered: Command) -> None:
    main, side = os.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 8, 40, 0, 0))
    environment = {name: value for name, value in tiered.environment.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    command = [sys.executable, *OWN_PROCESS, "-d", str(tiered.store), "status", "--watch", "0.2"]
    watching = subprocess.Popen(command, stdout=side, stderr=subprocess.PIPE, env=environment | {"TERM": "xterm"})
    os.close(side)
    seen = b""
    while seen.count(b"\x1b[2J") < 3:
        seen += os.read(main, 4096)
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=60)
    os.close(main)
    assert watching.returncode == 130
    drawn = seen.split(b"\x1b[2J")[1].decode().splitlines()
    assert "Nothing waits for recovery, and no" in drawn[0] and len(drawn) <= 9
    assert any("more lines" in line for line in drawn)


# --- end to end --------------------------------------------------------------------------------------

@pytest.mark.slow
def test_a_daemon_recovers_what_a_dead_writer_left_and_status_says_each_step(tiered: Command) -> None:
    tiered.environment |= {"TIERED_LEASE__EXPIRY_S": "0.5", "TIERED_RECOVERY__IDLE_S": "0.1"}
    plant(tiered.store, None, released=False)
    time.sleep(0.6)
    assert tiered("status", code=1).startswith("Nobody works on 1 entry that waits for recovery")
    daemon = subprocess.Popen(
        [sys.executable, *OWN_PROCESS, "-d", str(tiered.store), "recover"], env=tiered.environment, stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        for _ in range(300):
            found = status(tiered, code=range(2))
            assert tiered.errors == ""
            if found["entries"]["counted"] == 0 and any(each["alive"] for each in found["daemons"]):
                break
            time.sleep(0.1)
        assert found["level"] in ("ok", "unknown") and found["stuck"]["count"] == 0 and found["entries"]["complete"]
    finally:
        daemon.kill()
        daemon.wait()
    assert "1 seen within the last 1 min" in tiered("status")
    tiered("recover", "--once")
    assert re.search(r"seen \d+ s ago: ended", tiered("status"))
    with closing(sqlite3.connect(tiered.store / DATABASE_NAME)) as connection, connection:
        connection.execute("UPDATE daemons SET seen_ms = seen_ms - 61000")
    connection.close()
    assert "none lives" in tiered("status") and "killed, or out of reach" in tiered("status")


def test_an_emptied_directory_is_known_after_the_next_recovery(tiered: Command) -> None:
    (tiered.directory / "large").write_bytes(b"x" * 2_000_000)
    tiered("put", "media/objects/cat", str(tiered.directory / "large"))
    shutil.rmtree(tiered.store / "blobs")
    (tiered.store / "blobs").mkdir()
    tiered("recover", "--once", code=6)
    assert "the blob of 1 object is gone" in tiered.errors and "audit run`" in tiered.errors
    assert "lost" in tiered("status", code=6)
