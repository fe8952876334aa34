"""`BucketParts`: uploads in parts to a bucket of GCS or S3, as `PartUploads` describes them and as lanes use them.

A session is `parts:BUCKET/NAME?uploadId=ID`: what to cancel, and no secret. It does not say which endpoint it was begun
at. An adapter sends the requests; how it writes a name is in `_encoded`.

*Failure*: what is gone was completed or has ended. Which of the two, the blob tells. So completing may be repeated,
also after a crash. Without an answer to a completion, or after one that proves nothing, the blob is looked for. If it
is what was to be made, the upload is complete.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar
from urllib.parse import quote, unquote

from changelog.base.errors import CorruptRecordError, InvalidRequestError, TieredError, UnavailableError, UnconfirmedError
from tiered.payload.chunks import Chunk
from tiered.payload.crc32c import extend_crc
from tiered.services.backends import SessionEndedError
from tiered.services.capabilities import PART_NUMBER_MAX, PARTS_SESSION, OpenSession, Part, SessionPage, check_parts
from tiered.transfer.arrival import proven
from tiered.transfer.part_lists import compare_sizes, joined_crc

Told = TypeVar("Told")
"""What the service tells of a blob."""

COMPLETION_ANSWERS = 30
"""A completion may take as long as so many answers: the service puts large blobs together for minutes."""


class BucketParts(ABC, Generic[Told]):
    """Uploads in parts to one bucket. `look`: what the service tells of a blob; None: there is none.

    `written`: how sessions write the bucket, if not by its name.
    """

    def __init__(self, bucket: str, look: Callable[[str], Awaitable[Told | None]], written: str | None = None) -> None:
        self._bucket = bucket
        self._look = look
        self._written = written or bucket
        self._session_form = re.compile(rf"{PARTS_SESSION}{re.escape(self._written)}/([^?#\s]+)\?uploadId=([^?#&\s]+)")

    @abstractmethod
    async def listed(self, name: str, session: str) -> Sequence[Part]:
        """The parts that the service has, in the order of their numbers. `SessionEndedError`: the upload has ended."""

    @abstractmethod
    async def cancel(self, session: str) -> None:
        """Ends the upload. It is no error if it has ended. `CorruptRecordError`: it is none of this bucket."""

    @abstractmethod
    async def send(self, name: str, session: str, number: int, body: Sequence[memoryview], size: int, crc: int) -> Part:
        """`put` of bytes whose size and crc32c are known. Whether they arrived, the whole blob may have to tell."""

    @abstractmethod
    async def _arrived(self, name: str, session: str, number: int, body: Sequence[memoryview], size: int, crc: int) -> Part:
        """`send`. It is an `UnprovenPart` if the answer does not say that its bytes arrived."""

    @abstractmethod
    async def _completed(self, name: str, upload_id: str, parts: Sequence[Part], doing: str, copied: str | None) -> TieredError | None:
        """Asks for the blob. Returns the refusal after which the blob tells what became of it. Raises any other."""

    @abstractmethod
    async def _compare(self, name: str, parts: Sequence[Part], found: Told, doing: str, copied: str | None) -> None:
        """Raises `SessionEndedError` if the blob is not what its parts are."""

    @abstractmethod
    async def _unended(self, doing: str, prefix: str, after: str, limit: int) -> tuple[Sequence[tuple[str, str, int]], str | None]:
        """As `page_of_uploads`: name, id and beginning (ns since 1970) of uploads, and where the next page begins."""

    def _encoded(self, name: str) -> str:
        """The name, as sessions write it."""
        return quote(name, safe="")

    async def look(self, name: str) -> Told | None:
        return await self._look(name)

    async def put(self, name: str, session: str, number: int, payload: Sequence[Chunk]) -> Part:
        body, crc = [memoryview(chunk).cast("B") for chunk in payload], 0
        for chunk in payload:
            crc = extend_crc(crc, chunk)
        return proven(name, await self._arrived(name, session, number, body, sum(map(len, body)), crc))

    async def check(self, name: str, session: str, parts: Sequence[Part]) -> None:
        """Raises `InvalidRequestError` if the service has other parts than these. If it has none any more, it does not.

        The service looks at the ETags alone. A blob of parts that are larger than somebody said is not what they said,
        and its upload would have ended.
        """
        check_parts(name, parts)
        joined_crc(parts)  # refuses what is none before anything is sent
        with suppress(SessionEndedError):
            compare_sizes(name, parts, await self.listed(name, session))

    async def complete(self, name: str, session: str, parts: Sequence[Part], copied: str | None = None) -> Told:
        """Returns what the service tells of the blob. `copied`: the crc32c of all bytes, if the parts were copied."""
        upload_id = self._of(name, session)
        doing, unclear = f"completing the upload of blob {name!r}", None
        try:
            unclear = await self._completed(name, upload_id, parts, doing, copied)
        except UnconfirmedError as error:
            unclear = error
        try:
            found = await self.look(name)
        except UnavailableError as error:
            raise UnconfirmedError(f"{doing} was never confirmed: {unclear or 'it succeeded'}, and nobody told of the blob") from error
        if isinstance(unclear, InvalidRequestError):
            raise unclear
        if found is None:
            raise unclear or SessionEndedError(f"{doing} succeeded, and somebody deleted the blob at once").telling(heard=True)
        await self._compare(name, parts, found, doing, copied)
        return found

    async def open(self, prefix: str, before_ns: int, after: str, limit: int) -> SessionPage:
        """`prefix`: of the names. `after`: what the page before told."""
        doing = f"listing the uploads in parts of bucket {self._bucket!r}"
        told, last = await self._unended(doing, prefix, after, limit)
        return SessionPage([OpenSession(name, self._session(name, id)) for name, id, begun_ns in told if begun_ns < before_ns], last)

    def _session(self, name: str, upload_id: str) -> str:
        return f"{PARTS_SESSION}{self._written}/{self._encoded(name)}?uploadId={quote(upload_id, safe='')}"

    def _of(self, name: str, session: str, number: int = 1) -> str:
        """The id of the upload. `InvalidRequestError`: it is that of another blob, or no part may have this number."""
        of, upload_id = self._taken_apart(session)
        if of != self._encoded(name):
            raise InvalidRequestError(f"the upload session is that of another blob than {name!r}; nothing was sent")
        if not 1 <= number <= PART_NUMBER_MAX:
            raise InvalidRequestError(f"a part has a number from 1 to {PART_NUMBER_MAX}, not {number}")
        return upload_id

    def _taken_apart(self, session: str) -> tuple[str, str]:
        """The name of the session's blob, as `_encoded` writes it, and the upload's id."""
        found = self._session_form.fullmatch(session)
        if found is None:
            raise CorruptRecordError(f"an upload session is none of bucket {self._bucket!r}; nothing was sent")
        return found[1], unquote(found[2])
