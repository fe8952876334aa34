"""The feed of findings: each run adds what is new and what is gone, once, whole, and only if it looked."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from pyarrow import fs as arrow_fs

from changelog.base.errors import ConfigurationError, CorruptRecordError, TieredError, UnavailableError
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from recovery.audit.files.directory import DirectoryFiles, Draft
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.manifest import Inventory, Manifest, Verify
from recovery.audit.reporting.findings_feed import FindingsFeed
from recovery.audit.running import work
from recovery.audit.running.run import run_audit
from recovery.audit.running.work import AuditOptions
from recovery.audit.sweeping import beside
from recovery.feed import Progress, Update, Updates
from recovery.feed.avro import ContainerReader, ContainerWriter, schema
from recovery.feed.errors import FeedError
from recovery.feed.files import read_all
from recovery.feed.reader import CdcReader
from recovery.feed.view import FeedView
from tests.given.audited_store import AuditedStore, InThread
from tiered.embedded.blobs import FileBlobs
from tiered.metadata import NS_PER_MS, NS_PER_S, Metadata, encode_metadata
from tiered.open import open_backends

Event = tuple[str, str, int]


class Runs:
    """A store and three runs of it: as planted; with one orphan less and another dangling tombstone; and the same."""

    def __init__(self, directory: Path) -> None:
        self.store = AuditedStore(directory)
        self.first = self.audit("first")
        self.store.sql("DELETE FROM rows WHERE path = 'media/objects/day/03'")
        anyio.run(self.delete_orphan, "media/objects/day/02")
        self.second = self.audit("second")
        self.third = self.audit("third")

    def audit(self, to: str, **more: Any) -> RunDirectory:
        options = AuditOptions(str(self.store.directory / to), grace_s=0, insist=True, **more)
        anyio.run(run_audit, self.store.settings, options, InThread(), SystemRuntime(), lambda _: None)
        return RunDirectory.open(options.directory)

    async def delete_orphan(self, path: str) -> None:
        [name] = (each.name for each in self.first.findings(manifest_of(self.first).run) if each.object == path)
        async with open_backends(self.store.settings, SystemRuntime()) as backends:
            await backends.tiers.long_term.delete(name)

    def copy(self, run: RunDirectory, to: Path) -> RunDirectory:
        shutil.copytree(run.uri, to)
        return RunDirectory.open(str(to))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("feed"))


@pytest.fixture
def feed(tmp_path: Path) -> FindingsFeed:
    return FindingsFeed.open(str(tmp_path / "feed"), SystemRuntime())


def manifest_of(run: RunDirectory) -> Manifest:
    found = run.read_manifest()
    assert found is not None
    return found


def files_of(feed: FindingsFeed) -> dict[str, bytes]:
    assert feed.files.local is not None
    return {path.name: path.read_bytes() for path in sorted(feed.files.local.iterdir())}


def told(feed: FindingsFeed, number: int) -> tuple[list[Event], Progress]:
    """What a file says: its updates, by class and the end of the object's path, and its one progress message."""
    assert feed.files.local is not None
    with (feed.files.local / f"run-{number:06d}.avro").open("rb") as file:
        *updates, (progress, _) = ContainerReader(file)
    found = [each for message, _ in updates if isinstance(message, Updates) for each in message.updates]
    assert isinstance(progress, Progress) and {each.time for each in found} <= {progress.upper[0] - 1}
    return [(each.data["class"], each.data["object"][-2:], each.diff) for each in found], progress


# --- what is added ---------------------------------------------------------------------------------


def test_each_run_adds_what_is_new_and_what_is_gone(runs: Runs, feed: FindingsFeed) -> None:
    added = [feed.add(run) for run in (runs.first, runs.second, runs.third)]
    times = [manifest_of(run).cutoff.as_of_ns // 1_000_000 for run in (runs.first, runs.second, runs.third)]
    assert [(each.found, each.gone, each.now, each.time_ms, each.again) for each in added] == [
        (3, 0, 3, times[0], False), (1, 1, 3, times[1], False), (0, 0, 3, times[2], False),
    ]  # fmt: skip
    assert [each.before_ms for each in added] == [None, *times[:2]] and list(files_of(feed)) == [each.file for each in added]
    assert told(feed, 0) == (
        [("dangling", "05", 1), ("orphan", "02", 1), ("orphan", "07", 1)], Progress((0,), (times[0] + 1,), ((times[0], 3),))
    )
    assert told(feed, 1) == (
        [("orphan", "03", 1), ("orphan", "02", -1)], Progress((times[0] + 1,), (times[1] + 1,), ((times[1], 2),))
    )
    assert told(feed, 2) == ([], Progress((times[1] + 1,), (times[2] + 1,), ()))


def test_any_reader_of_feeds_tells_what_is_found_now_and_since_when(runs: Runs, feed: FindingsFeed) -> None:
    times = [feed.add(run).time_ms for run in (runs.first, runs.second, runs.third)]
    reader, view = CdcReader(remember=True), FeedView()
    assert feed.files.local is not None
    for located in read_all(sorted(feed.files.local.iterdir(), reverse=True)):
        batch = reader.feed(located.message)
        if batch is not None:
            view.add(batch)
    assert [(row.record["class"], row.record["object"][-2:], row.multiplicity, row.since) for row in view] == [
        ("dangling", "05", 1, times[0]), ("orphan", "03", 1, times[1]), ("orphan", "07", 1, times[0]),
    ]  # fmt: skip
    assert reader.frontier == (times[2] + 1,)


def test_same_runs_give_the_same_bytes_and_a_run_is_added_once(runs: Runs, feed: FindingsFeed, tmp_path: Path) -> None:
    added = [feed.add(run) for run in (runs.first, runs.second)]
    before = files_of(feed)
    for earlier, run in zip(added, (runs.first, runs.second), strict=True):
        again = feed.add(run)
        assert again.again and (again.found, again.gone, again.now) == (earlier.found, earlier.gone, earlier.now)
    other = FindingsFeed.open(str(tmp_path / "other"), SystemRuntime())
    for run in (runs.first, runs.second):
        other.add(run)
    assert files_of(other) == files_of(feed) == before


def test_a_feed_may_begin_with_any_run_and_leave_runs_out(runs: Runs, feed: FindingsFeed) -> None:
    feed.add(runs.first)
    assert (feed.add(runs.third).gone, told(feed, 1)[0]) == (1, [("orphan", "03", 1), ("orphan", "02", -1)])


def test_what_a_run_could_not_look_at_is_not_gone(feed: FindingsFeed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that became corrupt hides its dangling tombstone. A store that does not tell its uploads hides these.

    So it is with who writes beside it.
    """
    monkeypatch.setattr(work, "others_may_write", lambda settings: True)
    runs = Runs(tmp_path)
    now_ns = SystemRuntime().wall_ns()
    for key, minutes in (("ours", 20), ("ours-again", 0), ("ours-no-more", 10)):
        created_ns = now_ns - minutes * 60 * NS_PER_S
        token = "NULL" if key == "ours-no-more" else f"'{ChangeId.first(created_ns // NS_PER_MS)}'"
        metadata = encode_metadata(Metadata(time_created_ns=created_ns, size=1)).decode()
        runs.store.sql(
            f"INSERT INTO rows (path, token, metadata, payload) VALUES ('media/objects/{key}', {token}, CAST('{metadata}' AS BLOB), x'00')"
        )
    left = tmp_path / "store" / "uploads" / ChangeId.new(SystemRuntime())
    left.write_bytes(b"x")
    os.utime(left, (0, 0))
    before = feed.add(runs.audit("before"))
    assert {"stale_upload", "mixed_writers"} <= {each[0] for each in told(feed, 0)[0]}
    runs.store.sql("UPDATE rows SET crc = crc + 1 WHERE path = 'media/objects/day/05'")

    async def refuse(*_: object) -> None:
        raise ConfigurationError("it may not be listed")

    with monkeypatch.context() as patched:
        patched.setattr(FileBlobs, "abandoned_uploads", refuse)
        patched.setattr(beside, "some_rows", refuse)
        hidden = feed.add(runs.audit("hidden"))
    assert (hidden.gone, hidden.found, hidden.now) == (0, 1, before.now + 1) and [each[0] for each in told(feed, 1)[0]] == ["corrupt_row"]
    left.unlink()
    runs.store.sql("DELETE FROM rows WHERE path = 'media/objects/ours-no-more'")
    gone = feed.add(runs.audit("gone"))
    assert (gone.gone, gone.found) == (2, 0)
    assert sorted(told(feed, 2)[0]) == [("mixed_writers", "re", -1), ("stale_upload", "", -1)]


# --- what is refused -------------------------------------------------------------------------------


def refused(feed: FindingsFeed, run: RunDirectory, kind: type[TieredError], says: str) -> None:
    """Adding the run raises this, and nothing is changed."""
    before = files_of(feed)
    with pytest.raises(kind, match=says):
        feed.add(run)
    assert files_of(feed) == before


def test_an_older_run_is_refused(runs: Runs, feed: FindingsFeed) -> None:
    feed.add(runs.second)
    refused(feed, runs.first, ConfigurationError, "knows the findings of 20.* and this run is of 20.*: add a later run")
    with pytest.raises(ConfigurationError, match="add a later run"):
        feed.check(manifest_of(runs.first), runs.first.files)
    feed.check(manifest_of(runs.second), runs.second.files)
    feed.check(manifest_of(runs.third), runs.third.files)


def test_a_run_that_is_not_complete_says_nothing(runs: Runs, feed: FindingsFeed, tmp_path: Path) -> None:
    feed.add(runs.first)
    second = runs.copy(runs.second, tmp_path / "run")
    next((tmp_path / "run" / "findings").iterdir()).unlink()
    refused(feed, second, ConfigurationError, r"nothing was added .* is not complete \(findings/range-\d+.parquet is not there\)")


@pytest.mark.parametrize(("changed", "says"), [
    ({"scope": "media/"}, "with prefix none, and this run has media/: what it does not look at would seem to be gone"),
    ({"verify": Verify(share=0.5)}, "with share of payloads none, and this run has 0.5"),
    ({"inputs": {"directory": "/other", "changelog": "sqlite"}}, "with directory /.* and this run has /other"),
    ({"inputs": {"bucket": "b"}}, "with bucket none, and this run has b"),
])  # fmt: skip
def test_a_feed_is_of_one_store_and_one_choice(runs: Runs, feed: FindingsFeed, changed: dict[str, Any], says: str) -> None:
    feed.add(runs.first)
    with pytest.raises(ConfigurationError, match=says):
        feed.check(manifest_of(runs.second).model_copy(update=changed), runs.second.files)


def test_rows_of_an_export_are_of_no_known_moment(runs: Runs, feed: FindingsFeed) -> None:
    """A row that is in an older export may hide an orphan that the run before has found."""
    report = Inventory(report="gs://r/manifest.json", snapshot_ns=1, records=1)
    first = manifest_of(runs.first).model_copy(update={"inventory": report})
    feed.check(first, runs.first.files)
    exported = first.model_copy(update={"inventory": report.model_copy(update={"export": "gs://r/export"})})
    with pytest.raises(ConfigurationError, match="the rows of this run are from gs://r/export, and an export does not tell"):
        feed.check(exported, runs.first.files)
    feed.add(runs.first)
    with pytest.raises(ConfigurationError, match="with inventory none, and this run has a report"):
        feed.check(manifest_of(runs.second).model_copy(update={"inventory": report}), runs.second.files)


def test_another_grace_is_refused(runs: Runs, feed: FindingsFeed) -> None:
    feed.add(runs.first)
    second = manifest_of(runs.second)
    for what in ("grace_s", "overdue_s"):
        cutoff = second.cutoff.model_copy(update={what: 7200.0})
        with pytest.raises(ConfigurationError, match=r"and this run has 7200\.0"):
            feed.check(second.model_copy(update={"cutoff": cutoff}), runs.second.files)


def _rename(feed: Path) -> None:
    (feed / "run-000000.avro").rename(feed / "run-000007.avro")


def _foreign_schema(feed: Path) -> None:
    with (feed / "run-000000.avro").open("wb") as file:
        ContainerWriter(file, schema("string")).flush()


def _unsound(feed: Path) -> None:
    shutil.copy(feed / "run-000000.avro", feed / "run-000001.avro")


def _other_version(feed: Path) -> None:
    content = (feed / "run-000000.avro").read_bytes()
    (feed / "run-000000.avro").write_bytes(content.replace(b"tiered.feed\x021", b"tiered.feed\x029"))


def _another_name(feed: Path) -> None:
    """Deflate has no checksum of its own, so a bit that flips may change a name, and nothing else."""
    with (feed / "run-000000.avro").open("rb") as file:
        reader = ContainerReader(file)
        (updates, _), *rest = reader
    assert isinstance(updates, Updates)
    first = updates.updates[0]
    changed = Updates((Update(first.data | {"name": "another"}, first.time, first.diff), *updates.updates[1:]))
    with (feed / "run-000000.avro").open("wb") as file:
        writer = ContainerWriter(file, reader.schema, metadata=reader.metadata)
        for message in (changed, *(message for message, _ in rest)):
            writer.write(message)
        writer.flush()


DAMAGE: list[tuple[Callable[[Path], object], type[TieredError], str]] = [
    (lambda feed: (feed / "notes.txt").touch(), ConfigurationError, "holds 'notes.txt', which is no file of a run"),
    (lambda feed: (feed / "below").mkdir(), ConfigurationError, "holds 'below', which is no file of a run"),
    (_rename, CorruptRecordError, "has no run-000000.avro: put it back, or begin another feed"),
    (lambda feed: (feed / "run-000000.avro").write_bytes(b""), FeedError, "run-000000.avro: the header of an Avro file cannot be read"),
    (lambda feed: (feed / "run-000000.avro").write_bytes((feed / "run-000000.avro").read_bytes()[:-20]), FeedError, "000.avro.*whole"),
    (_foreign_schema, FeedError, r"run-000000\.avro: the file's records have the schema 'string'.*rule schema"),
    (_unsound, CorruptRecordError, r"run-000001\.avro, byte \d+: \+1 at time \d+ does not follow for .*orphan|dangling"),
    (_another_name, CorruptRecordError, r"run-000000\.avro does not match its checksum: restore it, or begin another feed"),
    (_other_version, ConfigurationError, "newer software wrote .*, in version 9, and this one reads version 1 of a feed of findings"),
]


@pytest.mark.parametrize("case", DAMAGE, ids=lambda case: case[2][:30])
def test_a_feed_that_is_damaged_or_foreign_is_left_alone(
    runs: Runs, feed: FindingsFeed, case: tuple[Callable[[Path], object], type[TieredError], str]
) -> None:
    damage, kind, says = case
    feed.add(runs.first)
    assert feed.files.local is not None
    damage(feed.files.local)
    before = sorted(feed.files.local.rglob("*"))
    with pytest.raises(kind, match=says):
        feed.add(runs.third)
    assert sorted(feed.files.local.rglob("*")) == before


def test_a_run_whose_findings_were_written_anew_is_refused(runs: Runs, feed: FindingsFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    feed.add(runs.first)
    monkeypatch.setattr("recovery.audit.reporting.findings_feed._now", lambda *_: {"another"})
    refused(feed, runs.first, ConfigurationError, "has other findings of this run than .*what was told is never changed")


# --- kills, full disks, two at once ----------------------------------------------------------------


def test_a_full_disk_leaves_the_feed_as_it_was(runs: Runs, feed: FindingsFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    feed.add(runs.first)

    def full(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        refused(feed, runs.second, UnavailableError, "run-000001.avro cannot be written: the disk is full; free space and run it again")
    assert feed.add(runs.second).found == 1


def test_what_a_killed_writer_left_is_no_part_of_the_feed(runs: Runs, feed: FindingsFeed) -> None:
    feed.add(runs.first)
    assert feed.files.local is not None
    (feed.files.local / "_run-000001.avro.00ff.tmp").write_bytes(b"Obj")
    assert feed.add(runs.second).file == "run-000001.avro"


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Does something else at the moment at which a file is about to appear, once."""
    publish, done = Draft.publish, threading.Event()

    def later(draft: Draft, *, replace: bool = True) -> None:
        if not done.is_set() and not draft.name.startswith("_"):
            done.set()
            act()
        publish(draft, replace=replace)

    monkeypatch.setattr(Draft, "publish", later)


def test_of_two_at_once_one_is_told_to_try_again(runs: Runs, feed: FindingsFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    feed.add(runs.first)
    meanwhile(monkeypatch, partial(feed.add, runs.second))
    with pytest.raises(UnavailableError, match=r"another run was added to the feed directory .* meanwhile: run the same command again"):
        feed.add(runs.third)
    assert told(feed, 1)[1].counts[0][1] == 2 and len(files_of(feed)) == 2
    assert feed.add(runs.third).file == "run-000002.avro"


def test_a_run_that_is_added_while_the_feed_is_read_is_not_overlooked(
    runs: Runs, feed: FindingsFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.add(runs.first)
    check, other = FindingsFeed._check_time, [runs.second]

    def later(self: FindingsFeed, manifest: Manifest, before_ms: int | None) -> None:
        while other:
            feed.add(other.pop())
        check(self, manifest, before_ms)

    monkeypatch.setattr(FindingsFeed, "_check_time", later)
    with pytest.raises(UnavailableError, match=r"another run was added to the feed directory .* meanwhile"):
        feed.add(runs.third)
    assert list(files_of(feed)) == ["run-000000.avro", "run-000001.avro"]


def test_elsewhere_a_writer_gives_way_to_the_claim_of_another(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a bucket, where a file that is there would be replaced."""
    filesystem: Any = arrow_fs._MockFileSystem()
    feed = FindingsFeed(DirectoryFiles("mock://feed", filesystem, "feed", SystemRuntime(), "the feed directory"), SystemRuntime())
    feed.add(runs.first)
    gave_way: list[str] = []

    def another() -> None:
        with pytest.raises(UnavailableError) as raised:
            feed.add(runs.third)
        gave_way.append(str(raised.value))

    meanwhile(monkeypatch, another)
    assert feed.add(runs.second).found == 1
    assert len(gave_way) == 1 and "another run is being added" in gave_way[0] and f"delete _claim-000001-{manifest_of(runs.second).run}"
    assert [seen.name for seen in feed.files.list()] == ["run-000000.avro", "run-000001.avro"]
    feed.files.write(f"_claim-000002-{manifest_of(runs.third).run}", b"")
    assert feed.add(runs.third).file == "run-000002.avro", "the claim of a killed call for the same run is its own"
    assert [seen.name for seen in feed.files.list()] == [f"run-{number:06d}.avro" for number in range(3)]


def test_the_command_adds_a_run_and_says_so(runs: Runs, tmp_path: Path) -> None:
    tiered = runs.store
    arguments = ("audit", "run", "--engine", "local", "--to", "second", "--feed", str(tmp_path / "feed"))
    shown = tiered(*arguments, code=1)
    assert f"3 new, 0 gone, 3 now (the first run there): {tmp_path}/feed/run-000000.avro" in shown
    assert "media/objects/day/05" in tiered("feed", "view", str(tmp_path / "feed"), store=False)
    tiered(*arguments, "--json", code=1)
    assert "3 now (the first run there), as an earlier call had added it" in tiered.errors
    for feed, says in (
        ("second", "lie in each other"), ("second/feed", "lie in each other"), ("store/feed", "is in the store"), ("", "is empty"),
        ("first", "holds 'findings', which is no file of a run"),
    ):  # fmt: skip
        tiered(*arguments[:-1], feed, code=2)
        assert says in tiered.errors
    again = ("audit", "run", "--engine", "local", "--to", "new", "--usecase", "media", "--grace", "0s", "--insist")
    tiered(*again, "--feed", str(tmp_path / "feed"), code=2)
    assert "is of runs with prefix none, and this run has media/" in tiered.errors
    assert not (tiered.directory / "new").exists()
