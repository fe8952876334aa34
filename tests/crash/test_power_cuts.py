"""Real processes write, and the power is cut: whatever a disk may leave is opened, recovered and judged.

`emulators/power/` records what the processes do to their files, and models the disk. Here each scene is recorded once.
Then the power is cut at many moments of it, and at each of them a seed chooses what the disk leaves. Knocked-out syncs
show that the search finds what it looks for. A push has a fifth of the scenes (`tests.suites.share`), the night all
and more moments of each.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, Protocol, TypeVar

import anyio
import pytest

from changelog.base.errors import UnavailableError
from changelog.base.runtime import SystemRuntime
from emulators.demo.checking.stored_files import StoredFiles
from emulators.power.disk import DiskModel, ModelledDisk
from emulators.power.judge import AllowedContent, BrokenPromiseError, judge_store, settings_of
from emulators.power.recorded_work import BLOB, FEED, STORE, part_of, segments
from emulators.power.recording import DiskOperation, RecorderMissingError, Recording, RecordingError, RecordKind, build, seen
from recovery.audit.deleting.journal import DeletionJournal
from recovery.audit.files.evidence import evidence
from recovery.audit.files.ledger import RunDirectory
from recovery.feed.sinks.directory import DirectorySink
from tests.given.audit_and_deletion import RUN, audit_and_delete
from tests.given.deleted_store import plant_orphans
from tests.suites import has_all, share
from tiered.embedded.blobs import FileBlobs
from tiered.testing.contracts.whole_blobs import read

STATES = 200 if has_all() else 20
AUDIT_STATES = max(6, STATES // 5)
"""Of a run of an audit, which is judged by a whole audit and a whole deletion."""
KNOCKED_OUT_STATES = 150
"""At most so many states are looked at until a sync that is missing is noticed."""
BACKUP = "backups/1"
NAMES = (RecordKind.LINK, RecordKind.RENAME, RecordKind.MAKE_DIRECTORY)

pytestmark = pytest.mark.slow

T = TypeVar("T")


class Promise(Protocol):
    """What must be true after a power cut. `hear` is told the notes before it, and `judge` raises."""

    def hear(self, text: str) -> None: ...

    async def judge(self, root: Path) -> None: ...


@dataclass
class PowerScene:
    """A record, and what it promises."""

    recording: Recording
    promise: Callable[[], Promise]
    operations: list[DiskOperation] = field(init=False)

    def __post_init__(self) -> None:
        self.operations = self.recording.operations()
        check_whole(self.recording, self.operations)

    def cut_the_power(self, states: int, seed: int = 0, *, without_syncs_of: Callable[[str], bool] | None = None) -> str | None:
        """Judges so many states. Returns what is wrong with the first one that is; None: nothing.

        `without_syncs_of`: the disk ignores the syncs of the paths of which this is true.
        """
        root, chance = self.recording.root, Random(seed)
        missing = without_syncs_of
        disk = ModelledDisk(self.recording.before, None if missing is None else lambda _, path: missing(path))
        promise, applied = self.promise(), 0
        for moment in sorted(self._moments(chance, states)):
            for operation in self.operations[applied:moment]:
                disk.apply(operation)
                if operation.kind is RecordKind.NOTE:
                    promise.hear(operation.data.decode())
            applied = moment
            model = chance.choice(list(DiskModel))
            shutil.rmtree(root)
            disk.leave(root, chance, model)
            try:
                anyio.run(promise.judge, root)
            except Exception as error:  # noqa: BLE001 - of the store, too
                return f"the power is cut after {moment} of {len(self.operations)} operations ({model}, seed {seed}): {error!r}"
        return None

    def _moments(self, chance: Random, states: int) -> Iterator[int]:
        """A third after somebody was told something, a third after a name changed, and the others anywhere."""
        numbered = list(enumerate(self.operations, start=1))
        told = [number for number, each in numbered if each.kind is RecordKind.NOTE and b'"begin"' not in each.data]
        named = [found for kind in NAMES if (found := [number for number, each in numbered if each.kind is kind])]
        for number in range(states):
            yield chance.choice((told, chance.choice(named), range(len(self.operations) + 1))[number % 3])


def check_whole(recording: Recording, operations: Sequence[DiskOperation]) -> None:
    """Compares a replay with the real files: a record with a gap would prove nothing."""
    disk = ModelledDisk(recording.before)
    for operation in operations:
        disk.apply(operation)
    replayed = disk.show()
    real = {str(path.relative_to(recording.root)): path for path in recording.root.rglob("*")}
    different = [
        name for name in replayed.keys() | real.keys()
        if not name.endswith("-shm") and (name not in replayed or name not in real or replayed[name] != _content(real[name]))
    ]  # fmt: skip
    if different:
        raise RecordingError(f"the record does not explain {sorted(different)}")


def _content(path: Path) -> bytes | None:
    return None if path.is_dir() else path.read_bytes()


# --- what is promised ----------------------------------------------------------------------------


class StorePromise:
    """What callers of a store were told."""

    def __init__(self) -> None:
        self.told = AllowedContent()

    def hear(self, text: str) -> None:
        self.told.hear(text)

    async def judge(self, root: Path) -> None:
        await judge_store(root / STORE, self.told)


class BackupPromise(StorePromise):
    """A backup has all that was acknowledged before it began. What has its name is a whole store."""

    made = False

    def hear(self, text: str) -> None:
        match text:
            case "backup begins":
                self.told.narrows = False
            case "backup is complete":
                self.made = True
            case _:
                super().hear(text)

    async def judge(self, root: Path) -> None:
        if (root / BACKUP).exists():
            await judge_store(root / BACKUP, self.told)
        elif self.made:
            raise BrokenPromiseError("the backup is gone")


class FeedPromise:
    """A segment that was acknowledged stays, and what has the name of a segment has its bytes."""

    def __init__(self) -> None:
        self.acknowledged: set[int] = set()

    def hear(self, text: str) -> None:
        self.acknowledged.add(int(text))

    async def judge(self, root: Path) -> None:
        there = {path.name: path.read_bytes() for path in (root / FEED).glob("*/0*")}
        whole = {each.name: each.data for each in segments()}
        if wrong := [name for name, data in there.items() if data != whole[name]]:
            raise BrokenPromiseError(f"these segments have other bytes: {wrong}")
        if gone := [each.name for each in segments() if each.time in self.acknowledged and each.name not in there]:
            raise BrokenPromiseError(f"these segments are gone: {gone}")
        sink = DirectorySink(root / FEED, SystemRuntime())
        for each in segments():
            await sink.deliver(each)


class BlobPromise:
    """A blob that was finalised stays."""

    finalised = False

    def hear(self, text: str) -> None:
        self.finalised = True

    async def judge(self, root: Path) -> None:
        blobs = await FileBlobs.open_directory(root, SystemRuntime())
        if self.finalised and await blobs.head(BLOB) is None:
            raise BrokenPromiseError("the blob is gone")


class PartsPromise:
    """A part that was uploaded stays, and a blob that was completed. What was cancelled can never be completed."""

    def __init__(self) -> None:
        self.state: dict[tuple[str, str], str] = {}
        self.put: dict[str, set[int]] = {}

    def hear(self, text: str) -> None:
        what, name, session, number = json.loads(text)
        if what == "put":
            self.put[session].add(number)
        else:
            self.state[name, session] = what
            self.put.setdefault(session, set())

    async def judge(self, root: Path) -> None:
        blobs = await FileBlobs.open_directory(root, SystemRuntime())
        for (name, session), state in self.state.items():
            numbers = sorted(self.put[session])
            if state == "cancel" or not numbers:
                continue
            if state == "canceld":
                with suppress(UnavailableError):
                    raise BrokenPromiseError(f"what was cancelled is there: {await blobs.parts(name, session)}")
                continue
            if state != "completed":
                with suppress(*([UnavailableError] if state == "complete" else [])):
                    kept = {part.number: part for part in await blobs.parts(name, session)}
                    await blobs.complete_parts(name, session, [kept[number] for number in numbers])
            if await read(blobs, name) != b"".join(part_of(name, number) for number in numbers):
                raise BrokenPromiseError(f"the blob of {state} has other bytes")


class DeletionPromise:
    """What an audit deletes was written down first, and has a copy. A run that has ended stays whole."""

    def __init__(self, orphans: frozenset[str], objects: frozenset[str]) -> None:
        self.heard: set[str] = set()
        self._orphans, self._objects = orphans, objects

    def hear(self, text: str) -> None:
        self.heard.add(text)

    async def judge(self, root: Path) -> None:
        run, store = RunDirectory.open(str(root / RUN)), StoredFiles(root / STORE)
        places = set(store.places())
        deleted = self._orphans - places
        if self.heard or deleted:
            proof = evidence(run, SystemRuntime().wall_ns())
            if not proof.complete:
                raise BrokenPromiseError(f"the run that has ended is doubtful: {proof.doubts}")
        noted = self._noted(run, store) if deleted or "deleted" in self.heard else {}
        self._check_noted(deleted, places, noted)
        await audit_and_delete(root, notes=False)
        places = set(store.places())
        if not self._objects <= places or self._orphans & places:
            raise BrokenPromiseError(f"the deletion went on and left {sorted(places)}")
        self._check_noted(self._orphans, places, self._noted(run, store))

    def _noted(self, run: RunDirectory, store: StoredFiles) -> dict[str, str | None]:
        """Where each candidate was, and where its copy is, by the journal."""
        manifest = run.read_manifest()
        assert manifest is not None
        journal = DeletionJournal(run.files, manifest.run)
        order = journal.plan()
        if order is None:
            raise BrokenPromiseError("something was deleted, and the journal does not say what")
        entries = [each for _, batch in journal.entries(order) for each in batch]
        if "deleted" in self.heard and any(each.outcome is None for each in entries):
            raise BrokenPromiseError("the deletion has ended, and the journal forgot that")
        return {store.place(each.candidate.name): store.place(f"~quarantine/kept/{journal.run}/{each.candidate.name}") for each in entries}

    @staticmethod
    def _check_noted(deleted: set[str] | frozenset[str], places: set[str], noted: dict[str, str | None]) -> None:
        if lost := [each for each in deleted if noted.get(each) not in places]:
            raise BrokenPromiseError(f"deleted, and not noted or without a copy: {lost}")


# --- scenes --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def begin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Recording]]:
    """Begins a recording in a new directory."""
    try:
        library = build(tmp_path_factory.mktemp("recorder"))
    except RecorderMissingError as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))

    with TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as directory:
        def recording() -> Recording:
            beside = Path(mkdtemp(dir=directory))
            (beside / "root" / "feeds").mkdir(parents=True)
            (beside / "root" / "backups").mkdir()
            return Recording(library, beside / "root", beside)

        yield recording


Begins = Callable[[], Recording]


def recorded(promise: Callable[[], Promise], *works: tuple[str, str | None]) -> Callable[[Begins], PowerScene]:
    """One process after another does its work, and is killed at the call named with it. `a`, `b`: who writes."""

    def record(begin: Begins) -> PowerScene:
        recording = begin()
        for work, died_at in works:
            recording.run(writing(recording, work) if work in ("a", "b") else working(recording, work), kill_at=died_at)
        return PowerScene(recording, promise)

    return record


def several_writers(begin: Begins) -> PowerScene:
    """Three processes make the store at the same time, and write to it."""
    recording = begin()
    recording.run(*(writing(recording, name) for name in ("a", "b", "c")))
    return PowerScene(recording, StorePromise)


def recovery(begin: Begins) -> PowerScene:
    """Two processes are killed while they write. `tiered recover --once` cleans up after one, and a loop after both."""
    recording = begin()
    recording.run(writing(recording, "a"), kill_at="L7")
    config = recording.root.parent / "tiered.yaml"
    config.write_text(json.dumps({
        "directory": str(recording.root / STORE), "changelog": "sqlite", "lease": {"expiry_s": 0.05},
    }))  # fmt: skip
    [said] = recording.run(["-m", "recovery.cli.main", "--config", str(config), "--json", "recover", "--once"])
    assert json.loads(said)["recovered"] > 0
    recording.run(writing(recording, "b"), kill_at="L9")
    recording.run(working(recording, "recover"))
    return PowerScene(recording, StorePromise)


def backup(begin: Begins) -> PowerScene:
    recording = begin()
    recording.run(writing(recording, "a"))
    writer = recording.start(writing(recording, "b"))
    recording.note("backup begins")
    recording.run(["-m", "recovery.cli.main", "-d", str(recording.root / STORE), "backup", str(recording.root / BACKUP)])
    recording.note("backup is complete")
    recording.end(writer)
    return PowerScene(recording, BackupPromise)


def writing(recording: Recording, name: str) -> list[str]:
    return [*working(recording, "write"), name, "1"]


def working(recording: Recording, work: str) -> list[str]:
    return ["-m", "emulators.power.recorded_work", work, str(recording.root)]


def deletion(begin: Begins, died_at: str | None = None) -> PowerScene:
    """An audit of a store that was there before, and a deletion of the orphans that it found.

    `died_at`: another process began that, and was killed after it made a directory, the last findings, their feed, or
    an order to delete.
    """
    recording = begin()
    settings = settings_of(recording.root / STORE)
    anyio.run(plant_orphans, settings.model_copy(update={"inline_bytes_max": 1}))
    store = StoredFiles(recording.root / STORE)
    objects = frozenset(store.place(target) for target in store.targets().values())
    orphans = frozenset(store.places()) - objects
    recording.before = seen(recording.root)
    for killed_at in (None,) if died_at is None else (died_at, None):
        recording.run(["-m", "tests.given.audit_and_deletion", str(recording.root)], kill_at=killed_at)
    return PowerScene(recording, lambda: DeletionPromise(orphans, objects))


SCENES: dict[str, tuple[Callable[[Begins], PowerScene], int]] = {
    "several writers": (several_writers, STATES),
    "a recovery": (recovery, STATES),
    "a backup": (backup, 2 * STATES),
    # One upload is completed, one cancelled, one left.
    "uploads in parts": (recorded(PartsPromise, ("upload_parts", None)), 2 * STATES),
    "a feed": (recorded(FeedPromise, ("deliver", None)), STATES),
    "a deletion": (deletion, AUDIT_STATES),
    # A process is killed right after it made a directory. Another one finds that, and relies on it.
    "a directory that another made": (recorded(StorePromise, ("a", "D1"), ("b", None)), STATES),
    # Made are blobs/ and uploads/. There is no database: SQLite happens to sync the directory when it begins its log.
    "blobs that another made": (recorded(BlobPromise, ("upload", "D1"), ("upload", "D1"), ("upload", None)), STATES),
    "a feed that another made": (recorded(FeedPromise, ("deliver", "D1"), ("deliver", None)), STATES),
    "an audit that another began": (partial(deletion, died_at="L4"), AUDIT_STATES),
}
OFTEN = tuple(SCENES)
for died_at in ("D2", "D3", "D4"):
    SCENES[f"a store that another made until {died_at}"] = recorded(StorePromise, ("a", died_at), ("b", None)), STATES
for died_at in ("D1", "R4", "L2"):
    SCENES[f"an audit that another began until {died_at}"] = partial(deletion, died_at=died_at), AUDIT_STATES

STORE_SYNCS = ("above", "above/store", "above/store/blobs", "above/store/uploads/.*", "above/store/tiered.db-wal")
NOTICED = [
    *(("several writers", of) for of in STORE_SYNCS),
    *(("uploads in parts", of) for of in (r"uploads/[^/]+\.parts/.+", r"uploads/[^/]+\.parts", "uploads", "blobs(/.*)?")),
    *(("a feed", re.escape(of)) for of in ("feeds", FEED, f"{FEED}/{segments()[0].folder}")),
]
NOTICED_AT_NIGHT = [("a deletion", re.escape(of)) for of in (f"{RUN}/deleted", f"{RUN}/findings")]


def with_night(often: Sequence[T], others: Iterable[T]) -> list[Any]:
    """A fifth of these, and the others by night."""
    return [*share(often, 5), *(pytest.param(*(each if isinstance(each, tuple) else [each]), marks=pytest.mark.night) for each in others)]


@pytest.fixture(scope="module")
def scene(begin: Begins) -> Callable[[str], PowerScene]:
    """Each scene is recorded once."""
    return cache(lambda name: SCENES[name][0](begin))


@pytest.mark.parametrize("name", with_night(OFTEN, [name for name in SCENES if name not in OFTEN]))
def test_what_was_told_survives_a_power_cut(scene: Callable[[str], PowerScene], name: str) -> None:
    assert scene(name).cut_the_power(SCENES[name][1]) is None


# --- the search itself ---------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "of"), with_night(NOTICED, NOTICED_AT_NIGHT))
def test_a_sync_that_is_left_out_is_noticed(scene: Callable[[str], PowerScene], name: str, of: str) -> None:
    assert scene(name).cut_the_power(KNOCKED_OUT_STATES, without_syncs_of=lambda path: re.fullmatch(of, path) is not None) is not None
