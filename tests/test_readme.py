"""What the README and the reference show is run, so that it stays true."""

from __future__ import annotations

import datetime
import re
import shlex
import subprocess
import sys
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

import tiered
import tiered.testing
from docs.written import by_hand
from tests.given.command_line import assert_accepted
from tests.given.repository import ROOT
from tiered import ObjectId, ObjectPrefix, PutRequest, Settings, load_settings, open_storage

README = "README.md"
LIBRARY = "docs/reference/library.md"
SYNC = "docs/reference/sync.md"
FILE_SYSTEM = "docs/reference/filesystem.md"
TESTING = "docs/reference/testing.md"
SETTINGS = "docs/reference/settings.md"

LINES_MAX = 200
"""A newcomer reads the README to its end. What is longer has a page of its own."""


def block(page: str, language: str, number: int = 0) -> str:
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", by_hand((ROOT / page).read_text("utf-8")), re.DOTALL)
    return found[number]


def run(source: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", source], cwd=directory, capture_output=True, text=True, timeout=60, check=False)


EXAMPLES = ((README, 0), (LIBRARY, 1), (LIBRARY, 2), (LIBRARY, 3), (LIBRARY, 4), (LIBRARY, 5), (SYNC, 0), (FILE_SYSTEM, 0), (TESTING, 0))
"""The page of each, and its number there."""


def test_the_librarys_ten_lines_run(tmp_path: Path) -> None:
    done = run(block(README, "python"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "b'...any size: bytes, a path, a file, an async iterator...'\n"
    assert done.stderr == ""


def test_the_examples_are_those_that_mypy_checks() -> None:
    """`make check` runs mypy on all of `tests`."""
    checked = (ROOT / "tests/given/readme_examples.py").read_text("utf-8")
    for page, number in EXAMPLES:
        example = block(page, "python", number)
        assert indent(example, "    ") in checked, f"tests/given/readme_examples.py lacks\n{example}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / README).read_text("utf-8").splitlines()) <= LINES_MAX


@pytest.mark.anyio
async def test_the_listing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with open_storage(Settings(directory=tmp_path, inline_bytes_max=4)) as storage:
        for key in ("2025/a", "2026/dog.jpg", "2026/cats/cat.jpg"):
            await storage.put(ObjectId.create("photos", key, {"org": "17"}), b"large")
        names: dict[str, Any] = {"storage": storage, "ObjectPrefix": ObjectPrefix}
        exec(f"async def run():\n{indent(block(LIBRARY, 'python', 1), '    ')}", names)
        await names["run"]()
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in shown[:2]] == [["2026/cats/cat.jpg", "5"], ["2026/dog.jpg", "5"]]
    assert shown[2:] == ["['2026/dog.jpg'] ['photos/org.17/objects/2026/cats/'] None"]


@pytest.mark.anyio
async def test_the_bulk_call_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory := tmp_path / "photos").mkdir()
    (directory / "cat.jpg").write_bytes(b"cat")
    (directory / "a folder").mkdir()
    async with open_storage(Settings(directory=tmp_path / "store")) as storage:
        names = {"storage": storage, "directory": directory, "PutRequest": PutRequest, "ObjectId": ObjectId}
        exec(f"async def run():\n{indent(block(LIBRARY, 'python', 2), '    ')}", names)
        await names["run"]()  # type: ignore[operator]
        assert [entry.object_id.key async for entry in storage.list()] == ["cat.jpg"]
    assert re.fullmatch(r"photos/objects/a folder: the payload .* cannot be read: Is a directory\n", capsys.readouterr().out)


def test_the_blocking_lines_run(tmp_path: Path) -> None:
    done = run(block(SYNC, "python"), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{'text': 'hello'}\n", "")


@pytest.mark.anyio
async def test_the_lines_for_tests_run() -> None:
    lines = block(TESTING, "python")
    names = {name: getattr(module, name) for module, name in (
        (tiered, "OutcomeUnknownError"), (tiered, "UnavailableError"), (tiered.testing, "memory_storage"), (datetime, "timedelta"),
    )}
    exec(f"async def run():\n{indent(lines, '    ')}", names)
    await names["run"]()


@pytest.mark.parametrize(("page", "changelog"), [(SETTINGS, "sqlite"), (README, "postgres"), (README, "bigtable")])
def test_the_settings_are_accepted(page: str, changelog: str, tmp_path: Path) -> None:
    (tmp_path / "tiered.yaml").write_text(block(page, "yaml", int(changelog == "bigtable")))
    assert load_settings(tmp_path / "tiered.yaml").changelog == changelog


@pytest.mark.parametrize("page", sorted(path.relative_to(ROOT).as_posix() for path in [ROOT / README, *(ROOT / "docs").rglob("*.md")]))
def test_every_command_of_a_page_is_one_of_the_program_and_takes_these_options(page: str) -> None:
    for arguments in commands_of(by_hand((ROOT / page).read_text("utf-8"))):
        assert_accepted(arguments)


@pytest.mark.parametrize("line", ["tiered log forget ID", "$ tiered -c x.yaml recover --twice  # no", "See `tiered audit run --no-such`."])
def test_a_command_that_there_is_not_is_found_on_a_page(line: str) -> None:
    [arguments] = commands_of(f"{line}\n")
    with pytest.raises(AssertionError):
        assert_accepted(arguments)


def commands_of(text: str) -> list[list[str]]:
    """The arguments of each `tiered …`: of a line of its own, and of one in a sentence."""
    lines = re.findall(r"(?m)^(?:\$ )?(?:[A-Z_]+=\S+ )*tiered (.*)$", "\n".join(re.findall(r"(?ms)^```\w*\n(.*?)^```$", text)) or text)
    told = [each for each in re.findall(r"`tiered ([a-z-][^`]*)`", text) if "|" not in each and "…" not in each]
    return [shlex.split(each, comments=True) for each in (*lines, *(" ".join(each.split()) for each in told))]
