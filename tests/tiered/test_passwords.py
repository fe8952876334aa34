"""Which URIs hold a password: messages, notes and pages repeat the others."""

from __future__ import annotations

import pytest

from changelog.base.errors import InvalidRequestError
from tiered.text import refuse_password


@pytest.mark.parametrize("uri", [
    "gs://bucket/audits/1", "gs://anonymous@bucket/x", "s3://bucket/x?endpoint_override=http://127.0.0.1:9000", "s3://bucket/me@home/x",
    "hdfs://me@host:8020/x", "hdfs://host:8020/x", "hdfs://[::1]:8020/x", "abfss://files@account.dfs.core.windows.net/x", "file:///a@b:c/x",
    "/a/s3://x:y@z", "runs/x:y@z", "", "file:/x", "s3:bucket/x",
])  # fmt: skip
def test_a_uri_without_a_password_is_taken(uri: str) -> None:
    refuse_password("it", uri)


@pytest.mark.parametrize("uri", [
    "s3://KEY:hush@bucket/x", "s3://hush@bucket/x", "s3://KEY:a/hush@bucket/x", "s3://KEY:a?hush@bucket", "S3A://KEY:hush@bucket",
    "s3:KEY:hush@bucket/x", "s3:/KEY:hush@bucket/x", "gs://hush@bucket/x", "hdfs://me:hush@host:8020/x", "hdfs://me:1/hush@host/x",
    "abfss://files:hush@account/x", "foo://me:hush@host/x", "https://hush@host/x",
])  # fmt: skip
def test_a_uri_with_a_password_is_refused_and_not_shown(uri: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^it \w+://… names a user or a password, which would be shown: leave it out") as refused:
        refuse_password("it", uri)
    assert "hush" not in str(refused.value)
