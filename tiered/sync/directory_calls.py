"""Made from `tiered/directories/calls.py` by `python -m tests.tiered.sync.twins`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tiered.sync.calls import calls_of

if TYPE_CHECKING:
    import os

    from tiered.directories.calls import DirectoryReport, OnResult
    from tiered.object_id import ObjectPrefix
    from tiered.sync.storage import SyncTieredStorage


def upload_directory(
    storage: SyncTieredStorage, directory: str | os.PathLike[str], prefix: ObjectPrefix, *, delete: bool = False, allow_empty: bool = False,
    dry_run: bool = False, size_only: bool = False, concurrency: int | None = None, on_result: OnResult | None = None,
) -> DirectoryReport:
    """Stores each regular file below a directory whose object differs. The file `a/b` is the object of the key `a/b`
    after that of the prefix.

    `prefix`: has a usecase, all scopes, and a key that is empty or ends with `/` (which is added). `delete`: afterwards
    deletes the objects of the prefix whose files are not there, but only if nothing failed. An empty directory is
    refused then, since it may be a disk that is not mounted, unless `allow_empty`. `dry_run`: changes nothing, and
    tells what would be done. `size_only`: a file differs only if its size does; without it, checksums are compared,
    too. `concurrency`: how many files at once, as for `put_many`. `on_result` is called in your own thread with each
    `FileResult`; what it raises ends the call.

    A file has the bytes that are stored, also of a compressed object, whose size a listing tells.

    Links are not followed, and neither they nor special files are copied: they are `SKIPPED`, and so is what hides
    behind them. Modes, times and empty directories are not kept. A file that cannot be read, has a name that no key may
    have, or changes meanwhile is `FAILED`, and the others go on: look at `failed` of the report. An object that
    somebody else replaced after it was compared is not overwritten, and fails with `ConditionFailedError`.

    Raises `InvalidRequestError` (there is no such directory, or it is empty), `ConfigurationError` (it is in a store,
    or this store is in it), and what a listing raises.
    """
    from tiered.directories.calls import upload_directory as asynchronous

    calls = calls_of(storage)
    thread = calls.thread()
    call = partial(
        asynchronous, storage._storage, directory, prefix, delete=delete, allow_empty=allow_empty, dry_run=dry_run, size_only=size_only,
        concurrency=concurrency, on_result=thread.callback(on_result),
    )
    return calls.call(call, thread)


def download_directory(
    storage: SyncTieredStorage, prefix: ObjectPrefix, directory: str | os.PathLike[str], *, delete: bool = False, allow_empty: bool = False,
    dry_run: bool = False, size_only: bool = False, concurrency: int | None = None, on_result: OnResult | None = None,
) -> DirectoryReport:
    """Fetches each object of a prefix whose file differs, into a directory, which is made if need be.

    The arguments and the report are those of `upload_directory`, the other way round: `delete` deletes regular files
    without an object, and directories that are empty then. So a name may change from a file to a directory, or back:
    that is copied after the deletion. A file has its old bytes or all of the new ones. No file outside of the directory
    is touched, whatever a key is: `..` or an empty part of a key, a name that is a file here and a directory there, or
    one that differs from another only in case where these are one file, is `FAILED`, and so is what would replace a
    link or a directory. A file that somebody changed after it was compared is not replaced.
    """
    from tiered.directories.calls import download_directory as asynchronous

    calls = calls_of(storage)
    thread = calls.thread()
    call = partial(
        asynchronous, storage._storage, prefix, directory, delete=delete, allow_empty=allow_empty, dry_run=dry_run, size_only=size_only,
        concurrency=concurrency, on_result=thread.callback(on_result),
    )
    return calls.call(call, thread)
