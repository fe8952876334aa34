"""`ObjectWriter`, an object that is open for writing: code that writes becomes the payload of one `put`.

    code in the block                          a task of its own
      write(chunk) ──▶ what waits ──────────▶ put, which reads it as an async iterator
                       at most a chunk of 256 KiB, and what is written last
      the block is left ── that was the end ──▶ the commit

Before the end of the payload a put commits nothing. So whatever leaves the block by an error or a cancellation stores
nothing: the put is cancelled. *Failure*: what the put raises, the next `write` raises, or the end of the block.
*Crash*: as that of a put.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint_if_cancelled

from changelog.base.errors import InvalidRequestError
from changelog.base.home_loop import HomeLoop, in_home_loop
from changelog.base.tasks import end_tasks
from tiered.object_id import ObjectId
from tiered.services.concurrent import foremost
from tiered.stored import CHUNK_BYTES, PutResult
from tiered.text import quoted


@in_home_loop
class ObjectWriter:
    """An object that is open for writing. Enter it with `async with`, once, and `await file.write(chunk)` inside.

    Leaving the block stores the object, as one `put`: `result` is what it returned. Leaving it by an error or a
    cancellation stores nothing. A cancellation while the block is being left is that of a `put`.
    """

    _begun: anyio.Event
    _ended: anyio.Event
    _wanted: anyio.Event
    _taken: anyio.Event
    _scope: anyio.CancelScope

    def __init__(self, object_id: ObjectId, put: Callable[[AsyncGenerator[bytes, None]], Awaitable[PutResult]]) -> None:
        self.object_id = object_id
        self._put = put
        self._tasks: TaskGroup | None = None
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._home: HomeLoop | None = None
        self._is_open = self._is_whole = self._is_torn = False
        self._result: PutResult | None = None
        self._error: Exception | None = None

    def __repr__(self) -> str:
        return f"<ObjectWriter {self.object_id}>"

    @property
    def result(self) -> PutResult:
        """What `put` returned. `InvalidRequestError`: the block was not left yet, or nothing was stored."""
        if self._result is None:
            raise InvalidRequestError(f"{self.object_id} was not stored by this: leave the block first, and without an error")
        return self._result

    async def write(self, chunk: bytes | bytearray | memoryview) -> int:
        """Takes a chunk, and returns its length (bytes). Waits while the store is slower than the writer.

        It need not be on its way then: nothing is stored before the block is left. A write that is cancelled may have
        been taken or not. So nothing can be stored after it. Raises what `put` raises (nothing was stored).
        """
        await checkpoint_if_cancelled()
        self._check_open()
        if not isinstance(chunk, (bytes, bytearray, memoryview)):
            raise InvalidRequestError(f"write bytes to {self.object_id}, not {quoted(chunk)}: encode text")
        taken = bytes(chunk)  # the caller may change it; bytes stay the same object
        if taken:
            self._waiting.append(taken)
            self._waiting_bytes += len(taken)
            self._wanted.set()
        try:
            while self._waiting_bytes > CHUNK_BYTES and not self._ended.is_set():
                await self._wait_taken()
        except BaseException:
            self._is_torn = True
            raise
        self._raise_error()
        return len(taken)

    async def _wait_taken(self) -> None:
        if self._taken.is_set():
            self._taken = anyio.Event()
        await self._taken.wait()

    def _check_open(self) -> None:
        if not self._is_open:
            raise InvalidRequestError(f"{self.object_id} is written inside the block only: async with storage.open(…) as file: …")
        self._raise_error()
        if self._is_torn:
            raise InvalidRequestError(f"{self.object_id} is not stored: a write to it was cancelled, which may have been taken or not")

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    # --- life

    async def __aenter__(self) -> Self:
        if self._home is not None:
            raise InvalidRequestError(f"{self.object_id} was opened for writing already, and that is entered once; open it again")
        self._home = HomeLoop(self)
        self._begun, self._ended, self._wanted, self._taken = (anyio.Event() for _ in range(4))
        # Shielded: anyio would count cancellations within the put as the group's, and take back the caller's own.
        self._scope = anyio.CancelScope(shield=True)
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._run)
        try:
            await self._begun.wait()  # a wrong argument, or a store that is full, is known before the block
            self._raise_error()
        except BaseException as error:
            await self._end(error)
            raise
        self._is_open = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                self._check_open()
                self._is_whole = True
                self._wanted.set()
                await self._ended.wait()
                self._raise_error()
        except BaseException as failed:
            error = failed
            raise
        finally:
            self._is_open = False
            await self._end(error)

    async def _end(self, error: BaseException | None) -> None:
        tasks, self._tasks = self._tasks, None
        assert tasks is not None, "entered"
        self._scope.cancel()
        try:
            await end_tasks(tasks, error)
        except BaseExceptionGroup as errors:
            raise foremost(errors.exceptions) from None

    async def _run(self) -> None:
        try:
            with self._scope:
                self._result = await self._put(self._chunks())
        except Exception as error:  # noqa: BLE001 - raised where the caller writes, or leaves the block
            self._error = error
        finally:
            self._begun.set()
            self._ended.set()
            self._taken.set()

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        while True:
            while self._waiting:
                chunk = self._waiting.popleft()
                self._waiting_bytes -= len(chunk)
                self._taken.set()
                yield chunk
            if self._is_whole:
                return
            self._wanted = anyio.Event()
            self._begun.set()
            await self._wanted.wait()
