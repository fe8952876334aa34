"""`FaultyChannel`: one process's gRPC channel to Bigtable. A script decides what happens to each call on the wire.

    BigtableTable --call--> FaultyChannel --request--> the real channel --> server
                            |
                            a *point*: "CheckAndMutateRow object r t d v w: #1", its first call that writes these

The caller gets a real `grpc.aio.AioRpcError`, with gRPC's own words. A caller that is cancelled while it waits is
cancelled at once. A request that is late belongs to the network: it arrives when the test says `deliver`, even if its
sender is dead. From a dead process no call leaves and to it none returns. Streams are read to their end before they are
handed out, so an answer is complete or does not exist.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import anyio
import grpc
import grpc.aio
from anyio.lowlevel import checkpoint

from changelog.bigtable.channel import CALL_TIMEOUT_S, Channel, Message
from changelog.change import LOG_PREFIX
from emulators.world.faults import Process

Send = Callable[[float], Awaitable[list[Message]]]
"""Sends the request with a deadline in so many seconds. Returns the answer, or all messages of the stream."""


class WireMode(Enum):
    """What may happen to one call. A read has no effect, so it is never delivered late or twice: see `READ_MODES`."""

    CUT = "never sent: UNAVAILABLE, as a refused connection gives"
    DROP_ANSWER = "the effect, and UNAVAILABLE, as a connection that breaks gives"
    HANG = "the effect, and no answer: DEADLINE_EXCEEDED when its time is up"
    LATE = "no answer either, and the effect only when the test delivers it"
    DUPLICATE = "the effect twice, one after the other, and the answer to the second"
    ECHO = "the effect and its answer, and the same request once more when the test delivers it"
    DIE_BEFORE = "the process dies before the request leaves"
    DIE_AFTER = "the process dies after the effect, before the answer"
    DIE_LATE = "the process dies, and its request has its effect when the test delivers it"


READ_MODES = (WireMode.CUT, WireMode.DROP_ANSWER, WireMode.HANG, WireMode.DIE_BEFORE, WireMode.DIE_AFTER)

Script = Callable[[str], WireMode | None]
"""Returns what happens at a point. It is asked once for each call, when the process makes it."""


def no_wire_faults(point: str) -> WireMode | None:
    return None


@dataclass(frozen=True, slots=True)
class WireCall:
    """One call as it is seen on the wire. `key`: the key of the row, or the first of several or of a range.

    `columns`: those it may set.
    """

    method: str
    key: bytes
    columns: tuple[str, ...]
    writes: bool

    @property
    def name(self) -> str:
        """A name that is the same for all rows of a kind, so that a repeated run has the same names."""
        prefix = self.key.decode(errors="replace")
        kind = "entry" if prefix.startswith(LOG_PREFIX) else "presence" if prefix.startswith("~") else "object"
        return " ".join([self.method, kind, *self.columns])

    @staticmethod
    def of(method: str, request: Message) -> WireCall:
        groups = [request, *getattr(request, "entries", ())]
        mutations = [
            each for group in groups for field in ("mutations", "true_mutations", "false_mutations") for each in getattr(group, field, ())
        ]
        columns = [each.set_cell.column_qualifier for each in mutations if each.HasField("set_cell")]
        columns += [rule.column_qualifier for rule in getattr(request, "rules", ())]
        names = dict.fromkeys(_without_token(column) for column in columns)
        return WireCall(method.rpartition("/")[2], next(_keys(groups), b""), tuple(names), "Mutate" in method or "Modify" in method)


class FaultyChannel:
    """Implements `Channel` for one process. `points`: those made so far, and `reads` those of them that have no effect.

    `trace`: the same with what happened there.

    `hang_s`: after how many seconds a call without an answer ends, if its own deadline is not sooner.
    """

    def __init__(self, channel: Channel, process: Process, script: Script = no_wire_faults, hang_s: float = CALL_TIMEOUT_S) -> None:
        self.points: list[str] = []
        self.reads: set[str] = set()
        self.trace: list[str] = []
        self._channel = channel
        self._process = process
        self._script = script
        self._hang_s = hang_s
        self._counts: Counter[str] = Counter()
        self._late: list[Send] = []
        self._landed: list[Send] = []

    def unary_unary(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        real = self._channel.unary_unary(method, request_serializer, response_deserializer)

        async def exchange(request: Message, timeout_s: float, metadata: Any) -> list[Message]:
            return [await real(request, timeout=timeout_s, metadata=metadata)]

        return self._callable(method, exchange)

    def unary_stream(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        real = self._channel.unary_stream(method, request_serializer, response_deserializer)

        async def exchange(request: Message, timeout_s: float, metadata: Any) -> list[Message]:
            stream = real(request, timeout=timeout_s, metadata=metadata)
            try:
                return [message async for message in stream]
            finally:
                stream.cancel()

        return self._callable(method, exchange)

    async def deliver(self, *, once_more: bool = False) -> int:
        """Delivers what is late now, in the order in which it was sent.

        `once_more`: deliver also what was delivered before.

        Returns how many requests were delivered.
        """
        landing = [*(self._landed if once_more else ()), *self._late]
        self._landed, self._late = self._landed + self._late, []
        for send in landing:
            await send(CALL_TIMEOUT_S)
        return len(landing)

    def _callable(self, method: str, exchange: Callable[[Message, float, Any], Awaitable[list[Message]]]) -> Any:
        def call(request: Message, *, timeout: float, metadata: Any = None) -> FaultyCall:
            return FaultyCall(lambda: self._meet(WireCall.of(method, request), lambda s: exchange(request, s, metadata), timeout))

        return call

    async def _meet(self, call: WireCall, send: Send, timeout_s: float) -> list[Message]:
        await self._refuse_if_dead()
        self._counts[call.name] += 1
        point = f"{call.name} #{self._counts[call.name]}"
        mode = self._script(point)
        self.points.append(point)
        if not call.writes:
            self.reads.add(point)
        self.trace.append(f"{point} of {call.key.decode(errors='replace')}" + (f" [{mode.name}]" if mode else ""))
        try:
            return await self._carry(mode, call, send, timeout_s)
        finally:
            await self._refuse_if_dead()

    async def _carry(self, mode: WireMode | None, call: WireCall, send: Send, timeout_s: float) -> list[Message]:
        if mode in (WireMode.LATE, WireMode.ECHO, WireMode.DIE_LATE, WireMode.DUPLICATE):
            assert call.writes, f"{call.name} reads, so nobody delivers it late or twice"
        match mode:
            case None:
                return await send(timeout_s)
            case WireMode.CUT:
                raise rpc_error(grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses; last error: Connection refused")
            case WireMode.DROP_ANSWER:
                await send(timeout_s)
                raise rpc_error(grpc.StatusCode.UNAVAILABLE, "recvmsg:Connection reset by peer")
            case WireMode.HANG:
                await send(timeout_s)
                await self._hang(timeout_s)
                raise rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
            case WireMode.LATE:
                self._late.append(send)
                await self._hang(timeout_s)
                raise rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
            case WireMode.DUPLICATE:
                await send(timeout_s)
                return await send(timeout_s)
            case WireMode.ECHO:
                self._late.append(send)
                return await send(timeout_s)
            case WireMode.DIE_AFTER:
                await send(timeout_s)
            case WireMode.DIE_LATE:
                self._late.append(send)
        self._process.crash()
        return []

    async def _hang(self, timeout_s: float) -> None:
        with anyio.move_on_after(min(timeout_s, self._hang_s)):
            await anyio.sleep_forever()

    async def _refuse_if_dead(self) -> None:
        """Refuses the call if the process is dead.

        The tasks of a dead process are being cancelled. Code that is shielded against that gets no further.
        """
        if not self._process.alive:
            await checkpoint()
            raise rpc_error(grpc.StatusCode.UNAVAILABLE, "the process is dead")


class FaultyCall:
    """What `grpc.aio` returns for a call, as far as it is used: it is awaited if unary, iterated if a stream."""

    def __init__(self, exchange: Callable[[], Awaitable[list[Message]]]) -> None:
        self._exchange = exchange
        self._messages: deque[Message] | None = None

    def __await__(self) -> Generator[Any, None, Message]:
        return self._only().__await__()

    async def _only(self) -> Message:
        [message] = await self._exchange()
        return message

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        if self._messages is None:
            self._messages = deque(await self._exchange())
        if not self._messages:
            raise StopAsyncIteration
        return self._messages.popleft()

    def cancel(self) -> bool:
        """Ends the call. Nothing is under way between two messages."""
        self._messages = deque()
        return True


def _keys(groups: list[Message]) -> Iterator[bytes]:
    for group in groups:
        if key := getattr(group, "row_key", b""):
            yield key
        if rows := getattr(group, "rows", None):
            yield from rows.row_keys
            yield from (span.start_key_closed for span in rows.row_ranges)


def _without_token(column: bytes) -> str:
    """Returns the column without its token. Marks are columns of their own, one for each token."""
    head, colon, _ = column.decode(errors="replace").partition(":")
    return head + colon


def rpc_error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)
