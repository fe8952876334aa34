"""`python -m emulators up` as a process; whether ports are open and processes alive."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.given.repository import ROOT

WAIT_S = 250


class Up:
    """`python -m emulators up` as a process, and what it printed."""

    def __init__(self, running: asyncio.subprocess.Process, lines: list[str]) -> None:
        self.running = running
        self.variables = dict(line.split("=", 1) for line in lines)

    @property
    def ports(self) -> list[int]:
        """Of the addresses among the values."""
        return [int(found[1]) for value in self.variables.values() if (found := re.search(r":(\d+)\b", value))]

    async def end(self) -> tuple[int, str, str]:
        """Its exit code, the rest of what it printed, and what it said."""
        rest, said = await asyncio.wait_for(self.running.communicate(), WAIT_S)
        assert self.running.returncode is not None
        return self.running.returncode, rest.decode(), said.decode()


@asynccontextmanager
async def up(*arguments: str, lines: int = 2) -> AsyncIterator[Up]:
    """Started and, after so many lines, serving. Killed if the test has not ended it."""
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "emulators", "up", *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        stdin=asyncio.subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert running.stdout is not None
    try:
        yield Up(running, [(await asyncio.wait_for(running.stdout.readline(), WAIT_S)).decode().strip() for _ in range(lines)])
    finally:
        if running.returncode is None:
            running.kill()
            await running.communicate()


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def comes_true(check: Callable[[], bool]) -> bool:
    """Whether it does within ten seconds."""
    for _ in range(200):
        if check():
            return True
        await asyncio.sleep(0.05)
    return False
