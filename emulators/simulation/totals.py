"""`Totals`: the results of the seeds that were run. Those of several processes can be added up."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from emulators.simulation.coverage import Coverage


@dataclass(slots=True)
class Totals:
    """`cpu_s`: seconds of CPU, over all processes. `slowest`: (seconds of CPU, seed). `violations`: (seed, what)."""

    worlds: int = 0
    cpu_s: float = 0.0
    simulated_s: float = 0.0
    calls: int = 0
    slowest: tuple[float, int] = (0.0, 0)
    violations: list[tuple[int, str]] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)

    def add(self, other: Totals) -> None:
        self.worlds += other.worlds
        self.cpu_s += other.cpu_s
        self.simulated_s += other.simulated_s
        self.calls += other.calls
        self.slowest = max(self.slowest, other.slowest)
        self.violations = sorted(self.violations + other.violations)
        self.coverage.add(other.coverage)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {"coverage": self.coverage.sections}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Totals:
        violations = [(seed, what) for seed, what in found["violations"]]
        coverage = Coverage.from_json(json.dumps(found["coverage"]))
        return cls(**found | {"slowest": tuple(found["slowest"]), "violations": violations, "coverage": coverage})
