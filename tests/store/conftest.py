"""The tests of the store run on trio, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from tests.given.tapped_store import TappedWorld


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": MockClock(autojump_threshold=0)}


@pytest.fixture
async def world(anyio_backend: Any) -> TappedWorld:
    return TappedWorld()
