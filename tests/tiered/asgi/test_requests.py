"""Each method, with each header that asks for something, in each state: the status that RFC 9110 wants.

What is refused before a byte of the body is read is marked by where its status comes from: nothing was read then.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from tests.given.asked_app import AppAnswer, asked
from tests.given.signed_links import BASE_URL, LINKS
from tiered import Metadata, ObjectId, Settings
from tiered.asgi import LinkApp
from tiered.links import SignedLink
from tiered.multipart import SignedPut
from tiered.testing import memory_storage
from tiered.testing.in_memory import NOWHERE, MemoryStorage

pytestmark = pytest.mark.anyio
CAT = ObjectId.create("photos", "cat.jpg")
HOUR = timedelta(hours=1)
MEMORY = Settings(directory=NOWHERE, inline_bytes_max=100, links=LINKS)
PAYLOAD, OTHER = b"0123456789", b"something else"
ETAG = "ETAG"
"""Stands for the ETag of what is there, which is known only then."""
LONG_AGO, NEVER = "Tue, 03 Feb 1970 04:05:06 GMT", "Fri, 31 Dec 9999 23:59:59 GMT"


def md5(payload: bytes) -> str:
    return base64.b64encode(hashlib.md5(payload).digest()).decode()


def sha256(payload: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(payload).digest()).decode()}:"


SHA512 = f"sha-512=:{base64.b64encode(hashlib.sha512(PAYLOAD).digest()).decode()}:"

PUT: list[tuple[dict[str, str], int, int, int]] = [
    # the headers                                     no part yet, the part is there, the upload has ended
    ({}, 200, 200, 410),
    ({"Content-Type": "text/html"}, 200, 200, 410),
    ({"Range": "bytes=0-1"}, 200, 200, 410),  # 14.2: of GET alone
    ({"Accept-Encoding": "zstd"}, 200, 200, 410),
    # 14.5: a piece of a representation
    ({"Content-Range": "bytes 0-9/10"}, 400, 400, 400),
    ({"Content-Range": "bytes 0-4/*"}, 400, 400, 400),
    ({"Content-Range": "nonsense"}, 400, 400, 400),
    # 13.1: the conditions, of the part
    ({"If-None-Match": "*"}, 200, 412, 410),
    ({"If-None-Match": ETAG}, 200, 412, 410),
    ({"If-None-Match": f"W/{ETAG}"}, 200, 412, 410),
    ({"If-None-Match": '"other"'}, 200, 200, 410),
    ({"If-Match": "*"}, 412, 200, 410),
    ({"If-Match": ETAG}, 412, 200, 410),
    ({"If-Match": f"W/{ETAG}"}, 412, 412, 410),
    ({"If-Match": f'"other", {ETAG}'}, 412, 200, 410),
    ({"If-Match": '"other"'}, 412, 412, 410),
    ({"If-Match": ETAG, "If-None-Match": "*"}, 412, 412, 410),
    ({"If-Modified-Since": NEVER}, 200, 200, 410),  # of GET alone
    ({"If-Unmodified-Since": LONG_AGO}, 200, 200, 410),  # a part has no date
    ({"If-Range": '"other"'}, 200, 200, 410),
    # 8.4 and 15.5.16: it would be kept without its coding
    ({"Content-Encoding": "gzip"}, 415, 415, 415),
    ({"Content-Encoding": "aws-chunked"}, 415, 415, 415),
    ({"Content-Encoding": "Identity"}, 200, 200, 410),
    # 8.6 and 15.5.14
    ({"Content-Length": "10"}, 200, 200, 410),
    ({"Content-Length": "9"}, 400, 400, 410),
    ({"Content-Length": "11"}, 400, 400, 410),
    ({"Content-Length": "1001"}, 413, 413, 413),
    ({"Content-Length": "9" * 5000}, 413, 413, 413),
    # RFC 1864 and 9530
    ({"Content-MD5": md5(PAYLOAD)}, 200, 200, 410),
    ({"Content-MD5": md5(OTHER)}, 400, 400, 410),
    ({"Content-MD5": "nonsense"}, 400, 400, 400),
    ({"Content-Digest": sha256(PAYLOAD)}, 200, 200, 410),
    ({"Content-Digest": sha256(OTHER)}, 400, 400, 410),
    ({"Content-Digest": f"{SHA512}, {sha256(OTHER)}"}, 400, 400, 410),
    ({"Content-Digest": f"{SHA512}, {sha256(PAYLOAD)}"}, 200, 200, 410),
    ({"Content-Digest": SHA512}, 400, 400, 400),  # nobody would verify it
    ({"Content-Digest": "sha-256=:AAAA:"}, 400, 400, 400),
    ({"Content-Digest": ""}, 400, 400, 400),
    ({"Repr-Digest": sha256(OTHER)}, 400, 400, 410),
    ({"Repr-Digest": sha256(PAYLOAD), "Content-Digest": sha256(PAYLOAD)}, 200, 200, 410),
    ({"Repr-Digest": sha256(PAYLOAD), "Content-Digest": sha256(OTHER)}, 400, 400, 400),
]

GET: list[tuple[dict[str, str], int, int, int]] = [
    # the headers                                     the object is there, it was replaced, it was deleted
    ({}, 200, 410, 404),
    ({"If-Match": "*"}, 200, 410, 404),
    ({"If-Match": ETAG}, 200, 410, 404),
    ({"If-Match": '"other"'}, 412, 410, 404),
    ({"If-None-Match": "*"}, 304, 410, 404),
    ({"If-None-Match": ETAG}, 304, 410, 404),
    ({"If-None-Match": '"other"'}, 200, 410, 404),
    ({"If-Modified-Since": NEVER}, 304, 410, 404),
    ({"If-Unmodified-Since": LONG_AGO}, 412, 410, 404),
    ({"If-Match": ETAG, "If-None-Match": ETAG}, 304, 410, 404),
    ({"Content-Range": "bytes 0-4/*"}, 200, 410, 404),
    ({"Content-MD5": "nonsense"}, 200, 410, 404),
    ({"Content-Encoding": "gzip"}, 200, 410, 404),
]
RANGES: list[tuple[dict[str, str], int]] = [
    ({"Range": "bytes=0-1"}, 206), ({"Range": "bytes=9999-"}, 416), ({"Range": "bytes=0-1", "If-Match": "*"}, 206),
    ({"Range": "bytes=0-1", "If-Range": ETAG}, 206), ({"Range": "bytes=9999-", "If-Range": '"other"'}, 200),
    ({"Range": "bytes=0-1", "If-None-Match": ETAG}, 304), ({"Range": "nonsense"}, 200),
]  # fmt: skip


@pytest.fixture
async def store(anyio_backend: object) -> AsyncIterator[MemoryStorage]:
    async with memory_storage(MEMORY) as storage:
        yield storage


async def upload_in(store: MemoryStorage, state: str) -> tuple[SignedPut, str]:
    """An upload in a state, and the ETag of its part."""
    signed = await store.sign_put(CAT, HOUR, size_max=1000)
    if state == "no part yet":
        return signed, '"none"'
    etag = (await asked(LinkApp(lambda: store), "PUT", signed.url, body=[OTHER])).headers["etag"]
    if state == "completed":
        await signed.upload.complete()
    elif state == "given up":
        await signed.upload.abort()
    return signed, etag


def with_etag(headers: dict[str, str], etag: str) -> dict[str, str]:
    return {name: value.replace(ETAG, etag) for name, value in headers.items()}


@pytest.mark.parametrize("state", ["no part yet", "the part is there", "completed", "given up"])
async def test_a_put_does_what_its_headers_ask_for_or_says_that_it_does_not(store: MemoryStorage, state: str) -> None:
    for headers, *statuses in PUT:
        status = statuses[{"no part yet": 0, "the part is there": 1}.get(state, 2)]
        signed, etag = await upload_in(store, state)
        got = await asked(LinkApp(lambda: store), "PUT", signed.url, with_etag(headers, etag), [PAYLOAD[:4], PAYLOAD[4:]])
        assert got.status == status, (headers, got.body)
        assert not got.read or status in (200, 400), "it was read, only to be refused"
        if state in ("no part yet", "the part is there"):
            sizes = [part.size for part in await signed.upload.parts()]
            there = [] if state == "no part yet" else [len(OTHER)]
            assert sizes == ([len(PAYLOAD)] if status == 200 else there), headers
            await signed.upload.abort()
        assert (got.headers.get("etag") is not None) is (status == 200)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_get_does_what_its_headers_ask_for(store: MemoryStorage, method: str) -> None:
    app = LinkApp(lambda: store)
    for payload in (PAYLOAD, PAYLOAD * 100):
        rows = [*GET, *((headers, status if method == "GET" else 304 if status == 304 else 200, 410, 404) for headers, status in RANGES)]
        for headers, *statuses in rows:
            await store.put(CAT, payload)
            url = str(await store.sign_get(CAT, HOUR))
            etag = (await asked(app, "HEAD", url)).headers["etag"]
            told = with_etag(headers, etag)
            got = [(await asked(app, method, url, told)).status]
            await store.put(CAT, payload)
            got.append((await asked(app, method, url, told)).status)
            await store.delete(CAT)
            got.append((await asked(app, method, url, told)).status)
            assert got == statuses, headers


async def test_a_link_that_is_none_or_for_something_else_is_not_read(store: MemoryStorage) -> None:
    signed, _ = await upload_in(store, "no part yet")
    revision = (await store.put(CAT, PAYLOAD)).revision
    read = str(await store.sign_get(CAT, HOUR))
    assert store.links is not None
    of_no_part = store.links.sign(SignedLink("PUT", CAT, revision, store.clock.wall_ns() // 10**9 + 60))
    for method, url, status in (
        ("PUT", read, 403), ("PUT", f"{signed.url}x", 403), ("PUT", BASE_URL, 403), ("GET", signed.url, 403), ("HEAD", signed.url, 403),
        ("POST", signed.url, 405), ("PATCH", signed.url, 405), ("DELETE", read, 405), ("OPTIONS", read, 405), ("get", read, 405),
        ("PUT", of_no_part, 403), ("GET", of_no_part, 403),
    ):  # fmt: skip
        got = await asked(LinkApp(lambda: store), method, url, {"Content-Length": "10"}, [PAYLOAD])
        assert (got.status, got.read) == (status, 0), (method, url)
        assert got.headers.get("allow") == ("GET, HEAD, PUT" if status == 405 else None)
    store.clock.advance(2 * HOUR)
    got = await asked(LinkApp(lambda: store), "PUT", signed.url, {}, [PAYLOAD])
    assert (got.status, got.read, got.body) == (403, 0, b"the link has expired\n")


async def test_an_app_that_only_reads_takes_no_part_and_rings_nobody(store: MemoryStorage, caplog: pytest.LogCaptureFixture) -> None:
    signed, _ = await upload_in(store, "no part yet")
    store._may_write = False
    got = await asked(LinkApp(lambda: store), "PUT", signed.url, {}, [PAYLOAD])
    assert (got.status, got.headers["allow"], got.read) == (405, "GET, HEAD", 0)
    assert not caplog.records


async def test_what_a_policy_refuses_is_no_matter_of_time() -> None:
    policy: dict[str, Any] = {"object_bytes_max": 8}
    async with memory_storage(Settings(directory=NOWHERE, links=LINKS, usecases={"photos": policy})) as store:
        signed = await store.sign_put(CAT, HOUR)
        for headers in ({"Content-Length": "9"}, {}):
            got = await asked(LinkApp(lambda: store), "PUT", signed.url, headers, [b"123456789"])
            assert (got.status, got.body) == (413, b"a part of at most 8 bytes is taken\n")
            assert bool(got.read) is not bool(headers)


async def test_a_part_that_no_app_takes_is_too_large_whatever_its_link_says(store: MemoryStorage) -> None:
    signed = await store.sign_put(CAT, HOUR, size_max=200 << 20)
    got = await asked(LinkApp(lambda: store), "PUT", signed.url, {"Content-Length": str(150 << 20)}, [b"x"])
    assert (got.status, got.read, got.body) == (413, 0, b"a part of at most 134217728 bytes is taken\n")


# --- scripts of other sites ------------------------------------------------------------------------

SITE = "https://app.example.com"


def with_origins(*origins: str) -> Settings:
    return MEMORY.model_copy(update={"links": LINKS.model_copy(update={"origins": origins})})


CORS = [
    # origins of the settings, Origin of the request, what is allowed
    ((), SITE, None), ((SITE,), SITE, SITE), ((SITE, "https://b.example"), "https://b.example", "https://b.example"),
    ((SITE,), "https://evil.example", None), ((SITE,), "null", None), ((SITE,), f"{SITE}.evil.example", None), ((SITE,), None, None),
    (("*",), "https://any.example", "*"), (("*",), None, "*"),
]


@pytest.mark.parametrize(("origins", "origin", "allowed"), CORS)
async def test_scripts_use_links_as_the_settings_say(origins: tuple[str, ...], origin: str | None, allowed: str | None) -> None:
    async with memory_storage(with_origins(*origins)) as store:
        app, told = LinkApp(lambda: store), {} if origin is None else {"Origin": origin}
        await store.put(CAT, PAYLOAD)
        read, signed = str(await store.sign_get(CAT, HOUR)), await store.sign_put(CAT, HOUR)
        answers: list[AppAnswer] = [
            await asked(app, "GET", read, told), await asked(app, "GET", f"{read}x", told),
            await asked(app, "GET", read, {**told, "Range": "bytes=9999-"}),
            await asked(app, "PUT", signed.url, told, [PAYLOAD]), await asked(app, "POST", read, told),
            await asked(app, "OPTIONS", read, {**told, "Access-Control-Request-Method": "PUT"}),
        ]  # fmt: skip
        assert [got.status for got in answers] == [200, 403, 416, 200, 405, 204 if origins else 405]
        for got in answers:
            assert got.headers.get("access-control-allow-origin") == allowed
            assert ("ETag" in got.headers.get("access-control-expose-headers", "")) is (allowed is not None)
            assert got.headers.get("vary") == (None if not origins or "*" in origins else "Origin")
        if origins:
            assert answers[-1].headers["access-control-allow-methods"] == "GET, HEAD, PUT, OPTIONS"
            assert "Content-Type" in answers[-1].headers["access-control-allow-headers"]
            assert (await asked(app, "OPTIONS", BASE_URL)).headers["allow"] == "GET, HEAD, PUT, OPTIONS"


# --- what strangers have stored, in a browser ------------------------------------------------------


@pytest.mark.parametrize(
    ("content_type", "is_confined"),
    [
        ("text/html", True), ("text/html; charset=utf-8", True), ("TEXT/HTML", True), ("image/svg+xml", True), ("IMAGE/SVG+XML", True),
        ("application/xhtml+xml", True), ("text/xml", True), ("application/pdfx", True), ("x/y", True), ("text/plain", True),
        ("image/png", False), ("video/mp4", False), ("audio/mpeg", False), ("application/pdf", False),
    ],
)
async def test_what_may_be_a_document_runs_no_script_and_does_not_tell_its_link(
    store: MemoryStorage, content_type: str, is_confined: bool
) -> None:
    await store.put(CAT, PAYLOAD, Metadata(content_type=content_type))
    url = str(await store.sign_get(CAT, HOUR))
    for headers in ({}, {"Range": "bytes=0-1"}):
        got = await asked(LinkApp(lambda: store), "GET", url, headers)
        assert ("sandbox" in got.headers.get("content-security-policy", "")) is is_confined
        assert (got.headers.get("referrer-policy") == "no-referrer") is is_confined
    await store.put(CAT, PAYLOAD, Metadata(content_type="image/png"))
    url = str(await store.sign_get(CAT, HOUR, content_type=content_type))
    assert ("content-security-policy" in (await asked(LinkApp(lambda: store), "GET", url)).headers) is is_confined
