"""A local directory and the objects below a prefix, for blocking callers. The rules are those of `tiered/directories`.

`on_result` runs in the thread of the caller.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tiered.object_id import ObjectPrefix
from tiered.sync.storage import SyncTieredStorage
from tiered.sync.stored import refuse_async

if TYPE_CHECKING:
    from tiered.directories import DirectoryReport
    from tiered.directories.calls import OnResult

R = TypeVar("R")
T = TypeVar("T")


def upload_directory(
    storage: SyncTieredStorage, directory: str | os.PathLike[str], prefix: ObjectPrefix, *, delete: bool = False,
    allow_empty: bool = False, dry_run: bool = False, size_only: bool = False, concurrency: int | None = None,
    on_result: OnResult | None = None,
) -> DirectoryReport:
    """`tiered.directories.upload_directory`, blocking, with `on_result` in this thread.

    Raises `InvalidRequestError`, `ConfigurationError` (the directory is in a store, or this store in it), and what a
    listing raises; the report has the errors of files (`ConditionFailedError`: somebody else replaced the object).
    """
    from tiered import directories

    begin = partial(
        directories.upload_directory, storage._storage, directory, prefix, delete=delete, allow_empty=allow_empty,
        dry_run=dry_run, size_only=size_only, concurrency=concurrency,
    )  # fmt: skip
    return carried_out(storage, begin, on_result)


def download_directory(
    storage: SyncTieredStorage, prefix: ObjectPrefix, directory: str | os.PathLike[str], *, delete: bool = False,
    allow_empty: bool = False, dry_run: bool = False, size_only: bool = False, concurrency: int | None = None,
    on_result: OnResult | None = None,
) -> DirectoryReport:
    """`tiered.directories.download_directory`, blocking. Raises as `upload_directory` does."""
    from tiered import directories

    begin = partial(
        directories.download_directory, storage._storage, prefix, directory, delete=delete, allow_empty=allow_empty,
        dry_run=dry_run, size_only=size_only, concurrency=concurrency,
    )  # fmt: skip
    return carried_out(storage, begin, on_result)


def carried_out(storage: SyncTieredStorage, begin: Callable[..., Awaitable[T]], on_result: Callable[[R], object] | None) -> T:
    """Calls a function of an open storage that takes `on_result`, which this thread calls."""
    storage._check()
    thread = storage._loop.callers_thread()

    async def told(result: R) -> None:
        await thread.run(lambda: refuse_async(on_result(result) if on_result is not None else None))

    return storage._call(lambda: begin(on_result=None if on_result is None else told), thread)
