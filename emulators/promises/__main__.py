"""`python -m emulators.promises`: what the last release promised and today's code does not keep. Ends with 1 if any.

Each source tree describes itself, in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from emulators.promises.breaks import breaks, refusal
from emulators.promises.python_names import python_names
from emulators.released import ROOT, NotReleasedError, released

EXTRACTOR = Path(__file__).with_name("surface.py")


class UndescribedError(Exception):
    """A source tree cannot be described. The message says why."""


def refused(version: str, old: Path, new: Path, *, long: bool = False) -> list[str]:
    """Returns a sentence for each broken promise that is not allowed. `long`: also the JSON of audits and exports.

    Raises `UndescribedError`.
    """
    found = sorted(breaks(described(old, long=long), described(new, long=long)))
    return [sentence for each in found if (sentence := refusal(each, version, old, new)) is not None]


def described(root: Path, *, long: bool = False) -> dict[str, dict[str, Any]]:
    """Returns the table of a tree, by today's programs. Raises `UndescribedError`."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TIERED_")}
    command = [sys.executable, str(EXTRACTOR), str(root), *(["--long"] if long else [])]
    done = subprocess.run(
        command, cwd=root, env=variables | {"PYTHONPATH": str(root), "PYTHONSAFEPATH": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise UndescribedError(f"{EXTRACTOR} cannot describe {root}. If code has moved, let it look in both places:\n{done.stderr.strip()}")
    others: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return dict(python_names(root)) | others


def main() -> int:
    try:
        release = released()
        found = refused(release.version, release.source(), ROOT, long=True)
    except (NotReleasedError, UndescribedError) as error:
        found = [str(error)]
    for each in found:
        sys.stderr.write(f"{each}\n")
    if not found:
        sys.stdout.write(f"what {release.version} ({release.commit[:8]}) promised is kept, or was deprecated by it\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
