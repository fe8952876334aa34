"""The real adapters in the simulated world.

The same calls do the same as on the simulated services, and meet the same faults.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest

from changelog.base.errors import ConfigurationError, LeaseLostError, TieredError, UnavailableError, UnconfirmedError
from changelog.change import DONE, Change, ChangeId, Entry, Unreadable
from changelog.log import EntryPage, KeyRange
from emulators.bigtable.stack import BigtableStack
from emulators.world.faults import CallFault, Mode, Network, Process
from emulators.world.runtime import SimulatedRuntime, run_world
from emulators.world.services import SimulatedChangeLog, SimulatedRows
from tests.given.virtual_time import simulated
from tiered.metadata import NS_PER_MS, NS_PER_S, Metadata, TimeToLive
from tiered.object_id import blob_name
from tiered.services.backends import Inline, Row, RowState, Tombstone
from tiered.testing.log import StoredEntry

SEEDS, STEPS = 20, 60
PATHS = ["attachments/objects/a", "attachments/objects/b"]
TOKENS = [ChangeId(f"018bcfe5-6800-7000-8000-00000000000{digit}") for digit in range(4)]
LOG_RANGE = KeyRange("~changelog/", "~changelog0")

Call = Callable[[Any], Awaitable[object]]


# --- both stacks at once -----------------------------------------------------------------------------


def some_state(chance: random.Random, path: str, token: ChangeId, now_ns: int) -> RowState:
    deadline_ns = chance.choice([None, (now_ns + chance.choice([-3600, 3600]) * NS_PER_S) // NS_PER_MS * NS_PER_MS])
    expiration = None if deadline_ns is None else TimeToLive(ns=3600 * NS_PER_S)
    return chance.choice([
        None, Tombstone(blob_name(path, token), expiration, deadline_ns, token),
        Inline(Metadata(expiration, now_ns, deadline_ns, custom={"label": token}, size=7), b"payload", token),
    ])  # fmt: skip


def row_call(chance: random.Random, now_ns: int) -> Call:
    path, token, other = chance.choice(PATHS), chance.choice(TOKENS), chance.choice(TOKENS)
    state, expected = some_state(chance, path, token, now_ns), chance.choice([None, path, blob_name(path, other)])
    until_ns, limit = now_ns + chance.choice([60, 7200]) * NS_PER_S, chance.randint(1, 3)

    async def touch(rows: Any) -> object:
        seen = (await rows.read(path)).state
        return seen is not None and await rows.touch(path, seen, until_ns)

    calls: list[Call] = [
        lambda rows: rows.swap(path, token, expected, state, 1e9), lambda rows: rows.swap(path, token, expected, state, 1e9),
        lambda rows: rows.settle(path, token), lambda rows: rows.delete_inline(path, token), touch,
        lambda rows: rows.read(path, marks=True), lambda rows: rows.read(path), lambda rows: rows.scan("attachments/", b"", limit),
    ]  # fmt: skip
    if isinstance(state, Inline):
        inline = state
        calls = [lambda rows: rows.put_inline(path, token, inline)] * 4
    return chance.choice(calls)


def log_call(chance: random.Random, changes: list[Change], seen: list[Entry | Unreadable]) -> Call:
    change, limit = chance.choice(changes), chance.randint(1, 3)
    owner, after_ms = chance.choice(["me", "you"]), chance.choice([None, 5])
    calls: list[Call] = [lambda log: log.record(change, owner)] * 3
    calls += [lambda log: log.entries("", limit), lambda log: log.stale(LOG_RANGE, 10**13, 30_000, limit), lambda log: log.read(change.id)]
    expected, value = chance.choice([None, b"1", b"2"]), chance.choice([b"1", b"2"])
    calls += [lambda log: log.swap_note("note", expected, value), lambda log: log.read_note("note")]
    keys, version = chance.sample(["a", "a/b", "é"], chance.randint(1, 3)), chance.randint(1, 9)
    written = dict.fromkeys(keys, b"%d" % version if version % 3 else None)  # of one version always the same
    calls += [
        lambda log: log.write_values(written, version), lambda log: log.read_values(keys), lambda log: log.scan_values("", "é\0", limit),
        lambda log: log.erase_values(keys), lambda log: log.kept(LOG_RANGE, limit),
    ]  # fmt: skip
    if seen:
        entry = chance.choice(seen)
        calls += [lambda log: log.park(entry, "failed"), lambda log: log.retry(entry)]
        if isinstance(entry, Entry):
            held = entry
            calls += [
                lambda log: log.claim(held, owner), lambda log: log.claim(held, owner), lambda log: log.release(held, after_ms),
                lambda log: log.forget(held), lambda log: log.renew([held] if held.owner else []), lambda log: log.keep(held),
            ]  # fmt: skip
    return chance.choice(calls)


async def told(call: Call, service: object) -> object:
    """What a caller gets."""
    try:
        return await call(service)
    except TieredError as error:
        return type(error)


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_rows_in_bigtable_do_and_show_what_the_simulated_ones_do(seed: int, beside: bool) -> None:
    async def histories() -> None:
        chance, runtime = random.Random(seed), SimulatedRuntime(seed)
        twin, rows, effects = SimulatedRows(runtime), BigtableStack(runtime, beside=beside).rows, ([], [])  # type: Any, Any, Any
        for service, heard in zip((twin, rows), effects, strict=True):
            service.observers.append(lambda call, what, heard=heard: heard.append((call, what)))
        for _ in range(STEPS):
            call = row_call(chance, runtime.wall_ns())
            assert await told(call, rows) == await told(call, twin)
            assert rows.states == twin.states and rows.won == twin.won and rows.refused == twin.refused
            await anyio.sleep(chance.choice([0.001, 1, 1800]))
        assert effects[0] == effects[1] and len(effects[0]) > 5

    run_world(histories, seed)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_changelog_in_bigtable_does_and_shows_what_the_simulated_one_does(seed: int) -> None:
    async def histories() -> None:
        chance, runtime = random.Random(seed), SimulatedRuntime(seed)
        twin, log, effects = SimulatedChangeLog(runtime), BigtableStack(runtime).log, ([], [])  # type: Any, Any, Any
        for service, heard in zip((twin, log), effects, strict=True):
            service.observers.append(lambda call, what, heard=heard: heard.append((call, what)))
        changes = [Change(ChangeId.new(runtime), path, None, path, f"session of {path}") for path in PATHS]
        for _ in range(STEPS):
            seen = list((await twin.entries("", 10)).entries)
            call = log_call(chance, changes, seen)
            assert comparable(await told(call, log)) == comparable(await told(call, twin))
            assert {key: held(stored) for key, stored in log.stored.items()} == {key: held(stored) for key, stored in twin.stored.items()}
            assert log.notes == twin.notes and log.values == twin.values
            await anyio.sleep(chance.choice([0.001, 1, 1800]))
        assert effects[0] == effects[1] and len(effects[0]) > 5
        assert await log.announce("me") == await twin.announce("me") and log.presence == twin.presence
        assert list(await log.presences()) == list(await twin.presences())

    run_world(histories, seed)


def comparable(answer: object) -> object:
    """Without when something was parked or kept: each log has a way of its own to tell."""
    if isinstance(answer, Entry | Unreadable):
        return replace(answer, stuck=answer.stuck and replace(answer.stuck, at_ms=0))
    return (*map(comparable, answer.entries), answer.next_start) if isinstance(answer, EntryPage) else answer


def held(stored: StoredEntry) -> StoredEntry:
    """What nobody owns is dated 0 in Bigtable. What is kept has its date in the cell there."""
    stored = replace(stored, state=DONE) if (stored.state or "").startswith('{"state":"done"') else stored
    return replace(stored, heartbeat_ms=0) if b'"owner":""' in stored.value else stored


# --- what a process meets ----------------------------------------------------------------------------


class StackWire:
    """One process on a stack, whose first call meets `fault`. `network` carries what is late."""

    def __init__(self, fault: CallFault | None) -> None:
        self.network = Network()
        self.stack = BigtableStack(SimulatedRuntime("services"))
        faults = iter([fault])
        self.process = Process("p", SimulatedRuntime("p"), self.network, lambda point: next(faults, None))
        self.rows = self.stack.rows_of(self.process)

    async def settle(self) -> object:
        return await told(lambda rows: rows.settle(PATHS[0], TOKENS[0]), self.rows)

    @property
    def refused(self) -> bool:
        return TOKENS[0] in self.stack.rows.refused.get(PATHS[0], ())


NOT_CONFIRMED, NEVER = UnconfirmedError, UnavailableError
MET: dict[str, tuple[CallFault | None, object, bool, bool]] = {
    # the fault, what the caller gets, whether the effect is there then, and after an hour
    "nothing": (None, False, True, True),
    "unavailable": (CallFault(Mode.UNAVAILABLE), NEVER, False, False),
    "denied": (CallFault(Mode.DENIED), ConfigurationError, False, False),
    "one that is dropped": (CallFault(Mode.DROPPED), NOT_CONFIRMED, False, False),
    "an answer that is lost": (CallFault(Mode.LOST), NOT_CONFIRMED, True, True),
    "a request that is late": (CallFault(Mode.LATE, 60), NOT_CONFIRMED, False, True),
    "one that is slow": (CallFault(Mode.SLOW, 5), False, True, True),
    "one that is slower than its deadline": (CallFault(Mode.SLOW, 60), NOT_CONFIRMED, False, True),
    "one that is sent twice": (CallFault(Mode.DUPLICATED, 60), False, True, True),
}


@pytest.mark.parametrize("name", MET)
def test_a_process_is_told_what_grpc_would_say_of(name: str) -> None:
    fault, answer, at_once, in_the_end = MET[name]

    async def meet() -> None:
        wire = StackWire(fault)
        async with wire.network:
            assert (await wire.settle(), wire.refused) == (answer, at_once)
            await anyio.sleep(3600)
            assert wire.refused is in_the_end and wire.network.quiet
        assert wire.process.link.points == ["rows.settle #1"]

    run_world(meet, seed=1)


@simulated
async def test_a_scan_that_crawls_sees_what_is_written_ahead_of_it() -> None:
    wire, names = StackWire(CallFault(Mode.CRAWLING, 2)), [f"{PATHS[0]}/{number}" for number in range(3)]
    token = ChangeId.new(wire.process.runtime)

    async def put(name: str) -> None:
        assert await wire.stack.rows.put_inline(name, token, Inline(Metadata(), b"payload", token))

    async def write_behind_and_ahead() -> None:
        await anyio.sleep(1)
        await put(names[0])
        await put(names[2])

    async with wire.network, anyio.create_task_group() as tasks:
        await put(names[1])
        tasks.start_soon(write_behind_and_ahead)
        assert [name.path for name in (await wire.rows.scan("", b"", 10)).rows] == names[1:]


@pytest.mark.parametrize("mode", [Mode.CRASH_BEFORE, Mode.CRASH_AFTER])
def test_a_process_that_dies_is_told_nothing_and_does_nothing_more(mode: Mode) -> None:
    async def die() -> None:
        wire, after = StackWire(CallFault(mode)), list[object]()

        async def life() -> None:
            try:
                after.append(await wire.settle())
            finally:
                with anyio.CancelScope(shield=True), anyio.move_on_after(60):
                    after.append(await wire.rows.delete_inline(PATHS[0], TOKENS[1]))

        async with wire.network:
            await wire.process.run(life)
        assert not wire.process.alive and after == [] and wire.refused is (mode is Mode.CRASH_AFTER)

    run_world(die, seed=1)


@pytest.mark.parametrize(("seconds", "arrives"), [(60, True), (2 * 3600, False)])
def test_what_a_process_sends_after_it_stood_still_arrives_unless_its_connection_is_gone(seconds: float, arrives: bool) -> None:
    """Its caller has been told that it is not confirmed, either way."""

    async def stand_still() -> None:
        wire = StackWire(CallFault(Mode.STALL_BEFORE, seconds))
        async with wire.network:
            assert await wire.settle() is NOT_CONFIRMED
            await anyio.sleep(4 * 3600)
            assert bool(wire.refused) is arrives

    run_world(stand_still, seed=1)


@simulated
async def test_a_server_that_refuses_a_request_is_heard_through_the_link() -> None:
    wire = StackWire(None)
    wire.stack.server.tables.clear()
    async with wire.network:
        assert await wire.settle() is ConfigurationError


# --- several numbers of shards, and what no adapter writes ---------------------------------------------


@simulated
async def test_one_log_is_recorded_under_several_numbers_of_shards() -> None:
    stack, network = BigtableStack(SimulatedRuntime("services")), Network()
    process = Process("p", SimulatedRuntime("p"), network)
    async with network:
        for shards, log in ((1, stack.log_of(process, 1)), (16, stack.log_of(process)), (3, stack.log.sharded(3))):
            change = Change(ChangeId.new(process.runtime), PATHS[0], None, None)
            entry = await log.record(change, "me")
            assert entry.key == change.id.row_key(shards) and entry.key in stack.log.stored
            assert await stack.log.claim(entry, "recovery") is not None


def test_a_record_that_was_not_confirmed_is_repeated_under_its_shard_and_takes_nothing_back_from_recovery() -> None:
    """Though nobody but its sender still knows that there was a first one."""
    async def repeat() -> None:
        wire = StackWire(CallFault(Mode.LOST))
        change = Change(ChangeId.new(wire.process.runtime), PATHS[0], None, None)
        async with wire.network:
            log = wire.stack.log_of(wire.process, 3)
            with pytest.raises(UnconfirmedError):
                await log.record(change, "me")
            [entry] = (await wire.stack.log.entries("", 10)).entries
            assert isinstance(entry, Entry) and entry.key == change.id.row_key(3)
            assert await wire.stack.log.claim(entry, "recovery") is not None
            with pytest.raises(LeaseLostError):
                await log.record(change, "me")

    run_world(repeat, seed=1)


@simulated
async def test_what_is_planted_is_stored_and_what_is_taken_away_is_gone_and_marks_stay() -> None:
    stack = BigtableStack(SimulatedRuntime("services"))
    assert not await stack.rows.settle(PATHS[0], TOKENS[0])
    stack.rows.states[PATHS[0]] = Tombstone(PATHS[0])
    row = await stack.rows.read(PATHS[0], marks=True)
    assert row == Row(Tombstone(PATHS[0]), refused=frozenset({TOKENS[0]})) and stack.rows.states == {PATHS[0]: Tombstone(PATHS[0])}
    del stack.rows.states[PATHS[0]]
    assert await stack.rows.read(PATHS[0], marks=True) == replace(row, state=None) and stack.rows.states == {}
    key = "~changelog/00/x"
    stack.log.stored[key] = StoredEntry(b"{", 0, '{"state":"stuck"}')
    [found] = (await stack.log.entries("", 10)).entries
    assert isinstance(found, Unreadable) and found.raw == b"{" and found.stuck is not None and list(stack.log.stored) == [key]
    del stack.log.stored[key]
    assert (await stack.log.entries("", 10)).entries == () and stack.log.stored == {}


@simulated
async def test_expired_rows_are_shown_until_they_are_collected_and_half_of_one_is_none() -> None:
    stack, effects = BigtableStack(SimulatedRuntime("services")), list[tuple[str, str]]()
    deadline_ns = SimulatedRuntime(1).wall_ns()
    for path, token in zip(PATHS, TOKENS, strict=False):
        assert await stack.rows.swap(path, token, None, Tombstone(blob_name(path, token), None, deadline_ns, token), 1e9)
    await anyio.sleep(3600)
    assert set(stack.rows.states) == set(PATHS)
    stack.rows.observers.append(lambda call, what: effects.append((call, what)))
    while await stack.rows.collect(1):
        assert [(await stack.rows.read(path)).state for path in PATHS] == [stack.rows.states.get(path) for path in PATHS]
    assert stack.rows.states == {} and all(stack.rows.won.values()) and {call for call, _ in effects} == {"rows.collect"}
    await anyio.sleep(3 * 86_400)
    assert await stack.rows.collect(100) > 0 and not any(stack.rows.won.values())
