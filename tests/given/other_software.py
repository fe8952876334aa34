"""Rows as other software writes them, in a store's table in the emulator: without a token, and without marks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import BigtableTable, insecure_channel, set_cell
from tiered.metadata import Metadata, encode_metadata
from tiered.settings import Settings


@asynccontextmanager
async def cells_of(settings: Settings) -> AsyncIterator[BigtableTable]:
    at = settings.bigtable
    assert at is not None and at.emulator_host is not None
    async with insecure_channel(at.emulator_host) as channel:
        yield BigtableTable(channel, f"projects/{at.project}/instances/{at.instance}/tables/{at.table}")


async def write_as_other_software(settings: Settings, path: str) -> None:
    """Writes a small object, now."""
    metadata = encode_metadata(Metadata(time_created_ns=SystemRuntime().wall_ns(), size=1))
    async with cells_of(settings) as table:
        await table.mutate(path.encode(), set_cell("fm", b"p", b"x"), set_cell("fm", b"m", metadata))
