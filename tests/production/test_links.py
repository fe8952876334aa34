"""Links on Bigtable and GCS: the bucket answers for its blobs, and the app for all else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest
from httpx import AsyncClient, Response

from changelog.base.runtime import SystemRuntime
from changelog.google.signing import GoogleSigner
from changelog.google.tokens import GoogleAuthorization
from changelog.noop import NoopChangeLog
from emulators.gcs.server import GcsEmulator
from tests.conftest import FreshTable
from tests.given.owned_bucket import OWNER, give
from tests.given.signed_links import BASE_URL, LINKS, opened
from tests.given.signing_account import EMAIL, credentials, private_key, sign
from tests.given.waiting import becomes
from tiered import ConfigurationError, Metadata, ObjectId, Settings, TieredStorage, TimeToIdle, TimeToLive, UnavailableError
from tiered.bigtable.rows import BigtableRows
from tiered.gcs.blobs import GcsBlobs
from tiered.gcs.owned import OwnedBlobs
from tiered.kinds.gcs import BLOBS
from tiered.kinds.kind import OpenRows
from tiered.services.backends import Tiers
from tiered.settings import LinkSettings

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
CAT = ObjectId.create("photos", "2026/a cat ü.jpg", {"org": "17"})
HOUR = timedelta(hours=1)
SMALL, LARGE = b"0123456789", bytes(range(256)) * 3_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def opened_store(fresh_table: FreshTable, links: LinkSettings | None = LINKS, signs: Any = sign) -> AsyncIterator[TieredStorage]:
    runtime = SystemRuntime()
    settings = Settings(
        bigtable={"project": "project", "instance": "instance"}, gcs={"bucket": "blobs"}, changelog="noop", inline_bytes_max=100,
        links=links,
    )  # fmt: skip
    async with fresh_table() as table, GcsEmulator() as server:
        server.create_bucket("blobs")
        server.accounts[EMAIL] = private_key().public_key()
        give(server, "a/")
        async with GcsBlobs.connect("blobs", runtime, endpoint=server.url, sign=signs) as blobs:
            tiers = Tiers(BigtableRows(table, runtime), OwnedBlobs(blobs, "blobs", "a/", OWNER))
            async with TieredStorage(tiers, NoopChangeLog(), runtime, settings) as storage:
                yield storage


async def of_bucket(url: str | None) -> Response:
    assert url is not None and not url.startswith(BASE_URL)
    async with AsyncClient() as client:
        return await client.get(url)


async def leads_nowhere(url: str | None) -> bool:
    return (await of_bucket(url)).status_code == 404


async def test_the_bucket_shows_a_large_object_until_it_is_overwritten(fresh_table: FreshTable) -> None:
    async with opened_store(fresh_table, links=None) as store:
        await store.put(CAT, LARGE, Metadata(content_type="image/jpeg"))
        url = await store.sign_get(CAT, HOUR, disposition="attachment")
        got = await of_bucket(url)
        assert (got.status_code, got.content, got.headers["content-type"]) == (200, LARGE, "image/jpeg")
        assert got.headers["content-disposition"] == "attachment; filename=\"a cat _.jpg\"; filename*=UTF-8''a%20cat%20%C3%BC.jpg"
        await store.put(CAT, LARGE)
        await becomes(partial(leads_nowhere, url))  # what was replaced is deleted after the answer
        url = await store.sign_get(CAT, HOUR)
        assert (await of_bucket(url)).content == LARGE
        await store.delete(CAT)
        await becomes(partial(leads_nowhere, url))
        assert await store.sign_get(CAT, HOUR) is None


async def test_the_app_shows_what_the_bucket_cannot(fresh_table: FreshTable) -> None:
    async with opened_store(fresh_table) as store:
        await store.put(CAT, SMALL)
        assert (await opened(store, await store.sign_get(CAT, HOUR))).content == SMALL
        await store.put(CAT, LARGE, Metadata(content_type="image/jpeg"))
        got = await opened(store, await store.sign_get(CAT, HOUR, content_type="text/plain"))
        assert (got.content, got.headers["content-type"]) == (LARGE, "text/plain")
        assert (await of_bucket(await store.sign_get(CAT, HOUR))).content == LARGE


async def test_without_the_app_what_the_bucket_cannot_show_has_no_link(fresh_table: FreshTable) -> None:
    async with opened_store(fresh_table, links=None) as store:
        for payload, content_type in ((SMALL, None), (LARGE, "text/plain")):
            await store.put(CAT, payload)
            with pytest.raises(ConfigurationError, match=r"needs the app of tiered\.asgi: mount it, and set links\.base_url"):
                await store.sign_get(CAT, HOUR, content_type=content_type)


@pytest.mark.parametrize("expiration", [TimeToLive(timedelta(seconds=90)), TimeToIdle(timedelta(seconds=90))])
async def test_the_bucket_shows_nothing_after_the_objects_deadline(fresh_table: FreshTable, expiration: TimeToLive | TimeToIdle) -> None:
    """GCS itself deletes what has expired about once a day."""
    async with opened_store(fresh_table) as store:
        await store.put(CAT, LARGE, Metadata(expiration=expiration))
        for expires_in, least_s, most_s in ((HOUR, 1, 90), (timedelta(seconds=5), 5, 5)):
            url = await store.sign_get(CAT, expires_in)
            [told] = parse_qs(urlsplit(str(url)).query)["X-Goog-Expires"]
            assert least_s <= int(told) <= most_s


async def test_a_signer_that_fails_signs_nothing(fresh_table: FreshTable) -> None:
    async def fails(message_of: object) -> tuple[str, bytes]:
        raise UnavailableError("IAM is away")

    async with opened_store(fresh_table, signs=fails) as store:
        await store.put(CAT, LARGE)
        with pytest.raises(UnavailableError, match="IAM is away"):
            await store.sign_get(CAT, HOUR)


async def test_a_store_in_gcs_signs_with_the_credentials_that_it_reads_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object, sign: object, **__: object) -> None:
        assert isinstance(sign, GoogleSigner) and sign._credentials is credentials()
        raise InterruptedError

    async def default(runtime: object, scope: str) -> GoogleAuthorization:
        return GoogleAuthorization(credentials(), SystemRuntime())

    monkeypatch.setattr(GoogleAuthorization, "default", default)
    monkeypatch.setattr(GcsBlobs, "connect", connect)
    settings = Settings(bigtable={"project": "project", "instance": "instance"}, gcs={"bucket": "blobs"})
    assert settings.gcs is not None and settings.gcs.endpoint is None
    with pytest.raises(InterruptedError):
        async with BLOBS.open(settings, SystemRuntime(), cast(OpenRows, None), writes=True, verify=False):
            pass
