"""I1-I7 seen from outside: reads the simulated services' own state and what callers were told, runs no product code.

    Watch      after every effect    I1 no tombstone without its blob; I2 no blob deleted before it was refused
    History    at the end            I4 honest answers, nothing acknowledged is lost; I7 one write, whole
    orphans    when all is quiet     I3
    left_over  when all is quiet     I3 (uploads), I6 (entries)

I5 has no check of its own: worlds repeat settling, sweeping and forgetting, and all of the above must still hold.
Violations found on the way are kept with the trace so far and raised by `Watch.verify`: raised at once they would
reach the product as an ordinary error, which it may handle.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from changelog.change import Unreadable, decode
from changelog.runtime import Runtime
from emulators.blobs import SimulatedBlobs
from emulators.log import SimulatedChangeLog
from emulators.rows import SimulatedRows
from tiered.backends import Row, Tombstone
from tiered.metadata import is_expired
from tiered.object_id import revision_of

TRACE_LINES_MAX = 60


class InvariantViolation(AssertionError):
    """One of I1-I7 does not hold. The message names it, what breaks it, and the calls that led there."""

    def __init__(self, invariant: str, finding: str, trace: Sequence[str] = ()) -> None:
        shown = [*(["…"] if len(trace) > TRACE_LINES_MAX else []), *trace[-TRACE_LINES_MAX:]]
        super().__init__("\n    ".join([f"{invariant}: {finding}", *shown]))


# --- the state -----------------------------------------------------------------------------------


def dangling(rows: SimulatedRows, blobs: SimulatedBlobs, now_ns: int) -> list[str]:
    """I1: paths of present tombstones whose blob is missing, unless the bucket's lifecycle collected it and both have expired."""
    return [
        path for path, state in rows.states.items()
        if isinstance(state, Tombstone) and state.target not in blobs.blobs
        and not (state.target in blobs.collected and is_expired(state.deadline_ns, now_ns))
    ]  # fmt: skip


def orphans(rows: SimulatedRows, blobs: SimulatedBlobs, now_ns: int) -> list[str]:
    """I3: names of blobs that no tombstone names and that have not expired (those are the bucket lifecycle's)."""
    named = {Row(state).target for state in rows.states.values()}
    return [name for name, blob in blobs.blobs.items() if name not in named and not is_expired(blob.metadata.time_expires_ns, now_ns)]


def left_over(log: SimulatedChangeLog, uploads: Sequence[str]) -> list[str]:
    """I3, I6: entries in the log, parked or not, and those of the upload sessions `uploads` that are still open."""
    return [f"entry {key}: {stored.value!r} {stored.state or ''}" for key, stored in log.stored.items()] + [
        f"upload {session}" for session in uploads
    ]


class Watch:
    """Looks at the services after every effect. `recorded`: the upload sessions that were ever named in the log."""

    def __init__(
        self, rows: SimulatedRows, blobs: SimulatedBlobs, log: SimulatedChangeLog, runtime: Runtime, trace: list[str]
    ) -> None:
        self.recorded: set[str] = set()
        self._runtime = runtime
        self._rows = rows
        self._blobs = blobs
        self._log = log
        self._trace = trace
        self._violations: list[InvariantViolation] = []
        for service in (rows, blobs, log):
            service.observers.append(self._look)

    def verify(self) -> None:
        """Raises the first violation that was seen."""
        for violation in self._violations:
            raise violation

    def _look(self, call: str, what: str) -> None:
        if call == "blobs.delete" and not self._may_delete(what):
            self._report("I2 settle first", f"blob {what} was deleted, and no row had refused its revision")
        if call == "log.record":
            self._remember_upload(what)
        for path in dangling(self._rows, self._blobs, self._runtime.wall_ns()):
            self._report("I1 no dangling", f"{path} names a blob that does not exist, after {call} of {what}")

    def _may_delete(self, blob: str) -> bool:
        """Its revision was refused; or it has none, and its row is seen to have left it."""
        path = blob.rpartition("/")[0]
        revision = revision_of(path, blob)
        if revision is not None:
            return revision in self._rows.refused.get(path, ())
        state = self._rows.states.get(blob)
        return Row(state).target != blob and (state is not None or bool(self._rows.won.get(blob)))

    def _remember_upload(self, key: str) -> None:
        stored = self._log.stored[key]
        entry = decode(key, stored.value, stored.heartbeat_ms)
        if not isinstance(entry, Unreadable) and entry.change.upload is not None:
            self.recorded.add(entry.change.upload)

    def _report(self, invariant: str, finding: str) -> None:
        self._violations.append(InvariantViolation(invariant, finding, list(self._trace)))


# --- what callers were told ----------------------------------------------------------------------


class Answer(Enum):
    """What the caller of a write knows after it."""

    OK = "it took effect, or was superseded"
    NO = "it had no effect and never will"
    OVER = "it may have had its effect, and will not have it any more"
    UNKNOWN = "it may have its effect at any time, or never; also: the caller died"


@dataclass(slots=True, eq=False)
class Write:
    """One put (`value`: what a read shall find) or delete (None). `began` and `ended` count events of the history."""

    path: str
    value: object
    began: int
    ended: int | None = None
    answer: Answer = Answer.UNKNOWN

    def may_take_effect_after(self, event: int) -> bool:
        return self.answer is Answer.UNKNOWN or (self.answer is not Answer.NO and self.ended is not None and self.ended > event)

    def __str__(self) -> str:
        return f"write of {self.value!r} [{self.began}, {self.ended}] {self.answer.name}"


@dataclass(slots=True, eq=False)
class Read:
    """One read, and what it found; None: nothing. A read that failed has found nothing out, and is left out."""

    path: str
    began: int
    ended: int | None = None
    found: object = None


@dataclass(slots=True)
class History:
    """Writes and reads of registers, one for each path. Give each write a value of its own."""

    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    _events: Iterator[int] = field(default_factory=itertools.count)

    def begin_write(self, path: str, value: object) -> Write:
        self.writes.append(Write(path, value, next(self._events)))
        return self.writes[-1]

    def end_write(self, write: Write, answer: Answer) -> None:
        write.ended, write.answer = next(self._events), answer

    def begin_read(self, path: str) -> Read:
        self.reads.append(Read(path, next(self._events)))
        return self.reads[-1]

    def end_read(self, read: Read, found: object) -> None:
        read.ended, read.found = next(self._events), found

    def unexplained(self) -> list[str]:
        """I4, I7: one sentence for each read that found what no write may have left there."""
        return [
            f"{read.path} was read as {read.found!r} [{read.began}, {read.ended}], which none of its writes explains: "
            + "; ".join(map(str, self._writes_of(read.path)))
            for read in self.reads if read.ended is not None and not self._is_explained(read)
        ]  # fmt: skip

    def _is_explained(self, read: Read) -> bool:
        """Some write may have left it, and no write that began after that one had ended was acknowledged before the read.

        An acknowledged write may have been superseded, but only by one that ended after it began.
        """
        assert read.ended is not None, "only reads that have ended are judged"
        ended = read.ended
        acknowledged = [
            write for write in self._writes_of(read.path)
            if write.answer is Answer.OK and write.ended is not None and write.ended < read.began
        ]  # fmt: skip
        candidates = [
            write for write in [Write(read.path, None, -1, -1, Answer.OK), *self._writes_of(read.path)]
            if write.value == read.found and write.answer is not Answer.NO and write.began < ended
        ]  # fmt: skip
        return any(all(write is later or write.may_take_effect_after(later.began) for later in acknowledged) for write in candidates)

    def _writes_of(self, path: str) -> list[Write]:
        return [write for write in self.writes if write.path == path]
