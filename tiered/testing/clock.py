"""The clock of a storage in memory, which a test can put forward, so that objects expire."""

from __future__ import annotations

from datetime import timedelta

from changelog.base.errors import InvalidRequestError
from changelog.base.runtime import SystemRuntime
from tiered.metadata import NS_PER_S
from tiered.text import quoted


class Clock(SystemRuntime):
    """The machine's clocks, and so much later as a test has put the time of day forward."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_ns = 0

    def wall_ns(self) -> int:
        return super().wall_ns() + self.ahead_ns

    def advance(self, by: timedelta) -> None:
        """Puts the time of day forward. Nobody waits. `InvalidRequestError`: it would go back."""
        if not isinstance(by, timedelta) or by < timedelta(0):
            raise InvalidRequestError(f"the clock is put forward by a timedelta that is not negative, not by {quoted(by)}")
        self.ahead_ns += round(by.total_seconds() * NS_PER_S)
