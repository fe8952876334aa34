"""Many operations of one kind in one call: bounded, each with a result of its own, nothing left behind.

    requests ──one at a time──▶ feeder ──▶ at most `concurrency` tasks ──as they complete──▶ async for result in bulk
     (async) iterable            │          an operation each; a result that nobody has taken yet
                                 │          keeps its task's place
                                 └ reads the next request only when there is a place for it

So a million requests build no million tasks, and a consumer that is slow slows the reading of the requests, while
the storage's own slots are free again as soon as an operation is done. The requests are read in one task, because a generator may
hold scopes of its own; a synchronous one in one thread, because it may block. Puts of one object are made one after the other, in the
order of the requests: the last one wins.

*Failure* of one item is that item's result. An error of the requests' own iterator is raised by the iteration, plain, after
the results of all items that were begun. A cancellation that nobody asked for, because what an item or the iterator awaited was
cancelled elsewhere, is such an error, too: `CancelledElsewhereError`. *Leaving* the block, by whatever way, cancels what is under way
and waits for its end; each write then is as if its own caller had been cancelled. *Crash*: as of so many single operations.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Collection, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Generic, Self, TypeVar, cast

import anyio
from anyio.abc import TaskGroup

from changelog.base.tasks import elsewhere_is_an_error, end_tasks
from tiered.errors import InvalidRequestError
from tiered.metadata import Metadata
from tiered.object_id import ObjectId
from tiered.payload.own_thread import each_of
from tiered.payload.pieces import close_generator
from tiered.payload.streams import Payload
from tiered.protocol.concurrent import foremost
from tiered.stored import ObjectHead, StoredObject
from tiered.text import shown

R = TypeVar("R")
V = TypeVar("V")

Requests = Iterable[R] | AsyncIterable[R]

CONCURRENCY = 16
PAYLOAD_BYTES_MAX = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PutRequest:
    """One item of `put_many`: what `put` is told."""

    object_id: ObjectId
    payload: Payload = field(repr=False)
    metadata: Metadata | None = None


@dataclass(frozen=True, slots=True)
class LoadedObject:
    """An object that was read whole: its head, and its bytes."""

    head: ObjectHead
    payload: bytes = field(repr=False)


class ItemResult(Generic[R, V]):
    """What became of one item. `position`: its place among the requests, from 0. `error`: None if it succeeded.

    An error is what the single operation would have raised, so a payload's own exception, too.
    """

    __slots__ = ("_value", "error", "position", "request")

    def __init__(self, position: int, request: R, value: V | None, error: Exception | None) -> None:
        self.position = position
        self.request = request
        self.error = error
        self._value = value

    def __repr__(self) -> str:
        return f"<ItemResult {self.position} {shown(self.request)}: {shown(self._value if self.error is None else self.error)}>"

    @property
    def value(self) -> V:
        """What the single operation would have returned; raises `error` where there is one: a failure is no None."""
        if self.error is not None:
            raise self.error
        return cast(V, self._value)


class Bulk(Generic[R, V]):
    """A bulk call: `async with` it, and inside `async for` its results, in the order in which they complete, once."""

    def __init__(self, requests: Requests[R], kind: type[R], operate: Callable[[R], Awaitable[V]], concurrency: int) -> None:
        """`kind`: the type of every request."""
        if isinstance(requests, (str, bytes)) or not isinstance(requests, (AsyncIterable, Iterable)):
            raise InvalidRequestError(f"pass an iterable or async iterable of {kind.__name__}, not one {type(requests).__name__}")
        self._requests = requests
        self._kind = kind
        self._operate = operate
        self._places = anyio.Semaphore(concurrency)
        self._writing: dict[str, anyio.Event] = {}
        self._running = 0
        self._requests_error: Exception | None = None
        self._entered = False
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        if self._entered:
            raise InvalidRequestError("a bulk call is entered once; call again for other requests")
        self._entered = True
        self._send, self._receive = anyio.create_memory_object_stream[ItemResult[R, V]](0)
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._start(self._feed)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        tasks = self._tasks
        assert tasks is not None, "entered before it is left"
        failed: BaseException | None = None
        try:
            await end_tasks(tasks, error)
        except BaseExceptionGroup as errors:
            failed = foremost(errors.exceptions)
        finally:
            self._tasks = None  # not before: the feeder may be about to begin one more, and end with it
            self._send.close()
            self._receive.close()
        if failed is not None:
            raise failed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ItemResult[R, V]:
        """The next result. Raises what the requests' own iterator did, when the results of all before it are out."""
        if self._tasks is None:
            raise InvalidRequestError("results come inside the block only: async with storage.put_many(…) as results: async for …")
        with suppress(anyio.EndOfStream):
            return await self._receive.receive()
        error, self._requests_error = self._requests_error, None
        raise StopAsyncIteration if error is None else error

    def _start(self, work: Callable[..., Awaitable[None]], *args: object) -> None:
        assert self._tasks is not None, "entered"
        self._running += 1
        self._tasks.start_soon(self._run, work, *args)

    async def _run(self, work: Callable[..., Awaitable[None]], *args: object) -> None:
        await work(*args)
        self._running -= 1
        if not self._running:
            self._send.close()

    async def _feed(self) -> None:
        try:
            with elsewhere_is_an_error("what the iterator of the requests awaited was cancelled elsewhere"):
                await self._feed_all()
        except Exception as error:  # noqa: BLE001 - nothing else raises here; the iteration raises it
            self._requests_error = error

    async def _feed_all(self) -> None:
        async with aclosing(_each(self._requests)) as requests:
            for position in itertools.count():
                await self._places.acquire()
                try:
                    request = await anext(requests)
                except StopAsyncIteration:
                    return
                await self._begin(position, request)

    async def _begin(self, position: int, request: R) -> None:
        path = _written(request)
        if path is not None:
            while (former := self._writing.get(path)) is not None:
                await former.wait()
            self._writing[path] = anyio.Event()
        self._start(self._answer, position, request, path)

    async def _answer(self, position: int, request: R, path: str | None) -> None:
        result = await self._result(position, request)
        if path is not None:
            self._writing.pop(path).set()
        await self._send.send(result)
        self._places.release()

    async def _result(self, position: int, request: R) -> ItemResult[R, V]:
        try:
            if not isinstance(request, self._kind):
                raise InvalidRequestError(f"item {position} is of type {type(request).__name__}, not {self._kind.__name__}")
            with elsewhere_is_an_error(f"what item {position} awaited was cancelled elsewhere"):
                return ItemResult(position, request, await self._operate(request), None)
        except Exception as error:  # noqa: BLE001 - a payload raises what it likes, and must not end the others
            return ItemResult(position, request, None, error)


async def load(stored: StoredObject | None, bytes_max: int) -> LoadedObject | None:
    """Reads it whole and closes it. `InvalidRequestError`: it has more bytes; none of a blob were read."""
    if stored is None:
        return None
    async with stored:
        if stored.size > bytes_max:
            raise InvalidRequestError(
                f"{stored.object_id} has {stored.size} bytes, more than payload_bytes_max ({bytes_max}): stream it with get, or raise that"
            )
        return LoadedObject(stored.head, await stored.read())


def bounded_concurrency(concurrency: int | None, concurrency_max: int) -> int:
    """What was asked for, if the store may do so much at once. By default at most a quarter of that: others have room."""
    if concurrency is None:
        return max(1, min(CONCURRENCY, concurrency_max // 4))
    if type(concurrency) is not int or not 1 <= concurrency <= concurrency_max:
        raise InvalidRequestError(f"concurrency is {shown(concurrency)}: pass a number from 1 to {concurrency_max} (store.concurrency_max)")
    return concurrency


def check_bytes_max(bytes_max: int) -> None:
    if type(bytes_max) is not int or bytes_max < 0:
        raise InvalidRequestError(f"payload_bytes_max is {shown(bytes_max)}: pass a number of bytes")


async def _each(requests: Requests[R]) -> AsyncGenerator[R, None]:
    """A collection is at hand. Another iterable may wait for each item (a cursor, a walk over files), and so has a thread of its own."""
    if isinstance(requests, AsyncIterable):
        source = aiter(requests)
        try:
            async for request in source:
                yield request
        finally:
            await close_generator(source)
    elif isinstance(requests, Collection):
        for request in requests:
            yield request
    else:
        async with aclosing(each_of(requests)) as items:
            async for request in items:
                yield request


def _written(request: object) -> str | None:
    """The path of the object for whose writes order matters; None for reads, deletions, and what is wrong anyway."""
    return request.object_id.path if isinstance(request, PutRequest) and isinstance(request.object_id, ObjectId) else None
