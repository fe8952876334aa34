"""What a simulation exercised, and what it must: faults, branches of the decision tables, checks of invariants.

    Coverage    section -> name -> how often; `missing()`: what must occur and did not
    REQUIRED    the names that must occur, most of them members of enums: a new member is missing until it is counted
    RARE        those of them that a short run may miss

A simulation that never met a branch proves nothing about it. So a count of zero is a failure.
`emulators.simulation.decisions` counts.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from enum import Enum

from changelog.lease import EntryState, Renewal
from emulators.simulation.recipe import Role
from emulators.world.faults import Mode
from emulators.world.history import WriteAnswer
from recovery.audit.deleting.candidates import DeleteOutcome
from tiered.protocol.finishing import Ending
from tiered.protocol.writing import Outcome, SwapResult

Names = frozenset[str]


def members(word: str, kind: type[Enum]) -> Names:
    """Returns `word MEMBER` for each member of the enum."""
    return frozenset(f"{word} {each.name}" for each in kind)

CHANGES = ("rename", "update_metadata", "set_expiry")

ELSEWHERE: Names = frozenset({"writer's clean-up KEPT", "recovery's clean-up KEPT", "entry KEPT", "entry NEWER"})
"""The decisions of stores with a change feed, or beside newer software. The worlds that are counted have neither."""

REQUIRED: dict[str, Names] = {
    "faults": frozenset(mode.name for mode in Mode)
    | {"outage UNAVAILABLE", "outage DENIED", "outage LOST", "outage SLOW", "suspended for days"},
    "actors": frozenset(role.name for role in Role),
    "decisions": frozenset().union(
        members("swap told", SwapResult),
        {"judged ok", "judged no", "judged unknown"},
        {"may tell ok: live", "may tell ok: won", "may tell ok: superseded", "may not tell ok"},
        {"legacy is garbage: another state", "legacy is garbage: won", "legacy is kept"},
        {"old is garbage", "old is live"},
        {"clean-up: something", "clean-up: nothing"},
        members("writer's clean-up", Ending) - ELSEWHERE,
        members("recovery's clean-up", Ending) - ELSEWHERE,
        members("entry", EntryState) - ELSEWHERE,
        members("renewal", Renewal),
        {"lease held", "lease ended", "claim won", "claim lost"},
        {f"recovery {outcome}" for outcome in ("recovered", "deferred", "parked", "lost", "failed")},
        {"recovery failed: the entry's fault", "recovery failed: an outage", "recovery released at its end"},
        members("outcome", Outcome),
        {"read nothing", "read expired", "read inline", "read blob", "read again"},
        # Not required: "read dangling", which is a violation, and "read gave up", which takes as many overwrites as a
        # read has attempts, each at its worst moment.
        {"row touched", "row touch refused", "blob touched"},
        # Not required: "blob touch: gone". A blob must be replaced between its opening and its touch, just when a touch
        # is due: none in 17,000 worlds.
        {"inline ok", "inline: tombstone in the way", "inline unknown, then live", "inline unknown, then refused", "inline cancelled"},
        {f"{call}: {told}" for call in ("put", "delete") for told in ("ok", "UnavailableError", "OutcomeUnknownError")},
        # Not required: "delete: ConditionFailedError". Somebody must come between a look and the deletion after it.
        {f"{call}: {told}" for call in ("copy", *CHANGES) for told in ("ok", "UnavailableError")},
        {"rename: ConditionFailedError", "update_metadata: ConditionFailedError"},
        {"put: ConditionFailedError", "judged condition false"},
        {"completion ok", "completion again", "completion had won", "completion ended", "claim given back"},
        {"upload given up", "upload lost to others"},
        # Not required: "upload given up, and had won". It must win between the look at the row and the seal.
        {"put: LeaseLostError", "put: Cancelled", "get: ok", "get: UnavailableError", "refused: its service is away"},
    ),
    "answers": frozenset(answer.name for answer in WriteAnswer),
    "checks": frozenset({
        "I1 no dangling", "I2 settled before it is deleted", "I3 no leak", "I4 an order explains the history", "I4 no late effect",
        "I4 ok is true", "I4 no is true", "I4 a condition is true when its write takes effect",
        "I4 a condition that is called false was false", "I4 I7 read is of its time", "I4 list is of its time",
        "I4 a rename deletes what it has copied", "I4 a copy tells what it did",
        "I4 a change that comes too late begins again",
        "I4 I7 list shows what was there", "I5 repeatable", "I6 drained", "I7 no blob is overwritten",
        "lease claimed once", "lease renewed by its holder",
        "an upload stays open, and no value of its entry returns", "I4 what is told of another's upload is true",
        "I4 an append is told how far it has come",
        "audited: orphan", "deletion spoils nothing", "orphans are gone, and nothing else", "nothing is left in a bucket",
        "I6 answered in time", "I6 parked for a reason", "bulk writes keep their order", "no leak in a store", "no leak in a recovery",
    }) | {f"candidate: {outcome}" for outcome in DeleteOutcome if outcome not in (DeleteOutcome.UNREADABLE, DeleteOutcome.KEPT)},
}

RARE: Names = frozenset({
    "I6 parked for a reason",  # the same entry fails again and again, or a healthy entry is parked
    "row touch refused",  # another writer comes between a read and its touch
    "may tell ok: won",  # swapped, not answered, and replaced by an inline object before it was settled
    "read again",  # replaced between the reading of the row and the opening of its blob
    "candidate: gone",  # an orphan that is deleted by somebody else between two looks
    "claim lost", "recovery lost",  # two recoverers meet at one entry
    "recovery failed: the entry's fault", "entry EXHAUSTED",  # one entry fails again and again while others do not
    *(f"{call}: UnavailableError" for call in CHANGES),  # a fault in one of the few worlds that have such calls
    "rename: ConditionFailedError", "update_metadata: ConditionFailedError",  # and somebody comes between two steps
    "I4 a change that comes too late begins again",
    "I4 an append is told how far it has come",
    "upload lost to others", "completion ended", "claim given back",  # two at one upload, or a fault between its few calls
})  # fmt: skip
"""The required names that occur in fewer than one of 150 worlds, because they take two things at one moment."""


class Coverage:
    """Counts how often each name of each section occurred."""

    def __init__(self) -> None:
        self.sections: dict[str, Counter[str]] = defaultdict(Counter)

    def count(self, section: str, name: str, times: int = 1) -> None:
        self.sections[section][name] += times

    def add(self, other: Coverage) -> None:
        for section, counts in other.sections.items():
            self.sections[section].update(counts)

    def missing(self, but: Names = frozenset()) -> list[str]:
        """Returns `section: name` for all that must occur and did not, in order. Names in `but` are left out."""
        return [
            f"{section}: {name}" for section, names in REQUIRED.items() for name in sorted(names - but)
            if not self.sections.get(section, Counter())[name]
        ]  # fmt: skip

    def to_json(self) -> str:
        return json.dumps(self.sections, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Coverage:
        coverage = cls()
        for section, counts in json.loads(text).items():
            coverage.sections[section].update(counts)
        return coverage
