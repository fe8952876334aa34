"""Programs that are written in Go: found, built once, and, if they are servers, run and stopped.

They are packages of others in one pinned version, or a folder of this checkout. A build is kept in ~/.cache/tiered
(XDG_CACHE_HOME). *Crash* of this process, even by kill -9, leaves no server behind: a warden process notices and kills
it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import anyio
from anyio.abc import Process

BUILD_S = 600.0

# The shell becomes the server and leaves a warden behind. A line on stdin tells the warden to go. The end of stdin,
# which the death of this process brings, makes the warden kill the server. (A background job has no stdin of its own,
# hence 3.)
WITH_WARDEN = 'exec 3<&0; { read _ <&3 || kill -9 $$; } >/dev/null 2>&1 & exec "$@" </dev/null 3<&-'


class NotBuiltError(Exception):
    """The program is not here and could not be built. The message says why."""


@dataclass(frozen=True)
class GoProgram:
    """A program, as its Go package. `command`: what it is called on PATH. `build_s`: how long a build may take.

    `folder`: it is ours, and its source is there; `our_program` makes one.
    """

    command: str
    package: str
    version: str
    build_s: float = BUILD_S
    folder: Path | None = None

    def on_path(self) -> Path | None:
        return which(self.command)

    def cached(self) -> Path:
        """Returns where the build is kept, whether or not it is there."""
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(cache) / "tiered" / f"{self.command}-{self.version}"

    def found(self) -> Path | None:
        """On PATH, or built before. Ours is never taken from PATH, because it must be of this source."""
        on_path = None if self.folder else self.on_path()
        return on_path or (cached if (cached := self.cached()).exists() else None)

    async def ready(self) -> Path:
        """Builds it where there is none. Raises `NotBuiltError`."""
        return self.found() or await self.build()

    async def build(self) -> Path:
        """Builds the program in another directory and moves it into place in one step.

        If two build at the same time, both succeed. Raises `NotBuiltError`.
        """
        go, target = which("go"), self.cached()
        if go is None:
            raise NotBuiltError("none is installed, and there is no Go to build it with")
        target.parent.mkdir(parents=True, exist_ok=True)
        logging.getLogger("emulators").warning("%s is built now, once, which may take minutes", self.command)
        with TemporaryDirectory(dir=target.parent) as aside:
            env = {**os.environ, "GOBIN": aside, "GOFLAGS": "-mod=readonly -buildvcs=false" if self.folder else "-mod=mod"}
            wanted = "." if self.folder else f"{self.package}@{self.version}"
            try:
                with anyio.fail_after(self.build_s):
                    await anyio.run_process([str(go), "install", wanted], cwd=self.folder, env=env)
            except subprocess.CalledProcessError as failed:
                said = " ".join(failed.stderr.decode(errors="replace").split())[-500:]
                raise NotBuiltError(f"none is installed, and `go install` of {self.package}@{self.version} says: {said}") from failed
            except TimeoutError as failed:
                raise NotBuiltError(f"none is installed, and building {self.package} took longer than {self.build_s:.0f} s") from failed
            (Path(aside) / self.package.rpartition("/")[2]).replace(target)
        return target


def our_program(folder: Path) -> GoProgram:
    """A program of this checkout: the folder's name is its command, and its version is what its files hold."""
    source = b"\0".join(each.read_bytes() for each in sorted(folder.glob("*.*")))
    return GoProgram(folder.name, folder.name, hashlib.blake2b(source, digest_size=8).hexdigest(), folder=folder)


def which(command: str) -> Path | None:
    """Finds a command on PATH, or beside this Python, where wheels put their commands."""
    places = [*os.environ.get("PATH", "").split(os.pathsep), str(Path(sys.executable).parent)]
    found = shutil.which(command, path=os.pathsep.join(place for place in places if place))
    return Path(found) if found else None


@asynccontextmanager
async def running(command: list[str], said: IO[bytes] | int | None = None, env: Mapping[str, str] | None = None) -> AsyncIterator[Process]:
    """Runs a server until the end of the block. `said`: receives its stderr. `env`: variables besides those of here."""
    # It gets a session of its own. Ctrl-C then reaches only this process, which stops the server in order.
    process = await anyio.open_process(
        ["sh", "-c", WITH_WARDEN, "sh", *command], stderr=said, env={**os.environ, **(env or {})}, start_new_session=True
    )
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            await _stop(process)


async def _stop(process: Process) -> None:
    assert process.stdin is not None
    with suppress(anyio.BrokenResourceError):  # the warden is gone already
        await process.stdin.send(b"\n")
    with suppress(ProcessLookupError):  # it died on its own
        process.kill()
    await process.aclose()
