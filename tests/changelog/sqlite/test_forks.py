"""A forked child does not open a file that its parent has open, because SQLite would lose what the child commits."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest

from changelog.base.runtime import SystemRuntime
from changelog.sqlite.log import Database

NOTES = ["CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY)"]


def in_child(told: Callable[[], str]) -> str:
    """What `told` returns in a forked child, or the error that it raises."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            answer = told()
        except BaseException as error:  # noqa: BLE001 - told to the parent
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answers:
        answer = answers.read().decode()
    os.waitpid(child, 0)
    return answer


def written(path: Path) -> str:
    async def write() -> str:
        async with Database.open(path, SystemRuntime()) as database:
            database.require(NOTES)
            await database.write(lambda connection: connection.execute("INSERT INTO notes DEFAULT VALUES"))
        return "written"

    return anyio.run(write)


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_child_opens_what_its_parent_does_not_have_open_and_nothing_else(tmp_path: Path) -> None:
    path, other = tmp_path / "tiered.db", tmp_path / "other.db"
    assert written(path) == "written"
    assert in_child(lambda: written(path)) == "written"

    async def fork_meanwhile() -> None:
        async with Database.open(path, SystemRuntime()):
            told.append(in_child(lambda: _in_thread(path)))
            told.append(in_child(lambda: _in_thread(other)))

    told: list[str] = []
    anyio.run(fork_meanwhile)
    refused = f"ConfigurationError: {path} was open in the process that this one was forked from"
    assert told[0].startswith(refused) and told[1] == "written"
    assert in_child(lambda: written(path)) == "written"


def _in_thread(path: Path) -> str:
    """The parent's event loop runs in the thread that was forked, so the child's own needs another thread."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(written, path).result()


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_child_may_not_even_read_through_what_its_parent_has_open(tmp_path: Path) -> None:
    path = tmp_path / "tiered.db"

    async def fork_meanwhile() -> None:
        async with Database.open(path, SystemRuntime()) as database:
            database.require(NOTES)
            await database.read(lambda connection: None)
            read = database.read(lambda connection: connection.execute("SELECT 1").fetchone())
            told.append(in_child(lambda: str(read.send(None))))
            assert await read == (1,)

    told: list[str] = []
    anyio.run(fork_meanwhile)
    assert told[0].startswith(f"ConfigurationError: {path} was open in the process that this one was forked from")
