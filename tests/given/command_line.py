"""The `tiered` command in a process of its own, a shell line that runs it, and a change whose writer died."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import anyio

from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from tiered import Settings
from tiered.open import open_backends

OBJECT = "photos/org.17/objects/2026/cat.jpg"


class Command:
    """`tiered` in a process of its own, on a store in a temporary directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = directory / "store"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("TIERED_")}

    def __call__(
        self, *arguments: str, stdin: bytes = b"", code: int = 0, store: bool = True, python: tuple[str, ...] = ("-m", "recovery.cli.main")
    ) -> str:
        where = ["--directory", str(self.store)] if store else []
        done = subprocess.run(
            [sys.executable, *python, *where, *arguments],
            input=stdin, capture_output=True, cwd=self.directory, env=self.environment, timeout=60, check=False,
        )
        self.errors = done.stderr.decode()
        assert done.returncode == code, f"exit code {done.returncode}: {self.errors}"
        assert "Traceback" not in self.errors
        return done.stdout.decode()


def shell(stored: Command, line: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a line in which `tiered` is the command."""
    tiered = f"{sys.executable} -m recovery.cli.main --directory {stored.store}"
    command = ["bash", "-o", "pipefail", "-c", line.replace("tiered", tiered, 1)]
    return subprocess.run(command, capture_output=True, env=stored.environment, timeout=60, check=False)


def plant(store: Path, old: str | None, *, released: bool = True) -> ChangeId:
    """An entry of a process that died: long ago, or just now."""
    async def record() -> ChangeId:
        runtime = SystemRuntime()
        async with open_backends(Settings(directory=store, changelog="sqlite"), runtime) as backends:
            change = Change(ChangeId.new(runtime), OBJECT, None, old)
            entry = await backends.log.record(change, "dead")
            assert not released or await backends.log.release(entry)
            return change.id

    return anyio.run(record)
