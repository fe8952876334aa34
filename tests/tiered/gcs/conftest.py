"""An emulated GCS with an empty bucket."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from emulators.gcs.server import GcsEmulator


@pytest.fixture
async def server(anyio_backend: str) -> AsyncIterator[GcsEmulator]:
    async with GcsEmulator() as server:
        server.create_bucket("blobs")
        yield server
