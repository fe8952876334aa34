"""Directories and objects in Bigtable and GCS: what a second run asks the services, and that checksums come back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from benchmarks.counted import CountedStore, counted_store
from tests.given.directories import PREFIX, read_tree, write_tree
from tiered import TieredStorage
from tiered.directories import download_directory, upload_directory

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def store(anyio_backend: str, bigtable_host: str) -> AsyncIterator[CountedStore]:
    async with counted_store(bigtable_host) as store:
        yield store


async def test_a_second_run_reads_no_payload(store: CountedStore, tmp_path: Path) -> None:
    tree = {f"{number}": bytes([number]) * (2 * 1024 * 1024 if number % 2 else 10) for number in range(40)}
    write_tree(tmp_path / "files", tree)
    reports = []

    async def upload(storage: TieredStorage) -> None:
        reports.append(await upload_directory(storage, tmp_path / "files", PREFIX, delete=True))

    async def download(storage: TieredStorage) -> None:
        reports.append(await download_directory(storage, PREFIX, tmp_path / "back", delete=True))

    await store.run(upload)
    ledger = await store.count(upload)
    # The rows, to compare; the rows again, to delete what has no file.
    assert sorted(ledger.before) == ["read", "read"]
    await store.run(download, download)
    assert [(each.copied, each.unchanged, each.deleted, each.failed) for each in reports] == [(40, 0, 0, 0), (0, 40, 0, 0)] * 2
    assert read_tree(tmp_path / "back") == tree
