"""A deletion in a process of its own, which kills itself at one point.

    python -m tests.given.deletion_process STORE RUN POINT

POINT: `planned` before the order is written, `ordered` after it, `copied` after the third copy, `deleted` after the
third deletion, `unnoted` before the fates of the first batch are written, `noted` after that; `never`: it goes on to
its end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import anyio

from changelog.base.runtime import SystemRuntime
from recovery.audit.deleting.gates import Asked
from recovery.audit.deleting.journal import Journal
from recovery.audit.deleting.run import Wish, delete_orphans
from recovery.audit.directory import Files
from tiered.embedded.blobs import FileBlobs
from tiered.settings import Settings

POINTS = ("planned", "ordered", "copied", "deleted", "unnoted", "noted")


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


def are_fates(journal: Journal, batch: int, entries: Any) -> bool:
    return any(each.fate is not None for each in entries)


def arm(point: str) -> None:
    match point:
        case "planned":
            around(Files, "create", before=lambda *_: True)
        case "ordered":
            around(Journal, "begin", after=lambda *_: True)
        case "copied":
            kill_after(FileBlobs, "copy_generation", 3)
        case "deleted":
            kill_after(FileBlobs, "delete_generation", 3)
        case "unnoted":
            around(Journal, "write", before=are_fates)
        case "noted":
            around(Journal, "write", after=are_fates)


def settings_of(store: Path) -> Settings:
    return Settings(directory=store, changelog="sqlite", inline_bytes_max=1)


if __name__ == "__main__":
    arm(sys.argv[3])
    wish = Wish(sys.argv[2], Asked(at_most=1_000_000), 2000.0, "test")
    anyio.run(delete_orphans, settings_of(Path(sys.argv[1])), wish, SystemRuntime(), lambda _: None)
