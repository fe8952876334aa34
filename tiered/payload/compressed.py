"""A payload that is compressed while it is read: chunks of it become chunks of zstd.

Progress, checksums and the patience are of the payload as it was given, so they stay with its own chunks. *Failure*:
what reading them raises is raised unchanged.
"""

from __future__ import annotations

from changelog.base.errors import InvalidRequestError
from tiered.payload.chunks import Chunks
from tiered.payload.zstd import Compressor
from tiered.stored import CHUNK_BYTES


class Compressed(Chunks):
    """The compressed chunks of `source`. Their size is not known before their end.

    `declared`: how many bytes the caller said that the source has. `ConfigurationError`: no library is installed.
    """

    def __init__(self, source: Chunks, declared: int | None) -> None:
        super().__init__(CHUNK_BYTES)
        self.waits, self.may_hold_scopes, self.path = source.waits, source.may_hold_scopes, source.path
        self._source = source
        self._declared_source = declared
        self._compressor = Compressor()
        self._read: int | None = None

    async def _fill(self) -> bool:
        chunk = await anext(self._source, None)
        if self._read is None:
            self._read = 0
            if self._source.size is not None:
                self._compressor.expect(self._source.size)
        if chunk is not None:
            self._read += len(chunk)
            self._joined.add(await self._compressor.add(chunk))
            return True
        if self._declared_source not in (None, self._read):
            raise InvalidRequestError(f"metadata declares {self._declared_source} bytes, but the payload has {self._read}")
        self.custom = self._source.custom
        self._joined.add(self._compressor.end())
        return False

    async def _close(self) -> None:
        await self._source.aclose()
