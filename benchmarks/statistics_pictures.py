"""Draws the two pictures of docs/statistics.md, from recovery in a simulated world. `make pictures` runs it.

    snapshot.svg      a first pass with backpressure, and one that reads without waiting for the clean-up
    keeping-up.svg    a backlog after an outage, with a daemon that catches up and one that falls behind

Nothing is invented: the lines are what `tiered status` would have shown, read from the note in the changelog. The same
seed draws the same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import anyio
import matplotlib as mpl
from matplotlib.figure import Figure

import recovery.loop
from changelog.change import Change, ChangeId
from emulators.world.runtime import SimulatedRuntime, run_world
from emulators.world.services import SimulatedBlobs, SimulatedChangeLog, SimulatedRows
from recovery import states
from recovery.daemon import source_of
from recovery.loop import RecoveryLoop
from recovery.statistics.columns import SourceRow
from recovery.statistics.persisted import RECOVERY, read_statistics
from tiered.services.backends import Tiers
from tiered.settings import Settings

DOCS = Path(__file__).parent.parent / "docs" / "pictures"
EVERY_S = 10.0
OUTSTANDING, PROCESSED, READ = "#c0504d", "#1f77b4", "#7f7f7f"


@dataclass(frozen=True)
class Scene:
    """One simulated run. `backlog`: entries that are due at the start. `arrive_per_s`: how many more come.

    `rate_per_s` and `at_once`: the recovery daemon's settings. All times are in seconds.
    """

    title: str
    backlog: int
    rate_per_s: float
    at_once: int = 16
    arrive_per_s: float = 0.0
    lasts_s: float = 300.0


@dataclass(frozen=True)
class Moment:
    """What status would have shown, `at_s` seconds after the daemon began."""

    at_s: float
    row: SourceRow
    verdict: states.State


SNAPSHOTS = [
    Scene("with backpressure: 16 entries at once", 2_000, 10.0),
    Scene("without: every entry is read at once", 2_000, 10.0, at_once=4_096),
]
BALANCES = [
    Scene("keeping up: 25 entries/s are cleaned up, 10/s arrive", 3_000, 25.0, arrive_per_s=10.0),
    Scene("falling behind: 6 entries/s are cleaned up, 10/s arrive", 3_000, 6.0, arrive_per_s=10.0),
]


def play(scene: Scene) -> list[Moment]:
    """Runs the scene in virtual time."""

    async def live() -> list[Moment]:
        runtime = SimulatedRuntime(1)
        log = SimulatedChangeLog(runtime)
        tiers = Tiers(SimulatedRows(runtime), SimulatedBlobs(runtime))
        settings = Settings(
            directory="simulated", changelog="noop",
            recovery={"rate_per_s": scene.rate_per_s, "concurrency_max": scene.at_once},
        )  # fmt: skip
        await _arrive(log, runtime, scene.backlog)
        loop = RecoveryLoop(tiers, log, runtime, settings)
        source = source_of(loop, log, runtime, settings)
        moments: list[Moment] = []

        async def arrivals() -> None:
            while True:
                await runtime.sleep(1.0)
                await _arrive(log, runtime, round(scene.arrive_per_s))

        async with anyio.create_task_group() as tasks:
            for each in (loop.run, source.run, arrivals):
                tasks.start_soon(each)
            began = runtime.monotonic()
            while runtime.monotonic() - began < scene.lasts_s:
                await runtime.sleep(EVERY_S)
                document = await read_statistics(log, RECOVERY)
                assert document is not None
                moments.append(Moment(runtime.monotonic() - began, document.total(), document.verdict().kind))
            tasks.cancel_scope.cancel()
        return moments

    # How many claims wait at once is a bound, too. So it must be lifted to show a first pass without any.
    with patch.object(recovery.loop, "CLAIMS_AT_ONCE", scene.at_once):
        return run_world(live, seed=1)


async def _arrive(log: SimulatedChangeLog, runtime: SimulatedRuntime, count: int) -> None:
    """So many deletions are due at once, as after the death of the process that made them."""
    for _ in range(count):
        token = ChangeId.new(runtime)
        await log.record(Change(token, f"notes/objects/{token}", None, f"notes/objects/{token}/{token}"), "")


# --- drawing -----------------------------------------------------------------------------------------


def draw_snapshots(scenes: Sequence[Scene], to: Path) -> None:
    figure, panels = _panels(scenes, "snapshot")
    for scene, panel in zip(scenes, panels, strict=True):
        moments = play(scene)
        at_s = [each.at_s for each in moments]
        panel.plot(at_s, [each.row.snapshot_records_known for each in moments], color=OUTSTANDING, label="snapshot_records_known")
        panel.plot(at_s, [each.row.snapshot_progress for each in moments], color=READ, label="snapshot_progress (read)")
        panel.plot(at_s, [each.row.processed_values for each in moments], color=PROCESSED, label="processed_values (cleaned up)")
        committed = [each.at_s for each in moments if each.row.snapshot_committed]
        if committed:
            panel.axvline(committed[0], color="black", linestyle=":", label="snapshot_committed")
        panel.legend(loc="lower right", fontsize=8)
    _save(figure, to)


def draw_balances(scenes: Sequence[Scene], to: Path) -> None:
    figure, panels = _panels(scenes, "balance")
    for scene, panel in zip(scenes, panels, strict=True):
        moments = play(scene)
        at_s = [each.at_s for each in moments]
        outstanding = [each.row.outstanding_values for each in moments]
        processed = [each.row.processed_values for each in moments]
        panel.plot(at_s, outstanding, color=OUTSTANDING, label="outstanding_values")
        panel.plot(at_s, processed, color=PROCESSED, label="processed_values")
        panel.fill_between(at_s, processed, outstanding, color=OUTSTANDING, alpha=0.12, label="lag")
        told = states.UNKNOWN.word
        for each in moments:
            if each.verdict.word != told:
                told = each.verdict.word
                panel.annotate(told, (each.at_s, each.row.outstanding_values), (0, 6), textcoords="offset points", fontsize=8, rotation=30)
        panel.margins(y=0.2)
        panel.legend(loc="lower right", fontsize=8)
    _save(figure, to)


def _panels(scenes: Sequence[Scene], salt: str) -> tuple[Figure, Any]:
    mpl.rcParams.update({"svg.hashsalt": salt, "svg.fonttype": "none", "font.family": "sans-serif"})
    figure = Figure(figsize=(11, 4), layout="constrained")
    panels = figure.subplots(1, len(scenes), sharey=True, squeeze=False)[0]
    for scene, panel in zip(scenes, panels, strict=True):
        panel.set_title(scene.title, fontsize=10)
        panel.set_xlabel("seconds since the daemon began")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("entries of the changelog")
    return figure, panels


def _save(figure: Figure, to: Path) -> None:
    for panel in figure.axes:
        panel.set_ylim(bottom=0)
    to.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(to, format="svg", metadata={"Date": None, "Creator": None})


def main(arguments: Sequence[str]) -> None:
    to = Path(arguments[0]) if arguments else DOCS
    draw_snapshots(SNAPSHOTS, to / "snapshot.svg")
    draw_balances(BALANCES, to / "keeping-up.svg")
    print(f"drawn: {to / 'snapshot.svg'}, {to / 'keeping-up.svg'}")


if __name__ == "__main__":
    main(sys.argv[1:])
