"""A token bucket: so many per second on average, and at once at most what it holds.

    take             waits for its turn, such as an entry of recovery
    wait_s, spend    refuses whoever comes too early, such as a request of a usecase

One rule for both uses of `spend`, requests and bytes: whoever finds one token may begin, and spends what it needs. That
may be more than there is. The bucket is in *debt* then, and nobody begins until it has been filled again. So an
operation that is larger than the whole bucket can run, and small ones cannot keep it out for ever.
"""

from __future__ import annotations

from changelog.base.runtime import Runtime

_ROUNDING = 1e-6
"""So much of a token may be missing: who waits for exactly as long as it was told has waited long enough."""


class TokenBucket:
    """`rate_per_s`: tokens per second. `burst`: how many it holds at most, and at first; None: those of one second. It
    never holds less than one.
    """

    __slots__ = ("_burst", "_filled_at", "_rate_per_s", "_runtime", "_tokens")

    def __init__(self, runtime: Runtime, rate_per_s: float, burst: float | None = None) -> None:
        self._runtime = runtime
        self._rate_per_s = rate_per_s
        self._burst = max(1.0, rate_per_s if burst is None else burst)
        self._tokens = self._burst
        self._filled_at = runtime.monotonic()

    def _fill(self) -> None:
        now = self._runtime.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate_per_s)
        self._filled_at = now

    async def take(self) -> None:
        """Waits until the next start is allowed. Callers get their turns in the order of their calls."""
        self._fill()
        self._tokens -= 1
        if self._tokens < 0:
            await self._runtime.sleep(-self._tokens / self._rate_per_s)

    def wait_s(self) -> float:
        """In how many seconds there will be one token, if nobody spends any before. 0: there is one now."""
        self._fill()
        missing = 1 - self._tokens
        return missing / self._rate_per_s if missing > _ROUNDING else 0.0

    def spend(self, tokens: float) -> None:
        """Takes so many tokens, whether they are there or not."""
        self._fill()
        self._tokens -= tokens
