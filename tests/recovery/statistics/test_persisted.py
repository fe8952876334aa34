"""What is stored of a source: workers come, go and come back, clocks jump, and no figure decreases or is lost."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from changelog.base.errors import CorruptRecordError, UnconfirmedError
from changelog.key_values import NOTE_BYTES_MAX
from changelog.noop import NoopChangeLog
from emulators.world.runtime import SimulatedRuntime
from emulators.world.services import SimulatedChangeLog
from recovery import states
from recovery.statistics.columns import COUNTERS, Offsets, SourceRow
from recovery.statistics.persisted import (
    DONE,
    FOLDED_MAX,
    Document,
    WorkerReport,
    change_statistics,
    decode,
    encode,
    note_name,
    read_statistics,
)
from recovery.statistics.verdict import Sample

GONE_MS = 120_000
T0 = 1_700_000_000_000


def row(worker: str, done: int, backlog: int = 0, **columns: Any) -> SourceRow:
    found = SourceRow("recovery", worker, "", 100, False, 40, False, done + backlog, done, done, 10 * done, done, done)
    return replace(found, **columns)


def reported(document: Document, worker: str, done: int, at_s: float = 0, *, run: str = "", backlog: int = 0, **options: Any) -> Document:
    """The document after a report of a worker that has looked, as `recovery_source` reports."""
    run = run or f"run of {worker}"
    processed = document.processed(run) + done
    probe = Offsets(processed + backlog, processed)
    columns = {name: options.pop(name) for name in list(options) if name in SourceRow.__dataclass_fields__}
    given: dict[str, Any] = {"snapshot": "first pass", "probe": probe} | options
    return document.with_report(WorkerReport(row(worker, done, backlog, **columns), run, T0 + round(at_s * 1000), GONE_MS, **given))


def new() -> Document:
    return Document("recovery")


def test_the_first_worker_is_responsible_and_the_others_report_zero_of_what_belongs_to_the_source() -> None:
    document = reported(reported(new(), "a", 10, backlog=5), "b", 3, backlog=5)
    assert document.rows()["b"].snapshot_records_known == document.rows()["b"].snapshot_progress == document.rows()["b"].lag == 0
    found = document.total()
    assert (found.snapshot_records_known, found.snapshot_progress, found.outstanding_values, found.processed_values) == (100, 40, 15, 10)
    found = reported(document, "a", 11, 10, backlog=4).total()
    assert (found.outstanding_values, found.processed_values, found.lag) == (18, 14, 4)


def test_a_worker_that_reports_again_replaces_its_own_figures() -> None:
    once = reported(new(), "a", 10, backlog=5)
    twice = reported(once, "a", 10, backlog=5)
    assert (twice.total(), twice.rows(), twice.base) == (once.total(), once.rows(), once.base)


def test_a_silent_worker_is_folded_and_nothing_decreases() -> None:
    document = reported(reported(new(), "a", 10, backlog=5), "b", 3)
    after = reported(document, "b", 4, 121, backlog=6)
    assert set(after.rows()) == {"b"} and after.base["processed_values"] == 10
    assert after.total().updates_committed == 14
    assert (after.total().outstanding_values, after.total().processed_values) == (20, 14)


def test_a_new_responsible_worker_begins_a_new_incarnation_and_until_all_have_reported_nothing_is_known() -> None:
    document = reported(reported(reported(new(), "a", 10, backlog=5), "b", 3, 90), "c", 2, 90)
    document = reported(document, "b", 4, 121, backlog=6)
    assert document.incarnation == "run of b"
    assert document.total().outstanding_values is document.total().snapshot_progress is None
    assert document.total().updates_committed == 16, "counters are facts"
    document = reported(document, "c", 2, 122)
    assert document.total().lag == 6 and document.total().snapshot_progress == 40


def test_a_pass_that_was_committed_stays_so_over_restarts() -> None:
    document = reported(new(), "a", 10, snapshot_committed=True)
    assert document.total().snapshot_committed
    document = reported(document, "b", 0, 500, snapshot_committed=False)
    assert document.total().snapshot_committed and not document.rows()["b"].snapshot_committed


def test_a_new_run_of_the_audit_is_another_snapshot_and_replaces_the_one_before() -> None:
    document = reported(new(), "audit-1", 100, snapshot="1", alone=True, snapshot_committed=True)
    document = reported(document, "audit-2", 7, 1, backlog=43, snapshot="2", alone=True, snapshot_progress=7)
    found = document.total()
    assert (found.snapshot_committed, found.snapshot_progress) == (False, 7)
    assert (found.outstanding_values, found.processed_values) == (150, 107)


def test_a_worker_that_comes_back_after_it_was_folded_is_not_counted_twice() -> None:
    document = reported(reported(new(), "a", 10), "b", 3)
    document = reported(document, "b", 3, 200)
    assert set(document.rows()) == {"b"}
    document = reported(document, "a", 12, 201)
    assert set(document.rows()) == {"a", "b"} and document.total().updates_committed == 15 and document.base["processed_values"] == 0


def test_a_worker_that_left_is_folded_by_the_next() -> None:
    document = reported(reported(new(), "a", 10, left=True), "a", 2, 1, run="another run")
    assert set(document.rows()) == {"a"} and document.total().updates_committed == 12


def test_two_workers_with_one_name_are_shown_as_two_and_counted_once_each() -> None:
    document = new()
    for at_s in range(0, 100, 10):
        document = reported(reported(document, "a", 10 + at_s, at_s, run="1111111111"), "a", 20 + at_s, at_s + 5, run="2222222222")
    assert set(document.rows()) == {"a", "a~222222"} and document.total().updates_committed == 100 + 110
    document = reported(document, "a", 500, 300, run="2222222222")
    assert set(document.rows()) == {"a"} and document.total().updates_committed == 600


def test_what_vanishes_upstream_is_no_decrease_and_is_counted() -> None:
    document = reported(reported(new(), "a", 10, backlog=100), "a", 10, 10, backlog=40)
    found = document.total()
    assert (found.outstanding_values, found.processed_values, document.regressions) == (110, 70, 60)
    document = reported(document, "a", 30, 20, backlog=25)
    found = document.total()
    assert (found.outstanding_values, found.processed_values, document.regressions) == (115, 90, 60), "5 came in, and 20 were done"


def test_work_that_another_reports_late_is_counted_once() -> None:
    """The responsible worker looks before the other one reports, and after it, and so on. There are 1,000 entries."""
    document, done = reported(reported(new(), "a", 0, backlog=1000), "b", 0), 0
    for at_s in range(10, 110, 10):
        done += 50
        document = reported(document, "a", 0, at_s, backlog=1000 - done)
        assert document.total().lag == 1000 - done and document.total().processed_values == done
        document = reported(document, "b", done, at_s + 4)
        document = reported(document, "a", 0, at_s + 5, backlog=1000 - done)
    found = document.total()
    assert (found.outstanding_values, found.processed_values, document.regressions) == (1000, 500, 0)


def test_what_vanishes_beside_another_worker_is_counted_once_it_has_reported() -> None:
    document = reported(reported(new(), "a", 0, backlog=1000), "b", 0)
    document = reported(document, "a", 0, 10, backlog=650)  # 300 vanished, and b did 50 that it did not report yet
    assert (document.total().outstanding_values, document.total().processed_values, document.regressions) == (1000, 350, 0)
    document = reported(document, "b", 60, 14)
    document = reported(document, "a", 0, 20, backlog=640)
    assert (document.total().outstanding_values, document.total().processed_values) == (1000, 360)
    assert 290 <= document.regressions <= 300
    document = reported(reported(document, "b", 160, 24), "a", 0, 25, backlog=640)  # 100 came in, and b did as many
    assert 1090 <= (document.total().outstanding_values or 0) <= 1100 and document.total().lag == 640


def test_what_is_missing_waits_until_every_other_worker_has_reported() -> None:
    document = reported(reported(reported(new(), "a", 0, backlog=14), "b", 4, 1), "c", 0, 1)
    document = reported(document, "a", 0, 5, backlog=10)
    for at_s in (10, 20):
        document = reported(document, "a", 0, at_s, backlog=5)
        assert (document.regressions, document.elsewhere) == (0, 0) and document.missing is not None, "b may have done it"
    document = reported(reported(document, "c", 0, 25), "a", 0, 30, backlog=5)
    assert document.regressions == 0 and document.missing is not None
    document = reported(reported(document, "b", 7, 35), "a", 0, 40, backlog=5)
    assert (document.regressions, document.elsewhere, document.missing) == (2, 2, None), "the other two were not theirs"


def test_what_a_worker_finishes_while_it_counts_has_not_vanished() -> None:
    """It counts for 5 s and finishes entries meanwhile, sometimes 250, sometimes none."""
    document = reported(new(), "a", 0, backlog=10_000)
    for turn in range(1, 21):
        during = 250 * (turn % 2)
        document = reported(document, "a", turn * 300, turn * 10, backlog=10_000 - turn * 300 - during, during=during)
    found = document.total()
    assert (found.outstanding_values, found.processed_values, document.regressions) == (10_000, 6_000, 0)


def test_a_kill_between_two_reports_loses_no_offset() -> None:
    """The worker did 30 and died before it said so. Its successor finds them gone from the backlog."""
    document = reported(new(), "a", 10, backlog=50)
    document = reported(document, "b", 0, 200, backlog=20)
    assert (document.total().outstanding_values, document.total().processed_values) == (60, 40)


@pytest.mark.night
@pytest.mark.slow
def test_ten_thousand_dead_workers_fit_into_one_note() -> None:
    document = new()
    for number in range(10_000):
        document = reported(document, f"recovery-{number:016x}" + "x" * 70, 1, number * 200, run=f"{number:016x}")
    assert document.total().updates_committed == 10_000 and len(document.folded) == FOLDED_MAX
    assert len(encode(document)) <= NOTE_BYTES_MAX and decode("recovery", encode(document)) == document


def test_so_many_living_workers_that_they_do_not_fit_are_still_counted() -> None:
    document = new()
    for turn in range(1, 4):
        for number in range(90):
            document = reported(document, f"{'x' * 90}{number}", turn, number / 10 + turn * 10, run=f"{number:016x}")
            assert len(encode(document)) <= NOTE_BYTES_MAX
    assert document.total().updates_committed >= 270


@pytest.mark.parametrize("jump_s", [-86_400 * 365, -4_000, -130, -60, 130, 86_400 * 365])
def test_a_clock_that_jumps_loses_nothing(jump_s: float) -> None:
    document = reported(reported(new(), "a", 10, 0, backlog=5), "b", 3, 1)
    for later_s in range(0, 60, 10):
        document = reported(document, "b", 4, later_s + jump_s, backlog=5)
        document = reported(document, "a", 11, later_s + jump_s + 1, backlog=5)
    found = document.total()
    assert (found.updates_committed, found.processed_values, found.lag) == (15, 15, 5)
    assert list(document.samples) == sorted(document.samples)
    assert document.verdict().kind in (states.STALLED, states.UNKNOWN)


def test_the_verdict_compares_samples_from_half_a_minute() -> None:
    document = new()
    for turn in range(30):
        document = reported(document, "a", 10 * turn, 10 * turn, backlog=1000 - 5 * turn)
    before, after = document.window()
    assert after == Sample(T0 + 290_000, 1000 + 5 * 29, 290) and before == Sample(T0 + 260_000, 1000 + 5 * 26, 260)
    assert len(document.samples) <= 12
    assert (
        document.verdict().kind is states.CATCHING_UP
        and document.verdict().drain_per_s == 1.0
        and document.verdict().inflow_per_s == 0.5
    )


# --- properties: workers, restarts, regressions ------------------------------------------------------


class Source(RuleBasedStateMachine):
    """Daemons that work, report, die, return and share names, on a log whose entries others finish, too."""

    def __init__(self) -> None:
        super().__init__()
        self.document = new()
        self.now_s = 0.0
        self.backlog = 0
        self.done: dict[str, int] = {}
        self.told: dict[str, int] = {}
        self.runs = 0

    @initialize()
    def begin(self) -> None:
        self.start()

    @rule()
    def start(self) -> None:
        self.runs += 1
        self.done[f"{self.runs:08d}"] = 0

    @rule(count=st.integers(0, 50))
    def arrive(self, count: int) -> None:
        self.backlog += count

    @rule(count=st.integers(0, 50))
    def vanish(self, count: int) -> None:
        self.backlog -= min(count, self.backlog)

    @rule(which=st.integers(0, 9), count=st.integers(0, 50))
    def work(self, which: int, count: int) -> None:
        run = list(self.done)[which % len(self.done)]
        self.done[run] += min(count, self.backlog)
        self.backlog -= min(count, self.backlog)

    @rule(which=st.integers(0, 9), left=st.booleans(), stored=st.booleans())
    def report(self, which: int, left: bool, stored: bool) -> None:
        run = list(self.done)[which % len(self.done)]
        before = self.document
        if stored:
            self.document = decode("recovery", encode(self.document))
        name = "ab"[int(run) % 2]
        self.document = reported(self.document, name, self.done[run], self.now_s, run=run, backlog=self.backlog, left=left)
        self.told[run] = self.done[run]
        self._nothing_decreased(before)
        if left and len(self.done) > 1:
            del self.done[run]

    @rule(seconds=st.sampled_from([1, 10, 100, 1000, -30, -500]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def _nothing_decreased(self, before: Document) -> None:
        earlier, later = before.total(), self.document.total()
        assert (before.regressions, before.elsewhere) <= (self.document.regressions, self.document.elsewhere)
        for name in COUNTERS:
            assert getattr(later, name) >= getattr(earlier, name)
        if before.offsets is not None and self.document.offsets is not None:
            assert before.offsets.outstanding <= self.document.offsets.outstanding
            assert before.offsets.processed <= self.document.offsets.processed
        assert later.snapshot_committed or not earlier.snapshot_committed

    @invariant()
    def everything_reported_is_counted_once(self) -> None:
        assert self.document.total().updates_committed == sum(self.told.values())
        assert self.document.processed() == sum(self.told.values())

    @invariant()
    def the_lag_is_never_negative(self) -> None:
        assert (self.document.total().lag or 0) >= 0
        assert all((each.lag or 0) >= 0 for each in self.document.rows().values())

    @invariant()
    def it_can_be_stored(self) -> None:
        assert decode("recovery", encode(self.document)) == self.document


Source.TestCase.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSource = pytest.mark.slow(Source.TestCase)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300)), min_size=1, max_size=30))
def test_a_document_is_the_same_whoever_stores_it_in_between(reports: list[tuple[int, int]]) -> None:
    kept = stored = new()
    done: dict[int, int] = {}
    for at, (worker, count) in enumerate(reports):
        done[worker] = done.get(worker, 0) + count
        kept = reported(kept, f"w{worker}", done[worker], at * 40)
        stored = decode("recovery", encode(reported(stored, f"w{worker}", done[worker], at * 40)))
    assert kept == stored and kept.total().updates_committed == sum(done.values())


# --- in the changelog --------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_workers_that_report_at_once_lose_nothing(anyio_backend: str) -> None:


    log = SimulatedChangeLog(SimulatedRuntime(1))

    async def work(number: int) -> None:
        for done in range(1, 6):
            while await change_statistics(log, "recovery", lambda found, done=done: reported(found, f"w{number}", done)) is None:  # type: ignore[misc]
                pass

    async with anyio.create_task_group() as tasks:
        for number in range(6):
            tasks.start_soon(work, number)
    found = await read_statistics(log, "recovery")
    assert found is not None and found.total().updates_committed == 30


@pytest.mark.anyio
async def test_a_swap_without_an_answer_is_repeated_without_counting_twice(anyio_backend: str) -> None:
    class Unanswered(SimulatedChangeLog):
        silent = True

        async def swap_note(self, name: str, expected: bytes | None, value: bytes) -> bool:
            await super().swap_note(name, expected, value)
            if self.silent:
                raise UnconfirmedError("no answer")
            return True

    log = Unanswered(SimulatedRuntime(1))
    with pytest.raises(UnconfirmedError):
        await change_statistics(log, "recovery", lambda found: reported(found, "a", 10))
    log.silent = False
    found = await change_statistics(log, "recovery", lambda found: reported(found, "a", 11, 10))
    assert found is not None and found.total().updates_committed == 11


@pytest.mark.anyio
def test_the_stored_form_is_the_one_that_was_released() -> None:
    """Daemons of two versions work beside each other. A form that changes is a new version."""
    columns = (
        '"incarnation":"r","snapshot_records_known":9,"snapshot_known_estimated":true,"snapshot_progress":4,"snapshot_committed":false,'
        '"outstanding_values":7,"processed_values":3,"messages_received":5,"bytes_received":50,"updates_staged":2,"updates_committed":1'
    )
    raw = (
        '{"v":1,"source":"recovery","incarnation":"r","snapshot":"first pass","committed":false,"base":{"processed_values":2,'
        '"messages_received":2,"bytes_received":2,"updates_staged":2,"updates_committed":2},"folded":{"old":[1,1,1,1,1]},'
        '"offsets":{"outstanding":9,"processed":5},"missing":{"since_ms":1,"amount":2,"others":3},"elsewhere":4,"regressions":6,'
        f'"samples":[[1000,9,5]],"workers":{{"a":{{"run":"r","at_ms":1000,"left":false,{columns}}}}},"departed":{{"z":8}}}}'
    ).encode()
    found = decode("recovery", raw)
    assert encode(found) == raw
    assert (found.offsets, found.elsewhere, found.regressions) == (Offsets(9, 5), 4, 6)
    assert (found.departed, found.samples) == ({"z": 8}, ((1000, 9, 5),))
    assert (found.total().lag, found.total().messages_received) == (4, 7)


async def test_a_log_that_keeps_nothing_has_no_statistics(anyio_backend: str) -> None:
    log = NoopChangeLog()
    assert await change_statistics(log, "audit", lambda found: reported(found, "a", 10)) is not None
    assert await read_statistics(log, "audit") is None


def spoilt(**changes: Any) -> bytes:
    return json.dumps(json.loads(encode(reported(reported(new(), "a", 1), "b", 1, 500))) | changes).encode()


NEWER = [spoilt(v=2), spoilt(v=99, workers=None)]
DAMAGED = [
    spoilt(v=0), spoilt(v="1"), spoilt(source="audit"), spoilt(base={}), spoilt(base=None), spoilt(elsewhere=-1), spoilt(regressions=1.5),
    spoilt(workers=[]), spoilt(workers={"a": {}}), spoilt(offsets={"outstanding": 1, "processed": 2}), spoilt(samples=[[1, 2]]),
    spoilt(offsets={"outstanding": 2**64, "processed": 2}), spoilt(folded={"x": [1]}), spoilt(folded={"x": [10**9, 1, 1, 1, 1]}),
    spoilt(committed=1), b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 16_000, b"1" * 5_000, b"{", b"NaN",
]  # fmt: skip


@pytest.mark.parametrize(("raw", "why"), [(raw, "newer software") for raw in NEWER] + [(raw, "damaged") for raw in DAMAGED])
@pytest.mark.anyio
async def test_a_note_that_cannot_be_read_is_refused_and_left_as_it_is(anyio_backend: str, raw: bytes, why: str) -> None:
    log = SimulatedChangeLog(SimulatedRuntime(1))
    log.notes[note_name("recovery")] = raw
    for attempt in (read_statistics(log, "recovery"), change_statistics(log, "recovery", lambda found: found)):
        with pytest.raises(CorruptRecordError, match=f"statistics of recovery .*{why}.* left as they are; "):
            await attempt
    assert log.notes == {note_name("recovery"): raw}


@given(st.binary(max_size=300))
def test_no_bytes_make_the_reader_fail_in_another_way(raw: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        decode("recovery", raw)


@given(st.integers(0, 2000), st.integers(0, 255))
def test_a_flipped_byte_is_refused_or_read_as_figures(position: int, byte: int) -> None:
    raw = bytearray(encode(reported(reported(new(), "a", 1), "b", 1, 500)))
    raw[position % len(raw)] = byte
    try:
        found = decode("recovery", bytes(raw))
    except CorruptRecordError:
        return
    found.total()
    assert all(value >= 0 for value in found.base.values()) and set(found.base) == set(DONE)




def test_a_clock_that_is_set_back_does_not_keep_what_is_missing_for_ever() -> None:
    document = reported(reported(new(), "a", 0, 3600, backlog=100), "b", 0, 3600)
    document = reported(document, "a", 0, 3610, backlog=60)
    assert document.missing is not None
    for at_s in range(0, 40, 10):
        document = reported(reported(document, "a", 0, at_s, backlog=60), "b", 0, at_s + 5)
    assert (document.missing, document.elsewhere, document.total().outstanding_values) == (None, 40, 100)


def test_a_worker_that_works_again_has_not_departed_whatever_the_clock_says() -> None:
    """It ended in order, the clock was set back by an hour, and it was started again under its name."""
    document = reported(new(), "a", 3, 3600, left=True)
    document = reported(document, "a", 1, 0, run="another run")
    assert set(document.rows()) == {"a"} and document.departed == {}
    document = reported(document, "b", 1, 5)
    document = reported(reported(document, "a", 2, 10, run="another run", left=True), "b", 2, 15)
    assert set(document.departed) == {"a"}


@pytest.mark.parametrize("jump_s", [3600, 7200])
def test_a_clock_that_jumps_ahead_makes_no_verdict_about_those_hours(jump_s: float) -> None:
    """Recovery drains 1 entry/s of 1,000. Compared over two hours that would be nothing, and so falling behind."""
    document, at_s = new(), 0.0
    for turn in range(12):
        at_s += 10 + jump_s * (turn == 5)
        document = reported(document, "a", turn * 10, at_s, backlog=1000 - turn * 5)
        kind = document.verdict().kind
        assert kind is (states.UNKNOWN if turn in (0, 5) else states.CATCHING_UP), turn
