"""What `open_storage` returns, used in another way than as a block: the error tells how the block is written."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import tiered.sync
from tiered import InvalidRequestError, ObjectId, Settings, open_storage
from tiered.testing import blocking_memory_storage, memory_storage

KEY = ObjectId.create("notes", "key")
ASYNC, BLOCKING = r"inside the block only: async with {}\(…\) as storage: …", r"inside the block only: with {}\(…\) as storage: …"
OPENED: dict[Callable[[], Any], str] = {
    lambda: open_storage(Settings(directory="never-made")): ASYNC.format("open_storage"),
    lambda: memory_storage(): ASYNC.format("memory_storage"),
    lambda: tiered.sync.open_storage(Settings(directory="never-made")): BLOCKING.format("open_storage"),
    lambda: blocking_memory_storage(): BLOCKING.format("open_storage"),
}


async def awaited(opening: Any) -> object:
    return await opening


async def entered(opening: Any) -> None:
    with opening:
        pass


MISTAKES: dict[str, Callable[[Any], Awaitable[object]]] = {
    "storage = open_storage(…); await storage.put(…)": lambda opening: opening.put(KEY, b"x"),
    "storage = await open_storage(…)": awaited,
    "with open_storage(…)": entered,
}


@pytest.mark.anyio
@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("make", [each for each, told in OPENED.items() if "async" in told], ids=["open_storage", "memory_storage"])
async def test_an_open_storage_is_a_block_with_async(make: Callable[[], Any], mistake: str) -> None:
    with pytest.raises((AttributeError, InvalidRequestError), match=OPENED[make]):
        await MISTAKES[mistake](make())


@pytest.mark.parametrize("make", [each for each, told in OPENED.items() if "async" not in told], ids=["open_storage", "memory_storage"])
def test_a_blocking_storage_is_a_block(make: Callable[[], Any]) -> None:
    with pytest.raises(AttributeError, match=OPENED[make]):
        make().put(KEY, b"x")


@pytest.mark.parametrize("make", OPENED, ids=OPENED.values())
def test_who_asks_whether_there_is_an_attribute_is_told_no(make: Callable[[], Any]) -> None:
    assert not hasattr(make(), "put") and not hasattr(make(), "__fspath__") and copy.copy(make()) is not None
