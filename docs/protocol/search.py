"""The search: every state that can be reached, breadth first. So a counterexample is a shortest one.

The verdict on a state is DANGLING, LEAK, STUCK, or what a step has found broken on the way. The search does not go
beyond a violation. There are two reductions, both only where they can hide nothing:

    a request that could only conflict is dropped    its sender, if it waits, may time out, which leads to the same
    nobody crashes in a step of its own              LEAK is checked in every state, as if all processes had died there
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from docs.protocol.assembling import complete, hear_completer
from docs.protocol.others import ask, audit, read, recover, touch
from docs.protocol.services import Step, marked, network, time
from docs.protocol.state import Guards, Request, Scenario, State, expired
from docs.protocol.writer import WRITERS, hear, writer

STATES_MAX = 5_000_000
ANY = "any"

OTHERS = {"complete": complete, "recover": recover, "read": read, "touch": touch, "ask": ask, "audit": audit}


class Link(NamedTuple):
    label: str
    before: object


class Checked(Protocol):
    """What can be searched: a world with states of its own kind."""

    def first(self) -> object: ...

    def steps(self, state: object) -> Iterable[tuple[str, object]]: ...

    def verdict(self, state: object, stuck: bool) -> str: ...


@dataclass(slots=True)
class Result:
    """The result of a search. `complete`: every state was searched.

    `found`: each kind of violation with its shortest counterexample. Its last line says what is broken.
    """

    states: int = 0
    found: dict[str, list[str]] = field(default_factory=dict)
    complete: bool = True

    def __str__(self) -> str:
        return ", ".join(self.found) or ("holds" if self.complete else "not finished")


def check(world: Checked, *, until: str | None = None, states_max: int = STATES_MAX) -> Result:
    """Searches every state, or stops early.

    `until`: stop at a violation of this kind (`ANY`: of any kind). `states_max`: stop when so many states were seen.
    """
    result, first = Result(), world.first()
    links: dict[object, Link | None] = {first: None}
    level = [first]
    while level:
        following: list[object] = []
        for state in level:
            steps = list(world.steps(state))
            if bad := world.verdict(state, stuck=not steps):
                if (kind := bad.partition(":")[0]) not in result.found:
                    result.found[kind] = [*_path(links, state), bad]
                if until in (kind, ANY):
                    result.states = len(links)
                    return result
                continue
            for label, after in steps:
                if after not in links:
                    links[after] = Link(label, state)
                    following.append(after)
        if len(links) > states_max:
            result.complete = False
            break
        level = following
    result.states = len(links)
    return result


def _path(links: dict[object, Link | None], state: object) -> list[str]:
    labels: list[str] = []
    while (link := links[state]) is not None:
        labels.append(link.label)
        state = link.before
    return labels[::-1]


def _hear(g: Guards, s: State, k: int, ok: bool) -> State:
    return hear_completer(s, k, ok) if s.procs[k].kind == "complete" else hear(g, s, k, ok)


class World:
    """A scenario under a protocol."""

    def __init__(self, scenario: Scenario, guards: Guards) -> None:
        self._scenario = scenario
        self._guards = guards
        self._drops = guards.refused_in_swap and guards.won_in_swap

    def first(self) -> State:
        return self._scenario.first()

    def steps(self, s: object) -> Iterator[Step]:
        assert isinstance(s, State)
        for label, after in self._steps(s):
            yield label, self._without_dead_requests(after) if self._drops and after.net else after

    def verdict(self, s: object, stuck: bool) -> str:
        assert isinstance(s, State)
        if s.broken:
            return s.broken
        if s.target and all(name != s.target for name, _ in s.blobs) and not (s.target in s.lapsed and expired(s.until, s.now)):
            return f"DANGLING: the row names {s.target}, which does not exist"
        if not s.entries and all(p.pc in ("start", "end") for p in s.procs if p.kind in ("recover", "audit")):
            # An expired blob is the lifecycle's. So is, in the end, a blob that was touched just before its row
            # expired.
            left = sorted(name for name, until in s.blobs if name != s.target and until != 2 and not expired(until, s.now))
            if left:
                return f"LEAK: nothing is left that would delete {', '.join(left)}"
        if stuck and s.entries and self._scenario.drains:
            return f"STUCK: {len(s.entries)} entries stay for ever"
        return ""

    def _steps(self, s: State) -> Iterator[Step]:
        g, scenario = self._guards, self._scenario
        yield from network(s, g, scenario, partial(_hear, g))
        yield from time(s, scenario)
        for k, p in enumerate(s.procs):
            if p.pc == "end":
                continue
            if p.kind in WRITERS:
                yield from writer(s, k, p, g, scenario)
            else:
                yield from OTHERS[p.kind](s, k, p, g)

    def _without_dead_requests(self, s: State) -> State:
        net = tuple(r for r in s.net if not self._is_dead(s, r))
        return s if len(net) == len(s.net) else s._replace(net=net)

    def _is_dead(self, s: State, r: Request) -> bool:
        if r.kind == "record":
            return False
        if r.kind == "upload":
            return r.writes == "session" and r.token not in s.sessions
        return marked(s, self._guards, r.token)
