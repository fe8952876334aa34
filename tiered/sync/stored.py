"""Made from `tiered/stored.py` by `python -m tests.tiered.sync.twins`."""

from __future__ import annotations

import io

from changelog.change import ChangeId
from tiered.metadata import Metadata
from tiered.object_id import ObjectId
from tiered.payload.destinations import Destination
from tiered.stored import Tier
from tiered.sync.object_file import ObjectFile


class SyncStoredObject(ObjectFile, io.BufferedIOBase):
    """An object that is open for reading: its head, and its bytes as a file that is read once.

    Use `with storage.get(id) as stored`. `stored.read()` returns all bytes that are left, and `read(n)` at most `n`; at
    the end both return `b""`. *Iteration gives chunks of at most 256 KiB, and not lines*, as in the asynchronous API:
    a large object may have no line end. For lines, use `io.TextIOWrapper(stored)` or `io.BufferedReader(stored)`.

    It is also a payload: `put` streams a copy of it and closes it. `start`, `stop`: the range of stored bytes, `stop`
    excluded: 0 and `size` unless a range was asked for. `decompressed`: it gives the bytes that were compressed, and
    not those that are stored. `length`: how many bytes it gives; None: it decompresses, and only its end tells. Threads
    that share it get each byte once, in an order that nobody knows.
    """

    @property
    def object_id(self) -> ObjectId:
        return self._stored.object_id

    @property
    def metadata(self) -> Metadata:
        """Of the bytes that it gives: those of `head`, but without `compression` and `size` if it decompresses."""
        return self._stored.metadata

    @property
    def size(self) -> int:
        """Length of the whole payload in bytes, as it is stored, also if only a range was asked for."""
        return self._stored.size

    @property
    def tier(self) -> Tier:
        return self._stored.tier

    @property
    def revision(self) -> ChangeId | None:
        return self._stored.revision

    @property
    def checksum(self) -> str | None:
        """Of the whole payload as it is stored, also if only a range was asked for."""
        return self._stored.checksum

    def save(self, destination: Destination) -> None:
        """Writes all bytes of the range to a file or into a buffer, and closes the object.

        `destination`: a path, an open binary file, or a buffer that is long enough, such as a `bytearray` of `length`
        bytes. At a path, a plain file is replaced when all bytes are there, and is as it was before if this fails. An
        open file is written from its position on, stays open, and may have got a part if this fails; so may a buffer,
        and a pipe or a device at a path.

        A large object comes in up to 8 ranges at once, unless the destination is written from its beginning to its end,
        as a pipe is, or the object is decompressed. A range whose connection breaks is read on where it stopped.

        `InvalidRequestError`: it was read or closed before, or nothing can be saved there. `UnavailableError`: the blob
        vanished or the service failed meanwhile, or the bytes were damaged on their way. Get the object again.
        `CorruptRecordError`: it cannot be decompressed. `OSError`: what the system says of the file, such as that the
        disk is full. What a file of your own raises reaches you.
        """
        self._save(destination)

    def close(self) -> None:
        """Closes the object; bytes that were not read are given up. Safe to repeat.

        If another task still reads it, that gets an error, and never less than all bytes without one.
        """
        self._close()
