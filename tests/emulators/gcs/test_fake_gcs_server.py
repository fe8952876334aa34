"""fake-gcs-server: found, built, started, and gone afterwards. Its API is a matter of `tests/contracts/`."""

from __future__ import annotations

import sys
from pathlib import Path

import aiohttp
import pytest

from changelog.base.errors import TieredError
from emulators.gcs.fake_gcs_server import FAKE_GCS_SERVER, FakeGcsNotFoundError, start_fake_gcs

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing on its PATH but `sh`, and without a cache. Returns the directory on the PATH."""
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(commands))
    monkeypatch.setattr(sys, "executable", str(commands / "python"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return commands


def plant(place: Path, script: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"#!/bin/sh\n{script}\n")
    place.chmod(0o755)


@pytest.mark.usefixtures("fake_gcs_url")
async def test_it_answers_and_is_gone_afterwards() -> None:
    async with aiohttp.ClientSession() as session:
        async with start_fake_gcs() as url, session.get(f"{url}/storage/v1/b") as answer:
            assert (await answer.json())["kind"] == "storage#buckets"
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(f"{url}/storage/v1/b")


@pytest.mark.usefixtures("bare_machine")
async def test_where_there_is_none_one_sentence_says_every_way_to_get_one() -> None:
    with pytest.raises(FakeGcsNotFoundError, match="there is no Go to build it with; put it on PATH, or install Go"):
        async with start_fake_gcs():
            pass


@pytest.mark.parametrize("place", ["on PATH", "in the cache"])
async def test_one_that_ends_at_once_is_said_to_have_ended(bare_machine: Path, place: str) -> None:
    plant(bare_machine / "fake-gcs-server" if place == "on PATH" else FAKE_GCS_SERVER.cached(), "exit 3")
    with pytest.raises(TieredError, match="fake-gcs-server ended with 3"):
        async with start_fake_gcs():
            pass
