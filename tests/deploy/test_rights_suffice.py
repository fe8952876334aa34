"""With the rights of its role on the bucket, each identity can do its work, and with fewer it cannot.

The bucket is that of our emulator, which refuses (403) each call whose right is not granted. The rows are in SQLite. So
the rights on Bigtable are checked in `test_rights.py` alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from changelog.base.errors import ConfigurationError, TieredError
from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from changelog.sqlite.database import Database
from changelog.sqlite.log import SqliteChangeLog
from emulators.gcs.server import GcsEmulator
from emulators.gcs.wire_faults import FaultMode, GcsFault
from recovery.feed.sinks.gcs import gcs_sink
from recovery.feed.sinks.sink import Segment
from tests.deploy.test_rights import granted
from tests.given.recovered import recover_until_empty
from tests.given.repository import ROOT
from tiered import Metadata, ObjectId, ObjectPrefix, Settings, TieredStorage, TimeToIdle
from tiered.embedded.rows import SqliteRows
from tiered.exports import export_objects, import_objects, verify_export
from tiered.gcs.blobs import GcsBlobs
from tiered.object_id import blob_name
from tiered.open import Backends
from tiered.services.backends import Tiers
from tiered.services.scans import Removal
from tiered.settings import GcsSettings, LeaseSettings, RecoverySettings

RIGHT_OF = {
    "object.get": "storage.objects.get",
    "object.list": "storage.objects.list",
    "object.patch": "storage.objects.update",
    "object.delete": "storage.objects.delete",
    "upload.start": "storage.objects.create",
    "upload.multipart": "storage.objects.create",
    "object.read": "storage.objects.get",
    "object.rewrite": "storage.objects.create",
    "object.restore": "storage.objects.restore",
    "xml.parts.start": "storage.multipartUploads.create",
    "xml.parts.put": "storage.multipartUploads.create",
    "xml.parts.complete": "storage.multipartUploads.create",
    "xml.parts.list": "storage.multipartUploads.listParts",
    "xml.parts.cancel": "storage.multipartUploads.abort",
    "xml.uploads": "storage.multipartUploads.list",
}
"""The right that each call of the emulator needs. Calls to a session need none: its address is the right."""

RUNTIME = SystemRuntime()
OBJECT = ObjectId.create("photos", "cat")
LARGE = b"large" * 500
BLOBS = 4


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def server(anyio_backend: str) -> AsyncIterator[GcsEmulator]:
    async with GcsEmulator() as server:
        server.create_bucket("blobs")
        yield server


@pytest.fixture
async def backends(server: GcsEmulator, tmp_path: Path) -> AsyncIterator[Backends]:
    async with Database.open(tmp_path / "rows.db", RUNTIME) as database, opened(server) as blobs:
        yield Backends(Tiers(SqliteRows(database, RUNTIME), blobs), SqliteChangeLog(database, RUNTIME))


@asynccontextmanager
async def opened(server: GcsEmulator) -> AsyncIterator[GcsBlobs]:
    async with GcsBlobs.connect("blobs", RUNTIME, endpoint=server.url) as blobs:
        yield blobs


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        directory=tmp_path, inline_bytes_max=100, recovery=RecoverySettings(idle_s=0.01, late_upload_grace_s=0.2),
    )


def grant(server: GcsEmulator, rights: Iterable[str]) -> None:
    """From now on the bucket refuses what these rights do not allow."""
    assert set(rights) <= set(RIGHT_OF.values())
    server.faults[:] = [
        GcsFault(FaultMode.STATUS, kind=kind, times=None, status=403) for kind, right in RIGHT_OF.items() if right not in rights
    ]


async def write_and_read(backends: Backends, settings: Settings) -> None:
    async with TieredStorage(backends.tiers, backends.log, RUNTIME, settings) as storage:
        await storage.put(OBJECT, LARGE, Metadata(expiration=TimeToIdle(timedelta(hours=1))))
        stored = await storage.get(OBJECT)
        assert stored is not None and await stored.read() == LARGE
        await storage.put(OBJECT, pieces())
        assert await storage.head(OBJECT) is not None
        await storage.delete(OBJECT)


async def pieces() -> AsyncIterator[bytes]:
    for _ in range(3):
        yield LARGE


async def test_a_writer_needs_every_right_of_its_role(server: GcsEmulator, backends: Backends, settings: Settings) -> None:
    grant(server, granted("blobs-writer"))
    await write_and_read(backends, settings)
    assert not server.buckets["blobs"].objects
    assert await backends.tiers.long_term.touch("nothing", 1) is False
    for right in ("storage.objects.create", "storage.objects.get"):
        grant(server, set(granted("blobs-writer")) - {right})
        with pytest.raises(ConfigurationError, match="grant"):
            await write_and_read(backends, settings)


async def test_a_writer_uploads_in_parts_and_a_sweeper_ends_that(server: GcsEmulator, backends: Backends) -> None:
    blobs = backends.tiers.long_term
    assert isinstance(blobs, GcsBlobs)
    grant(server, granted("blobs-writer"))
    for name, ends in (("cat", False), ("dog", True)):
        session = await blobs.begin_parts(name, Metadata())
        await blobs.put_part(name, session, 1, [LARGE])
        if ends:
            grant(server, granted("blobs-sweeper"))
            await blobs.cancel(session)
        else:
            await blobs.complete_parts(name, session, await blobs.parts(name, session))
    assert list(server.buckets["blobs"].objects) == ["cat"] and not server.parts.uploads
    with pytest.raises(ConfigurationError, match="grant"):
        await blobs.begin_parts("bird", Metadata())
    calls: dict[str, Callable[[str], Awaitable[object]]] = {
        "create": lambda session: blobs.put_part("cat", session, 1, [LARGE]), "listParts": lambda session: blobs.parts("cat", session),
        "abort": blobs.cancel,
    }  # fmt: skip
    for right, call in calls.items():
        grant(server, granted("blobs-writer"))
        session = await blobs.begin_parts("cat", Metadata())
        grant(server, set(granted("blobs-writer")) - {f"storage.multipartUploads.{right}"})
        with pytest.raises(ConfigurationError, match="grant"):
            await call(session)


async def test_a_reader_and_an_audit_only_look(server: GcsEmulator, backends: Backends, settings: Settings) -> None:
    async with TieredStorage(backends.tiers, backends.log, RUNTIME, settings) as storage:
        await storage.put(OBJECT, LARGE)
        grant(server, granted("blobs-reader"))
        stored = await storage.get(OBJECT)
        assert stored is not None and await stored.read() == LARGE
        blobs = backends.tiers.long_term
        assert isinstance(blobs, GcsBlobs)
        [blob] = (await blobs.list("", None, 10)).blobs
        assert await blobs.head(blob.name) is not None and await blobs.head(f"{blob.name}x") is None
        assert await blobs.now_ns() > 0 and await blobs.deleted_generations(blob.name) == []
        with pytest.raises(TieredError, match="grant"):
            await blobs.delete(blob.name)
        grant(server, granted("blobs-writer"))


async def test_a_restorer_brings_back_what_was_deleted_and_a_writer_may_not(server: GcsEmulator, backends: Backends) -> None:
    """What `tiered audit restore` asks of the bucket: of soft delete, and of a quarantine."""
    server.create_bucket("kept", {"softDeletePolicy": {"retentionDurationSeconds": 604_800}})
    async with GcsBlobs.connect("kept", RUNTIME, endpoint=server.url) as blobs:
        upload = await blobs.open_upload("cat", Metadata(), len(LARGE))
        await upload.write(LARGE)
        await upload.finalise()
        found = await blobs.head("cat")
        assert found is not None
        grant(server, granted("blobs-restorer"))
        copied = await blobs.set_aside("cat", found.generation, "~quarantine/cat")
        assert isinstance(copied, str)
        assert await blobs.delete_generation("cat", found.generation) is Removal.DELETED
        [kept] = await blobs.deleted_generations("cat")
        grant(server, granted("blobs-writer"))
        with pytest.raises(ConfigurationError, match="grant"):
            await blobs.restore("cat", kept.generation)
        grant(server, granted("blobs-restorer"))
        assert await blobs.restore("cat", kept.generation) is not None and await blobs.head("cat") is not None
        assert await blobs.delete_generation("~quarantine/cat", copied) is Removal.DELETED


async def test_an_export_and_an_import_need_the_rights_that_the_guide_names(
    server: GcsEmulator, backends: Backends, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    to = {"storage.objects.create", "storage.objects.delete", "storage.objects.get", "storage.objects.list"}
    source = {"storage.objects.get", "storage.objects.list"}
    small = settings.model_copy(update={"inline_bytes_max": len(LARGE)})  # in the bucket of blobs, nothing is
    async with TieredStorage(backends.tiers, backends.log, RUNTIME, small) as storage:
        await storage.put(OBJECT, LARGE)
        grant(server, to)
        for _ in range(2):
            assert (await export_objects(storage, "gs://blobs/e", update=True)).complete
        for right in to:
            grant(server, to - {right})
            with pytest.raises(ConfigurationError, match="grant"):
                await export_objects(storage, "gs://blobs/e", update=True)
        grant(server, source)
        assert (await verify_export("gs://blobs/e")).complete
        report = await import_objects(storage, "gs://blobs/e/payloads", ObjectPrefix.create("came", ""))
        assert (report.copied, report.failed) == (1, 0)
        grant(server, {"storage.objects.get"})
        assert (await import_objects(storage, "gs://blobs/e")).unchanged == 1
        grant(server, RIGHT_OF.values())
    guide = (ROOT / "docs/guides/migrate.md").read_text()
    assert "`storage.objects.create`, `delete`, `get` and `list`" in guide


async def test_the_writer_of_a_feed_adds_files_and_may_not_change_one(server: GcsEmulator) -> None:
    """It delivers with the rights of its role, also what is there already. With one right less it cannot."""
    segments = [Segment.of(1, time, b"{}\n", "json") for time in (0, 7)]
    bucket = GcsSettings(bucket="blobs", endpoint=server.url)
    grant(server, granted("feed-writer"))

    async def deliver(*which: Segment) -> None:
        sink = gcs_sink(bucket, "live", RUNTIME)
        try:
            for segment in which:
                await sink.deliver(segment)
        finally:
            await sink.aclose()

    for _ in range(2):
        await deliver(*segments)
    assert sorted(server.buckets["blobs"].objects) == [f"live/{segment.path}" for segment in segments]
    for right in granted("feed-writer"):
        grant(server, set(granted("feed-writer")) - {right})
        with pytest.raises(ConfigurationError):
            await deliver(*(segments if right != "storage.objects.list" else segments[1:]))


async def plant_what_dead_writers_leave(backends: Backends) -> None:
    """Two blobs that no row names, each with its entry: one of a session, one of a single request; and two uploads."""
    for size in (None, len(LARGE)):
        for finalised in (True, False):
            token = ChangeId.new(RUNTIME)
            name = blob_name(OBJECT.path, token)
            upload = await backends.tiers.long_term.open_upload(name, Metadata(), size)
            await backends.log.record(Change(token, OBJECT.path, name, None, upload.session), "dead")
            await upload.write(LARGE)
            if finalised:
                await upload.finalise()


async def recovered(backends: Backends, settings: Settings, within_s: float) -> bool:
    """Whether recovery finishes every entry in time. It takes over early what nobody renews."""
    settings = settings.model_copy(update={"lease": LeaseSettings(expiry_s=0.3)})
    with anyio.move_on_after(within_s):
        await recover_until_empty(backends, settings, RUNTIME)
        return True
    return False


async def test_the_daemon_cleans_up_with_the_rights_of_a_sweeper_and_goes_on_when_it_gets_one_back(
    server: GcsEmulator, backends: Backends, settings: Settings
) -> None:
    await plant_what_dead_writers_leave(backends)
    assert len(server.buckets["blobs"].objects) == 2
    grant(server, set(granted("blobs-sweeper")) - {"storage.objects.delete"})
    assert not await recovered(backends, settings, within_s=2)
    assert len(server.buckets["blobs"].objects) == 2 and len((await backends.log.entries("", 10)).entries) == BLOBS

    grant(server, granted("blobs-sweeper"))
    for entry in (await backends.log.entries("", 10, stuck_only=True)).entries:
        await backends.log.retry(entry)
    assert await recovered(backends, settings, within_s=60)
    assert not server.buckets["blobs"].objects
