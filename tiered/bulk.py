"""Many operations of one kind in one call. The number that runs at once is bounded, and each item has its own result.

    requests ──one at a time──▶ feeder ──▶ at most `concurrency` tasks ──as they complete──▶ async for result in bulk
     (async) iterable            │          one operation each; a task keeps its place
                                 │          until somebody has taken its result
                                 └ reads the next request only when there is a place for it

So a million requests do not become a million tasks, and a slow consumer slows down the reading of the requests. The
storage's own slots do not wait for the consumer: they are free as soon as an operation is done.

One task reads the requests, because a generator may hold cancel scopes from one item to the next. A synchronous
iterable that may block is read in a thread of its own. Puts of one object run one after the other, in the order of the
requests, so the last one wins.

*Failure*: the error of one item is that item's result. An error of the requests' own iterator is raised by the
iteration, unchanged, after the results of all items that were begun. What an item or the iterator awaits may be
cancelled although nobody cancelled this task. That counts as an error, too: `CancelledElsewhereError`.

*Leaving* the block, by return or by error, cancels the operations that are under way and waits until they have ended.
For each write this is the same as if its own caller had been cancelled. *Crash*: the same as for single operations.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Generic, Self, TypeVar, cast

import anyio
from anyio.abc import TaskGroup

from changelog.base.errors import InvalidRequestError
from changelog.base.home_loop import HomeLoop, in_home_loop
from changelog.base.tasks import elsewhere_is_an_error, end_tasks
from tiered.metadata import Metadata
from tiered.object_id import ObjectId
from tiered.payload.chunks import close_generator
from tiered.payload.own_thread import each_of
from tiered.payload.streams import Payload
from tiered.protocol.conditions import ANY_REVISION, IfRevision
from tiered.services.concurrent import foremost
from tiered.settings import StoreSettings
from tiered.stored import Compression, CustomAtEnd, ObjectHead, Progress, StoredObject, metadata_given
from tiered.text import quoted

R = TypeVar("R")
V = TypeVar("V")

Requests = Iterable[R] | AsyncIterable[R]

CONCURRENCY = 16
PAYLOAD_BYTES_MAX = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PutRequest:
    """One item of `put_many`: the arguments of one `put`, and one more for what moves from another store.

    `keep_deadline`: the object expires at `metadata.time_expires_ns` (never if that is None), and not a lifetime from
    now. The put is refused if that time has passed. A time to idle begins anew with the next read.
    """

    object_id: ObjectId
    payload: Payload = field(repr=False)
    metadata: Metadata | None = None
    if_absent: bool = False
    if_revision: IfRevision = ANY_REVISION
    progress: Progress | None = field(default=None, repr=False)
    checksums: Mapping[str, str] | None = None
    custom_at_end: CustomAtEnd | None = field(default=None, repr=False)
    compress: Compression | None = None
    keep_deadline: bool = False


@dataclass(frozen=True, slots=True)
class LoadedObject:
    """An object that was read whole: its head and all its bytes. `decompressed`: these are not as they are stored."""

    head: ObjectHead
    payload: bytes = field(repr=False)
    decompressed: bool = False

    @property
    def metadata(self) -> Metadata:
        """Of `payload`: those of `head`, but without `compression` and `size` if it was decompressed."""
        return metadata_given(self.head, decompressed=self.decompressed)


class ItemResult(Generic[R, V]):
    """The result of one item.

    Attributes:
        position: The item's place among the requests, counted from 0.
        request: The item itself.
        error: None if the operation succeeded; otherwise what the single operation would have raised, including an
            error of the payload itself.
    """

    __slots__ = ("_value", "error", "position", "request")

    def __init__(self, position: int, request: R, value: V | None, error: Exception | None) -> None:
        self.position = position
        self.request = request
        self.error = error
        self._value = value

    def __repr__(self) -> str:
        return f"<ItemResult {self.position} {quoted(self.request)}: {quoted(self._value if self.error is None else self.error)}>"

    def of(self, request: R) -> ItemResult[R, V]:
        """The same result of another request: of the one that the caller passed."""
        return ItemResult(self.position, request, self._value, self.error)

    @property
    def value(self) -> V:
        """What the single operation would have returned. Raises `error` if there is one, so nobody takes a failure for
        None.
        """
        if self.error is not None:
            raise self.error
        return cast(V, self._value)


@in_home_loop
class Bulk(Generic[R, V]):
    """A bulk call. Enter it with `async with`; inside the block, `async for` gives the results once, as they complete.
    """

    def __init__(self, requests: Requests[R], kind: type[R], operate: Callable[[R], Awaitable[V]], concurrency: int) -> None:
        """`kind`: the type that every request must have. `concurrency`: how many operations run at once."""
        if isinstance(requests, (str, bytes)) or not isinstance(requests, (AsyncIterable, Iterable)):
            raise InvalidRequestError(f"pass an iterable or async iterable of {kind.__name__}, not one {type(requests).__name__}")
        self._requests = requests
        self._kind = kind
        self._operate = operate
        # Operations that can begin at once begin at one moment, so that a backend may serve them in one call.
        self._places = anyio.Semaphore(concurrency, fast_acquire=True)
        self._writing: dict[str, anyio.Event] = {}
        self._running = 0
        self._requests_error: Exception | None = None
        self._home: HomeLoop | None = None
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        if self._home is not None:
            raise InvalidRequestError("a bulk call is entered once; call again for other requests")
        self._home = HomeLoop("this bulk call")
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
            # Set only now: until here the feeder may start one more task, which then ends with the group.
            self._tasks = None
            self._send.close()
            self._receive.close()
        if failed is not None:
            raise failed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ItemResult[R, V]:
        """The next result. An error of the requests' own iterator is raised here, after all results before it."""
        if self._tasks is not None:
            with suppress(anyio.EndOfStream, anyio.ClosedResourceError):
                return await self._receive.receive()
        if self._tasks is None:  # also if the block was left while this waited: what came until then is not all
            raise InvalidRequestError("results come inside the block only: async with storage.put_many(…) as results: async for …")
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
        async with aclosing(each_request(self._requests)) as requests:
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
    """Reads an open object whole and closes it. None stays None.

    `InvalidRequestError`: it has more than `bytes_max` bytes. Nothing of its payload was read, or not much more.
    """
    if stored is None:
        return None
    async with stored:
        if stored.length is not None:
            _check_size(stored, stored.length, bytes_max)
            return LoadedObject(stored.head, await stored.read())
        payload = bytearray()
        async for chunk in stored:
            payload += chunk
            _check_size(stored, len(payload), bytes_max)
        return LoadedObject(stored.head, bytes(payload), decompressed=True)


def _check_size(stored: StoredObject, size: int, bytes_max: int) -> None:
    if size > bytes_max:
        more = "" if stored.length is not None else " or more"
        raise InvalidRequestError(
            f"{stored.object_id} has {size} bytes{more}, more than payload_bytes_max ({bytes_max}): stream it with get, or raise that"
        )


def bounded_concurrency(concurrency: int | None, store: StoreSettings) -> int:
    """The concurrency that was asked for, if bulk work may hold so many slots; otherwise `InvalidRequestError`.

    The default is `CONCURRENCY`, but at most a quarter of `store.concurrency_max`, so that several bulk calls can run
    side by side.
    """
    if concurrency is None:
        return max(1, min(CONCURRENCY, store.concurrency_max // 4, store.bulk_max))
    if type(concurrency) is not int or not 1 <= concurrency <= store.bulk_max:
        allowed = f"from 1 to {store.bulk_max} (three quarters of store.concurrency_max)"
        raise InvalidRequestError(f"concurrency is {quoted(concurrency)}: pass a number {allowed}")
    return concurrency


def check_bytes_max(bytes_max: int) -> None:
    """Raises `InvalidRequestError` unless it is a number of bytes."""
    if type(bytes_max) is not int or bytes_max < 0:
        raise InvalidRequestError(f"payload_bytes_max is {quoted(bytes_max)}: pass a number of bytes")


async def each_request(requests: Requests[R]) -> AsyncGenerator[R, None]:
    """The requests, one by one. A collection is in memory and is read directly.

    Any other synchronous iterable may block for each item (a database cursor, a walk over files), so a thread reads it.
    """
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
    """The path of the object that a put writes, because puts of one object keep their order.

    None for all other requests.
    """
    return request.object_id.path if isinstance(request, PutRequest) and isinstance(request.object_id, ObjectId) else None
