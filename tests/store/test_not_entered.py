"""What `open_storage` returns, used in another way than as a block: the error tells how the block is written."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
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
    lambda: blocking_memory_storage(): BLOCKING.format("blocking_memory_storage"),
}


async def awaited(opening: Any) -> object:
    return await opening


async def entered(opening: Any) -> None:
    with opening:
        pass


async def entered_with_async(opening: Any) -> None:
    async with opening:
        pass


async def left_only(opening: Any) -> None:
    async with AsyncExitStack() as stack:
        stack.push_async_exit(opening)


MISTAKES: dict[str, Callable[[Any], Awaitable[object]]] = {
    "storage = open_storage(…); await storage.put(…)": lambda opening: opening.put(KEY, b"x"),
    "storage = await open_storage(…)": awaited,
    "with open_storage(…)": entered,
    "stack.push_async_exit(open_storage(…))": left_only,
}


@pytest.mark.anyio
@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("make", [each for each, told in OPENED.items() if "async" in told], ids=["open_storage", "memory_storage"])
async def test_an_open_storage_is_a_block_with_async(make: Callable[[], Any], mistake: str) -> None:
    with pytest.raises((AttributeError, InvalidRequestError), match=OPENED[make]):
        await MISTAKES[mistake](make())


@pytest.mark.anyio
@pytest.mark.parametrize("make", [each for each, told in OPENED.items() if "async" not in told], ids=["open_storage", "memory_storage"])
async def test_a_blocking_storage_is_a_block(make: Callable[[], Any]) -> None:
    with pytest.raises(AttributeError, match=OPENED[make]):
        make().put(KEY, b"x")
    for mistake in (awaited, entered_with_async):
        with pytest.raises(InvalidRequestError, match=OPENED[make]):
            await mistake(make())
    with pytest.raises(InvalidRequestError, match=OPENED[make]), ExitStack() as stack:
        stack.push(make())


@pytest.mark.anyio
@pytest.mark.parametrize("in_memory", [False, True])
async def test_an_open_storage_is_entered_once(in_memory: bool, tmp_path: Path) -> None:
    opening = memory_storage() if in_memory else open_storage(Settings(directory=tmp_path))
    async with opening:
        with pytest.raises(InvalidRequestError, match="this storage is entered once; open another"):
            await entered_with_async(opening)
    with pytest.raises(InvalidRequestError, match="this storage is entered once; open another"):
        await entered_with_async(opening)


@pytest.mark.parametrize("make", OPENED, ids=OPENED.values())
def test_who_asks_whether_there_is_an_attribute_is_told_no(make: Callable[[], Any]) -> None:
    assert not hasattr(make(), "put") and not hasattr(make(), "__fspath__") and copy.copy(make()) is not None
