"""What the tests of this room have in common: their event loop and its clock, and a store in memory to look at."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from trio.testing import MockClock

from tests.given.audited_store import InThread
from tests.given.tapped_store import TappedWorld


@pytest.fixture
def virtual_time() -> None:
    """Whatever requests this sleeps in no time: its clock jumps to the next event."""


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> str | tuple[str, dict[str, Any]]:
    return ("trio", {"clock": MockClock(autojump_threshold=0)}) if "virtual_time" in request.fixturenames else "asyncio"


@pytest.fixture(scope="module")
async def one_loop(anyio_backend: object) -> AsyncIterator[None]:
    """For a module with one `anyio_backend`: the process that reads a receiver's files lives as long as its loop."""
    yield  # noqa: PT022 - a fixture that returned would leave the loop


@pytest.fixture
def without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit that a command runs begins no process, which would take a second."""
    monkeypatch.setattr("recovery.audit.running.local.LocalEngine", lambda parallel=None: InThread(slots=parallel or 1))


@pytest.fixture
async def world(anyio_backend: Any) -> TappedWorld:
    return TappedWorld()
