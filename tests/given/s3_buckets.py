"""New buckets of a server of the S3 API, and parts of them that belong to a store."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest.mock import AsyncMock, patch

import boto3
from botocore.config import Config

from changelog.base.runtime import Runtime, SystemRuntime
from changelog.change import ChangeId
from emulators.s3.servers import ACCESS, REGION, SECRET
from tiered.buckets.owners import encode_marker, marker_name
from tiered.provision import s3
from tiered.s3.blobs import S3Blobs
from tiered.s3.client import S3Client, SharedSession
from tiered.s3.owned import OwnedS3Blobs
from tiered.settings import S3Settings

OWNER = "postgres:host/db/ours"


@cache
def shared_session() -> SharedSession:
    """One for all tests of a process: each costs half a second of CPU."""
    return SharedSession()


@contextmanager
def untried() -> Iterator[None]:
    """Within it, a look at a bucket tries nothing of its service, which takes hundreds of requests and a new session.

    What is tried is the matter of `tests/tiered/provision/test_s3_probes.py`.
    """
    with patch.object(s3, "try_service", AsyncMock(return_value=[])), patch.object(s3, "SharedSession", shared_session):
        yield


async def make_bucket(url: str, bucket: str, *, versions: bool = False) -> None:
    async with s3_blobs(url, bucket, SystemRuntime()) as blobs:
        await _make(blobs.client, versions=versions)


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
        bucket, runtime, endpoint=url, region=REGION, addressing_style="path", **{"session": shared_session(), **options}
    ) as blobs:
        yield blobs


@cache
def _as_others(url: str) -> Any:
    """AWS's own client: what somebody else sees there, or does."""
    path_style = Config(s3={"addressing_style": "path"})
    return boto3.client(
        "s3", endpoint_url=url, region_name=REGION, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET, config=path_style
    )


def delete_object(url: str, bucket: str, name: str) -> None:
    """Deletes an object as a person does, with AWS's own client."""
    _as_others(url).delete_object(Bucket=bucket, Key=name)


def let_everybody_in(url: str, bucket: str) -> None:
    allowed = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{bucket}/*"}
    _as_others(url).put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": [allowed]}))


def delete_by_hand(blobs: S3Blobs, name: str) -> None:
    delete_object(blobs.client.endpoint, blobs.client.bucket, name)


@dataclass(frozen=True)
class FeedBucket:
    """A bucket as others see it. `settings`: those that reach it."""

    settings: S3Settings

    @property
    def _client(self) -> Any:
        return _as_others(self.settings.endpoint or "")

    def put(self, name: str, content: bytes, **headers: Any) -> None:
        self._client.put_object(Bucket=self.settings.bucket, Key=name, Body=content, **headers)

    def content_type(self, name: str) -> str:
        return str(self._client.head_object(Bucket=self.settings.bucket, Key=name)["ContentType"])

    def names(self) -> list[str]:
        return [each["Key"] for each in self._client.list_objects_v2(Bucket=self.settings.bucket).get("Contents", ())]

    def objects(self) -> dict[str, bytes]:
        """All objects, 1,000 at most."""
        found = {name: self._client.get_object(Bucket=self.settings.bucket, Key=name) for name in self.names()}
        return {name: each["Body"].read() for name, each in found.items()}

    def through(self, url: str, **more: Any) -> S3Settings:
        """The same bucket at another address, such as that of a proxy."""
        return self.settings.model_copy(update={"endpoint": url, **more})


def new_feed_bucket(url: str) -> FeedBucket:
    """A new bucket, for files that are no blobs."""
    bucket = f"feeds-{ChangeId.new(SystemRuntime())}"
    _as_others(url).create_bucket(Bucket=bucket)
    return FeedBucket(S3Settings(bucket=bucket, endpoint=url, region=REGION, addressing_style="path", timeout_s=60))
