"""Waits until a server that others run has come to do something, which no event tells."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

PAUSE_S = 0.02
WAIT_MAX_S = 60.0
"""After that the test fails: what it waits for does not come."""


async def becomes(true: Callable[[], Awaitable[object]]) -> None:
    """Returns when `true()` returns something true."""
    with anyio.fail_after(WAIT_MAX_S):
        while True:
            if await true():
                return
            await anyio.sleep(PAUSE_S)
