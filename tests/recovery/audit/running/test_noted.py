"""The note that an audit leaves in the changelog for `tiered status`: its headline figures, and never a failure."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from changelog.base.errors import UnavailableError
from changelog.base.runtime import SystemRuntime
from recovery.audit.finding_classes import LOST_BLOBS, OF_ROWS, FindingClass
from recovery.audit.running import run
from recovery.audit.running.jobs import AuditOptions, Job, PartResult, carry_out
from recovery.last_audit import LastAudit, read_audits
from recovery.status.look import gather
from tests.given.audited_store import OBJECTS, SIZE, AuditedStore, InThread, audit
from tiered.object_id import ObjectId
from tiered.open import open_backends, open_storage
from tiered.settings import Settings

pytestmark = pytest.mark.anyio


async def noted(store: Settings) -> LastAudit | None:
    async with open_backends(store, SystemRuntime(), writes=False) as backends:
        return (await read_audits(backends.log)).last


def fails(job: Job, number: int) -> PartResult:
    return PartResult(number, error="reading is forbidden") if number == 2 else carry_out(job, number)


async def test_what_an_audit_found_is_noted(store: Settings, tmp_path: Path) -> None:
    assert await noted(store) is None
    manifest = await audit(store, tmp_path / "run")
    found = await noted(store)
    assert found is not None and manifest.ended_ns is not None
    assert (found.run, found.where, found.started_ns, found.ended_ns) == (
        manifest.run, str(tmp_path / "run"), manifest.started_ns, manifest.ended_ns,
    )  # fmt: skip
    assert (found.complete, found.blobs, found.tombstones, found.ranges, found.ranges_missing) == (True, OBJECTS - 1, OBJECTS - 2, 5, 0)
    assert found.findings == {"dangling": (1, 0), "orphan": (2, manifest.totals[FindingClass.ORPHAN].size)}
    assert found.findings["orphan"][1] >= 2 * SIZE and found.is_loss
    live = manifest.totals[FindingClass.REFERENCED]
    assert found.live == (live.number, live.size) and live.size >= live.number * SIZE > 0
    of_blobs = [each for kind, each in manifest.totals.items() if kind not in (*OF_ROWS, *LOST_BLOBS)]
    assert (sum(each.number for each in of_blobs), sum(each.size for each in of_blobs)) == (found.blobs, found.size)


async def test_a_clean_note_does_not_count_what_was_too_young_to_judge(store: Settings, tmp_path: Path) -> None:
    """The two orphans, within the grace."""
    async with open_storage(store) as storage:
        await storage.delete(ObjectId("media", (), "day/05"))
    options = AuditOptions(str(tmp_path / "run"))
    manifest = await run.run_audit(store, options, InThread(), SystemRuntime(), lambda progress: None)
    found = await noted(store)
    assert found is not None and found.young == manifest.totals[FindingClass.TOO_YOUNG].number == 2
    assert found.sentence == (
        "clean: 9 blobs and 9 tombstones are accounted for by name; 2 blobs that nothing names were too young to judge; no payload was read"
    )


async def test_an_audit_that_is_not_complete_is_noted_too(store: Settings, tmp_path: Path) -> None:
    await audit(store, tmp_path / "run", InThread(fails))
    found = await noted(store)
    assert found is not None and not found.complete and (found.ranges_missing, found.doubts) == (1, 1)
    assert found.sentence.startswith("incomplete: 1 of 5 ranges were not audited; it has ")
    await audit(store, tmp_path / "run")
    found = await noted(store)
    assert found is not None and found.complete


async def test_a_report_that_is_written_again_does_not_replace_a_later_audit(store: Settings, tmp_path: Path) -> None:
    await audit(store, tmp_path / "old")
    later = await audit(store, tmp_path / "new")
    await audit(store, tmp_path / "old")
    found = await noted(store)
    assert found is not None and found.run == later.run


async def test_status_shows_it(store: Settings, tmp_path: Path) -> None:
    await audit(store, tmp_path / "run")
    async with open_backends(store, SystemRuntime(), writes=False) as backends:
        found = await gather(backends, store, SystemRuntime())
    assert found.last_audit == await noted(store)
    assert found.problems == ()


Opening = Callable[..., Any]


@asynccontextmanager
async def bug(*_: object, **__: object) -> AsyncIterator[None]:
    raise RuntimeError("a bug")
    yield


@asynccontextmanager
async def down(*_: object, **__: object) -> AsyncIterator[None]:
    raise UnavailableError("the changelog is gone")
    yield


@asynccontextmanager
async def hung(*_: object, **__: object) -> AsyncIterator[None]:
    await anyio.sleep_forever()
    yield


@pytest.mark.parametrize("opening", [bug, down, hung])
async def test_a_note_that_cannot_be_written_never_fails_the_audit(
    store: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, opening: Opening
) -> None:
    monkeypatch.setattr(run, "NOTE_BUDGET_S", 0.1)
    monkeypatch.setattr(run, "open_backends", opening)
    manifest = await audit(store, tmp_path / "run")
    assert manifest.complete and (tmp_path / "run" / "report.html").exists()
    assert [record.message.partition(" run=")[0] for record in caplog.records if record.levelname == "WARNING"] == ["audit_not_noted"]
    assert await noted(store) is None


async def test_of_a_store_without_a_changelog_nothing_is_noted_and_nothing_fails(store: Settings, tmp_path: Path) -> None:
    settings = store.model_copy(update={"changelog": "noop"})
    assert (await audit(settings, tmp_path / "run")).ended_ns is not None
    assert await noted(settings) is None and await noted(store) is None


@pytest.mark.usefixtures("without_workers")
def test_the_command_line_shows_an_audit_that_lost_data(tmp_path: Path) -> None:
    tiered = AuditedStore(tmp_path)
    tiered("audit", "run", "--engine", "local", "--to", "run", "--grace", "0s", "--insist", "--parallel", "1", code=1)
    told = tiered("status", code=6)
    assert told.startswith("DATA IS LOST: an audit found 1 object whose blob is gone or cannot be read. Nothing waits for recovery")
    assert f"do        An audit found live objects that are lost. See which, or read its report in {tmp_path / 'run'}; restore" in told
    assert f"audit show --from {tmp_path / 'run'}" in told
    assert "audit     DATA LOSS: 1 live tombstone names a blob that is gone (ended " in told
    assert json.loads(tiered("status", "--json", code=6))["audits"][0]["findings"]["dangling"] == {"number": 1, "bytes": 0}
