"""`S3Files`: small files in a bucket that are no blobs of a store, such as those of a change feed.

A file is created in one request, and never replaced (`If-None-Match: *`). The request names the crc32c of the bytes,
and the service refuses bytes that were damaged on their way. *Failure*: see `tiered.s3.client`.

There are services that take the condition and replace the file all the same: `ALWAYS_CREATES_ONLY` is False, and
whoever relies on the condition tries it first.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import ClassVar, Self

from changelog.base.errors import ConfigurationError, InvalidRequestError, UnavailableError
from tiered.payload.crc32c import encode_crc, extend_crc
from tiered.s3.answers import is_body_of
from tiered.s3.arrival import answer_proves
from tiered.s3.client import Answer, AnswerBody, S3Client, SharedSession
from tiered.s3.errors import Refusal, odd
from tiered.s3.format import before
from tiered.s3.listings import PAGE_MAX, ListedKeys, objects, pages
from tiered.s3.upload import EXISTS
from tiered.settings import S3Settings
from tiered.transfer.arrival import damaged

GONE = ("NoSuchKey",)
DENIED = ("AccessDenied",)
RIGHTS = "s3:PutObject and s3:GetObject on the files, and s3:ListBucket on the bucket"


class S3Files:
    """The files of a bucket. Open it with `async with S3Files.connect(…)`."""

    ALWAYS_CREATES_ONLY: ClassVar[bool] = False

    def __init__(self, client: S3Client) -> None:
        self._client = client

    @classmethod
    @asynccontextmanager
    async def connect(cls, at: S3Settings, connections_max: int, session: SharedSession | None = None) -> AsyncIterator[Self]:
        """Opens the bucket; sends nothing yet. `session`: as of `S3Client`. Raises as that."""
        async with S3Client.connect(
            at.bucket, endpoint=at.endpoint, region=at.region, addressing_style=at.addressing_style, connections_max=connections_max,
            answer_timeout_s=at.timeout_s, session=session,
        ) as client:  # fmt: skip
            yield cls(client)

    async def create(self, name: str, content: bytes, content_type: str) -> bool:
        """Creates a file. Returns False if one of this name is there, which stays as it is.

        `UnconfirmedError`: no answer came. It may be there, or appear later.
        """
        doing, crc = f"creating {name!r}", extend_crc(0, content)
        answer = await self._client.call(
            "put_object", doing, effect=True, accept=(*EXISTS, *DENIED), body=content, ContentLength=len(content), Key=name,
            ContentType=content_type, ChecksumCRC32C=encode_crc(crc), IfNoneMatch="*",
        )  # fmt: skip
        if isinstance(answer, Refusal):
            if answer.code in EXISTS:
                return False
            raise _denied(answer, doing)
        if not await answer_proves(repr(name), answer, [content], crc) and not await self.is_equal(name, content):
            raise damaged(repr(name), "other bytes are there")
        return True

    async def is_equal(self, name: str, content: bytes) -> bool:
        """Returns whether the file has these bytes. They are read, not believed. `UnavailableError`: there is no file.
        """
        doing = f"reading {name!r}"
        opened = await self._open(name, doing)
        if opened is None:
            raise UnavailableError(f"{doing} failed: it was there, and is gone").coded("404")
        return await self._read(name, *opened, len(content), doing) == content

    async def read(self, name: str, bytes_max: int) -> bytes | None:
        """Returns the file, or None if there is none. `InvalidRequestError`: it has more bytes."""
        doing = f"reading {name!r}"
        opened = await self._open(name, doing)
        if opened is None:
            return None
        if (found := await self._read(name, *opened, bytes_max, doing)) is None:
            raise InvalidRequestError(f"{name!r} has {opened[0].get('ContentLength')} bytes, and may have {bytes_max}")
        return found

    async def names(self, prefix: str, start: str) -> AsyncGenerator[str, None]:
        """Yields the names that begin like this and are not before `start`, in order, page by page.

        Files without a byte are left out.
        """
        async with aclosing(pages(partial(self._page, prefix), "" if start <= prefix else before(start))) as listed:
            async for items in listed:
                for each in items:
                    if each["Key"] >= start and each["Size"] != 0:
                        yield str(each["Key"])

    async def has_any(self, prefix: str) -> bool:
        """Returns whether a file has a name that begins like this."""
        return bool((await self._page(prefix, "", 1)).items)

    async def _page(self, prefix: str, after: str, limit: int = PAGE_MAX) -> ListedKeys:
        doing = f"listing files whose names begin with {prefix!r}"
        page = await objects(self._client, doing, after=after, prefix=prefix, limit=limit, accept=DENIED)
        if isinstance(page, Refusal):
            raise _denied(page, doing)
        return page

    async def _open(self, name: str, doing: str) -> tuple[Answer, AnswerBody] | None:
        opened = await self._client.open_body(doing, accept=(*GONE, *DENIED), Key=name)
        if not isinstance(opened, Refusal):
            return opened
        if opened.code in GONE:
            return None
        raise _denied(opened, doing)

    async def _read(self, name: str, answer: Answer, body: AnswerBody, bytes_max: int, doing: str) -> bytes | None:
        """Returns the bytes of an answer, and closes it. None: they are more than so many, as a listing says, too."""
        size, found = int(answer["ContentLength"]), bytearray()
        try:
            while size <= bytes_max and len(found) <= size and (chunk := await body.read()):
                found += chunk
        finally:
            body.close()
        if size > bytes_max:
            listed = (await self._page(name, "", 1)).items
            if not listed or (listed[0]["Key"], listed[0]["Size"]) != (name, size):
                raise odd(doing, effect=False, what=f"with {size} bytes, and a listing has another size")
            return None
        if len(found) != size:
            raise UnavailableError(f"{doing} failed: {len(found)} bytes came, and {size} were announced")
        if not is_body_of(answer, bytes(found)):
            raise odd(doing, effect=False, what="with bytes that are not those of its ETag")
        return bytes(found)


def _denied(refusal: Refusal, doing: str) -> ConfigurationError:
    """The files need fewer rights than a store."""
    said = f" ({refusal.message})" if refusal.message else ""
    return ConfigurationError(f"{doing} failed with {refusal.status} {refusal.code}: allow this identity {RIGHTS}{said}").coded(
        refusal.code, heard=True
    )
