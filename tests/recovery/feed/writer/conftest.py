"""A store with a change feed, in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from emulators.world.runtime import SimulatedRuntime
from tests.given.fed_store import FedStore, fed_store


@pytest.fixture
async def store(request: pytest.FixtureRequest, anyio_backend: object) -> AsyncIterator[FedStore]:
    """In virtual time where the test has that."""
    virtual = "virtual_time" in request.fixturenames
    async with fed_store(SimulatedRuntime(seed=7)) if virtual else fed_store() as store:
        yield store
