"""One open file of the file system.

Reading: by ranges, with fsspec's caches. All of them come from the revision that was opened, or reading fails.
Writing: into memory, and beyond 8 MiB into a temporary file. `close` puts all of it at once. If the `with` block ends
with an error, or nobody closes the file, nothing is stored.
"""

from __future__ import annotations

from contextlib import suppress
from tempfile import SpooledTemporaryFile
from types import TracebackType

from fsspec.spec import AbstractBufferedFile

IN_MEMORY_BYTES_MAX = 8 << 20


class TieredFile(AbstractBufferedFile):  # type: ignore[misc] # fsspec has no types
    """A file of a `TieredFileSystem`, opened by its `open`, for `rb`, `wb`, `xb` or `ab`."""

    _written: SpooledTemporaryFile[bytes] | None = None

    def _fetch_range(self, start: int, end: int) -> bytes:
        if start >= min(end, self.size):
            return b""
        return bytes(self.fs.read_range(self.path, start, min(end, self.size), str(self.details["revision"])))

    def _initiate_upload(self) -> None:
        self._written = SpooledTemporaryFile(IN_MEMORY_BYTES_MAX)  # noqa: SIM115 - until `commit` or `discard`
        if self.mode == "ab":
            with suppress(FileNotFoundError):
                self._written.write(self.fs.cat_file(self.path))

    def _upload_chunk(self, final: bool = False) -> bool:
        assert self._written is not None, "initiated"
        self._written.write(self.buffer.getvalue())
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self) -> None:
        """Stores what was written. `FileExistsError`: it was opened with `xb`, and somebody was first."""
        assert self._written is not None, "initiated"
        with self._written as written:
            written.seek(0)
            self.fs._put(self.path, written, only_new=self.mode == "xb")

    def discard(self) -> None:
        """Forgets what was written. Nothing of it is stored."""
        if self._written is not None:
            self._written.close()
        self.closed = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None and self.mode != "rb":
            self.discard()
        else:
            self.close()

    def __del__(self) -> None:
        if not self.closed and self.mode != "rb":
            self.discard()  # it may be half written
