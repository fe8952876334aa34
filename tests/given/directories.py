"""Directories of files, and what the objects below a prefix hold."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tiered import ObjectId, ObjectPrefix, TieredStorage
from tiered.directories import FileResult, Kind

PREFIX = ObjectPrefix.create("photos", "2026/", {"org": "17"})
SMALL, LARGE, HUGE = b"small", b"large" * 1000, bytes(range(256)) * 10_000
TREE = {"a": SMALL, "a.txt": b"", "b/c/d": LARGE, "b/c.jpg": HUGE, "b/é": b"e", "z": b"z"}


def write_tree(directory: Path, tree: dict[str, bytes]) -> None:
    for path, content in tree.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)


def read_tree(directory: Path) -> dict[str, bytes]:
    """All regular files, partial ones too."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def open_below(directory: Path) -> list[str]:
    """What this process has open there."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one that lists the others
            found.append(str(each.readlink()))
    return [each for each in found if each.startswith(str(directory))]


def object_at(path: str) -> ObjectId:
    return ObjectId.create("photos", f"2026/{path}", {"org": "17"})


async def put_tree(storage: TieredStorage, tree: dict[str, bytes]) -> None:
    """Puts objects as another program would, without a checksum."""
    for path, content in tree.items():
        await storage.put(object_at(path), content)


async def read_objects(storage: TieredStorage) -> dict[str, bytes]:
    found = {}
    async for entry in storage.list(PREFIX):
        stored = await storage.get(entry.object_id)
        assert stored is not None
        found[entry.object_id.key.removeprefix("2026/")] = await stored.read()
    return found


class Told:
    """What `on_result` was told, but for what is unchanged."""

    def __init__(self) -> None:
        self.results: list[FileResult] = []

    def __call__(self, result: FileResult) -> None:
        if result.kind is not Kind.UNCHANGED:
            self.results.append(result)

    def paths(self, kind: Kind) -> list[str]:
        return sorted(each.path for each in self.results if each.kind is kind)

    def why(self, path: str) -> str:
        (found,) = (each.why for each in self.results if each.path == path)
        return found or ""
