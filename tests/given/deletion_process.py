"""A deletion in a process of its own, which kills itself at one point.

    python -m tests.given.deletion_process SETTINGS RUN POINT      settings as `packed` tells them

POINT: `intended` before the plan is written, `planned` after it, `copied` after the third copy, `deleted` after the
third deletion, or when a service has carried out half of a request with many, `unnoted` before the outcomes of the
first batch are written, `noted` after that; `never`: it goes on to its end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import anyio

from changelog.base.runtime import SystemRuntime
from recovery.audit.deleting.deletion import delete_orphans
from recovery.audit.deleting.gates import DeletionRequest
from recovery.audit.deleting.journal import DeletionJournal
from recovery.audit.files.directory import DirectoryFiles
from tests.given.repository import ROOT
from tiered.embedded.blobs import FileBlobs
from tiered.gcs.blobs import GcsBlobs
from tiered.s3.blobs import S3Blobs
from tiered.services.scans import Generation
from tiered.settings import Settings

POINTS = ("intended", "planned", "copied", "deleted", "unnoted", "noted")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_after(owner: Any, name: str, times: int) -> None:
    call = getattr(owner, name)
    count = 0

    @wraps(call)
    async def counted(*args: Any, **named: Any) -> Any:
        nonlocal count
        result = await call(*args, **named)
        count += 1
        if count >= times:
            die()
        return result

    setattr(owner, name, counted)


def kill_in_the_middle_of_a_request() -> None:
    call = GcsBlobs.delete_generations

    @wraps(call)
    async def halved(self: GcsBlobs, blobs: Sequence[tuple[str, Generation]]) -> Any:
        await call(self, blobs[: len(blobs) // 2])
        die()

    setattr(GcsBlobs, "delete_generations", halved)  # noqa: B010 - mypy knows methods


def around(owner: Any, name: str, *, before: Callable[..., bool] | None = None, after: Callable[..., bool] | None = None) -> None:
    call = getattr(owner, name)

    @wraps(call)
    def watched(*args: Any, **named: Any) -> Any:
        if before is not None and before(*args):
            die()
        result = call(*args, **named)
        if after is not None and after(*args):
            die()
        return result

    setattr(owner, name, watched)


def are_outcomes(journal: DeletionJournal, batch: int, entries: Any) -> bool:
    return any(each.outcome is not None for each in entries)


def arm(point: str) -> None:
    match point:
        case "intended":
            around(DirectoryFiles, "create", before=lambda *_: True)
        case "planned":
            around(DeletionJournal, "begin", after=lambda *_: True)
        case "copied":
            for blobs in (FileBlobs, GcsBlobs, S3Blobs):
                kill_after(blobs, "set_aside", 3)
        case "deleted":
            for blobs in (FileBlobs, S3Blobs):
                kill_after(blobs, "delete_generation", 3)
            kill_in_the_middle_of_a_request()
        case "unnoted":
            around(DeletionJournal, "write", before=are_outcomes)
        case "noted":
            around(DeletionJournal, "write", after=are_outcomes)


def start(settings: Settings, to: str, point: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.given.deletion_process", settings.packed(), to, point]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE)


def settings_of(store: Path) -> Settings:
    return Settings(directory=store, changelog="sqlite", inline_bytes_max=1)


if __name__ == "__main__":
    arm(sys.argv[3])
    request = DeletionRequest(sys.argv[2], at_most=1_000_000, rate_per_s=2000.0, quarantine="test")
    anyio.run(delete_orphans, Settings.unpacked(sys.argv[1]), request, SystemRuntime(), lambda _: None)
