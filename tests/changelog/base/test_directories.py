"""Which directories are synced. That names survive a power cut is in `tests/crash/test_power_cuts.py`."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from changelog.base.directories import sync_file, sync_upwards


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


class Macos:
    """What macOS adds to fcntl: a command that no other system has, and what a file system answers to it."""

    F_FULLFSYNC = 51

    def __init__(self, refuses: int | None) -> None:
        self.refuses = refuses
        self.asked: list[tuple[int, int]] = []

    def fcntl(self, descriptor: int, command: int) -> int:
        self.asked.append((descriptor, command))
        if self.refuses is not None:
            raise OSError(self.refuses, os.strerror(self.refuses))
        return 0


@pytest.mark.parametrize(("refuses", "then"), [(None, 0), (errno.ENOTSUP, 1), (errno.EINVAL, 1)])
def test_on_macos_a_file_is_synced_down_to_the_disk_or_as_far_as_its_file_system_can(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch, refuses: int | None, then: int
) -> None:
    macos = Macos(refuses)
    monkeypatch.setattr("changelog.base.directories.fcntl", macos)
    with (tmp_path / "file").open("wb") as file:
        sync_file(file.fileno())
        assert macos.asked == [(file.fileno(), Macos.F_FULLFSYNC)]
    assert synced == [str(tmp_path / "file")] * then


def test_on_macos_a_disk_that_cannot_write_is_no_file_system_that_lacks_the_command(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("changelog.base.directories.fcntl", Macos(errno.EIO))
    with (tmp_path / "file").open("wb") as file, pytest.raises(OSError, match=os.strerror(errno.EIO)):
        sync_file(file.fileno())
    assert synced == []


def test_elsewhere_a_file_is_synced_by_fsync(tmp_path: Path, synced: list[str]) -> None:
    if hasattr(fcntl, "F_FULLFSYNC"):
        pytest.skip("this is macOS")
    with (tmp_path / "file").open("wb") as file:
        sync_file(file.fileno())
    assert synced == [str(tmp_path / "file")]
