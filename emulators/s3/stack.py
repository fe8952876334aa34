"""`WorldBucket`: the real S3 adapter in a simulated world.

Each process reaches, over a `Link`, a bucket in memory.

    process's S3Blobs -> S3Client --put_object(…)--> LinkedLibrary --Link.call("upload.finalise")--> MemoryS3
                                                     the plan chooses what happens to it   `-changed--> ShownBlobs:
                                                                                          blobs, uploads, …, observers

The adapter is that of the process's code (adapter.py). linked.py says what a request is called, and what a fault of it
becomes.

`ShownBlobs` decodes what is stored as it changes. A blob has the latest deadline of its markers, and none without
them, whatever its own metadata say: nobody would ever collect it. *Crash*: as in `emulators.world.faults`. What a dead
process does beside its calls waits for ever for its link. *Failure*: an object that breaks the format fails the world.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyio.abc import TaskGroup

from changelog.base.runtime import Runtime
from emulators.s3.adapter import WorldBlobs
from emulators.s3.linked import LinkedLibrary
from emulators.s3.memory import Cause, MemoryLibrary, MemoryS3
from emulators.world.faults import Process
from tiered.metadata import Metadata, is_expired
from tiered.s3.format import Stored, decode_amended, decode_object, encode_metadata, nonce_of
from tiered.s3.garbage import EXPIRED_SLACK_NS
from tiered.services.backends import LongTermBackend
from tiered.testing.blobs import Blob
from tiered.testing.service import Observer


class WorldBucket:
    """The bucket of a world. `runtime` is the server's. `tasks`: where what adapters do beside their calls runs.

    `sessions`: every upload is a session; else the adapter chooses, and most are a single request.
    """

    def __init__(self, runtime: Runtime, tasks: TaskGroup, *, sessions: bool) -> None:
        self.server = MemoryS3(runtime, part_bytes_min=0)
        self.blobs = ShownBlobs(self.server, runtime, tasks)
        self._tasks = tasks
        self._sessions = sessions

    def blobs_of(self, process: Process) -> LongTermBackend:
        library = LinkedLibrary(self.server, process)
        return process.code.own(WorldBlobs)(library, process.runtime, self._tasks, sessions=self._sessions)


class ShownBlobs(WorldBlobs):
    """The blobs themselves, without faults.

    Implements `InspectedBlobs`: `blobs`, `uploads`, `collected` and `strays` are as in `SimulatedBlobs`. The deadline
    of a blob is in its metadata. `collect_after_s`: as the adapter has it.
    """

    def __init__(self, server: MemoryS3, runtime: Runtime, tasks: TaskGroup) -> None:
        super().__init__(MemoryLibrary(server), runtime, tasks, sessions=False)
        self.collect_after_s = EXPIRED_SLACK_NS / 1e9
        self.blobs: dict[str, Blob] = {}
        self.in_parts: dict[str, Any] = {}
        self.collected: set[str] = set()
        self.strays: set[str] = set()
        self._came_late: set[str] = set()
        self.observers: list[Observer] = []
        self._created: set[str] = set()
        self._server = server
        self._clock = runtime
        server.changed.append(self._look_at)

    @property
    def uploads(self) -> Mapping[str, Any]:
        """The sessions that have not ended."""
        return {self._session(each): upload for each, upload in self._server.uploads.items()}

    async def collect(self, limit: int) -> int:
        """Collects as the adapter does, and ends uploads as the bucket's rule does."""
        return await super().collect(limit) + self._server.end_old_uploads()

    def plant(self, name: str, metadata: Metadata, payload: bytes) -> None:
        """Makes a blob at once. It is no effect of a call."""
        self._server.put(name, payload, encode_metadata(name, metadata))
        self._show(name)

    def left_beside(self, *, recovered: bool) -> list[str]:
        """What should be gone when all that has a deadline has expired and was collected.

        `recovered`: a changelog tells of blobs that appear after their deadlines, when these have been collected.
        """
        left: list[str] = []
        unknown = self.strays if recovered else self.strays | self._came_late
        for key in self._server.objects:
            marked = self._beside.blob_of(key)
            if marked is not None and marked[0] not in self.blobs:
                left.append(f"the deadline {key} of a blob that is gone")
            elif key.startswith(self._beside.amendments) and self._beside.blob_of_amendment(key) not in self.blobs:
                left.append(f"the amendment {key} of a blob that is gone")
            elif key in self.blobs and key not in unknown and self._decoded(key).metadata.time_expires_ns is not None:
                left.append(f"blob {key}, which has expired")
        return left

    # --- effects

    def _look_at(self, cause: Cause, operation: str, what: str) -> None:
        if operation in ("create_multipart_upload", "abort_multipart_upload"):
            self._tell("blobs.open_upload" if operation.startswith("create") else "blobs.cancel", self._session(what))
        elif (marked := self._beside.blob_of(what)) is not None:
            before = self.blobs.get(marked[0])
            self._show(marked[0])
            if before is not None and self.blobs[marked[0]] != before and operation == "put_object":
                self._tell("blobs.touch", marked[0])
        elif what.startswith(self._beside.amendments):
            self._show(self._beside.blob_of_amendment(what))
        elif operation in ("put_object", "complete_multipart_upload"):
            if cause[1] and what in self._created:
                self.strays.add(what)
            self._created.add(what)
            self._show(what)
            if is_expired(self._decoded(what).metadata.time_expires_ns, self._clock.wall_ns()):
                self._came_late.add(what)
            self._tell("upload.finalise", what)
        elif operation == "delete_object":
            self._tell(self._removed(what, cause[0]), what)

    def _removed(self, name: str, call: str) -> str:
        """Notes that the blob is gone. Returns by which call: nobody collects what has not expired for an hour."""
        gone = self.blobs.pop(name)
        deadline_ns = gone.metadata.time_expires_ns
        if call != "blobs.collect" or deadline_ns is None or deadline_ns + EXPIRED_SLACK_NS >= self._server.now_ns():
            return "blobs.delete"
        self.collected.add(name)
        return "blobs.collect"

    def _tell(self, call: str, what: str) -> None:
        for observe in self.observers:
            observe(call, what)

    def _session(self, upload_id: str) -> str:
        return self._in_parts._session(self._server.named(upload_id), upload_id)

    def _show(self, name: str) -> None:
        if name not in self._server.objects:
            return
        stored = self._decoded(name)
        markers = [marked[1] for key in self._server.objects if (marked := self._beside.blob_of(key)) is not None and marked[0] == name]
        deadline_ns = None if stored.metadata.time_expires_ns is None else max(markers, default=None)
        metadata = stored.metadata.with_facts(time_expires_ns=deadline_ns)
        self.blobs[name] = Blob(metadata, self._server.objects[name].body, stored.created_ns, stored.generation)

    def _decoded(self, name: str) -> Stored:
        answer = self._server.told_of(name)
        nonce = nonce_of(answer)
        amendment = None if nonce is None else self._server.objects.get(self._beside.amendment(name, nonce))
        return decode_object(name, answer, amended=None if amendment is None else decode_amended(name, amendment.body))
