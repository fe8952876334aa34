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
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Self

from anyio import create_task_group
from anyio.abc import TaskGroup

from changelog.base.errors import ConfigurationError, CorruptRecordError, InvalidRequestError, TieredError, UnavailableError
from changelog.base.runtime import Runtime
from changelog.base.tasks import end_tasks
from tiered.metadata import NS_PER_S, Metadata, is_expired
from tiered.payload.chunks import Chunk
from tiered.payload.crc32c import encode_crc, extend_crc
from tiered.protocol.backends import BlobHead, ByteRange
from tiered.protocol.capabilities import DeletedGeneration, Part, SessionPage, check_parts
from tiered.protocol.checked_ranges import CheckedRanges, check_crc
from tiered.protocol.owners import OWNERS, Marker, decode_markers
from tiered.protocol.resuming import Resuming
from tiered.protocol.scans import BlobInfo, BlobPage, Generation, ListedBlob, NotCopied, Removal
from tiered.protocol.upload_lanes import LaneUpload, UploadLanes
from tiered.s3.answers import is_body_of
from tiered.s3.arrival import answer_proves, crc_of, is_there
from tiered.s3.client import ANSWER_TIMEOUT_S, CONNECTIONS_MAX, Answer, AnswerBody, S3Client, SharedSession
from tiered.s3.copies import COPIED_BYTES_MAX, S3Copy, copy_parts, other_layout
from tiered.s3.errors import PASSING_OR_UNCLEAR, Refusal, begun, error_of, odd
from tiered.s3.format import (
    SHOWN,
    Beside,
    Stored,
    before,
    decode_amended,
    decode_object,
    encode_amended,
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
from tiered.s3.listings import PAGE_MAX, ListedKeys, objects, versions
from tiered.s3.parts import S3Parts
from tiered.s3.upload import SINGLE_BYTES_MAX, SinglePut, gone_at_once, put_once

UPLOAD_BUDGET_S = 30.0
LANES = UploadLanes()
STREAM_LANES = 2
"""Of a stream whose size nobody knows, or that is not large: one part is gathered while the one before goes up."""
ATTEMPTS_MAX = 5
NO_KEY = "NoSuchKey"
_NOT_THIS = ("NoSuchVersion", "PreconditionFailed", "ConditionalRequestConflict")
"""Why a generation is not deleted: it is not what has the name, or somebody changes that now."""
_BAD_RANGE = "InvalidRange"
_JSON = "application/json"
_OF_HEAD = frozenset(map(str, range(400, 500)))
"""HEAD gives a status and no words: of what is gone, of credentials that have expired, of rights that are missing."""


class S3Blobs:
    """`LongTermBackend`, on asyncio only, with the capabilities `PartUploads`, `SignedUrls`, `GarbageCollection` and
    `BlobRestoration`.

    Open it with `async with S3Blobs.connect(…)`.
    """

    def __init__(
        self, client: S3Client, tasks: TaskGroup, runtime: Runtime, prefix: str, lanes: UploadLanes, upload_budget_s: float,
        *, whole_checksums: bool,
    ) -> None:  # fmt: skip
        self.client = client
        self._tasks = tasks
        self._runtime = runtime
        self._beside = Beside(prefix)
        self._resuming = Resuming(runtime, upload_budget_s, self._hold)
        self._in_parts = S3Parts(client, self._found, keeps_checksums=whole_checksums)
        self._lanes = lanes
        self._lanes_held = 0
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
        async with S3Client.connect(
            bucket, endpoint=endpoint, region=region, addressing_style=addressing_style, connections_max=connections_max,
            answer_timeout_s=answer_timeout_s, session=session,
        ) as client:
            tasks = create_task_group()
            await tasks.__aenter__()
            failure: BaseException | None = None
            try:
                yield cls(client, tasks, runtime, prefix, lanes, upload_budget_s, whole_checksums=whole_checksums)
            except BaseException as error:
                failure = error
                raise
            finally:
                await end_tasks(tasks, failure)

    # --- uploads

    async def open_upload(self, name: str, metadata: Metadata, size: int | None) -> SinglePut | LaneUpload[Stored]:
        self._beside.check(name, metadata)
        declared = metadata.size if size is None else size
        marked = partial(self._mark, name, metadata.time_expires_ns)
        if declared is not None and declared <= SINGLE_BYTES_MAX:
            encode_metadata(name, metadata)  # so that what is too much is refused at once
            return SinglePut(self.client, self._resuming, name, metadata, declared, self._found, lambda _: marked())
        return await self._open_lanes(name, metadata, declared, marked)

    def _hold(self, size: int) -> bool:
        if size > 0 and self._lanes_held + size > self._lanes.memory_bytes:
            return False
        self._lanes_held += size
        return True

    async def _open_lanes(
        self, name: str, metadata: Metadata, declared: int | None, marked: Callable[[], Any]
    ) -> LaneUpload[Stored]:
        lanes = self._lanes
        is_large = declared is not None and declared > lanes.from_bytes
        held = lanes.count * lanes.part_of(declared)
        if not is_large or not self._hold(held):
            held, lanes = 0, UploadLanes(STREAM_LANES, lanes.from_bytes, lanes.part_bytes, lanes.memory_bytes)
        nonce = self._nonce()

        async def before_end(amended: Metadata | None) -> None:
            await marked()
            if amended is not None:
                await self._amend(name, nonce, amended)

        async def settle(told: Stored, _: Metadata | None) -> None:
            _check_own(name, told, nonce)

        try:
            session = await self._resuming.begin(lambda: self._in_parts.begin(name, metadata, nonce), PASSING_OR_UNCLEAR)
        except BaseException:
            self._hold(-held)
            raise
        return LaneUpload(
            self._in_parts, self._tasks, self._resuming, lanes, name, declared, session, settle, lambda: self._give_back(held), before_end,
            creates_only=True,
        )

    def _give_back(self, held: int) -> None:
        self._lanes_held -= held

    async def _mark(self, name: str, deadline_ns: int | None) -> None:
        """Writes a deadline of the blob, if it has one."""
        if deadline_ns is not None and not is_copy(name, self._beside.prefix):
            doing = f"writing the deadline of blob {name!r}"
            await self.client.call("put_object", doing, effect=True, body=b"", ContentLength=0, Key=self._beside.marker(name, deadline_ns))

    async def _amend(self, name: str, nonce: str, metadata: Metadata) -> None:
        if (excess := self._beside.amendment_excess(name)) > 0:
            raise InvalidRequestError(
                f"the name of blob {name!r} leaves no room in S3 for metadata that are known only at the end: shorten the key or the"
                f" scopes by {excess} bytes, or tell them at the beginning"
            )
        body, doing = encode_amended(metadata), f"writing the last metadata of blob {name!r}"
        key, crc = self._beside.amendment(name, nonce), extend_crc(0, body)
        answer = await self.client.call(
            "put_object", doing, effect=True, body=body, ContentLength=len(body), Key=key, ChecksumCRC32C=encode_crc(crc),
            ContentType=_JSON,
        )  # fmt: skip
        assert not isinstance(answer, Refusal), "no code is accepted"
        if not await answer_proves(doing, answer, [body], crc) and not await is_there(self.client, key, self._found, [body], crc):
            raise gone_at_once(key)

    async def cancel(self, session: str) -> None:
        """Ends an upload session. `CorruptRecordError`: it is none of this bucket; nothing was sent."""
        await self._in_parts.cancel(session)

    def cancel_soon(self, session: str) -> None:
        with suppress(RuntimeError):  # the adapter is closed; recovery cancels it later, or the bucket ends it
            self._tasks.start_soon(self._cancel_quietly, session)

    async def _cancel_quietly(self, session: str) -> None:
        with suppress(TieredError):  # as above
            await self._in_parts.cancel(session)

    async def begin_parts(self, name: str, metadata: Metadata) -> str:
        """The deadline is written now, because nobody knows who completes the blob; if that is too late, once more."""
        self._beside.check(name, metadata)
        await self._mark(name, metadata.time_expires_ns)
        return await self._in_parts.begin(name, metadata)

    async def put_part(self, name: str, session: str, number: int, payload: Sequence[Chunk]) -> Part:
        return await self._in_parts.put(name, session, number, payload)

    async def parts(self, name: str, session: str) -> Sequence[Part]:
        return await self._in_parts.listed(name, session)

    async def complete_parts(self, name: str, session: str, parts: Sequence[Part]) -> None:
        check_parts(name, parts)
        await self._in_parts.check(name, session, parts)
        expires_ns = (await self._in_parts.complete(name, session, parts)).metadata.time_expires_ns
        if is_expired(expires_ns, self._runtime.wall_ns()):  # what was written when it was begun may have been collected since
            await self._mark(name, expires_ns)

    async def open_sessions(self, before_ns: int, after: str, limit: int, prefix: str = "") -> SessionPage:
        return await self._in_parts.open(prefix, before_ns, after, limit)

    async def sign_read(self, name: str, expires_in_s: int, disposition: str) -> str | None:
        doing = f"signing an address of blob {name!r}"
        return await self.client.sign("get_object", expires_in_s, doing, Key=name, ResponseContentDisposition=disposition)

    async def sign_part(self, name: str, session: str, number: int, expires_in_s: int) -> str | None:
        named = self._in_parts.query_of(name, session, number)
        return await self.client.sign("upload_part", expires_in_s, f"signing an address of a part of blob {name!r}", Key=name, **named)

    # --- reads

    async def open(self, name: str, range: ByteRange | None = None) -> S3Reader | None:
        """Tells the deadline of the blob's creation, also if a touch has extended it."""
        if range is not None and not _can_tell(range):
            return await self._open_within(name, range)
        doing = f"reading blob {name!r}"
        ranged = {} if range is None else {"Range": _header(range.start, range.stop)}
        opened = await self.client.open_body(doing, accept=(NO_KEY, _BAD_RANGE), Key=name, ChecksumMode="ENABLED", **ranged)
        if isinstance(opened, Refusal):
            return await self._open_within(name, range) if opened.code == _BAD_RANGE else None
        answer, body = opened
        reader: S3Reader | None = None
        try:
            size = _size_of(answer)
            stored = await self._whole(name, answer, size)
            start, stop = (0, size) if range is None else range.within(size)
            reader = S3Reader(self, name, stored, body, (start, stop))
            if answer["ContentLength"] != stop - start:
                raise odd(doing, effect=False, what=f"with {answer['ContentLength']} bytes instead of {stop - start}")
            return reader
        except BaseException:
            reader = None
            raise
        finally:
            if reader is None:
                body.close()

    async def _open_within(self, name: str, range: ByteRange | None) -> S3Reader | None:
        """Opens a range that only the size makes a range of HTTP, or that has no bytes."""
        stored = await self._found(name)
        if stored is None:
            return None
        start, stop = (0, stored.size) if range is None else range.within(stored.size)
        if start == stop:
            return S3Reader(self, name, stored, None, (start, stop))
        reader = await self._open_range(name, stored, start, stop)
        if reader is None:
            raise UnavailableError(f"blob {name!r} was replaced while it was being opened; try again").telling(heard=True)
        return reader

    async def _open_range(self, name: str, stored: Stored, start: int, stop: int) -> S3Reader | None:
        """Opens bytes of this generation. None: it is gone."""
        doing = f"reading blob {name!r}"
        opened = await self.client.open_body(
            doing, accept=(NO_KEY, "PreconditionFailed", _BAD_RANGE), Key=name, Range=_header(start, stop), IfMatch=f'"{stored.etag}"'
        )
        if isinstance(opened, Refusal):
            return None
        answer, body = opened
        if _generation(answer) == stored.generation and answer["ContentLength"] == stop - start:
            return S3Reader(self, name, stored, body, (start, stop))
        body.close()
        if _generation(answer) == stored.generation:
            raise odd(doing, effect=False, what=f"with {answer['ContentLength']} bytes instead of {stop - start}")
        return None

    async def _whole(self, name: str, answer: Answer, size: int) -> Stored:
        """What an answer tells of a blob, with what was amended. The answer to a range may leave out the checksum."""
        amended = await self._amended(name, nonce_of(answer))
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

    async def _amended(self, name: str, nonce: str | None) -> Mapping[str, str] | None:
        """What was known of a session only at its end. None: nothing, or it was no session."""
        if nonce is None or self._beside.amendment_excess(name) > 0:
            return None
        doing = f"reading the last metadata of blob {name!r}"
        opened = await self.client.open_body(doing, accept=(NO_KEY,), Key=self._beside.amendment(name, nonce))
        if isinstance(opened, Refusal):
            return None
        body, read = opened[1], b""
        try:
            while chunk := await body.read():
                read += chunk
        finally:
            body.close()
        if opened[0].get("ContentType") != _JSON or not is_body_of(opened[0], read):
            raise odd(doing, effect=False, what="with what is no JSON, or has another ETag")
        return decode_amended(name, read)

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
        amended = await self._amended(name, nonce_of(answer))
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
        shown = {header: str(answer[key]) for key, header in SHOWN.items() if answer.get(key)}
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
        hidden = await self._hidden(name)
        if hidden is None:
            return []
        version, markers = hidden
        address = f"s3://{self.client.bucket}/{name}#{markers[0]['VersionId']}"
        return [DeletedGeneration(address, version["Size"], _generation(version), ns_of(markers[0]["LastModified"]), None)]

    async def restore(self, name: str, generation: Generation) -> Generation | None:
        """Takes away the delete markers above this version, which is what the name shows then.

        This overwrites nothing, and brings nothing back that is deleted later: it names the markers that were seen.
        What was amended of the blob is uncovered before it, and its deadline is written again. It keeps its generation,
        where the service keeps its time.
        """
        hidden, doing = await self._hidden(name), f"restoring generation {generation} of blob {name!r}"
        if hidden is None or _generation(hidden[0]) != generation:
            return None
        version, markers = hidden
        opened = await self.client.open_body(doing, Key=name, VersionId=version["VersionId"])  # a refusal of HEAD has no words
        assert not isinstance(opened, Refusal), "no code is accepted"
        told, body = opened
        body.close()
        if (nonce := nonce_of(told)) is not None and self._beside.amendment_excess(name) <= 0:
            amendment = self._beside.amendment(name, nonce)
            beside = await self._hidden(amendment)
            await self._uncover(amendment, () if beside is None else beside[1], doing)
        await self._mark(name, decode_object(name, told).metadata.time_expires_ns)
        with begun(doing):
            now = await self._uncover(name, markers, doing)
        return _generation(now) if now is not None and tag_of(now) == tag_of(version) else None

    async def _hidden(self, name: str) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]] | None:
        """The newest version of a name, and its delete markers, the newest first. None: no marker hides a version."""
        kept = await versions(self.client, f"listing the versions of blob {name!r}", name)
        markers = sorted((each for each in kept if "ETag" not in each), key=lambda each: not each.get("IsLatest"))
        version = next((each for each in kept if "ETag" in each), None)
        return None if version is None or not markers or not markers[0].get("IsLatest") else (version, markers)

    async def _uncover(self, name: str, markers: Sequence[Mapping[str, Any]], doing: str) -> Answer | None:
        """Takes markers away, the newest first, until something has the name. Returns the answer to its HEAD."""
        now: Answer | None = None
        for each in markers:
            if now is None:
                await self.client.call("delete_object", doing, effect=True, accept=(NO_KEY,), Key=name, VersionId=each["VersionId"])
                now = await self._look(name)
        return now

    # --- copies

    async def open_copy(self, source: str, generation: Generation, name: str, metadata: Metadata) -> S3Copy:
        """A session, so recovery can cancel it. The deadline is written when it is finalised."""
        self._beside.check(name, metadata)
        nonce, found = self._nonce(), await self._found(source)
        crc32c = None if found is None or found.generation != generation else found.crc32c
        session = await self._in_parts.begin(name, metadata, nonce, crc32c=crc32c, is_copy=True)
        return S3Copy(self, source, generation, name, session, nonce, metadata)

    async def finish_copy(
        self, source: str, generation: Generation, name: str, session: str, nonce: str, metadata: Metadata
    ) -> None:
        found = await self._found(source)
        if found is None or found.generation != generation:
            message = f"copying blob {source!r} to {name!r} failed: the source is gone, or is another"
            raise UnavailableError(message).coded("404", heard=True)
        parts = await copy_parts(self._in_parts, source, found, name, session, COPIED_BYTES_MAX)
        await self._mark(name, metadata.time_expires_ns)
        _check_own(name, await self._complete_copy(source, found, name, session, parts), nonce)

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
        for hidden in (self._beside.markers, self._beside.amendments):
            if name.startswith(hidden):
                return f"{hidden[:-1]}0"  # `0` comes after `/`
        return f"{name}\0"

    async def _deadlines(self, names: Sequence[str]) -> Mapping[str, int]:
        """The latest deadlines of those that have any."""
        wanted, deadlines = {name for name in names if not is_copy(name, self._beside.prefix)}, dict[str, int]()
        if not wanted:
            return deadlines
        places = [self._beside.of(name) for name in wanted]
        after, last = before(min(places)), f"{max(places)}g"  # after all hexadecimal digits
        while True:
            page = await self._page("listing the deadlines of blobs", after)
            for each in page.items:
                if (marked := self._beside.blob_of(each["Key"])) is not None and marked[0] in wanted:
                    deadlines[marked[0]] = max(marked[1], deadlines.get(marked[0], 0))
            if page.is_last or page.items[-1]["Key"] >= last:
                return deadlines
            after = page.items[-1]["Key"]

    async def _all_below(self, doing: str, prefix: str) -> Sequence[Mapping[str, Any]]:
        """All objects whose names begin so: a service may list fewer at once than it is asked for."""
        found: list[Mapping[str, Any]] = []
        after = ""
        while True:
            page = await self._page(doing, after, prefix)
            found += page.items
            if page.is_last:
                return found
            after = page.items[-1]["Key"]

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


class S3Reader:
    """`BlobReader` of one generation, and the iterator over its chunks.

    If a whole blob is read, its crc32c is verified. It is no generator, so it may be abandoned at any point. Its place
    is given back by `aclose`.
    """

    def __init__(self, blobs: S3Blobs, name: str, stored: Stored, body: AnswerBody | None, extent: tuple[int, int]) -> None:
        self.metadata = stored.metadata
        self.size = stored.size
        self.checksum = stored.checksum
        self._blobs = blobs
        self._name = name
        self._stored = stored
        self._body = body
        self._left = extent[1] - extent[0]
        self._crc: int | None = 0 if self._left == stored.size else None

    def ranges(self) -> S3Ranges:
        is_whole, self._crc = self._crc is not None, None
        return S3Ranges(self._blobs, self._name, self._stored, is_whole=is_whole)

    def chunks(self) -> AsyncIterator[bytes]:
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._left == 0:
            self._close()
            if self._crc == 0:  # nothing came: the blob is empty, or the answer was
                check_crc(self._name, self._stored.crc32c, 0)
            raise StopAsyncIteration
        if self._body is None:
            raise InvalidRequestError("the blob was closed while it was read; get it again")
        chunk = await self._body.read()
        if not chunk or len(chunk) > self._left:
            what = "more bytes came than it has" if chunk else f"{self._left} bytes did not come"
            raise UnavailableError(f"reading blob {self._name!r} failed: {what}")
        self._left -= len(chunk)
        if self._crc is not None:
            self._crc = extend_crc(self._crc, chunk)
            if self._left == 0:
                check_crc(self._name, self._stored.crc32c, self._crc)
        return chunk

    async def aclose(self) -> None:
        """Drops the connection if there are unread bytes."""
        self._close()

    def _close(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            body.close()


class S3Ranges(CheckedRanges):
    """`BlobRanges` of one generation. `is_whole`: its bytes are verified by the crc32c of the whole."""

    def __init__(self, blobs: S3Blobs, name: str, stored: Stored, *, is_whole: bool) -> None:
        super().__init__(name, stored.crc32c if is_whole else None)
        self._blobs = blobs
        self._stored = stored

    async def open(self, start: int, stop: int) -> S3Reader | None:
        return await self._blobs._open_range(self._name, self._stored, start, stop)


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


def _listed(told: Sequence[Mapping[str, Any]], deadlines: Mapping[str, int]) -> Sequence[BlobInfo]:
    found: list[BlobInfo] = []
    for each in told:
        name, created_ns = each["Key"], ns_of(each["LastModified"])
        found.append(ListedBlob(name, each["Size"], created_ns, deadlines.get(name), generation_of(tag_of(each), created_ns)))
    return found


def _can_tell(range: ByteRange) -> bool:
    """Whether HTTP can express the range. It cannot express an empty one, nor one from the end that has a stop."""
    return range.stop is None or 0 <= range.start < range.stop


def _header(start: int, stop: int | None) -> str:
    return f"bytes={start}{'' if start < 0 else '-'}{'' if stop is None else stop - 1}"
