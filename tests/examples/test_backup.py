"""examples/backup.sh: it backs up and says nothing, and every failure, also of the alert itself, is told."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

import examples.process_store

SCRIPT = Path(examples.process_store.__file__).with_name("backup.sh")
OBJECTS = "backups/host.web1/objects/photos"
HERE = {"PYTHONPATH": str(SCRIPT.parents[1])}
"""So that the command is of this checkout, where there is one."""
Backup = Callable[..., tuple[int, str]]


@pytest.fixture
def backup(tmp_path: Path) -> Backup:
    """Runs the script in a directory with `photos` and `tiered.yaml`. Returns its exit code, and the alert, if any."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat.jpg").write_bytes(b"cat")
    (tmp_path / "tiered.yaml").write_text("directory: store\n")
    (tmp_path / "alert").write_text('#!/bin/sh\n{ echo "$1"; cat; } > alerted\n')
    (tmp_path / "alert").chmod(0o755)
    own = {"TIERED_CONFIG": "tiered.yaml", "ALERT": "./alert", "PAUSES": "0", "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()

    def run(*arguments: str, **variables: str) -> tuple[int, str]:
        (tmp_path / "alerted").unlink(missing_ok=True)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", SCRIPT, *arguments], cwd=tmp_path, text=True, capture_output=True, timeout=200, check=False,
            env={**os.environ, **HERE, "PATH": path, **own, **variables},
        )  # fmt: skip
        assert list((tmp_path / "tmp").iterdir()) == [], "it left something"
        assert done.stdout == "" and bool(done.stderr) == (done.returncode != 0), done
        alerted = (tmp_path / "alerted").read_text() if (tmp_path / "alerted").exists() else ""
        return done.returncode, alerted

    return run


def tiered(directory: Path, *arguments: str) -> str:
    command = [str(Path(sys.executable).with_name("tiered")), "-c", "tiered.yaml", *arguments]
    environment = {**os.environ, **HERE}
    done = subprocess.run(command, cwd=directory, env=environment, text=True, capture_output=True, timeout=200, check=True)
    return done.stdout


def test_a_directory_that_is_not_there_is_told_and_so_is_a_wrong_command(backup: Backup) -> None:
    code, told = backup("run", "/no/such", OBJECTS)
    assert code == 1 and told.splitlines()[0] == f"backup: run of {OBJECTS} on {os.uname().nodename} failed"
    assert "there is no directory /no/such" in told
    assert backup("run", "photos")[0] == 2


@pytest.mark.night
def test_a_night_is_backed_up_and_brought_back(backup: Backup, tmp_path: Path) -> None:
    assert backup("begin", OBJECTS) == (0, "")
    code, told = backup("check", "30", OBJECTS)
    assert code == 1 and "the last success was" in told, "nothing was backed up yet"
    assert backup("run", "photos", OBJECTS) == (0, "")
    (tmp_path / "photos/cat.jpg").rename(tmp_path / "photos/moved.jpg")
    assert backup("run", "photos", OBJECTS) == (0, "")
    assert backup("check", "30", OBJECTS) == (0, "")
    tiered(tmp_path, "sync", f"{OBJECTS}/{datetime.now().isoweekday()}", "restored")
    assert [(path.name, path.read_bytes()) for path in (tmp_path / "restored").iterdir()] == [("moved.jpg", b"cat")]


@pytest.mark.night
@pytest.mark.parametrize("fault", ["store", "empty", "name", "old", "no number", "away", "running", "alert"])
def test_a_planted_failure_is_told(fault: str, backup: Backup, tmp_path: Path) -> None:
    backup("begin", OBJECTS)
    command: tuple[str, ...] = ("run", "photos", OBJECTS)
    variables = {}
    match fault:
        case "store":  # its disk is not mounted
            (tmp_path / "store").rename(tmp_path / "elsewhere")
            wanted = "is the store there, and begun?"
        case "empty":  # nor is this one
            (tmp_path / "photos/cat.jpg").unlink()
            wanted = "--allow-empty"
        case "name":
            (tmp_path / "photos/a\nb").touch()
            wanted = "control character"
        case "old" | "no number":
            (tmp_path / "at").write_text("1764547200\n" if fault == "old" else "no number\n")
            tiered(tmp_path, "put", f"{OBJECTS}/succeeded", "at")
            command, wanted = ("check", "30", OBJECTS), "hours ago" if fault == "old" else "it ended too early"
        case "away":
            nobody = "postgres: {dsn: 'postgresql://nobody@127.0.0.1:9/none'}"
            (tmp_path / "tiered.yaml").write_text(f"directory: store\n{nobody}\nstore: {{answer_budget_s: 1}}\n")
            wanted = "tiered get ended with 4"
        case "running":
            held = os.open(tmp_path / "photos", os.O_RDONLY)
            fcntl.flock(held, fcntl.LOCK_EX)
            wanted = "another run is still under way"
        case _:
            (tmp_path / "photos/cat.jpg").unlink()
            variables, wanted = {"ALERT": "false"}, ""
    code, told = backup(*command, **variables)
    assert code == 1 and wanted in told, told
    assert not (tmp_path / "store").exists() or fault != "store", "a new store was made"
