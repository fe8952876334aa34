"""New buckets of a server of the S3 API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from changelog.base.runtime import Runtime, SystemRuntime
from changelog.change import ChangeId
from emulators.s3.servers import REGION
from tiered.s3.blobs import S3Blobs
from tiered.s3.client import S3Client, SharedSession


@cache
def shared_session() -> SharedSession:
    """One for all tests of a process: each costs half a second of CPU."""
    return SharedSession()


async def make_bucket(url: str, bucket: str) -> None:
    async with s3_blobs(url, bucket, SystemRuntime()) as blobs:
        await _make(blobs.client)


async def _make(client: S3Client, *, versions: bool = False) -> None:
    await client.call("create_bucket", "making a bucket", effect=True)
    if versions:
        await client.call("put_bucket_versioning", "keeping versions", effect=True, VersioningConfiguration={"Status": "Enabled"})


@asynccontextmanager
async def new_bucket(url: str, runtime: Runtime, *, versions: bool = False, **options: Any) -> AsyncIterator[S3Blobs]:
    """A new bucket, and its blobs."""
    async with s3_blobs(url, f"bucket-{ChangeId.new(runtime)}", runtime, **options) as blobs:
        await _make(blobs.client, versions=versions)
        yield blobs


@asynccontextmanager
async def s3_blobs(url: str, bucket: str, runtime: Runtime, **options: Any) -> AsyncIterator[S3Blobs]:
    async with S3Blobs.connect(
        bucket, runtime, endpoint=url, region=REGION, addressing_style="path", session=shared_session(), **options
    ) as blobs:
        yield blobs
