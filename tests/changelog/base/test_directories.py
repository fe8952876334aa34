"""Which directories are synced. That names survive a power cut is in `tests/crash/test_power_cuts.py`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from changelog.base.directories import sync_upwards


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
