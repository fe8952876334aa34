"""Engines whose workers are elsewhere: one small task first, and an end as soon as everything fails for one reason."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from changelog.base.errors import ConfigurationError, UnavailableError
from recovery.audit.files.partitions import Partition
from recovery.audit.manifest import Bounds, Cutoff
from recovery.audit.running.canary import Canary
from recovery.audit.running.jobs import CANARY, Job, PartResult, carry_out
from recovery.audit.running.local import Work
from recovery.audit.running.run import ALIKE_MAX
from tests.given.audited_store import OBJECTS, PLANTED, InThread, audit, found
from tiered.settings import Settings

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


class Elsewhere(InThread):
    """An engine that says that its workers are on other machines."""

    def __init__(self, work: Work = carry_out) -> None:
        super().__init__(work)
        self.elsewhere = True


def left(run: Path) -> list[str]:
    return [path.name for path in run.rglob("_*")]


async def test_canary_goes_first_and_leaves_nothing(store: Settings, tmp_path: Path) -> None:
    engine = Elsewhere()
    manifest = await audit(store, tmp_path / "run", engine)
    assert next(iter(engine.began)) == CANARY and engine.began == dict.fromkeys([CANARY, 0, 1, 2, 3, 4], 1)
    assert manifest.complete and found(tmp_path / "run") == PLANTED and left(tmp_path / "run") == []


async def test_run_that_has_ended_sends_no_canary(store: Settings, tmp_path: Path) -> None:
    await audit(store, tmp_path / "run")
    engine = Elsewhere()
    await audit(store, tmp_path / "run", engine)
    assert not engine.began


async def test_directory_that_workers_do_not_share_is_told_before_any_work(store: Settings, tmp_path: Path) -> None:
    """As a path of the driver's own disk is on an executor."""
    def on_another_machine(job: Job, number: int) -> PartResult:
        (tmp_path / "other" / "findings").mkdir(parents=True, exist_ok=True)
        return carry_out(replace(job, directory=str(tmp_path / "other")), number)

    engine = Elsewhere(on_another_machine)
    with pytest.raises(ConfigurationError) as told:
        await audit(store, tmp_path / "run", engine)
    assert "no range was begun: a worker on " in str(told.value) and "does not see what was written to" in str(told.value)
    assert str(told.value).endswith("such as gs://bucket/audits/1 or a path on a shared file system")
    assert engine.began == {CANARY: 1} and left(tmp_path / "run") == []
    assert (await audit(store, tmp_path / "run")).complete


async def test_directory_whose_writes_go_elsewhere_is_told_before_any_work(store: Settings, tmp_path: Path) -> None:
    def on_a_copy(job: Job, number: int) -> PartResult:
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        return carry_out(replace(job, directory=str(tmp_path / "copy")), number)

    with pytest.raises(ConfigurationError, match=r"what a worker writes to .*/run is not seen here: give a run directory"):
        await audit(store, tmp_path / "run", Elsewhere(on_a_copy))


async def test_worker_that_does_not_see_the_store_is_told_before_any_work(store: Settings, tmp_path: Path) -> None:
    def without(job: Job, number: int) -> PartResult:
        return carry_out(replace(job, settings=json.dumps({"directory": str(tmp_path / "none")})), number)

    engine = Elsewhere(without)
    with pytest.raises(ConfigurationError, match=r"no range was begun: there is no store in .*/none on this machine"):
        await audit(store, tmp_path / "run", engine)
    assert engine.began == {CANARY: 1} and not (tmp_path / "none").exists(), "an empty one would have nothing wrong with it"


@pytest.mark.parametrize(("where", "variable"), [
    ("gs://audits/1", "STORAGE_EMULATOR_HOST"), ("s3://audits/1", "AWS_ENDPOINT_URL"), ("s3://audits/1", "AWS_ENDPOINT_URL_S3"),
])  # fmt: skip
async def test_worker_without_the_variable_of_the_run_directory_is_told_its_name(
    where: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(variable, raising=False)
    canary = Canary("token", (variable,))
    job = Job(where, "run", "{}", (Partition(0, Bounds(start="", end=None)),), Cutoff(as_of_ns=0, grace_s=0), canary=canary)
    outcome = await anyio.to_thread.run_sync(carry_out, job, CANARY)
    assert outcome.error is not None and not outcome.retryable
    assert f"does not have {variable}, which says where {where} is: send it along" in outcome.error
    assert f"--conf spark.executorEnv.{variable}=" in outcome.error


async def test_directory_that_a_worker_may_not_write_is_told_with_what_it_lacks(
    unprivileged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    (unprivileged / "_canary-token").write_text("token")
    unprivileged.chmod(0o500)
    partitions = (Partition(0, Bounds(start="", end=None)),)
    job = Job(str(unprivileged), "run", "{}", partitions, Cutoff(as_of_ns=0, grace_s=0), canary=Canary("token", ("AWS_PROFILE",)))
    outcome = await anyio.to_thread.run_sync(carry_out, job, CANARY)
    unprivileged.chmod(0o700)
    assert outcome.error is not None and "cannot use the run directory: " in outcome.error
    assert "_canary-token.back cannot be written: this process may not" in outcome.error
    assert outcome.error.endswith("it does not have AWS_PROFILE, which the driver has")


# --- what fails alike --------------------------------------------------------------------------------


async def test_ranges_that_fail_for_one_reason_stop_the_run(store: Settings, tmp_path: Path) -> None:
    def forbidden(job: Job, number: int) -> PartResult:
        return PartResult(number, error=f"listing from 'media/{number}' on: unavailable after 120 s, attempt {number}", retryable=True)

    engine = InThread(forbidden)
    manifest = await audit(store, tmp_path / "run", engine)
    assert sum(engine.began.values()) == ALIKE_MAX and engine.stopped
    assert not manifest.complete and len(manifest.failures) == 5
    assert manifest.failures[-1].error.startswith("3 ranges failed for the same reason, so no more were tried: listing from 'media/")
    assert (await audit(store, tmp_path / "run")).complete


async def test_ranges_that_fail_for_several_reasons_do_not_stop_the_run(store: Settings, tmp_path: Path) -> None:
    engine = InThread(lambda job, number: PartResult(number, error="the first" if number % 2 else f"{'x' * number} is wrong"))
    await audit(store, tmp_path / "run", engine)
    assert engine.began == dict.fromkeys(range(5), 1)


async def test_ranges_that_fail_alike_between_others_that_are_done_do_not_stop_the_run(store: Settings, tmp_path: Path) -> None:
    """Whatever is done begins the count anew."""
    def only_the_last(job: Job, number: int) -> PartResult:
        return carry_out(job, number) if number == 4 else PartResult(number, error="forbidden")

    class InAnotherOrder(InThread):
        def run(self, job: Job, numbers: Sequence[int]) -> Iterator[PartResult]:
            for number in (0, 1, 4, 2, 3):
                yield from super().run(job, [number])

    engine = InAnotherOrder(only_the_last)
    manifest = await audit(store, tmp_path / "run", engine)
    assert engine.began == dict.fromkeys(range(5), 1) and len(manifest.failures) == 4


async def test_failures_of_an_engine_elsewhere_are_tried_again_though_their_outcomes_come_together(
    store: Settings, tmp_path: Path
) -> None:
    asked: list[int] = []

    def shaky(job: Job, number: int) -> PartResult:
        asked.append(number)
        unlucky = number in (0, 1, 2) and asked.count(number) == 1
        return PartResult(number, error="unavailable", retryable=True) if unlucky else carry_out(job, number)

    assert (await audit(store, tmp_path / "run", Elsewhere(shaky))).complete
    assert asked == [CANARY, 0, 1, 2, 3, 4, 0, 1, 2]


class LateEngine(Elsewhere):
    """As Spark: all outcomes come at the end, and until then only the directory tells."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._ended = threading.Event()

    def run(self, job: Job, numbers: Sequence[int]) -> Iterator[PartResult]:
        outcomes = []
        for number in numbers:
            self.began[number] += 1
            outcomes.append(self._work(job, number))
            if number == ALIKE_MAX - 1:
                assert self._ended.wait(30), "the notes in the directory did not stop it"
                return
        yield from outcomes

    def stop(self) -> None:
        super().stop()
        self._ended.set()


async def test_ranges_that_fail_alike_stop_an_engine_whose_outcomes_come_late(store: Settings, tmp_path: Path) -> None:
    def without(job: Job, number: int) -> PartResult:
        if number == CANARY:
            return carry_out(job, number)
        return carry_out(replace(job, settings=json.dumps({"directory": str(tmp_path / "none")})), number)

    engine = LateEngine(without)
    manifest = await audit(store, tmp_path / "run", engine)
    assert engine.stopped and set(engine.began) == {CANARY, 0, 1, 2}
    assert "3 ranges failed for the same reason, so no more were tried: there is no store in" in manifest.failures[0].error
    manifest = await audit(store, tmp_path / "run", Elsewhere())
    assert manifest.complete and left(tmp_path / "run") == [] and manifest.names == OBJECTS - 1


# --- the report --------------------------------------------------------------------------------------


async def test_report_that_cannot_be_written_names_its_path(store: Settings, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "findings").mkdir()

    def work(job: Job, number: int) -> PartResult:
        (tmp_path / "run" / "report.html").mkdir(exist_ok=True)
        return carry_out(job, number)

    with pytest.raises((ConfigurationError, UnavailableError), match=r"/run/report\.html cannot be written: "):
        await audit(store, tmp_path / "run", InThread(work))
