"""`TakesUploads`: what the uploads of a bucket share, and those in parts. `BucketCopy`: a copy within a bucket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from anyio.abc import TaskGroup

from changelog.base.runtime import Runtime
from tiered.payload.chunks import Chunk
from tiered.services.capabilities import Part, SessionPage
from tiered.transfer.counted import cancel_soon
from tiered.transfer.parts import BucketParts
from tiered.transfer.resuming import Resuming
from tiered.transfer.upload_lanes import UploadLanes

UPLOAD_BUDGET_S = 30.0
LANES = UploadLanes()

P = TypeVar("P", bound=BucketParts[Any])


class TakesUploads(Generic[P]):
    """Uploads of one bucket. `tasks`: their requests run in it. `upload_budget_s`: as of `Resuming`."""

    def __init__(self, in_parts: P, tasks: TaskGroup, runtime: Runtime, lanes: UploadLanes, upload_budget_s: float) -> None:
        self._in_parts = in_parts
        self._tasks = tasks
        self._runtime = runtime
        self._lanes = lanes
        self._resuming = Resuming(runtime, upload_budget_s, lanes.memory_bytes)

    async def put_part(self, name: str, session: str, number: int, payload: Sequence[Chunk]) -> Part:
        return await self._in_parts.put(name, session, number, payload)

    async def parts(self, name: str, session: str) -> Sequence[Part]:
        return await self._in_parts.listed(name, session)

    async def open_sessions(self, before_ns: int, after: str, limit: int, prefix: str = "") -> SessionPage:
        return await self._in_parts.open(prefix, before_ns, after, limit)

    async def cancel(self, session: str) -> None:
        """Ends an upload session. `CorruptRecordError`: it is none of this bucket; nothing was sent."""
        await self._in_parts.cancel(session)

    def cancel_soon(self, session: str) -> None:
        cancel_soon(self._tasks, self.cancel, session)


class BucketCopy:
    """`PendingBlob`. `copy`: makes it. `cancel_soon`: ends its session; without a session there is nothing to give up:
    nothing is sent before `finalise`, and what was sent goes on.
    """

    def __init__(
        self, copy: Callable[[], Awaitable[None]], session: str | None = None, cancel_soon: Callable[[str], None] | None = None
    ) -> None:
        self.session = session
        self._copy = copy
        self._cancel_soon = cancel_soon
        self._stored = False

    async def finalise(self) -> None:
        await self._copy()
        self._stored = True

    async def abort(self) -> None:
        if not self._stored and self.session is not None and self._cancel_soon is not None:
            self._cancel_soon(self.session)
