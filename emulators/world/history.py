"""What callers were told, and whether some order of effects explains it (I4, I7).

    RegisterWrite    a put, a copy or a delete, from its call to its `WriteAnswer`; None is the value of a delete
    Need             its condition: what the register must hold
    Read             a read, and what it found
    RegisterHistory  all of them, one register for each path
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf

from changelog.change import ChangeId
from emulators.world.linear import INITIAL, RegisterOperation, explaining_order


class WriteAnswer(Enum):
    """What the caller of a write knows after it."""

    OK = "it took effect, or was superseded"
    NO = "it had no effect and never will"
    FAILED = "its condition was false; it had no effect and never will"
    OVER = "it may have had its effect, and will not have it any more"
    UNKNOWN = "it may have its effect at any time, or never; also: the caller died"


@dataclass(frozen=True, slots=True)
class Need:
    """The condition of a write. `value`: what the register must hold; None: nothing, or what has expired."""

    value: object

    def may_hold(self, write: RegisterWrite, at_s: float) -> bool:
        """Tells whether it may be true when the register holds what this write left, until that second."""
        return write.value == self.value or (self.value is None and write.mortal_at_s <= at_s)

    def may_fail(self, write: RegisterWrite, at_s: float) -> bool:
        """Tells whether it may be false then."""
        return write.value != self.value or (self.value is not None and write.mortal_at_s <= at_s)


@dataclass(slots=True, eq=False)
class RegisterWrite:
    """One put or copy (`value`: its name, which no other write has) or delete (`value` None).

    `shows`: what a reader sees of its content. A copy shows what its source shows. `began` and `ended` count events of
    the history.

    `mortal_at_s`: the second of the servers' clock (`anyio.current_time()`) from which on it may have expired.
    `dead_at_s`: the second from which on it has expired by every clock. `needs`: its condition; None: it has none.
    `began_s`, `ended_s`: the seconds of the servers' clock at which its caller called, and was answered.
    """

    path: str
    value: object
    began: int
    ended: int | None = None
    answer: WriteAnswer = WriteAnswer.UNKNOWN
    mortal_at_s: float = inf
    dead_at_s: float = inf
    needs: Need | None = None
    ended_s: float = inf
    began_s: float = 0.0
    shows: object = None

    @property
    def name(self) -> str:
        kind = "delete" if self.value is None else f"put of {self.value!r}"
        if self.needs is not None:
            kind = f"{kind} over {self.needs.value!r}"
        return f"{kind} [{self.began}, {'…' if self.ended is None else self.ended}]"

    def __str__(self) -> str:
        return f"{self.name} {self.answer.name}"


@dataclass(slots=True, eq=False)
class Read:
    """One read, and what it found. None: nothing. A read that failed has found nothing out and is not judged.

    `began_s`, `ended_s`: the seconds of the servers' clock at which it began and ended.
    """

    path: str
    began: int
    ended: int | None = None
    found: object = None
    ended_s: float = 0.0
    began_s: float = 0.0

    @property
    def name(self) -> str:
        return f"read of {self.found!r} [{self.began}, {'…' if self.ended is None else self.ended}]"

    def __str__(self) -> str:
        return self.name


@dataclass(slots=True)
class RegisterHistory:
    """Writes and reads of registers, one for each path. Give each write a value of its own.

    `revisions`: the writes by their revisions, as far as they are known.
    """

    writes: list[RegisterWrite] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    revisions: dict[ChangeId, RegisterWrite] = field(default_factory=dict)
    _events: Iterator[int] = field(default_factory=itertools.count)

    def tick(self) -> int:
        """Returns the number of an event that is neither the beginning nor the end of an operation."""
        return next(self._events)

    def begin_write(
        self, path: str, value: object, mortal_at_s: float = inf, needs: Need | None = None, began_s: float = 0.0
    ) -> RegisterWrite:
        write = RegisterWrite(path, value, next(self._events), mortal_at_s=mortal_at_s, needs=needs, began_s=began_s, shows=value)
        self.writes.append(write)
        return write

    def end_write(self, write: RegisterWrite, answer: WriteAnswer, ended_s: float = inf) -> None:
        write.ended, write.answer, write.ended_s = next(self._events), answer, ended_s

    def begin_read(self, path: str) -> Read:
        self.reads.append(Read(path, next(self._events)))
        return self.reads[-1]

    def end_read(self, read: Read, found: object, ended_s: float = 0.0) -> None:
        read.ended, read.found, read.ended_s = next(self._events), found, ended_s

    def source(self, path: str, revision: ChangeId | None, shown: str) -> RegisterWrite | None:
        """Returns the write that a reader of this object has found, or None if it is not known.

        `revision`: that of the object; None: older software wrote it. `shown`: what the reader sees of its content.
        """
        if revision is not None:
            return self.revisions.get(revision)
        return next((write for write in reversed(self.writes) if write.path == path and write.value == shown), None)

    def value(self, path: str, revision: ChangeId | None, shown: str) -> object:
        """Returns the value of the write that a reader has found. If it shows another content, the text says so (I7).
        """
        write = self.source(path, revision, shown)
        if write is None:
            return shown
        if (write.path, write.shows) == (path, shown):
            return write.value
        return f"{shown} under the revision of the {write.name} of {write.path}"

    def unexplained(self) -> list[str]:
        """Returns a text for each path whose operations no order explains (I4, I7).

        It says which answer is the first that cannot be explained, and shows all operations.
        """
        paths: defaultdict[str, list[RegisterWrite | Read]] = defaultdict(list)
        every: list[RegisterWrite | Read] = [*self.writes, *self.reads]
        for each in sorted(every, key=lambda each: each.began):
            paths[each.path].append(each)
        return [_accusation(path, operations) for path, operations in paths.items() if _explanation(operations) is None]


# --- one register --------------------------------------------------------------------------------


def _explanation(operations: Sequence[RegisterWrite | Read], until: float = inf) -> list[RegisterWrite | Read] | None:
    """Returns the operations in an order that explains the answers up to that event, or None if there is none.

    It is a register where the last writer wins. A superseded write was overwritten at once, so it counts as any other
    write that is OK.
    """
    states: dict[tuple[object, float], int] = {(None, inf): INITIAL}
    known = [each for each in operations if _has_effect(each, until)]
    for each in known:
        if isinstance(each, RegisterWrite) and not _has_failed(each, until):
            states.setdefault((each.value, each.mortal_at_s), len(states))
    order = explaining_order([_operation(each, states, until) for each in known])
    return None if order is None else [known[index] for index in order]


def _has_effect(each: RegisterWrite | Read, until: float) -> bool:
    """Tells whether the operation counts. A write that was answered NO has no effect.

    A read that has not ended has found nothing.
    """
    if isinstance(each, Read):
        return _is_over(each, until)
    return not (_is_over(each, until) and each.answer is WriteAnswer.NO)


def _operation(each: RegisterWrite | Read, states: dict[tuple[object, float], int], until: float) -> RegisterOperation:
    if isinstance(each, Read):
        assert each.ended is not None, "a read that has not ended is left out"
        return RegisterOperation(each.began, each.ended, finds=frozenset(state for key, state in states.items() if _may_find(each, *key)))
    if _has_failed(each, until):
        assert each.ended is not None and each.needs is not None, "it was told that its condition is false"
        return RegisterOperation(each.began, each.ended, finds=_met(each.needs.may_fail, states, each.ended_s))
    known = _is_over(each, until) and each.answer is not WriteAnswer.UNKNOWN
    ended = each.ended if known and each.ended is not None else inf
    needs = None if each.needs is None else _met(each.needs.may_hold, states, each.ended_s if known else inf)
    return RegisterOperation(
        each.began, ended, states[each.value, each.mortal_at_s], optional=not known or each.answer is WriteAnswer.OVER, needs=needs
    )


def _has_failed(each: RegisterWrite, until: float) -> bool:
    return _is_over(each, until) and each.answer is WriteAnswer.FAILED


def _met(judge: Callable[[RegisterWrite, float], bool], states: dict[tuple[object, float], int], at_s: float) -> frozenset[int]:
    return frozenset(
        state for (value, mortal_at_s), state in states.items() if judge(RegisterWrite("", value, 0, mortal_at_s=mortal_at_s), at_s)
    )


def _may_find(read: Read, value: object, mortal_at_s: float) -> bool:
    return read.found == value or (read.found is None and mortal_at_s <= read.ended_s)


def _is_over(each: RegisterWrite | Read, until: float) -> bool:
    return each.ended is not None and each.ended <= until


def _accusation(path: str, operations: Sequence[RegisterWrite | Read]) -> str:
    """Returns the accusation. It accuses the first answer after which no order explains all answers so far."""
    ended = sorted((each for each in operations if each.ended is not None), key=lambda each: each.ended or 0)
    first = bisect_left(ended, True, key=lambda each: _explanation(operations, each.ended or 0) is None)
    explained = _explanation(operations, ended[first - 1].ended or 0) if first > 0 else []
    assert explained is not None, "what was answered before is explained"
    return "\n    ".join([
        f"{path}: no order of its operations explains the {ended[first]}",
        f"in order up to there: {', '.join(each.name for each in explained) or 'nothing had an effect yet'}",
        *(f"operation: {each}" for each in operations if each.began < (ended[first].ended or 0)),
    ])
