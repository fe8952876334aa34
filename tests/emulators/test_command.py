"""`python -m emulators` where it cannot start anything: one sentence, and an exit code."""

from __future__ import annotations

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


def emulators(*arguments: str, command: tuple[str, ...] = ("-m", "emulators")) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_without_the_extra_it_says_what_to_install() -> None:
    done = emulators(command=("-c", WITHOUT_GOOGLE))
    assert (done.returncode, done.stdout) == (3, "")
    assert re.fullmatch(r"emulators: the emulators need google\S*; install it with: pip install 'tiered\[gcp\]'\n", done.stderr)


def test_settings_of_a_directory_are_refused(tmp_path: Path) -> None:
    (tmp_path / "names.yaml").write_text("directory: data\n")
    done = emulators("up", "--config", str(tmp_path / "names.yaml"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert "give settings with the sections bigtable and gcs" in done.stderr


@pytest.mark.parametrize("arguments", [(), ("down",), ("up", "--gcs-port", "70000"), ("up", "--bigtable-port", "x")])
def test_a_wrong_command_line_is_2(arguments: tuple[str, ...]) -> None:
    done = emulators(*arguments)
    assert (done.returncode, done.stdout) == (2, "") and "error:" in done.stderr
