"""How an operation of the store asks a service: each way is one method, with breaker and retries around the call.

    read     refused while the service is away, repeated while it fails. `UnavailableError`: nothing happened
    settle   made in any case, and repeated: what finds out or finishes what was sent. `UnconfirmedError`: unknown
    send     refused while the service is away; sent again only if it certainly had no effect
    repeat   refused while the service is away, and repeated: what may take effect more than once
    call, note    for a call that is made once: see `Breaker`

How a call is repeated is `retry.py`; when it is refused, `breaker.py`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import ParamSpec, TypeVar

from changelog.base.errors import UnavailableError
from changelog.base.observe import Observer
from changelog.base.runtime import Runtime
from tiered.services import breaker
from tiered.services.backends import Tiers
from tiered.services.breaker import CHANGELOG, HIGH_VOLUME, LONG_TERM, Breaker
from tiered.services.retry import retry, retry_read
from tiered.settings import StoreSettings

P = ParamSpec("P")
T = TypeVar("T")


class StoreService(Breaker):
    """One service of a store. `tiers`: those of the store."""

    def __init__(self, name: str, tiers: Tiers, store: StoreSettings, runtime: Runtime, instance: str, observer: Observer) -> None:
        super().__init__(name, math.inf if tiers.local else breaker.AWAY_AFTER_S, runtime, instance, observer)
        self._budget_s = store.answer_budget_s
        self._send_s_max = tiers.inline_write_s_max

    # These are no coroutines, and return one: each call of a service would pay for them.
    def read(self, ask: Callable[P, Awaitable[T]], *args: P.args, **named: P.kwargs) -> Awaitable[T]:
        return retry_read(partial(self.call, partial(ask, *args, **named)), self._runtime, self._budget_s, self._observer)

    def settle(self, ask: Callable[P, Awaitable[T]], *args: P.args, **named: P.kwargs) -> Awaitable[T]:
        return retry(partial(self.note, partial(ask, *args, **named)), self._runtime, self._budget_s, observer=self._observer)

    def send(self, ask: Callable[P, Awaitable[T]], *args: P.args, **named: P.kwargs) -> Awaitable[T]:
        return retry(
            partial(self.call, partial(ask, *args, **named)), self._runtime, self._budget_s, repeat=UnavailableError,
            observer=self._observer, call_s_max=self._send_s_max,
        )  # fmt: skip

    def repeat(self, ask: Callable[P, Awaitable[T]], *args: P.args, **named: P.kwargs) -> Awaitable[T]:
        return retry(partial(self.call, partial(ask, *args, **named)), self._runtime, self._budget_s, observer=self._observer)


class GuardedServices:
    """The services of one store. Built once for each store."""

    def __init__(self, tiers: Tiers, store: StoreSettings, runtime: Runtime, instance: str, observer: Observer) -> None:
        self.rows, self.blobs, self.changelog = self._all = tuple(
            StoreService(name, tiers, store, runtime, instance, observer) for name in (HIGH_VOLUME, LONG_TERM, CHANGELOG)
        )

    @property
    def away(self) -> Mapping[str, float]:
        """The services that are away, and for how many seconds."""
        return {each.name: away_s for each in self._all if (away_s := each.away_s) is not None}

    def close(self) -> None:
        for each in self._all:
            each.close()
