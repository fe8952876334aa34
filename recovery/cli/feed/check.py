"""`tiered feed check`: whether the feed is sound, and what it still waits for. Exit codes:

    0    it is sound
    1    what is there is sound, and something between it is missing, so readers stand still
    6    a file is damaged or foreign, or the feed breaks a rule
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from changelog.base.errors import InvalidRequestError
from recovery.cli.feed.inputs import (
    UNSOUND,
    FilesArgument,
    Rollback,
    SchemaOption,
    feed_message,
    finish,
    messages_of,
    reader_of,
    updates_are,
)  # fmt: skip
from recovery.cli.output import dump, show_fields, write
from recovery.cli.shared import choice, say, shared

if TYPE_CHECKING:
    from recovery.feed import CdcReader, FeedBatch, RollbackReader
    from recovery.feed.errors import FeedError
    from recovery.feed.files import LocatedMessage

MISSING = 1
GAPS_SHOWN = 10
KEPT_SAID_AT = 2_000_000
"""It says that it keeps so many updates in memory, more than a gigabyte."""
COVERS_MIN = 1000
"""It merges the intervals of progress messages when there are so many more."""

Bounded = Annotated[bool, typer.Option("--bounded", help=(
    "Forget what is complete. It needs less memory, and does not find what contradicts a complete time afterwards."
))]  # fmt: skip


@shared
def check(
    files: FilesArgument, schema: SchemaOption = None, rollback: Rollback = False, bounded: Bounded = False
) -> None:
    """Says whether the feed is sound. If not: in which file, at which message, and which rule it breaks."""

    def command() -> int:
        from recovery.feed.errors import FeedError

        if rollback and bounded:
            raise InvalidRequestError("--bounded is of CDC v2: with --rollback, what is complete is always forgotten")
        reader, looked = reader_of(rollback, remember=not bounded), _Looked()
        try:
            for located in messages_of(files, schema):
                before = looked.updates
                looked.add(located, feed_message(reader, located))
                if before < KEPT_SAID_AT <= looked.updates and not (bounded or rollback):
                    say(f"all of {looked.updates:,} updates are kept in memory so far, to compare all messages; --bounded keeps fewer")
        except FeedError as error:
            _show_problem(error, looked)
            return UNSOUND
        return MISSING if _show_sound(reader, looked, bounded) else 0

    finish(command)


class _Looked:
    """What was read. `gaps`: the intervals without progress, where later times have some."""

    def __init__(self) -> None:
        self.messages = self.updates = self.delivered = 0
        self._covers: list[tuple[int, int]] = []
        self._merge_at = COVERS_MIN

    def add(self, located: LocatedMessage, batch: FeedBatch | None) -> None:
        from recovery.feed.batch import END
        from recovery.feed.messages import Updates

        message = located.message
        self.messages += 1
        self.delivered += len(batch.updates) if batch else 0
        if isinstance(message, Updates):
            self.updates += len(message.updates)
            return
        lower, upper = (bound[0] if bound else END for bound in (message.lower, message.upper))
        if lower < upper:
            self._covers.append((lower, upper))
        if len(self._covers) > self._merge_at:
            self._merge()
            self._merge_at = COVERS_MIN + 2 * len(self._covers)

    def gaps(self) -> list[tuple[int, int]]:
        self._merge()
        ends = [0, *(upper for _, upper in self._covers)]
        return [(end, lower) for end, (lower, _) in zip(ends, self._covers, strict=False) if end < lower]

    def _merge(self) -> None:
        merged: list[tuple[int, int]] = []
        for lower, upper in sorted(self._covers):
            if merged and lower <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], upper))
            else:
                merged.append((lower, upper))
        self._covers = merged


def _show_problem(error: FeedError, looked: _Looked) -> None:
    problem = {"where": error.where, "rule": str(error.rule), "why": error.why}
    if choice.json:
        write(dump({"sound": False, "problem": problem, "messages_before": looked.messages}))
        return
    show_fields({"sound": "no", **problem, "rule": f"{error.rule}: {error.rule.value}"}, as_json=False)
    show_fields({"messages before": looked.messages}, as_json=False)


def _show_sound(reader: CdcReader | RollbackReader, looked: _Looked, bounded: bool) -> bool:
    """Shows what was found. Returns whether messages are missing: later ones are there."""
    from recovery.feed.reader import CdcReader

    waiting, gaps, held = None, [], reader.held
    if isinstance(reader, CdcReader):
        waiting, gaps = reader.waiting, looked.gaps()
        compared = "messages about times that were not complete yet were compared" if bounded else "all messages were compared"
        late = reader.late if bounded else 0
        left_out = {"repeated": reader.ignored - late} | ({"late": late} if bounded else {})
    else:
        compared, left_out = "by the rule of the published sketch, which trusts the order", {"discarded": reader.discarded}
    is_missing = bool(gaps) or (waiting is not None and waiting.declared is not None)
    value: dict[str, Any] = {
        "sound": True, "missing": is_missing, "compared": compared, "messages": looked.messages, "updates": looked.updates,
        "delivered": looked.delivered, **left_out, "frontier": reader.frontier,
        "held": {"updates": held.updates, "times": held.times}, "gaps": gaps,
        "waiting": None if waiting is None else asdict(waiting),
    }  # fmt: skip
    if choice.json:
        write(dump(value))
        return is_missing
    frontier = "time 0: nothing is complete" if reader.frontier == (0,) else f"{time_of(reader.frontier)}: all before it is complete"
    if "late" in value:
        value["late"] = f"{value['late']:,} updates about complete times, which were not compared"
    value |= {
        "sound": f"yes: {compared}", "compared": None,
        "missing": "messages between others: readers stand still at the frontier" if is_missing else None,
        "frontier": frontier, "held": _held_in_words(held.updates, held.times),
        "no progress about": ", ".join(_gap(*gap) for gap in gaps[:GAPS_SHOWN]) + _more(len(gaps) - GAPS_SHOWN) or None, "gaps": None,
        "waiting for": None if waiting is None else _waiting_in_words(*asdict(waiting).values()), "waiting": None,
    }  # fmt: skip
    show_fields({name: each for name, each in value.items() if each is not None}, as_json=False)
    return is_missing


def _more(number: int) -> str:
    return f" and {number:,} more" if number > 0 else ""


def _gap(begin: int, end: int) -> str:
    return f"time {begin}" if end == begin + 1 else f"times {begin} to {end - 1}"


def _held_in_words(updates: int, times: int) -> str:
    if not updates and not times:
        return "nothing"
    return f"{updates_are(updates)} held back; {times:,} time{' is' if times == 1 else 's are'} not complete"


def _waiting_in_words(time: int, declared: int | None, received: int) -> str:
    if declared is None:
        return f"a progress message about time {time}" + (f"; {received} of its updates came" if received else "")
    return f"updates at time {time}: {declared} are declared, and {received} came"


def time_of(frontier: tuple[int, ...]) -> str:
    return f"time {frontier[0]}" if frontier else "the end of the feed"
