"""The file of embedded mode runs under a clock that a test can put forward."""

from __future__ import annotations

import pytest

from tests.given.clocks import ShiftedRuntime


@pytest.fixture
def runtime() -> ShiftedRuntime:
    return ShiftedRuntime()
