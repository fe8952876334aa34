"""Files that take longer to make than to write are made once, and written wherever they are wanted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

TEXTS = (".json", ".html")
"""These files name the directory in which they are."""


class MadeOnce:
    """`make`: makes the files in a directory."""

    def __init__(self, make: Callable[[Path], Awaitable[object]]) -> None:
        self._make = make
        self._files: dict[Path, bytes] = {}
        self.where = ""

    async def write(self, directory: Path) -> None:
        if not self._files:
            with TemporaryDirectory() as self.where:
                await self._make(Path(self.where))
                found = [path for path in Path(self.where).rglob("*") if path.is_file() and not path.name.endswith(("-wal", "-shm"))]
                self._files = {path.relative_to(self.where): path.read_bytes() for path in found}
        for path, content in self._files.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(
                content.replace(self.where.encode(), str(directory).encode()) if path.suffix in TEXTS else content
            )
