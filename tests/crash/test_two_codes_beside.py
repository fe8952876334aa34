"""Real processes of the last release and of this checkout on one store: together, with kills, and one after the other.

The worlds of `tests/simulation/test_two_codes.py` have Bigtable and S3. Here are SQLite, files and locks.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import emulators.demo.command
import emulators.released
from emulators.demo.command import DemoOptions, run_demo
from emulators.demo.staging.interpreters import of_release, today
from emulators.released import Release, released
from tests.given.code_session import SessionOfACode
from tests.given.repository import ROOT

RENAMED = ('"v": 1, "id": change.object', '"v": 1, "object": change.object'), ('_text(value, "id")', '_text(value, "object")')

WRITES = """
import os, sys, anyio
from tiered import ChangeId, ObjectId, open_storage
from tiered.settings import load_settings
from pathlib import Path

round, dies = sys.argv[2], sys.argv[3] == "dies"

def pieces():
    for _ in range(40):
        yield b"x" * 500_000
    os._exit(9)

async def main():
    async with open_storage(load_settings(Path(sys.argv[1]))) as storage:
        for number in range(6):
            stored = await storage.get(ObjectId.create("handed", f"over-{number}"))
            if stored is not None:
                print(number, (await stored.read()).split()[0].decode())
        for number in range(0, 6, 1 if round == "0" else 2):
            text = f"{round}-{number} ".encode()
            await storage.put(ObjectId.create("handed", f"over-{number}"), text * (60_000 if number % 3 else 3))
        left = Path("upload")
        if left.exists():
            object_id = ObjectId.create("handed", "in-parts")
            await storage.multipart(object_id, ChangeId(left.read_text())).complete(None)
            stored = await storage.get(object_id)
            print("in-parts", len(await stored.read()))
            left.unlink()
        await storage.put(ObjectId.create("handed", f"of-{round}"), b"small")
        await storage.delete(ObjectId.create("handed", f"of-{int(round) - 1}"))
        if dies:
            upload = await storage.begin_multipart(ObjectId.create("handed", "in-parts"))
            await upload.upload_part(1, b"p" * 100_000)
            left.write_text(upload.id)
            await storage.put(ObjectId.create("handed", "over-1"), pieces())

anyio.run(main)
"""


def write(session: SessionOfACode, round: int, *, dies: bool) -> dict[str, str]:
    """Reads all, writes some, and leaves an upload and a change half-way if it dies. Returns what it has read."""
    said = session.run("-c", WRITES, str(session.config), str(round), "dies" if dies else "", expected=9 if dies else 0)
    return dict(line.split(" ", 1) for line in said.split("\n") if line)


@pytest.mark.parametrize("older_first", [True, False], ids=["upgrade and back", "downgrade and back"])
def test_a_store_in_a_directory_is_handed_over_between_codes_and_back(tmp_path: Path, older_first: bool) -> None:
    config = tmp_path / "tiered.yaml"
    config.write_text(json.dumps({
        "directory": str(tmp_path / "store"), "changelog": "sqlite", "lease": {"expiry_s": 3.0},
        "recovery": {"late_upload_grace_s": 0.001}, "feed": {"enabled": True, "to": [str(tmp_path / "feed")]},
    }))  # fmt: skip
    codes = [of_release(released()), today()]
    first, second = (SessionOfACode(each, config) for each in (codes if older_first else codes[::-1]))
    rounds = [(first, True), (second, True), (first, True), (second, False)]
    for round, (session, dies) in enumerate(rounds):
        read = write(session, round, dies=dies)
        expected = {str(number): begins_with(round, number) for number in range(6)} | {"in-parts": "100000"}
        assert read == (expected if round else {})
        other = second if session is first else first
        assert not dies or recovered_once_stale(other) == 1
    for session, other in ((first, second), (second, first)):
        session.command("feed", "run", "--once")
        audit = str(tmp_path / f"audit-{session.interpreter.code}")
        session.command("audit", "run", "--engine", "local", "--insist", "--grace", "0s", "--to", audit)
        shown = json.loads(other.command("--json", "audit", "show", "handed/objects/over-0", "--from", audit))
        assert shown["run"] is not None and shown["findings"] == []
    assert json.loads(first.command("--json", "recover", "--once"))["recovered"] == 0


def recovered_once_stale(session: SessionOfACode) -> int:
    """Recovers until there was something to do: the lease of who died has an end. Returns how much that was."""
    for _ in range(60):
        if done := int(json.loads(session.command("--json", "recover", "--once"))["recovered"]):
            return done
    raise AssertionError("no entry becomes stale")


def begins_with(round: int, number: int) -> str:
    """Returns the word of an object when this round begins: each round but the first writes every other one."""
    return f"{round - 1 if number % 2 == 0 else 0}-{number}"


def test_processes_of_both_codes_are_killed_on_one_directory_and_nothing_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run_demo(DemoOptions(seconds=10, writers=4, seed=1, directory=tmp_path / "demo", beside="released"), as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert (code, report["verdict"], report["details"]) == (0, "nothing was wrong", [])
    assert set(report["lives"]) >= {f"{letter} of {each}" for letter in "wdf" for each in ("today", released().version)}


def test_a_next_version_whose_entries_this_one_cannot_read_fails_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(emulators.released, "ROOT", tmp_path)
    later = Release("next", "0" * 40)
    later.kept.mkdir(parents=True)
    names = subprocess.run(["git", "ls-files", "-z", "changelog", "recovery", "tiered", "*.md", "pyproject.toml"], cwd=ROOT,
                           capture_output=True, text=True, check=True).stdout.rstrip("\0").split("\0")  # fmt: skip
    for name in names:
        (later.kept / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, later.kept / "source" / name)
    change = later.kept / "source" / "changelog" / "change.py"
    text = change.read_text()
    for before, after in RENAMED:
        assert text.count(before) == 1
        text = text.replace(before, after)
    change.write_text(text)
    monkeypatch.setattr(emulators.demo.command, "other", lambda named: later)
    code = run_demo(DemoOptions(seconds=8, writers=4, seed=1, directory=tmp_path / "demo", beside="next"), as_json=True)
    flaws = json.loads(capsys.readouterr().out)["flaws"]
    assert code == 1 and flaws["parked"] > 0
