"""A Java that is a script."""

from __future__ import annotations

from pathlib import Path


def plant(home: Path, specification: str | None) -> Path:
    """A Java of this version; None: it fails, like the stub of a system that has none."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    says = "" if specification is None else f"    java.home = {home}\n    java.specification.version = {specification}\n"
    executable.write_text(f"#!/bin/sh\ncat >&2 <<'END'\nProperty settings:\n{says}END\n{'exit 1' if specification is None else ''}\n")
    executable.chmod(0o755)
    return home
