"""What a callback of a caller awaits may be cancelled, although nobody cancelled the caller. That is an error."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from tiered import CancelledElsewhereError, Metadata, ObjectId
from tiered.testing import memory_storage

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

OBJECT = ObjectId.create("attachments", "key")


async def awaits_what_is_cancelled() -> None:
    task = asyncio.ensure_future(anyio.sleep_forever())
    asyncio.get_running_loop().call_soon(task.cancel)
    await task


async def progress(done: int, total: int | None) -> None:
    await awaits_what_is_cancelled()


async def change(metadata: Metadata) -> Metadata:
    await awaits_what_is_cancelled()
    return metadata


async def test_in_progress_and_in_update_metadata_it_is_an_error_and_not_a_cancellation() -> None:
    async with memory_storage() as storage:
        first = await storage.put(OBJECT, b"small")
        with pytest.raises(CancelledElsewhereError, match="progress callback"):
            await storage.put(OBJECT, b"other", progress=progress)
        stored = await storage.get(OBJECT, progress=progress)
        assert stored is not None
        with pytest.raises(CancelledElsewhereError, match="progress callback"):
            await stored.read()
        with pytest.raises(CancelledElsewhereError, match="the metadata are as they were"):
            await storage.update_metadata(OBJECT, change)
        head = await storage.head(OBJECT)
        assert head is not None and head.revision == first.revision
