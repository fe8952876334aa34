"""The composition root: from settings to open backends, and to a store on top of them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio

from changelog.base.runtime import Runtime, SystemRuntime
from changelog.log import ChangeLog
from changelog.noop import NoopChangeLog
from changelog.sqlite.log import Database, SqliteChangeLog
from tiered.embedded.blobs import FileBlobs
from tiered.embedded.rows import SqliteRows
from tiered.errors import ConfigurationError
from tiered.protocol.backends import Tiers
from tiered.settings import Settings, load_settings
from tiered.storage import TieredStorage

logger = logging.getLogger("tiered")

DATABASE_NAME = "tiered.db"


@dataclass(frozen=True, slots=True)
class Backends:
    """What a store and a recovery loop both stand on."""

    tiers: Tiers
    log: ChangeLog


@asynccontextmanager
async def open_storage(
    source: str | Path | Settings, runtime: Runtime | None = None, *, writes: bool = True
) -> AsyncIterator[TieredStorage]:
    """An open store from a YAML file or from `Settings`. Raises `ConfigurationError` with the fix.

    Embedded mode: the directory is created. Any number of stores and processes may have one store open at once. `writes` False: to
    read only, which a Bigtable table of other software suffices for; a put or delete is a `ConfigurationError` then.
    """
    if source is None:  # for `load_settings` that is the environment alone; here it is a name that somebody forgot
        raise ConfigurationError("pass Settings(…), or the path of a settings file, not None")
    settings = source if isinstance(source, Settings) else load_settings(source)
    runtime = runtime or SystemRuntime()
    async with (
        open_backends(settings, runtime, writes=writes) as backends,
        TieredStorage(backends.tiers, backends.log, runtime, settings, writes=writes) as storage,
    ):
        yield storage


@asynccontextmanager
async def open_backends(settings: Settings, runtime: Runtime, *, writes: bool = True, verify: bool = True) -> AsyncIterator[Backends]:
    """Opens both tiers and the changelog as the settings say. Raises `ConfigurationError` with the fix.

    `writes` False: to read only; what only writers and recovery need may be missing. `verify` False: besides, by one of many
    processes, whose tables and bucket somebody has just looked at.
    """
    if settings.changelog is None and writes:
        logger.warning(
            "no changelog is set, so what a killed process leaves behind stays there for good; "
            "set changelog: bigtable (or changelog: noop to accept it)"
        )
    opening = _open_embedded(settings, runtime, writes) if settings.directory else _open_google(settings, runtime, writes, verify)
    async with opening as (tiers, log):
        yield Backends(tiers, NoopChangeLog() if settings.changelog in (None, "noop") else log)


@asynccontextmanager
async def _open_embedded(settings: Settings, runtime: Runtime, writes: bool) -> AsyncIterator[tuple[Tiers, ChangeLog]]:
    assert settings.directory is not None
    if not writes and not (settings.directory / DATABASE_NAME).exists():
        raise ConfigurationError(f"there is no store in {settings.directory}, and whoever only reads makes none: check the directory")
    async with Database.open(settings.directory / DATABASE_NAME, runtime, beside=settings.directory / "blobs") as database:
        # A reader need not try out whether blobs can be written, and makes no directory.
        blobs = await FileBlobs.open_directory(settings.directory, runtime) if writes else FileBlobs(settings.directory, runtime)
        yield Tiers(SqliteRows(database, runtime), blobs), SqliteChangeLog(database, runtime)


@asynccontextmanager
async def _open_google(settings: Settings, runtime: Runtime, writes: bool, verify: bool) -> AsyncIterator[tuple[Tiers, ChangeLog]]:
    if anyio.get_cancelled_exc_class().__module__.startswith("trio"):
        raise ConfigurationError("Bigtable and GCS need asyncio, because gRPC does: run this with anyio.run(main) or asyncio.run(main())")
    try:
        from tiered.production import open_google  # embedded mode needs none of Google's packages
    except ModuleNotFoundError as missing:
        raise ConfigurationError(f"Bigtable and GCS need packages that are not installed: pip install 'tiered[gcp]' ({missing})") from None
    async with open_google(settings, runtime, writes=writes, verify=verify) as opened:
        yield opened
