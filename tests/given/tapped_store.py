"""A store on simulated tiers under virtual time, with every call of it open to a test's own hand."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from changelog.change import SHARDS_DEFAULT
from emulators.world.runtime import SimulatedRuntime
from emulators.world.services import SimulatedBlobs, SimulatedChangeLog, SimulatedRows
from recovery.loop import RecoveryLoop
from tiered.object_id import ObjectId
from tiered.protocol.backends import Tiers
from tiered.settings import Settings
from tiered.storage import TieredStorage

Hook = Callable[..., Awaitable[Any]]

SMALL = b"small"
LARGE = b"large" * 1000
INLINE_MAX = 100
OBJECT = ObjectId.create("attachments", "key", {"org": "17"})
RARE_BEATS = {"heartbeat_interval_s": 900.0, "expiry_s": 3600.0}
"""Of a lease, for tests that let days pass: what proves nothing there is the number of beats."""


class Tapped:
    """A backend whose calls are listed by name, and of which a test may answer some itself.

    `hooks[name]` is called instead, with the real method and its arguments.
    """

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

    def slow_row(self, seconds: float) -> Hook:
        """A hook for a call to a row that takes so long: an operation holds its slot meanwhile."""
        async def call(real: Any, *args: Any, **named: Any) -> Any:
            await self.runtime.sleep(seconds)
            return await real(*args, **named)

        return call

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

    async def is_clean(self) -> bool:
        """I3 and I6: no entry, and no blob but those that rows name."""
        named = [(await self.rows.target.read(row.path)).target for row in (await self.rows.target.scan("", b"", 1000)).rows]
        return not await self.entries() and await self.blob_names() == sorted(name for name in named if name)
