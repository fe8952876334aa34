"""CPU time of the client per operation: ours, the official clients' and that of bare calls, in one process, by turns.

    rows, 1 KiB     ours          `BigtableRows`: one CheckAndMutateRow, which a tombstone or a mark
                                  prevents; one ReadRows
                    official      google.cloud.bigtable.data, its async client: the same predicates, mutations and reads
                    bare          the same messages, made by hand, over `grpc.aio`; nothing is checked
    blobs, 2 MiB    ours          `TieredStorage` with its changelog; clean-up included
                    official      google-cloud-storage in threads and plain row operations of the `data` client: what a
                                  user would write himself, without changelog and without safety
                    bare          only the calls that the store makes: `grpc.aio` and aiohttp

`time.process_time` is measured: all threads of this process. The servers have processes of their own, which do not
count.
"""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from statistics import median
from typing import Protocol

from benchmarks.bare import BareBlobs, BareRows
from benchmarks.figures import Cell, Figures
from benchmarks.official import OfficialBlobs, OfficialRows
from benchmarks.rounds import Ratio, run_in_flight, take_turns, timed
from benchmarks.servers import BUCKET, INSTANCE, PROJECT, Servers
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from tiered import Metadata, ObjectId, TieredStorage
from tiered.open import Backends, open_backends
from tiered.protocol.backends import HighVolumeBackend, Inline
from tiered.settings import Settings, StoreSettings

RUNTIME = SystemRuntime()
ROUNDS = 7
IN_FLIGHT = (1, 16, 128)
SMALL_BYTES, LARGE_BYTES = 1024, 2 * 1024 * 1024
SMALL_OPERATIONS = 400
LARGE_OPERATIONS = {1: 16, 16: 48, 128: 128}
OPERATIONS = ("put", "get", "delete")
GOAL_OFFICIAL, GOAL_BARE = 0.5, 1.3


class ClientSide(Protocol):
    """A side that puts, gets and deletes its own objects. `token`: an id of the write."""

    def ready(self) -> AbstractAsyncContextManager[object]:
        """Wraps some operations. When the block ends, all work that they left running has ended."""

    async def put(self, path: str, token: ChangeId, payload: bytes) -> None: ...
    async def get(self, path: str) -> bytes | None: ...
    async def delete(self, path: str, token: ChangeId) -> None: ...


class OurRows:
    def __init__(self, rows: HighVolumeBackend) -> None:
        self._rows = rows

    def ready(self) -> AbstractAsyncContextManager[object]:
        return nullcontext()

    async def put(self, path: str, token: ChangeId, payload: bytes) -> None:
        if not await self._rows.put_inline(path, token, Inline(Metadata(size=len(payload)), payload, token)):
            raise AssertionError(f"{path} could not be put")

    async def get(self, path: str) -> bytes | None:
        state = (await self._rows.read(path)).state
        return state.payload if isinstance(state, Inline) else None

    async def delete(self, path: str, token: ChangeId) -> None:
        if not await self._rows.delete_inline(path, token):
            raise AssertionError(f"{path} could not be deleted")


class OurStore:
    """Our side with blobs. The store makes tokens of its own."""

    def __init__(self, backends: Backends, settings: Settings) -> None:
        self._backends = backends
        self._settings = settings

    @asynccontextmanager
    async def ready(self) -> AsyncIterator[None]:
        async with TieredStorage(self._backends.tiers, self._backends.log, RUNTIME, self._settings) as self._store:
            yield

    async def put(self, path: str, token: ChangeId, payload: bytes) -> None:
        await self._store.put(ObjectId.parse(path), payload)

    async def get(self, path: str) -> bytes | None:
        found = await self._store.get(ObjectId.parse(path))
        return None if found is None else await found.read()

    async def delete(self, path: str, token: ChangeId) -> None:
        await self._store.delete(ObjectId.parse(path))


@dataclass(frozen=True)
class Contest:
    """In a round, each side puts, gets and deletes so many objects."""

    what: str
    sides: Sequence[ClientSide]
    payload: bytes
    in_flight: int
    operations: int

    async def rows(self, rounds: int) -> list[list[Cell]]:
        """Returns the lines of the table: ours, official and bare, for each operation."""
        names = count()
        measured = await take_turns([partial(self._round, side, names) for side in self.sides], rounds)
        lines: list[list[Cell]] = []
        for place, operation in enumerate(OPERATIONS):
            ours, *others = ([seconds[place] * 1e6 for seconds in side] for side in measured)
            beside = [cell for other in others for cell in _beside(ours, other)]
            lines.append([f"{operation} {self.what}", str(self.in_flight), f"{median(ours):,.0f}", *beside])
        return lines

    async def _round(self, side: ClientSide, names: Iterator[int]) -> tuple[float, ...]:
        """Returns seconds of CPU per operation, for each kind of operation."""
        token = partial(ChangeId.new, RUNTIME)
        items = [(f"bench/objects/{self.in_flight}/{name}", token(), token()) for name in islice(names, self.operations)]

        async def put(item: tuple[str, ChangeId, ChangeId]) -> None:
            await side.put(item[0], item[1], self.payload)

        async def get(item: tuple[str, ChangeId, ChangeId]) -> None:
            if len(await side.get(item[0]) or b"") != len(self.payload):
                raise AssertionError(f"{item[0]} is not what was put")

        async def delete(item: tuple[str, ChangeId, ChangeId]) -> None:
            await side.delete(item[0], item[2])

        async def all_of(work: Callable[[tuple[str, ChangeId, ChangeId]], Awaitable[None]]) -> None:
            async with side.ready():
                await run_in_flight(work, items, self.in_flight)

        seconds = []
        for work in (put, get, delete):
            gc.collect()  # so that no side pays for another's garbage
            seconds.append(await timed(all_of(work), time.process_time) / len(items))
        return tuple(seconds)


def _beside(ours: list[float], other: list[float]) -> list[Cell]:
    return [f"{median(other):,.0f}", Ratio.of(ours, other)]


async def figures(servers: Servers, size: float) -> list[Figures]:
    logging.getLogger("google").setLevel(logging.ERROR)
    os.environ["BIGTABLE_EMULATOR_HOST"] = servers.bigtable_host  # the official client reads it
    async with AsyncExitStack() as opened:
        table = await servers.new_table()
        settings = servers.settings(table, "bigtable", store=StoreSettings(concurrency_max=max(IN_FLIGHT)))
        backends = await opened.enter_async_context(open_backends(settings, RUNTIME))
        official = await opened.enter_async_context(OfficialRows.connect(PROJECT, INSTANCE, table))
        bare = await opened.enter_async_context(BareRows.connect(servers.bigtable_host, servers.full_name(table)))
        official_blobs = await opened.enter_async_context(OfficialBlobs.connect(official, servers.gcs_url, BUCKET, max(IN_FLIGHT)))
        bare_blobs = await opened.enter_async_context(BareBlobs.connect(bare, servers.gcs_url, BUCKET))
        store = OurStore(backends, settings)
        gc.freeze()
        rows, whole, blobs = [], [], []
        for in_flight in IN_FLIGHT:
            small, large = max(2, round(SMALL_OPERATIONS * size)), max(2, round(LARGE_OPERATIONS[in_flight] * size))
            payload = os.urandom(SMALL_BYTES)
            rows += await Contest("row", [OurRows(backends.tiers.high_volume), official, bare], payload, in_flight, small).rows(ROUNDS)
            whole += await Contest("small", [store, official, bare], payload, in_flight, small).rows(ROUNDS)
            sides: list[ClientSide] = [store, official_blobs, bare_blobs]
            blobs += await Contest("large", sides, os.urandom(LARGE_BYTES), in_flight, large).rows(ROUNDS)
    columns = ["", "in flight", "ours, µs", "official, µs", "of official", "bare, µs", "of bare"]
    named_by = columns[:2]
    goal = f"Goal: at most {GOAL_OFFICIAL} of the official client, at most {GOAL_BARE} of bare calls. Medians of {ROUNDS} rounds."
    return [
        Figures("Client CPU per row operation, 1 KiB", columns, rows, [goal], named_by=named_by),
        Figures("Client CPU of the whole store, 1 KiB, beside the same row operations", columns, whole, named_by=named_by),
        Figures(
            f"Client CPU of the whole store, {LARGE_BYTES // 1024**2} MiB", columns, blobs,
            ["Official: google-cloud-storage in threads and plain row operations, without changelog and without safety."],
            named_by=named_by,
        ),
    ]
