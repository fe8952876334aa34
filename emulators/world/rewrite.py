"""What a copy, a rename or a change of metadata does: which reads, and which writes.

    read        each look at the source is a read of the history, and is judged as one
    attempt     each copy of what was read is a write of its own; a change of metadata begins another one if somebody
                was faster, and needs what it has read
    deletion    the second write of a rename, which needs what was copied

The calls of the store are watched from outside (`watch`). A user sees only one answer. Here each write has one, so the
ghost sees an attempt that takes effect after the store has given it up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import anyio

from emulators.world.faults import Process
from emulators.world.ghost import Ghost, acting, acts
from emulators.world.history import Need, RegisterHistory, RegisterWrite, WriteAnswer
from tiered.errors import ConditionFailedError
from tiered.limits.admission import Slot
from tiered.metadata import Metadata
from tiered.object_id import ObjectId
from tiered.protocol.reading import CopySource
from tiered.protocol.under_way import WriteInProgress as StoreWrite
from tiered.storage import TieredStorage
from tiered.stored import PutResult

LABEL, EDIT = "label", "edit"
"""The custom metadata that name the write of a payload, and the last change of the metadata."""
EDITED = " edited by "

Lives = tuple[float, float]
"""The seconds of the servers' clock from which on an object may have expired, and has expired by every clock."""


@dataclass(slots=True, eq=False)
class Rewrite:
    """One call. `name`: of what it writes. `needs`: the caller's own condition.

    `lives`: returns how long a copy lives, from the write that was read, and its metadata. `edit`: how it changes what
    a reader sees; None: not. `changes`: it writes the object that it reads. `deletes`: it deletes the object that it
    reads. `found`: what it has read last. `open`: the write that has no answer yet. `copy`: the copy of a rename that
    was told ok.
    """

    name: str
    needs: Need | None
    lives: Callable[[RegisterWrite, Metadata], Lives]
    edit: str | None = None
    changes: bool = False
    deletes: bool = False
    began_s: float = 0.0
    found: RegisterWrite | None = None
    open: RegisterWrite | None = None
    copy: RegisterWrite | None = None
    attempts: int = 0

    def is_told(self, result: PutResult | None, history: RegisterHistory) -> bool:
        """Tells whether the store may return this."""
        if result is None:
            return self.found is None and self.open is None
        written = history.revisions.get(result.revision)
        if self.deletes:
            return self.copy is not None and written is self.copy and self.open is not None
        if self.open is not None:
            return written is self.open
        return self.changes and self.found is not None and written is self.found  # there was nothing to change

    def may_fail(self, error: ConditionFailedError) -> bool:
        """Tells whether the store may say that a condition is false."""
        needs = self.needs if self.open is None else self.open.needs
        if needs is None or (self.changes and self.needs is None):
            return False  # a change without a condition of its caller begins again
        if self.open is not None:
            return error.object_id.path == self.open.path  # the ghost judges it as that of any write
        return self.changes and (self.found is None or needs.may_fail(self.found, anyio.current_time()))

    def shows(self, found: RegisterWrite) -> str:
        """Returns what a reader of the copy must see."""
        shown = str(found.shows)
        return shown if self.edit is None else f"{shown.partition(EDITED)[0]}{EDITED}{self.edit}"


rewriting: ContextVar[Rewrite | None] = ContextVar("rewriting", default=None)
"""The call that the current task works for."""


def watch(storage: TieredStorage, process: Process, history: RegisterHistory, ghost: Ghost) -> None:
    """Watches the reads and writes of this store from now on."""
    reader, writer = storage._reader, storage._writer
    find, copy, delete = reader.source, writer.put_copy, writer.delete

    def named(send: Callable[..., Awaitable[Any]]) -> Any:
        async def send_named(write: StoreWrite, *args: Any) -> Any:
            if (known := acting.get()) is not None:
                history.revisions[write.id] = known
            return await send(write, *args)

        return send_named

    def end(call: Rewrite, answer: WriteAnswer) -> None:
        if call.open is not None and process.alive:
            history.end_write(call.open, answer, anyio.current_time())
            ghost.told(call.open)
            call.open = None

    async def source(object_id: ObjectId) -> CopySource | None:
        call = rewriting.get()
        if call is None:
            return await find(object_id)
        if call.open is not None:
            ghost.checked["I4 a change that comes too late begins again"] += 1
            end(call, WriteAnswer.FAILED)
        read = history.begin_read(object_id.path)
        read.began_s = anyio.current_time()
        found = await find(object_id)
        if process.alive:
            head = None if found is None else found.head
            value = None if head is None else history.value(object_id.path, head.revision, shown(head.metadata))
            history.end_read(read, value, anyio.current_time())
            ghost.found(read)
            call.found = None if head is None else history.source(object_id.path, head.revision, shown(head.metadata))
        return found

    async def put_copy(write: StoreWrite, metadata: Metadata, found: CopySource, slot: Slot) -> PutResult:
        call = rewriting.get()
        if call is None or call.found is None:
            return await copy(write, metadata, found, slot)
        call.attempts += 1
        name = call.name if call.attempts == 1 else f"{call.name}, attempt {call.attempts}"
        needs = Need(call.found.value) if call.changes else call.needs
        mortal_at_s, dead_at_s = call.lives(call.found, found.head.metadata)
        call.open = attempt = history.begin_write(write.object_id.path, name, mortal_at_s, needs, call.began_s)
        attempt.dead_at_s, attempt.shows = dead_at_s, call.shows(call.found)
        with acts(attempt):
            result = await copy(write, metadata, found, slot)
        if call.deletes:
            call.copy = attempt
            end(call, WriteAnswer.OK)  # whatever becomes of the deletion
        return result

    async def remove(write: StoreWrite, slot: Slot) -> None:
        call = rewriting.get()
        if call is None:
            await delete(write, slot)
            return
        call.open = deletion = history.begin_write(
            write.object_id.path, None, needs=Need(None if call.found is None else call.found.value), began_s=call.began_s
        )
        ghost.renamed(deletion, call.copy)
        with acts(deletion):
            await delete(write, slot)

    delete = named(delete)
    for name, method in (
        ("put_small", named(writer.put_small)), ("put_large", named(writer.put_large)), ("put_copy", put_copy), ("delete", remove),
    ):  # fmt: skip
        setattr(writer, name, method)
    reader.source = source  # type: ignore[method-assign]


def shown(metadata: Metadata) -> str:
    """Returns what a reader sees of an object's content: who wrote the payload, and who has changed its metadata."""
    label, edit = metadata.custom.get(LABEL, ""), metadata.custom.get(EDIT)
    return label if edit is None else f"{label}{EDITED}{edit}"


def kept(found: RegisterWrite, metadata: Metadata) -> Lives:
    """Returns the lives of a copy that keeps the deadline of what was read."""
    return found.mortal_at_s, found.dead_at_s
