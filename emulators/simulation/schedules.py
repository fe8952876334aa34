"""`Scenario` and `Schedule`: what `bounded` explores, and the lines that stand for them.

    scenario   what the two writers do, what is there before, how to upload    put_large+delete on large in one request
    schedule   a scenario, the questions that are answered by a delay, and     : delays at 5, 11;
               the call that goes wrong                                        writer-1 CRASH_BEFORE rows.swap #1

*Failure*: `InvalidRequestError` for any other line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from changelog.base.errors import InvalidRequestError
from emulators.world.faults import CallFault, Mode, Plan, no_faults

ROUND = ("writer-1", "reader", "writer-2", "recoverer", "network")
"""The order of turns. What one writer did is read before the other does anything. The network carries what is late."""

OPERATIONS = ("put_large", "put_small", "delete")
BEFORE = ("absent", "small", "large")


@dataclass(frozen=True, slots=True)
class Scenario:
    """What the two writers do at once, and what they find. `sessions`: how large payloads are uploaded."""

    first: str
    second: str
    before: str
    sessions: bool = True

    def __str__(self) -> str:
        return f"{self.first}+{self.second} on {self.before}" + ("" if self.sessions else " in one request")


def scenarios() -> list[Scenario]:
    """Returns all scenarios. The kind of upload makes a difference to large puts only."""
    return [
        Scenario(first, second, before, sessions)
        for sessions in (True, False)
        for before in BEFORE
        for first in OPERATIONS
        for second in OPERATIONS
        if sessions or "put_large" in (first, second)
    ]


def scenario_named(text: str) -> Scenario:
    """Returns the scenario of this name. Raises `InvalidRequestError` if there is none."""
    for scenario in scenarios():
        if str(scenario) == text:
            return scenario
    raise InvalidRequestError(f"{text!r} is no scenario; name one such as 'put_large+delete on large in one request'")


@dataclass(frozen=True, slots=True)
class Wrong:
    """One call that goes wrong."""

    process: str
    point: str
    mode: Mode

    def __str__(self) -> str:
        return f"{self.process} {self.mode.name} {self.point}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """`delays`: the numbers of the questions that are answered by a delay, ascending.

    `wrong`: the call that goes wrong, or None.
    """

    scenario: Scenario
    delays: tuple[int, ...] = ()
    wrong: Wrong | None = None

    def __str__(self) -> str:
        delays = f"delays at {', '.join(map(str, self.delays))}" if self.delays else "no delays"
        return f"{self.scenario}: {delays}" + ("" if self.wrong is None else f"; {self.wrong}")

    def plan(self, process: str) -> Plan:
        if self.wrong is None or self.wrong.process != process:
            return no_faults
        return {self.wrong.point: CallFault(self.wrong.mode)}.get


_LINE = re.compile(r"(.+): (?:no delays|delays at (\d+(?:, \d+)*))(?:; (\S+) ([A-Z_]+) (\S+ #\d+))?")


def schedule_of(text: str) -> Schedule:
    """Returns the schedule that is printed like this. Raises `InvalidRequestError` if none is."""
    found = _LINE.fullmatch(text.strip())
    if found is None or (found[4] is not None and (found[3] not in ROUND or found[4] not in Mode.__members__)):
        raise InvalidRequestError(f"{text!r} is no schedule; give a line such as 'put_large+delete on large: delays at 5, 11'")
    delays = () if found[2] is None else tuple(map(int, found[2].split(", ")))
    return Schedule(scenario_named(found[1]), delays, None if found[4] is None else Wrong(found[3], found[5], Mode[found[4]]))
