"""Two stores, one bucket: nothing of the one may take the blobs of the other for garbage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import SystemRuntime
from recovery.audit.deleting.gates import Asked
from recovery.audit.deleting.run import Wish, delete_orphans, look
from recovery.audit.local import LocalEngine
from recovery.audit.run import run_audit
from recovery.audit.work import AuditOptions
from tests.given.emulated_services import emulated_services
from tiered.object_id import ObjectId
from tiered.open import open_storage
from tiered.provision.production import provision
from tiered.settings import Settings

RUNTIME = SystemRuntime()


@pytest.fixture
def services(bigtable_host: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    with emulated_services(monkeypatch) as settings:
        yield settings


def with_table(settings: Settings, name: str) -> Settings:
    assert settings.bigtable is not None
    table = settings.bigtable.model_copy(update={"table": name, "changelog_table": f"{name}-log"})
    return settings.model_copy(update={"bigtable": table})


async def audit(settings: Settings, directory: Path) -> int:
    options = AuditOptions(str(directory), grace_s=0, insist=True)
    manifest = await run_audit(settings, options, LocalEngine(1), RUNTIME, lambda _: None)
    return manifest.findings if manifest.complete else -1


def test_blobs_of_another_store_in_the_bucket_were_called_orphans_and_deleted(services: Settings, tmp_path: Path) -> None:
    ours, theirs = services, with_table(services, "theirs")

    async def main() -> None:
        await provision(theirs)
        async with open_storage(ours) as storage:
            await storage.put(ObjectId.create("media", "cat"), b"x" * 20)
        with pytest.raises(ConfigurationError, match="tables/tiered"):
            async with open_storage(theirs) as storage:
                await storage.put(ObjectId.create("media", "dog"), b"x" * 20)
        with pytest.raises(ConfigurationError, match="tables/tiered"):
            assert await audit(theirs, tmp_path / "run") <= 0
            wish = Wish(str(tmp_path / "run"), Asked(at_most=100))
            await delete_orphans(theirs, wish, RUNTIME, lambda _: None, None, await look(theirs, wish, RUNTIME))
        async with open_storage(ours) as storage:
            assert (found := await storage.get(ObjectId.create("media", "cat"))) is not None and await found.read() == b"x" * 20

    anyio.run(main)
