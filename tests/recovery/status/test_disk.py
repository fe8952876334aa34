"""The disk of an embedded store, full or read-only, as every surface shows it: all of it real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from changelog.base.errors import UnavailableError
from recovery.states import Level
from recovery.status.as_json import as_json
from recovery.status.judgement import judge
from recovery.status.known import DiskStatus
from recovery.status.look import disk_of
from tests.given.daemon_process import running_daemon, wait_for
from tests.given.shown_status import healthy
from tests.given.small_disk import Mount, disk, fill, mount
from tiered import ObjectId, open_storage
from tiered.settings import Settings

__all__ = ["disk", "mount"]  # fixtures

MIB = 1 << 20


def command(store: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "recovery.cli.main", "-d", str(store), *arguments, "--json"], capture_output=True, text=True, check=False
    )
    return done.returncode, json.loads(done.stdout)


async def put(store: Path, key: str, size: int) -> None:
    async with open_storage(Settings(directory=store)) as storage:
        await storage.put(ObjectId("a", (), key), bytes(size))


@pytest.mark.slow
def test_a_disk_that_fills_under_a_living_daemon_is_told_by_every_surface(disk: Path) -> None:
    """A store that was in use has room in SQLite's log, so its daemon goes on, and looked well."""
    anyio.run(put, disk / "store", "k", 2000)
    with running_daemon(disk) as daemon:
        before = daemon.until(lambda said: said["level"] == "ok")
        assert not before["disk"]["full"]
        wait_for(lambda: daemon.get("readyz").status_code == 200)  # the first pass has read it, too
        filler = fill(disk)
        said = daemon.until(lambda said: said["level"] == "stuck")
        assert said["headline"].startswith("The disk is full: ") and said["disk"]["full"]
        assert said["orders"][0]["why"].startswith("The disk is full. Free some space for ")
        assert not [order for order in said["orders"] if "Start one" in order["why"]], "beside a living daemon"
        assert (daemon.get("readyz").status_code, "the disk of the store is full" in daemon.get("readyz").text) == (503, True)
        assert 'tiered_status_level{level="ok"} 0.0' in daemon.get("metrics").text
        wait_for(lambda: f"tiered_disk_free_bytes {daemon.status()['disk']['free_bytes']:.1f}" in daemon.get("metrics").text)
        code, told = command(disk / "store", "status")
        assert (code, told["level"]) == (6, "stuck")
        with pytest.raises(UnavailableError, match="disk is full"):
            anyio.run(put, disk / "store", "more", 4 * MIB)
        filler.unlink()
        assert daemon.until(lambda said: said["level"] == "ok")["headline"].startswith(("Recovery keeps up", "Nothing waits"))


@pytest.mark.slow
def test_a_disk_that_is_read_only_is_not_well(disk: Path, mount: Mount) -> None:
    anyio.run(put, disk / "store", "k", 2000)
    mount(disk, "-o", "remount,ro")
    code, told = command(disk / "store", "status")
    assert (code, told["level"]) == (4, "unknown") and told["headline"].startswith("The disk is read-only: nothing can be stored")
    assert not [order for order in told["orders"] if "Start one" in order["why"]]


def test_where_no_file_fits_nothing_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = os.statvfs(tmp_path)
    full = os.statvfs_result((*system[:5], 1000, 0, 0, *system[8:]))  # of its inodes, none is free
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    disk = disk_of(tmp_path)
    assert disk is not None and disk.free_bytes == 0 < disk.size_bytes


@pytest.mark.parametrize(("disk", "level"), [
    (DiskStatus(2 * MIB, 10 * MIB), Level.OK), (DiskStatus(2 * MIB - 1, 10 * MIB), Level.STUCK),
    (DiskStatus(10 * MIB, 10 * MIB, True), Level.UNKNOWN),
    (DiskStatus(0, 10 * MIB, True), Level.UNKNOWN),
])  # fmt: skip
def test_what_is_free_decides(disk: DiskStatus, level: Level) -> None:
    found = replace(healthy(), disk=disk)
    assert judge(found).level is level and as_json(found)["disk"]["free_bytes"] == disk.free_bytes
