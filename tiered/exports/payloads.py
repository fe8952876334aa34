"""Where the payload of an object lies in an export, and the checksums of what passes.

A file is named by a hash of the object's path and revision, because a path may be longer than a name of a file, have
characters that a disk does not take, or differ from another in case alone. So a file never holds another revision.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from functools import partial
from typing import NamedTuple

import anyio

from changelog.base.threads import in_thread
from tiered.payload.checksums import IN_THREAD_BYTES, running_crc32c


class PayloadSums(NamedTuple):
    """Of a whole payload. `size`: bytes. `crc32c`: base64; None: google-crc32c is not installed."""

    size: int
    sha256: str
    crc32c: str | None


def payload_name(path: str, revision: str | None) -> str:
    """The file of an object, from the place on."""
    digest = hashlib.sha256(f"{path}\n{revision or ''}".encode()).hexdigest()
    return f"payloads/{digest[:2]}/{digest[2:4]}/{digest[4:]}"


class Summing:
    """Computes the checksums of chunks as they pass. `failed`: what the source of the chunks raised, if anything."""

    def __init__(self, source: AsyncIterator[bytes]) -> None:
        self.failed: Exception | None = None
        self._source = source
        self._size = 0
        self._sha256 = hashlib.sha256()
        self._crc = running_crc32c()
        self._threads = anyio.CapacityLimiter(1)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._source:
                if len(chunk) < IN_THREAD_BYTES:
                    self._add(chunk)
                else:
                    await in_thread(partial(self._add, chunk), self._threads)
                yield chunk
        except Exception as error:
            self.failed = error
            raise

    def _add(self, chunk: bytes) -> None:
        self._size += len(chunk)
        self._sha256.update(chunk)
        if self._crc is not None:
            self._crc.update(chunk)

    def sums(self) -> PayloadSums:
        """Of what has passed."""
        crc32c = None if self._crc is None else base64.b64encode(self._crc.digest()).decode()
        return PayloadSums(self._size, self._sha256.hexdigest(), crc32c)


async def checksums_of(chunks: AsyncIterator[bytes]) -> PayloadSums:
    """Reads all chunks."""
    summing = Summing(chunks)
    async for _ in aiter(summing):
        pass
    return summing.sums()


def crc_of(told: str | None) -> str | None:
    """The crc32c that a head tells, in base64. None: it tells none."""
    return None if told is None or not told.startswith("crc32c=") else told.removeprefix("crc32c=")
