"""`GcsBlobs`, the long-term tier in a bucket of Google Cloud Storage, over its JSON API.

    open_upload    1 call for a blob of known size up to 8 MiB, sent as it is written; else 2: a session and one PUT. In
                   lanes: 4, and 1 for each part
    open           2 at once: what the blob is, and its bytes; they belong together iff their generations agree (I7)
    a range        1, for more bytes of the generation that was opened
    head, delete   1; delete_generations 1 for all; generations 1 for each 100
    touch          2: what it is, and a change that holds only if it is still that
    list           1 for each page of up to 1,000
    deleted_generations     2
    restore                 1, or 2 for a noncurrent generation
    kept           1 for each page of up to 1,000, and 1 for the bucket
    now_ns         1
    sign_read, sign_part     none; the signer may ask IAM
    begin_parts, put_part, parts, complete_parts, cancel   as in `parts.py`; 1 more if entries came packed
    owners         1

A blob is only ever created, under a name that holds its revision. Expired blobs are removed by a lifecycle rule of the
bucket, some time after the blob's custom time. *Crash* anywhere: a blob is there as a whole or not at all; what is left
of an upload is described in `tiered.gcs.upload`.

*Failure*: see `tiered.gcs.http`. A missing blob and a missing bucket are told apart. Only the first is absence; the
second would otherwise look like the loss of all data. Nothing is repeated here, except what the store cannot repeat
itself: a read whose two answers show different generations, a touch when another touch came first, and the question for
the status of a finalised session.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from email.utils import parsedate_to_datetime
from functools import partial
from operator import attrgetter
from typing import Any, Self

from anyio.abc import TaskGroup

from changelog.base.errors import (
    ConfigurationError,
    CorruptRecordError,
    TieredError,
    UnavailableError,
    UnconfirmedError,
)
from changelog.base.events import events
from changelog.base.runtime import Runtime
from changelog.base.tasks import tasks_beside
from changelog.change import ChangeId
from changelog.google.authorize import Authorize, Sign
from tiered.buckets.owners import OWNER_FIELDS, OWNERS, Marker, decode_markers
from tiered.gcs.answers import GcsResponse, a_bucket, a_listing, a_page, nothing
from tiered.gcs.batches import BATCH_HEADERS, Batch
from tiered.gcs.copies import copy_anew, rewrite
from tiered.gcs.format import (
    EDITABLE_FIELDS,
    GENERATION_FIELDS,
    KEPT_FIELDS,
    LISTED_FIELDS,
    LISTED_HEAD_FIELDS,
    NONCURRENT_FIELDS,
    OTHER_KEYS,
    RESOURCE_FIELDS,
    SOFT_DELETED_FIELDS,
    ListingPage,
    Resource,
    are_headers,
    decode_deleted,
    decode_kept,
    decode_resource,
    encode_brought_back,
    encode_set_aside,
    encode_time,
    encode_unpacked,
    is_earlier,
    is_told_time,
)
from tiered.gcs.http import BETWEEN, ENDPOINT, JSON, GcsHttp, GcsRequest, Media, check_of
from tiered.gcs.parts import GcsParts, is_of_parts
from tiered.gcs.signed_urls import SignedUrl
from tiered.gcs.stored import amend_stored, check_stored
from tiered.gcs.upload import GcsUpload, cancel_session, open_upload
from tiered.metadata import NS_PER_S, Metadata, is_expired
from tiered.services.backends import BlobHead, ByteRange
from tiered.services.capabilities import DELETIONS_MAX, DeletedGeneration, KeptPage, Part, Retention
from tiered.services.concurrent import map_concurrently, run_both
from tiered.services.scans import BlobInfo, BlobPage, Generation, NotCopied, Oddity, Removal
from tiered.transfer.reading import BucketReader, header_from, header_of
from tiered.transfer.upload_lanes import LaneUpload, UploadLanes
from tiered.transfer.uploads import LANES, UPLOAD_BUDGET_S, BucketCopy, TakesUploads

CONNECTIONS_MAX = 256
ANSWER_TIMEOUT_S = 10.0
ATTEMPTS_MAX = 5
PAGE_MAX = 1000
ALONE_AT_ONCE = 16
BATCH_ANSWERS = 6
"""A request with many calls may take as long as so many answers: the service carries them out one by one."""

_NO_LANES = ("200", "400", "403", "404", "405", "501")
"""What a service says that takes no uploads in parts, or takes none from this identity."""

_REMOVALS = {200: Removal.DELETED, 204: Removal.DELETED, 412: Removal.REPLACED}
_NAME = attrgetter("name")
_TOUCHED = "name,generation,customTime"


class GcsBlobs(TakesUploads[GcsParts]):
    """`LongTermBackend`, on asyncio only, with seven capabilities.

    `BlobRestoration`, `BatchDeletion`, `RetentionUsage`, `BatchHeads`, `GenerationLookup`, `PartUploads` and
    `SignedUrls`.

    Open it with `async with GcsBlobs.connect(…)`.
    """

    def __init__(
        self, http: GcsHttp, tasks: TaskGroup, runtime: Runtime, lanes: UploadLanes, upload_budget_s: float, sign: Sign | None = None
    ) -> None:
        super().__init__(GcsParts(http, lambda name: http.resource(name, RESOURCE_FIELDS)), tasks, runtime, lanes, upload_budget_s)
        self._http = http
        self._sign = sign

    @property
    def http(self) -> GcsHttp:
        """Its requests, for probes that send what no call sends."""
        return self._http

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, bucket: str, runtime: Runtime, *, endpoint: str | None = None, authorize: Authorize | None = None,
        connections_max: int = CONNECTIONS_MAX, answer_timeout_s: float = ANSWER_TIMEOUT_S, lanes: UploadLanes = LANES,
        upload_budget_s: float = UPLOAD_BUDGET_S, sign: Sign | None = None,
    ) -> AsyncIterator[Self]:  # fmt: skip
        """Opens the bucket; sends nothing yet. When the block is left, uploads that were not finalised are dropped.

        `endpoint` None: the real service. An emulator needs no `authorize` and no `sign`. `answer_timeout_s`: how long
        an answer may take, and how long sending or receiving one chunk of a body may take, in seconds. Each upload and
        each open reader holds one of `connections_max` connections, and each part of an upload in lanes.
        `upload_budget_s`: an upload that was cut off goes on until it has made no progress for so long, in seconds. 0:
        it does not go on.
        """
        async with (
            GcsHttp.connect(endpoint or ENDPOINT, bucket, authorize, connections_max, answer_timeout_s) as http, tasks_beside() as tasks,
        ):  # fmt: skip
            yield cls(http, tasks, runtime, lanes, upload_budget_s, sign)

    async def open_upload(self, name: str, metadata: Metadata, size: int | None) -> GcsUpload | LaneUpload[Mapping[str, Any]]:
        declared = metadata.size if size is None else size
        refused: TieredError | None = None
        if self._goes_in_lanes(name, declared):
            try:
                return await self._open_lanes(name, metadata, declared)
            except TieredError as error:
                if error.code not in _NO_LANES:
                    raise
                refused = error
        upload = await open_upload(self._http, self._tasks, self._resuming, name, metadata, size)
        if refused is not None:  # and that was not: so it is about parts
            if refused.heard:  # something in between may have answered, and be gone the next time
                self._lanes = replace(self._lanes, count=1)
            events.warning("lanes_refused", refused, bucket=self._http.bucket)
        return upload

    def _goes_in_lanes(self, name: str, declared: int | None) -> bool:
        lanes = self._lanes
        return (
            lanes.count > 1 and declared is not None and declared > lanes.from_bytes and ChangeId.matches(name.rpartition("/")[2])
            and self._resuming.has_room(lanes.memory_of(declared))
        )

    async def _open_lanes(self, name: str, metadata: Metadata, declared: int | None) -> LaneUpload[Mapping[str, Any]]:
        async def settle(told: Mapping[str, Any], amended: Metadata | None) -> None:
            if amended is None:
                await check_stored(self._http, name, metadata, told)
            else:
                await amend_stored(self._http, self._resuming, name, amended)

        held = self._lanes.memory_of(declared)
        session = await self._resuming.begin(lambda: self._in_parts.begin(name, metadata, packs=False), held=held)
        upload = LaneUpload(self._in_parts, self._tasks, self._resuming, self._lanes, name, declared, session, settle, held)
        if not are_headers(metadata):
            upload.amend(metadata)
        return upload

    async def open_copy(self, source: str, generation: Generation, name: str, metadata: Metadata) -> BucketCopy:
        return BucketCopy(partial(copy_anew, self._http, self._runtime, source, generation, name, metadata))

    async def cancel(self, session: str) -> None:
        await (super().cancel(session) if is_of_parts(session) else cancel_session(self._http, session))

    async def begin_parts(self, name: str, metadata: Metadata) -> str:
        return await self._in_parts.begin(name, metadata)

    async def complete_parts(self, name: str, session: str, parts: Sequence[Part]) -> None:
        await self._in_parts.check(name, session, parts)
        told = await self._in_parts.complete(name, session, parts)
        if (unpacked := encode_unpacked(told)) is not None:
            doing, url = f"unpacking the metadata of blob {name!r}", self._http.object_url(name, fields="name,metageneration")
            with suppress(TieredError):  # this is for other software: our readers unpack them
                shape = self._http.an_object(name, "name,metageneration")
                await self._http.call(GcsRequest("PATCH", url, doing, shape, accept=(200, 404), headers=JSON, body=unpacked, effect=True))

    async def open(self, name: str, range: ByteRange | None = None) -> BucketReader | None:
        for _ in itertools.repeat(None, ATTEMPTS_MAX):
            opened: list[Media] = []
            reader: BucketReader | None = None
            try:
                resource = await self._open_both(name, range, opened)
                if resource is None:
                    return None
                start, stop = (0, resource.size) if range is None else range.within(resource.size)
                reader = self._reader(name, resource, start, stop, opened)
                if reader is not None:
                    return reader
            finally:
                if reader is None:
                    for media in opened:
                        media.close()
        message = f"blob {name!r} was replaced {ATTEMPTS_MAX} times while it was being opened, or something in between withholds its bytes"
        raise UnavailableError(f"{message}; try again").telling(heard=True)

    async def _open_both(self, name: str, range: ByteRange | None, opened: list[Media]) -> Resource | None:
        """Asks what the blob is, and at the same time for its bytes, which are put into `opened`.

        If HTTP cannot express the range without the size, the size is asked for first.
        """

        async def open_media(header: Mapping[str, str]) -> None:
            doing = f"reading blob {name!r}"
            opened.append(await self._http.open_media(self._http.object_url(name, alt="media"), header, doing, (200, 206, 404, 416)))

        header = header_of(range)
        if header is not None:
            return (await run_both(lambda: self._resource(name), partial(open_media, header)))[0]
        resource = await self._resource(name)
        if resource is not None and range is not None:
            start, stop = range.within(resource.size)
            if start < stop:
                await open_media(header_from(start, stop))
        return resource

    async def _open_range(self, name: str, resource: Resource, start: int, stop: int) -> BucketReader | None:
        """Opens more bytes of a generation, also of a noncurrent one. None: it is gone. `start` is before `stop`."""
        doing = f"reading blob {name!r}"
        url = self._http.object_url(name, alt="media", generation=resource.generation)
        media = await self._http.open_media(url, header_from(start, stop), doing, (200, 206, 404))
        reader: BucketReader | None = None
        try:
            if media.status != 404:
                reader = self._reader(name, resource, start, stop, [media])
                if reader is None:
                    raise UnavailableError(f"{doing} failed: another generation came than was asked for; {BETWEEN}").telling(heard=True)
                return reader
        finally:
            if reader is None:
                media.close()
        found = await self._resource(name)
        if found is None or found.generation != resource.generation:
            return None
        raise UnavailableError(f"{doing} failed: its bytes were not found, and it is there; {BETWEEN}").telling(heard=True)

    def _reader(self, name: str, resource: Resource, start: int, stop: int, opened: Sequence[Media]) -> BucketReader | None:
        """The reader, if the bytes are those of this resource; None: they are of another generation, or absent."""
        if start == stop:
            for media in opened:
                media.close()
            return BucketReader(name, resource, None, (start, stop), partial(self._open_range, name, resource))
        [media] = opened
        if media.status not in (200, 206) or media.headers.get("X-Goog-Generation") != resource.generation:
            return None
        if _first_byte(media) != start or media.headers.get("Content-Length", str(stop - start)) != str(stop - start):
            others = f"bytes {start} to {stop} were asked for, and others came ({media.status} {media.headers.get('Content-Range', '')})"
            raise UnavailableError(f"reading blob {name!r} failed: {others}; {BETWEEN}, if it knows no Range").telling(heard=True)
        return BucketReader(name, resource, media, (start, stop), partial(self._open_range, name, resource))

    async def head(self, name: str) -> BlobHead | None:
        found = await self._resource(name)
        return None if found is None else _head_of(found)

    async def sign_read(self, name: str, expires_in_s: int, disposition: str) -> str | None:
        if self._sign is None:
            return None
        query = {"response-content-disposition": disposition}
        return await self._signed(self._sign, name, expires_in_s, query, "GET")

    async def sign_part(self, name: str, session: str, number: int, expires_in_s: int) -> str | None:
        query = self._in_parts.query_of(name, session, number)
        return None if self._sign is None else await self._signed(self._sign, name, expires_in_s, query, "PUT")

    async def _signed(self, sign: Sign, name: str, expires_in_s: int, query: Mapping[str, str], method: str) -> str:
        url = SignedUrl(self._http.endpoint, self._http.bucket, name, self._runtime.wall_ns(), expires_in_s, query, method)
        return url.signed(*await sign(url.to_sign))

    async def heads(self, names: Sequence[str]) -> Mapping[str, BlobHead]:
        """One page of a listing that begins with the first of the names."""
        wanted, first, last = set(names), min(names), max(names)
        doing = f"reading what {len(wanted)} blobs from {first!r} on are"
        # The end is excluded, so it is a name that is a little later.
        most = str(min(2 * len(wanted), PAGE_MAX))
        query = {"startOffset": first, "endOffset": f"{last} ", "maxResults": most, "fields": LISTED_HEAD_FIELDS}
        found: dict[str, BlobHead] = {}
        async for page in self._http.pages(query, doing):
            for item in page.get("items", []):
                if (name := item.get("name")) in wanted:
                    with suppress(CorruptRecordError):  # whoever asks for it alone is told
                        found[name] = _head_of(decode_resource(name, item))
        return found

    async def generations(self, blobs: Sequence[BlobInfo]) -> Mapping[str, Generation]:
        """A JSON batch for each `DELETIONS_MAX` of them. Each that it does not tell of is asked for alone."""
        found: dict[str, Generation] = {}
        for first in range(0, len(blobs), DELETIONS_MAX):
            names = [blob.name for blob in blobs[first : first + DELETIONS_MAX]]
            told = await self._told_together(names, f"looking at {len(names)} blobs in one request")
            left: list[str] = []
            for name, answer in zip(names, map(told.get, range(len(names))), strict=True):
                if answer is not None and answer.status == 404:
                    await self._http.check_gone(name, answer, f"looking at blob {name!r}", effect=False)
                elif answer is not None and answer.status == 200 and answer.is_genuine:
                    found[name] = answer.told["generation"]
                else:
                    left.append(name)
            alone = await map_concurrently(self._generation, left, ALONE_AT_ONCE)
            found |= {name: generation for name, generation in zip(left, alone, strict=True) if generation is not None}
        return found

    async def _told_together(self, names: Sequence[str], doing: str) -> Mapping[int, GcsResponse]:
        """What a batch tells of these blobs, by their places. Nothing, if the endpoint takes none."""
        paths = [self._http.object_url(name, fields=GENERATION_FIELDS).removeprefix(self._http.endpoint) for name in names]
        batch = self._batch([("GET", path) for path in paths])
        shapes = [self._http.an_object(name, GENERATION_FIELDS) for name in names]
        request = GcsRequest(
            "POST", self._http.batch_url, doing, batch.answers(shapes), headers=BATCH_HEADERS, body=batch.body, answers=BATCH_ANSWERS
        )
        try:
            told: Mapping[int, GcsResponse] = (await self._http.call(request)).told
            return told
        except ConfigurationError:
            return {}

    def _batch(self, calls: Sequence[tuple[str, str]]) -> Batch:
        return Batch(calls, f"{self._runtime.random.getrandbits(64):016x}")

    async def delete(self, name: str) -> None:
        doing = f"deleting blob {name!r}"
        url = self._http.object_url(name)
        answer = await self._http.call(GcsRequest(
            "DELETE", url, doing, nothing, accept=(200, 204, 404), effect=True, looked_into=(200, 404)
        ))
        if answer.status != 204:
            await self._http.check_gone(name, answer, doing)

    async def delete_generation(self, name: str, generation: Generation) -> Removal:
        doing, url = self._deletion(name, generation)
        answer = await self._http.call(GcsRequest(
            "DELETE", url, doing, nothing, accept=(*_REMOVALS, 404), effect=True, looked_into=(200, 404)
        ))
        return await self._removal(name, answer, doing)

    async def delete_generations(self, blobs: Sequence[tuple[str, Generation]]) -> Sequence[Removal | TieredError]:
        """A JSON batch. If the endpoint takes none, it is a `ConfigurationError`, and nothing was deleted."""
        doing = f"deleting {len(blobs)} blobs in one request"
        batch = self._batch([("DELETE", self._deletion(*blob)[1].removeprefix(self._http.endpoint)) for blob in blobs])
        answer = await self._http.call(GcsRequest(
            "POST", self._http.batch_url, doing, batch.answers([nothing] * len(blobs)), accept=(200, 404), headers=BATCH_HEADERS,
            body=batch.body, effect=True, answers=BATCH_ANSWERS,
        ))  # fmt: skip
        if answer.status == 404:
            raise ConfigurationError(f"{doing} failed with 404: {self._http.endpoint} takes no batches").coded("404")
        return [await self._removal_of_part(*blob, answer.told.get(part)) for part, blob in enumerate(blobs)]

    async def _removal_of_part(self, name: str, generation: Generation, answer: GcsResponse | None) -> Removal | TieredError:
        doing = self._deletion(name, generation)[0]
        if answer is None:
            return UnconfirmedError(f"{doing} was never confirmed: the answer to its batch leaves it out")
        if answer.status not in _REMOVALS and answer.status != 404:
            return self._http.refusal(answer, doing, effect=True)
        if not answer.is_genuine and answer.status not in (200, 404):
            return self._http.odd(answer, doing, effect=True)
        try:
            return await self._removal(name, answer, doing)
        except TieredError as error:
            return error

    def _deletion(self, name: str, generation: Generation) -> tuple[str, str]:
        url = self._http.object_url(name, ifGenerationMatch=generation)
        return f"deleting generation {generation} of blob {name!r}", url

    async def _removal(self, name: str, answer: GcsResponse, doing: str) -> Removal:
        if answer.status in (200, 404):
            await self._http.check_gone(name, answer, doing)
        return Removal.ABSENT if answer.status == 404 else _REMOVALS[answer.status]

    async def set_aside(self, name: str, generation: Generation, copy: str) -> Generation | NotCopied:
        """The copy has no custom time, so no lifecycle rule removes it. It keeps the deadline among its metadata."""
        found = await self._editable(name)
        if found is None:
            return NotCopied.ABSENT
        copied = await self._rewrite(name, generation, copy, encode_set_aside(found))
        if isinstance(copied, NotCopied):
            return copied
        return copied.generation if copied.metadata.time_expires_ns is None else NotCopied.EXPIRING

    async def bring_back(self, copy: str, generation: Generation, name: str, now_ns: int) -> Generation | NotCopied:
        found = await self._editable(copy)
        if found is None:
            return NotCopied.ABSENT
        body, deadline_ns = encode_brought_back(copy, found)
        if is_expired(deadline_ns, now_ns):
            return NotCopied.EXPIRING
        copied = await self._rewrite(copy, generation, name, body)
        return copied if isinstance(copied, NotCopied) else copied.generation

    async def _editable(self, name: str) -> Mapping[str, Any] | None:
        """What whoever copies a blob may set anew. None: there is no such blob."""
        found = await self._http.resource(name, f"name,{EDITABLE_FIELDS}")
        return None if found is None else {key: value for key, value in found.items() if key != "name"}

    async def _rewrite(self, name: str, generation: Generation, target: str, body: bytes) -> Resource | NotCopied:
        """Copies, whatever is answered. Then both checksums are compared. `body`: all metadata of the copy."""
        doing = f"copying generation {generation} of blob {name!r} to {target!r}"
        await rewrite(self._http, name, target, {"ifSourceGenerationMatch": generation}, doing, body=body)
        try:
            source = await self._resource(name)
            if source is None or source.generation != generation:
                return NotCopied.ABSENT if source is None else NotCopied.REPLACED
            copy = await self._resource(target)
        except UnavailableError as error:
            raise UnconfirmedError(f"{doing} was never confirmed: {error}").coded(error.code, heard=error.heard) from error
        if copy is None:
            raise UnavailableError(f"{doing} failed: the copy is not there; try again")
        if (copy.size, copy.crc32c) != (source.size, source.crc32c) or source.crc32c is None:
            return NotCopied.TAKEN
        return copy

    async def touch(self, name: str, deadline_ns: int) -> bool:
        """Extends the custom time, which never goes back. A blob without one keeps none."""
        body = f'{{"customTime":"{encode_time(deadline_ns)}"}}'.encode()
        doing, is_taken = f"extending the deadline of blob {name!r}", False
        for _ in itertools.repeat(None, ATTEMPTS_MAX):
            found = await self._resource(name)
            if found is None:
                return False
            if found.metadata.time_expires_ns is None or found.metadata.time_expires_ns >= deadline_ns // 1000 * 1000:
                return True
            url = self._http.object_url(
                name, ifGenerationMatch=found.generation, ifMetagenerationMatch=str(found.metageneration), fields=_TOUCHED
            )
            answer = await self._http.call(GcsRequest(
                "PATCH", url, doing, self._http.an_object(name, _TOUCHED, found.generation), accept=(200, 404, 412), headers=JSON,
                body=body, effect=True, looked_into=(404,),
            ))  # fmt: skip
            if answer.status == 200:
                if not is_earlier(answer.told.get("customTime"), deadline_ns):
                    return True
                is_taken = True
            if answer.status == 404:
                await self._http.check_gone(name, answer, doing)
                return False
        if is_taken:  # or an answer was that of the request before
            raise UnconfirmedError(f"{doing} failed: {self._http.endpoint} took it, and told that it left it as it was").telling(heard=True)
        message = f"blob {name!r} was changed {ATTEMPTS_MAX} times while it was being touched; its deadline may be as it was"
        raise UnavailableError(message).telling(heard=True)

    async def list(self, start: str, end: str | None, limit: int) -> BlobPage:
        """One request, and one more for each page that the service leaves empty."""
        if end is not None and start >= end:
            return BlobPage((), (), None)
        first, stop = _without_nul(start, end)
        # Without line breaks and indentation, a name has 40 bytes less to be sent and decoded.
        query = {"fields": LISTED_FIELDS, "maxResults": str(min(limit, PAGE_MAX)), "prettyPrint": "false"}
        query |= _between(first, stop)
        blobs: list[BlobInfo] = []
        oddities: list[Oddity] = []
        doing = f"listing the blobs of bucket {self._http.bucket!r}{f' from {first!r} on' if first else ''}"
        check = check_of(query, doing)
        while True:
            page = await self._listing(query, doing)
            check.take(page.names, page.token)
            # They come in the order of their names, so what the request asked too much is at either end.
            until = len(page.blobs) if stop == end or end is None else bisect_left(page.blobs, end, key=_NAME)
            blobs += page.blobs[0 if first == start else bisect_left(page.blobs, start, key=_NAME) : until]
            oddities += [odd for odd in page.oddities if not odd.is_blob or (start <= odd.name and (end is None or odd.name < end))]
            if page.token is None:
                return BlobPage(blobs, oddities, None)
            if page.names and page.names[-1] >= start:
                return BlobPage(blobs, oddities, f"{page.names[-1]}\0")
            query["pageToken"] = page.token

    async def _listing(self, query: Mapping[str, str], doing: str) -> ListingPage:
        request = GcsRequest("GET", self._http.objects_url(**query), doing, a_page(query))
        page: ListingPage = (await self._http.call(request)).told
        if page.oddities:  # they are only said of what two answers tell
            page = (await self._http.call(request)).told
        return page

    async def deleted_generations(self, name: str) -> Sequence[DeletedGeneration]:
        """The deleted generations that can be restored. In a bucket without soft delete: noncurrent ones, or an error.

        Two requests, and one more for each page that the service ends early. The service's generations are numbers that
        grow with each write, so they tell the order of writing. The times of deletion do not.
        """
        soft_deleted = await self._generations(name, "soft-deleted", SOFT_DELETED_FIELDS, {"softDeleted": "true"})
        noncurrent = await self._generations(name, "noncurrent", NONCURRENT_FIELDS, {"versions": "true"})
        found = [*soft_deleted, *(item for item in noncurrent if "timeDeleted" in item)]  # the others are live
        return sorted((decode_deleted(self._http.bucket, name, item) for item in found), key=lambda deleted: int(deleted.generation))

    async def _generations(self, name: str, which: str, fields: str, asked: Mapping[str, str]) -> Sequence[Mapping[str, Any]]:
        doing = f"listing the {which} generations of blob {name!r}"
        query = {"fields": fields, "maxResults": str(PAGE_MAX), "prefix": name, **asked}
        own: list[Mapping[str, Any]] = []
        async for page in self._http.pages(query, doing):
            items = page.get("items", [])
            own += [item for item in items if item["name"] == name]
            if items and items[-1]["name"] != name:  # this blob's own generations come before those of longer names
                break
        return own

    async def restore(self, name: str, generation: Generation) -> Generation | None:
        """The service copies the bytes and the metadata itself. The deleted generation stays until its time is over.

        What is not soft-deleted may be noncurrent: then a second request copies it.
        """
        doing = f"restoring generation {generation} of blob {name!r}"
        url = self._http.restore_url(name, generation=generation, ifGenerationMatch="0", fields=GENERATION_FIELDS)
        shape = self._http.an_object(name, GENERATION_FIELDS)
        answer = await self._http.call(GcsRequest("POST", url, doing, shape, accept=(200, 404, 412), effect=True))
        if answer.status == 404:
            await self._http.check_bucket(name)
            answer = await rewrite(self._http, name, name, {"sourceGeneration": generation}, doing, told=GENERATION_FIELDS)
        if answer.status != 200:
            return None
        return str(answer.told.get("resource", answer.told)["generation"])

    async def kept(self, what: Retention, start: str, end: str | None, token: str) -> KeptPage:
        """One page of the listing, with its deleted generations counted.

        Noncurrent generations are listed together with live ones. So the bucket is asked first whether it ever had
        versions, which takes storage.buckets.get. If it never had, nothing is listed.
        """
        doing = f"listing the {what.replace('_', '-')} generations of bucket {self._http.bucket!r}"
        if what is Retention.NONCURRENT and not token:
            looking = f"looking at bucket {self._http.bucket!r}"
            url, shape = self._http.bucket_url(fields="kind,name,versioning"), a_bucket(self._http.bucket)
            if not (await self._http.call(GcsRequest("GET", url, looking, shape))).told.get("versioning"):
                return KeptPage(0, 0, None, None)
        query = {"fields": KEPT_FIELDS, "maxResults": str(PAGE_MAX), **({"pageToken": token} if token else {})}
        query["softDeleted" if what is Retention.SOFT_DELETED else "versions"] = "true"
        query |= _between(*_without_nul(start, end))  # what this adds at either end is left out below
        page = await anext(self._http.pages(query, doing))
        sizes = decode_kept(page, "softDeleteTime" if what is Retention.SOFT_DELETED else "timeDeleted", start, end)
        last = next((item["name"] for item in reversed(page.get("items", []))), None)
        return KeptPage(len(sizes), sum(sizes), page.get("nextPageToken"), last)

    async def now_ns(self) -> int:
        """The service's clock, in whole seconds, from the header `Date` of the smallest request there is."""
        doing = f"asking the time of {self._http.endpoint}"
        date = (await self.headers(doing)).get("date", "")
        try:
            return int(parsedate_to_datetime(date).timestamp()) * NS_PER_S
        except ValueError:
            raise UnavailableError(f"{doing} failed: its answer has no Date ({date!r})") from None

    async def headers(self, doing: str) -> Mapping[str, str]:
        """The headers of an answer, by their names in lower case."""
        query = {"fields": "kind,nextPageToken", "maxResults": "1"}
        answer = await self._http.call(GcsRequest("GET", self._http.objects_url(**query), doing, a_listing(query)))
        return {name.lower(): value for name, value in answer.headers.items()}

    async def owners(self) -> Sequence[Marker]:
        """The markers that say which store owns which names. One request, and one more for each page."""
        doing = f"looking who owns the blobs of bucket {self._http.bucket!r}"
        query = {"prefix": OWNERS, "fields": OWNER_FIELDS, "maxResults": str(PAGE_MAX)}
        return [marker async for page in self._http.pages(query, doing) for marker in decode_markers(page.get("items", []))]

    async def names_below(self, prefix: str) -> Sequence[str]:
        query = {"prefix": prefix, "fields": "kind,items(name),nextPageToken", "maxResults": str(PAGE_MAX)}
        pages = self._http.pages(query, f"listing all names that begin with {prefix!r}")
        return [str(item["name"]) async for page in pages for item in page.get("items", [])]

    async def entries(self, name: str) -> Mapping[str, str]:
        told = await self._http.resource(name, f"name,metadata,{','.join(OTHER_KEYS)}") or {}
        shown = {header: str(told[key]) for key, header in OTHER_KEYS.items() if told.get(key) and not is_told_time(key, told[key])}
        found = told.get("metadata")
        return shown | ({str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {})

    async def _resource(self, name: str) -> Resource | None:
        resource = await self._http.resource(name, RESOURCE_FIELDS)
        try:
            return None if resource is None else decode_resource(name, resource)
        except CorruptRecordError:  # it is only said of what two answers tell
            resource = await self._http.resource(name, RESOURCE_FIELDS)
        return None if resource is None else decode_resource(name, resource)

    async def _generation(self, name: str) -> Generation | None:
        resource = await self._http.resource(name, GENERATION_FIELDS)
        return None if resource is None else str(resource["generation"])


def _without_nul(start: str, end: str | None) -> tuple[str, str | None]:
    """The service gets no NUL. So a `start` that ends in one becomes the name before it, which is to be left out of the
    result again. An `end` that ends in one becomes a slightly later name.
    """
    return start.removesuffix("\0"), None if end is None else end.removesuffix("\0") + " " * end.endswith("\0")


def _between(start: str, end: str | None) -> dict[str, str]:
    return ({"startOffset": start} if start else {}) | ({} if end is None else {"endOffset": end})


def _first_byte(media: Media) -> int:
    found = re.match(r"bytes (\d+)-", media.headers.get("Content-Range", ""))
    return int(found[1]) if media.status == 206 and found else 0


def _head_of(resource: Resource) -> BlobHead:
    checksum = None if resource.crc32c is None else f"crc32c={resource.crc32c}"
    return BlobHead(resource.metadata, resource.size, resource.created_ns, resource.generation, checksum=checksum)
