"""Which calls each operation makes to Bigtable and GCS: those that its caller waits for, and those that come after."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest
from anyio.lowlevel import checkpoint

from benchmarks.calls import CountedStore, cases, count_case, counted_store
from benchmarks.servers import BUCKET
from changelog.change import Change, Entry
from tiered import ObjectId

pytestmark = pytest.mark.anyio

SINGLE, SESSION = ["gcs upload.multipart"], ["gcs upload.start", "gcs upload.put"]
CHANGE = ["read", "record", "swap"]
"""What each change of a large object waits for besides its upload; and the record is written beside that."""

GOALS: dict[str, tuple[list[str], list[str]]] = {
    # operation: what the answer waits for, what comes after it
    "put small": (["put"], []),
    "put small over small": (["put"], []),
    "get small": (["read"], []),
    "head small": (["read"], []),
    "delete small": (["delete"], []),
    "get nothing": (["read"], []),
    "put 2 MiB over nothing": ([*CHANGE, *SINGLE], ["forget"]),
    "put 16 MiB over nothing": ([*CHANGE, *SESSION], ["forget"]),
    "put 2 MiB over large": ([*CHANGE, *SINGLE], ["settle", "gcs object.delete", "forget"]),
    "put 16 MiB over large": ([*CHANGE, *SESSION], ["settle", "gcs object.delete", "forget"]),
    "put small over large": (["put", *CHANGE], ["settle", "gcs object.delete", "forget"]),
    "get large": (["read", "gcs object.get", "gcs object.read"], []),
    "head large": (["read", "gcs object.get"], []),
    "delete large": (["delete", *CHANGE], ["settle", "gcs object.delete", "forget"]),
    "get small, which extends its time to idle": (["read"], ["touch"]),
    "get large, which extends its time to idle": (
        ["read", "gcs object.get", "gcs object.read"], ["gcs object.get", "gcs object.patch", "touch"]
    ),
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def store(anyio_backend: str, bigtable_host: str) -> AsyncIterator[CountedStore]:
    async with counted_store(bigtable_host) as store:
        yield store


@pytest.mark.parametrize("what", GOALS)
async def test_an_operation_makes_no_call_too_many(store: CountedStore, what: str) -> None:
    [case] = [case for case in cases() if case.what == what]
    ledger = await count_case(store, case)
    before, after = GOALS[what]
    assert sorted(ledger.before + ledger.after) == sorted(before + after)
    # GCS only tells that a call has come, so one after the answer may look as if the answer had waited for it.
    of_bigtable = [name for name in ledger.before if not name.startswith("gcs ")]
    assert of_bigtable == [name for name in before if not name.startswith("gcs ")]
    assert [name for name in ledger.after if not name.startswith("gcs ")] == [name for name in after if not name.startswith("gcs ")]


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
