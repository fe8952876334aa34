"""The clock of golden stores: it stands still at a time that lies behind every later commit; ids and chance repeat."""

from __future__ import annotations

from random import Random

from changelog.base.runtime import SystemRuntime
from tiered.metadata import NS_PER_S

MADE_S = 1_767_225_600
"""When golden stores were made, by their clock: on the first of January 2026. A store refuses a clock behind it."""

HOUR_S = 3600


class GoldenRuntime(SystemRuntime):
    """`after_s`: how long after the store was made. `moves`: whether the time of day goes on from there."""

    def __init__(self, after_s: int = 0, *, moves: bool = False, seed: int = 1) -> None:
        super().__init__()
        self.random = Random(seed)
        self._since_s = self.boot_time() if moves else None
        self._now_ns = (MADE_S + after_s) * NS_PER_S

    def wall_ns(self) -> int:
        return self._now_ns if self._since_s is None else self._now_ns + round((self.boot_time() - self._since_s) * NS_PER_S)

    def put_forward(self, seconds: int) -> None:
        self._now_ns += seconds * NS_PER_S
