"""A whole audit of Bigtable and GCS, in worker processes, whose run lives in another bucket."""

from __future__ import annotations

import anyio
import pytest

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.manifest import Bounds, Manifest
from recovery.audit.running import cuts
from recovery.audit.running.jobs import AuditOptions
from recovery.audit.running.local import LocalEngine
from recovery.audit.running.run import run_audit
from tests.given.other_software import write_as_both
from tiered.metadata import Metadata
from tiered.object_id import ObjectId
from tiered.open import open_backends, open_storage
from tiered.settings import Settings

OBJECTS = 30


@pytest.mark.night
def test_audit_of_the_emulators_in_worker_processes_finds_what_was_planted(services: Settings) -> None:
    async def main() -> Manifest:
        async with open_storage(services) as storage:
            for number in range(OBJECTS):
                await storage.put(ObjectId("media", (), f"{number:02}"), b"x" * 20)
        async with open_backends(services, SystemRuntime()) as backends:
            target = (await backends.tiers.high_volume.read("media/objects/05")).target
            assert target is not None
            await backends.tiers.long_term.delete(target)
            orphan = target.replace("/05/", "/77/")
            upload = await backends.tiers.long_term.open_upload(orphan, Metadata(), 3)
            await upload.write(b"abc")
            await upload.finalise()
            await write_as_both(services, "media/objects/00+", "media/objects/00++")
            made = await backends.tiers.long_term.head(orphan)
            assert made is not None
            while await backends.tiers.long_term.now_ns() <= made.created_ns:
                pass  # it is told in whole seconds, and what is not older is not judged
        options = AuditOptions("gs://audits/2026/november", grace_s=0, insist=True)
        with pytest.raises(ConfigurationError, match="in the bucket that is audited"):
            await run_audit(services, AuditOptions("gs://tiered-blobs/audit"), LocalEngine(2), SystemRuntime(), lambda _: None)
        return await run_audit(services, options, LocalEngine(2), SystemRuntime(), lambda _: None)

    manifest = anyio.run(main)
    assert manifest.complete and (manifest.names, manifest.redirects) == (OBJECTS, OBJECTS)
    run = RunDirectory.open("gs://audits/2026/november")
    found = run.findings(manifest.run)
    assert sorted((each.class_, each.object) for each in found) == [
        ("dangling", "media/objects/05"), ("mixed_writers", "media/objects/00+"), ("orphan", "media/objects/77"),
    ]  # fmt: skip


def test_bucket_is_cut_by_listings_of_the_real_adapter(services: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "SMALL_NAMES", 3)

    async def main() -> tuple[list[str], list[str]]:
        async with open_backends(services, SystemRuntime()) as backends:
            blobs = backends.tiers.long_term
            for number in range(40):
                path = f"media/org.1/objects/{'é' * (number % 2)}{number:02}"
                upload = await blobs.open_upload(f"{path}/{ChangeId.new(SystemRuntime())}", Metadata(), 1)
                await upload.write(b"x")
                await upload.finalise()
            names = [blob.name for blob in (await blobs.list("", None, 100)).blobs]
            return names, await cuts.cut_names(blobs, Bounds(start="", end=None), 8, SystemRuntime())

    names, found = anyio.run(main)
    assert len(names) == 40 and len(found) == 7 and found == sorted(found)
    parts = zip(["", *found], [*found, None], strict=True)
    assert max(sum(low <= name and (high is None or name < high) for name in names) for low, high in parts) <= 20
