"""The naive protocol, for comparison: what the same store and the same recovery lose without the fence.

    settle    only reads whether the row shows the revision: it refuses nothing, so what recovery takes for garbage may still
              be swapped in
    swap      a plain compare-and-swap on the row's target, without marks: what recovery has given up may still take effect

All else is as in the product: the write-ahead entry, the heartbeat, "is the lease still held?" before the swap, the
claim. That check and the swap are two moments, and a process can be stopped between them for longer than any lease.
Never a part of the product.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from changelog.change import ChangeId
from changelog.errors import ConfigurationError, UnavailableError, UnconfirmedError
from changelog.runtime import Runtime
from changelog.sqlite import Database, SqliteChangeLog
from tiered.backends import Inline, State, Tombstone
from tiered.compose import DATABASE_NAME, Backends, open_backends
from tiered.filesystem import FileBlobs
from tiered.metadata import encode_metadata, encode_policy
from tiered.settings import Settings
from tiered.settle import Tiers
from tiered.sqlite import SqliteRows

logger = logging.getLogger("tiered")


@asynccontextmanager
async def open_demo_backends(settings: Settings, runtime: Runtime, unfenced: bool) -> AsyncIterator[Backends | None]:
    """The product's own backends, or the same with unfenced rows; None: they are out of reach."""
    async with AsyncExitStack() as stack:
        try:
            backends = await stack.enter_async_context((_open_unfenced if unfenced else open_backends)(settings, runtime))
        except (UnavailableError, UnconfirmedError) as error:
            logger.warning("out_of_reach: %s", error)
            backends = None
        yield backends


@asynccontextmanager
async def _open_unfenced(settings: Settings, runtime: Runtime) -> AsyncIterator[Backends]:
    if settings.directory is None:
        raise ConfigurationError("no directory is set: say where the store lives")
    async with Database.open(settings.directory / DATABASE_NAME, runtime) as database:
        blobs = await FileBlobs.open_directory(settings.directory, runtime)
        yield Backends(Tiers(UnfencedRows(database, runtime), blobs), SqliteChangeLog(database, runtime))


class UnfencedRows(SqliteRows):
    """Rows that remember no token."""

    def __init__(self, database: Database, runtime: Runtime) -> None:
        super().__init__(database, runtime)
        self._shared = database
        self._clock = runtime

    async def settle(self, path: str, token: ChangeId) -> bool:
        def run(connection: sqlite3.Connection) -> bool:
            found = connection.execute("SELECT target, token FROM rows WHERE path = ?", (path,)).fetchone()
            return found is not None and (found[0] == f"{path}/{token}" or found[1] == token)

        return await self._shared.read(run)

    async def swap(self, path: str, token: ChangeId, expected: str | None, state: State, deadline_s: float) -> bool:
        def run(connection: sqlite3.Connection) -> bool:
            if self._clock.boot_time() > deadline_s:
                raise UnavailableError(f"the swap of {token} at {path} waited too long for its turn; it was not sent")
            found = connection.execute("SELECT target FROM rows WHERE path = ?", (path,)).fetchone()
            if (found[0] if found else None) != expected:
                return False
            _replace(connection, path, token, state)
            return True

        return await self._shared.write(run)


def _replace(connection: sqlite3.Connection, path: str, token: ChangeId, state: State) -> None:
    """Nothing in the demo expires, so no deadline is written."""
    connection.execute("DELETE FROM rows WHERE path = ?", (path,))
    match state:
        case Tombstone(target, expiration):
            columns: tuple[object, ...] = (target, json.dumps(encode_policy(expiration)), None, None)
        case Inline(metadata, payload):
            columns = (None, None, encode_metadata(metadata), payload)
        case None:
            return
    connection.execute(
        "INSERT INTO rows (path, token, target, policy, metadata, payload) VALUES (?, ?, ?, ?, ?, ?)", (path, token, *columns)
    )
