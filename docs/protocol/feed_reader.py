"""What a reader of CDC v2 makes of a sink's messages, whichever part of them it has, and in whatever order.

Such a reader trusts progress alone: a time is complete once it has as many distinct updates as progress declares. So
of each time that progress covers, the sink may never have other updates than the committed ones.
"""

from __future__ import annotations

from functools import lru_cache

from docs.protocol.feed_state import Message, Update, spelt


@lru_cache(100_000)
def misled(sent: frozenset[Message], done: tuple[tuple[int, tuple[Update, ...]], ...]) -> str:
    counts: dict[int, int] = {}
    for kind, upper, lower, declared in sent:
        if kind == "progress":
            of = {time: count for time, count, _ in declared}
            for time in range(lower, upper):
                if counts.setdefault(time, of.get(time, 0)) != of.get(time, 0):
                    return f"LEAKED: two progress messages contradict each other about time {time}"
    for time, count in counts.items():
        updates = {update for kind, at, _, some in sent if kind == "update" and at == time for update in some}
        if len(updates) > count:
            return f"LEAKED: of {len(updates)} updates at time {time}, a reader takes any {count} for the whole"
        meant = {update for at, some in done if at == time for update in some}
        if len(updates) == count and updates != meant:
            return f"LEAKED: a reader takes {spelt(tuple(sorted(updates)))} for time {time}; committed was {spelt(tuple(sorted(meant)))}"
    return ""


@lru_cache(100_000)
def frontier(sent: frozenset[Message]) -> int:
    reached = 0
    for kind, upper, lower, declared in sorted(sent, key=lambda each: each[2]):
        if kind == "progress" and lower <= reached < upper:
            short = [
                time for time, count, _ in declared
                if len({update for kind, at, _, some in sent if kind == "update" and at == time for update in some}) < count
            ]  # fmt: skip
            reached = min(short, default=upper)
    return reached
