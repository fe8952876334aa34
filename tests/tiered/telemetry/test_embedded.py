"""Metrics and spans of a real embedded store and its recovery, scraped from another thread, as servers do."""

from __future__ import annotations

from pathlib import Path

import pytest
from anyio import to_thread
from prometheus_client import CollectorRegistry, generate_latest

from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from recovery.daemon import collect
from recovery.loop import RecoveryLoop
from tests.given.embedded_store import embedded
from tests.given.tapped_store import OBJECT, read
from tiered import Telemetry, open_storage
from tiered.open import open_backends

pytestmark = pytest.mark.anyio

RUNTIME = SystemRuntime()
LARGE = bytes(3_000_000)


async def scraped(registry: CollectorRegistry) -> list[str]:
    text = await to_thread.run_sync(generate_latest, registry)
    return text.decode().splitlines()


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_store_and_its_recovery_tell_one_registry(tmp_path: Path, anyio_backend: str) -> None:
    registry = CollectorRegistry()
    telemetry = Telemetry(registry=registry)
    settings = embedded(tmp_path)
    async with open_storage(settings, telemetry=telemetry) as storage:
        await storage.put(OBJECT, LARGE)
        assert await read(storage) == LARGE
        await storage.delete(OBJECT)
        lines = await scraped(registry)
    assert f'tiered_store_slots{{side="write"}} {float(settings.store.concurrency_max)}' in lines
    assert 'tiered_operations_total{class="ok",operation="put",result="ok"} 1.0' in lines
    assert 'tiered_swaps_total{answer="won"} 2.0' in lines

    async with open_backends(settings, RUNTIME, telemetry=telemetry) as backends:
        dead = await backends.log.record(Change(ChangeId.new(RUNTIME), OBJECT.path), "dead")
        assert await backends.log.release(dead)
        assert (await RecoveryLoop(backends.tiers, backends.log, RUNTIME, settings, backends.observer).run_once()).recovered == 1
        await collect(backends)
    lines = await scraped(registry)
    assert 'tiered_claims_total{answer="won"} 1.0' in lines
    assert 'tiered_recovery_entries_total{result="forgotten"} 1.0' in lines
    assert 'tiered_recovery_passes_total{range="full",result="ok"} 1.0' in lines
    assert "tiered_blobs_deleted_total 1.0" in lines
    assert [float(line.split()[1]) > len(LARGE) for line in lines if line.startswith("tiered_blob_deleted_bytes_total ")] == [True]
