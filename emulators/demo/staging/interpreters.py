"""Which code a process of the demo runs: this checkout's, or that of another interpreter, in turn.

The modules of the demo are always this checkout's. The other interpreter finds them through a link, and `tiered` in its
own environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emulators.released import NotReleasedError, Release

EMULATORS = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Interpreter:
    """`code`: what it runs, for reports. `path`: where it looks for packages before its own environment."""

    code: str
    python: str
    path: str

    def variables(self) -> dict[str, str]:
        """Returns the variables of its processes. The directory where they are started has no say."""
        return {"PYTHONPATH": self.path, "PYTHONSAFEPATH": "1"}


def today() -> Interpreter:
    """Returns the one that runs this process. It finds what this process finds."""
    return Interpreter("today", sys.executable, os.pathsep.join(path or os.getcwd() for path in sys.path))


def of_release(release: Release) -> Interpreter:
    """Returns the one that has the wheel of this release. Raises `NotReleasedError`."""
    python, linked = release.python(), release.kept / "demo" / EMULATORS.name
    linked.parent.mkdir(exist_ok=True)
    try:
        linked.symlink_to(EMULATORS)
    except FileExistsError:
        if linked.resolve() != EMULATORS.resolve():
            raise NotReleasedError(f"{linked} leads to {linked.resolve()}, and not to {EMULATORS}: remove it") from None
    found = Interpreter(release.version, str(python), str(linked.parent))
    told = [found.python, "-c", "import tiered; print(tiered.__file__)"]
    where = subprocess.run(told, env=os.environ | found.variables(), capture_output=True, text=True, check=True).stdout.strip()
    if not Path(where).is_relative_to(release.kept):
        raise NotReleasedError(f"processes of {release.version} would run {where}, which is not of its wheel: remove {release.kept}")
    return found


def chosen(interpreters: Sequence[Interpreter], part: str, incarnation: int) -> Interpreter:
    """Returns the one of a process. Neighbours differ, and each restart changes it: an upgrade, then a downgrade."""
    return interpreters[(int(part[1:]) + incarnation) % len(interpreters)]
