"""An embedded store on a real directory: its settings, the files in it, and an object."""

from __future__ import annotations

from pathlib import Path

from tiered import ObjectId, Settings, TieredStorage

OBJECT = ObjectId.create("attachments", "key", {"org": "17"})


def embedded(directory: Path) -> Settings:
    return Settings(directory=directory, changelog="sqlite")


async def read(storage: TieredStorage, object_id: ObjectId = OBJECT) -> bytes | None:
    stored = await storage.get(object_id)
    return None if stored is None else await stored.read()


def files(directory: Path) -> list[Path]:
    return [path for path in (*(directory / "blobs").rglob("*"), *(directory / "uploads").rglob("*")) if path.is_file()]
