from __future__ import annotations

from pathlib import Path

import pytest

from tests.given.small_project import small_project


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return small_project(tmp_path / "small")
