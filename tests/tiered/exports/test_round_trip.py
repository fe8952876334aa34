"""What is exported from one store and imported into another is the same by everything that the API shows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from emulators.gcs.server import GcsEmulator
from emulators.s3.servers import REGION
from tests.given.exported_stores import ALL_OBJECTS, LARGE, MORE_NAMES, OBJECTS, filled, settings_of, shown
from tests.given.other_software import write_as_both
from tests.given.s3_buckets import make_bucket, untried
from tiered import ObjectId, Settings, TieredStorage, open_storage
from tiered.exports import export_objects, import_objects, verify_export
from tiered.kinds.chosen import provision

pytestmark = pytest.mark.anyio


async def left_and_come(storage: TieredStorage, place: str, into: Settings, objects: int = OBJECTS) -> None:
    """Exports all of a store, verifies that, and imports it twice."""
    before = await shown(storage)
    done = await export_objects(storage, place)
    assert done.complete and (done.exported, done.fetched) == (objects, objects)
    checked = await verify_export(place, settings=into)
    assert checked.complete and (checked.whole, checked.bytes) == (objects, done.bytes)
    async with open_storage(into) as other:
        report = await import_objects(other, place)
        assert (report.copied, report.failures) == (objects, [])
        assert await shown(other) == before
        again = await import_objects(other, place)
        assert (again.unchanged, again.copied) == (objects, 0)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_by_a_directory(tmp_path: Path, anyio_backend: str) -> None:
    async with filled(tmp_path / "store", MORE_NAMES) as storage:
        await left_and_come(storage, str(tmp_path / "export"), settings_of(tmp_path / "other"), ALL_OBJECTS)
    rows = pq.read_table(sorted((tmp_path / "export/manifest").glob("*.parquet"))).to_pylist()
    assert len(rows) == ALL_OBJECTS and {row["state"] for row in rows} == {"exported"}
    for row in rows:
        assert (tmp_path / "export" / row["file"]).stat().st_size == row["size"]
    [packed] = [row for row in rows if row["path"] == "packed/objects/large"]
    assert packed["compression"] == "Zstd" and packed["size"] < len(LARGE), "payloads are as they are stored, and the manifest says so"
    assert json.loads((tmp_path / "export/manifest.json").read_text())["complete"] is True


@pytest.fixture(params=["bigtable+gs", "postgres+s3"])
async def services(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, anyio_backend: str
) -> AsyncIterator[tuple[Settings, str]]:
    """A new store on services, and an empty place in another bucket, which variables lead to."""
    rows, _, scheme = request.param.partition("+")
    name = f"t{ChangeId.new(SystemRuntime()).replace('-', '')}"
    values: dict[str, Any] = {"inline_bytes_max": 100, "changelog": rows}
    async with AsyncExitStack() as stack:
        if rows == "bigtable":
            values["bigtable"] = {"project": "project", "instance": "instance", "table": name, "changelog_table": f"{name}-log"}
            values["bigtable"]["emulator_host"] = request.getfixturevalue("bigtable_host")
            server = await stack.enter_async_context(GcsEmulator())
            server.create_bucket("exports")
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
            values["gcs"] = {"bucket": "blobs", "endpoint": server.url}
        else:
            values["postgres"] = {"dsn": request.getfixturevalue("durable_postgres").dsn(), "schema_name": name}
            url = request.getfixturevalue("moto_url")
            monkeypatch.setenv("AWS_ENDPOINT_URL", url)
            monkeypatch.setenv("AWS_REGION", REGION)
            await make_bucket(url, name)
            await make_bucket(url, f"{name}-exports")
            values["s3"] = {"bucket": name, "endpoint": url, "region": REGION, "addressing_style": "path", "whole_checksums": False}
        settings = Settings(**values)
        with untried():
            await provision(settings)
        yield settings, "gs://exports/leaving" if scheme == "gs" else f"s3://{name}-exports/leaving"


@pytest.mark.slow
async def test_by_buckets_into_services_and_back(services: tuple[Settings, str], tmp_path: Path) -> None:
    settings, place = services
    async with filled(tmp_path / "embedded") as storage:
        await left_and_come(storage, str(tmp_path / "export"), settings)
    async with open_storage(settings) as storage:
        await left_and_come(storage, place, settings_of(tmp_path / "back"))


@pytest.mark.slow
@pytest.mark.parametrize("services", ["bigtable+gs"], indirect=True)
async def test_what_other_software_wrote_leaves_and_comes_too(services: tuple[Settings, str], tmp_path: Path) -> None:
    settings, place = services
    await write_as_both(settings, "theirs/objects/1", "ours/objects/1")
    async with open_storage(settings, writes=False) as storage:
        before = await shown(storage)
        head = await storage.head(ObjectId.create("theirs", "1"))
        assert head is not None and head.revision is None and set(before) == {"theirs/objects/1", "ours/objects/1"}
        for _ in range(2):
            assert (await export_objects(storage, place)).complete
    async with open_storage(settings_of(tmp_path / "other")) as other:
        assert (await import_objects(other, place)).copied == 2 and await shown(other) == before
