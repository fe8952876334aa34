"""`TieredFileSystem`: an fsspec file system over one store. A file's path is the storage path of an object.

    tiered://photos/org.17/objects/2026/cat.jpg        usecase / scopes / "objects" / key

Directories do not exist in a store. A path is a directory as long as an object is below it, so `mkdir` does nothing,
and `rmdir` refuses. An object may be beside a directory of the same name; `info` then tells of the object. fsspec cuts
slashes off the end of a path. So an object whose key ends with one is listed, and is copied and removed with its
directory, but cannot be opened.

A file has the bytes that are stored, because its size and its ranges count these. `info` tells the `compression` of a
compressed object, and `open(…, compression="zstd")` reads what was compressed.

A store is opened when it is first needed. All file systems of a process that have the same settings share it, because
fsspec makes a file system for each thread. It is closed by `close` or when the interpreter exits. In a forked child it
is opened anew; a directory that the parent had open at the fork is refused (`changelog/sqlite/forks.py`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.core import get_compression
from fsspec.utils import isfilelike, stringify_path

import tiered.open
import tiered.storage
from changelog.base.errors import ConfigurationError, CorruptRecordError, InvalidRequestError, TieredError
from tiered.errors import ConditionFailedError, DanglingTombstoneError, RangeNotSatisfiableError
from tiered.filesystem.file import TieredFile, written_through
from tiered.metadata import Metadata
from tiered.object_id import ObjectId, ObjectPrefix
from tiered.protocol.backends import ByteRange
from tiered.settings import ENV_CONFIG, Settings, load_settings
from tiered.stored import Folder, ListEntry, ObjectHead
from tiered.sync.loop import LoopThread
from tiered.sync.storage import Opening, Payload, SyncTieredStorage
from tiered.sync.stored import SyncStoredObject
from tiered.text import quoted

Info = dict[str, Any]


class TieredFileSystem(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """A store as a file system. A write becomes visible when the file is closed, as a whole, and never before.

    `settings`: the path of a YAML file, a mapping of settings, or `Settings`; None: the file that `TIERED_CONFIG`
    names. `storage`: an open `tiered.sync.TieredStorage` instead; whoever opened it closes it. Each call may block, and
    may be made in a thread in which an event loop runs, as in a notebook.

    In a transaction, what is written is stored at its end, one file after the other; it is no step of all files
    together. Copies, moves and removals take place at once.

    `FileNotFoundError`, `FileExistsError` and `IsADirectoryError` are raised as by other file systems. All other errors
    are those of `tiered`.
    """

    protocol = "tiered"
    root_marker = ""

    def __init__(
        self, settings: str | os.PathLike[str] | Mapping[str, Any] | Settings | None = None, storage: SyncTieredStorage | None = None,
        **options: Any,
    ) -> None:
        super().__init__(settings=settings, storage=storage, **options)
        if not isinstance(storage, SyncTieredStorage | None):
            raise ConfigurationError(f"storage is what tiered.sync.open_storage gives, not {quoted(storage)}")
        self._settings = settings
        self._given = storage

    @property
    def storage(self) -> SyncTieredStorage:
        """The open store. Opens it if this process has not done so yet. Raises `ConfigurationError`."""
        return _opened(self._settings) if self._given is None else self._given

    def close(self) -> None:
        """Closes the store for all file systems with these settings, and waits for what is under way.

        The next call opens it again.
        """
        if self._given is None:
            _close(self._settings)

    def __reduce__(self) -> Any:
        if self._given is not None:
            raise InvalidRequestError("a file system over an open storage cannot be pickled: pass settings instead of the storage")
        return super().__reduce__()

    # --- paths -----------------------------------------------------------------------------------

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        text = stringify_path(path)
        if not isinstance(text, str):
            raise InvalidRequestError(f"a path of tiered:// is text, not {quoted(path)}")
        return text.removeprefix("tiered://").removeprefix("tiered:").strip("/")

    def _object(self, path: str) -> ObjectId | None:
        """The object at this path. None: no object can have this path."""
        with suppress(InvalidRequestError):
            return ObjectId.parse(path)
        return None

    def _put(self, path: str, payload: Any, *, only_new: bool) -> None:
        """Stores a file; in a transaction, at its end. Raises as `_store` does."""
        if not self._intrans:
            self._store(path, payload, if_absent=only_new)
            return
        with self.open(path, "xb" if only_new else "wb") as file:
            if isinstance(payload, Path):
                with payload.open("rb") as local:
                    shutil.copyfileobj(local, file)
            else:
                file.write(payload)

    def _store(self, path: str, payload: Payload, metadata: Metadata | None = None, *, if_absent: bool = False, **condition: Any) -> None:
        """Stores a file now. `FileExistsError`: `if_absent`, and it exists. `InvalidRequestError`: no object's path."""
        try:
            self.storage.put(ObjectId.parse(path), payload, metadata, if_absent=if_absent, **condition)
        except ConditionFailedError:
            raise FileExistsError(path) from None

    def _stored(self, path: str, range: ByteRange | None = None, **options: Any) -> SyncStoredObject:
        object_id = self._object(path)
        stored = None if object_id is None else self.storage.get(object_id, range, decompress=False, **options)
        if stored is None:
            raise FileNotFoundError(path)
        return stored

    # --- looking ---------------------------------------------------------------------------------

    def _below(
        self, path: str, *, delimiter: str | None = None, limit: int | None = None, metadata: bool = False
    ) -> Iterator[ListEntry | Folder]:
        """What is below a directory, in order. `delimiter`: only what is directly in it. `metadata`: with all sizes."""
        try:
            prefix = ObjectPrefix.parse(f"{path}/") if path else ObjectPrefix()
        except InvalidRequestError:  # no object can be there
            return iter(())
        return self.storage.list(prefix, limit=limit, delimiter=delimiter, metadata=metadata)

    def _file(self, path: str) -> Info | None:
        object_id = self._object(path)
        head = None if object_id is None else self.storage.head(object_id)
        return None if head is None else _info(path, head)

    def info(self, path: str, **options: Any) -> Info:
        """What is known of a file or a directory. `FileNotFoundError`: it is neither."""
        path = self._strip_protocol(path)
        if (file := self._file(path)) is not None:
            return file
        if not path or next(self._below(path, limit=1), None) is not None:
            return _directory(path)
        raise FileNotFoundError(path)

    def _kind(self, path: str) -> str | None:
        """`"file"`, `"directory"`, or None: it is neither. A damaged object is a file. Raises what else went wrong."""
        try:
            return str(self.info(path)["type"])
        except FileNotFoundError:
            return None
        except (CorruptRecordError, DanglingTombstoneError):
            return "file"

    # fsspec's own versions take every error for False, also while the store is away.

    def exists(self, path: str, **options: Any) -> bool:
        """Whether it is a file or a directory. Raises the errors of `tiered`, and never takes one for False."""
        return self._kind(path) is not None

    def isfile(self, path: str) -> bool:
        """Whether it is a file. Raises as `exists` does."""
        return self._kind(path) == "file"

    def isdir(self, path: str) -> bool:
        """Whether it is a directory. Raises as `exists` does."""
        return self._kind(path) == "directory"

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """The files and directories in a directory, or the file itself. `FileNotFoundError`: it is neither."""
        path = self._strip_protocol(path)
        found = [_listed(entry) for entry in self._below(path, delimiter="/", metadata=detail)]
        if not found and path:
            found = [self.info(path)]
        return found if detail else sorted({each["name"] for each in found})

    def find(self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **options: Any) -> Any:
        """All files below a directory, in one listing. `withdirs`: its directories, too."""
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        path = self._strip_protocol(path)
        found: dict[str, Info] = {}
        for entry in self._below(path, metadata=detail):
            file = _listed(entry)
            *parents, last = _steps(path, file["name"])
            for depth, parent in enumerate(parents, 1):
                if withdirs and (maxdepth is None or depth <= maxdepth):
                    found.setdefault(parent, _directory(parent))
            if maxdepth is None or len(parents) < maxdepth:
                found[last] = file
        if withdirs and found and path:
            found.setdefault(path, _directory(path))
        if not found and (itself := self._file(path)) is not None:
            found[path] = itself
        return dict(sorted(found.items())) if detail else sorted(found)

    def created(self, path: str) -> Any:
        """When the object was stored."""
        return self.info(path)["created"]

    modified = created

    def ukey(self, path: str) -> str:
        """The revision of the object: another one has other bytes."""
        return str(self.info(path)["revision"])

    # --- reading and writing ---------------------------------------------------------------------

    def open(
        self, path: str, mode: str = "rb", block_size: int | None = None, cache_options: dict[str, Any] | None = None,
        compression: str | None = None, **options: Any,
    ) -> Any:
        """Opens a file, as fsspec does. What is written as text or compressed keeps the rules of `TieredFile`, too."""
        if not isinstance(mode, str):
            raise InvalidRequestError(f"mode is text such as 'rb', not {quoted(mode)}")
        if "r" in mode or ("b" in mode and compression is None):
            return super().open(path, mode, block_size, cache_options, compression, **options)
        text: Info | None = None
        if "b" not in mode:
            text = {name: options.pop(name) for name in ("encoding", "errors", "newline") if name in options}
        binary = mode if text is None else mode.replace("t", "") + "b"
        file = super().open(path, binary, block_size, cache_options, **options)
        return written_through(file, get_compression(self._strip_protocol(path), compression), text)

    def _open(
        self, path: str, mode: str = "rb", block_size: int | None = None, autocommit: bool = True,
        cache_options: dict[str, Any] | None = None, **options: Any,
    ) -> TieredFile:
        if mode != "rb":
            object_id = ObjectId.parse(path)
            if mode == "xb" and self.storage.head(object_id) is not None:  # it is looked at again when it is stored
                raise FileExistsError(path)
        return TieredFile(self, path, mode, block_size or "default", autocommit, cache_options=cache_options, **options)

    def read_range(self, path: str, start: int, end: int, revision: str) -> bytes:
        """Returns bytes of one revision. `OSError`: the object was written or deleted since the file was opened."""
        with self._stored(path, ByteRange(start, end)) as stored:
            if str(stored.revision) != revision:
                raise OSError(f"{path} was written by somebody while it was read; open it again")
            return stored.read()

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        """Returns the bytes of a file, or of a range of it."""
        path = self._strip_protocol(path)
        if (start or 0) < 0 or (end or 0) < 0:
            size = self.info(path)["size"]
            start, end, _ = slice(start, end).indices(size)
        if end is not None and end <= (start or 0):
            self.info(path)
            return b""
        try:
            with self._stored(path, ByteRange(start or 0, end)) as stored:
                return stored.read()
        except RangeNotSatisfiableError:
            return b""  # a range beyond the end is empty, as of other files

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **options: Any) -> None:
        """Stores bytes. `mode` `create`: raises `FileExistsError` if the file is there already."""
        self._put(self._strip_protocol(path), value, only_new=mode == "create")

    def put_file(self, lpath: str, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **options: Any) -> None:
        """Stores a local file."""
        if not os.path.isdir(lpath):
            callback.set_size(size := os.path.getsize(lpath))
            self._put(self._strip_protocol(rpath), Path(lpath), only_new=mode == "create")
            callback.relative_update(size)

    def get_file(self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, outfile: Any = None, **options: Any) -> None:
        """Copies a file to the local disk: all of it, or nothing. To `outfile` it may write a part before an error."""
        path = self._strip_protocol(rpath)
        if outfile is None and isfilelike(lpath):
            outfile = lpath
        if outfile is None and self._file(path) is None and self.isdir(path):
            marker = self._file(f"{path}/") if rpath.endswith("/") else None
            if marker is not None and marker["size"]:
                raise IsADirectoryError(f"{path}/ is an object whose key ends with a slash, and no local file can have its name")
            os.makedirs(lpath, exist_ok=True)
            return
        with self._stored(path, progress=lambda so_far, total: callback.absolute_update(so_far)) as stored:
            callback.set_size(stored.size)
            if outfile is None:
                os.makedirs(os.path.dirname(os.path.realpath(lpath)), exist_ok=True)
            stored.save(Path(lpath) if outfile is None else outfile)

    def copy(
        self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, on_error: str | None = None, **options: Any
    ) -> None:
        """Copies objects, as fsspec does. One that cannot be copied does not end the rest.

        The first error is raised at the end, with a note of how many more there were.
        """
        failed: list[Exception] = []
        super().copy(path1, path2, recursive=recursive, maxdepth=maxdepth, on_error=on_error, failed=failed, **options)
        _raise_first(failed)

    def cp_file(self, path1: str, path2: str, move: bool = False, failed: list[Exception] | None = None, **options: Any) -> None:
        """Copies an object with its metadata, within the store. A directory needs no copy.

        `move`: renames it. `failed`: gets the errors of `tiered`; None: they are raised.
        """
        try:
            self._copy_one(path1, path2, move)
        except TieredError as error:
            if failed is None:
                raise
            failed.append(error)

    def _copy_one(self, path1: str, path2: str, move: bool) -> None:
        ends = "/" if path1.endswith("/") else ""  # of a listed object whose key ends so
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        copy = self.storage.rename if move else self.storage.copy
        copied = None
        for end in dict.fromkeys((ends, "")):
            if copied is None and (source := self._object(path1 + end)) is not None:
                copied = copy(source, ObjectId.parse(path2 + end))
        if copied is None and not self.isdir(path1):
            raise FileNotFoundError(path1)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any) -> None:
        """Renames objects, one after the other. Only what was copied is deleted: fsspec's version would also delete
        what somebody wrote meanwhile, and what is deeper than `maxdepth`.
        """
        if self._strip_protocol(path1) != self._strip_protocol(path2):
            self.copy(path1, path2, recursive=recursive, maxdepth=maxdepth, on_error="raise", move=True)

    def touch(self, path: str, truncate: bool = True, **options: Any) -> None:
        """Stores an empty object. `truncate` False: only if there is none."""
        with suppress(*(() if truncate else (FileExistsError,))):
            self._put(self._strip_protocol(path), b"", only_new=not truncate)

    # --- removing --------------------------------------------------------------------------------

    def rm_file(self, path: str) -> None:
        """Deletes one object, and takes its name as it is. `FileNotFoundError`: there is none."""
        self._delete([self._strip_protocol(path)], also_directories=False)

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Deletes objects. `recursive`: and all below. `IsADirectoryError`: a directory, and it is not recursive.

        An object that cannot be deleted does not end the rest. The first error is raised, with a note of how many more
        there were.
        """
        self._delete(self.expand_path(path, recursive=recursive, maxdepth=maxdepth), also_directories=recursive)

    def _delete(self, names: list[str], *, also_directories: bool) -> None:
        for name in [] if also_directories else names:
            if (kind := self._kind(name)) is None:
                raise FileNotFoundError(name)
            if kind != "file":
                raise IsADirectoryError(f"{name} is a directory: pass recursive=True to delete what is below it")
        with self.storage.delete_many([object_id for name in names if (object_id := self._object(name)) is not None]) as results:
            errors = [result.error for result in results if result.error is not None]
        _raise_first(errors)

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        """Does nothing: a directory is there as long as an object is below it."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Does nothing, as `mkdir`."""

    def rmdir(self, path: str) -> None:
        """Refuses: a directory ends with its last object. Raises `OSError`, or `FileNotFoundError` if it is not there.
        """
        self.info(path)
        raise OSError(f"{path} has objects, and it ends with the last of them: use rm(path, recursive=True)")


# --- beside --------------------------------------------------------------------------------------


def _settings(given: str | os.PathLike[str] | Mapping[str, Any] | Settings | None) -> Settings:
    if isinstance(given, Settings):
        return given
    if isinstance(given, Mapping):
        return Settings(**given)
    if given is None and (given := os.environ.get(ENV_CONFIG)) is None:
        raise ConfigurationError(f"tiered:// needs settings: pass storage_options={{'settings': 'tiered.yaml'}}, or set {ENV_CONFIG}")
    if not isinstance(given, str | os.PathLike):
        raise ConfigurationError(f"settings is the path of a YAML file, a mapping or Settings, not {quoted(given)}")
    return load_settings(Path(given))


_open_stores: dict[str, tuple[Opening[tiered.storage.TieredStorage, SyncTieredStorage], SyncTieredStorage]] = {}
_opening = Lock()


def _opened(settings: Any) -> SyncTieredStorage:
    """The store of these settings, which all file systems of this process share."""
    source = _source(settings)
    _, storage = _open_stores.get(source, (None, None))
    if storage is None or not storage._usable:
        with _opening:
            _, storage = _open_stores.get(source, (None, None))
            if storage is None or not storage._usable:
                opening = Opening(lambda: tiered.open.open_storage(_settings(settings)), _in_event_loops)
                storage = opening.enter_anywhere()
                _open_stores[source] = opening, storage
    return storage


def _close(settings: Any) -> None:
    opening, _ = _open_stores.pop(_source(settings), (None, None))
    if opening is not None:
        opening.__exit__(None, None, None)


def _source(settings: Any) -> str:
    """What names the store. A path counts as it is seen now: the working directory and the environment may change."""
    if isinstance(settings, Settings | Mapping):
        return repr(settings)
    path = os.environ.get(ENV_CONFIG) if settings is None else settings
    return os.path.abspath(path) if isinstance(path, str | os.PathLike) else repr(path)


def _in_child() -> None:
    global _opening
    _opening = Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_in_child)


def _raise_first(errors: list[Exception]) -> None:
    if len(errors) > 1:
        errors[0].add_note(f"{len(errors)} objects failed, and the others did not; this is the error of the first of them")
    if errors:
        raise errors[0]


def _in_event_loops(loop: LoopThread, storage: tiered.storage.TieredStorage) -> SyncTieredStorage:
    return SyncTieredStorage(loop, storage, in_event_loops=True)


def _listed(entry: ListEntry | Folder) -> Info:
    """What a listing tells of an entry. The size of a damaged object is not known, and opening it says what is wrong.
    """
    if isinstance(entry, Folder):
        return _directory(entry.prefix.path.removesuffix("/"))
    return {
        "name": entry.object_id.path, "size": entry.size, "type": "file", "created": entry.time_created, "mtime": entry.time_created,
        "content_type": None if entry.metadata is None else entry.metadata.content_type, "revision": entry.revision,
        "tier": entry.tier.value,
    }


def _info(path: str, head: ObjectHead) -> Info:
    metadata: Metadata = head.metadata
    return {
        "name": path, "size": head.size, "type": "file", "created": metadata.time_created, "mtime": metadata.time_created,
        "content_type": metadata.content_type, "compression": metadata.compression, "revision": head.revision, "tier": head.tier.value,
    }


def _directory(path: str) -> Info:
    return {"name": path, "size": 0, "type": "directory", "created": None, "revision": None}


def _steps(path: str, name: str) -> list[str]:
    """The name, after the directories between it and `path`."""
    start = len(path) + 1 if path else 0
    cuts = [place for place, letter in enumerate(name) if letter == "/" and place > start]
    return [*(name[:cut] for cut in cuts), name]
