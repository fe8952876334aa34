"""The demo's weather: at random moments a service stands still, loses its connections, or gets its requests late.

    freeze    it takes requests in and answers none; what timed out meanwhile may still land when it thaws
    stall     the same for half of the connections, while the others go on: what lands late lands after what was sent later
    cut       all connections to it break, and so do those that are made within a moment; whether what was sent arrived, nobody knows

A freeze and a stall outlive the deadline of every call. One trouble at a time, drawn from a shuffled deck of all
kinds, so none is rarer than another. Without services there is no weather.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from emulators.demo.stage import Service

LASTS_S = {"freezes": (1.4, 2.2), "stalls": (2.0, 3.0), "cuts": (0.0, 0.6)}
PAUSE_S = (0.3, 0.9)
FREEZES, STALLS, CUTS = KINDS = tuple(LASTS_S)


class Weather:
    """`happened`: how often each trouble did, as in `gcs_cuts`. `pass_by` must be called all the time."""

    def __init__(self, services: Sequence[Service], chance: Random) -> None:
        self.happened: Counter[str] = Counter({f"{service.name}_{kind}": 0 for service in services for kind in KINDS})
        self.still = False
        """Whether a service is frozen: whoever asks it now waits until it thaws."""
        self._services = services
        self._chance = chance
        self._deck: list[tuple[Service, str]] = []
        self._end: Callable[[], None] | None = None
        self._turns_at = 0.0
        self.clear()

    def pass_by(self) -> str | None:
        """Does what is due, if anything; returns a word on what begins."""
        if not self._services or time.monotonic() < self._turns_at:
            return None
        if self._end is not None:
            self.clear()
            return None
        if not self._deck:
            self._deck = [(each, kind) for each in self._services for kind in KINDS]
            self._chance.shuffle(self._deck)
        service, kind = self._deck.pop()
        begin, self._end = {
            FREEZES: (service.freeze, service.thaw), STALLS: (service.stall, service.release), CUTS: (service.cut, service.mend)
        }[kind]
        begin()
        self.still = kind == FREEZES
        self.happened[f"{service.name}_{kind}"] += 1
        self._turns_at = time.monotonic() + self._chance.uniform(*LASTS_S[kind])
        return f"{kind[:-1]} of {service.name}"

    def clear(self) -> None:
        """Ends what is under way; it is a while until the next."""
        end, self._end = self._end, None
        if end is not None:
            end()
        self.still = False
        self._turns_at = time.monotonic() + self._chance.uniform(*PAUSE_S)
