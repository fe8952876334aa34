"""One contract suite per protocol; every implementation is a parameter of its fixture."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from changelog.log import ChangeLog
from changelog.runtime import Runtime, SystemRuntime
from changelog.sqlite import Database, SqliteChangeLog
from emulators.blobs import SimulatedBlobs
from emulators.log import SimulatedChangeLog
from emulators.rows import SimulatedRows
from tiered.backends import HighVolumeBackend, LongTermBackend
from tiered.filesystem import FileBlobs
from tiered.sqlite import SqliteRows


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def runtime() -> Runtime:
    return SystemRuntime()


@pytest.fixture(params=["sqlite", "simulated"])
async def high_volume(
    request: pytest.FixtureRequest, anyio_backend: str, runtime: Runtime, tmp_path: Path
) -> AsyncIterator[HighVolumeBackend]:
    if request.param == "simulated":
        yield SimulatedRows(runtime)
        return
    async with Database.open(tmp_path / "tiered.db", runtime) as database:
        yield SqliteRows(database, runtime)


@pytest.fixture(params=["sqlite", "simulated"])
async def changelog(request: pytest.FixtureRequest, anyio_backend: str, runtime: Runtime, tmp_path: Path) -> AsyncIterator[ChangeLog]:
    if request.param == "simulated":
        yield SimulatedChangeLog(runtime)
        return
    async with Database.open(tmp_path / "tiered.db", runtime) as database:
        yield SqliteChangeLog(database, runtime)


@pytest.fixture(params=["filesystem", "simulated"])
async def long_term(request: pytest.FixtureRequest, anyio_backend: str, runtime: Runtime, tmp_path: Path) -> AsyncIterator[LongTermBackend]:
    if request.param == "simulated":
        yield SimulatedBlobs(runtime)
        return
    yield await FileBlobs.open_directory(tmp_path / "store", runtime)
