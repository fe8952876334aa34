"""Processes on a real directory are killed with kill -9 at random moments. Nothing is lost, leaked or mixed up.

I1, I3, I4, I6 and I7 by the demo's independent check (`emulators.demo.checking.check`), which is itself tested in
`tests/emulators/demo/checking/test_check.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from changelog.base.errors import ConfigurationError, InvalidRequestError
from changelog.base.runtime import SystemRuntime
from emulators.demo.checking.check import check, read_calls, unfinished
from emulators.demo.checking.stored_files import StoredFiles
from emulators.demo.command import DemoOptions, run_demo
from emulators.demo.players.journal import DIRECTOR, OperationJournal, read_lines
from emulators.demo.players.object_writer import Orders
from emulators.demo.staging.stage import EmbeddedStage
from emulators.demo.staging.troupe import Troupe, environment
from recovery.daemon import collect
from recovery.loop import RecoveryLoop
from recovery.prove.judge import CallAnswer
from tests.given.processes import StartedProcess, is_running
from tests.suites import has_all
from tiered.open import open_backends
from tiered.settings import LeaseSettings, RecoverySettings, Settings

ROUNDS = 10 if has_all() else 4
PASSES_MAX = 200


def wait_until_it_works(writer: subprocess.Popen[bytes], journal: Path) -> None:
    for _ in range(3000):
        if journal.exists() and b'"end":' in journal.read_bytes():
            return
        assert writer.poll() is None, "the writer ended by itself"
        time.sleep(0.01)
    raise AssertionError("the writer did not begin")


async def recover(store: Path) -> int:
    """Recovers until the log is empty; returns how many entries it cleaned up.

    Nobody is alive, so leases may be short. A busy machine may take them from recovery itself, time and again.
    """
    runtime = SystemRuntime()
    lease, patient = LeaseSettings(expiry_s=0.05), RecoverySettings(attempts_max=100)
    settings = Settings(directory=store, changelog="sqlite", lease=lease, recovery=patient)
    async with open_backends(settings, runtime) as backends:
        loop = RecoveryLoop(backends.tiers, backends.log, runtime, settings)
        for _ in range(PASSES_MAX):
            await loop.run_once()
            if unfinished(StoredFiles(store))[0] == 0:
                break
            await anyio.sleep(0.05)
        await collect(backends)
    return loop.total.recovered


def test_a_writer_killed_at_any_moment_loses_leaks_and_mixes_up_nothing(tmp_path: Path) -> None:
    stage, chance, recovered = EmbeddedStage(tmp_path / "run").__enter__(), Random(7), 0
    director = OperationJournal(stage.journal / DIRECTOR)
    for number in range(ROUNDS):
        name = f"w0.{number}"
        journal = stage.journal / f"{name}.jsonl"
        orders = Orders(str(stage.config), str(journal), name, seed=7, objects=40, parent=os.getpid())
        with StartedProcess(orders.command(), stdin=subprocess.DEVNULL, env=environment()) as writer:
            try:
                wait_until_it_works(writer, journal)
                time.sleep(chance.uniform(0, 0.4))
            finally:
                writer.kill()
        director.write(at=time.monotonic(), process=name, event="killed")
        recovered += anyio.run(recover, stage.store)
        found = check(stage.stored, stage.journal)
        assert found.flaws == {}, f"round {number}: {found.details}"
    director.close()
    answers = [call.answer for call in read_calls(stage.journal)]
    assert answers.count(CallAnswer.OK) >= ROUNDS
    assert answers.count(CallAnswer.NONE) >= ROUNDS, "the kills hit operations under way"
    assert recovered >= ROUNDS, "the kills left work for recovery"


def processes(journal: Path) -> list[int]:
    return [line["pid"] for line in read_lines(journal / DIRECTOR) if line["event"] == "started"]


@pytest.mark.night
def test_the_demo_kills_processes_and_finds_nothing_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "demo"
    assert run_demo(DemoOptions(seconds=4, writers=2, seed=1, directory=directory), as_json=True) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"]
    assert report["directory"] == str(directory)
    assert report["happened"]["writer_kills"] >= 1
    assert report["operations"]["ok"] > 0
    assert set(report["flaws"].values()) == {0}
    assert report["feed"]["references"] == report["blobs"] > 0
    pids = processes(directory / "journal")
    assert len(pids) >= 7
    assert not any(is_running(pid) for pid in pids)


@pytest.mark.night
def test_an_interrupted_demo_leaves_no_process_behind(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    code = (
        "import sys; from pathlib import Path; from emulators.demo.command import *; "
        "run_demo(DemoOptions(directory=Path(sys.argv[1])), False)"
    )
    command = [sys.executable, "-c", code, str(directory)]
    with StartedProcess(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as demo:
        assert demo.stdout is not None
        while b" kills " not in (line := demo.stdout.readline()):
            assert line, "the demo ended by itself"
        demo.send_signal(signal.SIGTERM)
        _, errors = demo.communicate(timeout=30)
    assert b"KeyboardInterrupt" in errors
    pids = processes(directory / "journal")
    assert len(pids) >= 6
    assert not any(is_running(pid) for pid in pids)


@pytest.mark.night
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", [b"Leases of", b" kills ", b"An audit reads", b"On "])
def test_an_interrupted_demo_leaves_nothing_in_the_temporary_folder(sent: signal.Signals, moment: bytes, tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "emulators", "demo", "--seconds", "1", "--writers", "2"]
    own = {**environment(), "TMPDIR": str(tmp_path)}
    with StartedProcess(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=own) as demo:
        assert demo.stdout is not None
        while moment not in (line := demo.stdout.readline()):
            assert line, "the demo ended by itself"
        while demo.poll() is None:  # an interrupt in a finalizer of py4j is lost, and a second one must end it
            demo.send_signal(sent)
            with suppress(subprocess.TimeoutExpired):
                demo.wait(30)
        _, errors = demo.communicate(timeout=200)
    assert demo.returncode == 130, errors
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_ends_by_itself_has_crashed_and_one_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    stage = EmbeddedStage(tmp_path / "run").__enter__()
    journal = OperationJournal(stage.journal / DIRECTOR)
    ignoring = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    troupe = Troupe(stage, journal, lambda name: [sys.executable, "-c", "raise SystemExit(3)" if name.startswith("w") else ignoring])
    try:
        writer, daemon = troupe.start("w0"), troupe.start("d0")
        writer.running.wait()
        troupe.revive(["d0"])
        assert troupe.crashes == ["w0.0 (exit code 3)"]
        while not (stage.log / "d0.0.log").read_bytes():
            time.sleep(0.01)
        assert troupe.dismiss("d", 0.1) == ["d0.0"]
        assert daemon.running.returncode == -signal.SIGKILL
        assert troupe.actors == {}
    finally:
        troupe.end_all()
        journal.close()


@pytest.mark.parametrize(
    ("options", "named"),
    [({"writers": 0}, "writers"), ({"daemons": 0}, "daemons"), ({"seconds": 0.5}, "seconds"), ({"objects": 0}, "objects"),
     ({"backend": "gcs"}, "gcs")],
)
def test_a_demo_that_cannot_run_is_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        DemoOptions(**options)


def test_a_demo_on_emulators_without_googles_packages_is_refused_with_the_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "emulators.demo.staging.emulators", None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"pip install '\.\[gcp\]' in the checkout"):
        run_demo(DemoOptions(backend="emulators"), as_json=False)
    assert list(tmp_path.iterdir()) == []


def test_a_demo_in_a_directory_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequestError, match="not an empty directory"):
        DemoOptions(directory=tmp_path)
