"""`TieredFileSystem`: an fsspec file system over one store. A file's path is the storage path of an object.

    tiered://photos/org.17/objects/2026/cat.jpg        usecase / scopes / "objects" / key

Directories do not exist in a store. A path is a directory as long as an object is below it, so `mkdir` does nothing,
and `rmdir` refuses. An object may be beside a directory of the same name; `info` then tells of the object. fsspec cuts
slashes off the end of a path, so an object whose key ends with one is listed and cannot be opened.

A store is opened when it is first needed, once for each file system, and closed by `close` or when the interpreter
exits. In a forked child, it is opened anew.
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
from fsspec.utils import stringify_path

import tiered.open
import tiered.storage
from tiered.errors import ConditionFailedError, ConfigurationError, InvalidRequestError, RangeNotSatisfiableError
from tiered.filesystem.file import TieredFile
from tiered.metadata import Metadata
from tiered.object_id import ObjectId, ObjectPrefix
from tiered.protocol.backends import ByteRange
from tiered.settings import ENV_CONFIG, Settings, load_settings
from tiered.stored import Folder, ListEntry, ObjectHead
from tiered.sync.loop import LoopThread
from tiered.sync.storage import Opening, Payload, TieredStorage
from tiered.sync.stored import StoredObject
from tiered.text import shown

Info = dict[str, Any]


class TieredFileSystem(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """A store as a file system. A write becomes visible when the file is closed, as a whole, and never before.

    `settings`: the path of a YAML file, a mapping of settings, or `Settings`; None: the file that `TIERED_CONFIG`
    names. `storage`: an open `tiered.sync.TieredStorage` instead; whoever opened it closes it. Each call may block, and
    may be made in a thread in which an event loop runs, as in a notebook.

    `FileNotFoundError`, `FileExistsError` and `IsADirectoryError` are raised as by other file systems. All other errors
    are those of `tiered`.
    """

    protocol = "tiered"
    root_marker = ""

    def __init__(
        self, settings: str | os.PathLike[str] | Mapping[str, Any] | Settings | None = None, storage: TieredStorage | None = None,
        **options: Any,
    ) -> None:
        super().__init__(settings=settings, storage=storage, **options)
        self._settings = settings
        self._given = storage
        self._opening: Opening[tiered.storage.TieredStorage, TieredStorage] | None = None
        self._storage: TieredStorage | None = None
        self._lock = Lock()

    @property
    def storage(self) -> TieredStorage:
        """The open store. Opens it if this process has not done so yet. Raises `ConfigurationError`."""
        if self._given is not None:
            return self._given
        if self._storage is None or not self._storage._usable:
            with self._lock:
                if self._storage is None or not self._storage._usable:
                    self._opening = Opening(lambda: tiered.open.open_storage(_settings(self._settings)), _in_event_loops)
                    self._storage = self._opening.enter_anywhere()
        return self._storage

    def close(self) -> None:
        """Closes the store, and waits for what is under way. The next call opens it again."""
        with self._lock:
            opening, self._opening, self._storage = self._opening, None, None
        if opening is not None:
            opening.__exit__(None, None, None)

    # --- paths -----------------------------------------------------------------------------------

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        return stringify_path(path).removeprefix("tiered://").removeprefix("tiered:").strip("/")

    def _object(self, path: str) -> ObjectId | None:
        """The object at this path. None: no object can have this path."""
        with suppress(InvalidRequestError):
            return ObjectId.parse(path)
        return None

    def _put(self, path: str, payload: Payload, *, only_new: bool) -> None:
        """Stores a file. `FileExistsError`: `only_new`, and it exists. `InvalidRequestError`: no path of an object."""
        try:
            self.storage.put(ObjectId.parse(path), payload, if_absent=only_new)
        except ConditionFailedError:
            raise FileExistsError(path) from None

    def _stored(self, path: str, range: ByteRange | None = None) -> StoredObject:
        object_id = self._object(path)
        stored = None if object_id is None else self.storage.get(object_id, range)
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
        """Copies a file to the local disk."""
        path = self._strip_protocol(rpath)
        if self._file(path) is None and self.isdir(path):
            os.makedirs(lpath, exist_ok=True)
            return
        with self._stored(path) as stored:
            callback.set_size(stored.size)
            if outfile is not None:
                shutil.copyfileobj(stored, outfile)
            else:
                os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
                with open(lpath, "wb") as file:
                    shutil.copyfileobj(stored, file)
            callback.relative_update(stored.size)

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        """Copies an object with its metadata, within the store. A directory needs no copy."""
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        source = self._object(path1)
        copied = None if source is None else self.storage.copy(source, ObjectId.parse(path2))
        if copied is None and not self.isdir(path1):
            raise FileNotFoundError(path1)

    def touch(self, path: str, truncate: bool = True, **options: Any) -> None:
        """Stores an empty object. `truncate` False: only if there is none."""
        if truncate or not self.exists(path):
            self.pipe_file(path, b"")

    # --- removing --------------------------------------------------------------------------------

    def rm_file(self, path: str) -> None:
        """Deletes one object. `FileNotFoundError`: there is none."""
        self.rm(path)

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Deletes objects. `recursive`: and all below. `IsADirectoryError`: a directory, and it is not recursive."""
        names = self.expand_path(path, recursive=recursive, maxdepth=maxdepth)
        if not recursive:
            for name in names:
                if self.info(name)["type"] != "file":
                    raise IsADirectoryError(f"{name} is a directory: pass recursive=True to delete what is below it")
        with self.storage.delete_many([object_id for name in names if (object_id := self._object(name)) is not None]) as results:
            errors = [result.error for result in results if result.error is not None]
        if errors:
            raise errors[0]

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
        raise ConfigurationError(f"settings is the path of a YAML file, a mapping or Settings, not {shown(given)}")
    return load_settings(Path(given))


def _in_event_loops(loop: LoopThread, storage: tiered.storage.TieredStorage) -> TieredStorage:
    return TieredStorage(loop, storage, in_event_loops=True)


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
        "content_type": metadata.content_type, "revision": head.revision, "tier": head.tier.value,
    }


def _directory(path: str) -> Info:
    return {"name": path, "size": 0, "type": "directory", "created": None, "revision": None}


def _steps(path: str, name: str) -> list[str]:
    """The name, after the directories between it and `path`."""
    start = len(path) + 1 if path else 0
    cuts = [place for place, letter in enumerate(name) if letter == "/" and place > start]
    return [*(name[:cut] for cut in cuts), name]
