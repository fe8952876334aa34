"""The search: every state that can be reached, breadth first. So a counterexample is a shortest one.

For the models that are in Python: of the feed (feed_model.py), and of the audit (readings.py, deleting.py). A model
says what is broken in a state (`verdict`). The search does not go beyond a violation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

STATES_MAX = 5_000_000


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

    `until`: stop at a violation of this kind. `states_max`: stop when so many states were seen.
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
                if until == kind:
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
