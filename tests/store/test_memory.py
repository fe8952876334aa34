"""A payload of any size takes less than 64 MiB of memory, in each service and in each way: in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path

import anyio
import pytest

from changelog.base.runtime import SystemRuntime
from emulators.gcs.server import GcsEmulator
from emulators.s3.servers import CREDENTIALS
from tests.given.s3_buckets import new_bucket
from tests.given.store_in_a_process import SERVICES, WAYS
from tests.suites import share

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
MOST_KIB = 64 * 1024


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def address(request: pytest.FixtureRequest, service: str, tmp_path: Path) -> AsyncIterator[str]:
    """Where the service is: a directory, or an address and a bucket."""
    if service == "embedded":
        yield str(tmp_path)
    elif service == "gcs":
        async with GcsEmulator() as server:
            server.create_bucket("blobs")
            yield f"{server.url} blobs"
    else:
        url: str = request.getfixturevalue("versitygw_url")
        async with new_bucket(url, SystemRuntime()) as blobs:
            yield f"{url} {blobs.client.bucket}"


SHORT = [(service, "known") for service in SERVICES] + [("s3", way) for way in WAYS if way != "known"]
"""Each service, and each way in the service that holds whole parts."""


@pytest.mark.parametrize(
    ("service", "way", "mebibytes"),
    [*((*each, 96) for each in share(SHORT, 3)), *(pytest.param(*each, 1024, marks=pytest.mark.night) for each in product(SERVICES, WAYS))],
)
async def test_a_gibibyte_is_put_and_read_within_64_mebibytes_of_memory(
    address: str, service: str, way: str, mebibytes: int, tmp_path: Path
) -> None:
    what = [service, way, str(mebibytes), str(tmp_path / "log.db"), *address.split()]
    command = [sys.executable, "-m", "tests.given.store_in_a_process", *what]
    done = await anyio.run_process(command, check=False, env={**CREDENTIALS})
    assert done.returncode == 0, done.stderr.decode()
    size, extra_kib = map(int, done.stdout.split())
    assert size == mebibytes << 20
    assert extra_kib < MOST_KIB
