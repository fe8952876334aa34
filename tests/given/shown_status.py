"""A status made by hand, and what a daemon's HTTP server shows of it, with a clock that a test puts forward."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from changelog.base.runtime import SystemRuntime
from changelog.lease import EntryState
from changelog.log import ChangeLog
from recovery import states
from recovery.feed.writer.checkpoint import Checkpoint
from recovery.feed.writer.source import RetainedEntries
from recovery.http.app import make_app
from recovery.http.decisions import Decisions
from recovery.http.sampler import Sampler
from recovery.http.server_view import ServerView
from recovery.last_audit import Audits, LastAudit
from recovery.outages import Outages
from recovery.statistics.columns import SourceRow
from recovery.statistics.verdict import SourceVerdict
from recovery.status.known import (
    CountedEntries,
    Daemon,
    FeedSink,
    FeedStatus,
    SourceStatus,
    Status,
    StoreIdentity,
    StuckEntries,
    StuckEntry,
)
from tiered.settings import DaemonSettings, Settings

NAME = "photos/org.17/objects/2026/holiday pictures/cat.jpg"
STUCK_ID = "018bcfe5-6800-7000-8000-000000000001"
BROKEN_KEY = "~changelog/07/018bcfe5-6800-7000-8000-0000000000ff"
ERROR = f"the row {NAME} does not match its checksum: bytes on the disk have changed; write or delete the object"
NOW_MS = 1_795_334_400_000
SERVICES = ("changelog", "high-volume tier", "long-term tier")


class SetClock(SystemRuntime):
    """The machine's chance, and clocks that stand until a test sets them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall_ns(self) -> int:
        return NOW_MS * 1_000_000 + round((self.now - 1000) * 1e9)


@dataclass(slots=True)
class SetWorker:
    """A recovery loop's figures."""

    instance: str = "recovery-3f9c0a1b2c3d4e5f"
    stopping: bool = False
    answered_at: float | None = 999.0
    passed_at: float | None = 999.0
    outages: Outages = field(default_factory=lambda: Outages(SetClock(), "recovery-3f9c0a1b2c3d4e5f"))


def healthy() -> Status:
    """Everything is well: nothing is stuck, a daemon lives, an audit was clean."""
    total = SourceRow("recovery", "", "i1", 52_300, False, 52_300, True, 1_040_012, 1_040_000, 31_200, 9_400_000, 31_000, 30_100)
    audit = SourceRow("audit", "", "r1", 4_000_000, True, 1_250_000, False, 4_000_000, 1_250_000)
    return Status(
        at_ms=NOW_MS, store=StoreIdentity("embedded", "/var/lib/tiered"), durable=True, answers=True,
        sources={
            "recovery": SourceStatus(total, {"recovery-3f9c0a1b2c3d4e5f": total}, SourceVerdict(states.HEALTHY, 12.4, 12.5, 0.0),
            NOW_MS),
            "audit": SourceStatus(audit, {}, SourceVerdict(states.UNKNOWN), NOW_MS),
        },
        entries=CountedEntries(
            dict.fromkeys(EntryState, 0) | {EntryState.HELD: 14}, dict.fromkeys(EntryState, (0, 0, 0, 0, 0)), 0, 5.0, STUCK_ID, 14, True
        ),
        stuck=StuckEntries(0, True), daemons=[Daemon("recovery-3f9c0a1b2c3d4e5f", 1.2, True), Daemon("recovery-gone", 4000.0, False),
        Daemon("recovery-ended", 5000.0, False, True)],
        audits=Audits((
            LastAudit("r0", "/var/audits/1", NOW_MS * 10**6 - 10**13, NOW_MS * 10**6 - 9 * 10**12, True, 4012, 4012, {}, 64, 0, 0),
        )),
        problems=(),
    )  # fmt: skip


def stuck() -> Status:
    """One entry is stuck with an error that names its object, and one cannot be read."""
    entries = (
        StuckEntry(STUCK_ID, f"~changelog/01/{STUCK_ID}", NAME, f"failed 5 times, at last with: {ERROR}", NOW_MS - 7_500_000, 5, (NAME,)),
        StuckEntry(BROKEN_KEY, BROKEN_KEY, None, f"the entry at {BROKEN_KEY} cannot be read: 'id' is [{NAME!r}], not text", None, None),
    )
    return replace(healthy(), stuck=StuckEntries(2, True, entries))


def fed() -> Status:
    """A change feed with a sink that takes nothing, for a reason with characters of HTML."""
    checkpoint = replace(
        Checkpoint.begin(NOW_MS - 3_600_000, "s", "w"), timestamp=NOW_MS - 2000, next=NOW_MS - 1999, lower=NOW_MS - 1999,
        bindings=((NOW_MS - 2000, 9120),), live=7433, passed=NOW_MS - 3_000_000,
    )
    sinks = (
        FeedSink("/srv/feed", NOW_MS - 2000, 9120, 0, 0.0),
        FeedSink("gs://my-bucket/feed", NOW_MS - 62_000, 9116, 4, 60.0, NOW_MS - 300_000, "it answered <b>503</b>"),
    )
    feed = FeedStatus(
        states.FEED_BEHIND, "A sink fails: gs://my-bucket/feed: it answered <b>503</b>", True, checkpoint, NOW_MS - 1999, 2.0,
        RetainedEntries(3, False, NOW_MS - 1000), 1.0, 86_400.0, sinks,
    )
    return replace(healthy(), feed=feed)


def unanswered() -> Status:
    """The changelog does not answer."""
    return replace(
        healthy(), answers=False, sources={}, entries=CountedEntries(), stuck=StuckEntries(), daemons=None, audits=None,
        problems=("the changelog could not be read: no answer within 10 s",),
    )  # fmt: skip


class ShownStatus:
    """A server's application without a server. `sample` looks once; `status` is what it finds, or an error.

    `down`: the error of each service that does not answer.
    """

    def __init__(
        self, status: Status | Exception | None = None, *, runtime: SetClock | None = None, show_objects: bool = False,
        audit_reports: Path | None = None, hosts: set[str] | None = None, tiered: str = "tiered",
        log: ChangeLog | None = None,
    ) -> None:  # fmt: skip
        self.status = status or healthy()
        self.down: dict[str, Exception] = {}
        self.runtime = runtime or SetClock()
        self.worker = SetWorker(outages=Outages(self.runtime, "recovery-3f9c0a1b2c3d4e5f"))
        self.decisions = Decisions(self.runtime)
        self.registry = CollectorRegistry()
        self.sampler = Sampler(self._look, {name: self._question(name) for name in SERVICES}, self.runtime, log=log)
        settings = Settings(directory=Path("store"), daemon=DaemonSettings(show_objects=show_objects, audit_reports=audit_reports))
        self.view = ServerView(self.sampler, self.decisions, self.worker, self.runtime, settings, tiered)
        self.app: ASGIApp = make_app(self.view, self.registry, hosts)

    async def sample(self) -> None:
        await self.sampler.sample()

    async def _look(self) -> Status:
        if isinstance(self.status, Exception):
            raise self.status
        return self.status

    def _question(self, name: str) -> Callable[[], Awaitable[Any]]:
        async def ask() -> None:
            if name in self.down:
                raise self.down[name]

        return ask
