"""The writer of the change feed on Bigtable and GCS: one is killed, two compete, and its view is what the rows hold."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import anyio
import pytest

from benchmarks.servers import Servers
from changelog.base.errors import UnavailableError
from changelog.base.runtime import SystemRuntime
from emulators.demo.checking.published import PublishedFeed, generations, read_folder
from emulators.gcs.server import GcsEmulator
from recovery.feed.messages import Update
from recovery.feed.sinks.open import open_sink
from recovery.feed.sinks.sink import Sink
from recovery.feed.writer.checkpoint import Checkpoint
from recovery.feed.writer.source import FeedWriterCounts
from recovery.feed.writer.supervisor import FeedRun
from recovery.feed.writer.writer import FeedWriter, FencedError, StepResult
from tiered import ObjectId, Settings
from tiered.buckets.owners import OWNERS
from tiered.kinds.chosen import address_of
from tiered.open import Backends, open_backends
from tiered.settings import FeedSettings, RecoverySettings
from tiered.storage import TieredStorage

pytestmark = pytest.mark.anyio

FEED_BUCKET = "feed-bucket"
LARGE = 100
OBJECTS = [ObjectId.create("bench", f"key {number}") for number in range(40)]
RUNTIME = SystemRuntime()


class KilledWriterError(Exception):
    """Stands for the end of a process."""


@dataclass(frozen=True)
class FedPlace:
    """A store with a feed on emulators. Blobs and the files of the feed are in buckets of `server`."""

    settings: Settings
    server: GcsEmulator
    root: Path

    async def mutate(self, backends: Backends, number: int, seed: int) -> None:
        """Does so many random operations, ten at once."""
        chance, free = Random(seed), anyio.CapacityLimiter(10)

        async def one(storage: TieredStorage, object_id: ObjectId, what: str) -> None:
            async with free:
                with suppress(UnavailableError):  # another one has changed the row meanwhile
                    if what == "delete":
                        await storage.delete(object_id)
                    else:
                        await storage.put(object_id, bytes(LARGE + 1 if what == "large" else 1))

        async with TieredStorage(backends.tiers, backends.log, RUNTIME, self.settings) as storage, anyio.create_task_group() as tasks:
            for _ in range(number):
                tasks.start_soon(one, storage, chance.choice(OBJECTS), chance.choice(("large", "large", "small", "delete")))

    @asynccontextmanager
    async def sinks(self) -> AsyncIterator[Mapping[str, Sink]]:
        sinks = {to: open_sink(to, RUNTIME, self.settings) for to in self.settings.feed.to}
        yield sinks
        for sink in sinks.values():
            await sink.aclose()

    def published(self) -> list[PublishedFeed]:
        """What the directory and the bucket hold."""
        copy = self.root / "copy"
        for name, stored in self.server.buckets[FEED_BUCKET].objects.items():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes(stored.payload)
        folders = generations(self.root / "feed"), generations(copy / "live")
        assert [len(each) for each in folders] == [1, 1]
        return [read_folder(folders[0][0], "the directory"), read_folder(folders[1][0], "the bucket")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def place(anyio_backend: str, bigtable_host: str, tmp_path: Path) -> AsyncIterator[FedPlace]:
    feed = FeedSettings(
        enabled=True, to=(str(tmp_path / "feed"), f"gs://{FEED_BUCKET}/live"), batch_max=30,
        poll_s=0.1, progress_every_s=0.2,
    )  # fmt: skip
    async with GcsEmulator() as server:
        server.create_bucket(FEED_BUCKET)
        servers = Servers(bigtable_host, server.url)
        recovery = RecoverySettings(late_upload_grace_s=0.5)
        settings = servers.settings(await servers.new_table(), "bigtable", feed=feed, recovery=recovery, inline_bytes_max=LARGE)
        yield FedPlace(settings, server, tmp_path)


async def references(backends: Backends) -> dict[str, str]:
    page = await backends.tiers.high_volume.redirects(b"", None, 1000)
    assert page.next_start is None
    return {each.path: each.target for each in page.redirects}


async def step_all(writer: FeedWriter) -> None:
    while await writer.step() is StepResult.MORE:
        pass


async def test_the_view_is_what_the_rows_hold_after_a_kill_between_commit_and_index_and_with_two_writers(place: FedPlace) -> None:
    async with open_backends(place.settings, RUNTIME) as backends:
        zombie = FeedWriter(backends, RUNTIME, place.settings, address_of(place.settings), FeedWriterCounts())
        await zombie.open()
        await place.mutate(backends, 30, seed=1)
        await step_all(zombie)
        await place.mutate(backends, 30, seed=2)
        apply, lost = zombie.stored.apply, []

        async def killed(committed: Checkpoint, updates: Sequence[Update], **more: bool) -> None:
            lost.append(partial(apply, committed, updates, **more))
            raise KilledWriterError

        zombie.stored.apply = killed  # type: ignore[method-assign, assignment]
        with pytest.raises(KilledWriterError):
            await step_all(zombie)

        async with place.sinks() as first, place.sinks() as second, anyio.create_task_group() as tasks:
            stands_by = place.settings.model_copy(update={"feed": place.settings.feed.model_copy(update={"progress_every_s": 900.0})})
            runs = [FeedRun(backends, RUNTIME, settings, sinks) for settings, sinks in ((place.settings, first), (stands_by, second))]
            for run in runs:
                tasks.start_soon(run.run)
            await place.mutate(backends, 60, seed=3)
            with anyio.fail_after(60):
                while not any(run.counts.committed for run in runs):  # noqa: ASYNC110 - nobody tells
                    await anyio.sleep(0.05)
            await lost[0]()  # what it still had to write comes late
            with pytest.raises(FencedError):
                await step_all(zombie)
            await place.mutate(backends, 30, seed=4)
            for run in runs:
                run.stop()
        assert [bool(run.counts.committed) for run in runs] == [True, False], "one has taken over; the other has stood by all the time"

        left = 1
        with anyio.fail_after(60):
            while left:  # a change that lost waits for `late_upload_grace_s`, and a quick run ends before that
                async with place.sinks() as sinks:
                    last = FeedRun(backends, RUNTIME, place.settings, sinks, once=True)
                    await last.run()
                left = last.written.left
                kept = [entry for within in backends.log.ranges() for entry in (await backends.log.kept(within, 10)).entries]
                assert len(kept) == left, "it tells what it has left"
        rows = await references(backends)
    assert len(rows) > 5
    assert place.settings.gcs is not None
    blobs = {name for name in place.server.buckets[place.settings.gcs.bucket].objects if not name.startswith(OWNERS)}
    assert blobs == set(rows.values()), "no old blob is left"
    for found in place.published():
        assert found.flaws == [] and found.differences(rows) == []
        assert found.updates > 50
