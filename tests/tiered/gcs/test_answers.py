"""Whatever becomes of one answer of GCS: nothing is believed that it never said, and nothing leaves untranslated."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, cast

import pytest
from multidict import CIMultiDict

from changelog.base.runtime import SystemRuntime
from emulators.changed_answers import Asked
from emulators.gcs.server import FaultMode, GcsEmulator, GcsFault
from emulators.gcs.wire import WireRequest
from tests.given.answered_calls import (
    CALLS,
    CUSTOM,
    PAYLOAD,
    RUNTIME,
    Bench,
    Call,
    Service,
    Stage,
    bench,
    content,
    faults_of,
    generation,
    nothing,
    putting,
    reading,
    rotating,
    seen,
    stored,
    two_stored,
)  # fmt: skip
from tiered.gcs.answers import a_session
from tiered.gcs.blobs import GcsBlobs
from tiered.gcs.bucket_files import GcsFiles
from tiered.gcs.http import ConnectionSlot, GcsRequest
from tiered.protocol.capabilities import Retention
from tiered.protocol.scans import Removal
from tiered.protocol.upload_lanes import UploadLanes

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SERVERS: dict[str, GcsEmulator] = {}
"""By their addresses: some rows need a fault of the server's own."""
FILE = b'{"a": 1}\n'


def kind_of(asked: Asked) -> str:
    """What our server calls it."""
    kind = WireRequest.parse(asked.method, asked.target, CIMultiDict(asked.headers)).kind
    if kind == "batch":
        kind = f"batch of {re.findall(rb'^(GET|DELETE) ', asked.body, re.MULTILINE)[0].decode()}"
    of_range = " of a range" if asked.header("range") else ""
    return f"{kind}{of_range}"


# --- the calls that only this service has ----------------------------------------------------------------


def files(blobs: Any) -> GcsFiles:
    return GcsFiles(blobs._http, RUNTIME)


def file_of(at: Stage) -> str:
    return f"{at.path}.json"


async def file_there(at: Stage) -> None:
    assert await files(at.behind).create(file_of(at), FILE, "application/json")


async def read_file(blobs: Any, at: Stage) -> Any:
    return await files(blobs).read(file_of(at), 100)


async def names_there(blobs: Any, at: Stage) -> Any:
    return [name async for name in files(blobs).names(f"{at.path}.", "")]


async def heads(blobs: Any, at: Stage) -> Any:
    return {name: (each.size, each.generation) for name, each in (await blobs.heads([at.name, f"{at.name}x"])).items()}


async def generations(blobs: Any, at: Stage) -> Any:
    return await blobs.generations((await at.behind.list(f"{at.path}/", f"{at.path}0", 10)).blobs)


async def two_seen(at: Stage) -> None:
    await two_stored(at)
    at.made["two"] = [(each.name, each.generation) for each in (await at.behind.list(f"{at.path}/", f"{at.path}0", 10)).blobs]


async def delete_two(at: Stage) -> None:
    """A part that nobody is told of is unknown, as the whole is."""
    told = await at.front.delete_generations(at.made["two"])
    unknown = [each for each in told if not isinstance(each, Removal)]
    if unknown:
        there = [each.name for each in (await at.behind.list(f"{at.path}/", f"{at.path}0", 10)).blobs]
        gone = [name for (name, _), each in zip(at.made["two"], told, strict=True) if isinstance(each, Removal)]
        assert not set(there) & set(gone), "what was told gone is there"
        raise unknown[0]
    assert told == [Removal.DELETED] * 2, told


async def two_left(blobs: Any, at: Stage) -> Any:
    return [each.name for each in (await blobs.list(f"{at.path}/", f"{at.path}0", 10)).blobs]


async def deleted_before(at: Stage) -> None:
    await seen(at)
    await at.behind.delete(at.name)


async def deleted(blobs: Any, at: Stage) -> Any:
    return await blobs.deleted_generations(at.name)


async def restore(at: Stage) -> None:
    assert await at.front.restore(at.name, at.made["generation"]) == await generation(at)


async def kept(what: Retention, blobs: Any, at: Stage) -> Any:
    return await blobs.kept(what, f"{at.path}/", f"{at.path}0", "")


async def in_ranges(blobs: Any, at: Stage) -> Any:
    whole = await blobs.open(at.name)
    assert whole is not None
    await whole.aclose()
    part = await whole.ranges().open(2, 5)
    if part is None:
        return None
    try:
        return b"".join([chunk async for chunk in part.chunks()])
    finally:
        await part.aclose()


async def begun_session(at: Stage) -> None:
    upload = await at.front.open_upload(at.name, CUSTOM, None)
    at.made["session"] = upload.session


async def session_status(blobs: Any, at: Stage) -> Any:
    """Asked at the server's own address."""
    url = blobs._http.endpoint + at.made["session"][at.made["session"].index("/upload") :]
    asked = GcsRequest("PUT", url, "asking", a_session, headers={"Content-Range": "bytes */*"}, signed=False)
    return (await blobs._http.exchange(asked, ConnectionSlot())).status


async def put_whose_end_is_lost(at: Stage) -> None:
    SERVERS[at.behind._http.endpoint].faults.append(GcsFault(FaultMode.DROP_AFTER, "upload.put"))
    await putting(whole=False)(at)


OWN: Sequence[Call] = (
    Call("put of a stream whose answer is lost", nothing, put_whose_end_is_lost, content, PAYLOAD),
    Call("cancel a session", begun_session, lambda at: at.front.cancel(at.made["session"]), session_status, lambda at: 499),
    reading("get in ranges", stored(), in_ranges), reading("heads", two_stored, heads), reading("generations", two_stored, generations),
    reading("entries", stored(CUSTOM), lambda blobs, at: blobs.entries(at.name)),
    Call("delete of two", two_seen, delete_two, two_left, lambda at: []),
    reading("what was deleted", deleted_before, deleted), Call("restore", deleted_before, restore, content, PAYLOAD),
    reading("kept, soft-deleted", deleted_before, partial(kept, Retention.SOFT_DELETED)),
    reading("kept, noncurrent", deleted_before, partial(kept, Retention.NONCURRENT)),
    Call("create a file", nothing, lambda at: files(at.front).create(file_of(at), FILE, "application/json"), read_file, lambda at: FILE),
    reading("read a file", file_there, read_file), reading("read no file", nothing, read_file),
    reading("whether a file is equal", file_there, lambda blobs, at: files(blobs).is_equal(file_of(at), FILE)),
    reading("names of files", file_there, names_there),
    reading("whether there are files", file_there, lambda blobs, at: files(blobs).has_any(f"{at.path}.")),
)  # fmt: skip

BUCKETS: dict[str, dict[str, Any]] = {
    "soft delete": {"softDeletePolicy": {"retentionDurationSeconds": "604800"}}, "versions": {"versioning": {"enabled": True}},
    "lanes": {},
}  # fmt: skip
PAIRS = [
    *[("soft delete", call) for call in (*CALLS, *OWN)],
    *[("versions", call) for call in OWN if call.name in ("restore", "what was deleted", "kept, noncurrent")],
    *[("lanes", call) for call in CALLS if call.name.startswith("put") and call.name != "put a part"],
]  # fmt: skip
KINDS: set[str] = set()
UNTOLD: Sequence[tuple[str, str, str]] = ()


def service(server: str) -> Service:
    lanes = UploadLanes(2, 0, 8) if server == "lanes" else UploadLanes(1)

    async def make(url: str, bucket: str) -> None:
        SERVERS[url].create_bucket(bucket, BUCKETS[server])

    def opened(url: str, bucket: str, answer_timeout_s: float) -> AbstractAsyncContextManager[GcsBlobs]:
        return GcsBlobs.connect(
            bucket, SystemRuntime(), endpoint=url, answer_timeout_s=answer_timeout_s, upload_budget_s=0, lanes=lanes
        )

    return Service(server, make, opened, kind_of, (*CALLS, *OWN), KINDS, UNTOLD)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def on(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    async with GcsEmulator() as server:
        server.parts.part_bytes_min = 1
        SERVERS[server.url] = server
        async with bench(service(cast(str, request.param)), server.url) as on:
            yield on
        del SERVERS[server.url]


EACH_CALL = pytest.mark.parametrize(
    ("on", "call"), PAIRS, indirect=["on"], ids=[f"{server}: {call.name}".replace(" ", "-") for server, call in PAIRS]
)


@EACH_CALL
async def test_a_changed_answer_is_told_no_or_unknown_or_changes_nothing(on: Bench, call: Call) -> None:
    count, wrong = await faults_of(on, call, rotating(2, PAIRS.index((on.service.name, call))))
    assert count and not wrong, "\n".join(wrong)


@pytest.mark.sim
@EACH_CALL
async def test_whatever_becomes_of_an_answer(on: Bench, call: Call) -> None:
    count, wrong = await faults_of(on, call, lambda _, changes: changes)
    assert count and not wrong, f"{len(wrong)} of {count}\n" + "\n".join(wrong)
