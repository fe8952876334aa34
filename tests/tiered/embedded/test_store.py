"""The whole store on a real directory: many at once, full disks, foreign files, gigabytes."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from recovery.daemon import Collected, collect
from tests.given.embedded_store import embedded, files
from tests.given.tapped_store import OBJECT, read
from tiered import ConfigurationError, Metadata, ObjectId, Settings, TimeToIdle, TimeToLive, open_storage
from tiered.metadata import NS_PER_S
from tiered.open import open_backends
from tiered.testing.clock import Clock

pytestmark = pytest.mark.anyio

LARGE = b"large" * 500_000

async def test_object_survives_closing_and_opening_again(tmp_path: Path) -> None:
    async with open_storage(embedded(tmp_path / "store")) as storage:
        await storage.put(OBJECT, LARGE, Metadata(content_type="text/plain"))
    (tmp_path / "tiered.yaml").write_text(f"directory: {tmp_path / 'store'}\nchangelog: sqlite\n")
    async with open_storage(tmp_path / "tiered.yaml") as storage:
        assert await read(storage) == LARGE
        head = await storage.head(OBJECT)
        assert head is not None and head.metadata.content_type == "text/plain"


async def test_two_stores_on_one_directory_see_each_others_writes(tmp_path: Path) -> None:
    ids = [ObjectId.create("a", str(number)) for number in range(20)]
    async with open_storage(embedded(tmp_path)) as one, open_storage(embedded(tmp_path)) as two:
        async with anyio.create_task_group() as tasks:
            for number, object_id in enumerate(ids):
                for storage in (one, two):
                    tasks.start_soon(storage.put, object_id, str(number).encode() * (1 if number % 2 else 2_000_000))
        for number, object_id in enumerate(ids):
            assert await read(one, object_id) == await read(two, object_id) == str(number).encode() * (1 if number % 2 else 2_000_000)
    assert len(files(tmp_path)) == 10, "of two large puts of one object, one blob remains"


async def test_store_in_a_directory_keeps_a_changelog_and_goes_without_one_only_by_name(
    tmp_path: Path, runtime: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "tiered")
    for settings in (Settings(directory=tmp_path), Settings(directory=tmp_path, changelog="noop")):
        async with open_backends(settings, runtime) as backends:
            assert backends.log.durable is (settings.changelog == "sqlite")
    assert not caplog.records


async def test_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "tiered.db").write_bytes(b"something else entirely, not SQLite at all" * 100)
    before = (tmp_path / "tiered.db").read_bytes()
    with pytest.raises(ConfigurationError, match=r"tiered\.db"):
        async with open_storage(embedded(tmp_path)):
            pass
    assert (tmp_path / "tiered.db").read_bytes() == before


@pytest.mark.parametrize("expiration", [TimeToLive(timedelta(milliseconds=50)), TimeToIdle(timedelta(milliseconds=50))])
async def test_expired_objects_are_collected_rows_and_blobs(
    tmp_path: Path, runtime: Clock, expiration: TimeToLive | TimeToIdle
) -> None:
    settings = embedded(tmp_path)
    async with open_storage(settings) as storage:
        await storage.put(ObjectId.create("a", "small"), b"small", Metadata(expiration=expiration))
        await storage.put(ObjectId.create("a", "large"), LARGE, Metadata(expiration=expiration))
        await storage.put(OBJECT, LARGE)
        await anyio.sleep(0.1)
        async with open_backends(settings, runtime) as backends:
            assert await collect(backends) == Collected(2, []), "the rows at once, the blob an hour later"
            runtime.ahead_ns = 2 * 3600 * NS_PER_S
            assert await collect(backends) == Collected(1, [])
            assert [row.path for row in (await backends.tiers.high_volume.scan("", b"", 10)).rows] == [OBJECT.path]
        assert len(files(tmp_path)) == 1
        assert await read(storage) == LARGE


def run_limited(directory: Path, program: str) -> str:
    """Runs it in a process of its own, whose files may not grow beyond 3 MB: to it, the disk is full."""
    prelude = """
        import anyio, resource, signal, sys
        from tiered import ObjectId, OutcomeUnknownError, Settings, UnavailableError, open_storage
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        store = Settings(directory=sys.argv[1], changelog="sqlite", store={"answer_budget_s": 0.2})
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(program), str(directory)],
        capture_output=True, text=True, timeout=120, check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_full_disk_refuses_the_blob_and_leaves_what_was_there(tmp_path: Path) -> None:
    out = run_limited(tmp_path, """
        async def main():
            key = ObjectId.create("a", "key")
            async with open_storage(store) as storage:
                await storage.put(key, b"first" * 300_000)
                resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))
                try:
                    await storage.put(key, b"second" * 1_000_000)
                except UnavailableError as error:
                    print(error)
                stored = await storage.get(key)
                print(await stored.read() == b"first" * 300_000)
        anyio.run(main)
    """)
    sentence, intact = out.splitlines()
    assert "the disk is full" in sentence
    assert intact == "True"
    assert len(files(tmp_path)) == 1


@pytest.mark.slow
def test_row_that_cannot_be_written_is_honestly_told_and_leaves_what_was_there(tmp_path: Path) -> None:
    # SQLite calls this limit an I/O error, not a full disk, so all that is known is that it will not happen any more.
    out = run_limited(tmp_path, """
        async def main():
            async with open_storage(store) as storage:
                resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))
                stored = []
                try:
                    for number in range(100):
                        await storage.put(ObjectId.create("a", f"{number:03}"), b"x" * 500_000)
                        stored.append(number)
                except OutcomeUnknownError as error:
                    print(error.settled)
                found = [entry.object_id.key async for entry in storage.list()]
                print(0 < len(stored) < 100 and found == [f"{number:03}" for number in stored])
        anyio.run(main)
    """)
    assert out.splitlines() == ["True", "True"]


async def test_who_only_reads_makes_nothing_and_writes_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    with pytest.raises(ConfigurationError, match="there is no store in"):
        async with open_storage(embedded(directory), writes=False):
            pass
    assert not directory.exists()
    async with open_storage(embedded(directory)) as storage:
        await storage.put(OBJECT, LARGE)
    shutil.rmtree(directory / "uploads")
    async with open_storage(embedded(directory), writes=False) as storage:
        assert await read(storage) == LARGE
        assert [entry.object_id async for entry in storage.list()] == [OBJECT]
        with pytest.raises(ConfigurationError, match="opened to read only"):
            await storage.put(OBJECT, LARGE)
    assert not (directory / "uploads").exists()
