"""`tiered prove` beside a store that is in use: its objects, its entries and its bucket are as they were left."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId, Entry
from emulators.s3.servers import REGION
from recovery.prove.probes.bench import Sizes
from recovery.prove.run import initial, prove
from tests.given.s3_buckets import make_bucket
from tiered import ObjectId, Settings, TieredStorage, open_storage
from tiered.kinds.chosen import provision
from tiered.open import open_backends
from tiered.provision.findings import problems
from tiered.provision.probes import Result
from tiered.testing.contracts.whole_blobs import store

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

QUICK = Sizes(racers=4, rounds=3, rounds_min=1, calm=2, large_bytes=1 << 20)


@pytest.fixture(params=["directory", pytest.param("postgres+s3", marks=pytest.mark.night)])
async def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    if request.param == "directory":
        return Settings(directory=tmp_path / "store")
    name, runtime = f"beside-{ChangeId.new(SystemRuntime())}", SystemRuntime()
    url = request.getfixturevalue("versitygw_url")
    await make_bucket(url, name)
    settings = Settings.model_validate({
        "postgres": {"dsn": request.getfixturevalue("durable_postgres").dsn(), "schema_name": name.replace("-", "_")},
        "s3": {"bucket": name, "endpoint": url, "region": REGION, "addressing_style": "path"},
    })  # fmt: skip
    assert not problems(await provision(settings, runtime=runtime))
    return settings


async def leave_behind(settings: Settings) -> str:
    """What a dead process has left: a blob that no row names, and the entry of its change. Returns the blob's name."""
    runtime = SystemRuntime()
    change = Change(ChangeId.new(runtime), "photos/objects/left", f"photos/objects/left/{ChangeId.new(runtime)}")
    async with open_backends(settings, runtime) as backends:
        assert change.new is not None
        await store(backends.tiers.long_term, change.new)
        await backends.log.record(change, "a dead process")
    return change.new


async def go_on(storage: TieredStorage, put: dict[ObjectId, bytes]) -> None:
    """Small and large objects in turn, until it is cancelled."""
    for number in range(2000):
        object_id, payload = ObjectId.create("photos", f"{number:04}"), b"%d" % number * (1 if number % 4 else 500_000)
        with anyio.CancelScope(shield=True):
            await storage.put(object_id, payload)
            put[object_id] = payload
        await anyio.sleep(0.02)


async def test_a_store_that_is_in_use_keeps_all_that_is_its_own_and_gets_nothing(settings: Settings) -> None:
    put: dict[ObjectId, bytes] = {}
    report = initial(settings, "0", "2026-12-01T00:00+00:00")
    async with open_storage(settings) as storage:
        left = await leave_behind(settings)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(go_on, storage, put)
            await prove(settings, SystemRuntime(), report, QUICK, lambda _: None, ["promises"])
            tasks.cancel_scope.cancel()
        assert not report.left and any(line.result is Result.HELD for line in report.lines)
        assert len(put) > 8, "the store was in use"
        for object_id, payload in put.items():
            stored = await storage.get(object_id)
            assert stored is not None and await stored.read() == payload, object_id
    async with open_backends(settings, SystemRuntime()) as backends:
        rows = (await backends.tiers.high_volume.scan("", b"", 10_000)).rows
        blobs = {blob.name for blob in (await backends.tiers.long_term.list("", None, 1000)).blobs}
        entries = (await backends.log.entries("", 100)).entries
    assert [row.path for row in rows] == sorted(object_id.path for object_id in put)
    assert blobs == {left} | {row.target for row in rows if row.target is not None}
    assert [entry.change.new for entry in entries if isinstance(entry, Entry)] == [left]
