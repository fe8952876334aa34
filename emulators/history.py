"""What callers were told, and whether some order of effects explains it (I4, I7).

    Write      a put or a delete, from its call to its `Answer`; None is the value of a delete
    Read       a read, and what it found
    History    all of them, one register for each path
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from math import inf


class Answer(Enum):
    """What the caller of a write knows after it."""

    OK = "it took effect, or was superseded"
    NO = "it had no effect and never will"
    OVER = "it may have had its effect, and will not have it any more"
    UNKNOWN = "it may have its effect at any time, or never; also: the caller died"


@dataclass(slots=True, eq=False)
class Write:
    """One put (`value`: what a read shall find) or delete (None). `began` and `ended` count events of the history.

    `mortal_at_s`: the second of the servers' clock (`anyio.current_time()`) from which on it may have expired.
    """

    path: str
    value: object
    began: int
    ended: int | None = None
    answer: Answer = Answer.UNKNOWN
    mortal_at_s: float = inf

    def may_take_effect_after(self, event: int) -> bool:
        return self.answer is Answer.UNKNOWN or (self.answer is not Answer.NO and self.ended is not None and self.ended > event)

    def __str__(self) -> str:
        return f"write of {self.value!r} [{self.began}, {self.ended}] {self.answer.name}"


@dataclass(slots=True, eq=False)
class Read:
    """One read, and what it found; None: nothing. A read that failed has found nothing out, and is left out.

    `ended_s`: the second of the servers' clock at which it ended.
    """

    path: str
    began: int
    ended: int | None = None
    found: object = None
    ended_s: float = 0.0


@dataclass(slots=True)
class History:
    """Writes and reads of registers, one for each path. Give each write a value of its own."""

    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    _events: Iterator[int] = field(default_factory=itertools.count)

    def tick(self) -> int:
        """The number of an event that is neither the beginning nor the end of an operation."""
        return next(self._events)

    def begin_write(self, path: str, value: object, mortal_at_s: float = inf) -> Write:
        self.writes.append(Write(path, value, next(self._events), mortal_at_s=mortal_at_s))
        return self.writes[-1]

    def end_write(self, write: Write, answer: Answer) -> None:
        write.ended, write.answer = next(self._events), answer

    def begin_read(self, path: str) -> Read:
        self.reads.append(Read(path, next(self._events)))
        return self.reads[-1]

    def end_read(self, read: Read, found: object, ended_s: float = 0.0) -> None:
        read.ended, read.found, read.ended_s = next(self._events), found, ended_s

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
