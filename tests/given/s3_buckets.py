"""New buckets of a server of the S3 API, and parts of them that belong to a store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from changelog.base.runtime import Runtime, SystemRuntime
from changelog.change import ChangeId
from emulators.s3.servers import REGION
from tiered.protocol.owners import encode_marker, marker_name
from tiered.s3.blobs import S3Blobs
from tiered.s3.client import S3Client, SharedSession
from tiered.s3.owned import OwnedS3Blobs

OWNER = "postgres:host/db/ours"


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
async def shared_bucket(url: str, runtime: Runtime, prefix: str, **options: Any) -> AsyncIterator[OwnedS3Blobs]:
    """The blobs of a store below a prefix, beside blobs of others, with deadlines and amendments of theirs."""
    async with new_bucket(url, runtime, prefix=prefix, **options) as blobs:
        metadata, _ = encode_marker(f"s3://{blobs.client.bucket}", prefix, OWNER)
        for others in ("", "a/", "a/b/", "z/"):
            for name in ("theirs", f"~t/theirs/{1:012x}", f"~t/{prefix}theirs/{1:012x}", "~m/theirs/0123"):
                await blobs.client.call("put_object", "putting what is others'", effect=True, Key=others + name, body=b"x")
        await blobs.client.call("put_object", "giving a prefix", effect=True, Key=marker_name(prefix), body=b"", Metadata=dict(metadata))
        yield OwnedS3Blobs(blobs, blobs.client.bucket, prefix, OWNER)


@asynccontextmanager
async def s3_blobs(url: str, bucket: str, runtime: Runtime, kind: type[S3Blobs] = S3Blobs, **options: Any) -> AsyncIterator[S3Blobs]:
    async with kind.connect(
        bucket, runtime, endpoint=url, region=REGION, addressing_style="path", session=shared_session(), **options
    ) as blobs:
        yield blobs
