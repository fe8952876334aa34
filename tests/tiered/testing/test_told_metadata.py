"""What a storage in memory tells belongs to its caller, as on the other tiers: changing it changes no object."""

from __future__ import annotations

from typing import Any

import pytest

from tiered import Metadata, ObjectId
from tiered.testing import memory_storage

pytestmark = pytest.mark.anyio

OBJECT = ObjectId.create("attachments", "key")


@pytest.mark.parametrize("payload", [b"small", b"large" * 500_000], ids=["small", "large"])
async def test_who_changes_metadata_that_were_told_changes_no_object(payload: bytes) -> None:
    async with memory_storage() as storage:
        await storage.put(OBJECT, payload, Metadata(custom={"a": "b"}, unknown={"list": [1]}))
        stored, head = await storage.get(OBJECT), await storage.head(OBJECT)
        assert stored is not None and head is not None
        await stored.aclose()
        told: list[Any] = [stored.metadata, head.metadata]
        told += [entry.metadata async for entry in storage.list(metadata=True)]
        for metadata in told:
            metadata.custom["c"] = "d"
            metadata.unknown["list"].append(2)
        after = await storage.head(OBJECT)
        assert after is not None and after.metadata.custom == {"a": "b"} and after.metadata.unknown == {"list": [1]}
