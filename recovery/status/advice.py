"""The answer in words: does recovery keep up, is anything wrong, what should an operator type? Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from recovery.dangling import LostReads
from recovery.display import count
from recovery.statistics.persisted import RECOVERY
from recovery.statistics.verdict import SourceState
from recovery.status.feed import FeedState, FeedStatus
from recovery.status.known import UNKNOWN, Status


@dataclass(frozen=True, slots=True)
class OperatorAction:
    """Something for an operator to do. `why`: one sentence. `type`: the command to type; None: there is none."""

    why: str
    type: str | None = None


def headline(status: Status) -> str:
    """Returns the answer in one or two sentences: does recovery keep up, and is anything wrong?"""
    feed = f" {said}" if (said := feed_sentence(status)) else ""
    problems = " See the problems, too." if status.problems and status.answers and status.durable else ""
    return f"{_lost(status)}{away_sentence(status)}{_headline(status)}{feed}{_suspected(status)}{problems}"


def _lost(status: Status) -> str:
    """Returns what is known to be lost, in a sentence and a space. Empty: nothing is known to be."""
    found = []
    if status.losses:
        lost = count(sum(audit.lost for audit in status.losses), "object", "objects")
        found.append(f"an audit found {lost} whose blob is gone or cannot be read")
    if status.lost_reads is not None and status.lost_reads.is_loss:
        found.append(f"readers found {_lost_reads(status.lost_reads)} whose blob is gone")
    return f"DATA IS LOST: {', and '.join(found)}. " if found else ""


def _lost_reads(lost: LostReads) -> str:
    if not lost.objects:
        return "objects"
    return f"{count(len(lost.objects), 'object', 'objects')}{', and more,' if lost.more else ''}"


def away_sentence(status: Status) -> str:
    """Returns which services do not answer or refuse, by name, each sentence with a space. Empty: none is known to.

    That the changelog cannot be read decides all else, so the sentence after this one begins with it.
    """
    sentence = f"The {_listed(status.away)} {'does' if len(status.away) == 1 else 'do'} not answer" if status.away else ""
    if sentence:
        sentence += ", so recovery waits. " if status.answers else ". "
    return sentence + "".join(f"The {name} refuses what is asked of it, so entries wait. " for name in status.refusing)


def _listed(names: Sequence[str]) -> str:
    """Returns the names as a list in words. "The" stands before it."""
    *others, last = names
    return f"{', the '.join(others)} and the {last}" if others else last


def _suspected(status: Status) -> str:
    if not status.suspicions:
        return ""
    return " An audit found lost data, but its evidence is not complete."


def feed_sentence(status: Status) -> str:
    """Returns what is wrong with the change feed, in a sentence. Empty: nothing is known to be, or there is no feed."""
    match None if status.feed is None else status.feed.state:
        case FeedState.STALLED:
            return "The change feed stands still."
        case FeedState.BEHIND:
            return "The change feed is behind."
        case FeedState.NO_WRITER:
            return "Nobody takes up what the change feed must publish."
        case FeedState.ENDED:
            return "The writer of the change feed has ended, and no other one works now."
        case FeedState.UNKNOWN:
            return "It is not known whether the change feed keeps up."
    return ""


def _headline(status: Status) -> str:
    stuck, count = status.stuck, status.stuck.count
    if status.disk is not None and status.disk.is_full:
        return f"The disk is full: {status.disk.free_bytes:,} bytes are free, and puts fail. {_pace(status)}"
    if status.disk is not None and status.disk.is_read_only:
        return f"The disk is read-only: nothing can be stored, and nothing is cleaned up. {_pace(status)}"
    if count:
        more = "" if stuck.complete else " or more"
        waits = "1 entry is stuck and waits" if count == 1 and not more else f"{count:,}{more} entries are stuck and wait"
        return f"{waits} for you. {_pace(status)}"
    if not status.answers:
        named = status.away or status.refusing
        return f"{'I' if named else 'The changelog cannot be read, so i'}t is not known whether recovery keeps up."
    if not status.durable:
        return "No changelog is kept, so nobody cleans up after a process that dies. Only an audit finds what it leaves."
    return _pace(status)


def _pace(status: Status) -> str:
    """Returns whether recovery keeps up, in a sentence."""
    found, due = status.verdict or UNKNOWN, status.entries.due
    if status.nobody_works:
        least = "" if status.entries.complete else "at least "
        return f"Nobody works on {least}{count(due, 'entry that waits', 'entries that wait')} for recovery: no daemon lives."
    match found.kind:
        case SourceState.HEALTHY:
            return "Recovery keeps up."
        case SourceState.CATCHING_UP:
            return "Recovery is catching up."
        case SourceState.FALLING_BEHIND:
            return "Recovery falls behind: entries come in at least as fast as it deals with them."
        case SourceState.STALLED:
            return "Recovery stands still: entries wait, and it deals with none."
    if status.away or status.refusing:
        return "It is not known whether recovery keeps up."
    if status.entries.newer:
        of_them = count(status.entries.newer, "entry", "entries")
        return f"It is not known whether recovery keeps up: newer software wrote {of_them}."
    if status.entries.complete and not due:
        return f"Nothing waits for recovery{', and no daemon lives' if status.none_lives else ''}."
    if status.alive and (source := status.sources.get(RECOVERY)) is not None and source.total.outstanding_values is None:
        return "It is not known whether recovery keeps up: more entries wait than can be counted in time."
    return "It is not known whether recovery keeps up: that takes two reports of a daemon that lives."


def orders(status: Status) -> list[OperatorAction]:
    """Returns what an operator should do, the most urgent first. Each stuck entry has a command of its own besides."""
    return list(_orders(status))


def _orders(status: Status) -> Iterator[OperatorAction]:
    kind = None if status.verdict is None else status.verdict.kind
    for audit in status.losses:
        where = f" below {audit.scope}" if audit.scope else ""
        yield OperatorAction(
            f"An audit found live objects{where} that are lost. Read its report in {audit.where}; restore them, then audit again."
        )
    if status.readers_lost:
        yield OperatorAction(
            "Readers found live objects whose blob is gone. Stop whoever deletes blobs; find all that is lost.", "tiered audit run"
        )
    for audit in status.suspicions:
        yield OperatorAction(
            f"An audit found lost data, but its evidence is not complete. Read its report in {audit.where}, and audit again."
        )
    disk = status.disk
    if disk is not None and disk.is_full:
        yield OperatorAction(
            f"The disk is full. Free some space for {status.store.name}, or delete objects: deletions still work for a while."
        )
    if disk is not None and disk.is_read_only:
        yield OperatorAction(f"The disk is read-only. Mount it for writing if {status.store.name} shall be written to.")
    if out := (*status.away, *status.refusing):
        does = "does" if len(out) == 1 else "do"
        yield OperatorAction(f"The {_listed(out)} {does} not do what is asked. See what is missing or out of reach.", "tiered check")
    elif not status.answers:
        yield OperatorAction("The changelog cannot be read. See what is missing or damaged.", "tiered check")
    if status.entries.newer:
        yield OperatorAction("Newer software wrote entries that this one cannot read. Update the daemons, and what asks for the status.")
    if status.stuck.count:
        yield OperatorAction("Entries are stuck. Mend the cause of each, then give it back to recovery.", "tiered log list --stuck")
    if status.answers and not status.durable:
        to = "sqlite" if status.store.kind == "embedded" else status.store.kind.partition("+")[0]
        yield OperatorAction(f"No changelog is kept. Set 'changelog: {to}' if what a killed process leaves behind should be removed.")
    elif status.none_lives:
        yield OperatorAction("No daemon lives. Start one.", "tiered recover")
    if kind is SourceState.STALLED and not status.nobody_works:
        yield OperatorAction("The daemon deals with no entry. Its log says why; see whether it reaches everything.", "tiered check")
    if kind is SourceState.FALLING_BEHIND and not status.nobody_works:
        why = "Recovery is too slow. Start another daemon, or raise recovery.rate_per_s and recovery.concurrency_max."
        yield OperatorAction(why, "tiered recover")
    if status.feed is not None:
        yield from feed_orders(status.feed)


def feed_orders(feed: FeedStatus) -> Iterator[OperatorAction]:
    """Yields what an operator should do for the change feed."""
    failing, ended = feed.failing, feed.checkpoint is not None and feed.checkpoint.closed
    if feed.state is FeedState.NO_WRITER:
        yield OperatorAction("The change feed is configured, and no writer has ever begun it. Start one.", "tiered feed run")
    elif (feed.state is FeedState.STALLED and not failing) or (feed.is_late and ended):
        yield OperatorAction(f"{feed.why} See the log of the writer, or start one.", "tiered feed run")
    for sink in failing:
        goes_on = "then start the writer" if ended else "the writer goes on by itself"
        yield OperatorAction(f"The sink {sink.name} takes nothing. Mend the cause; {goes_on}.")
    if feed.near_bound:
        yield OperatorAction(
            "Deletions have waited for the change feed for almost feed.hold_max_s. Then recovery cleans up without it, and the feed"
            " publishes no progress before it has read all rows again."
        )


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
