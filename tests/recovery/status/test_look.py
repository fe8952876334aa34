"""`gather`: what it says of a store is so, it says what it could not see, and it raises nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest

from changelog.base.errors import ConfigurationError, CorruptRecordError, UnavailableError, UnconfirmedError
from changelog.change import Change, ChangeId, Entry
from changelog.lease import EntryState
from changelog.noop import NoopChangeLog
from recovery import states
from recovery.cli.status_lines import status_lines
from recovery.feed.writer.checkpoint import NOTE as FEED_NOTE
from recovery.feed.writer.checkpoint import Checkpoint
from recovery.feed.writer.positions import Position
from recovery.feed.writer.positions import note_name as position_note
from recovery.last_audit import NOTE, RUNS_MAX, Audits, LastAudit, decode, encode, note_audit, read_audits
from recovery.states import Level
from recovery.statistics.columns import Offsets, SourceRow
from recovery.statistics.persisted import RECOVERY, Document, WorkerReport, change_statistics, note_name
from recovery.statistics.verdict import SourceVerdict
from recovery.status import look as module
from recovery.status.as_json import COLUMNS, as_json
from recovery.status.judgement import ADVICE, DAMAGED, MEND, advice, judge
from recovery.status.known import Daemon, FeedSink, Status
from recovery.status.look import ANSWER_S, gather
from tests.given.tapped_store import OBJECT, TappedWorld
from tiered.kinds.chosen import address_of
from tiered.notes.note_fields import NewerNoteError
from tiered.open import Backends
from tiered.testing.log import StoredEntry

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_time")]

AUDIT = LastAudit("run", "/audits/1", 1_000_000, 2_000_000, True, 12, 10, {"orphan": (2, 40)}, 6, 0, 0)


async def look(world: TappedWorld, **values: Any) -> Status:
    return await gather(Backends(world.tiers, world.log), world.settings(**values), world.runtime)


async def record(world: TappedWorld, owner: str = "writer", path: str = OBJECT.path) -> Entry:
    change = Change(ChangeId.new(world.runtime), path)
    return await world.log.target.record(change, owner)  # type: ignore[no-any-return]


def store_raw(world: TappedWorld, key: str, value: bytes, state: str | None = None) -> None:
    world.log.target.stored[key] = StoredEntry(value, 0, state)


async def hang(*_: object, **__: object) -> None:
    await anyio.sleep_forever()


def fail(error: Exception) -> Callable[..., Any]:
    async def call(*_: object, **__: object) -> None:
        raise error

    return call


def numbers(found: Status) -> dict[str, int]:
    return {each.name: number for each, number in found.entries.by_state.items() if number}


# --- entries -----------------------------------------------------------------------------------------


async def test_of_an_empty_store_nothing_waits_and_nothing_is_made_up(world: TappedWorld) -> None:
    found = await look(world)
    assert (judge(found).level, found.problems, found.answers) == (Level.OK, (), True)
    assert numbers(found) == {} and set(found.entries.by_state) == set(EntryState)
    assert (found.entries.oldest_age_s, found.entries.complete, found.stuck.count, found.daemons) == (None, True, 0, [])
    assert found.audits == Audits() and found.sources == {}
    assert judge(found).headline == "Nothing waits for recovery, and no daemon lives."


async def test_it_writes_nothing(world: TappedWorld) -> None:
    await record(world)
    before = kept(world)
    await look(world)
    assert kept(world) == before


def kept(world: TappedWorld) -> list[dict[str, Any]]:
    """All that the log and both tiers keep."""
    backends = (world.log.target, world.rows.target, world.blobs.target)
    return [deepcopy({name: value for name, value in vars(each).items() if isinstance(value, dict | list | set)}) for each in backends]


async def test_every_standing_is_counted_with_its_age(world: TappedWorld) -> None:
    kept = await record(world)
    await world.runtime.sleep(10)
    dead = await record(world)
    await world.runtime.sleep(1)
    released = await record(world)
    waiting = await record(world)
    await world.log.target.release(released)
    exhausted = await record(world)
    for _ in range(5):
        exhausted = await world.log.target.claim(exhausted, "recovery")
    parked = await record(world)
    assert await world.log.target.park(parked, "why")
    assert await world.log.target.keep(kept)
    store_raw(world, f"~changelog/00/{ChangeId.new(world.runtime)}", b"?")
    await world.runtime.sleep(699)
    now_ms = world.runtime.wall_ns() // 1_000_000
    await world.log.target.release(waiting, now_ms + 900_000)
    await record(world)
    found = await look(world)
    assert numbers(found) == {"HELD": 1, "WAITING": 1, "CLAIMABLE": 2, "EXHAUSTED": 1, "UNREADABLE": 1, "PARKED": 1, "KEPT": 1}
    assert found.entries.by_age[EntryState.HELD] == (1, 0, 0, 0, 0) and found.entries.by_age[EntryState.CLAIMABLE] == (0, 0, 2, 0, 0)
    assert found.entries.oldest_age_s == pytest.approx(700, abs=2) and found.entries.oldest_id == dead.change.id
    assert (found.entries.counted, found.entries.complete, found.entries.due) == (8, True, 4)


@pytest.mark.slow
async def test_all_pages_of_entries_are_counted(world: TappedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE", 50)
    for number in range(1000):
        entry = await record(world, path=f"a/objects/{number}")
        if number % 5 == 0:
            assert await world.log.target.park(entry, "why")
    found = await look(world)
    assert numbers(found) == {"HELD": 800, "PARKED": 200} and found.entries.complete and found.problems == ()
    assert (found.stuck.count, found.stuck.complete, len(found.stuck.entries)) == (200, True, 100)
    json.dumps(as_json(found))


async def test_beyond_the_bound_the_count_is_flagged_and_what_is_stuck_is_counted_all_the_same(
    world: TappedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COUNT_MAX", 1000)
    for number in range(2000):
        entry = await record(world, path=f"a/objects/{number}")
        if number >= 1500:
            assert await world.log.target.park(entry, "why")
    found = await look(world)
    assert not found.entries.complete and found.entries.counted >= 1000
    assert (found.stuck.count, found.stuck.complete, judge(found).level) == (500, True, Level.STUCK)
    assert found.entries.by_state[EntryState.PARKED] == 500
    assert found.problems == ()


async def test_a_slow_log_is_counted_for_a_few_seconds(world: TappedWorld) -> None:
    async def slow(entries: Callable[..., Any], start: str, limit: int, **named: Any) -> Any:
        await world.runtime.sleep(2)
        return await entries(start, 1, **named)

    for _ in range(20):
        await record(world)
    world.log.hooks["entries"] = slow
    found = await look(world)
    assert 2 <= found.entries.counted <= 4 and not found.entries.complete
    assert (found.stuck.count, found.stuck.complete) == (0, True) and judge(found).level is Level.UNKNOWN


# --- what is stuck -----------------------------------------------------------------------------------


async def test_damaged_entries_are_shown_with_what_can_be_typed(world: TappedWorld) -> None:
    odd, evil = "~changelog/00/not an id", "~changelog/00/\x1b[2J"
    for key in (odd, evil):
        store_raw(world, key, b"{", '{"state":"stuck","error":"the entry cannot be read: x","at":5000}')
    entry = await record(world)
    world.log.target.stored[entry.key] = replace(world.log.target.stored[entry.key], state="?")
    found = await look(world)
    assert found.stuck.count == 3 and found.entries.undated == 2
    commands = {each.key: each.command for each in found.stuck.entries}
    assert commands == {
        odd: "tiered log retry '~changelog/00/not an id'", evil: "tiered log retry --all", entry.key: f"tiered log retry {entry.change.id}",
    }
    by_key = {each.key: each for each in found.stuck.entries}
    assert by_key[entry.key].error == "its state cannot be read: ?" and by_key[entry.key].since_ms is None
    assert by_key[odd].since_ms == 5000 and by_key[odd].object is None and by_key[odd].attempt is None


@pytest.mark.parametrize("state", ['{"state":"stuck","error":"e","at":' + "9" * 400 + "}", '{"state":"stuck","error":"e","at":-9}'])
async def test_a_date_beyond_any_calendar_is_unknown(world: TappedWorld, state: str) -> None:
    store_raw(world, "~changelog/00/x", b"{", state)
    [entry] = as_json(await look(world))["stuck"]["entries"]
    assert entry["error"] == "e" and entry["since"] in (None, "1969-12-31T23:59:59Z")


async def test_each_reason_that_recovery_parks_for_has_its_advice(world: TappedWorld) -> None:
    def raw(path: str, **more: Any) -> bytes:
        return json.dumps({"v": 1, "id": path, "owner": "", "attempt": 0} | more).encode()

    def key() -> str:
        return f"~changelog/00/{ChangeId.new(world.runtime)}"

    store_raw(world, torn := key(), b"{")
    store_raw(world, foreign := key(), raw("a/objects/k", new="b/objects/other"))
    store_raw(world, tired := key(), raw("a/objects/k", attempt=5))
    store_raw(world, row := key(), raw("a/objects/row"))
    store_raw(world, failing := key(), raw("a/objects/failing", attempt=4))

    async def read(method: Callable[..., Any], path: str, *args: Any, **named: Any) -> Any:
        if path == "a/objects/row":
            raise CorruptRecordError(f"the row {path} breaks the format: x")
        if path == "a/objects/failing":
            raise ValueError("a bug")
        return await method(path, *args, **named)

    for name in ("read", "settle", "swap"):
        world.rows.hooks[name] = read
    await world.recovery().run_once()
    found = {each.key: each for each in (await look(world)).stuck.entries}
    said = {each: advice(found[each].error) for each in found}
    assert said[torn] == DAMAGED and said[foreign] == DAMAGED
    assert said[tired].startswith("Daemons died") and said[row].startswith("A stored record is damaged")
    assert found[failing].error == "failed 5 times, at last with: a bug" and said[failing] == MEND


async def test_what_newer_software_wrote_is_left_as_it_is_and_told(world: TappedWorld) -> None:
    store_raw(world, f"~changelog/00/{ChangeId.new(world.runtime)}", b'{"v":2}')
    before = dict(world.log.target.stored)
    report = await world.recovery().run_once()
    assert (report.seen, report.parked, report.failed) == (0, 0, 0) and world.log.target.stored == before
    found = await look(world)
    assert judge(found).level is Level.UNKNOWN and found.entries.newer == 1 and "newer software wrote 1 entry" in judge(found).headline
    assert any("Update the daemons" in order.why for order in judge(found).orders)


def test_every_advice_is_reached_by_an_error_of_its_own() -> None:
    errors = [
        "the entry at k cannot be read: not JSON", "its state cannot be read: ?",
        "claimed 5 times, and each time its claimer died or gave up",
        "failed 5 times, at last with: 403 the account may not delete", "failed 5 times, at last with: no answer",
        "the row a breaks the format: x",
    ]
    assert [advice(error) for error in errors] == [what for _, what in ADVICE]
    assert advice("something else") == MEND


async def test_names_are_hidden_everywhere(world: TappedWorld) -> None:
    secret = "secret/objects/name"
    change = Change(ChangeId.new(world.runtime), secret, f"{secret}/new", f"{secret}/old")
    entry = await world.log.target.record(change, "writer")
    await world.log.target.park(entry, f"change of {secret} names {secret}/old, see '{secret}/new'")
    store_raw(world, "~changelog/00/x", b"{", json.dumps({"state": "stuck", "error": f"cannot be read: {secret}", "at": 1}))
    found = await look(world)
    assert secret in json.dumps(as_json(found))
    hidden = as_json(found, show_objects=False)
    assert "secret" not in json.dumps(hidden)
    entries = {each["key"]: each for each in hidden["stuck"]["entries"]}
    assert entries[entry.key]["object"] == "…" and entries[entry.key]["error"] == "change of … names …, see '…'"
    assert entries["~changelog/00/x"]["object"] is None


# --- daemons -----------------------------------------------------------------------------------------


async def test_daemons_are_told_from_those_that_are_gone(world: TappedWorld) -> None:
    await world.log.target.announce("old")
    await world.runtime.sleep(50)
    await world.log.target.announce("new")
    found = await look(world)
    assert found.daemons is not None and [(each.instance, each.alive) for each in found.daemons] == [("new", True), ("old", True)]
    await world.runtime.sleep(20)
    found = await look(world)
    assert found.daemons is not None and [(each.instance, each.alive) for each in found.daemons] == [("new", True), ("old", False)]
    assert found.daemons[1].seen_s_ago == pytest.approx(70, abs=1) and found.alive == 1


async def test_a_daemon_that_ended_is_not_alive_and_one_that_was_killed_is_told_from_it(world: TappedWorld) -> None:
    await world.log.target.announce("recovery-1")
    await report(world, 10, 10, left=True)
    found = await look(world)
    assert found.daemons == [Daemon("recovery-1", 0.0, alive=False, ended=True)] and found.sources["recovery"].workers == {}


async def test_a_daemon_that_ended_stays_ended_when_others_report(world: TappedWorld) -> None:
    """The next report folds what it did. It must not look alive then, nor as if it had been killed."""
    await world.log.target.announce("recovery-1")
    await report(world, 10, 10, run="first", left=True)
    await world.log.target.announce("v")
    await report(world, 10, 10, run="second", worker="v", left=True)
    found = await look(world)
    assert found.daemons is not None and [(each.instance, each.alive, each.ended) for each in found.daemons] == [
        ("recovery-1", False, True), ("v", False, True)
    ]  # fmt: skip
    assert judge(found).headline == "Nothing waits for recovery, and no daemon lives."
    await world.runtime.sleep(30)
    await world.log.target.announce("recovery-1")  # another one with this name
    found = await look(world)
    assert found.daemons is not None and [(each.instance, each.alive) for each in found.daemons] == [("recovery-1", True), ("v", False)]


async def test_a_daemon_lives_if_another_one_with_its_name_ended(world: TappedWorld) -> None:
    await world.log.target.announce("recovery-1")
    await report(world, 10, 10, run="first")
    await report(world, 10, 10, run="second")
    await report(world, 10, 10, run="first", left=True)
    await world.runtime.sleep(5)
    await world.log.target.announce("recovery-1")
    assert (await look(world)).alive == 1


async def test_a_presence_from_before_the_clock_was_set_back_is_no_life(world: TappedWorld) -> None:
    world.log.target.presence["ahead"] = world.runtime.wall_ns() // 1_000_000 + 2 * 3_600_000
    world.log.target.presence["a little"] = world.runtime.wall_ns() // 1_000_000 + 2000
    found = await look(world)
    assert found.daemons is not None and {each.instance: each.alive for each in found.daemons} == {"ahead": False, "a little": True}
    assert all(each.seen_s_ago == 0 for each in found.daemons)


async def test_entries_that_nobody_works_on_are_told(world: TappedWorld) -> None:
    await record(world)
    await world.runtime.sleep(31)
    found = await look(world)
    assert judge(found).level is Level.BEHIND and "Nobody works on 1 entry that waits" in judge(found).headline
    await world.log.target.announce("recovery")
    assert judge(await look(world)).level is Level.UNKNOWN, "somebody lives, and has reported nothing yet"


# --- sources -----------------------------------------------------------------------------------------


async def report(
    world: TappedWorld, outstanding: int, processed: int, source: str = RECOVERY, *, worker: str = "recovery-1", run: str = "run",
    left: bool = False, **columns: Any,
) -> None:  # fmt: skip
    row = SourceRow(source, worker, "", outstanding_values=outstanding, processed_values=processed, **columns)
    now_ms = world.runtime.wall_ns() // 1_000_000

    def change(document: Document) -> Document:
        return document.with_report(WorkerReport(row, run, now_ms, 60_000, snapshot="s", probe=Offsets(outstanding, processed), left=left))

    assert await change_statistics(world.log.target, source, change)


async def test_recovery_keeps_up_only_once_it_has_reported_twice(world: TappedWorld) -> None:
    await world.log.target.announce("recovery-1")
    await report(world, 10, 5)
    found = await look(world)
    assert found.verdict == SourceVerdict(states.UNKNOWN) and found.sources["recovery"].total.lag == 5
    await world.runtime.sleep(40)
    await report(world, 50, 49)
    await world.log.target.announce("recovery-1")
    found = await look(world)
    assert found.verdict is not None and found.verdict.kind is states.HEALTHY and judge(found).headline == "Recovery keeps up."
    shown = as_json(found)["sources"]["recovery"]
    assert shown["verdict"]["inflow_per_s"] == 1.0 and shown["total"]["outstanding_values"] == 50
    assert set(shown["workers"]) == {"recovery-1"} and set(shown["total"]) == set(COLUMNS)


@pytest.mark.parametrize(("later", "level"), [((100, 10), Level.BEHIND), ((100, 9), Level.BEHIND), ((100, 60), Level.OK)])
async def test_the_verdict_decides_the_level(world: TappedWorld, later: tuple[int, int], level: Level) -> None:
    await report(world, 50, 9)
    await world.runtime.sleep(30)
    await report(world, *later)
    assert (await look(world)).verdict == SourceVerdict(states.UNKNOWN), "nobody was seen"
    await world.log.target.announce("recovery-1")
    assert judge(await look(world)).level is level


async def test_figures_of_a_daemon_that_is_silent_say_nothing_of_the_present(world: TappedWorld) -> None:
    await report(world, 10, 10)
    await world.runtime.sleep(30)
    await report(world, 20, 20)
    await world.runtime.sleep(61)
    found = await look(world)
    assert found.verdict == SourceVerdict(states.UNKNOWN) and found.sources["recovery"].total.processed_values == 20
    await record(world)
    await world.runtime.sleep(31)
    assert judge(await look(world)).level is Level.BEHIND, "an entry waits, and nobody lives"


async def test_two_daemons_with_one_name_are_told(world: TappedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    await report(world, 10, 10)
    await report(world, 10, 10, run="another")
    [problem] = (await look(world)).problems
    assert problem.startswith("two workers call themselves recovery-1: ")
    now_ms = world.runtime.wall_ns() // 1_000_000
    for after_ms, told in ((59_000, 1), (61_000, 0)):
        monkeypatch.setattr(world.runtime, "wall_ns", partial(int, (now_ms + after_ms) * 1_000_000))
        assert len((await look(world)).problems) == told, "one of them may have been restarted"
    await world.runtime.sleep(30)
    await report(world, 10, 10, run="another")
    await world.runtime.sleep(31)
    assert (await look(world)).problems == (), "the first was silent for a minute: the second was a restart"


@pytest.mark.parametrize("raw", [b"?", b'{"v":2}', b"{}"])
async def test_damaged_statistics_are_told_and_hide_nothing_else(world: TappedWorld, raw: bytes) -> None:
    assert await world.log.target.swap_note(note_name(RECOVERY), None, raw)
    await report(world, 10, 5, "audit", snapshot_records_known=10, snapshot_progress=5)
    found = await look(world)
    assert set(found.sources) == {"audit"} and found.stuck.count == 0
    [problem] = found.problems
    assert problem.startswith("the statistics of recovery could not be read: ")


# --- what cannot be seen -----------------------------------------------------------------------------


async def test_without_a_changelog_nothing_is_claimed(world: TappedWorld) -> None:
    found = await gather(Backends(world.tiers, NoopChangeLog()), world.settings(), world.runtime)
    assert (judge(found).level, found.durable, found.answers, found.problems) == (Level.UNKNOWN, False, True, ())
    assert judge(found).headline.startswith("No changelog is kept")


@pytest.mark.parametrize(("failing", "is_away"), [
    (fail(UnavailableError("gone")), True), (fail(UnconfirmedError("gone")), True), (fail(CorruptRecordError("gone")), False), (hang, True),
])  # fmt: skip
async def test_a_service_that_is_down_gives_a_status_with_what_is_known(
    world: TappedWorld, failing: Callable[..., Any], is_away: bool
) -> None:
    await record(world)
    for name in ("entries", "presences", "read_note"):
        world.log.hooks[name] = failing
    began = world.runtime.monotonic()
    found = await look(world)
    assert world.runtime.monotonic() - began < 30
    assert not found.answers and judge(found).level is Level.UNKNOWN
    assert found.away == (("changelog",) if is_away else ()) and found.refusing == ()
    assert judge(found).headline.startswith("The changelog does not answer. It is" if is_away else "The changelog cannot be read, so it is")
    assert (found.entries.by_state, found.stuck.count, found.daemons, found.last_audit) == ({}, None, None, None)
    [problem] = found.problems
    assert problem.startswith(
        "the changelog, the checkpoint of the feed, the presence of daemons, the results of the audits, the statistics of audit,"
        " the statistics of feed, the statistics of recovery, what readers found lost could not be read: "
    )
    shown = as_json(found)
    assert shown["stuck"]["count"] is None and shown["daemons"] is None and shown["entries"]["by_state"] == {}


async def test_how_far_each_sink_is(world: TappedWorld) -> None:
    places = ("/srv/none", "/srv/here", "/srv/before", "/srv/fails", "/srv/damaged", "/srv/ahead")
    values: dict[str, Any] = {"changelog": "sqlite", "feed": {"enabled": True, "to": places}}
    at = world.runtime.wall_ns() // 1_000_000 - 60_000
    began = Checkpoint.begin(at - 900_000, address_of(world.settings(**values)), "w")
    begun = replace(began, timestamp=at, next=at + 1, lower=at + 1, bindings=((at, 9),), passed=at)
    for position in (
        Position("/srv/here", begun.generation, at - 5000, 7), Position("/srv/before", begun.generation - 1, at, 9),
        Position("/srv/fails", begun.generation, at, 9, at - 1000, "full"), Position("/srv/ahead", begun.generation, at + 1, 10),
    ):
        world.log.target.notes[position_note(position.sink)] = position.to_bytes()
    world.log.target.notes[position_note("/srv/damaged")] = b"?"

    async def sinks() -> list[FeedSink]:
        found = (await look(world, **values)).feed
        assert found is not None
        return list(found.sinks)

    world.log.target.notes[FEED_NOTE] = begun.to_bytes()
    assert await sinks() == [
        FeedSink("/srv/none", None, 0, 9, None), FeedSink("/srv/here", at - 5000, 7, 2, 5.0), FeedSink("/srv/before", None, 0, 9, None),
        FeedSink("/srv/fails", at, 9, 0, 0.0, at - 1000, "full"), FeedSink("/srv/damaged", known=False),
        FeedSink("/srv/ahead", at + 1, 10, 0, 0.0),
    ]  # fmt: skip
    del world.log.target.notes[FEED_NOTE]
    assert (await sinks())[1:4] == [
        FeedSink("/srv/here"), FeedSink("/srv/before"), FeedSink("/srv/fails", failing_since_ms=at - 1000, error="full")
    ]  # fmt: skip


@pytest.mark.parametrize(("ago_s", "left", "state"), [
    (0, False, "behind"), (59, False, "behind"), (61, False, "stalled"), (-59, False, "behind"), (-61, False, "stalled"),
    (0, True, "stalled"),
])  # fmt: skip
async def test_a_report_within_the_last_minute_is_a_sign_of_life_of_a_feeds_writer(
    world: TappedWorld, ago_s: float, left: bool, state: str
) -> None:
    values: dict[str, Any] = {"changelog": "sqlite", "feed": {"enabled": True, "to": ("/var/feed",)}}
    now_ms = world.runtime.wall_ns() // 1_000_000
    checkpoint = Checkpoint.begin(now_ms - 900_000, address_of(world.settings(**values)), "w")
    at = now_ms - 600_000
    begun = replace(checkpoint, timestamp=at, next=at + 1, lower=at + 1, bindings=((at, 0),), passed=at)
    world.log.target.notes[FEED_NOTE] = begun.to_bytes()
    row = SourceRow("feed", "w", "r", None, False, None, True, 0, 0)
    await change_statistics(world.log.target, "feed", lambda document: document.with_report(WorkerReport(
        row, "r", now_ms - round(ago_s * 1000), 10**9, snapshot="generation", probe=Offsets(0, 0), alone=True, left=left,
    )))  # fmt: skip
    found = await look(world, **values)
    assert found.feed is not None and found.feed.state.word == state, found.feed


@pytest.mark.parametrize(("name", "tier"), [
    ("entries", "log"), ("presences", "log"), ("read_note", "log"), ("now_ns", "blobs"), ("read", "rows"), ("head", "blobs"),
])  # fmt: skip
async def test_one_thing_that_cannot_be_read_hides_nothing_else(world: TappedWorld, name: str, tier: str) -> None:
    await world.log.target.announce("recovery")
    await note_audit(world.log.target, AUDIT)
    entry = await record(world)
    await world.log.target.park(entry, "why")
    getattr(world, tier).hooks[name] = fail(UnavailableError("gone"))
    found = await look(world)
    assert found.problems[0].endswith(" could not be read: gone")
    assert found.problems[1:] == (("ages are by this machine's clock",) if name == "now_ns" else ())
    assert found.answers is (name != "entries") and not found.complete
    assert (found.stuck.count == 1) is (name != "entries")
    assert (found.daemons is None) is (name == "presences")
    assert (found.audits is None) is (name == "read_note")
    service = {"log": "changelog", "rows": "high-volume tier", "blobs": "long-term tier"}[tier]
    assert (found.away, found.refusing) == ((service,), ())
    assert judge(found).headline.startswith(f"The {service} does not answer")
    getattr(world, tier).hooks[name] = fail(ConfigurationError("grant roles/x"))
    found = await look(world)
    assert (found.away, found.refusing) == ((), (service,)) and judge(found).level in (Level.UNKNOWN, Level.STUCK)
    assert judge(found).headline.startswith(f"The {service} refuses what is asked of it, so entries wait.")


async def test_a_page_that_does_not_come_leaves_what_came_before(world: TappedWorld) -> None:
    async def second_fails(entries: Callable[..., Any], start: str, limit: int, **named: Any) -> Any:
        if start:
            raise UnavailableError("gone")
        return await entries(start, 3, **named)

    for _ in range(5):
        await record(world)
    world.log.hooks["entries"] = second_fails
    found = await look(world)
    assert found.answers and (found.entries.counted, found.entries.complete) == (3, False)
    assert judge(found).level is Level.UNKNOWN and found.problems == ("the changelog could not be read: gone",)


async def test_a_service_of_blobs_that_hangs_is_waited_for_once(world: TappedWorld) -> None:
    async def hang(_: Callable[..., Any], *__: Any) -> None:
        await anyio.sleep_forever()

    for name in ("now_ns", "head"):
        world.blobs.hooks[name] = hang
    began = anyio.current_time()
    found = await look(world)
    assert anyio.current_time() - began == pytest.approx(ANSWER_S, abs=1)
    assert found.away == ("long-term tier",) and found.answers


@pytest.mark.parametrize(("there_s", "said"), [
    (0, ""), (60, ""), (-60, ""), (61, "this machine's clock is 61 s behind the service's"),
    (-61, "this machine's clock is 61 s ahead of the service's"),
])  # fmt: skip
async def test_a_minute_is_no_wrong_clock(world: TappedWorld, there_s: int, said: str) -> None:
    here_ns = world.runtime.wall_ns()

    async def other(now_ns: Callable[..., Any]) -> int:
        return here_ns + there_s * 10**9

    world.blobs.hooks["now_ns"] = other
    world.runtime.wall_ns = lambda: here_ns  # type: ignore[method-assign]
    assert "".join((await look(world)).problems).removesuffix(", by which ages are shown") == said


async def test_a_clock_that_is_wrong_is_told_and_ages_are_by_the_services(world: TappedWorld) -> None:
    async def later(now_ns: Callable[..., Any]) -> int:
        return await now_ns() + 3600 * 10**9  # type: ignore[no-any-return]

    await record(world)
    world.blobs.hooks["now_ns"] = later
    found = await look(world)
    assert found.problems == ("this machine's clock is 3,600 s behind the service's, by which ages are shown",)
    assert found.entries.oldest_age_s == pytest.approx(3600, abs=2)


# --- the last audit ----------------------------------------------------------------------------------


async def test_the_last_audit_is_shown(world: TappedWorld) -> None:
    await note_audit(world.log.target, AUDIT)
    found = await look(world)
    assert found.last_audit == AUDIT and found.problems == ()
    [shown] = as_json(found)["audits"]
    assert shown["sentence"] == "findings: 2 orphan (40 bytes)" and shown["findings"] == {"orphan": {"number": 2, "bytes": 40}}


async def test_an_audit_that_ended_earlier_does_not_replace_a_later_one(world: TappedWorld) -> None:
    await note_audit(world.log.target, AUDIT)
    await note_audit(world.log.target, replace(AUDIT, run="earlier", ended_ns=1))
    assert (await look(world)).last_audit == AUDIT
    await note_audit(world.log.target, later := replace(AUDIT, run="later", ended_ns=AUDIT.ended_ns + 1))
    assert (await look(world)).last_audit == later


@pytest.mark.parametrize("raw", [
    b"?", b"[]", b"{}", b'{"v":2}', b'{"v":2,"runs":[]}', b'{"v":2,"runs":[1]}', b'{"v":true}', b'{"v":1}',
    b"[" * 5000, b"\xff",
    b'{"v":1,"run":"r","where":"w","started_ns":1,"ended_ns":-1,"complete":true,"blobs":0,"tombstones":0,"findings":{},"ranges":1}',
])  # fmt: skip
async def test_a_damaged_note_is_told_and_the_next_audit_replaces_it(world: TappedWorld, raw: bytes) -> None:
    assert await world.log.target.swap_note(NOTE, None, raw)
    found = await look(world)
    assert found.audits is None and judge(found).level is Level.UNKNOWN
    [problem] = found.problems
    assert problem.startswith(f"the results of the audits could not be read: the note {NOTE} ")
    for narrow in (replace(AUDIT, scope="media/"), replace(AUDIT, complete=False)):
        with pytest.raises(CorruptRecordError):  # the note may have told of a loss elsewhere
            await note_audit(world.log.target, narrow)
    await note_audit(world.log.target, AUDIT)
    assert (await look(world)).last_audit == AUDIT


async def test_a_note_of_newer_software_was_replaced_by_a_clean_audit_without_a_word(world: TappedWorld) -> None:
    newer = b'{"v":3,"runs":[]}'
    assert await world.log.target.swap_note(NOTE, None, newer)
    with pytest.raises(NewerNoteError, match=r"newer software wrote the note .*, in version 3, and this one reads versions 1 and 2"):
        await note_audit(world.log.target, AUDIT, ends_now=True)
    assert await world.log.target.read_note(NOTE) == newer
    assert judge(await look(world)).level is Level.UNKNOWN


async def test_a_swap_that_was_not_confirmed_is_tried_again(world: TappedWorld) -> None:
    tries = []

    async def unconfirmed(swap: Callable[..., Any], *args: Any) -> Any:
        tries.append(await swap(*args))
        if len(tries) == 1:
            raise UnconfirmedError("no answer")
        return tries[-1]

    world.log.hooks["swap_note"] = unconfirmed
    await note_audit(world.log, AUDIT)
    assert (await look(world)).last_audit == AUDIT


def test_the_worst_result_of_an_audit_is_said_first() -> None:
    lost = replace(AUDIT, findings={"orphan": (2, 40), "dangling": (1, 0)})
    assert lost.is_loss and lost.sentence == "DATA LOSS: 1 live tombstone names a blob that is gone"
    doubtful = replace(AUDIT, complete=False, ranges_missing=2, ranges=6)
    assert doubtful.sentence == "incomplete: 2 of 6 ranges were not audited; it has 2 findings, which may be wrong"
    clean = replace(AUDIT, findings={})
    assert clean.sentence == "clean: 12 blobs and 10 tombstones are accounted for by name; no payload was read"
    assert replace(clean, verified=9).sentence.endswith("by name; 9 payloads were read")
    assert replace(clean, scope="media/").sentence.endswith("; only names that begin with media/ were looked at")
    destroyed = replace(AUDIT, findings={"destroyed": (50, 40)})
    assert destroyed.is_loss and destroyed.sentence == "DATA LOSS: 50 live tombstones name blobs that cannot be read"
    both = replace(AUDIT, findings={"destroyed": (1, 40), "dangling": (2, 0)}, scope="media/").sentence
    assert both == (
        "DATA LOSS: 2 live tombstones name blobs that are gone and 1 live tombstone names a blob that cannot be read;"
        " only names that begin with media/ were looked at"
    )


def test_note_of_older_software_is_read() -> None:
    [stored] = json.loads(encode(Audits((replace(AUDIT, scope="media/", verified=3),))))["runs"]
    del stored["scope"], stored["verified"], stored["share"]
    assert decode(json.dumps({"v": 1, **stored}).encode()) == Audits((AUDIT,))
    audits = Audits((replace(AUDIT, scope="media/", verified=3, share=0.5), AUDIT))
    assert decode(encode(audits)) == audits


# --- which audits count ------------------------------------------------------------------------------

LOSS = replace(AUDIT, findings={"dangling": (2, 0)})
UNREADABLE = replace(AUDIT, findings={"destroyed": (1, 40)}, verified=9, share=0.5)


def later(audit: LastAudit, **parts: object) -> LastAudit:
    return replace(audit, **{"run": "later", "started_ns": audit.ended_ns, "ended_ns": audit.ended_ns + 1, "findings": {}, **parts})  # type: ignore[arg-type]


@pytest.mark.parametrize(("told", "following", "is_mended"), [
    (LOSS, later(LOSS), True),
    (LOSS, later(LOSS, scope="other/"), False),
    (LOSS, later(LOSS, complete=False, doubts=1), False),
    (LOSS, later(LOSS, ended_ns=1), False),
    (LOSS, later(LOSS, started_ns=LOSS.ended_ns - 1), False),
    (replace(LOSS, scope="media/"), later(LOSS, started_ns=LOSS.started_ns - 1), False),
    (LOSS, later(LOSS, findings={"dangling": (1, 0)}), False),
    (replace(LOSS, scope="media/a/"), later(LOSS, scope="media/"), True),
    (replace(LOSS, scope="media/"), later(LOSS, scope="media/a/"), False),
    (UNREADABLE, later(UNREADABLE), True),
    (UNREADABLE, later(UNREADABLE, verified=None, share=None), False),
    (UNREADABLE, later(UNREADABLE, share=0.4), False),
])  # fmt: skip
async def test_a_loss_stays_until_an_audit_that_looked_there_finds_it_mended(
    world: TappedWorld, told: LastAudit, following: LastAudit, is_mended: bool
) -> None:
    await note_audit(world.log.target, told)
    assert judge(await look(world)).level is Level.LOST
    await note_audit(world.log.target, following)
    found = await look(world)
    assert (judge(found).level is not Level.LOST) is is_mended
    assert bool(found.losses) is not is_mended
    headline = as_json(found)["headline"]
    assert headline.startswith("DATA IS LOST") is not is_mended


async def test_an_audit_that_looked_at_next_to_nothing_hid_what_another_one_suspected(world: TappedWorld) -> None:
    await note_audit(world.log.target, replace(LOSS, complete=False, ranges=100, ranges_missing=1))
    await note_audit(world.log.target, later(LOSS, run="vain", complete=False, ranges=100, ranges_missing=99))
    found = await look(world)
    assert judge(found).level is Level.UNKNOWN and len(found.suspicions) == 1
    await note_audit(world.log.target, later(replace(LOSS, ended_ns=LOSS.ended_ns + 1)))
    assert not (await look(world)).suspicions


async def test_a_note_never_outgrows_its_bound_and_keeps_losses_longest(world: TappedWorld) -> None:
    await note_audit(world.log.target, replace(LOSS, scope="lost/", where="/" + "\x01" * 2000))
    for number in range(3 * RUNS_MAX):
        await note_audit(world.log.target, later(AUDIT, run=f"r{number}", scope=f"s{number}/", ended_ns=AUDIT.ended_ns + number))
    audits = await read_audits(world.log.target)
    assert len(audits.runs) <= RUNS_MAX and audits.last is not None and audits.last.run == f"r{3 * RUNS_MAX - 1}"
    assert [audit.scope for audit in audits.losses] == ["lost/"]


@pytest.mark.parametrize("complete", [True, False])
async def test_narrow_audits_with_losses_pushed_the_oldest_loss_out(world: TappedWorld, complete: bool) -> None:
    whole = replace(AUDIT, run="whole", ended_ns=AUDIT.ended_ns - 1)
    await note_audit(world.log.target, whole)
    for number in range(2 * RUNS_MAX):
        ended_ns = AUDIT.ended_ns + 2 * number
        await note_audit(world.log.target, replace(
            LOSS, run=f"r{number}", scope=f"s/{number:02}/", complete=complete, started_ns=ended_ns - 1, ended_ns=ended_ns,
        ))  # fmt: skip
    audits = await read_audits(world.log.target)
    losses = audits.losses if complete else audits.suspicions
    assert len(audits.runs) == RUNS_MAX and audits.whole == whole
    assert sum(each.lost for each in losses) == 2 * RUNS_MAX * LOSS.lost
    together = losses[-1]
    assert together.scope == "s/" and together.started_ns == AUDIT.ended_ns - 1
    narrow = replace(AUDIT, run="narrow", scope="s/00/", started_ns=ended_ns + 1, ended_ns=ended_ns + 2)
    still = audits.with_run(narrow)
    assert sum(each.lost for each in [*still.losses, *still.suspicions]) == 2 * RUNS_MAX * LOSS.lost
    mended = audits.with_run(replace(narrow, scope="s/"))
    assert not mended.losses and not mended.suspicions


async def test_a_clean_audit_by_a_clock_that_was_ahead_swallowed_every_loss_that_was_found_after_it(world: TappedWorld) -> None:
    ahead = later(AUDIT, run="ahead", started_ns=LOSS.ended_ns + 10**18, ended_ns=LOSS.ended_ns + 2 * 10**18)
    await note_audit(world.log.target, ahead, ends_now=True)
    await note_audit(world.log.target, LOSS, ends_now=True)
    found = await look(world)
    assert judge(found).level is Level.LOST and found.last_audit == LOSS
    assert Audits((ahead,)).with_run(LOSS).runs == (ahead,), "a report that is written again brings no mended loss back"
    mended = later(AUDIT, run="mended")
    assert Audits((ahead,)).with_run(mended, ends_now=True).runs == (mended,), "its time says nothing of when anybody last looked"
    lost = later(LOSS, run="lost", findings=LOSS.findings)
    assert Audits((lost,)).with_run(AUDIT, ends_now=True).runs == (lost, AUDIT), "a clock that is behind takes no loss back"


# --- its JSON ----------------------------------------------------------------------------------------


async def test_names_are_hidden_also_where_an_error_quotes_them(world: TappedWorld) -> None:
    path = OBJECT.path + " 'a' \"b\" \\ \n"
    entry = await record(world, path=path)
    await world.log.target.park(entry, f"failed 5 times, at last with: the row {path!r} breaks the format")
    found = await look(world)
    assert found.stuck.entries[0].object == path
    shown = json.dumps(as_json(found, show_objects=False))
    assert OBJECT.path not in shown and "objects/" not in shown


@pytest.mark.parametrize("ended_ns", [10**400, 10**30], ids=["400", "30"])
async def test_a_result_of_an_audit_from_no_calendar_is_damaged(world: TappedWorld, ended_ns: int) -> None:
    await note_audit(world.log, replace(AUDIT, ended_ns=ended_ns))
    found = await look(world)
    assert found.audits is None and any(NOTE in problem for problem in found.problems)
    assert status_lines(found, 80)


async def test_text_that_no_output_can_hold_is_damage(world: TappedWorld) -> None:
    """One half of a surrogate pair has no bytes in UTF-8. Taken as it is, it would break every answer that shows it."""
    await report(world, 10, 10)
    name = note_name(RECOVERY)
    stored = world.log.target.notes[name]
    world.log.target.notes[name] = stored.replace(b'"workers":{"recovery-1"', b'"workers":{"\\ud800"')
    await note_audit(world.log, AUDIT)
    world.log.target.notes[NOTE] = world.log.target.notes[NOTE].replace(b"/audits/1", b"/audits/\\ud800")
    found = await look(world)
    assert found.sources == {} and found.audits is None and len(found.problems) == 2
    json.dumps(as_json(found), ensure_ascii=False).encode()
