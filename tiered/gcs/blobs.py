"""`GcsBlobs`, the long-term tier in a bucket of Google Cloud Storage, over its JSON API.

    open_upload    1 call for a blob of known size up to 8 MiB, sent as it is written; else 2: a session and one PUT
    open           2 at once: what the blob is, and its bytes; they belong together iff their generations agree (I7)
    head, delete   1
    touch          2: what it is, and a change that holds only if it is still that
    list           1 for each page of up to 1,000
    soft_deleted   1
    now_ns         1
    cancel         1

Blobs are created only, under names that hold their revision; what expires the bucket's lifecycle removes, some days after its
custom time. *Crash* anywhere: a blob is there whole or not at all; see `tiered.gcs.upload` for what is left of an
upload. *Failure*: see `tiered.gcs.http`. A missing blob is told apart from a missing bucket: only the first is absence,
the other would look like the loss of all data. Nothing is repeated here, except where the store cannot know: a read whose
two answers show different generations, a touch that another touch overtook, and the status of a finalised session.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from operator import attrgetter
from typing import Self

from anyio import create_task_group
from anyio.abc import TaskGroup

from changelog.base.errors import UnavailableError
from changelog.base.runtime import Runtime
from changelog.base.tasks import end_tasks
from tiered.gcs.format import (
    FIELDS,
    LISTED_FIELDS,
    SOFT_DELETED_FIELDS,
    Listing,
    Resource,
    decode_listing,
    decode_listing_by_item,
    decode_resource,
    decode_soft_deleted,
    encode_crc,
    encode_time,
    extend_crc,
)
from tiered.gcs.http import ENDPOINT, Answer, Authorize, GcsHttp, Media, NoAnswerError, lost_request
from tiered.gcs.upload import GcsUpload, cancel_session, open_upload
from tiered.metadata import NS_PER_S, Metadata
from tiered.protocol.backends import BlobHead, BlobInfo, BlobPage, ByteRange, Oddity, SoftDeleted
from tiered.protocol.concurrent import both

CONNECTIONS_MAX = 256
ANSWER_TIMEOUT_S = 10.0
ATTEMPTS_MAX = 5
PAGE_MAX = 1000
_JSON = {"Content-Type": "application/json; charset=UTF-8"}


class GcsBlobs:
    """Implements `LongTermBackend` and `SoftDeletes`, on asyncio only. Open it with `async with GcsBlobs.connect(bucket, runtime)`."""

    def __init__(self, http: GcsHttp, tasks: TaskGroup, runtime: Runtime) -> None:
        self._http = http
        self._tasks = tasks
        self._runtime = runtime

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, bucket: str, runtime: Runtime, *, endpoint: str | None = None, authorize: Authorize | None = None,
        connections_max: int = CONNECTIONS_MAX, answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> AsyncIterator[Self]:  # fmt: skip
        """Sends nothing yet. Leaving it drops the uploads that are not finalised.

        `endpoint` None: the service itself; an emulator needs no `authorize`. `answer_timeout_s`: how long an answer, or the taking or
        giving of a piece of a body, may take. Each upload and each open reader holds one of the connections.
        """
        async with GcsHttp.connect(endpoint or ENDPOINT, bucket, authorize, connections_max, answer_timeout_s) as http:
            tasks = create_task_group()
            await tasks.__aenter__()
            failure: BaseException | None = None
            try:
                yield cls(http, tasks, runtime)
            except BaseException as error:
                failure = error
                raise
            finally:
                await end_tasks(tasks, failure)

    async def open_upload(self, name: str, metadata: Metadata, size: int | None) -> GcsUpload:
        return await open_upload(self._http, self._tasks, self._runtime, name, metadata, size)

    async def cancel(self, session: str) -> None:
        """`CorruptRecordError`: it is no session of this bucket."""
        await cancel_session(self._http, session)

    async def open(self, name: str, range: ByteRange | None = None) -> GcsReader | None:
        for _ in itertools.repeat(None, ATTEMPTS_MAX):
            opened: list[Media] = []
            reader: GcsReader | None = None
            try:
                resource = await self._open_both(name, range, opened)
                if resource is None:
                    return None
                start, stop = (0, resource.size) if range is None else range.within(resource.size)
                reader = _reader(name, resource, start, stop, opened, self._http)
                if reader is not None:
                    return reader
            finally:
                if reader is None:
                    for media in opened:
                        media.close()
        raise UnavailableError(f"blob {name!r} was replaced {ATTEMPTS_MAX} times while it was being opened; try again")

    async def _open_both(self, name: str, range: ByteRange | None, opened: list[Media]) -> Resource | None:
        """What the blob is, while `opened` gets its bytes. One after the other if the range can't be told without the size."""

        async def open_media(header: str | None) -> None:
            headers = {} if header is None else {"Range": header}
            doing = f"reading blob {name!r}"
            opened.append(await self._http.open_media(self._http.object_url(name, alt="media"), headers, doing, (200, 206, 404, 416)))

        if range is None or _can_tell(range):
            header = None if range is None else _header(range.start, range.stop)
            resource, _ = await both(lambda: self._resource(name), lambda: open_media(header))
            return resource
        resource = await self._resource(name)
        if resource is not None:
            start, stop = range.within(resource.size)
            if start < stop:
                await open_media(_header(start, stop))
        return resource

    async def head(self, name: str) -> BlobHead | None:
        found = await self._resource(name)
        return None if found is None else BlobHead(found.metadata, found.size, found.created_ns, found.generation)

    async def delete(self, name: str) -> None:
        doing = f"deleting blob {name!r}"
        answer = await self._http.call("DELETE", self._http.object_url(name), doing, accept=(200, 204, 404), effect=True)
        if answer.status == 404:
            await self._check_bucket(name, answer)

    async def touch(self, name: str, deadline_ns: int) -> bool:
        """A custom time never goes back, and is never given to a blob without one."""
        body = f'{{"customTime":"{encode_time(deadline_ns)}"}}'.encode()
        doing = f"extending the deadline of blob {name!r}"
        for _ in itertools.repeat(None, ATTEMPTS_MAX):
            found = await self._resource(name)
            if found is None:
                return False
            if found.metadata.time_expires_ns is None or found.metadata.time_expires_ns >= deadline_ns // 1000 * 1000:
                return True
            url = self._http.object_url(
                name, ifGenerationMatch=str(found.generation), ifMetagenerationMatch=str(found.metageneration), fields="generation"
            )
            answer = await self._http.call("PATCH", url, doing, accept=(200, 404, 412), headers=_JSON, body=body, effect=True)
            if answer.status == 200:
                return True
            if answer.status == 404:
                await self._check_bucket(name, answer)
                return False
        raise UnavailableError(f"blob {name!r} was changed {ATTEMPTS_MAX} times while it was being touched; its deadline may be as it was")

    async def list(self, start: str, end: str | None, limit: int) -> BlobPage:
        """One request; one more for each page that the service leaves empty."""
        if end is not None and start >= end:
            return BlobPage((), (), None)
        # No NUL is sent. What begins after a name begins at it, without it; what ends after a name ends at a later one.
        first, stop = start.removesuffix("\0"), None if end is None else end.removesuffix("\0") + " " * end.endswith("\0")
        query = {"fields": LISTED_FIELDS, "maxResults": str(min(limit, PAGE_MAX))}
        query |= ({"startOffset": first} if first else {}) | ({} if stop is None else {"endOffset": stop})
        blobs: list[BlobInfo] = []
        oddities: list[Oddity] = []
        while True:
            page = await self._listing(query)
            if (first, stop) == (start, end):
                blobs.extend(page.blobs)
            else:
                blobs += [blob for blob in page.blobs if start <= blob.name and (end is None or blob.name < end)]
            oddities += [odd for odd in page.oddities if not odd.is_blob or (start <= odd.name and (end is None or odd.name < end))]
            if page.token is None:
                return BlobPage(blobs, oddities, None)
            if page.last is not None and page.last >= start:
                return BlobPage(blobs, oddities, f"{page.last}\0")
            query["pageToken"] = page.token

    async def _listing(self, query: Mapping[str, str]) -> Listing:
        start = f" from {query['startOffset']!r} on" if "startOffset" in query else ""
        doing = f"listing the blobs of bucket {self._http.bucket!r}{start}"
        answer = await self._http.call("GET", self._http.objects_url(**query), doing)
        return decode_listing(answer.body) or decode_listing_by_item(answer.json(doing))

    async def soft_deleted(self, name: str) -> Sequence[SoftDeleted]:
        """Of a bucket without soft delete, none, or an error. One request; more where the service ends a page early."""
        doing = f"listing the soft-deleted generations of blob {name!r}"
        query = {"fields": SOFT_DELETED_FIELDS, "maxResults": str(PAGE_MAX), "prefix": name, "softDeleted": "true"}
        own: list[SoftDeleted] = []
        while True:
            page = (await self._http.call("GET", self._http.objects_url(**query), doing)).json(doing)
            items = page.get("items", [])
            own += [decode_soft_deleted(self._http.bucket, name, item) for item in items if item.get("name") == name]
            # Its own come first of all whose names begin with it.
            if not page.get("nextPageToken") or (items and items[-1].get("name") != name):
                return sorted(own, key=attrgetter("generation"))
            query["pageToken"] = page["nextPageToken"]

    async def now_ns(self) -> int:
        """Of the least that can be asked for, the header `Date`: whole seconds."""
        doing = f"asking the time of {self._http.endpoint}"
        answer = await self._http.call("GET", self._http.objects_url(fields="nextPageToken", maxResults="1"), doing)
        try:
            return int(parsedate_to_datetime(answer.headers.get("Date", "")).timestamp()) * NS_PER_S
        except ValueError:
            raise UnavailableError(f"{doing} failed: its answer has no Date ({answer.headers.get('Date')!r})") from None

    async def _resource(self, name: str) -> Resource | None:
        doing = f"reading what blob {name!r} is"
        answer = await self._http.call("GET", self._http.object_url(name, fields=FIELDS), doing, accept=(200, 404))
        if answer.status == 404:
            await self._check_bucket(name, answer)
            return None
        return decode_resource(name, answer.json(doing))

    async def _check_bucket(self, name: str, absent: Answer) -> None:
        """Returns if it is the blob that is absent. A 404 that does not say so is asked about: a listing's means the bucket."""
        if not absent.message.startswith("No such object"):
            url = self._http.objects_url(prefix=name, maxResults="1", fields="items(name)")
            await self._http.call("GET", url, f"finding blob {name!r}")


class GcsReader:
    """`BlobReader` of one generation, and the iterator over its pieces: no generator, so one may be abandoned anywhere.

    Of a whole blob the crc32c is verified. Where it differs from what the service tells, the bytes were damaged on their way, for
    the service verifies what it keeps: `UnavailableError` instead of the last piece, and another read may be right.
    """

    def __init__(self, name: str, resource: Resource, media: Media | None, expected: int, http: GcsHttp) -> None:
        self.metadata = resource.metadata
        self.size = resource.size
        self._name = name
        self._media = media
        self._left = expected
        self._crc: int | None = 0 if expected == resource.size else None
        self._crc_told = resource.crc32c
        self._http = http

    def pieces(self) -> AsyncIterator[bytes]:
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._left == 0 or self._media is None:
            raise StopAsyncIteration
        doing = f"reading blob {self._name!r}"
        lost: NoAnswerError | None = None
        try:
            piece = await self._media.read()
        except NoAnswerError as error:
            lost = error
        if lost is not None:
            raise lost_request(lost, doing, effect=False)
        if not piece or len(piece) > self._left:
            raise UnavailableError(f"{doing} failed: " + ("more bytes came than it has" if piece else f"{self._left} bytes did not come"))
        self._left -= len(piece)
        if self._crc is not None:
            self._crc = extend_crc(self._crc, piece)
            if self._left == 0 and self._crc_told not in (None, encode_crc(self._crc)):
                raise UnavailableError(
                    f"{doing} failed: it was damaged on its way, its crc32c is {encode_crc(self._crc)}, not {self._crc_told}; try again"
                )
        return piece

    async def aclose(self) -> None:
        """Drops the connection if bytes are unread."""
        media, self._media = self._media, None
        if media is not None:
            media.close()


def _reader(name: str, resource: Resource, start: int, stop: int, opened: Sequence[Media], http: GcsHttp) -> GcsReader | None:
    """None: the bytes are not those of this resource."""
    if start == stop:
        for media in opened:
            media.close()
        return GcsReader(name, resource, None, 0, http)
    [media] = opened
    if media.status not in (200, 206) or media.headers.get("X-Goog-Generation") != str(resource.generation):
        return None
    if _first_byte(media) != start or media.headers.get("Content-Length", str(stop - start)) != str(stop - start):
        raise UnavailableError(f"reading blob {name!r} failed: bytes {start} to {stop} were asked for, and others came")
    return GcsReader(name, resource, media, stop - start, http)


def _first_byte(media: Media) -> int:
    found = re.match(r"bytes (\d+)-", media.headers.get("Content-Range", ""))
    return int(found[1]) if media.status == 206 and found else 0


def _can_tell(range: ByteRange) -> bool:
    """Whether HTTP has a word for it: not for one that is empty, nor for one that counts its start from the end and has a stop."""
    return range.stop is None or 0 <= range.start < range.stop


def _header(start: int, stop: int | None) -> str:
    return f"bytes={start}{'' if start < 0 else '-'}{'' if stop is None else stop - 1}"
