"""What a process knows of itself: its memory, and how its calls to the services went of late.

Other processes have figures of their own, and nobody here knows them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from changelog.base.runtime import Runtime

LATE_S = 300.0
"""Calls are counted over about so many seconds."""

Made = Mapping[str, tuple[int, int]]
"""By service, how many calls were made since the process began, and how many of them failed."""


def memory_bytes() -> int | None:
    """Returns how much memory this process has resident. None: this system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


class RecentCalls:
    """How many calls were made, and how many failed, within the last `LATE_S` seconds. `made` counts them so far."""

    def __init__(self, made: Callable[[], Made], runtime: Runtime) -> None:
        self._made = made
        self._runtime = runtime
        self._counts: deque[tuple[float, Made]] = deque()

    def take(self) -> None:
        """Counts now. Call it every few seconds."""
        now = self._runtime.monotonic()
        self._counts.append((now, self._made()))
        while len(self._counts) > 2 and self._counts[1][0] <= now - LATE_S:
            self._counts.popleft()

    @property
    def over_s(self) -> float | None:
        """Over how many seconds the calls are counted. None: nothing was counted twice yet."""
        return round(self._counts[-1][0] - self._counts[0][0], 1) if len(self._counts) > 1 else None

    def late(self, service: str) -> dict[str, int | None]:
        """Returns how many `calls` went to a service of late, and how many `failed`. None: not known."""
        if len(self._counts) < 2 or service not in self._counts[-1][1]:
            return {"calls": None, "failed": None}
        calls, failed = self._counts[-1][1][service]
        before, failed_before = self._counts[0][1].get(service, (0, 0))
        return {"calls": calls - before, "failed": failed - failed_before}
