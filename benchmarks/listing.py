"""Large objects are listed, each with its size and its time of creation: ours, and what others list of a bucket.

    ours         `list(metadata=True)`: the rows, in PostgreSQL, tell them
    older rows   the same where only the blobs tell, as an earlier version left it: a HEAD for each object
    boto3        pages of `list_objects_v2`, in a thread. obstore: its `list`, in chunks of a page

Ours tells content type and custom metadata, too. The servers are processes of their own, which the clock counts.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import asyncpg
import boto3
import obstore
from anyio import to_thread
from obstore.store import S3Store

from benchmarks.harness import Contest, Figures, Measure, few, run_in_flight
from changelog.change import ChangeId
from emulators.postgres.server import postgres_server
from emulators.s3.servers import CREDENTIALS, REGION, start_versitygw
from tiered import ObjectId, ObjectPrefix, Settings, TieredStorage, open_storage
from tiered.kinds.chosen import provision

OBJECTS, BUCKET, PAGE, IN_FLIGHT = 10_000, "others", 1000, 16
MEASURES = (Measure("cpu_s", "ms", "CPU: "), Measure("clock_s", "ms"))
Side = Callable[[], Awaitable[int]]


async def of_store(store: TieredStorage, usecase: str) -> int:
    found = [entry async for entry in store.list(ObjectPrefix.create(usecase), metadata=True)]
    return sum(entry.size == 2 and entry.time_created_ns is not None for entry in found)


def of_boto3(url: str) -> int:
    client = boto3.client("s3", endpoint_url=url)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    return sum(each["Size"] == 2 and each["LastModified"] is not None for page in pages for each in page["Contents"])


async def of_obstore(store: S3Store) -> int:
    pages = obstore.list(store, chunk_size=PAGE)
    return sum([each["size"] == 2 and each["last_modified"] is not None async for page in pages for each in page])


async def figures(size: float) -> list[Figures]:
    os.environ.update(CREDENTIALS)
    number = max(IN_FLIGHT, round(OBJECTS * size))

    async def listed(side: Side, name: str, token: ChangeId) -> None:
        if (found := await side()) != number:
            raise AssertionError(f"{found} objects were listed, and there are {number}")

    async with AsyncExitStack() as opened:
        url = await opened.enter_async_context(start_versitygw(Path(opened.enter_context(TemporaryDirectory(dir="/var/tmp")))))
        dsn = opened.enter_context(postgres_server()).dsn()
        boto3.client("s3", endpoint_url=url).create_bucket(Bucket=BUCKET)
        s3 = {"bucket": "ours", "endpoint": url, "region": REGION, "addressing_style": "path"}
        settings = Settings.model_validate({"postgres": {"dsn": dsn}, "s3": s3, "inline_bytes_max": 1})
        await provision(settings)
        others = S3Store(BUCKET, endpoint=url, region=REGION, client_options={"allow_http": True}, virtual_hosted_style_request=False)
        store = await opened.enter_async_context(open_storage(settings))
        for usecase in ("told", "older"):
            ids = [ObjectId.create(usecase, str(key)) for key in range(number)]
            await run_in_flight(lambda object_id: store.put(object_id, b"xx"), ids, IN_FLIGHT)
        await run_in_flight(lambda key: obstore.put_async(others, f"objects/{key}", b"xx"), range(number), IN_FLIGHT)
        await (connection := await asyncpg.connect(dsn)).execute("UPDATE tiered.rows SET metadata = NULL, crc = NULL WHERE path < 'p'")
        await connection.close()
        sides = {"ours": partial(of_store, store, "told"), "older rows": partial(of_store, store, "older"),
                 "boto3": partial(to_thread.run_sync, of_boto3, url), "obstore": partial(of_obstore, others)}  # fmt: skip
        table = Contest[Side](f"{number:,} large objects, with size and date", sides, few(5, size), MEASURES)
        await table.run({"list": listed}, 1, 1)
    return [table.figures()]
