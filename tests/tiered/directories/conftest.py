"""A store in memory or in a directory, with a small limit for what is in a row, and an empty directory beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tiered import Settings, TieredStorage, open_storage
from tiered.testing import memory_storage


@pytest.fixture(params=["memory", "embedded"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TieredStorage]:
    settings = Settings(directory=tmp_path / "store", inline_bytes_max=1000)
    async with memory_storage(settings) if request.param == "memory" else open_storage(settings) as opened:
        yield opened


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (made := tmp_path / "files").mkdir()
    return made
