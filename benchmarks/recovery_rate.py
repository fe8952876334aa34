"""Entries per second that 1, 2 and 4 recovery daemons finish, of thousands that dead writers have left.

    daemons start on an empty log -> SIGSTOP -> the log is filled -> SIGCONT, the clock starts
        -> the log is empty -> SIGTERM

Each entry is of a large put over nothing whose writer died during the upload. The daemon claims it, refuses its token,
cancels the session, deletes a blob that never existed, and forgets the entry: four calls to Bigtable and two to GCS.
The daemons are the product's own (`tiered recover`), without a limit on their rate. They share the machine with both
emulators.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import anyio
from anyio.abc import Process

from benchmarks.figures import Cell, Figures
from benchmarks.rounds import Ratio, run_in_flight, take_turns
from benchmarks.servers import ROOT, Servers, delayed, stop
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import BigtableTable, insecure_channel, set_cell
from changelog.change import Change, ChangeId, Entry, encode
from emulators.bigtable.emulator import WITH_WARDEN
from tiered import Metadata, ObjectId
from tiered.object_id import blob_name
from tiered.open import Backends, open_backends
from tiered.settings import Settings

RUNTIME = SystemRuntime()
DAEMONS = (1, 2, 4)
CONDITIONS = (("at once", 0.0, 0.0, 10_000), ("5 ms late, GCS's 30 ms", 5.0, 30.0, 2_000))
"""How fast the servers answer, in words and as delays in milliseconds (Bigtable, GCS); and how many entries there are.
"""

ROUNDS = 1
DEAD_FOR_S = 600
LOADED_AT_ONCE = 64
LOOK_EVERY_S = 0.1
START_S, SETTLE_S, STOP_S = 60.0, 300.0, 60.0
SETTINGS = {"recovery": {"rate_per_s": 1e6, "idle_s": 0.1}}


@dataclass(frozen=True)
class Run:
    """What the daemons of one run did together."""

    entries_per_s: float
    lost: int
    failed: int


async def figures(servers: Servers, size: float) -> list[Figures]:
    rows: list[list[Cell]] = []
    for how, bigtable_ms, gcs_ms, entries in CONDITIONS:
        entries = max(4, round(entries * size))
        async with delayed(servers, bigtable_ms, gcs_ms) if bigtable_ms or gcs_ms else nullcontext(servers) as asked:
            runs = await take_turns([partial(_run, asked, daemons, entries) for daemons in DAEMONS], ROUNDS)
        rates = [[run.entries_per_s for run in each] for each in runs]
        for daemons, rate, each in zip(DAEMONS, rates, runs, strict=True):
            counts = (f"{median(getattr(run, name) for run in each):,.0f}" for name in ("lost", "failed"))
            ratio: Cell = "1" if rate is rates[0] else Ratio.of(rate, rates[0], more_is_better=True)
            rows.append([how, f"{entries:,}", str(daemons), f"{median(rate):,.0f}", ratio, *counts])
    columns = ["answers", "stale entries", "daemons", "entries per second", "of one's", "claims lost to another", "failed"]
    notes = [
        "At once: daemons and emulators share the cores, and one daemon keeps them busy. Late, as of services that are elsewhere: a daemon"
        " works on 16 entries at once, and more daemons on more.",
    ]
    return [Figures("Recovery: entries settled by several daemons", columns, rows, notes, named_by=columns[:3])]


async def _run(servers: Servers, daemons: int, entries: int) -> Run:
    table = await servers.new_table()
    settings = servers.settings(table, "bigtable")
    async with AsyncExitStack() as opened:
        directory = Path(opened.enter_context(TemporaryDirectory(prefix="tiered-bench-")))
        backends = await opened.enter_async_context(open_backends(settings, RUNTIME))
        running = [await opened.enter_async_context(_daemon(directory / str(number), settings)) for number in range(daemons)]
        with anyio.fail_after(START_S):
            for number in range(daemons):
                await _await_start(directory / str(number))
        _signal(running, signal.SIGSTOP)
        await _fill(servers, table, backends, entries)
        began = time.perf_counter()
        _signal(running, signal.SIGCONT)
        with anyio.fail_after(SETTLE_S):
            while (await backends.log.entries("", 1)).entries:
                await anyio.sleep(LOOK_EVERY_S)
        seconds = time.perf_counter() - began
        _signal(running, signal.SIGTERM)
        reports = [await _report(each) for each in running]
    settled = sum(report["recovered"] for report in reports)
    if settled < entries or any(report["parked"] or report["deferred"] for report in reports):
        raise AssertionError(f"not all of {entries} entries were settled: {reports}")
    return Run(entries / seconds, *(sum(report[name] for report in reports) for name in ("lost", "failed")))


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
        told = b"".join([piece async for piece in running.stdout])
        await running.wait()
    report: dict[str, int] = json.loads(told)
    return report


def _signal(running: list[Process], number: signal.Signals) -> None:
    for each in running:
        os.kill(each.pid, number)


# --- what dead writers left ------------------------------------------------------------------------


async def _fill(servers: Servers, table: str, backends: Backends, entries: int) -> None:
    """Fills the log. The rows are written without the changelog, because through it nobody can choose a heartbeat."""
    beat_us = RUNTIME.wall_ns() // 1_000_000 * 1000 - DEAD_FOR_S * 1_000_000
    async with insecure_channel(servers.bigtable_host) as channel:
        rows = BigtableTable(channel, servers.full_name(table))

        async def leave(number: int) -> None:
            path, change_id = ObjectId.create("bench", str(number)).path, ChangeId.new(RUNTIME)
            new = blob_name(path, change_id)
            upload = await backends.tiers.long_term.open_upload(new, Metadata(), None)
            entry = Entry(Change(change_id, path, new, None, upload.session), change_id.row_key(), "dead")
            await rows.mutate(entry.key.encode(), set_cell("fc", b"c", encode(entry), beat_us))

        await run_in_flight(leave, range(entries), LOADED_AT_ONCE)
