"""What every long-term tier must do that takes blobs in parts: each sentence of `PartUploads`, one test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import anyio
import pytest

from changelog.base.errors import CorruptRecordError, InvalidRequestError, UnavailableError
from changelog.base.runtime import Runtime
from changelog.change import ChangeId
from tiered.metadata import Metadata
from tiered.object_id import blob_name
from tiered.payload.chunks import Chunk
from tiered.services.backends import LongTermBackend, SessionEndedError
from tiered.services.capabilities import PART_BYTES_MIN, PART_NUMBER_MAX, PARTS_SESSION, Part, PartUploads
from tiered.testing.contracts.long_term import FULL_METADATA, metadata_of, names, read_back
from tiered.testing.contracts.whole_blobs import read, store

pytestmark = pytest.mark.anyio

PLAIN = Metadata()
KIB, MIB = 1024, 1024 * 1024
FIRST = b"first, " + bytes(PART_BYTES_MIN)
"""A part that is not the last. A service may refuse a smaller one, when the blob is completed."""


class PartsTier(LongTermBackend, PartUploads, Protocol):
    """A long-term tier that takes blobs in parts."""


@pytest.fixture
def name(runtime: Runtime) -> str:
    return blob_name("attachments/org.17/objects/ab c/größe", ChangeId.new(runtime))


async def put_all(tier: PartsTier, name: str, session: str, payloads: Sequence[bytes] = (FIRST, b"last")) -> list[Part]:
    return [await tier.put_part(name, session, number, [payload]) for number, payload in enumerate(payloads, 1)]


async def expect_ended(call: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(SessionEndedError) as raised:
        await call()
    assert raised.value.heard is True


async def test_uploads_that_have_not_ended_are_listed_page_by_page(parts_tier: PartsTier, runtime: Runtime) -> None:
    now_ns = await parts_tier.now_ns() + 3_600 * 10**9
    wanted = [blob_name("a/objects/é ☃", ChangeId.new(runtime)) for _ in range(5)]
    sessions = {await parts_tier.begin_parts(name, PLAIN): name for name in wanted}
    ended, completed, *_ = sessions
    await parts_tier.cancel(ended)
    part = await parts_tier.put_part(sessions[completed], completed, 1, [b"whole"])
    await parts_tier.complete_parts(sessions[completed], completed, [part])
    found: dict[str, str] = {}
    after: str | None = ""
    pages = 0
    while after is not None:
        page = await parts_tier.open_sessions(now_ns, after, 2)
        found.update({each.session: each.name for each in page.sessions})
        after, pages = page.next_after, pages + 1
    assert found == {session: name for session, name in sessions.items() if session not in (ended, completed)}
    assert pages in (2, 3), "a last page may be empty"
    assert (await parts_tier.open_sessions(now_ns - 2 * 3_600 * 10**9, "", 100)).sessions == []


async def test_a_blob_is_there_when_its_parts_are_completed_and_not_before(parts_tier: PartsTier, name: str) -> None:
    session = await parts_tier.begin_parts(name, PLAIN)
    parts = await put_all(parts_tier, name, session)
    assert await parts_tier.open(name) is None and await names(parts_tier) == []
    await parts_tier.complete_parts(name, session, parts)
    assert await read(parts_tier, name) == FIRST + b"last" and await names(parts_tier) == [name]


@pytest.mark.parametrize(
    "metadata",
    [PLAIN, FULL_METADATA, Metadata(filename="größe", custom={"empty": "", "UPPER": "case", "key": "x" * 5000, "_": "a b"})],
)
async def test_the_metadata_are_those_of_the_beginning(parts_tier: PartsTier, name: str, metadata: Metadata) -> None:
    session = await parts_tier.begin_parts(name, metadata)
    await parts_tier.complete_parts(name, session, await put_all(parts_tier, name, session, [b"only"]))
    assert await metadata_of(parts_tier, name) == await read_back(parts_tier, name, metadata, 4)


async def test_parts_come_in_any_order_and_at_once_and_numbers_may_be_left_out(parts_tier: PartsTier, name: str) -> None:
    session = await parts_tier.begin_parts(name, PLAIN)
    assert list(await parts_tier.parts(name, session)) == []
    payloads = {number: bytes([number % 251]) * (PART_BYTES_MIN + number) for number in (PART_NUMBER_MAX, 7, 1)}
    put: dict[int, Part] = {}

    async def put_one(number: int) -> None:
        half = len(payloads[number]) // 2
        chunks: list[Chunk] = [memoryview(payloads[number])[:half], payloads[number][half:], b""]
        put[number] = await parts_tier.put_part(name, session, number, chunks)

    async with anyio.create_task_group() as tasks:
        for number in payloads:
            tasks.start_soon(put_one, number)
    assert [(part.number, part.size) for part in put.values()] == [(number, len(payloads[number])) for number in put]
    listed = list(await parts_tier.parts(name, session))
    in_order = [put[number] for number in sorted(put)]
    assert [replace(part, checksum=None) for part in listed] == [replace(part, checksum=None) for part in in_order]
    await parts_tier.complete_parts(name, session, in_order)
    assert await read(parts_tier, name) == b"".join(payloads[number] for number in sorted(payloads))


async def test_what_a_listing_tells_is_enough_to_complete(parts_tier: PartsTier, name: str) -> None:
    session = await parts_tier.begin_parts(name, PLAIN)
    await put_all(parts_tier, name, session)
    listed = await parts_tier.parts(name, session)
    for _ in range(2):
        await parts_tier.complete_parts(name, session, listed)
    assert await read(parts_tier, name) == FIRST + b"last"


async def test_of_a_number_the_last_upload_counts_and_equal_bytes_have_equal_checksums(parts_tier: PartsTier, name: str) -> None:
    session = await parts_tier.begin_parts(name, PLAIN)
    older = await parts_tier.put_part(name, session, 1, [b"older"])
    newer = await parts_tier.put_part(name, session, 1, [b"ne", b"wer"])
    same = await parts_tier.put_part(name, session, 2, [b"older"])
    assert older.checksum is not None and older.checksum == same.checksum != newer.checksum
    with pytest.raises(InvalidRequestError):
        await parts_tier.complete_parts(name, session, [older, same])
    assert await parts_tier.open(name) is None
    await parts_tier.complete_parts(name, session, [newer])
    assert await read(parts_tier, name) == b"newer", "and the part that was not named is dropped"


async def test_a_large_part_of_many_chunks_and_an_empty_one_are_parts(parts_tier: PartsTier, name: str) -> None:
    payload = bytes(range(256)) * (6 * MIB // 256)
    session = await parts_tier.begin_parts(name, PLAIN)
    chunks = [memoryview(payload)[start : start + 100_000] for start in range(0, len(payload), 100_000)]
    parts = [await parts_tier.put_part(name, session, 1, chunks), await parts_tier.put_part(name, session, 2, [])]
    await parts_tier.complete_parts(name, session, parts)
    assert await read(parts_tier, name) == payload


async def test_one_empty_part_is_an_empty_blob(parts_tier: PartsTier, name: str) -> None:
    session = await parts_tier.begin_parts(name, PLAIN)
    await parts_tier.complete_parts(name, session, [await parts_tier.put_part(name, session, 1, [])])
    assert await read(parts_tier, name) == b""


async def test_completing_is_repeatable_and_ends_the_session(parts_tier: PartsTier, name: str) -> None:
    session = await parts_tier.begin_parts(name, PLAIN)
    parts = await put_all(parts_tier, name, session)
    for _ in range(3):
        await parts_tier.complete_parts(name, session, parts)
    await expect_ended(partial(parts_tier.put_part, name, session, 1, [b"late"]))
    await expect_ended(partial(parts_tier.parts, name, session))
    for others in ([parts[0]], [parts[0], replace(parts[1], checksum=parts[0].checksum)]):
        with pytest.raises(SessionEndedError):  # that is not the blob which is there
            await parts_tier.complete_parts(name, session, others)
    await parts_tier.cancel(session)
    assert await read(parts_tier, name) == FIRST + b"last"


async def test_a_session_that_was_cancelled_can_never_be_completed(parts_tier: PartsTier, name: str) -> None:
    session = await parts_tier.begin_parts(name, PLAIN)
    parts = await put_all(parts_tier, name, session)
    for _ in range(2):
        await parts_tier.cancel(session)
    await expect_ended(partial(parts_tier.put_part, name, session, 1, [b"late"]))
    await expect_ended(partial(parts_tier.parts, name, session))
    await expect_ended(partial(parts_tier.complete_parts, name, session, parts))
    assert await parts_tier.open(name) is None and await names(parts_tier) == []


async def test_after_the_blob_was_deleted_its_session_makes_no_other(parts_tier: PartsTier, name: str) -> None:
    session = await parts_tier.begin_parts(name, PLAIN)
    parts = await put_all(parts_tier, name, session)
    await parts_tier.complete_parts(name, session, parts)
    await parts_tier.cancel(session)
    await parts_tier.delete(name)
    await expect_ended(partial(parts_tier.complete_parts, name, session, parts))
    assert await names(parts_tier) == []


async def test_a_session_is_of_one_blob(parts_tier: PartsTier, name: str) -> None:
    session = await parts_tier.begin_parts(name, PLAIN)
    parts = await put_all(parts_tier, name, session)
    upload = await parts_tier.open_upload(name, PLAIN, None)
    others = [] if (upload.session or "").startswith(PARTS_SESSION) else [(name, upload.session or "")]
    for of, wrong in ((f"{name}x", session), (name, "nonsense"), (name, "parts:"), *others):
        for call in (
            partial(parts_tier.put_part, of, wrong, 1, [b"x"]), partial(parts_tier.parts, of, wrong),
            partial(parts_tier.complete_parts, of, wrong, parts),
        ):  # fmt: skip
            with pytest.raises((CorruptRecordError, InvalidRequestError)):
                await call()
    await upload.abort()
    await parts_tier.complete_parts(name, session, parts)
    assert await names(parts_tier) == [name]


async def test_parts_are_named_in_order_and_once_and_are_there(parts_tier: PartsTier, name: str) -> None:
    session = await parts_tier.begin_parts(name, PLAIN)
    one, two = await put_all(parts_tier, name, session)
    for wrong in ([], [two, one], [one, one], [one, replace(two, number=3)], [replace(one, number=0)]):
        with pytest.raises(InvalidRequestError):
            await parts_tier.complete_parts(name, session, wrong)
    for number in (0, -1, PART_NUMBER_MAX + 1):
        with pytest.raises(InvalidRequestError):
            await parts_tier.put_part(name, session, number, [b"x"])
    await parts_tier.complete_parts(name, session, [one, two])
    assert await read(parts_tier, name) == FIRST + b"last"


async def test_a_list_that_lies_about_a_part_changes_nothing(parts_tier: PartsTier, name: str) -> None:
    session = await parts_tier.begin_parts(name, PLAIN)
    one, two = await put_all(parts_tier, name, session)
    lies: list[dict[str, Any]] = [
        {"size": two.size + 1}, {"size": 0}, {"size": -two.size}, {"size": True}, {"size": "4"}, {"number": True}, {"number": "2"},
        {"etag": "x"}, {"etag": ""}, {"etag": None}, {"etag": "\ud800"}, {"checksum": "x"}, {"checksum": "crc32c=x"}, {"checksum": 7},
    ]
    for lie in lies:
        with pytest.raises(InvalidRequestError):
            await parts_tier.complete_parts(name, session, [one, replace(two, **lie)])
    assert await parts_tier.open(name) is None
    await parts_tier.complete_parts(name, session, [one, two])
    for lie in lies:
        with pytest.raises((InvalidRequestError, SessionEndedError)):
            await parts_tier.complete_parts(name, session, [one, replace(two, **{"size": two.size + 1, "checksum": "x", **lie})])
    assert await read(parts_tier, name) == FIRST + b"last"


async def test_completion_raced_by_cancel_succeeds_exactly_if_the_blob_is_there(parts_tier: PartsTier, runtime: Runtime) -> None:
    completed = []

    async def complete(name: str, session: str, parts: Sequence[Part]) -> None:
        try:
            await parts_tier.complete_parts(name, session, parts)
        except UnavailableError:
            return
        completed.append(name)

    raced = [blob_name("race/objects/key", ChangeId.new(runtime)) for _ in range(20)]
    for name in raced:
        session = await parts_tier.begin_parts(name, PLAIN)
        parts = await put_all(parts_tier, name, session, [b"only"])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(complete, name, session, parts)
            tasks.start_soon(parts_tier.cancel, session)
            tasks.start_soon(complete, name, session, parts)
    assert await names(parts_tier) == sorted(set(completed))


async def test_a_part_raced_by_cancel_leaves_nothing(parts_tier: PartsTier, name: str) -> None:
    session = await parts_tier.begin_parts(name, PLAIN)

    async def put(number: int) -> None:
        try:
            await parts_tier.put_part(name, session, number, [b"x" * 100 * KIB])
        except UnavailableError:
            return

    async with anyio.create_task_group() as tasks:
        for number in range(1, 9):
            tasks.start_soon(put, number)
        tasks.start_soon(parts_tier.cancel, session)
    await expect_ended(partial(parts_tier.parts, name, session))


async def test_a_blob_made_of_parts_is_a_blob_like_any_other(parts_tier: PartsTier, name: str, runtime: Runtime) -> None:
    session = await parts_tier.begin_parts(name, FULL_METADATA)
    await parts_tier.complete_parts(name, session, await put_all(parts_tier, name, session))
    assert FULL_METADATA.time_expires_ns is not None
    later_ns = FULL_METADATA.time_expires_ns + 10**12
    assert await parts_tier.touch(name, later_ns)
    head = await parts_tier.head(name)
    assert head is not None and head.metadata.time_expires_ns == later_ns and head.metadata.filename == FULL_METADATA.filename
    copy = blob_name("copied/objects/key", ChangeId.new(runtime))
    pending = await parts_tier.open_copy(name, head.generation, copy, replace(head.metadata, size=None))
    await pending.finalise()
    assert await read(parts_tier, copy) == FIRST + b"last" and (await metadata_of(parts_tier, copy)).custom == FULL_METADATA.custom
    await parts_tier.delete(name)
    await store(parts_tier, name, b"again")
    assert await read(parts_tier, name) == b"again"
