"""Many operations in one blocking call. The rules are those of `tiered/bulk.py`; only the waiting is done here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import anyio

import tiered.bulk
from changelog.base.errors import InvalidRequestError
from tiered.bulk import ItemResult, PutRequest, Requests
from tiered.payload.own_thread import each_of
from tiered.sync.callers_thread import CallersThread
from tiered.sync.calls import body
from tiered.sync.loop import HeldContext, LoopThread, Turn

if TYPE_CHECKING:
    import tiered.payload.streams

R = TypeVar("R")
V = TypeVar("V")


class SyncBulk(Generic[R, V]):
    """A bulk call. Enter it with `with`; inside the block, `for` gives the results once, as they complete.

    Requests, and payloads that are iterators, are read in the thread that takes the results, while it waits for one.
    """

    def __init__(
        self, loop: LoopThread, requests: Iterable[R], begin: Callable[[Requests[R]], tiered.bulk.Bulk[R, V]],
        prepare: Callable[[R, CallersThread], R] = lambda request, thread: request,
    ) -> None:
        """`begin` makes the asynchronous call. `prepare` makes each request ready for it, in the event loop."""
        self._loop = loop
        self._thread = loop.callers_thread()
        self._originals: dict[int, R] = {}
        self._taking = Turn("a bulk call")
        self._scope: anyio.CancelScope | None = None
        self._given_back: list[ItemResult[R, V]] = []
        self._entered = self._open = False
        thread, originals = self._thread, self._originals  # what is under way does not refer to this, so that it can be freed
        read = requests_of(requests, thread)

        async def made() -> tiered.bulk.Bulk[R, V]:
            return begin(_prepared(read, thread, prepare, originals) if isinstance(read, AsyncGenerator) else read)

        self._bulk = loop.call(made)
        self._kept = HeldContext(loop, self._bulk)

    def __enter__(self) -> Self:
        if self._entered:
            raise InvalidRequestError("a bulk call is entered once; call again for other requests")
        self._entered = True
        try:
            self._kept.enter()
            self._open = True
            return self
        except BaseException:
            self._kept.give_up()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open = False
        if self._loop.is_usable:
            self._loop.soon(self._stop_taking)  # another thread may be waiting for a result
            try:
                self._taking.take(lambda: self._kept.leave(self._thread))
            except BaseException:
                self._kept.give_up()
                raise

    def __iter__(self) -> Iterator[ItemResult[R, V]]:
        return self

    def __next__(self) -> ItemResult[R, V]:
        """The next result. An error of the requests' own iterator is raised here, after all results before it."""
        self._loop.check()  # in a forked child, nobody lets this thread take a turn
        result = self._taking.take(self._take)
        if result is None:
            raise StopIteration
        return result.of(self._originals.pop(result.position))

    def _take(self) -> ItemResult[R, V] | None:
        self._check_open()
        result = self._loop.call(self._next, self._thread, self._give_back)
        if result is None:
            self._check_open()
        return result

    def _check_open(self) -> None:
        if not self._open:
            raise InvalidRequestError("results come inside the block only: with storage.put_many(…) as results: for …")

    async def _next(self) -> ItemResult[R, V] | None:
        with anyio.CancelScope() as self._scope:
            if self._open:
                return self._given_back.pop() if self._given_back else await anext(self._bulk, None)
        return None

    async def _give_back(self, result: ItemResult[R, V] | None) -> None:
        """Keeps a result that came while its taker was interrupted."""
        if result is not None:
            self._given_back.append(result)

    def _stop_taking(self) -> None:
        if self._scope is not None:
            self._scope.cancel()

    def __del__(self) -> None:
        # Somebody forgot to leave it, or a signal interrupted `__exit__` before its first line.
        if getattr(self, "_open", False):
            self._kept.give_up()


async def _prepared(
    requests: AsyncGenerator[R, None], thread: CallersThread, prepare: Callable[[R, CallersThread], R], originals: dict[int, R]
) -> AsyncGenerator[R, None]:
    position = 0
    async with aclosing(requests) as each:
        async for request in each:
            originals[position] = request
            position += 1
            yield prepare(request, thread)


def requests_of(requests: Iterable[R], thread: CallersThread) -> Requests[R]:
    """The requests for an asynchronous call. What is none stays: the call says what is wrong."""
    if isinstance(requests, AsyncIterable):
        raise InvalidRequestError("the requests are read with await, and tiered.sync runs no event loop of yours: pass an iterable")
    is_text = isinstance(requests, (str, bytes)) or not isinstance(requests, Iterable)
    return requests if is_text else _each(requests, thread)


async def _each(requests: Iterable[R], thread: CallersThread) -> AsyncGenerator[R, None]:
    """The requests, one by one. What is no collection may run code of the caller's, so the caller's thread reads it."""
    if isinstance(requests, Collection):
        for request in requests:
            yield request
        return
    async with aclosing(each_of(requests, thread)) as items:
        async for request in items:
            yield request


def put_request(request: PutRequest, thread: CallersThread) -> PutRequest:
    """One of `put_many`, with what the caller's thread does for it."""
    if not isinstance(request, PutRequest):
        return request  # its result says what is wrong
    payload: tiered.payload.streams.Payload
    try:
        payload = body(request.payload, thread)
    except InvalidRequestError as error:
        payload = _Refused(error)  # so that it is the error of this item, and not of the bulk call
    progress, custom_at_end = thread.callback(request.progress), thread.callback(request.custom_at_end)
    return replace(request, payload=payload, progress=progress, custom_at_end=custom_at_end)


class _Refused(AsyncIterator[bytes]):
    """A payload that raises an error when it is read."""

    def __init__(self, error: InvalidRequestError) -> None:
        self._error = error

    async def __anext__(self) -> bytes:
        raise self._error
