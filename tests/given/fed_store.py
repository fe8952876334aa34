"""A store in memory with a change feed: its tiers and log, a sink that remembers, and what a reader makes of it."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from changelog.base.errors import UnavailableError
from changelog.change import LOG_PREFIX
from changelog.log import LOG_END, KeyRange
from recovery.feed.files import FileFormat, read
from recovery.feed.messages import Message
from recovery.feed.reader import CdcReader
from recovery.feed.sinks.sink import Owner, Segment, SinkContent
from recovery.feed.writer.supervisor import FeedRun
from tiered.metadata import Metadata
from tiered.object_id import ObjectId
from tiered.open import Backends
from tiered.services.backends import Tiers
from tiered.settings import Settings
from tiered.storage import TieredStorage
from tiered.testing.blobs import MemoryBlobs
from tiered.testing.clock import Clock
from tiered.testing.log import MemoryChangeLog
from tiered.testing.rows import MemoryRows

LARGE = b"x" * 64
OWNER = Owner("0" * 32, "a store in memory")
INLINE_BYTES_MAX = 16


@dataclass
class ListSink:
    """Keeps what it is given, in the order in which it came first."""

    name: str = "https://memory/feed"
    segments: list[Segment] = field(default_factory=list)
    is_away: bool = False
    owner: Owner | None = None
    foreign: tuple[str, ...] = ()

    async def deliver(self, segment: Segment) -> None:
        if self.is_away:
            raise UnavailableError(f"{self.name} does not answer")
        held = {each.name: each for each in self.segments if each.generation == segment.generation}
        if held.get(segment.name, segment) != segment:
            raise segment.other_bytes(self.name)
        if segment.name not in held:
            self.segments.append(segment)

    async def look(self, generation: int, since: int) -> SinkContent:
        if self.is_away:
            raise UnavailableError(f"{self.name} does not answer")
        times = {each.time for each in self.segments if each.generation == generation and each.time >= since}
        return SinkContent(self.owner, max((each.generation for each in self.segments), default=None), tuple(sorted(times)), self.foreign)

    async def claim(self, owner: Owner) -> bool:
        self.owner = self.owner or owner
        return True

    async def aclose(self) -> None:
        return None

    def messages(self, generation: int | None = None) -> list[Message]:
        """Returns the messages of a generation, by default of the newest one, in the order in which they came."""
        newest = max((each.generation for each in self.segments), default=0)
        return [
            located.message for each in self.segments if each.generation == (generation or newest)
            for located in read(each.name, FileFormat(each.suffix), open_file=lambda path,
            each=each: cast(io.RawIOBase, io.BytesIO(each.data)))  # type: ignore[misc]
        ]  # fmt: skip

    def view(self) -> tuple[dict[str, str], tuple[int, ...]]:
        """Returns the references that a strict reader of the newest generation knows, and its frontier."""
        return view_of(self.messages())


def view_of(messages: list[Message]) -> tuple[dict[str, str], tuple[int, ...]]:
    """Returns what a strict reader knows. Each object has one blob at most, and each reference is there once."""
    reader, view = CdcReader(), Counter[tuple[str, str]]()
    frontier: tuple[int, ...] = (0,)
    for message in messages:
        if (batch := reader.feed(message)) is None:
            continue
        for data, _, diff in sorted(batch.updates, key=lambda update: (update[1], update[2])):
            view[data["object"], data["blob"]] += diff
            assert view[data["object"], data["blob"]] in (0, 1), f"{data} is there {view[data['object'], data['blob']]} times"
        frontier = batch.frontier
    live = [reference for reference, number in view.items() if number]
    assert len({name for name, _ in live}) == len(live), "an object has two blobs"
    return dict(live), frontier


class FedStore:
    """`storage` writes; `run_once` publishes all, delivers it and cleans up, as `tiered feed run --once` does."""

    def __init__(self, runtime: Any, *, sessions: bool = True, **feed: Any) -> None:
        self.runtime = runtime
        self.settings = Settings(
            directory=Path("memory"), inline_bytes_max=INLINE_BYTES_MAX,
            feed={"enabled": True, "to": ("https://memory/feed",), **feed},
            recovery={"late_upload_grace_s": 5.0},
        )  # fmt: skip
        self.rows, self.blobs, self.log = MemoryRows(runtime), MemoryBlobs(runtime, sessions=sessions), MemoryChangeLog(runtime)
        self.backends = Backends(Tiers(self.rows, self.blobs), self.log)
        self.sink = ListSink()
        self.storage: TieredStorage

    def run(self, **options: Any) -> FeedRun:
        return FeedRun(self.backends, self.runtime, self.settings, {self.sink.name: self.sink}, **options)

    async def run_once(self, **options: Any) -> FeedRun:
        run = self.run(once=True, **options)
        await run.run()
        return run

    async def put(self, name: str, payload: bytes = LARGE) -> None:
        await self.storage.put(object_id(name), payload, Metadata())

    async def delete(self, name: str) -> None:
        await self.storage.delete(object_id(name))

    async def references(self) -> dict[str, str]:
        """Returns what the rows hold."""
        page = await self.rows.redirects(b"", None, 10_000)
        return {redirect.path: redirect.target for redirect in page.redirects}

    async def kept(self) -> int:
        return len((await self.log.kept(KeyRange(LOG_PREFIX, LOG_END), 1000)).entries)

    @property
    def blob_names(self) -> set[str]:
        return set(self.blobs.blobs)


def object_id(name: str) -> ObjectId:
    return ObjectId.create("photos", name, scopes={"org": "17"})


@asynccontextmanager
async def fed_store(runtime: Any = None, *, sessions: bool = True, **feed: Any) -> AsyncIterator[FedStore]:
    store = FedStore(runtime or Clock(), sessions=sessions, **feed)
    tiers = store.backends.tiers
    async with TieredStorage(tiers, store.log, store.runtime, store.settings) as store.storage:
        yield store
