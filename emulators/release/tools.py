"""The packages that a release needs, in an environment of their own, build/release/tools. It is made once.

They are the dependency group `release` of pyproject.toml, in the versions of constraints.txt. What only a release needs
is not in `.venv`, so nobody waits for it who wants to run a test.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from emulators.release.checkout import ROOT

PLACE = ROOT / "build" / "release"
DIST = ROOT / "dist"
CONSTRAINTS = ROOT / "constraints.txt"
SUMS = "SHA256SUMS"


class ToolError(Exception):
    """A tool failed. The message has its command and what it said."""


def command(
    *words: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None, umask: int = -1
) -> str:
    """Returns what a command printed. `env`: all of its variables, if given. Raises `ToolError`."""
    done = subprocess.run(
        words, cwd=cwd, env=env, umask=umask, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ToolError(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def pip(into: Path, *words: str | Path) -> str:
    """Runs the pip of this Python for the environment `into`, in the pinned versions. Raises `ToolError`."""
    at = ("--python", into / "bin" / "python")
    return command(sys.executable, "-m", "pip", "--disable-pip-version-check", *at, *words, "-c", CONSTRAINTS, cwd=PLACE)


def tools() -> Path:
    """Returns where the programs of the tools are. The first call takes a minute. Raises `ToolError`."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]["release"]
    return environment("tools", wanted) / "bin"


def environment(name: str, wanted: Sequence[str], python: str | Path = sys.executable, of: str = "") -> Path:
    """Returns an environment in build/release that has `wanted`, and makes it anew if anything differs.

    `of`: what else it depends on, such as the SHA-256 of a file in `wanted`. Raises `ToolError`.
    """
    target = PLACE / name
    state = hashlib.sha256(repr((wanted, str(python), of, CONSTRAINTS.read_bytes())).encode()).hexdigest()
    stamp = target / "made-of"
    if stamp.is_file() and stamp.read_text() == state:
        return target
    shutil.rmtree(target, ignore_errors=True)
    PLACE.mkdir(parents=True, exist_ok=True)
    command(python, "-m", "venv", "--without-pip", target, cwd=PLACE)
    pip(target, "install", "--quiet", *wanted)
    stamp.write_text(state)
    return target


def plain_environment() -> dict[str, str]:
    """Returns the variables of this process without those that change what is built or found."""
    return {name: value for name, value in os.environ.items() if name not in {"SOURCE_DATE_EPOCH", "PYTHONPATH", "PYTHONHOME"}}


def sha256(file: Path) -> str:
    """Returns the SHA-256 of a file, as hex digits."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def write_sums(dist: Path) -> None:
    """Writes SHA256SUMS of all else that is in `dist`, as sha256sum reads it."""
    files = sorted(file for file in dist.iterdir() if file.name != SUMS)
    (dist / SUMS).write_text("".join(f"{sha256(file)}  {file.name}\n" for file in files), encoding="utf-8")


def not_as_summed(dist: Path) -> list[str]:
    """Returns a sentence for each file that is not as SHA256SUMS says, is missing, or is not named there."""
    sums = dist / SUMS
    if not sums.is_file():
        return [f"{sums} is missing: run the step build"]
    named = {name: digest for digest, _, name in (line.partition("  ") for line in sums.read_text("utf-8").splitlines())}
    there = {file.name: sha256(file) for file in dist.iterdir() if file.name != SUMS}
    return [
        f"{dist / name} {'is missing' if name not in there else f'is not named in {SUMS}' if name not in named else 'was changed'}"
        for name in sorted(named.keys() | there.keys()) if named.get(name) != there.get(name)
    ]


def built(pattern: str) -> Path:
    """Returns the one file of dist/ with this form of name, as it was built. Raises `ToolError`."""
    wrong = not_as_summed(DIST)
    if wrong:
        raise ToolError("\n".join(wrong))
    found = list(DIST.glob(pattern))
    if len(found) != 1:
        raise ToolError(f"dist/ must have one {pattern}, and has {len(found)}: run the step build")
    return found[0]
