"""The contract suites as somebody else runs them: on backends that answer in 80 ms, with hypothesis as it comes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

FIXTURES = """
import anyio
import pytest
from hypothesis import settings

from tiered.testing import Clock
from tiered.testing.blobs import MemoryBlobs
from tiered.testing.log import MemoryChangeLog, StoredEntry
from tiered.testing.rows import MemoryRows

{profile}

class Slow:
    async def _travel(self):
        await anyio.sleep(0.08)
        return await super()._travel()

class SlowBlobs(Slow, MemoryBlobs):
    pass

class SlowRows(Slow, MemoryRows):
    pass

class SlowLog(Slow, MemoryChangeLog):
    pass

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.fixture
def runtime():
    return Clock()

@pytest.fixture
async def long_term(runtime):
    blobs = SlowBlobs(runtime)
    blobs.kept_s = 3600.0
    yield blobs

@pytest.fixture
async def high_volume(runtime):
    yield SlowRows(runtime)

@pytest.fixture
async def changelog(runtime):
    yield SlowLog(runtime)

@pytest.fixture
def plant():
    async def planted(log, key, raw):
        log.stored[key] = StoredEntry(raw, await log.announce("planter"))

    return planted
"""
SUITES = ("high_volume", "long_term", "changelog")


def run_elsewhere(where: Path, suites: tuple[str, ...], *arguments: str, profile: str = "") -> str:
    """Runs suites in a project of their own, which has none of our settings. Returns what pytest says."""
    (where / "pytest.ini").write_text("[pytest]\n")
    (where / "conftest.py").write_text(FIXTURES.format(profile=profile))
    for suite in suites:
        (where / f"test_my_{suite}.py").write_text(f"from tiered.testing.contracts.{suite} import *\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:cacheprovider", *arguments]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    ran = subprocess.run(command, cwd=where, env={**environment, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr
    return ran.stdout


def test_backends_that_answer_in_80_ms_failed_by_the_deadline_of_hypothesis(tmp_path: Path) -> None:
    """And a profile that asks for fewer examples than the suites have is heeded."""
    fewer = "settings.register_profile('fewer', max_examples=2)\nsettings.load_profile('fewer')"
    said = run_elsewhere(tmp_path, SUITES, "-m", "hypothesis", "--hypothesis-show-statistics", profile=fewer)
    assert "\n5 passed, " in said
    assert "max_examples=2" in said and "max_examples=25" not in said and "max_examples=60" not in said


@pytest.mark.parametrize("suite", SUITES)
def test_a_correct_backend_that_answers_in_80_ms_passes_the_whole_suite(tmp_path: Path, suite: str) -> None:
    assert " passed" in run_elsewhere(tmp_path, (suite,), "-n", "4")
