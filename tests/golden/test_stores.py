"""Golden stores of each release: this software opens, reads, recovers and audits them, and goes on with them."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from changelog.change import Entry, Unreadable
from recovery.audit.running.run import run_audit
from recovery.audit.running.work import AuditOptions
from recovery.daemon import collect
from recovery.loop import RecoveryLoop
from tests.given.audited_store import InThread, all_findings
from tests.golden.clock import HOUR_S, GoldenRuntime
from tests.golden.contents import LARGE, payload
from tests.golden.make import opened, settings_of
from tests.golden.services import SETTINGS, services
from tests.golden.stored import read_expected, read_lines, unpack, versions
from tiered import Metadata, ObjectId, ObjectPrefix, Settings, TieredStorage
from tiered.open import Backends

pytestmark = pytest.mark.anyio

FORMS = ("embedded", "backup", "services")
PAGE = 1000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=versions())
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@dataclass
class OpenedGolden:
    """A golden store, open. `settings`: with which recovery works. `expected`: what was written beside it."""

    storage: TieredStorage
    backends: Backends
    settings: Settings
    runtime: GoldenRuntime
    expected: Any

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
            self.runtime.put_forward(HOUR_S // 2)
        assert report.deferred == 0


@asynccontextmanager
async def golden(version: str, form: str, directory: Path, after_s: int = HOUR_S) -> AsyncIterator[OpenedGolden]:
    """Opens it so long after it was made. `form`: one of `FORMS`."""
    runtime = GoldenRuntime(after_s, seed=2)
    expected = read_expected(version, "services" if form == "services" else "embedded")
    if form == "services":
        async with services(runtime, read_lines(version, form)) as at:
            yield OpenedGolden(at.storage, at.backends, SETTINGS, runtime, expected)
        return
    settings = settings_of(unpack(version, form, directory))
    async with opened(settings, runtime) as (storage, backends):
        yield OpenedGolden(storage, backends, settings, runtime, expected)


async def described(storage: TieredStorage, path: str) -> dict[str, Any]:
    """Returns what a reader finds under the path, in the words of the expectation."""
    object_id = ObjectId.parse(path)
    head, stored = await storage.head(object_id), await storage.get(object_id)
    assert head is not None and stored is not None, f"{path} is gone"
    raw = await stored.read()
    lifetime = head.metadata.expiration
    return {
        "sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw), "content_type": head.metadata.content_type,
        "custom": dict(head.metadata.custom), "filename": head.metadata.filename, "origin": head.metadata.origin,
        "created_ns": head.metadata.time_created_ns, "lifetime": None if lifetime is None else [type(lifetime).__name__, lifetime.ns],
        "compressed": None if head.metadata.compression is None else head.metadata.compression.lower(), "revision": head.revision,
    }  # fmt: skip


async def check_objects(at: OpenedGolden) -> None:
    """Every object is what was put, and what was not put, or is gone, is not there, in a listing neither."""
    for path, wanted in at.expected["objects"].items():
        assert await described(at.storage, path) == wanted, path
    for path in at.expected["absent"]:
        assert await at.storage.get(ObjectId.parse(path)) is None, path
    listed = {entry.object_id.path async for entry in at.storage.list(ObjectPrefix("photos"))}
    assert listed == set(at.expected["objects"])


@pytest.mark.parametrize("form", FORMS)
async def test_every_object_of_the_release_is_read_with_its_metadata(version: str, form: str, tmp_path: Path) -> None:
    async with golden(version, form, tmp_path) as at:
        assert len(at.expected["objects"]) > 20
        await check_objects(at)


@pytest.mark.parametrize("form", FORMS)
async def test_recovery_cleans_up_after_the_dead_of_the_release_and_touches_nothing_else(version: str, form: str, tmp_path: Path) -> None:
    async with golden(version, form, tmp_path) as at:
        states = {entry.change.object: entry for entry in await at.entries() if isinstance(entry, Entry)}
        assert states.keys() == at.expected["entries"].keys() and len(states) == 9
        await at.recover()
        kept = {path for path, state in at.expected["entries"].items() if state in ("stuck", "assembling")}
        assert {entry.change.object for entry in await at.entries() if isinstance(entry, Entry)} == kept
        assert await at.blobs() - set(at.expected["overdue"]) == set(at.expected["left"])
        assert form == "services" or not await at.blobs() & set(at.expected["overdue"])
        await check_objects(at)


@pytest.mark.parametrize("form", ["embedded", "backup"])
async def test_an_audit_finds_nothing_wrong_with_what_recovery_has_left(version: str, form: str, tmp_path: Path) -> None:
    async with golden(version, form, tmp_path) as at:
        await at.recover()
    run = tmp_path / "run"
    manifest = await run_audit(at.settings, AuditOptions(str(run)), InThread(), GoldenRuntime(48 * HOUR_S), lambda _: None)
    assert manifest.complete and not manifest.doubts and not all_findings(run)
    assert manifest.names == len(at.expected["left"])


@pytest.mark.parametrize("form", FORMS)
async def test_writers_go_on_with_a_store_of_the_release(version: str, form: str, tmp_path: Path) -> None:
    async with golden(version, form, tmp_path) as at:
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
        assert live == {path for number, path in enumerate(at.expected["objects"]) if number % 3}
        named = {blob.rpartition("/")[0] for blob in await at.blobs() - set(at.expected["overdue"])}
        assert named == {path for number, path in enumerate(at.expected["objects"]) if number % 3 and number % 2}


async def test_an_upload_that_the_release_left_open_is_completed(version: str, tmp_path: Path) -> None:
    async with golden(version, "embedded", tmp_path) as at:
        [(path, upload_id)] = at.expected["uploads"].items()
        upload = at.storage.multipart(ObjectId.parse(path), upload_id)
        await upload.upload_part(2, b"later")
        await upload.complete()
        stored = await at.storage.get(ObjectId.parse(path))
        assert stored is not None and stored.metadata.custom == {"kind": "open"}
        assert await stored.read() == payload("open", LARGE) + b"later"
