"""A directory that a run leaves its files in: on this machine, or on anything that Arrow opens (`gs://`, `s3://`, `hdfs://` ...).

    a path, file://      pyarrow's local file system: temporary file -> fsync -> rename -> fsync the directory
    hdfs://              temporary file -> rename
    gs://, s3:// ...     an object store: a file of this machine -> one upload, which its last request makes visible

So a file appears whole or not at all, and one that is there is replaced as a whole. Names are relative to the directory and use `/`;
what begins with `_` or `.` is nobody's to read. *Crash* leaves at most a temporary file (`_….tmp`). *Failure*: `ConfigurationError`
(where the directory is, or who may write there, must change) and `UnavailableError`, one sentence each. Which files there are, and
what is in them, is `recovery.audit.ledger`'s.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO, Any, NamedTuple, Self
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as arrow_fs

from changelog.base.errors import ConfigurationError, UnavailableError
from changelog.base.runtime import Runtime
from tiered.settings import GCS_EMULATOR

GCS_RETRY_S = 60
COPY_BYTES = 4 * 1024 * 1024

_REFUSED = {
    errno.EACCES: "this process may not", errno.EPERM: "this process may not", errno.EROFS: "it is read-only",
    errno.ENOTDIR: "a file is in the way", errno.EEXIST: "a file is in the way", errno.ENOENT: "it does not exist",
    errno.ENAMETOOLONG: "its name is too long",
}  # fmt: skip
_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up", errno.EFBIG: "a file would be larger than is allowed"}


class FileSeen(NamedTuple):
    """A file in a listing."""

    name: str
    size: int
    path: str


class Files:
    """`uri`: opens the same directory in another process; on another machine, if it can be seen there."""

    def __init__(self, uri: str, filesystem: Any, path: str, runtime: Runtime) -> None:
        self.uri = uri
        self.filesystem = filesystem
        self.path = path
        self._runtime = runtime

    @classmethod
    def at(cls, where: str, runtime: Runtime) -> Self:
        """Of a path or a URI. Touches nothing. Raises `ConfigurationError`."""
        if "://" not in where:
            path = str(Path(where).absolute())
            return cls(path, arrow_fs.LocalFileSystem(), path, runtime)
        parts = urlsplit(where)
        if parts.scheme == "file":
            return cls.at(unquote(parts.path), runtime)
        try:
            filesystem, path = _opened(where)
        except (pa.ArrowException, OSError) as error:
            raise ConfigurationError(
                f"the run directory {where} cannot be opened: give a path, or a URI such as gs://bucket/audits/1 ({_first_line(error)})"
            ) from error
        if not path.strip("/"):
            raise ConfigurationError(f"the run directory {where} has no name: give a URI such as gs://bucket/audits/1")
        return cls(where.rstrip("/"), filesystem, path.rstrip("/"), runtime)

    @property
    def local(self) -> Path | None:
        """Where it is on this machine; None: it is elsewhere."""
        return Path(self.path) if self.filesystem.type_name == "local" else None

    @property
    def bucket(self) -> str | None:
        """The bucket that it is in, of whatever service: S3's protocol reaches GCS, too, and settings elsewhere may say so."""
        return PurePosixPath(self.path).parts[0] if self.filesystem.type_name in ("gcs", "s3") else None

    def make(self, name: str) -> None:
        """A directory in it, and itself."""
        with self.explained("be made"):
            self.filesystem.create_dir(f"{self.path}/{name}", recursive=True)

    def list(self, name: str = "") -> list[FileSeen]:
        """Files and directories in a directory of it, in order; none if there is no such directory."""
        with self.explained("be listed"):
            selector = arrow_fs.FileSelector(f"{self.path}/{name}".rstrip("/"), allow_not_found=True)
            return sorted(FileSeen(seen.base_name, seen.size or 0, seen.path) for seen in self.filesystem.get_file_info(selector))

    def read(self, name: str) -> bytes | None:
        """None: there is no such file."""
        with self.explained(f"be read: {name}"):
            try:
                with self.filesystem.open_input_file(f"{self.path}/{name}") as file:
                    return bytes(file.read())
            except FileNotFoundError:
                return None

    def remove(self, path: str) -> None:
        with self.explained("be tidied"), suppress(FileNotFoundError):
            self.filesystem.delete_file(path)

    def write(self, name: str, content: bytes) -> None:
        with self.draft(name) as draft:
            draft.file.write(content)
            draft.publish()

    def create(self, name: str, content: bytes) -> None:
        """Writes it unless it is there. Only a local one is sure not to be replaced when two do this at once."""
        if self.local is None:
            if self.read(name) is None:
                self.write(name, content)
            return
        with self.draft(name) as draft:
            draft.file.write(content)
            draft.publish(replace=False)

    def draft(self, name: str) -> Draft:
        """A file on its way to `name`, for `with`; what is not published by its end is gone."""
        with self.explained("be written"):
            return Draft(self, name, self._runtime.random.getrandbits(64))

    @contextmanager
    def explained(self, verb: str) -> Iterator[None]:
        """Errors of the file system as ours."""
        try:
            yield
        except pa.ArrowException as error:
            raise UnavailableError(f"the run directory {self.uri} cannot {verb} ({_first_line(error)})") from error
        except OSError as error:
            if error.errno in _REFUSED:
                raise ConfigurationError(
                    f"the run directory {self.uri} cannot {verb}: {_REFUSED[error.errno]}; give another, or the right to write there"
                ) from error
            full = f"{_FULL[error.errno]}; free space and run it again" if error.errno in _FULL else _first_line(error)
            raise UnavailableError(f"the run directory {self.uri} cannot {verb}: {full}") from error


class Draft:
    """A file that nobody sees until it is published. `file`: to be written in binary."""

    def __init__(self, files: Files, name: str, chance: int) -> None:
        self._files = files
        self._target = f"{files.path}/{name}"
        directory, _, base = self._target.rpartition("/")
        self._temporary = f"{directory}/_{base}.{chance:016x}.tmp"
        self.file: IO[bytes]
        if files.local is not None:
            self.file = Path(self._temporary).open("xb")  # noqa: SIM115 (closed by __exit__)
        else:
            self.file = tempfile.TemporaryFile()  # noqa: SIM115

    def publish(self, *, replace: bool = True) -> None:
        """Makes it visible, whole and durably, in place of what may be there."""
        with self._files.explained("be written"):
            self.file.flush()
            if self._files.local is None:
                self._upload()
                return
            os.fsync(self.file.fileno())
            if replace:
                Path(self._temporary).replace(self._target)
            else:
                with suppress(FileExistsError):
                    os.link(self._temporary, self._target)
            _sync(Path(self._target).parent)

    def _upload(self) -> None:
        filesystem = self._files.filesystem
        in_steps = filesystem.type_name == "hdfs"  # which shows a file that is being written
        self.file.seek(0)
        with filesystem.open_output_stream(self._temporary if in_steps else self._target) as stream:
            while piece := self.file.read(COPY_BYTES):
                stream.write(piece)
        if in_steps:
            filesystem.move(self._temporary, self._target)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(OSError):  # of bytes that did not fit
            self.file.close()
        if self._files.local is not None:
            with suppress(OSError):
                Path(self._temporary).unlink(missing_ok=True)


def _opened(where: str) -> tuple[Any, str]:
    parts = urlsplit(where)
    if parts.scheme in ("gs", "gcs") and not parts.query and not parts.username:
        emulator = os.environ.get(GCS_EMULATOR, "").rstrip("/")
        scheme, _, address = emulator.rpartition("://")
        away = {"anonymous": True, "scheme": scheme or "http", "endpoint_override": address} if emulator else {}
        filesystem = arrow_fs.GcsFileSystem(retry_time_limit=timedelta(seconds=GCS_RETRY_S), **away)
        return filesystem, unquote(parts.netloc + parts.path)
    filesystem, path = arrow_fs.FileSystem.from_uri(where)
    return filesystem, path


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
