"""The contract suites on a trial: green where the contracts are kept, and elsewhere red, with the name of the test."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import Process

from changelog.base.runtime import SystemRuntime
from emulators.postgres.server import PostgresServer
from emulators.s3.servers import REGION
from recovery.prove import contracts, trial
from recovery.prove.contracts import EVENTS, SUITES, Given, Suite, run_suites
from recovery.prove.probes.bench import Sizes
from recovery.prove.report import Line
from recovery.prove.trial import Trial
from tests.given.emulated_services import emulated_services
from tests.given.fresh_schema import settings_of
from tests.given.repository import ROOT
from tests.given.s3_buckets import make_bucket
from tests.given.waiting import becomes
from tiered.provision.probes import Result
from tiered.settings import S3Settings, Settings

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LONG = Sizes(contracts_s=900)
"""The machine of the tests may be busy."""
OF_ROWS = (ROOT / "tiered/testing/contracts/high_volume.py").read_text().count("async def test_")
HIGH_VOLUME, LONG_TERM, PARTS, CHANGELOG = SUITES

KINDS = '''
"""Rows in a directory that do one thing otherwise."""

from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import anyio

from tiered.embedded.blobs import FileBlobs
from tiered.kinds.directory import DirectoryRows


class LosesParts(DirectoryRows):
    """While they are open, blobs in directories do not tell of the first part."""

    @asynccontextmanager
    async def open(self, settings, runtime, *, writes, verify):
        parts = FileBlobs.parts

        async def loses(blobs, name, session):
            return (await parts(blobs, name, session))[1:]

        async with super().open(settings, runtime, writes=writes, verify=verify) as opened:
            with patch.object(FileBlobs, "parts", loses):
                yield opened


class Hangs(DirectoryRows):
    """It answers no read."""

    @asynccontextmanager
    async def open(self, settings, runtime, *, writes, verify):
        async with super().open(settings, runtime, writes=writes, verify=verify) as opened:
            async def never(path, *, marks=False):
                await anyio.sleep_forever()

            opened.rows.read = never
            yield opened


class Forgets(DirectoryRows):
    """A look at some rows lacks one, and is counted."""

    @asynccontextmanager
    async def open(self, settings, runtime, *, writes, verify):
        async with super().open(settings, runtime, writes=writes, verify=verify) as opened:
            look = opened.rows.redirects_at

            async def forgets(keys):
                with settings.directory.with_name("looks").open("a") as looks:
                    looks.write("x")
                page = await look(keys)
                return replace(page, redirects=page.redirects[1:])

            opened.rows.redirects_at = forgets
            yield opened


LOSES, HANGS, FORGETS = LosesParts(), Hangs(), Forgets()
'''
ENTRY_POINTS = "[tiered.kinds]\nloses = odd_kinds:LOSES\nhangs = odd_kinds:HANGS\nforgets = odd_kinds:FORGETS\n"


@pytest.fixture
def odd_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    information = site / "odd_kinds-1.0.dist-info"
    information.mkdir(parents=True)
    (site / "odd_kinds.py").write_text(KINDS)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-kinds\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(site)


def odd(kind: str, tmp_path: Path) -> Settings:
    return Settings(directory=tmp_path / "store", rows={"kind": kind}, changelog=kind)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Process]:
    """The processes that are started, which are real."""
    found: list[Process] = []
    start = anyio.open_process

    async def noting(*args: Any, **options: Any) -> Process:
        found.append(await start(*args, **options))
        return found[-1]

    monkeypatch.setattr("recovery.prove.contracts.open_process", noting)
    return found


async def _any(found: Sequence[object]) -> bool:
    return bool(found)


@asynccontextmanager
async def begun(settings: Settings) -> AsyncIterator[Trial]:
    async with trial.begin(settings, SystemRuntime()) as tried:
        yield tried
    assert not tried.left


async def lines_of(
    settings: Settings, suites: Sequence[Suite] = SUITES, sizes: Sizes = LONG, silent_s: float = 120.0
) -> dict[str, Line]:
    async with begun(settings) as tried:
        return {line.name: line for line in await run_suites(tried, sizes, lambda _: None, suites, silent_s)}


async def test_suites_of_a_directory_are_held_whatever_pytest_is_told_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "conftest.py").write_text("raise AssertionError('a conftest of the user')\n")
    (here / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (here / "pytest.py").write_text("raise AssertionError('a module of the user')\n")
    monkeypatch.chdir(here)
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTHONOPTIMIZE", "PYTHONWARNINGS"):
        monkeypatch.setenv(name, "1")
    found = await lines_of(Settings(directory=Path("store")), [PARTS])
    assert (found["parts"].result, found["parts"].said, found["parts"].about) == (Result.HELD, "17 tests passed", "contracts")
    assert sorted(each.name for each in here.iterdir()) == ["conftest.py", "pytest.ini", "pytest.py"]


async def test_a_suite_that_fails_names_the_test_and_why(odd_kinds: None, tmp_path: Path) -> None:
    line = (await lines_of(odd("loses", tmp_path), [PARTS]))["parts"]
    assert line.result is Result.BROKEN and not line.is_limit
    assert "tests failed: test_" in line.said and "test_what_a_listing_tells_is_enough_to_complete (" in line.said
    assert str(tmp_path) not in line.said


@pytest.mark.night
async def test_one_example_that_fails_is_enough(odd_kinds: None, tmp_path: Path) -> None:
    """To look for a smaller one takes hundreds of calls, minutes on a slow service: then not all is tried."""
    line = (await lines_of(odd("forgets", tmp_path), [HIGH_VOLUME]))["high_volume"]
    assert "test_pages_of_any_size_and_ranges_of_any_cut_are_together_the_whole" in line.said
    (looks,) = tmp_path.rglob("looks")
    assert looks.stat().st_size < 40


@pytest.mark.night
async def test_a_test_that_hangs_ends_its_suite_and_no_other(odd_kinds: None, tmp_path: Path, started: list[Process]) -> None:
    settings = odd("hangs", tmp_path)
    found = await lines_of(settings, [HIGH_VOLUME, PARTS], silent_s=20.0)
    assert found["high_volume"].result is Result.UNTRIED
    assert found["high_volume"].said == (
        f"0 of {OF_ROWS} tests were over, and then nothing was heard for 20 s during "
        "test_a_row_that_was_never_written_is_absent_and_has_no_marks"
    )
    assert found["parts"].result is Result.HELD
    assert [process.returncode for process in started] == [-signal.SIGKILL, 0]


@pytest.mark.night
async def test_when_the_time_is_over_what_was_not_run_is_said(odd_kinds: None, tmp_path: Path) -> None:
    settings = odd("hangs", tmp_path)
    found = await lines_of(settings, [HIGH_VOLUME, CHANGELOG], Sizes(contracts_s=15))
    assert "and then the time for all suites was over" in found["high_volume"].said
    assert found["changelog"].result is Result.UNTRIED and found["changelog"].said == "the 15 s for all suites were over before it began"


async def test_a_process_that_is_killed_is_no_finding(odd_kinds: None, tmp_path: Path, started: list[Process]) -> None:
    settings = odd("hangs", tmp_path)
    found: dict[str, Line] = {}

    async def run() -> None:
        found.update(await lines_of(settings, [HIGH_VOLUME]))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await becomes(partial(_any, started))
        os.kill(started[0].pid, signal.SIGKILL)
    assert found["high_volume"].result is Result.UNTRIED and "pytest ended with -9" in found["high_volume"].said


async def test_a_cancelled_run_ends_its_process(odd_kinds: None, tmp_path: Path, started: list[Process]) -> None:
    settings = odd("hangs", tmp_path)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lines_of, settings, [HIGH_VOLUME])
        await becomes(partial(_any, started))
        tasks.cancel_scope.cancel()
    assert started[0].returncode == -signal.SIGKILL
    assert not [each for each in tmp_path.iterdir() if "-prove-" in each.name]


async def test_a_process_that_nobody_ends_ends_itself(odd_kinds: None, tmp_path: Path) -> None:
    settings = odd("hangs", tmp_path)
    contracts._prepare(tmp_path, Given(settings, within_s=-9))
    assert (tmp_path / contracts.GIVEN).stat().st_mode & 0o777 == 0o600
    async with await contracts._started(HIGH_VOLUME, tmp_path) as process:
        assert await process.wait() == -signal.SIGALRM
    assert not (tmp_path / contracts.GIVEN).exists(), "its password is nowhere, although nobody removes the directory"
    assert not (tmp_path / EVENTS).exists() or '"ended"' not in (tmp_path / EVENTS).read_text()


async def test_without_pytest_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    found = await lines_of(Settings(directory=tmp_path / "store"))
    assert {line.result for line in found.values()} == {Result.UNTRIED} and len(found) == len(SUITES)
    assert found["high_volume"].said == "needs hypothesis, which the extra 'testing' of this package brings"


@asynccontextmanager
async def on_servers(postgres: PostgresServer, versitygw_url: str, bucket: str) -> AsyncIterator[Trial]:
    await make_bucket(versitygw_url, bucket)
    s3 = S3Settings(bucket=bucket, endpoint=versitygw_url, region=REGION, addressing_style="path")
    async with trial.begin(Settings(postgres=settings_of(postgres), s3=s3, changelog="postgres"), SystemRuntime()) as tried:
        yield tried


@pytest.mark.night
async def test_changelog_in_postgresql_and_parts_in_a_bucket_keep_their_contracts(
    durable_postgres: PostgresServer, versitygw_url: str
) -> None:
    async with on_servers(durable_postgres, versitygw_url, "some-suites") as tried:
        changelog, parts = await run_suites(tried, LONG, lambda _: None, [CHANGELOG, PARTS], silent_s=120.0)
    assert (changelog.result, changelog.said) == (Result.HELD, "69 tests passed")
    assert parts.result is Result.HELD or "raced_by_cancel" in parts.said, "versitygw is known to fail there now and then"
    assert not tried.left


@pytest.mark.night
@pytest.mark.timeout(1200)
async def test_what_versitygw_does_wrong_is_named_and_no_more(durable_postgres: PostgresServer, versitygw_url: str) -> None:
    """It keeps files: where there is one, it has no directory of its name, and it cleans names of dots and slashes."""
    async with on_servers(durable_postgres, versitygw_url, "two-suites") as tried:
        rows, blobs = await run_suites(tried, LONG, lambda _: None, [HIGH_VOLUME, LONG_TERM], silent_s=300.0)
    assert (rows.result, rows.said) == (Result.HELD, f"{OF_ROWS} tests passed")
    assert blobs.result is Result.BROKEN and "test_a_blob_and_one_whose_name_continues_it_coexist" in blobs.said
    assert set(re.findall(r"\btest_\w+", blobs.said)) <= {
        "test_of_deletions_of_one_generation_at_once_one_tells_that_it_deleted", "test_any_name_is_stored_listed_and_deleted_as_it_is",
        "test_a_blob_and_one_whose_name_continues_it_coexist", "test_a_listing_is_in_byte_order_whatever_the_page_and_the_range",
        "test_names_beyond_the_first_plane_come_after_all_others",
    }  # fmt: skip
    assert "two-suites" not in blobs.said and versitygw_url not in blobs.said


@pytest.mark.night
async def test_google_s_emulator_of_bigtable_tells_keys_of_rows_that_were_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else is wrong there: no rule of the trial's table collects what expired long ago."""
    with emulated_services(monkeypatch) as settings:
        found = await lines_of(settings)
    assert {line.name for line in found.values() if line.result is not Result.HELD} == {"high_volume"}
    said = found["high_volume"].said
    assert said.startswith(f"1 of {OF_ROWS} tests failed: test_boundaries_split_the_table_in_order_into_about_so_many_parts (")
