"""`TieredFileSystem`: an fsspec file system over one store. A file's path is the storage path of an object.

    tiered://photos/org.17/objects/2026/cat.jpg        usecase / scopes / "objects" / key

Directories do not exist in a store. A path is a directory as long as an object is below it, so `mkdir` does nothing,
and `rmdir` refuses. An object may be beside a directory of the same name; `info` then tells of the object.

fsspec reads a path in ways of its own: a `[`, `?` or `*` makes it a pattern, and slashes at its end are cut off. Keys
may hold all of them. So one rule stands before fsspec's: a name that exists is what is meant (`_name`, `expand_path`
and `_pairs`). A directory has no empty name: what is below `a//` is listed in `a`, as `a//b`.

A file has the bytes that are stored. `info` tells their `compression`; `open(…, compression="zstd")` unpacks them.

A store is opened when it is first needed. File systems of a process with the same settings share it. It is closed by
`close` or when the interpreter exits. In a forked child it is opened anew (`changelog/sqlite/forks.py`).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from threading import RLock
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.core import get_compression
from fsspec.implementations.local import LocalFileSystem, make_path_posix, trailing_sep
from fsspec.utils import isfilelike, other_paths, stringify_path, tokenize

import tiered.open
import tiered.storage
from changelog.base.errors import ConfigurationError, CorruptRecordError, InvalidRequestError, TieredError
from tiered.errors import ConditionFailedError, DanglingTombstoneError, RangeNotSatisfiableError
from tiered.filesystem.file import TieredFile, written_through
from tiered.filesystem.names import ExactName, check_depth, check_file_path, expanded, means_pattern, paths_of, slashes
from tiered.metadata import Metadata, columns_of
from tiered.object_id import ObjectId, ObjectPrefix
from tiered.services.backends import ByteRange
from tiered.settings import ENV_CONFIG, Settings, load_settings
from tiered.stored import Folder, ListEntry, ObjectHead
from tiered.sync.calls import Payload
from tiered.sync.loop import LoopThread
from tiered.sync.open import Opening
from tiered.sync.storage import SyncTieredStorage
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
    cachable = False  # fsspec would find an instance by the text of its options, in which settings hide their secrets

    def __init__(
        self, settings: str | os.PathLike[str] | Mapping[str, Any] | Settings | None = None, storage: SyncTieredStorage | None = None,
        **options: Any,
    ) -> None:
        super().__init__(settings=settings, storage=storage, **options)
        if not isinstance(storage, SyncTieredStorage | None):
            raise ConfigurationError(f"storage is what tiered.sync.open_storage gives, not {quoted(storage)}")
        self._settings = _settings(settings) if isinstance(settings, Mapping) else settings
        self._source = self._settings.packed() if isinstance(self._settings, Settings) else None
        self._given = storage

    @property
    def storage(self) -> SyncTieredStorage:
        """The open store. Opens it if this process has not done so yet. Raises `ConfigurationError`."""
        return _opened(self._source or _seen_now(self._settings), self._settings) if self._given is None else self._given

    def close(self) -> None:
        """Closes the store for all file systems with these settings, and waits for what is under way.

        The next call opens it again.
        """
        if self._given is None:
            _close(self._source or _seen_now(self._settings))

    def __reduce__(self) -> Any:
        self._check_named()
        return super().__reduce__()

    def to_dict(self, *, include_password: bool = True) -> dict[str, Any]:
        """What `from_dict`, `to_json` and `from_json` make the file system of. `Settings` become a mapping.

        It has the secrets of the settings, such as the address of a database, unless `include_password` is False.
        """
        self._check_named()
        described = {"cls": f"{type(self).__module__}:{type(self).__name__}", "protocol": "tiered", "args": []}
        options = {name: value for name, value in self.storage_options.items() if name not in ("settings", "storage")}
        if isinstance(self._settings, Settings):
            options["settings"] = json.loads(self._settings.packed(secrets=include_password))
        elif self._settings is not None:
            options["settings"] = os.fspath(self._settings)
        return described | options

    def _check_named(self) -> None:
        if self._given is not None:
            raise InvalidRequestError("a file system over an open storage cannot be pickled: pass settings instead of the storage")

    @property
    def _fs_token(self) -> str:
        """What tells file systems apart. fsspec's own token does not see the secrets of settings."""
        return str(self._fs_token_ if self._source is None else tokenize(self._source))

    # --- paths -----------------------------------------------------------------------------------

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        if isinstance(path, ExactName):
            return path
        text = stringify_path(path)
        if not isinstance(text, str):
            raise InvalidRequestError(f"a path of tiered:// is text, not {quoted(path)}")
        return text.removeprefix("tiered:/").strip("/")  # libraries make one slash of two; a usecase may be `tiered:x`

    def _name(self, path: Any) -> str:
        """The path of the object that is meant. Slashes at its end are cut off, unless an object has just this name."""
        name: str = self._strip_protocol(path)
        whole = name + slashes(path)
        return ExactName(whole) if name and whole != name and self._is_object(whole) else name

    def _is_object(self, path: str) -> bool:
        """Whether an object has just this path. A damaged one has it. Raises what else went wrong."""
        try:
            return self._file(path) is not None
        except (CorruptRecordError, DanglingTombstoneError):
            return True

    def expand_path(
        self, path: Any, recursive: bool = False, maxdepth: int | None = None, assume_literal: bool = False, **options: Any
    ) -> list[str]:
        """What paths name, as fsspec does it. But a path that exists names just that, and is no pattern."""
        cut = self._strip_protocol if recursive else self._name
        return expanded(self, [cut(each) for each in paths_of(path)], recursive, maxdepth, assume_literal)

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
        """What is known of a file. None: there is none. A row tells it, where a head would ask the blob, too."""
        if (object_id := self._object(path)) is None:
            return None
        alone = ObjectPrefix(object_id.usecase, object_id.scopes, object_id.key)  # it is the first of these, if it is there
        first = next(self.storage.list(alone, limit=1, metadata=True), None)
        if first is None or first.object_id != object_id:
            return None
        if first.fault is None:
            return _listed(first)
        head = self.storage.head(object_id)  # it says in its own words what is wrong
        return None if head is None else _info(path, head, head.metadata.time_created)

    def info(self, path: str, **options: Any) -> Info:
        """What is known of a file or a directory. `FileNotFoundError`: it is neither.

        An empty object whose key ends with a slash marks a directory.
        """
        path = self._name(path)
        if (file := self._file(path)) is not None and (file["size"] or not path.endswith("/")):
            return file
        path = path.rstrip("/")
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
        """The files and directories in a directory, or the file itself. `FileNotFoundError`: it is neither.

        What is below an empty name is in it, too: `a` has `a//b`.
        """
        path = self._strip_protocol(path)
        found = list(self._in_directory(path, metadata=detail))
        if not found and path:
            found = [self.info(path)]
        return found if detail else sorted({each["name"] for each in found})

    def _in_directory(self, path: str, *, metadata: bool) -> Iterator[Info]:
        for entry in self._below(path, delimiter="/", metadata=metadata):
            if isinstance(entry, Folder) and entry.prefix.path.endswith("//"):
                yield from self._in_directory(entry.prefix.path.removesuffix("/"), metadata=metadata)
            else:
                yield _listed(entry)

    def walk(
        self, path: str, maxdepth: int | None = None, topdown: bool = True, on_error: Any = "omit", **options: Any
    ) -> Iterator[tuple[str, Any, Any]]:
        """Yields each directory below a path, the names of its directories, and those of its files, as fsspec does.

        The directory, a slash and a name make the path, also of an object below `a//`: there the name is `/b`.
        """
        check_depth(maxdepth)
        path = self._strip_protocol(path)
        detail = options.get("detail", False)
        try:
            listing = self.ls(path)
        except OSError as error:
            if on_error == "raise":
                raise
            if callable(on_error):
                on_error(error)
            return
        directories: dict[str, Info] = {}
        files: dict[str, Info] = {}
        for each in listing:
            (directories if each["type"] == "directory" else files)[each["name"][len(path) + 1 if path else 0 :]] = each
        level: tuple[str, Any, Any] = (path, directories, files) if detail else (path, list(directories), list(files))
        if topdown:
            yield level  # the caller may take away directories
        if maxdepth is None or maxdepth > 1:
            for name in list(level[1]):
                yield from self.walk(f"{path}/{name}" if path else name, maxdepth and maxdepth - 1, topdown, on_error, detail=detail)
        if not topdown:
            yield level

    def find(self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **options: Any) -> Any:
        """All files below a directory, in one listing. `withdirs`: its directories, too."""
        check_depth(maxdepth)
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
        path = self._name(path)
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
        path = self._name(path)
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

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **options: Any) -> Any:
        """Returns the bytes of a file, or a mapping of names and bytes, as fsspec does."""
        one = isinstance(path, str) and not recursive
        return super().cat(self._name(path) if one else path, recursive=recursive, on_error=on_error, **options)

    def pipe(self, path: Any, value: Any = None, **options: Any) -> None:
        """Stores bytes under a path, or each value of a mapping under its path."""
        for each, payload in path.items() if isinstance(path, dict) else [(path, value)]:
            self.pipe_file(each, payload, **options)

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **options: Any) -> None:
        """Stores bytes. `mode` `create`: raises `FileExistsError` if the file is there already."""
        self._put(self._name(path), value, only_new=mode == "create")

    def put_file(self, lpath: str, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **options: Any) -> None:
        """Stores a local file."""
        if not os.path.isdir(lpath):
            callback.set_size(size := os.path.getsize(lpath))
            self._put(self._name(rpath), Path(lpath), only_new=mode == "create")
            callback.relative_update(size)

    def get_file(self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, outfile: Any = None, **options: Any) -> None:
        """Copies a file to the local disk: all of it, or nothing. To `outfile` it may write a part before an error."""
        path = self._name(rpath)
        if outfile is None and isfilelike(lpath):
            outfile = lpath
        if outfile is None and slashes(lpath) and isinstance(path, ExactName):
            if (self._file(path) or {}).get("size"):
                raise IsADirectoryError(f"{path} is an object whose key ends with a slash, and no local file can have its name")
            os.makedirs(lpath, exist_ok=True)
            return
        if outfile is None and self._file(path) is None and self.isdir(path):
            os.makedirs(lpath, exist_ok=True)
            return
        with self._stored(path, progress=lambda so_far, total: callback.absolute_update(so_far)) as stored:
            callback.set_size(stored.size)
            if outfile is None:
                os.makedirs(os.path.dirname(os.path.realpath(lpath)), exist_ok=True)
            stored.save(Path(lpath) if outfile is None else outfile)

    def put(
        self, lpath: Any, rpath: Any, recursive: bool = False, callback: Any = DEFAULT_CALLBACK, maxdepth: int | None = None, **options: Any
    ) -> None:
        """Stores local files, as fsspec does. `InvalidRequestError`: two would become one object; none is stored."""
        local = make_path_posix(lpath) if isinstance(lpath, str) else lpath
        pairs = _pairs(LocalFileSystem(), local, self, rpath, recursive, maxdepth)
        super().put(*pairs, callback=callback, **options)

    def get(
        self, rpath: Any, lpath: Any, recursive: bool = False, callback: Any = DEFAULT_CALLBACK, maxdepth: int | None = None, **options: Any
    ) -> None:
        """Copies files to the local disk, as fsspec does.

        `InvalidRequestError`: two of them would become one file, or no file can have the name of one; none is copied.
        """
        local = make_path_posix(lpath) if isinstance(lpath, str) else lpath
        sources, targets = _pairs(self, rpath, LocalFileSystem(), local, recursive, maxdepth)
        if isinstance(local, str):
            for source, target in zip(sources, targets, strict=True):
                check_file_path(source, target[len(local.rstrip("/")) :])
        super().get(sources, targets, callback=callback, **options)

    def copy(
        self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, on_error: str | None = None, **options: Any
    ) -> None:
        """Copies objects, as fsspec does. One that cannot be copied does not end the rest.

        The first error is raised at the end, with a note of how many more there were. `InvalidRequestError`: two would
        become one object, and none is copied.
        """
        failed: list[Exception] = []
        pairs = _pairs(self, path1, self, path2, recursive, maxdepth)
        super().copy(*pairs, on_error=on_error or ("ignore" if recursive else "raise"), failed=failed, **options)
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
        source, target = self._name(path1), self._strip_protocol(str(stringify_path(path2)))
        if isinstance(source, ExactName):
            target += slashes(path2)
        found = self._object(source)
        copied = None if found is None else (self.storage.rename if move else self.storage.copy)(found, ObjectId.parse(target))
        if copied is None and not self.isdir(source):
            raise FileNotFoundError(path1)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any) -> None:
        """Renames objects, one after the other. Only what was copied is deleted: fsspec's version would also delete
        what somebody wrote meanwhile, and what is deeper than `maxdepth`.
        """
        cut = self._strip_protocol if recursive or isinstance(path1, list) else self._name
        if cut(path1) != cut(path2):
            self.copy(path1, path2, recursive=recursive, maxdepth=maxdepth, on_error="raise", move=True)

    def touch(self, path: str, truncate: bool = True, **options: Any) -> None:
        """Stores an empty object. `truncate` False: only if there is none."""
        with suppress(*(() if truncate else (FileExistsError,))):
            self._put(self._name(path), b"", only_new=not truncate)

    # --- removing --------------------------------------------------------------------------------

    def rm_file(self, path: str) -> None:
        """Deletes one object, and takes its name as it is. `FileNotFoundError`: there is none."""
        self._delete([path], [self._name(path)], recursive=False)

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Deletes objects. `recursive`: and all below. `IsADirectoryError`: a directory, and it is not recursive.

        An object that cannot be deleted does not end the rest. The first error is raised, with a note of how many more
        there were. A path that ends with a slash never names the object without it, also if it is removed twice.
        """
        paths = paths_of(path)
        self._delete(paths, self.expand_path(paths, recursive=recursive, maxdepth=maxdepth), recursive=recursive)

    def _delete(self, paths: list[Any], names: list[str], *, recursive: bool) -> None:
        beside = {self._strip_protocol(each) for each in paths if slashes(each)}
        for name in [] if recursive else names:
            kind = "file" if isinstance(name, ExactName) else self._kind(name)
            if kind is None or (kind == "file" and name in beside):
                raise FileNotFoundError(name)
            if kind != "file":
                raise IsADirectoryError(f"{name} is a directory: pass recursive=True to delete what is below it")
        if recursive and not (names := [name for name in names if name not in beside]):
            raise FileNotFoundError(paths)
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
_opening = RLock()  # a file that is dropped meanwhile, by garbage collection, may open another store


def _opened(source: str, settings: Any) -> SyncTieredStorage:
    """The store of these settings, which all file systems of this process share. `source`: what names it."""
    _, storage = _open_stores.get(source, (None, None))
    if storage is None or not storage._usable:
        with _opening:
            _, storage = _open_stores.get(source, (None, None))
            if storage is None or not storage._usable:
                opening = Opening(lambda: tiered.open.open_storage(_settings(settings)), _in_event_loops)
                storage = opening.enter_anywhere()
                _open_stores[source] = opening, storage
    return storage


def _close(source: str) -> None:
    opening, _ = _open_stores.pop(source, (None, None))
    if opening is not None:
        opening.__exit__(None, None, None)


def _seen_now(path: Any) -> str:
    """What names the store of a settings file: its path as it is now. The working directory and the environment change.
    """
    path = os.environ.get(ENV_CONFIG) if path is None else path
    return os.path.abspath(path) if isinstance(path, str | os.PathLike) else repr(path)


def _in_child() -> None:
    global _opening
    _opening = RLock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_in_child)


def _raise_first(errors: list[Exception]) -> None:
    if len(errors) > 1:
        errors[0].add_note(f"{len(errors)} objects failed, and the others did not; this is the error of the first of them")
    if errors:
        raise errors[0]


def _in_event_loops(loop: LoopThread, storage: tiered.storage.TieredStorage) -> SyncTieredStorage:
    return SyncTieredStorage(loop, storage, in_event_loops=True)


def _listed(entry: ListEntry | Folder) -> Info:
    """What a listing tells of an entry. A damaged object has no size; opening it says what is wrong."""
    if isinstance(entry, Folder):
        return _directory(entry.prefix.path.removesuffix("/"))
    return _info(entry.object_id.path, entry, entry.time_created)


def _info(path: str, it: ObjectHead | ListEntry, created: datetime | None) -> Info:
    return {
        "name": path, "size": it.size, "type": "file", "created": created, "mtime": created,
        "revision": it.revision, "tier": it.tier.value, **columns_of(it.metadata),
    }


def _directory(path: str) -> Info:
    return {"name": path, "size": 0, "type": "directory", "created": None, "revision": None}


def _steps(path: str, name: str) -> list[str]:
    """The name, after the directories between it and `path`. None of these ends with a slash."""
    start = len(path) + 1 if path else 0
    cuts = [place for place, letter in enumerate(name) if letter == "/" and place > start and name[place - 1] != "/"]
    return [*(name[:cut] for cut in cuts), name]


# --- pairs of names ------------------------------------------------------------------------------


def _pairs(files1: Any, path1: Any, files2: Any, path2: Any, recursive: bool, maxdepth: int | None) -> tuple[list[Any], list[Any]]:
    """What is copied, and to where each goes, as fsspec finds them. But a source that exists is no pattern, and no two
    sources have one target: `InvalidRequestError`.
    """
    if isinstance(path1, list) and isinstance(path2, list):
        sources, targets = path1, path2
    else:
        one = isinstance(path1, str)
        is_pattern = one and means_pattern(files1, path1)
        if isinstance(files1, TieredFileSystem):
            sources = files1.expand_path(path1, recursive, maxdepth)
        else:
            sources = expanded(files1, [files1._strip_protocol(each) for each in paths_of(path1)], recursive, maxdepth)
        if one and (not recursive or maxdepth is not None):
            sources = [each for each in sources if isinstance(each, ExactName) or not (trailing_sep(each) or files1.isdir(each))]
        is_into = isinstance(path2, str) and (trailing_sep(path2) or files2.isdir(path2))
        if isinstance(path2, str):
            path2 = files2._strip_protocol(path2)
        inside = one and ((is_pattern and len(sources) == 1) or (not is_pattern and is_into and not trailing_sep(path1)))
        targets = other_paths(sources, path2, exists=inside, flatten=not one) if sources else []
    taken: dict[Any, Any] = {}
    for source, target in zip(sources, targets, strict=True):
        if (first := taken.setdefault(target, source)) != source:
            raise InvalidRequestError(f"{quoted(str(first))} and {quoted(str(source))} would both become {quoted(str(target))}")
    return sources, targets
