"""The recovery loop on its own: what it claims, what it leaves alone, what it parks, how it stops."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from changelog.base.errors import ConfigurationError, CorruptRecordError, LeaseLostError, UnavailableError, UnconfirmedError
from changelog.change import Change, ChangeId, Entry
from changelog.lease import EntryState, Renewal
from changelog.log import KeyRange
from emulators.world.services import SimulatedBlobs
from tests.given.tapped_store import LARGE, OBJECT, Hook, Tapped, TappedWorld, answer_lost, fails, lost, pieces
from tiered import TieredStorage
from tiered.metadata import Metadata
from tiered.object_id import blob_name
from tiered.services.backends import Inline, Tombstone

pytestmark = pytest.mark.anyio

FOREVER_S = 1e9


async def plant_blob(world: TappedWorld, name: str) -> None:
    upload = await world.blobs.target.open_upload(name, Metadata(), None)
    await upload.write(LARGE)
    await upload.finalise()


async def plant_dead_change(world: TappedWorld, *, old: str | None = None, finalised: bool = True, session: bool = True) -> Change:
    """What a writer leaves that died after its upload and before its swap."""
    token = ChangeId.new(world.runtime)
    name = blob_name(OBJECT.path, token)
    upload = await world.blobs.target.open_upload(name, Metadata(), None)
    await upload.write(LARGE)
    if finalised:
        await upload.finalise()
    change = Change(token, OBJECT.path, name, old, upload.session if session else None)
    await world.log.target.record(change, "dead")
    return change


async def stale(world: TappedWorld) -> None:
    await world.runtime.sleep(31)


async def dead(world: TappedWorld, number: int = 1) -> None:
    """So many changes, whose writers died long ago."""
    for _ in range(number):
        await plant_dead_change(world)
    await stale(world)


async def test_dead_writers_blob_is_removed_and_its_token_refused(world: TappedWorld) -> None:
    change = await plant_dead_change(world)
    await stale(world)
    assert (await world.recovery().run_once()).recovered == 1
    assert await world.is_clean()
    assert change.id in (await world.rows.target.read(OBJECT.path, marks=True)).refused


async def test_unfinished_upload_is_cancelled_and_can_never_appear(world: TappedWorld) -> None:
    token = ChangeId.new(world.runtime)
    name = blob_name(OBJECT.path, token)
    upload = await world.blobs.target.open_upload(name, Metadata(), None)
    await upload.write(LARGE)
    await world.log.target.record(Change(token, OBJECT.path, name, None, upload.session), "stalled")
    await stale(world)
    assert (await world.recovery().run_once()).recovered == 1
    with pytest.raises(UnavailableError):
        await upload.finalise()
    assert await world.is_clean()


async def test_live_writers_entry_is_left_alone(world: TappedWorld) -> None:
    change = await plant_dead_change(world)
    entry, = await world.entries()
    await world.runtime.sleep(25)
    await world.log.target.renew([entry])
    await world.runtime.sleep(25)
    assert (await world.recovery().run_once()).seen == 0
    assert await world.blob_names() == [change.new]


async def test_change_that_took_effect_keeps_its_blob_and_loses_only_the_old_one(world: TappedWorld) -> None:
    old = blob_name(OBJECT.path, ChangeId.new(world.runtime))
    await plant_blob(world, old)
    change = await plant_dead_change(world, old=old)
    await world.rows.target.swap(OBJECT.path, change.id, None, Tombstone(str(change.new)), FOREVER_S)
    await stale(world)
    assert (await world.recovery().run_once()).recovered == 1
    assert await world.blob_names() == [change.new]
    assert await world.is_clean()


async def test_daemon_looks_at_recent_changes_often_and_now_and_then_at_all(world: TappedWorld) -> None:
    scanned: list[KeyRange] = []

    async def note(real: Any, within: KeyRange, *args: Any) -> Any:
        scanned.append(within)
        return await real(within, *args)

    world.log.hooks["stale"] = note
    recovery = world.recovery(recovery={"idle_s": 50})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recovery.run)
        await world.runtime.sleep(550)
        whole = set(world.log.ranges())
        assert whole == set(scanned[:16])
        assert len(scanned) > 100 and not whole & set(scanned[16:])
        await world.runtime.sleep(100)
        assert whole <= set(scanned[16:])
        recovery.stop()


async def test_daemon_finds_a_change_that_lived_longer_than_what_is_recent_and_then_died(
    world: TappedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recovery.loop.RECENT_S", 60)
    await plant_dead_change(world)
    entry, = await world.entries()
    recovery = world.recovery()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recovery.run)
        for _ in range(40):
            await world.runtime.sleep(10)
            await world.log.target.renew([entry])
        assert recovery.total.seen == 0
        await world.runtime.sleep(600)
        assert recovery.total.recovered == 1 and await world.is_clean()
        recovery.stop()


async def test_a_claim_whose_answer_was_not_waited_for_is_given_back(world: TappedWorld) -> None:
    """Otherwise each restart of a service leaves an entry that nobody may touch until the lease has expired."""
    await dead(world, 3)

    async def claim(real: Any, entry: Entry, owner: str) -> Any:
        await real(entry, owner)
        await anyio.sleep_forever()

    world.log.hooks["claim"] = claim
    with anyio.move_on_after(1) as scope:
        await world.recovery(recovery={"rate_per_s": 1e6}).run_once()
    assert scope.cancelled_caught
    assert [(entry.owner, entry.attempt) for entry in await world.entries()] == [("", 0)] * 3


async def test_many_entries_are_worked_on_at_once_and_few_of_them_claimed(world: TappedWorld) -> None:
    """Two daemons that meet lose as many claims as are under way. The work on an entry takes longer than its claim."""
    await dead(world, 200)
    under_way, most = {"claim": 0, "settle": 0}, {"claim": 0, "settle": 0}

    def slow(name: str, seconds: float) -> Callable[..., Any]:
        async def call(real: Any, *args: Any) -> Any:
            under_way[name] += 1
            most[name] = max(most[name], under_way[name])
            await world.runtime.sleep(seconds)
            under_way[name] -= 1
            return await real(*args)

        return call

    world.log.hooks["claim"], world.rows.hooks["settle"] = slow("claim", 0.005), slow("settle", 0.5)
    report = await world.recovery(recovery={"rate_per_s": 1e6}).run_once()
    assert (report.recovered, most) == (200, {"claim": 8, "settle": 64})


async def test_range_where_others_are_faster_is_left_to_them(world: TappedWorld) -> None:
    await dead(world, 320)
    shards = {entry.key.split("/")[1] for entry in await world.entries()}
    contested = sorted(shards)[3]
    claims: list[str] = []

    async def claim(real: Any, entry: Entry, owner: str) -> Any:
        claims.append(entry.key.split("/")[1])
        return None if claims[-1] == contested else await real(entry, owner)

    world.log.hooks["claim"] = claim
    recovery = world.recovery(recovery={"concurrency_max": 1, "rate_per_s": 1e6})
    report = await recovery.run_once()
    assert not recovery.counts.passed, "what it left to others was not read to the end"
    left = [entry.key.split("/")[1] for entry in await world.entries()]
    assert set(left) == {contested} and report.recovered == 320 - len(left)
    assert claims.count(contested) == report.lost == 5 < len(left)


async def test_recovery_never_finishes_a_put(world: TappedWorld) -> None:
    await dead(world)
    await world.recovery().run_once()
    assert (await world.rows.target.read(OBJECT.path)).state is None


async def test_pass_that_takes_longer_than_the_expiry_leaves_living_writers_alone(world: TappedWorld) -> None:
    await dead(world, 5)
    world.blobs.hooks["delete"] = world.slow(20)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.recovery(recovery={"concurrency_max": 1}).run_once)
        await world.runtime.sleep(90)
        living = await plant_dead_change(world)
        while await world.blob_names() != [living.new]:
            entry, = [each for each in await world.entries() if each.change.id == living.id]
            assert await world.log.target.renew([entry])
            await world.runtime.sleep(1)
        await world.runtime.sleep(5)
        assert [each.change.id for each in await world.entries()] == [living.id]


async def test_loop_that_was_stopped_before_its_scan_leaves_living_writers_alone(world: TappedWorld) -> None:
    async def stopped(real: Any, *args: Any) -> Any:
        world.log.hooks.clear()
        await world.runtime.sleep(50)
        await plant_dead_change(world)
        return await real(*args)

    world.log.hooks["stale"] = stopped
    assert (await world.recovery().run_once()).seen == 0


# --- legacy targets --------------------------------------------------------------------------------


ANOTHER = Inline(Metadata(), b"")


@pytest.mark.parametrize(("state", "won", "is_kept"), [
    pytest.param(Tombstone(OBJECT.path), False, True, id="its row names it"), pytest.param(None, False, True, id="nothing proves more"),
    pytest.param(ANOTHER, False, False, id="another object is there"), pytest.param(None, True, False, id="the deletion won"),
    pytest.param(ANOTHER, True, False, id="the deletion won, and another object is there"),
])  # fmt: skip
async def test_the_blob_without_a_revision_that_a_dead_deletion_names_is_kept_while_it_may_be_the_object(
    world: TappedWorld, state: Any, won: bool, is_kept: bool
) -> None:
    await plant_blob(world, OBJECT.path)
    change = Change(ChangeId.new(world.runtime), OBJECT.path, None, OBJECT.path)
    await world.log.target.record(change, "dead")
    if won:
        assert await world.rows.target.swap(OBJECT.path, change.id, OBJECT.path, state, FOREVER_S)
    elif state is not None:
        assert await world.rows.target.swap(OBJECT.path, ChangeId.new(world.runtime), None, state, FOREVER_S)
    await stale(world)
    assert (await world.recovery().run_once()).recovered == 1
    assert await world.blob_names() == [OBJECT.path] * is_kept


# --- the late-upload grace -------------------------------------------------------------------------


async def test_single_request_upload_is_waited_for_and_its_late_blob_deleted(world: TappedWorld) -> None:
    change = await plant_dead_change(world, session=False)
    await stale(world)
    assert (await world.recovery().run_once()).deferred == 1
    assert await world.blob_names() == []
    await plant_blob(world, str(change.new))  # it lands late
    await world.runtime.sleep(600)
    assert (await world.recovery().run_once()).seen == 0, "the grace is not over"
    await world.runtime.sleep(400)
    assert (await world.recovery().run_once()).recovered == 1
    assert await world.is_clean()


async def test_writer_that_lost_its_lease_on_the_way_finalises_nothing(world: TappedWorld) -> None:
    """It is cut off from the log with a slow payload.

    Meanwhile recovery has waited out the grace and forgotten the change.
    """
    world.blobs = Tapped(SimulatedBlobs(world.runtime, sessions=False), world.calls)
    refused: list[Exception] = []

    async def put(storage: TieredStorage) -> None:
        with pytest.raises(LeaseLostError) as lost:
            await storage.put(OBJECT, pieces(LARGE, 1800, LARGE))
        refused.append(lost.value)

    async with running(world), world.store() as storage, anyio.create_task_group() as tasks:
        world.log.hooks["renew"] = fails(UnavailableError("no route to the changelog"))
        tasks.start_soon(put, storage)
        await world.runtime.sleep(1700)  # longer than the lease, the grace and the time until the next full pass together
        assert not await world.entries()
        await world.runtime.sleep(200)
    assert len(refused) == 1
    assert await world.blob_names() == []


@pytest.mark.parametrize(
    ("error", "lands", "waits"),
    [
        (UnavailableError("refused"), False, False), (UnavailableError("damaged"), True, False),
        (UnconfirmedError("no answer"), False, True), (UnconfirmedError("no answer"), True, True),
    ],
)  # fmt: skip
async def test_writer_waits_for_a_late_upload_only_if_nobody_told_it_what_became_of_it(
    world: TappedWorld, error: Exception, lands: bool, waits: bool
) -> None:
    world.blobs = Tapped(SimulatedBlobs(world.runtime, sessions=False), world.calls)
    world.hook_finalise(lost(error) if lands else fails(error))
    async with world.store() as storage:
        with pytest.raises(UnavailableError):
            await storage.put(OBJECT, LARGE)
    assert [entry.cleanup_after_ms is not None for entry in await world.entries()] == [True] * waits
    assert await world.log.presences() == [], "no recovery runs"
    assert await world.blob_names() == []


async def test_writer_waits_for_no_upload_that_it_cut_off_or_that_another_writer_beat(world: TappedWorld) -> None:
    world.blobs = Tapped(SimulatedBlobs(world.runtime, sessions=False), world.calls)

    async def beaten(real: Any, path: str, token: ChangeId, *args: Any) -> bool:
        world.rows.hooks.clear()
        await storage.put(OBJECT, LARGE)
        return bool(await real(path, token, *args))

    async with world.store() as storage:
        with pytest.raises(ArithmeticError):
            await storage.put(OBJECT, pieces(LARGE, ArithmeticError()))
        world.rows.hooks["swap"] = beaten
        await storage.put(OBJECT, LARGE + b"2")
    assert await world.entries() == [] and len(await world.blob_names()) == 1


# --- bad entries -----------------------------------------------------------------------------------


async def test_entry_that_names_another_objects_blob_is_parked_and_deletes_nothing(world: TappedWorld) -> None:
    await plant_blob(world, "someone/objects/else")
    await world.log.target.record(Change(ChangeId.new(world.runtime), OBJECT.path, None, "someone/objects/else"), "dead")
    await stale(world)
    assert (await world.recovery().run_once()).parked == 1
    entry, = await world.entries()
    assert "someone/objects/else" in entry.stuck.error
    assert await world.blob_names() == ["someone/objects/else"]
    assert (await world.recovery().run_once()).seen == 0, "a parked entry is never seen again"


async def test_entry_whose_claimers_always_died_is_parked(world: TappedWorld) -> None:
    await plant_dead_change(world)
    for _ in range(5):
        entry, = await world.entries()
        assert await world.log.target.claim(entry, "dies")
        await stale(world)
    assert (await world.recovery().run_once()).parked == 1
    entry, = await world.entries()
    assert "claimed 5 times" in entry.stuck.error


async def test_entry_that_always_fails_is_parked_with_its_error_and_never_blocks_the_others(world: TappedWorld) -> None:
    bad = await plant_dead_change(world)

    async def refuses_one(real: Any, name: str) -> Any:
        if name == bad.new:
            raise UnavailableError("a retention policy forbids it")
        return await real(name)

    world.blobs.hooks["delete"] = refuses_one
    recovery = world.recovery(recovery={"concurrency_max": 2})
    for _ in range(5):
        await plant_dead_change(world)
        await stale(world)
        await recovery.run_once()
    assert recovery.total.recovered == 5
    entry, = await world.entries()
    assert isinstance(entry, Entry) and entry.change == bad
    assert entry.stuck is not None and "failed 5 times" in entry.stuck.error and "retention policy" in entry.stuck.error
    world.blobs.hooks.clear()
    assert await world.log.target.retry(entry)
    assert (await world.recovery().run_once()).recovered == 1
    assert await world.is_clean()


OUTAGES: dict[str, tuple[str, str, Hook]] = {
    "rows are away": ("rows", "settle", fails(UnavailableError("down"))),
    "rows are denied": ("rows", "settle", fails(ConfigurationError("403: grant roles/bigtable.user"))),
    "claims are not answered": ("log", "claim", answer_lost),
    "the log is denied": ("log", "stale", fails(ConfigurationError("403: grant roles/bigtable.user"))),
}


@pytest.mark.parametrize("outage", OUTAGES)
async def test_outage_parks_nothing_however_long_it_lasts(world: TappedWorld, outage: str) -> None:
    service, call, hook = OUTAGES[outage]
    await dead(world)
    hooks: dict[str, Hook] = getattr(world, service).hooks
    hooks[call] = hook
    async with running(world) as recovery:
        await world.runtime.sleep(3600)  # hundreds of passes
        assert world.calls.count(call) > 10 * world.settings().recovery.attempts_max
        hooks.clear()
        await world.runtime.sleep(300)
        assert recovery.total.parked == 0
        assert await world.is_clean()


async def test_outage_of_one_tier_parks_nothing_though_others_need_only_the_other(world: TappedWorld) -> None:
    await dead(world)
    world.blobs.hooks.update(cancel=fails(UnavailableError("GCS is down")), delete=fails(UnavailableError("GCS is down")))
    async with running(world) as recovery:
        for _ in range(60):
            await world.log.target.record(Change(ChangeId.new(world.runtime), OBJECT.path), "dead")
            await world.runtime.sleep(30)
        assert recovery.total.recovered >= 50
        world.blobs.hooks.clear()
        await world.runtime.sleep(300)
        assert recovery.total.parked == 0
        assert await world.is_clean()


async def test_shutting_down_is_no_failed_attempt(world: TappedWorld) -> None:
    await dead(world)
    world.blobs.hooks["cancel"] = world.slow(40)
    for _ in range(10):
        async with running(world) as recovery:
            await world.runtime.sleep(1)
            recovery.stop()
    entry, = await world.entries()
    assert (entry.owner, entry.attempt, entry.stuck) == ("", 0, None)


@pytest.mark.parametrize("error", [CorruptRecordError("page 7 is damaged"), ZeroDivisionError(), None])
async def test_entry_whose_claim_fails_or_never_answers_ends_nobody_elses_recovery(world: TappedWorld, error: Exception | None) -> None:
    bad = await plant_dead_change(world)
    for _ in range(5):
        await plant_dead_change(world)

    async def broken(real: Any, entry: Entry, owner: str) -> Any:
        if entry.change == bad:
            if error is None:
                await anyio.sleep_forever()
            else:
                raise error
        return await real(entry, owner)

    await stale(world)
    world.log.hooks["claim"] = broken
    report = await world.recovery().run_once()
    assert (report.recovered, report.failed) == (5, 1)
    assert [entry.change for entry in await world.entries()] == [bad]


async def test_damaged_log_ends_the_loop_with_the_plain_error(world: TappedWorld) -> None:
    world.log.hooks["stale"] = fails(CorruptRecordError("tiered.db is damaged"))
    with pytest.raises(CorruptRecordError, match="damaged"):
        await world.recovery().run()


async def test_total_counts_what_a_pass_did_before_it_failed(world: TappedWorld) -> None:
    await dead(world, 5)
    left = [12]

    async def fails_later(real: Any, *args: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise UnavailableError("down")
        return await real(*args)

    world.log.hooks["stale"] = fails_later
    recovery = world.recovery()
    with pytest.raises(UnavailableError):
        await recovery.run_once()
    assert recovery.total.recovered == 5 - len(await world.entries()) > 0


# --- many, and stopping ----------------------------------------------------------------------------


async def test_two_loops_share_the_work_and_do_nothing_twice(world: TappedWorld) -> None:
    await dead(world, 50)
    one, two = world.recovery(), world.recovery()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run_once)
        tasks.start_soon(two.run_once)
    assert one.total.recovered + two.total.recovered == 50
    assert world.calls.count("cancel") == 50
    assert await world.is_clean()


async def test_limit_bounds_a_pass(world: TappedWorld) -> None:
    await dead(world, 10)
    assert (await world.recovery().run_once(limit=3)).recovered == 3
    assert len(await world.entries()) == 7


async def test_survey_changes_nothing(world: TappedWorld) -> None:
    change = await plant_dead_change(world)
    await stale(world)
    before = await world.entries()
    (entry, found), = [each async for each in world.recovery().survey()]
    assert isinstance(entry, Entry) and entry.change == change and found is EntryState.CLAIMABLE
    assert await world.entries() == before and await world.blob_names() == [change.new]


@asynccontextmanager
async def running(world: TappedWorld, **values: Any) -> AsyncIterator[Any]:
    recovery = world.recovery(recovery=values)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recovery.run)
        yield recovery
        recovery.stop()


async def test_running_loop_recovers_what_goes_stale_later(world: TappedWorld) -> None:
    async with running(world):
        for _ in range(3):
            await plant_dead_change(world)
            await world.runtime.sleep(60)
            assert await world.is_clean()


async def test_stopping_loop_claims_nothing_more_and_finishes_what_it_holds(world: TappedWorld) -> None:
    await dead(world, 10)
    world.blobs.hooks["delete"] = world.slow(5)
    async with running(world, concurrency_max=2) as recovery:
        await world.runtime.sleep(1)
        recovery.stop()
    assert recovery.total.recovered == 2
    assert len(await world.entries()) == 8


async def test_stopping_loop_releases_what_its_budget_does_not_suffice_for(world: TappedWorld) -> None:
    async def hangs(real: Any, *args: Any) -> Any:
        await world.runtime.sleep(10_000)

    await dead(world)
    world.blobs.hooks["delete"] = hangs
    async with running(world, shutdown_budget_s=3) as recovery:
        await world.runtime.sleep(1)
        recovery.stop()
    assert world.runtime.monotonic() == pytest.approx(31 + 1 + 3)
    world.blobs.hooks.clear()
    assert (await world.recovery().run_once()).recovered == 1, "released: nobody has to wait for it to go stale"


async def test_pass_that_is_cancelled_gives_its_claims_back(world: TappedWorld) -> None:
    async def hangs(real: Any, *args: Any) -> Any:
        await world.runtime.sleep(10_000)

    await dead(world, 3)
    world.blobs.hooks["delete"] = hangs
    with anyio.move_on_after(5) as scope:
        await world.recovery().run_once()
    assert scope.cancelled_caught
    assert [(entry.owner, entry.attempt) for entry in await world.entries()] == [("", 0)] * 3
    world.blobs.hooks.clear()
    assert (await world.recovery().run_once()).recovered == 3, "at once: nobody has to wait for them to go stale"


@pytest.mark.parametrize(("lost_during", "none_of"), [("settle", ("cancel", "delete", "forget")), ("cancel", ("delete", "forget"))])
async def test_recoverer_whose_claim_is_taken_over_on_the_way_has_no_further_effect(
    world: TappedWorld, lost_during: str, none_of: tuple[str, ...]
) -> None:
    async def taken_over(real: Any, *args: Any) -> Any:
        await real(*args)
        await world.runtime.sleep(15)  # a renewal that is told "not yours" comes meanwhile

    async def not_yours(real: Any, entries: Any) -> Any:
        return [Renewal.NOT_YOURS for _ in entries]

    await plant_dead_change(world, finalised=False)
    await stale(world)
    backend = world.rows if lost_during == "settle" else world.blobs
    backend.hooks[lost_during] = taken_over
    world.log.hooks["renew"] = not_yours
    report = await world.recovery().run_once()
    assert (report.lost, report.recovered) == (1, 0)
    assert lost_during in world.calls and not set(none_of) & set(world.calls)


async def test_loop_backs_off_while_the_log_is_down_and_goes_on_when_it_is_back(world: TappedWorld) -> None:
    await plant_dead_change(world)
    world.log.hooks["stale"] = fails(UnavailableError("down"))
    async with running(world):
        await world.runtime.sleep(3600)
        assert world.calls.count("stale") < 150
        world.log.hooks.clear()
        await world.runtime.sleep(120)
        assert await world.is_clean()
