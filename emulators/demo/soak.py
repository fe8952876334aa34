"""The soak of a demo: processes that nobody kills must not grow, and the status must be true all along.

    a writer, a daemon     they are spared, while the others are killed around them and the services fail for all. The
                           daemon is the real command, with its HTTP server, which is asked each second
    `tiered status`        the real command with `--watch`, beside them
    Soak                   each second: memory, descriptors and threads of these three
    StatusCheck            each second: does the status fit what is stored? (`emulators.demo.status_check`)

A process *grows* if it has clearly more of something in the last quarter of the run than in the second quarter. What
it needs to warm up lies in the first one. Medians are compared, because a fault of a service makes a peak.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from emulators.demo.staging.stage import DemoStage
from emulators.demo.staging.troupe import DemoProcess
from emulators.demo.status_check import StatusCheck

STATUS = "s0"
SAMPLES_MIN = 40
"""A process that was looked at less often is not judged: half a minute says nothing about growth."""

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a process has at a moment. `memory`: its resident set in MiB. `descriptors`: its open files and sockets."""

    memory: float
    descriptors: int
    threads: int


LIMITS: Mapping[str, Callable[[float], float]] = {
    "memory": lambda early: early * 1.1 + 8,
    "descriptors": lambda early: early + 8,
    "threads": lambda early: early + 4,
}
"""How much a process may have late in a run, by what it had early. A run of hours finds what leaks slowly."""


def footprint(pid: int) -> Footprint | None:
    """Returns what a process has now. None: it has ended, or this machine has no /proc."""
    process = Path(f"/proc/{pid}")
    try:
        resident = int((process / "statm").read_text().split()[1])
        return Footprint(resident * _PAGE / 2**20, len(os.listdir(process / "fd")), len(os.listdir(process / "task")))
    except (OSError, IndexError):
        return None


def early_and_late(samples: Sequence[Footprint], what: str) -> tuple[float, float]:
    """Returns the medians of the second and of the last quarter of the samples."""
    quarter = len(samples) // 4
    each = [getattr(sample, what) for sample in samples]
    return median(each[quarter : 2 * quarter]), median(each[-quarter:])


def growth(samples: Sequence[Footprint]) -> list[str]:
    """Returns a phrase for each thing of which a process has too much late in the run."""
    if len(samples) < SAMPLES_MIN:
        return []
    compared = {what: early_and_late(samples, what) for what in LIMITS}
    return [f"its {what} grew from {early:.0f} to {late:.0f}" for what, (early, late) in compared.items() if late > LIMITS[what](early)]


class Soak:
    """`writer`, `daemon`: the parts that are spared. Call `start`, then `sample` each second, `clear`, and `end`."""

    def __init__(self, stage: DemoStage, writer: str, daemon: str) -> None:
        self.spared = frozenset({writer, daemon, STATUS})
        self.status = StatusCheck(stage, daemon)
        self._stage = stage
        self._daemon = daemon
        self._samples: dict[str, list[Footprint]] = {}
        self._sample_at = 0.0

    def command(self, part: str) -> list[str] | None:
        """Returns the command that starts this part. None: it is an ordinary one."""
        arguments = {STATUS: ["--json", "status", "--watch", "1"], self._daemon: ["recover", "--http-port", "0"]}.get(part)
        if arguments is None:
            return None
        return [sys.executable, "-m", "emulators.demo.players.product", str(os.getpid()), "--config", str(self._stage.config), *arguments]

    def start(self) -> None:
        self.status.start()

    def sample(self, actors: Mapping[str, DemoProcess]) -> None:
        if time.monotonic() < self._sample_at:
            return
        self._sample_at = time.monotonic() + 1
        for part in self.spared & actors.keys():
            if (found := footprint(actors[part].running.pid)) is not None:
                self._samples.setdefault(actors[part].name, []).append(found)

    def clear(self) -> bool:
        """Takes back what was planted. Returns whether nothing is left of it. Call it until it does."""
        return self.status.clear()

    def end(self) -> dict[str, Any]:
        """Ends the comparison with a last look, and returns what was found. All processes have ended by now."""
        self.status.end()
        processes = {}
        for name, samples in sorted(self._samples.items()):
            if len(samples) >= SAMPLES_MIN:
                processes[name] = {what: [round(each, 1) for each in early_and_late(samples, what)] for what in LIMITS}
        grew = [f"growth: {name}: {phrase}" for name, samples in sorted(self._samples.items()) for phrase in growth(samples)]
        return {
            "flaws": {"untrue": self.status.untrue_count, "growth": len(grew)}, "details": self.status.details + grew,
            "shown": {
                "looks": self.status.looks, "stuck_looks": self.status.stuck_looks, "asked": self.status.asked, "processes": processes,
            },
        }
