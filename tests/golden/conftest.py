"""Each release that has golden stores, on asyncio: the formats are the same on trio."""

from __future__ import annotations

import pytest

from tests.golden.stored import versions


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=versions())
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)
