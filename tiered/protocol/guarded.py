"""The services as an operation of the store asks them: breaker and retries, put around each call once.

    reads      refused while the service is away, repeated while it fails. `UnavailableError`: nothing happened
    settling   made in any case, and repeated: what finds out or finishes what was sent. `UnconfirmedError`: unknown
    inline     refused while the rows are away; sent again only if it certainly had no effect
    breakers   for a call that is made once: to begin an upload, to finalise it, to swap

Each is the same tiers with the same methods, so a step of the protocol reads as the protocol. How a call is repeated is
`retry.py`; when it is refused, `breaker.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from changelog.base.errors import UnavailableError
from changelog.base.observe import Observer
from changelog.base.runtime import Runtime
from changelog.heartbeat import Heartbeat
from changelog.log import ChangeLog
from tiered.protocol.backends import Tiers
from tiered.protocol.breaker import Breaker, Breakers
from tiered.protocol.retry import retry, retry_read
from tiered.settings import Settings

T = TypeVar("T")
Around = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Makes the call that it is given, as often as it likes, and returns its result."""


def guarded(target: T, around: Around) -> T:
    """The target, each of whose asynchronous methods is called through `around`. All else is the target's own."""
    return cast(T, _Guarded(target, around))


class _Guarded:
    def __init__(self, target: Any, around: Around) -> None:
        self._target = target
        self._around = around

    def __getattr__(self, name: str) -> Any:
        target, around = self._target, self._around
        if not inspect.iscoroutinefunction(getattr(target, name)):
            return getattr(target, name)

        def call(*args: Any, **named: Any) -> Awaitable[Any]:
            return around(partial(getattr(target, name), *args, **named))  # asked for at each call: a test may replace it

        setattr(self, name, call)
        return call


class GuardedServices:
    """Built once for each store. `breakers`: one for each service. `log_reads`: the changelog, as in `reads`.

    `read_blob`: makes a call to a blob that is open, as `reads` makes one. `record`: `Heartbeat.record`, refused while
    the changelog is away, and repeated.
    """

    def __init__(
        self, tiers: Tiers, log: ChangeLog, heartbeat: Heartbeat, runtime: Runtime, settings: Settings, instance: str, observer: Observer
    ) -> None:
        self.breakers = breakers = Breakers(settings.store.away_after_s, runtime, instance, observer, local=tiers.local)
        budget_s = settings.store.answer_budget_s

        # These are no coroutines, and return one: each call of a service would pay for them.
        def read(service: Breaker, call: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
            return retry_read(partial(service.call, call), runtime, budget_s, observer)

        def settle(service: Breaker, call: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
            return retry(partial(service.note, call), runtime, budget_s, observer=observer)

        def send_inline(call: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
            return retry(
                partial(breakers.rows.call, call), runtime, budget_s, repeat=UnavailableError, observer=observer,
                call_s_max=tiers.inline_write_s_max,
            )

        def begin(call: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
            return retry(partial(breakers.changelog.call, call), runtime, budget_s, observer=observer)

        def around_both(around: Callable[[Breaker, Callable[[], Awaitable[Any]]], Awaitable[Any]]) -> Tiers:
            rows = guarded(tiers.high_volume, partial(around, breakers.rows))
            return replace(tiers, high_volume=rows, long_term=guarded(tiers.long_term, partial(around, breakers.blobs)))

        self.reads = around_both(read)
        self.read_blob: Around = partial(read, breakers.blobs)
        self.log_reads = guarded(log, partial(read, breakers.changelog))
        self.settling = around_both(settle)
        self.inline = guarded(tiers.high_volume, send_inline)
        self.record = guarded(heartbeat, begin).record

    @property
    def away(self) -> Mapping[str, float]:
        """The services that are away, and for how many seconds."""
        return self.breakers.away

    def close(self) -> None:
        self.breakers.close()
