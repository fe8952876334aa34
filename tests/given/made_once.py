"""Files that take longer to make than to write are made once, and written wherever they are wanted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

TEXTS = (".json", ".html")
"""These files name the directory in which they are."""


class MadeOnce:
    """`make`: makes the files in a directory. `where`: that directory."""

    def __init__(self, make: Callable[[Path], Awaitable[object]]) -> None:
        self._make = make
        self._found: dict[Path, bytes | None] = {}
        self.where = ""

    async def write(self, directory: Path) -> None:
        if not self._found:
            with TemporaryDirectory() as self.where:
                await self._make(Path(self.where))
                found = [path for path in Path(self.where).rglob("*") if not path.name.endswith(("-wal", "-shm"))]
                self._found = {path.relative_to(self.where): path.read_bytes() if path.is_file() else None for path in found}
        directory.mkdir(parents=True, exist_ok=True)
        for path, content in self._found.items():
            if content is None:
                (directory / path).mkdir()
                continue
            text = content.replace(self.where.encode(), str(directory).encode())
            (directory / path).write_bytes(text if path.suffix in TEXTS else content)
