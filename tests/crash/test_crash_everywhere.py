"""Every operation, and recovery itself, with one thing going wrong at every call it makes; then recovery, then I1-I7.

Each scenario runs once without faults to learn its call points, and then again for each point and each mode. A test is
one scenario. Every push has every death, and a share of the other modes at each call (`tests.suites.share`).
A failure names its case, as in `rows.swap #1-CRASH_AFTER`, and shows every call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, partial
from itertools import product
from typing import Any

import anyio
import pytest

from changelog.base.errors import ConfigurationError, UnavailableError, UnconfirmedError
from changelog.change import ChangeId, decode
from emulators.world.client import NOTHING, BrokenPayload, Client, OpenCall, content
from emulators.world.deployment import SETTINGS, World
from emulators.world.faults import ONCE, READS, STREAMS, CallFault, Mode, Plan, Process, call_of, no_faults
from emulators.world.history import WriteAnswer
from emulators.world.runtime import run_world
from tests.suites import share
from tiered.metadata import TimeToIdle
from tiered.object_id import ObjectId
from tiered.settings import FeedSettings
from tiered.testing.log import StoredEntry

SEED = 1
SMALL, LARGE = 50, 500
OBJECT = ObjectId.create("attachments", "victim", {"org": "17"})
RENAMED = ObjectId.create("attachments", "renamed", {"org": "17"})
BYSTANDERS = {SMALL: ObjectId.create("attachments", "small-bystander"), LARGE: ObjectId.create("attachments", "large-bystander")}
IDLE = TimeToIdle(timedelta(hours=1))
AFTER_EXPIRY_S = SETTINGS.lease.expiry_s + 1
SHORT_S, LONG_S = 1.0, 100.0
"""A while within an operation's budgets and lease, and one beyond all of them but the late-upload grace."""

SHARE = 16
"""A push has every sixteenth case of what is not a death, and others of each scenario."""

Act = Callable[[Client], Awaitable[object]]


# --- what is done --------------------------------------------------------------------------------


@dataclass(frozen=True)
class CrashScenario:
    """`act` by one caller. `before`: what the object is, absent, small, large or legacy (a blob without revision).

    `rarely`: only the night runs it, because another one makes the same calls in nearly the same order. `feed`: the
    store has a change feed, whose writer does not run.
    """

    def world(self) -> World:
        settings = SETTINGS.model_copy(update={"feed": FeedSettings(enabled=self.feed)})
        return World(SEED, sessions=self.sessions, settings=settings)

    name: str
    before: str
    act: Act
    sessions: bool = True
    rarely: bool = False
    feed: bool = False


def put(label: str, size: int) -> Act:
    return lambda client: client.put(OBJECT, label, size)


async def delete(client: Client) -> WriteAnswer:
    return await client.delete(OBJECT)


def put_over_what_is_seen(size: int) -> Act:
    """A put with a condition, over what a look has found before."""

    async def act(client: Client) -> None:
        over = await client.seen(OBJECT)
        if over is not None:  # otherwise the look failed
            await client.put(OBJECT, "new", size, over=over)

    return act


def upload(*, over_seen: bool = False, leaves: bool = False) -> Act:
    """An upload in parts that is completed, or left open. What is left is given up by recovery, or by this caller."""

    async def act(client: Client) -> None:
        over = await client.seen(OBJECT) if over_seen else None
        if over is not None or not over_seen:
            calls: list[OpenCall] = []
            await client.upload(OBJECT, "new", LARGE, calls, over=over, leaves=leaves)
            for call in calls:
                if leaves:
                    await client.end_upload(call, completes=False, lists=False)
            await client.ask()

    return act


async def rename(client: Client) -> None:
    await client.rename("renamed", OBJECT, RENAMED)


async def update_metadata(client: Client) -> None:
    await client.update_metadata("updated", OBJECT)


async def set_expiry(client: Client) -> None:
    await client.set_expiry("expiring", OBJECT, lives_s=10 * 86_400.0)


async def put_broken(client: Client) -> None:
    async def payload() -> AsyncIterator[bytes]:
        yield content("new", LARGE // 2)
        raise BrokenPayload

    assert await client.put(OBJECT, "new", LARGE, payload=payload()) is WriteAnswer.NO


async def put_cancelled(client: Client) -> None:
    with anyio.CancelScope() as scope:

        async def payload() -> AsyncIterator[bytes]:
            yield content("new", LARGE // 2)
            scope.cancel()
            await anyio.lowlevel.checkpoint()

        await client.put(OBJECT, "new", LARGE, payload=payload())


async def get_idle(client: Client) -> None:
    """A read that extends the deadline of an object with a time to idle."""
    await anyio.sleep(40 * 60)
    await client.get(OBJECT)


def scenarios() -> Iterator[CrashScenario]:
    for before in ("absent", "small", "large", "legacy"):
        yield CrashScenario(f"put_small_on_{before}", before, put("new", SMALL))
        yield CrashScenario(f"put_large_on_{before}", before, put("new", LARGE))
        yield CrashScenario(f"delete_on_{before}", before, delete)
    yield CrashScenario("put_broken_on_large", "large", put_broken)
    yield CrashScenario("put_named_at_end_on_large", "large", lambda client: client.put(OBJECT, "new", LARGE, named_at_end=True))
    yield CrashScenario("put_cancelled_on_large", "large", put_cancelled)
    yield CrashScenario("get_idle_small", "idle small", get_idle)
    yield CrashScenario("get_idle_large", "idle large", get_idle)
    yield CrashScenario("put_small_if_absent_on_absent", "absent", lambda client: client.put(OBJECT, "new", SMALL, over=NOTHING))
    yield CrashScenario("put_small_if_seen_on_small", "small", put_over_what_is_seen(SMALL))
    yield CrashScenario("put_large_if_seen_on_large", "large", put_over_what_is_seen(LARGE))
    yield CrashScenario("update_metadata_on_small", "small", update_metadata)
    yield CrashScenario("rename_on_large", "large", rename)
    yield CrashScenario("set_expiry_on_large", "large", set_expiry)
    yield CrashScenario("upload_on_large", "large", upload())
    yield CrashScenario("upload_if_seen_on_large", "large", upload(over_seen=True))
    yield CrashScenario("upload_aborted_on_large", "large", upload(leaves=True))
    yield CrashScenario("upload_on_absent", "absent", upload(), rarely=True)
    yield CrashScenario("upload_on_small", "small", upload(), rarely=True)
    yield CrashScenario("upload_on_legacy", "legacy", upload(), rarely=True)
    yield CrashScenario("rename_on_small", "small", rename, rarely=True)
    yield CrashScenario("update_metadata_on_large", "large", update_metadata, rarely=True)
    yield CrashScenario("set_expiry_on_small", "small", set_expiry, rarely=True)
    for name, act in (("put_large", put("new", LARGE)), ("put_broken", put_broken), ("put_cancelled", put_cancelled)):
        yield CrashScenario(f"{name}_on_large_in_one_request", "large", act, sessions=False)


SCENARIOS = {scenario.name: scenario for scenario in scenarios()}
WITH_FEED = {
    f"{name}_with_feed": replace(SCENARIOS[name], name=f"{name}_with_feed", feed=True)
    for name in ("put_large_on_large", "put_small_on_large", "delete_on_large", "put_broken_on_large", "upload_on_large")
}  # fmt: skip


# --- one world -----------------------------------------------------------------------------------


async def prepare(world: World, before: str) -> None:
    if before == "legacy":
        world.plant_legacy(OBJECT, "old", LARGE)
    async with world.client(world.process("setup")) as client:
        for size, bystander in BYSTANDERS.items():
            assert await client.put(bystander, "bystander", size) is WriteAnswer.OK
        if before not in ("absent", "legacy"):
            size = SMALL if "small" in before else LARGE
            assert await client.put(OBJECT, "old", size, expiration=IDLE if "idle" in before else None) is WriteAnswer.OK


async def check(world: World) -> None:
    """Recovery ends what is left; then all is read, the objects twice, and all invariants are verified."""
    await world.drain()
    async with world.client(world.process("reader")) as client:
        first, second = [[await client.get(each) for each in (OBJECT, RENAMED)] for _ in range(2)]
        bystanders = [await client.get(each) for each in BYSTANDERS.values()]
    world.verify()
    assert first == second
    assert bystanders == ["bystander", "bystander"], "a bystander was changed"


def check_that_all_is_kept(world: World) -> None:
    """With a change feed, everything that was ever recorded waits for its writer, and so does every blob."""
    stored = {key: decode(key, each.value, each.heartbeat_ms, each.state) for key, each in world.log.stored.items()}
    assert stored.keys() == world.watch.recorded.keys() and all(entry.kept_ms is not None for entry in stored.values())
    assert not [line for line in world.network.trace if "blobs.delete" in line], "a blob was deleted before the feed has published it"


async def live(world: World, scenario: CrashScenario, plan: Plan) -> Process:
    """The scenario's caller, from the opening of its store to its close, or to its death."""
    victim = world.process("victim", plan)

    async def life() -> None:
        async with world.client(victim) as client:
            await scenario.act(client)

    await victim.run(life)
    return victim


async def run_scenario(scenario: CrashScenario, plan: Plan = no_faults, then: Act | None = None) -> Process:
    """`then` is done by another process as soon as the scenario's caller is through."""
    async with scenario.world() as world:
        await prepare(world, scenario.before)
        victim = await live(world, scenario, plan)
        if then is not None:
            async with world.client(world.process("successor")) as client:
                await then(client)
        if "idle" in scenario.before:
            # Past the first deadline: what the read did not extend in both tiers is collected now.
            world.history.begin_write(OBJECT.path, None)  # it may expire
            await anyio.sleep(30 * 60)
            world.blobs.collect_after_s = 0  # a harsher bucket than any: all clocks are right here
            await world.blobs.collect(1000)
        await check(world)
        if scenario.feed:
            check_that_all_is_kept(world)
        untold = set(victim.link.points) - set(victim.link.answered)
        if victim.alive and not any("open_upload" in point or "begin_parts" in point for point in untold):
            assert world.blobs.uploads == {} == world.blobs.in_parts, "a living store left an upload open"
        return victim


@cache
def points(name: str) -> list[str]:
    return run_world(lambda: run_scenario((SCENARIOS | WITH_FEED)[name]), SEED).link.points


# --- what goes wrong -----------------------------------------------------------------------------

CRASHES = [CallFault(Mode.CRASH_BEFORE), CallFault(Mode.CRASH_AFTER)]


def faults_at(point: str) -> list[CallFault]:
    """What else can happen to this call."""
    call, faults = call_of(point), [CallFault(Mode.UNAVAILABLE), CallFault(Mode.DENIED), CallFault(Mode.LOST)]
    if call == "upload.finalise":
        faults += [CallFault(Mode.DAMAGED)]
    if call not in STREAMS:
        faults += [CallFault(Mode.SLOW, LONG_S)]
    if call not in READS | STREAMS:
        faults += [CallFault(Mode.DROPPED), CallFault(Mode.LATE, SHORT_S), CallFault(Mode.LATE, LONG_S)]
    if call not in READS | STREAMS | ONCE:
        faults += [CallFault(Mode.DUPLICATED, SHORT_S), CallFault(Mode.DUPLICATED, LONG_S)]
    return faults


def only_at(point: str, fault: CallFault) -> Plan:
    return {point: fault}.get


def at_every(call: str, fault: CallFault) -> Plan:
    return lambda point: fault if call_of(point) == call else None


Case = tuple[object, ...]
"""A point or a call, a fault, and what else tells one run of a scenario from another."""


def each_of(names: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrizes a test with these scenarios. The night alone runs those that are rare."""
    return pytest.mark.parametrize("name", [
        pytest.param(name, marks=pytest.mark.night if SCENARIOS[name].rarely else ()) for name in names
    ])  # fmt: skip


EVERY_SCENARIO = each_of(SCENARIOS)
NOT_LEGACY = tuple(name for name in SCENARIOS if not name.endswith("_on_legacy"))
ON_LARGE = tuple(name for name in SCENARIOS if name.endswith(("_on_large", "_on_large_in_one_request")))


def run_share(name: str, cases: Iterable[Case], run: Callable[..., Awaitable[object]]) -> None:
    run_each(share(list(cases), SHARE, [*SCENARIOS, *STALE].index(name)), run)


def run_each(cases: Iterable[Case], run: Callable[..., Awaitable[object]]) -> None:
    """Runs each case in a world of its own. Raises all that is wrong, each with the name of its case."""
    wrong: list[Exception] = []
    for case in cases:
        try:
            run_world(partial(run, *case), SEED)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised with the others
            error.add_note("-".join(map(text_of, case)))
            wrong.append(error)
    if wrong:
        raise ExceptionGroup("these cases went wrong", wrong)


def text_of(part: object) -> str:
    return f"{part.mode.name}{f'_{part.seconds:g}s' if part.seconds else ''}" if isinstance(part, CallFault) else str(part)


@EVERY_SCENARIO
def test_an_operation_crashed_at_any_call_leaves_old_or_new_and_nothing_else(name: str) -> None:
    cases = product(points(name), CRASHES)
    run_each(cases, lambda point, fault: run_scenario(SCENARIOS[name], only_at(point, fault)))


@pytest.mark.parametrize("name", WITH_FEED)
def test_with_a_change_feed_every_change_is_kept_whatever_happens_at_any_call(name: str) -> None:
    """Whoever dies or fails at whatever call, also at `log.keep`. Recovery keeps what the writer did not."""
    crashes = product(points(name), CRASHES)
    faults = fault_cases(point for point in points(name) if call_of(point) == "log.keep")
    assert "log.keep #1" in points(name)
    run_each([*crashes, *faults], lambda point, fault: run_scenario(WITH_FEED[name], only_at(point, fault)))


@EVERY_SCENARIO
def test_an_operation_with_a_fault_at_any_call_answers_honestly_and_leaves_nothing(name: str) -> None:
    run_share(name, fault_cases(points(name)), lambda point, fault: run_scenario(SCENARIOS[name], only_at(point, fault)))


@EVERY_SCENARIO
def test_an_operation_during_an_outage_of_any_call_answers_honestly_and_leaves_nothing(name: str) -> None:
    firsts = [point for point in points(name) if point.endswith(" #1")]
    run_share(name, fault_cases(firsts), lambda point, fault: run_scenario(SCENARIOS[name], at_every(call_of(point), fault)))


def fault_cases(points: Iterable[str]) -> Iterator[tuple[str, CallFault]]:
    return ((point, fault) for point in points for fault in faults_at(point))


def denied_after(point: str, fault: CallFault) -> Plan:
    """From that call on, this process may do nothing any more.

    It may still give an upload up, because a session's address suffices for that.
    """
    passed = False

    def plan(made: str) -> CallFault | None:
        nonlocal passed
        if passed:
            return None if call_of(made) in ("upload.abort", "blobs.cancel") else CallFault(Mode.DENIED)
        passed = made == point
        return fault if passed else None

    return plan


@EVERY_SCENARIO
def test_a_writer_whose_permissions_are_taken_away_after_any_call_answers_honestly(name: str) -> None:
    """A refusal proves that this request had no effect, and nothing about those before it."""
    cases = [
        (point, fault)
        for point in points(name)
        for fault in (CallFault(Mode.LOST), CallFault(Mode.STALL_AFTER, SHORT_S), CallFault(Mode.LATE, SHORT_S))
        if fault in faults_at(point) or fault.mode is Mode.STALL_AFTER
    ]
    run_share(name, cases, lambda point, fault: run_scenario(SCENARIOS[name], denied_after(point, fault)))


# --- cancelled callers ---------------------------------------------------------------------------


async def run_cancelled(name: str, point: str, fault: CallFault, then: Act | None = None) -> None:
    """The caller is cancelled half a second into the call, whose fault makes it last for longer."""
    scope = anyio.CancelScope()

    def plan(made: str) -> CallFault | None:
        if made != point:
            return None
        scope.deadline = anyio.current_time() + SHORT_S / 2
        return fault

    async def act(client: Client) -> None:
        with scope:
            await SCENARIOS[name].act(client)

    await run_scenario(replace(SCENARIOS[name], act=act), plan, then)


@EVERY_SCENARIO
def test_an_operation_cancelled_during_any_call_leaves_old_or_new_and_nothing_else(name: str) -> None:
    """Before the request leaves, after its effect, or while it is under way (it arrives all the same)."""
    modes = Mode.STALL_BEFORE, Mode.STALL_AFTER, Mode.SLOW
    cases = [
        (point, CallFault(mode, SHORT_S))
        for point, mode in product(points(name), modes)
        if mode is not Mode.SLOW or call_of(point) not in STREAMS
    ]
    run_share(name, cases, partial(run_cancelled, name))


# --- what arrives late ---------------------------------------------------------------------------


@EVERY_SCENARIO
def test_a_request_that_arrives_late_never_undoes_a_later_write(name: str) -> None:
    """Whether its caller was told that it is unknown, or was cancelled while it was under way."""
    late = [(point, fault) for point, fault in fault_cases(points(name)) if fault.seconds == LONG_S and call_of(point) not in READS]

    async def run(point: str, fault: CallFault, size: int) -> None:
        then = put("later", size)
        if fault.mode is Mode.SLOW:
            await run_cancelled(name, point, fault, then)
        else:
            await run_scenario(SCENARIOS[name], only_at(point, fault), then)

    run_share(name, ((point, fault, size) for size in (SMALL, LARGE) for point, fault in late), run)


# --- two at once ---------------------------------------------------------------------------------


async def run_beside(scenario: CrashScenario, plan: Plan, beside: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async with World(SEED, sessions=scenario.sessions) as world:
        await prepare(world, scenario.before)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(beside, world)
            await live(world, scenario, plan)
            tasks.cancel_scope.cancel()
        await check(world)


@each_of(ON_LARGE)
def test_a_writer_stalled_past_its_lease_while_recovery_cleans_up_does_no_harm(name: str) -> None:
    async def recover(world: World) -> None:
        await world.recovery(world.process("cleaner"), shards=1).run()

    cases = [(point, CallFault(mode, LONG_S)) for point in points(name) for mode in (Mode.STALL_BEFORE, Mode.STALL_AFTER)]
    run_share(name, cases, lambda point, fault: run_beside(SCENARIOS[name], only_at(point, fault), recover))


OTHERS = {"put_small": put("other", SMALL), "put_large": put("other", LARGE), "delete": delete}


@each_of(NOT_LEGACY)
def test_an_operation_overtaken_by_another_writer_at_any_call_stays_honest(name: str) -> None:
    async def world_of_two(point: str, other: str) -> None:
        stalled = anyio.Event()

        def plan(made: str) -> CallFault | None:
            if made != point:
                return None
            stalled.set()
            return CallFault(Mode.STALL_AFTER, SHORT_S)

        async def overtake(world: World) -> None:
            async with world.client(world.process("other")) as client:
                await stalled.wait()
                assert await OTHERS[other](client) is WriteAnswer.OK

        await run_beside(SCENARIOS[name], plan, overtake)
        assert stalled.is_set(), f"the caller never came to {point}"

    run_share(name, product(points(name), OTHERS), world_of_two)


# --- recovery ------------------------------------------------------------------------------------

STALE = {
    "upload_open": ("put_large_on_large", "upload.finalise #1", Mode.CRASH_BEFORE),
    "blob_written": ("put_large_on_large", "rows.swap #1", Mode.CRASH_BEFORE),
    "blob_written_nothing_before": ("put_large_on_absent", "rows.swap #1", Mode.CRASH_BEFORE),
    "blob_swapped_in": ("put_large_on_large", "rows.swap #1", Mode.CRASH_AFTER),
    "blob_swapped_in_over_legacy": ("put_large_on_legacy", "rows.swap #1", Mode.CRASH_AFTER),
    "inline_swapped_in": ("put_small_on_large", "rows.swap #1", Mode.CRASH_AFTER),
    "deleted": ("delete_on_large", "rows.swap #1", Mode.CRASH_AFTER),
    "deleted_legacy": ("delete_on_legacy", "rows.swap #1", Mode.CRASH_AFTER),
    "request_not_sent": ("put_large_on_large_in_one_request", "upload.finalise #1", Mode.CRASH_BEFORE),
    "request_landed": ("put_large_on_large_in_one_request", "upload.finalise #1", Mode.CRASH_AFTER),
}
"""How each kind of stale entry comes about: the scenario, and where its writer dies."""
SELDOM = ("blob_written", "blob_swapped_in_over_legacy", "inline_swapped_in", "deleted", "request_not_sent")
"""Their recovery makes the same calls as that of another kind, so only the night disturbs each of these."""


async def run_recovery(kind: str, plan: Plan = no_faults, unreadable: str | None = None, feed: bool = False) -> Process:
    """A writer dies; a recoverer with faults makes a pass over what it left; then another one drains the log."""
    name, point, mode = STALE[kind]
    scenario = replace(SCENARIOS[name], feed=feed)
    async with scenario.world() as world:
        await prepare(world, scenario.before)
        await live(world, scenario, only_at(point, CallFault(mode)))
        if unreadable is not None:
            world.log.stored[unreadable] = StoredEntry(b"{", 0)
        assert world.log.stored, "the writer left no entry to recover"
        recoverer = world.process("recoverer", plan)

        async def life() -> None:
            await anyio.sleep(AFTER_EXPIRY_S)
            try:
                await world.recovery(recoverer, shards=2).run_once()
            except (UnavailableError, UnconfirmedError, ConfigurationError):
                assert plan is not no_faults

        await recoverer.run(life)
        if unreadable is not None:
            await world.drain()
            parked = world.log.stored.pop(unreadable)
            assert parked.state is not None and "cannot be read" in parked.state
        await check(world)
        if feed:
            check_that_all_is_kept(world)
        return recoverer


@cache
def recovery_points(kind: str, feed: bool = False) -> list[str]:
    return run_world(lambda: run_recovery(kind, feed=feed), SEED).link.points


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.night if kind in SELDOM else ()) for kind in STALE])
def test_recovery_crashed_or_disturbed_at_any_call_is_finished_by_another(kind: str) -> None:
    different = [point for point in recovery_points(kind) if call_of(point) != "log.stale" or point == "log.stale #1"]
    run_disturbed(kind, different)


@pytest.mark.parametrize("kind", ["upload_open", "blob_swapped_in", "deleted_legacy", "request_landed"])
def test_with_a_change_feed_recovery_keeps_what_it_has_settled_whatever_happens_to_it(kind: str) -> None:
    wanted = ("log.claim", "rows.settle", "log.keep")
    made = [point for point in recovery_points(kind, feed=True) if call_of(point) in wanted]
    assert {call_of(point) for point in made} == set(wanted)
    run_disturbed(kind, made, feed=True)


def run_disturbed(kind: str, made: Sequence[str], *, feed: bool = False) -> None:
    """A recoverer dies at each of these calls, and has a share of what else may happen there."""
    stalls = CallFault(Mode.STALL_BEFORE, LONG_S), CallFault(Mode.STALL_AFTER, LONG_S)
    others = [(point, fault) for point in made for fault in (*faults_at(point), *stalls)]

    async def run(point: str, fault: CallFault) -> None:
        await run_recovery(kind, only_at(point, fault), feed=feed)

    run_each(product(made, CRASHES), run)
    run_share(kind, others, run)


@pytest.mark.parametrize("kind", STALE)
def test_two_recoveries_at_once_do_no_more_than_one(kind: str) -> None:
    """I5: in lock step on one entry, with every call of one of them made twice."""

    async def world_of_two() -> None:
        name, point, mode = STALE[kind]
        async with World(SEED, sessions=SCENARIOS[name].sessions) as world:
            await prepare(world, SCENARIOS[name].before)
            await live(world, SCENARIOS[name], only_at(point, CallFault(mode)))
            await anyio.sleep(AFTER_EXPIRY_S)
            async with anyio.create_task_group() as tasks:
                for number, plan in enumerate([no_faults, lambda point: CallFault(Mode.DUPLICATED, SHORT_S)]):
                    tasks.start_soon(world.recovery(world.process(f"recoverer-{number}", plan)).run_once)
            await check(world)

    run_world(world_of_two, SEED)


@pytest.mark.parametrize("kind", STALE)
def test_an_unreadable_entry_is_parked_and_the_other_recovered(kind: str) -> None:
    key = ChangeId("018bcfe5-6800-7000-8000-000000000001").row_key()
    run_world(lambda: run_recovery(kind, unreadable=key), SEED)
