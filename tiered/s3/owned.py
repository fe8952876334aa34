"""`OwnedS3Blobs`, the blobs of one store in a bucket: those whose names begin with its prefix, which may be empty.

    the store, the audit     photos/objects/cat/REVISION
        OwnedS3Blobs         adds the prefix and takes it away; `S3Blobs` needs it only for what lies beside the blobs
    S3Blobs, the service     a/photos/objects/cat/REVISION

Two stores must not share names: the audit of the one would call the blobs of the other orphans. So before the first
call that changes something, the owners of the bucket are asked (`tiered/protocol/owners.py`), once.

*Failure*: if another store owns the names, or nobody does, each call that changes something is a `ConfigurationError`,
and nothing was sent. Reading needs no owner. Names in errors are those of the service, with the prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from changelog.base.errors import ConfigurationError
from tiered.metadata import Metadata
from tiered.payload.chunks import Chunk
from tiered.protocol.backends import BlobHead, ByteRange
from tiered.protocol.capabilities import Part, SessionPage
from tiered.protocol.owners import OWNERS, conflict, own_marker, ownerless
from tiered.protocol.scans import BlobPage, Generation, ListedBlob, NotCopied, Removal
from tiered.protocol.upload_lanes import LaneUpload
from tiered.s3.blobs import S3Blobs, S3Reader
from tiered.s3.copies import S3Copy
from tiered.s3.format import NAME_BYTES_MAX, Stored
from tiered.s3.upload import SinglePut


class OwnedS3Blobs:
    """Implements all that `S3Blobs` implements, and `Ownership`. `prefix`: empty, or ends with a slash.

    `owner`: the name of what holds the rows that name the blobs.
    """

    def __init__(self, blobs: S3Blobs, bucket: str, prefix: str, owner: str) -> None:
        self._blobs = blobs
        self._bucket = f"s3://{bucket}"
        self._prefix = prefix
        self._owner = owner
        self._is_ours = False

    async def check_owner(self) -> str | None:
        markers = await self._blobs.owners()
        if (wrong := conflict(markers, self._bucket, self._prefix, self._owner)) is not None:
            raise ConfigurationError(wrong)
        self._is_ours = own_marker(markers, self._prefix) is not None
        return None if self._is_ours else ownerless(self._bucket, self._prefix)

    async def _full_to_change(self, name: str) -> str:
        """The whole name of a blob that is about to be changed."""
        if not self._is_ours and (wrong := await self.check_owner()) is not None:
            raise ConfigurationError(wrong)
        return self._prefix + name

    async def sign_read(self, name: str, expires_in_s: int, disposition: str) -> str | None:
        return await self._blobs.sign_read(self._prefix + name, expires_in_s, disposition)

    async def sign_part(self, name: str, session: str, number: int, expires_in_s: int) -> str | None:
        return await self._blobs.sign_part(await self._full_to_change(name), session, number, expires_in_s)

    # --- calls that change something

    async def open_upload(self, name: str, metadata: Metadata, size: int | None) -> SinglePut | LaneUpload[Stored]:
        return await self._blobs.open_upload(await self._full_to_change(name), metadata, size)

    async def open_copy(self, source: str, generation: Generation, name: str, metadata: Metadata) -> S3Copy:
        return await self._blobs.open_copy(self._prefix + source, generation, await self._full_to_change(name), metadata)

    async def delete(self, name: str) -> None:
        await self._blobs.delete(await self._full_to_change(name))

    async def delete_generation(self, name: str, generation: Generation) -> Removal:
        return await self._blobs.delete_generation(await self._full_to_change(name), generation)

    async def set_aside(self, name: str, generation: Generation, copy: str) -> Generation | NotCopied:
        target = await self._full_to_change(copy)
        if len(target.encode()) > NAME_BYTES_MAX:
            return NotCopied.TOO_LONG
        return await self._blobs.set_aside(self._prefix + name, generation, target)

    async def bring_back(self, copy: str, generation: Generation, name: str, now_ns: int) -> Generation | NotCopied:
        return await self._blobs.bring_back(self._prefix + copy, generation, await self._full_to_change(name), now_ns)

    async def touch(self, name: str, deadline_ns: int) -> bool:
        return await self._blobs.touch(await self._full_to_change(name), deadline_ns)

    async def collect(self, limit: int) -> int:
        await self._full_to_change("")
        return await self._blobs.collect(limit)

    async def cancel(self, session: str) -> None:
        await self._blobs.cancel(session)

    async def begin_parts(self, name: str, metadata: Metadata) -> str:
        return await self._blobs.begin_parts(await self._full_to_change(name), metadata)

    async def put_part(self, name: str, session: str, number: int, payload: Sequence[Chunk]) -> Part:
        return await self._blobs.put_part(await self._full_to_change(name), session, number, payload)

    async def complete_parts(self, name: str, session: str, parts: Sequence[Part]) -> None:
        await self._blobs.complete_parts(await self._full_to_change(name), session, parts)

    async def open_sessions(self, before_ns: int, after: str, limit: int) -> SessionPage:
        await self._full_to_change("")
        page = await self._blobs.open_sessions(before_ns, after, limit, self._prefix)
        return replace(page, sessions=[replace(each, name=each.name.removeprefix(self._prefix)) for each in page.sessions])

    # --- calls that read

    async def open(self, name: str, range: ByteRange | None = None) -> S3Reader | None:
        return await self._blobs.open(self._prefix + name, range)

    async def head(self, name: str) -> BlobHead | None:
        return None if len((self._prefix + name).encode()) > NAME_BYTES_MAX else await self._blobs.head(self._prefix + name)

    async def parts(self, name: str, session: str) -> Sequence[Part]:
        return await self._blobs.parts(self._prefix + name, session)

    async def list(self, start: str, end: str | None, limit: int) -> BlobPage:
        below = f"{self._prefix[:-1]}0" if self._prefix else None  # `0` comes after `/`
        stop = below if end is None else self._prefix + end
        page, own = await self._blobs.list(self._prefix + start, stop, limit), len(self._prefix)
        blobs = [
            ListedBlob(each.name[own:], each.size, each.created_ns, each.deadline_ns, each.generation)
            for each in page.blobs if self._prefix or not each.name.startswith(OWNERS)
        ]  # fmt: skip
        return BlobPage(blobs, page.oddities, None if page.next_start is None else page.next_start[own:])

    async def now_ns(self) -> int:
        return await self._blobs.now_ns()
