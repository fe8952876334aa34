"""New buckets of a server of the S3 API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from changelog.base.runtime import Runtime
from changelog.change import ChangeId
from emulators.s3.servers import REGION
from tiered.s3.blobs import S3Blobs
from tiered.s3.client import S3Client
from tiered.s3.errors import Refusal


async def make_bucket(url: str, bucket: str, *, versions: bool = False) -> None:
    async with S3Client.connect(bucket, endpoint=url, region=REGION, addressing_style="path", answer_timeout_s=30) as client:
        assert not isinstance(await client.call("create_bucket", "making a bucket", effect=True), Refusal)
        if versions:
            await client.call(
                "put_bucket_versioning", "keeping versions", effect=True, VersioningConfiguration={"Status": "Enabled"}
            )


@asynccontextmanager
async def new_bucket(url: str, runtime: Runtime, *, versions: bool = False, **options: Any) -> AsyncIterator[S3Blobs]:
    """A new bucket, and its blobs."""
    bucket = f"bucket-{ChangeId.new(runtime)}"
    await make_bucket(url, bucket, versions=versions)
    async with s3_blobs(url, bucket, runtime, **options) as blobs:
        yield blobs


@asynccontextmanager
async def s3_blobs(url: str, bucket: str, runtime: Runtime, **options: Any) -> AsyncIterator[S3Blobs]:
    async with S3Blobs.connect(bucket, runtime, endpoint=url, region=REGION, addressing_style="path", **options) as blobs:
        yield blobs
