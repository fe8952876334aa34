"""LinkApp: what each request gets, over a store in memory. The same bytes of every backend are in tests/contracts/."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import ANY
from urllib.parse import quote

import anyio
import pytest

from tests.given.signed_links import BASE_URL, LINKS, client_of, opened
from tiered import (
    AtCapacityError,
    ConfigurationError,
    CorruptRecordError,
    DanglingTombstoneError,
    InvalidRequestError,
    Metadata,
    ObjectId,
    RateLimitedError,
    ServiceAwayError,
    Settings,
    TimeToLive,
    UnavailableError,
)
from tiered.asgi import LinkApp
from tiered.links import SignedLink
from tiered.metadata import no_metadata
from tiered.testing import memory_storage
from tiered.testing.blobs import MemoryBlobs
from tiered.testing.in_memory import NOWHERE, MemoryStorage

pytestmark = pytest.mark.anyio
CAT = ObjectId.create("photos", "2026/a cat ü.jpg", {"org": "17"})
SMALL, LARGE = b"0123456789", bytes(range(256)) * 3_000
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
NEVER = "Fri, 31 Dec 9999 23:59:59 GMT"
MEMORY = Settings(directory=NOWHERE, inline_bytes_max=100, links=LINKS)


@pytest.fixture
async def store(anyio_backend: object) -> AsyncIterator[MemoryStorage]:
    async with memory_storage(MEMORY) as storage:
        yield storage


async def link(store: MemoryStorage, payload: bytes = SMALL, object_id: ObjectId = CAT, **how: Any) -> str:
    await store.put(object_id, payload, Metadata(content_type="image/jpeg"))
    url = await store.sign_get(object_id, HOUR, **how)
    assert url is not None
    return url


async def test_a_link_shows_the_object(store: MemoryStorage) -> None:
    for payload in (SMALL, LARGE, b""):
        url = await link(store, payload)
        got = await opened(store, url)
        head = await store.head(CAT)
        assert head is not None and head.metadata.time_created is not None
        assert (got.status_code, got.content) == (200, payload)
        assert dict(got.headers) == {
            "content-type": "image/jpeg", "content-length": str(len(payload)), "etag": f'"{head.revision}"', "accept-ranges": "bytes",
            "content-disposition": "inline; filename=\"a cat _.jpg\"; filename*=UTF-8''a%20cat%20%C3%BC.jpg",
            "cache-control": "private", "x-content-type-options": "nosniff",
            "last-modified": head.metadata.time_created.strftime("%a, %d %b %Y %H:%M:%S GMT"),
        }  # fmt: skip


async def test_a_link_is_good_for_no_less_than_was_asked(store: MemoryStorage) -> None:
    await store.put(CAT, SMALL)
    began_ns = store.clock.wall_ns()
    url = await store.sign_get(CAT, timedelta(seconds=1))
    assert store.links is not None and url is not None
    link = store.links.read(url.rpartition("/")[2])
    assert link is not None and began_ns + 10**9 <= link.expires_s * 10**9 < store.clock.wall_ns() + 2 * 10**9


async def test_a_link_says_how_the_object_is_answered(store: MemoryStorage) -> None:
    url = await link(store, content_type="text/plain; charset=utf-8", disposition="attachment")
    got = await opened(store, url)
    assert got.headers["content-type"] == "text/plain; charset=utf-8"
    assert got.headers["content-disposition"].startswith("attachment; ")


async def test_a_file_name_that_was_percent_encoded_is_told_as_it_was(store: MemoryStorage) -> None:
    await store.put(CAT, SMALL, Metadata(filename=quote("Übersicht 1.pdf")))
    got = await opened(store, str(await store.sign_get(CAT, HOUR)))
    assert got.headers["content-disposition"] == "inline; filename=\"_bersicht 1.pdf\"; filename*=UTF-8''%C3%9Cbersicht%201.pdf"


async def raw_of(store: MemoryStorage, url: str | None, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """The answer as it came: a client may decode what it did not ask for."""
    told = {"Accept-Encoding": "identity"} | {name.replace("_", "-"): value for name, value in headers.items()}
    async with client_of(store) as client, client.stream(method, str(url), headers=told) as got:
        return got.status_code, dict(got.headers), b"".join([chunk async for chunk in got.aiter_raw()])


@pytest.mark.parametrize("payload", [bytes(1000), LARGE], ids=["in the row", "a blob"])
async def test_who_takes_zstd_gets_what_is_stored_and_others_what_was_compressed(store: MemoryStorage, payload: bytes) -> None:
    await store.put(CAT, payload, compress="zstd")
    stored = await store.get(CAT, decompress=False)
    assert stored is not None
    compressed, url = await stored.read(), await store.sign_get(CAT, HOUR)
    etags = {}
    for accepted, body, told in (
        ("gzip, zstd", compressed, ("zstd", str(len(compressed)), "bytes")), ("gzip", payload, (None, None, "none")),
        ("zstd;q=0", payload, (None, None, "none")),
    ):  # fmt: skip
        status, headers, got = await raw_of(store, url, Accept_Encoding=accepted)
        assert (status, got, headers["vary"]) == (200, body, "Accept-Encoding")
        assert tuple(map(headers.get, ("content-encoding", "content-length", "accept-ranges"))) == told
        assert await raw_of(store, url, "HEAD", Accept_Encoding=accepted) == (200, headers, b"")
        etags[told[0]] = headers["etag"]
        status, headers, got = await raw_of(store, url, Accept_Encoding=accepted, If_None_Match=headers["etag"])
        assert (status, got, headers["vary"]) == (304, b"", "Accept-Encoding")
    assert etags[None] != etags["zstd"] == f'"{stored.revision}"'
    assert (await raw_of(store, url, If_None_Match=etags["zstd"]))[2] == payload


async def test_ranges_are_of_what_is_stored_and_others_get_the_whole(store: MemoryStorage) -> None:
    await store.put(CAT, LARGE, compress="zstd")
    stored = await store.get(CAT, decompress=False)
    assert stored is not None
    compressed, url = await stored.read(), await store.sign_get(CAT, HOUR)
    etag = f'"{stored.revision}"'
    for wanted, status, body in (("bytes=1-4", 206, compressed[1:5]), ("bytes=-3", 206, compressed[-3:]), ("bytes=999999-", 416, None)):
        for condition in ({}, {"If_Range": etag}, {"If_Match": "*"}):
            found = await raw_of(store, url, Accept_Encoding="zstd", Range=wanted, **condition)
            assert found[0] == status and body in (None, found[2])
            found = await raw_of(store, url, Range=wanted, **condition)
            assert (found[0], found[2], found[1].get("content-range")) == (200, LARGE, None)


async def test_what_is_compressed_in_another_way_or_damaged_is_never_a_shorter_body(store: MemoryStorage) -> None:
    await store.put(CAT, b"no zstd", Metadata(compression="Zstd"))
    url = await store.sign_get(CAT, HOUR)
    assert await raw_of(store, url, Accept_Encoding="zstd") == (200, ANY, b"no zstd")
    assert await raw_of(store, url) == (500, ANY, b"the store needs its operator\n")


async def test_head_equals_get_without_its_body(store: MemoryStorage) -> None:
    gone = await link(store, b"gone")
    missing = await link(store, b"gone", ObjectId.create("photos", "k"))
    await store.delete(ObjectId.create("photos", "k"))
    for payload in (SMALL, LARGE, b""):
        url = await link(store, payload)
        etag = (await opened(store, url)).headers["etag"]
        for address in (url, gone, missing, f"{url}x", BASE_URL):
            for conditions in ({}, {"If_None_Match": etag}, {"If_Match": '"other"'}, {"If_Modified_Since": NEVER}):
                got, head = await opened(store, address, **conditions), await opened(store, address, "HEAD", **conditions)
                assert (head.status_code, dict(head.headers)) == (got.status_code, dict(got.headers))
                assert head.content == b""
        assert (await opened(store, url, "HEAD", Range="bytes=1-2")).status_code == 200


# --- one revision ----------------------------------------------------------------------------------


async def test_a_link_never_shows_another_revision(store: MemoryStorage) -> None:
    for payload in (SMALL, LARGE):
        url = await link(store, payload)
        for after in (SMALL, LARGE, payload):
            await store.put(CAT, after)
            for headers in ({}, {"Range": "bytes=0-1"}, {"Range": "bytes=99999999-"}, {"If_None_Match": "*"}, {"If_Match": "*"}):
                got = await opened(store, url, **headers)
                assert (got.status_code, got.content) == (410, b"the object was replaced, and the link was for what was there before\n")
        await store.delete(CAT)
        assert (await opened(store, url)).status_code == 404


async def test_changed_metadata_are_another_revision(store: MemoryStorage) -> None:
    url = await link(store)
    await store.update_metadata(CAT, lambda now: replace(now, content_type="text/html"))
    assert (await opened(store, url)).status_code == 410


async def test_what_has_expired_is_not_there(store: MemoryStorage) -> None:
    await store.put(CAT, SMALL, Metadata(expiration=TimeToLive(timedelta(minutes=1))))
    url = await store.sign_get(CAT, HOUR)
    assert (await opened(store, url)).status_code == 200
    store.clock.advance(2 * MINUTE)
    assert (await opened(store, url)).status_code == 404
    assert await store.sign_get(CAT, HOUR) is None


async def test_an_object_that_is_replaced_between_two_looks_is_not_mixed(store: MemoryStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    url, get = await link(store, LARGE), store.get

    async def replaced_first(*args: Any, **options: Any) -> Any:
        await store.put(CAT, SMALL)
        return await get(*args, **options)

    monkeypatch.setattr(store, "get", replaced_first)
    for headers in ({}, {"Range": "bytes=500-"}, {"If_None_Match": '"other"'}):
        assert (await opened(store, url, **headers)).status_code == 410


# --- what is refused -------------------------------------------------------------------------------


async def test_what_is_no_link_is_refused(store: MemoryStorage) -> None:
    url = await link(store)
    token = url.rpartition("/")[2]
    claims, _, signature = token.partition(".")
    for path in (
        "", "/", f"/{token[:-1]}", f"/{token}x", f"/{claims}.", f"/.{signature}", f"/{claims}", f"//{token}", f"/x/{token}", f"/{token}/",
        f"/{token}/x", f"/../{token}", f"/%2e%2e/{token}", f"/{token}%00", f"/é{token}", f"/{'a' * 50_000}", "/photos/org.17/objects/x",
    ):  # fmt: skip
        assert await raw(store, f"/links{path}") == (403, b"this is no link of this server, or not all of it\n"), path
    assert (await raw(store, f"/links/{token}"))[0] == 200
    assert (await raw(store, f"/{token}"))[0] == 200  # a framework that takes the place of the mount away
    assert (await opened(store, f"{url}?utm_source=x")).content == SMALL  # what follows a ? is nobody's


async def raw(store: MemoryStorage, path: str, method: str = "GET", headers: list[tuple[bytes, bytes]] | None = None) -> tuple[int, bytes]:
    """An answer to a path that no client would send as it is."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "root_path": "/links", "headers": headers or [], "query_string": b""}
    app: Any = LinkApp(lambda: store)
    await app(scope, anyio.sleep_forever, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


async def test_a_link_ends_and_is_none_of_the_future(store: MemoryStorage) -> None:
    url = await link(store)
    store.clock.advance(59 * MINUTE)
    assert (await opened(store, url)).status_code == 200
    store.clock.advance(2 * MINUTE)
    for headers in ({}, {"If_None_Match": "*"}, {"Range": "bytes=0-"}):
        assert (await opened(store, url, **headers)).status_code == 403
    assert (await opened(store, url)).text == "the link has expired\n"
    head = await store.head(CAT)
    assert store.links is not None and head is not None and head.revision is not None
    far = SignedLink("GET", CAT, head.revision, store.clock.wall_ns() // 10**9 + 8 * 86_400)  # its signer's clock is a day ahead
    got = await opened(store, store.links.sign(far))
    assert (got.status_code, "clock" in got.text) == (403, True)


async def test_an_object_of_another_path_is_out_of_reach(store: MemoryStorage) -> None:
    other = ObjectId.create("photos", "secret", {"org": "18"})
    one, two = await link(store), await link(store, b"secret", other)
    mixed = f"{BASE_URL}/{two.rpartition('/')[2].partition('.')[0]}.{one.rpartition('.')[2]}"
    assert (await opened(store, mixed)).status_code == 403


async def test_names_that_confuse_others_are_served(store: MemoryStorage) -> None:
    for key in ("a//b", "a?b#c", "100%2F", "ü/é/😀", " x ", "a.b.c", "~", "x" * 900, "a\\b", '"><script>'):
        object_id = ObjectId.create("photos", key)
        got = await opened(store, await link(store, key.encode(), object_id))
        assert (got.status_code, got.content) == (200, key.encode())


async def test_huge_headers_are_read_in_no_time(store: MemoryStorage) -> None:
    path = f"/links/{(await link(store)).rpartition('/')[2]}"
    for name, value in (
        (b"range", b"bytes=" + b"0-0," * 200_000), (b"range", b"bytes=" + b"9" * 1_000_000 + b"-"), (b"if-none-match", b'"' * 1_000_000),
        (b"if-none-match", b'W/"' * 500_000), (b"if-match", b'"x",' * 300_000), (b"if-modified-since", b"Tue, " * 200_000),
        (b"if-range", b'"' + b"x" * 1_000_000), (b"if-unmodified-since", b"(" * 100_000), (b"x", b"y" * 5_000_000),
    ):  # fmt: skip
        with anyio.fail_after(5):
            status, _ = await raw(store, path, headers=[(name, value), (name, value)])
        assert status in (200, 412, 416)


# --- ranges and conditions -------------------------------------------------------------------------


async def test_a_range_is_answered(store: MemoryStorage) -> None:
    for payload in (SMALL, LARGE):
        url, size = await link(store, payload), len(payload)
        ends = [(f"{size - 2}-", size - 2, size), ("-4", size - 4, size), ("-999999999", 0, size)]
        for asked, start, stop in (("0-0", 0, 1), ("5-9", 5, 10), *ends):
            got = await opened(store, url, Range=f"bytes={asked}")
            assert (got.status_code, got.content) == (206, payload[start:stop]), asked
            assert got.headers["content-range"] == f"bytes {start}-{stop - 1}/{size}"
            assert got.headers["content-length"] == str(stop - start)
            assert "etag" in got.headers
        for asked in (f"{size}-", "-0", "9" * 100 + "-"):
            got = await opened(store, url, Range=f"bytes={asked}")
            assert (got.status_code, got.headers["content-range"]) == (416, f"bytes */{size}"), asked
        for asked in ("0-1,4-5", "-", "5-2", "x", ",".join(["0-"] * 1000)):
            got = await opened(store, url, Range=f"bytes={asked}")
            assert (got.status_code, got.content) == (200, payload), asked


async def test_a_range_of_an_empty_object_is_all_of_it(store: MemoryStorage) -> None:
    got = await opened(store, await link(store, b""), Range="bytes=-5")
    assert (got.status_code, got.content) == (200, b"")


async def test_what_a_client_has_is_not_sent_again(store: MemoryStorage) -> None:
    url = await link(store, LARGE)
    etag = (await opened(store, url)).headers["etag"]
    got = await opened(store, url, If_None_Match=f'"x", {etag}', Range="bytes=0-1")
    assert (got.status_code, got.content, got.headers["etag"], got.headers["cache-control"]) == (304, b"", etag, "private")
    assert "content-length" not in got.headers


async def test_metadata_of_other_software_break_no_header(store: MemoryStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    url = await link(store)
    damaged = no_metadata().with_facts(
        time_created_ns=10**30, content_type="a\r\nb: c", compression="odd\r\nd: e", filename="f\r\ng: h", size=len(SMALL)
    )
    get = store.get

    async def odd(*args: Any, **options: Any) -> Any:
        stored = await get(*args, **options)
        assert stored is not None
        stored.head = replace(stored.head, metadata=damaged)
        return stored

    monkeypatch.setattr(store, "get", odd)
    got = await opened(store, url)
    assert (got.status_code, got.headers["content-type"]) == (200, "application/octet-stream")
    assert not {"b", "d", "g", "content-encoding", "last-modified"} & set(got.headers)


# --- errors of the store ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "wait"),
    [
        (UnavailableError("secret"), 503, "1"), (AtCapacityError("secret", 2.3), 503, "3"),
        (ServiceAwayError("secret", "rows", 0.1), 503, "1"), (RateLimitedError("secret", 4.2), 429, "5"),
        (DanglingTombstoneError("secret"), 500, None), (CorruptRecordError("secret"), 500, None), (ConfigurationError("secret"), 500, None),
        (InvalidRequestError("secret"), 500, None), (UnavailableError("secret").refusing(), 500, None),
    ],
)  # fmt: skip
async def test_an_error_has_a_status_and_tells_no_secret(
    store: MemoryStorage, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, wait: str | None
) -> None:
    url = await link(store)

    async def fail(*_: object, **options: object) -> None:
        raise error

    for name in ("get", "head"):
        monkeypatch.setattr(store, name, fail)
    for method in ("GET", "HEAD"):
        got = await opened(store, url, method)
        assert (got.status_code, got.headers.get("retry-after"), got.headers["cache-control"]) == (status, wait, "no-store")
        assert "secret" not in got.text


async def test_a_store_without_links_signs_and_answers_none() -> None:
    async with memory_storage() as storage:
        await storage.put(CAT, SMALL)
        with pytest.raises(ConfigurationError, match=r"mount it, and set links\.base_url and links\.keys"):
            await storage.sign_get(CAT, HOUR)
        assert (await opened(storage, f"{BASE_URL}/x.y")).status_code == 500


async def test_what_is_signed_wrongly_is_refused(store: MemoryStorage) -> None:
    await store.put(CAT, SMALL)
    assert await store.sign_get(ObjectId.create("photos", "none"), HOUR) is None
    wrong: list[dict[str, Any]] = [
        {"expires_in": timedelta(days=8)}, {"expires_in": 60}, {"content_type": "é"}, {"disposition": "save"},
        {"object_id": "photos/objects/x"},
    ]  # fmt: skip
    for arguments in wrong:
        with pytest.raises(InvalidRequestError):
            await store.sign_get(**{"object_id": CAT, "expires_in": HOUR, **arguments})


async def test_an_object_that_has_no_revision_cannot_be_signed(store: MemoryStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.put(CAT, SMALL)
    source = store._reader.source

    async def older(object_id: ObjectId) -> Any:
        found = await source(object_id)
        assert found is not None
        return replace(found, head=replace(found.head, revision=None))

    monkeypatch.setattr(store._reader, "source", older)
    with pytest.raises(InvalidRequestError, match="other software wrote it: put it again"):
        await store.sign_get(CAT, HOUR)


# --- clients that go away, and slow ones -----------------------------------------------------------


def scope_of(url: str, version: str = "2.3") -> dict[str, Any]:
    asgi = {"version": "3.0", "spec_version": version}
    path = f"/links/{url.rpartition('/')[2]}"
    return {"type": "http", "asgi": asgi, "method": "GET", "path": path, "root_path": "/links", "query_string": b"", "headers": []}


async def sent_to(app: LinkApp, url: str, receive: Any = anyio.sleep_forever, send: Any = None) -> list[Any]:
    sent: list[Any] = []

    async def sending(message: Any) -> None:
        if send is not None:
            await send(message)
        sent.append(message)

    with anyio.fail_after(20):
        await app(scope_of(url), receive, sending)
    return sent


class OpenReads:
    """Watches which objects are open."""

    def __init__(self, store: MemoryStorage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[Any] = []
        get = store.get

        async def noted(*args: Any, **options: Any) -> Any:
            stored = await get(*args, **options)
            self.opened.append(stored)
            return stored

        monkeypatch.setattr(store, "get", noted)

    @property
    def all_closed(self) -> bool:
        return bool(self.opened) and all(each._closed for each in self.opened)


@pytest.mark.parametrize("version", ["2.3", "2.4"])
async def test_a_client_that_goes_away_stops_the_read(store: MemoryStorage, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Servers of ASGI 2.3 say that the client has gone; later ones let the sending fail."""
    url, reads, gone = await link(store, LARGE), OpenReads(store, monkeypatch), anyio.Event()
    messages: list[Any] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            gone.set()
            if version == "2.4":
                raise OSError("the client has gone")
            await anyio.sleep_forever()

    sent = await sent_to(LinkApp(lambda: store), url, receive if version == "2.3" else anyio.sleep_forever, send)
    assert [message["type"] for message in sent] == ["http.response.start"]
    assert reads.all_closed


async def test_a_client_that_takes_no_bytes_is_given_up(store: MemoryStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    url, reads = await link(store, LARGE), OpenReads(store, monkeypatch)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await anyio.sleep_forever()

    await sent_to(LinkApp(lambda: store, send_idle_s=0.05), url, send=send)
    assert reads.all_closed


async def test_a_server_that_stops_stops_the_read(store: MemoryStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    url, reads = await link(store, LARGE), OpenReads(store, monkeypatch)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            tasks.cancel_scope.cancel()
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        await sent_to(LinkApp(lambda: store), url, send=send)
    assert reads.all_closed


async def test_large_objects_are_sent_to_so_many_at_once(store: MemoryStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    url = await link(store, LARGE)
    small = await link(store, SMALL, ObjectId.create("photos", "small"))  # it holds nothing of a service, and is never too many
    app, reads, going = LinkApp(lambda: store, bodies_max=2), OpenReads(store, monkeypatch), anyio.Event()
    begun = 0

    async def send(message: Any) -> None:
        nonlocal begun
        begun += message["type"] == "http.response.start" and message["status"] == 200
        await going.wait()

    async with anyio.create_task_group() as tasks:
        for each in (small, small, url, url):
            tasks.start_soon(sent_to, app, each, anyio.sleep_forever, send)
        while begun < 4:
            await anyio.lowlevel.checkpoint()
        refused = await sent_to(app, url)
        assert refused[0]["status"] == 503 and (b"retry-after", b"1") in refused[0]["headers"]
        assert (await sent_to(app, small))[0]["status"] == 200
        going.set()
    assert (await sent_to(app, url))[0]["status"] == 200
    assert reads.all_closed


async def test_what_is_no_http_is_refused(store: MemoryStorage) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    app: Any = LinkApp(lambda: store)
    await app({"type": "websocket"}, anyio.sleep_forever, send)
    assert [message["type"] for message in sent] == ["websocket.close"]
    with pytest.raises(ValueError, match="no lifespan; create_app"):
        await app({"type": "lifespan"}, anyio.sleep_forever, send)


# --- links to write --------------------------------------------------------------------------------


async def put_to(store: MemoryStorage, url: str, body: Any, **headers: str) -> int:
    async with client_of(store) as client:
        return (await client.put(url, content=body, headers=headers)).status_code


async def streamed_to(store: MemoryStorage, url: str, chunks: list[bytes], length: bytes | None = None) -> list[int]:
    """The status of the answer, if there is one, to a client that says this length, and goes away after its chunks."""
    messages: list[Any] = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [] if length is None else [(b"content-length", length)]
    scope = {"type": "http", "method": "PUT", "path": f"/links/{url.rpartition('/')[2]}", "root_path": "/links", "headers": headers}
    await LinkApp(lambda: store)(scope, receive, send)
    return [message["status"] for message in sent if "status" in message]


async def test_what_is_put_to_a_link_is_an_object_once_it_is_completed(store: MemoryStorage) -> None:
    signed = await store.sign_put(CAT, HOUR, Metadata(content_type="image/jpeg"), if_absent=True)
    assert signed.url.startswith(BASE_URL)
    assert await put_to(store, signed.url, b"first try") == 200
    assert await put_to(store, signed.url, LARGE) == 200
    assert await store.head(CAT) is None
    [part] = await signed.upload.parts()
    assert (part.number, part.size) == (1, len(LARGE))
    await signed.upload.upload_part(2, SMALL)
    result = await signed.upload.complete()
    found = await store.get(CAT)
    assert found is not None and await found.read() == LARGE + SMALL and result.size == len(LARGE + SMALL)
    assert await put_to(store, signed.url, b"late") == 410
    found = await store.get(CAT)
    assert found is not None and await found.read() == LARGE + SMALL


async def test_no_more_bytes_are_taken_than_the_link_allows(store: MemoryStorage) -> None:
    signed = await store.sign_put(CAT, HOUR, size_max=5)

    assert await put_to(store, signed.url, b"123456") == 413
    assert await streamed_to(store, signed.url, [b"123", b"456"]) == [413], "it did not say how many would come"
    assert await streamed_to(store, signed.url, [b"1"], b"9" * 5000) == [413], "and no number of it is read"
    assert list(await signed.upload.parts()) == []
    assert await put_to(store, signed.url, b"12345") == 200
    assert [part.size for part in await signed.upload.parts()] == [5]
    assert await put_to(store, await signed.upload.sign_part(2, HOUR), b"") == 200
    nothing = await signed.upload.sign_part(3, HOUR, size_max=0)
    assert (await put_to(store, nothing, b"x"), await put_to(store, nothing, b"")) == (413, 200)


async def test_a_link_keeps_the_policy_of_its_usecase() -> None:
    policy = {"object_bytes_max": 8, "requests_per_s": 0.01, "burst_s": 300}
    async with memory_storage(Settings(directory=NOWHERE, links=LINKS, usecases={"photos": policy})) as store:
        signed = await store.sign_put(CAT, HOUR, size_max=9)
        assert await put_to(store, signed.url, b"123456789") == 413
        assert await put_to(store, signed.url, b"12345678") == 200
        await signed.upload.complete()
        async with client_of(store) as client:
            refused = await client.put(signed.url, content=b"12345678")
        assert (refused.status_code, refused.text) == (429, "too much at once; try again later\n")
        assert 1 < int(refused.headers["retry-after"]) <= 100


async def test_a_client_that_goes_away_while_it_sends_leaves_no_part(store: MemoryStorage) -> None:
    signed = await store.sign_put(CAT, HOUR)
    assert await streamed_to(store, signed.url, [b"half"]) == []
    assert list(await signed.upload.parts()) == []


async def test_a_link_to_write_is_refused_where_it_cannot_be_signed(store: MemoryStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryBlobs, "begin_parts", lambda *_: pytest.fail("an upload was begun, only to be given up"))
    wrong: list[Any] = [
        store.sign_put(CAT, timedelta(days=8)), store.sign_put(CAT, timedelta(0)), store.sign_put(CAT, -HOUR), store.sign_put(CAT, 60),  # type: ignore[arg-type]
        store.sign_put(CAT, timedelta.max), store.sign_put(CAT, float("nan")),  # type: ignore[arg-type]
        store.sign_put(CAT, HOUR, size_max=-1), store.sign_put(CAT, HOUR, size_max=True), store.sign_put("cat", HOUR),  # type: ignore[arg-type]
    ]
    for call in wrong:
        with pytest.raises(InvalidRequestError):
            await call
    async with memory_storage(MEMORY.model_copy(update={"links": None})) as plain:
        with pytest.raises(ConfigurationError, match=r"tiered\.asgi"):
            await plain.sign_put(CAT, HOUR)
    monkeypatch.undo()
    upload = await store.begin_multipart(CAT)
    for number in (0, 10_001, "1"):
        with pytest.raises(InvalidRequestError):
            await upload.sign_part(number, HOUR)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "status"),
    [(UnavailableError("away"), 503), (AtCapacityError("full", 2.5), 503), (CorruptRecordError("damaged"), 500),
     (InvalidRequestError("a policy"), 403)],
)
async def test_a_store_that_fails_refuses_the_part(
    store: MemoryStorage, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    async def fails(*_: Any) -> Any:
        raise error

    signed = await store.sign_put(CAT, HOUR)
    monkeypatch.setattr(store._assembler, "put_part", fails)
    assert await put_to(store, signed.url, b"x") == status


# --- where the bucket signs links of its own -------------------------------------------------------


@pytest.fixture
def bucket_that_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As GCS and S3: whoever has its link sends a part of any size."""

    async def sign(self: object, name: str, *_: object) -> str:
        return f"https://bucket.example.com/{name}"

    for method in ("sign_read", "sign_part"):
        monkeypatch.setattr(MemoryBlobs, method, sign, raising=False)


@pytest.mark.usefixtures("bucket_that_signs")
async def test_a_bucket_takes_any_size_and_the_completion_judges_it(store: MemoryStorage) -> None:
    signed = await store.sign_put(CAT, HOUR, size_max=1000)
    assert signed.url.startswith("https://bucket.example.com/")
    await signed.upload.upload_part(1, LARGE)  # as the bucket keeps it
    upload = store.multipart(CAT, signed.upload.id)  # of another process
    for parts in (None, await upload.parts()):
        with pytest.raises(InvalidRequestError, match=f"signed for 1000 bytes, and its parts have {len(LARGE)}: let it be sent again"):
            await upload.complete(parts)
    assert await store.head(CAT) is None
    await upload.upload_part(1, LARGE[:1000])
    assert (await upload.complete()).size == 1000


@pytest.mark.usefixtures("bucket_that_signs")
async def test_a_part_with_a_size_goes_through_the_app_that_bounds_it(store: MemoryStorage) -> None:
    upload = await store.begin_multipart(CAT)
    assert (await upload.sign_part(1, HOUR)).startswith("https://bucket.example.com/")
    url = await upload.sign_part(1, HOUR, size_max=5)
    assert url.startswith(BASE_URL)
    assert (await put_to(store, url, b"123456"), await put_to(store, url, b"12345")) == (413, 200)
    async with memory_storage(MEMORY.model_copy(update={"links": None})) as plain:
        upload = await plain.begin_multipart(CAT)
        with pytest.raises(ConfigurationError, match=r"needs the app of tiered\.asgi"):
            await upload.sign_part(1, HOUR, size_max=5)
        assert (await plain.sign_put(CAT, HOUR, size_max=5)).url.startswith("https://bucket.example.com/")
