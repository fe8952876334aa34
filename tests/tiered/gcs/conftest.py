"""An emulated GCS with an empty bucket."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from emulators.gcs.server import GcsEmulator
from emulators.gcs.store import Bucket


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def server(anyio_backend: str) -> AsyncIterator[GcsEmulator]:
    """At the end, each fault that a test planted so many times was met so often: else the test shows nothing of it."""
    async with GcsEmulator() as server:
        server.create_bucket("blobs")
        yield server
        assert [fault for fault in server.faults if fault.times] == [], "these faults were not met"


@pytest.fixture
def bucket(server: GcsEmulator) -> Bucket:
    return server.buckets["blobs"]
