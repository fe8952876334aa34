"""One server for all probes of a module, with an empty bucket for each."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest_asyncio

from emulators.gcs.server import GcsEmulator
from tests.given.raw_gcs import RawClient


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[tuple[GcsEmulator, aiohttp.ClientSession]]:
    async with GcsEmulator() as server, aiohttp.ClientSession(auto_decompress=False) as session:
        yield server, session


@pytest_asyncio.fixture(loop_scope="module")
async def emptied(shared: tuple[GcsEmulator, aiohttp.ClientSession]) -> GcsEmulator:
    server, _ = shared
    server.buckets.clear()
    server.create_bucket("bucket")
    return server


@pytest_asyncio.fixture(loop_scope="module")
async def raw(emptied: GcsEmulator, shared: tuple[GcsEmulator, aiohttp.ClientSession]) -> RawClient:
    return RawClient(shared[1], emptied.url)
