"""Uploads that are cut off go on where they were, as long as their bytes can be had again and there is progress."""

from __future__ import annotations

import io
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from itertools import product
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import tiered.gcs.upload
import tiered.transfer.resuming
from changelog.base.errors import InvalidRequestError, UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from emulators.gcs.server import FaultMode, GcsEmulator, GcsFault
from emulators.gcs.store import Bucket
from tests.given.cutting_proxy import CutKind, CuttingProxy, cutting_proxy
from tests.given.tables import in_turn
from tests.suites import share
from tiered import Metadata, ObjectId, Settings, TieredStorage
from tiered.gcs.blobs import GcsBlobs
from tiered.gcs.upload import SingleUpload
from tiered.payload.streams import chunks
from tiered.services.backends import Tiers
from tiered.testing.log import MemoryChangeLog
from tiered.testing.rows import MemoryRows
from tiered.transfer.upload_lanes import UploadLanes

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KIB, MIB = 1024, 1024 * 1024
NAME = "attachments/org.17/objects/abc123/018bcfe5-6800-7000-8000-000000000001"
OBJECT = ObjectId.create("notes", "large")
SINGLE, LARGE = os.urandom(6 * MIB + 11), os.urandom(12 * MIB + 7)
RUNTIME = SystemRuntime()
Make = Callable[[str, bytes, Path], Any]
LANES = UploadLanes(3, from_bytes=9 * MIB, part_bytes=MIB)


@pytest.fixture
async def proxy(server: GcsEmulator) -> AsyncIterator[CuttingProxy]:
    server.parts.part_bytes_min = MIB
    async with cutting_proxy(server.url) as proxy:
        yield proxy


@asynccontextmanager
async def a_store(url: str, **options: Any) -> AsyncIterator[TieredStorage]:
    chosen: dict[str, Any] = {"answer_timeout_s": 0.5, "upload_budget_s": 10.0, "lanes": UploadLanes(1)} | options
    async with GcsBlobs.connect("blobs", RUNTIME, endpoint=url, **chosen) as blobs:
        log = MemoryChangeLog(RUNTIME)
        async with TieredStorage(Tiers(MemoryRows(RUNTIME), blobs), log, RUNTIME, Settings(directory="unused")) as storage:
            yield storage
        assert blobs._resuming.held == 0


@pytest.fixture
def sources() -> Iterator[Make]:
    """Makes payloads, and closes what it opened."""
    with ExitStack() as opened:

        def make(kind: str, payload: bytes, folder: Path) -> Any:
            made = (SOURCES | SPOOLED)[kind](payload, folder)
            return opened.enter_context(made) if hasattr(made, "fileno") and kind != "bytesio" else made

        yield make


async def stored(bucket: Bucket) -> bytes:
    [blob] = bucket.objects.values()
    return bytes(blob.payload)


async def in_pieces(payload: bytes, size: int = 100_000) -> AsyncIterator[bytes]:
    for start in range(0, len(payload), size):
        yield payload[start : start + size]
        await anyio.lowlevel.checkpoint()


def an_iterator(payload: bytes) -> Iterator[bytes]:
    yield from (payload[start : start + 100_000] for start in range(0, len(payload), 100_000))


def a_path(payload: bytes, folder: Path) -> Path:
    (path := folder / "payload").write_bytes(payload)
    return path


def a_file(payload: bytes, folder: Path) -> Any:
    (path := folder / "payload").write_bytes(b"before" + payload)
    file = path.open("rb")
    file.seek(6)
    return file


def a_bytesio(payload: bytes, folder: Path) -> io.BytesIO:
    file = io.BytesIO(b"before" + payload)
    file.seek(6)
    return file


def spooled(payload: bytes, bytes_max: int) -> Any:
    """A file as web frameworks hand uploads over."""
    file = SpooledTemporaryFile(bytes_max)  # noqa: SIM115 - the fixture closes it
    file.write(b"before" + payload)
    file.seek(6)
    return file


SOURCES: dict[str, Callable[[bytes, Path], Any]] = {
    "path": a_path, "file": a_file, "bytesio": a_bytesio,
    "bytes": lambda payload, folder: payload, "bytearray": lambda payload, folder: bytearray(payload),
    "stream": lambda payload, folder: in_pieces(payload), "iterator": lambda payload, folder: an_iterator(payload),
}  # fmt: skip
SPOOLED: dict[str, Callable[[bytes, Path], Any]] = {
    "spooled": lambda payload, folder: spooled(payload, 2 * len(payload)), "rolled over": lambda payload, folder: spooled(payload, 10),
}  # fmt: skip
WAYS: dict[str, tuple[bytes, bool, UploadLanes]] = {
    "session": (LARGE, True, UploadLanes(1)), "unknown": (LARGE, False, UploadLanes(1)),
    "lanes": (LARGE, True, LANES),
}  # fmt: skip
EVERY_WAY = pytest.mark.parametrize("way", WAYS)
LOST = (FaultMode.DROP_BEFORE, FaultMode.DROP_AFTER, FaultMode.STALL_AFTER, FaultMode.TRUNCATE)
IN_A_SESSION, IN_LANES = ("upload.start", "upload.put", "upload.status"), ("xml.parts.start", "xml.parts.put", "xml.parts.complete")
"""The requests of each way. The status is asked for when a part failed."""


@pytest.mark.parametrize(("source", "way", "kind"), in_turn(SOURCES, WAYS, CutKind))
async def test_a_put_that_was_cut_off_goes_on_where_it_was(
    proxy: CuttingProxy, bucket: Bucket, tmp_path: Path, sources: Make, source: str, way: str, kind: CutKind
) -> None:
    payload, is_known, lanes = WAYS[way]
    dice = random.Random(f"{source} {way} {kind}")
    proxy.cuts.extend((at, kind) for at in sorted(dice.randrange(2000, len(payload)) for _ in range(2)))
    async with a_store(proxy.url, lanes=lanes) as storage:
        await storage.put(OBJECT, sources(source, payload, tmp_path), Metadata(size=len(payload) if is_known else None))
    assert proxy.done == [kind] * 2 and await stored(bucket) == payload


@pytest.mark.parametrize(
    ("at", "way"), in_turn([1, 300, 900, 1500, 2500, len(LARGE) // 2, len(LARGE), len(LARGE) + 500, len(LARGE) + 900], WAYS)
)
async def test_a_cut_may_be_at_any_byte(proxy: CuttingProxy, bucket: Bucket, at: int, way: str) -> None:
    payload, is_known, lanes = WAYS[way]
    proxy.cuts.append((at, CutKind.RESET))
    async with a_store(proxy.url, lanes=lanes) as storage:
        await storage.put(OBJECT, payload if is_known else in_pieces(payload))
    assert await stored(bucket) == payload and (proxy.done == [CutKind.RESET] or proxy.taken < at)


@pytest.mark.parametrize(("text", "status", "way"), share(in_turn([None, "<html>busy"], [308, 408, 429, 500, 502, 503, 504], WAYS), 3))
async def test_a_service_that_turns_it_away_for_a_while_is_asked_again(
    server: GcsEmulator, bucket: Bucket, way: str, status: int, text: str | None
) -> None:
    server.parts.part_bytes_min = MIB
    payload, is_known, lanes = WAYS[way]
    if way == "lanes" and status == 308:
        return
    for kind in IN_LANES if way == "lanes" else IN_A_SESSION if status != 308 else ["upload.put"]:
        times = 1 if kind == "upload.put" else 3  # its bytes are in the session, as the status then says
        server.faults.append(GcsFault(FaultMode.STATUS, kind, status=status, text=text, times=times))
    async with a_store(server.url, lanes=lanes) as storage:
        await storage.put(OBJECT, payload if is_known else in_pieces(payload))
    assert await stored(bucket) == payload


@EVERY_WAY
async def test_what_is_told_at_the_end_is_told_again_for_a_while(server: GcsEmulator, bucket: Bucket, way: str) -> None:
    server.parts.part_bytes_min = MIB
    payload, is_known, lanes = WAYS[way]
    server.faults.append(GcsFault(FaultMode.STATUS, "object.patch", status=503, times=5))
    async with a_store(server.url, lanes=lanes) as storage:
        await storage.put(OBJECT, payload if is_known else in_pieces(payload), custom_at_end=lambda: {"sum": "1"})
    [blob] = bucket.objects.values()
    assert [value for key, value in blob.metadata.items() if key.endswith("sum")] == ["1"]


@pytest.mark.parametrize("told", ["bytes=0-262143", "bytes=0-9", "bytes=0-99999999999", "nonsense"])
async def test_a_308_with_another_offset_than_was_sent_is_asked_for(server: GcsEmulator, bucket: Bucket, told: str) -> None:
    for kind in ("upload.put", "upload.status"):
        server.faults.append(GcsFault(FaultMode.STATUS, kind, status=308, headers={"Range": told}, text="", times=1))
    async with a_store(server.url) as storage:
        await storage.put(OBJECT, LARGE)
    assert await stored(bucket) == LARGE


@pytest.mark.parametrize(("way", "mode"), share(list(product(WAYS, LOST)), 4))
async def test_each_request_may_be_lost_with_its_answer(
    server: GcsEmulator, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, way: str, mode: FaultMode
) -> None:
    server.parts.part_bytes_min = MIB
    monkeypatch.setattr("tiered.gcs.parts.COMPLETION_ANSWERS", 3)  # one that stalls is waited for so many times as long
    payload, is_known, lanes = WAYS[way]
    for kind in IN_LANES if way == "lanes" else IN_A_SESSION:
        server.faults.append(GcsFault(mode, kind, times=1))
    async with a_store(server.url, lanes=lanes) as storage:
        await storage.put(OBJECT, payload if is_known else in_pieces(payload))
    assert await stored(bucket) == payload


@pytest.mark.parametrize(("kind", "is_held"), share(list(product(CutKind, [True, False])), 3))
async def test_a_single_request_that_was_cut_off_before_its_end_was_sent_is_sent_anew(
    proxy: CuttingProxy, server: GcsEmulator, bucket: Bucket, kind: CutKind, is_held: bool
) -> None:
    proxy.cuts.extend([(MIB, kind), (3 * MIB, kind)])
    async with GcsBlobs.connect("blobs", RUNTIME, endpoint=proxy.url, answer_timeout_s=2) as blobs:
        upload = await blobs.open_upload(NAME, Metadata(), len(SINGLE))
        assert isinstance(upload, SingleUpload)
        if not is_held and (reread := chunks(SINGLE).reread()) is not None:
            upload.resume_with(reread)
        for start in range(0, len(SINGLE), MIB):
            await upload.write(SINGLE[start : start + MIB])
        with anyio.fail_after(20):
            while len(proxy.done) < 2:  # noqa: ASYNC110 - the proxy sends no events
                await anyio.sleep(0.01)
        await upload.finalise()
    assert await stored(bucket) == SINGLE and not server.sessions


async def test_what_was_stored_is_not_sent_again(proxy: CuttingProxy, bucket: Bucket, tmp_path: Path) -> None:
    proxy.cuts.append((10 * MIB, CutKind.RESET))
    async with a_store(proxy.url) as storage:
        await storage.put(OBJECT, a_path(LARGE, tmp_path))
    assert await stored(bucket) == LARGE and proxy.taken < len(LARGE) + 2 * MIB and proxy.done == [CutKind.RESET]


@pytest.mark.parametrize(("way", "kind", "told"), [("lanes", "xml.parts.put", "part="), ("session", "upload.put", "reached=")])
async def test_the_log_tells_once_which_part_is_sent_again(
    server: GcsEmulator, caplog: pytest.LogCaptureFixture, way: str, kind: str, told: str
) -> None:
    payload, _, lanes = WAYS[way]
    server.parts.part_bytes_min = MIB
    server.faults.append(GcsFault(FaultMode.DROP_BEFORE, kind))
    async with a_store(server.url, lanes=lanes, answer_timeout_s=30) as storage:  # no other request may fail
        await storage.put(OBJECT, payload)
    [line] = [record.getMessage() for record in caplog.records if "upload_cut_off" in record.getMessage()]
    assert told in line and "broke off" in line and "notes/objects/large" in line


# --- when it gives up ----------------------------------------------------------------------------


@EVERY_WAY
async def test_without_progress_it_gives_up_and_says_how_far_it_was(server: GcsEmulator, bucket: Bucket, way: str) -> None:
    payload, is_known, lanes = WAYS[way]
    server.parts.part_bytes_min = MIB
    async with cutting_proxy(server.url) as proxy, a_store(proxy.url, lanes=lanes, upload_budget_s=1.5) as storage:
        proxy.cuts.extend((5 * MIB, CutKind.RESET) for _ in range(100_000))
        with pytest.raises(UnavailableError, match=r"service has .*bytes") as caught, anyio.fail_after(20):
            await storage.put(OBJECT, payload if is_known else in_pieces(payload))
        proxy.cuts.clear()
        assert str(len(payload)) in str(caught.value) or not is_known
    assert not bucket.objects


async def test_progress_renews_the_budget(proxy: CuttingProxy, bucket: Bucket) -> None:
    proxy.cuts.extend((at * MIB, CutKind.STALL) for at in range(1, 6))
    async with a_store(proxy.url, upload_budget_s=1.5) as storage:
        await storage.put(OBJECT, LARGE)
    assert await stored(bucket) == LARGE and proxy.done == [CutKind.STALL] * 5, "each is waited for half a second"


async def test_a_stream_whose_bytes_are_not_held_any_more_says_so(
    server: GcsEmulator, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiered.transfer.resuming, "HELD_BYTES", 256 * KIB)
    monkeypatch.setattr(tiered.gcs.upload, "HELD_BYTES", 256 * KIB)
    server.faults.append(GcsFault(FaultMode.STATUS, "upload.status", status=308, headers={"Range": "bytes=0-262143"}, text="", times=None))
    proxy.cuts.append((8 * MIB, CutKind.RESET))
    async with a_store(proxy.url) as storage:
        with pytest.raises(UnavailableError, match="the service has 262144 bytes, and the payload cannot be read again from there"):
            await storage.put(OBJECT, in_pieces(LARGE))


async def test_an_end_that_may_have_arrived_stays_unconfirmed_when_it_gives_up(server: GcsEmulator) -> None:
    server.faults += [
        GcsFault(FaultMode.STALL_BEFORE, "upload.put"), GcsFault(FaultMode.STATUS, "upload.put", status=429, times=None),
        GcsFault(FaultMode.STATUS, "upload.status", status=308, text="", times=None),
    ]  # fmt: skip
    async with GcsBlobs.connect("blobs", RUNTIME, endpoint=server.url, answer_timeout_s=0.3, upload_budget_s=0.5) as blobs:
        upload = await blobs.open_upload(NAME, Metadata(), None)
        await upload.write(b"x")
        with pytest.raises(UnconfirmedError, match=r"no more than 0 bytes of 1"):
            await upload.finalise()


async def test_a_single_request_is_not_sent_again_once_its_end_may_have_arrived(server: GcsEmulator) -> None:
    """It would arrive twice, and late, and nobody could call it back."""
    server.faults.append(GcsFault(FaultMode.DROP_BEFORE, "upload.multipart"))
    async with GcsBlobs.connect("blobs", RUNTIME, endpoint=server.url, upload_budget_s=5) as blobs:
        upload = await blobs.open_upload(NAME, Metadata(), 1)
        await upload.write(b"x")
        with pytest.raises(UnconfirmedError):
            await upload.finalise()
    assert server.calls.count("upload.multipart") == 1


async def test_a_session_that_was_cancelled_meanwhile_is_not_gone_on_with(server: GcsEmulator, proxy: CuttingProxy) -> None:
    async with GcsBlobs.connect("blobs", RUNTIME, endpoint=proxy.url, upload_budget_s=5) as blobs:
        upload = await blobs.open_upload(NAME, Metadata(), None)
        await upload.write(bytes(MIB))
        assert upload.session is not None
        await blobs.cancel(upload.session)
        with pytest.raises(UnavailableError, match="cancelled before"):
            await upload.finalise()


async def test_a_budget_of_zero_goes_on_with_nothing(proxy: CuttingProxy) -> None:
    proxy.cuts.append((5 * MIB, CutKind.RESET))
    async with a_store(proxy.url, upload_budget_s=0) as storage:
        with pytest.raises(UnavailableError, match="broke off"):
            await storage.put(OBJECT, LARGE)
    assert len(proxy.done) == 1


async def test_a_slow_stream_that_is_cut_off_while_it_has_nothing_to_send_does_not_use_up_the_budget(
    server: GcsEmulator, proxy: CuttingProxy, bucket: Bucket
) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield bytes(MIB)
        for at in range(8):
            proxy.cuts.append((proxy.taken + at, CutKind.RESET))
            yield bytes(100)
            await anyio.sleep(0.3)

    async with a_store(proxy.url, upload_budget_s=1.0) as storage:
        await storage.put(OBJECT, slow())
    assert len(await stored(bucket)) == MIB + 800 and proxy.done == [CutKind.RESET] * 8


# --- payloads that change ------------------------------------------------------------------------


@pytest.mark.parametrize("changed", ["shorter", "other"])
async def test_a_file_that_changed_before_it_was_read_again_is_noticed(
    server: GcsEmulator, proxy: CuttingProxy, bucket: Bucket, tmp_path: Path, changed: str
) -> None:
    path = a_path(LARGE, tmp_path)

    def change(so_far: int, total: int | None) -> None:
        if so_far == total:
            if changed == "shorter":
                os.truncate(path, 7 * MIB)
            else:
                path.write_bytes(bytes(len(LARGE)))

    server.faults.append(GcsFault(FaultMode.STATUS, "upload.status", status=308, headers={"Range": "bytes=0-1048575"}, text=""))
    proxy.cuts.append((len(LARGE) + 200, CutKind.RESET))
    async with a_store(proxy.url) as storage:
        with pytest.raises((InvalidRequestError, UnavailableError), match=r"became shorter|payload was changed before it was read again"):
            await storage.put(OBJECT, path, progress=change)
    assert not bucket.objects


# --- payloads that can be read again -------------------------------------------------------------


@pytest.mark.parametrize("source", [*SOURCES, *SPOOLED])
async def test_a_payload_is_read_again_from_where_it_began(tmp_path: Path, sources: Make, source: str) -> None:
    payload = SINGLE
    whole = chunks(sources(source, payload, tmp_path))
    first = await anext(whole)
    reread = whole.reread()
    assert (reread is None) == (source in ("stream", "iterator"))
    rest = [first, *[chunk async for chunk in whole]]
    assert b"".join(rest) == payload
    if reread is not None:
        for start, stop in ((0, len(payload)), (5, 5), (1_000_001, 3_000_007)):
            assert b"".join([chunk async for chunk in reread(start, stop)]) == payload[start:stop]
    await whole.aclose()
    if source == "path" and reread is not None:
        with pytest.raises(InvalidRequestError, match="cannot be read"):
            await anext(aiter(reread(0, 1)))


async def test_a_file_that_is_closed_is_never_taken_for_the_next_one_with_its_descriptor(tmp_path: Path) -> None:
    whole = chunks(a_path(SINGLE, tmp_path))
    await anext(whole)
    reread = whole.reread()
    assert reread is not None
    again = reread(0, len(SINGLE))
    first = await anext(aiter(again))
    await whole.aclose()
    (tmp_path / "other").write_bytes(bytes(len(SINGLE)))
    with (tmp_path / "other").open("rb"):
        assert b"".join([first, *[chunk async for chunk in again]]) == SINGLE
