"""Two stores, one bucket: nothing of the one may take the blobs of the other for garbage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from emulators.up import start_emulators, variables
from recovery.audit.deleting.deletion import DeletionReport, delete_orphans, look
from recovery.audit.deleting.gates import DeletionRequest
from recovery.audit.deleting.restoring import restore_lost
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Manifest
from recovery.audit.running.jobs import AuditOptions
from recovery.audit.running.run import run_audit
from tests.given.audited_store import InThread
from tiered.buckets.owners import marker_name
from tiered.kinds.chosen import inspect, provision
from tiered.metadata import Metadata
from tiered.object_id import ObjectId
from tiered.open import open_backends, open_storage
from tiered.provision import findings
from tiered.provision.bucket import open_client
from tiered.settings import Settings

RUNTIME = SystemRuntime()
CAT = ObjectId.create("media", "cat")
OURS = "projects/emulated-project/instances/emulated/tables/tiered"
THEIRS = "projects/emulated-project/instances/emulated/tables/theirs"


@pytest.fixture
def ours(bigtable_host: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(start_emulators()) as settings:
        for name, address in variables(settings).items():
            monkeypatch.setenv(name, address)
        yield settings.model_copy(update={"inline_bytes_max": 1})


def changed(settings: Settings, section: str, **values: Any) -> Settings:
    return settings.model_copy(update={section: getattr(settings, section).model_copy(update=values)})


def theirs_beside(ours: Settings, prefix: str = "") -> Settings:
    """Another table, and the same bucket."""
    return changed(changed(ours, "bigtable", table="theirs", changelog_table="theirs-log"), "gcs", prefix=prefix)


def remove_marker(settings: Settings, prefix: str = "") -> None:
    assert settings.gcs is not None
    with open_client(settings.gcs, "p") as client:
        client.bucket(settings.gcs.bucket).blob(marker_name(prefix)).delete()


async def problems(settings: Settings, **more: Any) -> list[str]:
    return findings.problems(await provision(settings, **more))


async def put(settings: Settings) -> None:
    async with open_storage(settings) as storage:
        await storage.put(CAT, b"x" * 20)


async def got(settings: Settings) -> bytes | None:
    async with open_storage(settings) as storage:
        found = await storage.get(CAT)
        return None if found is None else await found.read()


async def plant_orphan(settings: Settings) -> None:
    """A blob that no row names, and that is older than the next second."""
    async with open_backends(settings, RUNTIME) as backends:
        blobs = backends.tiers.long_term
        name = f"media/objects/lost/{ChangeId.new(RUNTIME)}"
        upload = await blobs.open_upload(name, Metadata(), 3)
        await upload.write(b"abc")
        await upload.finalise()
        made = await blobs.head(name)
        assert made is not None
        while await blobs.now_ns() <= made.created_ns:
            pass


async def audit(settings: Settings, directory: Path) -> Manifest:
    return await run_audit(settings, AuditOptions(str(directory), grace_s=0, insist=True), InThread(), RUNTIME, lambda _: None)


async def delete(settings: Settings, directory: Path, found: DeletionReport | None = None) -> DeletionReport:
    request = DeletionRequest(str(directory), at_most=100)
    return await delete_orphans(settings, request, RUNTIME, lambda _: None, None, found)


def test_blobs_of_another_store_in_the_bucket_were_called_orphans_and_deleted(ours: Settings, tmp_path: Path) -> None:
    theirs, said = theirs_beside(ours), f"gs://tiered-blobs/ belongs to the store of {OURS}, and this is the store of {THEIRS}"

    async def main() -> None:
        [problem] = await problems(theirs)
        assert problem.startswith(said) and f"or --adopt-bucket-from {OURS}, if no store uses that table any more" in problem
        assert (await problems(theirs, adopt=True), await problems(theirs, adopt_from=THEIRS)) == ([problem], [problem])
        assert problem in findings.problems(await inspect(theirs))
        await put(ours)
        with pytest.raises(ConfigurationError, match=said):
            await put(theirs)
        with pytest.raises(ConfigurationError, match=said):
            await audit(theirs, tmp_path / "run")
        assert await got(ours) == b"x" * 20

    anyio.run(main)


def test_a_deletion_went_on_after_another_store_had_taken_the_bucket(ours: Settings, tmp_path: Path) -> None:
    async def main() -> None:
        await put(ours)
        await plant_orphan(ours)
        manifest = await audit(ours, tmp_path / "run")
        assert manifest.complete and manifest.totals[FindingClass.ORPHAN].number == 1
        request = DeletionRequest(str(tmp_path / "run"), at_most=100)
        before = await look(ours, request, RUNTIME)
        assert before.refused == ()
        theirs = theirs_beside(ours)
        assert await problems(theirs, adopt_from=OURS) == []  # as after a table was restored under another name
        with pytest.raises(ConfigurationError, match=f"belongs to the store of {THEIRS}"):
            await look(ours, request, RUNTIME)
        for _ in range(2):  # the second one goes on with what the first one began
            with pytest.raises(ConfigurationError, match=f"belongs to the store of {THEIRS}"):
                await delete(ours, tmp_path / "run", before)
        for restoration in (True, False):
            with pytest.raises(ConfigurationError, match=f"belongs to the store of {THEIRS}"):
                await restore_lost(ours, str(tmp_path / "run"), RUNTIME, 1.0, lambda _: None, dry=restoration)
        assert await problems(ours, adopt_from=THEIRS) == []
        assert (await delete(ours, tmp_path / "run")).left == 0

    anyio.run(main)


@pytest.mark.night
def test_without_an_owner_an_audit_is_doubtful_and_nothing_is_deleted_until_the_bucket_is_adopted(ours: Settings, tmp_path: Path) -> None:
    async def main() -> None:
        await put(ours)
        await plant_orphan(ours)
        remove_marker(ours)
        with pytest.raises(ConfigurationError, match="no store owns gs://tiered-blobs/ yet: run 'tiered provision', with --adopt-bucket"):
            await put(ours)
        manifest = await audit(ours, tmp_path / "run")
        assert not manifest.complete and manifest.totals[FindingClass.ORPHAN].number == 1
        assert manifest.doubts[0].startswith("blobs of another store may be among these, because no store owns gs://tiered-blobs/ yet")
        with pytest.raises(ConfigurationError, match="nothing is deleted: blobs of another store may be among these"):
            await delete(ours, tmp_path / "run")
        [problem] = await problems(ours)
        assert problem.startswith("gs://tiered-blobs/ holds objects, and no marker says whose") and "--adopt-bucket" in problem
        assert await problems(ours, adopt=True) == [] == await problems(ours)
        assert await got(ours) == b"x" * 20
        assert (await audit(ours, tmp_path / "again")).complete
        assert (await delete(ours, tmp_path / "again")).left == 0

    anyio.run(main)


@pytest.mark.night
def test_two_stores_share_a_bucket_below_prefixes_of_their_own(ours: Settings, tmp_path: Path) -> None:
    async def main() -> None:
        [problem] = await problems(theirs_beside(ours, "theirs/"))
        assert problem.startswith("gs://tiered-blobs/theirs/ lies in gs://tiered-blobs/, which belongs to")
        remove_marker(ours)
        stores = changed(ours, "gcs", prefix="ours/"), theirs_beside(ours, "theirs/")
        for store in stores:
            assert await problems(store) == []
            await put(store)
            await plant_orphan(store)
        for number, store in enumerate(stores):
            manifest = await audit(store, tmp_path / str(number))
            assert manifest.complete and (manifest.names, manifest.totals[FindingClass.ORPHAN].number) == (2, 1)
            assert manifest.inputs["prefix"] == ("ours/", "theirs/")[number]
        with pytest.raises(ConfigurationError, match="holds a run of something else"):
            await audit(stores[1], tmp_path / "0")
        assert (await delete(stores[0], tmp_path / "0")).left == 0
        assert [await got(store) for store in stores] == [b"x" * 20] * 2
        assert (await audit(stores[1], tmp_path / "after")).names == 2, "the other's deletion took nothing"
        [problem] = await problems(ours)
        assert problem.startswith("gs://tiered-blobs/ holds gs://tiered-blobs/ours/, which belongs to")

    anyio.run(main)


def test_a_store_that_opened_without_its_bucket_changed_the_blobs_of_another_one(ours: Settings) -> None:
    """A bucket that does not answer lets a store open. Its owner is asked for before the first change."""
    async def main() -> None:
        await problems(theirs_beside(ours))
        async with open_backends(theirs_beside(ours), RUNTIME, verify=False) as backends:
            with pytest.raises(ConfigurationError, match=f"belongs to the store of {OURS}"):
                await backends.tiers.long_term.delete("media/objects/cat/1")

    anyio.run(main)
