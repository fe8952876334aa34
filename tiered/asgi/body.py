"""Sends the bytes of an open object, and watches the client meanwhile.

    client goes away         the read ends at once, and the object is closed
    client takes no bytes    for `idle_s`: `ClientGoneError`, so that nobody keeps a connection to the service for ever
    the store fails          its error leaves the application: the server breaks the connection off, and nobody takes
                             half of the body for the whole

The length was promised before the first byte, and no empty last message follows an error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import aclosing
from typing import Any

import anyio

from tiered.stored import StoredObject

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class ClientGoneError(Exception):
    """The client has gone, or takes no bytes. Nobody is told: there is nobody."""


async def send_within(send: Send, message: Message, idle_s: float) -> None:
    """Sends one message. `ClientGoneError`: the server did not take it in time, or has no client any more."""
    try:
        with anyio.fail_after(idle_s):
            await send(message)
    except OSError as error:  # a TimeoutError is one; and since ASGI 2.4 a server says so of a client that has gone
        raise ClientGoneError from error


async def send_body(stored: StoredObject, receive: Receive, send: Send, idle_s: float) -> None:
    """Sends all bytes, and closes the object. Raises what the store raises, and `ClientGoneError`."""
    failure: Exception | None = None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        tasks.cancel_scope.cancel()

    async with aclosing(stored), anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        try:
            async for chunk in stored:
                await send_within(send, {"type": "http.response.body", "body": chunk, "more_body": True}, idle_s)
            await send_within(send, {"type": "http.response.body", "body": b""}, idle_s)
        except Exception as error:  # noqa: BLE001 - the task group would wrap it; raised below
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if gone:
        raise ClientGoneError
