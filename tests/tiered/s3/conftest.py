"""A bucket of each server of the S3 API, and a proxy before one that fails."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from changelog.base.runtime import SystemRuntime
from emulators.s3.faults import FaultyProxy
from tests.given.s3_buckets import new_bucket
from tiered.provision import s3_bench
from tiered.provision.s3_bench import Sizes
from tiered.s3.blobs import S3Blobs

RUNTIME = SystemRuntime()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def little_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a look tries of a service is the matter of `tests/tiered/provision/test_s3_probes.py`. moto loses races."""
    monkeypatch.setattr(s3_bench, "CHECK", Sizes(racers=1, rounds=1, uploads=2))


@pytest.fixture(params=["moto", "versitygw"])
async def blobs(request: pytest.FixtureRequest) -> AsyncIterator[S3Blobs]:
    async with new_bucket(request.getfixturevalue(f"{request.param}_url"), RUNTIME, whole_checksums=request.param != "moto") as blobs:
        yield blobs


@pytest.fixture
async def proxy(versitygw_url: str) -> AsyncIterator[FaultyProxy]:
    async with FaultyProxy(versitygw_url).serve() as proxy:
        yield proxy


@pytest.fixture
async def failing(proxy: FaultyProxy) -> AsyncIterator[S3Blobs]:
    """Blobs behind the proxy."""
    async with new_bucket(proxy.url, RUNTIME, answer_timeout_s=5, upload_budget_s=2) as blobs:
        proxy.seen.clear()
        yield blobs
