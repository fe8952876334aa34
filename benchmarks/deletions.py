"""Deletions of orphans per second of one core of the client: one by one, and up to a hundred in one request.

    blobs     `GcsBlobs.delete_generation`, 16 in flight
              `GcsBlobs.delete_generations`, 100 in each request
              google-cloud-storage, 100 in each request (`client.batch()`), in a thread
    whole     what `tiered audit delete` does for each orphan: the log, both rows, the settle, the deletion;
              with a service that takes one deletion in a request, and with one that takes a hundred

`time.process_time` is measured: all threads of this process. The servers have processes of their own, which do not
count. Each side deletes blobs of its own, which are put before it begins.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, cast

from anyio import to_thread
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from benchmarks.figures import Cell, Figures
from benchmarks.rounds import Ratio, run_in_flight, take_turns, timed
from benchmarks.servers import BUCKET, Servers
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from recovery.audit.deleting.candidates import AT_ONCE, Candidate, DeletionBatch, Fate
from tiered import Metadata
from tiered.gcs.blobs import GcsBlobs
from tiered.object_id import blob_name
from tiered.open import open_backends
from tiered.protocol.backends import LongTermBackend, Tiers
from tiered.protocol.capabilities import DELETIONS_MAX
from tiered.protocol.scans import Generation, Removal

RUNTIME = SystemRuntime()
ROUNDS = 5
BLOBS = 2000
PUTS_AT_ONCE = 64
PREFIX = "bench/objects/"

Named = tuple[str, Generation]
Side = Callable[[Sequence[Named]], Awaitable[object]]


async def figures(servers: Servers, size: float) -> list[Figures]:
    number = max(2, round(BLOBS * size))
    settings = servers.settings(await servers.new_table(), "bigtable")
    async with open_backends(settings, RUNTIME) as backends, GcsBlobs.connect(BUCKET, RUNTIME, endpoint=servers.gcs_url) as blobs:
        google = storage.Client("bench", AnonymousCredentials(), client_options={"api_endpoint": servers.gcs_url})  # type: ignore[no-untyped-call]
        one_by_one = Tiers(backends.tiers.high_volume, cast(LongTermBackend, _OneByOne(blobs)))
        many = Tiers(backends.tiers.high_volume, blobs)
        alone = {
            "one by one, 16 in flight": partial(_one_by_one, blobs), "100 in a request": partial(_hundreds, blobs),
            "google-cloud-storage, 100 in a request": partial(_by_google, google),
        }  # fmt: skip
        whole = {"deletions one by one": partial(_whole, one_by_one, backends.log), "100 in a request": partial(_whole, many, backends.log)}
        try:
            tables = [await _compare(what, sides, blobs, number) for what, sides in (
                ("Deletions of blobs", alone), ("Deletions of orphans: the log, both rows, the settle, the blob", whole),
            )]  # fmt: skip
        finally:
            google.close()
    notes = [f"{number:,} blobs in a round, medians of {ROUNDS} rounds. Only the client's CPU counts, that of all its threads."]
    return [Figures(each.title, each.columns, each.rows, notes) for each in tables]


async def _compare(what: str, sides: Mapping[str, Side], blobs: GcsBlobs, number: int) -> Figures:
    """Returns the table of these sides, which are compared with the first one."""
    measured = await take_turns([partial(_round, side, blobs, number) for side in sides.values()], ROUNDS)
    rows: list[list[Cell]] = []
    for place, (name, costs) in enumerate(zip(sides, measured, strict=True)):
        ours = not name.startswith("google")
        rows.append([name, f"{number / median(costs):,.0f}", Ratio.of(measured[0], costs, more_is_better=ours) if place else "1"])
    return Figures(what, ["", "deletions per core-s", "of the first"], rows)


async def _round(side: Side, blobs: GcsBlobs, number: int) -> float:
    """Returns the seconds of CPU that the side takes to delete so many blobs."""
    names = [blob_name(f"{PREFIX}{each}", ChangeId.new(RUNTIME)) for each in range(number)]
    await run_in_flight(partial(_put, blobs), names, PUTS_AT_ONCE)
    asked: list[Named] = []
    start: str | None = PREFIX
    while start is not None:
        page = await blobs.list(start, None, 1000)
        asked += [(blob.name, blob.generation) for blob in page.blobs if blob.name.startswith(PREFIX)]
        start = page.next_start
    if len(asked) != number:
        raise AssertionError(f"{len(asked)} blobs are there, and not {number}")
    return await timed(side(asked), time.process_time)


async def _put(blobs: GcsBlobs, name: str) -> None:
    upload = await blobs.open_upload(name, Metadata(), 1)
    await upload.write(b"x")
    await upload.finalise()


# --- the sides -----------------------------------------------------------------------------------


async def _one_by_one(blobs: GcsBlobs, asked: Sequence[Named]) -> None:
    async def delete(blob: Named) -> None:
        if await blobs.delete_generation(*blob) is not Removal.DELETED:
            raise AssertionError(f"{blob} was not deleted")

    await run_in_flight(delete, asked, AT_ONCE)


async def _hundreds(blobs: GcsBlobs, asked: Sequence[Named]) -> None:
    for first in range(0, len(asked), DELETIONS_MAX):
        if set(await blobs.delete_generations(asked[first : first + DELETIONS_MAX])) != {Removal.DELETED}:
            raise AssertionError("not all were deleted")


async def _by_google(client: Any, asked: Sequence[Named]) -> None:
    bucket = client.bucket(BUCKET)

    def delete() -> None:
        for first in range(0, len(asked), DELETIONS_MAX):
            with client.batch():  # it raises if one of them was not deleted
                for name, generation in asked[first : first + DELETIONS_MAX]:
                    bucket.blob(name).delete(if_generation_match=int(generation))

    await to_thread.run_sync(delete)


async def _whole(tiers: Tiers, log: Any, asked: Sequence[Named]) -> None:
    candidates = [candidate for name, generation in asked if (candidate := Candidate.named(name, generation, 1)) is not None]
    batch = DeletionBatch(tiers, log, candidates, RUNTIME)
    await batch.run()
    if list(batch.fates.values()) != [Fate.DELETED] * len(asked):
        raise AssertionError("not all were deleted")


class _OneByOne:
    """A bucket whose service takes one deletion in a request."""

    def __init__(self, blobs: GcsBlobs) -> None:
        self.delete_generation = blobs.delete_generation
