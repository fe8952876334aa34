"""What the audit of a range yields: findings one by one, and a summary that counts everything.

Ages are counted in steps. Each is a bar of the report's histogram. After `USECASES_MAX` usecases, every further
usecase is counted under `OTHERS`. So the size of a summary is limited, whatever a bucket holds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from recovery.audit.finding_classes import FindingClass
from tiered.services.scans import Generation

HOUR_S, DAY_S = 3600, 86_400
AGES: tuple[tuple[str, float], ...] = (
    ("under 1 h", HOUR_S), ("1 h to 1 d", DAY_S), ("1 d to 7 d", 7 * DAY_S), ("7 d to 30 d", 30 * DAY_S), ("30 d to 90 d", 90 * DAY_S),
    ("90 d to 1 y", 365 * DAY_S), ("over 1 y", float("inf")),
)  # fmt: skip
"""The steps of age: name, and upper bound in seconds (exclusive)."""

_BOUNDS = [bound for _, bound in AGES[:-1]]

USECASES_MAX = 1000
OTHERS = "(others)"
NO_USECASE = "(none)"


class Finding(NamedTuple):
    """One finding. `name`: the name of the blob, or the key of the row if no blob is known.

    Bytes that are not text are escaped.

    `object`, `revision`: None if the name does not tell them. `size`: bytes. Times are nanoseconds since 1970.
    `listed_ns`, `logged_ns` and `scanned_ns` say when the reading of the listing, of the changelog and of the rows
    began. `confirmed_ns` says when the audit looked a second time; None if it did not.
    """

    class_: FindingClass
    name: str
    object: str | None
    revision: str | None
    size: int | None
    created_ns: int | None
    deadline_ns: int | None
    generation: Generation | None
    detail: str
    listed_ns: int
    logged_ns: int
    scanned_ns: int
    confirmed_ns: int | None


@dataclass(slots=True, kw_only=True)
class FindingDraft:
    """A finding without the times at which its window was read. The fields are those of `Finding`."""

    class_: FindingClass
    name: str
    object: str | None = None
    revision: str | None = None
    size: int | None = None
    created_ns: int | None = None
    deadline_ns: int | None = None
    generation: Generation | None = None
    detail: str = ""
    confirmed_ns: int | None = None

    def read_at(self, listed_ns: int, logged_ns: int, scanned_ns: int) -> Finding:
        return Finding(
            self.class_, self.name, self.object, self.revision, self.size, self.created_ns, self.deadline_ns, self.generation, self.detail,
            listed_ns, logged_ns, scanned_ns, self.confirmed_ns,
        )  # fmt: skip


@dataclass(slots=True)
class Tally:
    """How many there are, and how many bytes. A row without a blob counts 0 bytes."""

    number: int = 0
    size: int = 0

    def add(self, number: int, size: int) -> None:
        self.number += number
        self.size += size


@dataclass(slots=True)
class Summary:
    """What the audit saw of one range, or of several: `merge` adds them up.

    `names` were listed and `redirects` were scanned, in `windows` windows. If the references came from a change feed,
    `redirects` counts what it told and what was read beside it. `indexed`: how many references its index had.
    `looked_up`: how many rows were read by their keys, or found by a scan, because the index was not enough.

    `counts`: by usecase and class. `ages`: for each class, how many blobs are of each age (the index in `AGES`).
    `age_sizes`: the same, but bytes.
    `entries_max`: the most entries that one reading of the changelog saw. `unreadable_max`: the most unreadable ones.
    `dated_ahead`: how many blobs carry a date after the audit began. `verified`: how many blobs were read to their last
    byte, and `verified_bytes` how many bytes that were. `kept`: what the service keeps of deleted blobs, by its form.
    `unknown`: why it does not tell that.
    """

    names: int = 0
    redirects: int = 0
    windows: int = 0
    entries_max: int = 0
    unreadable_max: int = 0
    dated_ahead: int = 0
    verified: int = 0
    verified_bytes: int = 0
    counts: dict[str, dict[FindingClass, Tally]] = field(default_factory=dict)
    ages: dict[FindingClass, Counter[int]] = field(default_factory=dict)
    age_sizes: dict[FindingClass, Counter[int]] = field(default_factory=dict)
    kept: dict[str, Tally] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    indexed: int = 0
    looked_up: int = 0

    def count(self, usecase: str, class_: FindingClass, number: int, size: int) -> None:
        if usecase not in self.counts and len(self.counts) >= USECASES_MAX:
            usecase = OTHERS
        classes = self.counts.setdefault(usecase, {})
        if class_ not in classes:
            classes[class_] = Tally()
        classes[class_].add(number, size)

    def age(self, class_: FindingClass, seconds: float, size: int = 0) -> None:
        place = bisect_right(_BOUNDS, seconds)
        if class_ not in self.age_sizes:
            self.age_sizes[class_] = Counter()
        if class_ not in self.ages:
            self.ages[class_] = Counter()
        self.ages[class_][place] += 1
        self.age_sizes[class_][place] += size

    def totals(self) -> dict[FindingClass, Tally]:
        """Returns the counts by class, over all usecases."""
        found: dict[FindingClass, Tally] = {}
        for classes in self.counts.values():
            for class_, count in classes.items():
                found.setdefault(class_, Tally()).add(count.number, count.size)
        return found

    def merge(self, other: Summary) -> None:
        self.names += other.names
        self.redirects += other.redirects
        self.indexed += other.indexed
        self.looked_up += other.looked_up
        self.windows += other.windows
        self.entries_max = max(self.entries_max, other.entries_max)
        self.unreadable_max = max(self.unreadable_max, other.unreadable_max)
        self.dated_ahead += other.dated_ahead
        self.verified += other.verified
        self.verified_bytes += other.verified_bytes
        for usecase, classes in other.counts.items():
            for class_, count in classes.items():
                self.count(usecase, class_, count.number, count.size)
        for class_, ages in other.ages.items():
            self.ages.setdefault(class_, Counter()).update(ages)
        for class_, sizes in other.age_sizes.items():
            self.age_sizes.setdefault(class_, Counter()).update(sizes)
        for what, count in other.kept.items():
            self.kept.setdefault(what, Tally()).add(count.number, count.size)
        self.unknown |= other.unknown
