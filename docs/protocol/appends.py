"""Appends to one open upload alone: several who append, each of whom may stand still at any moment; one who finishes.

    appender  reads the entry -> takes it: its token -> sends a part with the next number -> acknowledges it, if the
              token is still its own -> ... -> gives the token back
    finisher  reads the entry -> lists the parts -> claims it -> completes it with what was acknowledged
    stray     uploads part 1 in another way, once

A part that was sent arrives at any later time, or never; of a number, what arrived last counts. Built as
`tiered/protocol/appending.py`. How a claim goes on is in assembling.py; here it ends all appending.

    TWICE        an appender is told that its bytes are kept, and others are there
    OVERWRITTEN  an acknowledged part is another one, though nobody uploads parts in another way
    MIXED        the object is not what was acknowledged
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from docs.protocol.state import Guards

Part = tuple[int, str]
"""A number, and whose bytes it has."""


class Kept(NamedTuple):
    """What the entry keeps. `parts` stands for the size and the chain."""

    parts: tuple[Part, ...] = ()
    next: int = 1
    skipped: frozenset[int] = frozenset()
    token: str = ""
    claimed: bool = False


class Worker(NamedTuple):
    name: str
    kind: str                   # append | finish | stray
    pc: str = "start"           # start | take | put | wait | acknowledge | give back | list | claim | complete | end
    seen: Kept = Kept()         # what it read
    number: int = 0             # of the part that it sent
    offset: int = 0             # how many parts it found, or has appended to that
    listed: tuple[Part, ...] = ()


class Appended(NamedTuple):
    kept: Kept
    workers: tuple[Worker, ...]
    session: frozenset[Part] = frozenset()
    net: frozenset[Part] = frozenset()
    broken: str = ""


@dataclass(frozen=True, slots=True)
class AppendScenario:
    appenders: tuple[str, ...]
    stray: bool = False
    parts: int = 2              # how many the object has
    small: bool = True

    def first(self) -> Appended:
        workers = [Worker(name, "append") for name in self.appenders]
        stray = [Worker("S", "stray")] if self.stray else []
        return Appended(Kept(), (*workers, *stray, Worker("F", "finish")))


class Appends:
    """The appends as a `Checked` of search.py."""

    def __init__(self, scenario: AppendScenario, guards: Guards) -> None:
        self._scenario = scenario
        self._guards = guards

    def first(self) -> Appended:
        return self._scenario.first()

    def verdict(self, s: object, stuck: bool) -> str:
        assert isinstance(s, Appended)
        return s.broken

    def steps(self, s: object) -> Iterator[tuple[str, Appended]]:
        assert isinstance(s, Appended)
        for part in sorted(s.net):
            yield self._arrive(s, part)
        for k, w in enumerate(s.workers):
            if w.pc not in ("wait", "end"):
                yield {"append": self._append, "finish": self._finish, "stray": self._stray}[w.kind](s, k, w)

    def _arrive(self, s: Appended, part: Part) -> tuple[str, Appended]:
        number, whose = part
        others = frozenset(each for each in s.session if each[0] != number)
        t = s._replace(net=s.net - {part}, session=others | {part})
        if not self._scenario.stray and any(each[0] == number and each != part for each in s.kept.parts):
            t = t._replace(broken=f"OVERWRITTEN: part {number} was acknowledged, and has the bytes of {whose} now")
        for k, w in enumerate(s.workers):
            if w.pc == "wait" and (w.number, w.name) == part:
                t = _move(t, k, w._replace(pc="acknowledge"))
        return f"network: part {number} of {whose} arrives", t

    def _append(self, s: Appended, k: int, w: Worker) -> tuple[str, Appended]:
        match w.pc:
            case "start":
                ended = s.kept.claimed or len(s.kept.parts) >= self._scenario.parts
                return f"{w.name}: reads the entry", _move(s, k, w._replace(pc="end" if ended else "take", seen=s.kept))
            case "take":
                return self._take(s, k, w)
            case "put":
                sent = s._replace(net=s.net | {(w.number, w.name)})
                return f"{w.name}: sends part {w.number}", _move(sent, k, w._replace(pc="wait"))
            case "acknowledge":
                return self._acknowledge(s, k, w)
            case _:
                mine = s.kept._replace(token="") if s.kept.token == w.name else s.kept
                return f"{w.name}: gives its token back", _move(s._replace(kept=mine), k, w._replace(pc="end"))

    def _take(self, s: Appended, k: int, w: Worker) -> tuple[str, Appended]:
        if s.kept != w.seen:
            return f"{w.name}: takes it in vain", _move(s, k, w._replace(pc="start"))
        mine = s.kept._replace(token=w.name)
        if s.kept.token and self._guards.number_left_out:
            mine = mine._replace(next=mine.next + 1, skipped=mine.skipped | {mine.next})
        taken = w._replace(pc="put", number=mine.next, offset=len(mine.parts))
        return f"{w.name}: takes it from {s.kept.token or 'nobody'}", _move(s._replace(kept=mine), k, taken)

    def _acknowledge(self, s: Appended, k: int, w: Worker) -> tuple[str, Appended]:
        kept = s.kept
        if kept.claimed or (self._guards.token_in_acknowledgement and kept.token != w.name):
            return f"{w.name}: is told that others go on", _move(s, k, w._replace(pc="end"))
        more = kept._replace(parts=(*kept.parts, (w.number, w.name)), next=max(kept.next, w.number + 1))
        offset = w.offset + 1
        following = w._replace(pc="give back" if offset >= self._scenario.parts else "put", number=more.next, offset=offset)
        t = _move(s._replace(kept=more), k, following)
        if len(kept.parts) != w.offset:
            t = t._replace(broken=f"TWICE: {w.name} is told that bytes at {w.offset} are kept, and others are there")
        return f"{w.name}: acknowledges part {w.number}", t

    def _finish(self, s: Appended, k: int, w: Worker) -> tuple[str, Appended]:
        match w.pc:
            case "start":
                return f"{w.name}: reads the entry", _move(s, k, w._replace(pc="list" if s.kept.parts else "end", seen=s.kept))
            case "list":
                counted = tuple(sorted(part for part in s.session if part[0] < w.seen.next and part[0] not in w.seen.skipped))
                if self._guards.chain_in_completion and counted != w.seen.parts:
                    return f"{w.name}: is told that a part has changed", _move(s, k, w._replace(pc="end"))
                return f"{w.name}: lists the parts", _move(s, k, w._replace(pc="claim", listed=counted))
            case "claim":
                if s.kept != w.seen:
                    return f"{w.name}: claims it in vain", _move(s, k, w._replace(pc="start"))
                return f"{w.name}: claims it", _move(s._replace(kept=s.kept._replace(claimed=True)), k, w._replace(pc="complete"))
            case _:
                done = _move(s, k, w._replace(pc="end"))
                if not s.session.issuperset(w.listed):
                    return f"{w.name}: the service has other parts by now", done
                if w.listed != s.kept.parts:
                    done = done._replace(broken=f"MIXED: the object is {w.listed}, and {s.kept.parts} was acknowledged")
                return f"{w.name}: completes it", done

    def _stray(self, s: Appended, k: int, w: Worker) -> tuple[str, Appended]:
        return f"{w.name}: uploads part 1 in another way", _move(s._replace(net=s.net | {(1, w.name)}), k, w._replace(pc="end"))


def _move(s: Appended, k: int, w: Worker) -> Appended:
    return s._replace(workers=(*s.workers[:k], w, *s.workers[k + 1 :]))
