"""What recovery logs as it happens: its decisions, and outages of services, once each, with their length."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import recovery.loop
from changelog.base.errors import ConfigurationError, UnavailableError, UnconfirmedError
from changelog.base.observe import Observer
from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId, Entry
from recovery.loop import RecoveryLoop
from recovery.outages import Outages
from tests.given.tapped_store import LARGE, OBJECT, TappedWorld
from tiered.metadata import Metadata
from tiered.object_id import blob_name
from tiered.services.backends import Tiers
from tiered.services.concurrent import run_both

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_time"), pytest.mark.slow]

SECRET = "upload-session-that-nobody-may-see"


@pytest.fixture
async def world(anyio_backend: Any) -> TappedWorld:
    return TappedWorld(shards=1)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "tiered")
    return caplog


def events(log: pytest.LogCaptureFixture, *names: str) -> list[dict[str, Any]]:
    """The fields of these events, in order, with the event and why."""
    return [
        {"event": record.event, "why": record.why, "level": record.levelname, **record.fields}
        for each in log.records if (record := vars_of(each)).event in names
    ]


def vars_of(record: logging.LogRecord) -> Any:
    return record


async def plant(world: TappedWorld, *, session: str | None = "session") -> Change:
    token = ChangeId.new(world.runtime)
    name = blob_name(OBJECT.path, token)
    upload = await world.blobs.target.open_upload(name, Metadata(), None)
    await upload.write(LARGE)
    await upload.finalise()
    change = Change(token, OBJECT.path, name, None, upload.session if session == "session" else session)
    await world.log.target.record(change, "dead")
    return change


async def stale(world: TappedWorld) -> None:
    await world.runtime.sleep(31)


@asynccontextmanager
async def running(world: TappedWorld, **values: Any) -> AsyncIterator[RecoveryLoop]:
    recovery = world.recovery(recovery=values)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recovery.run)
        yield recovery
        recovery.stop()


def fails(error: Exception) -> Any:
    async def fail(real: Any, *args: Any, **named: Any) -> Any:
        raise error

    return fail


async def hangs(*_: Any, **__: Any) -> Any:
    await anyio.sleep_forever()


# --- decisions -------------------------------------------------------------------------------------


async def test_each_decision_is_one_line_with_the_change_the_verdict_and_its_duration(
    world: TappedWorld, log: pytest.LogCaptureFixture
) -> None:
    async def slow(real: Any, *args: Any) -> Any:
        await world.runtime.sleep(2)
        return await real(*args)

    cleaned = await plant(world)
    plain = Change(ChangeId.new(world.runtime), OBJECT.path)
    await world.log.target.record(plain, "dead")
    waiting = await plant(world, session=None)
    await stale(world)
    world.blobs.hooks["delete"] = slow
    await world.recovery().run_once()
    told = {each["id"]: each for each in events(log, "recovered")}
    assert {id: each["verdict"] for id, each in told.items()} == {cleaned.id: "cleaned", plain.id: "forgotten", waiting.id: "deferred"}
    assert told[cleaned.id] == {
        "event": "recovered", "level": "INFO", "id": cleaned.id, "object": OBJECT.path, "key": None, "attempt": 1,
        "duration_s": pytest.approx(2, abs=0.5), "verdict": "cleaned", "owner_was": "dead",
        "why": "done: its garbage is deleted, and the entry is removed",
    }
    [done] = events(log, "pass_done")
    assert (done["kind"], done["seen"], done["recovered"], done["deferred"], done["level"]) == ("full", 3, 2, 1, "INFO")
    assert done["duration_s"] >= 2


async def test_a_lost_claim_and_a_parked_entry_are_decisions_too(world: TappedWorld, log: pytest.LogCaptureFixture) -> None:
    async def lost(real: Any, entry: Entry, owner: str) -> None:
        return None

    change = await plant(world)
    foreign = Change(ChangeId.new(world.runtime), OBJECT.path, "another/objects/blob", None, None)
    await stale(world)
    world.log.hooks["claim"] = lost
    await world.recovery().run_once()
    [one] = events(log, "entry_lost")
    assert (one["id"], one["verdict"], one["attempt"]) == (change.id, "lost", 0)
    world.log.hooks.clear()
    await world.recovery().run_once()
    await world.log.target.record(foreign, "dead")
    await stale(world)
    await world.recovery().run_once()
    [parked] = events(log, "entry_parked")
    assert (parked["id"], parked["verdict"], parked["level"]) == (foreign.id, "parked", "ERROR")
    assert "which is no revision of it" in parked["why"]


async def test_an_idle_pass_is_no_line_at_info(world: TappedWorld, log: pytest.LogCaptureFixture) -> None:
    async with running(world):
        await world.runtime.sleep(3600)
    passes = events(log, "pass_done")
    assert len(passes) > 500 and {each["level"] for each in passes} == {"DEBUG"}


async def test_no_line_has_an_upload_session(world: TappedWorld, log: pytest.LogCaptureFixture) -> None:
    await plant(world, session=SECRET)
    await stale(world)
    for error in (UnavailableError("down"), RuntimeError("bug"), ConfigurationError("forbidden")):
        world.blobs.hooks["cancel"] = fails(error)
        await world.recovery().run_once()
        await stale(world)
    assert len(events(log, "recovery_failed")) == 3
    assert SECRET not in log.text and not any(SECRET in str(vars(record)) for record in log.records)


# --- outages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["announce", "stale"])
@pytest.mark.parametrize(("answer", "why"), [
    (fails(UnavailableError("down")), "down"), (hangs, "the changelog did not answer within 60 s"),
    (fails(ConfigurationError("403: grant roles/bigtable.user")), "403: grant roles/bigtable.user"),
])  # fmt: skip
async def test_a_log_that_stops_answering_is_told_once_and_so_is_its_return(
    world: TappedWorld, log: pytest.LogCaptureFixture, call: str, answer: Any, why: str
) -> None:
    async with running(world) as recovery:
        await world.runtime.sleep(100)
        world.log.hooks[call] = answer
        await world.runtime.sleep(3600)
        assert set(recovery.outages.present) == {"changelog"}
        world.log.hooks.clear()
        await world.runtime.sleep(1000)  # longer than until the next full pass
        assert recovery.outages.present == {}
    out, back = events(log, "service_unreachable", "service_healthy_again")
    assert (out["event"], out["service"], out["why"], out["level"]) == ("service_unreachable", "changelog", why, "WARNING")
    assert (back["event"], back["service"], back["level"]) == ("service_healthy_again", "changelog", "INFO")
    assert back["outage_s"] == pytest.approx(3600, abs=120)


async def test_claims_that_fail_while_the_log_is_read_are_an_outage_of_the_log(world: TappedWorld, log: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        await plant(world)
    await stale(world)
    world.log.hooks["claim"] = fails(UnconfirmedError("no answer within 10 s"))
    async with running(world):
        await world.runtime.sleep(1000)
        world.log.hooks.clear()
        await world.runtime.sleep(1000)  # longer than until the next full pass
    told = events(log, "service_unreachable", "service_healthy_again")
    assert [(each["event"], each["service"]) for each in told] == [
        ("service_unreachable", "changelog"), ("service_healthy_again", "changelog"),
    ]
    assert await world.is_clean()


async def test_a_log_that_works_again_is_told_with_the_first_entry_and_not_with_the_end_of_a_long_pass(world: TappedWorld) -> None:
    for _ in range(200):
        await plant(world)
    await stale(world)
    world.log.hooks["announce"] = fails(UnavailableError("the disk is full"))
    async with running(world, rate_per_s=1) as recovery:
        await world.runtime.sleep(100)
        assert set(recovery.outages.present) == {"changelog"}
        world.log.hooks.clear()
        await world.runtime.sleep(100)
        assert recovery.passes == 0 and recovery.total.recovered == recovery.counts.finished > 10, "the pass is not over"
        assert recovery.outages.present == {}


@pytest.mark.parametrize(("tier", "call", "service", "answer", "why"), [
    ("rows", "settle", "high_volume", fails(UnavailableError("down")), "down"),
    ("rows", "settle", "high_volume", fails(ConfigurationError("403")), "403"),
    ("blobs", "delete", "long_term", fails(UnconfirmedError("no answer")), "no answer"),
    ("blobs", "delete", "long_term", hangs, "no answer within 60 s"),
])  # fmt: skip
async def test_a_tier_that_is_out_is_named_and_nothing_is_parked(
    world: TappedWorld, log: pytest.LogCaptureFixture, tier: str, call: str, service: str, answer: Any, why: str
) -> None:
    for _ in range(5):
        await plant(world)
    await stale(world)
    getattr(world, tier).hooks[call] = answer
    async with running(world) as recovery:
        await world.runtime.sleep(1800)  # several times as long as five attempts take, after which an entry would be parked
        getattr(world, tier).hooks.clear()
        await world.runtime.sleep(1000)  # longer than until the next full pass
        assert recovery.total.parked == 0 and await world.is_clean()
    out, back = events(log, "service_unreachable", "service_healthy_again")
    assert (out["event"], out["service"], out["why"]) == ("service_unreachable", service, why)
    assert (back["event"], back["service"]) == ("service_healthy_again", service)
    assert back["outage_s"] == pytest.approx(1800, abs=200)


@pytest.mark.parametrize(("fails_at", "other"), [("long_term", "high_volume"), ("high_volume", "long_term")])
@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("first", ["fails", "answers"])
async def test_a_tier_that_fails_is_blamed_and_not_the_one_that_was_asked_last(
    world: TappedWorld, monkeypatch: pytest.MonkeyPatch, fails_at: str, other: str, hangs: bool, first: str
) -> None:
    """Two clean-ups at once, each of which asks both tiers at once: one fails slowly, the other one answers at once."""
    async def finish_at_once(tiers: Tiers, *_: Any) -> Any:
        async def fail() -> None:
            await (tiers.long_term.delete("blob") if fails_at == "long_term" else tiers.high_volume.read("row"))

        async def answer() -> None:
            await world.runtime.sleep(1)
            await (tiers.long_term.head("blob") if other == "long_term" else tiers.high_volume.scan("", b"", 1))

        await (run_both(fail, answer) if first == "fails" else run_both(answer, fail))

    async def slow(real: Any, *args: Any, **named: Any) -> Any:
        await world.runtime.sleep(1e6 if hangs else 2)
        raise UnavailableError("down")

    for _ in range(2):
        await plant(world)
    await stale(world)
    world.blobs.hooks["delete"] = world.rows.hooks["read"] = slow
    monkeypatch.setattr(recovery.loop, "finish", finish_at_once)
    async with running(world) as loop:
        await world.runtime.sleep(300)
        assert set(loop.outages.present) == {fails_at}


async def test_a_return_is_noticed_without_anything_left_to_clean_up(world: TappedWorld, log: pytest.LogCaptureFixture) -> None:
    """Another instance has cleaned up meanwhile. The tier is asked for something small."""
    await plant(world)
    await stale(world)
    world.blobs.hooks["delete"] = world.blobs.hooks["list"] = fails(UnavailableError("down"))
    async with running(world):
        await world.runtime.sleep(300)
        for entry in await world.entries():
            await world.log.target.forget(entry)
        await world.runtime.sleep(300)
        assert events(log, "service_healthy_again") == [], "its small question fails, too"
        world.blobs.hooks.clear()
        await world.runtime.sleep(120)
        assert len(events(log, "service_healthy_again")) == 1


async def test_a_permission_that_is_missing_is_not_given_back_by_a_read(world: TappedWorld, log: pytest.LogCaptureFixture) -> None:
    await plant(world)
    await stale(world)
    world.blobs.hooks["delete"] = fails(ConfigurationError("403: grant storage.objects.delete"))
    async with running(world):
        await world.runtime.sleep(300)
        for entry in await world.entries():
            await world.log.target.forget(entry)
        await world.runtime.sleep(3600)
    assert len(events(log, "service_unreachable")) == 1 and events(log, "service_healthy_again") == []


async def test_one_bad_entry_is_no_outage_and_is_parked_with_its_error(world: TappedWorld, log: pytest.LogCaptureFixture) -> None:
    """A daemon that may not delete one blob: that entry is at fault as long as others are cleaned up."""
    bad = await plant(world)

    async def delete(real: Any, name: str) -> Any:
        if name == bad.new:
            raise ConfigurationError("403: this object is under a hold")
        return await real(name)

    await stale(world)
    world.blobs.hooks["delete"] = delete
    async with running(world) as recovery:
        after = 0
        for _ in range(100):
            for _ in range(5):
                await plant(world)
            await world.runtime.sleep(60)
            if (after := after + recovery.total.parked) == 5:  # no other one was parked meanwhile
                break
        assert recovery.total.parked == 1
    [parked] = events(log, "entry_parked")
    assert parked["id"] == bad.id and "under a hold" in parked["why"]


async def test_two_loops_with_one_name_recover_everything_and_park_nothing(world: TappedWorld, log: pytest.LogCaptureFixture) -> None:
    changes = [await plant(world) for _ in range(60)]
    await stale(world)
    loops = [world.recovery(instance="same", recovery={"rate_per_s": 1e6}) for _ in range(2)]
    assert {loop.instance for loop in loops} == {"same"}
    async with anyio.create_task_group() as tasks:
        for loop in loops:
            tasks.start_soon(loop.run)
        await world.runtime.sleep(1000)  # longer than until the next full pass
        for loop in loops:
            loop.stop()
    assert sum(loop.total.recovered for loop in loops) == len(changes)
    assert sum(loop.total.parked for loop in loops) == 0 and await world.is_clean()


@pytest.mark.parametrize("jump_s", [-86_400.0, 1800.0])
async def test_a_clock_that_jumps_makes_no_duration_negative_and_loses_nothing(
    world: TappedWorld, log: pytest.LogCaptureFixture, jump_s: float
) -> None:
    """The wall clock of the machine is the server's clock of an embedded store."""
    await plant(world)
    async with running(world) as recovery:
        await world.runtime.sleep(20)
        world.runtime.skew_s += jump_s
        await plant(world)
        await world.runtime.sleep(3600)  # twice the smaller jump
        assert recovery.total.recovered == 2 and recovery.total.parked == 0
        assert await world.is_clean()
    assert min(each["duration_s"] for each in events(log, "recovered", "pass_done")) >= 0


class Away(Observer):
    def __init__(self) -> None:
        self.now: Counter[str] = Counter()

    def away(self, service: str, stores: int) -> None:
        self.now[service] += stores


def test_the_gauge_of_a_daemon_stayed_0_through_a_whole_outage() -> None:
    """It is 1, by whichever way it is known, and 0 again once all of them say so. A refusal is an answer."""
    observer = Away()
    outages = Outages(SystemRuntime(), "me", observer)
    outages.hear("changelog", answers=False)
    outages.suspect("changelog", UnavailableError("no route"))
    assert observer.now["changelog"] == 1
    outages.confirm()
    outages.hear("changelog", answers=True)
    assert observer.now["changelog"] == 1
    outages.answered("changelog")
    assert observer.now["changelog"] == 0
    outages.suspect("long_term", UnavailableError("the credentials have expired").refusing())
    outages.confirm()
    assert observer.now["long_term"] == 0 and outages.present["long_term"].is_refusal and outages.to_probe() == []
    outages.suspect("long_term", UnavailableError("no route"))
    assert observer.now["long_term"] == 1
    outages.hear("high_volume", answers=False)
    outages.close()
    assert set(observer.now.values()) == {0}
