"""Probes of what is told of blobs: at once, in listings, by any name, in ranges; and their generations."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice

from anyio import CancelScope, move_on_after

from changelog.base.errors import TieredError, UnavailableError, UnconfirmedError
from recovery.prove.probes.bench import Bench, at_once
from recovery.prove.probes.blob_calls import (
    AT_ONE_NAME,
    MIB,
    OTHER,
    PAYLOAD,
    PLAIN,
    REFUSALS,
    SEEN_MAX,
    all_of,
    begun,
    bytes_of,
    deleted,
    folder,
    head_of,
    listed_one,
    listing,
    makes,
    new_name,
    put,
    shows,
)
from tiered.errors import RangeNotSatisfiableError
from tiered.metadata import NS_PER_S, Metadata
from tiered.object_id import blob_name
from tiered.provision.probes import NotTriedError, Tried
from tiered.services.backends import ByteRange, LongTermBackend, RangedReader
from tiered.services.capabilities import BatchDeletion, BatchHeads, GenerationLookup, PartUploads
from tiered.services.scans import Removal

_LISTED, _CLOCK_S, _CLEANING_S = 60, 2, 60.0
"""Blobs of a listing; how far a time of creation may be from the service's clock, in seconds."""


# --- what is read ----------------------------------------------------------------------------------


async def seen_at_once(bench: Bench) -> Tried:
    for number in islice(bench.races(), SEEN_MAX):
        name = new_name(bench, "seen")
        await (await begun(bench.blobs, name, PAYLOAD, None if number % 2 else len(PAYLOAD))).finalise()
        if await bench.other_blobs.head(name) is None or await bytes_of(bench.other_blobs, name) != PAYLOAD:
            return "does not show a blob that was just stored to another connection"
        if [each.name for each in await listing(bench, folder(name))] != [name]:
            return "does not list a blob that was just stored"
        await bench.blobs.delete(name)
        if how := await shows(bench, name):
            return f"{how}, though it was just deleted"
    return None


async def listings(bench: Bench) -> Tried:
    below = bench.path("listed")
    names = [blob_name(f"{below}/{number * 7 % _LISTED:03}", bench.token()) for number in range(_LISTED)]
    await all_of([partial(put, bench, name, name.encode()) for name in names])
    in_order = sorted(names)
    for limit in (1000, 7):
        found = await listing(bench, below, limit)
        if [each.name for each in found] != in_order:
            return f"lists {len(found)} of {len(names)} blobs, or not each once and in the order of bytes, in pages of {limit}"
        if [each.size for each in found] != [len(name) for name in in_order]:
            return "lists blobs with other sizes than they have"
    page = await bench.other_blobs.list(in_order[10], in_order[20], 1000)
    if [each.name for each in page.blobs] != in_order[10:20]:
        return "lists others than the names from the one to the other that was asked for"
    await deleted(bench, names)
    return "still lists blobs that were deleted" if await listing(bench, below) else None


COMMON = (
    "a b", "a+b", "%2F%25", "&<>\"'", "?#;=\\", "\u00e9", "e\u0301", "\uff5e", "\U0001f600", "case", "CASE", "a!", "a", "a0", "~",
    "(*)|[x]",
)  # fmt: skip
RARE = ("//", "slashes//x", "\ufffe", "own", "own/x", f"{'s' * 300}/x", f"{'folder/' * 90}x", " ", "CON.txt ")
"""Keys that the store takes. Some services keep files, or tell names in XML."""


async def names_as_they_are(bench: Bench, keys: Sequence[str]) -> Tried:
    """What was stored is deleted by its own name, because the listing by which a trial is removed may tell another."""
    below = bench.path("names")
    names = {blob_name(f"{below}/{key}", bench.token()): key for key in keys}
    refused: TieredError | None = None
    try:
        if wrong := await _wrong_of_names(bench, below, names):
            return wrong
    finally:
        with CancelScope(shield=True), move_on_after(_CLEANING_S):
            for name in names:
                try:
                    await bench.blobs.delete(name)
                except TieredError as error:
                    refused = error
    if refused is not None:
        raise refused
    return "still lists blobs that were deleted" if await listing(bench, below) else None


async def _wrong_of_names(bench: Bench, below: str, names: Mapping[str, str]) -> Tried:
    for name, key in names.items():
        try:
            await put(bench, name, key.encode())
        except REFUSALS as error:
            if error.heard is False:
                raise
            return f"does not store a blob whose key is {_shown(key)} ({str(error).replace(name, '…')})"
    for name, key in names.items():
        if await bytes_of(bench.other_blobs, name) != key.encode():
            return f"gives other bytes of a blob whose key is {_shown(key)} than were stored"
    for limit in (1000, 1):
        found = [each.name for each in await listing(bench, below, limit)]
        if missing := [key for name, key in names.items() if name not in found]:
            return f"does not list a blob whose key is {_shown(missing[0])}, or by another name"
        if found != sorted(names, key=str.encode):
            return "lists names in another order than that of their bytes, or more than once"
    return None


def _shown(key: str) -> str:
    return ascii(key if len(key) <= 20 else f"{key[:9]}…{key[-9:]}")


async def times_of_creation(bench: Bench) -> Tried:
    name, slack_ns = new_name(bench, "clock"), _CLOCK_S * NS_PER_S
    before_ns = await bench.blobs.now_ns()
    await put(bench, name)
    after_ns = await bench.other_blobs.now_ns()
    listed = await listed_one(bench, name)
    for created_ns in (listed.created_ns, (await head_of(bench, name)).created_ns):
        if not before_ns - slack_ns <= created_ns <= after_ns + slack_ns:
            off_s = (created_ns - before_ns) / NS_PER_S
            return f"says that a blob was made {off_s:.0f} s after it was, by its own clock"
    return None


async def ranges(bench: Bench) -> Tried:
    name, empty = new_name(bench, "ranges"), new_name(bench, "ranges")
    payload = b"".join(number.to_bytes(4, "big") for number in range(MIB // 4))
    await put(bench, name, payload)
    await put(bench, empty, b"")
    for start, stop in ((0, None), (5, None), (-7, None), (0, 1), (MIB - 1, None), (200_000, 900_001), (3, 3), (MIB - 5, MIB + 5)):
        if await bytes_of(bench.other_blobs, name, ByteRange(start, stop)) != payload[start:stop]:
            return f"gives other bytes for the range {start}:{stop} than were stored"
    if await bytes_of(bench.other_blobs, empty) != b"" or (await head_of(bench, empty)).size != 0:
        return "gives bytes of a blob of none"
    try:
        await bytes_of(bench.other_blobs, name, ByteRange(MIB + 1))
    except RangeNotSatisfiableError as error:
        return None if error.size == MIB else "tells another size of a blob than it has"
    return "gives bytes of a range that is beyond the end"


def _pattern(size: int) -> AsyncIterator[bytes]:
    """Bytes of which no MiB is like another."""

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, size, MIB):
            yield (start.to_bytes(8, "big") * (MIB // 8))[: size - start]

    return pieces()


async def large(bench: Bench) -> Tried:
    """As large a blob as goes up in lanes, read in two ranges beside one another where the tier has such readers."""
    name, size = new_name(bench, "large"), bench.sizes.large_bytes
    upload, sent = await bench.blobs.open_upload(name, Metadata(size=size), size), hashlib.sha256()
    async for piece in _pattern(size):
        sent.update(piece)
        await upload.write(piece)
    await upload.finalise()
    reader = await bench.other_blobs.open(name)
    if reader is None:
        return "does not find a large blob that it has just stored"
    read, half = hashlib.sha256(), size // 2
    try:
        if reader.size != size:
            return "tells another size of a large blob than it has"
        if isinstance(reader, RangedReader):
            ranges = reader.ranges()
            for start, stop in ((0, half), (half, size)):
                piece_reader = await ranges.open(start, stop)
                if piece_reader is None:
                    return "does not find a range of a large blob"
                try:
                    async for piece in piece_reader.chunks():
                        read.update(piece)
                finally:
                    await piece_reader.aclose()
        else:
            async for piece in reader.chunks():
                read.update(piece)
    finally:
        await reader.aclose()
    return None if read.digest() == sent.digest() else "gives other bytes of a large blob than were stored"


async def checksums(bench: Bench) -> Tried:
    """Of a blob put whole and of one in a session; and those of parts."""
    for size in (len(PAYLOAD), None):
        name = new_name(bench, "checksums")
        await (await begun(bench.blobs, name, PAYLOAD, size)).finalise()
        reader = await bench.other_blobs.open(name)
        if reader is None:
            return "loses a blob"
        await reader.aclose()
        for told in ((await head_of(bench, name)).checksum, reader.checksum):
            if is_wrong(told):
                return f"tells a wrong checksum of a blob ({told})"
    if isinstance(bench.blobs, PartUploads):
        name = new_name(bench, "checksums")
        session = await bench.blobs.begin_parts(name, PLAIN)
        bodies = enumerate((PAYLOAD, PAYLOAD, OTHER), 1)
        one, same, other = [(await bench.blobs.put_part(name, session, number, [body])).checksum for number, body in bodies]
        await bench.blobs.cancel(session)
        if one != same or one == other or is_wrong(one):
            return "tells a wrong checksum of a part"
    return None


def is_wrong(told: str | None) -> bool:
    """Whether what is told of `PAYLOAD` is a crc32c, and not its own. `NotTriedError`: nothing here computes one."""
    if told is None or not told.startswith("crc32c="):
        return False
    try:
        from tiered.payload.crc32c import encode_crc, extend_crc
    except ModuleNotFoundError as missing:
        raise NotTriedError(f"the service tells a crc32c, and {missing.name} is missing, which computes it") from None
    return told != f"crc32c={encode_crc(extend_crc(0, PAYLOAD))}"


# --- generations -----------------------------------------------------------------------------------


async def generations(bench: Bench) -> Tried:
    name, seen = new_name(bench, "generations"), list[str]()
    for payload in (PAYLOAD, OTHER):
        await put(bench, name, payload)
        listed = await listed_one(bench, name)
        head = await head_of(bench, name)
        if not head.generation or listed.generation != head.generation:
            return "lists another generation of a blob than it tells of that blob alone"
        if isinstance(bench.other_blobs, GenerationLookup) and await bench.other_blobs.generations([listed]) != {name: head.generation}:
            return "tells another generation of a blob when it is asked for some"
        seen.append(head.generation)
        await bench.blobs.delete(name)
    return "gives two blobs of one name the same generation" if len(set(seen)) < len(seen) else None


async def many_heads(bench: Bench) -> Tried:
    assert isinstance(bench.other_blobs, BatchHeads), "or the probe is not needed"
    below = bench.path("heads")
    names = sorted(blob_name(f"{below}/{number}", bench.token()) for number in range(5))
    for number, name in enumerate(names[:-1]):
        await put(bench, name, bytes(number), Metadata(custom={"number": str(number)}))
    told = await bench.other_blobs.heads(names)
    wanted = {name: await head_of(bench, name) for name in names[:-1]}
    return None if all(wanted.get(name) == head for name, head in told.items()) else "tells of some blobs at once what they are not"


async def deletes_one_generation(bench: Bench) -> Tried:
    name, beside = new_name(bench, "deleted"), new_name(bench, "deleted")
    await put(bench, name, PAYLOAD)
    await put(bench, beside, OTHER)
    old, other = (await head_of(bench, name)).generation, (await head_of(bench, beside)).generation
    if await bench.blobs.delete_generation(name, other) is not Removal.REPLACED or await shows(bench, name) is None:
        return "deletes another generation of a blob than the one that was named"
    if await bench.blobs.delete_generation(name, old) is not Removal.DELETED or await shows(bench, name):
        return "does not delete the generation that was named"
    if await bench.blobs.delete_generation(name, old) is not Removal.ABSENT:
        return "deletes a generation a second time"
    await put(bench, name, OTHER)
    if await bench.blobs.delete_generation(name, old) is not Removal.REPLACED or await bytes_of(bench.other_blobs, name) != OTHER:
        return "deletes a blob by the generation of an earlier one of its name"
    return None


async def deletes_many(bench: Bench) -> Tried:
    assert isinstance(bench.blobs, BatchDeletion), "or the probe is not needed"
    below = bench.path("many")
    names = [blob_name(f"{below}/{number}", bench.token()) for number in range(3)]
    for name in names[:2]:
        await put(bench, name, name.encode())
    first, second = [(await head_of(bench, name)).generation for name in names[:2]]
    told = await bench.blobs.delete_generations([(names[0], first), (names[1], first), (names[2], second)])
    if list(told) != [Removal.DELETED, Removal.REPLACED, Removal.ABSENT]:
        return "tells of deletions in one request what did not become of them"
    left = [each.name for each in await listing(bench, below)]
    return None if left == [names[1]] else "deletes other generations than those that were named in one request"


async def deletions_race(bench: Bench) -> Tried:
    """Many deletions of one generation, and somebody who makes the blob again as soon as the name is free."""
    for number in islice(bench.races(), SEEN_MAX):
        name, again = new_name(bench, "race"), f"again {number}".encode()
        await put(bench, name)
        generation = (await head_of(bench, name)).generation

        async def again_made(name: str = name, again: bytes = again) -> bool:
            for _ in range(bench.sizes.racers * 25):
                if await makes(await begun(bench.blobs, name, again, len(again))):
                    return True
            return False

        async def deletes(tier: LongTermBackend, name: str = name, generation: str = generation) -> bool:
            for _ in range(AT_ONE_NAME // 2):  # so that some are under way when it is made again
                with suppress(UnavailableError, UnconfirmedError):
                    await tier.delete_generation(name, generation)
            return False

        tiers = (bench.blobs, bench.other_blobs) * (AT_ONE_NAME // 2)
        calls: list[Callable[[], Awaitable[bool]]] = [*(partial(deletes, tier) for tier in tiers), again_made]
        *_, made = await at_once(calls)
        if made and await bytes_of(bench.other_blobs, name) != again:
            return "deleted a blob that was made while an earlier one of its name was being deleted"
        await bench.blobs.delete(name)
    return None
