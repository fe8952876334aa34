"""What put and delete do, call by call, and what their callers are told."""

from __future__ import annotations

import io
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from changelog.base.errors import ConfigurationError, CorruptRecordError, UnconfirmedError
from changelog.change import Change, ChangeId
from emulators.world.runtime import elapse
from emulators.world.services import SimulatedBlobs
from tests.given.tapped_store import (
    LARGE,
    OBJECT,
    RARE_BEATS,
    SMALL,
    Tapped,
    TappedWorld,
    Withheld,
    answer_lost,
    fails,
    never_arrives,
    pieces,
    read,
)
from tiered import (
    InvalidRequestError,
    LeaseLostError,
    Metadata,
    Outcome,
    OutcomeUnknownError,
    Tier,
    TieredStorage,
    TimeToLive,
    UnavailableError,
)
from tiered.object_id import blob_name
from tiered.protocol.under_way import WriteInProgress
from tiered.services.backends import MARK_AGE_MAX_S, Tombstone

pytestmark = pytest.mark.anyio


async def test_small_put_is_one_row_operation(world: TappedWorld) -> None:
    async with world.store() as storage:
        result = await storage.put(OBJECT, SMALL)
        assert world.calls == ["put_inline"]
        assert (result.tier, result.size) == (Tier.HIGH_VOLUME, len(SMALL))
        assert await read(storage) == SMALL


async def test_small_delete_is_one_row_operation(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, SMALL)
        world.calls.clear()
        await storage.delete(OBJECT)
        assert world.calls == ["delete_inline"]
        assert await read(storage) is None


async def test_large_put_reads_records_uploads_swaps_and_forgets_and_nothing_more(world: TappedWorld) -> None:
    async with world.store() as storage:
        result = await storage.put(OBJECT, LARGE)
    once = ["now_ms", "write_values", "read_note", "erase_values"]  # in five minutes: that the feed is off, and its end
    assert sorted(world.calls) == sorted(["forget", "open_upload", "read", "record", "swap", *once])
    assert (result.tier, result.size) == (Tier.LONG_TERM, len(LARGE))
    assert await world.is_clean()


async def test_put_at_the_inline_limit_is_small_and_one_byte_more_is_large(world: TappedWorld) -> None:
    async with world.store(inline_bytes_max=10) as storage:
        assert (await storage.put(OBJECT, b"x" * 10)).tier is Tier.HIGH_VOLUME
        assert (await storage.put(OBJECT, b"x" * 11)).tier is Tier.LONG_TERM


async def test_empty_payload_is_an_object_of_no_bytes(world: TappedWorld) -> None:
    async with world.store() as storage:
        assert (await storage.put(OBJECT, b"")).size == 0
        assert await read(storage) == b""


AT_ITS_END = rf"^the payload ((?!cannot be read).)+ is at its end, at byte {len(LARGE)}: call seek\(0\) or open it again, or pass b''"


def in_memory(path: Path) -> BinaryIO:
    return io.BytesIO(path.read_bytes())


@pytest.mark.parametrize("opened", [in_memory, partial(Path.open, mode="rb")])
@pytest.mark.parametrize("content", [b"", LARGE])
async def test_a_file_that_was_read_before_is_refused_instead_of_stored_as_nothing(
    world: TappedWorld, tmp_path: Path, opened: Callable[[Path], BinaryIO], content: bytes
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    async with world.store() as storage:
        with opened(path) as file:
            assert file.read() == content
            if content:
                with pytest.raises(InvalidRequestError, match=AT_ITS_END):
                    await storage.put(OBJECT, file)
                assert await read(storage) is None
                file.seek(0)
            assert (await storage.put(OBJECT, file)).size == len(content)


@pytest.mark.parametrize("after", [SMALL, LARGE + b"2", None])
async def test_the_old_blob_is_settled_and_deleted_before_its_entry_is_forgotten(world: TappedWorld, after: bytes | None) -> None:
    """Nothing but the entry remembers the old blob, so who dies in between must leave the entry (I2, I3)."""
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)
    world.calls.clear()
    async with world.store() as storage:
        await (storage.delete(OBJECT) if after is None else storage.put(OBJECT, after))
    assert [call for call in world.calls if call in ("swap", "settle", "delete", "forget")] == ["swap", "settle", "delete", "forget"]


@pytest.mark.parametrize("after", [SMALL, LARGE + b"2", None])
async def test_replaced_blob_is_deleted_and_its_entry_forgotten(world: TappedWorld, after: bytes | None) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)
        await (storage.delete(OBJECT) if after is None else storage.put(OBJECT, after))
        assert await read(storage) == after
    assert await world.is_clean()
    assert len(await world.blob_names()) == (after is not None and len(after) > 100)


async def test_payload_of_unknown_length_is_streamed(world: TappedWorld) -> None:
    async def payload() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b"0123456789"

    async with world.store() as storage:
        assert (await storage.put(OBJECT, payload())).size == 500
        assert await read(storage) == b"0123456789" * 50


@pytest.mark.parametrize("bytes_before", [0, 50, 5000])
async def test_payload_that_raises_half_way_stores_nothing_and_its_error_comes_out_plain(world: TappedWorld, bytes_before: int) -> None:
    class OwnPutError(Exception):
        pass

    async def payload() -> AsyncIterator[bytes]:
        for _ in range(bytes_before // 10):
            yield b"0123456789"
        raise OwnPutError

    async with world.store() as storage:
        await storage.put(OBJECT, SMALL)
        with pytest.raises(OwnPutError):
            await storage.put(OBJECT, payload())
        assert await read(storage) == SMALL
    assert await world.is_clean()


@pytest.mark.parametrize("payload", [SMALL, LARGE])
async def test_payload_of_another_length_than_declared_is_refused(world: TappedWorld, payload: bytes) -> None:
    async with world.store() as storage:
        with pytest.raises(InvalidRequestError, match="7"):
            await storage.put(OBJECT, payload, Metadata(size=7))
        assert await read(storage) is None
    assert await world.is_clean()


@pytest.mark.parametrize("call", [
    lambda storage: storage.put("a/objects/k", SMALL), lambda storage: storage.get("a/objects/k"), lambda storage: storage.head(None),
    lambda storage: storage.delete(5), lambda storage: storage.put(OBJECT, SMALL, {"size": 5}), lambda storage: storage.get(OBJECT, (0, 1)),
    lambda storage: storage.put(OBJECT, SMALL, Metadata(expiration=timedelta(1))),  # type: ignore[arg-type]
    lambda storage: storage.put(OBJECT, SMALL, Metadata(custom={"k": "v" * 9000})), lambda storage: anext(storage.list(5)),
])
async def test_call_that_is_wrong_is_told_so_and_sends_nothing(world: TappedWorld, call: Callable[[Any], Awaitable[Any]]) -> None:
    async with world.store() as storage:
        with pytest.raises(InvalidRequestError):
            await call(storage)
    assert world.calls == []


async def test_lifetime_beyond_the_calendar_is_refused(world: TappedWorld) -> None:
    async with world.store() as storage:
        with pytest.raises(InvalidRequestError, match="9999"):
            await storage.put(OBJECT, SMALL, Metadata(expiration=TimeToLive(ns=10**21)))


# --- lost answers, lost races ----------------------------------------------------------------------


async def test_swap_whose_answer_is_lost_is_told_ok(world: TappedWorld) -> None:
    world.rows.hooks["swap"] = answer_lost
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)
        assert await read(storage) == LARGE
    assert await world.is_clean()


async def test_swap_that_never_arrives_is_refused_and_told_unavailable(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)
        world.rows.hooks["swap"] = withheld = Withheld()
        with pytest.raises(UnavailableError, match="what became of the request was not told, and it takes no effect any more; try again"):
            await storage.put(OBJECT, LARGE + b"2")
        assert not any(await withheld.arrive()), "a swap that lands after its caller was answered has no effect"
        assert await read(storage) == LARGE
    assert await world.is_clean()


async def test_swap_that_lands_between_the_two_questions_what_became_of_it_is_not_denied(world: TappedWorld) -> None:
    """It is refused first, and then the row is read.

    The other way round it could win and be replaced in between, unseen.
    """
    sent: list[Any] = []
    won: list[bool] = []

    async def keep(real: Any, *args: Any) -> Any:
        sent[:] = [(real, args)]
        raise UnconfirmedError("lost")

    async def lands_after(real: Any, *args: Any, **named: Any) -> Any:
        answer = await real(*args, **named)
        if sent and not won:
            swap, (path, token, expected, state, deadline_s, *_) = sent[0]
            won.append(await swap(path, token, expected, state, deadline_s))
            if won[0]:
                assert await swap(path, ChangeId("018bcfe5-6800-7000-8000-000000000001"), state.target, None, deadline_s)
        return answer

    world.rows.hooks.update(swap=keep, settle=lands_after, read=lands_after)
    async with world.store() as storage:
        with pytest.raises(UnavailableError):
            await storage.put(OBJECT, LARGE)
    assert won == [False], "told to have had no effect, it had none"


async def test_put_superseded_by_another_is_told_ok_and_leaves_no_blob(world: TappedWorld) -> None:
    other = OBJECT.path + "/018bcfe5-6800-7000-8000-000000000001"

    async def overtake(real: Any, path: str, token: Any, expected: Any, state: Any, deadline_s: float, *more: Any) -> Any:
        world.rows.hooks.clear()
        upload = await world.blobs.target.open_upload(other, Metadata(), None)
        await upload.write(b"other")
        await upload.finalise()
        assert await world.rows.target.swap(path, ChangeId(other[-36:]), expected, Tombstone(other), deadline_s)
        return await real(path, token, expected, state, deadline_s, *more)

    world.rows.hooks["swap"] = overtake
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)
        assert await read(storage) == b"other"
    assert await world.is_clean()


async def test_change_refused_by_recovery_is_told_unavailable(world: TappedWorld) -> None:
    async def refused(real: Any, path: str, token: Any, *args: Any) -> Any:
        await world.rows.target.settle(path, token)
        return await real(path, token, *args)

    world.rows.hooks["swap"] = refused
    async with world.store() as storage:
        with pytest.raises(UnavailableError, match="its row was changed meanwhile, by another writer or by recovery; try again"):
            await storage.put(OBJECT, LARGE)
        assert await read(storage) is None
    assert await world.is_clean()


@pytest.mark.parametrize("call", ["read", "open_upload", "record"])
async def test_preparation_that_is_never_answered_is_told_unavailable_and_cleaned_up(world: TappedWorld, call: str) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, SMALL)
        for backend in (world.rows, world.blobs, world.log):
            backend.hooks[call] = answer_lost
        with pytest.raises(UnavailableError):
            await storage.put(OBJECT, LARGE)
        for backend in (world.rows, world.blobs, world.log):
            backend.hooks.clear()
        await world.runtime.sleep(60)
        assert await read(storage) == SMALL
    await world.recovery().run_once()
    assert await world.is_clean()


async def test_finalise_whose_answer_is_lost_is_told_unavailable_and_its_blob_removed(world: TappedWorld) -> None:
    world.hook_finalise(answer_lost)
    async with world.store() as storage:
        with pytest.raises(UnavailableError):
            await storage.put(OBJECT, LARGE)
    assert await world.is_clean()
    assert "swap" not in world.calls


@pytest.mark.parametrize(
    ("answer", "waits"),
    [(UnconfirmedError("no answer"), True), (ConfigurationError("forbidden"), False), (InvalidRequestError("too large"), False)],
)
async def test_an_upload_that_was_refused_cannot_arrive_late(world: TappedWorld, answer: Exception, waits: bool) -> None:
    """docs/decisions/protocol.md, 14: an entry waits for a single request only if nobody told what became of it."""
    world.blobs = Tapped(SimulatedBlobs(world.runtime, sessions=False), world.calls)
    world.hook_finalise(fails(answer))
    async with world.store() as storage:
        with pytest.raises(UnavailableError if waits else type(answer)):
            await storage.put(OBJECT, LARGE)
    assert bool(await world.entries()) is waits


# --- unknown outcomes ------------------------------------------------------------------------------


@pytest.mark.parametrize("arrives", [True, False])
async def test_change_that_cannot_be_settled_in_time_is_unknown_until_recovery_tells(world: TappedWorld, arrives: bool) -> None:
    world.rows.hooks["swap"] = answer_lost if arrives else never_arrives
    world.rows.hooks["settle"] = fails(UnavailableError("down"))
    async with world.store() as storage:
        with pytest.raises(OutcomeUnknownError) as caught:
            await storage.put(OBJECT, LARGE)
        assert caught.value.logged
        world.rows.hooks.clear()
        assert await storage.outcome(caught.value) is (Outcome.TOOK_EFFECT if arrives else Outcome.PENDING)
        await world.runtime.sleep(60)
        assert (await world.recovery().run_once()).recovered == 1
        assert await storage.outcome(caught.value) is (Outcome.TOOK_EFFECT if arrives else Outcome.NO_EFFECT)
        assert await read(storage) == (LARGE if arrives else None)
    assert await world.is_clean()


async def test_change_that_won_and_was_replaced_is_never_told_to_have_had_no_effect_when_its_won_mark_is_collected_first(
    world: TappedWorld,
) -> None:
    """Found by `make sim SEED=1842`: its refused mark is written later, by recovery, and so outlives the other."""
    world.rows.hooks["swap"] = answer_lost
    world.rows.hooks["settle"] = fails(UnavailableError("down"))
    async with world.store(lease=RARE_BEATS) as storage:
        with pytest.raises(OutcomeUnknownError) as caught:
            await storage.put(OBJECT, LARGE)
        world.rows.hooks.clear()
        await storage.put(OBJECT, LARGE)
        await world.runtime.sleep(60)
        assert (await world.recovery().run_once()).recovered == 1
        assert await storage.outcome(caught.value) is Outcome.TOOK_EFFECT
        await world.runtime.sleep(MARK_AGE_MAX_S - 30)
        await world.rows.collect(1000)
        row = await world.rows.read(OBJECT.path, marks=True)
        assert caught.value.change_id in row.refused - row.won
        assert await storage.outcome(caught.value) is Outcome.UNKNOWABLE


async def test_inline_put_whose_answer_is_lost_is_told_ok_when_the_row_shows_it(world: TappedWorld) -> None:
    world.rows.hooks["put_inline"] = answer_lost
    async with world.store() as storage:
        await storage.put(OBJECT, SMALL)
        assert world.calls == ["put_inline", "settle"], "sent once"
        assert await read(storage) == SMALL


async def test_inline_put_that_never_arrived_is_unknown_and_can_take_effect_no_more(world: TappedWorld) -> None:
    world.rows.hooks["put_inline"] = withheld = Withheld()
    async with world.store() as storage:
        with pytest.raises(OutcomeUnknownError) as caught:
            await storage.put(OBJECT, SMALL)
        assert caught.value.settled
        assert await withheld.arrive() == [False], "the late request is refused"
        assert await read(storage) is None
        assert await storage.outcome(caught.value) is Outcome.UNKNOWABLE


async def test_inline_put_is_repeated_only_when_it_certainly_never_left(world: TappedWorld) -> None:
    failures = [UnavailableError("never left"), UnavailableError("never left")]

    async def twice_down(real: Any, *args: Any) -> Any:
        if failures:
            raise failures.pop()
        return await real(*args)

    world.rows.hooks["put_inline"] = twice_down
    async with world.store() as storage:
        await storage.put(OBJECT, SMALL)
    assert world.calls == ["put_inline"] * 3


async def test_delete_whose_answer_is_lost_is_told_ok_when_the_row_is_empty(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, SMALL)
        world.rows.hooks["delete_inline"] = answer_lost
        await storage.delete(OBJECT)
        assert await read(storage) is None


REFUSALS = [
    UnavailableError("down"), ConfigurationError("the permission was taken away"), CorruptRecordError("the row breaks the format"),
]  # fmt: skip


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda error: type(error).__name__)
async def test_delete_whose_answer_is_lost_is_unknown_when_the_row_cannot_be_read(world: TappedWorld, refusal: Exception) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, SMALL)
        world.rows.hooks |= {"delete_inline": answer_lost, "read": fails(refusal)}
        with pytest.raises(OutcomeUnknownError):
            await storage.delete(OBJECT)


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda error: type(error).__name__)
async def test_inline_write_whose_answer_is_lost_is_unknown_when_it_cannot_be_settled(world: TappedWorld, refusal: Exception) -> None:
    """A refusal to settle proves nothing about the write that came before it (I4)."""
    async with world.store() as storage:
        for method, write in (("put_inline", lambda: storage.put(OBJECT, SMALL)), ("delete_inline", lambda: storage.delete(OBJECT))):
            world.rows.hooks |= {method: answer_lost, "settle": fails(refusal)}
            with pytest.raises(OutcomeUnknownError) as caught:
                await write()
            assert not caught.value.settled and caught.value.__cause__ is not None
            world.rows.hooks.clear()
            assert await read(storage) == (SMALL if method == "put_inline" else None), "it had taken effect"


async def test_swap_whose_answer_is_lost_in_a_corrupt_row_is_unknown(world: TappedWorld) -> None:
    async def lost_then_corrupt(real: Any, *args: Any) -> Any:
        world.rows.hooks["swap"] = fails(CorruptRecordError("the row breaks the format"))
        return await answer_lost(real, *args)

    world.rows.hooks |= {"swap": lost_then_corrupt, "settle": fails(CorruptRecordError("the row breaks the format"))}
    async with world.store() as storage:
        with pytest.raises(OutcomeUnknownError) as caught:
            await storage.put(OBJECT, LARGE)
        assert isinstance(caught.value.__cause__, CorruptRecordError)
        world.rows.hooks.clear()
        assert await storage.outcome(caught.value) is Outcome.TOOK_EFFECT


async def test_delete_that_never_arrived_is_unknown(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, SMALL)
        world.rows.hooks["delete_inline"] = never_arrives
        with pytest.raises(OutcomeUnknownError):
            await storage.delete(OBJECT)
        assert await read(storage) == SMALL


@pytest.mark.parametrize("asked", [
    None, "text", UnavailableError("down"), OutcomeUnknownError("key", ChangeId("018bcfe5-6800-7000-8000-000000000001")),  # type: ignore[arg-type]
    OutcomeUnknownError(OBJECT, "no id"), OutcomeUnknownError(OBJECT, None),  # type: ignore[arg-type]
])  # fmt: skip
async def test_outcome_of_what_is_no_unknown_outcome_is_refused_and_leaves_no_mark(world: TappedWorld, asked: Any) -> None:
    async with world.store() as storage:
        with pytest.raises(InvalidRequestError, match="pass "):
            await storage.outcome(asked)
    assert world.calls == []


async def test_unknown_outcome_survives_pickling() -> None:
    error = OutcomeUnknownError(OBJECT, ChangeId("018bcfe5-6800-7000-8000-000000000001"), logged=True)
    again = pickle.loads(pickle.dumps(error))
    assert (again.object_id, again.change_id, again.logged, str(again)) == (OBJECT, error.change_id, True, str(error))


# --- leases and ages -------------------------------------------------------------------------------


async def test_change_that_lost_its_lease_sends_no_swap_and_leaves_its_entry_to_the_claimer(world: TappedWorld) -> None:
    world.hook_finalise(world.slow(100))
    world.log.hooks["renew"] = fails(UnavailableError("the log is down"))
    async with world.store() as storage:
        with pytest.raises(LeaseLostError, match=r"was not made: its entry was not renewed for 30 s: .*; try again"):
            await storage.put(OBJECT, LARGE)
    assert "swap" not in world.calls and "forget" not in world.calls and "delete" not in world.calls
    assert len(await world.entries()) == 1
    world.log.hooks.clear()
    await world.runtime.sleep(60)
    assert (await world.recovery().run_once()).recovered == 1
    assert await world.is_clean()


async def test_change_whose_lease_ended_before_its_swap_is_recoverys_to_clean_up(world: TappedWorld) -> None:
    settings = world.settings()
    store = TieredStorage(world.tiers, world.log, world.runtime, settings)  # not entered, so nobody renews its leases
    write = WriteInProgress.begin(OBJECT, world.runtime)
    write.lease = await store._writer._heartbeat.record(Change(write.id, OBJECT.path, None, None))
    await world.runtime.sleep(settings.lease.expiry_s)
    verdict = await store._writer._commit(write, write.lease.entry.change, write.lease, None)
    assert isinstance(verdict.error, LeaseLostError)
    assert (verdict.live, verdict.ours) == (None, False)
    assert "swap" not in world.calls


async def test_change_whose_machine_was_suspended_past_the_lease_finalises_nothing(world: TappedWorld) -> None:
    """By a clock that stands still while the machine sleeps, a lease is held that recovery has taken.

    Found by `make sim SEED=2236`.
    """

    async def payload() -> AsyncIterator[bytes]:
        yield LARGE
        while not await world.entries():  # recorded beside the upload: after the sleep, its lease would be new
            await elapse(0.01)
        world.runtime.suspend(600)
        await elapse(600)

    # Which comes first when it wakes, the renewal or the look at the lease, is chance.
    world.log.hooks["renew"] = fails(UnavailableError("down"))
    async with world.store() as storage:
        with pytest.raises(LeaseLostError):
            await storage.put(OBJECT, payload())
    assert await world.blob_names() == []


async def test_heartbeat_keeps_a_slow_change_alive(world: TappedWorld) -> None:
    async def payload() -> AsyncIterator[bytes]:
        for _ in range(20):
            await world.runtime.sleep(20)
            yield b"0123456789"
            assert (await world.recovery().run_once()).seen == 0

    async with world.store() as storage:
        await storage.put(OBJECT, payload())
        assert await read(storage) == b"0123456789" * 20
    assert world.calls.count("renew") > 20


async def test_swap_of_a_change_older_than_its_marks_may_be_relied_on_is_never_sent(world: TappedWorld) -> None:
    async with world.store(lease=RARE_BEATS) as storage:
        with pytest.raises(UnavailableError, match="took longer"):
            await storage.put(OBJECT, pieces(LARGE, 25 * 3600))
    assert "swap" not in world.calls
    assert await world.is_clean()


async def test_finalise_waits_for_the_record(world: TappedWorld) -> None:
    order: list[str] = []

    async def slow_record(real: Any, *args: Any) -> Any:
        await world.runtime.sleep(5)
        order.append("recorded")
        return await real(*args)

    async def finalise(real: Any) -> None:
        order.append("finalised")
        await real()

    world.log.hooks["record"] = slow_record
    world.hook_finalise(finalise)
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)
    assert order == ["recorded", "finalised"]


async def test_record_that_fails_stores_nothing_and_is_told_unavailable(world: TappedWorld) -> None:
    world.log.hooks["record"] = fails(UnavailableError("down"))
    async with world.store() as storage:
        with pytest.raises(UnavailableError):
            await storage.put(OBJECT, LARGE)
        assert await read(storage) is None
    assert await world.blob_names() == []


async def test_revision_is_the_last_segment_of_the_blob_name(world: TappedWorld) -> None:
    async with world.store() as storage:
        result = await storage.put(OBJECT, LARGE)
    assert await world.blob_names() == [blob_name(OBJECT.path, result.revision)]


async def test_why_a_change_could_not_be_recorded_is_told_as_the_changelog_said_it(world: TappedWorld) -> None:
    world.log.hooks["record"] = fails(ConfigurationError("the changelog's table is gone"))
    async with world.store() as storage:
        with pytest.raises(ConfigurationError, match="the changelog's table is gone"):
            await storage.put(OBJECT, LARGE)


async def test_an_entry_is_renewed_when_it_is_due_and_no_oftener(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, pieces(LARGE, 100, LARGE))
    assert 8 <= world.calls.count("renew") <= 13, "every ten seconds"
