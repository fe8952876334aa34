"""One contract suite per protocol; every implementation is a parameter of its fixture.

Bigtable's and GCS's run on their emulators, and on asyncio only, as `grpc.aio` and aiohttp do. On `MemoryBigtable`
(`bigtable-memory`) and `MemoryS3` (`s3-memory`) the same adapters run in any loop. In trio they run in virtual time, as
in the simulation. Bigtable's answers are cut into small chunks there.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from changelog.base.runtime import Runtime
from changelog.bigtable.channel import BigtableTable
from changelog.bigtable.log import BigtableChangeLog
from changelog.change import ChangeId
from changelog.log import ChangeLog
from changelog.noop import NoopChangeLog
from changelog.sqlite.log import Database, SqliteChangeLog
from emulators.bigtable.memory import MemoryBigtable, MemoryChannel
from emulators.gcs.server import GcsEmulator
from emulators.s3.memory import MemoryS3, memory_blobs
from emulators.world.runtime import SimulatedRuntime, SimulatedService
from emulators.world.services import SimulatedBlobs, SimulatedChangeLog, SimulatedRows
from recovery.prove import contract_plugin
from tests.given.fresh_schema import fresh_store
from tests.given.owned_bucket import give, owned_blobs
from tests.given.s3_buckets import new_bucket, shared_bucket
from tests.given.signed_links import LINKS
from tests.suites import may_run
from tiered.bigtable.cells import LEGACY_FAMILIES
from tiered.bigtable.rows import BigtableRows
from tiered.embedded.blobs import FileBlobs
from tiered.embedded.rows import SqliteRows
from tiered.gcs.blobs import GcsBlobs
from tiered.gcs.upload import GcsUpload
from tiered.metadata import Metadata
from tiered.open import open_storage
from tiered.provision.schema import FAMILIES
from tiered.s3.blobs import S3Blobs
from tiered.s3.format import Stored
from tiered.s3.owned import OwnedS3Blobs
from tiered.services.backends import HighVolumeBackend, LongTermBackend, Tiers
from tiered.services.capabilities import PartUploads
from tiered.settings import Settings
from tiered.storage import TieredStorage
from tiered.telemetry.observed import Observed
from tiered.telemetry.telemetry import Telemetry
from tiered.testing.clock import Clock
from tiered.testing.contracts.changelog import Plant
from tiered.testing.contracts.parts import PartsTier
from tiered.testing.log import StoredEntry
from tiered.transfer.upload_lanes import LaneUpload, UploadLanes

LOOPS = ["asyncio", "trio"]
TELEMETRY = Telemetry(registry=CollectorRegistry(), tracer_provider=TracerProvider())
"""Of the parameter `observed`: a simulated service, wrapped. The wrapper must not be noticed."""
IMPLEMENTATIONS = {
    "high_volume": ["sqlite", "simulated", "observed", "crawling", "bigtable", "bigtable-memory", "postgres"],
    "changelog": ["sqlite", "simulated", "observed", "crawling", "bigtable", "bigtable-memory", "postgres"],
    "parts_tier": [
        "filesystem", "simulated", "observed", "gcs", "gcs-prefix", "s3-memory", "s3-versitygw", "s3-prefix", "s3-moto", "s3-minio",
    ],
    "long_term": [
        "filesystem", "simulated", "observed", "crawling", "gcs", "gcs-lanes", "gcs-prefix", "fake-gcs", "s3-memory", "s3-versitygw",
        "s3-prefix", "s3-lanes", "s3-moto", "s3-minio",
    ],
    "store": ["embedded", "simulated", "observed", "google", "fake-gcs", "postgres"],
}
ON_EMULATORS = {
    "bigtable", "gcs", "gcs-lanes", "gcs-prefix", "fake-gcs", "google", "postgres", "s3-versitygw", "s3-prefix", "s3-lanes", "s3-moto",
    "s3-minio",
}  # fmt: skip
IN_MEMORY = {"bigtable-memory", "s3-memory"}
CANCELS, DELETES, REWRITES, KEEPS, NO_PARTS = (
    "takes the bytes of a session after it has cancelled it",
    "ignores ifGenerationMatch where it deletes",
    "ignores ifGenerationMatch and ifSourceGenerationMatch where it rewrites, and loses the custom time",
    "has no soft-deleted objects",
    "takes no parts by the XML API",
)
FAKE_GCS_IS_WRONG = {
    "test_a_session_that_was_cancelled_can_never_be_finalised": CANCELS,
    "test_a_session_cancelled_while_it_is_written_fails_at_the_end_at_the_latest": CANCELS,
    "test_a_generation_that_has_the_name_now_stays_when_another_is_to_be_deleted": DELETES,
    "test_many_deletions_in_one_request_are_each_by_itself": DELETES,
    "test_a_deleted_generation_is_restored_whole_under_a_new_generation": KEEPS,
    "test_a_restoration_overwrites_nothing_and_needs_a_generation_that_is_kept": KEEPS,
    "test_a_copy_has_the_bytes_and_the_metadata_and_the_blob_stays": REWRITES,
    "test_copying_is_repeatable_and_the_copy_outlives_the_blob": REWRITES,
    "test_a_copy_is_not_brought_back_after_its_deadline_or_over_another_blob": REWRITES,
    "test_a_new_blob_gets_its_bytes_from_another_and_other_metadata": REWRITES,
    "test_a_new_blob_gets_no_bytes_from_what_is_gone_and_overwrites_nothing": REWRITES,
    "test_only_the_generation_that_is_named_is_copied_and_no_blob_is_overwritten": REWRITES,
    "test_parts_become_one_object_when_they_are_completed": NO_PARTS,
    "test_an_upload_goes_on_from_the_offset_where_it_was_cut": NO_PARTS,
}
"""What GCS does and fake-gcs-server does not: test, and why it fails there. A test that passes there is an error."""
AGAIN, ECHOES, ENDED, PAGES, RACES = (
    "answers the deletion of what is gone with 204, whatever If-Match says, where S3 answers 404",
    "repeats in XML what is asked for, also the characters that XML cannot hold",
    "fails with 500 on a part of an upload that has ended",
    "lists all uploads in one page, whatever is asked for, and says that each was begun in 2010",
    "looks for an upload, then uses it, without a lock: where two requests of one meet, it fails with 500",
)
MOTO_IS_WRONG = {
    "test_finalise_raced_by_cancel_succeeds_exactly_if_the_blob_is_there": RACES,
    "test_a_listing_is_in_byte_order_whatever_the_page_and_the_range": ECHOES,
    "test_of_deletions_of_one_generation_at_once_one_tells_that_it_deleted": AGAIN,
    "test_uploads_that_have_not_ended_are_listed_page_by_page": PAGES,
    "test_completing_is_repeatable_and_ends_the_session": ENDED,
    "test_a_session_that_was_cancelled_can_never_be_completed": ENDED,
    "test_after_the_blob_was_deleted_its_session_makes_no_other": ENDED,
    "test_completion_raced_by_cancel_succeeds_exactly_if_the_blob_is_there": RACES,
    "test_a_part_raced_by_cancel_leaves_nothing": RACES,
}
FILES, ONE_BY_ONE, NAMES = (
    "keeps files: where there is one, it has no directory of its name (409 ObjectParentIsFile)",
    "removes the parts of an upload one by one while it is cancelled, so who completes it meanwhile is told that one is missing",
    "keeps files, so a name is cleaned of its dots and slashes, and each part of it has 255 bytes at the most; it tells names in XML"
    " without heeding encoding-type, so what XML cannot hold becomes U+FFFD",
)
VERSITYGW_IS_WRONG = {
    "test_a_blob_and_one_whose_name_continues_it_coexist": FILES,
    "test_a_listing_is_in_byte_order_whatever_the_page_and_the_range": NAMES,
    "test_of_deletions_of_one_generation_at_once_one_tells_that_it_deleted": AGAIN,
    "test_completion_raced_by_cancel_succeeds_exactly_if_the_blob_is_there": ONE_BY_ONE,
    "test_finalise_raced_by_cancel_succeeds_exactly_if_the_blob_is_there": ONE_BY_ONE,
}
BELOW, REFUSES, AT_ONCE = "does not list what lies below another", "refuses what is no path", "lists all uploads in one page"
MINIO_IS_WRONG = {
    "test_of_deletions_of_one_generation_at_once_one_tells_that_it_deleted": AGAIN,
    "test_uploads_that_have_not_ended_are_listed_page_by_page": AT_ONCE,
    "test_a_blob_and_one_whose_name_continues_it_coexist": BELOW,
    "test_a_listing_is_in_byte_order_whatever_the_page_and_the_range": REFUSES,
}
"""What S3 does and these do not: test, and why it fails there. What the one does wrong, another does right, but for
`AGAIN`, names that are no paths, and a completion beside a cancellation; S3 in memory does all of it right."""
NOT_RUN = {AGAIN, RACES, ECHOES, NAMES, ONE_BY_ONE, REFUSES}
"""What fails only sometimes, or takes long to."""
WRONG = {
    "fake-gcs": ("fake-gcs-server", FAKE_GCS_IS_WRONG), "s3-moto": ("moto", MOTO_IS_WRONG),
    "s3-lanes": ("moto", MOTO_IS_WRONG), "s3-versitygw": ("versitygw", VERSITYGW_IS_WRONG), "s3-prefix": ("versitygw", VERSITYGW_IS_WRONG),
    "s3-minio": ("MinIO", MINIO_IS_WRONG),
}  # fmt: skip
ONE_MORE = {"fake-gcs", "s3-moto", "s3-lanes", "s3-minio"}
"""Services beside the one of their kind that a push runs (the GCS emulator, versitygw): `make night` runs them. MinIO
is built by hand (`make night ARGS=minio`). moto alone takes parts of 60 kB."""
DIFFERS = {
    "s3-prefix": re.compile("list|range_begins|deadline|expire|neighbours|_copy|_copies|name|amended|completed_and_not|session_is_of"),
    "gcs-lanes": re.compile("upload|finalise|session|abort|chunks|mebibytes|declared|amended|metadata_are_read|head_tells_the_checksum"),
}
DIFFERS["gcs-prefix"] = DIFFERS["s3-prefix"]
"""Tests in which these may do something else than the same service without: what lies below a prefix, what goes up in
lanes. In a push they run these alone."""
IN_THREADS = {"sqlite", "filesystem", "embedded"}
"""They await only `Database` and `in_thread`, whose own tests run in both loops. In trio, `make night` runs these."""
AROUND = {"observed", "crawling"}
"""They add nothing that waits to what is `simulated`, which runs in both loops. In trio, `make night` runs these; `make
quick` runs none."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for fixture, implementations in IMPLEMENTATIONS.items():
        if fixture in metafunc.fixturenames:
            pairs = [
                pytest.param(loop, name, marks=_marks(loop, name, metafunc.function.__name__))
                for loop, name in product(LOOPS, implementations) if loop == "asyncio" or name not in ON_EMULATORS
            ]  # fmt: skip
            wanted = [pair for pair in pairs if may_run(metafunc.config.option.markexpr, pair.marks)]
            metafunc.parametrize(("anyio_backend", fixture), wanted or pairs[:1], indirect=True)


def _marks(loop: str, name: str, test: str) -> list[pytest.MarkDecorator]:
    if name in ON_EMULATORS:
        server, table = WRONG.get(name, ("", {}))
        wrong = table.get(test)
        fails = [] if wrong is None else [pytest.mark.xfail(reason=f"{server} {wrong}", strict=True, run=wrong not in NOT_RUN)]
        repeats = name in ONE_MORE or (name in DIFFERS and not DIFFERS[name].search(test))
        return [pytest.mark.slow, *fails, *([pytest.mark.night] if repeats else [])]
    return [
        *([pytest.mark.night] if loop == "trio" and name in IN_THREADS | AROUND else []),
        *([pytest.mark.slow] if name in AROUND else []),
    ]


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, object]]:
    virtual = request.param == "trio" and in_memory(request)
    return request.param, {"clock": MockClock(autojump_threshold=0)} if virtual else {}


@pytest.fixture
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return InFixturesToo(1) if in_memory(request) else Clock()


class InFixturesToo(SimulatedRuntime):
    """Where no event loop runs, it is the beginning."""

    def boot_time(self) -> float:
        try:
            return super().boot_time()
        except RuntimeError:
            return 0.0


def in_memory(request: pytest.FixtureRequest) -> bool:
    """Whether an adapter runs on a server in memory."""
    return not IN_MEMORY.isdisjoint(each for each in request.node.callspec.params.values() if isinstance(each, str))


def memory_table(runtime: Runtime) -> BigtableTable:
    return BigtableTable(MemoryChannel(MemoryBigtable(runtime, {"table": FAMILIES}, piece_bytes=61, message_chunks=5)), "table")


@asynccontextmanager
async def on_fake_gcs(url: str, runtime: Runtime) -> AsyncIterator[GcsBlobs]:
    """A new bucket of fake-gcs-server."""
    bucket = f"bucket-{ChangeId.new(runtime)}"
    async with aiohttp.ClientSession() as session, session.post(f"{url}/storage/v1/b?project=p", json={"name": bucket}) as created:
        assert created.status == 200, await created.text()
    async with GcsBlobs.connect(bucket, runtime, endpoint=url) as blobs:
        yield blobs


class LanedBlobs(GcsBlobs):
    """Blobs that go up in lanes whenever they may, and not only if they are large."""

    async def open_upload(self, name: str, metadata: Metadata, size: int | None) -> GcsUpload | LaneUpload[Mapping[str, Any]]:
        if ChangeId.matches(name.rpartition("/")[2]):
            return await self._open_lanes(name, metadata, metadata.size if size is None else size)
        return await super().open_upload(name, metadata, size)


class LanedS3Blobs(S3Blobs):
    """The same, of S3."""

    async def open_upload(self, name: str, metadata: Metadata, size: int | None) -> LaneUpload[Stored]:
        declared = metadata.size if size is None else size
        return await self._open_lanes(name, metadata, declared, partial(self._mark, name, metadata.time_expires_ns))


class Crawling(SimulatedService):
    """A simulated service whose scans are no snapshots: each row is read at a moment of its own."""

    async def _travel(self) -> float:
        await super()._travel()
        return 1e-6


class CrawlingRows(Crawling, SimulatedRows):
    pass


class CrawlingLog(Crawling, SimulatedChangeLog):
    lost_share = 0.0


class CrawlingBlobs(Crawling, SimulatedBlobs):
    pass


@pytest.fixture
async def store(request: pytest.FixtureRequest, anyio_backend: object, runtime: Runtime, tmp_path: Path) -> AsyncIterator[TieredStorage]:
    """With a changelog of its kind; what is larger than 100 bytes is large, and metadata may be any Unicode."""
    settings = Settings(directory=tmp_path, inline_bytes_max=100, links=LINKS, store={"unicode_metadata": True})
    async with AsyncExitStack() as stack:
        if request.param == "embedded":
            yield await stack.enter_async_context(open_storage(settings))
            return
        tiers, log = Tiers(SimulatedRows(runtime), SimulatedBlobs(runtime)), SimulatedChangeLog(runtime)
        if request.param == "observed":
            tiers, observed, observer = TELEMETRY.observe(tiers, log, runtime)
            yield await stack.enter_async_context(TieredStorage(tiers, observed, runtime, settings, observer=observer))
            return
        if request.param == "postgres":
            rows, entries = await stack.enter_async_context(fresh_store(request.getfixturevalue("postgres"), runtime))
            yield await stack.enter_async_context(TieredStorage(Tiers(rows, tiers.long_term), entries, runtime, settings))
            return
        if request.param == "fake-gcs":
            tiers = Tiers(tiers.high_volume, await stack.enter_async_context(on_fake_gcs(request.getfixturevalue("fake_gcs_url"), runtime)))
        if request.param != "google":
            yield await stack.enter_async_context(TieredStorage(tiers, log, runtime, settings))
            return
        table = await stack.enter_async_context(request.getfixturevalue("fresh_table")())
        server = await stack.enter_async_context(GcsEmulator())
        connected = GcsBlobs.connect(server.create_bucket("blobs").name, runtime, endpoint=server.url)
        tiers = Tiers(BigtableRows(table, runtime), await stack.enter_async_context(connected))
        yield await stack.enter_async_context(TieredStorage(tiers, BigtableChangeLog(table, runtime), runtime, settings))


@pytest.fixture
async def high_volume(
    request: pytest.FixtureRequest, anyio_backend: object, runtime: Runtime, tmp_path: Path
) -> AsyncIterator[HighVolumeBackend]:
    if request.param in ("simulated", "crawling"):
        yield SimulatedRows(runtime) if request.param == "simulated" else CrawlingRows(runtime)
        return
    if request.param == "observed":
        yield TELEMETRY.observe(Tiers(SimulatedRows(runtime), SimulatedBlobs(runtime)), NoopChangeLog(), runtime)[0].high_volume
        return
    if request.param == "bigtable-memory":
        yield BigtableRows(memory_table(runtime), runtime)
        return
    if request.param == "bigtable":
        async with request.getfixturevalue("fresh_table")() as table:
            yield BigtableRows(table, runtime, LEGACY_FAMILIES)
        return
    if request.param == "postgres":
        async with fresh_store(request.getfixturevalue("postgres"), runtime) as (rows, _):
            yield rows
        return
    async with Database.open(tmp_path / "tiered.db", runtime) as database:
        yield SqliteRows(database, runtime)


@pytest.fixture
async def changelog(request: pytest.FixtureRequest, anyio_backend: object, runtime: Runtime, tmp_path: Path) -> AsyncIterator[ChangeLog]:
    if request.param in ("simulated", "crawling"):
        yield SimulatedChangeLog(runtime) if request.param == "simulated" else CrawlingLog(runtime)
        return
    if request.param == "observed":
        yield TELEMETRY.observe(Tiers(SimulatedRows(runtime), SimulatedBlobs(runtime)), SimulatedChangeLog(runtime), runtime)[1]
        return
    if request.param == "bigtable-memory":
        yield BigtableChangeLog(memory_table(runtime), runtime)
        return
    if request.param == "bigtable":
        async with request.getfixturevalue("fresh_table")() as table:
            yield BigtableChangeLog(table, runtime)
        return
    if request.param == "postgres":
        async with fresh_store(request.getfixturevalue("postgres"), runtime) as (_, log):
            yield log
        return
    async with Database.open(tmp_path / "tiered.db", runtime) as database:
        yield SqliteChangeLog(database, runtime)


@pytest.fixture
async def long_term(
    request: pytest.FixtureRequest, anyio_backend: object, runtime: Runtime, tmp_path: Path
) -> AsyncIterator[LongTermBackend]:
    async with open_long_term(request, runtime, tmp_path) as blobs:
        yield blobs


@pytest.fixture
async def parts_tier(
    request: pytest.FixtureRequest, anyio_backend: object, runtime: Runtime, tmp_path: Path
) -> AsyncIterator[PartsTier]:
    async with open_long_term(request, runtime, tmp_path) as blobs:
        assert isinstance(blobs, PartUploads)
        yield cast(PartsTier, blobs)


def is_path(name: object) -> bool:
    """Whether a file may have the name."""
    return all(each not in ("", ".", "..") and len(each.encode()) <= 255 for each in str(name).split("/"))


@asynccontextmanager
async def emulated_bucket() -> AsyncIterator[GcsEmulator]:
    """It takes parts of any size."""
    async with GcsEmulator() as server:
        server.create_bucket("blobs")
        server.parts.part_bytes_min = 0
        yield server


@asynccontextmanager
async def open_long_term(request: pytest.FixtureRequest, runtime: Runtime, tmp_path: Path) -> AsyncIterator[LongTermBackend]:
    if request.param in ("simulated", "crawling", "observed"):
        simulated = CrawlingBlobs(runtime) if request.param == "crawling" else SimulatedBlobs(runtime)
        simulated.kept_s = 3600.0
        observed = TELEMETRY.observe(Tiers(SimulatedRows(runtime), simulated), NoopChangeLog(), runtime)[0].long_term
        yield observed if request.param == "observed" else simulated
        return
    if request.param == "gcs":
        async with emulated_bucket() as server, GcsBlobs.connect("blobs", runtime, endpoint=server.url) as blobs:
            yield blobs
        return
    if request.param == "gcs-lanes":
        lanes = UploadLanes(3, part_bytes=60_000)
        async with emulated_bucket() as server, LanedBlobs.connect("blobs", runtime, endpoint=server.url, lanes=lanes) as blobs:
            yield blobs
        return
    if request.param == "gcs-prefix":  # beside another store's blob, which it must not see
        if contract_plugin.are_too_long(request.node.callspec.params.values(), "a/c/"):
            pytest.skip("with its prefix the name is too long for GCS")
        async with emulated_bucket() as server:
            for prefix in ("a/", "a/b/", "z/"):
                server.buckets["blobs"].insert(f"{prefix}theirs", b"x", {}, {}, (), 1)
            give(server, "a/c/")
            async with owned_blobs(server, runtime, "a/c/") as owned:
                yield owned
        return
    if request.param == "fake-gcs":
        async with on_fake_gcs(request.getfixturevalue("fake_gcs_url"), runtime) as blobs:
            yield blobs
        return
    if request.param == "s3-memory":
        async with memory_blobs(MemoryS3(runtime, part_bytes_min=0), runtime) as blobs:
            yield blobs
        return
    if request.param.startswith("s3-"):
        async with open_s3(request, runtime) as blobs:
            yield blobs
        return
    yield await FileBlobs.open_directory(tmp_path / "store", runtime)


@asynccontextmanager
async def open_s3(request: pytest.FixtureRequest, runtime: Runtime) -> AsyncIterator[S3Blobs | OwnedS3Blobs]:
    options: dict[str, Any] = {"upload_budget_s": 1.0}
    if request.param in ("s3-moto", "s3-lanes"):
        if request.param == "s3-lanes":
            options |= {"kind": LanedS3Blobs, "lanes": UploadLanes(3, from_bytes=0, part_bytes=60_000)}
        async with new_bucket(request.getfixturevalue("moto_url"), runtime, whole_checksums=False, **options) as blobs:  # its are wrong
            yield blobs
        return
    named = [each for each in request.node.callspec.params.values() if isinstance(each, str) and ("/" in each or len(each) > 99)]
    if not all(map(is_path, named)):
        pytest.skip(f"it {NAMES}")
    url = request.getfixturevalue("minio_url" if request.param == "s3-minio" else "versitygw_url")
    if request.param == "s3-prefix":
        async with shared_bucket(url, runtime, "a/c/", **options) as owned:
            yield owned
        return
    async with new_bucket(url, runtime, **options) as blobs:
        yield blobs


async def planted(log: ChangeLog, key: str, raw: bytes) -> None:
    """Puts bytes into the log that no call of this software writes; beaten just now."""
    match log:
        case Observed(backend=backend):
            await planted(backend, key, raw)
        case SimulatedChangeLog(stored=stored):
            stored[key] = StoredEntry(raw, await log.announce("planter"))
        case _:
            await contract_plugin.planted(log, key, raw)


@pytest.fixture
def plant() -> Plant:
    return planted
