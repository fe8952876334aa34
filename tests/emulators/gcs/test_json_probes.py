"""What GCS's JSON API takes and answers, as Google's pages and Google's clients say it: one probe a test."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
from typing import Any

import pytest

from emulators.gcs.server import GcsEmulator
from tests.given.raw_gcs import RawClient, at, crc32c, uploads

pytestmark = pytest.mark.asyncio(loop_scope="module")

GRANULE = 256 * 1024
MIB = 1024 * 1024
BUCKET, OBJECTS = "/storage/v1/b/bucket", "/storage/v1/b/bucket/o"


def composed(name: str, query: str = "") -> str:
    return f"{at(name)}/compose{query}"


def sources(*names: str, **destination: Any) -> str:
    return json.dumps({"sourceObjects": [{"name": name} for name in names], "destination": destination})


# --- compose -------------------------------------------------------------------------------------


async def test_a_composite_has_the_bytes_a_crc32c_and_a_count_and_no_md5(raw: RawClient) -> None:
    for name in ("a", "b"):
        await raw.put(name, name.encode() * 3)
    told = {"contentType": "text/plain", "metadata": {"k": "v"}, "customTime": "2030-01-01T00:00:00Z"}
    answer = await raw.send("POST", composed("c/d"), sources("a", "b", "a", **told), Content_Type="application/json")
    assert answer.status == 200
    shown = answer.json
    assert {key: shown.get(key) for key in ("kind", "name", "size", "componentCount", "crc32c", "md5Hash", "contentType", "metadata")} == {
        "kind": "storage#object", "name": "c/d", "size": "9", "componentCount": 3, "crc32c": crc32c(b"aaabbbaaa"), "md5Hash": None,
        "contentType": "text/plain", "metadata": {"k": "v"},
    }  # fmt: skip
    read = await raw.read("c/d")
    assert (read.body, read.headers["X-Goog-Hash"], read.headers["X-Goog-Component-Count"]) == (
        b"aaabbbaaa", f"crc32c={crc32c(b'aaabbbaaa')}", "3",
    )  # fmt: skip


async def test_a_composite_of_composites_counts_all_and_so_does_its_copy(raw: RawClient) -> None:
    await raw.put("a")
    await raw.send("POST", composed("b"), sources("a", "a"))
    assert (await raw.send("POST", composed("c"), sources("b", "a", "b"))).json["componentCount"] == 5
    copied = (await raw.send("POST", f"{at('c')}/rewriteTo/b/bucket/o/d")).json["resource"]
    assert (copied["componentCount"], "md5Hash" in copied) == (5, False)


async def test_an_object_may_be_appended_to_by_composing_it_with_itself(raw: RawClient) -> None:
    await raw.put("log", b"one,")
    await raw.put("more", b"two")
    generation = (await raw.send("GET", at("log"))).json["generation"]
    assert (await raw.send("POST", composed("log", f"?ifGenerationMatch={generation}"), sources("log", "more"))).status == 200
    assert (await raw.send("POST", composed("log", f"?ifGenerationMatch={generation}"), sources("log", "more"))).status == 412
    assert (await raw.read("log")).body == b"one,two"


@pytest.mark.parametrize(("body", "query", "status"), [
    (sources(*["a"] * 32), "", 200), (sources(*["a"] * 33), "", 400), (sources(), "", 400), ("{}", "", 400), ("[", "", 400),
    ('{"sourceObjects": [{}]}', "", 400), (sources("none"), "", 404), (sources("a"), "?ifGenerationMatch=0", 200),
    (sources("a"), "?ifGenerationMatch=7", 412), (sources("a"), "?ifMetagenerationMatch=7", 412),
    ('{"sourceObjects": [{"name": "a", "generation": "1"}]}', "", 404),
    ('{"sourceObjects": [{"name": "a", "objectPreconditions": {"ifGenerationMatch": "1"}}]}', "", 412),
    ('{"sourceObjects": [{"name": "a", "objectPreconditions": 5}]}', "", 400),
    ('{"sourceObjects": [{"name": "a"}], "destination": 5}', "", 400),
    (sources("a", customTime="tomorrow"), "", 400), (sources("a", kmsKeyName="k"), "", 501), (sources("a"), "?kmsKeyName=k", 501),
])  # fmt: skip
async def test_compose_refuses_what_makes_no_sense_and_changes_nothing(raw: RawClient, body: str, query: str, status: int) -> None:
    await raw.put("a", b"a")
    assert (await raw.send("POST", composed("new", query), body)).status == status
    assert (await raw.send("GET", at("new"))).status == (200 if status == 200 else 404)


async def test_compose_takes_a_source_by_its_generation(raw: RawClient, emptied: GcsEmulator) -> None:
    emptied.buckets["bucket"].settings["versioning"] = {"enabled": True}
    old = (await raw.put("a", b"old")).json["generation"]
    await raw.put("a", b"new")
    body = json.dumps({"sourceObjects": [{"name": "a", "generation": old}, {"name": "a"}]})
    assert (await raw.send("POST", composed("c"), body)).status == 200
    assert (await raw.read("c")).body == b"oldnew"


# --- HEAD and reads ------------------------------------------------------------------------------


async def test_head_of_media_is_its_read_without_the_bytes(raw: RawClient) -> None:
    await raw.put("a", b"0123456789", Content_Type="text/plain")
    for wanted, length in (({}, "10"), ({"Range": "bytes=2-4"}, "3"), ({"Range": "bytes=-4"}, "4")):
        for path in (at("a") + "?alt=media", "/download" + at("a") + "?alt=media"):
            head, read = await raw.send("HEAD", path, **wanted), await raw.send("GET", path, **wanted)
            assert (head.status, head.body, head.headers["Content-Length"]) == (read.status, b"", length)
            same = ("Content-Type", "X-Goog-Hash", "X-Goog-Generation", "X-Goog-Stored-Content-Length", "ETag", "Content-Range")
            assert [head.headers.get(key) for key in same] == [read.headers.get(key) for key in same]


@pytest.mark.parametrize(("path", "status"), [
    (at("a"), 200), (at("none"), 404), (at("none") + "?alt=media", 404), (BUCKET, 200), ("/storage/v1/b/none", 404), (OBJECTS, 200),
    (at("a") + "?alt=media&ifGenerationMatch=1", 412), (at("a") + "?ifMetagenerationNotMatch=1", 304),
])  # fmt: skip
async def test_where_one_may_get_one_may_head(raw: RawClient, path: str, status: int) -> None:
    await raw.put("a")
    head = await raw.send("HEAD", path)
    assert (head.status, head.body) == (status, b"")


@pytest.mark.parametrize("path", [at("a"), at("a") + "?alt=media"])
async def test_a_read_heeds_tags_and_times(raw: RawClient, path: str) -> None:
    tag = (await raw.put("a")).json["etag"]
    assert (await raw.send("GET", path)).headers["ETag"] == tag
    for headers, status in (
        ({"If-Match": tag}, 200), ({"If-Match": f'"x", "{tag}"'}, 200), ({"If-Match": "*"}, 200), ({"If-Match": "x"}, 412),
        ({"If-None-Match": tag}, 304), ({"If-None-Match": "*"}, 304), ({"If-None-Match": "x"}, 200),
        ({"If-Modified-Since": "Fri, 01 Jan 2100 00:00:00 GMT"}, 304), ({"If-Modified-Since": "Thu, 01 Jan 1970 00:00:00 GMT"}, 200),
        ({"If-Unmodified-Since": "Thu, 01 Jan 1970 00:00:00 GMT"}, 412), ({"If-Modified-Since": "yesterday"}, 200),
        ({"If-None-Match": "x", "If-Modified-Since": "Fri, 01 Jan 2100 00:00:00 GMT"}, 200),
    ):  # fmt: skip
        answer = await raw.send("GET", path, **headers)
        assert answer.status == status, headers
        assert status != 304 or answer.body == b""
    await raw.send("PATCH", at("a"), "{}")
    assert (await raw.send("GET", path, **{"If-Match": tag})).status == 412, "a change of metadata is another tag"


async def test_a_tag_where_one_writes_is_said_to_be_lacking_and_never_ignored(raw: RawClient) -> None:
    await raw.put("a")
    for method, path in (("PATCH", at("a")), ("DELETE", at("a")), ("POST", uploads("media", "a"))):
        assert (await raw.send(method, path, b"{}", **{"If-Match": "x"})).status == 501


async def test_packed_bytes_are_unpacked_for_who_does_not_take_gzip(raw: RawClient) -> None:
    packed = gzip.compress(b"0123456789" * 9)
    await raw.put("a", packed, {"contentEncoding": "gzip"})
    taken = await raw.read("a", Accept_Encoding="gzip, deflate", Range="bytes=0-3")
    assert (taken.status, taken.body, taken.headers["Content-Encoding"]) == (206, packed[:4], "gzip")
    plain = await raw.read("a", Accept_Encoding="identity", Range="bytes=0-3")
    assert (plain.status, plain.body, plain.headers.get("Content-Encoding")) == (200, b"0123456789" * 9, None)
    assert plain.headers["X-Goog-Hash"] == taken.headers["X-Goog-Hash"] and crc32c(packed) in plain.headers["X-Goog-Hash"]
    assert (plain.headers["X-Goog-Stored-Content-Encoding"], plain.headers["X-Goog-Stored-Content-Length"]) == ("gzip", str(len(packed)))
    await raw.send("PATCH", at("a"), json.dumps({"cacheControl": "no-transform"}))
    assert (await raw.read("a", Accept_Encoding="identity")).body == packed


async def test_every_resource_of_an_object_links_to_its_bytes(raw: RawClient) -> None:
    put = (await raw.put("größe/a", b"payload")).json
    listed = [*(await raw.list())["items"], *(await raw.list(fields="items/mediaLink"))["items"]]
    assert [each["mediaLink"] for each in (put, (await raw.send("GET", at("größe/a"))).json, *listed)] == [put["mediaLink"]] * 4
    assert (await raw.send("GET", put["mediaLink"])).body == b"payload"
    copied = (await raw.send("POST", f"{at('größe/a')}/rewriteTo/b/bucket/o/b")).json["resource"]
    await raw.put("b", b"newer")
    assert (await raw.send("GET", copied["mediaLink"])).status == 404, "it is of one generation"


# --- preconditions of every call -----------------------------------------------------------------

WRITES = [
    ("POST", uploads("media", "a"), b"x"), ("POST", uploads("resumable", "a"), b"{}"), ("PATCH", at("a") + "?", b"{}"),
    ("PUT", at("a") + "?", b"{}"), ("DELETE", at("a") + "?", b""), ("POST", f"{at('b')}/copyTo/b/bucket/o/a?", b""),
    ("POST", f"{at('b')}/rewriteTo/b/bucket/o/a?", b""), ("POST", f"{at('b')}/moveTo/o/a?", b""),
]
READS = [("GET", at("a") + "?", b""), ("GET", at("a") + "?alt=media", b""), ("HEAD", at("a") + "?alt=media", b"")]


@pytest.mark.parametrize(("method", "path", "body"), [*WRITES, *READS])
async def test_every_call_heeds_every_precondition(raw: RawClient, method: str, path: str, body: bytes) -> None:
    generation = (await raw.put("a")).json["generation"]
    await raw.put("b")
    not_matched = 304 if (method, path, body) in READS else 412
    for condition, status in (
        ("ifGenerationMatch=1", 412), ("ifGenerationMatch=0", 412), (f"ifGenerationNotMatch={generation}", not_matched),
        ("ifMetagenerationMatch=2", 412), ("ifMetagenerationNotMatch=1", not_matched), ("ifGenerationMatch=x", 400),
    ):
        answer = await raw.send(method, f"{path}&{condition}", body)
        assert answer.status == status, condition
        if status == 412 and method != "HEAD":
            [error] = answer.json["error"]["errors"]
            assert (error["reason"], error["domain"], error["location"]) == ("conditionNotMet", "global", "If-Match")
    good = f"ifGenerationMatch={generation}&ifGenerationNotMatch=1&ifMetagenerationMatch=1&ifMetagenerationNotMatch=7"
    assert (await raw.send(method, f"{path}&{good}", body)).status in (200, 204)


@pytest.mark.parametrize("call", ["copyTo", "rewriteTo"])
async def test_a_copy_heeds_the_preconditions_of_its_source(raw: RawClient, call: str) -> None:
    generation = (await raw.put("a")).json["generation"]
    path = f"{at('a')}/{call}/b/bucket/o/b?"
    for condition, status in (
        ("ifSourceGenerationMatch=1", 412), (f"ifSourceGenerationNotMatch={generation}", 412), ("ifSourceMetagenerationMatch=2", 412),
        ("ifSourceMetagenerationNotMatch=1", 412), ("sourceGeneration=1", 404), (f"sourceGeneration={generation}", 200),
    ):
        assert (await raw.send("POST", path + condition)).status == status, condition


@pytest.mark.parametrize(("method", "body"), [("GET", b""), ("PATCH", b"{}"), ("PUT", b"{}"), ("DELETE", b"")])
async def test_calls_of_a_bucket_heed_its_metageneration(raw: RawClient, method: str, body: bytes) -> None:
    for condition, status in (("ifMetagenerationMatch=2", 412), ("ifMetagenerationNotMatch=1", 304 if method == "GET" else 412)):
        assert (await raw.send(method, f"{BUCKET}?{condition}", body)).status == status
    assert (await raw.send(method, f"{BUCKET}?ifMetagenerationMatch=1", body)).status in (200, 204)


# --- uploads -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "status", "kept"), [
    (GRANULE, 308, GRANULE), (2 * GRANULE, 308, 2 * GRANULE), (GRANULE + 1, 308, GRANULE), (3 * GRANULE - 1, 308, 2 * GRANULE),
    (GRANULE - 1, 400, None), (1, 400, None),
])  # fmt: skip
async def test_a_chunk_that_is_not_the_last_has_at_least_256_kib_and_whole_multiples_are_kept(
    raw: RawClient, size: int, status: int, kept: int | None
) -> None:
    """Google's words: "required to be equal or greater than 262144, except for the final request (it's recommended to
    be the exact multiple of 262144)". gcsfs sends what was not kept again.
    """
    for total in ("*", "9999999"):
        session = await raw.start("a")
        answer = await raw.put_range(session, f"bytes 0-{size - 1}/{total}", b"x" * size)
        assert (answer.status, answer.headers.get("Range")) == (status, kept and f"bytes=0-{kept - 1}")
        assert status != 400 or "equal or greater than 262144" in answer.json["error"]["message"]


async def test_the_last_chunk_may_have_any_size_and_what_was_not_kept_is_sent_again(raw: RawClient) -> None:
    payload, session = bytes(range(256)) * 2048 + b"end", await raw.start("a")
    answer = await raw.put_range(session, f"bytes 0-{GRANULE + 99}/*", payload[: GRANULE + 100])
    after = int(answer.headers["Range"].rpartition("-")[2]) + 1
    done = await raw.put_range(session, f"bytes {after}-{len(payload) - 1}/{len(payload)}", payload[after:])
    assert (done.status, (await raw.read("a")).body == payload) == (200, True)


async def test_a_client_to_which_308_is_a_redirect_is_told_otherwise_and_failed(raw: RawClient) -> None:
    """Google's client for Go asks for this."""
    session = await raw.start("a")
    for content_range, payload in ((f"bytes 0-{GRANULE - 1}/*", b"x" * GRANULE), ("bytes */*", b"")):
        answer = await raw.put_range(session, content_range, payload, **{"X-GUploader-No-308": "yes"})
        assert (answer.status, answer.headers["X-HTTP-Status-Code-Override"]) == (200, "308")
        assert (answer.headers["Range"], answer.body) == (f"bytes=0-{GRANULE - 1}", b"")
    done = await raw.put_range(session, f"bytes {GRANULE}-{GRANULE}/{GRANULE + 1}", b"y", **{"X-GUploader-No-308": "yes"})
    assert (done.status, done.headers.get("X-HTTP-Status-Code-Override"), done.json["size"]) == (200, None, str(GRANULE + 1))


async def test_what_a_session_was_told_to_expect_counts(raw: RawClient) -> None:
    answer = await raw.send("POST", uploads("resumable", "a"), b"", X_Upload_Content_Type="image/png", X_Upload_Content_Length="5")
    assert answer.headers["X-GUploader-UploadID"] in answer.headers["Location"]
    assert (await raw.put_range(answer.headers["Location"], "bytes 0-5/6", b"sixsix")).status == 400
    assert (await raw.put_range(answer.headers["Location"], "bytes 0-4/5", b"five5")).json["contentType"] == "image/png"


MD5_OF_MEDIA = base64.b64encode(hashlib.md5(b"media").digest()).decode()
PARTS = "--{0}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{1}\r\n--{0}\r\nContent-Type: text/plain\r\n\r\nmedia\r\n--{0}--"


@pytest.mark.parametrize("content_type", [
    "multipart/related; boundary={}", 'multipart/related; boundary="{}"', "multipart/related; type=x; boundary={}; charset=utf-8",
    'Multipart/Related; Boundary="{}"', "multipart/form-data; boundary={}",
])  # fmt: skip
@pytest.mark.parametrize("boundary", ["b", "===============7330845974216740156==", "'()+_,-./:=?", "-------------905191404154"])
async def test_a_multipart_upload_may_have_any_boundary(raw: RawClient, content_type: str, boundary: str) -> None:
    if "{}" in content_type.replace('"{}"', "") and not boundary.replace("-", "").isalnum():
        content_type = content_type.replace("{}", '"{}"')  # what is no token must be quoted
    for end in ("", "\r\n", "\r\nepilogue"):
        body = PARTS.format(boundary, json.dumps({"name": "größe", "md5Hash": MD5_OF_MEDIA})) + end
        answer = await raw.send("POST", uploads("multipart", ""), body.encode(), Content_Type=content_type.format(boundary))
        assert (answer.status, answer.json["name"], answer.json["contentType"]) == (200, "größe", "text/plain")


@pytest.mark.parametrize("head", ["", "x-other: 1\r\n", "content-type:text/plain\r\ncontent-transfer-encoding: binary\r\n"])
@pytest.mark.parametrize("media", ["", "media", "\r\n", "\r\n\r\nmedia\r\n\r\n"])
async def test_a_part_of_an_upload_may_have_no_headers_and_was_stored_empty(raw: RawClient, head: str, media: str) -> None:
    """gcloud-aio sends none if it was told no type."""
    body = f'--b\r\n\r\n{{"name": "a"}}\r\n--b\r\n{head}\r\n{media}\r\n--b--\r\n'
    answer = await raw.send("POST", uploads("multipart", ""), body, Content_Type="multipart/related; boundary=b")
    assert (answer.status, answer.json["contentType"]) == (200, "text/plain" if "plain" in head else "application/octet-stream")
    assert (await raw.read("a")).body == media.encode()


@pytest.mark.parametrize("resource", [{"crc32c": "AAAAAA=="}, {"md5Hash": "AAAAAAAAAAAAAAAAAAAAAA=="}, {"crc32c": "!"}])
@pytest.mark.parametrize("kind", ["multipart", "resumable"])
async def test_hashes_in_the_metadata_are_checked(raw: RawClient, resource: dict[str, str], kind: str) -> None:
    if kind == "multipart":
        body = PARTS.format("b", json.dumps(resource))
        answer = await raw.send("POST", uploads(kind, "a"), body, Content_Type="multipart/related; boundary=b")
    else:
        answer = await raw.put_range(await raw.start("a", resource), "bytes 0-4/5", b"media")
    assert answer.status == 400 and (await raw.send("GET", at("a"))).status == 404


@pytest.mark.parametrize(("path", "body"), [
    (uploads("media", "n" * 1025), b""), (uploads("media", "a\rb"), b""), (uploads("media", "."), b""), (uploads("resumable", ".."), b"{}"),
    (uploads("media", ".well-known/acme-challenge/x"), b""), (uploads("resumable", "a"), b'{"metadata": {"k": 1}}'),
    (uploads("resumable", "a"), b'{"storageClass": "WARM"}'), (uploads("other", "a"), b""),
])  # fmt: skip
async def test_what_an_upload_may_not_say_is_400(raw: RawClient, path: str, body: bytes) -> None:
    answer = await raw.send("POST", path, body)
    if answer.status == 200:  # a session, which says so at its end
        answer = await raw.put_range(answer.headers["Location"], "bytes */0")
    assert (answer.status, answer.json["error"]["errors"][0]["reason"]) == (400, "invalid")


async def test_custom_metadata_may_have_8_kib(raw: RawClient) -> None:
    for size, status in ((8191, 200), (8192, 400)):
        session = await raw.start("a", {"metadata": {"k": "v" * size}})
        assert (await raw.put_range(session, "bytes */0")).status == status


# --- rewrites ------------------------------------------------------------------------------------


async def test_a_rewrite_takes_as_many_calls_as_its_maximum_asks_for(raw: RawClient) -> None:
    await raw.put("a", io.BytesIO(b"x" * (3 * MIB - 5)))
    path, token, told = f"{at('a')}/rewriteTo/b/bucket/o/b?maxBytesRewrittenPerCall={MIB}", "", []
    while True:
        answer = (await raw.send("POST", path + token)).json
        told.append((answer["done"], answer["totalBytesRewritten"], answer["objectSize"], answer["kind"]))
        if answer["done"]:
            break
        token = f"&rewriteToken={answer['rewriteToken']}"
    size = str(3 * MIB - 5)
    assert told == [(done, str(count), size, "storage#rewriteResponse") for done, count in (
        (False, MIB), (False, 2 * MIB), (True, 3 * MIB - 5),
    )]  # fmt: skip
    assert answer["resource"]["size"] == size
    for wrong in ("maxBytesRewrittenPerCall=5", "rewriteToken=x", f"maxBytesRewrittenPerCall={MIB + 1}"):
        assert (await raw.send("POST", f"{at('a')}/rewriteTo/b/bucket/o/c?{wrong}")).status == 400


async def test_a_rewrite_changes_the_storage_class_and_a_patch_may_not(raw: RawClient) -> None:
    await raw.put("a")
    answer = await raw.send("POST", f"{at('a')}/rewriteTo/b/bucket/o/a", json.dumps({"storageClass": "NEARLINE"}))
    assert answer.json["resource"]["storageClass"] == "NEARLINE"
    assert (await raw.read("a")).headers["X-Goog-Storage-Class"] == "NEARLINE"
    assert (await raw.send("PATCH", at("a"), json.dumps({"storageClass": "COLDLINE"}))).status == 400
    await raw.put("b")
    assert (await raw.send("POST", composed("c"), sources("a", "b"))).status == 400, "of one class, says the page"


# --- listings ------------------------------------------------------------------------------------

STORED = ["a", "a.txt", "ab.txt", "b/c.txt", "b/c/d.txt", "b/", "é?.txt", "x[1]"]


@pytest.mark.parametrize(("glob", "found"), [
    ("*", ["a", "a.txt", "ab.txt", "x[1]", "é?.txt"]), ("**", STORED), ("*.txt", ["a.txt", "ab.txt", "é?.txt"]), ("?.txt", ["a.txt"]),
    ("**.txt", ["a.txt", "ab.txt", "b/c.txt", "b/c/d.txt", "é?.txt"]), ("b/*", ["b/", "b/c.txt"]), ("b/**", ["b/", "b/c.txt", "b/c/d.txt"]),
    ("[ab].txt", ["a.txt"]), ("[!b]b*", ["ab.txt"]), ("{a,ab}.txt", ["a.txt", "ab.txt"]), ("b/c{,/d}.txt", ["b/c.txt", "b/c/d.txt"]),
    ("none*", []), ("x[[]1]", ["x[1]"]), ("[^a-z]?.*", ["é?.txt"]),
])  # fmt: skip
async def test_a_glob_lists_what_it_matches(raw: RawClient, glob: str, found: list[str]) -> None:
    for name in STORED:
        await raw.put(name)
    listed, query = [], {"matchGlob": glob, "maxResults": "2", "pageToken": ""}
    while True:
        page = await raw.list(**query)
        listed += [each["name"] for each in page.get("items", [])]
        if "nextPageToken" not in page:
            break
        query["pageToken"] = page["nextPageToken"]
    assert listed == sorted(found, key=str.encode)


async def test_a_glob_that_makes_no_sense_is_400(raw: RawClient) -> None:
    for query in ("matchGlob={a", "matchGlob=a}", "matchGlob=[z-a]", "matchGlob=a&pageToken=-1", "versions=true&pageToken=x&matchGlob=a"):
        assert (await raw.send("GET", f"{OBJECTS}?{query}")).status == 400


@pytest.mark.parametrize("kind", ["versions", "softDeleted"])
async def test_versions_and_soft_deleted_objects_are_grouped_by_a_delimiter(raw: RawClient, emptied: GcsEmulator, kind: str) -> None:
    if kind == "versions":
        emptied.buckets["bucket"].settings["versioning"] = {"enabled": True}
    for name in ("a", "b/1", "b/2", "b/", "c"):
        await raw.put(name)
        await raw.put(name)
        await raw.send("DELETE", at(name))
    found, query = [], {kind: "true", "delimiter": "/", "maxResults": "2"}
    while True:
        page = await raw.list(**query)
        found.append([*page.get("prefixes", []), *(each["name"] for each in page.get("items", []))])
        if "nextPageToken" not in page:
            break
        query["pageToken"] = page["nextPageToken"]
    assert found == [["a", "a"], ["b/", "c"], ["c"]]
    beside = await raw.list(**{kind: "true", "delimiter": "/", "includeTrailingDelimiter": "true"})
    assert [each["name"] for each in beside["items"]] == ["a", "a", "b/", "b/", "c", "c"]


async def test_folders_as_prefixes_are_the_prefixes(raw: RawClient) -> None:
    for name in ("a", "b/c"):
        await raw.put(name)
    assert (await raw.list(delimiter="/", includeFoldersAsPrefixes="true"))["prefixes"] == ["b/"]
    assert (await raw.send("GET", f"{OBJECTS}?includeFoldersAsPrefixes=true")).status == 400


# --- buckets and errors --------------------------------------------------------------------------


async def test_an_update_of_a_bucket_replaces_its_settings(raw: RawClient) -> None:
    await raw.send("PATCH", BUCKET, json.dumps({"labels": {"k": "v"}, "versioning": {"enabled": True}}))
    updated = (await raw.send("PUT", BUCKET, json.dumps({"labels": {"l": "w"}}))).json
    assert (updated["labels"], "versioning" in updated, updated["metageneration"], updated["location"]) == ({"l": "w"}, False, "3", "US")
    assert (await raw.send("PUT", BUCKET, json.dumps({"name": "other"}))).json["name"] == "bucket"
    tag = (await raw.send("GET", BUCKET)).json["etag"]
    assert [(await raw.send("GET", BUCKET, **{"If-None-Match": each})).status for each in (tag, "x")] == [304, 200]


@pytest.mark.parametrize("settings", [
    {"lifecycle": 5}, {"lifecycle": {"rule": 5}}, {"lifecycle": {"rule": [5]}}, {"lifecycle": {"rule": [{"action": 5}]}}, {"versioning": 5},
    {"softDeletePolicy": 5}, {"softDeletePolicy": {"retentionDurationSeconds": "x"}}, {"storageClass": 5},
])  # fmt: skip
async def test_settings_of_a_bucket_that_make_no_sense_are_400_and_change_nothing(raw: RawClient, settings: dict[str, Any]) -> None:
    """Most of them broke the server."""
    before = (await raw.send("GET", BUCKET)).json
    for method, path in (("PATCH", BUCKET), ("PUT", BUCKET), ("POST", "/storage/v1/b")):
        assert (await raw.send(method, path, json.dumps({"name": "new", **settings}))).status == 400
    assert (await raw.send("GET", BUCKET)).json == before


async def test_what_is_no_header_is_sent_as_near_as_can_be(raw: RawClient) -> None:
    await raw.put("a")
    await raw.send("PATCH", at("a"), json.dumps({"metadata": {"k": "v\r\nw"}, "contentType": "a\nb"}))
    read = await raw.send("GET", "/bucket/a")
    assert (read.status, read.headers["x-goog-meta-k"], read.headers["Content-Type"]) == (200, "v  w", "a b")


async def test_buckets_are_listed_in_pages(raw: RawClient, emptied: GcsEmulator) -> None:
    for name in ("abc", "def"):
        emptied.create_bucket(name)
    first = (await raw.send("GET", "/storage/v1/b?project=p&maxResults=2")).json
    rest = (await raw.send("GET", f"/storage/v1/b?project=p&pageToken={first['nextPageToken']}")).json
    assert [each["name"] for page in (first, rest) for each in page["items"]] == ["abc", "bucket", "def"]


@pytest.mark.parametrize(("method", "path", "body", "status", "reason"), [
    ("GET", at("none"), b"", 404, "notFound"), ("GET", "/storage/v1/b/none/o", b"", 404, "notFound"),
    ("GET", at("a") + "?alt=media", b"", 416, "requestedRangeNotSatisfiable"), ("DELETE", BUCKET, b"", 409, "conflict"),
    ("POST", "/storage/v1/b", b'{"name": "bucket"}', 409, "conflict"), ("POST", uploads("media", ""), b"", 400, "required"),
    ("PATCH", at("a"), b"{", 400, "parseError"), ("PATCH", at("a"), b'{"metadata": 7}', 400, "invalid"),
    ("PUT", OBJECTS, b"", 405, "methodNotAllowed"), ("GET", f"{at('a')}/acl", b"", 501, "notImplemented"),
    ("POST", f"{OBJECTS}/watch", b"{}", 501, "notImplemented"), ("POST", at("a"), b"", 405, "methodNotAllowed"),
])  # fmt: skip
async def test_a_refusal_has_googles_form(raw: RawClient, method: str, path: str, body: bytes, status: int, reason: str) -> None:
    await raw.put("a")
    answer = await raw.send(method, path, body, **({"Range": "bytes=99-"} if status == 416 else {}))
    error = answer.json["error"]
    assert (answer.status, error["code"]) == (status, status)
    [first] = error["errors"]
    assert (first["reason"], first["domain"], first["message"]) == (reason, "global", error["message"])
    assert answer.headers["Content-Type"] == "application/json; charset=UTF-8"
