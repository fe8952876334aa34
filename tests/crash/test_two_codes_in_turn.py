"""What an operator begins with one code and goes on with in the other: an audit, a deletion, its return, a retry.

Real processes of the last release and of this checkout, on a store in a directory; each is killed in the middle. `next`
is this checkout with a line changed, so that the walk fails.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from emulators.demo.staging.interpreters import Interpreter, of_release, today
from emulators.released import released
from tests.given.code_session import FatalCall, SessionOfACode
from tests.given.repository import ROOT

OBJECTS, ORPHANS = 40, 30

PLANTS = f"""
import sys, anyio
from pathlib import Path
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from tiered import ObjectId
from tiered.metadata import Metadata
from tiered.open import open_backends, open_storage
from tiered.settings import load_settings

async def main():
    settings, runtime = load_settings(Path(sys.argv[1])), SystemRuntime()
    async with open_storage(settings) as storage:
        for number in range({OBJECTS}):
            await storage.put(ObjectId.create("media", f"{{number:02}}"), b"x" * 2_000)
    async with open_backends(settings, runtime) as backends:
        for number in range({ORPHANS}):
            upload = await backends.tiers.long_term.open_upload(f"media/objects/{{number:02}}/{{ChangeId.new(runtime)}}", Metadata(), 10)
            await upload.write(b"%010d" % number)
            await upload.finalise()

anyio.run(main)
"""
DIES = """
import os, sys, anyio
from pathlib import Path
from changelog.base.runtime import SystemRuntime
from tiered import ObjectId
from tiered.open import open_backends, open_storage
from tiered.settings import load_settings

async def pieces(log):
    for _ in range(40):
        yield b"y" * 500_000
    while not (await log.entries("", 1)).entries:
        await anyio.sleep(0.01)
    os._exit(9)

async def main():
    settings = load_settings(Path(sys.argv[1]))
    async with open_storage(settings) as storage, open_backends(settings, SystemRuntime(), writes=False) as beside:
        await storage.put(ObjectId.create("media", "00"), pieces(beside.log))

anyio.run(main)
"""


@dataclass(frozen=True)
class CodesInTurn:
    """A store with orphans, which `first` has made; `first` and `second` take turns with it."""

    first: SessionOfACode
    second: SessionOfACode
    directory: Path

    @property
    def run(self) -> str:
        return str(self.directory / "run")

    @property
    def blobs(self) -> dict[str, bytes]:
        """The names and the first bytes of what is in the bucket, and not in a quarantine."""
        files = (self.directory / "store" / "blobs").glob("media*")
        return {path.name: path.read_bytes()[:10] for path in files}

    def audit(self) -> tuple[str, ...]:
        return "audit", "run", "--engine", "local", "--parallel", "4", "--insist", "--grace", "0s", "--to", self.run

    def delete(self) -> tuple[str, ...]:
        return "audit", "delete", self.run, "--class", "orphan", "--at-most", "100", "--quarantine", "turn", "--yes"

    def ranges(self) -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in Path(self.run, "findings").glob("range-*.parquet")}

    def count(self, session: SessionOfACode) -> int:
        """How many objects this code lists."""
        return len(session.command("ls", "media").splitlines())


def turn_of(first: Interpreter, second: Interpreter, directory: Path) -> CodesInTurn:
    """Makes the store in this directory, with `first`."""
    config = directory / "tiered.yaml"
    config.write_text(json.dumps({
        "directory": str(directory / "store"), "changelog": "sqlite", "inline_bytes_max": 1_000,
        "lease": {"expiry_s": 3.0}, "recovery": {"late_upload_grace_s": 0.001},
    }))  # fmt: skip
    turn = CodesInTurn(SessionOfACode(first, config), SessionOfACode(second, config), directory)
    turn.first.run("-c", PLANTS, str(config))
    return turn


def audits(turn: CodesInTurn) -> None:
    """`first` is killed when it has one range; `second` does the others, and no range twice."""
    done = Path(turn.run, "findings", "range-000000.parquet")
    turn.first.killed(FatalCall("os.rename", "range-000003.parquet", 1, after=done), *turn.audit())
    before = turn.ranges()
    turn.second.command(*turn.audit(), expected=1)  # there are findings
    after = turn.ranges()
    assert 0 < len(before) < len(after) == 4 and after.items() >= before.items()
    for session in (turn.first, turn.second):
        assert json.loads(session.command("--json", *turn.audit(), expected=1))["totals"]["orphan"]["number"] == ORPHANS


def deletes(turn: CodesInTurn) -> None:
    """`first` is killed in the middle of a deletion, which `second` goes on with; then the same of its return."""
    turn.first.command(*turn.audit(), expected=1)
    before = turn.blobs
    turn.first.killed(FatalCall("os.remove", "blobs/media", ORPHANS // 2), *turn.delete())
    left = turn.blobs
    assert OBJECTS < len(left) < len(before)
    turn.second.command(*turn.delete())
    assert len(turn.blobs) == OBJECTS == turn.count(turn.first) == turn.count(turn.second)
    turn.second.killed(FatalCall("os.link", "blobs/media", ORPHANS // 2), "audit", "restore", turn.run, "--yes")
    assert OBJECTS < len(turn.blobs) < len(before)
    turn.first.command("audit", "restore", turn.run, "--yes")
    assert turn.blobs == before


def retries(turn: CodesInTurn) -> None:
    """`first` parks what it cannot clean up; the cause is mended, and `second` gives it back, and cleans up."""
    for parks, retries in ((turn.first, turn.second), (turn.second, turn.first)):
        parks.run("-c", DIES, str(parks.config), expected=9)
        [entry] = json.loads(parks.command("--json", "log", "list"))
        place = turn.directory / "store" / "blobs" / entry["new"].replace("/", "%2f").replace("-", "%2d")
        place.mkdir()
        assert recovers(parks, expected=6)["parked"] == 1
        told = retries.command("log", "list", "--stuck")
        assert "something is in its place" in told, told
        place.rmdir()
        assert json.loads(retries.command("--json", "log", "retry", "--all"))["retried"] == [entry["key"]]
        assert recovers(retries)["recovered"] == 1
        assert "changelog is empty" in parks.command("log", "list")


def recovers(session: SessionOfACode, expected: int = 0) -> dict[str, int]:
    """Waits until the entry is stale. Then makes one pass of recovery, and returns what it did."""
    for _ in range(20):
        if json.loads(session.command("--json", "log", "list"))[0]["state"] == "claimable":
            report: dict[str, int] = json.loads(session.command("--json", "recover", "--once", expected=expected))
            return report
    raise AssertionError("no entry becomes stale")


Walk = Callable[[CodesInTurn], None]
WALKS: list[Walk] = [audits, deletes, retries]
NEXT: dict[Walk, tuple[str, tuple[str, str], tuple[str, str]]] = {
    audits: ("recovery/audit/files/ledger.py", ("SCHEMA_VERSION = 3", "SCHEMA_VERSION = 4"), ('("2", "3")', '("2", "3", "4")')),
    deletes: ("recovery/audit/deleting/journal.py", ("VERSION = 2\n", "VERSION = 3\n"), ("(1, 2)", "(1, 2, 3)")),
    retries: ("changelog/change.py", ('"v": 1, "id"', '"v": 1, "object"'), ('_text(value, "id")', '_text(value, "object")')),
}
"""For each walk, a file of this checkout and what a next version replaces there."""
FAILS: dict[Walk, str] = {
    audits: "in version 4, and this one reads schemas 2 and 3", deletes: "in version 3, and this one reads versions 1 and 2",
    retries: "cannot be read: 'id' is missing",
}


@pytest.mark.parametrize("older_first", [True, False], ids=["upgrade", "downgrade"])
@pytest.mark.parametrize("walk", WALKS)
def test_what_one_code_begins_the_other_ends(walk: Walk, older_first: bool, tmp_path: Path) -> None:
    older, newer = of_release(released()), today()
    walk(turn_of(older, newer, tmp_path) if older_first else turn_of(newer, older, tmp_path))


@pytest.mark.parametrize("walk", WALKS)
def test_a_next_version_whose_work_this_one_cannot_end_is_found_out(walk: Walk, tmp_path: Path) -> None:
    tree, (name, *edits) = tmp_path / "next", NEXT[walk]
    for package in ("changelog", "recovery", "tiered"):
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    text = (tree / name).read_text()
    for before, after in edits:
        assert text.count(before) == 1
        text = text.replace(before, after)
    (tree / name).write_text(text)
    later = Interpreter("next", today().python, f"{tree}{os.pathsep}{today().path}")
    with pytest.raises(AssertionError, match=FAILS[walk]):
        walk(turn_of(later, today(), tmp_path))
