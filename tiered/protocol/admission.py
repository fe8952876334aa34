"""Limits how many operations run at once, how many wait, and for how long.

An operation keeps its slot until its clean-up is done, even after its caller was answered. So a store whose clean-up
falls behind refuses new work, and changes do not pile up. A bulk call has a `Share`: it holds a limited number of
slots, clean-up included. It may wait for them as long as it must: it never fails with `AtCapacityError`, and it does
not count towards the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import anyio

from tiered.errors import AtCapacityError


class Admission:
    def __init__(self, concurrency_max: int, queue_max: int, queue_wait_s: float) -> None:
        self._slots = anyio.Semaphore(concurrency_max, max_value=concurrency_max)
        self._concurrency_max = concurrency_max
        self._queue_max = queue_max
        self._queue_wait_s = queue_wait_s
        self._patient = 0
        self._under_way = 0
        self._idle = anyio.Event()

    @property
    def slots(self) -> int:
        """How many operations may run at once."""
        return self._concurrency_max

    @property
    def held(self) -> int:
        """How many slots are taken. Like `waiting`, it may be read from any thread."""
        return self._concurrency_max - self._slots.value

    @property
    def waiting(self) -> int:
        """How many operations wait, for a slot or for a place in their share."""
        return max(0, self._under_way - self.held)

    async def enter(self) -> Slot:
        """Waits for a slot. Raises `AtCapacityError` when the queue is full, or after the wait limit."""
        if (slot := self.try_enter()) is not None:
            return slot  # the ordinary case pays for no machinery
        if self._slots.value == 0 and self._slots.statistics().tasks_waiting - self._patient >= self._queue_max:
            raise AtCapacityError(
                f"{self._concurrency_max} operations are under way and {self._queue_max} wait; shed load or raise store.queue_max"
            )
        self._begin()
        try:
            with anyio.fail_after(self._queue_wait_s):
                await self._slots.acquire()
        except BaseException as error:
            self._end()
            if not isinstance(error, TimeoutError):
                raise
            raise AtCapacityError(
                f"no slot of {self._concurrency_max} came to it within {self._queue_wait_s:g} s; shed load or raise store.concurrency_max"
            ) from None
        return Slot(self._leave)

    async def enter_share(self, share: anyio.Semaphore) -> Slot:
        """Waits without a limit: first for a place in the share, then for a slot, in the same line as all others."""
        self._begin()
        try:
            await share.acquire()
            try:
                await self._acquire_patiently()
            except BaseException:
                share.release()
                raise
        except BaseException:
            self._end()
            raise

        def leave() -> None:
            self._leave()
            share.release()

        return Slot(leave)

    async def _acquire_patiently(self) -> None:
        self._patient += 1
        try:
            await self._slots.acquire()
        finally:
            self._patient -= 1

    def try_enter(self) -> Slot | None:
        """Returns a slot if one is free now, otherwise None."""
        try:
            self._slots.acquire_nowait()
        except anyio.WouldBlock:
            return None
        self._begin()
        return Slot(self._leave)

    async def wait_idle(self) -> None:
        """Waits until nothing is under way and nothing waits."""
        while self._under_way:
            await self._idle.wait()

    def _leave(self) -> None:
        self._slots.release()
        self._end()

    def _begin(self) -> None:
        if not self._under_way:
            self._idle = anyio.Event()
        self._under_way += 1

    def _end(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()


class Share:
    """A part of an admission for one bulk call, whose operations together hold at most `slots_max` slots."""

    def __init__(self, whole: Admission, slots_max: int) -> None:
        self._whole = whole
        self._slots = anyio.Semaphore(slots_max)

    async def enter(self) -> Slot:
        return await self._whole.enter_share(self._slots)


class Slot:
    """The right of one operation to run. Use it in a `with`, or `hand_over` and release it later."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave: Callable[[], None] | None = leave

    def release(self) -> None:
        """Gives the slot back. Safe to repeat."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()

    def hand_over(self) -> Slot:
        """Moves the right into a new `Slot`. Releasing the old one then does nothing."""
        leave, self._leave = self._leave, None
        assert leave is not None, "a slot is handed over once"
        return Slot(leave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
