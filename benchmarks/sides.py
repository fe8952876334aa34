"""Our sides of the contests: a whole store, and its rows or its blobs alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.harness import RUNTIME
from changelog.change import ChangeId
from tiered import Metadata, ObjectId, Settings, TieredStorage
from tiered.open import Backends, open_backends
from tiered.services.backends import HighVolumeBackend, Inline, LongTermBackend


class StoreSide:
    """A whole store, with the clean-up that its callers do not wait for. It makes tokens of its own."""

    def __init__(self, backends: Backends, settings: Settings) -> None:
        self.backends = backends
        self._settings = settings

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings) -> AsyncIterator[StoreSide]:
        async with open_backends(settings, RUNTIME) as backends:
            yield cls(backends, settings)

    @asynccontextmanager
    async def ready(self) -> AsyncIterator[None]:
        async with TieredStorage(self.backends.tiers, self.backends.log, RUNTIME, self._settings) as self.store:
            yield

    async def put(self, name: str, token: ChangeId, payload: bytes) -> None:
        await self.store.put(ObjectId.parse(name), payload)

    async def get(self, name: str) -> bytes | None:
        found = await self.store.get(ObjectId.parse(name))
        return None if found is None else await found.read()

    async def delete(self, name: str, token: ChangeId) -> None:
        await self.store.delete(ObjectId.parse(name))


class RowsSide:
    """The rows alone: payloads are in them."""

    def __init__(self, rows: HighVolumeBackend) -> None:
        self._rows = rows

    async def put(self, name: str, token: ChangeId, payload: bytes) -> None:
        if not await self._rows.put_inline(name, token, Inline(Metadata(size=len(payload)), payload, token)):
            raise AssertionError(f"{name} could not be put")

    async def get(self, name: str) -> bytes | None:
        state = (await self._rows.read(name)).state
        return state.payload if isinstance(state, Inline) else None

    async def delete(self, name: str, token: ChangeId) -> None:
        if not await self._rows.delete_inline(name, token):
            raise AssertionError(f"{name} could not be deleted")


class BlobsSide:
    """The blobs alone, without rows and without a changelog."""

    def __init__(self, blobs: LongTermBackend) -> None:
        self._blobs = blobs

    async def put(self, name: str, token: ChangeId, payload: bytes) -> None:
        upload = await self._blobs.open_upload(name, Metadata(), len(payload))
        await upload.write(payload)
        await upload.finalise()

    async def get(self, name: str) -> bytes | None:
        reader = await self._blobs.open(name)
        if reader is None:
            return None
        try:
            return b"".join([chunk async for chunk in reader.chunks()])
        finally:
            await reader.aclose()

    async def delete(self, name: str, token: ChangeId) -> None:
        await self._blobs.delete(name)
