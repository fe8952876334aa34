"""A client of S3 that others wrote works on the GCS emulator, by the XML API."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from typing import Any

import boto3
import pytest
import pytest_asyncio
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError

from emulators.gcs.server import GcsEmulator

pytestmark = pytest.mark.asyncio

MIB = 1024 * 1024


@pytest_asyncio.fixture
async def server() -> AsyncIterator[GcsEmulator]:
    async with GcsEmulator() as server:
        server.create_bucket("bucket")
        yield server


@pytest.fixture
def s3(server: GcsEmulator) -> Iterator[Any]:
    keys = {"aws_access_key_id": "GOOG1E", "aws_secret_access_key": "secret", "region_name": "auto"}
    config = Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required", retries={"total_max_attempts": 1})
    client = boto3.client("s3", endpoint_url=server.url, config=config, **keys)
    yield client
    client.close()


async def test_boto3_works_by_the_xml_api_as_a_client_of_s3(server: GcsEmulator, s3: Any) -> None:
    def work() -> None:
        name, payload = "d/größe #1&", b"0123456789"
        put = s3.put_object(Bucket="bucket", Key=name, Body=payload, ContentType="text/plain", Metadata={"k": "v"})
        head = s3.head_object(Bucket="bucket", Key=name)
        assert (head["ETag"], head["ContentLength"], head["Metadata"], head["ContentType"]) == (put["ETag"], 10, {"k": "v"}, "text/plain")
        assert s3.get_object(Bucket="bucket", Key=name, Range="bytes=2-4")["Body"].read() == b"234"
        with pytest.raises(ClientError, match="Not Modified"):
            s3.get_object(Bucket="bucket", Key=name, IfNoneMatch=put["ETag"])
        for key in ("e", "f", "g/h"):
            s3.copy_object(Bucket="bucket", Key=key, CopySource={"Bucket": "bucket", "Key": name})
        s3.copy_object(Bucket="bucket", Key="e", CopySource="bucket/f", MetadataDirective="REPLACE", Metadata={"l": "w"})
        assert s3.head_object(Bucket="bucket", Key="e")["Metadata"] == {"l": "w"}
        for listing in ("list_objects", "list_objects_v2"):
            pages = list(s3.get_paginator(listing).paginate(Bucket="bucket", Delimiter="/", PaginationConfig={"PageSize": 2}))
            assert [each["Key"] for page in pages for each in page.get("Contents", [])] == ["e", "f"]
            assert [each["Prefix"] for page in pages for each in page.get("CommonPrefixes", [])] == ["d/", "g/"]
            assert [each["Key"] for each in getattr(s3, listing)(Bucket="bucket")["Contents"]] == [name, "e", "f", "g/h"]
        gone = s3.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": "e"}, {"Key": "none"}]})
        assert [each["Key"] for each in gone["Deleted"]] == ["e", "none"]
        s3.delete_object(Bucket="bucket", Key="f")
        s3.create_bucket(Bucket="other", CreateBucketConfiguration={"LocationConstraint": "EU"})
        s3.head_bucket(Bucket="other")
        assert s3.get_bucket_location(Bucket="other")["LocationConstraint"] == "EU"
        assert [each["Name"] for each in s3.list_buckets()["Buckets"]] == ["bucket", "other"]
        s3.delete_bucket(Bucket="other")
        with pytest.raises(s3.exceptions.NoSuchKey):
            s3.get_object(Bucket="bucket", Key="f")

    await asyncio.to_thread(work)
    assert list(server.buckets["bucket"].objects) == ["d/größe #1&", "g/h"]


async def test_boto3_uploads_parts(server: GcsEmulator, s3: Any) -> None:
    def work() -> None:
        s3.upload_fileobj(io.BytesIO(bytes(11 * MIB)), "bucket", "a/b", ExtraArgs={"Metadata": {"k": "v"}}, Config=TransferConfig(
            multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB, use_threads=False,
        ))  # fmt: skip
        begun = s3.create_multipart_upload(Bucket="bucket", Key="c")
        named = {"Bucket": "bucket", "Key": "c", "UploadId": begun["UploadId"]}
        part = s3.upload_part(**named, PartNumber=1, Body=b"x")
        assert [(each["PartNumber"], each["ETag"], each["Size"]) for each in s3.list_parts(**named)["Parts"]] == [(1, part["ETag"], 1)]
        assert [each["Key"] for each in s3.list_multipart_uploads(Bucket="bucket")["Uploads"]] == ["c"]
        s3.abort_multipart_upload(**named)
        with pytest.raises(s3.exceptions.NoSuchUpload):
            s3.list_parts(**named)
        with pytest.raises(ClientError, match="not implement"):
            s3.put_object(Bucket="bucket", Key="c", Body=b"x", Tagging="a=b")

    await asyncio.to_thread(work)
    [stored] = server.buckets["bucket"].objects.values()
    assert (stored.name, len(stored.payload), stored.metadata, stored.md5) == ("a/b", 11 * MIB, {"k": "v"}, None)
