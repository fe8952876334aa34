"""The judgement on a status: its level, the answer in words, what to type, and the exit code. Pure.

`REASONS` is the table. Each row is something that may be so of one subject, such as the disk or recovery. The first row
of a subject that holds judges it: its level, and its sentence. The worst level is the answer's. Each row that holds
says what to do. Command, page, JSON and metrics show what `judge` returns, so they cannot contradict one another.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from recovery.dangling import LostReads
from recovery.display import count, roughly
from recovery.last_audit import SEVERAL, Audits, LastAudit
from recovery.states import (
    CATCHING_UP,
    CODES,
    FALLING_BEHIND,
    FEED_NO_WRITER,
    FEED_STALLED,
    FEED_STATES,
    HEALTHY,
    STALLED,
    UNKNOWN,
    Level,
    State,
)
from recovery.statistics.persisted import RECOVERY
from recovery.status.known import Status


@dataclass(frozen=True, slots=True)
class OperatorAction:
    """Something for an operator to do. `why`: one sentence. `type`: the command to type; None: there is none."""

    why: str
    type: str | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """`code`: the exit code. `headline`: does recovery keep up, and is anything wrong? `orders`: the most urgent first.

    Each stuck entry has a command of its own besides. `judging`: the reason that judges each subject.
    """

    level: Level
    code: int
    headline: str
    orders: Sequence[OperatorAction]
    judging: Mapping[str, Reason]


@dataclass(frozen=True, slots=True)
class Reason:
    """Something that may be so. `holds`: whether it is so. `says`: the sentence of the answer; empty: none.

    `do`: what to do. `code`: the exit code; None: that of the level.
    """

    subject: str
    level: Level
    holds: Callable[[Status], object]
    says: str | Callable[[Status], str] = ""
    do: OperatorAction | Callable[[Status], Iterable[OperatorAction]] | None = None
    code: int | None = None

    def sentence(self, status: Status) -> str:
        return self.says if isinstance(self.says, str) else self.says(status)

    def orders(self, status: Status) -> Iterable[OperatorAction]:
        if self.do is None:
            return ()
        return (self.do,) if isinstance(self.do, OperatorAction) else self.do(status)


DAEMON, DATA, SERVICES, STORE, AGE, PACE, DAEMONS, FEED, EVIDENCE, LOOK = SUBJECTS = (
    "this daemon", "data", "services", "store", "age", "recovery", "daemons", "feed", "evidence", "look",
)  # fmt: skip
"""What is judged, in the order of the answer's sentences."""

KNOWN_STILL = (DATA, SERVICES, AGE)
"""What is judged of figures that are old."""


def judge(status: Status) -> Judgement:
    """Returns the judgement on a status."""
    held = [reason for reason in REASONS if reason.holds(status)]
    judging = {each.subject: each for each in reversed(held) if status.old_s is None or each.subject in KNOWN_STILL}
    level = max((each.level for each in judging.values()), key=list(Level).index)
    return Judgement(
        level, max(CODES[level] if each.code is None else each.code for each in judging.values() if each.level is level),
        " ".join(said for subject in SUBJECTS if subject in judging and (said := judging[subject].sentence(status))),
        [order for reason in held for order in reason.orders(status)], judging,
    )  # fmt: skip


# --- what may be so --------------------------------------------------------------------------------


def _is_feed(state: State, status: Status) -> bool:
    return status.feed is not None and status.feed.state is state


def _out(status: Status) -> Sequence[str]:
    return (*status.away, *status.refusing)


def _lost(status: Status) -> str:
    found = []
    if status.audits is not None and status.losses:
        lost, more = status.audits.lost
        least = "at least " if more else ""
        found.append(f"an audit found {least}{count(lost, 'object')} whose blob is gone or cannot be read")
    if status.lost_reads is not None and status.lost_reads.is_loss:
        found.append(f"readers found {_lost_reads(status.lost_reads)} whose blob is gone")
    return f"DATA IS LOST: {', and '.join(found)}."


def _lost_reads(lost: LostReads) -> str:
    if not lost.objects:
        return "objects"
    return f"{count(len(lost.objects), 'object', 'objects')}{', and more,' if lost.more else ''}"


def data_orders(audits: Audits | None, readers_lost: bool) -> Iterator[tuple[Level, OperatorAction]]:
    """Yields what an operator should do about lost data, and how bad it is. `tiered check` says it, too."""
    for audit in () if audits is None else audits.losses:
        where = f" below {audit.scope}" if audit.scope else ""
        yield Level.LOST, OperatorAction(
            f"An audit found live objects{where} that are lost. See which, or read its report in {audit.where}; restore them, then audit"
            " again.", _naming(audit),
        )  # fmt: skip
    if readers_lost:
        yield Level.LOST, OperatorAction(
            "Readers found live objects whose blob is gone; 'tiered status' names them. Stop whoever deletes blobs; find all that is lost.",
            "tiered audit run",
        )
    for audit in () if audits is None else audits.suspicions:
        yield Level.UNKNOWN, OperatorAction(
            f"An audit found lost data, but its evidence is not complete. See what it names, or read its report in {audit.where}, and audit"
            " again.", _naming(audit),
        )  # fmt: skip


def _naming(audit: LastAudit) -> str:
    """The command that names what the audit found lost. Of several runs that were put together, only a new one does."""
    return "tiered audit run" if audit.run.startswith(SEVERAL) else f"tiered audit show --from {shlex.quote(audit.where)}"


def _data_orders(of: Level, status: Status) -> list[OperatorAction]:
    return [order for level, order in data_orders(status.audits, status.readers_lost) if level is of]


def _full(status: Status) -> str:
    return "" if status.disk is None else f"The disk is full: {status.disk.free_bytes:,} bytes are free, and puts fail."


def _stuck(status: Status) -> str:
    number, more = status.stuck.count, "" if status.stuck.complete else " or more"
    return "1 entry is stuck and waits for you." if number == 1 and not more else f"{number:,}{more} entries are stuck and wait for you."


def _services(status: Status) -> str:
    """That the changelog cannot be read decides all else, so a sentence after this one begins with it."""
    said = [f"The {name} refuses what is asked of it, so entries wait." for name in status.refusing]
    if status.away:
        waits = ", so recovery waits" if status.answers else ""
        said.insert(0, f"The {_listed(status.away)} {'does' if len(status.away) == 1 else 'do'} not answer{waits}.")
    return " ".join(said)


def _listed(names: Sequence[str]) -> str:
    """Returns the names as a list in words. "The" stands before it."""
    *others, last = names
    return f"{', the '.join(others)} and the {last}" if others else last


def _check(status: Status) -> Iterator[OperatorAction]:
    does = "does" if len(_out(status)) == 1 else "do"
    yield OperatorAction(f"The {_listed(_out(status))} {does} not do what is asked. See what is missing or out of reach.", "tiered check")


def _nobody(status: Status) -> str:
    least = "" if status.entries.complete else "at least "
    waits = count(status.entries.due, "entry that waits", "entries that wait")
    return f"Nobody works on {least}{waits} for recovery: no daemon lives."


def _untold(status: Status) -> str:
    source = status.sources.get(RECOVERY)
    if status.alive and source is not None and source.total.outstanding_values is None:
        return "It is not known whether recovery keeps up: more entries wait than can be counted in time."
    return "It is not known whether recovery keeps up: that takes two reports of a daemon that lives."


def _set_changelog(status: Status) -> Iterator[OperatorAction]:
    to = "sqlite" if status.store.kind == "embedded" else status.store.kind.partition("+")[0]
    yield OperatorAction(f"No changelog is kept. Set 'changelog: {to}' if what a killed process leaves behind should be removed.")


def feed_orders(status: Status) -> Iterator[OperatorAction]:
    """Yields what an operator should do for the change feed."""
    if (feed := status.feed) is None:
        return
    failing, ended = feed.failing, feed.checkpoint is not None and feed.checkpoint.closed
    if feed.state is FEED_NO_WRITER:
        yield OperatorAction("The change feed is configured, and no writer has ever begun it. Start one.", "tiered feed run")
    elif (feed.state is FEED_STALLED and not failing) or (feed.state.level is Level.BEHIND and ended):
        yield OperatorAction(f"{feed.why} See the log of the writer, or start one.", "tiered feed run")
    for sink in failing:
        goes_on = "then start the writer" if ended else "the writer goes on by itself"
        yield OperatorAction(f"The sink {sink.name} takes nothing. Mend the cause; {goes_on}.")
    if feed.near_bound:
        yield OperatorAction(
            "Deletions have waited for the change feed for almost feed.hold_max_s. Then recovery cleans up without it, and the feed"
            " publishes no progress before it has read all rows again."
        )


def _problems(status: Status) -> str:
    return "See the problems, too." if status.problems and status.answers and status.durable else ""


REASONS: tuple[Reason, ...] = (
    Reason(DATA, Level.LOST, lambda s: s.losses or s.readers_lost, _lost, partial(_data_orders, Level.LOST)),
    Reason(
        EVIDENCE, Level.UNKNOWN, lambda s: s.suspicions, "An audit found lost data, but its evidence is not complete.",
        partial(_data_orders, Level.UNKNOWN),
    ),
    Reason(STORE, Level.STUCK, lambda s: s.disk is not None and s.disk.is_full, _full, lambda s: [OperatorAction(
        f"The disk is full. Free some space for {s.store.name}, or delete objects: deletions still work for a while."
    )]),
    Reason(
        STORE, Level.STUCK, lambda s: s.stuck.count, _stuck,
        OperatorAction("Entries are stuck. Mend the cause of each, then give it back to recovery.", "tiered log list --stuck"),
    ),
    Reason(
        STORE, Level.UNKNOWN, lambda s: s.disk is not None and s.disk.is_read_only,
        "The disk is read-only: nothing can be stored, and nothing is cleaned up.",
        lambda s: [OperatorAction(f"The disk is read-only. Mount it for writing if {s.store.name} shall be written to.")],
    ),
    Reason(
        STORE, Level.UNKNOWN, lambda s: s.answers and s.durable and not s.stuck.complete,
        "It is not known whether an entry is stuck: not all were looked at.", code=0,
    ),
    Reason(SERVICES, Level.UNKNOWN, _out, _services, _check),
    Reason(
        AGE, Level.UNKNOWN, lambda s: s.old_s is not None,
        lambda s: f"It is not known whether recovery keeps up. These figures are {roughly(s.old_s or 0.0)} old.",
    ),
    Reason(PACE, Level.BEHIND, lambda s: s.nobody_works, _nobody),
    Reason(
        PACE, STALLED.level, lambda s: s.pace is STALLED and not s.nobody_works, STALLED.says,
        OperatorAction("The daemon deals with no entry. Its log says why; see whether it reaches everything.", "tiered check"),
    ),
    Reason(
        PACE, FALLING_BEHIND.level, lambda s: s.pace is FALLING_BEHIND and not s.nobody_works, FALLING_BEHIND.says, OperatorAction(
            "Recovery is too slow. Start another daemon, or raise recovery.rate_per_s and recovery.concurrency_max.", "tiered recover"
        ),
    ),
    Reason(
        PACE, Level.UNKNOWN, lambda s: not s.answers and not _out(s),
        "The changelog cannot be read, so it is not known whether recovery keeps up.",
        OperatorAction("The changelog cannot be read. See what is missing or damaged.", "tiered check"),
    ),
    Reason(
        PACE, Level.UNKNOWN, lambda s: s.answers and not s.durable,
        "No changelog is kept, so nobody cleans up after a process that dies. Only an audit finds what it leaves.", _set_changelog, 0,
    ),
    Reason(PACE, Level.UNKNOWN, _out, UNKNOWN.says),
    Reason(
        PACE, Level.UNKNOWN, lambda s: s.entries.newer,
        lambda s: f"It is not known whether recovery keeps up: newer software wrote {count(s.entries.newer, 'entry', 'entries')}.",
        OperatorAction(
            "Newer software wrote entries that this one cannot read. Update the daemons, and what asks for the status."
        ), 0,
    ),
    Reason(PACE, CATCHING_UP.level, lambda s: s.pace is CATCHING_UP, CATCHING_UP.says),
    Reason(PACE, HEALTHY.level, lambda s: s.pace is HEALTHY, HEALTHY.says),
    Reason(
        PACE, Level.OK, lambda s: s.entries.complete and not s.entries.due,
        lambda s: f"Nothing waits for recovery{', and no daemon lives' if s.none_lives else ''}.",
    ),
    Reason(PACE, Level.UNKNOWN, lambda s: True, _untold, code=0),
    Reason(
        DAEMONS, Level.OK, lambda s: s.none_lives and (s.durable or not s.answers),
        do=OperatorAction("No daemon lives. Start one.", "tiered recover"),
    ),
    *(Reason(FEED, state.level, partial(_is_feed, state), state.says, feed_orders) for state in FEED_STATES),
    Reason(LOOK, Level.UNKNOWN, lambda s: not s.complete, _problems),
    Reason(LOOK, Level.OK, lambda s: s.problems, _problems),
    Reason(
        DAEMON, Level.UNKNOWN, lambda s: s.still_s is not None and s.old_s is None,
        lambda s: f"This daemon does nothing: no pass has read the changelog for {roughly(s.still_s or 0.0)}.",
        OperatorAction("This daemon makes no pass. Read its log, and restart it."),
    ),
)  # fmt: skip
"""The most urgent thing to do first."""


# --- a stuck entry ---------------------------------------------------------------------------------

DAMAGED = "The entry itself is damaged, and nobody can work on it. Keep it, and run an audit to find what it leaves behind."
MEND = "Mend what the error names; then retry the entry."
ADVICE: tuple[tuple[str, str], ...] = (
    (r"^the entry at .* cannot be read|names the (new|old) blob", DAMAGED),
    (r"^its state cannot be read", "Only the mark that says why it is stuck is damaged. Retry the entry."),
    (r"^claimed \d+ times", "Daemons died while they worked on it. Their logs say why, such as too little memory; then retry the entry."),
    (r"(?i)grant roles/|permission|forbidden|\b40[13]\b", "The daemon's account may not do it. Grant it the role; then retry the entry."),
    (r"^failed \d+ times", MEND),
    (
        r"breaks the format|does not match its checksum|\bthe row\b",
        "A stored record is damaged. Restore it, or write or delete the object; then retry the entry.",
    ),
)
"""What to do first about a stuck entry, by its error. The first pattern that is found decides."""


def advice(error: str) -> str:
    """Returns what to do about a stuck entry with this error."""
    return next((what for pattern, what in ADVICE if re.search(pattern, error)), MEND)
