"""Copies, renames and changes of metadata in a world: what is noted of them, and that what is planted is found."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import pytest

from emulators.world.checker import InvariantViolation
from emulators.world.client import NOTHING, Client
from emulators.world.deployment import World
from emulators.world.faults import CallFault, Mode, Plan, no_faults
from emulators.world.history import WriteAnswer
from emulators.world.runtime import run_world
from tests.given.virtual_time import simulated
from tiered import ConditionFailedError
from tiered.metadata import Metadata, TimeToLive
from tiered.object_id import ObjectId
from tiered.protocol.reading import CopySource
from tiered.protocol.under_way import WriteInProgress
from tiered.storage import TieredStorage
from tiered.stored import PutResult

SOURCE, TARGET = (ObjectId.create("attachments", name) for name in ("source", "target"))
SMALL, LARGE = 50, 500
HOUR_S = 3600.0
SHORT = TimeToLive(timedelta(hours=1))

Act = Callable[[World, Client], Awaitable[None]]


async def in_world(act: Act, plan: Plan = no_faults) -> World:
    """Runs `act` by a client of a new world. Raises what the checks have found."""
    async with World(1) as world:
        async with world.client(world.process("caller", plan)) as client:
            await act(world, client)
        await world.drain()
        world.verify()
        return world


def found_out(act: Act, finding: str) -> None:
    with pytest.raises(InvariantViolation, match=finding):
        run_world(lambda: in_world(act), seed=1)


# --- what is noted -------------------------------------------------------------------------------


@simulated
async def test_each_write_of_a_rename_has_an_answer_and_a_value_of_its_own() -> None:
    async def act(world: World, client: Client) -> None:
        await client.put(SOURCE, "label", LARGE)
        assert await client.copy("copied", SOURCE, TARGET, NOTHING) is WriteAnswer.OK
        assert await client.rename("renamed", SOURCE, TARGET) is WriteAnswer.OK
        assert (await client.get(SOURCE), await client.get(TARGET)) == (None, "renamed")
        assert await client.rename("again", SOURCE, TARGET) is WriteAnswer.NO

    world = await in_world(act)
    assert [(write.value, write.answer.name) for write in world.history.writes] == [
        ("label", "OK"), ("copied", "OK"), ("renamed", "OK"), (None, "OK")
    ]  # fmt: skip


@simulated
async def test_changed_metadata_are_a_write_over_what_was_read() -> None:
    async def act(world: World, client: Client) -> None:
        await client.put(SOURCE, "label", SMALL, expiration=SHORT)
        assert await client.update_metadata("edited", SOURCE) is WriteAnswer.OK
        over = await client.seen(SOURCE)
        assert over is not None and over.value == await client.get(SOURCE) == "edited"
        assert await client.set_expiry("later", SOURCE, lives_s=2 * HOUR_S, extend_only=True) is WriteAnswer.OK
        assert await client.set_expiry("no change", SOURCE, lives_s=HOUR_S, extend_only=True) is WriteAnswer.OK
        assert await client.update_metadata("too late", SOURCE, over) is WriteAnswer.FAILED
        await anyio.sleep(HOUR_S + 60)
        assert await client.get(SOURCE) == "later"
        await anyio.sleep(HOUR_S)
        assert await client.get(SOURCE) is None

    world = await in_world(act)
    assert [str(write.needs.value) for write in world.history.writes if write.needs is not None] == ["label", "edited"]


@simulated
async def test_a_change_that_comes_too_late_is_a_write_that_failed_and_begins_again() -> None:
    async def act(world: World, client: Client) -> None:
        await client.put(SOURCE, "old", SMALL)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.update_metadata, "edited", SOURCE)
            await anyio.sleep(1)
            await client.put(SOURCE, "new", SMALL)
        assert await client.get(SOURCE) == "edited, attempt 2"

    world = await in_world(act, {"rows.reserve #1": CallFault(Mode.SLOW, 5.0)}.get)
    assert [(write.value, write.answer.name) for write in world.history.writes] == [
        ("old", "OK"), ("edited", "FAILED"), ("new", "OK"), ("edited, attempt 2", "OK")
    ]  # fmt: skip


@simulated
async def test_a_rename_that_dies_before_its_deletion_leaves_both() -> None:
    async with World(1) as world:
        process = world.process("caller", {"rows.reserve #1": CallFault(Mode.CRASH_BEFORE)}.get)

        async def life() -> None:
            async with world.client(process) as client:
                await client.put(SOURCE, "label", LARGE)
                await client.rename("renamed", SOURCE, TARGET)

        await process.run(life)
        await world.drain()
        async with world.client(world.process("reader")) as client:
            assert (await client.get(SOURCE), await client.get(TARGET)) == ("label", "renamed")
        world.verify()


@simulated
async def test_the_service_copies_what_is_there_when_the_request_arrives() -> None:
    async def act(world: World, client: Client) -> None:
        await client.put(SOURCE, "label", LARGE)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.copy, "copied", SOURCE, TARGET)
            await anyio.sleep(1)
            await client.delete(SOURCE)
        assert await client.get(TARGET) is None

    world = await in_world(act, {"upload.finalise #2": CallFault(Mode.SLOW, 5.0)}.get)
    assert [write.answer.name for write in world.history.writes if write.value == "copied"] == ["NO"]


# --- what is found out ---------------------------------------------------------------------------


def planted(monkeypatch: pytest.MonkeyPatch, name: str, wrong: Callable[..., Any]) -> None:
    """Lets `wrong`, which is passed the real method, stand in for a method of the store."""
    real = getattr(TieredStorage, name)

    async def stands_in(*args: Any, **named: Any) -> Any:
        return await wrong(real, *args, **named)

    monkeypatch.setattr(TieredStorage, name, stands_in)


def test_a_copy_that_shows_other_metadata_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(world: World, client: Client) -> None:
        copy = client.storage._writer.put_copy

        async def forgets(write: WriteInProgress, metadata: Metadata, source: CopySource, slot: Any) -> PutResult:
            return await copy(write, replace(metadata, custom={**metadata.custom, "edit": "nobody"}), source, slot)

        monkeypatch.setattr(client.storage._writer, "put_copy", forgets)
        await client.put(SOURCE, "label", SMALL)
        await client.copy("copied", SOURCE, TARGET)
        await client.get(TARGET)

    found_out(act, "STALE READ.*under the revision of the put of 'copied'")


def test_a_rename_that_deletes_first_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def backwards(real: Any, storage: TieredStorage, source: ObjectId, target: ObjectId) -> None:
        found = await storage._reader.source(source)
        assert found is not None and found.head.revision is not None
        with await storage._enter(storage._writes) as slot:
            await storage._writer.delete(WriteInProgress.begin(source, storage._runtime), slot)

    async def act(world: World, client: Client) -> None:
        await client.put(SOURCE, "label", SMALL)
        await client.rename("renamed", SOURCE, TARGET)

    planted(monkeypatch, "rename", backwards)
    found_out(act, "LOST: the delete")


@pytest.mark.parametrize("lie", ["nothing is there", "another revision", "its condition is false", "another object"])
def test_an_answer_that_is_not_true_is_found_out(monkeypatch: pytest.MonkeyPatch, lie: str) -> None:
    async def lies(real: Any, storage: TieredStorage, object_id: ObjectId, *args: Any, **named: Any) -> PutResult | None:
        before = await storage.head(object_id)
        result: PutResult = await real(storage, object_id, *args, **named)
        assert before is not None and before.revision is not None
        if lie == "another revision":
            return replace(result, revision=before.revision)
        if lie != "nothing is there":
            raise ConditionFailedError(SOURCE if lie == "its condition is false" else TARGET, None, lie)
        return None

    async def act(world: World, client: Client) -> None:
        await client.put(SOURCE, "label", SMALL)
        over = await client.seen(SOURCE) if lie == "another object" else None
        await client.update_metadata("edited", SOURCE, over)

    planted(monkeypatch, "update_metadata", lies)
    found_out(act, "FALSE ANSWER: the change of metadata edited")


def test_an_object_that_comes_back_after_its_expiry_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(world: World, client: Client) -> None:
        await client.put(SOURCE, "label", SMALL, expiration=SHORT)
        await anyio.sleep(2 * HOUR_S)
        await client.set_expiry("revived", SOURCE)

    monkeypatch.setattr("tiered.protocol.reading.is_expired", lambda deadline_ns, now_ns: False)
    monkeypatch.setattr("tiered.protocol.conditions.is_expired", lambda deadline_ns, now_ns: False)
    found_out(act, "REVIVED|EXPIRED")


@pytest.mark.parametrize("lives_s", [HOUR_S, None])
def test_a_deadline_that_is_not_what_was_asked_for_is_found_out(monkeypatch: pytest.MonkeyPatch, lives_s: float | None) -> None:
    async def act(world: World, client: Client) -> None:
        await client.put(SOURCE, "label", SMALL, expiration=TimeToLive(timedelta(hours=10)))
        await client.set_expiry("changed", SOURCE, lives_s=lives_s)
        await anyio.sleep((2 if lives_s else 20) * HOUR_S)
        await client.get(SOURCE)

    def keeps(metadata: Metadata, *_: object, **named: object) -> Metadata:
        return replace(metadata, custom={**metadata.custom, "changed": "yes"}, time_expires_ns=metadata.time_expires_ns)

    monkeypatch.setattr("tiered.storage.expiring", keeps)
    found_out(act, "EXPIRED" if lives_s else "STALE READ")
