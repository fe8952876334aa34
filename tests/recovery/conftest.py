"""What the tests of this room have in common: their event loop and its clock, and a store in memory to look at."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from tests.given.tapped_store import TappedWorld


@pytest.fixture
def virtual_time() -> None:
    """Whatever requests this sleeps in no time: its clock jumps to the next event."""


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> str | tuple[str, dict[str, Any]]:
    return ("trio", {"clock": MockClock(autojump_threshold=0)}) if "virtual_time" in request.fixturenames else "asyncio"


@pytest.fixture
async def world(anyio_backend: Any) -> TappedWorld:
    return TappedWorld()
