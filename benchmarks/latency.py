"""How much later a large put is answered because its change is logged.

A store with the BigTable changelog is compared with one that has none, at 1 put in flight.

    every answer of Bigtable is 5 ms late, every answer of GCS 30 ms (a relay, `benchmarks.relay`)

The record is written while the payload streams, and that must hide its time. The two stores share rows and bucket, and
put by turns, each time under a new name. Between two puts both rest, so that neither pays for what the other has left
to clean up. Bigtable and GCS have a relay each: with one for both, the answer to the record would wait behind the
payload.

The second table says where the time goes. There the calls of a store are timed, so its puts are apart from the others.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from statistics import median
from typing import Any, Literal

import anyio

from benchmarks.figures import Cell, Figures
from benchmarks.rounds import Ratio, take_turns, timed
from benchmarks.servers import Servers, delayed
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from tiered import ObjectId, TieredStorage
from tiered.open import open_backends, open_storage
from tiered.settings import Settings

BIGTABLE_MS, GCS_MS = 5.0, 30.0
MIB = 1024 * 1024
PUTS = {2 * MIB: 10, 16 * MIB: 5}
"""By the payload's size: how many puts a round has. Their median counts."""

READ, RECORD, PAYLOAD, END, SWAP, PUT = CALLS = (
    "read the row", "record the entry", "send all but the end of the payload", "send the end, and wait for the answer", "swap", "the put"
)
CHANGELOGS: tuple[Literal["bigtable", "noop"], ...] = "bigtable", "noop"
Spans = dict[str, list[tuple[float, float]]]
SPANNED_PUTS = 30

ROUNDS = 9
REST_S = 0.05
GOAL = 1.03


async def figures(servers: Servers, size: float) -> list[Figures]:
    rows: list[list[Cell]] = []
    names = count()
    async with AsyncExitStack() as opened:
        late_rows = await opened.enter_async_context(delayed(servers, BIGTABLE_MS, 0.0))
        late_blobs = await opened.enter_async_context(delayed(servers, 0.0, GCS_MS))
        late = Servers(late_rows.bigtable_host, late_blobs.gcs_url)
        table = await servers.new_table()
        logged = await opened.enter_async_context(open_storage(late.settings(table, "bigtable")))
        noop = await opened.enter_async_context(open_storage(late.settings(table, "noop")))
        tiers = (await opened.enter_async_context(open_backends(late.settings(table, "noop"), SystemRuntime()))).tiers
        read_ms = median([1000 * await timed(tiers.high_volume.read("bench/objects/nothing")) for _ in range(9)])
        for payload_bytes, puts in PUTS.items():
            payload, puts = os.urandom(payload_bytes), max(1, round(puts * size))
            for storage in (logged, noop):  # the first put opens connections
                await storage.put(ObjectId.create("bench", f"{next(names)}"), payload)

            async def put(storage: TieredStorage, payload: bytes = payload) -> None:
                await storage.put(ObjectId.create("bench", f"{next(names)}"), payload)

            measured = await take_turns([partial(_round, partial(put, storage), puts) for storage in (logged, noop)], ROUNDS)
            times = (f"{1000 * median(side):.1f}" for side in measured)
            rows.append([f"{payload_bytes // MIB} MiB", *times, Ratio.of(*measured, digits=3)])
        spanned = max(2, round(SPANNED_PUTS * size))
        sides = [await opened.enter_async_context(_spanned(late.settings(table, changelog))) for changelog in CHANGELOGS]
        for number in range(spanned):
            for put_spanned, _ in sides[:: 1 if number % 2 else -1]:
                await anyio.sleep(REST_S)
                await put_spanned()
    notes = [
        f"Goal: at most {GOAL}. Bigtable's answers are {BIGTABLE_MS:g} ms late and GCS's {GCS_MS:g} ms, by a relay; a read of one row"
        f" took {read_ms:.1f} ms. Medians of {ROUNDS} rounds, a round's number being the median of its puts.",
    ]
    columns = ["put over nothing", "BigTable changelog, ms", "no changelog, ms", "ratio"]
    between = "from the beginning of the put: a call begins - its answer has come, ms"
    return [
        Figures("Latency of a large put, with and without a changelog", columns, rows, notes),
        Figures(
            "Where the time of a put of 2 MiB goes", ["call", "with the BigTable changelog", "without"],
            [[call, *(_span(spans.get(call, [])) for _, spans in sides)] for call in CALLS],
            [f"Medians of {spanned} puts, {between}. The end of the upload waits for the record."],
        ),
    ]


@asynccontextmanager
async def _spanned(settings: Settings) -> AsyncIterator[tuple[Callable[[], Awaitable[None]], Spans]]:
    """Yields a function that puts 2 MiB, and by call when it began and ended, in ms after the put began."""
    spans: Spans = {}
    payload, began = os.urandom(2 * MIB), 0.0

    def spanned(name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def timed_call(*arguments: Any, **more: Any) -> Any:
            begins = time.perf_counter() - began
            try:
                return await call(*arguments, **more)
            finally:
                spans.setdefault(name, []).append((1000 * begins, 1000 * (time.perf_counter() - began)))

        return timed_call

    async with open_backends(settings, SystemRuntime()) as backends:
        rows, blobs, log = backends.tiers.high_volume, backends.tiers.long_term, backends.log
        open_upload = blobs.open_upload

        async def opened(*arguments: Any) -> Any:
            upload = await open_upload(*arguments)
            for name, shown in (("write", PAYLOAD), ("finalise", END)):
                setattr(upload, name, spanned(shown, getattr(upload, name)))
            return upload

        for owner, name, shown in ((rows, "read", READ), (log, "record", RECORD), (rows, "swap", SWAP)):
            setattr(owner, name, spanned(shown, getattr(owner, name)))
        setattr(blobs, "open_upload", opened)  # noqa: B010 - the protocol has no attribute to assign to
        async with TieredStorage(backends.tiers, backends.log, SystemRuntime(), settings) as storage:
            await storage.put(ObjectId.create("bench", "warm"), payload)
            spans.clear()

            async def put() -> None:
                nonlocal began
                began = time.perf_counter()
                await spanned(PUT, storage.put)(ObjectId.create("bench", f"{ChangeId.new(SystemRuntime())}"), payload)

            yield put, spans


def _span(spans: list[tuple[float, float]]) -> str:
    return " - ".join(f"{median(ends):.1f}" for ends in zip(*spans, strict=True))


async def _round(put: Callable[[], Awaitable[None]], puts: int) -> float:
    seconds = []
    for _ in range(puts):
        await anyio.sleep(REST_S)
        seconds.append(await timed(put(), time.perf_counter))
    return median(seconds)
