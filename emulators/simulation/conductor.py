"""`Conductor`: lets the calls of several processes go on one at a time, in a chosen order.

    round   writer-1 -> reader -> writer-2 -> recoverer -> network (what is late) -> writer-1 ...

    go on   the process whose turn it is makes its next call; it keeps the turn until it has ended or waits
    delay   its call is postponed instead: the turn goes to the next in the round that has a call to make

Each time, the conductor *asks* whether the next call may go on. The questions are numbered from 1. The numbers of those
that are answered by *delay* are the whole schedule. Delay-bounded scheduling is by Emmi, Qadeer and Rakamarić (POPL
2011).

A call goes on when every task waits. Time moves only when nobody has a call to make. *Crash*: a dead process asks
nothing any more.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import anyio

from emulators.world.faults import call_of

BEGIN = "begin "
"""The prefix of the point at which an operation begins. It is not a call, but the conductor treats it as one."""

INVISIBLE = frozenset({"blobs.open_upload", "blobs.open_copy", "upload.write", "log.announce", "log.now_ms", "reader.aclose"})
"""Calls that change nothing another process can see, and whose answer depends on no other process."""


@dataclass(frozen=True, slots=True)
class Question:
    """Shall `process` make the call `point` now? `is_open`: a delay makes a difference. `delayed`: the answer was no.
    """

    process: str
    point: str
    is_open: bool
    delayed: bool

    def __str__(self) -> str:
        return f"{self.process}: {self.point}" + (" delayed" if self.delayed else "")

    @property
    def call(self) -> str:
        return call_of(self.point)

    @property
    def is_visible(self) -> bool:
        """Whether others can tell that the call was made."""
        return self.call not in INVISIBLE


class Conductor:
    """Decides which call goes on.

    `turn` is a `Network.turn`. `run` must run beside the processes. `questions`: those asked so far. Processes that are
    not in the round go on as they like.
    """

    def __init__(self, members: Sequence[str], delays: Collection[int]) -> None:
        self.questions: list[Question] = []
        self._round = deque(members)
        self._delays = frozenset(delays)
        self._waiting: defaultdict[str, dict[str, anyio.Event]] = defaultdict(dict)
        self._fresh: set[str] = set()
        self._came = anyio.Event()
        self._ended = False

    async def begin(self, name: str, operation: str) -> None:
        """Waits for the moment at which the operation begins. Gives each operation of one process a name of its own."""
        await self.turn(name, f"{BEGIN}{operation}")

    async def turn(self, name: str, point: str) -> None:
        """Waits until the call may go on."""
        if self._ended or name not in self._round:
            return
        event = self._waiting[name][point] = anyio.Event()
        self._came.set()
        try:
            await event.wait()
        finally:
            del self._waiting[name][point]

    async def run(self) -> None:
        """Lets one call after the other go on, until it is cancelled."""
        while True:
            await anyio.wait_all_tasks_blocked()
            if able := [name for name in self._round if self._waiting[name]]:
                self._ask(able)
            else:
                self._came = anyio.Event()
                await self._came.wait()

    def end(self) -> None:
        """From now on, let every call go on at once."""
        self._ended = True
        for waiting in self._waiting.values():
            for event in waiting.values():
                event.set()

    def _ask(self, able: Sequence[str]) -> None:
        """Asks one process after the other until one goes on."""
        for name in itertools.cycle(able):
            question = self._question(name, alone=len(able) == 1)
            self.questions.append(question)
            if not question.delayed:
                break
        self._round.rotate(-self._round.index(name))
        self._note_progress(question)
        self._waiting[name][question.point].set()

    def _question(self, name: str, *, alone: bool) -> Question:
        point = min(self._waiting[name])  # if one process makes several calls at once, they go in the order of their names
        asked = Question(name, point, is_open=False, delayed=False)
        if alone or not asked.is_visible or name in self._fresh:
            return asked
        return Question(name, point, is_open=True, delayed=len(self.questions) + 1 in self._delays)

    def _note_progress(self, question: Question) -> None:
        """Notes whether the process has made a visible call since its operation began.

        Before its first visible call, nobody can tell that the operation has begun.
        """
        if question.point.startswith(BEGIN):
            self._fresh.add(question.process)
        elif question.is_visible:
            self._fresh.discard(question.process)
