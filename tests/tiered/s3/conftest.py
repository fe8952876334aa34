"""A bucket of each server of the S3 API, and a proxy before one that fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from emulators.s3.faults import FaultyProxy
from tests.given.s3_buckets import new_bucket, untried
from tiered.object_id import blob_name
from tiered.provision import s3, s3_bench
from tiered.provision.probes import RequestSizes
from tiered.provision.s3_probes import try_service
from tiered.s3.blobs import S3Blobs

RUNTIME = SystemRuntime()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def name() -> str:
    return blob_name("u/objects/key", ChangeId.new(RUNTIME))


@pytest.fixture(autouse=True)
def nothing_is_tried() -> Iterator[None]:
    with untried():
        yield


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch, nothing_is_tried: None) -> None:
    """Each look tries the service nevertheless, a little: moto loses races."""
    monkeypatch.setattr(s3, "try_service", try_service)
    monkeypatch.setattr(s3_bench, "CHECK", RequestSizes(racers=1, rounds=1, uploads=2))


@pytest.fixture(params=["moto", "versitygw"])
async def blobs(request: pytest.FixtureRequest) -> AsyncIterator[S3Blobs]:
    async with new_bucket(request.getfixturevalue(f"{request.param}_url"), RUNTIME, whole_checksums=request.param != "moto") as blobs:
        yield blobs


@pytest.fixture
async def proxy(versitygw_url: str) -> AsyncIterator[FaultyProxy]:
    """At the end, each fault that a test planted was met: else the test shows nothing of it."""
    async with FaultyProxy(versitygw_url).serve() as proxy:
        yield proxy
        assert all(fault.lasts for fault in proxy.faults), "these faults were not met"


@pytest.fixture
async def failing(proxy: FaultyProxy) -> AsyncIterator[S3Blobs]:
    """Blobs behind the proxy."""
    async with new_bucket(proxy.url, RUNTIME, answer_timeout_s=5, upload_budget_s=2) as blobs:
        proxy.seen.clear()
        yield blobs
