"""`guarded`: what a tier can do, it can do behind its guard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tiered.embedded.blobs import FileBlobs
from tiered.protocol.capabilities import BatchHeads, PartUploads, SignedUrls
from tiered.protocol.guarded import guarded
from tiered.testing.clock import Clock

pytestmark = pytest.mark.anyio


async def around(call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()


async def test_a_guarded_tier_can_do_what_its_tier_can(tmp_path: Path) -> None:
    blobs = await FileBlobs.open_directory(tmp_path / "store", Clock())
    assert isinstance(blobs, PartUploads)
    for capability in (PartUploads, BatchHeads, SignedUrls):
        assert isinstance(guarded(guarded(blobs, around), around), capability) == isinstance(blobs, capability)


async def test_a_method_that_a_test_replaces_later_is_the_one_that_is_called(tmp_path: Path) -> None:
    blobs: Any = await FileBlobs.open_directory(tmp_path / "store", Clock())
    behind = guarded(blobs, around)

    async def replaced(name: str) -> str:
        return f"replaced {name}"

    blobs.head = replaced
    assert await behind.head("a") == "replaced a"
