"""Processes that upload large objects, in lanes and in parts, are killed with kill -9. An hour later nothing is left.

`TIERED_KILLED_UPLOADS=200 TIERED_KILLED_BYTES=67108864` is the long run; a few small ones are in every run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import anyio
import pytest
import yaml

import recovery.stray_uploads
from recovery.daemon import collect
from recovery.loop import RecoveryLoop
from recovery.stray_uploads import StrayUploads
from tests.given.emulated_services import emulated_services
from tests.given.killed_uploader import KEYS, payload_of
from tests.given.processes import StartedProcess
from tests.given.repository import ROOT
from tests.suites import has_all
from tiered import ObjectId, Settings
from tiered.open import Backends, open_backends, open_storage
from tiered.settings import LeaseSettings, RecoverySettings
from tiered.testing.clock import Clock

ROUNDS = int(os.environ.get("TIERED_KILLED_UPLOADS", "4" if has_all() else "2"))
BYTES = int(os.environ.get("TIERED_KILLED_BYTES", str(12 << 20)))
PASSES_MAX = 100
HOUR_NS = 3_600 * 10**9
UPLOAD_AGE_MAX_S = 3_000.0
"""Nobody completes an upload of an uploader that was killed."""


def kill_often(config: Path, chance: Random, share: float) -> dict[str, int]:
    """Kills so many uploaders, each within its first uploads. Returns the newest label that was told ok, by key."""
    told: dict[str, int] = {}
    for number in range(1, ROUNDS + 1):
        command = [sys.executable, "-m", "tests.given.killed_uploader", str(config), str(BYTES), str(number), str(share)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with StartedProcess(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as uploader:
            assert uploader.stdout is not None
            first = uploader.stdout.readline()
            assert first, "the uploader ended by itself"
            time.sleep(chance.uniform(0, 2 * BYTES / 40e6 + 0.2))
            uploader.kill()
            for line in (first, *uploader.stdout):
                key, label = line.split()
                told[key] = int(label)
    return told


async def check(settings: Settings, told: dict[str, int]) -> None:
    """Each object is the one that was told ok last, or a later one whose answer died; all blobs are named."""
    async with open_storage(settings) as storage:
        for number in range(KEYS):
            found = await storage.get(ObjectId.create("films", f"film-{number}"))
            label = told.get(f"film-{number}", 0)
            if found is None:
                assert not label
                continue
            shown = int(found.metadata.custom["label"])
            assert shown >= label and await found.read() == payload_of(shown, BYTES)


async def left(backends: Backends) -> tuple[list[str], set[str]]:
    """The entries, and the blobs that no row names."""
    rows = (await backends.tiers.high_volume.scan("", b"", 100)).rows
    blobs = (await backends.tiers.long_term.list("", None, 1000)).blobs
    entries = (await backends.log.entries("", 1000)).entries
    return [entry.key for entry in entries], {blob.name for blob in blobs} - {row.target for row in rows if row.target}


async def recover(settings: Settings, clock: Clock) -> tuple[list[str], set[str]]:
    async with open_backends(settings, clock) as backends:
        loop = RecoveryLoop(backends.tiers, backends.log, clock, settings)
        for _ in range(PASSES_MAX):
            await loop.run_once()
            await collect(backends)
            await StrayUploads(backends.tiers, backends.log).end()
            entries, orphans = await left(backends)
            if not entries:
                break
            await anyio.sleep(0.2)
        assert loop.total.parked == 0
        return entries, orphans


def hurried(settings: Settings) -> Settings:
    """Nobody is alive, so leases and graces may be short. A busy machine may take leases from recovery itself."""
    lease = LeaseSettings(expiry_s=0.2)
    return settings.model_copy(update={"lease": lease, "recovery": RecoverySettings(late_upload_grace_s=0.3, attempts_max=100)})


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_in_a_directory_an_hour_after_the_last_kill_nothing_is_left(anyio_backend: str, tmp_path: Path) -> None:
    config, store = tmp_path / "tiered.yaml", tmp_path / "store"
    config.write_text(yaml.safe_dump({"directory": str(store), "store": {"upload_age_max_s": UPLOAD_AGE_MAX_S}}))
    told = await anyio.to_thread.run_sync(kill_often, config, Random(7), 0.5)
    clock = Clock()
    clock.ahead_ns = HOUR_NS + 60 * 10**9
    settings = hurried(Settings(directory=store))
    assert await recover(settings, clock) == ([], set())
    assert not list((store / "uploads").iterdir())
    await check(settings, told)


def open_uploads(settings: Settings) -> int:
    """As the service itself lists them."""
    assert settings.gcs is not None
    with urllib.request.urlopen(f"{settings.gcs.endpoint}/{settings.gcs.bucket}?uploads") as answer:
        return sum(each.tag.rpartition("}")[2] == "Upload" for each in ElementTree.fromstring(answer.read()).iter())


@pytest.mark.night
@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_in_a_bucket_nothing_is_left_of_lanes_that_were_killed(
    anyio_backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An hour is not waited for. The service's clock has whole seconds, and 0 would leave what was begun in this one.
    monkeypatch.setattr(recovery.stray_uploads, "STRAY_AGE_S", -1)
    with emulated_services(monkeypatch) as settings:
        config = tmp_path / "tiered.yaml"
        config.write_text(yaml.safe_dump(settings.model_dump(mode="json", include={"bigtable", "gcs", "changelog", "inline_bytes_max"})))
        told = await anyio.to_thread.run_sync(kill_often, config, Random(8), 0.0)
        assert await recover(hurried(settings), Clock()) == ([], set())
        assert open_uploads(settings) == 0
        await check(settings, told)
