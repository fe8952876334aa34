"""Bodies that come and go: one bound for all of them, and how one is sent or read while its client is watched.

    bodies_max               so many at once that hold something of a service: parts, and objects that are no row
    bytes_max                so many bytes of all are held in memory: a row, all that may come of a part, and how far an
                             object looks back that is decompressed
    client moves no bytes    for `idle_s`, or so slowly that it waits as long in all: its body ends
    no place is left         who has moved no bytes for `YIELD_S` gives his place; if nobody has: `FullError`
    the same part again      ends the body that comes before it: the last upload of a part counts
    the link ends            so does a part that still comes

So a client that holds bodies back must go on sending to keep its places, and nobody waits for one. Only waits for the
client count: the time of the store is no client's fault.

    client goes away         a read ends at once, and the object is closed; of a part nothing is kept
    the store fails          its error leaves the application: the server breaks the connection off, and nobody takes
                             half of the body for the whole

The length was promised before the first byte, and no empty last message follows an error.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable, MutableMapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Literal, Self, TypeVar

import anyio

from tiered.stored import StoredObject

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
T = TypeVar("T")

RATE_MIN = 4096
"""Bytes a second. Each such byte is worth a second of `idle_s` that was waited."""

YIELD_S = 15.0


class ClientGoneError(Exception):
    """The client has gone, or takes no bytes. Nobody is told: there is nobody."""


class FullError(Exception):
    """So many bodies, or so many bytes of them, are under way that this one has no place."""


class BodyEndedError(ClientGoneError):
    """A body was ended, because its client was too slow, or because its part comes anew (`replaced`)."""

    def __init__(self, *, replaced: bool) -> None:
        super().__init__()
        self.replaced = replaced


class Bodies:
    """All bodies of an application."""

    def __init__(self, bodies_max: int, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._bodies_max = bodies_max
        self._under_way: list[BodyPlace] = []

    def enter(self, size: int, idle_s: float, name: Hashable = None, *, counts: bool = True) -> BodyPlace:
        """A place for one body that holds `size` bytes, to be used in `with`. `FullError`: there is none.

        `name`: of the part that comes; None: an object is sent. `counts`: whether `bodies_max` counts it.
        """
        for other in [other for other in self._under_way if name is not None and other.name == name]:
            other.end(replaced=True)
        body = BodyPlace(self, idle_s, name, counts=counts)
        self._make_room(counts, size)
        self._under_way.append(body)
        body.held = size
        return body

    def hold(self, body: BodyPlace, size: int) -> None:
        self._make_room(False, size - body.held)
        body.held = size

    def leave(self, body: BodyPlace) -> None:
        if body in self._under_way:
            self._under_way.remove(body)

    def _make_room(self, counts: bool, size: int) -> None:
        while (lacks := self._lacks(counts, size)) is not None:
            held_back = [body for body in self._under_way if body.waited_s >= YIELD_S and (body.counts or lacks == "bytes")]
            if not held_back:
                raise FullError
            max(held_back, key=lambda body: body.waited_s).end(replaced=False)

    def _lacks(self, counts: bool, size: int) -> Literal["places", "bytes"] | None:
        if counts and sum(body.counts for body in self._under_way) >= self._bodies_max:
            return "places"
        return "bytes" if sum(body.held for body in self._under_way) + size > self.bytes_max else None


class BodyPlace:
    """The place of one body. `held`: how many bytes of it are in memory."""

    held = 0

    def __init__(self, bodies: Bodies, idle_s: float, name: Hashable, *, counts: bool) -> None:
        self.name = name
        self.counts = counts
        self._bodies = bodies
        self._idle_s = idle_s
        self._lost_s = 0.0  # of `idle_s`
        self._since: float | None = None
        self._scope: anyio.CancelScope | None = None
        self._ended: BodyEndedError | None = None

    @property
    def waited_s(self) -> float:
        """For how long the client has let it wait, less what its bytes were worth. 0: it does not wait for that."""
        return 0.0 if self._since is None else self._lost_s + anyio.current_time() - self._since

    def hold(self, size: int) -> None:
        """Holds so many bytes from now on. `FullError`: there is no room for them."""
        self._bodies.hold(self, size)

    async def wait(self, call: Callable[[], Awaitable[T]], size_of: Callable[[T], int], until: float = inf) -> T:
        """Waits for the client to send or to take bytes, until then at most. `BodyEndedError`: no longer."""
        if self._ended is None:
            self._since = began = anyio.current_time()
            try:
                with anyio.CancelScope(deadline=min(began + self._idle_s - self._lost_s, until)) as self._scope:
                    got = await call()
                    self._lost_s = max(0.0, self.waited_s - size_of(got) / RATE_MIN)
                    return got
            finally:
                self._since = None
        raise self._ended or BodyEndedError(replaced=False)

    def end(self, *, replaced: bool) -> None:
        self._ended = BodyEndedError(replaced=replaced)
        self._bodies.leave(self)
        if self._since is not None and self._scope is not None:
            self._scope.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bodies.leave(self)


@dataclass(frozen=True, slots=True)
class OpenBody:
    """An object that is to be sent: its bytes, of which the `first` may be here already, and its place."""

    stored: StoredObject
    chunks: AsyncIterator[bytes]
    place: BodyPlace
    first: bytes = b""


async def send_within(send: Send, message: Message, idle_s: float) -> None:
    """Sends one message. `ClientGoneError`: the server did not take it in time, or has no client any more."""
    try:
        with anyio.fail_after(idle_s):
            await send(message)
    except OSError as error:  # a TimeoutError is one; and since ASGI 2.4 a server says so of a client that has gone
        raise ClientGoneError from error


async def send_body(body: OpenBody, receive: Receive, send: Send) -> None:
    """Sends all bytes, and closes the object. Raises what the store raises, and `ClientGoneError`."""
    failure: Exception | None = None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        tasks.cancel_scope.cancel()

    async def sent(message: Message) -> None:
        size = len(message["body"])
        try:
            await body.place.wait(partial(send, message), lambda _: size)
        except OSError as error:
            raise ClientGoneError from error

    async with aclosing(body.stored), anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        try:
            if body.first:
                await sent({"type": "http.response.body", "body": body.first, "more_body": True})
            async for chunk in body.chunks:
                await sent({"type": "http.response.body", "body": chunk, "more_body": True})
            await sent({"type": "http.response.body", "body": b""})
        except Exception as error:  # noqa: BLE001 - the task group would wrap it; raised below
            failure = error
        tasks.cancel_scope.cancel()
    if isinstance(failure, FullError):  # another frame looks back further than there is room for
        raise ClientGoneError from failure
    if failure is not None:
        raise failure
    if gone:
        raise ClientGoneError


async def read_body(receive: Receive, place: BodyPlace, until: float) -> AsyncGenerator[bytes, None]:
    """The bytes of a request. `ClientGoneError`: it broke off. `BodyEndedError`: as `BodyPlace.wait`."""
    is_more = True
    while is_more:
        message = await place.wait(receive, lambda message: len(message.get("body", b"")), until)
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk, is_more = message.get("body", b""), message.get("more_body", False)
        if chunk:
            yield chunk
