"""The audit beside real processes, with a grace of 0: it accuses no blob wrongly, and misses none.

Writers are killed with kill -9, and recovery goes on.

Whatever a killed writer leaves behind, an entry of the changelog names it until it is gone. So there is no orphan and
nothing dangling while all runs, and when the log is drained, a tombstone names every blob.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from random import Random

import anyio
import pytest

from changelog.base.runtime import SystemRuntime
from emulators.demo.checking.check import check, unfinished
from emulators.demo.players.journal import DIRECTOR, OperationJournal
from emulators.demo.players.object_writer import Orders
from emulators.demo.staging.emulators import EmulatorStage
from emulators.demo.staging.stage import DemoStage, EmbeddedStage
from emulators.demo.staging.troupe import environment
from recovery.audit.finding import Finding, Summary
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Bounds, Cutoff
from recovery.audit.sweeping.sweep import audit_range
from recovery.daemon import collect
from recovery.loop import RecoveryLoop
from tiered.open import Backends, open_backends
from tiered.settings import load_settings

pytestmark = pytest.mark.slow

KILLS = 4
WRITERS = 2
OBJECTS = 40
DRAINS_WITHIN_S = 60.0
BOUNDS = (("", "q"), ("q", None))
RUNTIME = SystemRuntime()


class Show:
    """Writers that are killed again and again, recovery, and audits, one after the other."""

    def __init__(self, stage: DemoStage) -> None:
        self.stage = stage
        self.audits = 0
        self.seen = Summary()
        self.findings: list[Finding] = []
        self._over = False
        self._director = OperationJournal(stage.journal / DIRECTOR)

    async def run(self) -> Summary:
        """Returns what an audit finds when all is over and the log is drained."""
        settings = load_settings(self.stage.config)
        async with open_backends(settings, RUNTIME) as backends:
            recovery = RecoveryLoop(backends.tiers, backends.log, RUNTIME, settings)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(recovery.run)
                async with anyio.create_task_group() as acting:
                    acting.start_soon(self._audit_again_and_again, backends)
                    async with anyio.create_task_group() as writing:
                        for number in range(WRITERS):
                            writing.start_soon(self._write, number)
                    self._over = True
                with anyio.fail_after(DRAINS_WITHIN_S):
                    while any(unfinished(self.stage.stored)):
                        await collect(backends)  # uploads of the dead, which nobody had recorded
                        await RUNTIME.sleep(0.1)
                recovery.stop()
            self._director.close()
            return await self._audit(backends)

    async def _write(self, number: int) -> None:
        chance = Random(number)
        for life in range(KILLS):
            name = f"w{number}.{life}"
            orders = Orders(str(self.stage.config), str(self.stage.journal / f"{name}.jsonl"), name, number, OBJECTS, os.getpid())
            writer = self._start(orders)
            try:
                while not Path(orders.journal).exists() and writer.poll() is None:
                    await RUNTIME.sleep(0.02)
                await RUNTIME.sleep(chance.uniform(0.2, 1.2))
            finally:
                writer.kill()
                writer.wait()
            self._director.write(at=RUNTIME.monotonic(), process=name, event="killed")

    def _start(self, orders: Orders) -> subprocess.Popen[bytes]:
        with (self.stage.log / f"{orders.name}.log").open("wb") as log:
            return subprocess.Popen(orders.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment())

    async def _audit_again_and_again(self, backends: Backends) -> None:
        while not self._over:
            self.seen.merge(await self._audit(backends))
            self.audits += 1

    async def _audit(self, backends: Backends) -> Summary:
        cutoff = Cutoff(as_of_ns=await backends.tiers.long_term.now_ns(), grace_s=0)
        whole = Summary()
        for start, end in BOUNDS:
            within = Bounds(start=start, end=end)
            whole.merge(await audit_range(
                backends.tiers, backends.log, within, cutoff, RUNTIME, self.findings.extend, window_names=7
            ))  # fmt: skip
        return whole


@pytest.mark.night
@pytest.mark.parametrize("backend", ["embedded", "emulators"])
def test_an_audit_beside_writers_that_are_killed_accuses_nothing_and_all_is_referenced_in_the_end(
    request: pytest.FixtureRequest, tmp_path: Path, backend: str
) -> None:
    if backend == "emulators":
        request.getfixturevalue("bigtable_host")  # where there is none, it says so
    with (EmbeddedStage if backend == "embedded" else EmulatorStage)(tmp_path / "stage") as stage:
        show = Show(stage)
        last = anyio.run(show.run)
        flaws = check(stage.stored, stage.journal)
    assert show.findings == []
    assert set(last.totals()) == {FindingClass.REFERENCED}
    assert last.totals()[FindingClass.REFERENCED].number == last.names > 0
    assert flaws.flaws == {}, flaws.details
    assert show.audits > KILLS
    under_way = {kind for kind, count in show.seen.totals().items() if count.number}
    assert under_way & {FindingClass.IN_FLIGHT, FindingClass.SUPERSEDED, FindingClass.TOO_YOUNG}, (
        "something was under way when it was audited"
    )
