"""What lies beside the blobs: uploads of dead processes, and what the service keeps of deleted blobs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from emulators.gcs.server import GcsEmulator
from recovery.audit.files.conclusion import conclude
from recovery.audit.files.ledger import summary_from_json, summary_to_json
from recovery.audit.finding import Finding, Summary, Tally
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Bounds, Cutoff, Manifest, ManifestTally
from recovery.audit.running.jobs import AuditOptions
from recovery.audit.running.run import run_audit
from recovery.audit.sweeping.beside_blobs import WRITERS, look_beside
from tests.given.audited_store import InThread, found, plant
from tiered.gcs.blobs import GcsBlobs
from tiered.gcs.http import GcsRequest
from tiered.metadata import Metadata
from tiered.open import open_backends
from tiered.services.backends import HighVolumeBackend, Tiers
from tiered.services.capabilities import Retention
from tiered.testing.contracts.whole_blobs import store

pytestmark = pytest.mark.anyio

EVERYTHING = Bounds(start="", end=None)
RUNTIME = SystemRuntime()


async def look(blobs: object, bounds: Bounds = EVERYTHING, grace_s: float = 0.0) -> tuple[Summary, list[Finding]]:
    summary, told = Summary(), list[Finding]()
    cutoff = Cutoff(as_of_ns=RUNTIME.wall_ns(), grace_s=grace_s)
    await look_beside(Tiers(cast(HighVolumeBackend, None), cast(Any, blobs)), bounds, cutoff, RUNTIME, told.extend, summary)
    return summary, told


async def test_upload_of_a_dead_process_is_found_once_and_one_of_a_living_process_never(tmp_path: Path) -> None:
    settings = await plant(tmp_path / "store")
    left = tmp_path / "store" / "uploads" / ChangeId.new(RUNTIME)
    left.write_bytes(b"x" * 77)
    old_s = RUNTIME.wall_ns() / 1e9 - 3600
    os.utime(left, (old_s, old_s))
    (tmp_path / "store" / "uploads" / "notes.txt").write_bytes(b"no upload")
    async with open_backends(settings, RUNTIME) as backends:
        blobs = backends.tiers.long_term
        living = await blobs.open_upload(f"media/objects/living/{ChangeId.new(RUNTIME)}", Metadata(), None)
        for file in (tmp_path / "store" / "uploads").iterdir():
            os.utime(file, (old_s, old_s))
        summary, [told] = await look(blobs)
        assert (told.class_, told.name, told.size) == (FindingClass.STALE_UPLOAD, f"uploads/{left.name}", 77)
        assert summary.totals() == {FindingClass.STALE_UPLOAD: Tally(1, 77)}
        assert await look(blobs, Bounds(start="m", end=None)) == (Summary(), []), "another range does not look again"
        assert (await look(blobs, grace_s=7200.0))[1] == [], "it may be about to be locked"
        await living.finalise()
    manifest = await run_audit(settings, AuditOptions(str(tmp_path / "run"), 0, True), InThread(), RUNTIME, lambda progress: None)
    assert manifest.totals[FindingClass.STALE_UPLOAD] == ManifestTally(number=1, size=77)
    assert [kind for kind, _ in found(tmp_path / "run")].count(FindingClass.STALE_UPLOAD) == 1
    assert left.exists(), "it only looks"


async def test_bytes_that_a_bucket_keeps_of_deleted_blobs_are_counted_by_range() -> None:
    async with GcsEmulator() as server:
        bucket = server.create_bucket("blobs")
        async with GcsBlobs.connect("blobs", RUNTIME, endpoint=server.url) as blobs:
            for name in ("a/objects/1/x", "a/objects/2/x", "b/objects/1/x"):
                await store(blobs, name, b"1234567")
                await blobs.delete(name)
            await store(blobs, "a/objects/live/x", b"123")
            bucket.page_max = 1
            whole, _ = await look(blobs)
            part, _ = await look(blobs, Bounds(start="a/", end="b"))
    assert whole.kept == {Retention.SOFT_DELETED: Tally(3, 21), Retention.NONCURRENT: Tally()} and not whole.unknown
    assert part.kept[Retention.SOFT_DELETED] == Tally(2, 14)
    whole.merge(part)
    assert whole.kept[Retention.SOFT_DELETED] == Tally(5, 35)
    assert summary_from_json(summary_to_json(whole)) == whole


async def test_what_a_service_does_not_tell_is_not_known_and_fails_nothing() -> None:
    class RefusingBeside:
        async def kept(self, what: Retention, start: str, end: str | None, token: str) -> None:
            raise ConfigurationError(f"{what} is forbidden: grant storage.buckets.get")

        async def abandoned_uploads(self, start: str, before_ns: int, limit: int) -> None:
            raise ConfigurationError("uploads cannot be read")

    summary, told = await look(RefusingBeside())
    assert not told and not summary.kept and set(summary.unknown) == {"soft_deleted", "noncurrent", "abandoned_uploads"}
    summary.unknown[WRITERS] = "rows cannot be read"
    begun = Manifest(run="r", inputs={}, log_is_durable=True, cutoff=Cutoff(as_of_ns=0, grace_s=1), started_ns=0, ranges=(EVERYTHING,))
    ended = conclude(begun, summary, {0: 0}, (), ())
    assert ended.complete and ended.kept == {"soft_deleted": None, "noncurrent": None}
    assert sorted(ended.notes) == [
        "how much the service keeps of deleted blobs (noncurrent) is not known: noncurrent is forbidden: grant storage.buckets.get",
        "how much the service keeps of deleted blobs (soft-deleted) is not known: soft_deleted is forbidden: grant storage.buckets.get",
        "whether other software writes beside this one is not known: rows cannot be read",
        "which uploads are left is not known: uploads cannot be read",
    ]


async def test_noncurrent_generations_are_listed_only_where_the_bucket_ever_had_versions() -> None:
    async with GcsEmulator() as server:
        server.create_bucket("blobs")
        async with GcsBlobs.connect("blobs", RUNTIME, endpoint=server.url) as blobs:
            http = cast(Any, blobs)._http
            call, asked = http.call, []

            async def answers(request: GcsRequest) -> Any:
                asked.append(request.url)
                answer = await call(request)
                told = {"versioning": {"enabled": False}} if "versioning" in request.url else {
                    "kind": "storage#objects",
                    "items": [{"name": "a/x", "size": "5", "timeDeleted": "2026-01-01T00:00:00Z"}, {"name": "a/y", "size": "7"}],
                }  # fmt: skip
                return replace(answer, told=told)

            http.call = answers
            page = await blobs.kept(Retention.NONCURRENT, "a/", "b", "")
    assert (page.number, page.size, page.next_token) == (1, 5, None)
    assert len(asked) == 2 and "versions=true" in asked[1]
