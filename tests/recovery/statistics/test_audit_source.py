"""What an audit reports of itself: only what finished ranges say, however often tasks were repeated."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from changelog.base.errors import UnavailableError
from changelog.base.runtime import SystemRuntime
from changelog.noop import NoopChangeLog
from emulators.world.runtime import SimulatedRuntime
from emulators.world.services import SimulatedChangeLog
from recovery import states
from recovery.audit.running.jobs import Job, PartResult, carry_out
from recovery.statistics.audit_source import AuditSource, Finished, estimate
from recovery.statistics.persisted import Document, note_name, read_statistics
from tests.given.audited_store import InThread, audit, plant
from tiered.open import open_backends
from tiered.settings import Settings

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(anyio_backend: str, tmp_path: Path) -> Settings:
    return await plant(tmp_path / "store")


async def stored(settings: Settings) -> Document | None:
    async with open_backends(settings, SystemRuntime(), writes=False) as backends:
        return await read_statistics(backends.log, "audit")


def finished(ranges_done: int, names: int, *, ranges: int = 4, findings: int = 0, planned: int | None = None) -> Finished:
    complete = ranges_done == ranges
    known = names if complete else estimate(ranges, ranges_done, names, planned)
    return Finished(names, findings, known, estimated=not complete, complete=complete)


async def test_a_finished_run_is_known_exactly_and_committed(store: Settings, tmp_path: Path) -> None:
    await audit(store, tmp_path / "run")
    document = await stored(store)
    assert document is not None
    found = document.total()
    assert (found.snapshot_records_known, found.snapshot_known_estimated, found.snapshot_progress) == (11, False, 11)
    assert (found.snapshot_committed, found.outstanding_values, found.processed_values) == (True, 11, 11)
    assert (found.messages_received, found.updates_staged, found.updates_committed) == (11, 3, 3)
    assert document.at_ms > 0 and [each.left for each in document.workers.values()] == [True]


async def test_a_task_that_is_repeated_counts_once(store: Settings, tmp_path: Path) -> None:
    class Twice(InThread):
        def run(self, job: Job, numbers: Sequence[int]) -> Iterator[PartResult]:
            yield from super().run(job, [*numbers, *numbers])

    await audit(store, tmp_path / "run", Twice())
    document = await stored(store)
    assert document is not None and document.total().processed_values == document.total().messages_received == 11


async def test_a_run_that_goes_on_counts_what_was_done_before_once(store: Settings, tmp_path: Path) -> None:
    def not_the_first(job: Job, number: int) -> PartResult:
        return PartResult(number, error="out of reach", retryable=False) if number == 0 else carry_out(job, number)

    await audit(store, tmp_path / "run", InThread(not_the_first))
    part = await stored(store)
    assert part is not None and not part.total().snapshot_committed
    await audit(store, tmp_path / "run")
    document = await stored(store)
    assert document is not None and document.total().processed_values == 11 and document.total().snapshot_committed
    await audit(store, tmp_path / "run")
    assert await stored(store) == document, "a run that was finished before is no news"


async def test_the_next_run_adds_to_the_one_before(store: Settings, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        await audit(store, tmp_path / f"run-{number}")
        document = await stored(store)
        assert document is not None and len(document.rows()) == 1
        found = document.total()
        assert (found.processed_values, found.outstanding_values, found.snapshot_progress) == (11 * number, 11 * number, 11)


async def test_without_a_changelog_an_audit_reports_nothing(store: Settings, tmp_path: Path) -> None:
    await audit(store.model_copy(update={"changelog": "noop"}), tmp_path / "run")
    assert await stored(store) is None


async def test_what_is_damaged_stays_and_the_audit_goes_on(store: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tiered")
    async with open_backends(store, SystemRuntime()) as backends:
        assert await backends.log.swap_note(note_name("audit"), None, b"{")
    assert (await audit(store, tmp_path / "run")).complete
    async with open_backends(store, SystemRuntime()) as backends:
        assert await backends.log.read_note(note_name("audit")) == b"{"
    assert "the statistics of audit in the changelog are damaged" in caplog.text


async def test_a_changelog_that_cannot_be_opened_is_said_and_ends_no_audit(
    anyio_backend: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tiered")
    async with AuditSource.open(Settings(directory=tmp_path / "nowhere", changelog="sqlite"), SystemRuntime(), "run-7") as source:
        await source.report_finished(finished(1, 10))
    assert "statistics_not_reported run=run-7: there is no store in" in caplog.text


# --- reports -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "known"), [
    (finished(0, 0), None),
    (finished(0, 0, planned=7), 7),
    (finished(1, 10, planned=7), 40),
    (finished(3, 10), 13),
    (finished(4, 10, planned=70), 10),
    (finished(2, 0), 0),
])  # fmt: skip
async def test_how_many_blobs_there_are_is_estimated_from_the_finished_ranges(given: Finished, known: int | None) -> None:
    assert given.known == known


async def test_two_processes_of_one_run_report_the_same_and_count_once(anyio_backend: str) -> None:
    runtime = SimulatedRuntime(1)
    log = SimulatedChangeLog(runtime)
    one, other = AuditSource(log, runtime, "run"), AuditSource(log, runtime, "run")
    await one.report_finished(finished(2, 20))
    await other.report_finished(finished(1, 10))
    document = await read_statistics(log, "audit")
    assert document is not None and document.total().messages_received == 20, "the one that looked earlier takes nothing back"
    await other.report_finished(finished(4, 40), left=True)
    document = await read_statistics(log, "audit")
    assert document is not None and (document.total().processed_values, document.total().lag) == (40, 0)


async def test_an_estimate_that_was_too_high_leaves_no_lag_and_no_decrease(anyio_backend: str) -> None:
    runtime = SimulatedRuntime(1)
    log = SimulatedChangeLog(runtime)
    seen: list[object] = []
    document: Document | None = None
    for each in (finished(1, 10), finished(2, 11), finished(3, 12), finished(4, 13)):
        await AuditSource(log, runtime, "run").report_finished(each)
        document = await read_statistics(log, "audit")
        assert document is not None
        seen.append((document.total().outstanding_values, document.total().lag))
    assert seen == [(10, 0), (11, 0), (12, 0), (13, 0)], "an estimate is in known, and not in what is outstanding"
    assert document is not None and document.regressions == 0 and document.total().messages_received == 13


async def test_what_is_known_exactly_is_outstanding_until_it_is_done(anyio_backend: str) -> None:
    runtime = SimulatedRuntime(1)
    log = SimulatedChangeLog(runtime)
    seen = []
    for done in (0, 3, 7):
        await AuditSource(log, runtime, "run").report_finished(Finished(done, 0, 7, estimated=False, complete=done == 7))
        document = await read_statistics(log, "audit")
        assert document is not None
        found = document.total()
        seen.append((found.outstanding_values, found.lag, found.snapshot_known_estimated))
    assert seen == [(7, 7, False), (7, 4, False), (7, 0, False)]


async def test_two_runs_at_once_replace_one_another_and_lose_nothing(anyio_backend: str) -> None:
    runtime = SimulatedRuntime(1)
    log = SimulatedChangeLog(runtime)
    one, other = AuditSource(log, runtime, "1"), AuditSource(log, runtime, "2")
    for turn in (1, 2, 3, 4):
        await one.report_finished(finished(turn, 10 * turn), left=True)
        await other.report_finished(finished(turn, 5 * turn), left=True)
    document = await read_statistics(log, "audit")
    assert document is not None
    found = document.total()
    assert (found.messages_received, found.updates_committed, found.lag, found.snapshot_progress) == (60, 0, 0, 20)
    assert document.processed() == 60
    assert document.verdict().kind in (states.HEALTHY, states.UNKNOWN)


@pytest.mark.parametrize("error", [UnavailableError("down"), ZeroDivisionError(), None], ids=str)
async def test_whatever_fails_no_report_raises(error: Exception | None, monkeypatch: pytest.MonkeyPatch) -> None:
    class FailingLog(SimulatedChangeLog):
        async def swap_note(self, name: str, expected: bytes | None, value: bytes) -> bool:
            if error is None:
                await anyio.sleep_forever()
            raise error or AssertionError

    monkeypatch.setattr(AuditSource, "budget_s", 0.05)
    runtime = SimulatedRuntime(1)
    await AuditSource(FailingLog(runtime), runtime, "run").report_finished(finished(1, 1))
    await AuditSource(NoopChangeLog(), runtime, "run").report_finished(finished(1, 1))


async def test_reports_are_at_most_one_in_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []

    async def change(*arguments: Any) -> None:
        written.append(arguments)

    monkeypatch.setattr("recovery.statistics.audit_source.change_statistics", change)
    runtime = SystemRuntime()
    source = AuditSource(SimulatedChangeLog(runtime), runtime, "run")
    for _ in range(100):
        await source.report_finished(finished(1, 1))
    assert len(written) == 1
    await source.report_finished(finished(1, 1), left=True)
    assert len(written) == 2
