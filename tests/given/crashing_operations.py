"""Operations in the middle of which a process dies or a call goes wrong. Each does one thing to the object of its case.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Protocol

import anyio

from emulators.world.client import BrokenPayload, Client, content
from emulators.world.history import WriteAnswer
from tiered.metadata import TimeToIdle
from tiered.object_id import ObjectId

SMALL, LARGE = 50, 500
IDLE = TimeToIdle(timedelta(hours=1))
SOME_TIME_S = 2400
"""After it, a read extends the deadline of what is IDLE."""


class Crashed(Protocol):
    """`met`: is set when the fault of the case has been met."""

    object_id: ObjectId
    renamed: ObjectId
    met: anyio.Event


class Operation(Protocol):
    """By one caller, on the object of its case."""

    __name__: str

    async def __call__(self, client: Client, case: Crashed, /) -> None: ...


async def put_small(client: Client, case: Crashed) -> None:
    await client.put(case.object_id, "new", SMALL)


async def put_large(client: Client, case: Crashed) -> None:
    """Of a known size: in a single request."""
    await client.put(case.object_id, "new", LARGE)


async def put_stream(client: Client, case: Crashed) -> None:
    """Of a size that nobody knows beforehand: by a session."""

    async def payload() -> AsyncIterator[bytes]:
        yield content("new", LARGE)

    await client.put(case.object_id, "new", LARGE, payload=payload())


async def put_slowly(client: Client, case: Crashed) -> None:
    """Slower than the heartbeat: what goes wrong does so before the end of the payload."""

    async def payload() -> AsyncIterator[bytes]:
        yield content("new", LARGE)[:200]
        await case.met.wait()
        yield content("new", LARGE)[200:]

    await client.put(case.object_id, "new", LARGE, payload=payload())


async def put_named_at_end(client: Client, case: Crashed) -> None:
    """In GCS and S3 a request more, beside the blob."""
    await client.put(case.object_id, "new", LARGE, named_at_end=True)


async def put_broken(client: Client, case: Crashed) -> None:
    async def payload() -> AsyncIterator[bytes]:
        yield content("new", LARGE // 2)
        raise BrokenPayload

    assert await client.put(case.object_id, "new", LARGE, payload=payload()) is WriteAnswer.NO


async def delete(client: Client, case: Crashed) -> None:
    await client.delete(case.object_id)


async def rename(client: Client, case: Crashed) -> None:
    await client.rename("renamed", case.object_id, case.renamed)


async def update_metadata(client: Client, case: Crashed) -> None:
    await client.update_metadata("updated", case.object_id)


async def set_expiry(client: Client, case: Crashed) -> None:
    await client.set_expiry("expiring", case.object_id, lives_s=10 * 86_400.0)


async def get_idle(client: Client, case: Crashed) -> None:
    """A read that extends the deadline of an object with a time to idle."""
    await client.get(case.object_id)
