"""The directory in which a run leaves its files.

It is on this machine, or on anything that Arrow opens (`gs://`, `s3://`, `hdfs://` ...).

    a path, file://      pyarrow's local file system: temporary file -> fsync -> rename -> fsync the directory
    hdfs://              temporary file -> rename
    gs://, s3:// ...     an object store: a file of this machine -> one upload, which its last request makes visible

So a file appears whole or not at all, and a file that exists is replaced as a whole. Names are relative to the
directory and use `/`. Nobody reads a file whose name begins with `_` or `.`.

*Crash* leaves at most a temporary file (`_….tmp`). *Failure*: `ConfigurationError` if the place of the directory or the
rights must change, otherwise `UnavailableError`, each with one sentence. `ledger.py` decides which files there are
and what they hold.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO, Any, NamedTuple, Self
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as arrow_fs

from changelog.base.directories import sync_directory, sync_file, sync_upwards
from changelog.base.errors import ConfigurationError, UnavailableError
from changelog.base.runtime import Runtime
from recovery.display import escape_controls
from tiered.settings import GCS_EMULATOR
from tiered.text import refuse_password

GCS_RETRY_S = 60
RUN = "the run directory"
COPY_BYTES = 4 * 1024 * 1024

_REFUSED = {
    errno.EACCES: "this process may not", errno.EPERM: "this process may not", errno.EROFS: "it is read-only",
    errno.ENOTDIR: "a file is in the way", errno.EEXIST: "a file is in the way", errno.ENOENT: "it does not exist",
    errno.ENAMETOOLONG: "its name is too long",
}  # fmt: skip
_MISTYPED = re.compile(r"(gs|gcs|s3|s3a|hdfs|viewfs|abfss?|file):(?!//)", re.IGNORECASE)
_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up", errno.EFBIG: "a file would be larger than is allowed"}


class FileSeen(NamedTuple):
    """A file or a directory in a listing. `size`: bytes, 0 for a directory. `path`: where the file system finds it."""

    name: str
    size: int
    path: str
    is_file: bool


class DirectoryFiles:
    """The files of one directory.

    `uri` opens the same directory in another process, or on another machine that can reach it.
    """

    def __init__(self, uri: str, filesystem: Any, path: str, runtime: Runtime, what: str = RUN) -> None:
        self.uri = uri
        self.filesystem = filesystem
        self.path = path
        self.what = what
        self._runtime = runtime

    @classmethod
    def at(cls, where: str, runtime: Runtime, what: str = RUN) -> Self:
        """Returns the files of a path or a URI. It reads and writes nothing. `what`: what errors call the directory.

        Raises `ConfigurationError` if the URI cannot be opened, or if the text is empty or a URI that lacks a slash.
        `InvalidRequestError`: it has a password.
        """
        refuse_password(what, where)
        if (why := _unusable(where, what)) is not None:
            raise ConfigurationError(why)
        if "://" not in where:
            path = str(Path(where).absolute())
            return cls(path, arrow_fs.LocalFileSystem(), path, runtime, what)
        parts = urlsplit(where)
        if parts.scheme == "file":
            if parts.netloc not in ("", "localhost"):
                raise ConfigurationError(f"{what} {where} names the machine {parts.netloc}: give file:/// and an absolute path")
            return cls.at(unquote(parts.path), runtime, what)
        try:
            filesystem, path = _opened(where)
        except (pa.ArrowException, OSError) as error:
            raise ConfigurationError(
                f"{what} {where} cannot be opened: give a path, or a URI such as gs://bucket/audits/1 ({_first_line(error)})"
            ) from error
        if not path.strip("/"):
            raise ConfigurationError(f"{what} {where} has no name: give a URI such as gs://bucket/audits/1")
        return cls(where.rstrip("/"), filesystem, path.rstrip("/"), runtime, what)

    @property
    def local(self) -> Path | None:
        """The directory on this machine, or None if it is not on this machine."""
        return Path(self.path) if self.filesystem.type_name == "local" else None

    @property
    def bucket(self) -> str | None:
        """The bucket of the directory, or None if it is not in a bucket.

        The service is not compared: S3's protocol reaches GCS as well, if settings elsewhere say so.
        """
        return PurePosixPath(self.path).parts[0] if self.filesystem.type_name in ("gcs", "s3") else None

    def make(self, name: str) -> None:
        """Creates a subdirectory, and the directory itself, durably. On this machine, only this user may use it."""
        with self.explained("be made"):
            if self.local is not None and not self.local.exists():
                self.local.parent.mkdir(parents=True, exist_ok=True)
                self.local.mkdir(mode=0o700, exist_ok=True)
            self.filesystem.create_dir(f"{self.path}/{name}".rstrip("/"), recursive=True)
            if self.local is not None:
                sync_upwards(self.local / name)

    def settle(self, name: str) -> None:
        """Makes the files of a subdirectory durable that others wrote. Who was killed may not have come so far."""
        if self.local is not None:
            with self.explained("be written", name):
                sync_directory(self.local / name)

    def list(self, name: str = "") -> list[FileSeen]:
        """Returns the files and directories of a subdirectory, in the order of their names.

        The list is empty if it does not exist.
        """
        with self.explained("be listed"):
            selector = arrow_fs.FileSelector(f"{self.path}/{name}".rstrip("/"), allow_not_found=True)
            try:
                found = self.filesystem.get_file_info(selector)
            except FileNotFoundError:  # Arrow lists, and then looks whether it exists: another process made it in between
                return []
            return sorted(FileSeen(seen.base_name, seen.size or 0, seen.path, seen.is_file) for seen in found)

    def names_in_bucket(self, below: str) -> Sequence[str]:
        """Returns the names of all files of the bucket that lie in a directory of it."""
        with self.explained("be looked at"):
            selector = arrow_fs.FileSelector(f"{self.bucket}/{below}".rstrip("/"), recursive=True, allow_not_found=True)
            return [seen.path.removeprefix(f"{self.bucket}/") for seen in self.filesystem.get_file_info(selector) if seen.is_file]

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file, or None if there is no such file."""
        with self.explained("be read", name):
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
            self._fill(draft, content)
            draft.publish()

    def _fill(self, draft: Draft, content: bytes) -> None:
        with self.explained("be written", draft.name):
            draft.file.write(content)

    def create(self, name: str, content: bytes) -> None:
        """Writes the file unless it exists.

        If two processes do this at once, only a local file is certain not to be replaced.
        """
        if self.local is None:
            if self.read(name) is None:
                self.write(name, content)
            return
        with self.draft(name) as draft:
            self._fill(draft, content)
            draft.publish(replace=False)

    def draft(self, name: str) -> Draft:
        """Returns a file that is to appear as `name`, for a `with` block.

        If it is not published by the end of the block, it never appears.
        """
        with self.explained("be written", name):
            return Draft(self, name, self._runtime.random.getrandbits(64))

    @contextmanager
    def explained(self, verb: str, name: str | None = None) -> Iterator[None]:
        """Turns errors of the file system into ours. `verb` completes the sentence "the run directory ... cannot".

        `name`: of the file in the directory that the error is about; None: the directory itself.
        """
        what = f"{self.what} {self.uri}" if name is None else f"{self.uri}/{name}"
        try:
            yield
        except pa.ArrowException as error:
            raise UnavailableError(f"{what} cannot {verb} ({_first_line(error)})") from error
        except OSError as error:
            if error.errno in _REFUSED:
                raise ConfigurationError(
                    f"{what} cannot {verb}: {_REFUSED[error.errno]}; give another directory, or the right to write there"
                ) from error
            # What goes to an object store is first put together in a file of this machine.
            where = "" if self.local is not None or error.errno not in _FULL else f" (that of {tempfile.gettempdir()})"
            full = f"{_FULL[error.errno]}{where}; free space and run it again" if error.errno in _FULL else _first_line(error)
            raise UnavailableError(f"{what} cannot {verb}: {full}") from error


class Draft:
    """A file that nobody sees until it is published. `file` is the open binary file to write to."""

    def __init__(self, files: DirectoryFiles, name: str, chance: int) -> None:
        self._files = files
        self.name = name
        self._target = f"{files.path}/{name}"
        directory, _, base = self._target.rpartition("/")
        self._temporary = f"{directory}/_{base}.{chance:016x}.tmp"
        self.file: IO[bytes]
        if files.local is not None:
            self.file = Path(self._temporary).open("xb")  # noqa: SIM115 (closed by __exit__)
        else:
            self.file = tempfile.TemporaryFile()  # noqa: SIM115

    def publish(self, *, replace: bool = True) -> None:
        """Makes the file visible, whole and durable.

        `replace`: whether it takes the place of a file of that name. Without it, an existing local file stays.
        """
        with self._files.explained("be written", self.name):
            self.file.flush()
            if self._files.local is None:
                self._upload()
                return
            sync_file(self.file.fileno())
            if replace:
                Path(self._temporary).replace(self._target)
            else:
                with suppress(FileExistsError):
                    os.link(self._temporary, self._target)
            sync_directory(Path(self._target).parent)

    def _upload(self) -> None:
        filesystem = self._files.filesystem
        in_steps = filesystem.type_name == "hdfs"  # hdfs shows a file while it is being written
        self.file.seek(0)
        with filesystem.open_output_stream(self._temporary if in_steps else self._target) as stream:
            while partition := self.file.read(COPY_BYTES):
                stream.write(partition)
        if in_steps:
            filesystem.move(self._temporary, self._target)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(OSError):  # closing writes what is buffered, and that may not fit
            self.file.close()
        if self._files.local is not None:
            with suppress(OSError):
                Path(self._temporary).unlink(missing_ok=True)


def _unusable(where: str, what: str) -> str | None:
    """Returns why a text names no directory, in one sentence. None: it may name one."""
    if not where.strip():
        return f"{what} is empty: give a path, or a URI such as gs://bucket/audits/1"
    if not where.isascii() and where.encode(errors="replace").decode() != where:
        return f"{what} {escape_controls(where)} is no text in UTF-8: give another name"
    if (mistyped := _MISTYPED.match(where)) is not None:
        scheme = "file:///" if mistyped[1].lower() == "file" else f"{mistyped[1]}://"
        return f"{what} {where} is no path and no URI: a URI begins with {scheme}, and a path with ./ or /"
    return None


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


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
