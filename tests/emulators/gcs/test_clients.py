"""Clients that others wrote work on the GCS emulator, or are told what it does not do: Google's own, gcsfs, obstore."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import google_crc32c
import obstore
import pytest
import pytest_asyncio
import requests
from gcsfs.core import GCSFileSystem
from google.api_core.exceptions import BadRequest, MethodNotImplemented, NotFound, PreconditionFailed
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Bucket
from google.cloud.storage import Client as GoogleClient
from google.cloud.storage._signing import generate_signed_url_v4
from google.cloud.storage.exceptions import InvalidResponse
from google.cloud.storage.transfer_manager import THREAD, upload_chunks_concurrently
from obstore.exceptions import AlreadyExistsError
from obstore.store import GCSStore
from yarl import URL

from emulators.gcs.server import FaultMode, GcsEmulator, GcsFault
from tests.given.signing_account import EMAIL, credentials, private_key
from tiered.payload.crc32c import encode_crc

pytestmark = pytest.mark.asyncio

KIB = 1024
GRANULE, MIB = 256 * KIB, KIB * KIB


@pytest_asyncio.fixture
async def server() -> AsyncIterator[GcsEmulator]:
    async with GcsEmulator() as server:
        server.create_bucket("bucket")
        yield server


@contextmanager
def threads_ended() -> Iterator[None]:
    """Waits for the threads in which Google's client looks buckets up.

    They would go on asking after the server has closed.
    """
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join()


@pytest.fixture
def google(server: GcsEmulator) -> Callable[[Callable[[Bucket], Any]], Awaitable[Any]]:
    def run(work: Callable[[Bucket], Any]) -> Any:
        nobody = AnonymousCredentials()  # type: ignore[no-untyped-call]  # the package's types leave out its constructor
        with threads_ended(), closing(GoogleClient("project", nobody, client_options={"api_endpoint": server.url})) as client:
            return work(client.bucket("bucket"))

    return lambda work: asyncio.to_thread(run, work)


Google = Callable[[Callable[[Bucket], Any]], Awaitable[Any]]


# --- google-cloud-storage ------------------------------------------------------------------------


async def test_googles_client_uploads_reads_and_deletes_by_generation(google: Google) -> None:
    def work(bucket: Bucket) -> None:
        blob = bucket.blob("größe/a#b?c")
        blob.metadata = {"k": "v"}
        blob.custom_time = datetime(2030, 1, 1, tzinfo=UTC)
        blob.upload_from_string(b"0123456789", "text/plain", if_generation_match=0)
        with pytest.raises(PreconditionFailed):
            bucket.blob(blob.name).upload_from_string(b"other", if_generation_match=0, retry=None)
        seen = bucket.get_blob(blob.name)
        assert (seen.generation, seen.size, seen.metadata, seen.content_type) == (blob.generation, 10, {"k": "v"}, "text/plain")
        assert (seen.custom_time, seen.crc32c) == (blob.custom_time, encode_crc(google_crc32c.value(b"0123456789")))
        assert seen.download_as_bytes() == b"0123456789"
        assert seen.download_as_bytes(start=3, end=5) == b"345"
        seen.metadata = {"k": None, "other": "w"}
        seen.patch()
        assert bucket.get_blob(blob.name).metadata == {"other": "w"}
        with pytest.raises(PreconditionFailed):
            bucket.blob(blob.name).delete(if_generation_match=blob.generation - 1)
        bucket.blob(blob.name).delete(if_generation_match=blob.generation)
        with pytest.raises(NotFound):
            bucket.blob(blob.name).delete()

    await google(work)


async def test_googles_client_finds_the_server_by_its_environment_variable(server: GcsEmulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)

    def work() -> None:
        nobody = AnonymousCredentials()  # type: ignore[no-untyped-call]  # as above
        with threads_ended(), closing(GoogleClient("project", nobody)) as client:
            client.bucket("bucket").blob("a").upload_from_string(b"payload")

    await asyncio.to_thread(work)
    assert server.buckets["bucket"].objects["a"].payload == b"payload"


async def test_googles_client_uploads_resumably_in_chunks_over_a_lost_answer(server: GcsEmulator, google: Google) -> None:
    payload = bytes(range(256)) * (3 * KIB) + b"end"
    server.faults.append(GcsFault(FaultMode.STATUS, "upload.put", times=1))

    def work(bucket: Bucket) -> None:
        blob = bucket.blob("a", chunk_size=GRANULE)
        blob.upload_from_file(io.BytesIO(payload), if_generation_match=0)
        assert blob.crc32c == encode_crc(google_crc32c.value(payload))
        assert bucket.blob("a").download_as_bytes() == payload

    await google(work)
    assert server.calls.count("upload.start") == 1
    assert server.calls.count("upload.put") + server.calls.count("upload.status") >= 5


@contextmanager
def begun(server: GcsEmulator, payload: bytes) -> Iterator[tuple[Any, requests.Session, io.BytesIO]]:
    """A session of Google's resumable client, the connection to it, and its payload."""
    requests_of_google = import_module("google.cloud.storage._media.requests")  # by its name: its types hide those of the package
    upload = requests_of_google.ResumableUpload(f"{server.url}/upload/storage/v1/b/bucket/o?uploadType=resumable", GRANULE)
    with requests.Session() as transport:
        stream = io.BytesIO(payload)
        upload.initiate(transport, stream, {"name": "a"}, "text/plain")
        yield upload, transport, stream


@pytest.mark.parametrize("faults", [
    [], [GcsFault(FaultMode.DROP_BEFORE, "upload.put")], [GcsFault(FaultMode.DROP_AFTER, "upload.put")],
    [GcsFault(FaultMode.STATUS, "upload.put", status=503), GcsFault(FaultMode.STATUS, "upload.status", status=503)],
])  # fmt: skip
async def test_googles_resumable_upload_recovers_wherever_it_was_cut_off(server: GcsEmulator, faults: list[GcsFault]) -> None:
    payload = bytes(range(256)) * (3 * KIB) + b"end"

    def work() -> None:
        with begun(server, payload) as (upload, transport, stream):
            upload.transmit_next_chunk(transport)
            server.faults += [replace(fault) for fault in faults]
            with suppress(requests.ConnectionError, InvalidResponse):
                upload.transmit_next_chunk(transport)
            stream.seek(0)
            upload._bytes_uploaded, upload._invalid = 0, True  # as a process that knows nothing but the address
            assert upload.recover(transport).status_code == 308
            assert upload.bytes_uploaded == stream.tell() >= GRANULE
            while not upload.finished:
                answer = upload.transmit_next_chunk(transport)
            assert answer.json()["crc32c"] == encode_crc(google_crc32c.value(payload))

    await asyncio.to_thread(work)
    assert server.buckets["bucket"].objects["a"].payload == payload


async def test_googles_chunk_below_256_kib_makes_its_session_unusable_and_was_taken(server: GcsEmulator) -> None:
    def work() -> None:
        with begun(server, bytes(3 * GRANULE)) as (upload, transport, stream):
            upload._chunk_size = 1024
            for chunk_size in (1024, GRANULE):
                upload._chunk_size, upload._invalid = chunk_size, False
                stream.seek(0)
                with pytest.raises(InvalidResponse, match="400"):
                    upload.transmit_next_chunk(transport)

    await asyncio.to_thread(work)
    assert not server.buckets["bucket"].objects


async def test_googles_transfer_manager_uploads_parts_and_was_501(server: GcsEmulator, google: Google, tmp_path: Path) -> None:
    payload = bytes(range(256)) * (MIB // 256) * 17
    (tmp_path / "file").write_bytes(payload)
    for fault in (GcsFault(FaultMode.STATUS, "xml.parts.put"), GcsFault(FaultMode.DROP_AFTER, "xml.parts.put")):
        server.faults.append(fault)

    def upload(bucket: Bucket, **how: Any) -> None:
        blob = bucket.blob("größe/a#b?c")
        blob.metadata, blob.content_type = {"k": "v"}, "text/plain"
        blob.custom_time = datetime(2030, 1, 1, tzinfo=UTC)
        upload_chunks_concurrently(str(tmp_path / "file"), blob, chunk_size=5 * MIB, worker_type=THREAD, max_workers=2, **how)

    await google(lambda bucket: upload(bucket, checksum="crc32c"))
    assert server.calls.count("xml.parts.put") >= 6, "four parts, and two of them again"
    stored = server.buckets["bucket"].objects["größe/a#b?c"]
    assert (stored.payload, stored.metadata, stored.content) == (payload, {"k": "v"}, {"contentType": "text/plain"})
    assert (stored.crc32c, stored.md5, server.parts.uploads) == (encode_crc(google_crc32c.value(payload)), None, {})
    await google(lambda bucket: upload(bucket, checksum="md5"))
    assert server.buckets["bucket"].objects["größe/a#b?c"].generation > stored.generation, "it replaces"


async def test_googles_client_lists_pages_and_deletes_in_a_batch(google: Google) -> None:
    def work(bucket: Bucket) -> None:
        for name in ("a/1", "a/2", "b", "c"):
            bucket.blob(name).upload_from_string(name)
        assert [blob.name for blob in bucket.list_blobs(page_size=1)] == ["a/1", "a/2", "b", "c"]
        grouped = bucket.list_blobs(delimiter="/", start_offset="a", end_offset="c")
        assert ([blob.name for blob in grouped], grouped.prefixes) == (["b"], {"a/"})
        with bucket.client.batch():
            for name in ("a/1", "b"):
                bucket.blob(name).delete()
        assert [blob.name for blob in bucket.list_blobs(fields="items(name),nextPageToken")] == ["a/2", "c"]

    await google(work)


async def test_googles_client_sets_up_a_bucket(google: Google) -> None:
    def work(bucket: Bucket) -> None:
        other = bucket.client.bucket("other")
        other.add_lifecycle_delete_rule(days_since_custom_time=0)
        other.soft_delete_policy.retention_duration_seconds = 0
        other.create(location="EU")
        seen = bucket.client.get_bucket("other")
        assert list(seen.lifecycle_rules) == [{"action": {"type": "Delete"}, "condition": {"daysSinceCustomTime": 0}}]
        assert (seen.location, seen.soft_delete_policy.retention_duration_seconds) == ("EU", 0)
        seen.clear_lifecycle_rules()
        seen.patch()
        assert [each.name for each in bucket.client.list_buckets()] == ["bucket", "other"]
        seen.delete()
        assert bucket.client.lookup_bucket("other") is None

    await google(work)


async def test_googles_update_replaces_all_metadata_and_was_405(google: Google) -> None:
    def work(bucket: Bucket) -> None:
        blob = bucket.blob("a")
        blob.metadata, blob.cache_control, blob.content_disposition = {"k": "v", "gone": "x"}, "no-store", "inline"
        blob.upload_from_string(b"payload", "text/plain")
        blob = bucket.get_blob("a")
        blob.metadata, blob.cache_control = {"k": "w"}, None
        blob.update()
        seen = bucket.get_blob("a")
        assert (seen.metadata, seen.cache_control, seen.content_disposition) == ({"k": "w"}, None, "inline")
        assert (seen.content_type, seen.metageneration, seen.generation) == ("text/plain", 2, blob.generation)
        with pytest.raises(PreconditionFailed):
            seen.update(if_metageneration_match=1)
        seen.custom_time = now = datetime.now(UTC).replace(microsecond=0)
        seen.update()
        seen.custom_time = now - timedelta(days=1)
        with pytest.raises(BadRequest, match="custom time"):
            seen.update()

    await google(work)


async def test_googles_copy_makes_another_object_and_was_404(google: Google) -> None:
    def work(bucket: Bucket) -> None:
        source = bucket.blob("a/b")
        source.metadata = {"k": "v"}
        source.upload_from_string(b"payload", "text/plain")
        copy = bucket.copy_blob(source, bucket, "größe/c", if_generation_match=0)
        assert copy.download_as_bytes() == b"payload"
        copy.reload()
        assert (copy.metadata, copy.content_type, copy.generation != source.generation) == ({"k": "v"}, "text/plain", True)
        with pytest.raises(PreconditionFailed):
            bucket.copy_blob(source, bucket, "größe/c", if_generation_match=0)
        with pytest.raises(PreconditionFailed):
            bucket.copy_blob(source, bucket, "d", if_source_generation_match=source.generation + 1)
        with pytest.raises(PreconditionFailed):
            bucket.copy_blob(source, bucket, "d", if_source_metageneration_match=7)
        with pytest.raises(NotFound):
            bucket.copy_blob(source, bucket, "d", source_generation=source.generation + 1)
        assert bucket.copy_blob(source, bucket, "d", source_generation=source.generation).exists()

    await google(work)


async def test_googles_rewrite_of_a_generation_that_is_gone_copied_another_one(google: Google) -> None:
    def work(bucket: Bucket) -> None:
        source, target = bucket.blob("a"), bucket.blob("b")
        source.upload_from_string(b"x" * 3 * MIB)
        token, done, size = target.rewrite(source)
        assert token is not None and 0 < done < size == 3 * MIB
        assert target.rewrite(source, token=token) == (None, size, size)
        assert target.download_as_bytes() == b"x" * 3 * MIB
        for wrong, raised in (
            ({"if_source_generation_not_match": source.generation}, PreconditionFailed),
            ({"if_source_metageneration_match": 7}, PreconditionFailed),
        ):
            with pytest.raises(raised):
                bucket.blob("c").rewrite(source, **wrong)
        older = bucket.blob("a", generation=source.generation - 1)
        with pytest.raises(NotFound):
            bucket.blob("c").rewrite(older)
        bucket.get_blob("b").update_storage_class("NEARLINE")
        assert (bucket.get_blob("b").storage_class, bucket.get_blob("b").size) == ("NEARLINE", 3 * MIB)

    await google(work)


async def test_googles_move_leaves_nothing_behind(google: Google) -> None:
    def work(bucket: Bucket) -> None:
        source = bucket.blob("a/b")
        source.metadata = {"k": "v"}
        source.upload_from_string(b"payload")
        bucket.blob("taken").upload_from_string(b"another")
        with pytest.raises(PreconditionFailed):
            bucket.move_blob(source, "taken", if_generation_match=0)
        moved = bucket.move_blob(source, "c/d", if_source_generation_match=source.generation)
        assert (moved.name, moved.metadata, moved.download_as_bytes()) == ("c/d", {"k": "v"}, b"payload")
        assert [blob.name for blob in bucket.list_blobs()] == ["c/d", "taken"]
        assert list(bucket.list_blobs(soft_deleted=True)) == [], "what is moved is not soft-deleted"
        with pytest.raises(NotFound):
            bucket.move_blob(source, "e")
        with pytest.raises(BadRequest):
            bucket.move_blob(moved, "c/d")

    await google(work)


async def test_soft_deleted_objects_that_google_asks_for_were_the_live_ones(google: Google) -> None:
    def work(bucket: Bucket) -> None:
        blob = bucket.blob("gone")
        blob.upload_from_string(b"payload")
        blob.delete()
        bucket.blob("live").upload_from_string(b"payload")
        [kept] = bucket.list_blobs(soft_deleted=True)
        assert (kept.name, kept.generation, kept.soft_delete_time is not None) == ("gone", blob.generation, True)
        seen = bucket.get_blob("gone", generation=kept.generation, soft_deleted=True)
        assert seen.hard_delete_time == kept.hard_delete_time
        assert bucket.get_blob("live", generation=bucket.get_blob("live").generation, soft_deleted=True) is None
        assert bucket.restore_blob("gone", generation=kept.generation).download_as_bytes() == b"payload"
        assert [blob.name for blob in bucket.list_blobs(soft_deleted=False)] == ["gone", "live"]

    await google(work)


LISTINGS: list[tuple[dict[str, Any], str]] = [
    ({"match_glob": "*.txt", "delimiter": "/"}, "matchGlob beside a delimiter"),
    ({"filter_": "contexts.\"key\":*"}, "the parameter filter"),
]


@pytest.mark.parametrize(("asked", "named"), LISTINGS)
async def test_a_parameter_of_a_listing_that_is_not_implemented_was_ignored(google: Google, asked: dict[str, Any], named: str) -> None:
    def work(bucket: Bucket) -> None:
        bucket.blob("a").upload_from_string(b"payload")
        with pytest.raises(MethodNotImplemented, match=f"emulator does not implement {named}"):
            list(bucket.list_blobs(**asked))
        assert [blob.name for blob in bucket.list_blobs(**{key: "/" if key == "delimiter" else None for key in asked})] == ["a"]

    await google(work)


async def test_what_is_overwritten_or_deleted_where_versions_are_kept_is_noncurrent(google: Google) -> None:
    def work(bucket: Bucket) -> None:
        bucket.blob("a").upload_from_string(b"payload")
        assert [blob.name for blob in bucket.list_blobs(versions=True)] == ["a"], "there are no others"
        bucket.versioning_enabled = True
        bucket.patch()
        first = bucket.get_blob("a").generation
        bucket.blob("a").upload_from_string(b"again")
        bucket.blob("a").delete()
        assert [blob.name for blob in bucket.list_blobs()] == [] == list(bucket.list_blobs(soft_deleted=True))
        old, new = bucket.list_blobs(versions=True)
        assert (old.generation, old.size, new.size) == (first, 7, 5) and old.time_deleted <= new.time_deleted
        assert bucket.get_blob("a", generation=first).download_as_bytes() == b"payload"
        back = bucket.copy_blob(bucket.blob("a"), bucket, "a", source_generation=first, if_generation_match=0)
        assert bucket.blob("a").download_as_bytes() == b"payload" and back.generation > new.generation
        bucket.blob("a", generation=first).delete()
        assert [blob.generation for blob in bucket.list_blobs(versions=True)] == [new.generation, back.generation]
        assert [blob.generation for blob in bucket.list_blobs(soft_deleted=True)] == [first]

    await google(work)


async def test_objects_that_end_with_the_delimiter_were_left_out_of_a_listing_that_asks_for_them(google: Google) -> None:
    """pyarrow's file system asks for them."""
    def work(bucket: Bucket) -> None:
        for name in ("a", "b/", "b/c", "d/e/"):
            bucket.blob(name).upload_from_string(b"")
        for size in (1, None):
            for asked, names in ((True, ["a", "b/"]), (None, ["a"])):
                found = bucket.list_blobs(delimiter="/", include_trailing_delimiter=asked, page_size=size)
                assert ([blob.name for blob in found], found.prefixes) == (names, {"b/", "d/"})

    await google(work)


async def test_what_the_emulator_does_not_implement_says_so_to_google(google: Google) -> None:
    def work(bucket: Bucket) -> None:
        blob = bucket.blob("a")
        blob.upload_from_string(b"payload")
        asked: dict[str, Callable[[], object]] = {
            "predefinedAcl": lambda: bucket.blob("b").upload_from_string(b"", predefined_acl="publicRead"),
            "kmsKeyName": lambda: bucket.blob("b", kms_key_name="k").upload_from_string(b""),
            "o/a/acl": lambda: blob.acl.reload(),
            "b/bucket/iam": bucket.get_iam_policy,
            "b/bucket/notificationConfigs": lambda: list(bucket.list_notifications()),
            "X-Goog-Encryption-": lambda: bucket.blob("b", encryption_key=b"k" * 32).upload_from_string(b""),
            "temporaryHold": lambda: hold(blob),
            "softDeleted of object.read": lambda: read_deleted(bucket),
        }  # fmt: skip
        for named, ask in asked.items():
            with pytest.raises(MethodNotImplemented, match=f"This emulator does not implement .*{named}"):
                ask()
        assert [each.name for each in bucket.list_blobs()] == ["a"]

    def hold(blob: Any) -> None:
        blob.temporary_hold = True
        blob.patch()

    def read_deleted(bucket: Any) -> None:
        bucket.client._connection.api_request("GET", "/b/bucket/o/a", query_params={"alt": "media", "softDeleted": True})

    await google(work)


async def test_googles_client_composes_and_was_501(google: Google) -> None:
    def work(bucket: Bucket) -> None:
        for name in "ab":
            bucket.blob(name).upload_from_string(name * 3)
        blob = bucket.blob("größe/c")
        blob.content_type, blob.metadata = "text/plain", {"k": "v"}
        sources = [bucket.blob("a"), bucket.blob("b")]
        blob.compose(sources, if_generation_match=0)
        assert (blob.component_count, blob.md5_hash, blob.crc32c) == (2, None, encode_crc(google_crc32c.value(b"aaabbb")))
        seen = bucket.get_blob("größe/c")
        assert (seen.download_as_bytes(), seen.content_type, seen.metadata) == (b"aaabbb", "text/plain", {"k": "v"})
        with pytest.raises(PreconditionFailed):
            blob.compose(sources, if_generation_match=0)
        generation = bucket.get_blob("a").generation
        with pytest.raises(PreconditionFailed):
            blob.compose(sources, if_source_generation_match=[generation + 1, None])
        blob.compose([*sources, seen], if_source_generation_match=[generation, None, seen.generation])
        assert (blob.component_count, blob.download_as_bytes()) == (4, b"aaabbbaaabbb")

    await google(work)


async def test_googles_client_asks_by_tag_and_by_glob_and_was_501(google: Google) -> None:
    def work(bucket: Bucket) -> None:
        for name in ("a.txt", "b/c.txt", "d"):
            bucket.blob(name).upload_from_string(name)
        blob = bucket.get_blob("d")
        assert blob.download_as_bytes(if_etag_match=blob.etag) == b"d"
        with pytest.raises(PreconditionFailed):
            blob.download_as_bytes(if_etag_match="x")
        assert bucket.get_blob("d", if_etag_not_match="x").size == 1
        assert [each.name for each in bucket.list_blobs(match_glob="**.txt")] == ["a.txt", "b/c.txt"]
        assert [each.name for each in bucket.list_blobs(delimiter="/", include_folders_as_prefixes=True)] == ["a.txt", "d"]
        bucket.reload()
        bucket.labels = {"k": "v"}
        bucket.update()
        assert bucket.client.get_bucket("bucket").labels == {"k": "v"}

    await google(work)


async def test_an_address_that_google_signs_writes_and_deletes_and_was_501(server: GcsEmulator) -> None:
    server.accounts[EMAIL] = private_key().public_key()
    async with aiohttp.ClientSession() as session:
        for method, path, headers, status in (
            ("PUT", "/bucket/a b", {"content-type": "text/plain", "x-goog-meta-k": "v"}, 200), ("HEAD", "/bucket/a b", {}, 200),
            ("DELETE", "/bucket/a b", {}, 204),
        ):  # fmt: skip
            address = generate_signed_url_v4(
                credentials(), quote(path), 60, api_access_endpoint=server.url, method=method, headers={"Host": server.url[7:], **headers}
            )
            for wrong in ({"PUT": "DELETE"}.get(method, "PUT"), method):
                body = b"x" if wrong == "PUT" else b""
                async with session.request(wrong, URL(address, encoded=True), headers=headers, data=body) as answer:
                    assert answer.status == (status if wrong == method else 403), (method, wrong, await answer.text())
    assert server.buckets["bucket"].objects == {}


async def test_googles_batch_changes_each_object_by_itself(google: Google) -> None:
    def work(bucket: Bucket) -> None:
        for name in "abc":
            bucket.blob(name).upload_from_string(name)
        with bucket.client.batch(raise_exception=False) as batch:
            changed = bucket.blob("a")
            changed.metadata = {"k": "v"}
            changed.patch()
            bucket.copy_blob(bucket.blob("b"), bucket, "copy")
            bucket.blob("none").delete()
            bucket.blob("c").delete()
        assert [answer.status_code for answer in batch._responses] == [200, 200, 404, 204]
        assert [(blob.name, blob.metadata) for blob in bucket.list_blobs()] == [("a", {"k": "v"}), ("b", None), ("copy", None)]

    await google(work)


async def test_googles_writer_and_reader_stream(google: Google) -> None:
    def work(bucket: Bucket) -> None:
        payload = bytes(range(256)) * 3 * KIB + b"end"
        with bucket.blob("a").open("wb", chunk_size=GRANULE, content_type="text/plain") as writer:
            for start in range(0, len(payload), 100_000):
                writer.write(payload[start : start + 100_000])
        assert bucket.get_blob("a").content_type == "text/plain"
        with bucket.blob("a").open("rb", chunk_size=GRANULE) as reader:
            reader.seek(700_000)
            assert reader.read(50) == payload[700_000:700_050]
            reader.seek(0)
            assert reader.read() == payload
        into = io.BytesIO()
        bucket.blob("a").download_to_file(into, start=10, end=19)
        assert into.getvalue() == payload[10:20]

    await google(work)


# --- gcsfs ---------------------------------------------------------------------------------------


@pytest.fixture
def gcsfs(server: GcsEmulator) -> GCSFileSystem:
    return GCSFileSystem(endpoint_url=server.url, token="anon", project="project", skip_instance_cache=True, use_listings_cache=False)


async def test_gcsfs_sends_again_what_was_not_kept_of_a_chunk(server: GcsEmulator, gcsfs: GCSFileSystem) -> None:
    """Its blocks may have any size from 256 KiB on."""
    payload = bytes(range(256)) * 4096

    def work() -> None:
        with gcsfs.open("bucket/a", "wb", block_size=300_000) as file:
            for start in range(0, len(payload), 100_001):
                file.write(payload[start : start + 100_001])

    await asyncio.to_thread(work)
    assert server.buckets["bucket"].objects["a"].payload == payload and server.calls.count("upload.put") >= 4


@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")
async def test_gcsfs_writes_by_a_session_and_was_400(server: GcsEmulator, gcsfs: GCSFileSystem) -> None:
    def work() -> None:
        payload = b"y" * 3 * GRANULE + b"end"
        with gcsfs.open("bucket/d/session", "wb", block_size=GRANULE, content_type="text/plain") as file:
            for start in range(0, len(payload), 100_000):
                file.write(payload[start : start + 100_000])
        assert gcsfs.info("bucket/d/session")["contentType"] == "text/plain"
        assert gcsfs.cat("bucket/d/session") == payload
        for name in ("empty", "touched"):
            gcsfs.open(f"bucket/{name}", "wb").close() if name == "empty" else gcsfs.touch(f"bucket/{name}")
            assert gcsfs.cat(f"bucket/{name}") == b""
        gcsfs.pipe_file("bucket/big", b"z" * 12 * MIB, chunksize=4 * MIB)
        assert gcsfs.info("bucket/big")["size"] == 12 * MIB
        discarded = gcsfs.open("bucket/discarded", "wb", block_size=GRANULE)
        discarded.write(payload)
        discarded.discard()
        assert not gcsfs.exists("bucket/discarded")
        with pytest.raises(FileExistsError):
            gcsfs.pipe_file("bucket/empty", b"", mode="create")

    await asyncio.to_thread(work)
    assert {"upload.start", "upload.put", "upload.cancel"} <= set(server.calls)


async def test_gcsfs_lists_reads_copies_moves_and_removes(gcsfs: GCSFileSystem) -> None:
    def work() -> None:
        gcsfs.pipe({"bucket/d/a": b"0123456789", "bucket/d/b": b"b", "bucket/e": b"e"})
        assert gcsfs.cat_ranges(["bucket/d/a"] * 3, [0, 5, -3], [3, 8, None]) == [b"012", b"567", b"789"]
        assert (gcsfs.ls("bucket"), gcsfs.ls("bucket/d")) == (["bucket/d", "bucket/e"], ["bucket/d/a", "bucket/d/b"])
        assert (gcsfs.glob("bucket/d/*"), gcsfs.du("bucket")) == (["bucket/d/a", "bucket/d/b"], 12)
        gcsfs.setxattrs("bucket/e", content_type="text/plain", key="value")
        gcsfs.cp_file("bucket/e", "bucket/f")
        assert (gcsfs.getxattr("bucket/f", "key"), gcsfs.info("bucket/f")["contentType"]) == ("value", "text/plain")
        gcsfs.mv("bucket/f", "bucket/g")
        assert gcsfs.ls("bucket") == ["bucket/d", "bucket/e", "bucket/g"]
        gcsfs.mv("bucket/d", "bucket/h", recursive=True)
        assert gcsfs.find("bucket") == ["bucket/e", "bucket/g", "bucket/h/a", "bucket/h/b"]
        gcsfs.rm("bucket/h", recursive=True)
        gcsfs.rm("bucket/g")
        assert gcsfs.find("bucket") == ["bucket/e"]
        gcsfs.mkdir("other")
        gcsfs.rmdir("other")

    await asyncio.to_thread(work)


# --- obstore -------------------------------------------------------------------------------------


@pytest.fixture
def store(server: GcsEmulator) -> GCSStore:
    # Only a service account without OAuth keeps it from asking Google for a token.
    account = {"gcs_base_url": server.url, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    return GCSStore("bucket", config={"service_account_key": json.dumps(account)}, client_options={"allow_http": True},
                    retry_config={"max_retries": 0})  # fmt: skip


async def test_obstore_puts_reads_lists_and_deletes_by_the_xml_api(server: GcsEmulator, store: GCSStore) -> None:
    server.buckets["bucket"].page_max = 2
    names = ["d/a&b", "d/größe #1?", "e"]
    for name in names:
        put = await obstore.put_async(store, name, name.encode(), attributes={"Content-Type": "text/plain", "k": "v"}, mode="create")
        assert put["version"] == str(server.buckets["bucket"].objects[name].generation)
    stored = server.buckets["bucket"].objects["d/a&b"]
    assert (stored.content, stored.metadata) == ({"contentType": "text/plain"}, {"k": "v"})
    read = await obstore.get_async(store, "e")
    assert (bytes(await read.bytes_async()), read.attributes["Content-Type"], read.attributes["k"]) == (b"e", "text/plain", "v")
    assert bytes(await obstore.get_range_async(store, "d/a&b", start=2, length=2)) == b"a&"
    listed = [meta async for page in obstore.list(store) for meta in page]
    assert [(meta["path"], meta["size"]) for meta in listed] == [(name, len(name.encode())) for name in names]
    grouped = await obstore.list_with_delimiter_async(store)
    assert (list(grouped["common_prefixes"]), [meta["path"] for meta in grouped["objects"]]) == (["d"], ["e"])
    with pytest.raises(AlreadyExistsError):
        await obstore.put_async(store, "e", b"again", mode="create")
    await obstore.delete_async(store, ["d/a&b", "e"])
    assert list(server.buckets["bucket"].objects) == ["d/größe #1?"]
    with pytest.raises(FileNotFoundError):
        await obstore.head_async(store, "none")


async def test_obstore_uploads_parts_and_was_501(server: GcsEmulator, store: GCSStore) -> None:
    payload = bytes(range(256)) * (MIB // 256) * 11
    await obstore.put_async(store, "d/größe #1", payload, use_multipart=True, chunk_size=5 * MIB, attributes={"Content-Type": "text/plain"})
    stored = server.buckets["bucket"].objects["d/größe #1"]
    assert (stored.payload, stored.content, stored.md5) == (payload, {"contentType": "text/plain"}, None)
    assert server.calls.count("xml.parts.put") == 3 and not server.parts.uploads
    with pytest.raises(obstore.exceptions.GenericError, match="EntityTooSmall"):
        await obstore.put_async(store, "small", payload, use_multipart=True, chunk_size=MIB)
    assert "small" not in server.buckets["bucket"].objects
