"""The `tiered` command, in this process or in one of its own; a shell line that runs it; a change whose writer died."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from io import BytesIO, TextIOWrapper
from itertools import takewhile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import anyio
import pytest
from typer.core import TyperGroup
from typer.main import get_command

from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from recovery.cli.app import app
from recovery.cli.main import main
from recovery.cli.shared import choice
from tests.given.repository import ROOT
from tiered import Settings
from tiered.open import open_backends

OBJECT = "photos/org.17/objects/2026/cat.jpg"
OWN_PROCESS = ("-m", "recovery.cli.main")


class Command:
    """`tiered` on a store in a temporary directory.

    It runs in this process, because a new one takes half a second or more. A call with `python` runs in a process of
    its own, where `python` holds the interpreter's first arguments. `store`: whether the store's directory is named.
    `stdout`: takes what is printed, and then nothing is returned. `code`: the exit code, or those that will do; `ended`
    is the one that it was.
    """

    def __init__(self, directory: Path, *, store: bool = True) -> None:
        self.directory = directory
        self.store = directory / "store"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("TIERED_")} | {"PYTHONPATH": str(ROOT)}
        self._names_store = store

    def __call__(
        self, *arguments: str, stdin: bytes = b"", code: int | range = 0, store: bool | None = None, python: tuple[str, ...] = (),
        stdout: TextIOWrapper | None = None,
    ) -> str:
        where = ["--directory", str(self.store)] if (self._names_store if store is None else store) else []
        if python:
            done = subprocess.run(
                [sys.executable, *python, *where, *arguments],
                input=stdin, capture_output=True, cwd=self.directory, env=self.environment, timeout=60, check=False,
            )
            ended, out, errors = done.returncode, done.stdout, done.stderr
        else:
            printed, complaints = TextIOWrapper(BytesIO(), "utf-8"), TextIOWrapper(BytesIO(), "utf-8")
            with as_if_started([*where, *arguments], self.directory, self.environment):
                ended = _exit_code(TextIOWrapper(BytesIO(stdin)), stdout or printed, complaints)
            out, errors = _written(printed), _written(complaints)
        self.errors = errors.decode()
        self.ended = ended
        assert ended in (code if isinstance(code, range) else (code,)), f"exit code {ended}: {self.errors}\n{out.decode()[-4000:]}"
        assert "Traceback" not in self.errors
        return out.decode()


def assert_accepted(arguments: Sequence[str]) -> None:
    """Asserts that there is such a command, with such options. Its arguments and values may be anything."""
    command: Any = get_command(app)
    named = list(arguments)
    while named and named[0] in ("-c", "--config", "-d", "--directory", "--json"):
        del named[: 1 if named[0] == "--json" else 2]
    for name in takewhile(lambda each: not each.startswith("-"), named):
        if not isinstance(command, TyperGroup):
            break  # its own arguments
        assert name in command.commands, f"tiered {' '.join(arguments)}: there is no command {name}"
        command = command.commands[name]
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help"}
    assert {each for each in named if each.startswith("-") and each != "-"} <= known, f"tiered {' '.join(arguments)}"


@contextmanager
def unwritable(how: str) -> Iterator[TextIOWrapper]:
    """A stdout that nobody reads (`closed`), or on a disk that is full (`full`)."""
    if how == "full":
        number = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, number = os.pipe()
        os.close(reader)
    with open(number, "w", encoding="utf-8") as stream:
        yield stream


@contextmanager
def as_if_started(arguments: list[str], directory: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Gives this process what a new one would have, but for its streams."""
    choice.config = choice.directory = None
    choice.json = choice.verbose = False
    handlers, level, often = logging.root.handlers, logging.root.level, gc.get_threshold()
    logging.root.handlers = []
    try:
        with chdir(directory), patch.dict(os.environ, environment, clear=True), patch.object(sys, "argv", ["tiered", *arguments]):
            yield
    finally:
        gc.set_threshold(*often)
        logging.root.handlers = handlers
        logging.root.setLevel(level)
        choice.config = choice.directory = None
        choice.json = choice.verbose = False


def _exit_code(stdin: TextIOWrapper, stdout: TextIOWrapper, stderr: TextIOWrapper) -> int:
    with (
        patch.object(sys, "stdin", stdin), patch.object(sys, "stdout", stdout), patch.object(sys, "stderr", stderr),
        pytest.raises(SystemExit) as ended,
    ):  # fmt: skip
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def _written(stream: TextIOWrapper) -> bytes:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, BytesIO)
    return buffer.getvalue()


def shell(stored: Command, line: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a line in which `tiered` is the command."""
    tiered = f"{sys.executable} -m recovery.cli.main --directory {stored.store}"
    command = ["bash", "-o", "pipefail", "-c", line.replace("tiered", tiered, 1)]
    return subprocess.run(command, capture_output=True, env=stored.environment, timeout=60, check=False)


def plant(store: Path, old: str | None, *, released: bool = True, kept: bool = False) -> ChangeId:
    """An entry of a process that died: long ago, or just now. `kept`: of a change that is over, for the change feed."""
    async def record() -> ChangeId:
        runtime = SystemRuntime()
        async with open_backends(Settings(directory=store, changelog="sqlite"), runtime) as backends:
            change = Change(ChangeId.new(runtime), OBJECT, None, old)
            entry = await backends.log.record(change, "dead")
            assert not kept or await backends.log.keep(entry)
            assert not released or await backends.log.release(entry)
            return change.id

    return anyio.run(record)
