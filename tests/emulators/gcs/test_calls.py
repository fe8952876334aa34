"""What GCS's APIs take and answer, as Google's pages and clients say it: a table of calls, by plain HTTP.

Each row is a few calls, one after the other, on an empty bucket. `$1` is the first generation that was told, `$2` the
second; `$at` the address of the session that was begun last.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from emulators.gcs.server import GcsEmulator
from tests.given.raw_gcs import Answered, RawClient, at, crc32c, refused, uploads, xml_texts

pytestmark = pytest.mark.asyncio(loop_scope="module")

GRANULE, MIB = 256 * 1024, 1024 * 1024
BUCKETS, BUCKET, OBJECTS = "/storage/v1/b", "/storage/v1/b/bucket", "/storage/v1/b/bucket/o"
TEN = b"0123456789"


def md5(payload: bytes) -> str:
    return base64.b64encode(hashlib.md5(payload).digest()).decode()


def tag(payload: bytes) -> str:
    return f'"{hashlib.md5(payload).hexdigest()}"'


@dataclass(frozen=True)
class GcsCall:
    """`ask`: "GET /path". `told`: the body of the answer as bytes; the reason or code of a refusal; or what is under
    these keys of its JSON, and in these headers, which begin with a capital.
    """

    ask: str
    status: int = 200
    told: Any = field(default_factory=dict)
    body: Any = b""
    headers: dict[str, str] = field(default_factory=dict)

    async def make(self, raw: RawClient, known: dict[str, str]) -> Answered:
        ask, body, headers = self.ask, self.body, dict(self.headers)
        for name, value in known.items():
            ask, headers = ask.replace(name, value), {key: text.replace(name, value) for key, text in headers.items()}
            body = body.replace(name, value) if isinstance(body, str) else body
        method, _, path = ask.partition(" ")
        answer = await raw.send(method, path, io.BytesIO(body) if isinstance(body, bytes) and len(body) > MIB else body, **headers)
        assert answer.status == self.status, (ask, answer.status, answer.body)
        if isinstance(self.told, bytes):
            assert answer.body == self.told, ask
        elif isinstance(self.told, str):
            of_json = answer.headers["Content-Type"].startswith("application/json")
            told = answer.json["error"]["errors"][0]["reason"] if of_json else refused(answer)[1]
            assert told == self.told, ask
        else:
            shown = {key: answer.headers.get(key) if key[:1].isupper() else answer.json.get(key) for key in self.told}
            assert shown == {key: known.get(value, value) if isinstance(value, str) else value for key, value in self.told.items()}, ask
        return answer


def put(name: str, payload: Any = b"payload", status: int = 200, told: Any = None, query: str = "", **headers: str) -> GcsCall:
    return GcsCall(f"POST {uploads('media', name)}{query and f'&{query}'}", status, told or {}, payload, headers)


def read(name: str, payload: Any, status: int = 200, query: str = "", **headers: str) -> GcsCall:
    return GcsCall(f"GET {at(name)}?alt=media{query and f'&{query}'}", status, payload, b"", headers)


def patch(name: str, status: int, told: Any = None, **change: Any) -> GcsCall:
    return GcsCall(f"PATCH {at(name)}", status, told or {}, json.dumps(change))


def begin(status: int = 200, query: str = "", **resource: Any) -> GcsCall:
    return GcsCall(f"POST {uploads('resumable', 'a')}{query and f'&{query}'}", status, {}, json.dumps(resource))


def chunk(content_range: str, payload: bytes, status: int, told: Any = None, **headers: str) -> GcsCall:
    return GcsCall("PUT $at", status, told or {}, payload, {"Content-Range": f"bytes {content_range}", **headers})


def listed(query: str, *names: str) -> GcsCall:
    found = [{"name": name} for name in names] or None
    return GcsCall(f"GET {OBJECTS}?fields=items(name)&{query}", 200, {"items": found})


def composed(status: int, body: Any, query: str = "") -> list[GcsCall]:
    """Of two objects; what is refused makes nothing."""
    return [put("a", b"aaa"), put("b", b"b"), GcsCall(f"POST {at('c')}/compose{query}", status, {}, body),
            GcsCall(f"GET {at('c')}", 200 if status == 200 else 404)]  # fmt: skip


def sources(*named: str | dict[str, Any], **destination: Any) -> str:
    return json.dumps({"sourceObjects": [{"name": each} if isinstance(each, str) else each for each in named], "destination": destination})


KEPT, SPOILT = {"Range": f"bytes=0-{GRANULE - 1}"}, "invalid"
RELATED = {"Content-Type": 'multipart/related; boundary="edge"'}
SOME_RESOURCE = {"metadata": {"k": "größe"}, "customTime": "2030-01-02T03:04:05.678Z", "contentEncoding": "zstd"}
ANY_BYTES = b"\r\n--edge \r\n\r\n--edg" + bytes(range(256))


PARTS = "--{0}\r\n\r\n{1}\r\n--{0}\r\n{2}\r\nmedia\r\n--{0}--\r\nepilogue"


def multipart(media: bytes, newline: bytes, resource: dict[str, Any], edge: bytes = b"--edge") -> bytes:
    lines = [edge, b"Content-Type: application/json", b"", json.dumps(resource).encode(), b"--edge", b"Content-Type: image/png", b"", media]
    return newline.join([*lines, b"--edge--"])


def related(name: str, body: bytes, status: int = 200) -> GcsCall:
    return GcsCall(f"POST {uploads('multipart', name)}", status, {}, body, RELATED)


CALLS: dict[str, list[GcsCall]] = {
    # --- one request
    "a media upload is described in its answer, and read back": [
        put("a", told={"name": "a", "bucket": "bucket", "size": "7", "contentType": "text/plain", "metageneration": "1",
                       "crc32c": crc32c(b"payload"), "md5Hash": md5(b"payload")}, Content_Type="text/plain"),
        GcsCall(f"GET {at('a')}", 200, {"generation": "$1", "contentType": "text/plain"}),
        *(GcsCall(f"GET {start}{at('a')}?alt=media", 206, {
            "X-Goog-Generation": "$1", "X-Goog-Metageneration": "1", "X-Goog-Stored-Content-Length": "7", "Content-Type": "text/plain",
            "X-Goog-Hash": f"crc32c={crc32c(b'payload')},md5={md5(b'payload')}",
        }, headers={"Range": "bytes=1-2"}) for start in ("", "/download")),
    ],
    "a multipart upload stores its metadata, and any bytes": [
        related("a", multipart(ANY_BYTES, b"\r\n", SOME_RESOURCE)),
        GcsCall(f"GET {at('a')}", 200, {**SOME_RESOURCE, "contentType": "image/png"}),
        read("a", ANY_BYTES, Accept_Encoding="zstd"),
    ],
    "how its first line ends says how the others do, as gcsfs sends them": [
        *(call for media in (b"", b"\r", b"a\r\n--edge--\r\n", b"\r\n--edge\r\n\r\n", bytes(range(256)))
          for call in (related("a", multipart(media, b"\n", {})), read("a", media))),
        related("b", multipart(b"x", b"\n", {}, b"--edge\r"), 400),
    ],
    "an upload is refused by its precondition, and changes nothing": [
        put("a", b"first", query="ifGenerationMatch=0"), put("a", b"x", 412, "conditionNotMet", "ifGenerationMatch=0"),
        put("a", b"second", query="ifGenerationMatch=$1"), put("a", b"x", 412, query="ifGenerationMatch=$1"),
        put("b", b"x", 412, query="ifGenerationMatch=7"), put("a", b"x", 412, query="ifMetagenerationMatch=2"), read("a", b"second"),
    ],
    "a wrong checksum is 400, and no object": [
        *(put("a", b"payload", 400, X_Goog_Hash=text.format(crc32c(b"other"))) for text in ("crc32c={}", "md5=AAAA,crc32c={}", "md5=?")),
        put("a", b"payload", 400, Content_MD5=md5(b"other")), GcsCall(f"GET {at('a')}", 404, "notFound"),
        put("a", X_Goog_Hash=f"crc32c={crc32c(b'payload')}", Content_MD5=md5(b"payload")),
    ],
    "a body is stored as it came, and unpacked for who does not take gzip": [
        put("a", b"not really gzip", query="contentEncoding=gzip"), read("a", b"not really gzip"),
        put("a", gzip.compress(TEN, mtime=0), query="contentEncoding=gzip"),
        read("a", gzip.compress(TEN, mtime=0)[:4], 206, Accept_Encoding="gzip, deflate", Range="bytes=0-3"),
        read("a", TEN, Accept_Encoding="identity", Range="bytes=0-3"),
        read("a", {"Content-Encoding": None, "X-Goog-Stored-Content-Encoding": "gzip"}, Accept_Encoding="identity"),
        patch("a", 200, cacheControl="no-transform"), read("a", gzip.compress(TEN, mtime=0), Accept_Encoding="identity"),
    ],
    "a multipart upload may have any boundary, a part without headers, and hashes, which are checked": [
        *(GcsCall(f"POST {uploads('multipart', '')}", status, told, PARTS.format(edge, json.dumps({"name": "a", **hashes}), head), {
            "Content-Type": f'Multipart/Related; type=x; Boundary="{edge}"; charset=utf-8'}) for edge, head, hashes, status, told in (
                ("'()+_,-./:=?", "Content-Type: text/plain\r\n", {"md5Hash": md5(b"media")}, 200, {"contentType": "text/plain"}),
                ("===7330845974216740156==", "", {}, 200, {"contentType": "application/octet-stream"}),
                ("b", "", {"crc32c": "AAAAAA=="}, 400, "invalid"), ("b", "", {"md5Hash": md5(b"x")}, 400, "invalid"))),
        read("a", b"media"), begin(crc32c="AAAAAA=="), chunk("0-4/5", b"media", 400), begin(storageClass="WARM"), chunk("*/0", b"", 400),
    ],
    "an upload that makes no sense": [
        *(GcsCall(f"POST /upload/storage/v1/b/bucket/o?{query}", 400, {}, b'{"name": "\\ud800"}') for query in (
            "uploadType=media&name=%FF", "uploadType=other&name=a", "uploadType=media", "uploadType=multipart&name=a",
            "uploadType=resumable&name=a")),
        GcsCall("POST /batch/storage/v1", 400), listed(""),
    ],
    # --- a session
    "a session takes chunks, and becomes visible with the last": [
        begin(contentType="text/plain"), chunk("*/*", b"", 308, {"Range": None}), chunk(f"0-{GRANULE - 1}/*", b"x" * GRANULE, 308, KEPT),
        chunk(f"*/{GRANULE + 1}", b"", 308, KEPT), listed(""),
        chunk(f"{GRANULE - 9}-{GRANULE}/{GRANULE + 1}", b"z" * 9 + b"y", 200, {"contentType": "text/plain"}),
        chunk("*/*", b"", 200, {"generation": "$1"}), read("a", b"x" * GRANULE + b"y"),
    ],
    "an empty object is finalised by its size": [begin(), chunk("*/0", b"", 200, {"size": "0"}), read("a", b"")],
    "of a chunk that is not the last, whole multiples of 256 KiB are kept": [
        *(call for size, kept in ((GRANULE, 1), (2 * GRANULE, 2), (GRANULE + 1, 1), (3 * GRANULE - 1, 2)) for total in ("*", "9999999")
          for call in (begin(), chunk(f"0-{size - 1}/{total}", b"x" * size, 308, {"Range": f"bytes=0-{kept * GRANULE - 1}"}))),
    ],
    "a chunk below 256 KiB that is not the last spoils its session, and that stays": [
        *(call for size in (1, GRANULE - 1) for call in (
            begin(), chunk(f"0-{GRANULE - 1}/*", b"x" * GRANULE, 308), chunk(f"{GRANULE}-{GRANULE + size - 1}/*", b"y" * size, 400, SPOILT),
            chunk(f"{GRANULE}-{2 * GRANULE - 1}/*", b"y" * GRANULE, 400, SPOILT), chunk("*/*", b"", 400), GcsCall("DELETE $at", 499))),
        listed(""),
    ],
    "what would leave a gap is refused, and what its body belies; the session goes on": [
        begin(), chunk("5-9/10", b"world", 400), chunk("0-4/5", b"six666", 400), chunk("0-4/5", b"four", 400),
        GcsCall("PUT $at", 400, {}, b"five5", {"Content-Range": "nonsense"}), listed(""), chunk("0-4/5", b"five5", 200),
    ],
    "the total of a session can not change, nor what it was told to expect": [
        begin(), chunk(f"0-{GRANULE - 1}/{GRANULE + 5}", b"x" * GRANULE, 308),
        chunk(f"{GRANULE}-{GRANULE + 5}/{GRANULE + 6}", b"y" * 6, 400),
        GcsCall(f"POST {uploads('resumable', 'a')}", 200, {}, b"", {"X-Upload-Content-Type": "image/png", "X-Upload-Content-Length": "5"}),
        chunk("0-5/6", b"sixsix", 400), chunk("0-4/5", b"five5", 200, {"contentType": "image/png"}),
    ],
    "a cancelled session can never be finalised": [
        begin(), chunk(f"0-{GRANULE - 1}/*", b"x" * GRANULE, 308), GcsCall("DELETE $at", 499),
        chunk(f"{GRANULE}-{GRANULE}/{GRANULE + 1}", b"y", 410), chunk(f"*/{GRANULE}", b"", 410), chunk("0-0/1", b"z", 410),
        GcsCall("DELETE $at", 410), listed(""),
    ],
    "cancelling after the end keeps the object": [
        begin(), chunk("0-2/3", b"abc", 200), GcsCall("DELETE $at", 404), read("a", b"abc"), GcsCall("PUT $at0", 404),
    ],
    "the precondition of a session is looked at when it begins and when it is finalised": [
        begin(query="ifGenerationMatch=0"), put("a", b"another"), chunk("0-2/3", b"abc", 412), read("a", b"another"),
        begin(412, "ifGenerationMatch=0"),
    ],
    "the final request of a session may bring checksum and metadata": [
        begin(metadata={"early": "1"}), chunk("0-2/3", b"abc", 400, X_Goog_Hash=f"crc32c={crc32c(b'abd')}"), chunk("*/3", b"", 410),
        begin(metadata={"early": "1"}),
        chunk("0-2/3", b"abc", 200, {"metadata": {"early": "1", "late": "2"}}, X_Goog_Hash=f"crc32c={crc32c(b'abc')}",
            X_Goog_Meta_Late="2"),
        begin(metadata={"k": "x" * 8192}), chunk("*/0", b"", 400),
    ],
    # --- reads
    "a range is answered as HTTP has it": [
        put("a", TEN), *(read("a", body, 206, Range=f"bytes={wanted}") for wanted, body in (
            ("2-4", b"234"), ("7-", b"789"), ("-3", b"789"), ("8-99", b"89"), ("-99", TEN))),
        *(read("a", {"Content-Range": f"bytes {told}/10"}, 206, Range=f"bytes={wanted}") for wanted,
            told in (("2-4", "2-4"), ("-3", "7-9"))),
        *(read("a", {"Content-Range": "bytes */10"}, 416, Range=f"bytes={wanted}") for wanted in ("10-", "-0")),
        read("a", TEN, Range="bytes=4-2"), read("a", TEN, Range="lines=1-2"),
        read("a", "requestedRangeNotSatisfiable", 416, Range="bytes=10-"),
    ],
    "where one may GET one may HEAD": [
        put("a", TEN), *(GcsCall(f"HEAD {path}", status) for path, status in (
            (at("a"), 200), (at("none"), 404), (at("none") + "?alt=media", 404), (BUCKET, 200), (f"{BUCKETS}/none", 404), (OBJECTS, 200),
            (at("a") + "?alt=media&ifGenerationMatch=1", 412), (at("a") + "?ifMetagenerationNotMatch=1", 304))),
        GcsCall(f"HEAD {at('a')}?alt=media", 206, {"Content-Length": "3", "Content-Range": "bytes 2-4/10"}, headers={"Range": "bytes=2-4"}),
    ],
    "reads heed the generation asked for, and fields": [
        put("a"), GcsCall(f"GET {at('a')}?generation=$1"), GcsCall(f"GET {at('a')}?generation=1", 404),
        GcsCall(f"GET {at('a')}?fields=name", 200, {"name": "a", "generation": None}),
    ],
    "reads heed tags, and a tag where one writes is lacking": [
        put("a"), *(GcsCall(f"GET {at('a')}{query}", status, {}, b"", {header: text}) for query in ("", "?alt=media") for header, text,
            status in (
            ("If-Match", "*", 200), ("If-Match", "x", 412), ("If-None-Match", "*", 304), ("If-None-Match", "x", 200))),
        GcsCall(f"GET {at('a')}", 501, "notImplemented", b"", {"If-Modified-Since": "Fri, 01 Jan 2100 00:00:00 GMT"}),
        *(GcsCall(f"{method} {path}", 501, {}, b"{}", {"If-Match": "x"}) for method, path in (
            ("PATCH", at("a")), ("DELETE", at("a")), ("POST", uploads("media", "a")))),
    ],
    # --- changes
    "a deletion is 204, then 404, and heeds the generation": [
        put("a"), GcsCall(f"DELETE {at('a')}?ifGenerationMatch=1", 412), GcsCall(f"DELETE {at('a')}?generation=1", 404),
        GcsCall(f"DELETE {at('a')}?ifGenerationMatch=$1", 204), GcsCall(f"DELETE {at('a')}", 404),
    ],
    "a patch merges metadata, and counts metagenerations": [
        put("a"), patch("a", 200, metadata={"a": "1", "b": "2"}),
        patch("a", 200, {"metadata": {"b": "2", "c": "3"}, "contentType": "image/png", "generation": "$1", "metageneration": "3"},
              metadata={"a": None, "c": "3"}, contentType="image/png"),
        GcsCall(f"PATCH {at('a')}?ifMetagenerationMatch=2", 412, {}, "{}"), GcsCall(f"PATCH {at('a')}", 400, "parseError", "nonsense"),
        patch("a", 400, "invalid", metadata=7), patch("a", 400, storageClass="COLDLINE"),
        patch("a", 200, {"metadata": None}, metadata=None),
    ],
    "a custom time moves only forward": [
        put("a"), patch("a", 200, {"customTime": "2030-01-01T00:00:00.000Z"}, customTime="2030-01-01T00:00:00Z"),
        patch("a", 200, {"customTime": "2030-01-01T00:00:00.000500Z"}, customTime="2030-01-01T00:00:00.0005+00:00"),
        *(patch("a", 400, customTime=time) for time in ("2029-12-31T23:59:59Z", None, "tomorrow")),
        GcsCall(f"GET {at('a')}", 200, {"customTime": "2030-01-01T00:00:00.000500Z"}),
    ],
    "a large rewrite takes several calls": [
        put("a", b"x" * 2 * MIB), GcsCall(f"POST {at('a')}/rewriteTo/b/bucket/o/b?maxBytesRewrittenPerCall={MIB}", 200, {
            "done": False, "totalBytesRewritten": str(MIB), "objectSize": str(2 * MIB)}),
        *(GcsCall(f"POST {at('a')}/rewriteTo/b/bucket/o/c?{wrong}", 400) for wrong in ("maxBytesRewrittenPerCall=5", "rewriteToken=x")),
        GcsCall(f"POST {at('a')}/rewriteTo/b/bucket/o/b?rewriteToken=$1.{MIB}", 200, {"done": True, "totalBytesRewritten": str(2 * MIB)}),
        read("b", b"x" * 2 * MIB),
    ],
    "a link to the bytes of an object is of one generation": [
        put("größe/a"), GcsCall(f"GET {OBJECTS}?fields=items(mediaLink)", 200),
        GcsCall(f"GET {at('größe/a')}?alt=media&generation=$1", 200, b"payload"),
        put("größe/a", b"newer"), GcsCall(f"GET /download{at('größe/a')}?generation=$1&alt=media", 404),
    ],
    # --- composites
    "a composite has the bytes, a crc32c, a count, and no md5": [
        *composed(200, sources("a", "b", "a", contentType="text/plain", metadata={"k": "v"})),
        GcsCall(f"GET {at('c')}", 200, {"size": "7", "componentCount": 3, "crc32c": crc32c(b"aaabaaa"), "md5Hash": None,
            "metadata": {"k": "v"}}),
        GcsCall(f"POST {at('c')}/compose?ifGenerationMatch=$3", 200, {"componentCount": 4}, sources("c", "b")), read("c", b"aaabaaab"),
        GcsCall(f"POST {at('c')}/rewriteTo/b/bucket/o/d"), GcsCall(f"GET {at('d')}", 200, {"componentCount": 4, "md5Hash": None}),
    ],
    **{f"composed of {str(body)[:60]}{query}": composed(status, body, query) for body, query, status in (
        (sources(*["a"] * 32), "", 200), (sources(*["a"] * 33), "", 400), (sources(), "", 400), ("{}", "", 400), ("[", "", 400),
        (sources({}), "", 400), (sources("none"), "", 404), (sources("a"), "?ifGenerationMatch=7", 412),
        (sources({"name": "a", "generation": "1"}), "", 404), (sources({"name": "a", "objectPreconditions": 5}), "", 400),
        (sources({"name": "a", "objectPreconditions": {"ifGenerationMatch": "1"}}), "", 412),
            (sources("a", customTime="tomorrow"), "", 400),
        (sources("a", kmsKeyName="k"), "", 501), (sources("a"), "?kmsKeyName=k", 501))},
    # --- listings and names
    "a listing is in the order of bytes, and keeps to prefix and offsets": [
        *(put(name) for name in ("b", "a/2", "a/10", "é", "\uffff", "😀", "a", "B")),
        listed("", "B", "a", "a/10", "a/2", "b", "é", "\uffff", "😀"), listed("prefix=a/", "a/10", "a/2"),
        listed("startOffset=a/2&endOffset=%C3%A9", "a/2", "b"), listed("prefix=none"),
        listed("delimiter=/", "B", "a", "b", "é", "\uffff", "😀"),
        GcsCall(f"GET {OBJECTS}?delimiter=/", 200, {"prefixes": ["a/"]}),
        GcsCall(f"GET {OBJECTS}?includeFoldersAsPrefixes=true", 400),
        *(GcsCall(f"GET {OBJECTS}?{query}", 400) for query in ("fields=items(name", "fields=)", "pageToken=!a", "maxResults=-1",
            "maxResults=x")),
    ],
    "a glob lists what it matches": [
        *(put(name) for name in ("a", "a.txt", "ab.txt", "b/", "b/c.txt", "b/c/d.txt", "x[1]")),
        listed("matchGlob=*", "a", "a.txt", "ab.txt", "x[1]"), listed("matchGlob=?.txt", "a.txt"), listed("matchGlob=b/*", "b/", "b/c.txt"),
        listed("matchGlob=**.txt", "a.txt", "ab.txt", "b/c.txt", "b/c/d.txt"), listed("matchGlob=none*"),
        *(GcsCall(f"GET {OBJECTS}?matchGlob={glob}", 501, "notImplemented") for glob in ("{a", "[a]", "a%5C*")),
        GcsCall(f"GET {OBJECTS}?matchGlob=a&pageToken=-1", 400),
    ],
    "any name is stored, listed, read and deleted as it is": [
        call for name in ("a#b?c=d&e", "a%2Fb", "a/../b", "../../etc/passwd", "a//b", "/a", "größe-日本", "🏳️‍🌈", "k" * 1024, "+=% ~", "o",
        "a\0b")
        for call in (put(name, name.encode(), told={"name": name}), listed("", name), read(name, name.encode()), patch(name, 200),
                     GcsCall(f"DELETE {at(name)}", 204), listed(""))
    ],
    "a name that the service refuses": [
        *(put(name, b"", 400) for name in ("", ".", "..", "a\nb", "k" * 1025, ".well-known/acme-challenge/x")),
        put("a/b"), GcsCall(f"GET {OBJECTS}/a/b", 404), GcsCall(f"GET {OBJECTS}/%FF", 400),
    ],
    # --- buckets and refusals
    "buckets are created, shown, changed, and deleted when empty": [
        GcsCall(f"POST {BUCKETS}?project=p", 200, {"labels": {"k": "v"}}, json.dumps({"name": "other", "labels": {"k": "v"}})),
        GcsCall(f"POST {BUCKETS}", 409, "conflict", '{"name": "other"}'), GcsCall(f"POST {BUCKETS}", 400, {}, '{"name": "No"}'),
        GcsCall(f"PATCH {BUCKETS}/other", 200, {"labels": None},
            json.dumps({"labels": None, "softDeletePolicy": {"retentionDurationSeconds": "0"}})),
        GcsCall(f"PUT {BUCKETS}/other?ifMetagenerationMatch=2", 200, {"metageneration": "3", "location": "US", "name": "other"},
            '{"name": "x"}'),
        *(GcsCall(f"{method} {BUCKETS}/other?ifMetagenerationMatch=2", 412, {}, b"{}") for method in ("GET", "PATCH", "PUT", "DELETE")),
        GcsCall(f"GET {BUCKETS}/other?ifMetagenerationNotMatch=3", 304),
        *(GcsCall(f"{method} {path}", 400, {}, json.dumps({"name": "new", **settings})) for settings in (
            {"lifecycle": 5}, {"lifecycle": {"rule": 5}}, {"lifecycle": {"rule": [5]}}, {"lifecycle": {"rule": [{"action": 5}]}},
            {"lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": {"numNewerVersions": 3}}]}}, {"versioning": 5},
            {"softDeletePolicy": {"retentionDurationSeconds": "x"}}, {"storageClass": 5},
        ) for method, path in (("PATCH", BUCKET), ("PUT", BUCKET), ("POST", BUCKETS))),
        GcsCall(f"GET {BUCKET}", 200, {"metageneration": "1", "lifecycle": None}),
        GcsCall(f"DELETE {BUCKETS}/other", 204), put("a"), GcsCall(f"DELETE {BUCKET}", 409, "conflict"),
    ],
    "a refusal has Google's form": [
        *(GcsCall(f"GET {path}", 404, "notFound") for path in (at("a"), f"{BUCKETS}/none/o/a", f"{BUCKETS}/none/o")),
        GcsCall(f"POST {at('a')}", 405, "methodNotAllowed"), GcsCall(f"PUT {OBJECTS}", 405, "methodNotAllowed"),
        GcsCall(f"GET {at('a')}/acl", 501, "notImplemented"), GcsCall(f"POST {OBJECTS}/watch", 501, "notImplemented"),
        put("", b"", 400, "required"),
    ],
    # --- the XML API
    "an object is put with all that headers say, and read back": [
        GcsCall("PUT /bucket/d/gr%C3%B6%C3%9Fe%20%231", 200, {"ETag": tag(TEN), "X-Goog-Metageneration": "1"}, TEN, {
            "Content-Type": "text/plain", "Content-Encoding": "zstd", "Cache-Control": "no-store", "x-goog-meta-Key": "v",
            "Content-MD5": md5(TEN),
            "x-goog-custom-time": "2030-01-01T00:00:00Z", "x-goog-storage-class": "NEARLINE", "x-goog-hash": f"crc32c={crc32c(TEN)}"}),
        *(GcsCall(f"{method} /bucket/d%2Fgr%C3%B6%C3%9Fe%20%231", 206, {
            "Content-Length": "3", "Content-Range": "bytes 2-4/10", "Content-Type": "text/plain", "Content-Encoding": "zstd",
            "Cache-Control": "no-store", "X-Goog-Meta-Key": "v", "X-Goog-Custom-Time": "2030-01-01T00:00:00.000Z", "ETag": tag(TEN),
            "X-Goog-Hash": f"crc32c={crc32c(TEN)},md5={md5(TEN)}", "X-Goog-Storage-Class": "NEARLINE", "X-Goog-Stored-Content-Length": "10",
        }, headers={"Range": "bytes=2-4"}) for method in ("GET", "HEAD")),
        GcsCall("GET /bucket/d/gr%C3%B6%C3%9Fe%20%231", 416, "InvalidRange", headers={"Range": "bytes=10-"}),
    ],
    "a put of the XML API that is refused changes nothing": [
        *(GcsCall("PUT /bucket/a", status, code, b"x", headers) for headers, status, code in (
            ({"Content-MD5": md5(b"y")}, 400, "BadDigest"), ({"x-goog-hash": f"crc32c={crc32c(b'y')}"}, 400, "BadDigest"),
            ({"Content-MD5": "?"}, 400, "InvalidDigest"), ({"x-goog-meta-k": "v" * 8192}, 400, "MetadataTooLarge"),
            ({"x-goog-storage-class": "WARM"}, 400, "InvalidStorageClass"), ({"x-goog-custom-time": "tomorrow"}, 400, "InvalidArgument"),
            ({"x-goog-if-generation-match": "7"}, 412, "PreconditionFailed"), ({"x-goog-if-generation-match": "x"}, 400, "InvalidArgument"),
            ({"x-goog-if-metageneration-match": "7"}, 412, "PreconditionFailed"), ({"x-goog-acl": "private"}, 501, "NotImplemented"),
            ({"x-goog-copy-source": "/bucket/b"}, 501, "NotImplemented"), ({"x-amz-tagging": "a=b"}, 501, "NotImplemented"),
            ({"If-None-Match": "*"}, 501, "NotImplemented"), ({"x-goog-encryption-algorithm": "AES256"}, 501, "NotImplemented"))),
        *(GcsCall(f"PUT /bucket/{name}", 400, {}, b"x") for name in ("n" * 1025, "a%0Ab", ".well-known/acme-challenge/x", "%FF")),
            listed(""),
    ],
    "an upload of several parts of an object that may not be is refused when it begins": [
        *(GcsCall("POST /bucket/a?uploads", 400, code, headers=headers) for headers, code in (
            ({"x-goog-custom-time": "tomorrow"}, "InvalidArgument"), ({"x-goog-storage-class": "WARM"}, "InvalidStorageClass"),
            ({"x-goog-meta-k": "v" * 8192}, "MetadataTooLarge"))),
        GcsCall("PUT /bucket/a?partNumber=1&uploadId=x", 501, "NotImplemented", headers={"x-goog-copy-source": "/bucket/a"}),
    ],
    "calls of the XML API heed generation, metageneration and tags": [
        GcsCall("PUT /bucket/a", 200, {}, b"1", {"x-goog-if-generation-match": "0"}),
        GcsCall("PUT /bucket/a", 412, "PreconditionFailed", b"x", {"x-goog-if-generation-match": "0"}),
        GcsCall("PUT /bucket/a", 200, {}, b"2", {"x-goog-if-generation-match": "$1", "x-goog-if-metageneration-match": "1"}),
        *(GcsCall(f"{method} /bucket/a", 412, "PreconditionFailed", headers=headers) for method in ("GET", "DELETE")
          for headers in ({"x-goog-if-generation-match": "$1"}, {"x-goog-if-metageneration-match": "2"})),
        *(GcsCall("GET /bucket/a", status, {}, b"", {header: text}) for header, text, status in (
            ("If-Match", tag(b"2"), 200), ("If-Match", '"y"', 412), ("If-None-Match", f'W/"z", {tag(b"2")}', 304),
                ("If-None-Match", "z", 200))),
        GcsCall("DELETE /bucket/a?generation=$1", 404, "NoSuchKey"),
        GcsCall("DELETE /bucket/a", 204, {}, b"", {"x-goog-if-generation-match": "$2"}), GcsCall("DELETE /bucket/a", 404, "NoSuchKey"),
    ],
    "what the XML API lacks here is said, and a refusal of it is a document": [
        *(GcsCall(ask, 501, "NotImplemented") for ask in (
            "GET /bucket?acl", "PUT /bucket/a?acl", "GET /bucket?versions", "PUT /bucket?lifecycle", "POST /bucket/a", "PATCH /bucket/a",
            "GET /bucket", "GET /", "PUT /other", "POST /bucket?delete", "PUT /bucket/a?compose",
                "GET /bucket?list-type=2&encoding-type=url")),
        GcsCall("POST /bucket/a", 501, "NotImplemented", headers={"x-goog-resumable": "start"}),
        *(GcsCall(f"{method} /none/a", 404, "NoSuchBucket") for method in ("GET", "PUT")),
            GcsCall("POST /none/a?uploads", 404, "NoSuchBucket"),
        GcsCall("GET /bucket/none", 404, {"Content-Type": "application/xml; charset=UTF-8"}),
    ],
    "what is no header is sent as near as can be": [
        put("a"), patch("a", 200, metadata={"k": "v\r\nw"}, contentType="a\nb"),
        GcsCall("GET /bucket/a", 200, {"X-Goog-Meta-K": "v  w", "Content-Type": "a b"}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("row", CALLS)
async def test_a_call_is_answered_as_google_does(raw: RawClient, row: str) -> None:
    known: dict[str, str] = {}
    for call in CALLS[row]:
        answer = await call.make(raw, known)
        generation = answer.headers.get("X-Goog-Generation")
        if answer.body and answer.headers["Content-Type"].startswith("application/json"):
            generation = answer.json.get("generation")
        if generation and generation not in known.values():
            known[f"${sum(key != '$at' for key in known) + 1}"] = generation
        if "Location" in answer.headers:
            known["$at"] = answer.headers["Location"]


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


@pytest.mark.parametrize("kind", ["live", "versions", "softDeleted"])
async def test_pages_lose_and_repeat_nothing(raw: RawClient, emptied: GcsEmulator, kind: str) -> None:
    if kind == "versions":
        emptied.buckets["bucket"].settings["versioning"] = {"enabled": True}
    for name in ("a", "b/1", "b/2", "b/", "c"):
        for _ in range(1 if kind == "live" else 2):
            await raw.put(name)
        if kind != "live":
            await raw.send("DELETE", at(name))
    found, query = [], {"delimiter": "/", "maxResults": "2", **({} if kind == "live" else {kind: "true"})}
    while True:
        page = await raw.list(**query)
        found.append([*page.get("prefixes", []), *(each["name"] for each in page.get("items", []))])
        if "nextPageToken" not in page:
            break
        query["pageToken"] = page["nextPageToken"]
    assert found == ([["b/", "a"], ["c"]] if kind == "live" else [["a", "a"], ["b/", "c"], ["c"]])
    emptied.buckets["bucket"].page_max = 1
    assert len((await raw.list(maxResults="1000"))["items" if kind == "live" else "kind"]) > 0, "a page may be shorter than asked for"
    assert (await raw.send("GET", f"{OBJECTS}?softDeleted=true&versions=true")).status == 400


async def test_a_bucket_is_listed_in_pages_by_the_xml_api(raw: RawClient) -> None:
    for name in ("a/1", "a/2", "b", "c&d", "d/e"):
        await raw.put(name)
    found, more = [], ""
    while True:
        page = await raw.send("GET", f"/bucket?list-type=2&max-keys=2&delimiter=/{more}")
        found.append([*xml_texts(page, "Prefix")[1:], *xml_texts(page, "Key")])
        if xml_texts(page, "IsTruncated") == ["false"]:
            break
        more = f"&continuation-token={xml_texts(page, 'NextContinuationToken')[0]}"
    assert found == [["a/", "b"], ["d/", "c&d"]]
    assert xml_texts(await raw.send("GET", "/bucket?list-type=2&start-after=a/2"), "Key") == ["b", "c&d", "d/e"]


async def test_a_batch_answers_each_call_by_itself(raw: RawClient) -> None:
    await raw.put("a/b?")
    calls = [f"DELETE {at('a/b?')}", f"DELETE {at('none')}", "GET /storage/v1/nothing", f"POST {uploads('media', 'x')}"]
    head = "--edge\r\nContent-Type: application/http\r\nContent-ID:"
    parts = [f"{head} <{n}>\r\n\r\n{call} HTTP/1.1\r\n\r\n" for n, call in enumerate(calls)]
    sent = {"Content_Type": "multipart/mixed; boundary=edge"}
    answer = await raw.send("POST", "/batch/storage/v1", "\r\n".join(parts) + "\r\n--edge--", **sent)
    assert [line for line in answer.body.decode().splitlines() if line.startswith(("HTTP/1.1", "Content-ID"))] == [
        "Content-ID: <response-0>", "HTTP/1.1 204 Status", "Content-ID: <response-1>", "HTTP/1.1 404 Status",
        "Content-ID: <response-2>", "HTTP/1.1 404 Status", "Content-ID: <response-3>", "HTTP/1.1 400 Status",
    ]  # fmt: skip
    assert await raw.list() == {"kind": "storage#objects"}
    too_many = "\r\n".join(parts[:1] * 101) + "\r\n--edge--"
    assert (await raw.send("POST", "/batch/storage/v1", too_many, **sent)).status == 400
