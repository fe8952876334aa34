"""Nobody is told that bytes are stored which did not arrive, however they were written, whatever the service tells.

    each way of writing (WAYS), at each service (SERVICES), with each thing that may become of the bytes (DAMAGES)

A call ends well only if the service then has exactly what was sent. Where nothing happens to the bytes, all end well,
and a service that tells checksums gets no request more.
"""

from __future__ import annotations

import ast
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from anyio import create_task_group

import tiered
from changelog.base.errors import TieredError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from changelog.base.tasks import end_tasks
from changelog.change import ChangeId
from emulators.s3.faults import FaultyProxy
from emulators.s3.memory import Answer, Habits, MemoryLibrary, MemoryS3, Tags
from emulators.world.runtime import SimulatedRuntime
from emulators.world.services import SimulatedChangeLog, SimulatedRows
from tests.given.s3_buckets import new_bucket
from tests.given.tables import in_turn
from tiered.metadata import Metadata
from tiered.object_id import ObjectId, blob_name
from tiered.s3.blobs import S3Blobs
from tiered.s3.bucket_files import S3Files
from tiered.s3.client import S3Client
from tiered.s3.errors import Refusal
from tiered.services.backends import Tiers
from tiered.services.capabilities import Part
from tiered.services.scans import QUARANTINE, NotCopied
from tiered.settings import Settings
from tiered.storage import TieredStorage
from tiered.transfer.upload_lanes import UploadLanes

pytestmark = pytest.mark.anyio
RUNTIME = SystemRuntime()
BYTES = bytes(range(256)) * 3
PARTS = [BYTES[:300], BYTES[300:600], BYTES[600:]]
LANES = UploadLanes(2, from_bytes=0, part_bytes=300)
NAME, SOURCE = (blob_name(f"u/objects/{key}", ChangeId.new(RUNTIME)) for key in ("key", "source"))
OBJECT, LARGE = ObjectId.create("u", "key"), BYTES * 300
BESIDE = Metadata(custom={"told": "at the end"})


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# --- ways of writing ---------------------------------------------------------------------------------


class NotMadeError(Exception):
    """A copy was not made, as the answer says."""


async def whole(blobs: S3Blobs, body: bytes = BYTES) -> str:
    upload = await blobs.open_upload(NAME, Metadata(), len(body))
    if body:
        await upload.write(body)
    await upload.finalise()
    return NAME


async def stream(blobs: S3Blobs, body: bytes = BYTES, amended: Metadata | None = None) -> str:
    upload = await blobs.open_upload(NAME, Metadata(), None)
    if body:
        await upload.write(body)
    if amended is not None:
        upload.amend(amended)
    await upload.finalise()
    return NAME


async def stream_amended(blobs: S3Blobs, body: bytes = BYTES) -> str:
    name = await stream(blobs, body, BESIDE)
    head = await blobs.head(name)
    assert head is not None and head.metadata.custom == BESIDE.custom
    return name


async def parts_told(blobs: S3Blobs, body: bytes = BYTES) -> str:
    session, parts = await _parts(blobs, body)
    await blobs.complete_parts(NAME, session, parts)
    return NAME


async def parts_listed(blobs: S3Blobs, body: bytes = BYTES) -> str:
    """As an upload is completed that goes on from an offset, or in another process."""
    session, _ = await _parts(blobs, body)
    await blobs.complete_parts(NAME, session, await blobs.parts(NAME, session))
    return NAME


async def _parts(blobs: S3Blobs, body: bytes) -> tuple[str, Sequence[Part]]:
    session = await blobs.begin_parts(NAME, Metadata())
    pieces = PARTS if body else [b""]
    return session, [await blobs.put_part(NAME, session, number, [piece]) for number, piece in enumerate(pieces, 1)]


async def copy(blobs: S3Blobs, body: bytes = BYTES) -> str:
    return await _copied(blobs, await _source(blobs, body))


async def copy_of_stream(blobs: S3Blobs, body: bytes = BYTES) -> str:
    return await _copied(blobs, await _source(blobs, body, in_parts=True))


async def _copied(blobs: S3Blobs, generation: str) -> str:
    await (await blobs.open_copy(SOURCE, generation, NAME, Metadata())).finalise()
    return NAME


async def _source(blobs: S3Blobs, body: bytes, *, in_parts: bool = False) -> str:
    upload = await blobs.open_upload(SOURCE, Metadata(), None if in_parts else len(body))
    if body:
        await upload.write(body)
    await upload.finalise()
    head = await blobs.head(SOURCE)
    assert head is not None
    return head.generation


async def aside_and_back(blobs: S3Blobs, body: bytes = BYTES) -> str:
    generation, aside = await _source(blobs, body), f"{QUARANTINE}run/{SOURCE}"
    copied = await blobs.set_aside(SOURCE, generation, aside)
    if isinstance(copied, NotCopied):
        raise NotMadeError
    await blobs.delete(SOURCE)
    if isinstance(await blobs.bring_back(aside, copied, SOURCE, RUNTIME.wall_ns()), NotCopied):
        raise NotMadeError
    return SOURCE


async def feed_file(blobs: S3Blobs, body: bytes = BYTES) -> str:
    assert await S3Files(blobs.client).create("feed/1", body, "text/plain")
    return "feed/1"


WAYS = {
    each.__name__: each
    for each in (whole, stream, stream_amended, parts_told, parts_listed, copy, copy_of_stream, aside_and_back, feed_file)
}
BRINGS = {"put_object", "upload_part", "upload_part_copy", "complete_multipart_upload"}
SENDERS = {
    ("upload.py", "put_once"): {"whole", "aside_and_back"},
    ("amendments.py", "amend"): {"stream_amended"},
    ("blobs.py", "_mark"): set(),  # an object of no bytes
    ("parts.py", "send"): {"stream", "parts_told", "parts_listed"},
    ("parts.py", "copy"): {"copy", "copy_of_stream", "aside_and_back"},
    ("parts.py", "_completed"): {"stream", "parts_told", "parts_listed", "copy", "copy_of_stream", "aside_and_back"},
    ("bucket_files.py", "create"): {"feed_file"},
    ("client.py", "_is_so"): set(),  # sends none: it asks whether what was answered is so
    ("blobs.py", "sign_part"): set(),  # whoever sends it compares what he is answered
}
"""Each function that sends bytes, and the ways that go through it."""


def test_whatever_sends_bytes_is_in_the_table() -> None:
    found = {
        (path.name, function.name)
        for path in (Path(tiered.__file__).parent / "s3").glob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.AsyncFunctionDef | ast.FunctionDef)
        for each in ast.walk(function)
        if isinstance(each, ast.Constant) and each.value in BRINGS
    }
    assert found == set(SENDERS)
    assert set().union(*SENDERS.values()) == set(WAYS)


# --- services, and what becomes of bytes -------------------------------------------------------------

SERVICES = {
    "as-aws": Habits(),
    "as-minio": Habits(joins_nothing=False),
    "verifies-nothing": Habits(verifies=False),
    "tells-when-asked": Habits(verifies=False, tells=False),
    "as-ceph-16": Habits(verifies=False, tells=False, tells_asked=False),
    "own-keys": Habits(verifies=False, tells=False, tells_asked=False, tags=Tags.OTHER),
    "any-tags": Habits(verifies=False, tells=False, tells_asked=False, tags=Tags.ANY),
}
TELLS_NOTHING_OF_PARTS = {"own-keys", "any-tags"}
LEAST = {
    "whole": 1, "stream": 7, "stream_amended": 10, "parts_told": 7, "parts_listed": 8, "copy": 9, "copy_of_stream": 19,
    "aside_and_back": 19, "feed_file": 1,
}  # fmt: skip
"""How many requests each way takes, the making of its source among them, where answers tell a crc32c."""
MORE: Mapping[str, Mapping[str, int]] = {
    "as-ceph-16": {"copy_of_stream": 1},
    "own-keys": {"whole": 2, "stream": 1, "stream_amended": 3, "copy": 2, "copy_of_stream": 2, "aside_and_back": 2, "feed_file": 1},
    "any-tags": {"whole": 2, "stream": 1, "stream_amended": 3, "copy": 3, "copy_of_stream": 2, "aside_and_back": 3, "feed_file": 1},
}
"""How many more where they do not: to look, and to read back."""
AS_LISTED = "whoever completes an upload of others takes its parts as they are listed; the number is in the address, which is signed"
NOT_NOTICED = {("parts_listed", "exchanged"): AS_LISTED}


def flipped(operation: str, named: dict[str, Any]) -> None:
    if named.get("Body"):
        named["Body"] = named["Body"][:-1] + bytes([named["Body"][-1] ^ 1])


def cut(operation: str, named: dict[str, Any]) -> None:
    if named.get("Body"):
        named["Body"] = named["Body"][1:]
        named["ContentLength"] = len(named["Body"])


def exchanged(operation: str, named: dict[str, Any]) -> None:
    if operation == "upload_part" and named["PartNumber"] < 3:
        named["PartNumber"] = 3 - named["PartNumber"]


def nothing(operation: str, named: dict[str, Any]) -> None:
    pass


@dataclass
class DamagingLibrary(MemoryLibrary):
    """`damage`: what becomes of requests that bring bytes, of the first `left` of them."""

    server: MemoryS3
    damage: Callable[[str, dict[str, Any]], None] = nothing
    left: int = 1000
    asked: list[str] = field(default_factory=list)

    async def send(self, operation: str, named: Mapping[str, Any]) -> Answer:
        self.asked.append(operation)
        changed = dict(named)
        if operation in BRINGS and self.left:
            self.damage(operation, changed)
            if changed != named:
                self.left -= 1
        return await super().send(operation, changed)


@asynccontextmanager
async def connected(library: DamagingLibrary) -> AsyncIterator[S3Blobs]:
    tasks = create_task_group()
    await tasks.__aenter__()
    try:
        client = S3Client(library, library.server.bucket, "memory", 64, 5)
        yield S3Blobs(client, tasks, RUNTIME, "", LANES, 0.3, whole_checksums=True)
    finally:
        await end_tasks(tasks, None)


@dataclass(frozen=True)
class Damage:
    on_the_way: Callable[[str, dict[str, Any]], None] = nothing
    requests: int = 1000
    mixes_up: bool = False
    damages_copies: bool = False


DAMAGES = {
    "flipped": Damage(flipped), "flipped-once": Damage(flipped, 1), "cut": Damage(cut), "cut-once": Damage(cut, 1),
    "exchanged": Damage(exchanged), "put-together-wrongly": Damage(mixes_up=True), "copied-wrongly": Damage(damages_copies=True),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("way", WAYS)
async def test_what_did_not_arrive_is_never_acknowledged(way: str, service: str) -> None:
    for damage, what in DAMAGES.items():
        habits = replace(SERVICES[service], mixes_up=what.mixes_up, damages_copies=what.damages_copies)
        server = MemoryS3(RUNTIME, part_bytes_min=0, habits=habits)
        library = DamagingLibrary(server, what.on_the_way, what.requests)
        async with connected(library) as blobs:
            try:
                name = await WAYS[way](blobs)
            except (TieredError, NotMadeError):
                continue
        assert (way, damage) in NOT_NOTICED or server.objects[name].body == BYTES, damage


@pytest.mark.parametrize("body", [BYTES, b""], ids=["bytes", "empty"])
@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("way", WAYS)
async def test_what_arrived_is_acknowledged_with_as_few_requests_as_can_be(way: str, service: str, body: bytes) -> None:
    server = MemoryS3(RUNTIME, part_bytes_min=0, habits=SERVICES[service])
    library = DamagingLibrary(server)
    async with connected(library) as blobs:
        if way.startswith("parts") and service in TELLS_NOTHING_OF_PARTS:
            with pytest.raises(UnconfirmedError, match="put the object as a whole"):
                await WAYS[way](blobs, body)
            return
        name = await WAYS[way](blobs, body)
    assert server.objects[name].body == body
    if body:
        assert len(library.asked) - LEAST[way] == MORE.get(service, {}).get(way, 0), library.asked


@pytest.mark.slow
async def test_nothing_is_written_in_each_way_to_real_servers(blobs: S3Blobs) -> None:
    for way in WAYS.values():
        name = await way(blobs, b"")
        told = await blobs.client.call("head_object", "looking", Key=name)
        assert not isinstance(told, Refusal) and told["ContentLength"] == 0, way
        for each in (name, SOURCE):
            await blobs.delete(each)


# --- a store, and a real server ----------------------------------------------------------------------


SETTINGS = Settings(inline_bytes_max=100, directory=".", store={"answer_budget_s": 1})


@asynccontextmanager
async def store_on(blobs: S3Blobs) -> AsyncIterator[TieredStorage]:
    runtime = SimulatedRuntime(1)
    tiers = Tiers(SimulatedRows(runtime), blobs)
    async with TieredStorage(tiers, SimulatedChangeLog(runtime), RUNTIME, SETTINGS) as storage:
        yield storage


async def put_known(storage: TieredStorage) -> None:
    await storage.put(OBJECT, LARGE)


async def put_stream(storage: TieredStorage) -> None:
    async def payload() -> AsyncIterator[bytes]:
        for start in range(0, len(LARGE), 1000):
            yield LARGE[start : start + 1000]

    await storage.put(OBJECT, payload())


async def put_in_parts(storage: TieredStorage) -> None:
    upload = await storage.begin_multipart(OBJECT)
    for number, start in enumerate(range(0, len(LARGE), 60_000), 1):
        await upload.upload_part(number, LARGE[start : start + 60_000])
    await upload.complete()


async def put_resumed(storage: TieredStorage) -> None:
    upload = await storage.begin_resumable(OBJECT)
    assert await upload.append(0, LARGE, final=True) == len(LARGE)
    await upload.finish()


PUTS = {"known": put_known, "stream": put_stream, "in parts": put_in_parts, "resumed": put_resumed}
ON_THE_WAY: Mapping[str, Callable[[str, bytes], bytes] | None] = {
    "nothing": None, "flipped": lambda path, body: bytes([body[0] ^ 1]) + body[1:] if body else body, "cut": lambda path, body: body[:-1],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("way", "damage", "checksums"), in_turn(PUTS, ON_THE_WAY, ["told", "not told"]))
async def test_a_store_on_a_server_behind_a_connection_that_damages_keeps_what_it_had(
    moto_url: str, way: str, damage: str, checksums: str
) -> None:
    put = PUTS[way]
    lanes = UploadLanes(2, from_bytes=0, part_bytes=60_000)
    async with (
        FaultyProxy(moto_url).serve() as proxy,
        new_bucket(proxy.url, RUNTIME, lanes=lanes, upload_budget_s=0.3, whole_checksums=False) as blobs,
        store_on(blobs) as storage,
    ):
        await storage.put(OBJECT, b"before")
        proxy.has_checksums, proxy.damages = checksums == "told", ON_THE_WAY[damage]
        if damage == "nothing":
            await put(storage)
        else:
            with pytest.raises(TieredError):
                await put(storage)
        proxy.damages = None
        stored = await storage.get(OBJECT)
        assert stored is not None
        assert await stored.read() == (LARGE if damage == "nothing" else b"before")
