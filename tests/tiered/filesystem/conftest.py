"""A file system on a store in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tiered.filesystem.implementation import TieredFileSystem
from tiered.testing import BlockingMemoryStorage, blocking_memory_storage


@pytest.fixture
def storage() -> Iterator[BlockingMemoryStorage]:
    with blocking_memory_storage() as storage:
        yield storage


@pytest.fixture
def fs(storage: BlockingMemoryStorage) -> TieredFileSystem:
    return TieredFileSystem(storage=storage, skip_instance_cache=True)
