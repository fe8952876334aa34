"""Where an episode takes place: a store in a directory, or one on simulated tiers under virtual time.

It knows what is left behind.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from changelog.base.runtime import Runtime, SystemRuntime
from changelog.change import Entry
from emulators.world.checker import dangling, left_over, orphans
from emulators.world.deployment import LINKS
from emulators.world.runtime import SimulatedRuntime
from emulators.world.services import SimulatedBlobs, SimulatedChangeLog, SimulatedRows
from recovery.daemon import collect
from recovery.loop import RecoveryLoop
from tiered import Settings, TieredStorage, open_storage
from tiered.metadata import is_expired
from tiered.open import open_backends
from tiered.services.backends import Tiers
from tiered.settings import RecoverySettings

LATER_S = 100.0
"""When recovery comes, in seconds: every lease has expired then."""
LATE_S = LATER_S + RecoverySettings().late_upload_grace_s
"""So late nobody waits for an upload any more that was given up, but nothing that lives for an hour has expired."""
FILES = {"tiered.db", "tiered.db-reserve", "tiered.db-wal", "tiered.db-shm", "blobs", "uploads"}


class Ground(Protocol):
    """Where an episode takes place.

    `directory`: the episode's own, which it may use for files of its own. `budget_s`: the seconds in which a call must
    end, by the event loop's clock.
    """

    directory: Path
    budget_s: float
    runtime: Runtime

    def open(self, settings: Mapping[str, Any]) -> AbstractAsyncContextManager[TieredStorage]: ...
    async def left_behind(self, *, recovered: bool) -> list[str]:
        """Runs recovery if `recovered` is set. Then returns what no row needs, and what rows miss."""

    def close(self) -> None: ...


class _Later(SystemRuntime):
    def wall_ns(self) -> int:
        return super().wall_ns() + int(LATE_S * 1e9)


class Embedded:
    budget_s = 15.0

    def __init__(self) -> None:
        self.runtime: Runtime = SystemRuntime()
        self.directory = Path(tempfile.mkdtemp(prefix="callers-"))
        self._store = self.directory / "store"

    def open(self, settings: Mapping[str, Any]) -> AbstractAsyncContextManager[TieredStorage]:
        return open_storage(Settings(directory=self._store, links=LINKS, **settings))

    async def left_behind(self, *, recovered: bool) -> list[str]:
        settings = Settings(directory=self._store, changelog="sqlite")
        found: list[str] = []
        async with open_backends(settings, _Later()) as backends:
            if recovered:
                report = await RecoveryLoop(backends.tiers, backends.log, _Later(), settings).run_once()
                if report.failed or report.parked:
                    found.append(f"recovery could not finish: {report}")
            found += [f"collection failed: {failure}" for failure in (await collect(backends)).failures]
            entries = await backends.log.entries("", 1000)
            found += [f"entry {entry.key}" for entry in entries.entries]
            page = await backends.tiers.high_volume.redirects(b"", None, 1000)
            found += [f"corrupt row {row}" for row in page.corrupt]
            named = {row.target for row in page.redirects}
            blobs = {blob.name: blob.deadline_ns for blob in (await backends.tiers.long_term.list("", None, 1000)).blobs}
        now_ns = _Later().wall_ns()  # a blob is kept for an hour after its row's deadline
        found += [f"blob {name!r} that no row names" for name in blobs.keys() - named if not is_expired(blobs[name], now_ns)]
        found += [f"row that names {name!r}, which is not there" for name in named - blobs.keys()]
        found += [f"upload {path.name}" for path in sorted((self._store / "uploads").iterdir())]
        return found + [f"file {path.name!r}" for path in sorted(self._store.iterdir()) if path.name not in FILES]

    def close(self) -> None:
        shutil.rmtree(self.directory)


class SimulatedStoreGround:
    budget_s = 500.0
    directory = Path("/dev/null/none")  # below a file, so nobody can make it

    def __init__(self, seed: int) -> None:
        runtime = SimulatedRuntime(seed)
        self.runtime: Runtime = runtime
        self._rows, self._blobs, self._log = SimulatedRows(runtime), SimulatedBlobs(runtime), SimulatedChangeLog(runtime)
        self._tiers = Tiers(self._rows, self._blobs)

    @asynccontextmanager
    async def open(self, settings: Mapping[str, Any]) -> AsyncIterator[TieredStorage]:
        async with TieredStorage(self._tiers, self._log, self.runtime, Settings(directory="simulated", links=LINKS, **settings)) as storage:
            yield storage

    async def left_behind(self, *, recovered: bool) -> list[str]:
        entries = (await self._log.entries("", 1000)).entries
        # The log is kept whatever the settings say. What waits for a late upload is left to recovery alone.
        if recovered or any(isinstance(entry, Entry) and entry.cleanup_after_ms is not None for entry in entries):
            settings = Settings(directory="simulated")
            for wait_s in (LATER_S, LATE_S):  # a copy that was given up may land late
                if self._log.stored or wait_s == LATER_S:
                    await self.runtime.sleep(wait_s)
                    report = await RecoveryLoop(self._tiers, self._log, self.runtime, settings).run_once()
                    if report.failed or report.parked:
                        return [f"recovery could not finish: {report}"]
        now_ns = self.runtime.wall_ns()
        return [
            *(f"row {path!r} whose blob is gone" for path in dangling(self._rows, self._blobs, now_ns)),
            *(f"blob {name!r} that no row names" for name in orphans(self._rows, self._blobs, now_ns)),
            *left_over(self._log, list(self._blobs.uploads)),
        ]  # fmt: skip

    def close(self) -> None:
        pass


