"""A signed link shows the same on every backend, small objects and large ones, and one revision alone."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.given.signed_links import BASE_URL, opened
from tiered import Metadata, ObjectId, TieredStorage

pytestmark = pytest.mark.anyio
CAT = ObjectId.create("photos", "2026/a cat ü.jpg", {"org": "17"})
HOUR = timedelta(hours=1)
SMALL, LARGE = b"0123456789", bytes(range(256)) * 3_000


@pytest.mark.parametrize("payload", [b"", SMALL, LARGE], ids=["empty", "small", "large"])
async def test_a_link_shows_all_of_an_object_and_each_part(store: TieredStorage, payload: bytes) -> None:
    await store.put(CAT, payload, Metadata(content_type="image/jpeg", filename="my cat.jpg"))
    url, head = await store.sign_get(CAT, HOUR, disposition="attachment"), await store.head(CAT)
    assert url is not None and url.startswith(f"{BASE_URL}/") and head is not None
    got = await opened(store, url)
    assert (got.status_code, got.content) == (200, payload)
    assert (got.headers["etag"], got.headers["content-type"]) == (f'"{head.revision}"', "image/jpeg")
    assert got.headers["content-disposition"] == 'attachment; filename="my cat.jpg"'
    assert (await opened(store, url, If_None_Match=got.headers["etag"])).status_code == 304
    looked = await opened(store, url, "HEAD")
    assert (looked.status_code, dict(looked.headers)) == (200, dict(got.headers))
    if payload:
        part = await opened(store, url, Range="bytes=3-6")
        assert (part.status_code, part.content, part.headers["content-range"]) == (206, payload[3:7], f"bytes 3-6/{len(payload)}")
        beyond = await opened(store, url, Range=f"bytes={len(payload)}-")
        assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{len(payload)}")


@pytest.mark.parametrize("before", [SMALL, LARGE], ids=["was-small", "was-large"])
async def test_a_link_leads_nowhere_when_its_revision_is_gone(store: TieredStorage, before: bytes) -> None:
    assert await store.sign_get(CAT, HOUR) is None
    await store.put(CAT, before)
    url = await store.sign_get(CAT, HOUR)
    for after in (SMALL, LARGE, before):
        await store.put(CAT, after)
        assert (await opened(store, url)).status_code == 410
        assert (await opened(store, url, Range="bytes=0-0")).status_code == 410
        assert (await opened(store, await store.sign_get(CAT, HOUR))).content == after
    await store.delete(CAT)
    assert (await opened(store, url)).status_code == 404
