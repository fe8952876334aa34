"""Whose file it is and in which format, and the tables that it must have.

The file itself knows only whose it is (`application_id`) and which format it has (`user_version`). Each module that
keeps tables in it brings its own `CREATE TABLE IF NOT EXISTS`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from changelog.base.errors import ConfigurationError
from changelog.sqlite.result_codes import code_of

APPLICATION_ID = 0x54694572
"""Stands in the file's header, where `file` and SQLite show it: "TiEr"."""

FORMAT_VERSION = 2
"""Format 1 is from before 0.1.0. Opening takes such a file over: `require` adds what its tables lack."""

T = TypeVar("T")
Run = Callable[[sqlite3.Connection], T]


def sign(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={FORMAT_VERSION}")


def signed(connection: sqlite3.Connection, path: Path) -> int | None:
    """The format that the file says it has; None: it is new.

    `ConfigurationError`: it is not ours, or its format is newer.
    """
    # One statement, so one look: another process may sign the file between two.
    (application, version, tables), = connection.execute(
        "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema) FROM pragma_application_id, pragma_user_version"
    )
    if application == version == tables == 0:
        return None
    if application != APPLICATION_ID:
        raise ConfigurationError(f"{path} is an SQLite file of another program; choose another path")
    _refuse(version, path)
    return int(version)


def refuse_newer(connection: sqlite3.Connection, path: Path) -> None:
    """`ConfigurationError`: the format is newer by now. Ask it in each transaction, which then keeps its answer true.

    Newer software may take the file over while it is open here. Opening would refuse it, so all else does, too.
    """
    (version,), = connection.execute("PRAGMA user_version")  # in a page that each transaction has read
    _refuse(version, path)


def _refuse(version: int, path: Path) -> None:
    if version > FORMAT_VERSION:
        raise ConfigurationError(f"{path} has format {version} and this software knows up to {FORMAT_VERSION}: install a newer tiered")


class SchemaMissingError(Exception):
    """The file lacks a table that is required. It must be written to before it can be read."""


class RequiredSchema:
    """The statements that must have run before anything is read or written."""

    def __init__(self) -> None:
        self._required: list[str | Run[None]] = []
        self._present = 0  # how many of these were seen in the file

    def add(self, schema: Sequence[str | Run[None]]) -> None:
        self._required.extend(schema)

    def make(self, writer: sqlite3.Connection) -> int:
        """Runs the statements that were not seen in the file yet.

        Returns how many hold once this transaction has ended well: tell `hold` then.
        """
        count = len(self._required)
        for statement in self._required[self._present : count]:
            if isinstance(statement, str):
                writer.execute(statement)
            else:
                statement(writer)
        return count

    def hold(self, count: int) -> None:
        self._present = count

    def look(self, reader: sqlite3.Connection) -> None:
        """Raises `SchemaMissingError` if the file lacks something of it."""
        try:
            self._present = self.make(reader)
        except sqlite3.OperationalError as error:
            if code_of(error) != sqlite3.SQLITE_READONLY:
                raise
            raise SchemaMissingError from error
