"""A bucket as a sink: what it answers, and what is there already."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from changelog.base.errors import ConfigurationError, TieredError, UnavailableError
from changelog.base.runtime import SystemRuntime
from emulators.gcs.server import FaultMode, GcsEmulator, GcsFault
from recovery.feed.sinks.bucket import BucketSink
from recovery.feed.sinks.gcs import gcs_sink
from tests.given.segments import large, segments
from tiered.settings import GcsSettings

pytestmark = pytest.mark.anyio

FIRST, SECOND, *_ = segments()


@pytest.fixture
async def server() -> AsyncIterator[GcsEmulator]:
    async with GcsEmulator() as emulator:
        emulator.create_bucket("feeds")
        yield emulator


@pytest.fixture
async def sink(server: GcsEmulator) -> AsyncIterator[BucketSink]:
    one = gcs_sink(GcsSettings(bucket="feeds", endpoint=server.url, timeout_s=60), "", SystemRuntime())
    yield one
    await one.aclose()


async def test_an_object_has_its_type_and_its_name_and_is_made_by_one_request(server: GcsEmulator, sink: BucketSink) -> None:
    avro = segments("avro")[0]
    await sink.deliver(avro)
    stored = server.buckets["feeds"].objects[avro.path]
    assert stored.payload == avro.data and stored.resource()["contentType"] == "application/avro"
    assert server.calls == ["upload.multipart"]


async def test_the_first_file_is_looked_for_once(server: GcsEmulator, sink: BucketSink) -> None:
    await sink.deliver(FIRST)
    successor = gcs_sink(GcsSettings(bucket="feeds", endpoint=server.url), "", SystemRuntime())
    server.calls.clear()
    await successor.deliver(SECOND)
    await successor.deliver(SECOND)
    await successor.aclose()
    assert server.calls.count("object.list") == 1 and server.calls.count("upload.multipart") == 2


@pytest.mark.parametrize(
    "mode", [FaultMode.DROP_AFTER, FaultMode.DROP_BEFORE, FaultMode.STALL_AFTER, FaultMode.STALL_BEFORE, FaultMode.STATUS]
)
async def test_an_answer_that_does_not_come_is_no_acknowledgement(mode: FaultMode, server: GcsEmulator, sink: BucketSink) -> None:
    hasty = gcs_sink(GcsSettings(bucket="feeds", endpoint=server.url, timeout_s=0.5), "", SystemRuntime())
    server.faults.append(fault := GcsFault(mode, kind="upload.*"))
    while fault.times:  # a machine that stands still for the limit has not sent the request
        with pytest.raises(UnavailableError, match="gs://feeds"):
            await hasty.deliver(FIRST)
    await hasty.aclose()
    await sink.deliver(FIRST)
    assert server.buckets["feeds"].objects[FIRST.path].payload == FIRST.data


@pytest.mark.parametrize(("status", "kind"), [
    (403, ConfigurationError), (400, ConfigurationError), (429, UnavailableError), (500, UnavailableError),
])  # fmt: skip
async def test_what_refusals_become(status: int, kind: type[TieredError], server: GcsEmulator, sink: BucketSink) -> None:
    server.faults.append(GcsFault(FaultMode.STATUS, status=status))
    with pytest.raises(TieredError) as caught:
        await sink.deliver(FIRST)
    assert type(caught.value) is kind and caught.value.code == str(status)


async def test_a_bucket_that_does_not_exist(server: GcsEmulator) -> None:
    one = gcs_sink(GcsSettings(bucket="other", endpoint=server.url), "", SystemRuntime())
    with pytest.raises(ConfigurationError, match="there is no bucket 'other'"):
        await one.deliver(FIRST)
    await one.aclose()


async def test_an_object_that_vanishes_between_is_delivered_again(server: GcsEmulator, sink: BucketSink) -> None:
    await sink.deliver(FIRST)
    gone = json.dumps({"error": {"code": 404, "message": f"No such object: feeds/{FIRST.path}"}})
    server.faults.append(GcsFault(FaultMode.STATUS, kind="object.get", status=404, text=gone))
    with pytest.raises(UnavailableError, match="it was there, and is gone"):
        await sink.deliver(FIRST)


async def test_bytes_that_are_damaged_on_their_way_are_never_stored(
    server: GcsEmulator, sink: BucketSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiered.gcs.bucket_files.encode_crc", lambda _: "AAAAAA==")
    with pytest.raises(ConfigurationError, match="does not take"):
        await sink.deliver(large(2**20))
    assert not server.buckets["feeds"].objects
