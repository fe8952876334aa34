"""The composition root: from settings to open backends, and to a store on top of them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from changelog.log import ChangeLog
from changelog.noop import NoopChangeLog
from changelog.runtime import Runtime, SystemRuntime
from changelog.sqlite import Database, SqliteChangeLog
from tiered.errors import ConfigurationError
from tiered.filesystem import FileBlobs
from tiered.settings import Settings, load_settings
from tiered.settle import Tiers
from tiered.sqlite import SqliteRows
from tiered.storage import TieredStorage

logger = logging.getLogger("tiered")

DATABASE_NAME = "tiered.db"


@dataclass(frozen=True, slots=True)
class Backends:
    """What a store and a recovery loop both stand on."""

    tiers: Tiers
    log: ChangeLog


@asynccontextmanager
async def open_storage(source: str | Path | Settings, runtime: Runtime | None = None) -> AsyncIterator[TieredStorage]:
    """An open store from a YAML file or from `Settings`. Raises `ConfigurationError` with the fix.

    Embedded mode: the directory is created; any number of stores and processes may have it open at once.
    """
    settings = source if isinstance(source, Settings) else load_settings(Path(source))
    runtime = runtime or SystemRuntime()
    async with open_backends(settings, runtime) as backends, TieredStorage(backends.tiers, backends.log, runtime, settings) as storage:
        yield storage


@asynccontextmanager
async def open_backends(settings: Settings, runtime: Runtime) -> AsyncIterator[Backends]:
    """Opens both tiers and the changelog as the settings say."""
    if settings.directory is None:
        raise ConfigurationError("no directory is set: say where the store lives, e.g. directory: ./data, or TIERED_DIRECTORY")
    if settings.changelog is None:
        logger.warning(
            "no changelog is set, so what a killed process leaves behind stays there for good; "
            "set changelog: sqlite (or changelog: noop to accept it)"
        )
    async with Database.open(settings.directory / DATABASE_NAME, runtime) as database:
        rows = SqliteRows(database, runtime)
        blobs = await FileBlobs.open_directory(settings.directory, runtime)
        log: ChangeLog = SqliteChangeLog(database, runtime) if settings.changelog == "sqlite" else NoopChangeLog()
        yield Backends(Tiers(rows, blobs), log)
