"""A run is compared with an earlier one of the same store: the one that is named, or the youngest beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Manifest
from recovery.audit.reporting import run_verdict
from recovery.audit.reporting.since import earlier
from recovery.audit.running.jobs import AuditOptions
from recovery.audit.running.run import run_audit
from tests.given.audited_store import InThread, plant
from tiered.object_id import ObjectId
from tiered.open import open_backends, open_storage
from tiered.settings import Settings

pytestmark = pytest.mark.anyio


async def run(settings: Settings, to: Path, since: Path | None = None, prefix: str | None = None) -> Manifest:
    options = AuditOptions(str(to), 0, True, prefix=prefix, since=None if since is None else str(since))
    return await run_audit(settings, options, InThread(), SystemRuntime(), lambda progress: None)


def report(run: Path) -> str:
    return (run / "report.html").read_text()


def found_beside(where: Path) -> str | None:
    directory = RunDirectory.open(str(where))
    manifest = directory.read_manifest()
    assert manifest is not None
    found = earlier(directory, manifest, None)
    return None if found is None else Path(found.where).name


@pytest.mark.slow
async def test_youngest_run_beside_it_of_the_same_store_is_taken(store: Settings, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    await run(store, runs / "1")
    assert "What changed since" not in report(runs / "1")
    await run(store, runs / "2", prefix="media/")
    async with open_backends(store, SystemRuntime()) as backends:
        target = (await backends.tiers.high_volume.read("media/objects/day/03")).target
        assert target is not None
        await backends.tiers.long_term.delete(target)
    other = await plant(tmp_path / "other")
    await run(other, runs / "3")
    (runs / "4").mkdir()
    (runs / "4" / "manifest.json").write_text("{}")
    (runs / "notes.txt").write_text("no run")
    manifest = await run(store, runs / "5")
    assert manifest.totals[FindingClass.DANGLING].number == 2
    assert [found_beside(runs / name) for name in ("1", "2", "3", "5")] == [None, None, None, "1"]
    assert "What changed since the run of" in report(runs / "5") and "+1" in report(runs / "5")
    await run(store, runs / "1")
    assert "What changed since" not in report(runs / "1"), "a run that ended later is no earlier one"


async def test_run_that_is_named_is_taken_or_refused_before_anything_is_read(store: Settings, tmp_path: Path) -> None:
    await run(store, tmp_path / "away" / "1")
    await run(store, tmp_path / "2", since=tmp_path / "away" / "1")
    assert "What changed since the run of" in report(tmp_path / "2")
    other = await plant(tmp_path / "other")
    for settings, since, told in (
        (store, tmp_path / "nowhere", "holds no run"), (other, tmp_path / "2", "it is of another store"),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match=told):
            await run(settings, tmp_path / "9" / told, since=since)
        assert not (tmp_path / "9" / told).exists(), "no run was begun"
    with pytest.raises(ConfigurationError, match="it looked at all names"):
        await run(store, tmp_path / "7", since=tmp_path / "2", prefix="media/")
    with pytest.raises(ConfigurationError, match="is the run itself"):
        await run(store, tmp_path / "2", since=tmp_path / "2")
    with pytest.raises(ConfigurationError, match="it ended after this one began"):
        await run(store, tmp_path / "away" / "1", since=tmp_path / "2")


async def test_stuck_entries_are_in_the_manifest_of_a_run(store: Settings, tmp_path: Path) -> None:
    async with open_backends(store, SystemRuntime()) as backends, open_storage(store) as storage:
        object_id = ObjectId("media", (), "stuck")
        await storage.put(object_id, b"x" * 9)
        entry = await backends.log.record(Change(ChangeId.new(SystemRuntime()), object_id.path, None, None), "somebody")
        assert await backends.log.park(entry, "nobody could clean it up")
    manifest = await run(store, tmp_path / "run")
    assert manifest.stuck == 1
    [stuck] = manifest.stuck_entries
    assert (stuck.object, stuck.error) == (object_id.path, "nobody could clean it up") and stuck.since_ms
    assert "nobody could clean it up" in report(tmp_path / "run").lower()


async def test_open_uploads_are_told_by_a_run_which_sees_none_of_their_parts(store: Settings, tmp_path: Path) -> None:
    async with open_storage(store) as storage:
        upload = await storage.begin_multipart(ObjectId("media", (), "video"))
        await upload.upload_part(1, b"part")
        manifest = await run(store, tmp_path / "run")
        await upload.abort()
    assert manifest.open_uploads == 1
    assert "1 upload was open: the parts are in no figure" in report(tmp_path / "run")
    after = await run(store, tmp_path / "after")
    assert after.open_uploads == 0 and "open:" not in run_verdict.as_of(after)
