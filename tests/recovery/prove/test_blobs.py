"""What `tiered prove` tries of blobs, on a tier in memory: a healthy one is green, and each lie turns its line red.

`LIES` is the table: what a tier does, and which lines must be red. No other may be. A probe without a lie is an error.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import anyio
import pytest

from changelog.base.errors import ConfigurationError, InvalidRequestError, TieredError, UnavailableError
from changelog.base.runtime import Runtime
from changelog.noop import NoopChangeLog
from recovery.prove.probes.bench import SILENT_MAX, Bench, Sizes
from recovery.prove.probes.blob_reads import COMMON, RARE
from recovery.prove.probes.blobs import BLOBS
from recovery.prove.run import PARTS
from tiered.metadata import Metadata
from tiered.object_id import ObjectId
from tiered.open import Backends
from tiered.provision.probes import Result, try_all
from tiered.services.backends import BlobHead, ByteRange, LongTermBackend, Tiers
from tiered.services.capabilities import OpenSession, Part, SessionPage
from tiered.services.scans import BlobInfo, BlobPage, Generation, ListedBlob, NotCopied, Removal
from tiered.testing.blobs import Blob, MemoryBlobs, MemoryReader, MemoryUpload
from tiered.testing.clock import Clock
from tiered.testing.rows import MemoryRows

pytestmark = pytest.mark.anyio
MIB = 1024 * 1024
SIZES = Sizes(racers=4, rounds=2, rounds_min=1, race_s=60.0, within_s=120.0, large_bytes=3 * MIB)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Healthy(MemoryBlobs):
    """The tier in memory, with two more capabilities."""

    async def heads(self, names: Sequence[str]) -> Mapping[str, BlobHead]:
        found = {name: await self.head(name) for name in names}
        return {name: head for name, head in found.items() if head is not None}

    async def generations(self, listed: Sequence[BlobInfo]) -> Mapping[str, Generation]:
        return {name: head.generation for name, head in (await self.heads([each.name for each in listed])).items()}


def bench_of(ours: LongTermBackend, other: LongTermBackend, runtime: Runtime, sizes: Sizes = SIZES) -> Bench:
    rows = MemoryRows(runtime)
    one, two = (Backends(Tiers(cast(Any, rows), each), NoopChangeLog()) for each in (ours, other))
    return Bench.of(one, two, runtime, sizes)


async def red_lines(ours: LongTermBackend, other: LongTermBackend, runtime: Runtime, sizes: Sizes = SIZES) -> dict[str, str]:
    """The names of the lines that are not green, and what they say."""
    outcomes = await try_all(BLOBS, bench_of(ours, other, runtime, sizes), sizes.within_s, silent_max=SILENT_MAX)
    return {each.probe.name: f"{each.result}: {each.said}" for each in outcomes if each.result is not Result.HELD}


# --- lies --------------------------------------------------------------------------------------------


class Damaging(Healthy):
    async def open(self, name: str, range: ByteRange | None = None) -> MemoryReader | None:
        found = self.blobs.get(name)
        return None if found is None else MemoryReader(self, name, replace(found, payload=found.payload[::-1]), range)


class Hiding(Healthy):
    async def open(self, name: str, range: ByteRange | None = None) -> MemoryReader | None:
        return None


async def turns() -> None:
    for _ in range(100):
        await anyio.lowlevel.checkpoint()


class LyingUploads(Healthy):
    """`kind`: of the uploads with a size, or, with `of_sessions`, of the others."""

    kind: type[MemoryUpload] = MemoryUpload
    of_sessions = False

    async def open_upload(self, name: str, metadata: Metadata, size: int | None) -> MemoryUpload:
        upload = await super().open_upload(name, metadata, size)
        if (size is None) is not self.of_sessions:
            return upload
        made = self.kind(self, name, metadata, size, upload.session, upload.opened_ns)
        self.uploads[upload.session or ""] = made
        return made


class Replacing(MemoryUpload):
    async def finalise(self) -> None:
        self._blobs.blobs.pop(self._name, None)
        await super().finalise()


class LookingFirst(MemoryUpload):
    is_free = False

    async def finalise(self) -> None:
        self.is_free = self._name not in self._blobs.blobs
        await turns()
        await super().finalise()

    def _bytes(self) -> bytes:
        if self.is_free:
            self._blobs.blobs.pop(self._name, None)
        return super()._bytes()


class ReplacingInSecret(MemoryUpload):
    async def finalise(self) -> None:
        there = self._name in self._blobs.blobs
        self._blobs.blobs.pop(self._name, None)
        await super().finalise()
        if there:
            raise UnavailableError("a blob exists already")


class RefusingAll(MemoryUpload):
    async def finalise(self) -> None:
        if "created" in self._name:
            raise UnavailableError("a blob exists already")
        await super().finalise()


class ShowingEarly(MemoryUpload):
    async def write(self, chunk: bytes | memoryview) -> None:
        await super().write(chunk)
        if "hidden" in self._name:
            self._blobs.plant(self._name, self._metadata, bytes(self.payload))

    async def abort(self) -> None:
        await super().abort()
        if "hidden" in self._name:
            self._blobs.blobs.pop(self._name, None)


class EndingInSecret(MemoryUpload):
    """A cancellation that comes while it ends is believed, and has no effect."""

    async def finalise(self) -> None:
        there = self.session in self._blobs.uploads
        await turns()
        if there and self.session not in self._blobs.uploads:
            self._blobs.plant(self._name, self._metadata, bytes(self.payload))
        await super().finalise()


def uploads(kind: type[MemoryUpload], *, of_sessions: bool = False) -> type[Healthy]:
    return type(kind.__name__, (LyingUploads,), {"kind": kind, "of_sessions": of_sessions})


class DeafToCancel(Healthy):
    async def cancel(self, session: str) -> None:
        if session.startswith("parts:"):
            await super().cancel(session)


class Undoing(Healthy):
    """A cancellation that comes after the end takes the blob away."""

    async def cancel(self, session: str) -> None:
        if "/ended/" in session and session not in self.uploads:
            self.blobs.pop(session.rpartition("#")[0], None)
        await super().cancel(session)


class UndoingParts(Healthy):
    async def cancel(self, session: str) -> None:
        if session.startswith("parts:") and session not in self.in_parts:
            self.blobs.pop(session.removeprefix("parts:").rpartition("#")[0], None)
        await super().cancel(session)


class Reviving(Healthy):
    """A session that another one has overtaken goes on when the blob is deleted."""

    async def delete(self, name: str) -> int:
        size = await super().delete(name)
        for each in [*self.uploads.values()]:
            if each._name == name:
                self.plant(name, Metadata(), b"again")
        return size


class KeepingOldParts(Healthy):
    async def put_part(self, name: str, session: str, number: int, payload: Sequence[Any]) -> Part:
        before = self.in_parts[session].parts.get(number) if session in self.in_parts else None
        part = await super().put_part(name, session, number, payload)
        if before is not None:
            self.in_parts[session].parts[number] = part, before[1]
        return part


class ForgettingParts(Healthy):
    async def parts(self, name: str, session: str) -> Sequence[Part]:
        return list(await super().parts(name, session))[1:]


class MixingParts(Healthy):
    async def complete_parts(self, name: str, session: str, parts: Sequence[Part]) -> None:
        await super().complete_parts(name, session, parts)
        if len(parts) == 2 and (found := self.blobs.get(name)) is not None:
            self.blobs[name] = replace(found, payload=found.payload[parts[0].size :] + found.payload[: parts[0].size])


class CompletingOnce(Healthy):
    async def complete_parts(self, name: str, session: str, parts: Sequence[Part]) -> None:
        self._parts_of(name, session)
        await super().complete_parts(name, session, parts)


class TakingLateParts(Healthy):
    async def put_part(self, name: str, session: str, number: int, payload: Sequence[Any]) -> Part:
        if name in self.blobs:
            return Part(number, 0, None, "late")
        return await super().put_part(name, session, number, payload)


class CompletingTheCancelled(Healthy):
    """`ended`: uploads that are believed to be over."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.ended: dict[str, Any] = {}

    async def cancel(self, session: str) -> None:
        if session in self.in_parts:
            self.ended[session] = self.in_parts[session]
        await super().cancel(session)

    async def complete_parts(self, name: str, session: str, parts: Sequence[Part]) -> None:
        if "parts cancelled" in session and session in self.ended:
            self.in_parts[session] = self.ended[session]
        await super().complete_parts(name, session, parts)


class CompletingAgain(Healthy):
    """A completion that is repeated makes the blob again that was deleted."""

    async def complete_parts(self, name: str, session: str, parts: Sequence[Part]) -> None:
        if session in self.in_parts:
            await super().complete_parts(name, session, parts)
            self.deleted[session] = [(0, self.blobs[name])]
        elif name not in self.blobs and session in self.deleted:
            self.blobs[name] = self.deleted[session][0][1]
        else:
            await super().complete_parts(name, session, parts)


class CompletingInSecret(Healthy):
    async def complete_parts(self, name: str, session: str, parts: Sequence[Part]) -> None:
        upload = self.in_parts.get(session)
        await turns()
        if upload is not None and session not in self.in_parts:
            self.plant(name, upload.metadata, b"".join(payload for _, payload in upload.parts.values()))
            raise UnavailableError("it was cancelled")
        await super().complete_parts(name, session, parts)


class ListingOneUpload(Healthy):
    async def open_sessions(self, before_ns: int, after: str, limit: int) -> SessionPage:
        page = await super().open_sessions(before_ns, after, limit)
        return replace(page, next_after=None)


class DatingUploads(Healthy):
    async def open_sessions(self, before_ns: int, after: str, limit: int) -> SessionPage:
        return await super().open_sessions(1 << 62, after, limit)


class ListingTheEnded(Healthy):
    ended = ""

    async def cancel(self, session: str) -> None:
        self.ended = self.ended or (session if session in self.in_parts and "é" in session else "")
        await super().cancel(session)

    async def open_sessions(self, before_ns: int, after: str, limit: int) -> SessionPage:
        page = await super().open_sessions(before_ns, after, limit)
        name = self.ended.removeprefix("parts:").rpartition("#")[0]
        return replace(page, sessions=[*page.sessions, OpenSession(name, self.ended)]) if self.ended and not after else page


class Lists(Healthy):
    """`change`: makes another page of one."""

    change: Callable[[list[ListedBlob], int], list[ListedBlob]]

    async def list(self, start: str, end: str | None, limit: int) -> BlobPage:
        page = await super().list(start, end, limit)
        return replace(page, blobs=type(self).change([cast(ListedBlob, each) for each in page.blobs], limit))


def lists(change: Callable[[list[ListedBlob], int], list[ListedBlob]]) -> type[Healthy]:
    return type("Lists", (Lists,), {"change": staticmethod(change)})


def listed(change: Callable[[ListedBlob], ListedBlob | None]) -> type[Healthy]:
    return lists(lambda page, _: [each for each in map(change, page) if each is not None])


class ByCodeUnits(Healthy):
    async def list(self, start: str, end: str | None, limit: int) -> BlobPage:
        page = await super().list(start, end, 1000)
        told = sorted(page.blobs, key=lambda each: each.name.encode("utf-16-be"))[:limit]
        return BlobPage(told, (), f"{told[-1].name}\0" if len(told) == limit else None)


class Stale(Healthy):
    """What is deleted is still shown by one of three calls, once."""

    by = ""
    gone: dict[str, Blob]

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.gone = {}

    async def delete(self, name: str) -> int:
        if "/seen/" in name:
            self.gone[name] = self.blobs[name]
        return await super().delete(name)

    def _old(self, by: str) -> dict[str, Blob]:
        return {**(self.gone if by == self.by else {}), **self.blobs}

    async def head(self, name: str) -> BlobHead | None:
        kept, self.blobs = self.blobs, self._old("head")
        try:
            return await super().head(name)
        finally:
            self.blobs = kept

    async def open(self, name: str, range: ByteRange | None = None) -> MemoryReader | None:
        found = self._old("open").get(name)
        reader = None if found is None else MemoryReader(self, name, found, range)
        if found is not None and name not in self.blobs:
            self.blobs[name] = found  # as long as it is read
        return reader

    async def list(self, start: str, end: str | None, limit: int) -> BlobPage:
        kept, self.blobs = self.blobs, self._old("list")
        try:
            return await super().list(start, end, limit)
        finally:
            self.blobs = kept


def stale(by: str) -> type[Healthy]:
    return type("Stale", (Stale,), {"by": by})


class Composing(Healthy):
    async def list(self, start: str, end: str | None, limit: int) -> BlobPage:
        page = await super().list(start, end, limit)
        return replace(page, blobs=[cast(ListedBlob, each)._replace(name=unicodedata.normalize("NFC", each.name)) for each in page.blobs])


class Refuses(Healthy):
    wrong: Callable[[str], bool]

    async def open_upload(self, name: str, metadata: Metadata, size: int | None) -> MemoryUpload:
        if type(self).wrong(name):
            raise InvalidRequestError("the service takes no such name").telling(heard=True)
        return await super().open_upload(name, metadata, size)


class NoFolders(Healthy):
    async def open_upload(self, name: str, metadata: Metadata, size: int | None) -> MemoryUpload:
        if any(each != name and name.startswith(f"{each.rpartition('/')[0]}/") and "/own/" in each for each in self.blobs):
            raise InvalidRequestError("there is an object of this name already").telling(heard=True)
        return await super().open_upload(name, metadata, size)


class Created(Healthy):
    """`change`: makes another blob of one that was just made."""

    change: Callable[[str, Blob], Blob]

    def _create(self, name: str, metadata: Metadata, payload: bytes, *, copy: bool = False) -> None:
        super()._create(name, metadata, payload, copy=copy)
        self.blobs[name] = type(self).change(name, self.blobs[name])


def created(change: Callable[[str, Blob], Blob]) -> type[Healthy]:
    return type("Created", (Created,), {"change": staticmethod(change)})


def with_metadata(change: Callable[[Metadata], Metadata]) -> type[Healthy]:
    return created(lambda name, blob: replace(blob, metadata=change(blob.metadata)) if "/metadata/" in name else blob)


class Ranges(Healthy):
    change: Callable[[ByteRange], ByteRange | None]

    async def open(self, name: str, range: ByteRange | None = None) -> MemoryReader | None:
        return await super().open(name, None if range is None else type(self).change(range))


def ranges(change: Callable[[ByteRange], ByteRange | None]) -> type[Healthy]:
    return type("Ranges", (Ranges,), {"change": staticmethod(change)})


class WrongChecksums(Healthy):
    async def head(self, name: str) -> BlobHead | None:
        found = await super().head(name)
        return None if found is None else replace(found, checksum="crc32c=AAAAAA==")


class WrongChecksumsOfReads(Healthy):
    async def open(self, name: str, range: ByteRange | None = None) -> MemoryReader | None:
        found = await super().open(name, range)
        if found is not None:
            found.checksum = "crc32c=AAAAAA=="
        return found


class OneChecksumOfParts(Healthy):
    async def put_part(self, name: str, session: str, number: int, payload: Sequence[Any]) -> Part:
        part = await super().put_part(name, session, number, payload)
        return replace(part, checksum="crc32=0") if "/checksums/" in name else part


class OneGeneration(Healthy):
    """It is that of the name."""

    def _create(self, name: str, metadata: Metadata, payload: bytes, *, copy: bool = False) -> None:
        super()._create(name, metadata, payload, copy=copy)
        self.blobs[name] = replace(self.blobs[name], generation=f"of {name}")


class OtherGenerations(Healthy):
    async def generations(self, listed: Sequence[BlobInfo]) -> Mapping[str, Generation]:
        return {name: f"{generation}0" for name, generation in (await super().generations(listed)).items()}


class MixedHeads(Healthy):
    async def heads(self, names: Sequence[str]) -> Mapping[str, BlobHead]:
        found = await super().heads(names)
        return dict(zip(found, reversed(list(found.values())), strict=True)) if len(found) > 1 else found


class DeletingAny(Healthy):
    async def delete_generation(self, name: str, generation: Generation) -> Removal:
        await self._travel()
        return Removal.ABSENT if self.blobs.pop(name, None) is None else Removal.DELETED


class DeletingTwice(Healthy):
    async def delete_generation(self, name: str, generation: Generation) -> Removal:
        told = await super().delete_generation(name, generation)
        return Removal.DELETED if told is Removal.ABSENT else told


class DeletingNothing(Healthy):
    async def delete_generation(self, name: str, generation: Generation) -> Removal:
        found = self.blobs.get(name)
        is_it = "/deleted/" in name and found is not None and found.generation == generation
        return Removal.DELETED if is_it else await super().delete_generation(name, generation)


class DeletingLate(Healthy):
    late = 0

    async def delete_generation(self, name: str, generation: Generation) -> Removal:
        found = self.blobs.get(name)
        if found is None or found.generation != generation:
            return await super().delete_generation(name, generation)
        self.late += 1
        for _ in range(self.late):
            await turns()
        self.blobs.pop(name, None)
        return Removal.DELETED


class DeletingAnyOfMany(Healthy):
    async def delete_generations(self, blobs: Sequence[tuple[str, Generation]]) -> Sequence[Removal | TieredError]:
        there = [(name, self.blobs[name].generation if name in self.blobs else generation) for name, generation in blobs]
        return await super().delete_generations(there)


class Touches(Healthy):
    async def touch(self, name: str, deadline_ns: int) -> bool:
        found = self.blobs.get(name)
        if found is None:
            return await self.touches_nothing(name, deadline_ns)
        changed = self.touched(found.metadata.time_expires_ns, deadline_ns)
        self.blobs[name] = replace(found, metadata=found.metadata.with_facts(time_expires_ns=changed))
        return True

    async def touches_nothing(self, name: str, deadline_ns: int) -> bool:
        return False

    def touched(self, before_ns: int | None, deadline_ns: int) -> int | None:
        return before_ns if before_ns is None else max(before_ns, deadline_ns)


class Shortening(Touches):
    def touched(self, before_ns: int | None, deadline_ns: int) -> int | None:
        return before_ns if before_ns is None else deadline_ns


class NotExtending(Touches):
    def touched(self, before_ns: int | None, deadline_ns: int) -> int | None:
        return before_ns


class GivingDeadlines(Touches):
    def touched(self, before_ns: int | None, deadline_ns: int) -> int | None:
        return max(before_ns or 0, deadline_ns)


class TouchingNothing(Touches):
    async def touches_nothing(self, name: str, deadline_ns: int) -> bool:
        return True


class HidingExpired(Healthy):
    async def open(self, name: str, range: ByteRange | None = None) -> MemoryReader | None:
        found = self.blobs.get(name)
        deadline_ns = None if found is None else found.metadata.time_expires_ns
        return None if deadline_ns is not None and deadline_ns < self._runtime.wall_ns() else await super().open(name, range)


class Copies(Healthy):
    """`is_any`: it copies any generation. `is_over`: over what is there. `keeps`: the metadata of the source."""

    is_any = is_over = keeps = changes_source = False

    async def open_copy(self, source: str, generation: Generation, name: str, metadata: Metadata) -> MemoryUpload:
        found = self.blobs[source]
        if self.is_over:
            self.blobs.pop(name, None)
        if self.changes_source:
            self.blobs[source] = replace(found, metadata=replace(found.metadata, custom={}))
        wanted = found.generation if self.is_any else generation
        return await super().open_copy(source, wanted, name, found.metadata if self.keeps else metadata)


def copies(**how: bool) -> type[Healthy]:
    return type("Copies", (Copies,), how)


class NoCopies(Healthy):
    async def set_aside(self, name: str, generation: Generation, copy: str) -> Generation | NotCopied:
        return NotCopied.TOO_LONG


class ForgettingCopies(Healthy):
    """A copy is a second name of the blob."""

    async def delete_generation(self, name: str, generation: Generation) -> Removal:
        if "/aside/" in name:
            self.blobs.pop(f"~quarantine/prove/{name}", None)
        return await super().delete_generation(name, generation)


class PlainCopies(Healthy):
    async def bring_back(self, copy: str, generation: Generation, name: str, now_ns: int) -> Generation | NotCopied:
        told = await super().bring_back(copy, generation, name, now_ns)
        self.blobs[name] = replace(self.blobs[name], metadata=Metadata())
        return told


class Through:
    """The other connection, to what this one lies about."""

    def __init__(self, tier: Healthy) -> None:
        self.tier = tier

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tier, name)


class CancellingNothing(Through):
    """Only who began a session ends it."""

    async def cancel(self, session: str) -> None:
        if "cancelled" not in session or session.startswith("parts:"):
            await self.tier.cancel(session)


class BehindAfterWrites(Through):
    """A copy that gets what is written a moment later."""

    seen = ""

    async def head(self, name: str) -> BlobHead | None:
        before, self.seen = self.seen, name
        return await self.tier.head(name) if before == name or "/seen/" not in name else None


LIES: Mapping[str, tuple[type[Healthy] | type[Through], set[str]]] = {
    "it damages what it stores": (Damaging, {"a blob"}),
    "it hides what it stores": (Hiding, {"a blob"}),
    "an upload replaces": (uploads(Replacing), {"create-only"}),
    "an upload looks first": (uploads(LookingFirst), {"create-only"}),
    "an upload replaces, and refuses": (uploads(ReplacingInSecret), {"create-only"}),
    "it refuses all that come at once": (uploads(RefusingAll), {"create-only"}),
    "a session replaces": (uploads(Replacing, of_sessions=True), {"create-only in sessions"}),
    "a session looks first": (uploads(LookingFirst, of_sessions=True), {"create-only in sessions"}),
    "a session replaces, and refuses": (uploads(ReplacingInSecret, of_sessions=True), {"create-only in sessions"}),
    "what is sent is seen before the end": (uploads(ShowingEarly, of_sessions=True), {"nothing before the end"}),
    "a cancellation does nothing": (DeafToCancel, {"cancelled sessions"}),
    "a cancellation by another process does nothing": (CancellingNothing, {"cancelled sessions"}),
    "a session goes on when its blob is deleted": (Reviving, {"cancelled sessions"}),
    "a session that is cancelled at its end makes its blob": (uploads(EndingInSecret, of_sessions=True), {"cancelled at the end"}),
    "a cancellation takes away what was made": (Undoing, {"cancelled at the end"}),
    "an older part stays": (KeepingOldParts, {"parts"}),
    "a part is not listed": (ForgettingParts, {"parts"}),
    "parts are put together in another order": (MixingParts, {"parts"}),
    "a completion is not confirmed again": (CompletingOnce, {"parts"}),
    "a part comes after the end": (TakingLateParts, {"parts"}),
    "an upload is completed that was cancelled": (CompletingTheCancelled, {"cancelled parts"}),
    "a completion brings back what was deleted": (CompletingAgain, {"cancelled parts"}),
    "a cancellation takes away what was completed": (UndoingParts, {"cancelled parts", "parts cancelled at the end"}),
    "parts that are cancelled at their end make their blob": (CompletingInSecret, {"parts cancelled at the end"}),
    "only a page of uploads is listed": (ListingOneUpload, {"uploads that have not ended"}),
    "all uploads are old": (DatingUploads, {"uploads that have not ended"}),
    "an upload that ended is listed": (ListingTheEnded, {"uploads that have not ended"}),
    "what was deleted is still told of": (stale("head"), {"reads after writes"}),
    "what was deleted is still read": (stale("open"), {"reads after writes"}),
    "what was deleted is still listed": (stale("list"), {"reads after writes"}),
    "another connection is behind": (BehindAfterWrites, {"reads after writes"}),
    "what was stored is not listed": (listed(lambda each: None if "/seen/" in each.name else each), {"reads after writes"}),
    "a page leaves out its last name": (lists(lambda page, limit: page[: limit - 1] if limit == 7 else page), {"listings"}),
    "a page has a name twice": (lists(lambda page, limit: page[:1] + page if limit == 7 else page), {"listings"}),
    "a listing has other sizes": (listed(lambda each: each._replace(size=each.size + 1)), {"listings"}),
    "the order is that of UTF-16": (ByCodeUnits, {"names"}),
    "names are composed": (Composing, {"names"}),
    "a plus sign is a space": (listed(lambda each: each._replace(name=each.name.replace("+", " "))), {"names"}),
    "an object has no folder of its name": (NoFolders, {"rare names"}),
    "no part of a name is long": (
        type("NoLongParts", (Refuses,), {"wrong": staticmethod(lambda name: any(len(each) > 255 for each in name.split("/")))}),
        {"rare names"},
    ),
    "what XML cannot hold is replaced": (listed(lambda each: each._replace(name=each.name.replace("\ufffe", "\ufffd"))), {"rare names"}),
    "two slashes become one": (listed(lambda each: each._replace(name=each.name.replace("//", "/"))), {"rare names"}),
    "blobs are made an hour ago": (
        created(lambda name, blob: replace(blob, created_ns=blob.created_ns - 3600 * 10**9) if "/clock/" in name else blob),
        {"times of creation"},
    ),
    "a range is the whole": (ranges(lambda _: None), {"ranges"}),
    "a range from the end is one from the beginning": (ranges(lambda each: replace(each, start=abs(each.start))), {"ranges"}),
    "a large blob is mixed up": (
        created(lambda _, blob: replace(blob, payload=blob.payload[MIB:] + blob.payload[:MIB]) if len(blob.payload) == 3 * MIB else blob),
        {"a large blob"},
    ),
    "a checksum is wrong": (WrongChecksums, {"checksums"}),
    "a checksum of what is read is wrong": (WrongChecksumsOfReads, {"checksums"}),
    "all parts have one checksum": (OneChecksumOfParts, {"checksums"}),
    "a generation is that of the name": (
        OneGeneration, {"generations", "deletions by generation", "deletions that race"},
    ),
    "a listing has other generations": (listed(lambda each: each._replace(generation=f"{each.generation}0")), {"generations"}),
    "a look at some has other generations": (OtherGenerations, {"generations"}),
    "heads are mixed up": (MixedHeads, {"many heads"}),
    "a deletion ignores the generation": (DeletingAny, {"deletions by generation", "deletions that race"}),
    "a deletion says twice that it deleted": (DeletingTwice, {"deletions by generation"}),
    "a deletion does nothing": (DeletingNothing, {"deletions by generation"}),
    "a deletion looks first": (DeletingLate, {"deletions that race"}),
    "many deletions ignore the generation": (DeletingAnyOfMany, {"many deletions"}),
    "file names are ASCII": (
        with_metadata(lambda told: replace(told, filename=told.filename and told.filename.encode("ascii", "replace").decode())),
        {"metadata"},
    ),
    "keys are in small letters": (
        with_metadata(lambda told: replace(told, custom={key.lower(): value for key, value in told.custom.items()})), {"metadata"},
    ),
    "unknown keys are lost": (with_metadata(lambda told: replace(told, unknown={})), {"metadata"}),
    "the time of creation is lost": (with_metadata(lambda told: replace(told, time_created_ns=5)), {"metadata"}),
    "a touch shortens": (Shortening, {"deadlines"}),
    "a touch does nothing": (NotExtending, {"deadlines"}),
    "a touch gives a deadline": (GivingDeadlines, {"deadlines"}),
    "a touch finds what is not there": (TouchingNothing, {"deadlines"}),
    "a listing has no deadlines": (listed(lambda each: each._replace(deadline_ns=None)), {"deadlines"}),
    "what has expired is hidden": (HidingExpired, {"deadlines"}),
    "a copy keeps the metadata": (copies(keeps=True), {"copies"}),
    "a copy changes its source": (copies(changes_source=True), {"copies"}),
    "any generation is copied": (copies(is_any=True), {"copies of a generation"}),
    "a copy replaces": (copies(is_over=True), {"copies of a generation"}),
    "nothing is set aside": (NoCopies, {"the quarantine"}),
    "a copy goes with its blob": (ForgettingCopies, {"the quarantine"}),
    "what is brought back has no metadata": (PlainCopies, {"the quarantine"}),
}  # fmt: skip
"""What a tier does, and the lines that must notice it: several where one promise rests on another."""


def test_each_probe_has_a_lie_of_its_own() -> None:
    alone = {line for _, lines in LIES.values() if len(lines) == 1 for line in lines}
    assert alone == {each.name for each in BLOBS}


@pytest.mark.parametrize("lie", LIES)
async def test_a_lie_turns_its_line_red_and_no_other(lie: str) -> None:
    kind, lines = LIES[lie]
    runtime = Clock()
    ours = Healthy(runtime) if issubclass(kind, Through) else kind(runtime)
    other = cast(LongTermBackend, kind(ours)) if issubclass(kind, Through) else ours
    found = await red_lines(ours, other, runtime)
    assert set(found) == lines, found
    assert all(each.startswith(Result.BROKEN) for each in found.values()), found
    assert not any("/names/" in each for each in ours.blobs), "a listing may tell other names than those that can be deleted"


@pytest.mark.parametrize("sessions", [True, False])
async def test_a_healthy_tier_is_green(sessions: bool) -> None:
    runtime = Clock()
    tier = Healthy(runtime, sessions=sessions)
    assert await red_lines(tier, tier, runtime) == {}


async def test_a_right_that_is_missing_says_nothing_of_the_service() -> None:
    """Whose deletions were denied was told that S3 replaces blobs, and to use another service."""
    class Denying(Healthy):
        async def delete(self, name: str) -> int:
            raise ConfigurationError("allow this identity s3:DeleteObject").coded("AccessDenied", heard=True)

    tier = Denying(Clock())
    found = (await red_lines(tier, tier, tier._runtime)).values()
    assert found and all(each.startswith("not tried: gave no answer to tell whether") and "s3:DeleteObject" in each for each in found)


async def test_what_nothing_here_computes_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiered.payload.crc32c", None)
    tier = WrongChecksums(Clock())
    assert (await red_lines(tier, tier, tier._runtime))["checksums"].startswith("not tried: the service tells a crc32c")


def test_the_store_takes_each_key_that_is_tried() -> None:
    for key in (*COMMON, *RARE):
        ObjectId.parse(f"prove/objects/1/names/{key}").validate()


async def test_what_is_sent_and_read_is_within_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The large blobs are so many whatever the number of rounds, and a race sends some bytes in each call."""
    moved = 0
    write, put_part, chunks = MemoryUpload.write, MemoryBlobs.put_part, MemoryReader.chunks

    async def written(self: MemoryUpload, chunk: bytes | memoryview) -> None:
        nonlocal moved
        moved += len(chunk)
        await write(self, chunk)

    async def part_put(self: MemoryBlobs, name: str, session: str, number: int, payload: Sequence[Any]) -> Part:
        nonlocal moved
        moved += sum(map(len, payload))
        return await put_part(self, name, session, number, payload)

    async def read(self: MemoryReader) -> AsyncIterator[bytes]:
        nonlocal moved
        async for chunk in chunks(self):
            moved += len(chunk)
            yield chunk

    for where, name, counted in ((MemoryUpload, "write", written), (MemoryBlobs, "put_part", part_put), (MemoryReader, "chunks", read)):
        monkeypatch.setattr(where, name, counted)
    found: list[tuple[int, int]] = []
    for rounds in (5, 15):
        moved, runtime = 0, Clock()
        blobs, sizes = Healthy(runtime), Sizes(rounds=rounds, race_s=600.0, within_s=600.0)
        bench = bench_of(blobs, blobs, runtime, sizes)
        assert {each.result for each in await try_all(BLOBS, bench, sizes.within_s)} == {Result.HELD}
        found.append((moved, bench.measured.calls))
    (few, few_calls), (more, more_calls) = found
    of_a_call = (more - few) / (more_calls - few_calls)
    assert 0 < of_a_call < 64, "more calls are not larger calls"
    most = few + of_a_call * Sizes().calls_max
    assert most < PARTS["promises"].mib(Sizes()) * MIB / 2, "rows, entries and requests that no call sends have the other half"
