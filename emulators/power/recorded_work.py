"""What the recorded processes do: `python -m emulators.power.recorded_work WORK ROOT NAME SEED`, below ROOT.

They note what they know: each operation before it begins, and when its caller was told that it took effect
(`emulators/power/judge.py` says how). Objects belong to one task each, so what each may hold is known.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from random import Random

import anyio

from changelog.base.runtime import SystemRuntime
from emulators.demo.players.load import digest
from emulators.power.judge import INLINE_BYTES_MAX, Later, clean_up, settings_of
from emulators.power.recording import note
from recovery.feed.sinks.directory import DirectorySink
from recovery.feed.sinks.sink import Segment
from tiered.bulk import PutRequest
from tiered.embedded.blobs import FileBlobs
from tiered.metadata import Metadata
from tiered.object_id import ObjectId
from tiered.open import open_backends, open_storage
from tiered.storage import TieredStorage

STORE, FEED, BLOB = "above/store", "feeds/live", "media/objects/cat/1"
"""Below the root of a recording. The directories above are made with them, where whoever makes them may."""

TASKS, STEPS, OBJECTS = 2, 7, 4
SEGMENTS = 4
GENERATION = 1_795_000_000_000
PUTS = ("put", "streamed", "many")
KINDS = (*PUTS, "delete", "copy", "rename")


def segments(bytes_each: int = 1500) -> list[Segment]:
    return [Segment.of(GENERATION, time, Random(time).randbytes(bytes_each), "json") for time in range(SEGMENTS)]


async def write(root: Path, name: str, seed: int) -> None:
    """Opens the store, which may be new, and writes. `name`: whose objects these are."""
    async with open_storage(settings_of(root / STORE)) as storage, anyio.create_task_group() as tasks:
        for task in range(TASKS):
            tasks.start_soon(partial(_write, storage, f"{name}-{task}", Random(f"{seed} {name} {task}")))


async def _write(storage: TieredStorage, name: str, chance: Random) -> None:
    ids = [ObjectId("media", (), f"{name}/{number}") for number in range(OBJECTS)]
    held: dict[ObjectId, bytes | None] = dict.fromkeys(ids)
    for step in range(STEPS):
        one, other = chance.sample(ids, 2)
        what = chance.choice(KINDS if held[one] is not None else PUTS)
        payload = chance.randbytes(chance.choice((10, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, 40_000)))
        wills: dict[str, dict[ObjectId, bytes | None]] = {
            "put": {one: payload}, "streamed": {one: payload}, "many": {one: payload, other: payload[::-1]},
            "delete": {one: None}, "copy": {other: held[one]}, "rename": {other: held[one], one: None},
        }  # fmt: skip
        will = wills[what]
        objects = {each.path: None if data is None else digest(data) for each, data in will.items()}
        note(json.dumps({"begin": f"{name}.{step}", "objects": objects, "moves": what == "rename"}))
        match what:
            case "put":
                await storage.put(one, payload)
            case "streamed":
                await storage.put(one, (payload[start : start + 5000] for start in range(0, len(payload), 5000)))
            case "many":
                async with storage.put_many([PutRequest(one, payload), PutRequest(other, payload[::-1])]) as results:
                    assert [result.error async for result in results] == [None, None]
            case "delete":
                await storage.delete(one)
            case "copy":
                await storage.copy(one, other)
            case "rename":
                await storage.rename(one, other)
        note(json.dumps({"end": f"{name}.{step}"}))
        held |= will


async def recover(root: Path) -> None:
    """Recovers and collects, two hours later."""
    settings, runtime = settings_of(root / STORE), Later(hours=2)
    async with open_backends(settings, runtime) as backends:
        await clean_up(backends, runtime, settings)


async def upload(root: Path) -> None:
    """Uploads one blob, and notes that it is there."""
    blobs = await FileBlobs.open_directory(root, SystemRuntime())
    begun = await blobs.open_upload(BLOB, Metadata(), 10)
    await begun.write(bytes(10))
    await begun.finalise()
    note("finalised")


async def upload_parts(root: Path) -> None:
    """Uploads blobs in parts, and notes what it was told: [what, name, session, number]."""
    blobs = await FileBlobs.open_directory(root, SystemRuntime())
    for upload, ends in enumerate(("complete", "cancel", "leave")):
        name = f"{BLOB}{upload}"
        session = await blobs.begin_parts(name, Metadata())
        note(json.dumps(["begun", name, session, 0]))
        parts = []
        for number in (2, 1, 2):
            parts.append(await blobs.put_part(name, session, number, [part_of(name, number)]))
            note(json.dumps(["put", name, session, number]))
        note(json.dumps([ends, name, session, 0]))
        if ends == "complete":
            await blobs.complete_parts(name, session, parts[1:])
        elif ends == "cancel":
            await blobs.cancel(session)
        note(json.dumps([f"{ends}d", name, session, 0]))


def part_of(name: str, number: int) -> bytes:
    return Random(f"{name} {number}").randbytes(5000)


async def deliver(root: Path) -> None:
    """Delivers a feed, and notes the time of each transaction that was acknowledged."""
    sink = DirectorySink(root / FEED, SystemRuntime())
    for segment in segments():
        await sink.deliver(segment)
        note(str(segment.time))


def main() -> None:
    work, root, *more = sys.argv[1:]
    match work:
        case "write":
            anyio.run(write, Path(root), more[0], int(more[1]))
        case "recover":
            anyio.run(recover, Path(root))
        case "upload":
            anyio.run(upload, Path(root))
        case "upload_parts":
            anyio.run(upload_parts, Path(root))
        case "deliver":
            anyio.run(deliver, Path(root))


if __name__ == "__main__":
    main()
