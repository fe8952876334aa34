"""What is audited: a planted embedded store, backends in memory, on a disk and in emulators, and whole emulators."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.given.audit_grounds import AuditGround, ground_of
from tests.given.audited_store import plant
from tests.given.emulated_services import emulated_services
from tiered.settings import Settings


@pytest.fixture
async def store(tmp_path: Path) -> Settings:
    return await plant(tmp_path / "store")


@pytest.fixture(params=["simulated", "embedded", pytest.param("emulators", marks=pytest.mark.night)])
async def ground(request: pytest.FixtureRequest, anyio_backend: object, tmp_path: Path) -> AsyncIterator[AuditGround]:
    async with ground_of(request.param, request, tmp_path) as ground:
        yield ground


@pytest.fixture
def services(bigtable_host: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    with emulated_services(monkeypatch) as settings:
        yield settings
