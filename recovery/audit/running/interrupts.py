"""SIGINT and SIGTERM while an audit or a deletion works."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import anyio

EXIT_AT_ONCE = 130


async def heed_signals(stop: Callable[[], None]) -> None:
    """Calls `stop` at the first signal, and ends the process at the second. Only the main thread gets signals."""
    if threading.current_thread() is not threading.main_thread():
        return
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        was_told = False
        async for _ in signals:
            if was_told:
                os._exit(EXIT_AT_ONCE)
            was_told = True
            stop()
