"""Ways to read a stored object, right and wrong ones, and what a read returned in the words of the model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from emulators.callers.model import SeenObject
from emulators.callers.verdict import Violation
from tiered import ByteRange, InvalidRequestError, ObjectHead, StoredObject


async def read_as(stored: StoredObject, manner: str, seen: list[SeenObject]) -> None:
    """Uses a stored object in this manner, and adds to `seen` what it showed.

    Raises `Violation` if the object allows a misuse.
    """
    def see(content: bytes | None) -> None:
        if content is not None or stored.metadata is not None:
            seen.append(SeenObject(content, stored.metadata, stored.revision, whole=content is not None))

    async def refused(use: Callable[[], Awaitable[object]]) -> None:
        try:
            await use()
        except InvalidRequestError:
            return
        raise Violation("taken", f"a stored object was used in a way that it must refuse: {manner}")

    repr(stored)
    match manner:
        case "read whole":
            see(await stored.read())
        case "read twice":
            see(await stored.read())
            await refused(stored.read)
        case "in chunks":
            see(b"".join([chunk async for chunk in stored]))
        case "left half-way":
            async for _ in stored:
                break
            see(None)
            await stored.aclose()
        case "closed unread":
            await stored.aclose()
            see(None)
        case "never closed":
            see(None)
        case "closed twice":
            see(await stored.read())
            await stored.aclose()
            await stored.aclose()
        case "read after closing":
            await stored.aclose()
            await refused(stored.read)
        case "inside async with":
            async with stored:
                see(await stored.read())
            await refused(stored.read)
        case _:
            read: list[bytes] = []
            others: list[BaseException] = []

            async def reader() -> None:
                try:
                    read.append(await stored.read())
                except InvalidRequestError as error:
                    others.append(error)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(reader)
                tasks.start_soon(reader)
            if len(read) != 1 or len(others) != 1:
                raise Violation("taken", f"of two readers at once {len(read)} have read it")
            see(read[0])


def of_head(head: ObjectHead | None) -> SeenObject:
    """Returns what a `head` showed."""
    return SeenObject(None, None, None) if head is None else SeenObject(None, head.metadata, head.revision, whole=False)


def within(content: bytes, range: object) -> bytes | None:
    """Returns the part of a content that a range asks for, or None if the range does not fit."""
    if not isinstance(range, ByteRange):
        return content
    try:
        start, stop = range.within(len(content))
    except InvalidRequestError:
        return None
    return content[start:stop]
