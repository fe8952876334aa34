"""An event loop of asyncio whose clock a test puts forward: limits of time are reached at once, and never by chance."""

from __future__ import annotations

import asyncio

import anyio


class LoopClock:
    """Each limit of the loop that runs is reached `ahead_s` seconds earlier. The loop is the test's own."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        real = loop.time
        self.ahead_s = 0.0
        loop.time = lambda: real() + self.ahead_s  # type: ignore[method-assign]

    async def pass_by(self, seconds: float) -> None:
        """Lets so many seconds pass as soon as nothing else is to be done."""
        await anyio.wait_all_tasks_blocked()
        self.ahead_s += seconds
