"""Claims and heartbeats alone: one entry, its owner, and recoveries that all want it.

    owner     holds (owner, attempt) -> renews, over and over -> forgets it
    recovery  reads the entry -> claims it: (itself, attempt + 1) -> renews -> forgets it, or releases it: (nobody, 0)

The model does not say when an entry is stale: anybody may claim at any moment. The model of the rows and blobs
(state.py) goes further and lets several recoveries work on one entry at once. I1 to I5 do not need what is checked
here. It is checked so that one entry has one worker.

    STOLEN    a claim succeeds though the entry has changed since it was read
    SHARED    a renewal is told "yours" though somebody else has claimed the entry since
    REVIVED   a renewal brings back an entry that was forgotten
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from docs.protocol.state import Guards

Value = tuple[str, int]
"""Owner and attempt: what the entry's compare-and-swaps compare."""


class Worker(NamedTuple):
    name: str
    owner: str                  # its instance, which may run several workers
    pc: str = "start"           # start | claim | held | end
    value: Value = ("", 0)      # what it read, or holds


class Claimed(NamedTuple):
    entry: Value | None
    holder: str                 # ghost: the worker that recorded or claimed it last
    workers: tuple[Worker, ...]
    broken: str = ""


@dataclass(frozen=True, slots=True)
class ClaimScenario:
    recoveries: tuple[str, ...]  # worker names; the instance is the first letter
    releases: bool = False
    small: bool = True

    def first(self) -> Claimed:
        workers = (Worker("W", "W", "held", ("W", 0)), *(Worker(name, name[0]) for name in self.recoveries))
        return Claimed(("W", 0), "W", workers)


class Claims:
    """The claims as a `Checked` of search.py."""

    def __init__(self, scenario: ClaimScenario, guards: Guards) -> None:
        self._scenario = scenario
        self._guards = guards

    def first(self) -> Claimed:
        return self._scenario.first()

    def verdict(self, s: object, stuck: bool) -> str:
        assert isinstance(s, Claimed)
        return s.broken

    def steps(self, s: object) -> Iterator[tuple[str, Claimed]]:
        assert isinstance(s, Claimed)
        for k, w in enumerate(s.workers):
            match w.pc:
                case "start" if s.entry is not None:
                    yield f"{w.name}: reads {s.entry}", _move(s, k, w._replace(pc="claim", value=s.entry))
                case "claim":
                    yield self._claim(s, k, w)
                case "held":
                    yield self._renew(s, k, w)
                    yield f"{w.name}: forgets it", _move(s._replace(entry=None), k, w._replace(pc="end"))
                    if self._scenario.releases and w.name != "W" and s.entry is not None:
                        left = ("", 0) if s.entry == w.value else s.entry
                        yield f"{w.name}: releases it", _move(s._replace(entry=left), k, w._replace(pc="end"))

    def _claim(self, s: Claimed, k: int, w: Worker) -> tuple[str, Claimed]:
        if s.entry is None or not self._same(s.entry, w.value):
            return f"{w.name}: claims it in vain", _move(s, k, w._replace(pc="end"))
        mine = (w.owner, s.entry[1] + 1)
        t = _move(s._replace(entry=mine, holder=w.name), k, w._replace(pc="held", value=mine))
        if s.entry != w.value:
            t = t._replace(broken=f"STOLEN: {w.name} claims {s.entry}, and what it had read was {w.value}")
        return f"{w.name}: claims it: {mine}", t

    def _renew(self, s: Claimed, k: int, w: Worker) -> tuple[str, Claimed]:
        if self._guards.heartbeat_if_same and (s.entry is None or not self._same(s.entry, w.value)):
            return f"{w.name}: renews it; told that it is not its own", _move(s, k, w._replace(pc="end"))
        t = s._replace(entry=w.value)
        if s.entry is None:
            t = t._replace(broken=f"REVIVED: {w.name} brings back an entry that was forgotten")
        elif s.holder != w.name:
            t = t._replace(broken=f"SHARED: {w.name} is told that it holds what {s.holder} has claimed")
        return f"{w.name}: renews it", t

    def _same(self, stored: Value, value: Value) -> bool:
        return stored == value if self._guards.attempt_in_claim else stored[0] == value[0]


def _move(s: Claimed, k: int, w: Worker) -> Claimed:
    return s._replace(workers=(*s.workers[:k], w, *s.workers[k + 1 :]))
