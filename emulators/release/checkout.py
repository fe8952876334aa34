"""The commit that is released: its work tree is clean, it is not released yet, and HISTORY.md tells of it."""

from __future__ import annotations

import re
import subprocess
import tomllib
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SHOWN_MAX = 20
UNRELEASED = "unreleased"


class NotReadyError(Exception):
    """This checkout cannot be released. The message says what stands in the way and what to do."""


@dataclass(frozen=True)
class Checkout:
    """`commit`: its 40 digits. `dated`: the day of the version in HISTORY.md, or `None` as long as it is unreleased."""

    root: Path
    commit: str
    version: str
    dated: date | None

    @property
    def tag(self) -> str:
        return f"v{self.version}"


def checkout(root: Path = ROOT) -> Checkout:
    """Returns what is released. Raises `NotReadyError`; then nothing was done."""
    commit = clean_commit(root)
    version = str(project(root)["version"])
    tag = f"v{version}"
    if _git(root, "tag", "--list", tag).strip():
        of = _git(root, "rev-list", "-n", "1", tag).strip()
        raise NotReadyError(f"{version} is released: {tag} is the commit {of}. Raise the version in pyproject.toml")
    return Checkout(root, commit, version, _dated(root, version))


def clean_commit(root: Path) -> str:
    """Returns the commit of a work tree in which nothing is uncommitted. Raises `NotReadyError`."""
    uncommitted = _git(root, "status", "--porcelain", "--untracked-files=all").splitlines()
    if uncommitted:
        more = [f"   and {len(uncommitted) - SHOWN_MAX} more"] if len(uncommitted) > SHOWN_MAX else []
        raise NotReadyError("\n".join(["commit, remove or ignore these first:", *uncommitted[:SHOWN_MAX], *more]))
    return _git(root, "rev-parse", "HEAD").strip()


def project(root: Path) -> dict[str, Any]:
    """Returns the table `project` of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    return table


def _dated(root: Path, version: str) -> date | None:
    found = re.search(rf"^## {re.escape(version)} \((.*)\)$", (root / "HISTORY.md").read_text("utf-8"), re.MULTILINE)
    if found is None:
        raise NotReadyError(f"HISTORY.md has no notes of {version}: add a section `## {version} ({UNRELEASED})`, or with the day")
    if found[1] == UNRELEASED:
        return None
    try:
        return date.fromisoformat(found[1])
    except ValueError:
        raise NotReadyError(f"HISTORY.md dates {version} {found[1]!r}: write `{UNRELEASED}` or a day such as 2026-11-28") from None


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotReadyError(f"{root} is no clone that git can read: git {arguments[0]} says: {done.stderr.strip()}")
    return done.stdout
