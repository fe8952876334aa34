"""A store with objects and orphans, and a run of the audit that found them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import anyio

from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from tests.given.audited_store import MadeOnce, audit
from tests.given.deletion_process import settings_of
from tiered.metadata import Metadata
from tiered.object_id import ObjectId
from tiered.open import open_backends, open_storage
from tiered.settings import DATABASE_NAME, Settings

OBJECTS, ORPHANS = 12, 25
ALL = 1_000_000
"""So many may be deleted."""


async def plant_orphans(settings: Settings) -> None:
    """Twelve objects, and twenty-five blobs that belonged to them or to nobody."""
    runtime = SystemRuntime()
    async with open_storage(settings) as storage:
        for number in range(OBJECTS):
            await storage.put(ObjectId("media", (), f"{number:02}"), b"x" * 20)
    async with open_backends(settings, runtime) as backends:
        for number in range(ORPHANS):
            upload = await backends.tiers.long_term.open_upload(f"media/objects/{number:02}/{ChangeId.new(runtime)}", Metadata(), 10)
            await upload.write(bytes(10))
            await upload.finalise()


async def embedded_with_orphans(directory: Path) -> Settings:
    """The settings of such a store in `directory`/store. Its run is in `directory`/run."""
    await _audited.write(directory)
    with closing(sqlite3.connect(directory / "store" / DATABASE_NAME)) as database, database:
        note = "CAST(replace(CAST(value AS TEXT), ?, ?) AS BLOB)"  # it names the run
        assert database.execute(f"UPDATE notes SET value = {note}", (_audited.where, str(directory))).rowcount > 0
    return settings_of(directory / "store")


async def _audit(directory: Path) -> None:
    await plant_orphans(settings_of(directory / "store"))
    await audit(settings_of(directory / "store"), directory / "run")


_audited = MadeOnce(_audit)


async def wait_until_judged(settings: Settings) -> list[str]:
    """Waits until an audit without a grace judges all blobs that are there now. Returns their names.

    A service tells its time in whole seconds, and what is not older is not judged.
    """
    async with open_backends(settings, SystemRuntime()) as backends:
        listed = (await backends.tiers.long_term.list("", None, 1000)).blobs
        while await backends.tiers.long_term.now_ns() <= max(blob.created_ns for blob in listed):  # noqa: ASYNC110 - no event tells of a server's time
            await anyio.sleep(0.05)
        return [blob.name for blob in listed]


async def blobs(settings: Settings) -> set[str]:
    async with open_backends(settings, SystemRuntime(), writes=False) as backends:
        return {blob.name for blob in (await backends.tiers.long_term.list("", None, 10_000)).blobs}


async def readable(settings: Settings) -> int:
    """How many objects can be read to their end."""
    number = 0
    async with open_storage(settings) as storage:
        for each in range(OBJECTS):
            stored = await storage.get(ObjectId("media", (), f"{each:02}"))
            number += stored is not None and len(await stored.read()) >= 20
    return number
