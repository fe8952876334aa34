"""What is known of a store. What could not be read is None and not 0."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from changelog.lease import DUE, EntryState
from recovery import states
from recovery.dangling import LostReads
from recovery.feed.writer.checkpoint import Checkpoint
from recovery.feed.writer.source import RetainedEntries
from recovery.last_audit import Audits, LastAudit
from recovery.redaction import redact_names
from recovery.statistics.columns import SourceRow, percentage
from recovery.statistics.persisted import RECOVERY
from recovery.statistics.verdict import SourceVerdict
from tiered.services.breaker import CHANGELOG, HIGH_VOLUME, LONG_TERM
from tiered.sinks import kind_of

STUCK_LISTED_MAX = 100
"""So many stuck entries are described. All are counted."""

REPORT_AGE_MAX_S = 60.0
"""Figures that are older, in seconds, say nothing of the present: their verdict is unknown."""

SILENCE_MAX_S = 60.0
"""For how many seconds a daemon that works may write no presence row. It writes one with every report: every 10 s, if a
report does not take long, and every 31 s if each takes all the time that it may take."""

DISK_FULL_BYTES = 2 << 20
"""If less is free on the disk of an embedded store, it is full: a put needs the reserve (1 MiB) and room for itself."""

AGES_S = (60.0, 600.0, 3600.0, 86_400.0)
"""The bounds of the classes of age, in seconds. There is one class more than bounds."""

NEAR_SHARE = 0.8
"""The wait of the oldest entry is near its bound from this share of `feed.hold_max_s` on."""

UNKNOWN = SourceVerdict(states.UNKNOWN)

SERVICES = {CHANGELOG: "changelog", HIGH_VOLUME: "high-volume tier", LONG_TERM: "long-term tier"}
"""What people call the services of a store."""


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """Which store it is. `kind`: `embedded`, or what holds the rows and what the blobs, such as `bigtable+gcs`."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class DiskStatus:
    """The file system of an embedded store. `free_bytes`: what this user may still write; 0 also if no file fits."""

    free_bytes: int
    size_bytes: int
    is_read_only: bool = False

    @property
    def is_full(self) -> bool:
        """Whether puts fail for want of space."""
        return not self.is_read_only and self.free_bytes < DISK_FULL_BYTES

    @property
    def refuses_puts(self) -> bool:
        return self.is_full or self.is_read_only


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The statistics of one source.

    `workers`: the row of each worker that has not ended, by its name. `verdict`: unknown if the figures are older than
    `REPORT_AGE_MAX_S`, or if nobody is left who works. `reported_ms`: when a worker last reported (Unix ms).
    `regressions`: the sum of all that vanished although no worker dealt with it. `fresh`: that report is of now.
    """

    total: SourceRow
    workers: Mapping[str, SourceRow]
    verdict: SourceVerdict
    reported_ms: int
    regressions: int = 0
    fresh: bool = True


@dataclass(frozen=True, slots=True)
class FeedSink:
    """How far one sink is. `name` has no password.

    `acknowledged_ms`: it has all transactions up to this time (Unix ms); None: none of this generation. `records` and
    `behind_records`: how many updates it has, and how many are missing. `behind_s`: how many seconds of transactions
    are missing; None: it has none yet. `failing_since_ms`: since when no delivery succeeds (Unix ms); None: the last
    one did. `error`: why the last delivery failed. `known` False: its position could not be read, so nothing is known.
    """

    name: str
    acknowledged_ms: int | None = None
    records: int | None = None
    behind_records: int | None = None
    behind_s: float | None = None
    failing_since_ms: int | None = None
    error: str | None = None
    known: bool = True

    @property
    def unasked(self) -> str | None:
        """Why its writer may not learn that another store delivers there, too, as a clause. None: it asks the sink."""
        kind = kind_of(self.name.partition("://")[0])
        return f"{kind.unasked} whether another store delivers there, too" if kind is not None and kind.unasked else None


@dataclass(frozen=True, slots=True)
class FeedStatus:
    """What is known of the feed. `why`: why it is in this state, as a sentence; empty: that needs no reason.

    `enabled`: the setting. `checkpoint`: None: there is none, or it could not be read. `frontier_ms`: up to this time
    the feed is complete (Unix ms); None: nothing is published yet. `frontier_age_s`: how long ago that was; 0: it lies
    ahead. `kept`: the entries that wait for the feed; None: they could not be read. `kept_age_s`: for how long the
    oldest of them waits. `hold_max_s`: how long they may wait. `store`: which store the settings name. `ahead_s`: by
    how many seconds the frontier lies ahead. `off`: that processes work, or have worked, with the feed off, and the
    writer has not read all rows since, as a sentence; empty: none did. `unread`: the checkpoint could not be read.
    """

    state: states.State
    why: str
    enabled: bool
    checkpoint: Checkpoint | None
    frontier_ms: int | None
    frontier_age_s: float | None
    kept: RetainedEntries | None
    kept_age_s: float | None
    hold_max_s: float
    sinks: tuple[FeedSink, ...]
    store: str = ""
    ahead_s: float = 0.0
    off: str = ""
    unread: bool = False

    @property
    def near_bound(self) -> bool:
        """Whether the oldest entry that waits for the feed will soon be cleaned up without it."""
        return self.kept_age_s is not None and self.kept_age_s >= NEAR_SHARE * self.hold_max_s

    @property
    def failing(self) -> tuple[FeedSink, ...]:
        """The sinks whose last delivery failed."""
        return tuple(sink for sink in self.sinks if sink.failing_since_ms is not None)

    @property
    def pass_percentage(self) -> float | None:
        """How far the pass under way is, from 0 to 99. None: there is none, or it is not known how many rows there are.
        """
        scan = None if self.checkpoint is None else self.checkpoint.scan
        return None if scan is None else percentage(scan.read, scan.known)


@dataclass(frozen=True, slots=True)
class CountedEntries:
    """The entries that were counted, by state, and in each state by class of age (`AGES_S`).

    `complete`: all were counted. Otherwise there are more, or the changelog did not answer. `oldest_age_s`: the age of
    the oldest change that is neither stuck nor kept, by the clock of the machine that made it. `undated`: entries whose
    key tells no age; they are in `by_state`, and in no class of age. Both mappings are empty if nothing could be
    read. `late`: how many have waited for their second look for longer than two full passes are apart.
    """

    by_state: Mapping[EntryState, int] = field(default_factory=dict)
    by_age: Mapping[EntryState, tuple[int, ...]] = field(default_factory=dict)
    undated: int = 0
    oldest_age_s: float | None = None
    oldest_id: str | None = None
    counted: int = 0
    complete: bool = False
    late: int = 0

    @property
    def due(self) -> int:
        """How many of the counted entries are work for recovery now."""
        return sum(self.by_state.get(each, 0) for each in DUE)

    @property
    def newer(self) -> int:
        """How many of the counted entries only newer software can read."""
        return self.by_state.get(EntryState.NEWER, 0)


@dataclass(frozen=True, slots=True)
class StuckEntry:
    """An entry that waits for an operator. `since_ms`: Unix ms; None: not known, as in all fields.

    `names`: the object and the blobs that the entry names. They are hidden together with the object.
    """

    id: str
    key: str
    object: str | None
    error: str
    since_ms: int | None
    attempt: int | None
    names: tuple[str, ...] = ()

    @property
    def error_without_names(self) -> str:
        """The error, with "…" for each name. An error about an entry that cannot be read may quote anything from it."""
        if self.object is None:
            return "the entry cannot be read"
        return redact_names(self.error, self.names)

    @property
    def command(self) -> str:
        """What to type after the cause was mended. An ID that no terminal can show is retried with all others."""
        return f"tiered log retry {shlex.quote(self.id)}" if self.id.isprintable() else "tiered log retry --all"


@dataclass(frozen=True, slots=True)
class StuckEntries:
    """`count`: how many there are; None: not known. `complete`: all were counted; otherwise there are `count` or more.

    `entries`: the first `STUCK_LISTED_MAX`.
    """

    count: int | None = None
    complete: bool = False
    entries: tuple[StuckEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Daemon:
    """An instance of recovery that wrote a presence row within the last day. `seen_s_ago`: seconds since its last one.

    `ended`: its last report says that it ended. `alive`: it did not say so, and was seen within `SILENCE_MAX_S`.
    An instance that is neither was killed, or it cannot reach the changelog.
    """

    instance: str
    seen_s_ago: float
    alive: bool
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Status:
    """All that is known of a store at `at_ms` (Unix ms by the service's clock).

    `durable`: a changelog is kept. `answers`: the changelog could be read. `daemons`: None if the presence rows could
    not be read. `audits` and `lost_reads`: None if the note could not be read, or if no changelog is kept.
    `disk`: of an embedded store; None: of another one, or not known. `away`, `refusing`: the services that did not
    answer, and those that refuse what they are asked (`SERVICES`).
    `old_s`: how old the figures are, in seconds, if they say nothing of now. `still_s`: for how many seconds the daemon
    that shows them has made no pass; None: it works, or may.
    `problems`: one sentence for each thing that is wrong, or could not be looked at. `complete`: all was looked at.
    """

    at_ms: int
    store: StoreIdentity
    durable: bool
    answers: bool
    sources: Mapping[str, SourceStatus]
    entries: CountedEntries
    stuck: StuckEntries
    daemons: Sequence[Daemon] | None
    audits: Audits | None
    problems: tuple[str, ...]
    feed: FeedStatus | None = None
    complete: bool = True
    disk: DiskStatus | None = None
    away: tuple[str, ...] = ()
    refusing: tuple[str, ...] = ()
    lost_reads: LostReads | None = None
    old_s: float | None = None
    still_s: float | None = None

    @property
    def alive(self) -> int | None:
        """How many daemons live. None: not known."""
        return None if self.daemons is None else sum(daemon.alive for daemon in self.daemons)

    @property
    def last_audit(self) -> LastAudit | None:
        """The audit that ended last. None: none has, or it is not known."""
        return None if self.audits is None else self.audits.last

    @property
    def losses(self) -> Sequence[LastAudit]:
        """The audits that found lost data, as far as no later one that looked there has found it mended."""
        return () if self.audits is None else self.audits.losses

    @property
    def readers_lost(self) -> bool:
        """Whether readers found lost data that are not mended."""
        return self.lost_reads is not None and self.lost_reads.is_loss

    @property
    def suspicions(self) -> Sequence[LastAudit]:
        """The same of audits whose evidence is not complete."""
        return () if self.audits is None else self.audits.suspicions

    @property
    def nobody_works(self) -> bool:
        """Whether there is work for recovery, and surely no daemon that lives."""
        return self.none_lives and self.entries.due > 0

    @property
    def none_lives(self) -> bool:
        """Whether surely no daemon lives. Where nothing can be written, none can say that it does."""
        return self.alive == 0 and not (self.disk is not None and self.disk.refuses_puts) and SERVICES[CHANGELOG] not in self.refusing

    @property
    def verdict(self) -> SourceVerdict:
        """The verdict on recovery. What is out contradicts a good one, and so do second looks that nobody takes: the
        statistics count none.
        """
        found = self.sources[RECOVERY].verdict if RECOVERY in self.sources else UNKNOWN
        if found.kind not in states.KEEPS_UP:
            return found
        if self.away or self.refusing or not self.answers:
            return UNKNOWN
        return replace(found, kind=states.STALLED) if found.kind is states.HEALTHY and self.entries.late else found

    @property
    def pace(self) -> states.State:
        """Whether recovery keeps up."""
        return self.verdict.kind
