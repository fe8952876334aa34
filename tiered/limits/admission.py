"""Limits how many operations run at once, how many wait, and for how long.

    normal   put, get, … : a queue of `queue_max`, and a wait of `queue_wait_s`; then `AtCapacityError`. The second step
             of a rename waits in this line as long as it must
    bulk     the items of put_many, get_many and delete_many: each call has a `Share`, and all of them together hold at
             most `bulk_max` slots; they wait as long as they must

    a slot becomes free  ->  only one class waits: the first of its line gets it
                             both wait:            they take turns, and bulk passes when it holds `bulk_max`

So normal operations find slots that bulk work cannot take, and neither class waits for the whole line of the other.

An operation keeps its slot until its clean-up is done, even after its caller was answered. So a store whose clean-up
falls behind refuses new work, and changes do not pile up. While it waits for its caller, it *lends* the slot: a slow
caller keeps nobody out (docs/decisions/store.md, 151). The scope of a caller (`anyio.fail_after`) ends each wait here.
docs/decisions/store.md, 71, says why nothing is refused because it *might* miss its deadline.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

import anyio
import anyio.lowlevel

from tiered.errors import AtCapacityError

RETRY_AFTER_MIN_S = 0.05
RETRY_AFTER_MAX_S = 30.0
LATEST = 0.1
"""How much the latest operation counts in the mean of the times for which slots are held."""


class Admission:
    """The slots of one side of a store, such as its reads.

    `bulk_max`: how many slots bulk work may hold; None: all. `clock`: seconds, of a clock that never goes back.
    `whats`, `setting`: what holds its slots, and which setting says how many there are, for messages.
    """

    def __init__(
        self, concurrency_max: int, queue_max: int, queue_wait_s: float, clock: Callable[[], float], *, bulk_max: int | None = None,
        whats: str = "operations are under way", setting: str = "store.concurrency_max",
    ) -> None:  # fmt: skip
        self._whats = whats
        self._setting = setting
        self._concurrency_max = concurrency_max
        self._queue_max = queue_max
        self._queue_wait_s = queue_wait_s
        self._clock = clock
        self._free = concurrency_max
        self._normal: deque[anyio.Event] = deque()
        self._bulk: deque[anyio.Event] = deque()
        self._bulk_free = concurrency_max if bulk_max is None else bulk_max
        self._bulk_is_next = False
        self._held_s: float | None = None
        self._moved_at = 0.0  # when a slot was last given back, or the last free one was taken
        self._under_way = 0
        self._in_steps = 0
        self._idle: anyio.Event | None = None  # only while somebody waits for it

    @property
    def slots(self) -> int:
        """How many operations may run at once."""
        return self._concurrency_max

    @property
    def held(self) -> int:
        """How many slots are taken. Like `waiting`, it may be read from any thread."""
        return self._concurrency_max - self._free

    @property
    def waiting(self) -> int:
        """How many operations wait, for a slot or for a place in their share."""
        return max(0, self._under_way - self._in_steps - self.held)

    async def enter(self) -> Slot:
        """Waits for a slot. Raises `AtCapacityError` when the queue is full, or after the wait limit."""
        if (slot := self.try_enter()) is not None:
            return slot  # the ordinary case pays for no machinery
        self.refuse_if_full()
        self._begin()
        try:
            with anyio.fail_after(self._queue_wait_s):
                await self._wait(self._normal)
        except BaseException as error:
            self._end()
            if not isinstance(error, TimeoutError):
                raise
            why = f"{self._concurrency_max} {self._whats}, and none ended for it within {self._queue_wait_s:g} s"
            raise self._full(why, self._setting) from None
        return Slot(self)

    def refuse_if_full(self) -> None:
        """Raises `AtCapacityError` if no slot is free and the queue is full."""
        if not self._free and len(self._normal) >= self._queue_max:
            raise self._full(f"{self._concurrency_max} {self._whats} and {self._queue_max} wait", "store.queue_max")

    async def enter_share(self, share: anyio.Semaphore) -> Slot:
        """Waits without a limit: first for a place in the share, then for a slot, in the line of all bulk work."""
        self._begin()
        try:
            await share.acquire()
            try:
                await self._enter_bulk()
            except BaseException:
                share.release()
                raise
        except BaseException:
            self._end()
            raise
        return Slot(self, share)

    async def _enter_bulk(self) -> None:
        if not (self._free and self._bulk_free and not self._bulk):
            await self._wait(self._bulk)
            return
        self._take()
        self._bulk_free -= 1
        try:
            await anyio.lowlevel.checkpoint()
        except BaseException:
            self._bulk_free += 1
            self._give_back()
            raise

    def try_enter(self) -> Slot | None:
        """Returns a slot if one is free now, otherwise None."""
        if not self._free:
            return None
        self._under_way += 1
        self._take()
        return Slot(self)

    @contextmanager
    def in_steps(self) -> Iterator[None]:
        """For an operation that needs another slot after its first one. It counts as under way until it leaves this."""
        self._begin_steps()
        try:
            yield
        finally:
            self._end_steps()

    async def enter_later(self) -> Slot:
        """The slot for a later step. It is waited for as long as it must: the operation has begun, so
        `AtCapacityError` would not be true any more.
        """
        if (slot := self.try_enter()) is not None:
            return slot
        self._begin()
        try:
            await self._wait(self._normal)
        except BaseException:
            self._end()
            raise
        return Slot(self)

    async def wait_idle(self) -> None:
        """Waits until nothing is under way and nothing waits."""
        while self._under_way:
            if self._idle is None:
                self._idle = anyio.Event()
            await self._idle.wait()

    # --- slots -----------------------------------------------------------------------------------

    def _take(self) -> None:
        self._free -= 1
        if not self._free:
            self._moved_at = self._clock()

    async def _wait(self, line: deque[anyio.Event]) -> None:
        """Waits in this line until a slot is given to it."""
        given = anyio.Event()
        line.append(given)
        try:
            await given.wait()
        except BaseException:
            if not given.is_set():
                line.remove(given)
            else:  # cancelled at the moment in which it got the slot
                self._bulk_free += line is self._bulk
                self._give_back()
            raise

    def _give_back(self) -> None:
        """One slot is free again: gives it to whoever waits for it."""
        self._free += 1
        if not (self._normal or self._bulk):
            return
        while self._free and (line := self._next_line()) is not None:
            self._free -= 1
            self._bulk_free -= line is self._bulk
            self._bulk_is_next = line is self._normal
            line.popleft().set()

    def _next_line(self) -> deque[anyio.Event] | None:
        bulk = bool(self._bulk) and self._bulk_free > 0
        if self._normal and not (bulk and self._bulk_is_next):
            return self._normal
        return self._bulk if bulk else None

    def _leave(self, began_at: float, share: anyio.Semaphore | None) -> None:
        """Gives back a slot that was held since `began_at`, by the clock. `share`: that of its operation, if any."""
        self._moved_at = self._clock()
        held_s = self._moved_at - began_at
        self._held_s = held_s if self._held_s is None else self._held_s + LATEST * (held_s - self._held_s)
        if share is not None:
            self._bulk_free += 1
            share.release()
        self._give_back()
        self._end()

    # --- capacity --------------------------------------------------------------------------------

    def retry_after_s(self) -> float | None:
        """In how many seconds an operation that comes then may expect a slot: an estimate, from 0.05 to 30.

        It is the time in which all that wait now will have got their slots, if slots are held for as long as lately (a
        moving mean). If no slot was given back for a longer time than that mean, as much time again is added: who holds
        them is slow, and nobody knows how slow. None: no slot was ever given back, so nothing was measured.
        """
        if self._held_s is None:
            return None
        still_s = self._clock() - self._moved_at
        before = len(self._normal) + min(len(self._normal) + 1, len(self._bulk))  # the two classes take turns
        expected_s = (before + 1) * self._held_s / self._concurrency_max + (still_s if still_s > self._held_s else 0.0)
        return min(max(RETRY_AFTER_MIN_S, expected_s), RETRY_AFTER_MAX_S)

    def _full(self, why: str, setting: str) -> AtCapacityError:
        after_s = self.retry_after_s()
        when = "later" if after_s is None else f"in about {after_s:.2g} s"
        return AtCapacityError(f"{why}; shed load, try again {when}, or raise {setting}", after_s)

    def _begin(self) -> None:
        self._under_way += 1

    def _begin_steps(self) -> None:
        self._begin()
        self._in_steps += 1

    def _end_steps(self) -> None:
        self._in_steps -= 1
        self._end()

    def _end(self) -> None:
        self._under_way -= 1
        if not self._under_way and self._idle is not None:
            self._idle.set()
            self._idle = None


class Share:
    """A part of an admission, such as for one bulk call, whose operations together hold at most `slots_max` slots."""

    def __init__(self, whole: Admission, slots_max: int) -> None:
        self._whole = whole
        self._slots = anyio.Semaphore(slots_max)

    async def enter(self) -> Slot:
        return await self._whole.enter_share(self._slots)

    async def enter_later(self) -> Slot:
        return await self.enter()

    def refuse_if_full(self) -> None:
        """Refuses nothing: bulk work waits as long as it must."""


class Slot:
    """The right of one operation to run. Use it in a `with`, or `hand_over` and release it later.

    `share`: where bulk work got it, and gets it again after it was lent.
    """

    __slots__ = ("_began_at", "_is_over", "_lent", "_of", "_share")

    def __init__(self, of: Admission, share: anyio.Semaphore | None = None) -> None:
        self._of = of
        self._share = share
        self._began_at = of._clock()
        self._lent = self._is_over = False

    def release(self) -> None:
        """Gives the slot back. Safe to repeat."""
        self.__exit__()

    def lend(self) -> None:
        """Lets others have the slot while the operation waits for its caller. It stays under way. Safe to repeat."""
        if not self._lent and not self._is_over:
            self._lent = True
            self._of._begin_steps()
            self._of._leave(self._began_at, self._share)

    async def take_back(self) -> None:
        """Waits, as long as it must, for a slot again. Does nothing if it was not lent. Cancelled: it stays lent."""
        if not self._lent or self._is_over:
            return
        slot = await (self._of.enter_later() if self._share is None else self._of.enter_share(self._share))
        self._began_at, self._lent = slot._began_at, False
        self._of._end_steps()

    def hand_over(self) -> Slot:
        """Moves the right into a new `Slot`, lent or not. Releasing the old one then does nothing."""
        assert not self._is_over, "a slot is handed over once"
        self._is_over, moved = True, Slot(self._of, self._share)
        moved._began_at, moved._lent = self._began_at, self._lent
        return moved

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_over:
            self._is_over = True
            self._of._end_steps() if self._lent else self._of._leave(self._began_at, self._share)
