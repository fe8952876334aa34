"""`python -m emulators`: its command line, and where it cannot start anything one sentence and an exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.given.repository import ROOT

WITHOUT_GOOGLE = """
import runpy, sys
sys.modules["google"] = None
sys.argv = ["emulators", "up"]
runpy.run_module("emulators", run_name="__main__")
"""


def emulators(*arguments: str, command: tuple[str, ...] = ("-m", "emulators"), cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command, *arguments], cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=60, check=False,
    )


def test_without_the_extra_it_says_what_to_install() -> None:
    done = emulators(command=("-c", WITHOUT_GOOGLE))
    assert (done.returncode, done.stdout) == (3, "")
    assert re.fullmatch(r"emulators: the emulators need google\S*; install it with: pip install '\.\[gcp\]' in the checkout\n", done.stderr)


def test_settings_of_a_directory_are_refused(tmp_path: Path) -> None:
    (tmp_path / "names.yaml").write_text("directory: data\n")
    done = emulators("up", "--config", str(tmp_path / "names.yaml"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert "give settings with the sections bigtable and gcs" in done.stderr


def test_the_demo_plays_wherever_it_is_started_and_prints_a_report(tmp_path: Path) -> None:
    options = ("--seconds", "1", "--writers", "1", "--daemons", "1", "--seed", "1", "--no-audit", "--directory", "run", "--json")
    done = emulators("demo", *options, cwd=tmp_path)
    report = json.loads(done.stdout)
    assert (done.returncode, report["ok"], report["seed"], report["directory"]) == (0, True, 1, str(tmp_path / "run")), done.stderr
    assert "audit" not in report and report["operations"]["ok"] > 0


@pytest.mark.parametrize(("arguments", "says"), [
    (("--objects", "0"), "the demo cannot run with objects = 0"), (("--backend", "gcs"), "does not run on 'gcs'"),
    (("--directory", __file__), "is not an empty directory"), (("--directory", "/proc/nowhere"), "/proc/nowhere: "),
])
def test_a_demo_that_cannot_run_is_one_sentence(arguments: tuple[str, ...], says: str) -> None:
    done = emulators("demo", *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert done.stderr.startswith("emulators: ") and says in done.stderr


def test_the_demo_without_its_library_says_what_to_install() -> None:
    without_rich = WITHOUT_GOOGLE.replace("google", "rich").replace("up", "demo")
    done = emulators(command=("-c", without_rich))
    assert (done.returncode, done.stdout) == (3, "")
    assert re.fullmatch(r"emulators: the demo needs rich\S*; install it with: pip install '\.\[daemon\]' in the checkout\n", done.stderr)


@pytest.mark.parametrize("arguments", [
    (), ("down",), ("up", "--backend", "mysql"), ("up", "--s3-port", "9000"),
    ("up", "--gcs-port", "70000"), ("up", "--bigtable-port", "x"), ("demo", "--seconds", "x"), ("demo", "extra"),
])
def test_a_wrong_command_line_is_2(arguments: tuple[str, ...]) -> None:
    done = emulators(*arguments)
    assert (done.returncode, done.stdout) == (2, "") and "error:" in done.stderr
