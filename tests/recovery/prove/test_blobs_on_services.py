"""What `tiered prove` tries of blobs, on real servers: green but for what `RED` says, which turns its line red.

What a server does wrong and no line shows is in `UNSEEN`, with the reason. The faults are those that the contract
suites have found (`tests/contracts/conftest.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from changelog.base.runtime import Runtime
from changelog.change import ChangeId
from recovery.prove.probes.bench import Sizes
from recovery.prove.probes.blobs import BLOBS
from tests.contracts.conftest import (
    AGAIN,
    AT_ONCE,
    BELOW,
    CANCELS,
    DELETES,
    ECHOES,
    ENDED,
    FAKE_GCS_IS_WRONG,
    FILES,
    KEEPS,
    MINIO_IS_WRONG,
    MOTO_IS_WRONG,
    NAMES,
    NO_PARTS,
    ONE_BY_ONE,
    PAGES,
    RACES,
    REFUSES,
    REWRITES,
    VERSITYGW_IS_WRONG,
    emulated_bucket,
    on_fake_gcs,
)
from tests.given.s3_buckets import make_bucket, s3_blobs
from tests.recovery.prove.test_blobs import red_lines
from tiered.embedded.blobs import FileBlobs
from tiered.gcs.blobs import GcsBlobs
from tiered.services.backends import LongTermBackend
from tiered.testing.clock import Clock

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
MIB = 1024 * 1024
SIZES = Sizes(racers=8, rounds=2, rounds_min=1, race_s=20.0, within_s=300.0, large_bytes=9 * MIB)

SERVICES = ("directory", "gcs", "versitygw", *(pytest.param(each, marks=pytest.mark.night) for each in ("moto", "fake-gcs", "minio")))
_NO_PARTS = {"parts", "cancelled parts", "parts cancelled at the end", "uploads that have not ended", "checksums", "metadata"}
RED: Mapping[str, set[str]] = {
    "versitygw": {"rare names"},
    "moto": {"parts", "cancelled parts", "uploads that have not ended", "rare names"},
    "fake-gcs": {"cancelled sessions", "deletions by generation", "many deletions", "copies of a generation", "the quarantine", *_NO_PARTS},
    "minio": {"rare names"},
}  # fmt: skip
"""The lines that a server's known faults turn red. Where parts are refused, whatever tries them is not tried."""
SOMETIMES: Mapping[str, set[str]] = {
    "moto": {"create-only", "create-only in sessions", "cancelled at the end", "parts cancelled at the end", "deletions that race"},
    "fake-gcs": {"deletions that race"},
}
"""Those that depend on which request comes first."""
TABLES = {"versitygw": VERSITYGW_IS_WRONG, "moto": MOTO_IS_WRONG, "fake-gcs": FAKE_GCS_IS_WRONG, "minio": MINIO_IS_WRONG}
SEEN: Mapping[str, str] = {
    CANCELS: "cancelled sessions", DELETES: "deletions by generation", REWRITES: "copies of a generation", NO_PARTS: "parts",
    ENDED: "cancelled parts", PAGES: "uploads that have not ended",
    **dict.fromkeys((ECHOES, FILES, NAMES, BELOW, REFUSES), "rare names"),
}  # fmt: skip
"""The line that shows a fault which the contract suites have found."""
UNSEEN: Mapping[str, str] = {
    KEEPS: "the store restores nothing by itself",
    AGAIN: "the audit counts a deletion that another one made, and loses nothing",
    RACES: "what was not confirmed may be there or not",
    ONE_BY_ONE: "what was refused is not there, whatever the reason that was told",
    AT_ONCE: "all uploads are listed, and each once",
}
"""Why no line shows the others."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def opened(service: str, request: pytest.FixtureRequest, runtime: Runtime, tmp_path: Path) -> AsyncIterator[list[LongTermBackend]]:
    """The same blobs over two connections."""
    if service == "directory":
        yield [await FileBlobs.open_directory(tmp_path / "store", runtime) for _ in range(2)]
    elif service == "gcs":
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(emulated_bucket())
            yield [await stack.enter_async_context(GcsBlobs.connect("blobs", runtime, endpoint=server.url)) for _ in range(2)]
    elif service == "fake-gcs":
        async with on_fake_gcs(request.getfixturevalue("fake_gcs_url"), runtime) as ours:
            yield [ours, ours]
    else:
        url, bucket = request.getfixturevalue(f"{service}_url"), f"bucket-{ChangeId.new(runtime)}"
        await make_bucket(url, bucket)
        options: dict[str, Any] = {"upload_budget_s": 1.0, "whole_checksums": service != "moto"}
        async with s3_blobs(url, bucket, runtime, **options) as ours, s3_blobs(url, bucket, runtime, **options) as other:
            yield [ours, other]


@pytest.mark.parametrize("service", SERVICES)
async def test_a_server_is_green_but_for_its_known_faults(service: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    runtime = Clock()
    async with opened(service, request, runtime, tmp_path) as (ours, other):
        found = await red_lines(ours, other, runtime, SIZES)
    red = RED.get(service, set())
    assert red <= set(found) <= red | SOMETIMES.get(service, set()), "\n".join(f"{each}: {said}" for each, said in found.items())


def test_each_known_fault_turns_a_line_red_or_it_is_said_why_not() -> None:
    assert RED.keys() == TABLES.keys() and {line for lines in RED.values() for line in lines} <= {each.name for each in BLOBS}
    assert not SEEN.keys() & UNSEEN.keys()
    for server, table in TABLES.items():
        faults = set(table.values())
        assert faults <= SEEN.keys() | UNSEEN.keys()
        assert {SEEN[each] for each in faults if each in SEEN} <= RED[server]
