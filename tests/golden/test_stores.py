"""Golden stores of each release: this software opens, reads, recovers and audits them, and goes on with them."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from changelog.base.errors import ConfigurationError
from changelog.change import Entry, Unreadable
from emulators.postgres.server import PostgresServer
from emulators.s3.memory import MemoryS3
from recovery.audit.finding import Finding
from recovery.audit.manifest import Bounds, Cutoff, Verify
from recovery.audit.running.jobs import GRACE_S, AuditOptions
from recovery.audit.running.run import run_audit
from recovery.audit.sweeping.sweep import audit_range
from recovery.daemon import collect
from recovery.http.history import COARSE_S, exchange
from recovery.loop import RecoveryLoop
from tests.given.audited_store import InThread, all_findings
from tests.golden.clock import HOUR_S, MADE_S, GoldenRuntime
from tests.golden.contents import FIGURES, LARGE, payload, present, told_by
from tests.golden.make import opened, settings_of
from tests.golden.postgres import BUCKET, load, postgres_and_s3
from tests.golden.services import SETTINGS, services
from tests.golden.stored import read_expected, read_lines, unpack
from tiered import DanglingTombstoneError, Metadata, ObjectId, ObjectPrefix, Settings, TieredStorage
from tiered.notes.dangling import read_dangling
from tiered.open import Backends
from tiered.postgres.open import open_postgres
from tiered.postgres.schema import MIGRATIONS
from tiered.provision.findings import problems
from tiered.provision.postgres import inspect_postgres, provision_postgres
from tiered.settings import PostgresSettings

pytestmark = pytest.mark.anyio

FORMS = ("embedded", "backup", "services", "postgres")
PAGE = 1000
AUDITED_S = 48 * HOUR_S
"""So long after it was made nothing of a store is young."""


def kinds_of(found: Sequence[Finding]) -> list[tuple[str, str]]:
    return sorted((str(each.class_.value), each.name) for each in found)


async def do_nothing() -> None:
    """The server's clock is the store's."""


@dataclass
class OpenedGolden:
    """A golden store, open. `settings`: with which recovery works. `expected`: what was written beside it.

    `tell_the_time`: sets the clock of its server to that of the store.
    """

    storage: TieredStorage
    backends: Backends
    settings: Settings
    runtime: GoldenRuntime
    expected: Any
    tell_the_time: Callable[[], Awaitable[None]] = do_nothing

    async def go_on(self, seconds: int) -> None:
        """Lets time go by, on the store's server, too."""
        self.runtime.put_forward(seconds)
        await self.tell_the_time()

    async def findings(self) -> list[tuple[str, str]]:
        """What an audit in this process finds, which reads every payload."""
        found: list[Finding] = []
        cutoff = Cutoff(as_of_ns=await self.backends.tiers.long_term.now_ns(), grace_s=GRACE_S)
        tiers, everything = self.backends.tiers, Bounds(start="", end=None)
        summary = await audit_range(tiers, self.backends.log, everything, cutoff, self.runtime, found.extend, verify=Verify())
        assert summary.verified > 10
        return kinds_of(found)

    @property
    def planted(self) -> list[tuple[str, str]]:
        """What an audit must find, and no more."""
        orphans, lost = self.expected["orphans"], self.expected["lost"].values()
        left = self.expected["overdue"] if self.settings is SETTINGS else ()  # a bucket in GCS has a rule that removes them
        kinds = {"orphan": orphans, "dangling": lost, "overdue": left}
        return sorted((kind, name) for kind, names in kinds.items() for name in names)

    async def blobs(self) -> set[str]:
        page = await self.backends.tiers.long_term.list("", None, PAGE)
        assert page.next_start is None
        return {blob.name for blob in page.blobs}

    async def entries(self) -> list[Entry | Unreadable]:
        page = await self.backends.log.entries("", PAGE)
        assert page.next_start is None
        return list(page.entries)

    async def recover(self) -> None:
        """Two passes, as `tiered recover --once` makes them, so far apart that nobody waits for late uploads."""
        assert not (await collect(self.backends)).failures
        for _ in range(2):
            report = await RecoveryLoop(self.backends.tiers, self.backends.log, self.runtime, self.settings).run_once()
            assert (report.parked, report.failed, report.lost) == (0, 0, 0), report
            await self.go_on(HOUR_S // 2)
        assert report.deferred == 0


Opener = Callable[..., AbstractAsyncContextManager[OpenedGolden]]


@pytest.fixture
def golden(version: str, request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens a golden store, one of `FORMS`, so long after it was made. PostgreSQL is started for those who need it."""

    @asynccontextmanager
    async def open_golden(form: str, after_s: int = HOUR_S) -> AsyncIterator[OpenedGolden]:
        runtime = GoldenRuntime(after_s, seed=2)
        expected = read_expected(version, "embedded" if form == "backup" else form)
        if form == "services":
            async with services(runtime, read_lines(version, form)) as at:
                yield OpenedGolden(at.storage, at.backends, SETTINGS, runtime, expected)
        elif form == "postgres":
            server: PostgresServer = request.getfixturevalue("postgres")
            async with postgres_and_s3(server, runtime, read_lines(version, form)) as on:
                yield OpenedGolden(on.storage, on.backends, on.settings, runtime, expected, on.tell_the_time)
        else:
            settings = settings_of(unpack(version, form, tmp_path))
            async with opened(settings, runtime) as (storage, backends):
                yield OpenedGolden(storage, backends, settings, runtime, expected)

    return open_golden


async def described(storage: TieredStorage, path: str) -> dict[str, Any]:
    """Returns what a reader finds under the path, in the words of the expectation."""
    object_id = ObjectId.parse(path)
    head, stored = await storage.head(object_id), await storage.get(object_id)
    assert head is not None and stored is not None, f"{path} is gone"
    raw = await stored.read()
    lifetime = head.metadata.expiration
    return {
        "sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw), **told_by(head.metadata),
        "created_ns": head.metadata.time_created_ns, "lifetime": None if lifetime is None else [type(lifetime).__name__, lifetime.ns],
        "compressed": None if head.metadata.compression is None else head.metadata.compression.lower(), "revision": head.revision,
    }  # fmt: skip


async def check_objects(at: OpenedGolden) -> None:
    """Every object is what was put, and what was not put, or is gone, is not there, in a listing neither."""
    for path, wanted in at.expected["objects"].items():
        assert present(await described(at.storage, path)) == present(wanted), path
    for path in at.expected["absent"]:
        assert await at.storage.get(ObjectId.parse(path)) is None, path
    listed = {entry.object_id.path async for entry in at.storage.list(ObjectPrefix("photos"))}
    assert listed == {*at.expected["objects"], *at.expected["lost"]}
    for path in at.expected["lost"]:
        with pytest.raises(DanglingTombstoneError):
            await at.storage.get(ObjectId.parse(path))


async def test_a_schema_of_the_release_says_what_it_needs_and_is_opened_then(version: str, postgres: PostgresServer) -> None:
    """`tiered provision` makes functions that are new, or have changed. Until then the store is not opened."""
    runtime = GoldenRuntime(HOUR_S, seed=2)
    at = PostgresSettings.model_validate({"dsn": postgres.dsn(), "schema_name": f"golden{uuid4().hex}"})
    lines = [line for line in read_lines(version, "postgres") if "ddl" in line or "table" in line]
    await load(lines, postgres, at.schema_name, MemoryS3(runtime, BUCKET))
    made = {line["ddl"] for line in lines if line.get("ddl", "").startswith("CREATE FUNCTION")}
    if made != {each for migration in MIGRATIONS for each in migration if each.startswith("CREATE FUNCTION")}:
        with pytest.raises(ConfigurationError, match=r"function \w+ of schema \w+ (is missing|was changed, .*): run 'tiered provision'"):
            async with open_postgres(at, runtime):
                pytest.fail("it was opened")
        assert not [each for each in problems(await provision_postgres(at, runtime)) if at.schema_name in each]
    async with open_postgres(at, runtime) as (rows, _):
        page = await rows.redirects(b"", None, PAGE)
    assert page.redirects
    assert not [each for each in problems(await inspect_postgres(at, runtime)) if at.schema_name in each]


def state_of(entry: Entry) -> str:
    told = {
        "stuck": entry.stuck is not None and entry.stuck.error == "nobody could clean it up", "kept": entry.kept_ms == MADE_S * 1000,
        "assembling": entry.assembling is not None, "waiting": entry.cleanup_after_ms is not None,
    }  # fmt: skip
    return next((state for state, is_so in told.items() if is_so), "open")


@pytest.mark.parametrize("form", FORMS)
async def test_every_object_of_the_release_is_read_with_its_metadata(golden: Opener, form: str) -> None:
    async with golden(form) as at:
        assert len(at.expected["objects"]) > 20
        await check_objects(at)


@pytest.mark.parametrize("form", FORMS)
async def test_what_the_release_noted_is_known(golden: Opener, form: str) -> None:
    async with golden(form) as at:
        noted = await read_dangling(at.backends.log)
        assert {each.path: each.blob for each in noted.listed} == at.expected["lost"]
        assert await exchange(at.backends.log, {}, MADE_S) == {MADE_S // COARSE_S: FIGURES}


@pytest.mark.parametrize("form", FORMS)
async def test_recovery_cleans_up_after_the_dead_of_the_release_and_touches_nothing_else(golden: Opener, form: str) -> None:
    async with golden(form) as at:
        states = {entry.change.object: entry for entry in await at.entries() if isinstance(entry, Entry)}
        expected = dict(at.expected["entries"])
        if form == "backup":  # whoever restores it has no parts, so an open upload has ended in it
            expected |= {path: "open" for path, state in expected.items() if state == "assembling"}
        assert {path: state_of(entry) for path, entry in states.items()} == expected and len(states) == 10
        await at.recover()
        kept = {path for path, state in expected.items() if state in ("stuck", "assembling", "kept")}
        assert {entry.change.object for entry in await at.entries() if isinstance(entry, Entry)} == kept
        assert await at.blobs() - set(at.expected["overdue"]) == set(at.expected["left"])
        assert form == "services" or not await at.blobs() & set(at.expected["overdue"])
        await check_objects(at)


@pytest.mark.parametrize("form", FORMS)
async def test_an_audit_finds_what_was_planted_and_no_more_before_and_after_recovery(golden: Opener, form: str) -> None:
    async with golden(form, AUDITED_S) as at:
        assert len(at.planted) > 1
        assert await at.findings() == at.planted
        await at.recover()
        assert await at.findings() == at.planted


@pytest.mark.parametrize("form", ["embedded", "backup"])
async def test_a_run_of_the_audit_finds_the_same(golden: Opener, form: str, tmp_path: Path) -> None:
    async with golden(form) as at:
        await at.recover()
    run = tmp_path / "run"
    manifest = await run_audit(at.settings, AuditOptions(str(run)), InThread(), GoldenRuntime(AUDITED_S), lambda _: None)
    assert manifest.complete and not manifest.doubts and kinds_of(all_findings(run)) == at.planted
    assert manifest.names == len(at.expected["left"])


@pytest.mark.parametrize("form", FORMS)
async def test_writers_go_on_with_a_store_of_the_release(golden: Opener, form: str) -> None:
    async with golden(form) as at:
        for number, path in enumerate(at.expected["objects"]):
            object_id, size = ObjectId.parse(path), (10, LARGE)[number % 2]
            if number % 3 == 0:
                await at.storage.delete(object_id)
                assert await at.storage.get(object_id) is None
            else:
                await at.storage.put(object_id, payload("later", size), Metadata(custom={"later": "yes"}))
                found = await at.storage.get(object_id)
                assert found is not None and await found.read() == payload("later", size)
        await at.recover()
        live = {entry.object_id.path async for entry in at.storage.list(ObjectPrefix("photos"))}
        assert live == {path for number, path in enumerate(at.expected["objects"]) if number % 3} | at.expected["lost"].keys()
        named = {blob.rpartition("/")[0] for blob in await at.blobs() - {*at.expected["overdue"], *at.expected["orphans"]}}
        assert named == {path for number, path in enumerate(at.expected["objects"]) if number % 3 and number % 2}


@pytest.mark.parametrize("form", ["embedded", "postgres"])
async def test_an_upload_that_the_release_left_open_is_completed(golden: Opener, form: str) -> None:
    async with golden(form) as at:
        [(path, upload_id)] = at.expected["uploads"].items()
        upload = at.storage.multipart(ObjectId.parse(path), upload_id)
        await upload.upload_part(2, b"later")
        await upload.complete()
        stored = await at.storage.get(ObjectId.parse(path))
        assert stored is not None and stored.metadata.custom == {"kind": "open"}
        assert await stored.read() == payload("open", LARGE) + b"later"
