"""The servers for the figures, each in its own process, and the settings of a store that uses them.

    client (measured) --> [relay: answers come later] --> Google's Bigtable emulator; our emulator of GCS

They die with the process that started them: Google's has a warden, and ours end when their stdin does. `python -m
benchmarks.servers` is our emulator of GCS: it says its URL.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from benchmarks.harness import ROOT, RUNTIME
from changelog.change import ChangeId
from emulators.bigtable.emulator import start_bigtable
from emulators.gcs.server import GcsEmulator
from tiered import Settings
from tiered.kinds.chosen import provision
from tiered.provision.findings import problems
from tiered.settings import BigtableSettings, GcsSettings

Result = TypeVar("Result")

PROJECT, INSTANCE, BUCKET = "bench-project", "bench", "bench-bucket"
"""`BUCKET` is for what a store is compared with: a store has a bucket of its own."""
START_S = 60.0
STOP_S = 5.0
LINE_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class Servers:
    """Running servers. `bigtable_host`: address:port. `gcs_url`: without a slash at its end."""

    bigtable_host: str
    gcs_url: str

    async def new_table(self) -> str:
        """Makes an empty table for objects and changelog, and a bucket of the same name. Returns its id."""
        name = f"bench-{ChangeId.new(RUNTIME)}"
        if wrong := problems(await provision(self.settings(name, "bigtable"))):
            raise RuntimeError("; ".join(wrong))
        return name

    def full_name(self, table: str) -> str:
        return f"projects/{PROJECT}/instances/{INSTANCE}/tables/{table}"

    def settings(self, table: str, changelog: Literal["bigtable", "noop"], **more: Any) -> Settings:
        bigtable = BigtableSettings(
            project=PROJECT, instance=INSTANCE, table=table, changelog_table=table, emulator_host=self.bigtable_host
        )
        gcs = GcsSettings(bucket=table, endpoint=self.gcs_url)
        return Settings(bigtable=bigtable, gcs=gcs, changelog=changelog, **more)


@asynccontextmanager
async def started_servers() -> AsyncIterator[Servers]:
    async with start_bigtable() as bigtable, started("benchmarks.servers") as url:
        yield Servers(bigtable.host, url.strip())


@asynccontextmanager
async def delayed(
    servers: Servers, bigtable_ms: float, gcs_ms: float, window_kib: int | None = None, *, of_requests: bool = False
) -> AsyncIterator[Servers]:
    """Returns the same servers behind a relay that delays every answer, or every request to GCS.

    `window_kib`: so many KiB of an answer of GCS, or of a request, are on their way at most; None: no end.
    """
    gcs_late = ">" * of_requests + str(gcs_ms) if window_kib is None else f"{'>' * of_requests}{gcs_ms}/{window_kib}"
    targets = [servers.bigtable_host, str(bigtable_ms), servers.gcs_url.removeprefix("http://"), gcs_late]
    async with started("benchmarks.relay", *targets) as addresses:
        bigtable, gcs = addresses.split()
        yield Servers(bigtable, f"http://{gcs}")


@asynccontextmanager
async def started(module: str, *arguments: str, within_s: float = START_S) -> AsyncIterator[str]:
    """Runs one of our modules in another process until the block ends. Yields the one line that it prints.

    Raises `TimeoutError` if it printed none in time, and `anyio.IncompleteRead` if it ended without one; stderr says
    why.
    """
    command = [sys.executable, "-m", module, *arguments]
    running = await anyio.open_process(command, stdin=subprocess.PIPE, stderr=None, cwd=ROOT, start_new_session=True)
    assert running.stdin is not None and running.stdout is not None
    try:
        with anyio.fail_after(within_s):
            ready = await BufferedByteReceiveStream(running.stdout).receive_until(b"\n", LINE_BYTES_MAX)
        yield ready.decode()
    finally:
        await stop(running, within_s=STOP_S)


async def left_alone() -> None:
    """Returns when stdin ends. That happens when the process that started this one needs it no more, or is dead."""
    # No thread reads it: a thread would keep a process that failed until stdin ends.
    await anyio.wait_readable(sys.stdin.fileno())
    while os.read(sys.stdin.fileno(), 4096):
        await anyio.wait_readable(sys.stdin.fileno())


async def unless_left_alone(work: Callable[[], Awaitable[Result]]) -> Result:
    """Does the work in a process that `started` has started.

    If stdin ends, it gives up the work and everything that it has started.
    """
    done: list[Result] = []

    async def give_up(scope: anyio.CancelScope) -> None:
        await left_alone()
        scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(give_up, tasks.cancel_scope)
        done.append(await work())
        tasks.cancel_scope.cancel()
    if not done:
        raise SystemExit("given up: stdin ended")
    return done[0]


async def stop(running: Process, within_s: float) -> None:
    """Ends the process's stdin, waits for it to end, and kills it after `within_s` seconds."""
    assert running.stdin is not None
    with anyio.CancelScope(shield=True):
        with suppress(anyio.BrokenResourceError):
            await running.stdin.aclose()
        with anyio.move_on_after(within_s):
            await running.wait()
        if running.returncode is None:
            running.kill()
            await running.wait()
        await running.aclose()


async def serve_gcs() -> None:
    async with GcsEmulator() as server:
        server.create_bucket(BUCKET)
        print(server.url, flush=True)
        await left_alone()


if __name__ == "__main__":
    anyio.run(serve_gcs)
