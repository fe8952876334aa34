"""Real daemons, killed, stopped and restarted under one name: what an operator reads in between never goes back."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from recovery.statistics.persisted import Document, read_statistics
from tests.given.daemon_process import hurried
from tests.given.repository import ROOT
from tiered.open import open_backends
from tiered.settings import Settings

pytestmark = pytest.mark.slow

WAIT_S = 40.0


class Daemons:
    """Daemons of one embedded store, and what is stored of them."""

    def __init__(self, store: Path) -> None:
        self.settings = Settings(directory=store, changelog="sqlite")
        self.running: list[subprocess.Popen[bytes]] = []
        self.told = Document("recovery")

    def start(self) -> subprocess.Popen[bytes]:
        directory = str(self.settings.directory)
        daemon = subprocess.Popen(
            [*hurried({"recovery.statistics.reporting.REPORT_EVERY_S": 1.0}), "--directory", directory, "recover"], cwd=ROOT,
            stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            env=os.environ | {"TIERED_INSTANCE": "daemon-1", "TIERED_RECOVERY__RATE_PER_S": "40"},
        )  # fmt: skip
        self.running.append(daemon)
        return daemon

    def plant(self, count: int) -> None:
        async def record() -> None:
            async with open_backends(self.settings, SystemRuntime()) as backends:
                for _ in range(count):
                    token = ChangeId.new(SystemRuntime())
                    entry = await backends.log.record(Change(token, "notes/objects/a", None, f"notes/objects/a/{token}"), "dead")
                    assert await backends.log.release(entry)

        anyio.run(record)

    def look(self) -> Document:
        async def read() -> Document | None:
            async with open_backends(self.settings, SystemRuntime(), writes=False) as backends:
                return await read_statistics(backends.log, "recovery")

        found = anyio.run(read) or Document("recovery")
        before, after = self.told.total(), found.total()
        assert after.updates_committed >= before.updates_committed and after.messages_received >= before.messages_received
        assert after.snapshot_committed or not before.snapshot_committed
        if self.told.offsets is not None and found.offsets is not None:
            assert found.offsets.outstanding >= self.told.offsets.outstanding and found.offsets.processed >= self.told.offsets.processed
        self.told = found
        return found

    def until(self, reached: Callable[[Document], bool]) -> Document:
        ends_at = time.monotonic() + WAIT_S
        while not reached(found := self.look()):
            assert time.monotonic() < ends_at, found
            time.sleep(0.3)
        return found


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    made = Daemons(tmp_path / "store")
    try:
        yield made
    finally:
        for daemon in made.running:
            daemon.kill()
            daemon.wait()


def test_a_daemon_that_is_killed_and_restarted_under_its_name_shows_no_decrease(daemons: Daemons) -> None:
    daemons.plant(600)
    first = daemons.start()
    daemons.until(lambda found: found.total().updates_committed > 0)
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = daemons.start()
    found = daemons.until(lambda found: len(found.workers) == 2)
    assert sorted(name.partition("~")[0] for name in found.workers) == ["daemon-1", "daemon-1"]
    second.send_signal(signal.SIGTERM)
    assert second.wait(30) == 0
    found = daemons.look()
    assert any(each.left for each in found.workers.values()), "who ends in order says so"


def test_two_daemons_with_one_name_are_shown_as_two(daemons: Daemons) -> None:
    daemons.plant(50)
    daemons.start()
    daemons.start()
    found = daemons.until(lambda found: len(found.workers) == 2)
    assert len({each.run for each in found.workers.values()}) == 2
    daemons.until(lambda found: found.total().lag == 0 and found.total().updates_committed == 50)
