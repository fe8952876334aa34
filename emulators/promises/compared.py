"""Compares two source trees: what the one promised, and what the other keeps. Each describes itself, in its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from emulators.promises.breaks import Break, UndescribedError, surface_breaks, told
from emulators.promises.python_names import python_breaks

EXTRACTOR = Path(__file__).with_name("surface.py")


def refused(version: str, old: Path, new: Path, *, long: bool = False) -> list[str]:
    """Returns a sentence for each broken promise that is not allowed. `long`: also the JSON of audits and exports.

    Raises `UndescribedError`.
    """
    known = told(version, old, new)
    return [sentence for each in sorted(_broken(old, new, long)) if (sentence := known.refusal(each)) is not None]


def _broken(old: Path, new: Path, long: bool) -> Iterator[Break]:
    yield from python_breaks(old, new)
    yield from surface_breaks(described(old, long=long), described(new, long=long))


def described(root: Path, *, long: bool = False) -> dict[str, dict[str, Any]]:
    """Returns the surface of a tree, by today's `surface.py`. Raises `UndescribedError`."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TIERED_")}
    command = [sys.executable, str(EXTRACTOR), str(root), *(["--long"] if long else [])]
    done = subprocess.run(
        command, cwd=root, env=variables | {"PYTHONPATH": str(root), "PYTHONSAFEPATH": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise UndescribedError(f"{EXTRACTOR} cannot describe {root}. If code has moved, let it look in both places:\n{done.stderr.strip()}")
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found
