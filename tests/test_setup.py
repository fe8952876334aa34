"""What `make` installs, and says before it does: each target what it needs, and no more."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.given.repository import ROOT

MAKE = shutil.which("make")
pytestmark = pytest.mark.skipif(MAKE is None, reason="there is no make")
STAMPS = {"dev": {"installed", "installed-for-quick", "installed-for-demo"}, "test": {"installed-for-quick", "installed-for-demo"},
          "demo": {"installed-for-demo"}}  # fmt: skip
TARGETS = [("demo", "demo"), ("quick", "test"), ("up", "test"), *((each, "dev") for each in ("setup", "test", "check", "night", "chaos"))]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that `make` looks at. Nothing is installed."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def lines(checkout: Path, *arguments: str) -> list[str]:
    """What `make` would run."""
    assert MAKE is not None
    done = subprocess.run([MAKE, "--dry-run", *arguments], cwd=checkout, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize(("target", "extra"), TARGETS)
@pytest.mark.parametrize("uv", ["", "/somewhere/uv"])
def test_a_target_says_first_what_comes_and_installs_its_extra(checkout: Path, target: str, extra: str, uv: str) -> None:
    first, *rest = lines(checkout, target, f"UV={uv}")
    assert re.fullmatch(r"echo 'First .* goes into \.venv: \d.*[MG]B and .*minutes?\b.*'", first)
    installed = [each for each in rest if " install " in each]
    assert set(re.findall(r"-e '\.\[(\w+)\]' -c constraints\.txt", "\n".join(installed))) == {extra}
    assert ("/somewhere/uv pip install" in installed[0]) == bool(uv)
    [touched] = [set(each.split()[1:]) for each in rest if each.startswith("touch ")]
    assert touched == {f".venv/{name}" for name in STAMPS[extra]}


@pytest.mark.parametrize(("target", "extra"), TARGETS)
def test_what_is_installed_is_not_installed_again(checkout: Path, target: str, extra: str) -> None:
    (checkout / ".venv").mkdir()
    for name in STAMPS[extra]:
        (checkout / ".venv" / name).touch()
    assert not [each for each in lines(checkout, target) if "install" in each]


def test_an_old_python_is_refused_before_anything_is_made(checkout: Path) -> None:
    old = checkout / "old-python"
    old.write_text('#!/bin/sh\nexec python3 -c "import sys; sys.version_info = (3, 10, 1); exec(sys.argv[1])" "$2"\n')
    old.chmod(0o755)
    assert MAKE is not None
    done = subprocess.run([MAKE, "demo", f"PYTHON={old}", "UV="], cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "Python 3.11 or newer is needed" in done.stderr
    assert not (checkout / ".venv").exists()
