"""Fixtures for pytest. A test suite asks for them in its `conftest.py`: `pytest_plugins = ["tiered.testing.fixtures"]`.

They are no plugin that pytest loads by itself: then every test run on a machine with `tiered` would import it.

    memory_store             a `MemoryStorage`, for async tests that anyio's plugin runs, or pytest-asyncio in auto mode
    blocking_memory_store    a `BlockingMemoryStorage`, for tests that are no async functions

In its strict mode, which is the default, pytest-asyncio runs only fixtures of its own:

    @pytest_asyncio.fixture
    async def store():
        async with memory_storage() as storage:
            yield storage
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from changelog.base.errors import ConfigurationError
from changelog.base.extras import installing

try:
    import pytest
except ImportError:
    raise ConfigurationError(f"the fixtures need pytest, which is not installed: {installing('testing')}") from None

from tiered.testing.in_memory import BlockingMemoryStorage, MemoryStorage, blocking_memory_storage, memory_storage


@pytest.fixture
async def memory_store() -> AsyncIterator[MemoryStorage]:
    """An empty store in memory."""
    async with memory_storage() as storage:
        yield storage


@pytest.fixture
def blocking_memory_store() -> Iterator[BlockingMemoryStorage]:
    """An empty store in memory, for blocking callers."""
    with blocking_memory_storage() as storage:
        yield storage
