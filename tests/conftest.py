"""What every test has in common: no settings of the machine it runs on, and examples that repeat."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from tiered.settings import ENV_OTHERS, ENV_PREFIX

# Derandomised: a submission is judged by its own change, not by the examples it happened to draw; `make sim`
# looks further. No deadline: other work may share the machine.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _no_settings_from_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(ENV_PREFIX) and not name.startswith(ENV_OTHERS)]:
        monkeypatch.delenv(name)
