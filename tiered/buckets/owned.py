"""`OwnedBucket`, the blobs of one store in a bucket: those whose names begin with its prefix, which may be empty.

    the store, the audit     photos/objects/cat/REVISION
        OwnedBucket          adds the prefix and takes it away again
    the bucket, its service  a/photos/objects/cat/REVISION

Two stores must not share names: the audit of the one would call the blobs of the other orphans. So before the first
call that changes something, the owners of the bucket are asked (`tiered/buckets/owners.py`), once. Opening a store
asks at once (`tiered/kinds/`), unless the bucket does not answer then. A bucket that is replaced later by another one
of the same name is noticed when the store is opened again.

Here is what every bucket does; an adapter adds what its own does besides (`tiered/gcs/owned.py`, `tiered/s3/owned.py`).

*Failure*: if another store owns the names, or nobody does, each call that changes something is a `ConfigurationError`,
and nothing was sent. Reading needs no owner, but that a blob is not there is said only of names that this store owns:
of another bucket, by a mistyped setting, it would be taken for a loss. Names in errors are those of the service, with
the prefix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from changelog.base.errors import ConfigurationError, InvalidRequestError
from tiered.buckets.owners import OWNERS, Marker, conflict, is_marker, own_marker, ownerless
from tiered.metadata import Metadata
from tiered.payload.chunks import Chunk
from tiered.services.backends import BlobHead, BlobReader, ByteRange, LongTermBackend, PendingBlob, Upload
from tiered.services.capabilities import BlobRestoration, DeletedGeneration, Part, PartUploads, SessionPage, SignedUrls
from tiered.services.scans import BlobInfo, BlobPage, Generation, ListedBlob, NotCopied, Oddity, Removal
from tiered.settings import TRIALS

AFTER_TRIALS = "~prove0"
NAME_BYTES_MAX = 1024
"""How long a name may be in GCS and in S3, in bytes of UTF-8."""


class BucketBlobs(LongTermBackend, PartUploads, SignedUrls, BlobRestoration, Protocol):
    """What a bucket must do: a long-term tier of whole names, that takes blobs in parts and tells its owners."""

    async def owners(self) -> Sequence[Marker]: ...
    async def names_below(self, prefix: str) -> Sequence[str]:
        """All names of the bucket that begin so, whatever they are."""

    async def entries(self, name: str) -> Mapping[str, str]:
        """All that the service keeps beside the bytes as custom metadata, whoever wrote it. Nothing: no such object.

        Also the headers that it shows and `Metadata` has no place for, in small letters (`OTHER_HEADERS`).
        """

    async def open_sessions(self, before_ns: int, after: str, limit: int, prefix: str = "") -> SessionPage:
        """Of names with the prefix."""


B = TypeVar("B", bound=BucketBlobs)


class OwnedBucket(Generic[B]):
    """`LongTermBackend`, `PartUploads`, `SignedUrls`, `BlobRestoration` and `Ownership`.

    `prefix`: empty, or ends with a slash. `owner`: the name of what holds the rows that name the blobs. `service`: what
    errors call it; its section of the settings has this name in small letters. `scheme`: how `owners.place` takes the
    bucket's address to begin.
    """

    service = scheme = ""

    def __init__(self, blobs: B, bucket: str, prefix: str, owner: str) -> None:
        self._blobs = blobs
        self._address = f"{self.scheme}{bucket}"
        self._prefix = prefix
        self._owner = owner
        self._is_ours = False

    async def check_owner(self) -> str | None:
        markers = await self._blobs.owners()
        if (wrong := conflict(markers, self._address, self._prefix, self._owner)) is not None:
            raise ConfigurationError(wrong)
        self._is_ours = own_marker(markers, self._prefix) is not None
        return None if self._is_ours else ownerless(self._address, self._prefix)

    async def _full_to_change(self, name: str) -> str:
        """The whole name of a blob that is about to be changed."""
        if not self._is_ours and (wrong := await self.check_owner()) is not None:
            raise ConfigurationError(wrong)
        return self._prefix + name

    async def _full_to_create(self, name: str) -> str:
        check_length(name, self._prefix, self.service)
        return await self._full_to_change(name)

    async def sign_read(self, name: str, expires_in_s: int, disposition: str) -> str | None:
        return await self._blobs.sign_read(self._prefix + name, expires_in_s, disposition)

    async def sign_part(self, name: str, session: str, number: int, expires_in_s: int) -> str | None:
        return await self._blobs.sign_part(await self._full_to_change(name), session, number, expires_in_s)

    # --- calls that change something

    async def open_upload(self, name: str, metadata: Metadata, size: int | None) -> Upload:
        return await self._blobs.open_upload(await self._full_to_create(name), metadata, size)

    async def open_copy(self, source: str, generation: Generation, name: str, metadata: Metadata) -> PendingBlob:
        return await self._blobs.open_copy(self._prefix + source, generation, await self._full_to_create(name), metadata)

    async def delete(self, name: str) -> int | None:
        return await self._blobs.delete(await self._full_to_change(name))

    async def delete_generation(self, name: str, generation: Generation) -> Removal:
        return await self._blobs.delete_generation(await self._full_to_change(name), generation)

    async def set_aside(self, name: str, generation: Generation, copy: str) -> Generation | NotCopied:
        target = await self._full_to_change(copy)
        if bytes_too_many(copy, self._prefix) > 0:
            return NotCopied.TOO_LONG
        return await self._blobs.set_aside(self._prefix + name, generation, target)

    async def bring_back(self, copy: str, generation: Generation, name: str, now_ns: int) -> Generation | NotCopied:
        return await self._blobs.bring_back(self._prefix + copy, generation, await self._full_to_create(name), now_ns)

    async def restore(self, name: str, generation: Generation) -> Generation | None:
        return await self._blobs.restore(await self._full_to_change(name), generation)

    async def touch(self, name: str, deadline_ns: int) -> bool:
        return await self._blobs.touch(await self._full_to_change(name), deadline_ns)

    async def cancel(self, session: str) -> None:
        await self._blobs.cancel(session)

    async def begin_parts(self, name: str, metadata: Metadata) -> str:
        return await self._blobs.begin_parts(await self._full_to_create(name), metadata)

    async def put_part(self, name: str, session: str, number: int, payload: Sequence[Chunk]) -> Part:
        return await self._blobs.put_part(await self._full_to_change(name), session, number, payload)

    async def complete_parts(self, name: str, session: str, parts: Sequence[Part]) -> None:
        await self._blobs.complete_parts(await self._full_to_change(name), session, parts)

    async def open_sessions(self, before_ns: int, after: str, limit: int) -> SessionPage:
        await self._full_to_change("")
        page = await self._blobs.open_sessions(before_ns, after, limit, self._prefix)
        return replace(page, sessions=[replace(each, name=each.name.removeprefix(self._prefix)) for each in page.sessions])

    # --- calls that read

    async def deleted_generations(self, name: str) -> Sequence[DeletedGeneration]:
        return await self._blobs.deleted_generations(self._prefix + name)

    async def open(self, name: str, range: ByteRange | None = None) -> BlobReader | None:
        found = await self._blobs.open(self._prefix + name, range)
        if found is None:
            await self._verify_absence(name)
        return found

    async def head(self, name: str) -> BlobHead | None:
        if bytes_too_many(name, self._prefix) > 0:
            return None
        found = await self._blobs.head(self._prefix + name)
        if found is None:
            await self._verify_absence(name)
        return found

    async def _verify_absence(self, name: str) -> None:
        """Nothing is there by that name. `ConfigurationError`: these names are not this store's, so that says nothing.

        What was seen to be this store's stays so in this process: a bucket that somebody emptied has no marker either.
        """
        if not self._is_ours and (wrong := await self.check_owner()) is not None:
            raise ConfigurationError(f"there is no blob {self._prefix + name!r}, and that says nothing, because {wrong}")

    async def list(self, start: str, end: str | None, limit: int) -> BlobPage:
        page = await self._blobs.list(self._prefix + start, self._end(end), limit)
        if self._prefix:
            own = len(self._prefix)
            blobs = [self._renamed(blob, blob.name[own:]) for blob in page.blobs]
            oddities = [_oddity_without(self._prefix, odd) for odd in page.oddities]
            page = BlobPage(blobs, oddities, None if page.next_start is None else page.next_start[own:])
        if (end is not None and end <= OWNERS) or start >= AFTER_TRIALS:
            return page
        oddities = [odd for odd in page.oddities if not _is_hidden(odd.name)]
        return BlobPage(_shown(page.blobs), oddities, page.next_start)

    async def parts(self, name: str, session: str) -> Sequence[Part]:
        return await self._blobs.parts(self._prefix + name, session)

    async def now_ns(self) -> int:
        return await self._blobs.now_ns()

    def _end(self, end: str | None) -> str | None:
        """The end of a range of whole names. Without one, it is the first name after all that have the prefix."""
        if end is not None:
            return self._prefix + end
        return f"{self._prefix[:-1]}0" if self._prefix else None  # `0` comes after `/`

    def _renamed(self, blob: BlobInfo, name: str) -> BlobInfo:
        """The blob of a listing under another name. The one that was passed is no longer used."""
        assert isinstance(blob, ListedBlob), "an adapter that lists others renames them itself"
        return blob._replace(name=name)


def check_length(name: str, prefix: str, service: str) -> None:
    """Refuses a name that is too long because of the prefix. Without one, the bound of paths keeps names short enough.
    """
    if prefix and (many := bytes_too_many(name, prefix)) > 0:
        raise InvalidRequestError(
            f"the name of blob {prefix + name!r} has {NAME_BYTES_MAX + many} bytes, and {service} takes {NAME_BYTES_MAX}: shorten the key"
            f" or the scopes by {many}, or use a store without {service.lower()}.prefix"
        )


def bytes_too_many(name: str, prefix: str) -> int:
    return len(prefix.encode()) + len(name.encode()) - NAME_BYTES_MAX


def _shown(blobs: Sequence[BlobInfo]) -> Sequence[BlobInfo]:
    """They are in the order of names, so most pages are seen to hide nothing by their ends."""
    if not blobs or blobs[-1].name < OWNERS or blobs[0].name >= AFTER_TRIALS:
        return blobs
    return [blob for blob in blobs if not _is_hidden(blob.name)]


def _is_hidden(name: str) -> bool:
    """Whether a name is not this store's, although it begins with its prefix: a marker, or a blob of a trial."""
    return is_marker(name) or name.startswith(TRIALS)


def _oddity_without(prefix: str, odd: Oddity) -> Oddity:
    return replace(odd, name=odd.name.removeprefix(prefix)) if odd.is_blob else odd
