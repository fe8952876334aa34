"""Bounds what is under way: so many operations at once, so many waiting, and none waiting for long.

An operation keeps its slot until its clean-up is done, also after its caller was answered: a store whose
clean-up falls behind sheds load instead of piling up changes.
"""

from __future__ import annotations

from typing import Self

import anyio

from tiered.errors import AtCapacityError


class Admission:
    def __init__(self, concurrency_max: int, queue_max: int, queue_wait_s: float) -> None:
        self._slots = anyio.Semaphore(concurrency_max, max_value=concurrency_max)
        self._concurrency_max = concurrency_max
        self._queue_max = queue_max
        self._queue_wait_s = queue_wait_s

    async def enter(self) -> Slot:
        """Waits for a slot. Raises `AtCapacityError` when the queue is full, or after the wait limit."""
        if self._slots.value == 0 and self._slots.statistics().tasks_waiting >= self._queue_max:
            raise AtCapacityError(
                f"{self._concurrency_max} operations are under way and {self._queue_max} wait; shed load or raise store.queue_max"
            )
        try:
            with anyio.fail_after(self._queue_wait_s):
                await self._slots.acquire()
        except TimeoutError:
            raise AtCapacityError(
                f"no operation of {self._concurrency_max} ended within {self._queue_wait_s:g} s; shed load or raise store.concurrency_max"
            ) from None
        return Slot(self._slots)


class Slot:
    """The right to be under way. `async with` or `with` it, or `hand_over` and release it later."""

    def __init__(self, slots: anyio.Semaphore) -> None:
        self._slots: anyio.Semaphore | None = slots

    def release(self) -> None:
        """Gives the slot back. Safe to repeat."""
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.release()

    def hand_over(self) -> Slot:
        """Moves the right to a new owner: releasing this one does nothing any more."""
        slots, self._slots = self._slots, None
        assert slots is not None, "a slot is handed over once"
        return Slot(slots)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
