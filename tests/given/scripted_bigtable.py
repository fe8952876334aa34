"""A Bigtable that says what a test tells it to say, on loopback, and keeps what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from google.cloud.bigtable_v2.types import bigtable

REQUESTS: dict[str, Any] = {
    "CheckAndMutateRow": (bigtable.CheckAndMutateRowRequest, bigtable.CheckAndMutateRowResponse),
    "MutateRow": (bigtable.MutateRowRequest, bigtable.MutateRowResponse),
    "MutateRows": (bigtable.MutateRowsRequest, bigtable.MutateRowsResponse),
    "ReadModifyWriteRow": (bigtable.ReadModifyWriteRowRequest, bigtable.ReadModifyWriteRowResponse),
    "ReadRows": (bigtable.ReadRowsRequest, bigtable.ReadRowsResponse),
    "PingAndWarm": (bigtable.PingAndWarmRequest, bigtable.PingAndWarmResponse),
}


@dataclass(frozen=True)
class Arrived:
    """A call as the server saw it. `peer` tells the connections apart."""

    method: str
    request: Any
    metadata: dict[str, Any]
    peer: str
    time_left_s: float | None


@dataclass(frozen=True)
class Fails:
    """The call ends with this status; the answer's trailing metadata goes along."""

    code: grpc.StatusCode
    details: str = "the details"
    trailing: tuple[tuple[str, str], ...] = ()


Script = Sequence[Any]
"""Messages to send, in order; an `asyncio.Event` to wait for; `Fails` to end with."""


@dataclass
class ScriptedBigtable(grpc.GenericRpcHandler):  # type: ignore[misc]
    """`scripts[method]`: what the call does, or a function of the request that says so. None: an empty message."""

    scripts: dict[str, Script | Callable[[Any], Script]] = field(default_factory=dict)
    arrived: list[Arrived] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    host: str = ""
    server: Any = None

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method.rpartition("/")[2]
        if method not in REQUESTS:
            return None
        request, response = REQUESTS[method]
        seen = dict(handler_call_details.invocation_metadata)

        async def answer(message: Any, context: Any) -> AsyncIterator[Any]:
            self.arrived.append(Arrived(method, message, seen, context.peer(), context.time_remaining()))
            script = self.scripts.get(method, [response.pb()()])
            try:
                for item in script(message) if callable(script) else script:
                    if isinstance(item, asyncio.Event):
                        await item.wait()
                    elif isinstance(item, Fails):
                        context.set_trailing_metadata(item.trailing)
                        await context.abort(item.code, item.details)
                    else:
                        yield item
            except asyncio.CancelledError:
                self.cancelled.append(method)
                raise

        # On the wire a single answer is a stream of one message.
        return grpc.unary_stream_rpc_method_handler(answer, request.pb().FromString, lambda message: message.SerializeToString())

    async def until(self, number: int, method: str = "") -> list[Arrived]:
        """Waits for so many calls (of the method)."""
        def found() -> list[Arrived]:
            return [call for call in self.arrived if method in ("", call.method)]

        await self.comes_true(lambda: len(found()) >= number)
        return found()

    async def comes_true(self, check: Callable[[], object]) -> None:
        for _ in range(10_000):
            if check():
                return
            await asyncio.sleep(0.001)
        raise TimeoutError("it did not come true within 10 s")

    async def start(self, host: str = "127.0.0.1:0") -> None:
        self.server = grpc.aio.server(options=[("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)])
        self.server.add_generic_rpc_handlers((self,))
        port = self.server.add_insecure_port(host)
        await self.server.start()
        self.host = f"127.0.0.1:{port}"
