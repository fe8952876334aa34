"""The demo's relay: passes everything on, breaks every connection, and lets the requests of others overtake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.memory import MemoryObjectReceiveStream

from emulators.demo.staging.relay import Relay

pytestmark = pytest.mark.anyio

PATIENCE_S = 30.0


@asynccontextmanager
async def relayed() -> AsyncIterator[tuple[Relay, MemoryObjectReceiveStream[bytes]]]:
    """A relay to a server that echoes, and what the server was sent, in order; an end is empty."""
    send, receive = anyio.create_memory_object_stream[bytes](100)

    async def echo(client: SocketStream) -> None:
        async with client:
            async for piece in client:
                await send.send(piece)
                await client.send(piece)
            await send.send(b"")

    with anyio.fail_after(PATIENCE_S):
        async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks, send, receive:
            tasks.start_soon(listener.serve, echo)
            relay = Relay(listener.extra(SocketAttribute.local_port))
            await tasks.start(relay.serve)
            yield relay, receive
            tasks.cancel_scope.cancel()


async def joined(relay: Relay) -> SocketStream:
    """A connection that is known to go through."""
    client = await anyio.connect_tcp("127.0.0.1", relay.port)
    await client.send(b"hello")
    assert await client.receive() == b"hello"
    return client


async def is_broken(client: SocketStream) -> bool:
    try:
        await client.send(b"?")
        await client.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return True
    return False


async def test_bytes_go_both_ways_and_an_end_goes_through() -> None:
    async with relayed() as (relay, arrived), await joined(relay) as client:
        await client.send_eof()
        assert [await arrived.receive(), await arrived.receive()] == [b"hello", b""]
        with pytest.raises(anyio.EndOfStream):
            await client.receive()


async def test_a_cut_breaks_every_connection_and_new_ones_until_it_is_mended() -> None:
    async with relayed() as (relay, _), await joined(relay) as one, await joined(relay) as other:
        relay.cut()
        assert await is_broken(one) and await is_broken(other)
        async with await anyio.connect_tcp("127.0.0.1", relay.port) as new:
            assert await is_broken(new)
        relay.mend()
        async with await joined(relay):
            pass


async def test_what_one_sends_into_a_stall_arrives_after_what_others_send_later_although_its_sender_is_gone() -> None:
    async with relayed() as (relay, arrived), await joined(relay) as one, await joined(relay) as other:
        assert [await arrived.receive(), await arrived.receive()] == [b"hello", b"hello"]
        relay.stall()
        await one.send(b"first")
        await other.send(b"second")
        assert await other.receive() == b"second"
        relay.release()
        assert await one.receive() == b"first"
        assert [await arrived.receive(), await arrived.receive()] == [b"second", b"first"]
        relay.stall()  # it is the others' turn
        await other.send(b"third")
        await other.aclose()
        await one.send(b"fourth")
        assert await one.receive() == b"fourth"
        relay.release()
        assert [await arrived.receive(), await arrived.receive(), await arrived.receive()] == [b"fourth", b"third", b""]


async def test_a_server_that_is_not_there_looks_like_a_broken_connection() -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(SocketAttribute.local_port)
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            relay = Relay(port)
            await tasks.start(relay.serve)
            async with await anyio.connect_tcp("127.0.0.1", relay.port) as client:
                assert await is_broken(client)
            tasks.cancel_scope.cancel()
