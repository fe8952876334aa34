"""What a run exercised is counted from outside, completely, and without a change to what it does."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import Any

import pytest

import tiered.protocol.finishing
from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from changelog.lease import EntryState, Renewal
from emulators.simulation import decisions as module
from emulators.simulation.coverage import ELSEWHERE, RARE, REQUIRED, Coverage, members
from emulators.simulation.decisions import decisions_counted
from emulators.simulation.recipe import Actor, Life, Recipe, Role, Step, StepKind, Weather
from emulators.simulation.run import WORLD_ENDS_S, run
from emulators.world.deployment import SETTINGS, World
from emulators.world.faults import Mode
from emulators.world.history import WriteAnswer
from emulators.world.runtime import run_world
from recovery.loop import RecoveryReport
from recovery.statistics.recovery_source import count_backlog
from tiered.metadata import Metadata
from tiered.object_id import ObjectId
from tiered.protocol.finishing import Ending, may_delete_legacy, may_tell_ok
from tiered.protocol.writing import Outcome, SwapResult
from tiered.services.backends import Inline, Row, Tombstone
from tiered.settings import FeedSettings

SEEDS = range(30)


def counted(*names: str, section: str = "decisions") -> Coverage:
    coverage = Coverage()
    for name in names:
        coverage.count(section, name)
    return coverage


# --- the counts ----------------------------------------------------------------------------------


def test_counts_add_up_and_survive_json() -> None:
    coverage = counted("lease held", "lease held")
    coverage.count("faults", "LOST", 3)
    coverage.add(counted("lease held", "lease ended"))
    again = Coverage.from_json(coverage.to_json())
    assert again.sections == coverage.sections == {"decisions": {"lease held": 3, "lease ended": 1}, "faults": {"LOST": 3}}
    assert again.missing() == coverage.missing()


def test_what_never_occurred_is_missing_and_what_did_is_not() -> None:
    everything = [f"{section}: {name}" for section, names in REQUIRED.items() for name in names]
    assert sorted(Coverage().missing()) == sorted(everything)
    coverage = Coverage()
    for section, names in REQUIRED.items():
        for name in names:
            coverage.count(section, name)
    assert coverage.missing() == []
    coverage.sections["checks"]["I6 drained"] = 0
    assert coverage.missing() == ["checks: I6 drained"]


def test_asking_what_is_missing_counts_nothing() -> None:
    coverage = Coverage()
    coverage.missing()
    assert coverage.sections == {}


class CoverageWord(Enum):
    OLD = "old"
    NEW = "new"


def test_a_new_member_of_an_enum_is_required_at_once() -> None:
    assert members("word", CoverageWord) == {"word OLD", "word NEW"}


@pytest.mark.parametrize(
    ("section", "word", "kind"),
    [
        ("decisions", "swap told ", SwapResult), ("decisions", "writer's clean-up ", Ending), ("decisions", "recovery's clean-up ", Ending),
        ("decisions", "entry ", EntryState), ("decisions", "renewal ", Renewal), ("decisions", "outcome ", Outcome),
        ("answers", "", WriteAnswer), ("faults", "", Mode), ("actors", "", Role),
    ],
)  # fmt: skip
def test_every_member_of_every_table_is_required(section: str, word: str, kind: type[Enum]) -> None:
    assert {f"{word}{member.name}" for member in kind} <= REQUIRED[section] | ELSEWHERE


def test_what_is_not_required_because_it_takes_a_change_feed_or_newer_software_is_met_there() -> None:
    coverage = Coverage()
    settings = SETTINGS.model_copy(update={"feed": FeedSettings(enabled=True)})

    async def live() -> None:
        async with World(1, settings=settings) as world:
            async with world.client(world.process("writer")) as client:
                await client.put(ObjectId.create("notes", "k"), "label", 500)
            await world.log.record(Change(ChangeId.new(world.runtime), "notes/objects/other"), "dead")
            await world.runtime.sleep(SETTINGS.lease.expiry_s + 1)
            await world.recovery(world.process("recovery")).run_once()
            assert (await count_backlog(world.log, world.runtime, world.runtime.wall_ns() // 1_000_000, settings)).number == 0
            world.verify()
            key = (await world.log.record(Change(ChangeId.new(world.runtime), "notes/objects/other"), "dead")).key
            stored = world.log.stored[key]
            world.log.stored[key] = replace(stored, value=stored.value.replace(b'"v":1', b'"v":2'))
            await world.recovery(world.process("recovery")).run_once()

    with decisions_counted(coverage):
        run_world(live, 1)
    assert set(coverage.sections["decisions"]) >= ELSEWHERE
    assert not ELSEWHERE & frozenset().union(*REQUIRED.values())


def test_each_field_of_a_recovery_report_is_required() -> None:
    counts = set(RecoveryReport.__slots__) - {"seen"}
    assert {f"recovery {name}" for name in counts} <= REQUIRED["decisions"]


def test_what_is_rare_is_required_all_the_same() -> None:
    assert frozenset().union(*REQUIRED.values()) > RARE
    coverage = Coverage()
    assert len(coverage.missing()) == len(coverage.missing(but=RARE)) + len(RARE)


# --- the names -----------------------------------------------------------------------------------

PATH = "attachments/objects/victim"
TOKEN, OTHER = (ChangeId.new(SystemRuntime()) for _ in range(2))
OLD, NEW = Tombstone("old", token=OTHER), Tombstone("other", token=OTHER)
INLINE = Inline(Metadata(), b"", OTHER)


def change(old: str | None) -> Change:
    return Change(TOKEN, PATH, None, old)


@pytest.mark.parametrize(
    ("live", "row", "name"),
    [
        (True, Row(None), "may tell ok: live"),
        (False, Row(None, frozenset({TOKEN})), "may tell ok: won"),
        (False, Row(NEW, frozenset({TOKEN})), "may tell ok: won"),
        (False, Row(NEW), "may tell ok: superseded"),
        (False, Row(OLD), "may not tell ok"),
        (False, Row(INLINE), "may not tell ok"),
        (False, Row(None), "may not tell ok"),
    ],
)
def test_the_reason_for_an_ok_is_told(live: bool, row: Row, name: str) -> None:
    assert module._may_tell_ok(may_tell_ok(change("old"), live, row), change("old"), live, row) == name


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (Row(NEW), "legacy is garbage: another state"),
        (Row(INLINE), "legacy is garbage: another state"),
        (Row(None, frozenset({TOKEN})), "legacy is garbage: won"),
        (Row(None), "legacy is kept"),
        (Row(OLD, frozenset({TOKEN})), "legacy is kept"),
    ],
)
def test_the_reason_to_delete_a_legacy_blob_is_told(row: Row, name: str) -> None:
    assert module._may_delete_legacy(may_delete_legacy(change("old"), row), change("old"), row) == name


# --- the wrapping --------------------------------------------------------------------------------


def wrapped() -> list[Any]:
    return [getattr(owner, name) for owner, name, _ in module._WRAPPINGS]


def test_what_is_wrapped_is_put_back_after_an_error_too() -> None:
    before = wrapped()
    with suppress(KeyError), decisions_counted(Coverage()):
        assert all(now is not original for now, original in zip(wrapped(), before, strict=True))
        raise KeyError
    assert wrapped() == before


def test_within_another_count_only_the_inner_one_counts_and_nothing_is_wrapped_twice() -> None:
    outer, inner = Coverage(), Coverage()
    with decisions_counted(outer):
        tiered.protocol.finishing.may_delete_legacy(change("old"), Row(NEW))
        once = wrapped()
        with decisions_counted(inner):
            assert wrapped() == once
            tiered.protocol.finishing.may_delete_legacy(change("old"), Row(None))
        tiered.protocol.finishing.may_delete_legacy(change("old"), Row(NEW))
    assert outer.sections["decisions"] == {"legacy is garbage: another state": 2}
    assert inner.sections["decisions"] == {"legacy is kept": 1}


def test_to_count_changes_nothing_in_a_world() -> None:
    for seed in SEEDS[:5]:
        plain = run(Recipe.of(seed), Coverage())
        with decisions_counted(Coverage()):
            watched = run(Recipe.of(seed), Coverage())
        assert watched.trace == plain.trace


def decided(seeds: range) -> Coverage:
    coverage = Coverage()
    with decisions_counted(coverage):
        for seed in seeds:
            run(Recipe.of(seed), coverage)
    return coverage


def test_what_is_decided_while_the_checker_repeats_clean_ups_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    repeated = decided(SEEDS[:10])
    assert repeated.sections["checks"]["I5 repeatable"] > 0 and repeated.sections["decisions"]["old is garbage"] > 0

    async def rest(world: World) -> None:
        pass

    monkeypatch.setattr(World, "repeat", rest)
    assert decided(SEEDS[:10]).sections["decisions"] == repeated.sections["decisions"]


def test_thirty_worlds_meet_the_most_of_what_is_required_and_nothing_that_no_table_names() -> None:
    coverage = decided(SEEDS)
    required = sum(map(len, REQUIRED.values()))
    assert len(coverage.missing()) < required / 3
    for section in ("answers", "checks"):
        assert set(coverage.sections[section]) <= REQUIRED[section], "a check or an answer that is not required to occur"


def test_a_world_whose_machines_slept_often_was_a_violation() -> None:
    """A seed was: one machine slept eight times for 84 hours, and the world had 30 days."""
    puts = tuple(Step(StepKind.PUT_LARGE, 0, 1.0, Life.EVER) for _ in range(4))
    coverage = Coverage()
    result = run(Recipe(1, (Actor("writer-0", Role.CALLER, puts),), Weather(suspend_rate=0.3, suspend_s=20 * 86_400.0)), coverage)
    assert result.violation is None, result.violation
    assert coverage.sections["faults"]["suspended for days"] > 2 and result.simulated_s > WORLD_ENDS_S
