"""What a caller declares of a payload is compared with what came, before anything is stored."""

from __future__ import annotations

import base64
import hashlib
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.given.repository import ROOT
from tests.given.tapped_store import LARGE, OBJECT, SMALL, TappedWorld, in_chunks, read
from tiered import ConfigurationError, InvalidRequestError, Metadata, ObjectId, Payload, PutRequest, TieredStorage
from tiered.payload.checksums import IN_THREAD_BYTES
from tiered.payload.crc32c import digest_of, extend_crc

pytestmark = pytest.mark.anyio

HUGE = b"x" * (3 * IN_THREAD_BYTES)
DIGESTS: Mapping[str, Callable[[bytes], bytes]] = {
    "crc32c": lambda payload: digest_of(extend_crc(0, payload)),
    "md5": lambda payload: hashlib.md5(payload).digest(),
    "sha256": lambda payload: hashlib.sha256(payload).digest(),
}
TEXTS: Mapping[str, Callable[[bytes], str]] = {
    "hex": bytes.hex, "upper-case hex": lambda digest: digest.hex().upper(), "base64": lambda digest: base64.b64encode(digest).decode(),
}


KINDS: Mapping[str, Callable[[bytes], Payload]] = {
    "bytes": bytes, "a buffer": bytearray, "an async iterator": in_chunks, "a list": lambda payload: [payload[:3], payload[3:]],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("payload", [b"", SMALL, LARGE, HUGE], ids=["empty", "small", "large", "huge"])
async def test_a_payload_is_stored_if_all_its_checksums_are_those_declared(world: TappedWorld, kind: str, payload: bytes) -> None:
    async with world.store() as storage:
        for text in TEXTS.values():
            declared = {name: text(digest(payload)) for name, digest in DIGESTS.items()}
            await storage.put(OBJECT, KINDS[kind](payload), checksums=declared)
        assert await read(storage) == payload


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DIGESTS)
@pytest.mark.parametrize("payload", [SMALL, LARGE, HUGE], ids=["small", "large", "huge"])
async def test_a_payload_with_another_checksum_is_not_stored(world: TappedWorld, kind: str, name: str, payload: bytes) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, b"before")
        for text in TEXTS.values():
            declared, found = (text(DIGESTS[name](each)) for each in (b"other bytes", payload))
            with pytest.raises(InvalidRequestError, match=name) as refused:
                await storage.put(OBJECT, KINDS[kind](payload), checksums={"sha256": hashlib.sha256(payload).hexdigest(), name: declared})
            assert declared in str(refused.value) and found.lower() in str(refused.value).lower()
            assert await read(storage) == b"before"
    assert await world.is_clean()


async def test_a_small_object_with_a_checksum_is_still_one_row_operation(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, SMALL, checksums={"md5": hashlib.md5(SMALL).hexdigest()})
    assert world.calls == ["put_inline"]


@pytest.mark.parametrize(("declared", "wrong"), [
    ("abc", "checksums is a mapping"), ([("md5", "")], "checksums is a mapping"), (5, "checksums is a mapping"),
    ({"sha1": "0" * 40}, "one of crc32c, md5, sha256, not 'sha1'"), ({"SHA256": "0" * 64}, "one of"), ({5: "0" * 64}, "one of"),
    ({"sha256": "0" * 63}, "not as 32 bytes in hex or base64"), ({"sha256": "g" * 64}, "not as 32 bytes"),
    ({"sha256": "0" * 32}, "not as 32 bytes"),
    ({"md5": ""}, "not as 16 bytes"), ({"md5": b"0" * 16}, "not as 16 bytes"), ({"md5": None}, "not as 16 bytes"),
    ({"crc32c": 5}, "not as 4 bytes"), ({"crc32c": "yZRlqg="}, "not as 4 bytes"), ({"crc32c": "yZRl qg=="}, "not as 4 bytes"),
    ({"crc32c": "crc32c=yZRlqg=="}, "not as 4 bytes"), ({"crc32c": "ö" * 8}, "not as 4 bytes"), ({"md5": "\ud800" * 32}, "not as 16 bytes"),
])  # fmt: skip
async def test_what_is_no_checksum_is_refused_before_anything_is_done(world: TappedWorld, declared: Any, wrong: str) -> None:
    async with world.store() as storage:
        with pytest.raises(InvalidRequestError, match=wrong):
            await storage.put(OBJECT, SMALL, checksums=declared)
    assert world.calls == []


async def test_a_bulk_put_with_a_wrong_checksum_fails_alone(world: TappedWorld) -> None:
    one, other = ObjectId.create("notes", "1"), ObjectId.create("notes", "2")
    right = {"sha256": hashlib.sha256(SMALL).hexdigest()}
    requests = [PutRequest(one, b"other", checksums=right), PutRequest(other, SMALL, Metadata(), checksums=right)]
    async with world.store() as storage:
        async with storage.put_many(requests) as results:
            errors = {result.request.object_id: result.error async for result in results}
        assert isinstance(errors[one], InvalidRequestError) and errors[other] is None


async def test_crc32c_without_its_package_says_what_to_install(world: TappedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tiered.payload.crc32c", None)
    async with world.store() as storage:
        with pytest.raises(ConfigurationError, match="google-crc32c"):
            await storage.put(OBJECT, SMALL, checksums={"crc32c": "yZRlqg=="})
        await storage.put(OBJECT, SMALL, checksums={"md5": hashlib.md5(SMALL).hexdigest()})
        head = await storage.head(OBJECT, checksum=True)
        assert head is not None and head.checksum is None


def test_the_reference_names_each_extra_that_brings_crc32c() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.search(r"crc32c \(extra (.*?)\)", TieredStorage.put.__doc__ or "")
    assert named is not None
    assert re.findall("`(.*?)`", named[1]) == [each for each, needs in extras.items() if any("google-crc32c" in need for need in needs)]


async def test_a_head_computes_the_checksum_of_a_small_object_if_asked(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, b"123456789")
        asked, unasked = await storage.head(OBJECT, checksum=True), await storage.head(OBJECT)
        assert asked is not None and asked.checksum == "crc32c=4waSgw=="
        assert unasked is not None and unasked.checksum is None
        await storage.put(OBJECT, b"123456789", checksums=dict([asked.checksum.split("=", 1)]))
