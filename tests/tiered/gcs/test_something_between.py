"""What is not shaped like the service's answer is no evidence of what is stored, whatever its status says."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from changelog.base.errors import ConfigurationError, CorruptRecordError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from emulators.gcs.server import FaultMode, GcsEmulator, GcsFault
from emulators.gcs.store import Bucket
from tests.given.scripted_http import NumberedTokens, head_of, say, scripted
from tiered.gcs.answers import GcsResponse, nothing
from tiered.gcs.blobs import GcsBlobs
from tiered.gcs.bucket_files import GcsFiles
from tiered.metadata import NS_PER_S, Metadata, TimeToIdle, TimeToLive
from tiered.object_id import ObjectId
from tiered.services.backends import ByteRange, Tiers
from tiered.services.scans import Generation, Removal
from tiered.settings import Settings
from tiered.storage import TieredStorage
from tiered.testing.contracts.whole_blobs import read, store
from tiered.testing.log import MemoryChangeLog
from tiered.testing.rows import MemoryRows

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

RUNTIME = SystemRuntime()
MIB = 1024 * 1024
NAME = "attachments/org.17/objects/abc123/018bcfe5-6800-7000-8000-000000000001"
DEADLINE_NS = 2_000_000_000 * NS_PER_S
IDLE = Metadata(TimeToIdle(ns=86_400 * NS_PER_S), time_expires_ns=DEADLINE_NS)
DEEP = "[[[" * 100_000
PLAIN = f"No such object: blobs/{NAME}"  # the service's words, without its form
WORDS = ["", "<html>Not Found</html>", PLAIN, '{"error": "no route"}', '{"error": {"code": 500}}', DEEP]

EMPTY_OR_HTML = pytest.mark.parametrize("text", ["", "<html>welcome</html>"])


@pytest.fixture
async def blobs(server: GcsEmulator) -> AsyncIterator[GcsBlobs]:
    async with GcsBlobs.connect("blobs", RUNTIME, endpoint=server.url, upload_budget_s=0, answer_timeout_s=5) as blobs:
        yield blobs


def between(server: GcsEmulator, kind: str, status: int, text: str, times: int | None = 1, **headers: str) -> None:
    server.faults.append(GcsFault(FaultMode.STATUS, kind, status=status, text=text, times=times, headers=headers))


async def generation_of(blobs: GcsBlobs) -> Generation:
    head = await blobs.head(NAME)
    assert head is not None
    return head.generation


# --- reads -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call", [lambda blobs: blobs.head(NAME), lambda blobs: blobs.open(NAME), lambda blobs: blobs.open(NAME, ByteRange(-3, 2))]
)
async def test_an_odd_404_is_not_believed_against_our_own_listing(
    blobs: GcsBlobs, server: GcsEmulator, call: Callable[[GcsBlobs], Any]
) -> None:
    await store(blobs, NAME, b"payload")
    told = r"404, and not in the way of Google Cloud Storage; something in between.*proxies"
    for text in WORDS:
        between(server, "object.get", 404, text)
        with pytest.raises(UnavailableError, match=told) as caught:
            await call(blobs)
        assert type(caught.value) is UnavailableError and len(str(caught.value)) < 1000
    assert await read(blobs, NAME) == b"payload"


async def test_after_an_odd_404_a_listing_tells_that_a_blob_is_absent(blobs: GcsBlobs, server: GcsEmulator) -> None:
    await store(blobs, f"{NAME}-2", b"its name begins alike")
    for text in WORDS:
        between(server, "object.get", 404, text)
        assert await blobs.head(NAME) is None
        assert server.calls[-2:] == ["object.get", "object.list"]
        between(server, "object.get", 404, text)
        between(server, "object.list", 404, text)
        with pytest.raises(UnavailableError, match="something in between"):
            await blobs.head(NAME)


async def test_a_404_that_names_another_blob_is_looked_into(blobs: GcsBlobs, server: GcsEmulator) -> None:
    await store(blobs, NAME, b"payload")
    words = '{"error": {"code": 404, "message": "No such object: blobs/another", "errors": [{"reason": "notFound"}]}}'
    between(server, "object.get", 404, words)
    with pytest.raises(UnavailableError):
        await blobs.head(NAME)


@EMPTY_OR_HTML
async def test_a_store_does_not_tell_an_odd_404_as_lost_data(
    blobs: GcsBlobs, server: GcsEmulator, tmp_path: Path, text: str
) -> None:
    settings = Settings(directory=tmp_path, inline_bytes_max=1)
    settings = settings.model_copy(update={"store": settings.store.model_copy(update={"answer_budget_s": 0.5})})
    object_id = ObjectId.create("photos", "k")
    async with TieredStorage(Tiers(MemoryRows(RUNTIME), blobs), MemoryChangeLog(RUNTIME), RUNTIME, settings) as storage:
        await storage.put(object_id, b"large")
        between(server, "object.get", 404, text, times=None)
        for call in (storage.get, storage.head):
            with pytest.raises(UnavailableError, match="something in between"):
                await call(object_id)
        assert storage.dangling_found == 0
        server.faults.clear()
        assert await storage.head(object_id) is not None


@pytest.mark.parametrize("text", [
    "", "<html>welcome</html>", "{}", '{"size": "1", "name": "other"}', '{"kind": "storage#objects", "items": 5}',
    '{"kind": "storage#objects", "nextPageToken": "\\ud800"}', '{"kind": "storage#objects", "nextPageToken": {}}',
])  # fmt: skip
async def test_an_odd_success_is_no_corrupt_blob_and_no_empty_listing(blobs: GcsBlobs, server: GcsEmulator, text: str) -> None:
    await store(blobs, NAME, b"payload")
    listing: list[Callable[[], Any]] = [
        lambda: blobs.list("", None, 10), lambda: blobs.heads([NAME]), lambda: blobs.deleted_generations(NAME), blobs.now_ns,
    ]
    for kind, calls in (("object.get", [lambda: blobs.head(NAME)]), ("object.list", listing)):
        for call in calls:
            between(server, kind, 200, text)
            with pytest.raises(UnavailableError, match="something in between"):
                await call()
    between(server, "object.get", 404, "")
    between(server, "object.list", 200, text)
    with pytest.raises(UnavailableError, match="something in between"):
        await blobs.head(NAME)


async def test_what_breaks_the_format_in_one_answer_is_looked_at_again(blobs: GcsBlobs, server: GcsEmulator, bucket: Bucket) -> None:
    await store(blobs, NAME, b"payload")
    right = await blobs.list("", None, 10)
    for items in ('[5]', '[{"name": "zzz"}]'):
        between(server, "object.list", 200, f'{{"kind": "storage#objects", "items": {items}}}')
        page = await blobs.list("", None, 10)
        assert not page.oddities and [each.name for each in page.blobs] == [each.name for each in right.blobs]
    told = {**bucket.objects[NAME].resource(), "metadata": {"x-sn-expiration": "nonsense"}}
    between(server, "object.get", 200, json.dumps(told))
    assert await blobs.head(NAME) is not None
    between(server, "object.get", 200, json.dumps(told), times=2)
    with pytest.raises(CorruptRecordError):
        await blobs.head(NAME)


# --- deletions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [404, 200])
async def test_a_deletion_that_was_answered_oddly_is_not_done_while_the_blob_is_listed(
    blobs: GcsBlobs, server: GcsEmulator, bucket: Bucket, status: int
) -> None:
    await store(blobs, NAME, b"payload")
    generation = await generation_of(blobs)
    calls: list[Callable[[], Awaitable[object]]] = [lambda: blobs.delete(NAME), lambda: blobs.delete_generation(NAME, generation)]
    for text, call in product(WORDS, calls):
        between(server, "object.delete", status, text)
        with pytest.raises(UnconfirmedError, match="something in between"):
            await call()
    assert NAME in bucket.objects
    await blobs.delete(NAME)
    for text in WORDS:
        assert not bucket.objects
        between(server, "object.delete", 404, text)
        await blobs.delete(NAME)
        between(server, "object.delete", 404, text)
        assert await blobs.delete_generation(NAME, generation) is Removal.ABSENT


REFUSALS = [400, 401, 403, 404, 409, 410, 412, 416, 429]


def feed_files(blobs: GcsBlobs) -> GcsFiles:
    return GcsFiles(blobs._http, RUNTIME)


async def copied(blobs: GcsBlobs) -> None:
    await (await blobs.open_copy(NAME, await generation_of(blobs), f"{NAME}-2", IDLE)).finalise()


ODD: dict[str, tuple[str, list[int], type[TieredError], Callable[[GcsBlobs], Any]]] = {
    "a listing": ("object.list", REFUSALS, UnavailableError, lambda blobs: blobs.list("", None, 10)),
    "the start of a session": ("upload.start", [200], UnavailableError, lambda blobs: blobs.open_upload(NAME, Metadata(), None)),
    "another generation": ("object.delete", [412], UnconfirmedError, lambda blobs: blobs.delete_generation(NAME, "1")),
    "a touch": ("object.patch", [200, 404, 412], UnconfirmedError, lambda blobs: blobs.touch(NAME, DEADLINE_NS + NS_PER_S)),
    "a copy": ("object.rewrite", [200, 404, 412], UnconfirmedError, copied),
    "what is restored": ("object.restore", [200, 404, 412], UnconfirmedError, lambda blobs: blobs.restore(NAME, "1")),
    "a file of the feed": (
        "upload.multipart", [200, 201, 412], UnconfirmedError, lambda blobs: feed_files(blobs).create("feed/0", b"{}", "text/plain")
    ),
    "whether there are files": ("object.list", [200], UnavailableError, lambda blobs: feed_files(blobs).has_any("feed/")),
    "whether a file is equal": ("object.read", [200], UnavailableError, lambda blobs: feed_files(blobs).is_equal(NAME, b"payload")),
}
"""The request that is answered oddly, with these statuses, and what its caller is told."""


@pytest.mark.parametrize("call", ODD)
async def test_an_odd_answer_is_no_evidence_and_no_mistake_of_the_callers(blobs: GcsBlobs, server: GcsEmulator, call: str) -> None:
    kind, statuses, error, ask = ODD[call]
    await store(blobs, NAME, b"payload", IDLE)
    for status, text in product(statuses, ("", "<html>welcome</html>")):
        between(server, kind, status, text)
        with pytest.raises(error, match=f"with {status}, and not in the way of") as caught:
            await ask(blobs)
        heard = True if (call, status) == ("a touch", 404) else None  # it looks at the blob then
        assert type(caught.value) is error and (caught.value.code, caught.value.heard) == (str(status), heard)
    assert not any(fault.times for fault in server.faults)


@EMPTY_OR_HTML
async def test_an_odd_part_of_a_batch_is_no_evidence(blobs: GcsBlobs, server: GcsEmulator, bucket: Bucket, text: str) -> None:
    names = ["a", "b", "c", "d"]
    for name in names:
        await store(blobs, name, b"x")
    for name, status in (("a", 404), ("b", 412), ("c", 200)):
        server.faults.append(GcsFault(FaultMode.STATUS, "object.delete", name, status=status, text=text))
    results = await blobs.delete_generations([(each.name, each.generation) for each in (await blobs.list("", None, 9)).blobs])
    assert [each if isinstance(each, Removal) else type(each) for each in results] == [UnconfirmedError] * 3 + [Removal.DELETED]
    assert set(bucket.objects) == {"a", "b", "c"}


# --- writes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session", [False, True])
async def test_an_odd_answer_to_the_end_of_an_upload_proves_nothing(blobs: GcsBlobs, server: GcsEmulator, session: bool) -> None:
    for status, text in product([200, 201, *REFUSALS], ("", "<html>welcome</html>")):
        upload = await blobs.open_upload(NAME, Metadata(), None if session else 7)
        await upload.write(b"payload")
        between(server, "upload.*", status, text, times=None)
        with pytest.raises(UnconfirmedError, match="something in between"):
            await upload.finalise()
        server.faults.clear()


@EMPTY_OR_HTML
@pytest.mark.parametrize("status", [200, 201, 308])
async def test_an_odd_answer_to_the_end_of_a_session_is_asked_for_again(
    blobs: GcsBlobs, server: GcsEmulator, bucket: Bucket, status: int, text: str
) -> None:
    upload = await blobs.open_upload(NAME, Metadata(), None)
    await upload.write(b"payload")
    between(server, "upload.put", status, text, Location="http://127.0.0.1:1/login")
    await upload.finalise()
    assert server.calls[-2:] == ["upload.put", "upload.status"] and NAME in bucket.objects


@pytest.mark.parametrize(("status", "text"), [(404, ""), (410, "<html>"), (404, "<html>"), (200, "<html>welcome</html>")])
async def test_a_session_is_not_cancelled_because_something_in_between_says_so(
    blobs: GcsBlobs, server: GcsEmulator, status: int, text: str
) -> None:
    upload = await blobs.open_upload(NAME, Metadata(), None)
    assert upload.session is not None
    between(server, "upload.cancel", status, text)
    with pytest.raises(UnconfirmedError, match="something in between"):
        await blobs.cancel(upload.session)
    assert [session.open for session in server.sessions.values()] == [True]
    await blobs.cancel(upload.session)
    await blobs.cancel(upload.session)
    assert [session.open for session in server.sessions.values()] == [False]


@pytest.mark.parametrize("status", [404, 410, 412, 499])
def test_the_services_own_answers_are_known_by_their_form(status: int) -> None:
    assert GcsResponse.of(status, {}, b'{"error": {"code": %d, "message": "m"}}' % status, nothing).is_genuine
    assert GcsResponse.of(status, {}, b'{"error": {"errors": [{"message": "m"}]}}', nothing).is_genuine, "as Google's testbench says it"
    assert GcsResponse.of(status, {"X-GUploader-UploadID": "x"}, b"No such object: blobs/k", nothing).is_genuine, "as a download says it"
    assert GcsResponse.of(status, {}, b"No such object: blobs/k", nothing).is_genuine is (status == 499)


# --- what was stored -----------------------------------------------------------------------------------


async def test_a_service_that_merges_a_rewrite_leaves_no_lifetime_that_was_taken_away(
    blobs: GcsBlobs, server: GcsEmulator, bucket: Bucket
) -> None:
    """As Google's testbench does: what the body leaves out stays as in the source."""
    server.merge_rewrites()
    await store(blobs, NAME, b"payload", Metadata(IDLE.expiration, time_expires_ns=DEADLINE_NS, custom={"k": "v"}))
    copy = await blobs.open_copy(NAME, await generation_of(blobs), f"{NAME}-2", Metadata(size=7))
    with pytest.raises(ConfigurationError, match=r"with other metadata than were sent \(customTime, x-sn-expiration, x-snme-k\)") as caught:
        await copy.finalise()
    assert caught.value.heard


async def test_a_store_on_a_service_that_merges_keeps_the_object_as_it_was(
    blobs: GcsBlobs, server: GcsEmulator, bucket: Bucket, tmp_path: Path
) -> None:
    server.merge_rewrites()
    settings, object_id = Settings(directory=tmp_path, inline_bytes_max=1), ObjectId.create("photos", "k")
    hour = Metadata(TimeToLive(ns=3600 * NS_PER_S))
    async with TieredStorage(Tiers(MemoryRows(RUNTIME), blobs), MemoryChangeLog(RUNTIME), RUNTIME, settings) as storage:
        put = await storage.put(object_id, b"large", hour)
        with pytest.raises(ConfigurationError, match="does not replace metadata"):
            await storage.set_expiry(object_id)
        head = await storage.head(object_id)
        assert head is not None and (head.revision, head.metadata.expiration) == (put.revision, hour.expiration)
    assert list(bucket.objects) == [f"{object_id.path}/{put.revision}"], "what was not as wanted is cleaned up"


@pytest.mark.parametrize("session", [False, True])
@pytest.mark.parametrize("loses", ["customTime", "contentType", "contentEncoding", "contentDisposition", "metadata"])
async def test_an_upload_whose_metadata_the_service_did_not_keep_is_not_used(
    blobs: GcsBlobs, bucket: Bucket, session: bool, loses: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = Bucket.insert

    def forgetful(self: Bucket, name: str, payload: bytes, resource: dict[str, Any], *rest: Any) -> Any:
        return insert(self, name, payload, {key: value for key, value in resource.items() if key != loses}, *rest)

    monkeypatch.setattr(Bucket, "insert", forgetful)
    metadata = Metadata(IDLE.expiration, 5, DEADLINE_NS, "text/plain", "Zstd", filename="a.txt", custom={"Key": "v", "empty": ""})
    upload = await blobs.open_upload(NAME, metadata, None if session else 1)
    await upload.write(b"x")
    with pytest.raises(ConfigurationError, match=rf"\(({loses}|x-sn-expiration)"):
        await upload.finalise()
    monkeypatch.undo()
    await blobs.delete(NAME)
    await store(blobs, NAME, b"x", metadata)


@pytest.mark.parametrize("session", [False, True])
async def test_keys_that_a_service_adds_of_its_own_are_no_difference(
    blobs: GcsBlobs, session: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Google's testbench does."""
    insert = Bucket.insert

    def adding(self: Bucket, name: str, payload: bytes, resource: dict[str, Any], *rest: Any, **how: Any) -> Any:
        told = {**(resource.get("metadata") or {}), "x_testbench_upload": "resumable"}
        return insert(self, name, payload, {**resource, "metadata": told}, *rest, **how)

    monkeypatch.setattr(Bucket, "insert", adding)
    upload = await blobs.open_upload(NAME, IDLE, None if session else 1)
    await upload.write(b"x")
    await upload.finalise()
    await (await blobs.open_copy(NAME, await generation_of(blobs), f"{NAME}-2", IDLE)).finalise()


async def test_a_touch_that_the_service_took_and_did_not_do_is_an_error(blobs: GcsBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    await store(blobs, NAME, b"x", IDLE)
    patch = Bucket.patch
    monkeypatch.setattr(Bucket, "patch", lambda self, name, change, *rest: patch(self, name, {}, *rest))
    with pytest.raises(UnconfirmedError, match="took it, and told that it left it as it was"):
        await blobs.touch(NAME, DEADLINE_NS + NS_PER_S)


async def test_a_cancellation_that_is_answered_200_without_a_word_is_one(blobs: GcsBlobs, server: GcsEmulator) -> None:
    upload = await blobs.open_upload(NAME, IDLE, None)
    assert upload.session is not None
    between(server, "upload.cancel", 200, "")
    await blobs.cancel(upload.session)
    between(server, "upload.cancel", 200, "<html>welcome</html>")
    with pytest.raises(UnconfirmedError):
        await blobs.cancel(upload.session)
    await upload.abort()


# --- answers that are an attack ------------------------------------------------------------------------------

ATTACKED: dict[str, Callable[[GcsBlobs], Any]] = {
    "head": lambda blobs: blobs.head(NAME), "get": lambda blobs: blobs.open(NAME), "list": lambda blobs: blobs.list("", None, 10),
    "delete": lambda blobs: blobs.delete(NAME), "batch": lambda blobs: blobs.delete_generations([(NAME, "1")]),
    "put": lambda blobs: store(blobs, NAME, b"x"), "parts": lambda blobs: blobs.begin_parts(NAME, Metadata()),
    "copy": lambda blobs: blobs.set_aside(NAME, "1", f"{NAME}-2"), "the time": lambda blobs: blobs.now_ns(),
}  # fmt: skip


@pytest.mark.parametrize("call", list(ATTACKED))
async def test_an_answer_without_an_end_is_read_up_to_a_bound(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    monkeypatch.setattr("tiered.gcs.http.ANSWER_BYTES_MAX", 2 * MIB)
    for status in (200, 404, 500):
        sent = 0

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: int = status) -> None:
            nonlocal sent
            await head_of(reader)
            writer.write(b"HTTP/1.1 %d Status\r\nX-Goog-Generation: x\r\nTransfer-Encoding: chunked\r\n\r\n" % status)
            while True:
                writer.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
                await writer.drain()
                sent += 0x10000

        async with scripted(answer) as url, GcsBlobs.connect("blobs", RUNTIME, endpoint=url, upload_budget_s=0) as client:
            with pytest.raises((UnavailableError, UnconfirmedError), match=r"with more than .* bytes"):
                await ATTACKED[call](client)
        assert sent < 100 * MIB


BOMB = gzip.compress(bytes(100 * MIB), 1)


@pytest.mark.parametrize("call", list(ATTACKED))
async def test_a_packed_answer_is_unpacked_by_nobody(call: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        await say(writer, "403 Forbidden", BOMB, Content_Encoding="gzip")

    async with scripted(answer) as url, GcsBlobs.connect("blobs", RUNTIME, endpoint=url, upload_budget_s=0) as client:
        with pytest.raises((UnavailableError, UnconfirmedError)) as caught:
            await ATTACKED[call](client)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("call", list(ATTACKED))
async def test_nothing_is_sent_to_where_a_redirect_leads(call: str) -> None:
    came: list[str] = []

    async def elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(await head_of(reader))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        await say(writer, f"{status} Moved", Location=f"{other}/x", Connection="close")

    async with (
        scripted(elsewhere) as other, scripted(answer) as url,
        GcsBlobs.connect("blobs", RUNTIME, endpoint=url, upload_budget_s=0, authorize=NumberedTokens()) as client,
    ):  # fmt: skip
        for status in (301, 302, 303, 307, 308):
            with pytest.raises((UnavailableError, UnconfirmedError), match=f"with {status}, and not in the way"):
                await ATTACKED[call](client)
    assert not came


async def test_one_damaged_answer_among_a_hundred_deletions_leaves_the_others(
    blobs: GcsBlobs, server: GcsEmulator, bucket: Bucket
) -> None:
    names = [f"k/{number:03}" for number in range(100)]
    for name in names:
        await store(blobs, name, b"x")
    server.faults.append(GcsFault(FaultMode.STATUS, "object.delete", "k/050", status=204, text="<html>welcome</html>"))
    results = await blobs.delete_generations([(each.name, each.generation) for each in (await blobs.list("", None, 100)).blobs])
    assert [place for place, each in enumerate(results) if each is not Removal.DELETED] == [50]
    assert isinstance(results[50], UnconfirmedError) and list(bucket.objects) == ["k/050"]
