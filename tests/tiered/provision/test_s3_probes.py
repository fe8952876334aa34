"""What is tried of a service of S3, on S3 in memory: a healthy one is green, and each probe turns red by a fault.

`FAULTS` is the table, probe and fault. A probe without a fault is an error.
"""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeAlias
from urllib.parse import unquote

import anyio
import pytest
from botocore.exceptions import EndpointConnectionError

from changelog.base.errors import ConfigurationError, UnavailableError
from emulators.s3.memory import Answer, MemoryS3, memory_blobs, refused
from tiered.metadata import Metadata
from tiered.provision.findings import Notice, NoticeKind
from tiered.provision.probes import RequestSizes
from tiered.provision.s3_bench import LEFT_AFTER_S
from tiered.provision.s3_probes import PROBES, try_service
from tiered.testing.clock import Clock

pytestmark = pytest.mark.anyio
SIZES = RequestSizes(racers=4, rounds=2, body_bytes=64, uploads=5, limit_s=60)
CALLS_MAX = 400

Go: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Answer]]
Twist: TypeAlias = Callable[["TwistedS3", str, dict[str, Any], Go], Awaitable[Answer]]


class TwistedS3(MemoryS3):
    """`twist` answers each request, and may pass it on. `calls`: how many came. `seen`: what a twist remembers."""

    def __init__(self, twist: Twist | None = None) -> None:
        self.clock = Clock()
        super().__init__(self.clock)
        self.twist = twist
        self.calls = 0
        self.seen: dict[str, Any] = {}

    async def call(self, operation: str, named: Mapping[str, Any], cause: tuple[str, bool] = ("", False)) -> Answer:
        self.calls += 1
        go: Go = lambda changed: super(TwistedS3, self).call(operation, changed, cause)  # noqa: E731
        return await (go(named) if self.twist is None else self.twist(self, operation, dict(named), go))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def tried(server: TwistedS3, sizes: RequestSizes = SIZES, prefix: str = "", *, whole: bool = True) -> AsyncIterator[list[Notice]]:
    async with memory_blobs(server, server.clock, prefix=prefix) as ours, memory_blobs(server, server.clock, prefix=prefix) as other:
        yield await try_service(ours, other, prefix, server.clock, sizes, whole_checksums=whole)


# --- faults ------------------------------------------------------------------------------------------


def refuses(operation: str, status: int, code: str, having: str = "") -> Twist:
    async def twist(server: TwistedS3, called: str, named: dict[str, Any], go: Go) -> Answer:
        if called == operation and having in named.get("Key", ""):
            raise refused(status, code, operation)
        return await go(named)

    return twist


def ignores(operation: str, *headers: str) -> Twist:
    async def twist(server: TwistedS3, called: str, named: dict[str, Any], go: Go) -> Answer:
        return await go({key: value for key, value in named.items() if called != operation or key not in headers})

    return twist


def repeats(operation: str) -> Twist:
    """It does not look at the crc32c that comes, and tells it."""

    async def twist(server: TwistedS3, called: str, named: dict[str, Any], go: Go) -> Answer:
        if called != operation or "ChecksumCRC32C" not in named:
            return await go(named)
        came = named.pop("ChecksumCRC32C")
        return {**await go(named), "ChecksumCRC32C": came}

    return twist


async def keeps_what_came(server: TwistedS3, called: str, named: dict[str, Any], go: Go) -> Answer:
    """It tells the crc32c that came when it is asked."""
    if called == "put_object":
        server.seen[named["Key"]] = named.pop("ChecksumCRC32C", None)
    answer = await go(named)
    return {**answer, "ChecksumCRC32C": server.seen[named["Key"]]} if called == "head_object" and server.seen.get(named["Key"]) else answer


def looks_first(operation: str, header: str) -> Twist:
    """The condition holds when the request comes, and is forgotten when it has its effect."""

    async def twist(server: TwistedS3, called: str, named: dict[str, Any], go: Go) -> Answer:
        if called != operation or header not in named:
            return await go(named)
        there = server.objects.get(named["Key"])
        if (there is not None) if header == "IfNoneMatch" else (there is None or there.etag != named[header].strip('"')):
            raise refused(412, "PreconditionFailed", operation)
        server.seen[named["Key"]] = number = server.seen.get(named["Key"], 0) + 1
        for _ in range(50 * number):  # until the others have looked, too
            await anyio.lowlevel.checkpoint()
        return await go({key: value for key, value in named.items() if key != header})

    return twist


def replaces(operation: str) -> Twist:
    """It refuses those that come too late, and takes what they bring."""

    async def twist(server: TwistedS3, called: str, named: dict[str, Any], go: Go) -> Answer:
        exists = named.get("Key") in server.objects
        if called != operation or "IfNoneMatch" not in named or not exists:
            return await go(named)
        await go({key: value for key, value in named.items() if key != "IfNoneMatch"})
        raise refused(412, "PreconditionFailed", operation)

    return twist


def shows(operation: str, change: Callable[[Answer], Answer | None]) -> Twist:
    """It answers otherwise than it is. None: as if there were nothing."""

    async def twist(server: TwistedS3, called: str, named: dict[str, Any], go: Go) -> Answer:
        answer = await go(named)
        if called != operation:
            return answer
        changed = change(answer)
        if changed is None:
            raise refused(404, "NoSuchKey", operation)
        return changed

    return twist


def lists(change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Twist:
    """A listing tells each object otherwise. None: not at all."""

    def changed(answer: Answer) -> Answer:
        told = [each for each in map(change, answer.get("Contents", ())) if each is not None]
        return {**answer, "Contents": told} if told else {key: value for key, value in answer.items() if key != "Contents"}

    return shows("list_objects_v2", changed)


def lists_name(change: Callable[[str], str]) -> Twist:
    return lists(lambda each: {**each, "Key": change(each["Key"])})


def loses(operation: str, having: str) -> Twist:
    """It says that it did so, and does nothing."""

    async def twist(server: TwistedS3, called: str, named: dict[str, Any], go: Go) -> Answer:
        return server._told(200) if called == operation and having in named["Key"] else await go(named)

    return twist


async def by_code_units(server: TwistedS3, called: str, named: dict[str, Any], go: Go) -> Answer:
    answer = await go({key: value for key, value in named.items() if key not in ("StartAfter", "MaxKeys")})
    if "Contents" not in answer:
        return answer

    def place(each: Mapping[str, str]) -> bytes:
        return each["Key"].encode("utf-16-be")

    after = place({"Key": named.get("StartAfter", "")})
    told = sorted((each for each in answer["Contents"] if place(each) > after), key=place)
    return {**answer, "Contents": told[: named["MaxKeys"]], "IsTruncated": len(told) > named["MaxKeys"]}


async def fails_after_odd_names(server: TwistedS3, called: str, named: dict[str, Any], go: Go) -> Answer:
    if "\ufffe" in named.get("StartAfter", ""):
        raise refused(500, "500", called)
    return await go(named)


async def shows_the_deleted(server: TwistedS3, called: str, named: dict[str, Any], go: Go) -> Answer:
    """Its listings come from a copy that is old."""
    if called == "delete_object" and (gone := server.objects.get(named["Key"])) is not None:
        server.seen[named["Key"]] = gone
    if called == "list_objects_v2":
        kept, server.objects = server.objects, {**server.seen, **server.objects}
        try:
            return await go(named)
        finally:
            server.objects = kept
    return await go(named)


async def forgets_the_end(server: TwistedS3, called: str, named: dict[str, Any], go: Go) -> Answer:
    """An upload that ends while it is completed loses its object, although the completion was confirmed."""
    if called == "abort_multipart_upload" and named["UploadId"] not in server.uploads:
        server.objects.pop(named["Key"], None)
    return await go(named)


async def completes_in_secret(server: TwistedS3, called: str, named: dict[str, Any], go: Go) -> Answer:
    answer = await go(named)
    if called == "complete_multipart_upload" and "aborted/" in named["Key"]:
        raise refused(404, "NoSuchUpload", called)
    return answer


async def one_page(server: TwistedS3, called: str, named: dict[str, Any], go: Go) -> Answer:
    answer = await go(named)
    return {**answer, "IsTruncated": False} if called == "list_multipart_uploads" else answer


async def the_same_page(server: TwistedS3, called: str, named: dict[str, Any], go: Go) -> Answer:
    return await go({key: value for key, value in named.items() if called != "list_multipart_uploads" or key != "KeyMarker"})


async def exact_prefix(server: TwistedS3, called: str, named: dict[str, Any], go: Go) -> Answer:
    """As MinIO: it lists the uploads of one name, and none of those that begin so."""
    if called == "list_multipart_uploads":
        return {"IsTruncated": False, **server._told(200)}
    return await go(named)


async def no_folder(server: TwistedS3, called: str, named: dict[str, Any], go: Go) -> Answer:
    if called == "put_object" and named["Key"].rpartition("/")[0] in server.objects:
        raise refused(409, "ObjectParentIsFile", called)
    return await go(named)


async def refuses_all_at_once(server: TwistedS3, called: str, named: dict[str, Any], go: Go) -> Answer:
    if called != "put_object" or "IfNoneMatch" not in named:
        return await go(named)
    server.seen[named["Key"]] = server.seen.get(named["Key"], 0) + 1
    await anyio.sleep(0.001)
    if server.seen[named["Key"]] > 1:
        raise refused(412, "PreconditionFailed", called)
    return await go(named)


def too_long(most: int, of: Callable[[str], int]) -> Twist:
    async def twist(server: TwistedS3, called: str, named: dict[str, Any], go: Go) -> Answer:
        if of(named.get("Key", "")) > most:
            raise refused(400, "KeyTooLongError", called)
        return await go(named)

    return twist


def told_otherwise(key: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda each: {**each, key: change(each[key])} if key in each else each


def longest_part(name: str) -> int:
    return max(len(each.encode()) for each in name.split("/"))


NO_CALL = (501, "NotImplemented")
FAULTS: Mapping[str, Mapping[str, Twist]] = {
    "an object": {
        "none is taken": refuses("put_object", *NO_CALL),
        "it has no metadata": shows("get_object", lambda each: {**each, "Metadata": {}}),
        "it has other bytes": shows("get_object", lambda each: {**each, "Body": each["Body"][::-1]}),
        "it is not there": shows("get_object", lambda _: None),
    },
    "PutObject": {
        "it ignores the condition": ignores("put_object", "IfNoneMatch"),
        "it looks first": looks_first("put_object", "IfNoneMatch"),
        "it replaces, and refuses": replaces("put_object"),
        "it refuses all that come at once": refuses_all_at_once,
    },
    "CompleteMultipartUpload": {
        "it ignores the condition": ignores("complete_multipart_upload", "IfNoneMatch"),
        "it looks first": looks_first("complete_multipart_upload", "IfNoneMatch"),
        "it replaces, and refuses": replaces("complete_multipart_upload"),
        "it is not there": refuses("complete_multipart_upload", *NO_CALL),
        "nothing is uploaded in parts": refuses("create_multipart_upload", *NO_CALL),
    },
    "AbortMultipartUpload": {
        "it does nothing": loses("abort_multipart_upload", "aborted/first"),
        "what it ends is completed in secret": completes_in_secret,
        "it takes away what was completed": forgets_the_end,
    },
    "reads after writes": {
        "what is deleted stays": loses("delete_object", "seen/"),
        "what is deleted stays listed": shows_the_deleted,
        "what is stored is not listed": lists(lambda each: None if "seen/" in each["Key"] else each),
        "what is stored is not seen": refuses("head_object", 404, "404", "seen/"),
    },
    "the order of listings": {"it is that of UTF-16": by_code_units},
    "names: spaces and plus signs": {"plus is a space": lists_name(lambda name: name.replace("+", " "))},
    "names: what addresses and XML escape": {"they are decoded twice": lists_name(unquote)},
    "names: other letters than ASCII": {"they are composed": lists_name(lambda name: unicodedata.normalize("NFC", name))},
    "names: capital letters": {"they are lost": lists_name(lambda name: name.replace("CASE", "case"))},
    "names: what comes before and after a slash": {"one is not deleted": loses("delete_object", "names/a0")},
    "names: two slashes": {"they become one": lists_name(lambda name: name.replace("//", "/"))},
    "names: what XML cannot hold": {"it is replaced": lists_name(lambda name: name.replace("\ufffe", "\ufffd"))},
    "names: an object beside its own folder": {
        "it is refused": no_folder, "it is hidden": lists(lambda each: None if "own/" in each["Key"] else each),
    },
    "names: 300 bytes between slashes": {"they are too many": too_long(255, longest_part)},
    "names: 1024 bytes": {"they are too many": too_long(1000, lambda name: len(name.encode()))},
    "rare names in listings": {"no page begins with one": fails_after_odd_names},
    "ListParts": {
        "it is not there": refuses("list_parts", *NO_CALL),
        "it has no ETags": shows("list_parts", told_otherwise("Parts", lambda told: [{**each, "ETag": ""} for each in told])),
        "it leaves one out": shows("list_parts", told_otherwise("Parts", lambda told: told[1:])),
    },
    "the crc32c of an object": {"it is ignored": ignores("put_object", "ChecksumCRC32C")},
    "the crc32c of a part": {"it is ignored": ignores("upload_part", "ChecksumCRC32C")},
    "the crc32c that is told": {"a put's": repeats("put_object"), "a part's": repeats("upload_part"), "one that is kept": keeps_what_came},
    "the crc32c of a whole": {
        "it is wrong": shows("head_object", told_otherwise("ChecksumCRC32C", lambda crc: f"AAAA{crc[4:]}")),
        "it is refused": refuses("complete_multipart_upload", 400, "InvalidPart", "checksum"),
    },
    "tags": {
        "a listing has another": lists(told_otherwise("ETag", lambda tag: f'"{tag[2:]}')),
        "a listing has another time": lists(told_otherwise("LastModified", lambda time: time + timedelta(seconds=1))),
    },
    "ListMultipartUploads": {
        "it is not there": refuses("list_multipart_uploads", *NO_CALL), "it ends after a page": one_page,
        "its pages do not end": the_same_page, "it knows no prefix": exact_prefix,
    },
    "If-Match in DeleteObject": {
        "it is ignored": ignores("delete_object", "IfMatch"), "it looks first": looks_first("delete_object", "IfMatch"),
    },
    "UploadPartCopy": {
        "it is not there": refuses("upload_part_copy", *NO_CALL),
        "it ignores the condition": ignores("upload_part_copy", "CopySourceIfMatch"),
    },
}  # fmt: skip
"""By the probe that must notice it. Others may, too."""
PAIRS = [pytest.param(probe, twist, id=f"{probe}-{fault}") for probe, faults in FAULTS.items() for fault, twist in faults.items()]


def test_each_probe_has_a_fault() -> None:
    assert [each.name for each in PROBES if each.name not in FAULTS] == [] and len(FAULTS) == len(PROBES)


@pytest.mark.parametrize(("prefix", "whole"), [("", True), ("a/b/", False)])
async def test_a_healthy_service_is_green_and_nothing_is_left(prefix: str, whole: bool) -> None:
    server = TwistedS3()
    async with tried(server, prefix=prefix, whole=whole) as found:
        assert found == []
    assert not server.objects and not server.uploads and server.calls < CALLS_MAX


@pytest.mark.parametrize(("probe", "twist"), PAIRS)
async def test_a_fault_turns_its_probe_red(probe: str, twist: Twist) -> None:
    row, server = next(each for each in PROBES if each.name == probe), TwistedS3(twist)
    try:
        async with tried(server) as found:
            [notice] = [each for each in found if row.cost in each.sentence and row.cure in each.sentence][:1]
            assert notice.kind is row.kind and (not notice.lasts or row.kind is NoticeKind.NOTE)
    except (ConfigurationError, UnavailableError):
        assert row is PROBES[0], "the service's own words, as of every call"
    assert not server.objects or "was deleted" in str(found), "what was tried is removed"


async def test_what_another_run_left_is_removed_when_that_has_surely_ended() -> None:
    server = TwistedS3()
    async with memory_blobs(server, server.clock) as blobs:
        for name in ("~probe/old/x", "~probe/old/a//b", "kept"):
            server.put(name, b"", {})
        session = await blobs.begin_parts("~probe/old/upload", Metadata())
        async with tried(server) as found:
            assert found == [] and len(server.objects) == 3 and list(server.uploads) == [session.rpartition("=")[2]]
        server.clock.advance(timedelta(seconds=LEFT_AFTER_S + 2))
        async with tried(server) as found:
            assert found == [] and list(server.objects) == ["kept"] and not server.uploads


@pytest.mark.parametrize("at", [1, 2, 3, 10, 40, 80, 120, 160, 190])
async def test_a_run_that_is_cancelled_anywhere_leaves_nothing(at: int) -> None:
    async def cancels(server: TwistedS3, called: str, named: dict[str, Any], go: Go) -> Answer:
        server.seen["answered"] = number = server.seen.get("answered", 0) + 1
        try:
            return await go(named)
        finally:
            if number == at:
                tasks.cancel_scope.cancel()

    server = TwistedS3(cancels)
    async with anyio.create_task_group() as tasks, tried(server):
        pytest.fail("it was cancelled")
    assert server.seen["answered"] >= at and not server.objects and not server.uploads


async def test_of_what_takes_too_long_nobody_knows_and_it_is_a_problem() -> None:
    async def stands_still(server: TwistedS3, called: str, named: dict[str, Any], go: Go) -> Answer:
        if called == "upload_part_copy":
            await anyio.sleep_forever()
        return await go(named)

    server = TwistedS3(stands_still)
    async with tried(server, replace(SIZES, limit_s=1.5)) as found:
        [told] = found
        assert told.kind is NoticeKind.PROBLEM and "took longer than 1.5 s, so nobody knows whether" in told.sentence
        assert PROBES[-1].promise in told.sentence
    assert not server.objects


async def test_a_service_that_stops_answering_is_asked_nothing_more() -> None:
    async def is_away(server: TwistedS3, called: str, named: dict[str, Any], go: Go) -> Answer:
        if called == "list_parts":
            server.seen["away"] = True
        if server.seen.get("away"):
            raise EndpointConnectionError(endpoint_url="memory")
        return await go(named)

    async with tried(TwistedS3(is_away)) as found:
        silent, rest, left = found
        assert "gave no answer to tell whether the parts of an upload" in silent.sentence
        assert rest.kind is NoticeKind.PROBLEM and "stopped answering" in rest.sentence and PROBES[-1].promise in rest.sentence
        assert left.kind is NoticeKind.NOTE and "until a later check removes it" in left.sentence


async def test_a_right_to_delete_that_is_missing_is_no_fault_of_names() -> None:
    """Each kind of names was told as one that the service cannot store, and to use no such keys, or another service."""
    async with tried(TwistedS3(refuses("delete_object", 403, "AccessDenied"))) as found:
        assert any("other letters than ASCII" in each.sentence for each in found)
        assert [each.sentence for each in found if "gave no answer to tell whether" not in each.sentence] == [found[-1].sentence]
        assert "until a later check removes it" in found[-1].sentence


@pytest.mark.parametrize("code", ["AccessDenied", "SlowDown", "InternalError"])
async def test_what_the_service_did_not_do_now_is_no_proof(code: str) -> None:
    async with tried(TwistedS3(refuses("list_parts", 403 if code == "AccessDenied" else 503, code))) as found:
        [notice] = found
        assert "gave no answer to tell whether the parts" in notice.sentence and code in notice.sentence and not notice.lasts
