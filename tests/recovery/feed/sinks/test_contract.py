"""What every sink does, in each kind of `SinkPlace`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from changelog.base.errors import CorruptRecordError, TieredError, UnavailableError
from changelog.base.runtime import SystemRuntime
from emulators.gcs.server import GcsEmulator
from recovery.feed.files import is_left_out
from recovery.feed.sinks.gcs import gcs_sink
from recovery.feed.sinks.http import HttpSink
from recovery.feed.sinks.open import open_sink
from recovery.feed.sinks.s3 import s3_sink
from recovery.feed.sinks.sink import Owner, Sink, SinkContent, Suffix
from recovery.http.receiver import make_receiver
from tests.given.s3_buckets import FeedBucket, new_feed_bucket, shared_session
from tests.given.segments import GENERATION, NOW, expected, large, segment, segments, viewed
from tests.given.sink_place import SinkPlace
from tiered.settings import GcsSettings
from tiered.sinks import SINKS

pytestmark = pytest.mark.anyio

CANCELLED_AT = (1, 2, 3, 5, 8, 13, 21, 34, 55)
"""At so many of its awaits a delivery is cancelled, if it has so many."""


class Directory(SinkPlace):
    def __init__(self, root: Path) -> None:
        self.root = root

    def sink(self) -> Sink:
        return open_sink(str(self.root), SystemRuntime())

    def put(self, name: str, content: bytes) -> None:
        (self.root / segments()[0].folder / name).write_bytes(content)

    def files(self) -> dict[str, bytes]:
        folder = self.root / segments()[0].folder
        return {each.name: each.read_bytes() for each in folder.iterdir() if not is_left_out(each.name)} if folder.exists() else {}


class Receiver(Directory):
    def sink(self) -> Sink:
        return HttpSink("http://receiver", httpx.ASGITransport(make_receiver(self.root, SystemRuntime())))


class BucketPlace(SinkPlace):
    @abstractmethod
    def objects(self) -> dict[str, bytes]:
        """All that the bucket holds."""

    def files(self) -> dict[str, bytes]:
        folder, objects = f"live/1/{segments()[0].folder}/", self.objects()
        assert all(name.startswith((folder, "live/1/_feed.json", "live/1/generation-")) for name in objects)
        return {name.removeprefix(folder): each for name, each in objects.items() if name.startswith(folder)}


class GcsPlace(BucketPlace):
    def __init__(self, server: GcsEmulator) -> None:
        self._server = server
        self._bucket = server.create_bucket("feeds")

    def sink(self) -> Sink:
        return gcs_sink(GcsSettings(bucket="feeds", endpoint=self._server.url), "live/1", SystemRuntime())

    def put(self, name: str, content: bytes) -> None:
        self._bucket.insert(f"live/1/{segments()[0].folder}/{name}", content, {}, {}, (), NOW * 1_000_000)

    def objects(self) -> dict[str, bytes]:
        return {name: each.payload for name, each in self._bucket.objects.items()}


class S3Place(BucketPlace):
    def __init__(self, bucket: FeedBucket) -> None:
        self._bucket = bucket

    def sink(self) -> Sink:
        return s3_sink(self._bucket.settings, "live/1", shared_session())

    def put(self, name: str, content: bytes) -> None:
        self._bucket.put(f"live/1/{segments()[0].folder}/{name}", content)

    def objects(self) -> dict[str, bytes]:
        return self._bucket.objects()


@asynccontextmanager
async def gcs_place() -> AsyncIterator[SinkPlace]:
    async with GcsEmulator() as server:
        yield GcsPlace(server)


PLACES: dict[str, Callable[[Callable[[str], Any]], AbstractAsyncContextManager[SinkPlace]]] = {
    "directory": lambda given: nullcontext(Directory(given("tmp_path") / "feed")),
    "http": lambda given: nullcontext(Receiver(given("tmp_path") / "feed")),
    "gcs": lambda given: gcs_place(),
    "versitygw": lambda given: nullcontext(S3Place(new_feed_bucket(given("versitygw_url")))),
    "moto": lambda given: nullcontext(S3Place(new_feed_bucket(given("moto_url")))),
}
"""A place by its name. `given`: returns a fixture, which is made for this place alone. Other rows of `SINKS` follow."""


def place_of(module: str, given: Callable[[str], Any]) -> AbstractAsyncContextManager[SinkPlace]:
    """That of the module of the same name in `tests/given/`."""
    return nullcontext(import_module(f"tests.given.{module}").place(given))


PLACES |= {kind.module: partial(place_of, kind.module) for kind in SINKS if kind.module not in {*PLACES, "s3"}}

WITH_EACH_PUSH = [(name, "asyncio") for name in PLACES if name != "moto"]
EVERYWHERE = [*WITH_EACH_PUSH, *(pytest.param(each, marks=pytest.mark.night) for each in (("http", "trio"), ("moto", "asyncio")))]
"""A bucket needs asyncio. A second loop and a second service for S3 show the same again."""


@pytest.fixture(params=EVERYWHERE, ids="-".join, scope="module")
def where(request: pytest.FixtureRequest) -> tuple[str, str]:
    found: tuple[str, str] = request.param
    return found


@pytest.fixture(scope="module")
def anyio_backend(where: tuple[str, str]) -> str:
    return where[1]


@pytest.fixture
async def place(where: tuple[str, str], request: pytest.FixtureRequest, one_loop: None) -> AsyncIterator[SinkPlace]:
    async with PLACES[where[0]](request.getfixturevalue) as found:
        yield found


@asynccontextmanager
async def sink_of(place: SinkPlace) -> AsyncIterator[Sink]:
    sink = place.sink()
    try:
        yield sink
    finally:
        with anyio.CancelScope(shield=True):
            await sink.aclose()


# --- what is delivered -----------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["json", "avro"])
async def test_what_was_delivered_is_read_back_with_the_same_view(place: SinkPlace, suffix: Suffix, tmp_path: Path) -> None:
    feed = segments(suffix)
    async with sink_of(place) as sink:
        for each in feed:
            await sink.deliver(each)
    assert viewed(place.messages(tmp_path)) == expected(feed) == ({"b": 1}, (NOW + 10,))
    if place.by_name:
        assert place.files() == {each.name: each.data for each in feed}


async def test_a_segment_that_comes_again_changes_nothing(place: SinkPlace, tmp_path: Path) -> None:
    feed = segments()
    async with sink_of(place) as sink, sink_of(place) as successor:
        for each in feed:
            await sink.deliver(each)
            await sink.deliver(each)
            await successor.deliver(each)
        for old in feed[:2]:  # a writer that was fenced, and does not know it yet
            await sink.deliver(old)
    assert viewed(place.messages(tmp_path)) == expected(feed)
    if place.by_name:
        assert place.files() == {each.name: each.data for each in feed}


async def test_after_the_first_segment_any_order_will_do(place: SinkPlace, tmp_path: Path) -> None:
    first, *rest = segments()
    async with sink_of(place) as sink:
        for each in [first, *reversed(rest)]:
            await sink.deliver(each)
    assert viewed(place.messages(tmp_path)) == expected([first, *rest])


async def test_several_at_once_are_all_delivered(place: SinkPlace, tmp_path: Path) -> None:
    first, *rest = segments()
    async with sink_of(place) as sink:
        await sink.deliver(first)
        async with anyio.create_task_group() as tasks:
            for each in rest * 2:
                tasks.start_soon(sink.deliver, each)
    assert viewed(place.messages(tmp_path)) == expected([first, *rest])


async def test_other_bytes_under_a_known_name_are_refused_and_what_is_there_stays(place: SinkPlace) -> None:
    if not place.by_name:
        pytest.skip("this place has no names")
    first, second, *_ = segments()
    others = [segment(NOW, messages) for messages in (list(first.messages()), list(second.messages())[:1])]
    async with sink_of(place) as sink:
        for each in (first, second):
            await sink.deliver(each)
        for other in others:
            with pytest.raises(CorruptRecordError, match=second.name):
                await sink.deliver(other)
        await sink.deliver(second)
    assert place.files() == {first.name: first.data, second.name: second.data}


async def test_a_large_segment(place: SinkPlace, tmp_path: Path) -> None:
    whole = large(place.large)
    assert len(whole.data) > place.large
    async with sink_of(place) as sink:
        await sink.deliver(whole)
    messages = place.messages(tmp_path)
    assert viewed(messages) == expected([whole])


async def test_a_later_segment_of_a_generation_that_is_not_there_is_refused(place: SinkPlace) -> None:
    if not place.by_name:
        pytest.skip("this place does not know what it had")
    async with sink_of(place) as sink:
        with pytest.raises(TieredError, match="before is gone"):
            await sink.deliver(segments()[1])
    assert place.files() == {}


async def test_closing_twice_and_delivering_afterwards(place: SinkPlace) -> None:
    first, second, *_ = segments()
    sink = place.sink()
    await sink.aclose()
    await sink.deliver(first)
    await sink.aclose()
    await sink.aclose()
    await sink.deliver(second)
    await sink.aclose()


# --- what is there, and whose it is -----------------------------------------------------------------

MINE, OTHER = Owner("1" * 32, "mine"), Owner("2" * 32, "of another")


async def test_a_sink_tells_what_it_holds_and_whose_it_is(place: SinkPlace, tmp_path: Path) -> None:
    feed, later = segments(), segments(generation=GENERATION + 7)
    async with sink_of(place) as sink:
        if not place.by_name:
            assert await sink.look(GENERATION, 0) is None
            assert not await sink.claim(MINE)
            return
        assert await sink.look(GENERATION, 0) == SinkContent(None, None, ())
        assert await sink.claim(MINE)
        assert await sink.look(GENERATION, 0) == SinkContent(MINE, None, ())
        for each in feed:
            await sink.deliver(each)
        assert viewed(place.messages(tmp_path)) == expected(feed), "the mark is no file of it"
        await sink.deliver(later[0])
        times = tuple(each.time for each in feed)
        assert await sink.look(GENERATION, 0) == SinkContent(MINE, GENERATION + 7, times)
        assert await sink.look(GENERATION, NOW + 5) == SinkContent(MINE, GENERATION + 7, times[2:])
        assert await sink.look(GENERATION, NOW + 6) == SinkContent(MINE, GENERATION + 7, times[3:])
        assert await sink.look(GENERATION + 7, 0) == SinkContent(MINE, GENERATION + 7, (0,))
        assert await sink.look(GENERATION - 1, 0) == SinkContent(MINE, GENERATION + 7, ())


async def test_a_file_without_a_byte_was_taken_for_a_delivered_one(place: SinkPlace) -> None:
    feed = segments()
    async with sink_of(place) as sink:
        for each in feed:
            await sink.deliver(each)
        place.empty(1)
        assert await sink.look(GENERATION, 0) == SinkContent(None, GENERATION, tuple(each.time for each in feed if each is not feed[1]))


@pytest.mark.parametrize("name", ["notes.txt", "!", "0", "0000000000000000001.csv", "zz/deep.json"])
async def test_what_no_feed_put_there_is_told(place: SinkPlace, name: str) -> None:
    async with sink_of(place) as sink:
        for each in segments():
            await sink.deliver(each)
        if "/" in name and isinstance(place, Directory | Receiver):
            return  # a folder, which readers of a directory do not look into
        place.put(name, b"something")
        place.put("_left_out", b"which readers do not read")
        found = await sink.look(GENERATION, 0)
        assert found is not None and found.foreign == (name,)


@pytest.mark.parametrize("change", [lambda data: b"", lambda data: data[:-1], lambda data: data[:-2] + b"x\n", lambda data: data + b"\n"],
                         ids=["empty", "cut", "changed", "longer"])  # fmt: skip
async def test_other_bytes_in_a_file_that_was_delivered_are_found_and_stay(place: SinkPlace, change: Callable[[bytes], bytes]) -> None:
    last = segments()[-1]
    async with sink_of(place) as sink:
        for each in segments():
            await sink.deliver(each)
        place.put(last.name, change(last.data))
    async with sink_of(place) as sink:
        with pytest.raises(CorruptRecordError, match=r"other bytes|not those of the feed|it stays as it is"):
            await sink.deliver(last)
    assert place.files()[last.name] == change(last.data)


async def test_the_first_of_two_feeds_keeps_the_place(place: SinkPlace) -> None:
    if not place.by_name:
        pytest.skip("this place takes no mark")
    async with sink_of(place) as sink, sink_of(place) as other:
        assert (await sink.look(GENERATION, 0), await other.look(GENERATION, 0)) == (SinkContent(None, None, ()),) * 2

        async def claim(by: Sink, owner: Owner) -> None:
            try:
                await by.claim(owner)
            except UnavailableError:  # moto answers 500 now and then where two requests for one key meet
                await by.claim(owner)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(claim, sink, MINE)
            tasks.start_soon(claim, other, OTHER)
        found = await sink.look(GENERATION, 0)
        assert found == await other.look(GENERATION, 0)
        assert found is not None and found.owner in (MINE, OTHER)
        await other.claim(MINE if found.owner == OTHER else OTHER)
        assert await sink.look(GENERATION, 0) == found


# --- what is cut off -------------------------------------------------------------------------------


class CancelledAt:
    """Awaits something, and cancels a scope at the n-th point at which it waits."""

    def __init__(self, awaited: Awaitable[None], number: int, scope: anyio.CancelScope) -> None:
        self._awaited = awaited
        self._number = number
        self._scope = scope

    def __await__(self) -> Generator[Any, Any, None]:
        inner, count = self._awaited.__await__(), 0
        step: Callable[[], Any] = lambda: next(inner)  # noqa: E731
        while True:
            try:
                point = step()
            except StopIteration:
                return
            count += 1
            if count == self._number:
                self._scope.cancel()
            try:
                sent = yield point
                step = lambda sent=sent: inner.send(sent)  # type: ignore[misc] # noqa: E731
            except BaseException as error:  # noqa: BLE001 - what is delivered
                step = lambda error=error: inner.throw(error)  # type: ignore[misc] # noqa: E731


async def test_a_delivery_that_is_cancelled_anywhere_leaves_the_whole_or_nothing(place: SinkPlace, tmp_path: Path) -> None:
    first, second, *_ = segments()
    async with sink_of(place) as sink:
        await sink.deliver(first)
    before, after = expected([first]), expected([first, second])
    for number in CANCELLED_AT if place.by_name else CANCELLED_AT[:4]:
        cut = place.sink()
        with anyio.CancelScope() as scope:
            await CancelledAt(cut.deliver(second), number, scope)
        assert viewed(place.messages(tmp_path)) in (before, after)
        await cut.aclose()
        if not scope.cancelled_caught:
            break
    async with sink_of(place) as sink:
        await sink.deliver(second)
    assert viewed(place.messages(tmp_path)) == after
    if place.by_name:
        assert place.files() == {first.name: first.data, second.name: second.data}


# --- which sink ------------------------------------------------------------------------------------


def test_every_kind_can_be_opened_by_a_text(tmp_path: Path) -> None:
    texts = [str(tmp_path), "http://receiver/feed", "kafka://a:9092,b:9093/topic", *(kind.shape for kind in SINKS if kind.schemes)]
    assert [open_sink(text, SystemRuntime()).name for text in texts] == texts
    assert {kind.module for kind in SINKS} == {"s3" if name == "versitygw" else name for name, _ in WITH_EACH_PUSH}
    assert segments()[0].folder == f"generation-{GENERATION:016d}"
