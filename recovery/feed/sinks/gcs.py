"""A bucket of Google Cloud Storage as a sink: `GcsFiles` for `BucketSink`. An emulator needs no credentials."""

from __future__ import annotations

from contextlib import AsyncExitStack

from changelog.base.runtime import Runtime
from changelog.google.tokens import GoogleAuthorization
from recovery.feed.sinks.bucket import CONNECTIONS, BucketSink, prefix_of, settings_of
from tiered.gcs.bucket_files import GcsFiles
from tiered.gcs.http import SCOPE
from tiered.settings import GcsSettings, Settings
from tiered.sinks import Place


def open_at(place: Place, runtime: Runtime, settings: Settings | None) -> BucketSink:
    return gcs_sink(settings_of(place, GcsSettings, settings.gcs if settings else None), prefix_of(place), runtime)


def gcs_sink(at: GcsSettings, prefix: str, runtime: Runtime) -> BucketSink:
    """Returns the sink. `at`: the bucket, its endpoint and the time limit. `prefix`: of all names; empty: none."""

    async def opened(stack: AsyncExitStack) -> GcsFiles:
        authorize = None if at.endpoint else await GoogleAuthorization.default(runtime, SCOPE)
        return await stack.enter_async_context(GcsFiles.connect(
            at.bucket, runtime, endpoint=at.endpoint, authorize=authorize, connections_max=CONNECTIONS, answer_timeout_s=at.timeout_s,
        ))  # fmt: skip

    return BucketSink(f"gs://{at.bucket}", prefix, opened)
