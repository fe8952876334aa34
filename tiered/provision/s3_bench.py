"""`S3Bench`: where one run of probes tries a service of S3: its names, its requests, and the end of all that it made.

Its requests are those that the store sends, named one by one, so that a message says which was answered how. What is
written goes over the connections of `ours`; what is read goes over those of `other`. *Crash*: `sweep` of a later run
removes what is left. *Failure*: as `S3Client`; `at_once` raises the first error only where nothing succeeded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from anyio import create_task_group

from changelog.base.errors import InvalidRequestError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.runtime import Runtime
from changelog.change import ChangeId
from tiered.metadata import NS_PER_S
from tiered.payload.crc32c import encode_crc, extend_crc
from tiered.provision.probes import RequestSizes, Tried
from tiered.s3.blobs import S3Blobs
from tiered.s3.client import Answer
from tiered.s3.errors import NO_KEY, Refusal
from tiered.s3.format import PROBES, ns_of, tag_of
from tiered.s3.upload import put_once

LEFT_AFTER_S = 300.0
"""A run has ended by then, also one that cleans up slowly."""
PAGES_MAX = 100
_NO_WHOLE = ("InvalidRequest", "InvalidArgument", "NotImplemented", "400", "501")
_TAKEN = ("PreconditionFailed", "412", "ConditionalRequestConflict", "OperationAborted")
_NOT_COMPLETED = (*_TAKEN, "NoSuchUpload", "404", "InvalidPart")


CHECK = RequestSizes()


class S3Bench:
    """Where one run tries: its names, what it has made, and requests that a probe sends. `service`: its name."""

    def __init__(self, ours: S3Blobs, other: S3Blobs, prefix: str, runtime: Runtime, sizes: RequestSizes, *, whole_checksums: bool) -> None:
        self.below = f"{prefix}{PROBES}"
        self.run = ChangeId.new(runtime)
        self.prefix = f"{self.below}{self.run}/"
        self.ours, self.other, self.sizes = ours, other, sizes
        self.client, self.service = ours.client, ours.client.endpoint
        self.whole = self.whole_wanted = whole_checksums
        self.versions = False
        self.names: Mapping[str, Tried] | TieredError = {}
        self._made: set[str] = set()
        self._begun: dict[str, str] = {}

    def name(self, what: str) -> str:
        return f"{self.prefix}{what}"

    def made(self, name: str) -> None:
        """It is to be removed at the end."""
        self._made.add(name)

    async def call(self, operation: str, name: str, *, accept: Sequence[str] = (), **named: Any) -> Answer | Refusal:
        doing = f"{operation} of {name!r}"
        return await self.client.call(operation, doing, effect=True, accept=accept, Key=name, **named)

    # --- objects

    async def put(self, name: str, body: bytes) -> bool | None:
        """PutObject, create-only. False: something has the name. None: nobody can tell."""
        self.made(name)
        try:
            await put_once(self.client, name, [body], extend_crc(0, body), {"Key": name})
        except UnconfirmedError:
            return None
        except UnavailableError as error:
            if error.code in _TAKEN:
                return False
            raise
        except InvalidRequestError:  # the service takes no such name
            self._made.discard(name)
            raise
        return True

    async def make(self, name: str, body: bytes) -> bool:
        """Puts it as soon as nothing has the name."""
        for _ in range(self.sizes.racers * 25):
            if await self.put(name, body):
                return True
        return False

    async def body(self, name: str) -> bytes | None:
        """By the other connections."""
        opened = await self.other.client.open_body(f"reading {name!r}", accept=(NO_KEY,), Key=name)
        if isinstance(opened, Refusal):
            return None
        told, read = opened[1], b""
        try:
            while chunk := await told.read():
                read += chunk
        finally:
            told.close()
        return read

    async def head(self, name: str) -> Answer | None:
        """By the other connections."""
        told = await self.other.client.call("head_object", f"head_object of {name!r}", accept=("404",), Key=name, ChecksumMode="ENABLED")
        return None if isinstance(told, Refusal) else told

    async def listed(self, prefix: str) -> list[str]:
        """All names that begin so, in the order in which they come, by the other connections."""
        names: list[str] = []
        after = ""
        for _ in range(PAGES_MAX):
            page = await self.page(prefix, after)
            told = [str(each["Key"]) for each in page.get("Contents", ())]
            names += told
            if not page.get("IsTruncated") or not told or told[-1] <= after:
                break
            after = told[-1]
        return names

    async def page(self, prefix: str, after: str = "") -> Answer:
        """A page as it came, by the other connections: what is wrong on it is what a probe looks for."""
        named: dict[str, Any] = {"StartAfter": after} if after else {}
        page = await self.other.client.call("list_objects_v2", f"list_objects_v2 of {prefix!r}", Prefix=prefix, MaxKeys=5, **named)
        assert not isinstance(page, Refusal), "no code is accepted"
        return page

    async def delete(self, name: str) -> None:
        await self.ours.delete(name)
        self._made.discard(name)

    async def tag(self, name: str) -> str:
        return tag_of(await self.head(name) or {})

    async def delete_tag(self, name: str, tag: str) -> bool:
        """Deletes what has this tag. False: the service says that something else is there, or nothing."""
        return not isinstance(await self.call("delete_object", name, accept=(*_TAKEN, NO_KEY), IfMatch=f'"{tag}"'), Refusal)

    # --- uploads in parts

    async def begin(self, name: str, *, is_copy: bool = False) -> str:
        """As the store begins one: with the crc32c of the whole, unless the service takes none."""
        self._made.add(name)
        while True:
            is_whole = self.whole and not is_copy
            whole: dict[str, Any] = {"ChecksumAlgorithm": "CRC32C", "ChecksumType": "FULL_OBJECT"} if is_whole else {}
            begun = await self.call("create_multipart_upload", name, accept=_NO_WHOLE if whole else (), **whole)
            if not isinstance(begun, Refusal):
                upload = str(begun.get("UploadId", ""))
                self._begun[upload] = name
                return upload
            self.whole = False

    async def part(self, name: str, upload: str, body: bytes, number: int = 1, *, crc: str | None = None) -> dict[str, Any]:
        """What its completion tells of it. `crc`: another one than that of the bytes."""
        told = encode_crc(extend_crc(0, body)) if crc is None else crc
        answer = await self.call(
            "upload_part", name, UploadId=upload, PartNumber=number, body=body, ContentLength=len(body), ChecksumCRC32C=told
        )
        assert not isinstance(answer, Refusal), "no code is accepted"
        return {"PartNumber": number, "ETag": answer["ETag"], **({"ChecksumCRC32C": told} if self.whole else {})}

    async def uploaded(self, name: str, body: bytes) -> tuple[str, Mapping[str, Any]]:
        """An upload that can be completed, and its only part."""
        upload = await self.begin(name)
        return upload, await self.part(name, upload, body)

    async def complete(self, name: str, upload: str, part: Mapping[str, Any]) -> bool | None:
        """Create-only. False: it was refused. None: nobody can tell."""
        whole = {"ChecksumCRC32C": part["ChecksumCRC32C"], "ChecksumType": "FULL_OBJECT"} if "ChecksumCRC32C" in part else {}
        try:
            answer = await self.call(
                "complete_multipart_upload", name, accept=_NOT_COMPLETED, UploadId=upload, IfNoneMatch="*",
                MultipartUpload={"Parts": [part]}, **whole,
            )  # fmt: skip
        except UnconfirmedError:
            return None
        return not isinstance(answer, Refusal)

    async def abort(self, name: str, upload: str) -> bool:
        await self.call("abort_multipart_upload", name, accept=("NoSuchUpload", "404"), UploadId=upload)
        return True

    # --- what is left

    async def sweep(self) -> None:
        """Removes what a run has left that was killed."""
        before_ns = await self.ours.now_ns() - int(LEFT_AFTER_S * NS_PER_S)
        page = await self.ours._page("looking for what another check has left", "", self.below)
        for each in page.items:
            if ns_of(each["LastModified"]) < before_ns:
                await self.ours.delete(each["Key"])
        try:
            uploads = (await self.ours.open_sessions(before_ns, "", 1000, self.below)).sessions
        except TieredError:
            return  # a probe says so
        for upload in uploads:
            await self.ours.cancel(upload.session)

    async def clean(self) -> str | None:
        """Returns why something is left."""
        why: str | None = None
        for upload, name in self._begun.items():
            try:
                await self.abort(name, upload)
            except TieredError as error:
                why = str(error)
        for name in self._made:
            try:
                await self.ours.delete(name)  # with its versions, if the bucket keeps any
            except TieredError as error:
                why = str(error)
        return why


async def at_once(calls: Sequence[Callable[[], Awaitable[bool | None]]]) -> list[bool | None]:
    """The outcomes. Raises the first error if none succeeded."""
    outcomes: list[bool | None] = [False] * len(calls)
    errors: list[TieredError] = []

    async def one(number: int, call: Callable[[], Awaitable[bool | None]]) -> None:
        try:
            outcomes[number] = await call()
        except TieredError as error:
            outcomes[number] = None if isinstance(error, UnconfirmedError) else False
            errors.append(error)

    async with create_task_group() as tasks:
        for number, call in enumerate(calls):
            tasks.start_soon(one, number, call)
    if errors and not any(outcomes):
        raise errors[0]
    return outcomes
