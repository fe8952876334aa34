"""Many deletions, or looks, in one request to GCS: each has a result of its own; what is not answered is not known."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from urllib.parse import unquote

import pytest

from changelog.base.errors import ConfigurationError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from emulators.gcs.server import FaultMode, GcsEmulator, GcsFault
from tiered.gcs.answers import GcsResponse, Shape, nothing
from tiered.gcs.batches import Batch
from tiered.gcs.blobs import GcsBlobs
from tiered.gcs.http import GcsRequest
from tiered.services.capabilities import DELETIONS_MAX
from tiered.services.scans import BlobInfo, Generation, Removal
from tiered.testing.contracts.whole_blobs import store

pytestmark = pytest.mark.anyio
RUNTIME = SystemRuntime()


@pytest.fixture
async def blobs(server: GcsEmulator) -> AsyncIterator[GcsBlobs]:
    async with GcsBlobs.connect("blobs", RUNTIME, endpoint=server.url, answer_timeout_s=0.5) as blobs:
        yield blobs


async def stored(blobs: GcsBlobs, *names: str) -> list[tuple[str, Generation]]:
    for name in names:
        await store(blobs, name, b"x")
    return [(each.name, each.generation) for each in (await blobs.list("", None, 1000)).blobs]


async def left(blobs: GcsBlobs) -> list[str]:
    return [each.name for each in (await blobs.list("", None, 1000)).blobs]


async def test_a_hundred_blobs_are_deleted_in_one_request(blobs: GcsBlobs, server: GcsEmulator) -> None:
    asked = await stored(blobs, *[f"a/objects/{number:03}/größe & ?#%2F%0d%0a--tiered_calls" for number in range(DELETIONS_MAX)])
    server.calls.clear()
    assert await blobs.delete_generations(asked) == [Removal.DELETED] * DELETIONS_MAX
    assert server.calls == ["batch"] and await left(blobs) == []
    assert await blobs.delete_generations(asked[:2]) == [Removal.ABSENT] * 2


async def test_a_part_that_fails_fails_alone(blobs: GcsBlobs, server: GcsEmulator) -> None:
    asked = await stored(blobs, *"abcdef")
    asked[1] = (asked[1][0], f"{asked[1][1]}1")
    server.faults += [
        GcsFault(FaultMode.STATUS, "object.delete", name, status=status) for name, status in (("c", 503), ("d", 429), ("e", 403))
    ]
    results = await blobs.delete_generations([*asked, ("nothing", "1")])
    assert [each if isinstance(each, Removal) else type(each) for each in results] == [
        Removal.DELETED, Removal.REPLACED, UnconfirmedError, UnavailableError, ConfigurationError, Removal.DELETED, Removal.ABSENT,
    ]  # fmt: skip
    assert "deleting generation" in str(results[3]) and "'d'" in str(results[3])
    assert await left(blobs) == ["b", "c", "d", "e"]


async def test_a_batch_may_take_longer_than_one_answer(blobs: GcsBlobs, server: GcsEmulator) -> None:
    asked = await stored(blobs, "a", "b")
    server.faults.append(GcsFault(FaultMode.DELAY, "batch", seconds=0.8))
    assert await blobs.delete_generations(asked) == [Removal.DELETED] * 2


@pytest.mark.parametrize(("mode", "error", "effect"), [
    (FaultMode.DROP_AFTER, UnconfirmedError, True), pytest.param(FaultMode.STALL_AFTER, UnconfirmedError, True, marks=pytest.mark.slow),
    (FaultMode.DROP_BEFORE, UnconfirmedError, False), (FaultMode.STATUS, UnconfirmedError, False),
])  # fmt: skip
async def test_of_a_batch_without_an_answer_nothing_is_known(
    blobs: GcsBlobs, server: GcsEmulator, mode: FaultMode, error: type[TieredError], effect: bool
) -> None:
    asked = await stored(blobs, "a", "b")
    server.faults.append(GcsFault(mode, "batch"))
    with pytest.raises(error):
        await blobs.delete_generations(asked)
    assert await left(blobs) == ([] if effect else ["a", "b"])


async def test_an_answer_that_is_cut_off_never_says_that_a_part_is_done(blobs: GcsBlobs, server: GcsEmulator) -> None:
    asked = await stored(blobs, "a", "b")
    server.faults.append(GcsFault(FaultMode.TRUNCATE, "batch"))
    with pytest.raises(UnconfirmedError):
        await blobs.delete_generations(asked)


async def test_a_missing_bucket_is_no_absence(server: GcsEmulator) -> None:
    async with GcsBlobs.connect("none", RUNTIME, endpoint=server.url) as blobs:
        [result] = await blobs.delete_generations([("a", "1")])
    assert isinstance(result, ConfigurationError) and "there is no bucket 'none'" in str(result)


# --- looks -----------------------------------------------------------------------------------------


async def listed(blobs: GcsBlobs, *names: str) -> tuple[list[BlobInfo], dict[str, Generation]]:
    generations = dict(await stored(blobs, *names))
    return [*(await blobs.list("", None, 1000)).blobs], generations


async def test_each_hundred_blobs_are_looked_at_in_one_request(blobs: GcsBlobs, server: GcsEmulator) -> None:
    wanted, generations = await listed(blobs, *[f"a/objects/{number:03}/größe & ?#%2F%0d%0a--tiered_calls" for number in range(101)])
    await blobs.delete(wanted[3].name)
    await blobs.delete(wanted[4].name)
    await store(blobs, wanted[4].name, b"another")
    server.calls.clear()
    found = await blobs.generations(wanted)
    assert server.calls == ["batch", "batch"] and found.keys() == generations.keys() - {wanted[3].name}
    assert {name for name in found if found[name] != generations[name]} == {wanted[4].name}
    assert await blobs.generations([]) == {}


@pytest.mark.parametrize("fault", [
    GcsFault(FaultMode.STATUS, "object.get", "b", status=503), GcsFault(FaultMode.STATUS, "object.get", "b", status=429),
    GcsFault(FaultMode.STATUS, "batch", status=404), GcsFault(FaultMode.STATUS, "batch", status=501),
])  # fmt: skip
async def test_a_blob_that_no_batch_tells_of_is_looked_at_alone(blobs: GcsBlobs, server: GcsEmulator, fault: GcsFault) -> None:
    wanted, generations = await listed(blobs, "a", "b", "c")
    await blobs.delete("c")
    server.faults.append(fault)
    assert await blobs.generations(wanted) == {name: generations[name] for name in "ab"}


@pytest.mark.parametrize("mode", [FaultMode.DROP_AFTER, pytest.param(FaultMode.STALL_AFTER, marks=pytest.mark.slow), FaultMode.STATUS])
async def test_blobs_are_not_absent_because_a_batch_got_no_answer(blobs: GcsBlobs, server: GcsEmulator, mode: FaultMode) -> None:
    wanted, _ = await listed(blobs, "a", "b")
    server.faults.append(GcsFault(mode, "batch", status=503))
    with pytest.raises(UnavailableError):
        await blobs.generations(wanted)


async def test_blobs_are_not_absent_because_their_bucket_is_missing(blobs: GcsBlobs, server: GcsEmulator) -> None:
    wanted, _ = await listed(blobs, "a")
    async with GcsBlobs.connect("none", RUNTIME, endpoint=server.url) as none:
        with pytest.raises(ConfigurationError, match="there is no bucket 'none'"):
            await none.generations(wanted)


@pytest.mark.parametrize(("told", "expected"), [
    ("200 OK\r\n\r\n{\"name\":\"a\",\"generation\":\"7\"}", {"a": "7"}),
    ("200 OK\r\n\r\n{\"name\":\"other\",\"generation\":\"7\"}", None), ("200 OK\r\n\r\n{\"name\":\"a\"", None),
    ("404 Not Found\r\n\r\n{\"error\":{\"code\":404,\"message\":\"No such object: blobs/a\"}}", {}),
    ("404 Not Found\r\n\r\n<html>", None),
    ("404 Not Found\r\n\r\n{\"error\":{\"code\":404,\"message\":\"No such object: blobs/b\"}}", None),
])  # fmt: skip
async def test_only_the_services_own_words_of_this_blob_say_what_it_is(
    blobs: GcsBlobs, monkeypatch: pytest.MonkeyPatch, told: str, expected: dict[str, Generation] | None
) -> None:
    """`expected` None: the blob is there, and the answer does not say so."""
    wanted, generations = await listed(blobs, "a")
    call = blobs._http.call

    async def answered(request: GcsRequest) -> GcsResponse:
        if request.url != blobs._http.batch_url:
            return await call(request)
        status, _, body = told.partition("\r\n\r\n")
        assert isinstance(request.body, bytes)
        [batch] = re.findall(r"<(\w+)\+0>", request.body.decode())
        return answer(part(0, status, body, batch), shape=request.shape)

    monkeypatch.setattr(blobs._http, "call", answered)
    if expected is None and told.startswith("404"):
        with pytest.raises(UnavailableError):
            await blobs.generations(wanted)
        return
    assert await blobs.generations(wanted) == (generations if expected is None else expected)


# --- the parts -------------------------------------------------------------------------------------


BATCH = Batch([("DELETE", "/storage/v1/b/blobs/o/a%2Fb?ifGenerationMatch=7")] * 2, "0b")
TWO_DELETIONS = BATCH.answers([nothing] * 2)


def answer(
    *parts: str, boundary: str = "batch_x", content_type: str = 'multipart/mixed; boundary="batch_x"', end: str = "--batch_x--",
    shape: Shape = TWO_DELETIONS,
) -> GcsResponse:  # fmt: skip
    body = "".join(f"--{boundary}\r\n{part}\r\n" for part in parts) + f"{end}\r\n"
    return GcsResponse.of(200, {"Content-Type": content_type}, body.encode(), shape)


def part(number: object, status: str, body: str = "", batch: str = "0b") -> str:
    return f"Content-Type: application/http\r\nContent-ID: <response-{batch}+{number}>\r\n\r\nHTTP/1.1 {status}\r\nDate: x\r\n\r\n{body}"


def test_parts_are_told_by_their_ids_in_any_order_and_with_any_line_ends() -> None:
    told = answer(part(1, "404 Not Found", '{"error":{"message":"No such object: b"}}'), part(0, "204 No Content"))
    assert {number: each.status for number, each in told.told.items()} == {0: 204, 1: 404}
    assert told.told[1].message == "No such object: b"
    bare = GcsResponse.of(200, told.headers, told.body.replace(b"\r\n", b"\n"), TWO_DELETIONS)
    assert {number: each.status for number, each in bare.told.items()} == {0: 204, 1: 404}


@pytest.mark.parametrize("parts", [
    [], [part("x", "204 No Content")], ["Content-ID: <response-0b+0>\r\n\r\nnothing"], [part(0, "204 No Content", batch="0a")],
    [part(2, "204 No Content")], [part(0, "204 No Content"), part(0, "404 Not Found")],
])  # fmt: skip
def test_what_makes_no_sense_or_comes_twice_says_nothing_of_any_part(parts: Sequence[str]) -> None:
    assert answer(*parts).told == {}


@pytest.mark.parametrize("told", [
    answer(part(0, "204"), content_type="text/html"), answer(part(0, "204 No Content"), boundary="other", end="--other--"),
    answer(part(0, "204 No Content"), end=""), answer(part(0, "204 No Content"), end="--batch_x"),
    GcsResponse.of(200, {}, b"", TWO_DELETIONS),
])  # fmt: skip
def test_what_is_no_batch_or_is_cut_off_is_no_answer(told: GcsResponse) -> None:
    assert not told.is_genuine


def test_a_request_has_a_part_for_each_call() -> None:
    body = BATCH.body.decode()
    assert "\r\nContent-ID: <0b+1>\r\n\r\nDELETE /storage/v1/b/blobs/o/a%2Fb?ifGenerationMatch=7 HTTP/1.1\r\n\r\n" in body
    assert unquote(body).count("--tiered_calls") == 3 and body.endswith("--tiered_calls--\r\n")
