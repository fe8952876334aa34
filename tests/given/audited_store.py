"""An embedded store with something to find in it, and engines that carry ranges out in the thread that asks."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from changelog.base.runtime import SystemRuntime
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.finding import Finding
from recovery.audit.manifest import Manifest
from recovery.audit.running.jobs import AuditOptions, AuditProgress, Engine, Job, PartResult, carry_out
from recovery.audit.running.local import Work
from recovery.audit.running.run import run_audit
from tests.given.command_line import Command
from tests.given.deletion_process import settings_of
from tiered.object_id import ObjectId
from tiered.open import open_backends, open_storage
from tiered.settings import DATABASE_NAME, Settings

OBJECTS, SIZE = 12, 20


class MadeOnce:
    """Files that take longer to make than to write. `make`: makes them in a directory, `where`; texts may name it."""

    def __init__(self, make: Callable[[Path], Awaitable[object]]) -> None:
        self._make = make
        self._found: dict[Path, bytes | None] = {}
        self.where = ""

    async def write(self, directory: Path) -> None:
        if not self._found:
            with TemporaryDirectory() as self.where:
                await self._make(Path(self.where))
                found = [path for path in Path(self.where).rglob("*") if not path.name.endswith(("-wal", "-shm"))]
                self._found = {path.relative_to(self.where): path.read_bytes() if path.is_file() else None for path in found}
        directory.mkdir(parents=True, exist_ok=True)
        for path, content in self._found.items():
            if content is None:
                (directory / path).mkdir()
                continue
            text = content.replace(self.where.encode(), str(directory).encode())
            (directory / path).write_bytes(text if path.suffix in (".json", ".html") else content)


async def plant(directory: Path) -> Settings:
    """Twelve objects with blobs. Those of 2 and 7 are orphans, that of 5 is gone."""
    await _planted.write(directory)
    return settings_of(directory)


async def _plant(directory: Path) -> None:
    settings = settings_of(directory)
    async with open_storage(settings) as storage:
        for number in range(OBJECTS):
            await storage.put(ObjectId("media", (), f"day/{number:02}"), b"x" * SIZE)
    async with open_backends(settings, SystemRuntime()) as backends:
        target = (await backends.tiers.high_volume.read("media/objects/day/05")).target
        assert target is not None
        await backends.tiers.long_term.delete(target)
    database = sqlite3.connect(directory / DATABASE_NAME)
    with database:
        database.execute("DELETE FROM rows WHERE path IN ('media/objects/day/02', 'media/objects/day/07')")
    database.close()


_planted = MadeOnce(_plant)
PLANTED = [("dangling", "media/objects/day/05"), ("orphan", "media/objects/day/02"), ("orphan", "media/objects/day/07")]


class InThread:
    """`Engine` without workers: they cost seconds to start. `began`: how often each range was."""

    versions: Mapping[str, str] = {}

    def __init__(self, work: Work = carry_out, slots: int = 5) -> None:
        self.name = "in thread"
        self.slots = slots
        self.elsewhere = False
        self.began: Counter[int] = Counter()
        self.stopped = False
        self._work = work

    def run(self, job: Job, numbers: Sequence[int]) -> Iterator[PartResult]:
        for number in numbers:
            if self.stopped:
                return
            self.began[number] += 1
            yield self._work(job, number)

    def stop(self) -> None:
        self.stopped = True


async def audit(settings: Settings, to: Path, engine: Engine | None = None, shown: list[AuditProgress] | None = None) -> Manifest:
    """Without a grace, because what was planted is young."""
    told = [] if shown is None else shown
    return await run_audit(settings, AuditOptions(str(to), grace_s=0, insist=True), engine or InThread(), SystemRuntime(), told.append)


def found(to: Path) -> list[tuple[str, str | None]]:
    return sorted((each.class_, each.object) for each in all_findings(to))


def all_findings(to: Path) -> list[Finding]:
    """But for when they were read, which differs from run to run."""
    directory = RunDirectory.open(str(to))
    manifest = directory.read_manifest()
    assert manifest is not None
    return [
        each._replace(listed_ns=0, logged_ns=0, scanned_ns=0, confirmed_ns=None) for each in directory.findings(manifest.run)
    ]


class AuditedStore(Command):
    """`tiered` on a store with something to find in it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.settings = anyio.run(plant, self.store)

    def show(self, *arguments: str, code: int = 0) -> str:
        """Without a grace, because what was planted is young."""
        return self("audit", "show", *arguments, "--grace", "0s", code=code)

    def sql(self, statement: str) -> None:
        database = sqlite3.connect(self.store / DATABASE_NAME)
        with database:
            database.execute(statement)
        database.close()
