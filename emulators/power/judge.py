"""Judges an embedded store after a power cut: what its callers were told must be true of it, and stay true.

`AllowedContent` hears the notes of the processes up to the power cut. `judge_store` opens the store, reads it,
recovers, reads it again, and compares rows with blobs by `emulators.demo.checking.stored_files`, which uses none of the
store's code. It raises `BrokenPromiseError`; any error of the store itself is one, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from changelog.base.runtime import SystemRuntime
from emulators.demo.checking.check import BackendContent, dangling
from emulators.demo.checking.stored_files import StoredFiles
from emulators.demo.players.load import digest
from recovery.daemon import collect
from recovery.loop import RecoveryLoop
from tiered.object_id import ObjectId
from tiered.open import Backends, open_backends
from tiered.settings import Settings
from tiered.storage import TieredStorage

INLINE_BYTES_MAX = 2000
HOUR_S = 3600
PASSES_MAX = 5


class BrokenPromiseError(Exception):
    """After a power cut, something is not as somebody was told."""


class Later(SystemRuntime):
    """The clocks of a later time. The leases of those who worked before have ended then."""

    def __init__(self, hours: int) -> None:
        super().__init__()
        self._s = hours * HOUR_S

    def monotonic(self) -> float:
        return super().monotonic() + self._s

    def boot_time(self) -> float:
        return super().boot_time() + self._s

    def wall_ns(self) -> int:
        return super().wall_ns() + self._s * 10**9


def settings_of(store: Path) -> Settings:
    return Settings(directory=store, changelog="sqlite", inline_bytes_max=INLINE_BYTES_MAX)


class AllowedContent:
    """What an object may hold, by what was noted.

        {"begin": ID, "objects": {PATH: DIGEST or null, …}, "moves": bool}     what will be there once it took effect
        {"end": ID}                                                            its caller was told so

    `narrows` False: what was sure at some moment stays possible. So a copy that was begun then is judged.
    """

    def __init__(self) -> None:
        self.narrows = True
        self.possible: dict[str, set[str | None]] = {}
        self._begun: dict[str, Mapping[str, Any]] = {}

    def hear(self, text: str) -> None:
        line = json.loads(text)
        if "begin" in line:
            self._begun[line["begin"]] = line
            for path, content in line["objects"].items():
                self.possible.setdefault(path, {None}).add(content)
        elif "end" in line:
            for path, content in self._begun.pop(line["end"])["objects"].items():
                if self.narrows:
                    self.possible[path] = {content}

    def compare(self, found: Mapping[str, str | None]) -> None:
        """`found`: the digest of each object, or None. Raises `BrokenPromiseError`."""
        for path in self.possible.keys() | found.keys():
            if found.get(path) not in self.possible.get(path, {None}):
                raise BrokenPromiseError(f"{path} holds {found.get(path)}, and may hold {self.possible.get(path)}")
        for line in self._begun.values() if self.narrows else ():
            if line["moves"]:
                (destination, moved), (source, _) = line["objects"].items()
                if found.get(source) is None and found.get(destination) != moved:
                    raise BrokenPromiseError(f"{source} was being renamed to {destination}, and is under neither name")


async def judge_store(store: Path, told: AllowedContent) -> None:
    """Opens the store as after a restart, recovers, and opens it again."""
    settings, runtime = settings_of(store), Later(hours=4)
    async with open_backends(settings, runtime) as backends:
        await _compare(backends, runtime, settings, told)
        await clean_up(backends, runtime, settings)
        await _compare(backends, runtime, settings, told)
    judge_tiers(StoredFiles(store))
    async with open_backends(settings, runtime) as backends:
        await _compare(backends, runtime, settings, told)


async def clean_up(backends: Backends, runtime: SystemRuntime, settings: Settings) -> None:
    """Recovers until nothing is left to do, and collects garbage."""
    loop = RecoveryLoop(backends.tiers, backends.log, runtime, settings)
    for _ in range(PASSES_MAX):
        if not (await loop.run_once()).seen:
            break
    collected = await collect(backends)
    if loop.total.parked or loop.total.failed or collected.failures:
        raise BrokenPromiseError(f"recovery could not clean up: {loop.total}, {collected.failures}")


async def _compare(backends: Backends, runtime: SystemRuntime, settings: Settings, told: AllowedContent) -> None:
    async with TieredStorage(backends.tiers, backends.log, runtime, settings) as storage:
        listed = {entry.object_id.path async for entry in storage.list()}
        found: dict[str, str | None] = {}
        for path in told.possible.keys() | listed:
            stored = await storage.get(ObjectId.parse(path))
            found[path] = None if stored is None else digest(await stored.read())
        told.compare(found)
        if unlisted := {path for path, content in found.items() if content is not None} ^ listed:
            raise BrokenPromiseError(f"a listing and the reads differ: {unlisted}")


def judge_tiers(stored: BackendContent) -> None:
    """I1, I3 and I6, of a store that nobody uses and that was recovered."""
    if missing := dangling(stored):
        raise BrokenPromiseError(f"rows name blobs that are gone: {missing}")
    named = {stored.place(target) for target in stored.targets().values()}
    if orphans := set(stored.places()) - named:
        raise BrokenPromiseError(f"no row names these blobs: {orphans}")
    if broken := [place for place in named if stored.blob(place) is None]:
        raise BrokenPromiseError(f"blobs that do not agree with their checksums: {broken}")
    if left := [*stored.uploads(), *stored.entries()]:
        raise BrokenPromiseError(f"left behind: {left}")
