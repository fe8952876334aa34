"""Every state that a source may be in, and how well each is: the one table that command, page, JSON and metrics show.

A state is one row. Its word is what JSON, metrics and alerts call it. Its level is how well it is: exit codes, colours
and the answer follow from that. Its sentence is what the answer says of it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How well something is. Of several levels the last one of this list decides."""

    OK = "ok"
    UNKNOWN = "unknown"
    BEHIND = "behind"
    STUCK = "stuck"
    LOST = "lost"


CODES: Mapping[Level, int] = {Level.OK: 0, Level.UNKNOWN: 4, Level.BEHIND: 1, Level.STUCK: 6, Level.LOST: 6}
"""The exit code of `tiered status` and of `tiered feed status` at each level."""

COLOURS: Mapping[Level, str] = {
    Level.OK: "bold green", Level.UNKNOWN: "bold", Level.BEHIND: "bold yellow", Level.STUCK: "bold red", Level.LOST: "bold red",
}  # fmt: skip
"""How a terminal shows each level."""


@dataclass(frozen=True, slots=True)
class State:
    """A state that a source may be in. `says`: what the answer says then; empty: nothing."""

    word: str
    level: Level
    says: str = ""


PACES = HEALTHY, CATCHING_UP, FALLING_BEHIND, STALLED, UNKNOWN = (
    State("healthy", Level.OK, "Recovery keeps up."),
    State("catching up", Level.OK, "Recovery is catching up."),
    State("falling behind", Level.BEHIND, "Recovery falls behind: entries come in at least as fast as it deals with them."),
    State("stalled", Level.BEHIND, "Recovery stands still: entries wait, and it deals with none."),
    State("unknown", Level.UNKNOWN, "It is not known whether recovery keeps up."),
)
"""Whether a source keeps up, by two samples of its figures."""

KEEPS_UP = (HEALTHY, CATCHING_UP)

FEED_STATES = (
    FEED_LIVE, FEED_FIRST_PASS, FEED_BEHIND, FEED_STALLED, FEED_ENDED, FEED_NO_WRITER, FEED_OFF, FEED_UNKNOWN,
) = (
    State("live", Level.OK),
    State("first pass", Level.OK),
    State("behind", Level.BEHIND, "The change feed is behind."),
    State("stalled", Level.BEHIND, "The change feed stands still."),
    State("ended", Level.OK, "The writer of the change feed has ended, and no other one works now."),
    State("no writer yet", Level.BEHIND, "Nobody takes up what the change feed must publish."),
    State("off", Level.OK),
    State("unknown", Level.UNKNOWN, "It is not known whether the change feed keeps up."),
)  # fmt: skip
"""How the change feed is, by its checkpoint, its sinks and the signs of life of its writer."""

AUDIT_STATES = AUDIT_CLEAN, AUDIT_FINDINGS, AUDIT_LOSS, AUDIT_INCOMPLETE = (
    State("clean", Level.OK),
    State("findings", Level.BEHIND),
    State("loss", Level.LOST),
    State("incomplete", Level.UNKNOWN),
)
"""How an audit ended. Clean: everything that was looked at is accounted for. Findings: somebody should look at it.
Loss: a live tombstone names a blob that is gone, or that cannot be read. Incomplete: the evidence has a gap or a doubt,
so whatever was found may be wrong."""

TABLE: Mapping[str, tuple[State, ...]] = {"pace": PACES, "feed": FEED_STATES, "audit": AUDIT_STATES}


def words(states: Iterable[State]) -> tuple[str, ...]:
    """Returns what JSON and metrics call these states."""
    return tuple(each.word for each in states)
