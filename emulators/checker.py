"""I1-I3 and I6 seen from outside: reads the simulated services' own state, runs no product code.

    Watch      after every effect    I1 no tombstone without its blob; I2 no blob deleted before it was refused
    orphans    when all is quiet     I3
    left_over  when all is quiet     I3 (uploads), I6 (entries)

What callers were told (I4, I7) is for `emulators.history`. I5 has no check of its own: worlds repeat settling, sweeping and
forgetting, and all of the above must still hold. Violations found on the way are kept with the trace so far and raised by
`Watch.verify`: raised at once they would reach the product as an ordinary error, which it may handle.
"""

from __future__ import annotations

from collections.abc import Sequence

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
