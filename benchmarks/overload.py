"""The overload curve: what callers get when more comes in than a store can do. In virtual time, on any machine.

    service     rows that answer in 50 ms while at most 8 calls are under way; more calls share what it can do
    ours        a store that lets 8 operations run and 16 wait
    unlimited   the same store with room for 10,000 operations, as a client without limits
    callers     come at random moments, whatever became of those before, and wait 5 s at most

`python -m benchmarks.overload --docs docs/benchmarks.md` draws the curve; tests/store/test_overload.py holds it.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio

from benchmarks.figures import Figures, tell
from changelog.base.errors import UnavailableError
from changelog.base.runtime import Runtime
from changelog.change import ChangeId
from changelog.noop import NoopChangeLog
from emulators.world.runtime import SimulatedRuntime, run_world
from emulators.world.services import SimulatedBlobs, SimulatedRows
from tiered.errors import AtCapacityError
from tiered.object_id import ObjectId
from tiered.protocol.backends import Row, Tiers
from tiered.settings import Settings, StoreSettings
from tiered.storage import TieredStorage

AT_ONCE, ANSWER_S = 8, 0.05
CAPACITY_PER_S = AT_ONCE / ANSWER_S
QUEUE = 16
PATIENCE_S = 5.0
FACTORS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0)
OURS = StoreSettings(concurrency_max=AT_ONCE, queue_max=QUEUE)
UNLIMITED = StoreSettings(concurrency_max=10_000, queue_max=10_000)
OBJECT = ObjectId.create("load", "object")


class CongestedRows(SimulatedRows):
    """Rows of a service that slows down when too much is asked of it. `is_away` True: it answers nothing.

    `calls`: the moments of all calls, in seconds.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.is_away = False
        self.calls: list[float] = []
        self._under_way = 0

    async def read(self, path: str, *, marks: ChangeId | bool = False) -> Row:
        self.calls.append(anyio.current_time())
        self._under_way += 1
        try:
            await anyio.sleep(ANSWER_S * max(1.0, self._under_way / AT_ONCE))
        finally:
            self._under_way -= 1
        if self.is_away:
            raise UnavailableError("no route to host")
        return await super().read(path, marks=marks)


@dataclass(frozen=True, slots=True)
class TimedCall:
    """What became of one call. Times are seconds. `error`: the name of its error; empty: it was answered."""

    began_s: float
    took_s: float
    error: str


class Load:
    """Callers of one store, and what became of their calls."""

    def __init__(self, store: StoreSettings, seed: int = 1) -> None:
        self.runtime = SimulatedRuntime(seed)
        self.rows = CongestedRows(self.runtime)
        self.calls: list[TimedCall] = []
        self.refusals: list[AtCapacityError] = []
        self._chance = random.Random(seed)
        tiers = Tiers(self.rows, SimulatedBlobs(self.runtime))
        settings = Settings(directory=Path("simulated"), changelog="noop", store=store)
        self.storage = TieredStorage(tiers, NoopChangeLog(), self.runtime, settings)

    async def arrive(self, factor: float, seconds: float, patience_s: float = PATIENCE_S) -> None:
        """Lets callers come for so long: `factor` times as many as the service can answer. Waits for the last one."""
        ends_at = anyio.current_time() + seconds
        async with anyio.create_task_group() as callers:
            while anyio.current_time() < ends_at:
                callers.start_soon(self._call, patience_s)
                await anyio.sleep(self._chance.expovariate(factor * CAPACITY_PER_S))

    async def _call(self, patience_s: float) -> None:
        began_s, error = anyio.current_time(), ""
        try:
            with anyio.fail_after(patience_s):
                await self.storage.head(OBJECT)
        except TimeoutError:
            error = TimeoutError.__name__
        except UnavailableError as failed:
            error = type(failed).__name__
            if isinstance(failed, AtCapacityError):
                self.refusals.append(failed)
        self.calls.append(TimedCall(began_s, anyio.current_time() - began_s, error))

    def answered(self, from_s: float = 0.0, until_s: float = float("inf")) -> list[float]:
        """Returns how long the calls took that began in this time and were answered (seconds, in order)."""
        return sorted(call.took_s for call in self.calls if not call.error and from_s <= call.began_s < until_s)


def at(took_s: Sequence[float], share: float) -> float:
    """Returns the time within which this share of the calls was answered, in seconds. No call: nan."""
    return took_s[min(len(took_s) - 1, int(share * len(took_s)))] if took_s else float("nan")


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One point of the curve. `goodput`: answered in time, as a share of the capacity; the rest is seconds."""

    factor: float
    goodput: float
    median_s: float
    p99_s: float


def measure(store: StoreSettings, factor: float, seconds: float) -> CurvePoint:
    """Runs one load, in virtual time."""

    async def live() -> Load:
        load = Load(store)
        async with load.storage:
            await load.arrive(factor, seconds)
        return load

    load = run_world(live, seed=1)
    took_s = load.answered(seconds / 4)  # the beginning is not steady
    return CurvePoint(factor, len(took_s) / (0.75 * seconds * CAPACITY_PER_S), at(took_s, 0.5), at(took_s, 0.99))


def curves(seconds: float, factors: Sequence[float] = FACTORS) -> tuple[list[CurvePoint], list[CurvePoint]]:
    """Returns the curve of a store with limits, and that of one without."""
    ours = [measure(OURS, factor, seconds) for factor in factors]
    return ours, [measure(UNLIMITED, factor, seconds) for factor in factors]


def figures(ours: Sequence[CurvePoint], unlimited: Sequence[CurvePoint]) -> Figures:
    columns = [
        "load, of the capacity", "answered, of the capacity", "median", "99th percentile",
        "without limits: answered", "without limits: median", "without limits: 99th percentile",
    ]  # fmt: skip
    return Figures(
        "Overload", columns,
        [
            [f"{one.factor:g}", f"{one.goodput:.2f}", *map(_ms, (one.median_s, one.p99_s)), f"{other.goodput:.2f}",
             *map(_ms, (other.median_s, other.p99_s))]
            for one, other in zip(ours, unlimited, strict=True)
        ],
        [
            "In virtual time: the figures depend on the store and the model of the service, and not on the machine.",
            f"The service answers in {ANSWER_S * 1000:.0f} ms while at most {AT_ONCE} calls are under way. With more, they share"
            " what it can do. Callers wait for at most 5 s, and do not come again.",
        ],
        counted=columns[1:],
    )  # fmt: skip


def draw(ours: Sequence[CurvePoint], unlimited: Sequence[CurvePoint], path: Path) -> None:
    """Draws both curves as an SVG."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only the curve needs it, and it takes long

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    goodput, latency = figure.subplots(1, 2)
    for name, points, style in (("with its limits", ours, "-o"), ("without limits", unlimited, "--s")):
        factors = [point.factor for point in points]
        goodput.plot(factors, [point.goodput for point in points], style, label=name, markersize=4)
        latency.plot(factors, [point.p99_s for point in points], style, label=name, markersize=4)
    goodput.set(xlabel="load, of the capacity", ylabel="answered, of the capacity", ylim=(0, 1.1))
    latency.set(xlabel="load, of the capacity", ylabel="99th percentile of what is answered (s)", yscale="log")
    for axes in (goodput, latency):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, metadata={"Date": None})


def _ms(seconds: float) -> str:
    return "none" if seconds != seconds else f"{seconds * 1000:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=float, default=1.0, help="1 is 20 s of virtual time at each load")
    parser.add_argument("--docs", type=Path, help="the page that gets the figures; the picture lies beside it, in pictures/")
    chosen = parser.parse_args()
    load = os.getloadavg()[0]
    ours, unlimited = curves(20 * chosen.size)
    shown = figures(ours, unlimited)
    tell("overload", [shown], chosen.size, load, chosen.docs)
    if chosen.docs is not None:
        draw(ours, unlimited, chosen.docs.parent / "pictures" / "overload.svg")


if __name__ == "__main__":
    main()
