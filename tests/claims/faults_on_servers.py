"""Faults of a store on PostgreSQL and S3, with a recovery daemon that runs, and the least that must be said of it.

    rows, changelog    a PostgreSQL server of the test, which a fault stops, or in which it takes a right away
    blobs              versitygw's, behind a proxy that answers as S3 does where a key has expired or a right is missing
    the daemon         `tiered recover`, in a process of its own, which a fault may stop or kill
    a service          this process, which puts and reads

`ON_SERVERS` is the table, of the same `Fault` as `faults.py`. `test_faults.py` plants each one and asks all surfaces.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from unittest.mock import patch

import anyio
import asyncpg
import httpx
from anyio.from_thread import start_blocking_portal

from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from emulators.postgres.server import PostgresServer
from emulators.s3.faults import FaultKind, FaultyProxy, ServiceFault
from emulators.s3.servers import REGION
from recovery.states import Level
from tests.claims.faults import BEHIND, LARGE, NAME, UNKNOWN, Fault, FaultyStore, name_of
from tests.given.alerts import DAEMON, Scraped, Target
from tests.given.daemon_process import QUICK, DaemonProcess, running_daemon, wait_for
from tests.given.s3_buckets import new_feed_bucket
from tests.given.surfaces import Served, printed_json
from tiered import Metadata, ObjectId, Settings, TieredError, TieredStorage, load_settings
from tiered.object_id import blob_name
from tiered.open import Backends

CALLS = 6
"""How often a service tries what a fault makes fail."""

SOON = {
    "recovery.statistics.reporting.REPORT_EVERY_S": 0.5, "recovery.http.sampler.ASK_BUDGET_S": 2.0,
    "recovery.loop.ATTEMPT_BUDGET_S": 8.0, "recovery.outages.ATTEMPT_BUDGET_S": 8.0, "tiered.services.breaker.AWAY_AFTER_S": 1.0,
}  # fmt: skip
LEASE = {"TIERED_LEASE__EXPIRY_S": "5"}
WORKER = "worker"


class ServedStore(FaultyStore):
    """`tiered` on servers. `server`: of PostgreSQL, nobody else's. `s3_url`: of versitygw. `daemon`: once it runs."""

    daemon: DaemonProcess

    def __init__(self, directory: Path, server: PostgresServer, s3_url: str) -> None:
        super().__init__(directory, lambda *_: None)
        self._names_store = False
        self.server = server
        self.s3_url = s3_url

    def start(self) -> None:
        """Makes the store, and starts its daemon. Call it within `held`."""
        server, s3_url = self.server, self.s3_url
        portal = self.held.enter_context(start_blocking_portal())
        self.proxy = self.held.enter_context(portal.wrap_async_context_manager(FaultyProxy(s3_url).serve()))
        self.environment |= {
            "TIERED_POSTGRES__DSN": server.dsn(), "TIERED_POSTGRES__TIMEOUT_S": "5", "TIERED_CHANGELOG": "postgres",
            "TIERED_S3__BUCKET": f"blobs-{ChangeId.new(SystemRuntime())}", "TIERED_S3__ENDPOINT": self.proxy.url,
            "TIERED_S3__REGION": REGION, "TIERED_S3__ADDRESSING_STYLE": "path", "TIERED_S3__TIMEOUT_S": "30",
            "TIERED_S3__WHOLE_CHECKSUMS": "false", "TIERED_STORE__ANSWER_BUDGET_S": "4",
            "TIERED_DAEMON__SHOW_OBJECTS": "true",
        }  # fmt: skip
        self.query(f"CREATE ROLE {WORKER} LOGIN")
        self("provision", "--grant-writer", WORKER)
        self.environment["TIERED_POSTGRES__DSN"] = server.dsn().replace("//tiered@", f"//{WORKER}@")
        arguments = {"environment": QUICK | LEASE | self.environment, "constants": SOON}
        self.put_all()
        self.daemon = self.held.enter_context(running_daemon(self.directory, **arguments))  # type: ignore[arg-type]
        self.daemon.until(lambda said: said["level"] == "ok")

    @property
    def settings(self) -> Settings:
        with patch.dict(os.environ, self.environment, clear=True):
            return load_settings(None)

    def query(self, statement: str) -> None:
        async def execute() -> None:
            connection = await asyncpg.connect(self.server.dsn())
            try:
                await connection.execute(statement)
            finally:
                await connection.close()

        anyio.run(execute)

    def refuse(self, code: str, *methods: str, having: str = "") -> None:
        """From now on the service answers these requests so."""
        self.proxy.faults += [ServiceFault(method, FaultKind.BEFORE, 403, code, having, lasts=True) for method in methods]

    def leave_garbage(self) -> None:
        """An entry of a writer that died after its upload: a blob is to be deleted."""
        async def leave(backends: Backends) -> None:
            token = ChangeId.new(SystemRuntime())
            name = blob_name("media/objects/day/dead", token)
            upload = await backends.tiers.long_term.open_upload(name, Metadata(), None)
            await upload.write(LARGE)
            await upload.finalise()
            entry = await backends.log.record(Change(token, "media/objects/day/dead", name, None), "dead")
            await backends.log.release(entry)

        self.run(leave)

    def show(self) -> Scraped:
        """What the daemon shows; as Prometheus does, this waits not for ever."""
        try:
            return Scraped(httpx.get(f"{self.daemon.url}metrics", timeout=3, trust_env=False, verify=False).text, time.time())
        except httpx.TransportError:
            return Scraped(None, time.time())


    def await_notice(self, fault: Fault) -> None:
        """Waits until the daemon, if it can be reached, and `tiered status` are no greener than is true."""
        if fault.level is Level.OK:
            return
        greener = ("ok",) if fault.level is UNKNOWN else ("ok", "unknown")
        if self.show().text is not None:
            self.daemon.until(lambda said: said["level"] not in greener)
        wait_for(lambda: printed_json(self("status", "--json", code=range(8))).get("level") not in greener)

    def served(self, before: Scraped) -> Served:
        """The daemon's server: the page, why it is not ready, and `/metrics` now and a second later."""
        first = self.show()
        if first.text is None:
            return {}, [], Target(DAEMON, before, first)
        page, reasons = self.daemon.status(), self.daemon.get("readyz").json()["reasons"]
        time.sleep(1)  # so that an age can be seen to grow
        if page["level"] == "ok":  # figures that were gathered anew, so that their age is not seen to grow
            first = self.show()
            self.daemon.until(lambda said: said["sample"]["age_s"] < 0.5 * (time.time() - first.at))
        return page, reasons, Target(DAEMON, first, self.show())


async def put_in_vain(storage: TieredStorage) -> None:
    for number in range(CALLS):
        try:
            await storage.put(ObjectId("media", (), f"day/in-vain-{number}"), LARGE)
        except TieredError:
            continue


def well(ground: ServedStore) -> None:
    async def work(storage: TieredStorage) -> None:
        for number in range(CALLS):
            await storage.put(ObjectId("media", (), f"day/{number}"), LARGE)

    ground.serve(work)


def _served(ground: ServedStore, plant: Callable[[], None]) -> None:
    """A service works, the fault is planted, and the service goes on."""
    async def meanwhile(storage: TieredStorage) -> None:
        await anyio.to_thread.run_sync(plant)
        await put_in_vain(storage)

    ground.serve(meanwhile)


def rows_away(ground: ServedStore) -> None:
    _served(ground, ground.server.stop)


def rows_silent(ground: ServedStore) -> None:
    """The server stands still, and its connections stay open."""
    ground.held.callback(_send, ground.server.pid, signal.SIGCONT)
    _served(ground, partial(_send, ground.server.pid, signal.SIGSTOP))


def _send(pid: int, number: signal.Signals) -> None:
    """To the process and all below it: those of PostgreSQL are in sessions of their own. Some end meanwhile."""
    with suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, number)
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            _send(int(child), number)


def keys_refused(ground: ServedStore, name: str) -> None:
    _served(ground, partial(ground.refuse, name, "GET", "HEAD", "PUT", "POST", "DELETE"))


def deletes_denied(ground: ServedStore) -> None:
    ground.refuse("AccessDenied", "DELETE")
    ground.leave_garbage()


def reads_denied(ground: ServedStore) -> None:
    ground.refuse("AccessDenied", "HEAD")
    ground.refuse("AccessDenied", "GET", having="~status")
    ground.refuse("AccessDenied", "GET", having="~reach")


def puts_denied(ground: ServedStore) -> None:
    _served(ground, partial(ground.refuse, "AccessDenied", "PUT", "POST"))


def rows_right_missing(ground: ServedStore) -> None:
    ground.query(f"REVOKE SELECT ON tiered.rows FROM {WORKER}")


def log_right_missing(ground: ServedStore) -> None:
    ground.query(f"REVOKE SELECT ON tiered.entries FROM {WORKER}")


def wrong_bucket(ground: ServedStore) -> None:
    """A reader's settings name another bucket, which is there: nothing is lost."""
    ground.environment["TIERED_S3__BUCKET"] = new_feed_bucket(ground.s3_url).settings.bucket
    ground("get", NAME, code=3)
    assert "is lost" not in ground.errors and "no store owns" in ground.errors


def daemon_killed(ground: ServedStore) -> None:
    ground.daemon.end(signal.SIGKILL)
    ground.leave_garbage()


def daemon_stands_still(ground: ServedStore) -> None:
    ground.daemon.process.send_signal(signal.SIGSTOP)
    ground.held.callback(ground.daemon.process.send_signal, signal.SIGCONT)
    ground.leave_garbage()


REFUSED_BLOBS = {"headline": "long-term tier refuses", "ready": "refuses"}
NOT_ANSWERED = {"headline": "not answer", "text": "The changelog and the high-volume tier do not answer.", "ready": "not answer"}
OUTAGE = "OperationsFailing ServiceAway ServiceFailing StatusStale RecoveryNoSuccess"

ON_SERVERS = {name_of(each.plant): each for each in (
    Fault(well, says={"headline": "Recovery keeps up"}, alerts=""),
    Fault(rows_away, UNKNOWN, 4, NOT_ANSWERED, feed=4, check=3, metrics={'tiered_service_away{service="changelog"}': 1}, alerts=OUTAGE),
    Fault(rows_silent, UNKNOWN, 4, NOT_ANSWERED, feed=4, check=3, metrics={'tiered_service_away{service="changelog"}': 1},
        alerts="OperationsFailing ServiceAway StatusStale RecoveryNoSuccess"),
    Fault(partial(keys_refused, name="ExpiredToken"), UNKNOWN, 4, REFUSED_BLOBS, check=3, alerts="AccessDenied OperationsFailing"),
    Fault(partial(keys_refused, name="InvalidAccessKeyId"), UNKNOWN, 4, REFUSED_BLOBS, check=3, alerts="AccessDenied OperationsFailing"),
    Fault(deletes_denied, UNKNOWN, 4, REFUSED_BLOBS, check=3, alerts="AccessDenied"),
    Fault(reads_denied, UNKNOWN, 4, REFUSED_BLOBS, check=3, alerts="AccessDenied"),
    Fault(puts_denied, check=3, alerts="AccessDenied OperationsFailing"),
    Fault(rows_right_missing, UNKNOWN, 4, {"headline": "high-volume tier refuses", "ready": "refuses"}, check=3, alerts="AccessDenied"),
    Fault(log_right_missing, UNKNOWN, 4, {"headline": "changelog refuses", "ready": "refuses"}, 4, 3, alerts="AccessDenied"),
    Fault(wrong_bucket, Level.OK, 4, {"text": "no store owns"}, check=3, alerts=""),
    Fault(daemon_killed, BEHIND, 1, {"headline": "Nobody works on 1 entry"}, alerts="NoRecoveryDaemon TargetDown"),
    Fault(daemon_stands_still, BEHIND, 1, {"headline": "Nobody works on 1 entry"}, alerts="NoRecoveryDaemon TargetDown"),
)}  # fmt: skip
"""`wrong_bucket` is of one process alone: the store is well."""
