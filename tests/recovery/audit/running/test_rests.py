"""Whole audits whose parts hand back their rests: to an engine in this process, to workers, and to a later call."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest

from changelog.base.errors import UnavailableError
from changelog.base.runtime import SystemRuntime
from recovery.audit.files.evidence import evidence
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.files.partitions import DEPTH_MAX, Partition
from recovery.audit.manifest import Manifest
from recovery.audit.running import jobs
from recovery.audit.running.jobs import AuditProgress, Job, PartResult, carry_out
from recovery.audit.running.local import LocalEngine
from recovery.audit.sweeping import sweep
from tests.given.audit_workers import in_small_parts
from tests.given.audited_store import OBJECTS, PLANTED, InThread, all_findings, audit, found
from tiered.settings import Settings

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "audit_until", partial(sweep.audit_until, window_names=1))


class OneRange(InThread):
    def __init__(self, names: int = 2, seconds: float = 1e9) -> None:
        super().__init__(lambda job, number: carry_out(replace(job, partition_names=names, partition_s=seconds), number))
        self.slots = 1


def proven(run: Path) -> Manifest:
    found = evidence(RunDirectory.open(str(run)), SystemRuntime().wall_ns())
    assert found.doubts == ()
    return found.manifest


@pytest.mark.usefixtures("small_windows")
async def test_range_that_is_long_is_audited_in_parts_and_finds_the_same(store: Settings, tmp_path: Path) -> None:
    whole = await audit(store, tmp_path / "whole")
    shown: list[AuditProgress] = []
    engine = OneRange()
    manifest = await audit(store, tmp_path / "run", engine, shown)
    assert manifest.complete and len(manifest.ranges) == 1 and len(manifest.parts) > 4
    assert found(tmp_path / "run") == PLANTED
    assert sorted(all_findings(tmp_path / "run"), key=str) == sorted(all_findings(tmp_path / "whole"), key=str)
    assert (manifest.totals, manifest.names, manifest.names_by_range) == (whole.totals, OBJECTS - 1, (OBJECTS - 1,))
    assert max(part.names for part in manifest.parts) <= 2 and sum(part.names for part in manifest.parts) == OBJECTS - 1
    assert manifest.parts[0].start == "" and manifest.parts[-1].end is None
    assert all(one.end == other.start for one, other in zip(manifest.parts, manifest.parts[1:], strict=False))
    assert {part.range for part in manifest.parts} == {0} and set(engine.began.values()) == {1}
    assert shown[0].ranges == 1 and shown[-1].ranges == shown[-1].ranges_done == len(manifest.parts)
    assert proven(tmp_path / "run") == manifest


@pytest.mark.usefixtures("small_windows")
async def test_part_ends_when_its_time_is_over(store: Settings, tmp_path: Path) -> None:
    manifest = await audit(store, tmp_path / "run", OneRange(names=1000, seconds=0.0))
    assert manifest.complete and max(part.names for part in manifest.parts) == 1


@pytest.mark.usefixtures("small_windows")
async def test_rest_is_one_piece_if_the_bucket_does_not_tell_where_to_cut_it(
    store: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*arguments: object) -> list[str]:
        raise UnavailableError("the bucket is gone")

    monkeypatch.setattr(jobs, "cut_names", unavailable)
    manifest = await audit(store, tmp_path / "run", OneRange())
    assert manifest.complete and found(tmp_path / "run") == PLANTED
    assert [part.file for part in manifest.parts][:3] == [f"range-000000{'-0' * depth}.parquet" for depth in range(3)]


@pytest.mark.usefixtures("small_windows")
async def test_part_that_is_too_deep_goes_on_to_its_end(store: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "DEPTH_MAX", 1)
    manifest = await audit(store, tmp_path / "run", OneRange())
    assert manifest.complete and all(part.file.count("-") <= 2 for part in manifest.parts)
    assert len(f"range-000000{'-7' * DEPTH_MAX}.parquet") < 200


@pytest.mark.night
async def test_workers_audit_the_rests_that_others_hand_back(store: Settings, tmp_path: Path) -> None:
    manifest = await audit(store, tmp_path / "run", LocalEngine(2, in_small_parts))
    assert manifest.complete and len(manifest.parts) > len(manifest.ranges) and found(tmp_path / "run") == PLANTED
    proven(tmp_path / "run")


@pytest.mark.usefixtures("small_windows")
async def test_interrupted_run_loses_only_the_parts_that_were_under_way(store: Settings, tmp_path: Path) -> None:
    """What a driver leaves that was killed while the partitions of a rest were audited."""
    whole = await audit(store, tmp_path / "run", OneRange())
    lost = [part.file for part in whole.parts if part.file.count("-") == 2][-2:]
    assert len(lost) == 2
    for file in lost:
        (tmp_path / "run" / "findings" / file).unlink()
    manifest = RunDirectory.open(str(tmp_path / "run")).read_manifest()
    assert manifest is not None
    RunDirectory.open(str(tmp_path / "run")).write_manifest(manifest.model_copy(update={"ended_ns": None, "complete": False, "parts": ()}))
    engine = OneRange()
    again = await audit(store, tmp_path / "run", engine)
    assert again.complete and found(tmp_path / "run") == PLANTED and again.names == OBJECTS - 1
    assert 2 <= sum(engine.began.values()) <= len(whole.parts) - 2, "the parts below a lost one are still there"
    proven(tmp_path / "run")


@pytest.mark.usefixtures("small_windows")
async def test_part_that_was_replaced_by_one_with_another_rest_leaves_no_gap(store: Settings, tmp_path: Path) -> None:
    """A worker that was thought dead comes back, and ends elsewhere. Its file takes the place of the other."""
    whole = await audit(store, tmp_path / "run", OneRange())
    other = await audit(store, tmp_path / "other", OneRange(names=3))
    assert other.parts[0].end != whole.parts[0].end
    directory = RunDirectory.open(str(tmp_path / "run"))
    job = Job(str(tmp_path / "run"), whole.run, store.model_dump_json(), (), whole.cutoff, partition_names=3)
    (tmp_path / "run" / "findings" / "range-000000.parquet").unlink()
    outcome: PartResult = await anyio.to_thread.run_sync(carry_out, replace(job, partitions=(Partition(0, whole.ranges[0]),)), 0)
    assert outcome.error is None
    doubts = evidence(directory, SystemRuntime().wall_ns()).doubts
    assert any("was written for other names than its part has" in doubt for doubt in doubts)
    manifest = await audit(store, tmp_path / "run", OneRange())
    assert manifest.complete and found(tmp_path / "run") == PLANTED and manifest.names == OBJECTS - 1
    assert proven(tmp_path / "run") == manifest
    assert {path.name for path in (tmp_path / "run" / "findings").iterdir()} == {part.file for part in manifest.parts}


async def test_part_that_another_worker_has_done_meanwhile_stays_as_it_is(
    store: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rest may be under way already."""
    monkeypatch.setattr(jobs, "audit_until", partial(sweep.audit_until, window_names=1))
    await audit(store, tmp_path / "run", OneRange())
    file = tmp_path / "run" / "findings" / "range-000000.parquet"
    kept = file.read_bytes()
    done_part = RunDirectory.done_part
    asked = 0

    def once_not_there(self: RunDirectory, run: str, partition: Partition) -> object:
        nonlocal asked
        asked += 1
        return None if asked == 1 else done_part(self, run, partition)

    monkeypatch.setattr(RunDirectory, "done_part", once_not_there)
    manifest = RunDirectory.open(str(tmp_path / "run")).read_manifest()
    assert manifest is not None
    job = replace(jobs.job_of(manifest, str(tmp_path / "run"), store), partition_names=3)
    outcome = await anyio.to_thread.run_sync(carry_out, job, 0)
    assert outcome.error is None and asked == 2 and file.read_bytes() == kept
    assert not list((tmp_path / "run" / "findings").glob("_*"))
    shutil.rmtree(tmp_path / "run")
