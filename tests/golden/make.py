"""Makes the golden stores of a release: `python -m tests.golden.make VERSION`, in the checkout of that release.

    embedded    a directory with all that `contents.py` names      backup      a copy of it, as `tiered backup` makes it
    services    the same on Bigtable and GCS, as lines             audited     a store, the run of its audit, a deletion
    postgres    the same on PostgreSQL and S3, as lines                        with a quarantine
    fed         a store with a change feed, and the feed       exported    a store, and its export with an update

It refuses to make a release again: later software must read what was made, and not what it would make. What was made is
compared with nothing here; the tests beside it do that, with the expectations that this writes from what it has put.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio

from changelog.base.errors import TieredError, UnavailableError
from changelog.base.runtime import SystemRuntime
from emulators.postgres.server import PostgresNotFoundError, PostgresServer, postgres_server
from recovery.audit.deleting.deletion import delete_orphans
from recovery.audit.deleting.gates import DeletionRequest
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.running.jobs import AuditOptions, Job, PartResult, carry_out
from recovery.audit.running.run import run_audit
from recovery.backup import back_up
from recovery.cli.feed.run import open_feed
from tests.given.audited_store import InThread
from tests.golden.clock import HOUR_S, GoldenRuntime
from tests.golden.contents import INLINE_BYTES_MAX, LARGE, Golden, object_id, orphan, path_of, payload
from tests.golden.postgres import postgres_and_s3
from tests.golden.services import services
from tests.golden.stored import HERE, GoldenError, pack, write_expected, write_lines, writing
from tiered import Settings, TieredStorage
from tiered.exports import export_objects
from tiered.open import Backends, open_backends

LABEL = "golden"
ORPHANS = 5


def settings_of(directory: Path, **more: Any) -> Settings:
    return Settings(directory=directory, changelog="sqlite", inline_bytes_max=INLINE_BYTES_MAX, **more)


def fed_settings(directory: Path) -> Settings:
    return settings_of(directory / "store", feed={"enabled": True, "to": (str(directory / "feed"),)})


@asynccontextmanager
async def opened(settings: Settings, runtime: GoldenRuntime, *, writes: bool = True) -> AsyncIterator[tuple[TieredStorage, Backends]]:
    async with (
        open_backends(settings, runtime, writes=writes) as backends,
        TieredStorage(backends.tiers, backends.log, runtime, settings, writes=writes) as storage,
    ):  # fmt: skip
        yield storage, backends


async def embedded(directory: Path) -> Golden:
    golden = Golden(GoldenRuntime())
    async with opened(settings_of(directory), golden.runtime) as (storage, backends):
        await golden.fill(storage, backends)
    return golden


async def on_services() -> tuple[Golden, list[dict[str, Any]]]:
    golden = Golden(GoldenRuntime())
    async with services(golden.runtime) as at:
        await golden.fill(at.storage, at.backends)
        return golden, at.lines()


async def on_postgres(server: PostgresServer) -> tuple[Golden, list[dict[str, Any]]]:
    golden = Golden(GoldenRuntime())
    async with postgres_and_s3(server, golden.runtime) as at:
        await golden.fill(at.storage, at.backends)
        return golden, await at.lines()


# --- audit, feed, export ------------------------------------------------------------------------------


async def audited(directory: Path) -> dict[str, Any]:
    """`store`; `run`: its audit, whose orphans but two were put into a quarantine."""
    settings, runtime = settings_of(directory / "store"), GoldenRuntime()
    async with opened(settings, runtime) as (storage, backends):
        for name in ("one", "two", "lost"):
            await storage.put(object_id(name), payload(name, LARGE))
        orphans = sorted([await orphan(backends, path_of("one"), runtime) for _ in range(ORPHANS)])
        lost = (await backends.tiers.high_volume.read(path_of("lost"))).target
        assert lost is not None and await backends.tiers.long_term.delete(lost) is not None
    # The store's clock has gone on by two days, so nothing of it is young.
    runtime = GoldenRuntime(48 * HOUR_S)
    run = directory / "runs" / "1"
    await run_audit(settings, AuditOptions(str(run)), InThread(), runtime, lambda _: None)
    request = DeletionRequest(str(run), at_most=1000, rate_per_s=2000.0, quarantine=LABEL)
    await delete_orphans(settings, request, runtime, lambda _: None)
    await _interrupted(settings, directory / "runs" / "2", runtime)
    return {"orphans": orphans, "dangling": path_of("lost"), "objects": sorted(path_of(name) for name in ("one", "two"))}


async def _interrupted(settings: Settings, run: Path, runtime: GoldenRuntime) -> None:
    """A run whose engine failed after its first range."""

    class FailingEngine(InThread):
        def run(self, job: Job, numbers: Sequence[int]) -> Iterator[PartResult]:
            yield carry_out(job, numbers[0])
            raise UnavailableError("the engine failed")

    with suppress(UnavailableError):
        await run_audit(settings, AuditOptions(str(run)), FailingEngine(), runtime, lambda _: None)
    left = RunDirectory.open(str(run)).read_manifest()
    if left is None or left.complete:
        raise GoldenError("the second run was not to be complete")


async def fed(directory: Path) -> dict[str, Any]:
    """`store` and `feed`: three objects are published. A fourth, and the deletion of the first, are not yet."""
    runtime = GoldenRuntime(moves=True)
    settings = fed_settings(directory)
    references: dict[str, str] = {}
    async with opened(settings, runtime) as (storage, backends):
        for name in ("one", "two", "three"):
            references[path_of(name)] = f"{path_of(name)}/{(await storage.put(object_id(name), payload(name, LARGE))).revision}"
        published = dict(references)
        await publish(settings, backends, runtime)
        references[path_of("four")] = f"{path_of('four')}/{(await storage.put(object_id('four'), payload('four', LARGE))).revision}"
        await storage.delete(object_id("one"))
        del references[path_of("one")]
    return {"published": published, "references": references}


async def publish(settings: Settings, backends: Backends, runtime: GoldenRuntime) -> None:
    """As `tiered feed run --once` does."""
    async with AsyncExitStack() as stack:
        run = await open_feed(backends, runtime, settings, stack, once=True)
        await run.run()


async def exported(directory: Path) -> dict[str, Any]:
    """`store` and `export`: an export, and an update after one object was replaced and another deleted."""
    golden = Golden(GoldenRuntime())
    settings, to = settings_of(directory / "store"), directory / "export"
    async with opened(settings, golden.runtime) as (storage, backends):
        await golden.fill(storage, backends)
        await export_objects(storage, to)
        await golden.go_on(storage)
        await export_objects(storage, to, update=True)
    return golden.expected


# --- all -----------------------------------------------------------------------------------------


async def make(into: Path, scratch: Path) -> None:
    golden = await embedded(scratch / "embedded")
    pack(scratch / "embedded", into / "embedded.tar.xz")
    write_expected(golden.expected, into / "embedded.json")
    back_up(scratch / "embedded", scratch / "backup", SystemRuntime())
    pack(scratch / "backup", into / "backup.tar.xz")
    golden, lines = await on_services()
    write_lines(lines, into / "services.jsonl.xz")
    write_expected(golden.expected, into / "services.json")
    with postgres_server() as server:
        golden, lines = await on_postgres(server)
    write_lines(lines, into / "postgres.jsonl.xz")
    write_expected(golden.expected, into / "postgres.json")
    for name, fill in (("audited", audited), ("fed", fed), ("exported", exported)):
        (scratch / name).mkdir()
        write_expected({"made_in": str(scratch / name), **await fill(scratch / name)}, into / f"{name}.json")
        pack(scratch / name, into / f"{name}.tar.xz")


def main() -> int:
    if len(sys.argv) != 2 or not sys.argv[1] or "/" in sys.argv[1]:
        sys.stderr.write("usage: python -m tests.golden.make VERSION\n")
        return 2
    try:
        with writing(HERE / sys.argv[1]) as into, TemporaryDirectory() as scratch:
            anyio.run(make, into, Path(scratch))
    except (GoldenError, PostgresNotFoundError, TieredError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
