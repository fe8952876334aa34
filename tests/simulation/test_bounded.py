"""Every schedule with few delays keeps I1-I7, and the same schedules find what each guard of the protocol is for.

`python -m emulators.simulation.bounded` runs all scenarios with two delays. Here are as many schedules
as a test run has time for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import anyio
import pytest

import tiered.protocol.finishing
import tiered.protocol.writing
from changelog.base.errors import InvalidRequestError
from changelog.change import Change, ChangeId
from emulators.simulation import bounded, conductor
from emulators.simulation.bounded import CRASHES, UNTOLD, ExploredSchedules, Ran, each, explore, replay, run
from emulators.simulation.conductor import BEGIN, Conductor, Question
from emulators.simulation.schedules import Scenario, Schedule, Wrong, scenario_named, scenarios, schedule_of
from emulators.world.deployment import World
from emulators.world.faults import Mode, Process, call_of
from emulators.world.runtime import run_world
from emulators.world.services import SimulatedRows
from tiered.object_id import ObjectId
from tiered.protocol.reading import Reader
from tiered.services.backends import Inline, Only, RowState, Tiers, Tombstone

T = TypeVar("T")

OVERWRITE = scenario_named("put_large+delete on large")
IN_ONE_REQUEST = scenario_named("put_large+delete on large in one request")
HEAVIEST = scenario_named("put_large+put_large on large")
SHORTER = scenario_named("put_large+put_small on absent")
WITH_SESSIONS = [scenario for scenario in scenarios() if scenario.sessions]
WITHOUT_SESSIONS = [scenario for scenario in scenarios() if not scenario.sessions]


def some(all_of_them: list[Scenario], now: Scenario) -> list[Any]:
    """One scenario now, and every third by night. `python -m emulators.simulation.bounded` has all."""
    others = [scenario for scenario in all_of_them[::3] if scenario != now]
    return [pytest.param(now, id=str(now)), *(pytest.param(each, id=str(each), marks=pytest.mark.night) for each in others)]


def assert_kept(explored: ExploredSchedules) -> None:
    """The first violation, in full, with the line that replays it."""
    for ran in explored.violations:
        pytest.fail(f"{ran.schedule}\n{ran.violation}")


# --- the product ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", some(WITH_SESSIONS, OVERWRITE))
def test_one_delay_and_the_death_of_a_writer_anywhere_break_no_invariant(scenario: Scenario) -> None:
    assert_kept(explore(scenario, 1, CRASHES))


@pytest.mark.night
def test_one_delay_and_the_death_of_recovery_anywhere_break_no_invariant() -> None:
    assert_kept(explore(OVERWRITE, 1, CRASHES, victims=("recoverer",)))


@pytest.mark.parametrize("scenario", some(WITHOUT_SESSIONS, IN_ONE_REQUEST))
def test_without_a_delay_the_death_of_a_writer_anywhere_breaks_no_invariant(scenario: Scenario) -> None:
    assert_kept(explore(scenario, 0, CRASHES))


@pytest.mark.parametrize("scenario", some(WITH_SESSIONS + WITHOUT_SESSIONS, OVERWRITE))
def test_without_a_delay_a_call_that_is_late_lost_or_duplicated_breaks_no_invariant(scenario: Scenario) -> None:
    assert_kept(explore(scenario, 0, UNTOLD))


@pytest.mark.night
def test_two_delays_break_no_invariant_where_both_writers_do_most() -> None:
    explored = explore(HEAVIEST, 2)
    assert_kept(explored)
    assert explored.distinct_traces > 200


# --- the check can fail --------------------------------------------------------------------------

Swap = Callable[[SimulatedRows, str, ChangeId, str | None, RowState, float, Only | None, int | None], Awaitable[bool]]


def heedless_of(*kinds: str) -> Swap:
    """A swap that does not see its token's marks of these kinds."""
    heedful = SimulatedRows.swap

    async def swap(
        rows: SimulatedRows, path: str, token: ChangeId, expected: str | None, state: RowState, deadline_s: float, only: Only | None = None,
        since_ms: int | None = None,
    ) -> bool:  # fmt: skip
        marks = [getattr(rows, kind)[path] for kind in kinds]
        hidden = [(tokens, tokens.pop(token)) for tokens in marks if token in tokens]
        try:
            return await heedful(rows, path, token, expected, state, deadline_s, only, since_ms)
        finally:
            for tokens, at_ms in hidden:
                tokens.setdefault(token, at_ms)

    return swap


def first_violation(scenario: Scenario, delays_max: int, wrongs: tuple[Mode, ...] = ()) -> Ran:
    """What is found first, having been replayed from its line."""
    for ran in each(scenario, delays_max, wrongs):
        if ran.violation is not None:
            again = replay(str(ran.schedule))
            assert (str(again.violation), again.questions) == (str(ran.violation), ran.questions)
            return ran
    pytest.fail("every schedule kept every invariant")


async def _unseen(tiers: Tiers, change: Change, old: str) -> bool:
    return True


async def _follow_once(
    reader: Reader, object_id: ObjectId, inline: Callable[[Inline], T], blob: Callable[[Tombstone], Awaitable[T | None]]
) -> T | None:
    row = await reader._tiers.high_volume.read(object_id.path)
    if not isinstance(row.state, Tombstone):
        return None if row.state is None else inline(row.state)
    return await blob(row.state)


def _told_by_the_row(change: Change, live: bool, row: object) -> bool:
    return live


@dataclass(frozen=True)
class Mutation:
    """One part taken away, and what is found first: the invariant, after how many delays, beside which wrong call."""

    owner: object
    name: str
    instead: object
    scenario: Scenario
    invariant: str
    delays: int = 0
    wrong: Wrong | None = None


UNANSWERED = Wrong("writer-1", "rows.swap #1", Mode.LOST)
SMALL_OVER_LARGE = scenario_named("put_small+put_small on large")
MUTATIONS = {
    "the fence": Mutation(SimulatedRows, "swap", heedless_of("won", "refused"), OVERWRITE, "I1 no dangling", delays=1),
    "the refused mark in a swap": Mutation(SimulatedRows, "swap", heedless_of("refused"), OVERWRITE, "I1 no dangling", delays=1),
    "the won mark in a swap": Mutation(SimulatedRows, "swap", heedless_of("won"), SMALL_OVER_LARGE, "I4 honest", wrong=UNANSWERED),
    "to settle before a deletion": Mutation(tiered.protocol.finishing, "_is_garbage", _unseen, OVERWRITE, "I2 settle first"),
    "to read again when a blob has vanished": Mutation(Reader, "_follow", _follow_once, HEAVIEST, "I4 honest", delays=1),
    "ok for a superseded change": Mutation(
        tiered.protocol.writing, "may_tell_ok", _told_by_the_row, SMALL_OVER_LARGE, "I4 honest", delays=1, wrong=UNANSWERED,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_what_is_missing_is_found_with_few_delays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = MUTATIONS[name]
    monkeypatch.setattr(mutation.owner, mutation.name, mutation.instead)
    ran = first_violation(mutation.scenario, mutation.delays, () if mutation.wrong is None else UNTOLD)
    assert ran.violation is not None and ran.violation.invariant == mutation.invariant
    assert (len(ran.schedule.delays), ran.schedule.wrong) == (mutation.delays, mutation.wrong)


# --- what need not be run ------------------------------------------------------------------------


def calls_only(explored: ExploredSchedules, made: Callable[[str], bool] = lambda point: True) -> set[tuple[tuple[str, str], ...]]:
    return {
        tuple((process, point) for process, point in trace if not point.startswith(BEGIN) and made(call_of(point)))
        for trace in explored.traces
    }


@cache
def deaths_in_a_short_one() -> ExploredSchedules:
    return explore(SHORTER, 1, CRASHES)


@pytest.mark.night
def test_delays_and_deaths_at_calls_that_nobody_sees_show_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = deaths_in_a_short_one()
    invisible = conductor.INVISIBLE
    monkeypatch.setattr(conductor, "INVISIBLE", frozenset())
    more = explore(SHORTER, 1, CRASHES)
    assert more.schedules > fewer.schedules
    assert calls_only(more, lambda call: call not in invisible) == calls_only(fewer)


@pytest.mark.night
def test_a_death_after_an_effect_shows_nothing_that_a_death_before_the_next_call_does_not() -> None:
    before, after = deaths_in_a_short_one(), explore(SHORTER, 1, (Mode.CRASH_AFTER,))
    assert after.schedules > 50
    assert after.traces <= before.traces


# --- schedules -----------------------------------------------------------------------------------


def test_a_process_goes_on_until_it_ends_and_a_delay_gives_the_turn_to_the_next() -> None:
    def order(*delays: int) -> str:
        return "".join(asked.process for asked in conducted(delays) if not asked.delayed)

    assert order() == "aaabbbccc"
    assert order(2) == "abbbcccaa"
    assert order(2, 3) == "acccaabbb"  # the second delay is b's
    assert order(2, 3, 4) == "aaabbbccc"  # everybody's: the turn is a's again
    assert order(2, 4) == "abcccaabb"
    assert order(9) == "aaabbbccc"  # nobody else has a call to make


def conducted(delays: tuple[int, ...]) -> list[Question]:
    """Three processes that read three times each."""

    async def world_of_three() -> list[Question]:
        async with World(1) as world:
            leader = Conductor("abc", delays)
            world.network.turn = leader.turn

            async def read(process: Process) -> None:
                rows = process.link.rows(world.rows)
                for _ in range(3):
                    await rows.read("path")

            async with anyio.create_task_group() as conducting:
                conducting.start_soon(leader.run)
                async with anyio.create_task_group() as living:
                    for name in "cab":
                        living.start_soon(read, world.process(name))
                conducting.cancel_scope.cancel()
            return leader.questions

    return run_world(world_of_three, 1)


def test_delays_are_tried_at_every_question_where_they_make_a_difference() -> None:
    base = run(Schedule(OVERWRITE))
    first = [ran.schedule.delays for ran in each(OVERWRITE, 1)]
    assert first == [(), *((number,) for number, asked in enumerate(base.questions, 1) if asked.is_open)]
    assert len(set(explore(OVERWRITE, 1).traces)) == len(first)


@pytest.mark.night
def test_no_schedule_is_run_twice_and_none_has_more_choices_than_allowed() -> None:
    ran = [each_ran.schedule for each_ran in each(scenario_named("put_small+delete on large"), 1, CRASHES)]
    assert len(set(ran)) == len(ran)
    assert {(len(schedule.delays), schedule.wrong is not None) for schedule in ran} == {(0, False), (0, True), (1, False), (1, True)}


def test_a_budget_cuts_the_exploration_and_says_so() -> None:
    assert (explore(OVERWRITE, 1, budget=3).schedules, explore(OVERWRITE, 1, budget=3).cut) == (3, True)
    assert explore(scenario_named("delete+delete on absent"), 0, budget=1).cut is False


@pytest.mark.parametrize("schedule", [
    Schedule(OVERWRITE),
    Schedule(scenario_named("put_small+put_large on absent in one request"), (5,)),
    Schedule(HEAVIEST, (5, 11), Wrong("writer-1", "rows.swap #1", Mode.CRASH_BEFORE)),
    Schedule(HEAVIEST, (), Wrong("recoverer", "blobs.delete #2", Mode.LOST)),
])  # fmt: skip
def test_a_schedule_is_read_from_the_line_it_is_written_as(schedule: Schedule) -> None:
    assert schedule_of(str(schedule)) == schedule


@pytest.mark.parametrize(("text", "said"), [
    ("put_large+delete on large", "is no schedule"),
    ("put_large+delete on large: delays at", "is no schedule"),
    ("put_large+delete on large: no delays; writer-1 BROKEN rows.swap #1", "is no schedule"),
    ("put_large+delete on large: no delays; nobody LOST rows.swap #1", "is no schedule"),
    ("put_large+delete on fire: no delays", "is no scenario"),
])  # fmt: skip
def test_a_line_that_is_no_schedule_is_refused_in_a_sentence(text: str, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        schedule_of(text)


@pytest.mark.night
def test_a_schedule_is_the_same_in_another_interpreter() -> None:
    """Other addresses and other hashes: neither may decide who goes on."""
    line = str(Schedule(HEAVIEST, (8,), Wrong("writer-1", "rows.swap #1", Mode.LATE)))
    written: list[str] = []
    assert bounded.main(["--replay", line], written.append) == 0
    environment = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-m", "emulators.simulation.bounded", "--replay", line]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True)
    assert ran.stdout == "".join(written)
    assert "writer-1: rows.swap #2 delayed" in ran.stdout and "network: rows.swap #1" in ran.stdout


def test_the_command_shows_a_violation_with_the_line_that_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedRows, "swap", heedless_of("won"))
    written: list[str] = []
    assert bounded.main(["--scenario", "put_small+put_small on large", "--delays", "0"], written.append) == 1
    line = next(text for text in written if text.startswith("    ")).splitlines()[0].strip()
    assert replay(line).violation is not None
    assert "1 scenarios: " in written[-1] and ", 0 violations" not in written[-1]


def test_the_command_counts_what_it_ran() -> None:
    written: list[str] = []
    assert bounded.main(["--scenario", str(SHORTER), "--delays", "0"], written.append) == 0
    deaths, others = explore(SHORTER, 0, CRASHES, victims=("writer-1", "recoverer")), explore(SHORTER, 0, UNTOLD)
    assert [text.partition(" violations")[0] for text in written] == [
        f"{SHORTER}, 0 delays, CRASH_BEFORE: {deaths.schedules} schedules, {deaths.distinct_traces} traces, 0",
        f"{SHORTER}, 0 delays, LATE|LOST|DUPLICATED: {others.schedules} schedules, {others.distinct_traces} traces, 0",
        f"1 scenarios: {deaths.schedules + others.schedules} schedules, 0",
    ]


def test_the_command_names_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bounded.main(["--scenario", "put_large+delete on fire"])
    assert "is no scenario; name one such as" in capsys.readouterr().err
