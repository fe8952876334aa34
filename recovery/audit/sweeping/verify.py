"""Reads blobs to their last byte and checks them, as `tiered audit run --verify` wants it.

    is_chosen(name, share) -> bool     the same names in every run: the name's hash decides
    Verifier.look(name) -> BlobRead    whole, gone, or what is wrong with it

`get` refuses exactly what `look` finds `UNREADABLE`: it reads through the same backend. The listing of a bucket or a
directory reads no payload, so without this the audit says nothing about bytes.

*Failure*: `UnavailableError` after `TRIES` tries, each of which opens the blob within `READ_BUDGET_S`; nothing is known
about the blob then. Bytes that arrive damaged (`DamagedError`) are asked for as often, because that may succeed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any

from changelog.base.errors import CorruptRecordError, UnavailableError
from changelog.base.runtime import Runtime
from tiered.services.backends import DamagedError, LongTermBackend
from tiered.services.concurrent import map_concurrently
from tiered.services.retry import retry_read

READ_BUDGET_S = 120.0
TRIES = 3
UNREADABLE: Mapping[str, Any] = {"readable": False}
AT_ONCE = 4
"""How many blobs are read at once. The limit of bytes a second is for all of them together."""


@dataclass(frozen=True, slots=True)
class BlobRead:
    """What reading a blob showed. `size`: the bytes that it has, or that were read. `fault`: None if nothing is wrong.

    `there`: False if there is no such blob now. `shown`: what the fault is among `Facts`, by their names.
    """

    there: bool
    size: int
    fault: str | None = None
    shown: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        return self.there and self.shown.get("readable") is not False


def is_chosen(name: str, share: float) -> bool:
    """Tells whether this blob is one of a `share` (0 to 1) of all blobs. The same name always gets the same answer."""
    return share >= 1 or int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) < share * 2**64


class Verifier:
    """Reads at most `bytes_per_s` bytes in a second; None: as fast as it can."""

    def __init__(self, blobs: LongTermBackend, runtime: Runtime, bytes_per_s: float | None) -> None:
        self._blobs = blobs
        self._runtime = runtime
        self._bytes_per_s = bytes_per_s
        self._free_at = runtime.monotonic()

    async def look_at(self, names: Sequence[str]) -> Mapping[str, BlobRead]:
        """Reads these blobs, several at once. Raises `TieredError` if one of them cannot be asked for."""
        return dict(zip(names, await map_concurrently(self.look, names, AT_ONCE), strict=True))

    async def look(self, name: str) -> BlobRead:
        """Reads one blob to its end. Raises `UnavailableError` or `ConfigurationError` if nobody could read it."""
        for left in reversed(range(TRIES)):
            try:
                return await self._read(name)
            except CorruptRecordError as error:
                return BlobRead(True, 0, str(error), UNREADABLE)
            except DamagedError as error:
                if not left:
                    return BlobRead(True, 0, str(error), UNREADABLE)
            except UnavailableError:  # it may have disappeared meanwhile, which opening it again shows
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _read(self, name: str) -> BlobRead:
        reader = await retry_read(partial(self._blobs.open, name), self._runtime, READ_BUDGET_S)
        if reader is None:
            return BlobRead(False, 0)
        size = 0
        try:
            async for chunk in reader.chunks():
                size += len(chunk)
                await self._wait_for(len(chunk))
        finally:
            await reader.aclose()
        if size != reader.size:
            return BlobRead(True, size, f"it has {size} bytes, and should have {reader.size}", UNREADABLE)
        return BlobRead(True, size)

    async def _wait_for(self, read_bytes: int) -> None:
        """Waits until the bytes that were just read fit the limit."""
        if self._bytes_per_s is None:
            return
        now = self._runtime.monotonic()
        self._free_at = max(self._free_at, now) + read_bytes / self._bytes_per_s
        await self._runtime.sleep(self._free_at - now)

