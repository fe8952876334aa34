"""An environment in which the wheel is installed, with some of its extras, and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from changelog.base.extras import installing
from tests.given.processes import StartedProcess
from tests.given.repository import ROOT

UV = Path(sys.executable).parent / "uv"
WAIT_S = 600
NOT_PASSED_ON = ("PYTHONPATH", "VIRTUAL_ENV", "SPARK_HOME", "PYTHONDONTWRITEBYTECODE")
"""Variables that would lead out of the environment, or let each of its processes compile all again."""

REFUSED = 3
"""How the command ends if it cannot run. `docs/reference/command.md` lists all exit codes."""


def alone() -> dict[str, str]:
    """The variables of a stranger: nothing of this checkout is on the path."""
    return {name: value for name, value in os.environ.items() if name not in NOT_PASSED_ON} | {"PYTHONSAFEPATH": "1"}


def build_wheel(into: Path) -> Path:
    """Returns the wheel of this checkout."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    [wheel] = into.glob("*.whl")
    return wheel


def without_requirement(wheel: Path, package: str, into: Path) -> Path:
    """A copy of the wheel of which no extra brings the package."""
    changed = into / wheel.name
    removed = 0
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            lines = old.read(name).splitlines(keepends=True)
            if name.endswith(".dist-info/METADATA"):
                kept = [line for line in lines if not line.startswith(f"Requires-Dist: {package}".encode())]
                removed, lines = len(lines) - len(kept), kept
            new.writestr(name, b"".join(lines))
    assert removed, f"no extra brings {package}"
    return changed


class Environment:
    """`directory`: where commands run. `programs`: where the environment has its own."""

    def __init__(self, directory: Path, wheel: Path, extras: str = "") -> None:
        self.directory = directory
        self.programs = directory / "venv" / "bin"
        subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, directory / "venv"], check=True, timeout=WAIT_S)
        self.wheel = wheel
        self.install(f"{wheel}[{extras}]" if extras else str(wheel))

    def install(self, *what: str) -> None:
        into = ("--python", self.programs / "python", "--constraints", ROOT / "constraints.txt")
        done = subprocess.run([UV, "pip", "install", "--quiet", *into, *what], text=True, capture_output=True, timeout=WAIT_S, check=False)
        assert done.returncode == 0, done.stderr

    def end_of(self, *command: str, variables: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment to its end. Nothing of this checkout is on its path."""
        return subprocess.run(
            [self.programs / command[0], *command[1:]], cwd=self.directory, env=alone() | dict(variables or {}), text=True,
            capture_output=True, stdin=subprocess.DEVNULL, timeout=WAIT_S, check=False,
        )  # fmt: skip

    def run(self, *command: str, variables: Mapping[str, str] | None = None) -> str:
        """What it printed. It must succeed."""
        done = self.end_of(*command, variables=variables)
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def refused(self, extra: str, *command: str, variables: Mapping[str, str] | None = None, code: int = REFUSED) -> None:
        """Runs it. It must end with one sentence that says how to install the extra."""
        done = self.end_of(*command, variables=variables)
        last = done.stderr.strip().rpartition("\n")[2]
        assert installing(extra) in last and "Traceback" not in done.stderr, f"{command} says:\n{done.stdout}\n{done.stderr}"
        assert done.returncode == code, f"{command} ended with {done.returncode}: {last}"

    def add(self, extra: str) -> None:
        """Does what the sentence says. The wheel must stay the one that is installed: none may come from an index."""
        [named] = re.findall(r"'(FILE\.whl\[.+\])'", installing(extra))
        self.install(named.replace("FILE.whl", str(self.wheel)))
        origin = "import importlib.metadata as it; print(it.distribution('tiered').read_text('direct_url.json'))"
        assert self.wheel.as_uri() in self.run("python", "-c", origin)

    @contextmanager
    def running(self, *command: str) -> Iterator[str]:
        """Runs a program beside the block, and yields the first line that it prints. It is ended after the block."""
        with StartedProcess(
            [self.programs / command[0], *command[1:]], cwd=self.directory, env=alone(), text=True, stdout=subprocess.PIPE,
        ) as process:
            try:
                assert process.stdout is not None
                yield process.stdout.readline()
            finally:
                process.terminate()
