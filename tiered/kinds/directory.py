"""Rows in SQLite and blobs in files, below one directory. The directory may also hold the blobs of rows elsewhere.

    tiered.db     rows, marks and changelog, if no section of the settings names another place for them
    blobs/        and `uploads/`, for blobs that are being written
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import Runtime
from tiered.kinds.kind import OpenRows
from tiered.protocol.backends import LongTermBackend
from tiered.provision.findings import Notice, NoticeKind, Provisioning
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
    def inventoried(self, settings: Settings) -> None:
        return None

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


def _section(settings: Settings) -> Path:
    assert settings.directory is not None, "whoever chooses this kind has seen the setting"
    return settings.directory
