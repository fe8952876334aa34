"""The simulated world itself: each fault does what its name says, and the checker finds what is planted."""

from __future__ import annotations

import signal
import warnings
from collections.abc import AsyncIterator
from datetime import timedelta

import anyio
import pytest
import trio
from trio._core import _run as trio_run

from changelog.base.errors import ConfigurationError, InvalidRequestError, UnavailableError, UnconfirmedError
from changelog.base.runtime import uuid7
from changelog.change import Change, ChangeId
from changelog.lease import Renewal
from changelog.log import KeyRange
from emulators.world import runtime
from emulators.world.checker import InvariantViolation, dangling, left_over, orphans
from emulators.world.client import content
from emulators.world.deployment import World
from emulators.world.faults import CallFault, Mode, Plan, Process, Travel, no_faults, no_time
from emulators.world.history import RegisterHistory, WriteAnswer
from emulators.world.runtime import SimulatedRuntime, run_world
from tests.given.virtual_time import simulated
from tiered.errors import DanglingTombstoneError
from tiered.metadata import Metadata, TimeToLive
from tiered.object_id import ObjectId
from tiered.services.backends import HighVolumeBackend, Inline, Tombstone
from tiered.testing.blobs import Blob

PATH = "attachments/objects/key"
OBJECT = ObjectId.parse(PATH)
TOKEN = ChangeId("018bcfe5-6800-7000-8000-000000000001")
OTHER_TOKEN = ChangeId("018bcfe5-6800-7000-8000-000000000002")
BLOB = f"{PATH}/{TOKEN}"
DAY_S = 86_400.0
SMALL = Inline(Metadata(), b"small")


async def put_small(rows: HighVolumeBackend, token: ChangeId = TOKEN) -> bool:
    return await rows.put_inline(PATH, token, SMALL)


async def store_blob(world: World, name: str = BLOB, metadata: Metadata | None = None) -> None:
    upload = await world.blobs.open_upload(name, metadata or Metadata(), None)
    await upload.write(b"payload")
    await upload.finalise()


# --- time, chance and order ----------------------------------------------------------------------


@simulated
async def test_a_day_of_sleep_passes_at_once_on_every_clock() -> None:
    runtime = SimulatedRuntime(1, wall_start_ns=5_000_000_000)
    await runtime.sleep(DAY_S)
    assert (runtime.monotonic(), runtime.boot_time(), runtime.wall_ns()) == (DAY_S, DAY_S, 5_000_000_000 + 86_400_000_000_000)


def test_a_world_in_which_every_task_waits_for_ever_says_so_at_once() -> None:
    with pytest.raises(RuntimeError, match="waits for ever"):
        run_world(anyio.sleep_forever, 1)


@simulated
async def test_sleeps_and_deadlines_pass_in_the_order_of_their_times_and_a_cancelled_sleep_wakes_nobody() -> None:
    runtime, passed = SimulatedRuntime(1), []

    async def sleep(seconds: float) -> None:
        await runtime.sleep(seconds)
        passed.append((seconds, anyio.current_time()))

    async with anyio.create_task_group() as tasks:
        for seconds in (5, 1, 3):
            tasks.start_soon(sleep, seconds)
        with anyio.move_on_after(2) as scope:
            await sleep(4)
        assert scope.cancelled_caught and anyio.current_time() == 2.0
        with anyio.move_on_after(60):
            await sleep(4)
    assert passed == [(1, 1.0), (3, 3.0), (5, 5.0), (4, 6.0)]


@simulated
async def test_what_closes_an_abandoned_generator_runs_before_time_goes_on() -> None:
    closed_at: list[float] = []

    async def chunks() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            try:
                await anyio.lowlevel.checkpoint()  # trio closes it in a task of its own
            finally:
                closed_at.append(anyio.current_time())

    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        abandoned = chunks()
        await anext(abandoned)
        del abandoned
        await anyio.sleep(10)
    assert closed_at == [0.0]


@simulated
async def test_skew_sets_only_the_wall_clock_wrong() -> None:
    right, wrong = SimulatedRuntime(1), SimulatedRuntime(1, skew_s=-3600.0)
    assert right.wall_ns() - wrong.wall_ns() == 3_600_000_000_000
    assert right.monotonic() == wrong.monotonic()


@simulated
async def test_a_wall_clock_may_jump_at_any_time() -> None:
    runtime = SimulatedRuntime(1, wall_start_ns=0)
    await runtime.sleep(10)
    runtime.skew_s = -60.0
    assert (runtime.wall_ns(), runtime.monotonic(), runtime.boot_time()) == (-50_000_000_000, 10.0, 10.0)
    runtime.skew_s = 0.0
    assert runtime.wall_ns() == 10_000_000_000


@simulated
async def test_while_suspended_only_the_monotonic_clock_stands_still_and_sleeps_end_later() -> None:
    runtime, woken = SimulatedRuntime(1, wall_start_ns=0), []

    async def sleeper(begins_at: float) -> None:
        await anyio.sleep(begins_at)
        await runtime.sleep(10)
        woken.append((begins_at, anyio.current_time()))

    async with anyio.create_task_group() as tasks:
        for begins_at in (0, 4, 70):
            tasks.start_soon(sleeper, begins_at)
        await anyio.sleep(3)
        runtime.suspend(60)
        await anyio.sleep(1)
        assert (runtime.monotonic(), runtime.boot_time(), runtime.wall_ns()) == (3.0, 63.0, 63_000_000_000), "what runs now, runs then"
        runtime.suspend(30)  # ends before the first one does
        await anyio.sleep(58)
        assert runtime.monotonic() == 3.0
        runtime.suspend(2)  # and this one a second after it
        await anyio.sleep(3)
        assert runtime.monotonic() == 4.0
    assert woken == [(0, 71.0), (4, 74.0), (70, 80.0)]


@simulated
async def test_while_stopped_every_clock_shows_when_it_goes_on_and_sleeps_end_no_later_than_that() -> None:
    runtime = SimulatedRuntime(1, wall_start_ns=0)
    runtime.stop(60)
    assert (runtime.monotonic(), runtime.boot_time(), runtime.wall_ns()) == (60.0, 60.0, 60_000_000_000)
    await runtime.sleep(10)
    assert (anyio.current_time(), runtime.monotonic()) == (70.0, 70.0)


@simulated
async def test_ids_follow_the_seed() -> None:
    first, again, other = (uuid7(SimulatedRuntime(seed)) for seed in ("a", "a", "b"))
    assert first == again != other


async def order_of_ten() -> list[int]:
    order = []

    async def run(number: int) -> None:
        await anyio.lowlevel.checkpoint()
        order.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(run, number)
    return order


def test_the_seed_chooses_the_order_in_which_ready_tasks_run() -> None:
    assert run_world(order_of_ten, 1) == run_world(order_of_ten, 1)
    assert len({tuple(run_world(order_of_ten, seed)) for seed in range(10)}) > 5


def test_trio_is_left_as_it_was_found_also_when_the_world_fails() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    def found() -> tuple[object, ...]:
        around = trio.CancelScope._might_change_registered_deadline
        return trio_run._r.getstate(), trio_run._ALLOW_DETERMINISTIC_SCHEDULING, around, runtime._clock

    before = found()
    with pytest.raises(ZeroDivisionError):
        run_world(fail, 1)
    assert found() == before


def test_an_interrupt_ends_a_world_that_is_busy() -> None:
    async def busy() -> None:
        signal.raise_signal(signal.SIGINT)
        while True:
            await runtime.elapse(1)

    with pytest.raises(KeyboardInterrupt):
        run_world(busy, 1)


# --- faults --------------------------------------------------------------------------------------


def only(mode: Mode, seconds: float = 0.0) -> Plan:
    """At the first `put_inline`."""
    return {"rows.put_inline #1": CallFault(mode, seconds)}.get


class OneLink:
    """One process that does one put through its link, and notes how it ended."""

    def __init__(self, world: World, plan: Plan, travel: Travel = no_time) -> None:
        self.world = world
        self.process = world.process("writer", plan, travel=travel)
        self.rows = self.process.link.rows(world.rows)
        self.ended = ""

    async def put(self) -> None:
        try:
            self.ended = str(await put_small(self.rows))
        except (UnavailableError, UnconfirmedError, ConfigurationError) as error:
            self.ended = type(error).__name__

    @property
    def effect(self) -> bool:
        return PATH in self.world.rows.states


@pytest.mark.parametrize(
    ("mode", "ended", "effect", "later"),
    [
        (Mode.CRASH_BEFORE, "", False, False),
        (Mode.CRASH_AFTER, "", True, True),
        (Mode.STALL_BEFORE, "True", True, True),
        (Mode.STALL_AFTER, "True", True, True),
        (Mode.SUSPEND_BEFORE, "True", True, True),
        (Mode.SUSPEND_AFTER, "True", True, True),
        (Mode.UNAVAILABLE, "UnavailableError", False, False),
        (Mode.DENIED, "ConfigurationError", False, False),
        (Mode.DROPPED, "UnconfirmedError", False, False),
        (Mode.LOST, "UnconfirmedError", True, True),
        (Mode.DAMAGED, "UnavailableError", True, True),
        (Mode.LATE, "UnconfirmedError", False, True),
        (Mode.DUPLICATED, "True", True, True),
        (Mode.SLOW, "True", True, True),
    ],
    ids=lambda value: value.name if isinstance(value, Mode) else "",
)
def test_a_fault_does_what_its_name_says(mode: Mode, ended: str, effect: bool, later: bool) -> None:
    async def test() -> None:
        async with World(1) as world:
            stage = OneLink(world, only(mode, 10.0))
            await stage.process.run(stage.put)
            assert (stage.ended, stage.effect, stage.process.alive) == (ended, effect, "CRASH" not in mode.name)
            assert world.network.quiet == (mode not in (Mode.LATE, Mode.DUPLICATED))
            await anyio.sleep(11)
            assert stage.effect == later and world.network.quiet

    run_world(test, 1)


@simulated
async def test_a_duplicated_request_arrives_twice() -> None:
    async with World(1) as world:
        stage = OneLink(world, only(Mode.DUPLICATED, 10.0))
        await stage.process.run(stage.put)
        await world.rows.delete_inline(PATH, OTHER_TOKEN)
        assert not stage.effect
        await anyio.sleep(11)
        assert stage.effect


@simulated
async def test_a_late_request_arrives_though_its_sender_is_dead() -> None:
    async with World(1) as world:
        stage = OneLink(world, only(Mode.LATE, 10.0))
        await stage.process.run(stage.put)
        stage.process.crash()
        await anyio.sleep(11)
        assert stage.effect


@simulated
async def test_a_slow_request_arrives_though_its_sender_has_given_up() -> None:
    async with World(1) as world:
        stage = OneLink(world, only(Mode.SLOW, 10.0))
        with anyio.move_on_after(1):
            await stage.put()
        assert not stage.effect and not stage.ended
        await anyio.sleep(11)
        assert stage.effect


@simulated
async def test_a_request_that_left_in_time_may_arrive_after_its_deadline_but_none_leaves_after_it() -> None:
    async with World(1) as world:
        rows = world.process("writer", {"rows.swap #1": CallFault(Mode.SLOW, 100.0)}.get).link.rows(world.rows)
        assert await rows.swap(PATH, TOKEN, None, SMALL, deadline_s=30.0)
        with pytest.raises(UnavailableError):
            await rows.swap(PATH, OTHER_TOKEN, None, SMALL, deadline_s=30.0)


@simulated
async def test_nothing_that_a_crashed_process_does_in_its_clean_up_takes_effect() -> None:
    async with World(1) as world:
        stage = OneLink(world, no_faults)

        async def life() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.move_on_after(5, shield=True):
                    await stage.put()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stage.process.run, life)
            await anyio.sleep(1)
            stage.process.crash()
        assert not stage.effect and not stage.ended and stage.process.link.points == []


@simulated
async def test_what_a_dying_process_raises_is_not_heard_and_what_a_living_one_raises_is() -> None:
    async with World(1) as world:
        dying, living = world.process("dying"), world.process("living")

        async def fail(process: Process) -> None:
            if process is dying:
                process.crash()
            raise ZeroDivisionError

        await dying.run(lambda: fail(dying))
        with pytest.raises(ZeroDivisionError):
            await living.run(lambda: fail(living))


@simulated
async def test_a_stalled_process_sends_nothing_until_it_goes_on_while_others_do() -> None:
    async with World(1) as world:
        stage = OneLink(world, no_faults)
        async with anyio.create_task_group() as tasks:
            stage.process.stall(60)
            tasks.start_soon(stage.process.run, stage.put)
            await anyio.sleep(59)
            assert not stage.effect
            assert await world.process("other").link.log(world.log).announce("other") > 0
            await anyio.sleep(2)
            assert stage.effect


@simulated
async def test_what_a_process_was_stopped_before_sending_leaves_when_it_goes_on_though_its_timer_has_fired() -> None:
    for mode in (Mode.STALL_BEFORE, Mode.SUSPEND_BEFORE):
        began_s = anyio.current_time()
        async with World(1) as world:
            stage = OneLink(world, only(mode, 60.0))
            with anyio.move_on_after(30) as scope:
                await stage.put()
            assert anyio.current_time() == began_s + 60 and scope.cancelled_caught and not stage.ended
            await anyio.sleep(1)
            assert stage.effect


@simulated
async def test_a_process_that_dies_while_it_is_stopped_ends_at_once_and_sends_nothing() -> None:
    async with World(1) as world:
        stage = OneLink(world, only(Mode.STALL_BEFORE, 60.0))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stage.process.run, stage.put)
            await anyio.sleep(10)
            stage.process.crash()
        assert anyio.current_time() == 10
        await anyio.sleep(100)
        assert not stage.effect


@simulated
async def test_a_suspended_process_sends_nothing_and_its_lease_clock_stands_still() -> None:
    async with World(1) as world:
        stage = OneLink(world, no_faults)
        async with anyio.create_task_group() as tasks:
            stage.process.suspend(60)
            tasks.start_soon(stage.process.run, stage.put)
            await anyio.sleep(59)
            assert not stage.effect and stage.process.runtime.monotonic() == 0.0
            await anyio.sleep(2)
            assert stage.effect and stage.process.runtime.monotonic() == 1.0


def taking(there_s: float, back_s: float) -> Travel:
    return lambda point: (there_s, back_s)


@simulated
async def test_a_call_takes_the_time_of_its_way_there_and_back_and_has_its_effect_between() -> None:
    async with World(1) as world:
        stage = OneLink(world, no_faults, taking(2.0, 3.0))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stage.process.run, stage.put)
            await anyio.sleep(1.9)
            assert not stage.effect
            await anyio.sleep(0.2)
            assert stage.effect and not stage.ended
            await anyio.sleep(2.8)
            assert not stage.ended
            await anyio.sleep(0.2)
            assert stage.ended == "True"


@pytest.mark.parametrize("mode", [Mode.UNAVAILABLE, Mode.DENIED, Mode.LOST])
def test_errors_take_the_way_there_and_back_too(mode: Mode) -> None:
    async def test() -> None:
        async with World(1) as world:
            stage = OneLink(world, only(mode), taking(2.0, 3.0))
            await stage.process.run(stage.put)
            assert (anyio.current_time(), stage.ended in ("", "True")) == (5.0, False)

    run_world(test, 1)


@pytest.mark.parametrize(("after_s", "arrives_at"), [(1.0, 2.0), (2.5, 2.0)])
@pytest.mark.parametrize("dies", [False, True])
def test_what_was_under_way_when_its_sender_gave_up_or_died_arrives_when_it_would_have(
    after_s: float, arrives_at: float, dies: bool
) -> None:
    async def test() -> None:
        arrived = []
        async with World(1) as world:
            stage = OneLink(world, no_faults, taking(2.0, 3.0))
            world.rows.observers.append(lambda call, what: arrived.append(anyio.current_time()))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stage.process.run, stage.put)
                await anyio.sleep(after_s)
                assert world.network.quiet
                if dies:
                    stage.process.crash()
                else:
                    tasks.cancel_scope.cancel()
            assert world.network.quiet == (after_s > arrives_at)
            await anyio.sleep(10)
            assert arrived == [arrives_at] and not stage.ended and world.network.quiet

    run_world(test, 1)


@simulated
async def test_what_had_not_left_when_its_sender_gave_up_never_arrives() -> None:
    async with World(1) as world:
        stage = OneLink(world, no_faults, taking(2.0, 0.0))
        with anyio.CancelScope() as scope:
            scope.cancel()
            await stage.put()
        await anyio.sleep(10)
        assert not stage.effect and world.network.quiet


@simulated
async def test_a_swap_under_way_when_its_deadline_passes_and_its_sender_gives_up_still_wins() -> None:
    async with World(1) as world:
        rows = world.process("writer", travel=taking(100.0, 0.0)).link.rows(world.rows)
        with anyio.move_on_after(30):
            await rows.swap(PATH, TOKEN, None, SMALL, deadline_s=20.0)
        assert PATH not in world.rows.states
        await anyio.sleep(80)
        assert PATH in world.rows.states


@simulated
async def test_a_finalise_under_way_lands_and_a_piece_of_a_stream_is_lost_with_its_sender() -> None:
    for call in ("finalise", "write"):
        async with World(1) as world:
            travel_s = [0.0]
            link = world.process("writer", travel=lambda point: (travel_s[0], 0.0)).link  # noqa: B023
            upload = await link.blobs(world.blobs).open_upload(BLOB, Metadata(), None)
            await upload.write(b"payload")
            travel_s[0] = 10.0
            with anyio.move_on_after(5):
                await (upload.finalise() if call == "finalise" else upload.write(b"more"))
            await anyio.sleep(10)
            assert (BLOB in world.blobs.blobs) == (call == "finalise")
            assert all(bytes(each.payload) == b"payload" for each in world.blobs.uploads.values())


@simulated
async def test_a_crawling_scan_reads_each_row_at_a_moment_of_its_own() -> None:
    async with World(1) as world:
        paths = [f"attachments/objects/{key}" for key in "abcd"]
        for path in paths[0], paths[1], paths[3]:
            await world.rows.put_inline(path, TOKEN, SMALL)
        rows = world.process("reader", {"rows.scan #1": CallFault(Mode.CRAWLING, 10.0)}.get).link.rows(world.rows)
        found: list[str] = []

        async def scan() -> None:
            found.extend(row.path for row in (await rows.scan("attachments/", b"", 10)).rows)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scan)
            await anyio.sleep(5)  # it has read a
            await world.rows.delete_inline(paths[0], OTHER_TOKEN)
            await world.rows.delete_inline(paths[1], OTHER_TOKEN)
            await world.rows.put_inline(paths[2], OTHER_TOKEN, SMALL)
        assert found == [paths[0], paths[2], paths[3]]  # what was there at no one moment
        assert [row.path for row in (await rows.scan("attachments/", b"", 10)).rows] == [paths[2], paths[3]]


@simulated
async def test_the_log_and_the_blobs_are_scanned_slowly_too() -> None:
    async with World(1) as world:
        tokens = [ChangeId(f"{TOKEN[:-1]}{digit}") for digit in "123"]
        link = world.process("reader", lambda point: CallFault(Mode.CRAWLING, 10.0)).link
        log, blobs = link.log(world.log), link.blobs(world.blobs)
        entries = [await world.log.sharded(1).record(Change(token, PATH), "writer") for token in tokens]
        for token in tokens:
            await store_blob(world, f"{PATH}/{token}")
        found: dict[str, list[str]] = {}

        async def scan() -> None:
            found["stale"] = [entry.key for entry in (await log.stale(KeyRange("", "~~"), world.runtime.wall_ns(), 0, 10)).entries]

        async def list_entries() -> None:
            found["entries"] = [entry.key for entry in (await log.entries("", 2)).entries]

        async def list_blobs() -> None:
            found["blobs"] = [blob.name for blob in (await blobs.list("", None, 10)).blobs]

        async with anyio.create_task_group() as tasks:
            for each in (scan, list_entries, list_blobs):
                tasks.start_soon(each)
            await anyio.sleep(5)
            for entry, token in zip(entries[:2], tokens[:2], strict=True):
                await world.log.forget(entry)
                await world.blobs.delete(f"{PATH}/{token}")
        keys = [entry.key for entry in entries]
        assert found["stale"] == found["entries"] == [keys[0], keys[2]]
        assert found["blobs"] == [f"{PATH}/{tokens[0]}", f"{PATH}/{tokens[2]}"]


@simulated
async def test_a_slow_renewal_beats_for_each_entry_at_its_own_moment_and_some_answers_are_lost() -> None:
    async with World(1) as world:
        log = world.process("writer", {"log.renew #1": CallFault(Mode.CRAWLING, 1.0)}.get).link.log(world.log)
        tokens = [ChangeId(f"{TOKEN[:-2]}{number:02d}") for number in range(20)]
        entries = [await world.log.record(Change(token, PATH), "writer") for token in tokens]
        await world.log.forget(entries[0])
        began_ms = world.runtime.wall_ns() // 1_000_000
        renewals = await log.renew(entries)
        assert set(renewals[1:]) == {Renewal.RENEWED, Renewal.FAILED} and renewals[0] is not Renewal.RENEWED
        beats = [world.log.stored[entry.key].heartbeat_ms - began_ms for entry in entries[1:]]
        assert beats == [1000 * number for number in range(1, 20)], "those whose answer was lost, too"


@simulated
async def test_a_log_of_another_number_of_shards_is_the_same_log() -> None:
    async with World(1) as world:
        other, token = world.log.sharded(64), ChangeId(f"{TOKEN[:-2]}3f")
        entry = await other.record(Change(token, PATH), "writer")
        assert entry.key == token.row_key(64) != token.row_key() and list(world.log.stored) == [entry.key]
        assert await world.log.read(token) == entry
        assert len([within for within in world.log.ranges() if within.start <= entry.key < within.end]) == 1
        await world.log.forget(entry)
        assert other.stored == {}


@simulated
async def test_calls_on_uploads_and_readers_are_call_points_too() -> None:
    async with World(1) as world:
        link = world.process("writer").link
        blobs = link.blobs(world.blobs)
        upload = await blobs.open_upload(BLOB, Metadata(), None)
        await upload.write(b"payload")
        await upload.finalise()
        reader = await blobs.open(BLOB)
        assert reader is not None and [chunk async for chunk in reader.chunks()] == [b"payload"]
        await reader.aclose()
        assert link.points == [
            "blobs.open_upload #1", "upload.write #1", "upload.finalise #1",
            "blobs.open #1", "reader.chunks #1", "reader.chunks #2", "reader.aclose #1",
        ]  # fmt: skip
        assert [line.split(maxsplit=1)[1] for line in world.network.trace] == [f"writer: {point}" for point in link.points]


@simulated
async def test_a_single_request_upload_cannot_be_called_back_and_a_session_can() -> None:
    for sessions, lands in ((True, False), (False, True)):
        async with World(1, sessions=sessions) as world:
            upload = await world.process("writer", {"upload.finalise #1": CallFault(Mode.LATE, 10.0)}.get).link.blobs(
                world.blobs
            ).open_upload(BLOB, Metadata(), None)
            await upload.write(b"payload")
            with pytest.raises(UnconfirmedError):
                await upload.finalise()
            await upload.abort()
            await anyio.sleep(11)
            assert (upload.session is None, BLOB in world.blobs.blobs) == (lands, lands)


# --- the state -----------------------------------------------------------------------------------


@simulated
async def test_a_tombstone_without_its_blob_is_dangling_unless_both_expired_and_the_blob_was_collected() -> None:
    deadline_ns = SimulatedRuntime(1).wall_ns() + 1_000_000_000
    async with World(1) as world:
        world.rows.states[PATH] = Tombstone(BLOB, TimeToLive(ns=1), deadline_ns)
        assert dangling(world.rows, world.blobs, deadline_ns - 1) == dangling(world.rows, world.blobs, deadline_ns) == [PATH]
        await store_blob(world, metadata=Metadata(TimeToLive(ns=1), time_expires_ns=deadline_ns))
        assert dangling(world.rows, world.blobs, deadline_ns) == []
        world.blobs.collect_after_s = 0
        await anyio.sleep(2)
        assert await world.blobs.collect(10) == 1
        assert dangling(world.rows, world.blobs, deadline_ns - 1) == [PATH]
        assert dangling(world.rows, world.blobs, deadline_ns) == []


@pytest.mark.parametrize(("skew_s", "collect_after_s", "found"), [(0, 3600, None), (-60, 3600, "old"), (60, 3600, None), (0, 0, None)])
def test_a_reader_whose_clock_is_wrong_finds_an_object_or_none_around_its_deadline(
    skew_s: float, collect_after_s: float, found: str | None
) -> None:
    async def test() -> None:
        async with World(1, skew_max_s=60) as world:
            world.blobs.collect_after_s = collect_after_s
            async with world.client(world.process("writer")) as client:
                await client.put(OBJECT, "old", 500, expiration=TimeToLive(timedelta(hours=1)))
            await anyio.sleep(3600 + 30)
            assert await world.blobs.collect(10) == (collect_after_s == 0)
            async with world.client(world.process("reader", skew_s=skew_s)) as client:
                assert await client.get(OBJECT) == found
            await anyio.sleep(3600)
            assert await world.blobs.collect(10) == (collect_after_s != 0)
            async with world.client(world.process("late reader", skew_s=-60)) as client:
                assert await client.get(OBJECT) is None
            world.watch.verify()

    run_world(test, 1)


@simulated
async def test_a_reader_whose_clock_is_wrong_would_miss_the_blob_if_a_bucket_collected_it_at_once() -> None:
    async with World(1) as world:
        world.blobs.collect_after_s = 0
        async with world.client(world.process("writer")) as client:
            await client.put(OBJECT, "old", 500, expiration=TimeToLive(timedelta(hours=1)))
        await anyio.sleep(3600 + 30)
        await world.blobs.collect(10)
        async with world.client(world.process("reader", skew_s=-60)) as client:
            with pytest.raises(DanglingTombstoneError):
                await client.get(OBJECT)


@simulated
async def test_a_process_whose_clock_jumps_in_the_middle_keeps_its_leases_and_answers() -> None:
    async with World(1) as world:
        process = world.process("writer", {"upload.finalise #1": CallFault(Mode.SLOW, 8.0)}.get)
        async with world.client(process) as client, anyio.create_task_group() as tasks:
            answers: list[WriteAnswer] = []

            async def put() -> None:
                answers.append(await client.put(OBJECT, "old", 500))

            tasks.start_soon(put)
            await anyio.sleep(4)
            process.runtime.skew_s = 90 * 60  # type: ignore[attr-defined]
            await anyio.sleep(8)
            assert answers == [WriteAnswer.OK]
            process.runtime.skew_s = -3600  # type: ignore[attr-defined]
            assert await client.put(OBJECT, "new", 500) is WriteAnswer.OK
            assert await client.get(OBJECT) == "new"
        await world.drain()
        world.verify()


def ages(world: World) -> None:
    """Ten rows, marks and blobs that may be collected, and one of each that may not."""
    now_ns, day_ns = world.runtime.wall_ns(), 86_400_000_000_000
    long_ago_ms = (now_ns - 3 * day_ns) // 1_000_000
    for number in range(10):
        path = f"{PATH}-{number}"
        world.rows.states[path] = Inline(Metadata(TimeToLive(ns=1), time_expires_ns=now_ns - 1), b"")
        world.rows.won[path][ChangeId.first(long_ago_ms)] = long_ago_ms
        world.blobs.blobs[path] = Blob(Metadata(TimeToLive(ns=1), time_expires_ns=now_ns - day_ns), b"", 0, "0")
    world.rows.states[PATH] = SMALL
    world.rows.won[PATH][TOKEN] = now_ns // 1_000_000
    world.blobs.blobs[PATH] = Blob(Metadata(TimeToLive(ns=1), time_expires_ns=now_ns - day_ns // 48), b"", 0, "0")


def what_is_left(seed: int, limit: int) -> tuple[list[str], list[str], list[str]]:
    async def collect() -> tuple[list[str], list[str], list[str]]:
        async with World(seed) as world:
            ages(world)
            assert await world.rows.collect(2 * limit) == 2 * limit and await world.blobs.collect(limit) == limit
            return list(world.rows.states), [path for path, marks in world.rows.won.items() if marks], list(world.blobs.blobs)

    return run_world(collect, seed)


def test_what_is_collected_first_is_chance_and_follows_the_seed_and_nothing_else_is_ever_collected() -> None:
    assert what_is_left(1, 5) == what_is_left(1, 5)
    lefts = [what_is_left(seed, 5) for seed in range(5)]
    assert len({str(left) for left in lefts}) == 5
    assert all(sum(len(part) for part in left[:2]) == 12 and len(left[2]) == 6 for left in lefts)
    assert all(PATH in part for left in lefts for part in left)
    assert what_is_left(1, 10) == ([PATH], [PATH], [PATH])


@simulated
async def test_an_upload_older_than_a_week_cannot_be_finalised_collected_or_not() -> None:
    for collected in (False, True):
        async with World(1) as world:
            upload = await world.blobs.open_upload(BLOB, Metadata(), None)
            await anyio.sleep(7 * DAY_S + 1)
            if collected:
                assert await world.blobs.collect(10) == 1
            with pytest.raises(UnavailableError, match="a week old"):
                await upload.finalise()
            assert (world.blobs.uploads, world.blobs.blobs) == ({}, {})


@simulated
async def test_an_upload_has_ended_when_its_writer_was_cancelled() -> None:
    async with World(1) as world:
        upload = await world.blobs.open_upload(BLOB, Metadata(), None)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await upload.write(b"payload")
        with pytest.raises(InvalidRequestError):
            await upload.finalise()


@simulated
async def test_a_damaged_upload_is_stored_and_told_to_have_failed() -> None:
    async with World(1) as world:
        upload = await world.process("writer", {"upload.finalise #1": CallFault(Mode.DAMAGED)}.get).link.blobs(
            world.blobs
        ).open_upload(BLOB, Metadata(), None)
        with pytest.raises(UnavailableError, match="damaged"):
            await upload.finalise()
        assert BLOB in world.blobs.blobs


@simulated
async def test_the_copy_of_an_uploads_end_lands_in_vain_or_makes_a_stray_when_its_blob_was_deleted() -> None:
    for deleted in (False, True):
        async with World(1, sessions=False) as world:
            blobs = world.process("writer", {"upload.finalise #1": CallFault(Mode.DUPLICATED, 10.0)}.get).link.blobs(world.blobs)
            upload = await blobs.open_upload(BLOB, Metadata(), 1)
            await upload.write(b"x")
            await upload.finalise()
            first = world.blobs.blobs[BLOB]
            if deleted:
                await world.blobs.delete(BLOB)
            await anyio.sleep(11)
            assert world.blobs.strays == ({BLOB} if deleted else set())
            assert (world.blobs.blobs[BLOB] is first) == (not deleted)
            assert bool(orphans(world.rows, world.blobs, world.runtime.wall_ns())) == (not deleted)  # a stray is spared


@simulated
async def test_a_blob_that_no_row_names_is_an_orphan_until_it_expires() -> None:
    async with World(1) as world:
        await store_blob(world, metadata=Metadata(TimeToLive(ns=1), time_expires_ns=1000))
        assert orphans(world.rows, world.blobs, 999) == [BLOB]
        assert orphans(world.rows, world.blobs, 1000) == []
        world.rows.states[PATH] = Tombstone(BLOB)
        assert orphans(world.rows, world.blobs, 999) == []


@simulated
async def test_entries_and_uploads_that_were_named_in_the_log_are_left_over() -> None:
    async with World(1) as world:
        upload = await world.blobs.open_upload(BLOB, Metadata(), None)
        assert left_over(world.log, []) == []
        world.verify()
        entry = await world.log.record(Change(TOKEN, PATH, BLOB, None, upload.session), "writer")
        assert [line.split()[0] for line in left_over(world.log, list(world.blobs.uploads))] == ["entry", "upload"]
        await world.log.forget(entry)
        with pytest.raises(InvariantViolation, match="I6 drained: upload"):
            world.verify()


@simulated
async def test_a_blob_deleted_before_its_revision_was_refused_is_a_violation_and_after_it_is_none() -> None:
    for settled in (False, True):
        async with World(1) as world:
            await store_blob(world)
            if settled:
                assert not await world.rows.settle(PATH, TOKEN)
            await world.process("writer").link.blobs(world.blobs).delete(BLOB)
            if settled:
                world.verify()
            else:
                with pytest.raises(InvariantViolation, match=r"(?s)I2 settle first: .*writer: blobs.delete #1"):
                    world.verify()


@simulated
async def test_a_legacy_blob_may_go_once_its_row_is_seen_to_have_left_it() -> None:
    for state, allowed in ((None, False), (Tombstone(PATH), False), (SMALL, True), (Tombstone(BLOB), True)):
        async with World(1) as world:
            await store_blob(world, PATH)
            await store_blob(world, BLOB)
            if state is not None:
                world.rows.states[PATH] = state
            await world.blobs.delete(PATH)
            if allowed:
                world.watch.verify()
            else:
                with pytest.raises(InvariantViolation):
                    world.watch.verify()


@simulated
async def test_a_blob_deleted_under_its_tombstone_is_reported_at_that_very_effect() -> None:
    async with World(1) as world:
        await store_blob(world)
        await world.rows.settle(PATH, TOKEN)
        world.rows.states[PATH] = Tombstone(BLOB)
        await world.blobs.delete(BLOB)
        del world.rows.states[PATH]
        with pytest.raises(InvariantViolation, match="I1 no dangling"):
            world.verify()


# --- what callers were told ----------------------------------------------------------------------


def told(history: RegisterHistory, value: str | None, answer: WriteAnswer) -> None:
    history.end_write(history.begin_write(PATH, value), answer)


def read(history: RegisterHistory, found: str | None) -> None:
    history.end_read(history.begin_read(PATH), found)


@pytest.mark.parametrize(
    ("writes", "found", "explained"),
    [
        ([], None, True),
        ([], "a", False),
        ([("a", WriteAnswer.OK)], "a", True),
        ([("a", WriteAnswer.OK)], None, False),
        ([("a", WriteAnswer.NO)], "a", False),
        ([("a", WriteAnswer.NO)], None, True),
        ([("a", WriteAnswer.UNKNOWN)], "a", True),
        ([("a", WriteAnswer.UNKNOWN)], None, True),
        ([("a", WriteAnswer.OVER)], "a", True),
        ([("a", WriteAnswer.OK), ("b", WriteAnswer.OK)], "b", True),
        ([("a", WriteAnswer.OK), ("b", WriteAnswer.OK)], "a", False),
        ([("a", WriteAnswer.OK), ("b", WriteAnswer.NO)], "a", True),
        ([("a", WriteAnswer.OK), ("b", WriteAnswer.OVER)], "a", True),
        ([("a", WriteAnswer.OVER), ("b", WriteAnswer.OK)], "a", False),
        ([("a", WriteAnswer.UNKNOWN), ("b", WriteAnswer.OK)], "a", True),
        ([("a", WriteAnswer.OK), (None, WriteAnswer.OK)], None, True),
        ([("a", WriteAnswer.OK), (None, WriteAnswer.OK)], "a", False),
        ([("a", WriteAnswer.OK), (None, WriteAnswer.OVER)], None, True),
    ],
)
def test_a_read_is_explained_by_a_write_that_nothing_acknowledged_has_replaced(
    writes: list[tuple[str | None, WriteAnswer]], found: str | None, explained: bool
) -> None:
    history = RegisterHistory()
    for value, answer in writes:
        told(history, value, answer)
    read(history, found)
    assert (history.unexplained() == []) == explained


def test_of_two_writes_at_once_either_may_be_read() -> None:
    for found in ("a", "b"):
        history = RegisterHistory()
        first, second = history.begin_write(PATH, "a"), history.begin_write(PATH, "b")
        history.end_write(first, WriteAnswer.OK)
        history.end_write(second, WriteAnswer.OK)
        read(history, found)
        assert history.unexplained() == []


def test_a_read_during_a_write_finds_what_was_there_or_what_is_written() -> None:
    for found, explained in (("old", True), ("new", True), (None, False)):
        history = RegisterHistory()
        told(history, "old", WriteAnswer.OK)
        write, during = history.begin_write(PATH, "new"), history.begin_read(PATH)
        history.end_read(during, found)
        history.end_write(write, WriteAnswer.OK)
        assert (history.unexplained() == []) == explained


def test_a_value_read_before_it_was_written_is_not_explained() -> None:
    history = RegisterHistory()
    read(history, "new")
    told(history, "new", WriteAnswer.OK)
    [finding] = history.unexplained()
    assert "'new'" in finding and PATH in finding


def test_a_read_that_failed_says_nothing() -> None:
    history = RegisterHistory()
    told(history, "old", WriteAnswer.OK)
    history.begin_read(PATH)
    assert history.unexplained() == []


# --- the whole -----------------------------------------------------------------------------------


@simulated
async def test_a_client_notes_what_it_was_told_and_what_it_read() -> None:
    async with World(1) as world:
        async with world.client(world.process("writer")) as client:
            for size in (50, 500):
                assert await client.put(OBJECT, f"size-{size}", size) is WriteAnswer.OK
                assert await client.get(OBJECT) == f"size-{size}"
            assert await client.delete(OBJECT) is WriteAnswer.OK
            assert await client.get(OBJECT) is None
        await world.drain()
        world.verify()
        assert [(write.value, write.answer.name) for write in world.history.writes] == [("size-50", "OK"), ("size-500", "OK"), (None, "OK")]


@simulated
async def test_a_payload_under_the_metadata_of_another_write_is_found_out() -> None:
    async with World(1) as world, world.client(world.process("writer")) as client:
        assert await client.put(OBJECT, "label", 50) is WriteAnswer.OK
        await world.rows.put_inline(PATH, TOKEN, Inline(Metadata(custom={"label": "label"}), content("other", 50)))
        await client.get(OBJECT)
        with pytest.raises(InvariantViolation, match="I4"):
            world.verify()


@simulated
async def test_a_crashed_client_was_told_nothing() -> None:
    async with World(1) as world:
        writer = world.process("writer", {"rows.put_inline #1": CallFault(Mode.CRASH_AFTER)}.get)

        async def life() -> None:
            async with world.client(writer) as client:
                await client.put(OBJECT, "label", 50)

        await writer.run(life)
        assert [write.answer for write in world.history.writes] == [WriteAnswer.UNKNOWN] and world.history.writes[0].ended is None


@simulated
async def test_a_write_cancelled_in_a_store_that_closed_cleanly_is_over() -> None:
    async with World(1) as world:
        writer = world.process("writer", {"rows.put_inline #1": CallFault(Mode.SLOW, 5.0)}.get)
        async with world.client(writer) as client:
            with anyio.move_on_after(1):
                await client.put(OBJECT, "label", 50)
        assert [write.answer for write in world.history.writes] == [WriteAnswer.OVER]
