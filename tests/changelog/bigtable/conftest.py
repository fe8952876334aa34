"""The connections to Bigtable are tried against a server on loopback that says what a test tells it to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.given.scripted_bigtable import ScriptedBigtable


@pytest.fixture
async def server(anyio_backend: str) -> AsyncIterator[ScriptedBigtable]:
    scripted = ScriptedBigtable()
    await scripted.start()
    try:
        yield scripted
    finally:
        await scripted.server.stop(None)
