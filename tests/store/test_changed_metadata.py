"""`update_metadata` and `set_expiry`: a new revision over the old one, and only over that."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from tests.given.tapped_store import LARGE, OBJECT, SMALL, TappedWorld, head_of, read
from tiered import ConditionFailedError, InvalidRequestError, Metadata, TimeToIdle, TimeToLive

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)
METADATA = Metadata(TimeToLive(HOUR), content_type="text/plain", custom={"a": "b"})
sizes = pytest.mark.parametrize("payload", [SMALL, LARGE], ids=["small", "large"])


def with_c(metadata: Metadata) -> Metadata:
    return replace(metadata, custom={**metadata.custom, "c": "d"})


@sizes
async def test_the_metadata_change_and_the_payload_stays_and_passes_through_nobody(world: TappedWorld, payload: bytes) -> None:
    async with world.store() as storage:
        first = await storage.put(OBJECT, payload, METADATA)
        before = await head_of(storage)
        await world.runtime.sleep(60)
        world.calls.clear()
        result = await storage.update_metadata(OBJECT, with_c)
        assert "open" not in world.calls and "open_upload" not in world.calls
        after = await head_of(storage)
        assert result is not None and result.revision == after.revision != first.revision
        assert after.metadata == replace(before.metadata, custom={"a": "b", "c": "d"}), "deadline and creation stay"
        assert await read(storage) == payload
        world.calls.clear()
        assert await storage.update_metadata(OBJECT, with_c) == replace(result, size=len(payload))
        assert "swap" not in world.calls, "nothing is different"
    assert await world.is_clean()


@sizes
async def test_a_writer_who_was_faster_is_not_overwritten(world: TappedWorld, payload: bytes) -> None:
    async with world.store() as storage:
        first = await storage.put(OBJECT, payload, METADATA)
        world.rows.before_next("reserve", lambda: storage.put(OBJECT, b"newer", Metadata(custom={"x": "y"})))
        await storage.update_metadata(OBJECT, with_c)
        assert await read(storage) == b"newer" and (await head_of(storage)).metadata.custom == {"x": "y", "c": "d"}
        with pytest.raises(ConditionFailedError):
            await storage.update_metadata(OBJECT, with_c, if_revision=first.revision)
    assert await world.is_clean()


@sizes
async def test_a_store_that_is_closed_lets_a_change_try_again(world: TappedWorld, payload: bytes) -> None:
    async with world.store() as storage, anyio.create_task_group() as tasks:
        await storage.put(OBJECT, payload, METADATA)

        async def overtake() -> None:
            await storage.put(OBJECT, b"newer")
            tasks.start_soon(storage.aclose)
            await anyio.wait_all_tasks_blocked()

        world.rows.before_next("reserve", overtake)
        assert await storage.update_metadata(OBJECT, with_c) is not None
    async with world.store() as storage:
        assert await read(storage) == b"newer" and (await head_of(storage)).metadata.custom == {"c": "d"}
    assert await world.is_clean()


async def test_a_time_to_idle_begins_anew(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, SMALL, Metadata(TimeToIdle(HOUR)))
        before = (await head_of(storage)).metadata
        await world.runtime.sleep(60)
        await storage.update_metadata(OBJECT, with_c)
        after = (await head_of(storage)).metadata
        assert before.time_expires_ns is not None and after.time_expires_ns == before.time_expires_ns + 60 * 10**9


@sizes
async def test_an_expiry_is_set_extended_and_removed(world: TappedWorld, payload: bytes) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, payload)
        created = (await head_of(storage)).metadata.time_created
        assert created is not None
        await storage.set_expiry(OBJECT, from_creation=2 * HOUR, extend_only=True)
        assert (await head_of(storage)).metadata.time_expires is None, "it lives longer"
        await storage.set_expiry(OBJECT, from_creation=2 * HOUR)
        expires = (await head_of(storage)).metadata.time_expires
        assert expires is not None and abs(expires - created - 2 * HOUR) < timedelta(milliseconds=1)
        await storage.set_expiry(OBJECT, from_creation=HOUR, extend_only=True)
        assert (await head_of(storage)).metadata.time_expires == expires
        await storage.set_expiry(OBJECT, at=expires + HOUR, extend_only=True)
        assert (await head_of(storage)).metadata.time_expires == expires + HOUR
        await storage.set_expiry(OBJECT, from_creation=HOUR)
        await world.runtime.sleep(1800)
        assert await read(storage) == payload
        await world.runtime.sleep(1801)
        assert await read(storage) is None and await storage.set_expiry(OBJECT) is None
        await storage.put(OBJECT, payload, METADATA)
        await storage.set_expiry(OBJECT)
        await world.runtime.sleep(7200)
        assert await read(storage) == payload
    assert await world.is_clean()


class NoTime(datetime):
    """A `datetime` that is no time: arithmetic with it gives no number."""

    def __sub__(self, other: Any) -> Any:
        return self

    def __floordiv__(self, other: Any) -> float:
        return float("nan")


class RaisesAsNoTime(datetime):
    """A `datetime` that is no time, as the `NaT` of pandas tells it."""

    def utcoffset(self) -> timedelta:
        raise ValueError("NaTType does not support utcoffset")


async def test_wrong_arguments_are_refused_and_change_nothing(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, SMALL)
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"at": datetime(2040, 1, 1)}, "time zone"), ({"at": "tomorrow"}, "time zone"), ({"from_creation": 3600}, "timedelta"),
            ({"at": datetime(2040, 1, 1, tzinfo=UTC), "from_creation": HOUR}, "exclude each other"),
            ({"from_creation": timedelta(0)}, "expired already"), ({"at": datetime(2001, 1, 1, tzinfo=UTC)}, "expired already"),
            ({"from_creation": timedelta(days=4_000_000)}, "9999"), ({"extend_only": 1}, "extend_only is"),
            ({"if_revision": None}, "older"), ({"at": NoTime(2040, 1, 1, tzinfo=UTC)}, "time zone"),
            ({"at": RaisesAsNoTime(2040, 1, 1, tzinfo=UTC)}, "time zone"),
        ]  # fmt: skip
        for arguments, sentence in wrong:
            with pytest.raises(InvalidRequestError, match=sentence):
                await storage.set_expiry(OBJECT, **arguments)
        with pytest.raises(InvalidRequestError, match="pass a function"):
            await storage.update_metadata(OBJECT, METADATA)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="must return Metadata"):
            await storage.update_metadata(OBJECT, lambda metadata: None)  # type: ignore[arg-type, return-value]

        def fails(metadata: Metadata) -> Metadata:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await storage.update_metadata(OBJECT, fails)
        assert (await head_of(storage)).metadata.custom == {}
    assert await world.is_clean()


async def test_an_object_without_a_revision_cannot_be_compared(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, SMALL)
        state = world.rows.target.states[OBJECT.path]
        world.rows.target.states[OBJECT.path] = replace(state, token=None)
        with pytest.raises(InvalidRequestError, match="other software"):
            await storage.update_metadata(OBJECT, with_c)


@sizes
async def test_a_function_that_changes_its_argument_changes_the_object(world: TappedWorld, payload: bytes) -> None:
    """The mappings are dictionaries, so somebody will set an item in them and return the same metadata."""
    async with world.store() as storage:
        first = await storage.put(OBJECT, payload, METADATA)

        def set_items(metadata: Metadata) -> Metadata:
            metadata.custom["c"] = "d"  # type: ignore[index]
            metadata.unknown["list"] = [1]  # type: ignore[index]
            return metadata

        result = await storage.update_metadata(OBJECT, set_items)
        assert result is not None and result.revision != first.revision
        after = (await head_of(storage)).metadata
        assert after.custom == {"a": "b", "c": "d"} and after.unknown == {"list": [1]}

        def append(metadata: Metadata) -> Metadata:
            metadata.unknown["list"].append(2)
            return metadata

        await storage.update_metadata(OBJECT, append)
        assert (await head_of(storage)).metadata.unknown == {"list": [1, 2]}

        def fails_late(metadata: Metadata) -> Metadata:
            metadata.custom["a"] = "x"  # type: ignore[index]
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await storage.update_metadata(OBJECT, fails_late)
        assert (await head_of(storage)).metadata.custom == {"a": "b", "c": "d"}
    assert await world.is_clean()
