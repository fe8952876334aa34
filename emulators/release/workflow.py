"""`python -m emulators.release.workflow`: looks at the workflow of a public forge with actionlint, built once with Go.

That is what can be known of it here: no forge has run it. Exit codes: 0: nothing is wrong. 1: something is.
77: actionlint cannot be had.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio

from emulators.go import GoServer, NotBuiltError
from emulators.release.checkout import ROOT

ACTIONLINT = GoServer("actionlint", "github.com/rhysd/actionlint/cmd/actionlint", "v1.7.12")
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
CANNOT = 77


async def actionlint() -> Path:
    """Returns the program: from the PATH, kept, or built. Raises `NotBuiltError`."""
    found = ACTIONLINT.on_path()
    kept = ACTIONLINT.cached()
    return found or (kept if kept.is_file() else await ACTIONLINT.build())


def look(program: Path, workflow: Path) -> tuple[int, str]:
    """Returns actionlint's exit code and its words about a workflow."""
    done = subprocess.run([program, "-no-color", workflow], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def main() -> int:
    try:
        program = anyio.run(actionlint)
    except NotBuiltError as failed:
        sys.stdout.write(f"not proved: that {WORKFLOW.relative_to(ROOT)} is right: no actionlint: {failed}\n")
        return CANNOT
    code, said = look(program, WORKFLOW)
    sys.stdout.write(said)
    sys.stdout.write(f"not proved: that {WORKFLOW.relative_to(ROOT)} runs: no forge has run it\n")
    return 1 if code else 0


if __name__ == "__main__":
    sys.exit(main())
