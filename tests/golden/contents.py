"""What is in a golden store, and what later software must make of it. It knows no backend.

    Golden.fill     objects, then what an audit must find, then what processes that died have left, then an open upload
    Golden.expected what must be read, what recovery must leave, told by what was put and not by what was read back

`PHASES` names how far the dead got: the entry alone, a part of the payload, the blob, the swap, the deletion of the old
blob. The owner of each is `dead`, and one entry waits for a late upload.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from changelog.change import Change, ChangeId, Entry
from recovery.http.history import COARSE_S, exchange
from tests.given.metadata_fields import CARRIED
from tests.given.waiting import becomes
from tests.golden.clock import HOUR_S, MADE_S, GoldenRuntime
from tiered import Metadata, ObjectId, TieredStorage, TimeToIdle, TimeToLive
from tiered.metadata import NS_PER_MS, NS_PER_S
from tiered.notes.dangling import NOTE, Dangling, DanglingNote, encode
from tiered.open import Backends
from tiered.services.backends import Tombstone

INLINE_BYTES_MAX = 100
YEARS_NS = 100 * 365 * 24 * HOUR_S * NS_PER_S
LARGE = 300
FIGURES = (1.5, 2.0, 30.0)
"""Inflow, drain and backlog of recovery, in its history."""

BLOCKS = 600_000
"""Bytes of a payload that has several blocks in embedded mode."""

PHASES = ("recorded", "begun", "uploaded", "swapped", "cleaned", "deleted", "waiting", "stuck", "kept")


def payload(name: str, size: int) -> bytes:
    """Text that compresses well, and not to nearly nothing."""
    return "".join(f"{name} {number % 50 * 7919}\n" for number in range(size // len(name) + 1)).encode()[:size]


def object_id(name: str) -> ObjectId:
    return ObjectId.create("photos", name, {"org": "17", "project": "-42"})


def path_of(name: str) -> str:
    return object_id(name).path


def told_by(metadata: Metadata) -> dict[str, Any]:
    """What a caller told, by name: no write fills it in."""
    told = {name: getattr(metadata, name) for name in CARRIED if name != "compression"}
    return {**told, "custom": dict(metadata.custom), "unknown": dict(metadata.unknown)}


def present(told: dict[str, Any]) -> dict[str, Any]:
    """Without what is absent: a release says nothing of the fields that came after it."""
    return {name: value for name, value in told.items() if value is not None}


async def orphan(backends: Backends, path: str, runtime: GoldenRuntime) -> str:
    """Writes a blob that nothing names. Returns its name."""
    name = f"{path}/{ChangeId.new(runtime)}"
    upload = await backends.tiers.long_term.open_upload(name, Metadata(), LARGE)
    await upload.write(payload("orphan", LARGE))
    await upload.finalise()
    return name


@dataclass
class Golden:
    """`objects`: by path, what a reader must find. `absent`: what it must not. `entries`: by path, states of entries.

    `left`: the blobs that recovery must leave, and no others. `overdue`: blobs that expired, which collection removes.
    `uploads`: by path, the ids of open uploads. `orphans`: blobs that no row and no entry names, which are `left`, too.
    `lost`: by path, the blobs that are gone although their rows name them.
    """

    runtime: GoldenRuntime
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    entries: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    overdue: list[str] = field(default_factory=list)
    uploads: dict[str, str] = field(default_factory=dict)
    orphans: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)

    @property
    def expected(self) -> dict[str, Any]:
        return {
            "made_s": MADE_S, "objects": self.objects, "absent": sorted(self.absent), "entries": self.entries, "left": sorted(self.left),
            "overdue": self.overdue, "uploads": self.uploads, "orphans": self.orphans, "lost": self.lost,
        }  # fmt: skip

    async def fill(self, storage: TieredStorage, backends: Backends) -> None:
        await self._expired(storage)
        await self._objects(storage)
        await self._gone(storage)
        await self._planted(storage, backends)
        for phase in PHASES:
            await self._dead(phase, storage, backends)
        upload = await storage.begin_multipart(object_id("open upload"), Metadata(custom={"kind": "open"}))
        await upload.upload_part(1, payload("open", LARGE))
        self.uploads[path_of("open upload")] = upload.id
        self.entries[path_of("open upload")] = "assembling"
        await self._drained(backends)

    async def _drained(self, backends: Backends) -> None:
        """Waits until the store has cleaned up after its own changes, which it does after its answers."""

        async def is_drained() -> bool:
            return len((await backends.log.entries("", 1000)).entries) == len(self.entries)

        await becomes(is_drained)

    async def _put(self, storage: TieredStorage, name: str, size: int, metadata: Metadata | None = None, **options: Any) -> None:
        """Puts an object, and notes what a reader must find."""
        metadata, raw = metadata or Metadata(), payload(name, size)
        told_at_end: dict[str, str] = options.get("custom_at_end", dict)()
        result = await storage.put(object_id(name), iter([raw]) if told_at_end else raw, metadata, **options)  # of a length nobody knows
        lifetime = metadata.expiration
        self.objects[path_of(name)] = {
            "sha256": hashlib.sha256(raw).hexdigest(), "size": size, **told_by(metadata),
            "custom": {**metadata.custom, **told_at_end}, "created_ns": self.runtime.wall_ns(),
            "lifetime": None if lifetime is None else [type(lifetime).__name__, lifetime.ns],
            "compressed": options.get("compress"), "revision": result.revision,
        }  # fmt: skip

    async def _expired(self, storage: TieredStorage) -> None:
        """A day before all else, so both are expired when the store is made."""
        self.runtime.put_forward(-24 * HOUR_S)
        lifetime = Metadata(TimeToLive(ns=HOUR_S * NS_PER_S))
        await storage.put(object_id("expired small"), payload("expired small", 10), lifetime)
        large = await storage.put(object_id("expired large"), payload("expired large", LARGE), lifetime)
        self.absent += [path_of("expired small"), path_of("expired large")]
        self.overdue.append(f"{path_of('expired large')}/{large.revision}")
        self.runtime.put_forward(24 * HOUR_S)

    async def _objects(self, storage: TieredStorage) -> None:
        told = Metadata(content_type="image/jpeg", origin="203.0.113.42", filename="cat.jpg", custom={"a": "1", "b-c": "x y"})
        await self._put(storage, "small", 10)
        await self._put(storage, "empty", 0)
        await self._put(storage, "small told", 50, told)
        await self._put(storage, "small that expires", 20, Metadata(TimeToLive(ns=YEARS_NS)))
        await self._put(storage, "small that idles", 20, Metadata(TimeToIdle(ns=YEARS_NS)))
        await self._put(storage, "large", LARGE)
        await self._put(storage, "large told", LARGE, told)
        await self._put(storage, "large of blocks", BLOCKS)
        await self._put(storage, "large that expires", LARGE, Metadata(TimeToLive(ns=YEARS_NS)))
        await self._put(storage, "large that idles", LARGE, Metadata(TimeToIdle(ns=YEARS_NS)))
        await self._put(storage, "large and compressed", 20 * LARGE, compress="zstd")
        await self._put(storage, "large told at its end", BLOCKS, custom_at_end=lambda: {"end": "told"})
        await self._put(storage, "large and compressed in its headers", LARGE, Metadata(custom={"Upper": "Case"}))
        await self._put(storage, "small of later software", 20, Metadata(unknown={"later": [1, "ä"]}))
        await self._put(storage, "large of later software", LARGE, Metadata(unknown={"later": [1, "ä"]}))
        await self._put(storage, "deep/ä/ü/" + "k" * 250, LARGE)
        await self._put(storage, "replaced", LARGE)
        await self._put(storage, "replaced", 30)
        await self._put(storage, "grown", 30)
        await self._put(storage, "grown", LARGE)
        for source, copy in (("small told", "copied small"), ("large told", "copied large")):
            result = await storage.copy(object_id(source), object_id(copy))
            assert result is not None, f"{source} is gone"
            self.objects[path_of(copy)] = {**self.objects[path_of(source)], "revision": result.revision}
        for path, each in self.objects.items():
            row = each["size"] > INLINE_BYTES_MAX
            if row:
                self.left.append(f"{path}/{each['revision']}")

    async def _gone(self, storage: TieredStorage) -> None:
        for name, size in (("deleted small", 10), ("deleted large", LARGE)):
            await storage.put(object_id(name), payload(name, size))
            await storage.delete(object_id(name))
            self.absent.append(path_of(name))

    async def _planted(self, storage: TieredStorage, backends: Backends) -> None:
        """What only an audit finds."""
        self.orphans.append(await orphan(backends, path_of("large"), self.runtime))
        self.left += self.orphans
        result = await storage.put(object_id("lost"), payload("lost", LARGE))
        lost = self.lost[path_of("lost")] = f"{path_of('lost')}/{result.revision}"
        await backends.tiers.long_term.delete(lost)
        note = DanglingNote().with_more([Dangling(path_of("lost"), lost, MADE_S * 1000)], None)
        assert await backends.log.swap_note(NOTE, None, encode(note)), "nobody has read what is lost"
        await exchange(backends.log, {int(MADE_S // COARSE_S): FIGURES}, MADE_S)

    async def go_on(self, storage: TieredStorage) -> None:
        """What users do later: they replace an object and delete another."""
        await self._put(storage, "large", 2 * LARGE)
        await storage.delete(object_id("small"))
        del self.objects[path_of("small")]
        self.absent.append(path_of("small"))

    # --- what the dead left ----------------------------------------------------------------------

    async def _dead(self, phase: str, storage: TieredStorage, backends: Backends) -> None:
        """Takes the steps of a put over a large object, up to this phase; `deleted`: those of a deletion."""
        name = f"dead {phase}"
        path = path_of(name)
        await self._put(storage, name, LARGE)
        old = f"{path}/{self.objects[path]['revision']}"
        token = ChangeId.new(self.runtime)
        new = None if phase == "deleted" else f"{path}/{token}"
        rows, blobs, log = backends.tiers.high_volume, backends.tiers.long_term, backends.log
        raw = payload(f"new {phase}", LARGE)
        upload = None if new is None else await blobs.open_upload(new, Metadata(time_created_ns=self.runtime.wall_ns(), size=LARGE), LARGE)
        entry = await log.record(Change(token, path, new, old, None if upload is None else upload.session), "dead")
        self.entries[path] = "open"
        if upload is not None and phase == "begun":
            await upload.write(raw[:100])
        elif upload is not None and phase not in ("recorded", "stuck", "waiting"):
            await upload.write(raw)
            await upload.finalise()
        if phase in ("swapped", "cleaned", "deleted", "kept"):
            state = None if new is None else Tombstone(new)
            assert await rows.swap(path, token, old, state, self.runtime.boot_time() + HOUR_S), f"the swap of {path} lost"
            if new is None:
                del self.objects[path]
                self.absent.append(path)
            else:
                found = {"sha256": hashlib.sha256(raw).hexdigest(), "revision": token}
                self.objects[path] = {**self.objects[path], **found}
        if phase in ("cleaned", "kept"):
            await blobs.delete(old)
        await self._end(phase, entry, backends)
        if path in self.objects:
            self.left.append(f"{path}/{self.objects[path]['revision']}")

    async def _end(self, phase: str, entry: Entry, backends: Backends) -> None:
        path = entry.change.object
        if phase == "waiting":
            assert await backends.log.release(entry, (MADE_S + HOUR_S // 4) * NS_PER_S // NS_PER_MS)
            self.entries[path] = "waiting"
        if phase == "stuck":
            assert await backends.log.park(entry, "nobody could clean it up")
            self.entries[path] = "stuck"
        if phase == "kept":
            assert await backends.log.keep(entry)
            self.entries[path] = "kept"
