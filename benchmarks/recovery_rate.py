"""Entries per second that 1, 2 and 4 recovery daemons finish, of thousands that dead writers have left.

    daemons start on an empty log -> SIGSTOP -> the log is filled -> SIGCONT, the clock starts
        -> the log is empty -> SIGTERM

Each entry is of a large put over nothing whose writer died during the upload. The daemon claims it, refuses its token,
cancels the session, deletes a blob that never existed, and forgets the entry: two calls to Bigtable, one that it shares
with others, and two to GCS. The daemons are the product's own (`tiered recover`) with its own settings, but without a
limit on their rate. They share the machine with both emulators.

The other tables say where the CPU of an entry goes: by turns, in one process, the loop recovers entries, and the same
calls are made bare, without a store or a loop (`benchmarks.bare`).
"""

from __future__ import annotations

import cProfile
import json
import os
import pstats
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, cast
from urllib.parse import quote

import aiohttp
import anyio
from anyio.abc import Process
from google.cloud.bigtable_v2.types import bigtable

from benchmarks.figures import Cell, Figures
from benchmarks.processes import cpu_s
from benchmarks.rounds import Ratio, run_in_flight, take_turns
from benchmarks.servers import ROOT, Servers, delayed, stop
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import (
    DELETE_ROW,
    NEWEST,
    SERVICE,
    BigtableTable,
    KeySpan,
    chain,
    column_is,
    delete_column,
    insecure_channel,
    set_cell,
    value_is,
)
from changelog.change import LOG_PREFIX, Change, ChangeId, Entry, encode
from emulators.go import WITH_WARDEN
from recovery.loop import RecoveryLoop
from tiered import Metadata, ObjectId
from tiered.object_id import blob_name
from tiered.open import Backends, open_backends
from tiered.settings import RecoverySettings, Settings

RUNTIME = SystemRuntime()
CONDITIONS = (
    ("at once", 0.0, 0.0, {1: 4_000, 2: 4_000, 4: 4_000}),
    ("5 ms late, GCS's 30 ms", 5.0, 30.0, {1: 4_000, 2: 10_000, 4: 4_000}),
)
"""How fast the servers answer, in words and as delays in milliseconds (Bigtable, GCS); and for each number of daemons,
how many entries there are.
"""
SERVERS = {"Bigtable": "cbtemulator", "GCS": "benchmarks.gcs_server", "relay": "benchmarks.relay", "daemons": "recovery.cli.main"}

WORK_ENTRIES, WORK_ROUNDS = 1_000, 5
OWNERS = {
    "aiohttp, yarl, multidict": ("/aiohttp/", "/yarl/", "/multidict/"), "grpc.aio": ("/grpc/",), "asyncio": ("/asyncio/", "/selectors.py"),
    "anyio": ("/anyio/",), "this project": (f"{ROOT}/changelog/", f"{ROOT}/tiered/", f"{ROOT}/recovery/"),
}
"""Whose code a file is, by a part of its path."""
FORGET = "forget: its share of a MutateRows (grpc.aio)"
DEAD_FOR_S = 600
LOADED_AT_ONCE = 64
LOOK_EVERY_S = 0.1
LOOKED_AT = 1000
START_S, SETTLE_S, STOP_S = 60.0, 300.0, 60.0
SETTINGS = {"recovery": {"rate_per_s": 1e6, "idle_s": 0.1}}


@dataclass(frozen=True)
class RecoveryBenchRun:
    """What the daemons of one run did together."""

    seconds: float
    lost: int
    failed: int
    cpu_s: Mapping[str, float]


async def figures(servers: Servers, size: float) -> list[Figures]:
    rows: list[list[Cell]] = []
    for how, bigtable_ms, gcs_ms, loads in CONDITIONS:
        first = 0.0
        async with delayed(servers, bigtable_ms, gcs_ms) if bigtable_ms or gcs_ms else nullcontext(servers) as asked:
            for daemons, entries in loads.items():
                entries = max(4, round(entries * size))
                run = await _run(servers, asked, daemons, entries)
                rate = entries / run.seconds
                first = first or rate
                cpu = [f"{run.cpu_s.get(name, 0.0) / entries * 1e6:,.0f}" for name in SERVERS.values()]
                of_one = Ratio.of([rate], [first], more_is_better=True)
                speed: list[Cell] = [f"{run.seconds:.1f}", f"{rate:,.0f}", of_one]
                rows.append([how, f"{entries:,}", str(daemons), *speed, str(run.lost), str(run.failed), *cpu])
    columns = ["answers", "entries", "daemons", "s", "entries per s", "of one's", "claims lost", "failed"]
    columns += [f"{name}, µs" for name in SERVERS]
    notes = [
        "The last four columns are CPU for each entry: of both emulators, of the relay that makes answers late, and of all"
        " daemons together.",
    ]
    settled = Figures("Recovery: entries settled by several daemons", columns, rows, notes, named_by=("answers", "daemons"))
    return [settled, *await _work(servers, size)]


async def _run(servers: Servers, asked: Servers, daemons: int, entries: int) -> RecoveryBenchRun:
    """`asked`: the servers as the daemons see them."""
    table = await servers.new_table()
    settings = asked.settings(table, "bigtable")
    async with AsyncExitStack() as opened:
        directory = Path(opened.enter_context(TemporaryDirectory(prefix="tiered-bench-")))
        backends = await opened.enter_async_context(open_backends(settings, RUNTIME))  # a session has the address that the daemons know
        channel = await opened.enter_async_context(insecure_channel(servers.bigtable_host))
        rows = BigtableTable(channel, servers.full_name(table))
        running = [await opened.enter_async_context(_daemon(directory / str(number), settings)) for number in range(daemons)]
        with anyio.fail_after(START_S):
            for number in range(daemons):
                await _await_start(directory / str(number))
        _signal(running, signal.SIGSTOP)
        await _fill(rows, backends, entries)
        before, began = cpu_s(), time.perf_counter()
        _signal(running, signal.SIGCONT)
        with anyio.fail_after(SETTLE_S):
            while await _has_entries(rows):
                await anyio.sleep(LOOK_EVERY_S)
        seconds = time.perf_counter() - began
        cpu = {name: spent - before.get(name, 0.0) for name, spent in cpu_s().items()}
        _signal(running, signal.SIGTERM)
        reports = [await _report(each) for each in running]
    settled = sum(report["recovered"] for report in reports)
    if settled < entries or any(report["parked"] or report["deferred"] for report in reports):
        raise AssertionError(f"not all of {entries} entries were settled: {reports}")
    lost, failed = (sum(report[name] for report in reports) for name in ("lost", "failed"))
    return RecoveryBenchRun(seconds, lost, failed, cpu)


async def _has_entries(rows: BigtableTable) -> bool:
    """The emulator may leave out a row that is deleted meanwhile, and count it. So a scan of one row is not enough."""
    span = KeySpan.prefix(LOG_PREFIX.encode())
    return bool(await rows.scan([span], NEWEST, 1) or await rows.scan([span], NEWEST, LOOKED_AT))


# --- daemons -------------------------------------------------------------------------------------


@asynccontextmanager
async def _daemon(path: Path, settings: Settings) -> AsyncIterator[Process]:
    """Runs a daemon. It dies with this process, even while it is stopped."""
    config = path.with_suffix(".yaml")  # JSON is YAML
    told = settings.model_dump(mode="json", include={"bigtable", "gcs", "changelog"})
    config.write_text(json.dumps(told | SETTINGS))
    command = [sys.executable, "-m", "recovery.cli.main", "--config", str(config), "recover", "--json"]
    with path.with_suffix(".log").open("wb") as log:
        running = await anyio.open_process(
            ["sh", "-c", WITH_WARDEN, "sh", *command], stdin=subprocess.PIPE, stderr=log, cwd=ROOT, start_new_session=True
        )
    try:
        yield running
    finally:
        await stop(running, within_s=0)


async def _await_start(path: Path) -> None:
    while b"recovery_started" not in path.with_suffix(".log").read_bytes():
        await anyio.sleep(0.05)


async def _report(running: Process) -> dict[str, int]:
    assert running.stdout is not None
    with anyio.fail_after(STOP_S):
        told = b"".join([chunk async for chunk in running.stdout])
        await running.wait()
    report: dict[str, int] = json.loads(told)
    return report


def _signal(running: list[Process], number: signal.Signals) -> None:
    for each in running:
        os.kill(each.pid, number)


# --- what dead writers left ------------------------------------------------------------------------


async def _fill(rows: BigtableTable, backends: Backends, entries: int) -> list[Entry]:
    """Fills the log. The rows are written without the changelog, because through it nobody can choose a heartbeat."""
    beat_us = RUNTIME.wall_ns() // 1_000_000 * 1000 - DEAD_FOR_S * 1_000_000
    left = []

    async def leave(number: int) -> None:
        path, change_id = ObjectId.create("bench", str(number)).path, ChangeId.new(RUNTIME)
        new = blob_name(path, change_id)
        upload = await backends.tiers.long_term.open_upload(new, Metadata(), None)
        entry = Entry(Change(change_id, path, new, None, upload.session), change_id.row_key(), "dead")
        await rows.mutate(entry.key.encode(), set_cell("fc", b"c", encode(entry), beat_us))
        left.append(entry)

    await run_in_flight(leave, range(entries), LOADED_AT_ONCE)
    return left


# --- where the CPU goes ----------------------------------------------------------------------------


async def _work(servers: Servers, size: float) -> list[Figures]:
    """The CPU of an entry in the loop, beside that of the same calls made bare, and whose code takes it."""
    entries = max(4, round(WORK_ENTRIES * size))
    table = await servers.new_table()
    settings = servers.settings(table, "bigtable", recovery=RecoverySettings(rate_per_s=1e6))
    async with (
        open_backends(settings, RUNTIME) as backends, insecure_channel(servers.bigtable_host) as channel,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
    ):  # fmt: skip
        rows = BigtableTable(channel, servers.full_name(table))
        in_flight = settings.recovery.concurrency_max

        async def recovered(profile: AbstractContextManager[object] | None = None) -> dict[str, float]:
            await _fill(rows, backends, entries)
            loop = RecoveryLoop(backends.tiers, backends.log, RUNTIME, settings)
            began = time.process_time()
            with profile or nullcontext():
                report = await loop.run_once()
            if report.recovered != entries:
                raise AssertionError(f"not all of {entries} entries were recovered: {report}")
            return {"whole": time.process_time() - began}

        async def bare() -> dict[str, float]:
            left = await _fill(rows, backends, entries)
            calls = _bare_calls(servers, channel, http, servers.full_name(table), table)
            taken = {}
            for name, call in calls.items():
                began = time.process_time()
                await run_in_flight(call, left, in_flight)
                taken[name] = time.process_time() - began
            began = time.process_time()
            for first in range(0, len(left), in_flight):
                await rows.mutate_rows([(entry.key.encode(), [DELETE_ROW]) for entry in left[first : first + in_flight]])
            return taken | {FORGET: time.process_time() - began}

        whole, made_bare = await take_turns([recovered, bare], WORK_ROUNDS)
        profile = cProfile.Profile()
        await recovered(profile)
    per_entry = {name: median(each[name] for each in made_bare) / entries * 1e6 for name in made_bare[0]}
    total, ours = sum(per_entry.values()), median(each["whole"] for each in whole) / entries * 1e6
    rest = ("the rest: loop, protocol and adapters", ours - total)
    cells = [*per_entry.items(), ("all of these", total), rest, ("an entry in the loop", ours)]
    notes = [
        f"{entries:,} entries in a round, medians of {WORK_ROUNDS} rounds, {in_flight} in flight. The CPU is the client's, that of"
        " all threads."
    ]
    return [
        Figures("Recovery: CPU of an entry, beside bare calls", ["", "µs", "share"], [
            [name, f"{us:,.0f}", f"{us / ours:.0%}"] for name, us in cells
        ], notes),
        Figures("Recovery: whose code runs in the loop", ["", "share"], _shares(profile), [
            "One round under cProfile, which makes Python code look dearer than C code. A function of C counts as its caller."
        ]),
    ]


def _shares(profile: cProfile.Profile) -> list[list[str]]:
    """The share of the time inside the functions of each package, the largest first, and that of all others."""
    taken: Counter[str] = Counter()
    for (file, _, _), (_, _, own_s, _, callers) in cast(Any, pstats.Stats(profile)).stats.items():
        of_c = {caller[0]: told[2] for caller, told in callers.items()} if file == "~" else {file: own_s}
        for path, seconds in of_c.items():
            taken[next((owner for owner, parts in OWNERS.items() if any(part in path for part in parts)), "others")] += seconds
    return [[owner, f"{seconds / taken.total():.0%}"] for owner, seconds in taken.most_common()]


def _bare_calls(
    servers: Servers, channel: Any, http: aiohttp.ClientSession, table: str, bucket: str
) -> Mapping[str, Callable[[Entry], Awaitable[object]]]:
    """The calls that one entry needs, each as the client packages make it from ready messages."""
    request, response = bigtable.CheckAndMutateRowRequest.pb(), bigtable.CheckAndMutateRowResponse.pb()
    check = channel.unary_unary(f"{SERVICE}CheckAndMutateRow", request.SerializeToString, response.FromString)

    async def claim(entry: Entry) -> None:
        same = chain(column_is("fc", b"c"), NEWEST, value_is(encode(entry)))
        await check(request(table_name=table, row_key=entry.key.encode(), predicate_filter=same, true_mutations=[
            delete_column("fc", b"c"), set_cell("fc", b"c", encode(entry))
        ]))  # fmt: skip

    async def settle(entry: Entry) -> None:
        live = chain(column_is("fm", b"v"), value_is(entry.change.id.encode()))
        await check(request(table_name=table, row_key=entry.change.object.encode(), predicate_filter=live, false_mutations=[
            set_cell("ff", f"r:{entry.change.id}".encode(), b"")
        ]))  # fmt: skip

    async def cancel(entry: Entry) -> None:
        assert entry.change.upload is not None
        async with http.delete(entry.change.upload) as answer:
            await answer.read()

    async def delete(entry: Entry) -> None:
        assert entry.change.new is not None
        async with http.delete(f"{servers.gcs_url}/storage/v1/b/{bucket}/o/{quote(entry.change.new, safe='')}") as answer:
            await answer.read()

    return {
        "claim: CheckAndMutateRow (grpc.aio)": claim, "settle: CheckAndMutateRow (grpc.aio)": settle,
        "cancel of the session: DELETE (aiohttp)": cancel, "delete of the blob: DELETE (aiohttp)": delete,
    }  # fmt: skip
