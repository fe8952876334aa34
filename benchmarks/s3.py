"""S3: our adapter beside bare calls of aiobotocore, and beside the transfer manager of boto3, on versitygw.

    put, get, delete   of 2 MiB: `open_upload` … `finalise`, `open` … `chunks`, `delete`, beside `put_object`,
                       `get_object` and `delete_object`, in one event loop
    large              put and get of a file of 1 GiB: in lanes, beside `upload_file` and `download_file`, ten threads

Compared is the CPU of this process; the server is another one. Bare calls are those that somebody would write first:
with the library's own settings, its crc32 among them.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import boto3
from aiobotocore.session import get_session
from boto3.s3.transfer import TransferConfig

from benchmarks.figures import Cell, Figures, options, tell
from benchmarks.rounds import Ratio, take_turns
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from emulators.s3.servers import CREDENTIALS, REGION, start_versitygw
from tiered.metadata import Metadata
from tiered.s3.blobs import S3Blobs

ROUNDS = 7
CALLS = 40
SMALL_BYTES = 2 * 1024 * 1024
LARGE_BYTES = 1024 * 1024 * 1024
LARGE_ROUNDS = 3
CHUNK_BYTES = 4 * 1024 * 1024
BUCKET = "bench"
RUNTIME = SystemRuntime()

Work = Callable[[], Awaitable[object]]


async def cpu(work: Work) -> float:
    """The seconds of CPU that all threads of this process take for it."""
    gc.collect()
    began = time.process_time()
    await work()
    return time.process_time() - began


def names(count: int) -> list[str]:
    return [f"u/objects/key/{ChangeId.new(RUNTIME)}" for _ in range(count)]


async def small(blobs: S3Blobs, bare: Any, payload: bytes, calls: int) -> list[list[Cell]]:
    ours, theirs = names(calls), names(calls)

    async def put() -> None:
        for name in ours:
            upload = await blobs.open_upload(name, Metadata(), len(payload))
            await upload.write(payload)
            await upload.finalise()

    async def put_bare() -> None:
        for name in theirs:
            await bare.put_object(Bucket=BUCKET, Key=name, Body=payload, IfNoneMatch="*")

    async def get() -> None:
        for name in ours:
            reader = await blobs.open(name)
            assert reader is not None
            async for _ in reader.chunks():
                pass
            await reader.aclose()

    async def get_bare() -> None:
        for name in theirs:
            answer = await bare.get_object(Bucket=BUCKET, Key=name)
            async for _ in answer["Body"].iter_chunks(256 * 1024):
                pass

    async def delete() -> None:
        for name in ours:
            await blobs.delete(name)

    async def delete_bare() -> None:
        for name in theirs:
            await bare.delete_object(Bucket=BUCKET, Key=name)

    sides = [partial(cpu, each) for each in (put, put_bare, get, get_bare, delete, delete_bare)]
    spent: list[list[float]] = [[] for _ in sides]
    for number in range(ROUNDS):  # a put comes before its get, and either side begins in turn
        for place in range(0, len(sides), 2):
            for side in (place, place + 1) if number % 2 == 0 else (place + 1, place):
                spent[side].append(await sides[side]())
    return [
        [f"{what} 2 MiB", f"{sum(spent[place]) / ROUNDS / calls * 1e3:.2f}", Ratio.of(spent[place], spent[place + 1])]
        for what, place in (("put", 0), ("get", 2), ("delete", 4))
    ]


async def large(blobs: S3Blobs, url: str, file: Path) -> list[list[Cell]]:
    size, client = file.stat().st_size, boto3.client("s3", endpoint_url=url, region_name=REGION)
    transfer, into = TransferConfig(max_concurrency=10, multipart_chunksize=8 * 1024 * 1024), file.with_suffix(".read")
    ours, theirs = names(2)

    async def put() -> None:
        await blobs.delete(ours)
        upload = await blobs.open_upload(ours, Metadata(), size)
        with file.open("rb") as opened:
            while chunk := opened.read(CHUNK_BYTES):
                await upload.write(chunk)
        await upload.finalise()

    async def get() -> None:
        reader = await blobs.open(ours)
        assert reader is not None
        with into.open("wb") as opened:
            async for chunk in reader.chunks():
                opened.write(chunk)
        await reader.aclose()

    async def put_theirs() -> None:
        await anyio.to_thread.run_sync(partial(client.upload_file, str(file), BUCKET, theirs, Config=transfer))

    async def get_theirs() -> None:
        await anyio.to_thread.run_sync(partial(client.download_file, BUCKET, theirs, str(into), Config=transfer))

    rows: list[list[Cell]] = []
    for what, mine, other in (("put", put, put_theirs), ("get", get, get_theirs)):
        left, right = await take_turns([partial(cpu, mine), partial(cpu, other)], LARGE_ROUNDS)
        rows.append([f"{what} {size >> 20} MiB", f"{sum(left) / LARGE_ROUNDS:.2f} s", Ratio.of(left, right)])
    return rows


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[str, S3Blobs, Any]]:
    """The server, our blobs in a bucket of it, and a bare client of aiobotocore."""
    os.environ.update(CREDENTIALS)
    directory = Path(tempfile.mkdtemp(prefix="tiered-bench-", dir="/var/tmp"))
    try:
        async with (
            start_versitygw(directory) as url,
            S3Blobs.connect(BUCKET, RUNTIME, endpoint=url, region=REGION, addressing_style="path") as blobs,
            get_session().create_client("s3", endpoint_url=url, region_name=REGION) as bare,
        ):
            await bare.create_bucket(Bucket=BUCKET)
            yield url, blobs, bare
    finally:
        shutil.rmtree(directory)


async def main(size: float) -> list[Figures]:
    async with opened() as (url, blobs, bare):
        calls = max(2, round(CALLS * size))
        with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
            file = Path(directory) / "payload"
            file.write_bytes(os.urandom(max(16 * 1024 * 1024, round(LARGE_BYTES * size))))
            return [
                Figures(
                    "S3, beside bare calls of aiobotocore", ["call", "our CPU, ms", "CPU, of bare"],
                    await small(blobs, bare, os.urandom(SMALL_BYTES), calls), ["The goal is 1.3 at most."],
                ),
                Figures(
                    "S3, beside the transfer manager of boto3", ["call", "our CPU", "CPU, of boto3"], await large(blobs, url, file),
                    ["Its threads and our event loop share two cores with the server."],
                ),
            ]  # fmt: skip


if __name__ == "__main__":
    arguments = options("s3", __doc__, "of what is put and read; 1 takes two minutes").parse_args()
    tell("s3", anyio.run(main, arguments.size), arguments.size, arguments.load, arguments.docs)
