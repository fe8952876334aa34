"""What says nothing of GCS, or says that it is there, never makes a store take GCS for away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest

from changelog.base.errors import TieredError, UnavailableError
from changelog.base.observe import SILENT
from changelog.base.runtime import SystemRuntime
from emulators.gcs.server import FaultMode, GcsEmulator, GcsFault
from emulators.gcs.store import Bucket
from tests.given.loop_clock import LoopClock
from tests.given.waiting import becomes
from tests.tiered.gcs.test_something_between import DEADLINE_NS, IDLE, NAME
from tiered.errors import AtCapacityError
from tiered.gcs.blobs import GcsBlobs
from tiered.metadata import NS_PER_S, Metadata
from tiered.services.backends import ByteRange
from tiered.services.breaker import LONG_TERM, Breaker
from tiered.testing.contracts.whole_blobs import store

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

MIB = 1024 * 1024
RUNTIME = SystemRuntime()


class MovedByTheTest(SystemRuntime):
    """Its clock stands still, but where a test moves it."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock() -> MovedByTheTest:
    return MovedByTheTest()


@pytest.fixture
def breaker(clock: MovedByTheTest) -> Breaker:
    return Breaker(LONG_TERM, 10.0, clock, "store", SILENT)


@pytest.fixture
async def blobs(server: GcsEmulator) -> AsyncIterator[GcsBlobs]:
    async with GcsBlobs.connect("blobs", RUNTIME, endpoint=server.url, upload_budget_s=0, connections_max=2, answer_timeout_s=5) as blobs:
        yield blobs


async def give_up(
    breaker: Breaker, clock: MovedByTheTest, call: Callable[[], Any], arrived: Callable[[], Any] = anyio.wait_all_tasks_blocked
) -> None:
    """A caller who leaves after 20 s by the breaker's clock. `arrived` returns once the call waits."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(breaker.note, call)
        await arrived()
        clock.now += 20
        tasks.cancel_scope.cancel()


CALLS: dict[str, Callable[[GcsBlobs], Any]] = {
    "object.get": lambda blobs: blobs.head(NAME),
    "object.delete": lambda blobs: blobs.delete_generation(NAME, "1"),
    "object.patch": lambda blobs: blobs.touch(NAME, DEADLINE_NS + NS_PER_S),
    "object.list": lambda blobs: blobs.list("", None, 1),
}


@pytest.mark.parametrize("kind", list(CALLS))
async def test_callers_who_leave_while_they_wait_for_our_own_connections_tell_nothing_of_the_service(
    blobs: GcsBlobs, breaker: Breaker, clock: MovedByTheTest, kind: str
) -> None:
    await store(blobs, NAME, bytes(8 * MIB), IDLE)
    readers = [await blobs.open(NAME) for _ in range(2)]
    for _ in range(4):
        await give_up(breaker, clock, lambda: CALLS[kind](blobs))
    upload = await blobs.open_upload(f"{NAME}-2", Metadata(), 1)
    await upload.write(b"x")
    await give_up(breaker, clock, upload.finalise)
    assert breaker.away_s is None and not breaker._failures
    for reader in readers:
        assert reader is not None
        await reader.aclose()


async def test_callers_who_leave_while_the_service_is_silent_still_count(
    blobs: GcsBlobs, server: GcsEmulator, breaker: Breaker, clock: MovedByTheTest
) -> None:
    server.faults.append(GcsFault(FaultMode.STALL_BEFORE, times=None))

    async def is_called() -> bool:
        return bool(server.calls)

    for number in range(3):
        assert breaker.away_s is None, f"{number} are too few"
        server.calls.clear()
        await give_up(breaker, clock, lambda: blobs.head(NAME), partial(becomes, is_called))
    assert breaker.away_s == 60


async def test_what_was_waited_for_a_connection_is_not_the_silence_of_the_service(
    blobs: GcsBlobs, server: GcsEmulator, breaker: Breaker, clock: MovedByTheTest
) -> None:
    await store(blobs, NAME, bytes(8 * MIB))
    async with GcsBlobs.connect("blobs", RUNTIME, endpoint=server.url, upload_budget_s=0, connections_max=1, answer_timeout_s=5) as blobs:
        server.faults.append(GcsFault(FaultMode.DROP_BEFORE, "object.list", times=None))

        async def ask() -> None:
            with pytest.raises(UnavailableError, match="broke off"):
                await breaker.note(lambda: blobs.list("", None, 1))

        media = await blobs._http.open_media(blobs._http.object_url(NAME, alt="media"), {}, "reading", (200,))
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            clock.now += 40
            media.close()
        assert breaker._failures == 4 and breaker.away_s is None, "they all failed, after a moment of silence"


async def test_an_answer_has_its_whole_time_after_the_wait_for_a_connection(blobs: GcsBlobs, server: GcsEmulator) -> None:
    await store(blobs, NAME, bytes(8 * MIB))
    loop = LoopClock()

    class Slow(SystemRuntime):
        async def sleep(self, seconds: float) -> None:
            loop.ahead_s += 40
            await anyio.sleep(0.01)  # a limit that was reached ends the wait meanwhile

    server._runtime = Slow()
    async with GcsBlobs.connect("blobs", RUNTIME, endpoint=server.url, upload_budget_s=0, connections_max=1, answer_timeout_s=60) as blobs:
        server.faults.append(GcsFault(FaultMode.DELAY, "object.get"))
        media = await blobs._http.open_media(blobs._http.object_url(NAME, alt="media"), {}, "reading", (200,))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(blobs.head, NAME)
            await loop.pass_by(40)
            media.close()
    assert loop.ahead_s == 80


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 412, 416, 429])
@pytest.mark.parametrize("kind", list(CALLS))
async def test_a_service_that_refuses_everything_has_answered(
    blobs: GcsBlobs, server: GcsEmulator, breaker: Breaker, clock: MovedByTheTest, kind: str, status: int
) -> None:
    await store(blobs, NAME, b"x", IDLE)
    server.faults.append(GcsFault(FaultMode.STATUS, kind, status=status, times=None))
    for _ in range(4):
        with suppress(TieredError):
            await breaker.note(lambda: CALLS[kind](blobs))
        clock.now += 10
    assert breaker.away_s is None and not breaker._failures


@pytest.mark.parametrize("status", [500, 503])
async def test_a_service_that_fails_is_still_away(
    blobs: GcsBlobs, server: GcsEmulator, breaker: Breaker, clock: MovedByTheTest, status: int
) -> None:
    server.faults.append(GcsFault(FaultMode.STATUS, status=status, times=None))
    for _ in range(4):
        with pytest.raises(UnavailableError):
            await breaker.note(lambda: blobs.head(NAME))
        clock.now += 10
    assert breaker.away_s is not None


async def test_what_is_in_between_and_knows_no_range_is_named_and_is_no_silence(
    blobs: GcsBlobs, breaker: Breaker, clock: MovedByTheTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store(blobs, NAME, b"0123456789")
    monkeypatch.setattr("emulators.gcs.media._span", lambda header, size: None)
    for _ in range(4):
        with pytest.raises(UnavailableError, match=r"bytes 2 to 5 were asked.* others came \(200 \); something in between.*no Range"):
            await breaker.note(lambda: blobs.open(NAME, ByteRange(2, 5)))
        clock.now += 10
    assert breaker.away_s is None and not breaker._failures


async def test_a_reader_that_takes_its_time_is_no_silence(blobs: GcsBlobs, breaker: Breaker, clock: MovedByTheTest) -> None:
    await store(blobs, NAME, bytes(8 * MIB))
    reader = await breaker.note(lambda: blobs.open(NAME))
    assert reader is not None
    count = 0
    async for chunk in reader.chunks():
        count += len(chunk)
        clock.now += 20 if count < MIB else 0
    assert count == 8 * MIB and breaker.away_s is None and not breaker._failures
    await reader.aclose()


async def test_a_full_pool_is_no_failure_either(blobs: GcsBlobs, server: GcsEmulator, breaker: Breaker) -> None:
    await store(blobs, NAME, bytes(8 * MIB))
    async with GcsBlobs.connect("blobs", RUNTIME, endpoint=server.url, upload_budget_s=0, connections_max=1, answer_timeout_s=0.5) as blobs:
        media = await blobs._http.open_media(blobs._http.object_url(NAME, alt="media"), {}, "reading", (200,))
        for _ in range(4):
            with pytest.raises(AtCapacityError):
                await breaker.note(lambda: blobs.head(NAME))
        media.close()
        assert breaker.away_s is None and not breaker._failures


async def test_a_session_that_lacks_bytes_is_an_answer(blobs: GcsBlobs, server: GcsEmulator, breaker: Breaker) -> None:
    upload = await blobs.open_upload(NAME, Metadata(), None)
    lacks = GcsFault(FaultMode.STATUS, "upload.*", status=308, text="", times=None)
    server.faults += [GcsFault(FaultMode.STATUS, "object.get", status=503), lacks]
    with pytest.raises(UnavailableError, match="503"):
        await breaker.note(lambda: blobs.head(NAME))
    assert breaker._failures
    await upload.write(b"x")
    with pytest.raises(UnavailableError, match="bytes are missing"):
        await breaker.note(upload.finalise)
    assert not breaker._failures


async def test_a_blob_that_is_taken_or_damaged_on_its_way_is_an_answer(
    blobs: GcsBlobs, breaker: Breaker, clock: MovedByTheTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store(blobs, NAME, b"x")
    damage = Bucket.insert
    for again in range(4):
        upload = await blobs.open_upload(NAME if again % 2 else f"{NAME}-{again}", Metadata(), 1)
        await upload.write(b"x")
        monkeypatch.setattr(Bucket, "insert", lambda self, name, payload, *rest: damage(self, name, b"y", *rest))
        with pytest.raises(UnavailableError, match=r"exists already|damaged on its way"):
            await breaker.note(upload.finalise)
        clock.now += 10
    assert breaker.away_s is None and not breaker._failures
