"""The file of embedded mode runs under a clock that a test can put forward."""

from __future__ import annotations

import pytest

from tiered.testing.clock import Clock


@pytest.fixture
def runtime() -> Clock:
    return Clock()
