"""`import_objects`: stores what a source has, one object after the other, and overwrites nothing unasked.

    absent             it is stored, only if it is still absent
    the same           it is left: bytes, and of an export also what is known of it, but for the end of a time to idle
    something else     `refuse` (a failure), `skip` (told, and left) or `overwrite` (only what was looked at, if it has
                       a revision: other software gives none)

So the same call may be made again, after a kill or a failure: what is in the store by then is the same. The bytes of an
export are compared with its SHA-256 while they are stored, and those of a bucket with its crc32c if it tells one; other
bytes are not stored. An object of an export keeps its times and its deadline, and gets another revision.

*Failure* of an object is its result and does not end the others. A source that fails ends the call.
"""

from __future__ import annotations

import os
from dataclasses import replace
from enum import Enum
from inspect import isawaitable

from changelog.base.errors import InvalidRequestError, TieredError, UnavailableError
from tiered.bulk import Bulk, PutRequest, bounded_concurrency
from tiered.directories.calls import UNAVAILABLE_MAX, DirectoryReport, OnResult
from tiered.directories.pairs import whole_prefix
from tiered.directories.transfer import FileResult, Kind
from tiered.errors import ConditionFailedError
from tiered.exports.patterns import NamePattern
from tiered.exports.payloads import checksums_of, crc_of
from tiered.exports.sources import Incoming, id_of, open_source
from tiered.limits.policies import IN_BULK
from tiered.metadata import SHA256_KEY, Metadata, TimeToIdle, is_expired
from tiered.object_id import ObjectPrefix
from tiered.protocol.conditions import ANY_REVISION, IfRevision
from tiered.storage import TieredStorage
from tiered.stored import ObjectHead
from tiered.text import check_flags, quoted

IN_MEMORY_BYTES = 1024 * 1024
"""A payload that is no longer is read before it is stored, which costs less than a stream."""


class Existing(Enum):
    """What to do where another object is in the store."""

    REFUSE = "refuse"
    SKIP = "skip"
    OVERWRITE = "overwrite"


async def import_objects(
    storage: TieredStorage, source: str | os.PathLike[str], into: ObjectPrefix | NamePattern | None = None, *,
    existing: Existing = Existing.REFUSE, incomplete: bool = False, dry_run: bool = False, concurrency: int | None = None,
    on_result: OnResult | None = None,
) -> DirectoryReport:  # fmt: skip
    """Stores the objects of an export, or with `into` the files of a directory or the objects of a bucket's prefix.

    `source`: a path, `gs://BUCKET/PREFIX` or `s3://BUCKET/PREFIX`. `into`: has a usecase, all scopes, and a key that is
    empty or ends with `/` (which is added); the file `a/b` below the source becomes the object of the key `a/b` after
    that. Or it is a `NamePattern`, which makes the id of the name, with its scopes. `existing`: what to do where
    another object is. `incomplete`: takes an export that misses objects, or parts of its manifest, each of which is
    `FAILED` then. `dry_run`: stores nothing, and tells what would be, and what would be refused. `concurrency`: how
    many objects at once, as for `put_many`.
    `on_result` is called in the event loop with a `FileResult` for everything that the source has, and may be an async
    function; what it raises ends the call. Nothing is ever deleted, so `deleted` of the report stays 0.

    What has expired is `SKIPPED`, and so are links and special files, and what stands for a directory. A name that no
    object may have, and bytes that are not those of the manifest, are `FAILED`: look at `failed` of the report.

    Raises `ConfigurationError` (there is no such source, it is not complete, it belongs to a store, or newer software
    wrote it), `CorruptRecordError` (the manifest is damaged), `InvalidRequestError` and `UnavailableError`.
    """
    if not isinstance(storage, TieredStorage):
        raise InvalidRequestError(f"pass an open storage, not {quoted(storage)}")
    if not isinstance(existing, Existing):
        raise InvalidRequestError(f"existing is a member of Existing, not {quoted(existing)}")
    check_flags(incomplete=incomplete, dry_run=dry_run)
    if on_result is not None and not callable(on_result):
        raise InvalidRequestError(f"on_result is a function, or None, not {quoted(on_result)}")
    if into is not None and not isinstance(into, NamePattern):
        into = whole_prefix(into)
        id_of(into, "k")  # a usecase that nobody may use is told at once, and not of each object
    concurrency = bounded_concurrency(concurrency, storage._settings.store)
    report, unavailable = DirectoryReport(), 0
    work = _Import(storage, existing, dry_run)
    in_bulk = IN_BULK.set(True)
    try:
        async with (
            open_source(source, into, storage._settings, storage._runtime, incomplete=incomplete) as items,
            Bulk(items, Incoming, work.take, concurrency) as results,
        ):
            async for result in results:
                done = result.value
                report.add(done)
                if on_result is not None and isawaitable(answer := on_result(done)):
                    await answer
                unavailable = unavailable + 1 if isinstance(done.error, UnavailableError) else 0
                if unavailable == UNAVAILABLE_MAX:
                    raise UnavailableError(f"given up after {unavailable} objects in a row, the last one: {done.why}; call again")
    finally:
        IN_BULK.reset(in_bulk)
    return report


class _LostRaceError(Exception):
    """Another writer was there between the look and the put. `refusal`: of the put."""

    def __init__(self, refusal: ConditionFailedError) -> None:
        self.refusal = refusal


class _Import:
    """What is done with each `Incoming`."""

    def __init__(self, storage: TieredStorage, existing: Existing, dry_run: bool) -> None:
        self._storage = storage
        self._existing = existing
        self._dry_run = dry_run

    async def take(self, item: Incoming) -> FileResult:
        return replace(await self._taken(item), object_id=item.object_id)

    async def _taken(self, item: Incoming) -> FileResult:
        try:
            if item.ask is not None:
                item = await item.ask()
            if item.fault is not None:
                raise item.fault
            if item.skipped is not None:
                return FileResult(Kind.SKIPPED, item.name, why=item.skipped)
            if is_expired(item.metadata.time_expires_ns, self._storage._runtime.wall_ns()):
                return FileResult(Kind.SKIPPED, item.name, why="it has expired")
            return await self._store(item)
        except TieredError as error:
            return FileResult(Kind.FAILED, item.name, why=str(error), error=error)

    async def _store(self, item: Incoming) -> FileResult:
        try:
            return await self._stored(item)
        except _LostRaceError:  # what another writer, or another import, has put there is judged as if it had been there
            try:
                return await self._stored(item)
            except _LostRaceError as error:
                raise error.refusal from None

    async def _stored(self, item: Incoming) -> FileResult:
        assert item.object_id is not None, "it has no fault"
        head = await self._storage.head(item.object_id, checksum=True)
        if head is None:
            return await self._put(item, if_absent=True)
        if await self._is_same(item, head):
            return FileResult(Kind.UNCHANGED, item.name, item.size)
        if self._existing is Existing.SKIP:
            return FileResult(Kind.SKIPPED, item.name, why="another object is there")
        if self._existing is Existing.REFUSE:
            raise ConditionFailedError(item.object_id, head.revision, "another object is there, and was not overwritten")
        return await self._put(item, if_revision=ANY_REVISION if head.revision is None else head.revision)

    async def _put(self, item: Incoming, *, if_absent: bool = False, if_revision: IfRevision = ANY_REVISION) -> FileResult:
        assert item.object_id is not None and item.open is not None, "it has no fault"
        item.object_id.validate()
        if self._dry_run:
            self._storage._check_new(item.object_id, item.metadata, item.size, keeps=item.is_exact)
            return FileResult(Kind.COPIED, item.name, item.size)
        source = item.open()
        payload = b"".join([chunk async for chunk in source]) if item.size <= IN_MEMORY_BYTES else source
        checksums = None
        if item.sha256 is None and item.crc32c is not None:
            checksums = {"crc32c": item.crc32c}
        elif item.sha256 is not None and SHA256_KEY in item.metadata.custom:  # `payload_of` compares it anyway
            checksums = {"sha256": item.sha256}
        request = PutRequest(
            item.object_id, payload, item.metadata, if_absent, if_revision, checksums=checksums, keep_deadline=item.is_exact
        )
        async with self._storage.put_many([request], concurrency=1) as results:  # waits for its turn, as bulk work does
            async for result in results:
                if isinstance(result.error, ConditionFailedError):
                    raise _LostRaceError(result.error)
                if result.value.size != item.size:
                    raise InvalidRequestError(f"{item.object_id} has {result.value.size} bytes now, and {item.size} were announced")
        return FileResult(Kind.COPIED, item.name, item.size)

    async def _is_same(self, item: Incoming, head: ObjectHead) -> bool:
        if head.size != item.size or (item.is_exact and _facts(item.metadata) != _facts(head.metadata)):
            return False
        crc = crc_of(head.checksum)
        if crc is not None and item.crc32c is not None:
            return crc == item.crc32c
        stored = await self._storage.get(head.object_id, decompress=False)
        if stored is None:
            return False
        async with stored:
            found = await checksums_of(aiter(stored))
        assert item.open is not None, "it has no fault"
        return found.sha256 == (item.sha256 or (await checksums_of(item.open())).sha256)


def _facts(metadata: Metadata) -> Metadata:
    """What an import keeps. A time to idle ends later with each read."""
    kept = metadata.with_facts(size=None)
    return kept.with_facts(time_expires_ns=None) if isinstance(metadata.expiration, TimeToIdle) else kept
