"""The signed address of a blob: byte for byte what Google's own library makes, and good where it should be alone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from google.cloud.storage._signing import generate_signed_url_v4
from google.cloud.storage.blob import _quote
from httpx import AsyncClient, Response

from changelog.base.runtime import SystemRuntime
from emulators.gcs.server import GcsEmulator
from tests.given.owned_bucket import OWNER, give
from tests.given.signing_account import EMAIL, credentials, private_key, sign
from tiered.gcs.blobs import GcsBlobs
from tiered.gcs.owned import OwnedBlobs
from tiered.gcs.signed_urls import SignedUrl
from tiered.metadata import Metadata

pytestmark = pytest.mark.anyio
NOW_NS = int(datetime(2026, 2, 3, 4, 5, 6, 999_999, tzinfo=UTC).timestamp() * 1e9)
REVISION = "018bcfe5-6800-7000-8000-000000000001"
NAMES = ["photos/objects/cat", "a b/objects/ü/é/😀", "x/objects/a+b&c=d?e#f%2F~!*'()[]@:;,", "x/objects/a//b/", "x/objects/..a/.b"]
DISPOSITIONS = ["inline; filename=\"cat.jpg\"", "attachment; filename=\"a b_c.txt\"; filename*=UTF-8''a%20b%22c.txt"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("disposition", DISPOSITIONS)
@pytest.mark.parametrize("endpoint", ["https://storage.googleapis.com", "http://127.0.0.1:9199"])
def test_the_address_is_the_one_that_googles_library_makes(name: str, disposition: str, endpoint: str) -> None:
    name = f"{name}/{REVISION}"
    read = SignedUrl(endpoint, "my.bucket_1", name, NOW_NS, 604_800, {"response-content-disposition": disposition})
    key = credentials()
    ours = read.signed(EMAIL, key.sign_bytes(read.to_sign(EMAIL)))
    theirs = generate_signed_url_v4(
        key, f"/my.bucket_1/{_quote(name, safe=b'/~')}", 604_800, api_access_endpoint=endpoint, response_disposition=disposition,
        _request_timestamp="20260203T040506Z",
    )  # fmt: skip
    assert ours == theirs


async def asked(method: str, url: str) -> Response:
    async with AsyncClient() as client:
        return await client.request(method, url)


async def stored(server: GcsEmulator, blobs: OwnedBlobs, name: str) -> None:
    upload = await blobs.open_upload(name, Metadata(content_type="image/jpeg"), 5)
    await upload.write(b"a cat")
    await upload.finalise()


async def signed(server: GcsEmulator, name: str = f"photos/objects/a ü/{REVISION}", expires_in_s: int = 60) -> str:
    """The address of a blob with a prefix, which is there."""
    server.accounts[EMAIL] = private_key().public_key()
    give(server, "a/")
    async with GcsBlobs.connect("blobs", SystemRuntime(), endpoint=server.url, sign=sign) as bucket:
        blobs = OwnedBlobs(bucket, "blobs", "a/", OWNER)
        await stored(server, blobs, name)
        url = await blobs.sign_read(name, expires_in_s, 'attachment; filename="cat.jpg"')
    assert url is not None
    return url


async def test_the_service_answers_a_signed_address_until_the_blob_is_deleted(server: GcsEmulator) -> None:
    url = await signed(server)
    got = await asked("GET", url)
    assert (got.status_code, got.content, got.headers["content-type"]) == (200, b"a cat", "image/jpeg")
    assert got.headers["content-disposition"] == 'attachment; filename="cat.jpg"'
    assert (await asked("HEAD", url)).status_code == 200
    async with GcsBlobs.connect("blobs", SystemRuntime(), endpoint=server.url) as blobs:
        await blobs.delete(f"a/photos/objects/a ü/{REVISION}")
    assert (await asked("GET", url)).status_code == 404


async def test_the_service_refuses_an_address_that_was_changed(server: GcsEmulator) -> None:
    url = await signed(server)
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))

    def changed(**values: str) -> str:
        return parts._replace(query=urlencode({**query, **{key.replace("_", "-"): value for key, value in values.items()}})).geturl()

    assert (await asked("GET", changed())).status_code == 200
    for forged in (
        changed(X_Goog_Expires="604800"), changed(response_content_disposition="inline"), changed(X_Goog_Signature="00" * 256),
        changed(generation="1"), parts._replace(path=parts.path.replace("0001", "0002")).geturl(),
        changed(X_Goog_Credential=query["X-Goog-Credential"].replace("reader", "writer")),
    ):
        assert (await asked("GET", forged)).status_code == 403, forged


async def test_the_service_refuses_an_address_that_has_ended(server: GcsEmulator, monkeypatch: pytest.MonkeyPatch) -> None:
    url = await signed(server, expires_in_s=1)
    later: Any = SystemRuntime.wall_ns
    monkeypatch.setattr(SystemRuntime, "wall_ns", lambda runtime: later(runtime) + 2_000_000_000)
    assert (await asked("GET", url)).status_code == 400


async def test_an_emulator_that_was_opened_without_a_signer_signs_nothing(server: GcsEmulator) -> None:
    async with GcsBlobs.connect("blobs", SystemRuntime(), endpoint=server.url) as blobs:
        assert await blobs.sign_read("x", 60, "inline") is None


async def test_the_service_takes_a_part_at_a_signed_address_and_nothing_else(server: GcsEmulator) -> None:
    server.accounts[EMAIL] = private_key().public_key()
    give(server, "a/")
    async with GcsBlobs.connect("blobs", SystemRuntime(), endpoint=server.url, sign=sign) as bucket:
        blobs = OwnedBlobs(bucket, "blobs", "a/", OWNER)
        name = f"photos/objects/a ü/{REVISION}"
        session = await blobs.begin_parts(name, Metadata(content_type="image/jpeg"))
        url = await blobs.sign_part(name, session, 3, 60)
        assert url is not None
        async with AsyncClient() as client:
            answer = await client.put(url, content=b"from a browser")
            assert answer.status_code == 200
            parts = urlsplit(url)
            query = dict(parse_qsl(parts.query))
            for forged in ({"partNumber": "4"}, {"X-Goog-Expires": "604800"}, {"uploadId": "0" * 32}):
                other = parts._replace(query=urlencode({**query, **forged})).geturl()
                assert (await client.put(other, content=b"x")).status_code == 403
            assert (await client.delete(url)).status_code != 204
        [part] = await blobs.parts(name, session)
        assert (part.number, part.size, part.etag) == (3, 14, answer.headers["ETag"])
        await blobs.complete_parts(name, session, [part])
        found = await blobs.open(name)
        assert found is not None and b"".join([chunk async for chunk in found.chunks()]) == b"from a browser"
        await found.aclose()
        async with AsyncClient() as client:
            assert (await client.put(url, content=b"late")).status_code == 404


def test_the_address_of_a_part_is_the_one_that_googles_library_makes() -> None:
    query = {"partNumber": "1", "uploadId": "a+b/c="}
    part = SignedUrl("https://storage.googleapis.com", "b", f"n/{REVISION}", NOW_NS, 60, query, "PUT")
    key = credentials()
    theirs = generate_signed_url_v4(
        key, f"/b/n/{REVISION}", 60, method="PUT", query_parameters=query, _request_timestamp="20260203T040506Z"
    )
    assert part.signed(EMAIL, key.sign_bytes(part.to_sign(EMAIL))) == theirs
