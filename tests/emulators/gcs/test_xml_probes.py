"""What GCS's XML API takes and answers, as Google's pages and clients of it say: one probe a test."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import pytest

from emulators.gcs.server import GcsEmulator
from tests.given.raw_gcs import Answered, PartsClient, RawClient, at, crc32c, refused, xml_texts

pytestmark = pytest.mark.asyncio(loop_scope="module")

GRANULE = 256 * 1024
A = "/bucket/a"


def md5(payload: bytes) -> str:
    return base64.b64encode(hashlib.md5(payload).digest()).decode()


def tag(payload: bytes) -> str:
    return f'"{hashlib.md5(payload).hexdigest()}"'


def listed(answer: Answered) -> list[str]:
    """The names and then the prefixes of a listing."""
    root = ElementTree.fromstring(answer.body)
    return [
        found.text or "" for path in ("{*}Contents/{*}Key", "{*}CommonPrefixes/{*}Prefix") for found in root.findall(path)
    ]  # fmt: skip


async def told(raw: RawClient, name: str = "a") -> Mapping[str, Any]:
    return (await raw.send("GET", at(name))).json


# --- objects -------------------------------------------------------------------------------------


async def test_an_object_is_put_with_all_that_headers_say_and_read_back(raw: RawClient) -> None:
    headers = {
        "Content-Type": "text/plain", "Content-Encoding": "zstd", "Content-Disposition": "inline", "Content-Language": "de",
        "Cache-Control": "no-store", "x-goog-meta-Key": "v", "X-GOOG-META-x-sn-origin": "127.0.0.1",
        "x-goog-custom-time": "2030-01-01T00:00:00Z", "x-goog-storage-class": "NEARLINE", "Content-MD5": md5(b"payload"),
        "x-goog-hash": f"crc32c={crc32c(b'payload')}",
    }  # fmt: skip
    put = await raw.send("PUT", "/bucket/d/gr%C3%B6%C3%9Fe%20%231", b"payload", **headers)
    assert (put.status, put.body, put.headers["ETag"]) == (200, b"", tag(b"payload"))
    shown = await told(raw, "d/größe #1")
    assert {key: shown.get(key) for key in ("contentType", "contentEncoding", "contentDisposition", "contentLanguage", "cacheControl")} == {
        "contentType": "text/plain", "contentEncoding": "zstd", "contentDisposition": "inline", "contentLanguage": "de",
        "cacheControl": "no-store",
    }  # fmt: skip
    assert (shown["metadata"], shown["customTime"]) == ({"key": "v", "x-sn-origin": "127.0.0.1"}, "2030-01-01T00:00:00.000Z")
    expected = {
        "x-goog-generation": shown["generation"], "x-goog-metageneration": "1", "ETag": tag(b"payload"), "Accept-Ranges": "bytes",
        "x-goog-hash": f"crc32c={crc32c(b'payload')},md5={md5(b'payload')}", "x-goog-stored-content-length": "7",
        "x-goog-stored-content-encoding": "zstd", "x-goog-storage-class": "NEARLINE", "x-goog-meta-key": "v", "Content-Length": "7",
        "x-goog-meta-x-sn-origin": "127.0.0.1", "x-goog-custom-time": "2030-01-01T00:00:00.000Z", "Content-Type": "text/plain",
        "Content-Encoding": "zstd", "Content-Disposition": "inline", "Content-Language": "de", "Cache-Control": "no-store",
    }  # fmt: skip
    for method, body in (("GET", b"payload"), ("HEAD", b"")):
        read = await raw.send(method, "/bucket/d/gr%C3%B6%C3%9Fe%20%231")
        assert (read.status, read.body, {key: read.headers.get(key) for key in expected}) == (200, body, expected)
        assert read.headers["Last-Modified"].endswith(" GMT")
    same = ("x-goog-generation", "x-goog-metageneration", "x-goog-hash", "x-goog-stored-content-length", "x-goog-stored-content-encoding")
    assert {key: put.headers[key] for key in same} == {key: expected[key] for key in same}


async def test_a_slash_in_a_name_may_be_escaped_or_not(raw: RawClient) -> None:
    await raw.send("PUT", "/bucket/a/b//c", b"1")
    assert (await raw.send("GET", "/bucket/a%2Fb%2F%2Fc")).body == b"1"
    await raw.send("PUT", "/bucket/../x/./y", b"2")
    assert listed(await raw.send("GET", "/bucket")) == ["../x/./y", "a/b//c"]


@pytest.mark.parametrize(("headers", "status", "code"), [
    ({"Content-MD5": md5(b"y")}, 400, "BadDigest"), ({"x-goog-hash": f"crc32c={crc32c(b'y')}"}, 400, "BadDigest"),
    ({"x-goog-hash": f"md5={md5(b'y')}"}, 400, "BadDigest"), ({"Content-MD5": "?"}, 400, "InvalidDigest"),
    ({"x-goog-meta-k": "v" * 8191, "x-goog-meta-l": ""}, 400, "MetadataTooLarge"),
    ({"x-goog-storage-class": "WARM"}, 400, "InvalidStorageClass"),
    ({"x-goog-custom-time": "tomorrow"}, 400, "InvalidArgument"), ({"x-goog-if-generation-match": "7"}, 412, "PreconditionFailed"),
    ({"x-goog-if-generation-match": "x"}, 400, "InvalidArgument"), ({"x-goog-if-metageneration-match": "7"}, 412, "PreconditionFailed"),
    ({"x-goog-encryption-algorithm": "AES256"}, 501, "NotImplemented"), ({"x-goog-acl": "public-read"}, 501, "NotImplemented"),
    ({"x-amz-tagging": "a=b"}, 501, "NotImplemented"), ({"If-None-Match": "*"}, 501, "NotImplemented"),
])  # fmt: skip
async def test_a_put_that_is_refused_changes_nothing(raw: RawClient, headers: dict[str, str], status: int, code: str) -> None:
    assert refused(await raw.send("PUT", A, b"x", **headers)) == (status, code)
    assert (await raw.send("HEAD", A)).status == 404


@pytest.mark.parametrize("path", ["/bucket/" + "n" * 1025, "/bucket/a%0Ab", "/bucket/.well-known/acme-challenge/x", "/bucket/%FF"])
async def test_a_name_that_may_not_be_is_400(raw: RawClient, path: str) -> None:
    assert refused(await raw.send("PUT", path, b"x"))[0] == 400


async def test_writes_heed_the_generation_and_the_metageneration(raw: RawClient) -> None:
    first = (await raw.send("PUT", A, b"1", **{"x-goog-if-generation-match": "0"})).headers["x-goog-generation"]
    assert refused(await raw.send("PUT", A, b"2", **{"x-goog-if-generation-match": "0"})) == (412, "PreconditionFailed")
    again = await raw.send("PUT", A, b"3", **{"x-goog-if-generation-match": first, "x-goog-if-metageneration-match": "1"})
    assert again.status == 200
    for method, headers in (("DELETE", {"x-goog-if-generation-match": first}), ("DELETE", {"x-goog-if-metageneration-match": "2"}),
                            ("GET", {"x-goog-if-generation-match": first}), ("GET", {"x-goog-if-metageneration-match": "2"})):  # fmt: skip
        assert refused(await raw.send(method, A, **headers)) == (412, "PreconditionFailed")
    assert refused(await raw.send("DELETE", f"{A}?generation={first}")) == (404, "NoSuchKey")
    good = {"x-goog-if-generation-match": again.headers["x-goog-generation"]}
    assert (await raw.send("DELETE", A, **good)).status == 204
    assert refused(await raw.send("DELETE", A)) == (404, "NoSuchKey")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_reads_heed_tags_and_times(raw: RawClient, method: str) -> None:
    await raw.send("PUT", A, b"x")
    for headers, status in (
        ({"If-Match": tag(b"x")}, 200), ({"If-Match": "*"}, 200), ({"If-Match": '"y"'}, 412), ({"If-None-Match": tag(b"x")}, 304),
        ({"If-None-Match": f'W/"z", {tag(b"x")}'}, 304), ({"If-None-Match": "z"}, 200),
        ({"If-Modified-Since": "Fri, 01 Jan 2100 00:00:00 GMT"}, 304), ({"If-Modified-Since": "Thu, 01 Jan 1970 00:00:00 GMT"}, 200),
        ({"If-Unmodified-Since": "Thu, 01 Jan 1970 00:00:00 GMT"}, 412), ({"If-Unmodified-Since": "Fri, 01 Jan 2100 00:00:00 GMT"}, 200),
    ):  # fmt: skip
        answer = await raw.send(method, A, **headers)
        assert answer.status == status, headers
        assert status == 412 or answer.headers["ETag"] == tag(b"x")
        assert status != 304 or answer.body == b""


@pytest.mark.parametrize(("wanted", "status", "body", "content_range"), [
    ("bytes=2-4", 206, b"234", "bytes 2-4/10"), ("bytes=7-", 206, b"789", "bytes 7-9/10"), ("bytes=-3", 206, b"789", "bytes 7-9/10"),
    ("bytes=0-99", 206, b"0123456789", "bytes 0-9/10"), ("bytes=10-", 416, None, "bytes */10"), ("bytes=x", 200, b"0123456789", None),
])  # fmt: skip
async def test_ranges(raw: RawClient, wanted: str, status: int, body: bytes | None, content_range: str | None) -> None:
    await raw.send("PUT", A, b"0123456789")
    answer = await raw.send("GET", A, Range=wanted)
    assert (answer.status, answer.headers.get("Content-Range")) == (status, content_range)
    assert answer.body == body if body is not None else refused(answer) == (416, "InvalidRange")
    head = await raw.send("HEAD", A, Range=wanted)
    assert (head.status, head.headers["Content-Length"], head.body) == (status, str(len(answer.body)), b"")


async def test_a_generation_is_read_and_deleted_by_its_number(raw: RawClient, emptied: GcsEmulator) -> None:
    emptied.buckets["bucket"].settings["versioning"] = {"enabled": True}
    old, new = [(await raw.send("PUT", A, payload)).headers["x-goog-generation"] for payload in (b"old", b"new")]
    assert [(await raw.send("GET", f"{A}?generation={each}")).body for each in (old, new)] == [b"old", b"new"]
    assert (await raw.send("DELETE", f"{A}?generation={old}")).status == 204
    assert refused(await raw.send("GET", f"{A}?generation={old}")) == (404, "NoSuchKey")
    assert (await raw.send("GET", A)).body == b"new"


# --- copies and composites -----------------------------------------------------------------------


async def test_a_copy_keeps_or_replaces_the_metadata(raw: RawClient) -> None:
    await raw.send("PUT", "/bucket/d/%C3%BC", b"x", **{"Content-Type": "text/plain", "x-goog-meta-k": "v"})
    source = {"x-goog-copy-source": "/bucket/d/%C3%BC"}
    copied = await raw.send("PUT", A, b"", **source)
    assert (copied.status, xml_texts(copied, "ETag")) == (200, [tag(b"x")])
    assert ((await told(raw))["metadata"], (await told(raw))["contentType"]) == ({"k": "v"}, "text/plain")
    replaced = {"x-goog-metadata-directive": "REPLACE", "x-goog-meta-l": "w", "Content-Type": "image/png"}
    await raw.send("PUT", A, b"", **source, **replaced)
    assert ((await told(raw))["metadata"], (await told(raw))["contentType"]) == ({"l": "w"}, "image/png")
    assert refused(await raw.send("PUT", A, b"", **source, **{"x-goog-metadata-directive": "MERGE"})) == (400, "InvalidArgument")


@pytest.mark.parametrize(("headers", "status"), [
    ({"x-goog-copy-source-if-match": '"y"'}, 412), ({"x-goog-copy-source-if-match": tag(b"x")}, 200),
    ({"x-goog-copy-source-if-none-match": tag(b"x")}, 412), ({"x-goog-copy-source-if-generation-match": "1"}, 412),
    ({"x-goog-copy-source-if-metageneration-match": "1"}, 200), ({"x-goog-copy-source-generation": "1"}, 404),
    ({"x-goog-copy-source-if-modified-since": "Fri, 01 Jan 2100 00:00:00 GMT"}, 412), ({"x-goog-if-generation-match": "0"}, 200),
    ({"x-goog-copy-source-if-unmodified-since": "Thu, 01 Jan 1970 00:00:00 GMT"}, 412), ({"x-goog-if-generation-match": "1"}, 412),
])  # fmt: skip
async def test_a_copy_heeds_conditions_on_its_source_and_its_target(raw: RawClient, headers: dict[str, str], status: int) -> None:
    await raw.send("PUT", "/bucket/source", b"x")
    assert (await raw.send("PUT", A, b"", **{"x-goog-copy-source": "bucket/source", **headers})).status == status
    assert (await raw.send("HEAD", A)).status == (200 if status == 200 else 404)


COMPOSE = "<ComposeRequest>{}</ComposeRequest>"
ONE = "<Component><Name>a</Name></Component>"


async def test_a_composite_is_put_together_by_a_document(raw: RawClient) -> None:
    generation = (await raw.send("PUT", A, b"a")).headers["x-goog-generation"]
    named = f"<Component><Name>a</Name><Generation>{generation}</Generation><IfGenerationMatch>{generation}</IfGenerationMatch></Component>"
    put = await raw.send("PUT", "/bucket/c?compose", COMPOSE.format(named + ONE), **{"x-goog-meta-k": "v", "Content-Type": "text/plain"})
    assert (put.status, put.headers["x-goog-component-count"], put.headers["x-goog-hash"]) == (200, "2", f"crc32c={crc32c(b'aa')}")
    read = await raw.send("GET", "/bucket/c")
    assert (read.body, read.headers["x-goog-meta-k"], read.headers["x-goog-component-count"]) == (b"aa", "v", "2")
    assert read.headers["ETag"] == put.headers["ETag"] != tag(b"aa")


@pytest.mark.parametrize(("body", "headers", "status", "code"), [
    (COMPOSE.format(ONE * 33), {}, 400, "InvalidArgument"), (COMPOSE.format(""), {}, 400, "MalformedXML"), ("<", {}, 400, "MalformedXML"),
    (COMPOSE.format("<Component><Name>none</Name></Component>"), {}, 404, "NoSuchKey"),
    (COMPOSE.format("<Component><Name>a</Name><IfGenerationMatch>1</IfGenerationMatch></Component>"), {}, 412, "PreconditionFailed"),
    (COMPOSE.format(ONE), {"x-goog-if-generation-match": "7"}, 412, "PreconditionFailed"),
])  # fmt: skip
async def test_a_document_that_composes_nothing(raw: RawClient, body: str, headers: dict[str, str], status: int, code: str) -> None:
    await raw.send("PUT", A, b"a")
    assert refused(await raw.send("PUT", "/bucket/c?compose", body, **headers)) == (status, code)
    assert (await raw.send("HEAD", "/bucket/c")).status == 404


# --- listings ------------------------------------------------------------------------------------

STORED = ["a/1", "a/2", "b", "c&d", "d/e/1", "f ü"]


async def stored(raw: RawClient) -> None:
    for name in STORED:
        await raw.send("PUT", f"/bucket/{quote(name)}", name.encode())


@pytest.mark.parametrize(("query", "found"), [
    ("", STORED), ("?prefix=a/", ["a/1", "a/2"]), ("?delimiter=/", ["b", "c&d", "f ü", "a/", "d/"]), ("?marker=a/2", STORED[2:]),
    ("?delimiter=/&marker=a/", ["b", "c&d", "f ü", "d/"]), ("?prefix=d/&delimiter=/", ["d/e/"]),
    ("?prefix=a/&delimiter=/&marker=a/", STORED[:2]), ("?list-type=2&start-after=b", STORED[3:]), ("?list-type=2&prefix=none", []),
    ("?encoding-type=url", ["a/1", "a/2", "b", "c%26d", "d/e/1", "f%20%C3%BC"]), ("?fetch-owner=true&list-type=2", STORED),
])  # fmt: skip
async def test_a_bucket_is_listed(raw: RawClient, query: str, found: list[str]) -> None:
    await stored(raw)
    answer = await raw.send("GET", f"/bucket{query}")
    assert (answer.status, listed(answer)) == (200, found)


@pytest.mark.parametrize("grouped", ["", "&delimiter=/"])
@pytest.mark.parametrize(("kind", "follow", "told_as"), [
    ("", "marker", "NextMarker"), ("&list-type=2", "continuation-token", "NextContinuationToken"),
])  # fmt: skip
async def test_a_listing_has_pages(raw: RawClient, grouped: str, kind: str, follow: str, told_as: str) -> None:
    await stored(raw)
    found, more = [], ""
    for _ in range(9):
        page = await raw.send("GET", f"/bucket?max-keys=2{kind}{grouped}{more}")
        names = listed(page)
        assert xml_texts(page, "MaxKeys") == ["2"] and (not kind or xml_texts(page, "KeyCount") == [str(len(names))])
        found += sorted(names)
        if xml_texts(page, "IsTruncated") == ["false"]:
            break
        assert len(names) == 2
        more = f"&{follow}={quote(xml_texts(page, told_as)[0], safe='')}"
    assert found == (["a/", "b", "c&d", "d/", "f ü"] if grouped else STORED)


async def test_a_listing_tells_of_each_object(raw: RawClient) -> None:
    generation = (await raw.send("PUT", A, b"xyz")).headers["x-goog-generation"]
    answer = await raw.send("GET", "/bucket?prefix=a&delimiter=/")
    texts = {key: xml_texts(answer, key) for key in ("Name", "Delimiter", "Generation", "MetaGeneration", "ETag", "Size", "IsTruncated")}
    assert texts == {
        "Name": ["bucket"], "Delimiter": ["/"], "Generation": [generation], "MetaGeneration": ["1"], "ETag": [tag(b"xyz")], "Size": ["3"],
        "IsTruncated": ["false"],
    }  # fmt: skip
    assert xml_texts(answer, "LastModified")[0].endswith("Z")


async def test_many_are_deleted_in_one_call_and_each_by_itself(raw: RawClient) -> None:
    await stored(raw)
    generation = (await told(raw, "b"))["generation"]
    keys = [("a/1", ""), ("none", ""), ("c&amp;d", ""), ("b", generation), ("d/e/1", "x")]
    objects = "".join(f"<Object><Key>{key}</Key><VersionId>{version}</VersionId></Object>" for key, version in keys)
    answer = await raw.send("POST", "/bucket?delete", f"<Delete>{objects}</Delete>", **{"Content-MD5": "unread"})
    assert answer.status == 200
    root = ElementTree.fromstring(answer.body)
    assert [each.text for each in root.findall("{*}Deleted/{*}Key")] == ["a/1", "none", "c&d", "b"]
    assert [each.text for each in root.findall("{*}Error/{*}Code")] == ["InvalidArgument"]
    quiet = await raw.send("POST", "/bucket?delete", "<Delete><Quiet>True</Quiet><Object><Key>a/2</Key></Object></Delete>")
    assert list(ElementTree.fromstring(quiet.body)) == []
    assert listed(await raw.send("GET", "/bucket")) == ["d/e/1", "f ü"]
    too_many = f"<Delete>{'<Object><Key>k</Key></Object>' * 1001}</Delete>"
    for body in (too_many, "<Delete/>", "<Delete><Object/></Delete>", "text"):
        assert refused(await raw.send("POST", "/bucket?delete", body)) == (400, "MalformedXML")


# --- buckets and refusals ------------------------------------------------------------------------


async def test_a_bucket_is_created_found_listed_and_deleted(raw: RawClient) -> None:
    chosen = "<LocationConstraint>EU</LocationConstraint><StorageClass>NEARLINE</StorageClass>"
    assert (await raw.send("PUT", "/other", f"<CreateBucketConfiguration>{chosen}</CreateBucketConfiguration>")).status == 200
    assert refused(await raw.send("PUT", "/other")) == (409, "BucketAlreadyOwnedByYou")
    assert refused(await raw.send("PUT", "/No")) == (400, "InvalidBucketName")
    assert [(await raw.send("HEAD", path)).status for path in ("/other", "/none")] == [200, 404]
    assert xml_texts(await raw.send("GET", "/other?location"), "LocationConstraint") == ["EU"]
    assert xml_texts(await raw.send("GET", "/"), "Name") == ["bucket", "other"]
    await raw.send("PUT", "/other/a", b"x")
    assert refused(await raw.send("DELETE", "/other")) == (409, "BucketNotEmpty")
    assert (await raw.send("HEAD", "/other/a")).headers["x-goog-storage-class"] == "NEARLINE"
    await raw.send("DELETE", "/other/a")
    assert (await raw.send("DELETE", "/other")).status == 204
    assert refused(await raw.send("GET", "/other")) == (404, "NoSuchBucket")


@pytest.mark.parametrize(("method", "path", "status", "code"), [
    ("GET", "/bucket/none", 404, "NoSuchKey"), ("GET", "/none/a", 404, "NoSuchBucket"), ("PUT", "/none/a", 404, "NoSuchBucket"),
    ("DELETE", "/bucket/none", 404, "NoSuchKey"), ("GET", "/bucket?acl", 501, "NotImplemented"),
    ("PUT", "/bucket/a?acl", 501, "NotImplemented"), ("GET", "/bucket?versions", 501, "NotImplemented"),
    ("POST", "/bucket/a", 501, "NotImplemented"), ("PATCH", "/bucket/a", 501, "NotImplemented"),
    ("GET", "/bucket?max-keys=x", 400, "InvalidArgument"), ("POST", "/none/a?uploads", 404, "NoSuchBucket"),
])  # fmt: skip
async def test_a_refusal_is_a_document(raw: RawClient, method: str, path: str, status: int, code: str) -> None:
    answer = await raw.send(method, path)
    assert refused(answer) == (status, code)
    assert answer.headers["Content-Type"] == "application/xml; charset=UTF-8" and xml_texts(answer, "Message") != [""]


# --- uploads of several parts --------------------------------------------------------------------


async def test_the_rules_of_an_upload_of_several_parts(raw: RawClient, emptied: GcsEmulator) -> None:
    emptied.parts.part_bytes_min = 4
    upload = await PartsClient(raw).start(**{"Content-Type": "text/plain", "x-goog-meta-x-sn-origin": "o", "Cache-Control": "no-store"})
    first, small, last = [
        (number, (await upload.put(number, payload)).headers["ETag"]) for number, payload in ((1, b"first"), (2, b"2"), (9, b"l"))
    ]
    assert first[1] == tag(b"first"), "S3's clients compare it with what they sent"
    assert refused(await upload.complete(first, small, last)) == (400, "EntityTooSmall")
    assert refused(await upload.complete(last, first)) == (400, "InvalidPartOrder")
    assert refused(await upload.complete((1, '"x"'))) == (400, "InvalidPart")
    assert refused(await upload.complete((1, first[1]), (3, first[1]))) == (400, "InvalidPart")
    answer = await upload.complete((1, first[1].strip('"')), last)
    assert (answer.status, xml_texts(answer, "Bucket"), xml_texts(answer, "Key")) == (200, ["bucket"], ["a/b"])
    read = await raw.send("GET", "/bucket/a/b")
    assert (read.body, read.headers["x-goog-hash"]) == (b"firstl", f"crc32c={crc32c(b'firstl')}")
    assert [read.headers["ETag"]] == xml_texts(answer, "ETag")
    assert (read.headers["x-goog-meta-x-sn-origin"], read.headers["Cache-Control"]) == ("o", "no-store")
    assert "-" in read.headers["ETag"], "no MD5"


@pytest.mark.parametrize(("headers", "code"), [
    ({"x-goog-custom-time": "tomorrow"}, "InvalidArgument"), ({"x-goog-storage-class": "WARM"}, "InvalidStorageClass"),
    ({"x-goog-meta-k": "v" * 8191, "x-goog-meta-l": ""}, "MetadataTooLarge"),
])  # fmt: skip
async def test_an_upload_of_an_object_that_may_not_be_is_refused_when_it_begins(
    raw: RawClient, emptied: GcsEmulator, headers: dict[str, str], code: str
) -> None:
    before = len(emptied.parts.uploads)
    assert refused(await raw.send("POST", "/bucket/a/b?uploads", **headers)) == (400, code)
    assert len(emptied.parts.uploads) == before


async def test_keys_of_uploads_are_told_encoded_if_asked(raw: RawClient) -> None:
    upload = await PartsClient(raw, "/bucket/enc/%C3%BC%20%26").start(**{"x-goog-storage-class": "NEARLINE"})
    for query in ("", "&encoding-type=url"):
        for answer in (await raw.send("GET", f"/bucket?uploads&prefix=enc/{query}"), await upload.listed(query)):
            assert xml_texts(answer, "Key") == ["enc/%C3%BC%20%26" if query else "enc/ü &"]
            assert xml_texts(answer, "StorageClass") == ["NEARLINE"]


async def test_a_part_is_never_taken_from_another_object_which_was_stored_empty(raw: RawClient) -> None:
    await raw.send("PUT", A, b"x")
    upload = await PartsClient(raw).start()
    assert refused(await upload.put(1, b"", **{"x-goog-copy-source": "/bucket/a"})) == (501, "NotImplemented")
    assert xml_texts(await upload.listed(), "PartNumber") == []


@pytest.mark.parametrize("body", ["", "<x/>", "<CompleteMultipartUpload/>", "<CompleteMultipartUpload><Part/></CompleteMultipartUpload>"])
async def test_a_completion_that_makes_no_sense(raw: RawClient, body: str) -> None:
    upload = await PartsClient(raw).start()
    await upload.put(1, b"x")
    assert refused(await raw.send("POST", f"{upload.path}?uploadId={upload.id}", body)) == (400, "MalformedXML")


# --- sessions ------------------------------------------------------------------------------------


async def begun(raw: RawClient, **headers: str) -> str:
    answer = await raw.send("POST", A, b"", **{"x-goog-resumable": "start", **headers})
    assert (answer.status, answer.headers["X-GUploader-UploadID"] in answer.headers["Location"]) == (201, True)
    return str(answer.headers["Location"])


async def test_a_session_of_the_xml_api_goes_on_where_it_was(raw: RawClient) -> None:
    session = await begun(raw, **{"Content-Type": "text/plain", "x-goog-meta-k": "v"})
    assert (await raw.put_range(session, "bytes */*")).status == 308
    payload = b"x" * GRANULE + b"end"
    part = await raw.put_range(session, f"bytes 0-{GRANULE - 1}/{len(payload)}", payload[:GRANULE])
    assert (part.status, part.headers["Range"]) == (308, f"bytes=0-{GRANULE - 1}")
    done = await raw.put_range(session, f"bytes {GRANULE}-{GRANULE + 2}/{len(payload)}", payload[GRANULE:])
    assert (done.status, done.headers["ETag"]) == (200, tag(payload)) and crc32c(payload) in done.headers["x-goog-hash"]
    assert ((await told(raw))["contentType"], (await told(raw))["metadata"]) == ("text/plain", {"k": "v"})
    assert (await raw.put_range(session, "bytes */*")).status == 200


async def test_a_session_of_the_xml_api_is_cancelled_and_refuses_as_a_document(raw: RawClient) -> None:
    session = await begun(raw)
    small = await raw.put_range(session, "bytes 0-9/*", b"x" * 10)
    assert refused(small) == (400, "InvalidArgument")
    assert (await raw.send("DELETE", session)).status == 499
    assert refused(await raw.put_range(session, "bytes */*"))[0] == 410
    assert refused(await raw.send("PUT", f"{A}?upload_id=none", b"x")) == (404, "NoSuchUpload")
    assert refused(await raw.send("POST", A, b"", **{"x-goog-resumable": "stop"})) == (400, "InvalidArgument")
    assert refused(await raw.send("POST", "/none/a", b"", **{"x-goog-resumable": "start"})) == (404, "NoSuchBucket")


async def test_a_session_of_the_xml_api_heeds_its_precondition_at_both_ends(raw: RawClient) -> None:
    session = await begun(raw, **{"x-goog-if-generation-match": "0"})
    await raw.send("PUT", A, b"another")
    assert refused(await raw.send("PUT", session, b"late")) == (412, "PreconditionFailed")
    again = await raw.send("POST", A, b"", **{"x-goog-resumable": "start", "x-goog-if-generation-match": "0"})
    assert refused(again) == (412, "PreconditionFailed")
    assert (await raw.send("GET", A)).body == b"another"
