"""The faults of the demo's services. At random moments a service answers nothing, loses its connections, or is late.

    freeze    the service accepts requests and answers none. A request that timed out meanwhile may still take effect
              when the freeze ends
    stall     the same for half of the connections, while the others go on. So a request may take effect after another
              one that was sent later
    cut       all its connections break, and new ones break for a moment. Nobody knows whether a request arrived
    crash     it ends without a warning, and is started again: it must still have what it has answered. Not of a service
              that keeps all in memory

A freeze and a stall last longer than the time limit of every call. There is one fault at a time. The kinds are drawn
from a shuffled list of all of them, so that all happen equally often. An embedded store has no services and no such
faults.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from emulators.demo.staging.stage import Service

LASTS_S = {"freezes": (1.4, 2.2), "stalls": (2.0, 3.0), "cuts": (0.0, 0.6), "crashes": (0.0, 0.6)}
PAUSE_S = (0.3, 0.9)
FREEZES, STALLS, CUTS, CRASHES = KINDS = tuple(LASTS_S)
_ONE = {FREEZES: "freeze", STALLS: "stall", CUTS: "cut", CRASHES: "crash"}


def kinds_of(service: Service) -> tuple[str, ...]:
    """The kinds of fault that this service may have."""
    return KINDS if service.crash is not None else KINDS[:3]


class DemoWeather:
    """Makes faults begin and end. Call `pass_by` all the time. `happened` counts each kind, such as `gcs_cuts`."""

    def __init__(self, services: Sequence[Service], chance: Random) -> None:
        self.happened: Counter[str] = Counter({f"{service.name}_{kind}": 0 for service in services for kind in kinds_of(service)})
        self.still = False
        """Whether a service is frozen or gone: a call to it would wait until that ends, or would fail."""
        self._services = services
        self._chance = chance
        self._deck: list[tuple[Service, str]] = []
        self._end: Callable[[], None] | None = None
        self._turns_at = 0.0
        self.clear()

    def pass_by(self) -> str | None:
        """Begins or ends a fault if it is time. Returns a few words if one begins, else None."""
        if not self._services or time.monotonic() < self._turns_at:
            return None
        if self._end is not None:
            self.clear()
            return None
        if not self._deck:
            self._deck = [(each, kind) for each in self._services for kind in kinds_of(each)]
            self._chance.shuffle(self._deck)
        service, kind = self._deck.pop()
        begin, self._end = {
            FREEZES: (service.freeze, service.thaw), STALLS: (service.stall, service.release), CUTS: (service.cut, service.mend),
            CRASHES: (service.crash, service.restart),
        }[kind]
        assert begin is not None, "a service has the kinds that it can have"
        begin()
        self.still = kind in (FREEZES, CRASHES)
        self.happened[f"{service.name}_{kind}"] += 1
        self._turns_at = time.monotonic() + self._chance.uniform(*LASTS_S[kind])
        return f"{_ONE[kind]} of {service.name}"

    def clear(self) -> None:
        """Ends the present fault, if there is one, and chooses when the next begins."""
        end, self._end = self._end, None
        if end is not None:
            end()
        self.still = False
        self._turns_at = time.monotonic() + self._chance.uniform(*PAUSE_S)
