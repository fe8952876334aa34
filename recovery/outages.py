"""Which services do not answer recovery: says so once when one stops, and once when it answers again.

    AskedServices  a clean-up's view of the services: which of them an error came from
    suspect        an entry could not be cleaned up; it may be this entry alone
    confirm        nothing was cleaned up since: the service is what fails       -> service_unreachable, once
    answered       it did its work again                                         -> service_healthy_again, once
    hear           a server beside the loop asked a service, and it answered or not

`tiered_service_away` shows what is out by any of these, but for what answers and refuses. One bad entry is no outage:
while others are cleaned up, a suspicion is dropped. A service that answers and refuses, because a permission was taken
away, is out, too; only work that succeeds ends that, and no `probe` does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, cast
from weakref import WeakKeyDictionary

import anyio

from changelog.base.errors import TieredError
from changelog.base.events import events
from changelog.base.observe import SILENT, Observer
from changelog.base.runtime import Runtime
from changelog.log import ChangeLog
from tiered.services.backends import HighVolumeBackend, LongTermBackend, Tiers
from tiered.services.breaker import CHANGELOG, HIGH_VOLUME, LONG_TERM
from tiered.settings import RecoverySettings

TIERS = (HIGH_VOLUME, LONG_TERM)
FULL_PASS_EVERY_S, ATTEMPT_BUDGET_S = 600.0, 60.0
"""How often a recovery looks at all that is recorded; how long it works on one entry, and waits for the log: longer
than services that answer take, with their retries."""

PATIENCE_S = 30.0
"""A suspicion that is older than this is confirmed, also in the middle of a pass."""


class _Asked:
    """A backend, each of whose asynchronous methods is called through `note`. All else is the backend's own."""

    def __init__(self, backend: Any, service: str, note: Callable[..., Awaitable[Any]]) -> None:
        self._backend = backend
        self._service = service
        self._note = note

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._backend, name)
        return partial(self._note, self._service, method) if iscoroutinefunction(method) else method


class AskedServices:
    """The services, as one clean-up asks them: it tells which of them failed, whoever else asks them meanwhile."""

    def __init__(self, tiers: Tiers, log: ChangeLog) -> None:
        rows, blobs = _Asked(tiers.high_volume, HIGH_VOLUME, self._note), _Asked(tiers.long_term, LONG_TERM, self._note)
        self.tiers = Tiers(cast(HighVolumeBackend, rows), cast(LongTermBackend, blobs))
        self.log = cast(ChangeLog, _Asked(log, CHANGELOG, self._note))
        self._services: WeakKeyDictionary[TieredError, str] = WeakKeyDictionary()
        self._given_up = CHANGELOG

    def service_of(self, error: TieredError) -> str:
        """The service that raised the error. If none did, nobody waits for an answer any more: the one that owes it."""
        return self._services.get(error, self._given_up)

    async def _note(self, service: str, call: Callable[..., Awaitable[Any]], *args: Any, **named: Any) -> Any:
        self._given_up = CHANGELOG
        try:
            return await call(*args, **named)
        except TieredError as error:
            self._services[error] = service
            raise
        except anyio.get_cancelled_exc_class():
            self._given_up = service
            raise


@dataclass(frozen=True, slots=True)
class Outage:
    """`since` and `met_at`: the first and the last failure, by the runtime's monotonic clock, in seconds.

    `error`: of the last one.
    """

    since: float
    error: Exception
    met_at: float

    @property
    def is_refusal(self) -> bool:
        return is_refusal(self.error)


def is_refusal(error: Exception) -> bool:
    """Whether a service that answers refuses, and will until somebody changes something."""
    return isinstance(error, TieredError) and error.refused


def lately_s(recovery: RecoverySettings) -> float:
    """After how many seconds without a pass a loop is not at work. What it met longer ago may be over."""
    return ATTEMPT_BUDGET_S + 3 * (recovery.pause_max_s + recovery.idle_s + recovery.concurrency_max / recovery.rate_per_s)


class Outages:
    """The outages that one recovery loop knows of. `present`: by service.

    `over`: by service, when the last one that is over began and ended, by the runtime's monotonic clock, in seconds.
    """

    def __init__(self, runtime: Runtime, instance: str, observer: Observer = SILENT) -> None:
        self.present: dict[str, Outage] = {}
        self.over: dict[str, tuple[float, float]] = {}
        self._silent: set[str] = set()
        self._shown: set[str] = set()
        self._observer = observer
        self._suspected: dict[str, Outage] = {}
        self._runtime = runtime
        self._instance = instance

    def suspect(self, service: str, error: Exception) -> None:
        """Something failed at this service. Long suspicions become outages at once, others at `confirm`."""
        now = self._runtime.monotonic()
        if (known := self.present.get(service)) is not None:
            self.present[service] = Outage(known.since, error, now)
            self._show()
            return
        known = self._suspected.get(service)
        self._suspected[service] = Outage(now if known is None else known.since, error, now)
        if known is not None and now - known.since > PATIENCE_S:
            self.confirm()

    def confirm(self) -> None:
        """A pass is over, and nothing has dropped these suspicions: the services are out."""
        suspected, self._suspected = self._suspected, {}
        for service, outage in suspected.items():
            self.present[service] = outage
            events.warning("service_unreachable", outage.error, service=service, instance=self._instance)
        self._show()

    def answered(self, *services: str) -> None:
        """These services did their work: whatever was said or suspected of them is over."""
        for service in services:
            self._suspected.pop(service, None)
            if (outage := self.present.pop(service, None)) is not None:
                self.over[service] = outage.since, self._runtime.monotonic()
                outage_s = round(self.over[service][1] - outage.since, 3)
                events.info("service_healthy_again", service=service, instance=self._instance, outage_s=outage_s)
        self._show()

    def hear(self, service: str, *, answers: bool) -> None:
        """Somebody else of this process asked the service."""
        (self._silent.discard if answers else self._silent.add)(service)
        self._show()

    def close(self) -> None:
        """Nobody works any more: the metrics show nothing of this loop."""
        self.present.clear()
        self._silent.clear()
        self._show()

    def lately(self, within_s: float) -> Mapping[str, Outage]:
        """Returns those that were met within so many seconds."""
        oldest = self._runtime.monotonic() - within_s
        return {service: outage for service, outage in self.present.items() if outage.met_at >= oldest}

    def _show(self) -> None:
        away = self._silent | {service for service, outage in self.present.items() if not outage.is_refusal}
        for service in away ^ self._shown:
            self._observer.away(service, 1 if service in away else -1)
        self._shown = away

    def to_probe(self) -> list[str]:
        """The tiers that did not answer, and of which one call that succeeds proves that they do again."""
        return [service for service in TIERS if service in self.present and not self.present[service].is_refusal]
