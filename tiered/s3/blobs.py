"""`S3Blobs`, the long-term tier in a bucket of an S3 service.

    open_upload    none for a blob of known size up to 8 MiB, and 1 PutObject when it is finalised; else 1 for the
                   session, 1 for each part and 2 for the end. One more for a blob that expires: its deadline
    open           1; 2 for a range from the end, or an empty one; 1 more if it was uploaded as a session: what was
                   amended of it
    head           1, as `open`; 1 more for a blob that expires
    delete         1; in a bucket with versions, 1 for each version besides
    delete_generation   2; 1 more after a refusal, and for a blob of an earlier release
    touch          3, and 1 for each earlier deadline
    list           2 for each page of up to 1,000
    set_aside, bring_back, open_copy   5 or more
    collect        1 for each 1,000 deadlines, and 2 for each blob that has expired
    now_ns, owners 1
    deleted_generations   1 for each 1,000 versions
    restore        4 or more
    begin_parts, put_part, parts, complete_parts, cancel   as in `parts.py`
    sign_read, sign_part     none

A blob is only ever created: by a PutObject or a completion that refuses to replace (`If-None-Match: *`). Without a
service that honours this I2 does not hold, so provisioning tries it. Nothing is copied onto itself, not even to change
a deadline: such a copy may land after a deletion, and bring the blob back (I3). So deadlines lie beside the blobs, as
markers with the deadline in their name; the latest counts, whoever wrote it when. A marker is written before its blob
can be seen. Creation is the service's `LastModified`, to a second.

*Crash* anywhere: a blob is there as a whole or not at all. What is left is a session, which recovery cancels, or a
marker or an amendment without a blob, which `collect` removes (`garbage.py`). *Failure*: see `client.py`. An object
that is missing and a bucket that is missing are told apart by the service's word, which an answer to HEAD has not, so a
GET asks again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Self

from anyio.abc import TaskGroup

from changelog.base.errors import ConfigurationError, CorruptRecordError, TieredError, UnavailableError
from changelog.base.runtime import Runtime
from changelog.base.tasks import tasks_beside
from tiered.buckets.owners import OWNERS, Marker, decode_markers
from tiered.metadata import NS_PER_S, Metadata, is_expired
from tiered.payload.crc32c import encode_crc, extend_crc
from tiered.s3.amendments import amend, amended_of
from tiered.s3.arrival import crc_of, is_there
from tiered.s3.client import ANSWER_TIMEOUT_S, CONNECTIONS_MAX, Answer, AnswerBody, S3Client, SharedSession
from tiered.s3.copies import COPIED_BYTES_MAX, copy_parts, other_layout
from tiered.s3.errors import NO_KEY, PASSING_OR_UNCLEAR, Refusal, begun, error_of, odd
from tiered.s3.format import (
    OTHER_ARGUMENTS,
    Beside,
    Stored,
    before,
    decode_object,
    encode_metadata,
    generation_of,
    is_copy,
    is_written_as,
    ms_of,
    nonce_of,
    ns_of,
    parts_of,
    tag_of,
)
from tiered.s3.garbage import BucketRound
from tiered.s3.listings import PAGE_MAX, ListedKeys, hidden, objects, pages, versions
from tiered.s3.parts import S3Parts
from tiered.s3.upload import SINGLE_BYTES_MAX, SinglePut, put_once
from tiered.services.backends import BlobHead, ByteRange
from tiered.services.capabilities import DeletedGeneration, Part
from tiered.services.scans import BlobInfo, BlobPage, Generation, ListedBlob, NotCopied, Removal
from tiered.transfer.reading import BucketReader, header_from, header_of
from tiered.transfer.upload_lanes import LaneUpload, UploadLanes
from tiered.transfer.uploads import LANES, UPLOAD_BUDGET_S, BucketCopy, TakesUploads

STREAM_LANES = 2
"""Of a stream whose size nobody knows, or that is not large: one part is gathered while the one before goes up."""
ATTEMPTS_MAX = 5
_NOT_THIS = ("NoSuchVersion", "PreconditionFailed", "ConditionalRequestConflict")
"""Why a generation is not deleted: it is not what has the name, or somebody changes that now."""
_BAD_RANGE = "InvalidRange"
_OF_HEAD = frozenset(map(str, range(400, 500)))
"""HEAD gives a status and no words: of what is gone, of credentials that have expired, of rights that are missing."""


class S3Blobs(TakesUploads[S3Parts]):
    """`LongTermBackend`, on asyncio only, with the capabilities `PartUploads`, `SignedUrls`, `GarbageCollection` and
    `BlobRestoration`.

    Open it with `async with S3Blobs.connect(…)`.
    """

    def __init__(
        self, client: S3Client, tasks: TaskGroup, runtime: Runtime, prefix: str, lanes: UploadLanes, upload_budget_s: float,
        *, whole_checksums: bool,
    ) -> None:  # fmt: skip
        super().__init__(S3Parts(client, self._found, keeps_checksums=whole_checksums), tasks, runtime, lanes, upload_budget_s)
        self.client = client
        self._beside = Beside(prefix)
        self._round: BucketRound | None = None

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, bucket: str, runtime: Runtime, *, prefix: str = "", endpoint: str | None = None, region: str | None = None,
        addressing_style: str = "auto", connections_max: int = CONNECTIONS_MAX, answer_timeout_s: float = ANSWER_TIMEOUT_S,
        lanes: UploadLanes = LANES, upload_budget_s: float = UPLOAD_BUDGET_S, whole_checksums: bool = True,
        session: SharedSession | None = None,
    ) -> AsyncIterator[Self]:  # fmt: skip
        """Opens the bucket; sends nothing yet. When the block is left, uploads that were not finalised are dropped.

        `prefix`: how the names of this store's blobs begin; what lies beside them lies below it, too.
        `answer_timeout_s`: how long an answer may take, in seconds. `upload_budget_s`: what failed of an upload is sent
        again until nothing has succeeded for so long, in seconds. `whole_checksums` False: the service keeps none of a
        blob made of parts, or a wrong one. `session`: as of `S3Client`.
        """
        async with (
            S3Client.connect(
                bucket, endpoint=endpoint, region=region, addressing_style=addressing_style, connections_max=connections_max,
                answer_timeout_s=answer_timeout_s, session=session,
            ) as client, tasks_beside() as tasks,
        ):  # fmt: skip
            yield cls(client, tasks, runtime, prefix, lanes, upload_budget_s, whole_checksums=whole_checksums)

    # --- uploads

    async def open_upload(self, name: str, metadata: Metadata, size: int | None) -> SinglePut | LaneUpload[Stored]:
        self._beside.check(name, metadata)
        declared = metadata.size if size is None else size
        marked = partial(self._mark, name, metadata.time_expires_ns)
        if declared is not None and declared <= SINGLE_BYTES_MAX:
            encode_metadata(name, metadata)  # so that what is too much is refused at once
            return SinglePut(self.client, self._resuming, name, metadata, declared, self._found, lambda _: marked())
        return await self._open_lanes(name, metadata, declared, marked)

    async def _open_lanes(self, name: str, metadata: Metadata, declared: int | None, marked: Callable[[], Any]) -> LaneUpload[Stored]:
        lanes, nonce = self._lanes, self._nonce()
        held = lanes.memory_of(declared)
        if declared is None or declared <= lanes.from_bytes or not self._resuming.has_room(held):
            held, lanes = 0, replace(lanes, count=STREAM_LANES)

        async def before_end(amended: Metadata | None) -> None:
            await marked()
            if amended is not None:
                await amend(self.client, self._beside, self._found, name, nonce, amended)

        async def settle(told: Stored, _: Metadata | None) -> None:
            _check_own(name, told, nonce)

        session = await self._resuming.begin(lambda: self._in_parts.begin(name, metadata, nonce), PASSING_OR_UNCLEAR, held)
        return LaneUpload(
            self._in_parts, self._tasks, self._resuming, lanes, name, declared, session, settle, held, before_end, creates_only=True
        )

    async def _mark(self, name: str, deadline_ns: int | None) -> None:
        """Writes a deadline of the blob, if it has one."""
        if deadline_ns is not None and not is_copy(name, self._beside.prefix):
            doing = f"writing the deadline of blob {name!r}"
            await self.client.call("put_object", doing, effect=True, body=b"", ContentLength=0, Key=self._beside.marker(name, deadline_ns))

    async def begin_parts(self, name: str, metadata: Metadata) -> str:
        """The deadline is written now, because nobody knows who completes the blob; if that is too late, once more."""
        self._beside.check(name, metadata)
        await self._mark(name, metadata.time_expires_ns)
        return await self._in_parts.begin(name, metadata)

    async def complete_parts(self, name: str, session: str, parts: Sequence[Part]) -> None:
        await self._in_parts.check(name, session, parts)
        expires_ns = (await self._in_parts.complete(name, session, parts)).metadata.time_expires_ns
        if is_expired(expires_ns, self._runtime.wall_ns()):  # what was written when it was begun may have been collected since
            await self._mark(name, expires_ns)

    async def sign_read(self, name: str, expires_in_s: int, disposition: str) -> str | None:
        doing = f"signing an address of blob {name!r}"
        return await self.client.sign("get_object", expires_in_s, doing, Key=name, ResponseContentDisposition=disposition)

    async def sign_part(self, name: str, session: str, number: int, expires_in_s: int) -> str | None:
        named = self._in_parts.query_of(name, session, number)
        return await self.client.sign("upload_part", expires_in_s, f"signing an address of a part of blob {name!r}", Key=name, **named)

    # --- reads

    async def open(self, name: str, range: ByteRange | None = None) -> BucketReader | None:
        """Tells the deadline of the blob's creation, also if a touch has extended it."""
        ranged = header_of(range)
        if ranged is None:
            return await self._open_within(name, range)
        doing = f"reading blob {name!r}"
        opened = await self.client.open_body(doing, accept=(NO_KEY, _BAD_RANGE), Key=name, ChecksumMode="ENABLED", **ranged)
        if isinstance(opened, Refusal):
            return await self._open_within(name, range) if opened.code == _BAD_RANGE else None
        answer, body = opened
        try:
            size = _size_of(answer)
            stored = await self._whole(name, answer, size)
            start, stop = (0, size) if range is None else range.within(size)
            if answer["ContentLength"] != stop - start:
                raise odd(doing, effect=False, what=f"with {answer['ContentLength']} bytes instead of {stop - start}")
            return self._reader(name, stored, body, start, stop)
        except BaseException:
            body.close()
            raise

    async def _open_within(self, name: str, range: ByteRange | None) -> BucketReader | None:
        """Opens a range that only the size makes a range of HTTP, or that has no bytes."""
        stored = await self._found(name)
        if stored is None:
            return None
        start, stop = (0, stored.size) if range is None else range.within(stored.size)
        if start == stop:
            return self._reader(name, stored, None, start, stop)
        reader = await self._open_range(name, stored, start, stop)
        if reader is None:
            raise UnavailableError(f"blob {name!r} was replaced while it was being opened; try again").telling(heard=True)
        return reader

    async def _open_range(self, name: str, stored: Stored, start: int, stop: int) -> BucketReader | None:
        """Opens bytes of this generation. None: it is gone."""
        doing = f"reading blob {name!r}"
        opened = await self.client.open_body(
            doing, accept=(NO_KEY, "PreconditionFailed", _BAD_RANGE), Key=name, IfMatch=f'"{stored.etag}"', **header_from(start, stop)
        )
        if isinstance(opened, Refusal):
            return None
        answer, body = opened
        if _generation(answer) == stored.generation and answer["ContentLength"] == stop - start:
            return self._reader(name, stored, body, start, stop)
        body.close()
        if _generation(answer) == stored.generation:
            raise odd(doing, effect=False, what=f"with {answer['ContentLength']} bytes instead of {stop - start}")
        return None

    def _reader(self, name: str, stored: Stored, body: AnswerBody | None, start: int, stop: int) -> BucketReader:
        return BucketReader(name, stored, body, (start, stop), partial(self._open_range, name, stored))

    async def _whole(self, name: str, answer: Answer, size: int) -> Stored:
        """What an answer tells of a blob, with what was amended. The answer to a range may leave out the checksum."""
        amended = await amended_of(self.client, self._beside, name, nonce_of(answer))
        try:
            stored = decode_object(name, answer, size=size, amended=amended)
        except CorruptRecordError:
            await self._found(name)  # it is only said of what two answers tell
            raise odd(f"reading blob {name!r}", effect=False, what="with metadata that it does not have") from None
        if stored.crc32c is None and "ContentRange" in answer:
            whole = await self._look(name)
            if whole is not None and (tag_of(whole), ns_of(whole["LastModified"])) == (stored.etag, stored.created_ns):
                checksum = {key: whole.get(key) for key in ("ChecksumCRC32C", "ChecksumType")}
                return decode_object(name, {**answer, **checksum}, size=size, amended=amended)
        return stored

    async def _look(self, name: str) -> Answer | None:
        """The answer to HeadObject. None: there is no such blob. Why it was refused, only a GET is told."""
        doing = f"reading what blob {name!r} is"
        answer = await self.client.call("head_object", doing, accept=_OF_HEAD, Key=name, ChecksumMode="ENABLED")
        if not isinstance(answer, Refusal):
            return answer
        opened = await self.client.open_body(doing, accept=(NO_KEY, _BAD_RANGE), Key=name, Range="bytes=0-0")
        if isinstance(opened, Refusal) and opened.code == NO_KEY:
            return None
        if not isinstance(opened, Refusal):
            opened[1].close()
        raise odd(doing, effect=False, what=f"with {answer.status} when it was asked by HEAD, and otherwise by GET").telling(heard=True)

    async def _found(self, name: str) -> Stored | None:
        """What there is of a blob, but for deadlines that a touch wrote."""
        answer = await self._look(name)
        if answer is None:
            return None
        amended = await amended_of(self.client, self._beside, name, nonce_of(answer))
        with suppress(CorruptRecordError):  # it is only said of what two answers tell
            return decode_object(name, answer, amended=amended)
        again = await self._look(name)
        return None if again is None else decode_object(name, again, amended=amended)

    async def _found_now(self, name: str) -> Stored | None:
        """The same, with the deadline that counts now."""
        found = await self._found(name)
        if found is None or found.metadata.time_expires_ns is None or is_copy(name, self._beside.prefix):
            return found
        return found.expiring(max((ns for _, ns in await self._markers_of(name)), default=None))

    async def head(self, name: str) -> BlobHead | None:
        found = await self._found_now(name)
        return None if found is None else found.head

    # --- deadlines

    async def entries(self, name: str) -> Mapping[str, str]:
        answer = await self._look(name) or {}
        shown = {header: str(answer[key]) for key, header in OTHER_ARGUMENTS.items() if answer.get(key)}
        return shown | {str(key): str(value) for key, value in answer.get("Metadata", {}).items()}

    async def _markers_of(self, name: str) -> Sequence[tuple[str, int]]:
        """The names of a blob's markers, and their deadlines (ns since 1970)."""
        doing = f"reading the deadlines of blob {name!r}"
        told = [(each["Key"], self._beside.blob_of(each["Key"])) for each in await self._all_below(doing, self._beside.of(name))]
        return [(key, marked[1]) for key, marked in told if marked is not None and marked[0] == name]

    async def touch(self, name: str, deadline_ns: int) -> bool:
        """Writes a later deadline, and removes the earlier ones as well as it can: they do no harm."""
        found = await self._found(name)
        if found is None:
            return False
        if found.metadata.time_expires_ns is None:
            return True
        markers, wanted_ns = await self._markers_of(name), max(deadline_ns, found.metadata.time_expires_ns)
        if ms_of(max((ns for _, ns in markers), default=0)) < ms_of(wanted_ns):  # none: it was collected before its blob came
            await self._mark(name, wanted_ns)
            for key, ns in markers:
                if ns < wanted_ns:
                    with suppress(TieredError):
                        await self.client.call("delete_object", f"removing a deadline of blob {name!r}", effect=True, Key=key)
        return True

    async def collect(self, limit: int) -> int:
        """Removes blobs that expired an hour ago, and what lies beside blobs that are gone. Returns how many objects.

        A call that removed `limit` objects ends, and the next call goes on from there. `LeftGarbageError`: the round is
        over, and some could not be removed.
        """
        under_way = self._round or BucketRound(self, self._beside, await self.now_ns())
        self._round = under_way
        removed, is_over = await under_way.step(limit)
        if is_over:
            self._round = None
            under_way.check(removed)
        return removed

    # --- deletions

    async def delete(self, name: str) -> None:
        """In a bucket that keeps versions, all versions of the name are deleted: a delete marker is no deletion."""
        doing = f"deleting blob {name!r}"
        answer = await self.client.call("delete_object", doing, effect=True, accept=(NO_KEY,), Key=name)
        if isinstance(answer, Refusal):
            return
        if answer.get("DeleteMarker") or answer.get("VersionId") not in (None, "null"):
            with begun(doing):
                await self._delete_versions(name)

    async def _delete_versions(self, name: str) -> None:
        doing = f"deleting the versions of blob {name!r}"
        for each in await versions(self.client, doing, name):
            await self.client.call("delete_object", doing, effect=True, accept=(NO_KEY,), Key=name, VersionId=each["VersionId"])

    async def delete_generation(self, name: str, generation: Generation) -> Removal:
        """The generation is looked at, and deleted only as the version, or with the tag, that was seen.

        After a refusal it is looked at once more. AWS gives one also where somebody else's deletion comes first (409).
        A service without versions that ignores `If-Match` where it deletes would delete what came between these two.
        `ConfigurationError`: it was written under another name; some services list `a//b` as `a/b`, and find it so.
        """
        seen = await self._look(name)
        if seen is None:
            return Removal.ABSENT
        if _generation(seen) != generation:
            return Removal.REPLACED
        await self._check_name(name, seen)
        version, doing = seen.get("VersionId"), f"deleting generation {generation} of blob {name!r}"
        only: dict[str, Any] = {"IfMatch": f'"{tag_of(seen)}"'} if version in (None, "null") else {"VersionId": version}
        answer = await self.client.call("delete_object", doing, effect=True, accept=(NO_KEY, *_NOT_THIS), Key=name, **only)
        if not isinstance(answer, Refusal):
            return Removal.DELETED
        now = await self._look(name)
        if now is None:
            return Removal.ABSENT
        if _generation(now) != generation:
            return Removal.REPLACED
        raise error_of(answer._replace(status=409, code="OperationAborted"), doing, effect=False)

    async def _check_name(self, name: str, seen: Answer) -> None:
        """Raises `ConfigurationError` unless this blob is certainly the one of this name, and not found by it alone.

        A blob of an earlier release does not tell its name. Then it is asked for by one that nobody gave it.
        """
        own = is_written_as(name, seen)
        if own is None:
            before_last, _, last = name.rpartition("/")
            other = await self._look(f"{before_last}//{last}")
            own = other is None or _generation(other) != _generation(seen)
        if not own:
            raise ConfigurationError(
                f"blob {name!r} is not deleted: it was written under another name, so nobody can tell whose it is: look with"
                f" 'tiered check' whether {self.client.endpoint} changes names; if it was copied or renamed by hand, delete it so"
            ).telling(heard=True)

    # --- what somebody else deleted

    async def deleted_generations(self, name: str) -> Sequence[DeletedGeneration]:
        """In a bucket with versions: the newest version of a name whose delete marker hides it. Else none.

        This store deletes a name with all its versions. So a version is hidden only where somebody else deleted it.
        """
        version, markers = await hidden(self.client, name)
        if version is None:
            return []
        address = f"s3://{self.client.bucket}/{name}#{markers[0]['VersionId']}"
        return [DeletedGeneration(address, version["Size"], _generation(version), ns_of(markers[0]["LastModified"]), None)]

    async def restore(self, name: str, generation: Generation) -> Generation | None:
        """Takes away the delete markers above this version, which is what the name shows then.

        This overwrites nothing, and brings nothing back that is deleted later: it names the markers that were seen.
        What was amended of the blob is uncovered before it, and its deadline is written again. It keeps its generation,
        where the service keeps its time.
        """
        doing, (version, markers) = f"restoring generation {generation} of blob {name!r}", await hidden(self.client, name)
        if version is None or _generation(version) != generation:
            return None
        opened = await self.client.open_body(doing, Key=name, VersionId=version["VersionId"])  # a refusal of HEAD has no words
        assert not isinstance(opened, Refusal), "no code is accepted"
        told, body = opened
        body.close()
        if (nonce := nonce_of(told)) is not None and self._beside.amendment_excess(name) <= 0:
            amendment = self._beside.amendment(name, nonce)
            await self._uncover(amendment, (await hidden(self.client, amendment))[1], doing)
        await self._mark(name, decode_object(name, told).metadata.time_expires_ns)
        with begun(doing):
            now = await self._uncover(name, markers, doing)
        return _generation(now) if now is not None and tag_of(now) == tag_of(version) else None

    async def _uncover(self, name: str, markers: Sequence[Mapping[str, Any]], doing: str) -> Answer | None:
        """Takes markers away, the newest first, until something has the name. Returns the answer to its HEAD."""
        now: Answer | None = None
        for each in markers:
            if now is None:
                await self.client.call("delete_object", doing, effect=True, accept=(NO_KEY,), Key=name, VersionId=each["VersionId"])
                now = await self._look(name)
        return now

    # --- copies

    async def open_copy(self, source: str, generation: Generation, name: str, metadata: Metadata) -> BucketCopy:
        """A session, so recovery can cancel it. The deadline is written when it is finalised."""
        self._beside.check(name, metadata)
        nonce, found = self._nonce(), await self._found(source)
        crc32c = None if found is None or found.generation != generation else found.crc32c
        session = await self._in_parts.begin(name, metadata, nonce, crc32c=crc32c, is_copy=True)

        async def copy() -> None:
            found = await self._found(source)
            if found is None or found.generation != generation:
                message = f"copying blob {source!r} to {name!r} failed: the source is gone, or is another"
                raise UnavailableError(message).coded("404", heard=True)
            parts = await copy_parts(self._in_parts, source, found, name, session, COPIED_BYTES_MAX)
            await self._mark(name, metadata.time_expires_ns)
            _check_own(name, await self._complete_copy(source, found, name, session, parts), nonce)

        return BucketCopy(copy, session, self.cancel_soon)

    async def _complete_copy(self, source: str, found: Stored, name: str, session: str, parts: Sequence[Part]) -> Stored:
        return await self._in_parts.complete(name, session, parts, found.crc32c or await crc_of(self.client, source, found))

    def _nonce(self) -> str:
        return f"{self._runtime.random.getrandbits(64):016x}"

    async def set_aside(self, name: str, generation: Generation, copy: str) -> Generation | NotCopied:
        found = await self._found_now(name)
        if found is None:
            return NotCopied.ABSENT
        if found.generation != generation:
            return NotCopied.REPLACED
        there = await self._found(copy)
        if there is None:
            return await self._copy_anew(name, found, copy, COPIED_BYTES_MAX)
        return there.generation if there.source == generation else NotCopied.TAKEN

    async def bring_back(self, copy: str, generation: Generation, name: str, now_ns: int) -> Generation | NotCopied:
        found = await self._found(copy)
        if found is None:
            return NotCopied.ABSENT
        if found.generation != generation:
            return NotCopied.REPLACED
        if is_expired(found.metadata.time_expires_ns, now_ns):
            return NotCopied.EXPIRING
        there = await self._found(name)
        if there is not None:
            return there.generation if found.source == there.generation or there.source == generation else NotCopied.TAKEN
        await self._mark(name, found.metadata.time_expires_ns)
        layout = other_layout(found.size, parts_of((found.source or "").partition("@")[0]))
        if layout is None:
            return await self._put_anew(copy, found, name)
        return await self._copy_anew(copy, found, name, layout)

    async def _copy_anew(self, source: str, found: Stored, name: str, part_bytes: int) -> Generation | NotCopied:
        session = await self._in_parts.begin(name, _told(found), source=found.generation, crc32c=found.crc32c, is_copy=True)
        try:
            parts = await copy_parts(self._in_parts, source, found, name, session, part_bytes)
            made = await self._complete_copy(source, found, name, session, parts)
            return made.generation if made.source == found.generation else NotCopied.TAKEN
        except TieredError as error:
            if error.code != "404" and not isinstance(error, UnavailableError):
                raise
            now, there = await self._found(source), await self._found(name)
            if now is None or now.generation != found.generation:
                return NotCopied.ABSENT if now is None else NotCopied.REPLACED
            if there is not None:
                return there.generation if there.source == found.generation else NotCopied.TAKEN
            raise
        finally:
            self.cancel_soon(session)

    async def _put_anew(self, source: str, found: Stored, name: str) -> Generation | NotCopied:
        """Reads a small blob, and puts it whole."""
        reader = await self._open_range(source, found, 0, found.size) if found.size else None
        body = b"" if reader is None else b"".join([chunk async for chunk in reader.chunks()])
        if len(body) != found.size:
            return NotCopied.ABSENT
        crc = extend_crc(0, body)
        named = {"Key": name, **encode_metadata(name, _told(found), crc32c=encode_crc(crc), source=found.generation)}
        try:
            if not await put_once(self.client, name, [body], crc, named):
                await is_there(self.client, name, self._found, [body], crc)
        except UnavailableError as error:
            if error.code != "412":
                raise
        there = await self._found(name)
        if there is None:
            raise UnavailableError(f"blob {name!r} was brought back, and somebody deleted it at once; try again").telling(heard=True)
        return there.generation if there.source == found.generation else NotCopied.TAKEN

    # --- listings

    async def list(self, start: str, end: str | None, limit: int) -> BlobPage:
        """One request for the names, and one for their deadlines; more where either fills a page."""
        if end is not None and start >= end:
            return BlobPage((), (), None)
        at, most = start, min(limit, PAGE_MAX)
        while True:
            page = await self._page(
                f"listing the blobs of bucket {self.client.bucket!r} from {at!r} on", before(at) if at else "", limit=most
            )
            told = page.items
            found = [each for each in told if start <= each["Key"] and (end is None or each["Key"] < end)]
            own = [each for each in found if not self._beside.hides(each["Key"])]
            is_last = page.is_last or (end is not None and told[-1]["Key"] >= end)
            if own or is_last:
                deadlines = await self._deadlines([each["Key"] for each in own])
                return BlobPage(_listed(own, deadlines), (), None if is_last else f"{told[-1]['Key']}\0")
            at = self._past(told[-1]["Key"])
            if end is not None and at >= end:
                return BlobPage((), (), None)

    def _past(self, name: str) -> str:
        """Where a listing goes on after this name: past everything that is hidden with it."""
        for place in (self._beside.markers, self._beside.amendments):
            if name.startswith(place):
                return f"{place[:-1]}0"  # `0` comes after `/`
        return f"{name}\0"

    async def _deadlines(self, names: Sequence[str]) -> Mapping[str, int]:
        """The latest deadlines of those that have any."""
        wanted, deadlines = {name for name in names if not is_copy(name, self._beside.prefix)}, dict[str, int]()
        if not wanted:
            return deadlines
        places = [self._beside.of(name) for name in wanted]
        last, doing = f"{max(places)}g", "listing the deadlines of blobs"  # after all hexadecimal digits
        async for items in pages(partial(self._page, doing), before(min(places)), last):
            for each in items:
                if (marked := self._beside.blob_of(each["Key"])) is not None and marked[0] in wanted:
                    deadlines[marked[0]] = max(marked[1], deadlines.get(marked[0], 0))
        return deadlines

    async def names_below(self, prefix: str) -> Sequence[str]:
        doing = f"listing the names of bucket {self.client.bucket!r} that begin with {prefix!r}"
        return [each["Key"] for each in await self._all_below(doing, prefix)]

    async def _all_below(self, doing: str, prefix: str) -> Sequence[Mapping[str, Any]]:
        """All objects whose names begin so: a service may list fewer at once than it is asked for."""
        return [each async for items in pages(lambda after: self._page(doing, after, prefix), "") for each in items]

    async def _page(self, doing: str, after: str, prefix: str = "", limit: int = PAGE_MAX) -> ListedKeys:
        page = await objects(self.client, doing, after=after, prefix=prefix, limit=limit)
        assert not isinstance(page, Refusal), "no code is accepted"
        return page

    async def now_ns(self) -> int:
        """The service's clock, in whole seconds, from the header `Date` of the smallest request there is."""
        doing = f"asking the time of {self.client.endpoint}"
        page = await self._page(doing, "", OWNERS, 1)
        date = page.answer["ResponseMetadata"]["HTTPHeaders"].get("date", "")
        try:
            return int(parsedate_to_datetime(date).timestamp()) * NS_PER_S
        except ValueError:
            raise UnavailableError(f"{doing} failed: its answer has no Date ({date!r})") from None

    async def owners(self) -> Sequence[Marker]:
        """The markers that say which store owns which names. One request, and one for each of them."""
        doing = f"looking who owns the blobs of bucket {self.client.bucket!r}"
        items: list[Mapping[str, Any]] = []
        for each in await self._all_below(doing, OWNERS):
            answer = await self._look(each["Key"])
            if answer is not None:
                items.append({"name": each["Key"], "metadata": answer.get("Metadata"), "generation": 0})
        return decode_markers(items)


def _check_own(name: str, told: Stored, nonce: str) -> None:
    """Raises `UnavailableError` if the blob that is there is another upload's."""
    if told.nonce != nonce:
        raise UnavailableError(f"blob {name!r} exists already, and nothing is overwritten").telling(heard=True)


def _generation(answer: Answer) -> Generation:
    return generation_of(tag_of(answer), ns_of(answer["LastModified"]))


def _told(found: Stored) -> Metadata:
    """The metadata of a copy. A time of creation that the service told is not the caller's."""
    own = found.metadata
    return own.with_facts(time_created_ns=None) if own.time_created_ns == found.created_ns else own


def _size_of(answer: Answer) -> int:
    """Of how many bytes the blob is that an answer has, or has a range of."""
    told = str(answer.get("ContentRange", ""))
    return int(told.rpartition("/")[2]) if told else int(answer["ContentLength"])


def _listed(told: Sequence[Answer], deadlines: Mapping[str, int]) -> Sequence[BlobInfo]:
    return [
        ListedBlob(each["Key"], each["Size"], ns_of(each["LastModified"]), deadlines.get(each["Key"]), _generation(each)) for each in told
    ]
