"""Faults of a store, each planted in a real one, and the least that must be said of it.

`FAULTS` is the table. A fault is a function here that plants it; `Fault` says what no surface may be greener than, and
what the surfaces that should tell it say. `test_faults.py` plants each one and asks all of them.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import anyio
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from changelog.sqlite.database import BUSY_TIMEOUT_S
from recovery.audit.manifest import Verify
from recovery.audit.running.jobs import AuditOptions
from recovery.audit.running.run import run_audit
from recovery.states import Level
from recovery.statistics.recovery_source import RecoveryCounts, RecoverySource
from tests.given.alerts import SERVICE, Scraped, Target
from tests.given.audited_store import InThread
from tests.given.command_line import Command, plant
from tests.given.small_disk import Mount, fill
from tiered import (
    AtCapacityError,
    ConditionFailedError,
    DanglingTombstoneError,
    InvalidRequestError,
    ObjectId,
    Settings,
    Telemetry,
    TieredStorage,
    open_storage,
)
from tiered.metadata import NS_PER_MS
from tiered.notes.feed_off import FeedOffNotifier
from tiered.object_id import blob_name
from tiered.open import Backends, open_backends
from tiered.settings import StoreSettings

LARGE = b"x" * 5000
NAME = "media/objects/day/05"


class ClockBehind(SystemRuntime):
    """The machine's clocks, `seconds` behind."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def wall_ns(self) -> int:
        return super().wall_ns() - round(self.seconds * 1e9)

    def monotonic(self) -> float:
        return super().monotonic() - self.seconds


class FaultyStore(Command):
    """`tiered` on a store with three objects that have blobs, and what faults are planted with.

    `mount`: as the fixture. `held`: is closed at the end of the test.
    """

    def __init__(self, directory: Path, mount: Mount) -> None:
        super().__init__(directory)
        self.mount = mount
        self.held = ExitStack()
        self.services: list[Target] = []
        self.values: dict[str, Any] = {"inline_bytes_max": 16}
        self.environment["TIERED_INLINE_BYTES_MAX"] = "16"

    def serve(self, meanwhile: Callable[[TieredStorage], Awaitable[None]], settings: Settings | None = None) -> None:
        """A service uses the store, and shows at `/metrics` what it met before and after `meanwhile`."""
        registry = CollectorRegistry()

        def scraped() -> Scraped:
            return Scraped(generate_latest(registry).decode(), time.time())

        async def run() -> None:
            async with open_storage(settings or self.settings, telemetry=Telemetry(registry=registry)) as storage:
                await storage.put(ObjectId.parse("media/objects/day/served"), b"")
                before = scraped()
                await meanwhile(storage)
                self.services.append(Target(SERVICE, before, scraped()))

        anyio.run(run)

    def put_all(self) -> None:
        async def put() -> None:
            async with open_storage(self.settings) as storage:
                for number in (4, 5, 6):
                    await storage.put(ObjectId.parse(f"media/objects/day/{number:02}"), LARGE)

        anyio.run(put)

    def put(self, name: str = NAME, payload: bytes = LARGE) -> None:
        self("put", name, "-", stdin=payload)

    @property
    def settings(self) -> Settings:
        return Settings(directory=self.store, changelog="sqlite", **self.values)

    def feeds(self, **values: object) -> None:
        """From now on the store has a feed, delivered to the directory `out`."""
        self.values["feed"] = {"enabled": True, "to": (str(self.directory / "out"),), **values}
        self.environment |= {"TIERED_FEED__ENABLED": "true", "TIERED_FEED__TO": f'["{self.directory / "out"}"]'}

    def publish(self, code: int | range = 0) -> None:
        """`code`: the exit code, or those that will do. A run that fails does not try again for a minute."""
        with patch("recovery.feed.writer.supervisor.ONCE_PATIENCE_S", 60.0 if code == 0 else 0.2):
            self("feed", "run", "--once", code=code)

    def blob(self, name: str = NAME) -> Path:
        """The file of an object's blob."""
        marker = name.rpartition("/")[2]
        [found] = [path for path in (self.store / "blobs").rglob("*") if path.is_file() and f"%2f{marker}%2f" in path.name]
        return found

    def sql(self, statement: str, *values: object) -> None:
        with closing(sqlite3.connect(self.store / "tiered.db")) as database, database:
            database.execute(statement, values)

    def audit(self, *, scope: str = "", grace_s: int = 0, verify: Verify | None = None) -> None:
        """An audit that ends now. A blob is never too young for it."""
        to = self.directory / f"audit-{len(list(self.directory.glob('audit-*')))}"
        options = AuditOptions(str(to), grace_s=grace_s, insist=True, prefix=scope, verify=verify)
        anyio.run(run_audit, self.settings, options, InThread(), SystemRuntime(), lambda _: None)

    def announce(self, seconds_ago: float = 0) -> None:
        """A daemon writes its presence row."""
        self.run(lambda backends: backends.log.announce("recovery-1"), ClockBehind(seconds_ago))

    def run(self, call: Callable[[Backends], Awaitable[object]], runtime: SystemRuntime | None = None) -> None:
        async def opened() -> None:
            async with open_backends(self.settings, runtime or SystemRuntime()) as backends:
                await call(backends)

        anyio.run(opened)

    def report(self, arriving: int, done: int) -> None:
        """A daemon reports three times, at last now. Before each, so many entries came, and so many were dealt with."""

        async def three() -> None:
            runtime, counts = ClockBehind(44), RecoveryCounts(passed=True)
            async with open_backends(self.settings, runtime) as backends:
                source = RecoverySource(backends.log, runtime, self.settings, "recovery-1", counts)
                for behind_s in (44, 22, 0):
                    runtime.seconds = behind_s
                    await anyio.to_thread.run_sync(self.plant_entries, arriving)
                    counts.processed += done
                    await source.report()

        anyio.run(three)

    def plant_entries(self, number: int) -> None:
        """Entries of a process that died."""
        for _ in range(number):
            plant(self.store, None)


NO_DAEMON = "NoRecoveryDaemon"
"""Where no daemon works but for what a fault says of one."""


@dataclass(frozen=True)
class Fault:
    """`plant`: plants it. `level`: the greenest level that is true. `code`, `feed`, `check`, `show`: the exit codes of
    `tiered status`, `feed status`, `check`, and `audit show` of the object that the fault hits (None: not asked,
    because it would try again for long).

    `says`: parts of what must be said: by `status` and the page alike ("headline"), by `tiered status` ("text"), by
    `/readyz` ("ready"; not ready at all if it is there), by `feed status` ("feed") and by `check` ("check").
    `metrics`: gauges of `/metrics` and their least value. `alerts`: those that fire within a day if it stays so,
    without the first word of their names, and no others.
    """

    plant: Callable[[Any], None]
    level: Level = Level.OK
    code: int = 0
    says: dict[str, str] = field(default_factory=dict)
    feed: int = 0
    check: int = 0
    show: int | None = 0
    metrics: dict[str, float] = field(default_factory=dict)
    alerts: str = NO_DAEMON


# --- data --------------------------------------------------------------------------------------------


def nothing(ground: FaultyStore) -> None:
    ground.announce()


def lost_unseen(ground: FaultyStore) -> None:
    ground.blob().unlink()


def lost_since_a_clean_audit(ground: FaultyStore) -> None:
    ground.audit()
    ground.blob().unlink()


def lost_and_read(ground: FaultyStore) -> None:
    """By a service. `tiered get` opens the store for reading, which writes nothing."""
    ground.blob().unlink()

    async def read(storage: TieredStorage) -> None:
        with pytest.raises(DanglingTombstoneError):
            await storage.get(ObjectId.parse(NAME))

    ground.serve(read)
    ground("get", NAME, code=6)


def lost_and_audited(ground: FaultyStore) -> None:
    ground.blob().unlink()
    ground.audit()


def lost_and_audited_in_part(ground: FaultyStore) -> None:
    """One of the audit's ranges failed."""
    lost_and_audited(ground)
    ground.sql("UPDATE notes SET value = CAST(? AS BLOB) WHERE name = 'audit/last'", _changed_runs(ground, _in_part))


def _in_part(run: dict[str, Any]) -> None:
    run |= {"complete": False, "ranges_missing": 1}


def lost_beside_a_narrow_clean_audit(ground: FaultyStore) -> None:
    lost_and_audited(ground)
    ground.audit(scope="media/objects/day/04")


def audited_narrowly(ground: FaultyStore) -> None:
    ground.blob().unlink()
    ground.audit(scope="media/objects/day/04")


def audited_with_a_mistyped_scope(ground: FaultyStore) -> None:
    ground.blob().unlink()
    ground("audit", "run", "--engine", "local", "--parallel", "1", "--usecase", "medai", "--to", "mistyped", code=range(8))
    assert ground.ended != 0, "a scope without a name is clean"


def audited_long_ago(ground: FaultyStore) -> None:
    ground.audit()
    ground.sql("UPDATE notes SET value = CAST(? AS BLOB) WHERE name = 'audit/last'", _changed_runs(ground, _month_older))


def _month_older(run: dict[str, Any]) -> None:
    month_ns = 30 * 86_400 * 10**9
    run |= {"started_ns": run["started_ns"] - month_ns, "ended_ns": run["ended_ns"] - month_ns}


def _changed_runs(ground: FaultyStore, change: Callable[[dict[str, Any]], None]) -> str:
    with closing(sqlite3.connect(ground.store / "tiered.db")) as database:
        [(raw,)] = database.execute("SELECT value FROM notes WHERE name = 'audit/last'")
    value = json.loads(raw)
    for run in value["runs"]:
        change(run)
    return json.dumps(value)


def payload_rotten(ground: FaultyStore) -> None:
    raw = bytearray(ground.blob().read_bytes())
    raw[100] ^= 1
    ground.blob().write_bytes(raw)
    ground.audit()


def payload_rotten_and_read(ground: FaultyStore) -> None:
    payload_rotten(ground)
    ground.audit(verify=Verify())


def row_damaged(ground: FaultyStore) -> None:
    ground.sql("UPDATE rows SET target = 'x' || target WHERE path = ?", NAME)


def row_damaged_and_audited(ground: FaultyStore) -> None:
    row_damaged(ground)
    ground.audit()


def blobs_away(ground: FaultyStore) -> None:
    (ground.store / "blobs").rename(ground.directory / "elsewhere")


def blobs_emptied_and_recovered(ground: FaultyStore) -> None:
    """All blobs are gone, and no reader and no audit met that: the look of recovery at a few of them does."""
    shutil.rmtree(ground.store / "blobs")
    (ground.store / "blobs").mkdir()
    ground("recover", "--once", code=6)


@contextmanager
def _restored_after(ground: FaultyStore) -> Iterator[None]:
    """Backs the database up, and restores the backup at the end of the block."""
    with closing(sqlite3.connect(ground.store / "tiered.db")) as live, closing(sqlite3.connect(ground.directory / "backup")) as backup:
        live.backup(backup)
    yield
    for suffix in ("", "-wal", "-shm"):
        (ground.store / f"tiered.db{suffix}").unlink(missing_ok=True)
    (ground.directory / "backup").rename(ground.store / "tiered.db")


def restored_from_a_backup(ground: FaultyStore) -> None:
    """The database is older than the blobs: the row names a blob that was replaced since."""
    with _restored_after(ground):
        ground.put()


def restored_from_a_backup_and_audited(ground: FaultyStore) -> None:
    restored_from_a_backup(ground)
    ground.audit()


# --- the disk ----------------------------------------------------------------------------------------


def disk_full_in_use(ground: FaultyStore) -> None:
    """SQLite's log was made while there was room, so commits still succeed."""
    database = sqlite3.connect(ground.store / "tiered.db")
    ground.held.callback(database.close)
    ground.announce()
    fill(ground.store)


def disk_full_at_rest(ground: FaultyStore) -> None:
    fill(ground.store)


def disk_read_only(ground: FaultyStore) -> None:
    ground.mount(ground.store, "-o", "remount,ro")


# --- recovery ----------------------------------------------------------------------------------------


def no_daemon(ground: FaultyStore) -> None:
    ground.plant_entries(1)


def daemons_do_nothing(ground: FaultyStore) -> None:
    ground.report(arriving=1, done=0)


def second_looks_are_left(ground: FaultyStore) -> None:
    """Daemons report, and nobody looks again for blobs that landed late. The statistics count no second look."""
    async def leave(backends: Backends) -> None:
        runtime = SystemRuntime()
        token = ChangeId.new(runtime)
        entry = await backends.log.record(Change(token, NAME, blob_name(NAME, token), None), "dead")
        await backends.log.release(entry, runtime.wall_ns() // NS_PER_MS - 3_600_000)

    ground.run(leave)
    ground.report(arriving=0, done=0)


def backlog_grows(ground: FaultyStore) -> None:
    ground.report(arriving=4, done=1)


def stuck(ground: FaultyStore) -> None:
    plant(ground.store, "media/objects/other/01a20240-88a3-7222-a8f7-a95a1ed378e8")
    ground("recover", "--once", code=6)
    ground.announce()


def entry_damaged(ground: FaultyStore) -> None:
    ground.plant_entries(1)
    ground.sql("UPDATE changes SET value = x'00'")


def note_damaged(ground: FaultyStore, name: str) -> None:
    ground.report(arriving=0, done=0)
    ground.audit()
    ground.sql("UPDATE notes SET value = x'00' WHERE name = ?", name)


def clock_ahead(ground: FaultyStore) -> None:
    """A daemon wrote its presence row when the clock was an hour ahead, and died."""
    ground.announce(-3600)
    ground.plant_entries(1)


def too_many_operations(ground: FaultyStore) -> None:
    async def rush(storage: TieredStorage) -> None:
        async def put(number: int) -> None:
            with suppress(AtCapacityError):
                await storage.put(ObjectId.parse(f"media/objects/day/rush-{number}"), LARGE)

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(put, number)

    ground.serve(rush, ground.settings.model_copy(update={"store": StoreSettings(concurrency_max=1, queue_max=0)}))


def database_locked(ground: FaultyStore) -> None:
    """Another process holds the database's lock for longer than a call should take."""
    async def put_meanwhile(storage: TieredStorage) -> None:
        with closing(sqlite3.connect(ground.store / "tiered.db", isolation_level=None, check_same_thread=False)) as other:
            other.execute("BEGIN IMMEDIATE")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(storage.put, ObjectId.parse("media/objects/day/slow"), b"")
                await anyio.sleep(BUSY_TIMEOUT_S + 1.5)  # the call waits so long and is told no; the put tries again
                other.execute("ROLLBACK")

    ground.serve(put_meanwhile)


def callers_payload_fails(ground: FaultyStore) -> None:
    """Clients hang up: nobody is woken for a few, and somebody if it is most."""
    async def broken() -> AsyncIterator[bytes]:
        yield b"x"
        raise OSError("the client hung up")

    async def put_in_vain(storage: TieredStorage) -> None:
        for _ in range(4):
            with suppress(OSError):
                await storage.put(ObjectId.parse("media/objects/day/broken"), broken())

    ground.serve(put_in_vain)


def callers_fault(ground: FaultyStore) -> None:
    """Every call is told no for what its caller did: nobody is woken."""
    async def call_wrongly(storage: TieredStorage) -> None:
        for _ in range(20):
            with suppress(InvalidRequestError):
                await storage.put(ObjectId.parse("media/objects/day/wrong"), 7)  # type: ignore[arg-type]
            with suppress(ConditionFailedError):
                await storage.put(ObjectId.parse(NAME), LARGE, if_absent=True)

    ground.serve(call_wrongly)


def audit_job_failed(ground: FaultyStore) -> None:
    """The CronJob's command ends with findings, and kube-state-metrics tells so of its Job."""
    ground.blob().unlink()
    ground("audit", "run", "--engine", "local", "--parallel", "1", "--to", "job", "--grace", "0s", "--insist", code=1)
    failed = f'kube_job_failed{{job_name="tiered-audit-29384", condition="{str(ground.ended != 0).lower()}"}}'
    ground.services.append(Target(SERVICE, Scraped("", 0), Scraped("", 0), {failed: 1}))


# --- the change feed ---------------------------------------------------------------------------------


def no_writer(ground: FaultyStore) -> None:
    ground.feeds()
    ground.put()


def sink_fails(ground: FaultyStore) -> None:
    ground.feeds()
    ground.publish()
    generation = next((ground.directory / "out").glob("generation-*"))
    generation.rename(ground.directory / "gone")
    generation.write_bytes(b"in the way")
    ground.put()
    ground.publish(code=range(8))


def sink_with_a_hole(ground: FaultyStore) -> None:
    ground.feeds()
    for _ in range(3):
        ground.publish()
        ground.put()
    ground.publish()
    files = sorted(path for path in (ground.directory / "out").rglob("*") if path.is_file() and path.parent.name.startswith("generation-"))
    files[len(files) // 2].unlink()
    ground.publish(code=range(8))


def sink_restored_from_a_backup(ground: FaultyStore) -> None:
    ground.feeds()
    ground.publish()
    subprocess.run(["cp", "-a", "out", "backup-of-out"], cwd=ground.directory, check=True)
    ground.put()
    ground.publish()
    subprocess.run(["rm", "-r", "out"], cwd=ground.directory, check=True)
    subprocess.run(["mv", "backup-of-out", "out"], cwd=ground.directory, check=True)
    ground.publish(code=range(8))


def feed_off_and_on(ground: FaultyStore) -> None:
    """While it was off, an object was replaced and its old blob deleted, so the feed shows a reference that is gone."""
    ground.feeds()
    ground.publish()
    ground.environment["TIERED_FEED__ENABLED"] = "false"
    ground.put()
    ground("rm", "media/objects/day/04")
    ground.environment["TIERED_FEED__ENABLED"] = "true"


def process_with_the_feed_off(ground: FaultyStore) -> None:
    ground.feeds()
    ground.publish()
    ground.run(lambda backends: FeedOffNotifier(backends.log, SystemRuntime(), "web-7").tell())


def sink_of_two_stores(ground: FaultyStore) -> None:
    ground.feeds()
    other = FaultyStore(ground.directory / "other", ground.mount)
    other.directory.mkdir()
    other.environment |= {name: value for name, value in ground.environment.items() if "FEED" in name}
    other.values |= ground.values
    other.put_all()
    other.publish()
    ground.publish(code=range(8))


def feed_of_the_store_restored(ground: FaultyStore) -> None:
    ground.feeds()
    ground.publish()
    ground.put()
    with _restored_after(ground):
        ground.publish()


def feed_of_the_store_restored_and_run(ground: FaultyStore) -> None:
    feed_of_the_store_restored(ground)
    ground.publish(code=range(8))


LOST, STUCK, BEHIND, UNKNOWN = Level.LOST, Level.STUCK, Level.BEHIND, Level.UNKNOWN
LOSS = {"headline": "DATA IS LOST: ", "check": "live objects that are lost"}
NOBODY_LOOKED = "none has ended yet, so nobody has looked for lost data"



def name_of(plant: Callable[[FaultyStore], None]) -> str:
    return plant.__name__ if not isinstance(plant, partial) else f"{plant.func.__name__}:{plant.keywords['name']}"


FAULTS = {name_of(each.plant): each for each in (
    Fault(nothing, says={"headline": "Nothing waits for recovery", "text": NOBODY_LOOKED},
        alerts="RecoveryNoSuccess RecoveryUnknown"),
    Fault(lost_unseen, says={"text": NOBODY_LOOKED, "check": "blobs are verified when they are read"}, show=1),
    Fault(lost_since_a_clean_audit, says={"text": "no payload was read (ended "}, show=1),
    Fault(lost_and_audited_in_part, UNKNOWN, 4, {"headline": "its evidence is not complete", "check": "its evidence is not complete"},
        check=4, show=1, metrics={"tiered_audit_suspected_objects": 1}, alerts="AuditFindings NoRecoveryDaemon"),
    Fault(lost_and_read, LOST, 6, {"headline": "DATA IS LOST"}, check=6, show=1,
        alerts="DanglingTombstone DataLost NoRecoveryDaemon OperationsFailing"),
    Fault(lost_and_audited, LOST, 6, LOSS, check=6, show=1, metrics={"tiered_audit_lost_objects": 1},
        alerts="AuditFindings DataLost NoRecoveryDaemon"),
    Fault(lost_beside_a_narrow_clean_audit, LOST, 6, LOSS, check=6, show=1, metrics={"tiered_audit_lost_objects": 1},
        alerts="AuditFindings DataLost NoRecoveryDaemon"),
    Fault(audited_narrowly, says={"text": "only names that begin with media/objects/day/04 were looked at"}, show=1),
    Fault(audited_with_a_mistyped_scope, says={"text": NOBODY_LOOKED}, show=1),
    Fault(audited_long_ago, says={"text": "ended 30 d ago"}, metrics={"tiered_audit_age_seconds": 9 * 86_400 + 1},
        alerts="AuditOverdue NoRecoveryDaemon"),
    Fault(payload_rotten, says={"text": "no payload was read"}, show=None),
    Fault(payload_rotten_and_read, LOST, 6, LOSS, check=6, show=1, metrics={"tiered_audit_lost_objects": 1},
        alerts="AuditFindings DataLost NoRecoveryDaemon"),
    Fault(row_damaged, says={"text": NOBODY_LOOKED, "check": "cannot be read"}, check=3, show=1),
    Fault(row_damaged_and_audited, says={"text": "findings: 1 corrupt_row"}, check=3, show=1,
        alerts="AuditFindings NoRecoveryDaemon"),
    Fault(blobs_away, UNKNOWN, 4, {"text": "blobs is gone", "ready": "long-term tier", "check": "blobs is gone"}, check=3, show=2,
        alerts="AccessDenied NoRecoveryDaemon"),
    Fault(blobs_emptied_and_recovered, LOST, 6, {"headline": "DATA IS LOST"}, check=6, show=1,
        alerts="DataLost NoRecoveryDaemon RecoveryUnknown"),
    Fault(restored_from_a_backup, says={"text": NOBODY_LOOKED}, show=1),
    Fault(restored_from_a_backup_and_audited, LOST, 6, LOSS, check=6, show=1, alerts="AuditFindings DataLost NoRecoveryDaemon"),
    Fault(disk_full_in_use, STUCK, 6, {"headline": "The disk is full", "ready": "full", "check": "full"}, check=3,
        alerts="DiskFull DiskNearlyFull RecoveryNoSuccess RecoveryUnknown"),
    Fault(disk_full_at_rest, STUCK, 6, {"headline": "The disk is full", "ready": "full", "check": "full"}, check=3,
        alerts="DiskFull DiskNearlyFull NoRecoveryDaemon"),
    Fault(disk_read_only, UNKNOWN, 4, {"headline": "The disk is read-only", "ready": "read-only", "check": "read-only"}, check=3,
        alerts="DiskFull NoRecoveryDaemon"),
    Fault(no_daemon, BEHIND, 1, {"headline": "Nobody works on 1 entry"}, alerts="NoRecoveryDaemon OldEntry"),
    Fault(daemons_do_nothing, BEHIND, 1, {"headline": "Recovery stands still"},
        alerts="OldEntry RecoveryNoSuccess RecoveryStalled"),
    Fault(second_looks_are_left, BEHIND, 1, {"headline": "Recovery stands still"},
        alerts="OldEntry RecoveryNoSuccess RecoveryStalled"),
    Fault(backlog_grows, BEHIND, 1, {"headline": "Recovery falls behind"},
        alerts="OldEntry RecoveryFallingBehind RecoveryNoSuccess"),
    Fault(stuck, STUCK, 6, {"headline": "1 entry is stuck and waits", "check": "stuck"}, check=6, metrics={"tiered_entries_stuck": 1},
        alerts="EntriesStuck RecoveryNoSuccess RecoveryUnknown"),
    Fault(entry_damaged, BEHIND, 1, {"headline": "Nobody works on 1 entry"}, alerts="NoRecoveryDaemon OldEntry"),
    Fault(clock_ahead, BEHIND, 1, {"headline": "Nobody works on 1 entry"}, alerts="NoRecoveryDaemon OldEntry"),
    Fault(partial(note_damaged, name="audit/last"), UNKNOWN, 4,
        {"headline": "Recovery keeps up. See the problems, too.", "text": "could not be read", "check": "audit/last"}, check=3,
        alerts="RecoveryNoSuccess"),
    Fault(partial(note_damaged, name="statistics/recovery"), UNKNOWN, 4, {"text": "could not be read"},
        alerts="RecoveryNoSuccess RecoveryUnknown"),
    Fault(too_many_operations, alerts="NoRecoveryDaemon OperationsFailing StoreAtCapacity"),
    Fault(database_locked, alerts="NoRecoveryDaemon ServiceFailing ServiceSlow"),
    Fault(callers_payload_fails, alerts="NoRecoveryDaemon OperationsFailing"),
    Fault(callers_fault),
    Fault(audit_job_failed, LOST, 6, LOSS, check=6, show=1, alerts="AuditFailed AuditFindings DataLost NoRecoveryDaemon"),
    Fault(no_writer, BEHIND, 1, {"headline": "Nobody takes up", "feed": "no writer yet"}, feed=1,
        alerts="FeedHoldNearBound FeedStalled NoRecoveryDaemon"),
    Fault(sink_fails, BEHIND, 1, {"headline": "The change feed stands still", "feed": "a sink fails"}, feed=1,
        alerts="FeedBehind FeedSinkFailing FeedStalled NoRecoveryDaemon"),
    Fault(sink_with_a_hole, BEHIND, 1, {"headline": "The change feed"}, feed=1,
        alerts="FeedBehind FeedSinkFailing FeedStalled NoRecoveryDaemon"),
    Fault(sink_restored_from_a_backup, BEHIND, 1, {"headline": "The change feed"}, feed=1,
        alerts="FeedBehind FeedSinkFailing FeedStalled NoRecoveryDaemon"),
    Fault(feed_off_and_on, BEHIND, 1, {"headline": "The change feed"}, feed=1,
        alerts="FeedBehind NoRecoveryDaemon"),
    Fault(process_with_the_feed_off, BEHIND, 1, {"headline": "The change feed", "feed": "set feed.enabled there ('web-7-"}, feed=1,
        alerts="FeedBehind NoRecoveryDaemon"),
    Fault(sink_of_two_stores, BEHIND, 1, {"headline": "The change feed", "feed": "updates   unknown"}, feed=1,
        alerts="FeedBehind FeedSinkFailing FeedStalled NoRecoveryDaemon"),
    Fault(feed_of_the_store_restored, says={"feed": "waiting   1 entry"}, alerts="FeedHoldNearBound NoRecoveryDaemon"),
    Fault(feed_of_the_store_restored_and_run, says={"feed": "3 updates committed, 3 live references"}),
)}  # fmt: skip
