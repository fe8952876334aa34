"""Calls that probes of blobs have in common. What is written goes over `bench.blobs`; what is read, over the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from changelog.base.errors import CorruptRecordError, InvalidRequestError, TieredError, UnavailableError, UnconfirmedError
from recovery.prove.probes.bench import Bench, at_once
from tiered.metadata import NS_PER_S, Metadata
from tiered.object_id import blob_name
from tiered.services.backends import BlobHead, ByteRange, LongTermBackend, PendingBlob, Upload
from tiered.services.capabilities import PartUploads
from tiered.services.scans import BlobInfo

T = TypeVar("T")
MIB = 1024 * 1024
PAYLOAD, OTHER, LATE = b"tiered tries what a service does", b"and it does so with other bytes.", b"what came too late for its name."
"""Of one size, so that only their bytes tell them apart."""
PLAIN = Metadata()
AT_ONE_NAME = 8
"""How many calls race for one name. A service may turn away more of them, so the others race for other names."""
PAIRS_MAX, SEEN_MAX = 16, 100
DAY_NS = 86_400 * NS_PER_S
REFUSALS = (UnavailableError, InvalidRequestError, CorruptRecordError)
"""Of what was refused nothing appears later."""


def new_name(bench: Bench, what: str = "key") -> str:
    return blob_name(bench.path(what), bench.token())


async def begun(tier: LongTermBackend, name: str, payload: bytes, size: int | None, metadata: Metadata = PLAIN) -> Upload:
    """An upload that can be finalised. `size` None: in a session, if the tier has any."""
    upload = await tier.open_upload(name, metadata, size)
    await upload.write(payload)
    return upload


async def put(bench: Bench, name: str, payload: bytes = PAYLOAD, metadata: Metadata = PLAIN) -> None:
    await (await begun(bench.blobs, name, payload, len(payload), metadata)).finalise()


async def makes(upload: PendingBlob) -> bool | None:
    """Whether the upload made its blob. None: nobody can tell."""
    try:
        await upload.finalise()
    except UnconfirmedError:
        return None
    except REFUSALS:
        await upload.abort()
        return False
    return True


async def bytes_of(tier: LongTermBackend, name: str, range: ByteRange | None = None) -> bytes | None:
    """None: there is no such blob."""
    reader = await tier.open(name, range)
    if reader is None:
        return None
    try:
        return b"".join([chunk async for chunk in reader.chunks()])
    finally:
        await reader.aclose()


async def listing(bench: Bench, below: str, limit: int = 1000) -> list[BlobInfo]:
    """All blobs below a path, page by page, as the pages tell them. `CorruptRecordError`: something else is listed."""
    found: list[BlobInfo] = []
    start: str | None = f"{below}/"
    while start is not None:
        page = await bench.other_blobs.list(start, f"{below}0", limit)  # `0` comes after `/`
        for odd in page.oddities:
            raise CorruptRecordError(f"it lists something that is no blob: {odd.fault}").telling(heard=True)
        found += page.blobs
        if page.next_start is not None and page.next_start <= start:
            raise CorruptRecordError("a page of its listing begins where the one before did").telling(heard=True)
        start = page.next_start
    return found


async def listed_one(bench: Bench, name: str) -> BlobInfo:
    found = [each for each in await listing(bench, folder(name)) if each.name == name]
    if len(found) != 1:
        raise CorruptRecordError(f"it lists a blob {len(found)} times").telling(heard=True)
    return found[0]


def folder(name: str) -> str:
    return name.rpartition("/")[0]


async def shows(bench: Bench, name: str) -> str | None:
    """How the tier shows a blob of this name. None: it shows none."""
    if await bench.other_blobs.head(name) is not None:
        return "tells what it is"
    if await bytes_of(bench.other_blobs, name) is not None:
        return "gives its bytes"
    return "lists it" if name in [each.name for each in await listing(bench, folder(name))] else None


async def head_of(bench: Bench, name: str) -> BlobHead:
    found = await bench.other_blobs.head(name)
    if found is None:
        raise CorruptRecordError("it lost a blob that it had stored").telling(heard=True)
    return found


async def all_of(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """The answers to calls at once, `PAIRS_MAX` at a time. Raises the first error."""
    answers: list[T] = []
    for start in range(0, len(calls), PAIRS_MAX):
        told = await at_once([partial(_caught, each) for each in calls[start : start + PAIRS_MAX]])
        for each in told:
            if isinstance(each, TieredError):
                raise each
            assert each is not None, "an error is caught"
            answers.append(each[0])
    return answers


async def _caught(call: Callable[[], Awaitable[T]]) -> tuple[T] | TieredError:
    try:
        return (await call(),)
    except TieredError as error:
        return error


async def deleted(bench: Bench, names: Sequence[str]) -> None:
    await all_of([partial(bench.blobs.delete, name) for name in names])


def parts_of(tier: LongTermBackend) -> PartUploads:
    assert isinstance(tier, PartUploads), "or the probe is not needed"
    return tier


def takes_parts(bench: Bench) -> bool:
    return isinstance(bench.blobs, PartUploads)
