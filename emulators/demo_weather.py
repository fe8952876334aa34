"""The demo's weather: at random moments a service stands still, loses its connections, or gets its requests late.

    freeze    it takes requests in and answers none; what timed out meanwhile may still land when it thaws
    stall     the same for every second connection, while the others go on: what lands late lands after what was sent later
    cut       all connections to it break, and so do those that are made within a moment; whether what was sent arrived, nobody knows

A freeze and a stall outlive the deadline of every call. One trouble at a time, drawn from a shuffled deck of all
kinds, so none is rarer than another. Without services there is no weather.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from random import Random

from emulators.demo_stage import Service

FREEZE_S = (1.6, 2.4)
STALL_S = (1.6, 2.4)
CUT_S = (0.0, 0.6)
PAUSE_S = (0.4, 1.2)

FREEZES, STALLS, CUTS = KINDS = ("freezes", "stalls", "cuts")


class Weather:
    """`happened`: how often each trouble did, as in `gcs_cuts`. `pass_by` must be called all the time."""

    def __init__(self, services: Sequence[Service], chance: Random) -> None:
        self.happened: Counter[str] = Counter({f"{service.name}_{kind}": 0 for service in services for kind in KINDS})
        self._services = services
        self._chance = chance
        self._deck: list[tuple[Service, str]] = []
        self._frozen: Service | None = None
        self._turns_at = time.monotonic() + chance.uniform(*PAUSE_S)

    @property
    def still(self) -> bool:
        """Whether a service is frozen: whoever asks it now waits until it thaws."""
        return self._frozen is not None

    def pass_by(self) -> str | None:
        """Does what is due, if anything; returns a word on it."""
        if not self._services or time.monotonic() < self._turns_at:
            return None
        if self._frozen is not None:
            return self.clear()
        if not self._deck:
            self._deck = [(each, kind) for each in self._services for kind in KINDS]
            self._chance.shuffle(self._deck)
        service, kind = self._deck.pop()
        self.happened[f"{service.name}_{kind}"] += 1
        match kind:
            case "freezes":
                service.freeze()
                self._frozen, lasts_s = service, self._chance.uniform(*FREEZE_S)
            case "stalls":
                lasts_s = self._chance.uniform(*STALL_S)
                service.stall(lasts_s)
            case _:
                lasts_s = self._chance.uniform(*CUT_S)
                service.cut(lasts_s)
        pause_s = 0.0 if self._frozen else self._chance.uniform(*PAUSE_S)
        self._turns_at = time.monotonic() + lasts_s + pause_s
        return f"{kind[:-1]} of {service.name}"

    def clear(self) -> str | None:
        """Thaws what is frozen."""
        thawed, self._frozen = self._frozen, None
        self._turns_at = time.monotonic() + self._chance.uniform(*PAUSE_S)
        if thawed is None:
            return None
        thawed.thaw()
        return f"thawed {thawed.name}"
