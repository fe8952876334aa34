"""What is shipped: the wheel holds the four packages and nothing else, and works where only it is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.given.repository import ROOT

PACKAGES = ("changelog", "emulators", "recovery", "tiered")


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs it as a stranger would: from elsewhere, with nothing of this tree on its path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONSAFEPATH": "1"}
    return subprocess.run(
        command, cwd=cwd, env=environment, text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=300, check=False,
    )


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, f"{done.args} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("wheel")
    succeeded(run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", into, ROOT, cwd=into))
    [built] = into.glob("*.whl")
    return built


def test_the_wheel_holds_every_module_of_the_four_packages_and_nothing_else(wheel: Path) -> None:
    held = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert held == expected | {f"{package}/py.typed" for package in PACKAGES} | {"recovery/audit/report.html.j2"}


def test_the_demo_recovers_from_kills_where_only_the_wheel_is_installed(wheel: Path, tmp_path: Path) -> None:
    succeeded(run(sys.executable, "-m", "venv", "venv", cwd=tmp_path))
    bin = tmp_path / "venv" / "bin"
    succeeded(run(bin / "python", "-m", "pip", "install", f"{wheel}[daemon]", "-c", ROOT / "constraints.txt", cwd=tmp_path))
    demo = run(bin / "tiered", "demo", "--seconds", "4", "--writers", "2", "--seed", "1", "--json", cwd=tmp_path)
    report = json.loads(succeeded(demo))
    assert report["happened"]["writer_kills"] > 0, demo.stderr
    assert report["happened"]["recovered"] > 0, demo.stderr
    assert set(report["flaws"].values()) == {0}, demo.stderr
    assert "dangling" in report["flaws"]
