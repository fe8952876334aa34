"""What every store must do with all that its callers can build.

It refuses it with the documented error, or keeps it and gives it back as it was.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.given.caller_values import anything, metadata, numbers, odd_ids, odd_metadata, texts
from tiered import (
    ByteRange,
    InvalidRequestError,
    Metadata,
    ObjectId,
    ObjectPrefix,
    PutRequest,
    StoredObject,
    TieredStorage,
    TimeToIdle,
    TimeToLive,
)
from tiered.errors import OffsetMismatchError, UploadEndedError

pytestmark = pytest.mark.anyio

SMALL, LARGE = b"small", b"large" * 100
OBJECT = ObjectId.create("notes", "key", {"org": "1"})
COPY = ObjectId.create("notes", "copy")
REVISION = "018bcfe5-6800-7000-8000-000000000001"
short = settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
)
payloads = st.sampled_from([b"", SMALL, LARGE])


async def read(found: StoredObject | None) -> bytes:
    assert found is not None
    return await found.read()


async def listed(storage: TieredStorage, prefix: ObjectPrefix | None = None) -> list[ObjectId]:
    return [entry.object_id async for entry in storage.list(prefix or ObjectPrefix())]


# --- whatever can be built -------------------------------------------------------------------------


@pytest.mark.slow
@given(value=odd_metadata | metadata, payload=payloads)
@short
async def test_metadata_that_can_be_put_are_got_equal(store: TieredStorage, value: Metadata | None, payload: bytes) -> None:
    if value is None:
        return
    try:
        await store.put(OBJECT, payload, value)
    except InvalidRequestError:
        # Only the call can tell that a size is not the payload's, that a deadline has no policy, or that it is beyond
        # the year 9999.
        assert value.size not in (None, len(payload)) or value.time_expires_ns is not None or value.expiration is not None
        return
    head, found = await store.head(OBJECT), await store.get(OBJECT, decompress=False)
    if head is None or found is None:
        assert value.expiration is not None and value.expiration.ns < 60 * 10**9
        return
    assert await read(found) == payload and head.metadata == found.metadata
    expected = replace(value, size=len(payload), time_created_ns=None, time_expires_ns=None)
    assert found.metadata.with_facts(time_created_ns=None, time_expires_ns=None) == expected
    assert (found.metadata.time_expires_ns is None) == (value.expiration is None)
    assert found.metadata.time_created is not None and replace(found.metadata) == found.metadata


@given(object_id=odd_ids, payload=payloads)
@short
async def test_an_id_that_can_be_built_reaches_its_own_object_or_is_refused(
    store: TieredStorage, object_id: ObjectId | None, payload: bytes
) -> None:
    await store.put(OBJECT, SMALL)
    if object_id is None or object_id == OBJECT:
        return
    try:
        await store.put(object_id, payload)
    except InvalidRequestError:
        if object_id.usecase.startswith("~"):
            return
        assert await store.get(object_id) is None and await store.head(object_id) is None
        await store.delete(object_id)
        assert await listed(store) == [OBJECT]
        return
    assert await read(await store.get(object_id)) == payload
    assert object_id in await listed(store)
    assert await listed(store, ObjectPrefix(object_id.usecase, object_id.scopes, object_id.key)) == [object_id]
    await store.delete(object_id)
    assert await store.get(object_id) is None and await listed(store) == [OBJECT]
    assert await read(await store.get(OBJECT)) == SMALL


@given(start=numbers | anything | st.integers(-700, 700), stop=st.none() | numbers | st.integers(-700, 700), payload=payloads)
@example(start=10**5000, stop=None, payload=LARGE)
@example(start=-(2**62), stop=2**63 - 1, payload=LARGE)
@short
async def test_a_range_is_read_as_it_would_be_cut_or_refused(store: TieredStorage, start: Any, stop: Any, payload: bytes) -> None:
    await store.put(OBJECT, payload)
    try:
        found = await read(await store.get(OBJECT, ByteRange(start, stop)))
    except InvalidRequestError:
        return
    assert found == payload[start:stop]


@given(prefix=texts | anything)
@short
async def test_a_prefix_finds_what_begins_with_it_or_is_refused(store: TieredStorage, prefix: Any) -> None:
    await store.put(OBJECT, SMALL)
    try:
        parsed = ObjectPrefix.parse(prefix)
    except InvalidRequestError:
        return
    assert await listed(store, parsed) == ([OBJECT] if OBJECT in parsed else [])


@given(object_id=odd_ids | anything, payload=payloads | anything, value=odd_metadata | anything)
@short
async def test_what_is_wrong_with_a_request_of_many_is_the_error_of_its_item(
    store: TieredStorage, object_id: Any, payload: Any, value: Any
) -> None:
    async with store.put_many([PutRequest(object_id, payload, value), PutRequest(OBJECT, SMALL)]) as results:
        told = {result.position: result.error async for result in results}
    assert isinstance(told[0], InvalidRequestError | None) and told[1] is None


# --- names -------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[TieredStorage, ObjectId], Awaitable[object]]] = {
    "put": lambda storage, object_id: storage.put(object_id, SMALL),
    "get": lambda storage, object_id: storage.get(object_id),
    "head": lambda storage, object_id: storage.head(object_id),
    "delete": lambda storage, object_id: storage.delete(object_id),
}
ALIKE = [
    "é", "e\u0301", "E", "e", "é ", " é", "k", "k/", "k//", "/k", f"k/{REVISION}", f"k/{REVISION}/{REVISION}", "objects",
    "objects/objects/k", "~", "uploads/k", "...", "%2e%2e", "a?b#c&d=e", "+", "a b", "\u2028", "\ufeff", "\U0001f600",
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("path", ["~changelog/objects/k", f"~changelog/05.x/objects/{REVISION}", "~daemon/objects/me", "~notes/objects/k"])
async def test_what_would_be_among_the_changelogs_rows_is_out_of_reach(store: TieredStorage, call: str, path: str) -> None:
    with pytest.raises(InvalidRequestError, match="is the store's own: it keeps its changelog there"):
        await CALLS[call](store, ObjectId.parse(path))
    async with store.delete_many([ObjectId.parse(path)]) as results:
        assert [type(result.error) async for result in results] == [InvalidRequestError]


@pytest.mark.parametrize("payload", [SMALL, LARGE])
async def test_what_other_software_called_with_a_tilde_is_read_listed_copied_and_deleted(
    store: TieredStorage, payload: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, copy = (ObjectId(usecase, (("org", "1"),), "k") for usecase in ("~theirs", "ours"))
    with monkeypatch.context() as other_software:
        other_software.setattr(ObjectId, "validate", lambda self: None)
        await store.put(theirs, payload)
    with pytest.raises(InvalidRequestError, match="must not start with '~'"):
        await store.put(theirs, SMALL)
    await store.put(OBJECT, SMALL)
    assert await read(await store.get(theirs)) == payload and await store.head(theirs) is not None
    assert await listed(store) == [OBJECT, theirs] and await listed(store, ObjectPrefix.parse("~theirs/org.1")) == [theirs]
    assert await store.copy(theirs, copy) is not None and await read(await store.get(copy)) == payload
    await store.delete(theirs)
    assert await store.get(theirs) is None and await listed(store) == [OBJECT, copy]


@pytest.mark.parametrize("payload", [SMALL, LARGE])
async def test_keys_that_look_alike_or_nest_are_objects_of_their_own(store: TieredStorage, payload: bytes) -> None:
    ids = {ObjectId.create("notes", key): key.encode() for key in ALIKE}
    for object_id, key in ids.items():
        await store.put(object_id, payload + key)
    assert await listed(store, ObjectPrefix.create("notes")) == sorted(ids, key=lambda object_id: object_id.path.encode())
    for object_id, key in ids.items():
        assert await read(await store.get(object_id)) == payload + key
        await store.delete(object_id)
        assert await store.get(object_id) is None


@pytest.mark.parametrize("letter", ["k", "é", "日", "\U0001f600"])
@pytest.mark.parametrize("payload", [SMALL, LARGE])
async def test_the_longest_names_are_kept_and_listed(store: TieredStorage, letter: str, payload: bytes) -> None:
    room = 1024 - 37 - len("notes/objects/")
    object_id = ObjectId.create("notes", letter * (room // len(letter.encode())))
    await store.put(object_id, payload)
    assert await read(await store.get(object_id)) == payload
    whole, shorter = (ObjectPrefix.create("notes", key) for key in (object_id.key, object_id.key[:-1]))
    assert await listed(store, whole) == await listed(store, shorter) == [object_id]
    assert await listed(store, ObjectPrefix.create("notes", object_id.key + letter)) == []


async def test_a_name_longer_than_any_that_is_stored_is_absent_or_refused(store: TieredStorage) -> None:
    longest = ObjectId.parse("notes/objects/" + "k" * (4096 - len("notes/objects/")))
    assert await store.get(longest) is None and await listed(store, ObjectPrefix.create("notes", longest.key)) == []
    await store.delete(longest)
    with pytest.raises(InvalidRequestError, match="at most 987 fit"):
        await store.put(longest, SMALL)
    with pytest.raises(InvalidRequestError, match="no stored one has more than 4096"):
        ObjectPrefix.create("notes", longest.key + "k")


# --- metadata ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [SMALL, LARGE])
async def test_the_widest_metadata_come_back(store: TieredStorage, payload: bytes) -> None:
    value = Metadata(
        TimeToIdle(ns=10**15 + 1), content_type='multipart/mixed; boundary="a b"; charset=utf-8', compression="Zstd",
        origin="größe \u2028 🙂", filename="日本.txt", custom={"!#$%&'*+-.^_`|~Aa0": "ü", "empty": "", "Case": "x"},
        unknown={"n": [None, True, 1.5, 1 << 200, {"": "é"}]},
    )  # fmt: skip
    await store.put(OBJECT, payload, value)
    found = await store.get(OBJECT, decompress=False)
    assert found is not None and await read(found) == payload
    assert found.metadata.with_facts(time_created_ns=None, time_expires_ns=None, size=None) == value


async def test_a_compressed_object_is_read_as_it_was_and_as_it_is_stored(store: TieredStorage) -> None:
    """No client of a service decompresses what says `Content-Encoding: zstd`."""
    for payload in (SMALL, bytes(range(256)) * 200 + bytes(200_000)):
        result = await store.put(OBJECT, payload, compress="zstd")
        assert await read(await store.get(OBJECT)) == payload
        stored = await read(await store.get(OBJECT, decompress=False))
        head = await store.head(OBJECT)
        assert head is not None and (head.size, head.metadata.compression) == (len(stored), "Zstd") == (result.size, "Zstd")
        await store.copy(OBJECT, COPY)
        assert await read(await store.get(COPY)) == payload


async def test_metadata_that_were_read_are_checked_before_they_are_written_again(store: TieredStorage) -> None:
    odd = replace(Metadata(content_type="a/b"), custom={"k": "v"}).with_facts(size=5)
    object.__setattr__(odd, "filename", "a\nb")
    for value in (odd, Metadata(TimeToLive(ns=1)).with_facts(time_created_ns=-1)):
        with pytest.raises(InvalidRequestError, match=r"filename|time_created_ns"):
            await store.put(OBJECT, SMALL, value)
    assert await store.get(OBJECT) is None


# --- uploads that stay open ------------------------------------------------------------------------


async def test_parts_become_one_object_when_they_are_completed(store: TieredStorage) -> None:
    upload = await store.begin_multipart(OBJECT, Metadata(content_type="a/b", custom={"k": "v"}), if_absent=True)
    first = bytes(range(256)) * 20_480
    await upload.upload_part(2, b"end")
    part = await upload.upload_part(1, first)
    again = store.multipart(OBJECT, str(upload.id))
    found = (await again.parts())[0]
    assert (found.number, found.size, found.etag) == (1, len(first), part.etag)
    assert await store.head(OBJECT) is None
    result = await again.complete()
    assert result == await upload.complete(None)
    assert await read(await store.get(OBJECT)) == first + b"end"
    head = await store.head(OBJECT)
    assert head is not None and (head.revision, head.size, head.metadata.content_type) == (upload.id, len(first) + 3, "a/b")
    other = await store.begin_multipart(OBJECT)
    await other.upload_part(1, b"never")
    await other.abort()
    with pytest.raises(UploadEndedError):
        await other.complete()
    assert await read(await store.get(OBJECT)) == first + b"end"


async def test_an_upload_goes_on_from_the_offset_where_it_was_cut(store: TieredStorage) -> None:
    whole = bytes(range(256)) * 50_000
    upload = await store.begin_resumable(OBJECT, Metadata(size=len(whole)))

    async def cut() -> AsyncIterator[bytes]:
        yield whole[: 6 << 20]
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await upload.append(0, cut(), part_bytes=5 << 20)
    offset = await store.resumable(OBJECT, upload.id).status()
    assert offset == 5 << 20
    with pytest.raises(OffsetMismatchError) as caught:
        await upload.append(0, whole, part_bytes=5 << 20)
    assert caught.value.offset == offset
    assert await upload.append(offset, whole[offset:], part_bytes=5 << 20) == len(whole)
    assert (await upload.finish()).size == len(whole)
    assert await read(await store.get(OBJECT)) == whole
