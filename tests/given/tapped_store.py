"""A store on simulated tiers under virtual time, with every call of it open to a test's own hand."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest
from trio.testing import MockClock

from changelog.base.errors import UnconfirmedError
from changelog.change import SHARDS_DEFAULT
from emulators.world.runtime import SimulatedRuntime
from emulators.world.services import SimulatedBlobs, SimulatedChangeLog, SimulatedRows
from recovery.loop import RecoveryLoop
from tiered.object_id import ObjectId
from tiered.services.backends import Tiers, Tombstone
from tiered.settings import Settings
from tiered.storage import TieredStorage
from tiered.stored import ObjectHead, StoredObject

Hook = Callable[..., Awaitable[Any]]
"""It is called instead of a method, with the real one and its arguments."""
ON_BOTH = pytest.mark.parametrize("anyio_backend", ["asyncio", ("trio", {"clock": MockClock(autojump_threshold=0)})])
"""On both loops; else the tests of the store run on trio alone, whose time is virtual."""

SMALL = b"small"
LARGE = b"large" * 1000
INLINE_MAX = 100
OBJECT = ObjectId.create("attachments", "key", {"org": "17"})
RARE_BEATS = {"expiry_s": 3600.0}
"""Of a lease, for tests that let days pass: what proves nothing there is the number of beats."""


# --- what callers do -------------------------------------------------------------------------------


async def read(storage: TieredStorage, object_id: ObjectId = OBJECT) -> bytes | None:
    stored = await storage.get(object_id)
    return None if stored is None else await stored.read()


async def opened(storage: TieredStorage, object_id: ObjectId = OBJECT, **options: Any) -> StoredObject:
    """It must be there."""
    stored = await storage.get(object_id, **options)
    assert stored is not None
    return stored


async def head_of(storage: TieredStorage, object_id: ObjectId = OBJECT) -> ObjectHead:
    """It must be there."""
    head = await storage.head(object_id)
    assert head is not None
    return head


async def pieces(*steps: bytes | float | BaseException) -> AsyncIterator[bytes]:
    """A payload, step by step: bytes come, seconds go by, and an error is raised."""
    for step in steps:
        if isinstance(step, bytes):
            yield step
        elif isinstance(step, BaseException):
            raise step
        else:
            await anyio.sleep(step)


async def in_chunks(payload: bytes, size: int = 100_000) -> AsyncIterator[bytes]:
    for start in range(0, len(payload), size):
        yield payload[start : start + size]


# --- what services do ------------------------------------------------------------------------------


def fails(error: BaseException) -> Hook:
    """A call that has no effect."""
    async def call(real: Any, *args: Any, **named: Any) -> Any:
        raise error

    return call


def lost(error: Exception) -> Hook:
    """A call that takes effect, and is answered by this."""
    async def call(real: Any, *args: Any, **named: Any) -> Any:
        await real(*args, **named)
        raise error

    return call


async def never_arrives(real: Any, *args: Any, **named: Any) -> Any:
    raise UnconfirmedError("no answer")


async def answer_lost(real: Any, *args: Any, **named: Any) -> Any:
    await real(*args, **named)
    raise UnconfirmedError("no answer")


class Withheld:
    """Calls that are not answered, and arrive when a test lets them: late."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], Awaitable[Any]]] = []

    async def __call__(self, real: Any, *args: Any, **named: Any) -> Any:
        self._calls.append(partial(real, *args, **named))
        raise UnconfirmedError("no answer")

    async def arrive(self) -> list[Any]:
        """What the service says to each of them."""
        assert self._calls
        return [await call() for call in self._calls]


async def hangs(real: Any, *args: Any, **named: Any) -> Any:
    await anyio.sleep_forever()


class Tapped:
    """A backend whose calls are listed by name, and of which a test may answer some itself, by `hooks[name]`."""

    def __init__(self, target: Any, calls: list[str]) -> None:
        self.target = target
        self.hooks: dict[str, Hook] = {}
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.target, name)
        if not inspect.iscoroutinefunction(method):
            return method

        async def call(*args: Any, **named: Any) -> Any:
            self._calls.append(name)
            hook = self.hooks.get(name)
            return await (method(*args, **named) if hook is None else hook(method, *args, **named))

        return call

    def before_next(self, name: str, act: Callable[[], Awaitable[object]]) -> None:
        """Lets something happen between the moment in which a store makes its next such call, and the call."""
        async def overtaken(real: Any, *args: Any, **named: Any) -> Any:
            del self.hooks[name]
            await act()
            return await real(*args, **named)

        self.hooks[name] = overtaken


class TappedWorld:
    """Two tiers and a log that outlive the stores and recovery loops opened on them.

    `shards`: of the log. Each pass of recovery asks for all of them, so a few make hours of virtual time cheap.
    """

    def __init__(self, shards: int = SHARDS_DEFAULT) -> None:
        self.runtime = SimulatedRuntime(seed=7)
        self.calls: list[str] = []
        self.rows = Tapped(SimulatedRows(self.runtime), self.calls)
        self.blobs = Tapped(SimulatedBlobs(self.runtime), self.calls)
        self.log = Tapped(SimulatedChangeLog(self.runtime).sharded(shards), self.calls)

    def slow(self, seconds: float) -> Hook:
        """A call that takes so long: an operation holds its slot meanwhile."""
        async def call(real: Any, *args: Any, **named: Any) -> Any:
            await self.runtime.sleep(seconds)
            return await real(*args, **named)

        return call

    def hook_finalise(self, hook: Hook, opened_by: str = "open_upload") -> None:
        """Of each upload that is opened from now on."""
        async def open_upload(real: Any, *args: Any) -> Any:
            upload = await real(*args)
            finalise = upload.finalise
            upload.finalise = lambda: hook(finalise)
            return upload

        self.blobs.hooks[opened_by] = open_upload

    def settings(self, **values: Any) -> Settings:
        defaults: dict[str, Any] = {"directory": "unused", "changelog": "noop", "inline_bytes_max": INLINE_MAX}
        return Settings(**(defaults | values))

    @property
    def tiers(self) -> Tiers:
        return Tiers(self.rows, self.blobs)

    @asynccontextmanager
    async def store(self, **values: Any) -> AsyncIterator[TieredStorage]:
        async with TieredStorage(self.tiers, self.log, self.runtime, self.settings(**values)) as storage:
            yield storage

    def recovery(self, **values: Any) -> RecoveryLoop:
        return RecoveryLoop(self.tiers, self.log, self.runtime, self.settings(**values))

    async def entries(self) -> list[Any]:
        return list((await self.log.target.entries("", 1000)).entries)

    async def blob_names(self) -> list[str]:
        return [blob.name for blob in (await self.blobs.target.list("", None, 1000)).blobs]

    def forget_described(self) -> None:
        """Lets rows be as older software left them: only the blobs tell the metadata of large objects."""
        states = self.rows.target.states
        states.update({path: replace(state, metadata=None) for path, state in states.items() if isinstance(state, Tombstone)})

    async def is_clean(self) -> bool:
        """I3 and I6: no entry, and no blob but those that rows name."""
        named = [(await self.rows.target.read(row.path)).target for row in (await self.rows.target.scan("", b"", 1000)).rows]
        return not await self.entries() and await self.blob_names() == sorted(name for name in named if name)
