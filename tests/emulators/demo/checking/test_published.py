"""The demo's check of the change feed can fail: what a feed has lost, repeats differently or does not say is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from changelog.base.runtime import SystemRuntime
from emulators.demo.checking.check import check
from emulators.demo.checking.published import generations, read_folder, read_output
from emulators.demo.checking.stored_files import StoredFiles
from emulators.demo.players.journal import OperationJournal
from emulators.demo.staging.feed_processes import FOLLOWER, ONCE, RECEIVER, DemoFeed
from recovery.feed.sinks.directory import DirectorySink
from recovery.feed.writer.supervisor import FeedRun
from tests.given.repository import ROOT
from tiered.object_id import ObjectId
from tiered.open import open_backends, open_storage
from tiered.settings import FeedSettings, Settings

KEYS = [ObjectId.create("bench", f"key {number}") for number in range(3)]
LARGE = 100


@dataclass(frozen=True)
class PublishedRun:
    """A store whose feed has published all of it, in several files."""

    root: Path

    @property
    def settings(self) -> Settings:
        return Settings(directory=self.root / "store", inline_bytes_max=LARGE, feed=FeedSettings(enabled=True, progress_every_s=0.01))

    @property
    def folder(self) -> Path:
        return generations(self.root / "feed")[-1]

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.iterdir())

    def flaws(self) -> dict[str, int]:
        found = check(StoredFiles(self.root / "store"), self.root / "journal", (), [read_folder(self.folder, "the directory")])
        return {flaw: number for flaw, number in found.flaws.items() if flaw in ("feed", "entries", "orphans")}

    def edit(self, number: int, edit: Callable[[str], str]) -> None:
        text = self.files[number].read_text()
        assert edit(text) != text
        self.files[number].write_text(edit(text))


async def put(run: PublishedRun, *objects: ObjectId) -> None:
    async with open_storage(run.settings, SystemRuntime()) as storage:
        for each in objects:
            await storage.put(each, bytes(LARGE + 1))


async def publish(run: PublishedRun) -> None:
    runtime = SystemRuntime()
    async with open_backends(run.settings, runtime) as backends:
        sinks = {str(run.root / "feed"): DirectorySink(run.root / "feed", runtime)}
        await FeedRun(backends, runtime, run.settings, sinks, once=True).run()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> PublishedRun:
    run = PublishedRun(tmp_path_factory.mktemp("run"))
    (run.root / "journal").mkdir()
    OperationJournal(run.root / "journal" / "w0.0.jsonl").close()

    async def make() -> None:
        await put(run, *KEYS)
        await publish(run)
        await put(run, KEYS[0])
        await publish(run)

    anyio.run(make)
    return run


@pytest.fixture
def run(made: PublishedRun, tmp_path: Path) -> PublishedRun:
    shutil.copytree(made.root, tmp_path / "run")
    return PublishedRun(tmp_path / "run")


def test_a_feed_that_has_published_everything_says_what_the_rows_hold(run: PublishedRun) -> None:
    assert run.flaws() == {}
    found = read_folder(run.folder, "")
    assert (found.updates, len(found.view), found.files) == (5, 3, len(run.files)) and found.files >= 3
    shutil.copy(run.files[1], run.folder / "9999999999999999999.json")
    assert run.flaws() == {}, "a file that is there twice counts once"


def with_updates(run: PublishedRun) -> list[int]:
    return [number for number, file in enumerate(run.files) if '"diff"' in file.read_text()]


def lose_the_first_file(run: PublishedRun) -> None:
    run.files[0].unlink()


def lose_a_file_in_the_middle(run: PublishedRun) -> None:
    run.files[with_updates(run)[0]].unlink()


def lose_the_last_change(run: PublishedRun) -> None:
    for file in run.files[with_updates(run)[-1] :]:
        file.unlink()


def lose_a_minus_one(run: PublishedRun) -> None:
    def edit(text: str) -> str:
        first, rest = text.split("\n", 1)
        updates = [each for each in json.loads(first)["array"] if each["diff"] > 0]
        return json.dumps({"array": updates}) + "\n" + rest.replace('"count":2', '"count":1')

    run.edit(with_updates(run)[-1], edit)


def count_wrongly(run: PublishedRun) -> None:
    run.edit(with_updates(run)[0], lambda text: text.replace('"count":3', '"count":2'))


def say_another_blob(run: PublishedRun) -> None:
    run.edit(with_updates(run)[-1], lambda text: text.replace('/key 0/', '/key 1/'))


@pytest.mark.parametrize(("plant", "count"), [
    (lose_the_first_file, 4),          # a gap in the progress, so nothing counts: 3 objects are missing
    (lose_a_file_in_the_middle, 4),
    (lose_the_last_change, 1),         # the writer was killed and did not come back: one object is behind
    (lose_a_minus_one, 1),             # one object has two blobs
    (count_wrongly, 1),
    (say_another_blob, 2),             # a blob goes that was never there, and another one comes
])  # fmt: skip
def test_what_the_feed_has_lost_or_says_wrongly_is_found(run: PublishedRun, plant: Callable[[PublishedRun], None], count: int) -> None:
    plant(run)
    found = run.flaws()
    assert found.keys() == {"feed"} and found["feed"] >= count


def test_a_writer_that_was_killed_and_did_not_come_back_is_found(run: PublishedRun) -> None:
    """Its last change is missing, the entry of that is left, and the old blob is still there."""
    anyio.run(put, run, KEYS[0])
    assert run.flaws() == {"feed": 1, "entries": 1, "orphans": 1}


def test_a_feed_that_was_never_written_is_found(run: PublishedRun) -> None:
    missing = read_folder(None, "the directory")
    found = check(StoredFiles(run.root / "store"), run.root / "journal", (), [missing])
    assert found.flaws["feed"] == 4 and "the directory holds nothing" in found.details[-3]


def test_what_a_follower_printed_is_read_up_to_its_last_whole_line(run: PublishedRun, tmp_path: Path) -> None:
    lines = b"".join(file.read_bytes() for file in run.files)
    (tmp_path / "v0.0.log").write_bytes(b"a message to people\n" + lines + b'{"array": [{"da')
    (tmp_path / "none.log").touch()
    whole = read_output(tmp_path / "v0.0.log", "the follower")
    assert whole.flaws == [] and whole.view == read_folder(run.folder, "").view
    assert read_output(tmp_path / "none.log", "").frontier == read_output(tmp_path / "absent.log", "").frontier == 0


def test_each_process_of_the_feed_is_a_command_of_the_product(tmp_path: Path) -> None:
    feed = DemoFeed(tmp_path, ROOT / "deploy/emulators.yaml", tmp_path, networked=True)
    assert feed.parts() == ["f0", "f1", RECEIVER], "nothing to follow yet"
    (tmp_path / "received" / "generation-0000000000000007").mkdir(parents=True)
    assert feed.parts()[-1] == FOLLOWER
    commands = {part: feed.command(part) for part in [*feed.parts(), ONCE]}
    assert all(command is not None and "feed" in command for command in commands.values())
    assert feed.command("w0") is None
    assert DemoFeed(tmp_path, tmp_path, tmp_path, networked=False).parts() == ["f0"]
