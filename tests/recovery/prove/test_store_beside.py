"""A store that is in use while its services are tried: nothing of it is touched, and nothing of the trials is left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from changelog.base.runtime import SystemRuntime
from emulators.postgres.server import PostgresServer
from emulators.s3.servers import REGION
from recovery.prove.probes.bench import Sizes
from recovery.prove.run import initial, prove
from recovery.prove.trial import trial_kinds
from tests.given.fresh_schema import ask, settings_of
from tests.given.s3_buckets import make_bucket, s3_blobs
from tiered import Metadata, ObjectId
from tiered.kinds.chosen import provision
from tiered.open import open_storage
from tiered.postgres.schema import TABLES
from tiered.settings import S3Settings, Settings
from tiered.storage import TieredStorage

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(600)]
RUNTIME = SystemRuntime()
BUCKET = "beside-a-store"
QUICK = Sizes(racers=4, rounds=2, rounds_min=1, calm=1, large_bytes=6 << 20)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def payload(number: int) -> bytes:
    return b"%d" % number * (1 if number % 2 else 40_000)


async def stored(server: PostgresServer, url: str, schema: str) -> tuple[dict[str, list[str]], dict[str, str]]:
    """All rows of all tables, and all objects of the bucket with their tags."""
    tables = {table: [str(dict(row)) for row in await ask(server, f'SELECT * FROM {schema}."{table}" ORDER BY 1')] for table in TABLES}
    async with s3_blobs(url, BUCKET, RUNTIME) as blobs:
        names = await blobs.names_below("")
        heads = {name: await blobs.client.call("head_object", "looking", Key=name) for name in names}
    return tables, {name: str(head) for name, head in sorted((name, _tag(head)) for name, head in heads.items())}


def _tag(head: object) -> str:
    assert isinstance(head, dict)
    return f"{head['ETag']} {head['LastModified']}"


@asynccontextmanager
async def in_use(storage: TieredStorage) -> AsyncIterator[list[int]]:
    """Objects come and are read all the while, and each is what it was. Yields the numbers of those that are there."""
    numbers: list[int] = []

    async def use() -> None:
        while True:
            number = len(numbers)
            await storage.put(ObjectId.create("live", f"{number}"), payload(number), Metadata(custom={"n": str(number)}))
            numbers.append(number)
            read = await storage.get(ObjectId.create("live", f"{number // 2}"))
            assert read is not None and await read.read() == payload(number // 2)
            await anyio.sleep(0.05)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(use)
        yield numbers
        tasks.cancel_scope.cancel()


async def test_a_store_beside_is_not_touched_and_goes_on(durable_postgres: PostgresServer, versitygw_url: str) -> None:
    await make_bucket(versitygw_url, BUCKET)
    s3 = S3Settings(bucket=BUCKET, endpoint=versitygw_url, region=REGION, addressing_style="path")
    settings = Settings(postgres=settings_of(durable_postgres, "beside"), s3=s3)
    await provision(settings)
    async with open_storage(settings, RUNTIME) as storage:
        for number in range(10):
            await storage.put(ObjectId.create("kept", f"{number}"), payload(number), Metadata(custom={"n": str(number)}))
    before = await stored(durable_postgres, versitygw_url, "beside")
    report = initial(settings, "0.1.0", "2026-12-01")
    async with anyio.create_task_group() as tasks:  # two at once, each with a trial of its own
        for each in (report, initial(settings, "0.1.0", "2026-12-01")):
            tasks.start_soon(prove, settings, RUNTIME, each, QUICK, lambda _: None, ["promises"])
    assert report.left == [] and len(report.lines) > 60
    assert await stored(durable_postgres, versitygw_url, "beside") == before
    for kind in trial_kinds(settings):
        assert list(await kind.trials(settings, RUNTIME)) == []
    async with open_storage(settings, RUNTIME) as storage, in_use(storage) as numbers:
        await prove(settings, RUNTIME, initial(settings, "0.1.0", "2026-12-01"), QUICK, lambda _: None, ["promises"])
        assert len(numbers) > 10
        for number in [*numbers]:
            read = await storage.get(ObjectId.create("live", f"{number}"))
            assert read is not None and (await read.read(), read.metadata.custom) == (payload(number), {"n": str(number)})
