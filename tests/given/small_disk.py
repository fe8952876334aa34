"""Small file systems in memory, mounted for a test."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

MIB = 1024 * 1024
Mount = Callable[..., None]


@pytest.fixture
def mount() -> Iterator[Mount]:
    """Mounts what `mount` is told at a path, until the end of the test."""
    mounted: list[Path] = []

    def run(path: Path, *arguments: str) -> None:
        done = subprocess.run(["mount", *arguments, str(path)], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"this machine lets nobody mount: {done.stderr.strip()}")
        if "remount" not in "".join(arguments):
            mounted.append(path)

    yield run
    for path in reversed(mounted):
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture
def disk(tmp_path: Path, mount: Mount) -> Path:
    """One of 4 MiB."""
    (path := tmp_path / "disk").mkdir()
    mount(path, "-t", "tmpfs", "-o", "size=4m", "tiered-test")
    return path


def fill(disk: Path) -> Path:
    """To the last byte; returns the file that did."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (MIB, 4096, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue
    return filler
