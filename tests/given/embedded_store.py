"""An embedded store on a real directory: its settings, and the files in it."""

from __future__ import annotations

from pathlib import Path

from tiered import Settings


def embedded(directory: Path) -> Settings:
    return Settings(directory=directory, changelog="sqlite")


def files(directory: Path) -> list[Path]:
    return [path for path in (*(directory / "blobs").rglob("*"), *(directory / "uploads").rglob("*")) if path.is_file()]
