"""Whole audits of an embedded store: new, gone on with, interrupted, killed, beside each other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import anyio
import pytest

from changelog.base.errors import ConfigurationError, UnavailableError
from changelog.base.runtime import SystemRuntime
from recovery.audit.errors import AuditInterruptedError
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.files.partitions import Partition
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Bounds, Cutoff
from recovery.audit.running.jobs import AuditOptions, AuditProgress, Job, PartResult, carry_out
from recovery.audit.running.local import LocalEngine
from recovery.audit.running.run import run_audit
from tests.given import audit_workers as works
from tests.given.audited_store import OBJECTS, PLANTED, SIZE, InThread, all_findings, audit, found, plant
from tests.given.repository import ROOT
from tiered.settings import Settings

PIECE = Partition(3, Bounds(start="", end=None))

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_audit_finds_what_was_planted_and_says_so_everywhere(store: Settings, tmp_path: Path) -> None:
    shown: list[AuditProgress] = []
    engine = InThread()
    manifest = await audit(store, tmp_path / "run", engine, shown)
    assert found(tmp_path / "run") == PLANTED and not engine.stopped
    assert len(manifest.ranges) == 5 and manifest.ranges[0].start == "" and manifest.ranges[-1].end is None
    assert manifest.complete and manifest.doubts == () and manifest.ended_ns is not None
    assert (manifest.names, manifest.redirects, manifest.findings) == (OBJECTS - 1, OBJECTS - 2, 3)
    assert manifest.totals[FindingClass.ORPHAN].model_dump() == {"number": 2, "size": 2 * SIZE}
    assert manifest.usecases == {"media": manifest.totals}
    assert sum(number or 0 for number in manifest.names_by_range) == manifest.names
    assert [each.model_dump() for each in manifest.prefixes] == [{"prefix": "media/objects/day/", "number": 2, "size": 2 * SIZE}]
    assert RunDirectory.open(str(tmp_path / "run")).read_manifest() == manifest
    assert "media/objects/day/05" in (tmp_path / "run" / "report.html").read_text()
    first, last = shown[0], shown[-1]
    assert (first.ranges_done, first.names, first.seconds_left) == (0, 0, None)
    assert (last.ranges, last.ranges_done, last.ranges_failed, last.names) == (5, 5, 0, OBJECTS - 1)
    assert last.findings == {FindingClass.ORPHAN: 2, FindingClass.DANGLING: 1} and last.seconds_left == 0
    assert last.names_per_s == last.names / last.seconds > 0


async def test_nobody_is_asked_for_other_writers_where_only_this_software_writes(
    store: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recovery.audit.running.jobs.tell_mixed_writers", None)
    assert (await audit(store, tmp_path / "run")).complete


async def test_audit_in_worker_processes_finds_the_same(store: Settings, tmp_path: Path) -> None:
    await audit(store, tmp_path / "run")
    manifest = await audit(store, tmp_path / "run2", LocalEngine(2))
    assert manifest.complete and sorted(all_findings(tmp_path / "run2"), key=str) == sorted(all_findings(tmp_path / "run"), key=str)
    assert manifest.engine == "local, 2 processes" and {"tiered", "python", "pyarrow"} <= manifest.versions.keys()


async def test_run_that_has_ended_is_not_run_again_but_reported_anew(store: Settings, tmp_path: Path) -> None:
    before = await audit(store, tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()
    engine = InThread()
    assert await audit(store, tmp_path / "run", engine) == before
    assert not engine.began and (tmp_path / "run" / "report.html").is_file()


# --- what dies -------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
import anyio
from recovery.audit.running.jobs import carry_out
from tests.given.audited_store import InThread, audit
from tiered.settings import Settings

def work(job, number):
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return carry_out(job, number)

store = Settings(directory=Path(sys.argv[1]), changelog="sqlite", inline_bytes_max=1)
anyio.run(audit, store, Path(sys.argv[2]), InThread(work))
"""


async def test_run_whose_driver_was_killed_goes_on_to_what_it_would_have_found(store: Settings, tmp_path: Path) -> None:
    killed = await anyio.run_process(
        [sys.executable, "-c", KILLED, str(store.directory), str(tmp_path / "run")], check=False, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL
    begun = RunDirectory.open(str(tmp_path / "run")).read_manifest()
    assert begun is not None and begun.ended_ns is None
    engine = InThread()
    manifest = await audit(store, tmp_path / "run", engine)
    assert sorted(engine.began) == [3, 4]
    assert manifest.complete and (manifest.run, manifest.cutoff, manifest.ranges) == (begun.run, begun.cutoff, begun.ranges)
    whole = await audit(store, tmp_path / "whole")
    assert sorted(all_findings(tmp_path / "run"), key=str) == sorted(all_findings(tmp_path / "whole"), key=str)
    assert (manifest.totals, manifest.names, manifest.names_by_range) == (whole.totals, whole.names, whole.names_by_range)


async def test_run_whose_driver_was_killed_between_its_last_range_and_the_manifest_ends_without_reading_anything(
    store: Settings, tmp_path: Path
) -> None:
    whole = await audit(store, tmp_path / "run")
    begun = {key: value for key, value in whole.model_dump(mode="json").items() if key in (
        "run", "inputs", "log_is_durable", "cutoff", "ranges", "engine", "versions", "started_ns", "ahead_ns", "notes",
    )}  # fmt: skip
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(begun))
    (tmp_path / "run" / "report.html").unlink()
    engine = InThread()
    again = await audit(store, tmp_path / "run", engine)
    assert not engine.began and (tmp_path / "run" / "report.html").is_file()
    assert again == whole.model_copy(update={"ended_ns": again.ended_ns, "work_s": again.work_s}) and again.ended_ns is not None
    assert RunDirectory.open(str(tmp_path / "run")).read_manifest() == again


@pytest.mark.night
async def test_worker_that_is_killed_after_its_file_appeared_changes_nothing(store: Settings, tmp_path: Path) -> None:
    manifest = await audit(store, tmp_path / "run", LocalEngine(5, works.die_in_the_middle))
    assert (tmp_path / "run" / "findings" / f"_killed-{works.ODD_ONE}").exists()
    assert manifest.complete and found(tmp_path / "run") == PLANTED and manifest.names == OBJECTS - 1


async def test_two_runs_in_one_directory_at_once_do_no_harm(store: Settings, tmp_path: Path) -> None:
    meeting = threading.Barrier(2)

    def work(job: Job, number: int) -> PartResult:
        meeting.wait()  # each range is begun by both at the same time
        return carry_out(job, number)

    manifests = []

    async def run() -> None:
        manifests.append(await audit(store, tmp_path / "run", InThread(work)))

    async with anyio.create_task_group() as both:
        both.start_soon(run)
        both.start_soon(run)
    first, second = manifests
    assert first.run == second.run and first.complete and second.complete and first.totals == second.totals
    assert found(tmp_path / "run") == PLANTED


async def test_run_whose_directory_holds_another_run_by_now_ends_and_leaves_that_alone(store: Settings, tmp_path: Path) -> None:
    """In an object store, both may have looked before either wrote its manifest."""
    directory = RunDirectory.open(str(tmp_path / "run"))

    def work(job: Job, number: int) -> PartResult:
        begun = directory.read_manifest()
        assert begun is not None
        directory.write_manifest(begun.model_copy(update={"run": "another"}))
        return carry_out(job, number)

    with pytest.raises(ConfigurationError, match="holds another run than this one began: run it again, alone"):
        await audit(store, tmp_path / "run", InThread(work))
    kept = directory.read_manifest()
    assert kept is not None and (kept.run, kept.ended_ns) == ("another", None)
    assert not (tmp_path / "run" / "report.html").exists()


async def test_ranges_carried_out_twice_count_once(store: Settings, tmp_path: Path) -> None:
    def work(job: Job, number: int) -> PartResult:
        carry_out(job, number)
        file = tmp_path / "run" / "findings" / f"range-{number:06d}.parquet"
        kept = file.rename(file.with_name("_kept"))
        outcome = carry_out(job, number)
        kept.unlink()
        return outcome

    manifest = await audit(store, tmp_path / "run", InThread(work))
    assert manifest.names == OBJECTS - 1 and found(tmp_path / "run") == PLANTED


# --- what fails ------------------------------------------------------------------------------------


async def test_range_that_is_forbidden_costs_the_others_nothing_and_is_done_after_the_fix(store: Settings, tmp_path: Path) -> None:
    def forbidden(job: Job, number: int) -> PartResult:
        return PartResult(number, error="reading is forbidden: grant storage.objects.list") if number == 2 else carry_out(job, number)

    shown: list[AuditProgress] = []
    engine = InThread(forbidden)
    manifest = await audit(store, tmp_path / "run", engine, shown)
    assert not manifest.complete and manifest.ended_ns is not None and shown[-1].ranges_failed == 1
    assert [failure.model_dump() for failure in manifest.failures] == [
        {"range": 2, "error": "reading is forbidden: grant storage.objects.list"}
    ]
    assert manifest.doubts == ("1 of 5 ranges could not be audited; the first: reading is forbidden: grant storage.objects.list",)
    assert manifest.names_by_range[2] is None and None not in (*manifest.names_by_range[:2], *manifest.names_by_range[3:])
    assert engine.began[2] == 1, "trying again does not help"
    fixed = InThread()
    manifest = await audit(store, tmp_path / "run", fixed)
    assert manifest.complete and manifest.failures == () and list(fixed.began) == [2] and found(tmp_path / "run") == PLANTED


async def test_range_that_was_unavailable_is_tried_once_more_at_the_end(store: Settings, tmp_path: Path) -> None:
    asked: list[int] = []

    def shaky(job: Job, number: int) -> PartResult:
        asked.append(number)
        unlucky = number == 0 or (number == 1 and asked.count(1) == 1)
        return PartResult(number, error="unavailable", retryable=True) if unlucky else carry_out(job, number)

    manifest = await audit(store, tmp_path / "run", InThread(shaky))
    assert asked == [0, 1, 2, 3, 4, 0, 1]
    assert [failure.range for failure in manifest.failures] == [0]


class Broken(InThread):
    def run(self, job: Job, numbers: Sequence[int]) -> Iterator[PartResult]:
        yield carry_out(job, numbers[0])
        raise UnavailableError("the cluster is gone: start it")


async def test_engine_that_breaks_down_is_the_reason_of_every_range_it_left(store: Settings, tmp_path: Path) -> None:
    manifest = await audit(store, tmp_path / "run", Broken())
    assert {failure.error for failure in manifest.failures} == {"the cluster is gone: start it"} and len(manifest.failures) == 4
    assert (await audit(store, tmp_path / "run")).complete


class SilentEngine(InThread):
    def run(self, job: Job, numbers: Sequence[int]) -> Iterator[PartResult]:
        return iter(())


async def test_engine_that_says_nothing_is_not_believed_to_have_done_it(store: Settings, tmp_path: Path) -> None:
    manifest = await audit(store, tmp_path / "run", SilentEngine())
    assert len(manifest.failures) == 5 and "in thread did not carry it out" in manifest.failures[0].error


async def test_software_that_fails_in_a_range_says_where_in_a_sentence(store: Settings, tmp_path: Path) -> None:
    job = Job(str(tmp_path / "run"), "run", '{"directory": 1}', (), Cutoff(as_of_ns=0, grace_s=0))
    outcome = await anyio.to_thread.run_sync(carry_out, job, 3)
    assert outcome.error is not None and not outcome.retryable
    job = Job(str(tmp_path / "run"), "run", store.model_dump_json(), (), Cutoff(as_of_ns=0, grace_s=0))
    (tmp_path / "run" / "findings").mkdir(parents=True)
    outcome = await anyio.to_thread.run_sync(carry_out, job, 3)
    assert outcome.error is not None and outcome.error.startswith("this software failed, please report it: IndexError: ")
    assert "jobs.py:" in outcome.error and not outcome.retryable


async def test_range_whose_directory_is_unavailable_may_be_tried_again(store: Settings, tmp_path: Path) -> None:
    job = Job(str(tmp_path / "run"), "run", store.model_dump_json(), (PIECE,), Cutoff(as_of_ns=0, grace_s=0))
    (tmp_path / "run" / "findings" / "range-000003.parquet").mkdir(parents=True)
    outcome = await anyio.to_thread.run_sync(carry_out, job, 0)
    assert outcome.error is not None and "run/findings/range-000003.parquet cannot be read" in outcome.error and outcome.retryable


# --- who interrupts --------------------------------------------------------------------------------


class StuckEngine(InThread):
    """Does one range, and then waits to be stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = threading.Event()
        self._stopping = threading.Event()

    def run(self, job: Job, numbers: Sequence[int]) -> Iterator[PartResult]:
        yield carry_out(job, numbers[0])
        self.waiting.set()
        self._stopping.wait()

    def stop(self) -> None:
        self.stopped = True
        self._stopping.set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signal_leaves_a_run_that_goes_on_later(store: Settings, tmp_path: Path, number: int) -> None:
    engine = StuckEngine()

    async def interrupt() -> None:
        await anyio.to_thread.run_sync(engine.waiting.wait)
        os.kill(os.getpid(), number)

    async with anyio.create_task_group() as group:
        group.start_soon(interrupt)
        with pytest.raises(AuditInterruptedError) as told:
            await audit(store, tmp_path / "run", engine)
    assert str(told.value) == f"interrupted, 1 of 5 ranges are done: the same command goes on from there (--to {tmp_path}/run)"
    left = RunDirectory.open(str(tmp_path / "run")).read_manifest()
    assert left is not None and left.ended_ns is None and left.work_s > 0 and not left.complete
    RunDirectory.open(str(tmp_path / "run")).write_manifest(left.model_copy(update={"work_s": 1000.0}))
    manifest = await audit(store, tmp_path / "run")
    assert manifest.complete and manifest.work_s > 1000 and found(tmp_path / "run") == PLANTED


async def test_cancelled_run_stops_its_engine_and_goes_on_later(store: Settings, tmp_path: Path) -> None:
    engine = StuckEngine()
    async with anyio.create_task_group() as group:
        group.start_soon(audit, store, tmp_path / "run", engine)
        await anyio.to_thread.run_sync(engine.waiting.wait)
        group.cancel_scope.cancel()
    assert engine.stopped
    assert (await audit(store, tmp_path / "run")).complete


# --- what is refused ---------------------------------------------------------------------------------


async def test_run_goes_on_only_with_what_it_began_with(store: Settings, tmp_path: Path) -> None:
    before = await audit(store, tmp_path / "run")
    after = await run_audit(store, AuditOptions(str(tmp_path / "run")), InThread(), SystemRuntime(), lambda _: None)
    assert after.cutoff == before.cutoff, "whatever grace is told later"
    other = await plant(tmp_path / "other")
    with pytest.raises(ConfigurationError) as refused:
        await audit(other, tmp_path / "run")
    assert str(refused.value) == (
        f"{tmp_path}/run holds a run of something else (directory was {tmp_path}/store, and is {tmp_path}/other now):"
        " give another directory, or the settings of then"
    )


@pytest.mark.parametrize("inside", ["store", "store/run", "link/run", "store/blobs/run"])
async def test_directory_inside_the_store_is_refused_before_anything_is_written(store: Settings, tmp_path: Path, inside: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "store")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigurationError, match=r"is in the store .*: give a place outside of it"):
        await audit(store, tmp_path / inside)
    assert sorted(tmp_path.rglob("*")) == before


async def test_directory_that_is_shut_in_the_middle_fails_the_ranges_in_a_sentence(unprivileged: Path) -> None:
    store = await plant(unprivileged / "store")

    def shut(job: Job, number: int) -> PartResult:
        (unprivileged / "run" / "findings").chmod(0o500 if number == 3 else 0o700)
        outcome = carry_out(job, number)
        (unprivileged / "run" / "findings").chmod(0o700)
        return outcome

    manifest = await audit(store, unprivileged / "run", InThread(shut))
    [failure] = manifest.failures
    assert failure.error == (
        f"{unprivileged}/run/findings/range-000003.parquet cannot be written: this process may not;"
        " give another directory, or the right to write there"
    )


def test_driver_is_left_at_once_by_a_second_signal(tmp_path: Path) -> None:
    script = """
import os, signal, sys, threading
from pathlib import Path
import anyio
from tests.given.audited_store import InThread, audit, plant
class Deaf(InThread):
    def run(self, job, numbers):
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait()
    def stop(self):
        os.kill(os.getpid(), signal.SIGINT)
async def main():
    await audit(await plant(Path(sys.argv[1]) / "store"), Path(sys.argv[1]) / "run", Deaf())
anyio.run(main)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, cwd=ROOT, env=environment)
    assert ended.returncode == 130
