"""The real S3 adapter of one process. It is loaded for each code whose processes a world has (`emulators.world.code`).
"""

from __future__ import annotations

from functools import partial

from anyio.abc import TaskGroup

from changelog.base.runtime import Runtime
from emulators.s3.memory import COLLECTS, MemoryLibrary
from tiered.metadata import Metadata
from tiered.s3.blobs import S3Blobs
from tiered.s3.client import ANSWER_TIMEOUT_S, CONNECTIONS_MAX, S3Client
from tiered.s3.format import Stored
from tiered.s3.upload import SinglePut
from tiered.transfer.upload_lanes import LaneUpload, UploadLanes
from tiered.transfer.uploads import UPLOAD_BUDGET_S

WORLD_LANES = UploadLanes(3, from_bytes=0, part_bytes=128)
"""Small parts: a payload of a world has three."""


class WorldBlobs(S3Blobs):
    """The adapter of one process. Its requests say whether they collect garbage."""

    def __init__(self, library: MemoryLibrary, runtime: Runtime, tasks: TaskGroup, *, sessions: bool) -> None:
        client = S3Client(library, library.server.bucket, "memory", CONNECTIONS_MAX, ANSWER_TIMEOUT_S)
        super().__init__(client, tasks, runtime, "", WORLD_LANES, UPLOAD_BUDGET_S, whole_checksums=True)
        self._sessions = sessions

    async def open_upload(self, name: str, metadata: Metadata, size: int | None) -> SinglePut | LaneUpload[Stored]:
        if not self._sessions:
            return await super().open_upload(name, metadata, size)
        self._beside.check(name, metadata)
        marked = partial(self._mark, name, metadata.time_expires_ns)
        return await self._open_lanes(name, metadata, metadata.size if size is None else size, marked)

    async def collect(self, limit: int) -> int:
        before = COLLECTS.set(True)
        try:
            return await super().collect(limit)
        finally:
            COLLECTS.reset(before)
