"""Rows in SQLite and blobs in files, below one directory. The directory may also hold the blobs of rows elsewhere.

    tiered.db     rows, marks and changelog, if no section of the settings names another place for them
    blobs/        and `uploads/`, for blobs that are being written
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import rmtree

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import Runtime
from tiered.kinds.kind import OpenRows, TrialNeeds
from tiered.provision.findings import Notice, NoticeKind, Provisioning
from tiered.services.backends import LongTermBackend
from tiered.settings import DATABASE_NAME, Settings
from tiered.whose import refuse_store


class DirectoryKind:
    """Both kinds. A directory belongs to one store, so nobody needs to know its owner."""

    def address(self, settings: Settings) -> str:
        return "directory"

    def inputs(self, settings: Settings) -> Mapping[str, str]:
        return {"directory": str(_section(settings))}

    def place(self, settings: Settings) -> None:
        return None

    def beside(self, settings: Settings, trial: str) -> Settings:
        directory = _section(settings)
        return settings.model_copy(update={"directory": directory.with_name(f"{_trials_of(directory)}{trial}")})

    async def trials(self, settings: Settings, runtime: Runtime) -> Sequence[str]:
        directory = _section(settings).absolute()
        found = [each.name for each in directory.parent.iterdir()] if directory.parent.is_dir() else []
        return sorted(name.removeprefix(_trials_of(directory)) for name in found if name.startswith(_trials_of(directory)))

    async def clear(self, settings: Settings, runtime: Runtime) -> None:
        rmtree(_section(settings), ignore_errors=True)  # both tiers, if both are there: whoever opens it makes it anew

    async def remove(self, settings: Settings, runtime: Runtime, trial: str) -> None:
        await self.clear(self.beside(settings, trial), runtime)

    async def told(self, settings: Settings, runtime: Runtime) -> Mapping[str, str]:
        import platform
        import sqlite3

        return {"version": f"SQLite {sqlite3.sqlite_version}", "system": platform.system()}

    def trial_needs(self, settings: Settings) -> TrialNeeds:
        return TrialNeeds("a directory …-prove-… beside that of the store", "to make and remove it")


class DirectoryRows(DirectoryKind):
    @asynccontextmanager
    async def open(self, settings: Settings, runtime: Runtime, *, writes: bool, verify: bool) -> AsyncIterator[OpenRows]:
        directory = _section(settings)
        try:
            found = (directory / DATABASE_NAME).exists()
        except OSError as error:
            raise ConfigurationError(f"{directory} cannot be looked into: {error.strerror}") from error
        if not writes and not found:
            raise ConfigurationError(f"there is no store in {directory}, and whoever only reads makes none: check the directory")
        if not found:
            refuse_store(directory)
        from changelog.sqlite.log import Database, SqliteChangeLog
        from tiered.embedded.rows import SqliteRows

        async with Database.open(directory / DATABASE_NAME, runtime, beside=directory / "blobs") as database:
            yield OpenRows(SqliteRows(database, runtime), SqliteChangeLog(database, runtime), self.address(settings), local=True)

    async def owner(self, settings: Settings, runtime: Runtime) -> str:
        return self.address(settings)

    async def inspect(self, settings: Settings, runtime: Runtime) -> list[Notice]:
        from tiered.provision.embedded_store import inspect_directory

        return await inspect_directory(_section(settings), DATABASE_NAME, settings.changelog, runtime)

    async def provision(self, settings: Settings, runtime: Runtime, wanted: Provisioning) -> list[Notice]:
        return [Notice(NoticeKind.OK, f"nothing is needed: the first put makes the directory {_section(settings)}")]


class DirectoryBlobs(DirectoryKind):
    @asynccontextmanager
    async def open(
        self, settings: Settings, runtime: Runtime, rows: OpenRows, *, writes: bool, verify: bool
    ) -> AsyncIterator[LongTermBackend]:
        from tiered.embedded.blobs import FileBlobs, refuse_if_gone

        directory = _section(settings)
        if not writes:  # a reader creates no directory and does not need to test whether blobs can be written
            yield FileBlobs(directory, runtime)
            return
        await refuse_if_gone(directory, rows.rows)
        yield await FileBlobs.open_directory(directory, runtime)

    async def inspect(self, settings: Settings, runtime: Runtime, owner: str | None) -> list[Notice]:
        from tiered.provision.embedded_store import inspect_blobs

        return [] if settings.embedded else await inspect_blobs(_section(settings), runtime)  # else the rows' look has told it

    async def provision(self, settings: Settings, runtime: Runtime, owner: str, wanted: Provisioning) -> list[Notice]:
        return [Notice(NoticeKind.OK, f"nothing is needed: the first put makes the directory {_section(settings)}")]


ROWS, BLOBS = DirectoryRows(), DirectoryBlobs()


def _trials_of(directory: Path) -> str:
    """How the names of trials begin beside this directory: a store has no other one in it."""
    return f"{directory.absolute().name.partition('-prove-')[0]}-prove-"


def _section(settings: Settings) -> Path:
    assert settings.directory is not None, "whoever chooses this kind has seen the setting"
    return settings.directory
