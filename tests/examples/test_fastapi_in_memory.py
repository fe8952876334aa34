"""How a service on a store is tested: docs/guides/fastapi.md links here. The store is in memory, and fails if told."""

from collections.abc import AsyncIterator

import pytest
from httpx import ASGITransport, AsyncClient

from examples.fastapi_app import create_app
from tiered import OutcomeUnknownError, UnavailableError
from tiered.testing import MemoryStorage, memory_storage

CAT = "/photos/17/2026/cat.jpg"


@pytest.fixture
async def storage() -> AsyncIterator[MemoryStorage]:
    async with memory_storage() as storage:
        yield storage


@pytest.fixture
async def client(storage: MemoryStorage) -> AsyncIterator[AsyncClient]:
    app = create_app()
    app.state.storage = storage                    # this transport begins no lifespan, which would open another one
    async with AsyncClient(transport=ASGITransport(app), base_url="http://test") as client:
        yield client


@pytest.mark.anyio
async def test_a_client_repeats_an_upload_of_which_nothing_is_known(storage: MemoryStorage, client: AsyncClient) -> None:
    storage.faults.fail("put", OutcomeUnknownError, took_effect=True)
    assert (await client.put(CAT, content=b"cat")).status_code == 504
    assert (await client.put(CAT, content=b"cat")).is_success
    assert (await client.get(CAT)).content == b"cat"


@pytest.mark.anyio
async def test_a_client_is_told_when_the_store_is_away(storage: MemoryStorage, client: AsyncClient) -> None:
    storage.faults.fail("get", UnavailableError)
    assert (await client.get(CAT)).status_code == 503
    assert (await client.get(CAT)).status_code == 404
