"""`SyncObjectWriter`: an object that is open for writing, as a binary file for `zipfile`, `csv`, `shutil.copyfileobj`.

It is stored by the end of its `with` block and by nothing else: `close` ends the writing, and stores nothing. Whatever
ends the block in another way (an error, the exit of the interpreter, a fork) stores nothing.
"""

from __future__ import annotations

import io
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

import tiered.object_writer
from changelog.base.errors import InvalidRequestError
from tiered.object_id import ObjectId
from tiered.stored import PutResult
from tiered.sync.callers_thread import CallersThread
from tiered.sync.loop import HeldContext, LoopThread, Turn


class SyncObjectWriter(io.BufferedIOBase):
    """An object that is open for writing. Enter it with `with`, once, and write to it inside.

    Leaving the block stores the object, as one `put`: `result` is what it returned. Leaving it by an error stores
    nothing. It cannot seek. Each write goes to the thread of the event loop, so write chunks, or put an
    `io.BufferedWriter` around it.
    """

    def __init__(self, loop: LoopThread, writer: tiered.object_writer.ObjectWriter, thread: CallersThread) -> None:
        """`thread`: does what the caller's functions do."""
        self._loop = loop
        self._writer = writer
        self._thread = thread
        self._block = _Block(writer)
        self._kept = HeldContext(loop, self._block)
        self._turn = Turn("an object that is written")
        self._entered = False

    def __repr__(self) -> str:
        return f"<SyncObjectWriter {self.object_id}>"

    @property
    def name(self) -> str:
        """The storage path, as files have a name."""
        return self.object_id.path

    @property
    def object_id(self) -> ObjectId:
        return self._writer.object_id

    @property
    def result(self) -> PutResult:
        """What `put` returned. `InvalidRequestError`: the block was not left yet, or nothing was stored."""
        return self._writer.result

    def writable(self) -> bool:
        return True

    def write(self, chunk: bytes | bytearray | memoryview) -> int:  # type: ignore[override] # other buffers are refused
        """Takes a chunk, and returns its length (bytes). Waits while the store is slower than the writer.

        It need not be on its way then: nothing is stored before the block is left. After a write that was interrupted
        nothing can be stored. Raises what `put` raises (nothing was stored). `InvalidRequestError`: it was closed.
        """
        self._loop.check()  # in a forked child, nobody lets this thread take a turn
        if self.closed:
            raise InvalidRequestError(f"{self.object_id} was closed: write before that")
        return self._turn.take(lambda: self._loop.call(lambda: self._writer.write(chunk), self._thread))

    def __enter__(self) -> Self:
        if self._entered:
            raise InvalidRequestError(f"{self.object_id} was opened for writing already, and that is entered once; open it again")
        self._entered = True
        self._kept.enter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
        self._block.is_whole = error is None
        self._kept.leave(self._thread)

    def __del__(self) -> None:
        # Somebody forgot to leave it, or a signal interrupted `__exit__` before its last line.
        if getattr(self, "_entered", False):
            self._kept.give_up()


class _Block(AbstractAsyncContextManager[None]):
    """The block of a writer, in the loop. Its end is the end of the payload only if somebody has said so (`is_whole`).
    """

    def __init__(self, writer: tiered.object_writer.ObjectWriter) -> None:
        self.is_whole = False
        self._writer = writer

    async def __aenter__(self) -> None:
        await self._writer.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None and not self.is_whole:
            error = InvalidRequestError("the block was left before its end")
        await self._writer.__aexit__(None if error is None else type(error), error, trace)
