"""Checks I1-I7 from outside. It reads the simulated services' own state and runs none of the product's protocol code.

    Watch      after every effect    I1 no tombstone without its blob; I2 no blob deleted before it was refused;
                                     no blob written again; who holds an entry changes by claims only
               and answer            I4, I7 what each caller was told, against what took effect (`world.ghost`)
    orphans    when all is quiet     I3
    left_over  when all is quiet     I3 (uploads), I6 (entries)

At the end, `emulators.world.history` judges the same answers once more, without knowing what took effect. I5 is checked
by repeating every clean-up (`World.repeat`).

A violation is kept with the trace so far. `Watch.verify` raises it at the end. If it were raised at once, the product
would take it for an ordinary error and might handle it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from changelog.base.runtime import Runtime
from changelog.change import Change, ChangeId, Entry, Stuck, Unreadable, decode
from emulators.world.code import Code
from emulators.world.ghost import EFFECTS, Ghost
from emulators.world.history import RegisterHistory
from emulators.world.stack import InspectedBlobs, InspectedLog, InspectedRows
from tiered.metadata import is_expired
from tiered.object_id import revision_of
from tiered.services.backends import Row, Tombstone
from tiered.settings import RecoverySettings

TRACE_LINES_MAX = 60
ATTEMPTS_MAX = RecoverySettings().attempts_max
NO_FEED: Mapping[str, Change] = MappingProxyType({})
"""What waits for a change feed, where there is none."""
Decode = Callable[..., Entry | Unreadable]
"""`changelog.change.decode`, of one code or another."""
WANTED_BY_OPERATOR = "an operator wants to look at it"


class InvariantViolation(AssertionError):
    """One of I1-I7 does not hold. The message names the invariant, what breaks it, and the calls that led there."""

    def __init__(self, invariant: str, finding: str, trace: Sequence[str] = ()) -> None:
        shown = [*(["…"] if len(trace) > TRACE_LINES_MAX else []), *trace[-TRACE_LINES_MAX:]]
        super().__init__("\n    ".join([f"{invariant}: {finding}", *shown]))
        self.invariant = invariant
        self.finding = finding


# --- the state -----------------------------------------------------------------------------------


def dangling(rows: InspectedRows, blobs: InspectedBlobs, now_ns: int) -> list[str]:
    """Returns the paths of tombstones whose blob is missing (I1).

    A tombstone is left out if the bucket's lifecycle collected its blob and both have expired.
    """
    return [
        path for path, state in rows.states.items()
        if isinstance(state, Tombstone) and state.target not in blobs.blobs
        and not (state.target in blobs.collected and is_expired(state.deadline_ns, now_ns))
    ]  # fmt: skip


def orphans(rows: InspectedRows, blobs: InspectedBlobs, now_ns: int, feed: Mapping[str, Change] = NO_FEED) -> list[str]:
    """Returns the names of blobs that no tombstone names and that have not expired (I3).

    Expired ones are the bucket lifecycle's. Those that a change of `feed` names are the change feed's.

    Strays are left out. Only the audit can find what a network's second copy of a request made.
    """
    named = {Row(state).target for state in rows.states.values()} | blobs.strays
    named |= {name for change in feed.values() for name in (change.new, change.old)}
    return [name for name, blob in blobs.blobs.items() if name not in named and not is_expired(blob.metadata.time_expires_ns, now_ns)]


def left_over(log: InspectedLog, uploads: Sequence[str], feed: Mapping[str, Change] = NO_FEED) -> list[str]:
    """Returns the entries in the log, parked or not (I6), and those of `uploads` (sessions) that are still open (I3).

    `feed`: the changes that a change feed still has to see. It cleans up after them.
    """
    left = {key: stored for key, stored in log.stored.items() if key not in feed}
    of_feed = {change.upload for change in feed.values()}
    return [f"entry {key}: {stored.value!r} {stored.state or ''}" for key, stored in left.items()] + [
        f"upload {session}" for session in uploads if session not in of_feed
    ]


def read_by(code: Code) -> Decode:
    """Returns how this code reads an entry, in the classes of this checkout."""
    theirs: Decode = code.module("changelog.change").decode

    def read(key: str, raw: bytes, heartbeat_ms: int, state: str | None = None) -> Entry | Unreadable:
        found: Any = theirs(key, raw, heartbeat_ms, state)
        if hasattr(found, "error"):
            return decode(key, raw, heartbeat_ms, state)
        change = {each.name: getattr(found.change, each.name) for each in fields(Change)} | {"id": ChangeId(str(found.change.id))}
        stuck = None if found.stuck is None else Stuck(found.stuck.error, found.stuck.at_ms)
        entry = {each.name: getattr(found, each.name) for each in fields(Entry)} | {"change": Change(**change), "stuck": stuck}
        return Entry(**entry)

    return read


class Watch:
    """Checks the services after every effect, and what callers are told. `decode`: how it reads an entry.

    `recorded`: the changes that were ever in the log, by the key of their entry. `touched`: the blobs whose deadline
    was ever extended. `checked`: how often each check was made.
    """

    def __init__(
        self, rows: InspectedRows, blobs: InspectedBlobs, log: InspectedLog, runtime: Runtime, trace: list[str], history: RegisterHistory,
        decode: Decode = decode,
    ) -> None:  # fmt: skip
        self.recorded: dict[str, Change] = {}
        self.touched: set[str] = set()
        self.ghost = Ghost(history, self.report)
        self._runtime = runtime
        self._rows = rows
        self._blobs = blobs
        self._log = log
        self._decode = decode
        self._trace = trace
        self._marked: dict[str, set[tuple[str, ChangeId]]] = defaultdict(set)  # includes marks that were collected since
        self._visible: set[str] = set()
        self._holders: dict[str, tuple[str, int, bool]] = {}
        self._claims: Counter[str] = Counter()
        self._written: set[str] = set()  # the keys that a process has recorded, whether or not this code can read them
        self._amended: dict[str, list[Entry]] = defaultdict(list)
        self._checked: Counter[str] = Counter()
        self._violations: list[InvariantViolation] = []
        for service in (rows, blobs, log):
            service.observers.append(self._look)

    def verify(self) -> None:
        """Raises the first violation that was seen."""
        for violation in self._violations:
            raise violation

    @property
    def checked(self) -> Counter[str]:
        return self._checked + self.ghost.checked

    @property
    def uploads(self) -> set[str]:
        """The upload sessions that the log ever named."""
        return {change.upload for change in self.recorded.values() if change.upload is not None}

    def report(self, invariant: str, finding: str) -> None:
        """Keeps a violation, with the trace so far."""
        self._violations.append(InvariantViolation(invariant, finding, list(self._trace)))

    def decoded(self, key: str) -> Entry | Unreadable | None:
        """Returns what is under this key of the log."""
        stored = self._log.stored.get(key)
        return None if stored is None else self._decode(key, stored.value, stored.heartbeat_ms, stored.state)

    def kept(self) -> dict[str, Change]:
        """Returns the changes that are kept for a change feed, by the keys of their entries."""
        entries = {key: self.decoded(key) for key in self._log.stored}
        return {key: entry.change for key, entry in entries.items() if isinstance(entry, Entry) and entry.kept_ms is not None}

    def is_marked(self, path: str, token: ChangeId) -> bool:
        """Tells whether the row ever had a mark of the token."""
        return not self._marked[path].isdisjoint({("won", token), ("refused", token)})

    def open_entry_of(self, blob: str) -> str | None:
        """Returns the key of an entry that nobody has claimed and that names the blob as new, or None."""
        entries = ((key, self._entry(key)) for key in self._log.stored)
        return next((key for key, each in entries if each is not None and each.change.new == blob and not each.attempt), None)

    def _look(self, call: str, what: str) -> None:
        if call in EFFECTS:
            self.ghost.took_effect(what)
        if call in ("rows.settle", "rows.swap"):
            self._marked[what] |= _marks(self._rows, what)
        if call == "blobs.delete":
            self._checked["I2 settled before it is deleted"] += 1
            if not self._may_delete(what):
                self.report("I2 settle first", f"blob {what} was deleted, and no row had refused its revision")
        if call == "upload.finalise":
            self._checked["I7 no blob is overwritten"] += 1
            if what in self._visible:
                self.report("I7 whole", f"blob {what} was written again")
            self._visible.add(what)
        if call in ("blobs.delete", "blobs.collect"):
            self._visible.discard(what)
        if call == "blobs.touch":
            self.touched.add(what)
        if call.startswith("log."):
            self._look_at_entry(call, what)
        self._checked["I1 no dangling"] += 1
        for path in dangling(self._rows, self._blobs, self._runtime.wall_ns()):
            self.report("I1 no dangling", f"{path} names a blob that does not exist, after {call} of {what}")

    def _may_delete(self, blob: str) -> bool:
        """Tells whether the blob may be deleted.

        Its revision was refused. Or it has no revision, and the row's state and marks show that the row has left it.
        """
        path = blob.rpartition("/")[0]
        revision = revision_of(path, blob)
        if revision is not None:
            return ("refused", revision) in self._marked[path]
        state = self._rows.states.get(blob)
        return Row(state).target != blob and (state is not None or any(mark == "won" for mark, _ in self._marked[blob]))

    def _look_at_entry(self, call: str, key: str) -> None:
        """Checks who holds the entry now, and whether that changed only as it may.

        A renewal keeps the holder. A claim adds one to the attempts of the claim before, and is the first one of an
        entry that was assembling. Such an entry counts those who amend it, and nothing makes another one of it.
        """
        before, after = self._holders.pop(key, None), self._entry(key)
        if call in ("log.record", "log.open", "log.amend"):
            self._written.add(key)
        self._count_claims(call, key)
        if after is None:
            return
        self._holders[key] = holder = after.owner, after.attempt, after.assembling is not None
        if call in ("log.record", "log.open", "log.amend"):
            self.recorded[key] = after.change
        if call in ("log.open", "log.amend"):
            self._checked["an upload stays open, and no value of its entry returns"] += 1
            if not holder[2] or (before is None) != (call == "log.open") or (before is not None and not before[2]):
                self.report("lease", f"{key} is {holder} after {call}, and was {before}")
            if after in self._amended[key]:
                self.report("lease", f"{key} is again what it was: {after}")
            self._amended[key].append(after)
        if call == "log.renew":
            self._checked["lease renewed by its holder"] += 1
            if holder != before:
                self.report("lease", f"{key} was renewed by {holder}, and held by {before}")
        if call == "log.claim":
            self._checked["lease claimed once"] += 1
            if before is None or after.attempt != (0 if before[2] else before[1]) + 1:
                self.report("lease", f"{key} was claimed by {holder}, and held by {before}")

    def _count_claims(self, call: str, key: str) -> None:
        """Checks that an entry is parked only after enough claims without a release, or because an operator wants it.
        """
        if call == "log.claim":
            self._claims[key] += 1
        if call in ("log.release", "log.retry", "log.forget"):
            del self._claims[key]
        if call == "log.park":
            entry = self.decoded(key)
            stuck = None if entry is None or entry.stuck is None or entry.stuck.error == WANTED_BY_OPERATOR else entry.stuck
            if stuck is not None and isinstance(entry, Unreadable) and key in self._written:
                self.report("I6 drained", f"{key} was parked, and a process had recorded it: one code parks what another can do")
            elif stuck is not None and isinstance(entry, Entry):
                self._checked["I6 parked for a reason"] += 1
                if self._claims[key] < ATTEMPTS_MAX:
                    self.report("I6 drained", f"{key} was parked after {self._claims[key]} claims: {stuck.error}")

    def _entry(self, key: str) -> Entry | None:
        entry = self.decoded(key)
        return entry if isinstance(entry, Entry) else None


def _marks(rows: InspectedRows, path: str) -> set[tuple[str, ChangeId]]:
    return {("refused", token) for token in rows.refused.get(path, ())} | {("won", token) for token in rows.won.get(path, ())}
