"""What really took effect, in which order, and which write it was.

No caller can see this; every answer is judged by it.

    acting     the write that the current task works for; what the task starts or sends inherits it, even if it is late
    Ghost      told of each effect on a row, each answer to a write, each end of a read, as they happen:

        LATE         a write takes effect after its caller was told what became of it                           I4
        TWICE        a write takes effect again                                                                 I4
        BLIND        a write with a condition takes effect, and its condition is false                          I4
        REVIVED      a write over a revision takes effect, which had expired by every clock before the call     I4
        LOST         a rename deletes its source before the copy is known to be there                           I4
        FALSE OK     told ok, but it took no effect, and nobody else wrote since it began                       I4
        FALSE NO     told that nothing happened, but it took effect; or that its condition is false, and it     I4
                     was true all the time
        STALE READ   a read finds what the register held at no moment between its call and its answer       I4, I7
        STALE LIST   a list leaves out what was there all the time, or shows what never was                     I4
        EXPIRED      a read finds, or a list shows, what had expired by every clock before it began             I4
        UNORDERED    of two writes of one bulk call, the earlier took effect after the later, and both are ok
        FALSE ANSWER a copy, a rename or a change of metadata returns or raises what is not true                I4
        TOO LATE     an operation is answered long after all its budgets                                        I6

The ghost judges at once and exactly, because it knows what no user can know. `history` judges at the end, only by what
callers were told.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import anyio

from emulators.world.history import Read, RegisterHistory, RegisterWrite, WriteAnswer
from tiered.object_id import ObjectId
from tiered.protocol.writing import Outcome

acting: ContextVar[RegisterWrite | None] = ContextVar("acting", default=None)

EFFECTS = {"rows.swap", "rows.put_inline", "rows.delete_inline"}
"""The calls that change what a row holds."""


@contextmanager
def acts(write: RegisterWrite) -> Iterator[None]:
    """Lets whatever happens within the block, and whatever it starts or sends, belong to this write."""
    token = acting.set(write)
    try:
        yield
    finally:
        acting.reset(token)


@dataclass(frozen=True, slots=True)
class Effect:
    event: int
    write: RegisterWrite


class Ghost:
    """Judges answers by what took effect.

    `checked`: how often each check was made. `report(invariant, finding)` is called for each violation.
    """

    def __init__(self, history: RegisterHistory, report: Callable[[str, str], None]) -> None:
        self.checked: Counter[str] = Counter()
        self._history = history
        self._report = report
        self._effects: dict[str, list[Effect]] = defaultdict(list)

    def took_effect(self, path: str) -> None:
        """Notes that the row at `path` changed just now."""
        write = acting.get()
        if write is None:
            return
        self.checked["I4 no late effect"] += 1
        if write.ended is not None and write.answer is not WriteAnswer.UNKNOWN:
            self._report("I4 honest", f"LATE: the {write} took effect after its caller was told {write.answer.name}")
        if self._took_effect(write):
            self._report("I4 honest", f"TWICE: the {write} took effect again")
        if write.needs is not None:
            self.checked["I4 a condition is true when its write takes effect"] += 1
            held = self._since(path, self._history.tick())[0].write
            if not write.needs.may_hold(held, anyio.current_time()):
                self._report("I4 honest", f"BLIND: the {write} took effect over {held.value!r}")
            elif write.needs.value is not None and held.dead_at_s < write.began_s:
                self._report("I4 honest", f"REVIVED: the {write} took effect over {held.value!r}, which had expired before")
        self._effects[path].append(Effect(self._history.tick(), write))

    def told(self, write: RegisterWrite, outcome: Outcome | None = None) -> None:
        """Judges the answer to a write.

        `outcome`: what the caller heard when it asked later. Only then does "superseded" not count as an effect.
        """
        if write.answer is WriteAnswer.OK:
            self.checked["I4 ok is true"] += 1
            if not (self._is_ok(write) if outcome is None and write.needs is None else self._took_effect(write)):
                self._report("I4 honest", f"FALSE OK: the {write} took no effect, and nobody else wrote since it began")
        if write.answer is WriteAnswer.NO:
            self.checked["I4 no is true"] += 1
            if self._took_effect(write):
                self._report("I4 honest", f"FALSE NO: the {write} took effect")
        if write.answer is WriteAnswer.FAILED and write.needs is not None:
            self.checked["I4 a condition that is called false was false"] += 1
            held = [effect.write for effect in self._since(write.path, write.began)]
            if self._took_effect(write) or not any(write.needs.may_fail(each, anyio.current_time()) for each in held):
                self._report("I4 honest", f"FALSE NO: the {write} took effect, or its condition was true all the time")

    def found(self, read: Read) -> None:
        """Judges a read that has ended with `read.found`."""
        self.checked["I4 I7 read is of its time"] += 1
        possible = [effect.write for effect in self._since(read.path, read.began)]
        if not any(write.value == read.found or (read.found is None and write.mortal_at_s <= read.ended_s) for write in possible):
            held = ", ".join(repr(write.value) for write in possible)
            self._report("I4 honest", f"STALE READ: {read.path} was read as {read.found!r}, and held {held} between call and answer")
        elif read.found is not None and all(write.dead_at_s < read.began_s for write in possible if write.value == read.found):
            self._report("I4 honest", f"EXPIRED: {read.path} was read as {read.found!r}, which had expired before")

    def listed(self, began: int, paths: set[str], began_s: float = 0.0) -> None:
        """Judges a list of all objects. It began at the event `began` and the second `began_s`, and has just ended."""
        self.checked["I4 list is of its time"] += 1
        for path in {*paths, *self._effects}:
            held = [effect.write for effect in self._since(path, began)]
            was_absent = any(write.value is None or write.mortal_at_s <= anyio.current_time() for write in held)
            was_there = any(write.value is not None and write.dead_at_s >= began_s for write in held)
            if (path in paths and not was_there) or (path not in paths and not was_absent):
                said = "listed" if path in paths else "left out"
                self._report("I4 honest", f"STALE LIST: {path} was {said}, and held {', '.join(repr(write.value) for write in held)}")

    def showed(self, path: str, value: object, began: int) -> None:
        """Judges the metadata of one object in a list that began at the event `began` and has just ended."""
        self.checked["I4 I7 list shows what was there"] += 1
        held = [effect.write for effect in self._since(path, began)]
        if all(write.value != value for write in held):
            values = ", ".join(repr(write.value) for write in held)
            self._report("I4 honest", f"STALE LIST: {path} was listed as {value!r}, and held {values}")

    def ordered(self, earlier: RegisterWrite, later: RegisterWrite) -> None:
        """Judges two writes of one object in one bulk call, both told ok. They must take effect in their order."""
        self.checked["bulk writes keep their order"] += 1
        effects = [effect.write for effect in self._effects[earlier.path] if effect.write in (earlier, later)]
        if effects == [later, earlier]:
            self._report("I4 honest", f"UNORDERED: the {earlier} took effect after the {later} of the same call")

    def renamed(self, deletion: RegisterWrite, copy: RegisterWrite | None) -> None:
        """Judges the deletion of a rename's source that begins now. `copy`: what was told ok; None: nothing."""
        self.checked["I4 a rename deletes what it has copied"] += 1
        if copy is None:
            self._report("I4 honest", f"LOST: the {deletion} of a rename begins, and nothing was copied")

    def answered(self, said: str, *, is_true: bool) -> None:
        """Judges what a copy, a rename or a change of metadata has returned or raised."""
        self.checked["I4 a copy tells what it did"] += 1
        if not is_true:
            self._report("I4 honest", f"FALSE ANSWER: {said}")

    def ended(self, upload: RegisterWrite, said: str, *, completed: bool) -> None:
        """Judges what somebody was told of an upload that is not his own: it became the object, or it never will."""
        self.checked["I4 what is told of another's upload is true"] += 1
        if self._took_effect(upload) is not completed:
            self._report("I4 honest", f"FALSE ANSWER: of the {upload} somebody was told: {said}")

    def lasted(self, what: str, seconds: float, at_most_s: float) -> None:
        """Judges how long an operation took, in a process that never stood still."""
        self.checked["I6 answered in time"] += 1
        if seconds > at_most_s:
            self._report("I6 drained", f"TOO LATE: a {what} took {seconds:.0f} s, and its budgets are less than {at_most_s:g} s")

    def sized(self, write: RegisterWrite, told: int, size: int) -> None:
        """Judges how many bytes a put was told that it has stored."""
        if told != size:
            self._report("I4 honest", f"the {write} was told that it stored {told} bytes, of {size}")

    def kept(self, object_id: ObjectId, told: int, size: int) -> None:
        """Judges how many bytes an append was told that the upload keeps."""
        self.checked["I4 an append is told how far it has come"] += 1
        if told != size:
            self._report("I4 honest", f"an append to {object_id} was told that {told} bytes are kept, of {size}")

    def forged(self, upload: RegisterWrite, size: int) -> None:
        """Somebody was told ok for parts that never were."""
        self._report("I4 honest", f"FALSE OK: somebody has completed the {upload} with {size} bytes that nobody uploaded")

    def _is_ok(self, write: RegisterWrite) -> bool:
        # A write just before one with a condition would have broken that condition, so it was not superseded by it.
        since = [effect.write for effect in self._effects[write.path] if effect.event > write.began]
        if any(each is write or each.needs is None for each in since):
            return True
        last = self._since(write.path, write.began)[-1].write
        return write.value is None and (last.value is None or last.mortal_at_s <= anyio.current_time())

    def _took_effect(self, write: RegisterWrite) -> bool:
        return any(effect.write is write for effect in self._effects[write.path])

    def _since(self, path: str, event: int) -> list[Effect]:
        """Returns what the register held at that event and after it, in order."""
        effects = [Effect(-1, RegisterWrite(path, None, -1, -1, WriteAnswer.OK)), *self._effects[path]]
        before = [effect for effect in effects if effect.event < event]
        return [before[-1], *(effect for effect in effects if effect.event > event)]
