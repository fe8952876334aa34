"""A bucket of S3 as a sink: what a service answers, and what is there already. The service is versitygw, behind a proxy
that fails."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from changelog.base.errors import ConfigurationError, TieredError, UnavailableError
from changelog.base.runtime import SystemRuntime
from emulators.s3.faults import FaultKind, FaultyProxy, ServiceFault
from emulators.s3.servers import REGION
from recovery.feed.sinks.bucket import BucketSink
from recovery.feed.sinks.open import open_sink
from recovery.feed.sinks.s3 import s3_sink
from recovery.feed.sinks.sink import Owner, SinkContent
from tests.given.command_line import Command
from tests.given.s3_buckets import FeedBucket, new_feed_bucket, shared_session
from tests.given.segments import GENERATION, large, segments

pytestmark = pytest.mark.anyio

FIRST, SECOND, *_ = segments()
MINE = Owner("1" * 32, "mine")


@pytest.fixture
def bucket(versitygw_url: str) -> FeedBucket:
    return new_feed_bucket(versitygw_url)


@pytest.fixture
async def proxy(versitygw_url: str) -> AsyncIterator[FaultyProxy]:
    async with FaultyProxy(versitygw_url).serve() as proxy:
        yield proxy


@asynccontextmanager
async def sink_at(there: FeedBucket, url: str, **settings: object) -> AsyncIterator[BucketSink]:
    sink = s3_sink(there.through(url, **settings), "", shared_session())
    yield sink
    await sink.aclose()


@pytest.fixture
async def sink(bucket: FeedBucket, proxy: FaultyProxy) -> AsyncIterator[BucketSink]:
    async with sink_at(bucket, proxy.url) as sink:
        yield sink


async def test_an_object_has_its_type_and_its_name_and_is_made_by_one_request(
    bucket: FeedBucket, proxy: FaultyProxy, sink: BucketSink
) -> None:
    avro = segments("avro")[0]
    await sink.deliver(avro)
    assert bucket.objects() == {avro.path: avro.data} and bucket.content_type(avro.path) == "application/avro"
    assert [each.partition(" ")[0] for each in proxy.seen] == ["PUT"]


async def test_the_first_file_is_looked_for_once(proxy: FaultyProxy, bucket: FeedBucket, sink: BucketSink) -> None:
    await sink.deliver(FIRST)
    proxy.seen.clear()
    async with sink_at(bucket, proxy.url) as successor:
        await successor.deliver(SECOND)
        await successor.deliver(SECOND)
    assert [each.partition("?")[0] for each in proxy.seen] == [
        f"GET /{bucket.settings.bucket}", *[f"PUT /{bucket.settings.bucket}/{SECOND.path}"] * 2,
        f"GET /{bucket.settings.bucket}/{SECOND.path}",
    ]  # fmt: skip


async def test_foreign_objects_are_told_and_a_damaged_mark_is_refused(bucket: FeedBucket, sink: BucketSink) -> None:
    await sink.deliver(FIRST)
    for foreign in (f"{FIRST.folder}/notes.txt", f"{FIRST.folder}/0.json", "generation-x/1", "other/0000000000000000000.json"):
        bucket.put(foreign, b"foreign")
    assert await sink.look(GENERATION, 0) == SinkContent(None, GENERATION, (0,), ("0.json", "notes.txt"))
    for damaged in (b"{", b'{"feed": 7, "store": "s"}'):
        bucket.put("_feed.json", damaged)
        with pytest.raises(ConfigurationError, match="does not say whose feed it is"):
            await sink.look(GENERATION, 0)
    bucket.put("_feed.json", b"x" * 100_000)
    with pytest.raises(ConfigurationError, match="has 100000 bytes"):
        await sink.look(GENERATION, 0)
    assert bucket.objects()["_feed.json"] == b"x" * 100_000


async def test_many_files_are_listed_page_by_page(bucket: FeedBucket, sink: BucketSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiered.s3.bucket_files.PAGE_MAX", 2)
    for each in segments():
        await sink.deliver(each)
    bucket.put(f"generation-{GENERATION + 9:016d}/{0:019d}.json", b"later")
    times = tuple(each.time for each in segments())
    for number in range(len(times)):
        assert await sink.look(GENERATION, times[number]) == SinkContent(None, GENERATION + 9, times[number:])


# --- a service that fails --------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [
    ServiceFault("PUT", FaultKind.CUT_AFTER), ServiceFault("PUT", FaultKind.CUT_BEFORE),
    ServiceFault("PUT", FaultKind.AFTER, 500, "InternalError"), ServiceFault("PUT", FaultKind.BEFORE, 503, "SlowDown"),
    ServiceFault("PUT", FaultKind.BEFORE, 409, "ConditionalRequestConflict"), ServiceFault("PUT", FaultKind.BEFORE, 200),
    ServiceFault("PUT", FaultKind.BEFORE, 403, "RequestTimeTooSkewed"), ServiceFault("PUT", FaultKind.BEFORE, 400, "ExpiredToken"),
], ids=lambda fault: f"{fault.kind.name}-{fault.code or fault.status}")  # fmt: skip
async def test_an_answer_that_is_no_success_is_no_acknowledgement(
    fault: ServiceFault, bucket: FeedBucket, proxy: FaultyProxy, sink: BucketSink
) -> None:
    proxy.faults.append(fault)
    with pytest.raises(UnavailableError):
        await sink.deliver(FIRST)
    await sink.deliver(FIRST)
    assert bucket.objects() == {FIRST.path: FIRST.data}


@pytest.mark.parametrize("method", ["PUT", "GET"])
async def test_rights_that_are_missing_are_named_and_no_more(method: str, proxy: FaultyProxy, sink: BucketSink) -> None:
    await sink.deliver(FIRST)
    proxy.faults.append(ServiceFault(method, FaultKind.BEFORE, 403, "AccessDenied"))
    with pytest.raises(ConfigurationError, match="allow this identity s3:PutObject and s3:GetObject on the files") as caught:
        await sink.deliver(FIRST)
    assert "Delete" not in str(caught.value) and caught.value.code == "AccessDenied"
    proxy.faults.append(ServiceFault("GET", FaultKind.BEFORE, 403, "AccessDenied", having="list-type"))
    with pytest.raises(ConfigurationError, match="s3:ListBucket on the bucket"):
        await sink.look(GENERATION, 0)


async def test_a_bucket_that_does_not_exist(bucket: FeedBucket, versitygw_url: str) -> None:
    async with sink_at(bucket, versitygw_url, bucket="nobody-made-it") as sink:
        for call in (sink.deliver(FIRST), sink.look(GENERATION, 0), sink.claim(MINE)):
            with pytest.raises(ConfigurationError, match="there is no such bucket"):
                await call


async def test_an_object_that_vanishes_between_is_delivered_again(proxy: FaultyProxy, sink: BucketSink) -> None:
    await sink.deliver(FIRST)
    proxy.faults.append(ServiceFault("GET", FaultKind.BEFORE, 404, "NoSuchKey"))
    with pytest.raises(UnavailableError, match="it was there, and is gone"):
        await sink.deliver(FIRST)


async def test_bytes_that_are_damaged_on_their_way_are_never_stored(
    bucket: FeedBucket, sink: BucketSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiered.s3.bucket_files.encode_crc", lambda _: "AAAAAA==")
    with pytest.raises(TieredError):
        await sink.deliver(large(2**20))
    assert bucket.names() == []


async def test_a_service_that_replaces_what_it_shall_create_is_refused_before_anything_is_delivered(
    moto_url: str,
) -> None:
    bucket = new_feed_bucket(moto_url)  # which takes a request although its signature is of other headers
    async with FaultyProxy(moto_url, without={"If-None-Match"}, of="PUT").serve() as careless:
        for _ in range(2):  # also by the next process
            async with sink_at(bucket, careless.url) as sink:
                await sink.claim(MINE)
                for _ in range(2):
                    with pytest.raises(ConfigurationError, match="replaces objects that it was told only to create"):
                        await sink.look(GENERATION, 0)
    assert bucket.objects() == {"_feed.json": MINE.to_bytes()}


async def test_the_condition_is_tried_once_a_process(bucket: FeedBucket, proxy: FaultyProxy, sink: BucketSink) -> None:
    await sink.claim(MINE)
    for _ in range(3):
        assert await sink.look(GENERATION, 0) == SinkContent(MINE, None, ())
    assert sum(each.startswith("PUT") for each in proxy.seen) == 2 and bucket.objects() == {"_feed.json": MINE.to_bytes()}


# --- where it is -----------------------------------------------------------------------------------


async def test_without_the_section_s3_the_variables_of_aws_say_where_it_is(
    bucket: FeedBucket, versitygw_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", versitygw_url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    sink = open_sink(f"s3://{bucket.settings.bucket}/live", SystemRuntime())
    await sink.deliver(FIRST)
    await sink.aclose()
    assert bucket.objects() == {f"live/{FIRST.path}": FIRST.data}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(UnavailableError, match=r"nothing could be reached at http://127\.0\.0\.1:9"):
        await sink.deliver(SECOND)
    await sink.aclose()


def test_a_feed_in_a_bucket_is_read_by_its_address(
    bucket: FeedBucket, versitygw_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in segments():
        bucket.put(f"live/{each.path}", each.data)
    bucket.put("live/_feed.json", MINE.to_bytes())
    monkeypatch.setenv("AWS_ENDPOINT_URL", versitygw_url)
    tiered = Command(tmp_path)
    where = f"s3://{bucket.settings.bucket}/live/{FIRST.folder}"
    shown = tiered("feed", "view", where, "--json")
    assert '"b"' in shown and '"a"' not in shown
    assert tiered("feed", "view", f"{where}/{FIRST.name}") != ""
    tiered("feed", "check", where)
    bucket.put(f"live/{FIRST.path}", FIRST.data[:-5])
    tiered("feed", "check", where, code=6)


def test_a_store_delivers_there_and_a_second_one_is_refused(
    bucket: FeedBucket, versitygw_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", versitygw_url)
    tiered, where = Command(tmp_path), f"s3://{bucket.settings.bucket}/live"
    tiered.environment |= {"TIERED_FEED__ENABLED": "true", "TIERED_INLINE_BYTES_MAX": "16", "TIERED_FEED__TO": where}
    for name in ("a", "b"):
        tiered("put", f"photos/org.1/objects/{name}", "-", stdin=name.encode() * 100)
        tiered("feed", "run", "--once")
    there = bucket.objects()
    [folder] = {name.split("/")[1] for name in there if "generation-" in name}
    tiered("feed", "check", f"{where}/{folder}")
    assert tiered("feed", "view", f"{where}/{folder}").count("photos/org.1/objects/") >= 2
    assert where in tiered("feed", "status")

    tiered.store, first = tiered.directory / "other", tiered.store
    tiered("put", "photos/org.1/objects/c", "-", stdin=b"c" * 100)
    tiered("feed", "run", "--once", code=3)
    assert "is the place of another feed, " in tiered.errors and f"of the directory {first}" in tiered.errors
    assert bucket.objects() == there
