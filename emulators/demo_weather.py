"""The demo's weather: at random moments a service stands still for longer than a call's deadline, or loses all its connections.

    freeze    it takes requests in and answers none; what timed out meanwhile may still land when it thaws
    cut       all connections to it break, and so do those that are made within a moment; whether what was sent arrived, nobody knows

One trouble at a time, drawn from a shuffled deck of all kinds, so none is rarer than another. Without services
there is no weather.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from random import Random

from emulators.demo_stage import Service

FREEZE_S = (1.6, 2.4)
CUT_S = (0.0, 0.6)
PAUSE_S = (0.6, 1.6)

FREEZES, CUTS = "freezes", "cuts"


class Weather:
    """`happened`: how often each trouble did, as in `gcs_cuts`. `pass_by` must be called all the time."""

    def __init__(self, services: Sequence[Service], chance: Random) -> None:
        self.happened: Counter[str] = Counter({f"{service.name}_{what}": 0 for service in services for what in (FREEZES, CUTS)})
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
            self._deck = [(each, what) for each in self._services for what in (FREEZES, CUTS)]
            self._chance.shuffle(self._deck)
        service, what = self._deck.pop()
        self.happened[f"{service.name}_{what}"] += 1
        if what == FREEZES:
            service.freeze()
            self._frozen = service
            self._turns_at = time.monotonic() + self._chance.uniform(*FREEZE_S)
            return f"froze {service.name}"
        cut_s = self._chance.uniform(*CUT_S)
        service.cut(cut_s)
        self._turns_at = time.monotonic() + cut_s + self._chance.uniform(*PAUSE_S)
        return f"cut {service.name}"

    def clear(self) -> str | None:
        """Thaws what is frozen."""
        thawed, self._frozen = self._frozen, None
        self._turns_at = time.monotonic() + self._chance.uniform(*PAUSE_S)
        if thawed is None:
            return None
        thawed.thaw()
        return f"thawed {thawed.name}"
