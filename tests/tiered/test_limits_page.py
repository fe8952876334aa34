"""`docs/limits.md` says what the code does: each number is a constant's, and each error is told in these words."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from recovery.http.receiver import BYTES_MAX as RECEIVED_BYTES_MAX
from tests.given.repository import ROOT
from tests.given.tapped_store import LARGE, OBJECT, TappedWorld
from tiered import ByteRange, Metadata, ObjectId, ObjectPrefix, Settings, TieredError, TimeToLive
from tiered.buckets.owned import check_length
from tiered.bulk import CONCURRENCY, PAYLOAD_BYTES_MAX
from tiered.limits.admission import Admission
from tiered.metadata import _LONGER_BESIDE_A_BLOB, DEADLINE_MAX_NS, METADATA_BYTES_MAX, NESTED_MAX, SIZE_MAX, refuse_unicode_in
from tiered.object_id import _SCOPE_ALPHABET, PATH_BYTES_MAX, ROW_KEY_BYTES_MAX
from tiered.payload.destinations import WRITE_THREADS_MAX
from tiered.payload.in_threads import FILE_THREADS_MAX
from tiered.payload.own_thread import THREADS_MAX, WAIT_MAX_S
from tiered.payload.zstd import _THREADS_MAX, WINDOW_LOG_MAX
from tiered.protocol.listing import HEADS_AT_ONCE, LIST_PAGE_MAX
from tiered.s3.format import _MARKER_BYTES, Beside, encode_metadata
from tiered.s3.format import METADATA_BYTES_MAX as S3_METADATA_BYTES_MAX
from tiered.settings import FeedSettings, GcsSettings, StoreSettings
from tiered.settings.sections import INLINE_BYTES_LIMIT, NAME_PREFIX_MAX
from tiered.stored import CHUNK_BYTES
from tiered.transfer.lanes import LANES_MAX, PART_BYTES
from tiered.transfer.resuming import HELD_BYTES
from tiered.transfer.upload_lanes import UploadLanes

ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs/limits.md").read_text("utf-8").splitlines() if line.startswith("| ") and not line.startswith("| what")
]  # fmt: skip

STORE = StoreSettings()
GCS = GcsSettings(bucket="bucket")
SETTINGS = Settings(directory="unused")


def deep(depth: int) -> dict[str, Any]:
    return {"x": deep(depth - 1)} if depth else {}


def sha512_of(many: int) -> str:
    """Text that cannot be packed."""
    return "".join(hashlib.sha512(bytes([number])).hexdigest() for number in range(many))


async def in_a_store(call: str) -> None:
    async with TappedWorld().store() as storage:
        await storage.put(OBJECT, LARGE)
        match call:
            case "get_many":
                async with storage.get_many([OBJECT], payload_bytes_max=1) as results:
                    [result.value async for result in results]
            case "get":
                far = bytes.fromhex("28b52ffd 00 90 010000")  # an empty frame that may look back 256 MiB
                await storage.put(OBJECT, far, Metadata(compression="Zstd"))
                stored = await storage.get(OBJECT)
                assert stored is not None and await stored.read() is None
            case "put_many":
                storage.put_many([], concurrency=65)
            case "list_page":
                await storage.list_page(limit=1001)
            case "too large":
                async with TappedWorld().store(usecases={OBJECT.usecase: {"object_bytes_max": 1}}) as limited:
                    await limited.put(OBJECT, LARGE)
            case "too much":
                async with TappedWorld().store(usecases={OBJECT.usecase: {"requests_per_s": 1}}) as limited:
                    [await limited.head(OBJECT) for _ in range(2)]
            case "expiry":
                await storage.put(OBJECT, b"", Metadata(TimeToLive(ns=DEADLINE_MAX_NS)))


async def in_a_queue() -> None:
    admission = Admission(1, 0, 1, anyio.current_time)
    with await admission.enter():
        await admission.enter()


async def with_open_payloads() -> None:
    async def payload(depth: int) -> AsyncIterator[bytes]:
        if depth:  # another put, while this payload is read
            await storage.put(OBJECT, payload(depth - 1))
        yield b""

    async with TappedWorld().store(store={"payloads_max": 1, "queue_max": 0}) as storage:
        await storage.put(OBJECT, payload(1))


NUMBERS: dict[str, list[object]] = {
    "storage path of a new object": [PATH_BYTES_MAX],
    "storage path of a stored object": [ROW_KEY_BYTES_MAX],
    "storage path of a large object, with": [PATH_BYTES_MAX, NAME_PREFIX_MAX],
    "storage path of a large object in S3": [PATH_BYTES_MAX - _MARKER_BYTES, _MARKER_BYTES],
    "payload": [SIZE_MAX],
    "payload in the row": [SETTINGS.inline_bytes_max],
    "`inline_bytes_max`": [INLINE_BYTES_LIMIT],
    "one chunk": [CHUNK_BYTES],
    "metadata, all together": [METADATA_BYTES_MAX, _LONGER_BESIDE_A_BLOB],
    "metadata of a large object in S3": [S3_METADATA_BYTES_MAX],
    "lists and objects": [NESTED_MAX],
    "a payload that `get_many`": [PAYLOAD_BYTES_MAX],
    "bounds of a range": [SIZE_MAX],
    "window of a compressed": [1 << WINDOW_LOG_MAX],
    "operations that run": [STORE.concurrency_max],
    "operations that wait": [STORE.queue_max, STORE.queue_wait_s],
    "payloads that are not in memory": [STORE.open_payloads_max, STORE.payload_idle_s],
    "items of one bulk call": [CONCURRENCY],
    "entries of one page": [LIST_PAGE_MAX],
    "calls for metadata": [HEADS_AT_ONCE],
    "threads for payloads": [THREADS_MAX, WAIT_MAX_S],
    "threads that read plain files, and threads that write": [FILE_THREADS_MAX, WRITE_THREADS_MAX],
    "threads that compress": [_THREADS_MAX],
    "ranges of one object": [LANES_MAX, PART_BYTES],
    "bytes of a stream that are held": [HELD_BYTES],
    "parts of one blob that go up": [UploadLanes().count, UploadLanes().part_bytes, STORE.upload_memory_bytes],
    "connections to GCS or S3": [GCS.connections_max],
    "hints, rows and updates of one transaction": [FeedSettings().batch_max, 10_000],
    "a file that `tiered feed receive` takes": [RECEIVED_BYTES_MAX],
}
"""Of the row that begins so: the numbers that must be in it."""

REFUSED: dict[str, Callable[[], object]] = {
    "must not contain '/'": lambda: ObjectId.create("a/b", "k"),
    "must not start with '~'": lambda: ObjectId.create("~a", "k"),
    "is the store's own": lambda: ObjectPrefix.create("~changelog"),
    "is a relative path": lambda: ObjectId.create("..", "k"),
    f"must be one or more of {_SCOPE_ALPHABET}": lambda: ObjectId.create("a", "k", {"o": "ä"}),
    "the key is empty": lambda: ObjectId.create("a", ""),
    "has a '.' or '..' segment": lambda: ObjectId.create("a", "b/../c"),
    "has control character U+0000": lambda: ObjectId.create("a", "\0"),
    "at most 987 fit": lambda: ObjectId.create("a", "k" * 987),
    "no stored one has more than 4096": lambda: ObjectPrefix.create("a", "k" * 4096),
    "and GCS takes 1024": lambda: check_length("k" * 1023, "a/", "GCS"),
    "and one that expires may have": lambda: Beside("").check("k" * 1009, Metadata(TimeToLive(ns=1), time_expires_ns=1)),
    "when they are packed, and S3 keeps 2048": lambda: encode_metadata("k", Metadata(custom={"k": sha512_of(30)})),
    "a number of bytes": lambda: Metadata(size=SIZE_MAX + 1),
    "less than or equal to 8388608": lambda: Settings(directory="unused", inline_bytes_max=INLINE_BYTES_LIMIT + 1),
    "at most 8192 fit": lambda: Metadata(custom={"k": "v" * 8192}),
    "nested": lambda: Metadata(unknown=deep(NESTED_MAX + 1)),
    "has control character U+000A": lambda: Metadata(origin="a\nb"),
    "is no media type": lambda: Metadata(content_type="text"),
    "garbles what is not ASCII": lambda: refuse_unicode_in(Metadata(filename="ü")),
    "would expire after the year 9999": lambda: anyio.run(in_a_store, "expiry"),
    "more than payload_bytes_max": lambda: anyio.run(in_a_store, "get_many"),
    "too much memory": lambda: anyio.run(in_a_store, "get"),
    "as far as 2**63": lambda: ByteRange(SIZE_MAX + 1),
    "operations are under way and": lambda: anyio.run(in_a_queue),
    "objects have at most": lambda: anyio.run(in_a_store, "too large"),
    "has used up its rate": lambda: anyio.run(in_a_store, "too much"),
    "payloads are open and": lambda: anyio.run(with_open_payloads),
    "pass a number from 1 to 48 (three quarters of store.concurrency_max)": lambda: anyio.run(in_a_store, "put_many"),
    "a page has from 1 to 1000 entries": lambda: anyio.run(in_a_store, "list_page"),
}


@pytest.mark.parametrize("begins", NUMBERS)
def test_a_row_has_the_numbers_of_the_code(begins: str) -> None:
    [row] = [row for row in ROWS if row[0] == begins or (row[0].startswith(begins) and begins != "payload")]
    there = re.findall(r"\d+(?:,\d{3})*", " ".join(row))
    for number in NUMBERS[begins]:
        assert f"{number:,g}" in there or f"{number:,}" in there, f"{row} lacks {number:,}"


def test_every_number_of_the_page_is_held() -> None:
    """A new row with a number needs an entry above."""
    with_numbers = [row[0] for row in ROWS if re.search(r"\d{2}", row[1].replace("U+0000 to U+001F, U+007F to U+009F", ""))]
    assert [name for name in with_numbers if not name.startswith((*NUMBERS, "expiry"))] == []


@pytest.mark.parametrize("words", REFUSED)
def test_an_error_is_told_in_the_words_of_the_page(words: str) -> None:
    with pytest.raises(TieredError) as refused:
        REFUSED[words]()
    assert words in str(refused.value)
    [row] = [row for row in ROWS if row[3] == f"`{words}`"]
    kind = type(refused.value).__name__
    assert kind == "InvalidRequestError" or f"`{kind}`" in row[2], f"{row} does not name {kind}"


def test_no_error_of_the_page_is_untried() -> None:
    assert {row[3].strip("`") for row in ROWS if row[3]} == {*REFUSED}


def test_the_longest_and_the_deepest_that_the_page_allows_are_taken() -> None:
    ObjectId.create("a", "k" * (PATH_BYTES_MAX - len("a/objects/")))
    Metadata(unknown=deep(NESTED_MAX - 1), size=SIZE_MAX)
    ObjectId.create("a", "k", {"AZaz09_-()$!+'": "x"})
