"""The last release, beside which today's code is tried: its source, its wheel and an interpreter that has it installed,
made from this repository's history.

`.ci/released` names its version and its commit. Until a version is released, the commit is the candidate's. What is
made is kept in build/released and made once: in another directory, then moved into place in one step, so that
processes which make it at the same time all succeed.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from sysconfig import get_path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
NAMED_IN = ROOT / ".ci" / "released"
RELEASED = "released"
LINE = re.compile(r"(?P<version>\d+\.\d+\.\d+) (?P<commit>[0-9a-f]{40})\n")


class NotReleasedError(Exception):
    """The release cannot be had here. The message says why and what to do."""


@dataclass(frozen=True)
class Release:
    """A version and the whole name of its commit. Of a commit that is no release, the version is a short name."""

    version: str
    commit: str

    @property
    def kept(self) -> Path:
        return ROOT / "build" / "released" / self.commit

    def source(self) -> Path:
        """Returns the directory of its files, as its commit has them. Raises `NotReleasedError`."""
        target = self.kept / "source"
        if not target.exists():
            _once(target, self._unpack)
        return target

    def wheel(self) -> Path:
        """Returns its wheel, built from `source()`. Raises `NotReleasedError`."""
        target = self.kept / "wheel"
        if not target.exists():
            _once(target, self._build)
        [wheel] = target.glob("*.whl")
        return wheel

    def python(self) -> Path:
        """Returns an interpreter of an environment that has its wheel. All that it needs comes from the environment of
        this process. Raises `NotReleasedError`.
        """
        target = self.kept / f"environment-{sys.implementation.cache_tag}"
        if not target.exists():
            _once(target, self._install)
        return target / "bin" / "python"

    def _install(self, into: Path) -> None:
        python, wheel = into / "bin" / "python", self.wheel()
        _run([sys.executable, "-m", "venv", "--without-pip", str(into)], f"no environment can be made for {self.version}")
        _run([sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check", "--no-deps",
              "--no-index", str(wheel)], f"the wheel of {self.version} cannot be installed")  # fmt: skip
        [packages] = into.glob("lib/python*/site-packages")
        (packages / "of_this_checkout.pth").write_text("\n".join(dict.fromkeys((get_path("purelib"), get_path("platlib")))) + "\n")
        told = "import changelog, recovery, tiered; print(changelog.__file__, recovery.__file__, tiered.__file__, sep='\\n')"
        found = _run([str(python), "-P", "-c", told], f"the wheel of {self.version} cannot be imported").split()
        if others := [path for path in found if not Path(path).is_relative_to(packages)]:
            raise NotReleasedError(f"the environment of {self.version} imports {others[0]}, which is not of its wheel: remove {self.kept}")

    def _unpack(self, into: Path) -> None:
        done = subprocess.run(["git", "archive", self.commit], cwd=ROOT, capture_output=True, check=False)
        if done.returncode != 0:
            said = " ".join(done.stderr.decode(errors="replace").split())
            raise NotReleasedError(f"the commit {self.commit} of {self.version} is not here: clone with all history (git says: {said})")
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(into, filter="data")

    def _build(self, into: Path) -> None:
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)]
        _run(command, f"the wheel of {self.version} cannot be built from {self.source()}", cwd=self.source())


def released(named_in: Path = NAMED_IN) -> Release:
    """Returns the last release. Raises `NotReleasedError` if the file does not name one."""
    line = named_in.read_text()
    found = LINE.fullmatch(line)
    if found is None:
        raise NotReleasedError(f"{named_in} must be one line, a version and the 40 digits of its commit; it is {line!r}")
    return Release(**found.groupdict())


def commit(named: str) -> Release:
    """Returns any commit of the history as if it were the release. Raises `NotReleasedError` if there is none."""
    done = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{named}^{{commit}}"], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise NotReleasedError(f"there is no commit {named!r} here: name one that `git log` lists, or clone with all history")
    found = done.stdout.strip()
    return Release(found[:8], found)


def other(named: str) -> Release:
    """Returns the last release (`released`), or a commit. Raises `NotReleasedError`."""
    return released() if named == RELEASED else commit(named)


def _run(command: list[str], failed: str, cwd: Path = ROOT) -> str:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=variables, check=False)
    if done.returncode != 0:
        raise NotReleasedError(f"{failed}: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


def _once(target: Path, make: Callable[[Path], None]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent) as aside:
        made = Path(aside) / "made"
        made.mkdir()
        make(made)
        try:
            made.rename(target)
        except OSError:
            if not target.exists():
                raise  # nobody else made it meanwhile
