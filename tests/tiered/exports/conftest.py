"""Exports are written to files and buckets, whose clients know asyncio only, unless a test says otherwise."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
