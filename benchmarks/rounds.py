"""What all benchmarks share: rounds in which the sides take turns, and how reliable their ratios are.

    round 1   ours, theirs        round 2   theirs, ours        round 3   ours, theirs ...

So other work on the machine affects all sides alike, and what one side leaves behind (a busy disk, a full cache)
affects no side alone. Each round gives a ratio. We report the median of the rounds' ratios, and the range of their
middle half.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import quantiles
from typing import TypeVar

import anyio

Item = TypeVar("Item")
Measured = TypeVar("Measured")


@dataclass(frozen=True)
class Ratio:
    """How many times `right` `left` is, over the rounds: the median, and the ends of the middle half.

    `more_is_better`: which way a change is good. `digits`: how many a table shows after the point.
    """

    middle: float
    low: float
    high: float
    rounds: int
    more_is_better: bool = False
    digits: int = 2

    def __post_init__(self) -> None:
        if not (0 <= self.low <= self.middle <= self.high < inf and self.rounds >= 1):
            raise ValueError(f"{self.low} - {self.middle} - {self.high} of {self.rounds} rounds is no ratio")

    @classmethod
    def of(cls, left: Sequence[float], right: Sequence[float], *, more_is_better: bool = False, digits: int = 2) -> Ratio:
        ratios = [one / other for one, other in zip(left, right, strict=True)]
        low, middle, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        return cls(middle, low, high, len(ratios), more_is_better, digits)

    @property
    def shown(self) -> str:
        return f"{self.middle:.{self.digits}f}"

    @property
    def spread(self) -> str:
        return "one round" if self.rounds == 1 else f"{self.low:.{self.digits}f} - {self.high:.{self.digits}f}"


async def take_turns(sides: Sequence[Callable[[], Awaitable[Measured]]], rounds: int) -> list[list[Measured]]:
    """Runs the rounds, and returns what each side returned in each round.

    The side that begins changes from round to round.
    """
    measured: list[list[Measured]] = [[] for _ in sides]
    for number in range(rounds):
        for place in range(len(sides)):
            side = (place + number) % len(sides)
            measured[side].append(await sides[side]())
    return measured


async def run_in_flight(work: Callable[[Item], Awaitable[object]], items: Iterable[Item], in_flight: int) -> None:
    """Works on all items, `in_flight` of them at once."""
    to_do = iter(items)

    async def worker() -> None:
        for item in to_do:
            await work(item)

    async with anyio.create_task_group() as workers:
        for _ in range(in_flight):
            workers.start_soon(worker)


async def timed(work: Awaitable[object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Returns the seconds that the work takes by `clock`. `time.process_time` counts the CPU of all threads.
    """
    began = clock()
    await work
    return clock() - began
