"""A clock that a test can put forward."""

from __future__ import annotations

from changelog.base.runtime import SystemRuntime


class ShiftedRuntime(SystemRuntime):
    """The machine's, but for a wall clock that is `ahead_ns` ahead."""

    ahead_ns = 0

    def wall_ns(self) -> int:
        return super().wall_ns() + self.ahead_ns
