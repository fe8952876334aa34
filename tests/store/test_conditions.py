"""Writes with a condition: `if_absent` and `if_revision`, small and large, over what is small and large."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import anyio
import pytest

from changelog.change import ChangeId
from tests.given.tapped_store import LARGE, OBJECT, SMALL, TappedWorld, answer_lost, head_of, never_arrives, read
from tiered import (
    ConditionFailedError,
    InvalidRequestError,
    Metadata,
    Outcome,
    OutcomeUnknownError,
    PutRequest,
    TimeToLive,
    UnavailableError,
)

pytestmark = pytest.mark.anyio

OLD = {"small": b"old", "large": LARGE[::-1]}
NEW = {"small": SMALL, "large": LARGE}
over = pytest.mark.parametrize("there", OLD)
puts = pytest.mark.parametrize("new", NEW)


@over
@puts
async def test_a_put_over_the_revision_that_was_named_takes_effect_and_over_another_does_not(
    world: TappedWorld, there: str, new: str
) -> None:
    async with world.store() as storage:
        first = (await storage.put(OBJECT, OLD[there])).revision
        second = (await storage.put(OBJECT, NEW[new], if_revision=first)).revision
        assert await read(storage) == NEW[new]
        writes: list[Awaitable[object]] = [
            storage.put(OBJECT, b"third", if_revision=first), storage.put(OBJECT, LARGE, if_revision=first),
            storage.delete(OBJECT, if_revision=first),
        ]  # fmt: skip
        for write in writes:
            with pytest.raises(ConditionFailedError, match=r"is there, and revision .* was asked for") as caught:
                await write
            assert caught.value.revision == second and caught.value.object_id == OBJECT
        assert (await head_of(storage)).revision == second
    assert await world.is_clean()


@over
async def test_a_delete_of_the_revision_that_was_named_takes_effect_once(world: TappedWorld, there: str) -> None:
    async with world.store() as storage:
        first = (await storage.put(OBJECT, OLD[there])).revision
        await storage.delete(OBJECT, if_revision=first)
        assert await read(storage) is None
        writes: list[Awaitable[object]] = [storage.delete(OBJECT, if_revision=first), storage.put(OBJECT, SMALL, if_revision=first)]
        for write in writes:
            with pytest.raises(ConditionFailedError, match="is not there") as caught:
                await write
            assert caught.value.revision is None
    assert await world.is_clean()


@over
@puts
async def test_a_put_if_absent_takes_effect_where_nothing_is(world: TappedWorld, there: str, new: str) -> None:
    async with world.store() as storage:
        first = (await storage.put(OBJECT, NEW[new], if_absent=True)).revision
        with pytest.raises(ConditionFailedError, match="and the condition is that nothing is") as caught:
            await storage.put(OBJECT, OLD[there], if_absent=True)
        assert caught.value.revision == first
        await storage.delete(OBJECT)
        await storage.put(OBJECT, OLD[there], if_absent=True)
        assert await read(storage) == OLD[there]
    assert await world.is_clean()


@over
@puts
async def test_what_has_expired_is_absent(world: TappedWorld, there: str, new: str) -> None:
    async with world.store() as storage:
        first = (await storage.put(OBJECT, OLD[there], Metadata(TimeToLive(timedelta(seconds=60))))).revision
        with pytest.raises(ConditionFailedError):
            await storage.put(OBJECT, NEW[new], if_absent=True)
        await world.runtime.sleep(61)
        with pytest.raises(ConditionFailedError, match="is not there") as caught:
            await storage.put(OBJECT, NEW[new], if_revision=first)
        assert caught.value.revision is None
        await storage.put(OBJECT, NEW[new], if_absent=True)
        assert await read(storage) == NEW[new]
    assert await world.is_clean()


async def test_of_many_at_once_one_wins(world: TappedWorld) -> None:
    async with world.store() as storage:
        revision: Any = None
        for kind in (SMALL, LARGE, SMALL):
            won: list[ChangeId] = []

            async def put(kind: bytes, won: list[ChangeId], condition: dict[str, Any]) -> None:
                with suppress(ConditionFailedError):
                    won.append((await storage.put(OBJECT, kind, **condition)).revision)

            condition = {"if_absent": True} if revision is None else {"if_revision": revision}
            async with anyio.create_task_group() as tasks:
                for _ in range(6):
                    tasks.start_soon(put, kind, won, condition)
            [revision] = won
    assert await world.is_clean()


@pytest.mark.parametrize("then", ["put", "delete"])
async def test_what_changes_between_the_read_and_the_swap_is_seen(world: TappedWorld, then: str) -> None:
    """No predicate can tell that a row is empty. So a deletion in between is what could be missed."""
    async with world.store() as storage:
        first = (await storage.put(OBJECT, b"old")).revision
        between: dict[str, Callable[[], Awaitable[object]]] = {
            "put": lambda: storage.put(OBJECT, b"between"), "delete": lambda: storage.delete(OBJECT),
        }  # fmt: skip
        world.rows.before_next("swap", between[then])
        with pytest.raises(ConditionFailedError):
            await storage.put(OBJECT, SMALL, if_revision=first)
        assert await read(storage) == (b"between" if then == "put" else None)


async def test_a_large_put_whose_condition_is_false_opens_no_upload(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, b"old")
        world.calls.clear()
        with pytest.raises(ConditionFailedError):
            await storage.put(OBJECT, LARGE, if_absent=True)
        assert world.calls == ["read"]


async def test_the_calls_of_small_writes_with_a_condition(world: TappedWorld) -> None:
    async with world.store() as storage:
        revision = (await storage.put(OBJECT, SMALL, if_absent=True)).revision
        assert world.calls == ["read", "swap"]
        world.calls.clear()
        await storage.delete(OBJECT, if_revision=revision)
        assert world.calls == ["read", "reserve", "swap"]


async def test_a_swap_whose_answers_are_lost_is_found_to_have_taken_effect(world: TappedWorld) -> None:
    async with world.store() as storage:
        first = (await storage.put(OBJECT, b"old")).revision
        world.rows.hooks["swap"] = answer_lost
        result = await storage.put(OBJECT, SMALL, if_revision=first)
        assert await read(storage) == SMALL
        await storage.delete(OBJECT, if_revision=result.revision)
        assert await read(storage) is None


async def test_a_write_that_never_arrives_has_certainly_not_happened(world: TappedWorld) -> None:
    async with world.store() as storage:
        first = (await storage.put(OBJECT, b"old")).revision
        for call in ("swap", "reserve"):
            world.rows.hooks[call] = never_arrives
            with pytest.raises(UnavailableError):
                await storage.put(OBJECT, SMALL, if_revision=first)
            del world.rows.hooks[call]
        assert await read(storage) == b"old"


async def test_the_outcome_of_a_write_with_a_condition_is_remembered_without_an_entry(world: TappedWorld) -> None:
    async with world.store() as storage:
        for hook, outcome in ((answer_lost, Outcome.TOOK_EFFECT), (never_arrives, Outcome.NO_EFFECT)):
            first = (await storage.put(OBJECT, b"old")).revision
            world.rows.hooks |= {"swap": hook, "settle": never_arrives}
            with pytest.raises(OutcomeUnknownError) as caught:
                await storage.put(OBJECT, SMALL, if_revision=first)
            world.rows.hooks.clear()
            await storage.put(OBJECT, b"later")
            error = pickle.loads(pickle.dumps(caught.value))
            assert not error.logged and error.marked
            assert await storage.outcome(error) is outcome


async def test_bulk_puts_have_conditions_too(world: TappedWorld) -> None:
    async with world.store() as storage:
        async with storage.put_many([PutRequest(OBJECT, each, if_absent=True) for each in (b"first", b"second")]) as results:
            told = {result.position: result.error async for result in results}
        assert told[0] is None and isinstance(told[1], ConditionFailedError)
        assert await read(storage) == b"first"


async def test_wrong_conditions_are_refused_before_anything_is_sent(world: TappedWorld) -> None:
    some = ChangeId.new(world.runtime)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"if_absent": 1}, "if_absent is True or False, not 1"), ({"if_absent": None}, "if_absent is True or False"),
        ({"if_revision": None}, "older software wrote that object"), ({"if_revision": str(some)}, "ChangeId"),
        ({"if_revision": 7}, "if_revision is the revision of a head or of a put"),
        ({"if_absent": True, "if_revision": some}, "exclude each other"),
    ]
    async with world.store() as storage:
        for arguments, sentence in wrong:
            with pytest.raises(InvalidRequestError, match=sentence):
                await storage.put(OBJECT, SMALL, **arguments)
            if "if_absent" not in arguments:
                with pytest.raises(InvalidRequestError, match=sentence):
                    await storage.delete(OBJECT, **arguments)
        assert world.calls == []


async def test_a_cancelled_write_with_a_condition_is_settled(world: TappedWorld) -> None:
    async with world.store() as storage:
        first = (await storage.put(OBJECT, b"old")).revision
        late: list[Any] = []

        async def keep(real: Any, *args: Any) -> Any:
            late.append((real, args))
            await anyio.sleep_forever()

        world.rows.hooks["swap"] = keep
        with anyio.move_on_after(1):
            await storage.put(OBJECT, SMALL, if_revision=first)
        world.rows.hooks.clear()
    [(real, args)] = late
    assert await real(*args) is False, "it lands after the settle"
    async with world.store() as storage:
        assert await read(storage) == b"old"


async def test_the_error_survives_pickling(world: TappedWorld) -> None:
    revision = ChangeId.new(world.runtime)
    error = pickle.loads(pickle.dumps(ConditionFailedError(OBJECT, revision, "it is not there")))
    assert (error.object_id, error.revision, str(error)) == (OBJECT, revision, f"{OBJECT} was not changed: it is not there")


async def test_a_payload_that_is_no_longer_wanted_is_closed(world: TappedWorld) -> None:
    closed: list[bool] = []

    async def payload() -> AsyncIterator[bytes]:
        try:
            for _ in range(100):
                yield LARGE
        finally:
            closed.append(True)

    async with world.store() as storage:
        await storage.put(OBJECT, b"old")
        with pytest.raises(ConditionFailedError):
            await storage.put(OBJECT, payload(), if_absent=True)
    assert closed == [True]
