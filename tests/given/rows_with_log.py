"""Rows of an embedded store, beside the log of the same file."""

from __future__ import annotations

import os

from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from changelog.sqlite.database import Database
from changelog.sqlite.log import SqliteChangeLog
from tiered.embedded.rows import SqliteRows
from tiered.metadata import Metadata
from tiered.services.backends import Inline


class RowsWithLog(SqliteRows):
    def __init__(self, database: Database, runtime: SystemRuntime) -> None:
        super().__init__(database, runtime)
        self.log = SqliteChangeLog(database, runtime)

    async def put(self, path: str, size: int) -> None:
        token = ChangeId.new(self._runtime)
        assert await self.put_inline(path, token, Inline(Metadata(size=size), os.urandom(size), token))

    async def delete(self, path: str) -> None:
        assert await self.delete_inline(path, ChangeId.new(self._runtime))

    async def paths(self) -> list[str]:
        return [row.path for row in (await self.scan("", b"", 1000)).rows]

    async def remove_blob(self, path: str) -> None:
        """What the deletion of a large object writes: entry, swap, settled old revision, forgotten entry."""
        token, old = ChangeId.new(self._runtime), (await self.read(path)).target
        entry = await self.log.record(Change(token, path, None, old), "me")
        assert await self.swap(path, token, old, None, self._runtime.boot_time() + 60)
        assert old is not None and not await self.settle(path, ChangeId(old[-36:]))
        await self.log.forget(entry)
