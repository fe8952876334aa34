"""Rows as other software writes them, in a store's table in the emulator: without a token, and without marks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import BigtableTable, insecure_channel, set_cell
from changelog.change import ChangeId
from tiered.metadata import NS_PER_MS, NS_PER_S, Metadata, encode_metadata
from tiered.settings import Settings


@asynccontextmanager
async def cells_of(settings: Settings) -> AsyncIterator[BigtableTable]:
    at = settings.bigtable
    assert at is not None and at.emulator_host is not None
    async with insecure_channel(at.emulator_host) as channel:
        yield BigtableTable(channel, f"projects/{at.project}/instances/{at.instance}/tables/{at.table}")


async def write_as_both(settings: Settings, theirs: str, ours: str) -> None:
    """Small objects: one as other software has written it ten minutes ago, and one of ours, ten minutes before that."""
    now_ns = SystemRuntime().wall_ns()
    async with cells_of(settings) as table:
        for path, created_ns in ((theirs, now_ns - 600 * NS_PER_S), (ours, now_ns - 1200 * NS_PER_S)):
            metadata = encode_metadata(Metadata(time_created_ns=created_ns, size=1))
            token = [] if path == theirs else [set_cell("fm", b"v", ChangeId.first(created_ns // NS_PER_MS).encode())]
            await table.mutate(path.encode(), set_cell("fm", b"p", b"x"), set_cell("fm", b"m", metadata), *token)
