"""Where the CPU of a small operation goes, over a channel that answers at once: no gRPC, no server, one process.

    bare calls     the messages of `benchmarks.bare`, built and serialised, and one turn of the event loop
    our rows       what `BigtableRows` takes more, or less, for the same
    each part      what the store adds: each is run alone, in a loop
    the rest       what is left of the whole: calls of functions, the breaker, the observer, the results

The lines add up to the whole, which is measured. `client_cpu` has the same operations over gRPC. There each line takes
more, because gRPC's own code, in between, takes the caches of the processor.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from functools import partial
from typing import Any, cast

import anyio
import grpc.aio
from google.cloud.bigtable_v2.types import bigtable

from benchmarks.bare import BareRows
from benchmarks.client_cpu import OurStore
from benchmarks.figures import Figures
from benchmarks.rounds import run_in_flight
from benchmarks.servers import Servers
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import BigtableTable
from changelog.change import ChangeId
from changelog.noop import NoopChangeLog
from tiered.bigtable.rows import BigtableRows
from tiered.metadata import no_metadata
from tiered.object_id import ObjectId
from tiered.open import Backends
from tiered.payload.chunks import split_head
from tiered.payload.streams import chunks
from tiered.protocol.admission import Admission
from tiered.protocol.backends import Inline, Tiers
from tiered.protocol.under_way import WriteInProgress
from tiered.settings import StoreSettings
from tiered.testing.blobs import MemoryBlobs

RUNTIME = SystemRuntime()
ROUNDS, OPERATIONS, IN_FLIGHT = 9, 1024, 16
PATH, TOKEN, PAYLOAD = "bench/objects/16/12345", ChangeId.new(RUNTIME), os.urandom(1024)
STATE = Inline(no_metadata().with_facts(size=len(PAYLOAD), time_created_ns=RUNTIME.wall_ns()), PAYLOAD, TOKEN)
STORED = {
    b"m": b'{"time_created":{"secs_since_epoch":1795391540,"nanos_since_epoch":123456789},'
    b'"content_type":"application/octet-stream","size":1024}',
    b"p": PAYLOAD, b"v": TOKEN.encode(),
}  # fmt: skip


class _Answer:
    """A call of which the answer comes in the next turn of the event loop."""

    def __init__(self, answer: Any) -> None:
        loop = asyncio.get_running_loop()
        self._come: asyncio.Future[Any] = loop.create_future()
        loop.call_soon(self._come.set_result, answer)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._come.__await__()

    async def __aiter__(self) -> AsyncIterator[Any]:
        yield await self._come

    def cancel(self) -> None: ...


class _AtOnce:
    """A `Channel`. Each conditional write finds no conflict, and each row that is read has the same object."""

    def unary_unary(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        done = bigtable.CheckAndMutateRowResponse.pb()(predicate_matched=False)

        def call(request: Any, **options: Any) -> _Answer:
            request_serializer(request)
            return _Answer(done)

        return call if not method.endswith("ReadRows") else self.unary_stream(method, request_serializer, response_deserializer)

    def unary_stream(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        def call(request: Any, **options: Any) -> _Answer:
            request_serializer(request)
            response = bigtable.ReadRowsResponse.pb()()
            for key in sorted(request.rows.row_keys):
                for column, value in STORED.items():
                    chunk = response.chunks.add(timestamp_micros=1000, value=value)
                    chunk.qualifier.value = column
                    if column == b"m":
                        chunk.row_key, chunk.family_name.value = key, "fm"
                chunk.commit_row = True
            return _Answer(response)

        return call


class _PartRows:
    def __init__(self, rows: BigtableRows) -> None:
        self._rows = rows

    async def put(self, path: str, token: ChangeId, payload: bytes) -> None:
        await self._rows.put_inline(path, token, STATE)

    async def get(self, path: str) -> None:
        await self._rows.read(path)

    async def delete(self, path: str, token: ChangeId) -> None:
        await self._rows.delete_inline(path, token)


async def _least(work: Callable[[int], Awaitable[object]], operations: int) -> float:
    """The microseconds of CPU of one operation: the least of the rounds."""
    taken = []
    for _ in range(ROUNDS):
        gc.collect()
        began = time.process_time()
        await run_in_flight(work, range(operations), IN_FLIGHT)
        taken.append((time.process_time() - began) / operations * 1e6)
    return min(taken)


async def _whole(side: Any, operations: int) -> dict[str, float]:
    return {
        "put": await _least(lambda _: side.put(PATH, TOKEN, PAYLOAD), operations),
        "get": await _least(lambda _: side.get(PATH), operations),
        "delete": await _least(lambda _: side.delete(PATH, TOKEN), operations),
    }


async def _parts(operations: int) -> dict[str, dict[str, float]]:
    object_id, admission = ObjectId.parse(PATH), Admission(IN_FLIGHT, 1, 1.0, RUNTIME.monotonic)

    def slot() -> None:
        assert anyio.current_effective_deadline() > anyio.current_time()
        slot = admission.try_enter()
        assert slot is not None, "only one is taken at a time"
        slot.release()

    def scope() -> None:
        with anyio.move_on_after(10):
            pass

    def metadata() -> None:
        plain = no_metadata()
        plain.with_facts(**plain.stamps(1), size=1)

    async def payload(_: int) -> None:
        await split_head(chunks(PAYLOAD), len(PAYLOAD))

    async def nothing(_: int) -> None:
        pass

    empty = await _least(nothing, operations)

    async def alone(part: Callable[[], object]) -> float:
        async def work(_: int) -> None:
            part()

        return await _least(work, operations) - empty

    parsed, valid = await alone(partial(ObjectId.parse, PATH)), await alone(object_id.validate)
    began, held = await alone(partial(WriteInProgress.begin, object_id, RUNTIME)), await alone(slot)
    return {
        "the object's id: read, and checked if it is written": {"put": parsed + valid, "get": parsed, "delete": parsed},
        "the payload: what it is, and its first chunk": {"put": await _least(payload, operations) - empty},
        "the metadata: made and stamped": {"put": await alone(metadata)},
        "the change's id, and the record of the write": {"put": began, "delete": began},
        "a slot, and a look at the caller's deadline": {"put": held, "get": held, "delete": held},
        "the scope of the budget": {"get": await alone(scope)},
    }


async def figures(servers: Servers, size: float) -> list[Figures]:
    operations, name = max(IN_FLIGHT, round(OPERATIONS * size)), servers.full_name("none")
    rows = BigtableRows(BigtableTable(_AtOnce(), name), RUNTIME)
    settings = servers.settings("none", "noop", store=StoreSettings(concurrency_max=IN_FLIGHT))
    store = OurStore(Backends(Tiers(rows, MemoryBlobs(RUNTIME), inline_write_s_max=1), NoopChangeLog()), settings)
    gc.freeze()
    bare = await _whole(BareRows(cast(grpc.aio.Channel, _AtOnce()), name), operations)
    ours = await _whole(_PartRows(rows), operations)
    async with store.ready():
        whole = await _whole(store, operations)
    lines: dict[str, Mapping[str, float]] = {
        "bare calls": bare, "our rows, more than that": {each: ours[each] - bare[each] for each in bare}, **await _parts(operations)
    }
    lines["the rest"] = {each: whole[each] - sum(line.get(each, 0.0) for line in lines.values()) for each in whole}
    lines["the whole"] = whole
    columns = ["", *(f"{each}, µs" for each in whole)]
    table = [[line, *(f"{taken[each]:.1f}" if each in taken else "" for each in whole)] for line, taken in lines.items()]
    notes = [
        f"1 KiB, {IN_FLIGHT} in flight, the least of {ROUNDS} rounds. A negative number: our rows take less than bare calls."
    ]
    return [Figures("Where the CPU of a small operation goes, without gRPC", columns, table, notes)]
