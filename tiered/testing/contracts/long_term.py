"""What every long-term tier must do: each sentence of `LongTermBackend`, `Upload` and `BlobReader`, one test."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from changelog.base.errors import InvalidRequestError, UnavailableError
from changelog.base.runtime import Runtime
from changelog.change import ChangeId
from tiered.errors import RangeNotSatisfiableError
from tiered.metadata import NS_PER_S, Metadata, TimeToIdle, TimeToLive
from tiered.object_id import PATH_BYTES_MAX, blob_name
from tiered.services.backends import BlobHead, ByteRange, DamagedError, LongTermBackend, RangedReader, Upload
from tiered.services.capabilities import BatchDeletion, BlobRestoration, GenerationLookup
from tiered.services.scans import Generation, NotCopied, Removal
from tiered.testing.contracts.examples import examples
from tiered.testing.contracts.whole_blobs import begin, read, store

pytestmark = pytest.mark.anyio

KIB, MIB = 1024, 1024 * 1024
SECOND_NS = 1_000_000_000
"""No store keeps nanoseconds, and S3 tells whole seconds."""
DEADLINE_NS = 2_000_000_000_123_000_000
METADATA = Metadata()
FULL_METADATA = Metadata(
    expiration=TimeToLive(timedelta(hours=1)), time_created_ns=1_700_000_000_123_456_789, time_expires_ns=1_700_003_600_123_000_000,
    content_type="text/plain; charset=utf-8", compression="Zstd", origin="203.0.113.42", filename="größe 🙂.txt",
    custom={"build_id": "a/b", "Trouble": "ü"}, unknown={"newer": {"nested": [1, None, "x"]}},
)  # fmt: skip


@pytest.fixture
def name(runtime: Runtime) -> str:
    return blob_name("attachments/org.17/objects/abc123", ChangeId.new(runtime))


async def metadata_of(blobs: LongTermBackend, name: str) -> Metadata:
    reader = await blobs.open(name)
    assert reader is not None
    await reader.aclose()
    return reader.metadata


async def read_back(blobs: LongTermBackend, name: str, metadata: Metadata, size: int) -> Metadata:
    """What is read of a blob with such metadata.

    The size is filled in, and so is the blob's own time of creation where none was given.
    """
    head = await blobs.head(name)
    assert head is not None
    return replace(metadata, size=size, time_created_ns=head.created_ns if metadata.time_created_ns is None else metadata.time_created_ns)


async def names(blobs: LongTermBackend, start: str = "", end: str | None = None, limit: int = 1000) -> list[str]:
    """All of the range, in pages of up to `limit`."""
    found: list[str] = []
    next_start: str | None = start
    while next_start is not None:
        page = await blobs.list(next_start, end, limit)
        assert len(page.blobs) <= limit and not page.oddities
        assert page.next_start is None or next_start < page.next_start
        found += [info.name for info in page.blobs]
        next_start = page.next_start
    return found


def another(generation: Generation) -> Generation:
    """A generation that is not this one."""
    return generation[:-1] + ("1" if generation.endswith("0") else "0")


def in_byte_order(names: Iterable[str]) -> list[str]:
    return sorted(names, key=str.encode)


# --- uploads -------------------------------------------------------------------------------------


async def test_nothing_is_visible_before_finalise_and_everything_after(long_term: LongTermBackend, name: str) -> None:
    upload = await begin(long_term, name)
    assert await long_term.open(name) is None
    assert await names(long_term) == []
    assert not await long_term.touch(name, DEADLINE_NS)
    await upload.finalise()
    assert await read(long_term, name) == b"payload"
    assert await names(long_term) == [name]


async def test_an_empty_payload_is_a_blob_of_no_bytes(long_term: LongTermBackend, name: str) -> None:
    await (await long_term.open_upload(name, METADATA, 0)).finalise()
    assert await read(long_term, name) == b""
    assert (await metadata_of(long_term, name)).size == 0


@pytest.mark.parametrize("piece_bytes", [100_000, 256 * KIB, MIB])
async def test_a_payload_of_three_mebibytes_streams_through_whole(long_term: LongTermBackend, name: str, piece_bytes: int) -> None:
    payload = bytes(range(256)) * (3 * MIB // 256)
    upload = await long_term.open_upload(name, METADATA, len(payload))
    for start in range(0, len(payload), piece_bytes):
        await upload.write(memoryview(payload)[start : start + piece_bytes])
    await upload.finalise()
    assert await read(long_term, name) == payload


async def test_chunks_of_any_size_arrive_in_order(long_term: LongTermBackend, name: str) -> None:
    chunks = [bytes([n]) * n for n in range(200)] + [b"x" * 300 * KIB, b"y", b"", b"z" * 256 * KIB, b"end"]
    upload = await long_term.open_upload(name, METADATA, None)
    for chunk in chunks:
        await upload.write(chunk)
    await upload.finalise()
    assert await read(long_term, name) == b"".join(chunks)


async def test_a_blob_is_created_only_and_never_overwritten(long_term: LongTermBackend) -> None:
    name = "legacy/objects/without-revision"
    late = await begin(long_term, name, b"second")
    await store(long_term, name, b"first")
    with pytest.raises(UnavailableError, match="legacy/objects/without-revision"):
        await late.finalise()
    assert await read(long_term, name) == b"first"


async def test_an_upload_of_a_revision_that_exists_changes_nothing(long_term: LongTermBackend, name: str) -> None:
    await store(long_term, name, b"first")
    with pytest.raises(UnavailableError):
        await store(long_term, name, b"second")
    assert await read(long_term, name) == b"first"


async def test_of_uploads_finalised_at_once_under_one_name_exactly_one_wins(long_term: LongTermBackend) -> None:
    name, won = "legacy/objects/contested", []
    uploads = {payload: await begin(long_term, name, payload) for payload in (b"a", b"b", b"c", b"d", b"e")}

    async def finalise(payload: bytes) -> None:
        try:
            await uploads[payload].finalise()
        except UnavailableError:
            return
        won.append(payload)

    async with anyio.create_task_group() as tasks:
        for payload in uploads:
            tasks.start_soon(finalise, payload)
    assert len(won) == 1
    assert await read(long_term, name) == won[0]


async def test_a_session_that_was_cancelled_can_never_be_finalised(long_term: LongTermBackend, name: str) -> None:
    stalled = await begin(long_term, name)
    assert stalled.session is not None
    await long_term.cancel(stalled.session)
    with pytest.raises(UnavailableError):
        await stalled.finalise()
    assert await long_term.open(name) is None
    assert await names(long_term) == []


async def test_a_session_cancelled_while_it_is_written_fails_at_the_end_at_the_latest(long_term: LongTermBackend, name: str) -> None:
    stalled = await begin(long_term, name)
    assert stalled.session is not None
    await long_term.cancel(stalled.session)
    with pytest.raises(UnavailableError):  # noqa: PT012 - either may be the first to know
        await stalled.write(b"x" * MIB)
        await stalled.finalise()
    assert await long_term.open(name) is None


async def test_cancelling_after_finalise_keeps_the_blob(long_term: LongTermBackend, name: str) -> None:
    upload = await begin(long_term, name)
    assert upload.session is not None
    await upload.finalise()
    await long_term.cancel(upload.session)
    assert await read(long_term, name) == b"payload"


async def test_cancelling_is_repeatable_and_a_session_that_is_gone_is_no_error(long_term: LongTermBackend, name: str) -> None:
    upload = await begin(long_term, name)
    assert upload.session is not None
    await long_term.cancel(upload.session)
    await long_term.cancel(upload.session)
    await upload.abort()
    assert await long_term.open(name) is None


async def test_finalise_raced_by_cancel_succeeds_exactly_if_the_blob_is_there(long_term: LongTermBackend, runtime: Runtime) -> None:
    finalised = []

    async def finalise(name: str, upload: Upload) -> None:
        try:
            await upload.finalise()
        except UnavailableError:
            return
        finalised.append(name)

    raced = [blob_name("race/objects/key", ChangeId.new(runtime)) for _ in range(20)]
    for name in raced:
        upload = await begin(long_term, name)
        assert upload.session is not None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(finalise, name, upload)
            tasks.start_soon(long_term.cancel, upload.session)
    assert await names(long_term) == in_byte_order(finalised)


async def test_an_aborted_upload_leaves_nothing_however_often_it_is_aborted(long_term: LongTermBackend, name: str) -> None:
    upload = await begin(long_term, name)
    await upload.abort()
    await upload.abort()
    assert await long_term.open(name) is None
    assert await names(long_term) == []


async def test_an_abort_after_finalise_keeps_the_blob(long_term: LongTermBackend, name: str) -> None:
    upload = await begin(long_term, name)
    await upload.finalise()
    await upload.abort()
    assert await read(long_term, name) == b"payload"


@pytest.mark.parametrize("payload", [b"four", b"sixsix"])
async def test_a_payload_of_another_size_than_declared_is_refused_and_leaves_nothing(
    long_term: LongTermBackend, name: str, payload: bytes
) -> None:
    upload = await long_term.open_upload(name, METADATA, 5)
    with pytest.raises(InvalidRequestError, match="5"):  # noqa: PT012 - what is too long may be refused at once
        await upload.write(payload)
        await upload.finalise()
    await upload.abort()
    assert await long_term.open(name) is None
    assert await names(long_term) == []


# --- metadata ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "metadata",
    [
        METADATA,
        FULL_METADATA,
        Metadata(expiration=TimeToIdle(timedelta(days=30)), time_expires_ns=DEADLINE_NS),
        Metadata(expiration=TimeToLive(ns=1), time_expires_ns=1_700_000_000_000_000_000),
        Metadata(custom={"empty": "", "key": "x" * 5000}),
        Metadata(custom={f"tiered-{key}": "5" for key in ("created", "expires", "nonce", "crc32c", "source")}),
    ],
)
async def test_metadata_are_read_as_they_were_written_with_the_size_filled_in(
    long_term: LongTermBackend, name: str, metadata: Metadata
) -> None:
    await store(long_term, name, b"12345", metadata)
    assert await metadata_of(long_term, name) == await read_back(long_term, name, metadata, 5)


async def test_a_blob_was_created_when_the_caller_says_and_else_by_the_services_clock(
    long_term: LongTermBackend, name: str, runtime: Runtime
) -> None:
    before_ns = runtime.wall_ns()
    await store(long_term, name)
    await store(long_term, f"{name}-told", metadata=Metadata(time_created_ns=5))
    own, told = await long_term.head(name), await long_term.head(f"{name}-told")
    assert own is not None and own.metadata.time_created_ns == own.created_ns
    assert told is not None and told.metadata.time_created_ns == 5
    assert all(before_ns - SECOND_NS <= head.created_ns <= runtime.wall_ns() for head in (own, told))


async def test_an_expired_blob_is_still_there_because_readers_judge_expiry(long_term: LongTermBackend, name: str) -> None:
    await store(long_term, name, metadata=Metadata(expiration=TimeToLive(ns=1), time_expires_ns=1_000_000))
    assert await read(long_term, name) == b"payload"
    assert await names(long_term) == [name]


async def test_touch_extends_the_deadline_and_never_shortens_it(long_term: LongTermBackend, name: str) -> None:
    idle = Metadata(expiration=TimeToIdle(timedelta(days=1)), time_expires_ns=DEADLINE_NS)
    later = DEADLINE_NS + 86_400_000_000_000
    await store(long_term, name, metadata=idle)
    assert await long_term.touch(name, later)
    # A reader may tell the deadline of the blob's creation: to readers of the store, the row's counts.
    assert await metadata_of(long_term, name) in [
        await read_back(long_term, name, replace(idle, time_expires_ns=expires_ns), 7) for expires_ns in (DEADLINE_NS, later)
    ]
    assert await long_term.touch(name, DEADLINE_NS)
    head = await long_term.head(name)
    assert head is not None and head.metadata.time_expires_ns == later
    assert [info.deadline_ns for info in (await long_term.list("", None, 10)).blobs] == [later]
    assert await read(long_term, name) == b"payload"


async def test_touching_a_blob_that_never_expires_gives_it_no_deadline(long_term: LongTermBackend, name: str) -> None:
    await store(long_term, name)
    assert await long_term.touch(name, DEADLINE_NS)
    assert (await metadata_of(long_term, name)).time_expires_ns is None


async def test_touching_a_blob_that_is_not_there_says_so(long_term: LongTermBackend, name: str) -> None:
    assert not await long_term.touch(name, DEADLINE_NS)
    await store(long_term, name)
    await long_term.delete(name)
    assert not await long_term.touch(name, DEADLINE_NS)


# --- reads ---------------------------------------------------------------------------------------


async def test_a_blob_that_is_not_there_opens_as_none(long_term: LongTermBackend, name: str) -> None:
    assert await long_term.open(name) is None
    assert await long_term.open(name, ByteRange(5)) is None


@examples(25)
@given(size=st.integers(1, 40), start=st.integers(-50, 50), stop=st.none() | st.integers(-5, 60))
@example(size=10, start=-3, stop=None)
@example(size=10, start=0, stop=10)
@example(size=10, start=10, stop=None)
async def test_a_range_is_a_slice_or_refused(
    long_term: LongTermBackend, runtime: Runtime, size: int, start: int, stop: int | None
) -> None:
    name, payload = blob_name("ranges/objects/key", ChangeId.new(runtime)), bytes(range(size))
    await store(long_term, name, payload)
    first = max(0, size + start) if start < 0 else start
    if first >= size or (stop is not None and stop < first):
        with pytest.raises(RangeNotSatisfiableError, match=f"{size} bytes"):
            await long_term.open(name, ByteRange(start, stop))
    else:
        assert await read(long_term, name, ByteRange(start, stop)) == payload[first:stop]


async def test_a_range_of_a_large_blob_crosses_chunks_and_keeps_the_size_of_the_whole(long_term: LongTermBackend, name: str) -> None:
    payload = bytes(range(256)) * (MIB // 256)
    await store(long_term, name, payload)
    reader = await long_term.open(name, ByteRange(200_000, 900_001))
    assert reader is not None
    assert (reader.size, reader.metadata.size) == (MIB, MIB)
    assert b"".join([chunk async for chunk in reader.chunks()]) == payload[200_000:900_001]
    await reader.aclose()


async def test_ranges_of_an_open_blob_are_slices_of_its_generation_and_verified_as_a_whole(
    long_term: LongTermBackend, name: str
) -> None:
    payload = bytes(range(256)) * (MIB // 256) + b"end"
    await store(long_term, name, payload)
    reader = await long_term.open(name)
    assert reader is not None
    if not isinstance(reader, RangedReader):
        await reader.aclose()
        pytest.skip("it gives one stream")
    ranges = reader.ranges()
    parts: list[tuple[int, int]] = []
    for start, stop in ((0, 1), (1, 300_000), (300_000, MIB + 3)):
        part = await ranges.open(start, stop)
        assert part is not None
        check, got = 0, b""
        async for chunk in part.chunks():
            check, got = ranges.extend(check, chunk), got + chunk
        await part.aclose()
        assert got == payload[start:stop]
        parts.append((check, stop - start))
    ranges.check(parts)
    if reader.checksum is not None:
        with pytest.raises(DamagedError):
            ranges.check([(ranges.extend(0, b"x"), 1), *parts[1:]])
    await long_term.delete(name)
    assert await ranges.open(1, 2) is None
    await store(long_term, name, b"another")
    assert await ranges.open(1, 2) is None
    await reader.aclose()


async def test_a_blob_deleted_while_it_is_read_yields_its_own_bytes_or_fails(long_term: LongTermBackend) -> None:
    name, payload, got = "legacy/objects/key", b"old" * MIB, []
    await store(long_term, name, payload)
    reader = await long_term.open(name)
    assert reader is not None
    try:
        async for chunk in reader.chunks():
            got.append(chunk)
            if len(got) == 1:
                await long_term.delete(name)
                await store(long_term, name, b"new" * MIB)
        assert b"".join(got) == payload
    except UnavailableError:
        assert payload.startswith(b"".join(got))
    await reader.aclose()
    assert await read(long_term, name) == b"new" * MIB


async def test_closing_a_reader_is_repeatable_at_any_moment(long_term: LongTermBackend, name: str) -> None:
    await store(long_term, name)
    unread, whole = await long_term.open(name), await long_term.open(name)
    assert unread is not None and whole is not None
    assert [chunk async for chunk in whole.chunks()] == [b"payload"]
    for reader in (unread, unread, whole, whole):
        await reader.aclose()
    assert await read(long_term, name) == b"payload"


async def test_a_reader_that_is_closed_half_way_does_not_come_to_an_end(long_term: LongTermBackend, name: str) -> None:
    """Whoever reads on must not take what came until then for all of it."""
    payload = b"x" * MIB
    await store(long_term, name, payload)
    reader = await long_term.open(name)
    assert reader is not None
    chunks, got = reader.chunks(), b""
    try:
        got += await anext(chunks)
        await reader.aclose()
        async for chunk in chunks:
            got += chunk
    except (InvalidRequestError, UnavailableError):
        assert len(got) < len(payload)
    else:
        assert got == payload


# --- head ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("metadata", [METADATA, FULL_METADATA, Metadata(expiration=TimeToLive(ns=1), time_expires_ns=1_000_000)])
async def test_a_head_tells_what_a_reader_does_expired_or_not(long_term: LongTermBackend, name: str, metadata: Metadata) -> None:
    await store(long_term, name, b"12345", metadata)
    head = await long_term.head(name)
    [listed] = (await long_term.list("", None, 10)).blobs
    assert head == BlobHead(await read_back(long_term, name, metadata, 5), 5, listed.created_ns, listed.generation)
    assert head.metadata == await metadata_of(long_term, name)


async def test_a_head_tells_the_checksum_that_a_reader_tells(long_term: LongTermBackend, name: str) -> None:
    await store(long_term, name, b"12345")
    head, reader = await long_term.head(name), await long_term.open(name, ByteRange(1, 2))
    assert head is not None and reader is not None
    await reader.aclose()
    assert head.checksum == reader.checksum and head.checksum in (None, "crc32c=GNEjNQ==")


async def test_there_is_no_head_before_finalise_nor_after_delete(long_term: LongTermBackend, name: str) -> None:
    assert await long_term.head(name) is None
    upload = await begin(long_term, name)
    assert await long_term.head(name) is None
    await upload.finalise()
    head = await long_term.head(name)
    assert head is not None and (head.metadata, head.size) == (Metadata(size=7, time_created_ns=head.created_ns), 7)
    await long_term.delete(name)
    assert await long_term.head(name) is None


@pytest.mark.parametrize("size", [7, None], ids=["known", "not known"])
@pytest.mark.parametrize("payload", [b"payload", b"payload" * 100_000], ids=["short", "long"])
async def test_metadata_that_are_amended_before_the_end_are_all_that_anybody_sees(
    long_term: LongTermBackend, name: str, payload: bytes, size: int | None
) -> None:
    begun = replace(FULL_METADATA, custom={"begun": "1", "both": "begun"})
    upload = await long_term.open_upload(name, begun, None if size is None else len(payload))
    await upload.write(payload)
    upload.amend(replace(begun, custom={"begun": "1", "both": "amended", "Last": "a: ü"}))
    assert await long_term.head(name) is None
    await upload.finalise()
    found = await metadata_of(long_term, name)
    assert found.custom == {"begun": "1", "both": "amended", "Last": "a: ü"}
    assert found == replace(begun, size=len(payload), custom=found.custom)
    assert await read(long_term, name) == payload


async def test_a_head_shows_an_extended_deadline(long_term: LongTermBackend, name: str) -> None:
    idle = Metadata(expiration=TimeToIdle(timedelta(days=1)), time_expires_ns=DEADLINE_NS)
    await store(long_term, name, metadata=idle)
    before = await long_term.head(name)
    assert await long_term.touch(name, DEADLINE_NS + 1_000_000)
    assert before is not None
    touched = replace(before.metadata, time_expires_ns=DEADLINE_NS + 1_000_000)
    assert await long_term.head(name) == replace(before, metadata=touched)


# --- delete --------------------------------------------------------------------------------------


async def test_a_deleted_blob_is_gone_and_what_is_absent_is_deleted_already(long_term: LongTermBackend, name: str) -> None:
    await long_term.delete(name)
    await store(long_term, name)
    await long_term.delete(name)
    assert await long_term.open(name) is None
    assert await names(long_term) == []
    await long_term.delete(name)


async def test_a_deletion_tells_its_bytes_or_that_it_does_not_know_them(long_term: LongTermBackend, name: str) -> None:
    await store(long_term, name, bytes(1000))
    freed, nothing = await long_term.delete(name), await long_term.delete(name)
    assert (freed, nothing) == (None, None) or (freed is not None and freed >= 1000 and nothing == 0)


async def test_deleting_one_blob_leaves_its_neighbours(long_term: LongTermBackend) -> None:
    neighbours = ["u/objects/a", "u/objects/a b", "u/objects/ab", "u/objects/A"]
    for neighbour in neighbours:
        await store(long_term, neighbour, neighbour.encode())
    await long_term.delete("u/objects/a")
    assert await names(long_term) == ["u/objects/A", "u/objects/a b", "u/objects/ab"]
    assert [await read(long_term, neighbour) for neighbour in neighbours[1:]] == [neighbour.encode() for neighbour in neighbours[1:]]


async def test_a_generation_is_deleted_and_then_absent(long_term: LongTermBackend, name: str) -> None:
    assert await long_term.delete_generation(name, "1") is Removal.ABSENT
    await store(long_term, name)
    [listed] = (await long_term.list("", None, 10)).blobs
    assert await long_term.delete_generation(name, listed.generation) is Removal.DELETED
    assert await names(long_term) == []
    assert await long_term.delete_generation(name, listed.generation) is Removal.ABSENT


async def test_a_generation_that_has_the_name_now_stays_when_another_is_to_be_deleted(long_term: LongTermBackend, name: str) -> None:
    await store(long_term, name, b"first")
    first = await long_term.head(name)
    await long_term.delete(name)
    await store(long_term, name, b"second")
    second = await long_term.head(name)
    assert first is not None and second is not None
    assert await long_term.delete_generation(name, first.generation) is Removal.REPLACED
    assert await read(long_term, name) == b"second"
    assert await long_term.delete_generation(name, second.generation) is Removal.DELETED


async def test_a_touched_blob_keeps_its_generation(long_term: LongTermBackend, name: str) -> None:
    await store(long_term, name, b"idle", Metadata(expiration=TimeToIdle(timedelta(hours=1)), time_expires_ns=DEADLINE_NS))
    [listed] = (await long_term.list("", None, 10)).blobs
    await long_term.touch(name, DEADLINE_NS + 1_000_000_000)
    assert await long_term.delete_generation(name, listed.generation) is Removal.DELETED


async def _delete_at_once(long_term: LongTermBackend) -> list[str]:
    """What four deletions of one generation tell, sorted. Looks at what is left."""
    for name in ("u/objects/a", "u/objects/b"):
        await store(long_term, name)
    [first, _] = (await long_term.list("", None, 10)).blobs
    found: list[Removal] = []

    async def remove() -> None:
        found.append(await long_term.delete_generation("u/objects/a", first.generation))

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(remove)
    assert await names(long_term) == ["u/objects/b"]
    return sorted(each.name for each in found)


async def test_of_deletions_of_one_generation_at_once_none_fails_and_the_neighbours_stay(long_term: LongTermBackend) -> None:
    told = await _delete_at_once(long_term)
    assert len(told) == 4 and told[-1] == "DELETED" and set(told) <= {"ABSENT", "DELETED"}


async def test_of_deletions_of_one_generation_at_once_one_tells_that_it_deleted(long_term: LongTermBackend) -> None:
    assert await _delete_at_once(long_term) == ["ABSENT", "ABSENT", "ABSENT", "DELETED"]


async def test_many_deletions_in_one_request_are_each_by_itself(long_term: LongTermBackend, name: str) -> None:
    if not isinstance(long_term, BatchDeletion):
        return
    asked: list[tuple[str, Generation]] = []
    for each in (f"{name}-a", f"{name}-b", f"{name}-c"):
        await store(long_term, each)
        head = await long_term.head(each)
        assert head is not None
        asked.append((each, head.generation))
    replaced = (asked[1][0], another(asked[1][1]))
    expected = [Removal.DELETED, Removal.REPLACED, Removal.ABSENT, Removal.DELETED]
    assert await long_term.delete_generations([asked[0], replaced, (f"{name}-d", "1"), asked[2]]) == expected
    assert await names(long_term) == [asked[1][0]]
    assert await long_term.delete_generations(asked) == [Removal.ABSENT, Removal.DELETED, Removal.ABSENT]


async def test_a_second_look_at_listed_blobs_tells_which_generations_are_there(long_term: LongTermBackend, name: str) -> None:
    if not isinstance(long_term, GenerationLookup):
        return
    for each in (f"{name}-a", f"{name}-b", f"{name}-c"):
        await store(long_term, each)
    listed = (await long_term.list("", None, 10)).blobs
    generations = {each.name: each.generation for each in listed}
    assert await long_term.generations(listed) == generations and await long_term.generations([]) == {}
    await long_term.delete(f"{name}-a")
    await long_term.delete(f"{name}-b")
    await store(long_term, f"{name}-b")
    found = await long_term.generations(listed)
    assert found.keys() == {f"{name}-b", f"{name}-c"} and found[f"{name}-c"] == generations[f"{name}-c"]
    assert found[f"{name}-b"] != generations[f"{name}-b"]


# --- soft deletes, where there are any --------------------------------------------------------------


async def test_a_deleted_generation_is_restored_whole_under_a_new_generation(long_term: LongTermBackend, name: str) -> None:
    if not isinstance(long_term, BlobRestoration):
        return
    await store(long_term, name, b"payload", FULL_METADATA)
    before = await long_term.head(name)
    assert before is not None and await long_term.deleted_generations(name) == []
    assert await long_term.restore(name, before.generation) is None  # it was not deleted
    await long_term.delete(name)
    if not (found := await long_term.deleted_generations(name)):
        return  # the tier deletes for good: what it can restore, somebody else deleted
    [kept] = found
    assert (kept.generation, kept.size) == (before.generation, 7)
    assert kept.kept_until_ns is None or kept.deleted_ns < kept.kept_until_ns
    restored = await long_term.restore(name, kept.generation)
    after = await long_term.head(name)
    assert after is not None and restored == after.generation != before.generation
    assert (after.metadata, after.size) == (before.metadata, before.size) and await read(long_term, name) == b"payload"
    assert await long_term.restore(name, kept.generation) is None  # a blob has the name
    assert await long_term.delete_generation(name, after.generation) is Removal.DELETED
    assert [each.generation for each in await long_term.deleted_generations(name)][-1] == after.generation


async def test_a_restoration_overwrites_nothing_and_needs_a_generation_that_is_kept(long_term: LongTermBackend, name: str) -> None:
    if not isinstance(long_term, BlobRestoration):
        return
    assert await long_term.restore(name, "1") is None and await names(long_term) == []
    await store(long_term, name, b"first")
    await long_term.delete(name)
    if not (found := await long_term.deleted_generations(name)):
        return
    [kept] = found
    assert await long_term.restore(name, another(kept.generation)) is None and await names(long_term) == []
    await store(long_term, name, b"second")
    assert await long_term.restore(name, kept.generation) is None
    assert await read(long_term, name) == b"second"


# --- copy ----------------------------------------------------------------------------------------


async def test_a_copy_has_the_bytes_and_the_metadata_and_the_blob_stays(long_term: LongTermBackend, name: str) -> None:
    payload = bytes(range(256)) * (3 * MIB // 256)
    await store(long_term, name, payload, FULL_METADATA)
    head = await long_term.head(name)
    assert head is not None
    copied = await long_term.set_aside(name, head.generation, f"~quarantine/test/{name}")
    copy = await long_term.head(f"~quarantine/test/{name}")
    assert copy is not None and isinstance(copied, str) and copied == copy.generation
    # Where the service itself removes what has expired, the copy has no deadline.
    assert copy.metadata in (head.metadata, replace(head.metadata, time_expires_ns=None)) and copy.size == head.size
    assert await read(long_term, f"~quarantine/test/{name}") == payload == await read(long_term, name)
    await long_term.delete_generation(name, head.generation)
    assert await long_term.bring_back(f"~quarantine/test/{name}", copied, name, 0) != head.generation
    back = await long_term.head(name)
    assert back is not None and back.metadata == head.metadata and await read(long_term, name) == payload


async def test_copying_is_repeatable_and_the_copy_outlives_the_blob(long_term: LongTermBackend, name: str) -> None:
    await store(long_term, name, b"payload")
    head = await long_term.head(name)
    assert head is not None
    first, second = [await long_term.set_aside(name, head.generation, "~quarantine/a") for _ in range(2)]
    assert first == second
    await long_term.delete_generation(name, head.generation)
    assert await names(long_term) == ["~quarantine/a"]
    assert await read(long_term, "~quarantine/a") == b"payload"
    assert isinstance(first, str)
    back, again = [await long_term.bring_back("~quarantine/a", first, name, 0) for _ in range(2)]
    assert isinstance(back, str) and back == again and back != head.generation
    assert await long_term.delete_generation(name, head.generation) is Removal.REPLACED
    assert await read(long_term, name) == b"payload"


async def test_a_copy_is_not_brought_back_after_its_deadline_or_over_another_blob(long_term: LongTermBackend, name: str) -> None:
    deadline_ns = 10**20
    await store(long_term, name, b"payload", Metadata(TimeToLive(ns=10**20), 0, deadline_ns))
    head = await long_term.head(name)
    assert head is not None
    copied = await long_term.set_aside(name, head.generation, "~quarantine/a")
    assert isinstance(copied, str)
    await long_term.delete_generation(name, head.generation)
    assert await long_term.bring_back("~quarantine/a", copied, name, deadline_ns) is NotCopied.EXPIRING
    assert await long_term.bring_back("~quarantine/a", another(copied), name, 0) is NotCopied.REPLACED
    assert await long_term.bring_back("~quarantine/b", copied, name, 0) is NotCopied.ABSENT
    assert await names(long_term) == ["~quarantine/a"]
    await store(long_term, name, b"another")
    assert await long_term.bring_back("~quarantine/a", copied, name, 0) is NotCopied.TAKEN
    assert await read(long_term, name) == b"another"


async def test_a_new_blob_gets_its_bytes_from_another_and_other_metadata(long_term: LongTermBackend, name: str) -> None:
    payload = bytes(range(256)) * (3 * MIB // 256)
    await store(long_term, name, payload, FULL_METADATA)
    head = await long_term.head(name)
    assert head is not None
    changed = replace(head.metadata, content_type="text/plain", custom={"copied": "yes"})
    upload = await long_term.open_copy(name, head.generation, f"{name}-copy", changed)
    assert await names(long_term) == [name], "nothing happens before the end"
    await upload.finalise()
    await upload.abort()
    copy = await long_term.head(f"{name}-copy")
    assert copy is not None and copy.metadata == replace(changed, size=len(payload)) and copy.size == len(payload)
    assert await read(long_term, f"{name}-copy") == payload == await read(long_term, name)
    await long_term.touch(f"{name}-copy", (head.metadata.time_expires_ns or 0) + 3600 * NS_PER_S)
    after = await long_term.head(name)
    assert after is not None and after.metadata == head.metadata, "they share nothing"


async def test_a_new_blob_gets_no_bytes_from_what_is_gone_and_overwrites_nothing(long_term: LongTermBackend, name: str) -> None:
    await store(long_term, name, b"payload")
    head = await long_term.head(name)
    assert head is not None
    for source, generation, target in (
        (name, another(head.generation), "u/objects/copy"), (f"{name}/none", "1", "u/objects/copy"), (name, head.generation, name)
    ):  # fmt: skip
        upload = await long_term.open_copy(source, generation, target, Metadata())
        with pytest.raises(UnavailableError):
            await upload.finalise()
        await upload.abort()
    assert await names(long_term) == [name] and await read(long_term, name) == b"payload"


async def test_only_the_generation_that_is_named_is_copied_and_no_blob_is_overwritten(long_term: LongTermBackend, name: str) -> None:
    assert await long_term.set_aside(name, "1", "~quarantine/a") is NotCopied.ABSENT
    await store(long_term, name, b"payload")
    head = await long_term.head(name)
    assert head is not None
    assert await long_term.set_aside(name, another(head.generation), "~quarantine/a") is NotCopied.REPLACED
    assert await names(long_term) == [name]
    await store(long_term, "~quarantine/a", b"another")
    assert await long_term.set_aside(name, head.generation, "~quarantine/a") is NotCopied.TAKEN
    assert await read(long_term, "~quarantine/a") == b"another"


# --- names and listings --------------------------------------------------------------------------

REVISION = "018bcfe5-6800-7000-8000-000000000001"
# Left out are `.`, `..` and line breaks: no storage path can be such a name or hold one, and GCS refuses them.


@pytest.mark.parametrize(
    "name",
    [
        "usecase/objects/größe-日本",
        "usecase/objects/🙂/🏳️‍🌈",
        "k" * PATH_BYTES_MAX + "/" + REVISION,
        "/" * PATH_BYTES_MAX + "/" + REVISION,
        "ü" * 493 + "k/" + REVISION,
        "../../../etc/passwd",
        "/absolute",
        "usecase/./objects/../key",
        "usecase/objects/a%2Fb",
        "usecase/objects/a#b?c=d&e",
        "usecase/objects/CON.txt ",
        "usecase/objects/+=%~",
    ],
)
async def test_any_name_is_stored_listed_and_deleted_as_it_is(long_term: LongTermBackend, name: str) -> None:
    await store(long_term, name, name.encode())
    assert await names(long_term) == [name]
    assert await read(long_term, name) == name.encode()
    await long_term.delete(name)
    assert await names(long_term) == []


@pytest.mark.parametrize("stem", ["a", "k" * 199, "k" * 200, "K" * 199 + "x", "k" * PATH_BYTES_MAX])
async def test_a_blob_and_one_whose_name_continues_it_coexist(long_term: LongTermBackend, stem: str) -> None:
    for name in (stem, f"{stem}/{REVISION}"):
        await store(long_term, name, name.encode())
    assert await names(long_term) == [stem, f"{stem}/{REVISION}"]
    assert await names(long_term, f"{stem}\0") == await names(long_term, f"{stem}/", f"{stem}0", 1) == [f"{stem}/{REVISION}"]
    assert await names(long_term, "", f"{stem}/") == [stem]
    await long_term.delete(stem)
    assert await read(long_term, f"{stem}/{REVISION}") == f"{stem}/{REVISION}".encode()


async def test_names_that_differ_only_in_case_are_different_blobs(long_term: LongTermBackend) -> None:
    await store(long_term, "u/objects/Key", b"upper")
    await store(long_term, "u/objects/key", b"lower")
    assert (await read(long_term, "u/objects/Key"), await read(long_term, "u/objects/key")) == (b"upper", b"lower")


short_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), min_size=1, max_size=4)
any_names = st.lists(
    short_text | st.sampled_from(["/", "a", "a/", "a0", "A", "~", "\x7f", "é"]) | st.builds(str.__mul__, short_text, st.integers(30, 60)),
    min_size=1, max_size=8, unique=True,
)  # fmt: skip


plain_text = st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn"], exclude_characters="/"), min_size=1, max_size=4)
segments = (
    plain_text | st.sampled_from(["a", "a0", "A", "~", "\x7f", "é", "\ufffd"]) | st.builds(str.__mul__, plain_text, st.integers(5, 15))
).filter(lambda segment: segment not in (".", ".."))
# A service takes these, too, that keeps files and tells names in XML. Each is a path, and none continues another.
paths = st.lists(segments | st.builds("{}/{}".format, segments, segments), min_size=1, max_size=8, unique=True).map(
    lambda chosen: [name for name in chosen if not any(other.startswith(f"{name}/") for other in chosen)]
)


def ends_in(text: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[int, int, str, str]]:
    """Where a range begins and ends: the numbers of two names, of which the last two are these texts."""
    return st.tuples(st.integers(0, 63), st.integers(0, 63), text, text)


async def _check_byte_order(
    tier: LongTermBackend, runtime: Runtime, chosen: list[str], limit: int, ends: tuple[int, int, str, str]
) -> None:
    root = f"{ChangeId.new(runtime)}/"
    stored = [root + name for name in chosen]
    for name in stored:
        await store(tier, name, b"")
    cuts = [root, *stored, *(name + "\0" for name in stored), *(root + name[: len(name) // 2 + 1] for name in chosen), f"{root}\U0010ffff"]
    cuts += [root + text for text in ends[2:]]
    start, end = (cuts[-1 - number % len(cuts)] for number in ends[:2])
    expected = [name for name in in_byte_order(stored) if start.encode() <= name.encode() < end.encode()]
    assert await names(tier, start, end) == expected
    assert await names(tier, start, end, limit) == expected
    rest = [name for name in await names(tier, start, None, limit) if name.startswith(root)]
    assert rest == [name for name in in_byte_order(stored) if start.encode() <= name.encode()]


@examples(25)
@given(chosen=any_names, limit=st.integers(1, 4), ends=ends_in(short_text))
async def test_a_listing_is_in_byte_order_whatever_the_page_and_the_range(
    long_term: LongTermBackend, runtime: Runtime, chosen: list[str], limit: int, ends: tuple[int, int, str, str]
) -> None:
    await _check_byte_order(long_term, runtime, chosen, limit, ends)


@examples(15)
@given(chosen=paths, limit=st.integers(1, 4), ends=ends_in(plain_text))
async def test_a_listing_of_paths_is_in_byte_order_whatever_the_page_and_the_range(
    long_term: LongTermBackend, runtime: Runtime, chosen: list[str], limit: int, ends: tuple[int, int, str, str]
) -> None:
    await _check_byte_order(long_term, runtime, chosen, limit, ends)


async def test_names_beyond_the_first_plane_come_after_all_others(long_term: LongTermBackend) -> None:
    stored = ["n/\U0001f642", "n/\ufffd", "n/é", "n/\ue000", "n/\U0010ffff"]
    for name in stored:
        await store(long_term, name)
    assert await names(long_term, limit=1) == in_byte_order(stored) == sorted(stored)
    assert await names(long_term, "n/\ufffd", "n/\U0010ffff") == ["n/\ufffd", "n/\U0001f642"]


async def test_the_clock_of_a_service_is_not_far_from_this_machines(long_term: LongTermBackend, runtime: Runtime) -> None:
    before_ns = runtime.wall_ns()
    now_ns = await long_term.now_ns()
    assert before_ns - 2_000_000_000 < now_ns <= runtime.wall_ns()


async def test_a_listing_tells_size_creation_and_deadline(long_term: LongTermBackend, runtime: Runtime) -> None:
    before = runtime.wall_ns() - SECOND_NS
    await store(long_term, "u/objects/a", b"12345", Metadata(expiration=TimeToLive(ns=1), time_expires_ns=DEADLINE_NS))
    await store(long_term, "u/objects/b", b"")
    after = runtime.wall_ns() + 1_000_000
    listed = (await long_term.list("u/", None, 10)).blobs
    assert [(info.name, info.size, info.deadline_ns) for info in listed] == [("u/objects/a", 5, DEADLINE_NS), ("u/objects/b", 0, None)]
    assert all(before <= info.created_ns <= after for info in listed)


async def test_listings_while_blobs_come_and_go_find_what_was_there_all_the_time_once_and_in_order(long_term: LongTermBackend) -> None:
    kept = [f"notes/objects/{number:02d}/kept" for number in range(8)]
    for each in kept:
        await store(long_term, each)

    done = anyio.Event()

    async def churn() -> None:
        while not done.is_set():
            for number in range(8):
                await store(long_term, each := f"notes/objects/{number:02d}/churned")
                await long_term.delete(each)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(churn)
        for limit in (1, 5, 100):
            found = await names(long_term, "notes/", "notes0", limit)
            assert found == in_byte_order(set(found)) and set(kept) <= set(found)
        done.set()


async def test_a_blob_made_again_under_its_name_is_another_generation(long_term: LongTermBackend) -> None:
    generations = []
    for payload in (b"first", b"second"):
        await store(long_term, "u/objects/a", payload)
        generations += [info.generation for info in (await long_term.list("u/", None, 10)).blobs]
        await long_term.delete("u/objects/a")
    assert len(set(generations)) == 2 and all(each and isinstance(each, str) for each in generations)
