"""A bucket of an S3 service as a sink: `S3Files` for `BucketSink`. Credentials are found as AWS's tools find them."""

from __future__ import annotations

from contextlib import AsyncExitStack

from changelog.base.runtime import Runtime
from recovery.feed.sinks.bucket import CONNECTIONS, BucketSink, prefix_of, settings_of
from tiered.s3.bucket_files import S3Files
from tiered.s3.client import SharedSession
from tiered.settings import S3Settings, Settings
from tiered.sinks import Place


def open_at(place: Place, runtime: Runtime, settings: Settings | None) -> BucketSink:
    return s3_sink(settings_of(place, S3Settings, settings.s3 if settings else None), prefix_of(place))


def s3_sink(at: S3Settings, prefix: str, session: SharedSession | None = None) -> BucketSink:
    """Returns the sink. `at`: the bucket, its endpoint and the time limit. `prefix`: of all names; empty: none.
    `session`: as of `S3Client`.
    """

    async def opened(stack: AsyncExitStack) -> S3Files:
        return await stack.enter_async_context(S3Files.connect(at, CONNECTIONS, session))

    return BucketSink(f"s3://{at.bucket}", prefix, opened)
