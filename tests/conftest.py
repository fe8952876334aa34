"""What every test has in common: no settings of the machine it runs on, and examples that repeat."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tiered.settings import ENV_OTHERS, ENV_PREFIX

# Derandomised: a submission is judged by its own change, not by the examples it happened to draw; `make sim`
# looks further. No deadline: other work may share the machine.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

NOBODY = 65534


@pytest.fixture(autouse=True)
def _no_settings_from_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(ENV_PREFIX) and not name.startswith(ENV_OTHERS)]:
        monkeypatch.delenv(name)


@pytest.fixture
def unprivileged(tmp_path: Path) -> Iterator[Path]:
    """A directory, and this process as a user whom the file system may refuse: to root it refuses nothing."""
    if os.geteuid() != 0:
        yield tmp_path
        return
    directory = Path(tempfile.mkdtemp())
    os.chown(directory, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield directory
    finally:
        os.seteuid(0)
        shutil.rmtree(directory)
