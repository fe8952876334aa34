"""Which calls each operation makes to Bigtable and GCS: those that its caller waits for, and those that come after."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest
from anyio.lowlevel import checkpoint

from benchmarks.calls import BESIDE, CASES, COUNTED, TELLING, CallsCase
from benchmarks.cost import ROW_BYTES
from benchmarks.counted import CountedStore, count_beside, count_case, counted_store
from benchmarks.servers import BUCKET
from changelog.change import Change, Entry
from tiered import ObjectId, PutRequest, TieredStorage

pytestmark = pytest.mark.anyio

@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def store(anyio_backend: str, bigtable_host: str) -> AsyncIterator[CountedStore]:
    async with counted_store(bigtable_host) as store:
        yield store


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
async def test_an_operation_makes_no_call_too_many(store: CountedStore, case: CallsCase) -> None:
    ledger = await count_case(store, case)
    assert sorted(ledger.before + ledger.after) == sorted([*case.before, *case.after])
    assert ledger.telling == (TELLING if "forget" in case.after else [])
    # GCS only tells that a call has come, so one after the answer may look as if the answer had waited for it.
    of_bigtable = [name for name in ledger.before if not name.startswith("gcs ")]
    assert of_bigtable == [name for name in case.before if not name.startswith("gcs ")]
    assert [name for name in ledger.after if not name.startswith("gcs ")] == [name for name in case.after if not name.startswith("gcs ")]


@pytest.mark.parametrize("case", [case for case in CASES if "forget" in case.after], ids=lambda case: case.what)
async def test_with_a_change_feed_the_only_call_after_a_large_change_keeps_its_entry(bigtable_host: str, case: CallsCase) -> None:
    """Its writer deletes the old blob later, and forgets the entry. What the answer waits for is the same."""
    async with counted_store(bigtable_host, feed=True) as store:
        ledger = await count_case(store, case)
        kept = await store.log.kept(store.log.ranges()[0], 10)
    assert sorted(ledger.before) == sorted(case.before) and ledger.after == ["keep"]
    assert ledger.telling == []
    assert kept.next_start is None


@pytest.mark.parametrize(("what", "tier", "call", "payload", "paths"), [
    ("put small", "small", "put", 1024, 1), ("put 2 MiB over nothing", "large", "swap", 0, 2),
])  # fmt: skip
async def test_a_row_has_the_bytes_that_sizing_says(
    store: CountedStore, what: str, tier: str, call: str, payload: int, paths: int
) -> None:
    [case] = [case for case in CASES if case.what == what]
    beside = (await count_case(store, case)).cell_bytes[call] - payload - paths * len(COUNTED.path)
    assert abs(beside - ROW_BYTES[tier]) < 10  # a time in the metadata has up to 9 digits of nanoseconds


async def test_recovery_and_renewals_make_no_call_too_many(store: CountedStore) -> None:
    counted = await count_beside(store)
    assert {what: sorted(names) for what, names in counted.items()} == {what: sorted(names) for what, names in BESIDE.items()}


@pytest.mark.parametrize("size", [2 * 1024 * 1024, 16 * 1024 * 1024])
async def test_the_payload_is_on_its_way_before_the_record_is_written(
    store: CountedStore, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = store.log.record

    async def record_later(change: Change, owner: str) -> Entry:
        with anyio.fail_after(10):
            while not {"upload.multipart", "upload.put"} & set(store.server.calls):
                await checkpoint()
        return await record(change, owner)

    monkeypatch.setattr(store.log, "record", record_later)
    await store.run(lambda storage: storage.put(ObjectId.create("bench", "k"), bytes(size)))
    assert [len(stored.payload) for stored in store.server.buckets[BUCKET].objects.values()] == [size]


async def test_a_bulk_read_of_small_objects_shares_its_calls(store: CountedStore) -> None:
    ids = [ObjectId.create("bench", f"{number}") for number in range(16)]

    async def put_all(storage: TieredStorage) -> None:
        async with storage.put_many([PutRequest(object_id, b"small") for object_id in ids]) as results:
            assert all([result.error is None async for result in results])

    async def get_all(storage: TieredStorage) -> None:
        async with storage.get_many([*ids, ObjectId.create("bench", "nothing")], concurrency=32) as results:
            found = {result.request.key: result.value async for result in results}
        assert found.pop("nothing") is None and {each.payload for each in found.values() if each is not None} == {b"small"}
        assert len(found) == len(ids)

    await store.run(put_all)
    ledger = await store.count(get_all)
    assert ledger.before == ["read"]
