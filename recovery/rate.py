"""A token bucket. It allows a fixed number of starts per second, and at most one second's worth of them at once."""

from __future__ import annotations

from changelog.base.runtime import Runtime


class TokenBucket:
    def __init__(self, runtime: Runtime, rate_per_s: float) -> None:
        self._runtime = runtime
        self._rate_per_s = rate_per_s
        self._burst = max(1.0, rate_per_s)
        self._tokens = self._burst
        self._filled_at = runtime.monotonic()

    async def take(self) -> None:
        """Waits until the next start is allowed. Callers get their turns in the order of their calls."""
        now = self._runtime.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate_per_s)
        self._filled_at = now
        self._tokens -= 1
        if self._tokens < 0:
            await self._runtime.sleep(-self._tokens / self._rate_per_s)
