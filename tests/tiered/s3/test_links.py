"""A link of the bucket's own takes any number of bytes, so the completion judges them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from httpx import AsyncClient

from changelog.base.runtime import SystemRuntime
from tiered import InvalidRequestError, ObjectId
from tiered.s3.blobs import S3Blobs
from tiered.services.backends import Tiers
from tiered.settings import Settings
from tiered.storage import TieredStorage
from tiered.testing.log import MemoryChangeLog
from tiered.testing.rows import MemoryRows

pytestmark = pytest.mark.anyio
RUNTIME = SystemRuntime()
CAT = ObjectId.create("photos", "cat.jpg")


async def test_what_a_link_of_the_bucket_has_taken_is_no_object_if_it_is_too_large(blobs: S3Blobs) -> None:
    tiers, settings = Tiers(MemoryRows(RUNTIME), blobs), Settings(directory="unused")
    async with TieredStorage(tiers, MemoryChangeLog(RUNTIME), RUNTIME, settings) as storage, AsyncClient() as browser:
        signed = await storage.sign_put(CAT, timedelta(hours=1), size_max=1000)
        assert (await browser.put(signed.url, content=bytes(3_000_000))).status_code == 200
        for parts in (None, await signed.upload.parts()):
            with pytest.raises(InvalidRequestError, match="signed for 1000 bytes, and its parts have 3000000"):
                await signed.upload.complete(parts)
        assert await storage.head(CAT) is None
        assert (await browser.put(signed.url, content=bytes(1000))).status_code == 200
        assert (await signed.upload.complete()).size == 1000
        assert (await browser.put(signed.url, content=b"late")).status_code in (404, 500)  # which moto says
