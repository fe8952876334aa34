"""What can be imported: an export, the files of a directory, or the objects of a bucket, one by one.

A source yields an `Incoming` for everything that is there, also for what cannot be an object: that has a `fault`, so
nothing is left out without a word. Memory holds a page of a listing, or the rows of one part of a manifest.

An export has its ids in its manifest. Elsewhere, a usecase and scopes are given, and the rest of a name is the key; or
a `NamePattern` makes the id of the name.
*Failure*: `ConfigurationError` (there is no such source; it is a store's own bucket or directory) and
`UnavailableError` end the import; it can be called again.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from email.message import Message
from functools import partial
from itertools import islice
from pathlib import Path
from urllib.parse import quote

import anyio

from changelog.base.errors import ConfigurationError, CorruptRecordError, InvalidRequestError, TieredError, UnavailableError
from changelog.base.runtime import Runtime
from changelog.base.threads import in_thread
from tiered.buckets.owned import BucketBlobs
from tiered.directories.tree import FileState, LocalEntry, LocalFile, LocalTree, changed
from tiered.exports.manifest import BEGUN, MANIFEST, ExportRow, is_of_export, read_file
from tiered.exports.patterns import NamePattern
from tiered.exports.payloads import crc_of
from tiered.exports.places import ExportPlace, bucket_of, named, open_bucket, open_place, refuse_owned
from tiered.exports.verifying import ended_export, payload_of, rows_of
from tiered.metadata import Metadata
from tiered.object_id import ObjectId, ObjectPrefix
from tiered.payload.content_type import content_type_of
from tiered.payload.zstd import COMPRESSION
from tiered.services.backends import BlobHead, LongTermBackend
from tiered.settings import Settings
from tiered.text import quoted

PAGE = 1000
_STORES_OWN = ("x-sn-", "x-snme-")
"""How entries begin that blobs of a store have. The adapter reads them."""

Into = ObjectPrefix | NamePattern
"""Where objects go that are no export: below a prefix, or where their names say."""

Opened = Callable[[], AsyncGenerator[bytes, None]]


@dataclass(frozen=True, slots=True)
class Incoming:
    """Something in a source. `name`: what messages call it. `open`: reads its bytes, whenever it is called.

    `sha256`, `crc32c`: those that the source tells. `is_exact`: the metadata are all that an object had, with its
    times, and are compared with what is there. `fault`: why it cannot be imported. `skipped`: why it is left out.
    `ask`: asks the source for what its listing does not tell.
    """

    name: str
    object_id: ObjectId | None = None
    size: int = 0
    metadata: Metadata = field(default_factory=Metadata)
    open: Opened | None = field(default=None, repr=False)
    sha256: str | None = None
    crc32c: str | None = None
    is_exact: bool = False
    fault: TieredError | None = None
    skipped: str | None = None
    ask: Callable[[], Awaitable[Incoming]] | None = field(default=None, repr=False)


@asynccontextmanager
async def open_source(
    source: str | os.PathLike[str], into: Into | None, settings: Settings, runtime: Runtime, *, incomplete: bool
) -> AsyncIterator[AsyncIterator[Incoming]]:
    """Opens a source. `into`: where objects go that are no export; None: it is an export, maybe an `incomplete` one."""
    if into is None:
        async with open_place(source, runtime, settings, writes=False) as place:
            yield _of_export(place, incomplete)
        return
    name = named(source)
    if (bucket := bucket_of(name)) is not None:
        async with open_bucket(*bucket[:2], settings, runtime) as blobs:
            await _check_is_no_export(name, settings, runtime)
            await refuse_owned(blobs, bucket, settings, "export its objects ('tiered export objects'), and import those")
            yield _of_bucket(blobs, bucket[2], into)
        return
    try:
        tree = LocalTree(Path(name), make=False, own=settings.directory)
    except FileNotFoundError:
        raise ConfigurationError(f"there is no directory {name!r}") from None
    try:
        await _check_is_no_export(name, settings, runtime)
        yield _of_directory(tree, into)
    finally:
        tree.close()


async def _check_is_no_export(name: str, settings: Settings, runtime: Runtime) -> None:
    if (bucket := bucket_of(name)) is not None and not bucket[2]:
        return  # a whole bucket is none
    async with open_place(name, runtime, settings, writes=False) as place:
        for file in (BEGUN, MANIFEST):
            with suppress(CorruptRecordError):  # what no export has under this name
                if is_of_export(await read_file(place, file)):
                    told = f"{name} is an export, which tells the ids itself ({file})"
                    raise InvalidRequestError(f"{told}: leave out where the objects shall go")


# --- an export ---------------------------------------------------------------------------------------


async def _of_export(place: ExportPlace, incomplete: bool) -> AsyncIterator[Incoming]:
    ended = await ended_export(place)
    if not (ended.complete or incomplete):
        raise ConfigurationError(
            f"the export in {place.name} is not complete: {ended.counts.failed} objects failed, which the column why tells;"
            " give its command again, which tries them again, or say that you take it as it is (--incomplete)"
        )
    damaged: dict[str, CorruptRecordError] = {}
    async with aclosing(rows_of(place, ended, damaged if incomplete else None)) as rows:
        async for row in rows:
            yield _of_row(place, row)
    for file, error in damaged.items():
        yield Incoming(file, fault=error)


def _of_row(place: ExportPlace, row: ExportRow) -> Incoming:
    assert row.sums is not None, "it was exported"
    metadata = row.decoded().with_facts(size=row.sums.size)
    return Incoming(
        row.path, ObjectId.parse(row.path), row.sums.size, metadata, partial(payload_of, place, row), row.sums.sha256,
        row.sums.crc32c, is_exact=True,
    )  # fmt: skip


# --- a directory -------------------------------------------------------------------------------------


async def _of_directory(tree: LocalTree, into: Into) -> AsyncIterator[Incoming]:
    threads = anyio.CapacityLimiter(1)
    walk = tree.walk()
    while some := await in_thread(partial(_next_of, walk), threads):
        for each in some:
            yield await in_thread(partial(_of_file, tree, each, into), threads)


def _next_of(walk: Iterator[LocalEntry]) -> list[LocalEntry]:
    return list(islice(walk, PAGE))


def _of_file(tree: LocalTree, entry: LocalEntry, into: Into) -> Incoming:
    path = entry.path
    if entry.fault is not None:
        return Incoming(path, fault=InvalidRequestError(f"{path!r}: {entry.fault}"))
    if entry.skipped is not None:
        return Incoming(path, skipped=entry.skipped)
    try:
        about = (tree.directory / path).stat(follow_symlinks=False)
        metadata = Metadata(content_type=content_type_of(path), size=about.st_size, time_created_ns=max(0, about.st_mtime_ns))
        return Incoming(path, id_of(into, path), about.st_size, metadata, partial(_read, tree, path, FileState.of(about)))
    except OSError as error:
        return Incoming(path, fault=InvalidRequestError(f"{path!r}: {error.strerror}"))
    except TieredError as error:
        return Incoming(path, fault=error)


async def _read(tree: LocalTree, path: str, state: FileState) -> AsyncGenerator[bytes, None]:
    """The bytes of a file. `UnavailableError`: they are not those of the file that was in this state, or may not be."""
    threads = anyio.CapacityLimiter(1)
    try:
        file: LocalFile = await in_thread(partial(tree.open, path), threads, undo=LocalFile.close)
    except FileNotFoundError:
        raise InvalidRequestError(f"{path!r} was deleted meanwhile") from None
    try:
        if file.state != state:
            raise changed(path)
        while chunk := await in_thread(file.read, threads):
            yield chunk
    finally:
        file.close()


def id_of(into: Into, rest: str) -> ObjectId:
    """The object of a name. `InvalidRequestError`: there can be none."""
    if isinstance(into, NamePattern):
        return into.id_of(rest)
    assert into.usecase is not None, "checked by the caller"
    return ObjectId.create(into.usecase, f"{into.key or ''}{rest}", into.scopes)


# --- a bucket ----------------------------------------------------------------------------------------


async def _of_bucket(blobs: BucketBlobs, prefix: str, into: Into) -> AsyncIterator[Incoming]:
    start: str | None = prefix
    end = f"{prefix[:-1]}0" if prefix else None  # `0` comes after `/`
    while start is not None:
        page = await blobs.list(start, end, PAGE)
        for odd in page.oddities:
            yield Incoming(odd.name, fault=CorruptRecordError(f"{odd.name!r}: {odd.fault}"))
        for blob in page.blobs:
            yield _of_blob(blobs, blob.name, blob.name.removeprefix(prefix), blob.size, into)
        start = page.next_start


def _of_blob(blobs: BucketBlobs, name: str, rest: str, size: int, into: Into) -> Incoming:
    if size == 0 and (rest.endswith("/") or not rest):
        return Incoming(name, skipped="it stands for a directory")
    try:
        object_id = id_of(into, rest)
    except InvalidRequestError as error:
        return Incoming(name, fault=error)
    return Incoming(name, object_id, size, ask=partial(_asked, blobs, name, object_id))


async def _asked(blobs: BucketBlobs, name: str, object_id: ObjectId) -> Incoming:
    """With the content type, the time of creation, the custom metadata and other headers of the service."""
    head = await blobs.head(name)
    if head is None:
        return Incoming(name, skipped="it was deleted meanwhile")
    told = head.metadata
    created_ns = head.created_ns if told.time_created_ns is None else told.time_created_ns
    if told.compression not in (None, COMPRESSION):
        raise InvalidRequestError(
            f"{name!r} has the Content-Encoding {quoted(told.compression)}, and of a stored object readers expect none but zstd: unpack it,"
            " or take that header away if readers know what the bytes are"
        )
    others = {key: value for key, value in (await blobs.entries(name)).items() if not key.lower().startswith(_STORES_OWN)}
    metadata = replace(
        told, expiration=None, time_expires_ns=None, size=head.size, time_created_ns=created_ns, custom={**others, **told.custom},
        filename=told.filename or _filename_of(others.get("content-disposition")), unknown={},
    )  # fmt: skip
    return Incoming(name, object_id, head.size, metadata, partial(_of_reader, blobs, name, head), crc32c=crc_of(head.checksum))


def _filename_of(disposition: str | None) -> str | None:
    """The name of a file that a Content-Disposition tells, as links show it decoded. None: it tells none."""
    about = Message()
    about["Content-Disposition"] = disposition or ""
    name = about.get_filename()
    return None if name is None else name if name.isascii() else quote(name)


async def _of_reader(blobs: LongTermBackend, name: str, head: BlobHead) -> AsyncGenerator[bytes, None]:
    """The bytes of an object. `UnavailableError` at their end: there is another one, which no crc32c would tell."""
    reader = await blobs.open(name)
    if reader is None:
        raise InvalidRequestError(f"{name!r} was deleted meanwhile")
    try:
        async for chunk in reader.chunks():
            yield chunk
    finally:
        await reader.aclose()
    if head.checksum is None:
        now = await blobs.head(name)
        if now is None or now.generation != head.generation:
            raise UnavailableError(f"{name!r} was replaced while it was read; call again")
