"""The real Bigtable adapters of one process: its rows, and its log under as many shards as its software knows.

It is loaded for each code whose processes a world has (`emulators.world.code`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from changelog.base.runtime import Runtime
from changelog.bigtable.channel import BigtableTable, Channel
from changelog.bigtable.log import BigtableChangeLog
from changelog.change import Change, ChangeId, Entry
from changelog.log import ChangeLog, KeyRange, shard_ranges
from tiered.bigtable.cells import LEGACY_FAMILIES, MANUAL
from tiered.bigtable.rows import BigtableRows
from tiered.provision.schema import FAMILIES
from tiered.services.backends import HighVolumeBackend

LEGACY = dict.fromkeys(LEGACY_FAMILIES, FAMILIES[MANUAL])


def rows_on(channel: Channel, table: str, runtime: Runtime) -> HighVolumeBackend:
    return BigtableRows(BigtableTable(channel, table), runtime, LEGACY)


def log_on(channel: Channel, table: str, runtime: Runtime, shards: int | None) -> ChangeLog:
    return ShardedLog(BigtableTable(channel, table), runtime, shards)


class ShardedLog(BigtableChangeLog):
    """Records under `shards` shards, as software does that was built for them. None: as many as this software uses."""

    def __init__(self, table: BigtableTable, runtime: Runtime, shards: int | None = None) -> None:
        super().__init__(table, runtime)
        self._shards = shards
        self._sharded = WeakKeyDictionary[Change, Change]()  # kept as long as its change, which may be recorded again

    def ranges(self) -> Sequence[KeyRange]:
        return super().ranges() if self._shards is None else shard_ranges(self._shards)

    async def record(self, change: Change, owner: str) -> Entry:
        if self._shards is None:
            return await super().record(change, owner)
        if change not in self._sharded:
            self._sharded[change] = replace(change, id=_ShardedId(change.id, self._shards))
        return await super().record(self._sharded[change], owner)


class _ShardedId(ChangeId):
    def __new__(cls, text: str, shards: int) -> _ShardedId:
        sharded = super().__new__(cls, text)
        sharded._shards = shards
        return sharded

    _shards: int

    def row_key(self, shards: int | None = None) -> str:
        return super().row_key(self._shards if shards is None else shards)
