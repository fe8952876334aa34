"""Which directories are synced. That names survive a power cut is in `tests/crash/test_power_cuts.py`."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from changelog.base.directories import sync, sync_directory, sync_upwards


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        names.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", noted)
    return names


def test_a_relative_path_and_a_link_do_not_hide_the_directories_above(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real" / "store").mkdir(parents=True)
    (tmp_path / "linked").symlink_to("real/store")
    monkeypatch.chdir(tmp_path)
    sync_upwards(Path("linked"))
    real = tmp_path.resolve()
    assert synced[:3] == [str(real / "real" / "store"), str(real / "real"), str(real)]


def test_a_directory_above_that_this_user_may_not_read_is_left_out(unprivileged: Path, synced: list[str]) -> None:
    closed, store = unprivileged / "closed", unprivileged / "closed" / "store"
    store.mkdir(parents=True)
    closed.chmod(0o311)
    try:
        sync_upwards(store)
    finally:
        closed.chmod(0o755)
    assert str(unprivileged) in synced
    assert str(closed) not in synced


def test_a_directory_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sync_upwards(tmp_path / "gone")


F_FULLFSYNC = 51
"""What macOS calls it. No macOS runs these tests."""


@pytest.fixture
def macos(monkeypatch: pytest.MonkeyPatch) -> dict[str, int | None]:
    """A system that has the call. `answer`: an errno, or None; `calls`: how often it came."""
    system: dict[str, int | None] = {"answer": None, "calls": 0}

    def answered(descriptor: int, command: int) -> int:
        assert command == F_FULLFSYNC and os.fstat(descriptor)
        system["calls"] = (system["calls"] or 0) + 1
        if system["answer"] is not None:
            raise OSError(system["answer"], os.strerror(system["answer"]))
        return 0

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", F_FULLFSYNC, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", answered)
    return system


def test_on_macos_what_was_synced_was_in_the_cache_of_the_disk_only(
    tmp_path: Path, synced: list[str], macos: dict[str, int | None]
) -> None:
    sync_directory(tmp_path)
    with open(tmp_path / "file", "wb") as file:
        sync(file.fileno())
    assert (macos["calls"], synced) == (2, [])


def test_on_macos_a_file_system_without_the_full_call_gets_fsync(
    tmp_path: Path, synced: list[str], macos: dict[str, int | None]
) -> None:
    macos["answer"] = errno.ENOTSUP
    sync_directory(tmp_path)
    assert (macos["calls"], synced) == (1, [str(tmp_path)])


def test_on_macos_a_disk_that_fails_is_not_asked_again_in_another_way(
    tmp_path: Path, synced: list[str], macos: dict[str, int | None]
) -> None:
    macos["answer"] = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        sync_directory(tmp_path)
    assert (macos["calls"], synced) == (1, [])
