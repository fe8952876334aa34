"""A store with a small limit for what is in a row, in memory unless a test asks for another, and an empty directory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tiered import Settings, TieredStorage, open_storage
from tiered.testing import memory_storage


@pytest.fixture
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TieredStorage]:
    settings = Settings(directory=tmp_path / "store", inline_bytes_max=1000)
    async with open_storage(settings) if getattr(request, "param", "") == "embedded" else memory_storage(settings) as opened:
        yield opened


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (made := tmp_path / "files").mkdir()
    return made
