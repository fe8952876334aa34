"""The life of a daemon: real processes, real signals, kills, a read-only disk, and what it says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from tests.given.command_line import OBJECT, Command, plant
from tests.given.daemon_process import hurried
from tests.given.processes import StartedProcess
from tiered import Settings
from tiered.metadata import Metadata
from tiered.object_id import blob_name
from tiered.open import open_backends

HURRIED = {"TIERED_LEASE__EXPIRY_S": "1", "TIERED_RECOVERY__IDLE_S": "0.02"}
SOON = {
    "recovery.loop.EVIDENCE_S": 0.5, "recovery.loop.FULL_PASS_EVERY_S": 0.1, "recovery.daemon.FULL_PASS_EVERY_S": 0.1,
    "recovery.daemon.ALIVE_EVERY_S": 0.3,
}  # fmt: skip


@pytest.fixture
def tiered(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    command.environment |= HURRIED | {"TIERED_DAEMON__LOG_FORMAT": "json"}
    return command


def plant_blob(store: Path, *, stuck: bool = False) -> str:
    """What a killed process left: a blob that no row names, and its entry. Returns the name of the blob.

    `stuck`: recovery leaves it alone until somebody retries it.
    """
    async def run() -> str:
        runtime = SystemRuntime()
        async with open_backends(Settings(directory=store), runtime) as backends:
            token = ChangeId.new(runtime)
            name = blob_name(OBJECT, token)
            upload = await backends.tiers.long_term.open_upload(name, Metadata(), None)
            await upload.write(b"garbage")
            await upload.finalise()
            entry = await backends.log.record(Change(token, OBJECT, name, None, upload.session), "dead")
            assert await (backends.log.park(entry, "for later") if stuck else backends.log.release(entry))
            return name

    return anyio.run(run)


@contextmanager
def daemon(tiered: Command, *options: str, before: tuple[str, ...] = (), **how: Any) -> Iterator[subprocess.Popen[str]]:
    command = [*before, *hurried(SOON), "--directory", str(tiered.store), "recover", *options]
    with StartedProcess(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=tiered.environment, **how
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def wait_for(running: subprocess.Popen[str], event: str) -> dict[str, Any]:
    """Reads the log up to that event. Every line is JSON."""
    assert running.stderr is not None
    for line in running.stderr:
        if line.startswith("{") and (value := json.loads(line))["event"] == event:
            assert isinstance(value, dict)
            return value
    raise AssertionError(f"it ended without {event}")


def end(running: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> tuple[str, list[dict[str, Any]]]:
    """Stops the daemon; returns what it printed, and the rest of its log."""
    running.send_signal(number)
    assert running.stdout is not None and running.stderr is not None
    errors, out = running.stderr.read(), running.stdout.read()  # `communicate` would pass over what is read ahead
    assert running.wait(timeout=60) == 0, errors
    return out, [json.loads(line) for line in errors.splitlines()]


@pytest.mark.slow
def test_an_idle_daemon_says_what_it_will_do_that_it_is_alive_and_what_it_did(tiered: Command) -> None:
    tiered.environment["TIERED_INSTANCE"] = "daemon-1"
    plant(tiered.store, "someone/objects/else")
    with daemon(tiered) as running:
        started = wait_for(running, "recovery_started")
        assert (started["instance"], started["store"], started["changelog"]) == ("daemon-1", str(tiered.store), "sqlite")
        assert started["expiry_s"] == 1 and started["version"] and started["python"]
        wait_for(running, "entry_parked")
        alive = wait_for(running, "recovery_alive")
        assert alive["passes"] >= 1 and alive["last_pass_s_ago"] < 30 and alive["parked"] == 1
        out, rest = end(running)
    stopped = rest[-1]
    assert stopped["event"] == "recovery_stopped" and (stopped["parked"], stopped["stuck"], stopped["collected"]) == (1, 1, 0)
    assert "parked 1" in out and out.endswith("collected 0  stuck 1\n")


@pytest.fixture
def heeds_sighup() -> Iterator[None]:
    """Also where the tests run under nohup, which has SIGHUP ignored. What a test starts inherits this."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "number"), [((), signal.SIGTERM), (("nohup",), signal.SIGINT)])
@pytest.mark.usefixtures("heeds_sighup")
def test_sighup_reloads_nothing_and_kills_nothing(tiered: Command, before: tuple[str, ...], number: signal.Signals) -> None:
    with daemon(tiered, before=before) as running:
        wait_for(running, "recovery_started")
        running.send_signal(signal.SIGHUP)
        if not before:
            assert wait_for(running, "signal_ignored")["signal"] == "SIGHUP"
        running.send_signal(signal.SIGHUP)
        plant(tiered.store, None)
        wait_for(running, "recovered")
        _, rest = end(running, number)
        assert [each["event"] for each in rest][-1] == "recovery_stopped"


@pytest.mark.slow
def test_a_daemon_warns_of_what_is_stuck_and_names_whose_change_it_recovers(tiered: Command) -> None:
    plant(tiered.store, "someone/objects/else")
    tiered("recover", "--once", code=6)
    plant(tiered.store, None, released=False)
    with daemon(tiered) as running:
        told = wait_for(running, "entries_stuck")
        assert told["count"] == 1 and told["why"].startswith(f"1 entry is stuck: `tiered -d {tiered.store} log list --stuck`")
        assert wait_for(running, "recovered")["owner_was"] == "dead"
        end(running)


@pytest.mark.slow
def test_a_second_signal_leaves_at_once(tiered: Command) -> None:
    with daemon(tiered) as running:
        wait_for(running, "recovery_started")
        with closing(sqlite3.connect(tiered.store / "tiered.db", isolation_level=None)) as lock:
            lock.execute("BEGIN IMMEDIATE")
            # From now on it waits five seconds for the file, fails, and does so again a moment later.
            wait_for(running, "recovery_pass_failed")
            time.sleep(1)
            running.send_signal(signal.SIGTERM)
            assert "once more to leave at once" in wait_for(running, "recovery_stopping")["why"]
            running.send_signal(signal.SIGTERM)
            assert running.wait(timeout=60) == 130


@pytest.mark.slow
def test_a_daemon_that_is_killed_leaves_nothing_that_the_next_one_does_not_do(tiered: Command) -> None:
    tiered.environment["TIERED_RECOVERY__RATE_PER_S"] = "15"
    names = [plant_blob(tiered.store) for _ in range(20)]  # a busy machine may kill a daemon that is through
    with daemon(tiered) as running:
        wait_for(running, "recovered")
        running.kill()
        assert running.wait(timeout=60) == -signal.SIGKILL
    with daemon(tiered) as running:
        wait_for(running, "recovery_started")
        while any((tiered.store / "blobs").rglob(names[-1].rpartition("/")[2])) or count_entries(tiered.store):
            wait_for(running, "pass_done")
        out, _ = end(running)
    assert "parked 0" in out
    assert not [path for path in (tiered.store / "blobs").rglob("*") if path.is_file()]


def count_entries(store: Path) -> int:
    with closing(sqlite3.connect(store / "tiered.db", timeout=60)) as database:
        [count] = database.execute("SELECT count(*) FROM changes").fetchone()
        return int(count)


@pytest.mark.slow
def test_two_daemons_with_one_name_do_no_harm(tiered: Command) -> None:
    tiered.environment |= {"TIERED_INSTANCE": "same", "TIERED_RECOVERY__RATE_PER_S": "20"}
    for _ in range(30):
        plant_blob(tiered.store)
    with daemon(tiered, "--json") as one, daemon(tiered, "--json") as other:
        assert {wait_for(each, "recovery_started")["instance"] for each in (one, other)} == {"same"}
        for _ in range(600):
            if count_entries(tiered.store) == 0:
                break
            anyio.run(anyio.sleep, 0.1)
        reports = [json.loads(end(each)[0]) for each in (one, other)]
    assert sum(report["recovered"] for report in reports) == 30
    assert [report["parked"] for report in reports] == [0, 0] and [report["stuck"] for report in reports] == [0, 0]
    with closing(sqlite3.connect(tiered.store / "tiered.db")) as database:
        assert database.execute("SELECT instance FROM daemons").fetchall() == [("same",)], "they look like one"


@pytest.mark.slow
def test_a_daemon_that_may_not_delete_parks_nothing_says_why_and_goes_on_when_it_may(tiered: Command) -> None:
    names = [plant_blob(tiered.store, stuck=True) for _ in range(3)]
    [holder] = {path.parent for path in (tiered.store / "blobs").rglob("*") if path.is_file()}
    with daemon(tiered, before=unprivileged()) as running:
        wait_for(running, "recovery_started")
        holder.chmod(0o555)
        tiered("log", "retry", "--all")
        out = wait_for(running, "service_unreachable")
        assert out["service"] == "long_term" and "give this process the right to read and write there" in out["why"]
        for _ in range(8):
            assert wait_for(running, "recovery_failed")["verdict"] == "failed"
        assert count_entries(tiered.store) == len(names)
        holder.chmod(0o755)
        back = wait_for(running, "service_healthy_again")
        assert back["service"] == "long_term" and back["outage_s"] > 0
        while count_entries(tiered.store):
            wait_for(running, "pass_done")
        printed, _ = end(running)
    assert "parked 0" in printed and "recovered 3" in printed and "stuck 0" in printed


def unprivileged() -> tuple[str, ...]:
    """How a command begins that the rights of a file bind: also where this is root, whom they do not bind."""
    if os.geteuid() != 0:
        return ()
    drop = ("setpriv", "--bounding-set", "-dac_override")
    if shutil.which("setpriv") is None or subprocess.run([*drop, "true"], check=False).returncode:
        pytest.skip("root cannot give up its rights here")
    return drop


@pytest.mark.slow
def test_an_error_that_ends_a_command_is_a_json_line_too(tiered: Command) -> None:
    tiered.store.mkdir()
    (tiered.store / "tiered.db").write_bytes(b"not a database" * 1000)
    with daemon(tiered) as running:
        _, errors = running.communicate(timeout=60)
        assert running.returncode != 0
    last = json.loads(errors.splitlines()[-1])
    assert last["event"] == "command_ended" and last["level"] == "ERROR" and "tiered.db" in last["why"]


# --- a look ----------------------------------------------------------------------------------------


def test_a_dry_run_writes_no_presence(tiered: Command) -> None:
    plant(tiered.store, None)
    assert "claimable: nobody works on it" in tiered("recover", "--dry-run")
    with closing(sqlite3.connect(tiered.store / "tiered.db")) as database:
        assert database.execute("SELECT * FROM daemons").fetchall() == []


def test_a_dry_run_works_on_a_disk_that_is_read_only(tiered: Command) -> None:
    plant(tiered.store, None)
    done = subprocess.run(["mount", "--bind", str(tiered.store), str(tiered.store)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"this machine lets nobody mount: {done.stderr.decode().strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(tiered.store)], check=True)
        with pytest.raises(OSError, match="Read-only"):
            (tiered.store / "probe").touch()
        assert "claimable: nobody works on it" in tiered("recover", "--dry-run")
        [entry] = json.loads(tiered("recover", "--dry-run", "--json"))
        assert entry["state"] == "claimable"
    finally:
        subprocess.run(["umount", "--lazy", str(tiered.store)], check=True)
