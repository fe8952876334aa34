"""Uploads that stay open: parts from anywhere, completed by anybody, and ended by recovery if nobody does."""

from __future__ import annotations

import json
import pickle
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import pytest

from changelog.base.errors import CorruptRecordError, UnconfirmedError
from changelog.change import ChangeId, Entry, encode
from changelog.lease import EntryState, entry_state
from changelog.noop import NoopChangeLog
from tests.given.tapped_store import LARGE, OBJECT, RARE_BEATS, SMALL, TappedWorld, answer_lost, fails, head_of, never_arrives, pieces, read
from tiered import (
    ConditionFailedError,
    ConfigurationError,
    InvalidRequestError,
    Metadata,
    ObjectId,
    Outcome,
    OutcomeUnknownError,
    TieredStorage,
    TimeToLive,
    UnavailableError,
)
from tiered.errors import UploadEndedError
from tiered.multipart import MultipartUpload
from tiered.object_id import blob_name
from tiered.protocol.assembling import COMPLETION_MS
from tiered.protocol.open_upload import OpenUpload
from tiered.services.backends import SessionEndedError
from tiered.services.capabilities import PART_BYTES_MAX, Part

pytestmark = pytest.mark.anyio

DAY_S = 86_400.0
OTHER = ObjectId.create("attachments", "other", {"org": "17"})
PARTS = {1: b"one" * 100, 2: b"two" * 50, 3: b"three"}
WHOLE = b"".join(PARTS.values())
LIES: list[dict[str, Any]] = [
    {"size": "5"}, {"size": -5}, {"number": "3"}, {"number": 3.0}, {"etag": None}, {"etag": "\ud800"}, {"checksum": 7},
]
"""What a client may say of a part that another process has uploaded."""
RARELY: dict[str, Any] = {"lease": RARE_BEATS}


async def uploaded(storage: TieredStorage, **conditions: Any) -> MultipartUpload:
    upload = await storage.begin_multipart(OBJECT, **conditions)
    for number, payload in PARTS.items():
        await upload.upload_part(number, payload)
    return upload


async def the_entry(world: TappedWorld) -> Entry:
    (entry,) = await world.entries()
    assert isinstance(entry, Entry)
    return entry


async def is_over(world: TappedWorld) -> bool:
    """Whether nothing is left of any upload, an hour and the grace after the last of them."""
    await world.runtime.sleep(3601)
    await world.recovery().run_once()
    await world.runtime.sleep(1000)
    await world.recovery().run_once()
    return await world.is_clean() and not world.blobs.target.in_parts


# --- what it is for --------------------------------------------------------------------------------


async def test_parts_in_any_order_and_at_once_become_the_object_when_it_is_completed(world: TappedWorld) -> None:
    metadata = Metadata(content_type="video/mp4", custom={"from": "phone"}, size=len(WHOLE))
    async with world.store() as storage:
        upload = await storage.begin_multipart(OBJECT, metadata)
        async with anyio.create_task_group() as group:
            for number in (3, 1, 2):
                group.start_soon(upload.upload_part, number, PARTS[number])
        assert await read(storage) is None
        parts = await upload.parts()
        assert [(part.number, part.size) for part in parts] == [(number, len(payload)) for number, payload in PARTS.items()]
        result = await upload.complete(parts)
        assert (result.revision, result.size) == (upload.id, len(WHOLE))
        assert await read(storage) == WHOLE
        head = await head_of(storage)
        assert head.revision == upload.id
        assert (head.metadata.content_type, head.metadata.custom) == ("video/mp4", {"from": "phone"})
    assert await world.is_clean() and not world.blobs.target.in_parts


async def test_any_process_goes_on_with_an_upload_by_the_two_ids(world: TappedWorld) -> None:
    async with world.store(instance="one") as storage:
        first = await storage.begin_multipart(OBJECT)
        await first.upload_part(1, PARTS[1])
        name = str(first.id)
    async with world.store(instance="two") as storage:
        second = storage.multipart(OBJECT, name)
        assert second == storage.multipart(OBJECT, ChangeId(name)) and "MultipartUpload" in repr(second)
        await second.upload_part(2, PARTS[2])
        await second.complete()
        assert await read(storage) == PARTS[1] + PARTS[2]
    assert await world.is_clean()


async def test_the_upload_of_one_object_is_none_of_another(world: TappedWorld) -> None:
    async with world.store() as storage:
        upload = await uploaded(storage)
        foreign = storage.multipart(OTHER, upload.id)
        for call in (foreign.upload_part(1, b"x"), foreign.parts(), foreign.complete(), foreign.abort()):
            with pytest.raises(InvalidRequestError, match="is none of"):
                await call
        await upload.complete()
        assert await read(storage) == WHOLE and await read(storage, OTHER) is None


async def test_a_part_is_uploaded_again_and_the_last_one_counts(world: TappedWorld) -> None:
    async with world.store() as storage:
        upload = await uploaded(storage)
        old = await upload.parts()
        await upload.upload_part(2, b"again")
        with pytest.raises(InvalidRequestError, match="uploaded again"):
            await upload.complete(old)
        assert (await the_entry(world)).assembling is not None
        await upload.complete()
        assert await read(storage) == PARTS[1] + b"again" + PARTS[3]


async def test_only_the_parts_that_are_listed_count(world: TappedWorld) -> None:
    async with world.store() as storage:
        upload = await uploaded(storage)
        parts = await upload.parts()
        await upload.complete([parts[0], parts[2]])
        assert await read(storage) == PARTS[1] + PARTS[3]
        with pytest.raises(InvalidRequestError, match="other parts"):
            await upload.complete(parts)
    assert await world.is_clean()


async def test_a_payload_of_every_kind_is_a_part_and_its_checksum_is_compared_first(world: TappedWorld, tmp_path: Any) -> None:
    path = tmp_path / "part"
    path.write_bytes(b"file")
    async with world.store() as storage:
        upload = await storage.begin_multipart(OBJECT)
        await upload.upload_part(1, pieces(b"a" * 300_000, b"b"))
        await upload.upload_part(2, path)
        await upload.upload_part(3, b"", checksums={"sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"})
        with pytest.raises(InvalidRequestError, match="sha256"):
            await upload.upload_part(4, b"damaged", checksums={"sha256": "00" * 32})
        assert [part.number for part in await upload.parts()] == [1, 2, 3]
        await upload.complete()
        assert await read(storage) == b"a" * 300_000 + b"bfile"


async def test_a_time_to_live_is_counted_from_the_completion(world: TappedWorld) -> None:
    async with world.store(**RARELY) as storage:
        upload = await storage.begin_multipart(OBJECT, Metadata(TimeToLive(timedelta(hours=1))))
        await upload.upload_part(1, b"one")
        await world.runtime.sleep(5 * DAY_S)
        await upload.complete()
        head = await head_of(storage)
        assert head.metadata.time_expires_ns is not None
        assert head.metadata.time_expires_ns - world.runtime.wall_ns() == pytest.approx(3600e9, abs=1e9)
        blob = await world.blobs.target.head(blob_name(OBJECT.path, upload.id))
        assert blob is not None and blob.metadata.time_expires_ns >= head.metadata.time_expires_ns


async def test_an_entry_is_short_whatever_the_metadata_say(world: TappedWorld) -> None:
    """Bigtable refuses a filter of more than 20 kB, and a claim compares the whole value."""
    custom = {f"key{number}": '"' * 500 for number in range(7)}
    async with world.store() as storage:
        upload = await storage.begin_multipart(OBJECT, Metadata(custom=custom, filename='"' * 200))
        await upload.upload_part(1, b"one")
        assert len(encode(await the_entry(world))) < 1000
        await upload.complete()
        assert (await head_of(storage)).metadata.custom == custom


# --- conditions -------------------------------------------------------------------------------------


async def test_a_condition_is_judged_when_it_is_completed_and_may_hold_later(world: TappedWorld) -> None:
    async with world.store() as storage:
        upload = await uploaded(storage, if_absent=True)
        await storage.put(OBJECT, SMALL)
        with pytest.raises(ConditionFailedError):
            await upload.complete()
        assert await read(storage) == SMALL
        await storage.delete(OBJECT)
        await upload.complete()
        assert await read(storage) == WHOLE
    assert await world.is_clean()


@pytest.mark.parametrize("there", [SMALL, LARGE], ids=["small", "large"])
async def test_an_upload_over_a_revision_replaces_that_one_alone(world: TappedWorld, there: bytes) -> None:
    async with world.store() as storage:
        revision = (await storage.put(OBJECT, there)).revision
        first, second = await uploaded(storage, if_revision=revision), await uploaded(storage, if_revision=revision)
        await first.complete()
        with pytest.raises(ConditionFailedError) as caught:
            await second.complete()
        assert caught.value.revision == first.id
        await second.abort()
        assert await read(storage) == WHOLE
    assert await is_over(world)


# --- completed again, and by many -------------------------------------------------------------------


async def test_a_completion_is_told_ok_again_by_anybody_also_when_it_was_replaced(world: TappedWorld) -> None:
    async with world.store(**RARELY) as storage:
        upload = await uploaded(storage)
        parts = await upload.parts()
        first = await upload.complete(parts)
        assert await upload.complete(parts) == first == await upload.complete()
        await storage.put(OBJECT, SMALL)
        assert await upload.complete(parts) == first == await upload.complete()
        for call in (upload.upload_part(1, b"x"), upload.parts(), upload.abort()):
            with pytest.raises(UploadEndedError) as caught:
                await call
            assert caught.value.completed is True
        assert await read(storage) == SMALL
    assert await world.is_clean()


async def test_two_completions_at_once_are_both_told_ok(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)
        upload = await uploaded(storage)
        told: list[Any] = []

        async def complete() -> None:
            told.append(await upload.complete())

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(complete)
        assert len(set(told)) == 1 and len(told) == 3
        assert await read(storage) == WHOLE
    assert await is_over(world)


@pytest.mark.parametrize("call", ["complete_parts", "swap", "amend", "claim"])
@pytest.mark.parametrize("lost", ["the request", "the answer"])
async def test_what_is_not_answered_is_made_good_by_the_next_completion(world: TappedWorld, call: str, lost: str) -> None:
    tapped = {"complete_parts": world.blobs, "swap": world.rows}.get(call, world.log)
    left = 100  # more than one call retries

    async def unanswered(real: Any, *args: Any, **named: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            if lost == "the answer":
                await real(*args, **named)
            raise UnconfirmedError("no answer")
        return await real(*args, **named)

    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)
        upload = await uploaded(storage)
        tapped.hooks[call] = unanswered
        unknown: list[OutcomeUnknownError] = []
        try:
            await upload.complete()
        except UnavailableError:
            pass
        except OutcomeUnknownError as error:
            unknown.append(error)
        for each in unknown:
            assert await storage.outcome(each) in (Outcome.PENDING, Outcome.TOOK_EFFECT)
        left = 0
        result = await upload.complete()
        assert result.revision == upload.id and result.size == len(WHOLE)
        assert await read(storage) == WHOLE
    assert await is_over(world)


async def test_another_list_cannot_be_completed_once_an_attempt_is_in_doubt(world: TappedWorld) -> None:
    async with world.store() as storage:
        upload = await uploaded(storage)
        parts = await upload.parts()
        world.blobs.hooks["complete_parts"] = never_arrives
        with pytest.raises(UnavailableError, match="complete it again"):
            await upload.complete(parts)
        del world.blobs.hooks["complete_parts"]
        with pytest.raises(InvalidRequestError, match="with other parts"):
            await upload.complete(parts[:1])
        await upload.complete(parts)
        assert await read(storage) == WHOLE


async def test_a_completion_goes_on_when_its_caller_is_cancelled(world: TappedWorld) -> None:
    async with world.store() as storage:
        upload = await uploaded(storage)
        world.blobs.hooks["complete_parts"] = world.slow(5)
        with anyio.move_on_after(1) as scope:
            await upload.complete()
        assert scope.cancelled_caught and await read(storage) is None
        await world.runtime.sleep(10)
        assert await read(storage) == WHOLE
    assert await world.is_clean()


async def test_a_store_that_closes_stops_all_completions_of_one_upload(world: TappedWorld) -> None:
    told: list[Exception] = []

    async def complete(upload: MultipartUpload) -> None:
        try:
            await upload.complete()
        except (UnavailableError, OutcomeUnknownError) as error:
            told.append(error)

    async with anyio.create_task_group() as group, world.store(store={"drain_budget_s": 5}) as storage:
        upload = await uploaded(storage)
        world.blobs.hooks["complete_parts"] = world.slow(100_000)
        for _ in range(3):
            group.start_soon(complete, upload)
        await world.runtime.sleep(1)
        began_s = anyio.current_time()
        await storage.aclose()
        assert anyio.current_time() - began_s < 10
    assert anyio.current_time() - began_s < 20 and len(told) == 3


async def test_an_upload_that_was_sealed_and_not_settled_is_not_said_to_be_open(world: TappedWorld) -> None:
    async with world.store() as storage:
        upload = await uploaded(storage)
        world.blobs.target.in_parts.clear()
        world.rows.hooks["settle"] = fails(UnavailableError("away"))
        with pytest.raises(OutcomeUnknownError):
            await upload.complete([Part(number, 5, None, str(number)) for number in PARTS])
        assert (await the_entry(world)).assembling is None
    world.rows.hooks.clear()
    assert await is_over(world)


async def test_an_attempt_that_was_refused_leaves_the_upload_as_it_was(world: TappedWorld) -> None:
    async with world.store() as storage:
        upload = await uploaded(storage)
        before = await the_entry(world)
        world.blobs.hooks["complete_parts"] = fails(UnavailableError("503"))
        for attempts in (1, 2):
            with pytest.raises(UnavailableError, match="503"):
                await upload.complete()
            assert await the_entry(world) == replace(before, attempt=attempts)
        del world.blobs.hooks["complete_parts"]
        await upload.complete()
        assert await read(storage) == WHOLE


async def test_an_object_that_is_written_meanwhile_is_replaced_and_nothing_is_left(world: TappedWorld) -> None:
    async with world.store() as storage:
        upload = await uploaded(storage)
        world.rows.before_next("swap", lambda: storage.put(OBJECT, LARGE))
        await upload.complete()
        assert await read(storage) == WHOLE
    assert await is_over(world)


# --- its end ----------------------------------------------------------------------------------------


async def test_an_aborted_upload_leaves_nothing_and_cannot_go_on(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, SMALL)
        upload = await uploaded(storage)
        await upload.abort()
        assert await world.is_clean() and not world.blobs.target.in_parts
        await upload.abort()
        for call in (upload.upload_part(1, b"x"), upload.parts(), upload.complete()):
            with pytest.raises(UploadEndedError) as caught:
                await call
            assert caught.value.completed is False
            assert pickle.loads(pickle.dumps(caught.value)).upload_id == upload.id
        assert await read(storage) == SMALL


async def test_an_abort_that_comes_after_the_swap_says_that_it_was_completed(world: TappedWorld) -> None:
    async with world.store() as storage:
        upload = await uploaded(storage)

        world.log.hooks["claim"] = fails(UnavailableError("the changelog is away"))
        await upload.complete()
        await world.runtime.sleep(60)
        del world.log.hooks["claim"]
        with pytest.raises(UploadEndedError) as caught:
            await upload.abort()
        assert caught.value.completed is True and await read(storage) == WHOLE
    assert await is_over(world)


async def test_an_abort_says_nothing_of_an_upload_that_expired_with_its_marks_after_it_was_completed(world: TappedWorld) -> None:
    """A process that was stopped for days may ask so (seed 446959961)."""
    async with world.store(**RARELY) as storage:
        upload = await storage.begin_multipart(OBJECT, Metadata(TimeToLive(timedelta(seconds=5))))
        await upload.upload_part(1, b"x")
        await upload.complete()
        await forget(world)
        with pytest.raises(UploadEndedError) as caught:
            await upload.abort()
        assert caught.value.completed is None


async def test_an_abort_days_after_an_attempt_that_was_not_answered_does_not_say_that_nothing_was_stored(world: TappedWorld) -> None:
    async with world.store(**RARELY) as storage:
        upload = await uploaded(storage)
        world.blobs.hooks["complete_parts"] = never_arrives
        with pytest.raises(UnavailableError):
            await upload.complete()
        del world.blobs.hooks["complete_parts"]
        await forget(world)
        with pytest.raises(UploadEndedError) as caught:
            await upload.abort()
        assert caught.value.completed is None
    assert await is_over(world)


async def forget(world: TappedWorld) -> None:
    """Three days go by, and marks are collected."""
    await world.runtime.sleep(3 * DAY_S)
    while await world.rows.target.collect(1000):
        pass


async def test_recovery_gives_up_what_nobody_completed_in_a_week_and_not_before(world: TappedWorld) -> None:
    async with world.store(**RARELY) as storage:
        upload = await uploaded(storage)
        await world.runtime.sleep(7 * DAY_S - 3600)
        assert (await world.recovery().run_once()).seen == 0
        now_ms = world.runtime.wall_ns() // 1_000_000
        assert entry_state(await the_entry(world), now_ms, 30_000, 5) is EntryState.ASSEMBLING
        assert await upload.parts()
        await world.runtime.sleep(7200)
        report = await world.recovery().run_once()
        assert report.seen == 1 and not report.failed
        assert not world.blobs.target.in_parts
        with pytest.raises(UploadEndedError):
            await upload.complete()
    assert await is_over(world)


async def test_an_upload_that_is_days_old_is_completed_also_where_marks_were_collected_meanwhile(world: TappedWorld) -> None:
    async with world.store(**RARELY) as storage:
        upload = await uploaded(storage)
        for _ in range(6):
            await storage.put(OTHER, LARGE)
            await storage.put(OTHER, SMALL)
            await world.runtime.sleep(DAY_S)
            await world.rows.target.collect(1000)
        assert world.rows.target.horizon_ms > upload.id.created_ms
        await upload.complete()
        assert await read(storage) == WHOLE
        await world.runtime.sleep(3 * DAY_S)
        while await world.rows.target.collect(1000):
            pass
        assert world.rows.target.horizon_ms >= upload.id.created_ms + 6 * DAY_S * 1000


async def test_after_a_failed_attempt_it_can_be_completed_for_an_hour_and_then_is_given_up(world: TappedWorld) -> None:
    async with world.store(**RARELY) as storage:
        await storage.put(OBJECT, LARGE)
        upload = await uploaded(storage)
        world.blobs.hooks["complete_parts"] = answer_lost
        with pytest.raises(UnavailableError):
            await upload.complete()
        del world.blobs.hooks["complete_parts"]
        await world.runtime.sleep(COMPLETION_MS / 1000 - 60)
        assert (await world.recovery().run_once()).seen == 0
        await world.runtime.sleep(120)
        assert (await world.recovery().run_once()).seen == 1
        with pytest.raises(UploadEndedError) as caught:
            await upload.complete()
        assert caught.value.completed is False
        assert await read(storage) == LARGE
    assert await is_over(world)


async def test_an_upload_cannot_be_completed_a_day_after_its_first_attempt(world: TappedWorld) -> None:
    async with world.store(**RARELY) as storage:
        upload = await uploaded(storage)
        world.blobs.hooks["complete_parts"] = never_arrives
        for _ in range(2):  # no recovery runs
            with pytest.raises(UnavailableError):
                await upload.complete()
            await world.runtime.sleep(20 * 3600)
        del world.blobs.hooks["complete_parts"]
        with pytest.raises(UploadEndedError):
            await upload.complete()
        assert await read(storage) is None
    assert await is_over(world)


async def test_a_session_that_has_ended_ends_the_upload(world: TappedWorld) -> None:
    async with world.store() as storage:
        upload = await uploaded(storage)
        world.blobs.target.in_parts.clear()
        for call in (upload.upload_part(1, b"x"), upload.parts()):
            with pytest.raises(UploadEndedError):
                await call
        with pytest.raises(UploadEndedError) as caught:
            await upload.complete()
        assert caught.value.completed is False and await read(storage) is None
    assert await is_over(world)


async def test_a_blob_that_is_not_what_its_parts_are_is_removed_and_never_shown(world: TappedWorld) -> None:
    async def damaged(real: Any, *args: Any) -> Any:
        await real(*args)
        raise SessionEndedError("it is not what its parts are").telling(heard=True)

    async with world.store() as storage:
        upload = await uploaded(storage)
        world.blobs.hooks["complete_parts"] = damaged
        with pytest.raises(UploadEndedError) as caught:
            await upload.complete()
        assert caught.value.completed is False and await read(storage) is None
    assert await is_over(world)


async def test_a_completion_that_lands_after_its_upload_was_cancelled_leaves_no_blob(world: TappedWorld) -> None:
    """Nobody promises of GCS that a completion which is under way fails when the upload is cancelled."""
    async def under_way(real: Any, name: str, session: str, parts: Any) -> Any:
        payload = b"".join(whole for _, (_, whole) in sorted(world.blobs.target.in_parts[session].parts.items()))
        landing.append((name, payload))
        raise UnconfirmedError("no answer")

    landing: list[tuple[str, bytes]] = []
    async with world.store() as storage:
        upload = await uploaded(storage)
        world.blobs.hooks["complete_parts"] = under_way
        with pytest.raises(UnavailableError):
            await upload.complete()
        del world.blobs.hooks["complete_parts"]
        await upload.abort()
        assert not world.blobs.target.in_parts and not await world.blob_names()
        [(name, payload)] = landing
        world.blobs.target.plant(name, Metadata(), payload)
        assert (await the_entry(world)).cleanup_after_ms is not None
    await world.runtime.sleep(1000)
    await world.recovery().run_once()
    assert await world.is_clean()


# --- wrong calls, and a log that is away ------------------------------------------------------------


async def test_wrong_arguments_name_themselves_and_change_nothing(world: TappedWorld) -> None:
    async with world.store() as storage:
        upload = await uploaded(storage)
        parts = list(await upload.parts())
        before = await the_entry(world)
        wrong: list[Any] = [
            upload.upload_part(0, b""), upload.upload_part(10_001, b""), upload.upload_part(True, b""), upload.upload_part("1", b""),  # type: ignore[arg-type]
            upload.upload_part(1, "text"), upload.upload_part(1, b"", checksums={"sha1": "x"}),  # type: ignore[arg-type]
            upload.complete([]), upload.complete(parts[::-1]), upload.complete([*parts, parts[0]]), upload.complete("parts"),  # type: ignore[arg-type]
            upload.complete([1]), upload.complete(7),  # type: ignore[list-item, arg-type]
            *(upload.complete([*parts[:-1], replace(parts[-1], **lie)]) for lie in LIES),
            storage.begin_multipart("id"), storage.begin_multipart(OBJECT, {}),  # type: ignore[arg-type]
            storage.begin_multipart(OBJECT, if_absent=1),  # type: ignore[arg-type]
        ]
        for call in wrong:
            with pytest.raises(InvalidRequestError):
                await call
        for name in ("", "x", 7, None):
            with pytest.raises(InvalidRequestError):
                storage.multipart(OBJECT, name)  # type: ignore[arg-type]
        assert await the_entry(world) == before and await upload.parts() == parts


async def test_an_upload_without_a_part_is_said_so_and_one_of_no_bytes_is_an_object(world: TappedWorld) -> None:
    async with world.store() as storage:
        upload = await storage.begin_resumable(OBJECT)
        with pytest.raises(InvalidRequestError, match="has no part yet"):
            await upload.finish()
        assert await upload.append(0, b"", final=True) == 0
        await upload.finish()
        assert await read(storage) == b""


async def test_a_part_that_is_too_large_is_refused_before_it_is_sent(world: TappedWorld) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(8 << 20)

    async with world.store() as storage:
        upload = await storage.begin_multipart(OBJECT)
        with pytest.raises(InvalidRequestError, match=str(PART_BYTES_MAX)):
            await upload.upload_part(1, endless())
        assert await upload.parts() == []


async def test_a_size_that_was_declared_must_be_that_of_the_parts(world: TappedWorld) -> None:
    async with world.store() as storage:
        upload = await storage.begin_multipart(OBJECT, Metadata(size=7))
        await upload.upload_part(1, b"12345")
        with pytest.raises(InvalidRequestError, match="declares 7 bytes"):
            await upload.complete()
        await upload.upload_part(2, b"67")
        await upload.complete()
        assert await read(storage) == b"1234567"


async def test_an_upload_that_does_not_exist_has_ended(world: TappedWorld) -> None:
    async with world.store() as storage:
        nobodys = storage.multipart(OBJECT, "018bcfe5-6800-7000-8000-000000000001")
        for call in (nobodys.upload_part(1, b"x"), nobodys.parts(), nobodys.complete(), nobodys.abort()):
            with pytest.raises(UploadEndedError, match="never was") as caught:
                await call
            assert caught.value.completed is None


async def test_without_a_changelog_none_is_begun(world: TappedWorld) -> None:
    async with TieredStorage(world.tiers, NoopChangeLog(), world.runtime, world.settings()) as storage:
        with pytest.raises(ConfigurationError, match="changelog"):
            await storage.begin_multipart(OBJECT)
    assert not world.blobs.target.in_parts


@pytest.mark.parametrize("error", [UnconfirmedError("no answer"), UnavailableError("away")])
async def test_a_beginning_that_is_not_recorded_leaves_no_session(world: TappedWorld, error: Exception) -> None:
    world.log.hooks["open"] = fails(error)
    async with world.store() as storage:
        with pytest.raises(UnavailableError):
            await storage.begin_multipart(OBJECT)
    assert not world.blobs.target.in_parts and not await world.entries()


ODD_TIME = '{"metadata":"{}","condition":null,"until":"x","since":null,"parts":null,"size":null}'


@pytest.mark.parametrize("damage", ['{"metadata":1}', "[]", "no json", ODD_TIME])
async def test_an_entry_that_is_damaged_is_said_so_and_changes_nothing(world: TappedWorld, damage: str) -> None:
    async with world.store() as storage:
        upload = await uploaded(storage)
        entry = await the_entry(world)
        assert await world.log.target.amend(entry, replace(entry, assembling=damage))
        with pytest.raises(CorruptRecordError, match=str(upload.id)):
            await upload.complete()
        assert len(await upload.parts()) == 3


async def test_what_an_entry_keeps_is_read_back_as_it_was() -> None:
    entry = Entry(*[None] * 3)  # type: ignore[arg-type]
    opened = OpenUpload(Metadata(TimeToLive(timedelta(days=1)), content_type="a/b", custom={"k": "ü"}, size=3), None, 5, 4, "ab", 3)
    assert OpenUpload.of(replace(entry, assembling=opened.encode())) == opened
    assert "size_max" not in opened.encode(), "as in entries of earlier versions"
    bounded = replace(opened, size_max=1000)
    assert OpenUpload.of(replace(entry, assembling=bounded.encode())) == bounded
    assert json.loads(opened.encode())["until"] == 5
    assert isinstance(Part(1, 2, None, "e"), Part)
