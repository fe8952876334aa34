"""Calls per operation: what a store asks of its services, before its caller has the answer and after.

Calls are the cost of a store on services: each is a round trip, and each is billed. `CASES` has those of an operation,
and `BESIDE` those that nobody waits for. `tests/production/` counts them (by `benchmarks.counted` and
`calls_elsewhere`), and `benchmarks.cost` calculates with them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from changelog.change import SHARDS_DEFAULT
from tiered import Metadata, ObjectId, ObjectPrefix, TieredStorage, TimeToIdle

COUNTED = ObjectId.create("bench", "counted")
KIB, MIB = 1024, 1024 * 1024
IDLE = Metadata(expiration=TimeToIdle(timedelta(days=4)))
TOUCHED_AFTER_S = 2 * 86_400.0
"""Seconds. More than a quarter of IDLE, so the next read renews the deadline."""

LIST = "list, for each page of 1,000"
TELL, LOOK_FOR_FEED = "tell that the feed is off", "read whether there is a feed"

Operation = Callable[[TieredStorage], Awaitable[object]]


# --- operations ------------------------------------------------------------------------------------


def put(size: int, metadata: Metadata | None = None) -> Operation:
    return lambda storage: storage.put(COUNTED, bytes(size), metadata)


async def get(storage: TieredStorage) -> None:
    found = await storage.get(COUNTED)
    if found is not None:
        await found.read()


async def head(storage: TieredStorage) -> None:
    await storage.head(COUNTED)


async def delete(storage: TieredStorage) -> None:
    await storage.delete(COUNTED)


async def list_all(storage: TieredStorage) -> None:
    assert [each async for each in storage.list(ObjectPrefix.create("bench"))] != []


SMALL, MODERATE, LARGE = put(KIB), put(2 * MIB), put(16 * MIB)
"""2 MiB go to GCS in a single request, 16 MiB in a session."""


# --- what they call --------------------------------------------------------------------------------


@dataclass(frozen=True)
class CallsCase:
    """One line of the table.

    `first`: operations that prepare it, uncounted, `later_s` seconds before it. `before` and `after`: the calls to
    Bigtable and GCS that its answer waits for, and those that come after it. `elsewhere`: statements to PostgreSQL that
    read and that write, and requests to S3 of the classes of PUT and of GET.
    """

    what: str
    operation: Operation
    first: tuple[Operation, ...]
    before: Sequence[str]
    after: Sequence[str]
    elsewhere: tuple[int, int, int, int]
    later_s: float = 0.0


SINGLE, SESSION = ["gcs upload.multipart"], ["gcs upload.start", "gcs upload.put"]
CHANGE = ["read", "record", "swap"]
"""What each change of a large object waits for besides its upload; and the record is written beside that."""
CLEAN_UP = ["settle", "gcs object.delete", "forget"]

CASES = [
    CallsCase("put small", SMALL, (), ["put"], [], (0, 1, 0, 0)),
    CallsCase("put small over small", SMALL, (SMALL,), ["put"], [], (0, 1, 0, 0)),
    CallsCase("get small", get, (SMALL,), ["read"], [], (1, 0, 0, 0)),
    CallsCase("head small", head, (SMALL,), ["read"], [], (1, 0, 0, 0)),
    CallsCase("delete small", delete, (SMALL,), ["delete"], [], (0, 1, 0, 0)),
    CallsCase("get nothing", get, (), ["read"], [], (1, 0, 0, 0)),
    CallsCase(LIST, list_all, (SMALL,), ["read"], [], (1, 0, 0, 0)),
    CallsCase("put 2 MiB over nothing", MODERATE, (), [*CHANGE, *SINGLE], ["forget"], (1, 3, 1, 0)),
    CallsCase("put 16 MiB over nothing", LARGE, (), [*CHANGE, *SESSION], ["forget"], (1, 3, 5, 2)),
    CallsCase("put 2 MiB over large", MODERATE, (LARGE,), [*CHANGE, *SINGLE], CLEAN_UP, (1, 4, 1, 0)),
    CallsCase("put 16 MiB over large", LARGE, (LARGE,), [*CHANGE, *SESSION], CLEAN_UP, (1, 4, 5, 2)),
    CallsCase("put small over large", SMALL, (MODERATE,), ["put", *CHANGE], CLEAN_UP, (1, 5, 0, 0)),
    CallsCase("get large", get, (MODERATE,), ["read", "gcs object.get", "gcs object.read"], [], (1, 0, 0, 1)),
    CallsCase("head large", head, (MODERATE,), ["read", "gcs object.get"], [], (1, 0, 0, 1)),
    CallsCase("delete large", delete, (MODERATE,), ["delete", *CHANGE], CLEAN_UP, (1, 5, 0, 0)),
    CallsCase(
        "get small, which extends its time to idle", get, (put(KIB, IDLE),), ["read"], ["touch"], (1, 1, 0, 0), TOUCHED_AFTER_S
    ),
    CallsCase(
        "get large, which extends its time to idle", get, (put(2 * MIB, IDLE),), ["read", "gcs object.get", "gcs object.read"],
        ["gcs object.get", "gcs object.patch", "touch"], (1, 1, 2, 2), TOUCHED_AFTER_S,
    ),
]  # fmt: skip

TELLING = ["announce", TELL, LOOK_FOR_FEED, TELL]
"""What a process calls besides that finishes a change with an entry, where no change feed is configured: the first two
once in five minutes, the others at its end. With a feed, and without such a change, there is nothing.
"""

RENEWED, EMPTY_PASS, FIRST, SECOND = (
    "renewal of a large change under way, every 10 s", "pass of a daemon that finds nothing",
    "recovery of a dead put", "and again, 15 minutes later",
)
BESIDE: dict[str, list[str]] = {
    RENEWED: ["renew or claim"],
    EMPTY_PASS: ["announce", *["read"] * SHARDS_DEFAULT],
    FIRST: ["read", "announce", "renew or claim", "settle", "gcs object.delete", "renew or claim"],
    SECOND: ["read", "renew or claim", "settle", "gcs object.delete", "forget"],
}
"""Calls that nobody waits for. Those of a recovery come on top of a pass. A small put has no entry to renew.

The read of a recovery asks which old entries are kept or parked. All stale entries of a page share it.
"""
