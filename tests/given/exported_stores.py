"""Stores to export and to import into, places for an export, and what the API shows of a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from tests.given.metadata_fields import CARRIED
from tiered import Metadata, ObjectId, Settings, TieredStorage, TimeToIdle, TimeToLive, open_storage

LARGE = bytes(range(256)) * 300
NAMES = ("a", "A", "a/b", "é/ü", "a//b")
"""Keys that not every file system takes, or takes for one another."""
MORE_NAMES = (
    *NAMES, "con", "dots..", "x" * 700, "e\u0301", "a b?*:|<>\"\\", "-", "~", "日本/語", "trailing/", "%2F", "'q'",
)  # fmt: skip


def settings_of(directory: Path) -> Settings:
    return Settings(directory=directory, inline_bytes_max=100)


async def fill(storage: TieredStorage, names: Sequence[str] = NAMES) -> None:
    """Small and large objects with every kind of metadata."""
    for number, name in enumerate(names):
        payload = LARGE[: number * 40]
        await storage.put(ObjectId.create("odd", name, {"org": number % 3}), payload, Metadata(custom={"n": str(number)}))
    for number, (size, expiration) in enumerate((s, e) for s in (0, 5, len(LARGE)) for e in EXPIRATIONS):
        metadata = Metadata(
            expiration=expiration, time_created_ns=1_234_567_890 + number, **{**CARRIED, "compression": None},
            custom={"a": "1", "b-c": "two"}, unknown={"newer": {"x": [1, None]}},
        )  # fmt: skip
        await storage.put(ObjectId.create("kept", f"{number:02}"), LARGE[:size], metadata)
    await storage.put(ObjectId.create("packed", "small"), b"text " * 15, compress="zstd")
    await storage.put(ObjectId.create("packed", "large"), LARGE, compress="zstd")


EXPIRATIONS = (None, TimeToLive(timedelta(hours=3)), TimeToIdle(timedelta(days=2)))
OBJECTS = len(NAMES) + 9 + 2
ALL_OBJECTS = OBJECTS - len(NAMES) + len(MORE_NAMES)

Shown = dict[str, tuple[Metadata, int, bytes]]


async def shown(storage: TieredStorage) -> Shown:
    """All objects as the API shows them, but for revisions."""
    found: Shown = {}
    async for entry in storage.list():
        head = await storage.head(entry.object_id)
        stored = await storage.get(entry.object_id, decompress=False)
        assert head is not None and stored is not None
        found[entry.object_id.path] = (replace(head.metadata), head.size, await stored.read())
    return found


@asynccontextmanager
async def filled(directory: Path, names: Sequence[str] = NAMES) -> AsyncIterator[TieredStorage]:
    async with open_storage(settings_of(directory)) as storage:
        await fill(storage, names)
        yield storage


def payload_files(place: Path) -> list[Path]:
    return sorted(path for path in (place / "payloads").rglob("*") if path.is_file())
