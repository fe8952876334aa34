"""`upload_directory` and `download_directory`: one side becomes what the other is.

    1. copy      both sides are merged, and each file or object that differs is copied; the rest is not touched
    2. delete    only if it was asked for and nothing failed in 1: both sides are merged again, and what the source does
                 not have is deleted
    3. room      what had no room in 1, as its name was a file and is a directory now, or the other way round, is copied

Each step is a bulk call (`tiered/bulk.py`): at most `concurrency` files are worked on, and the error of one is its
result and does not end the others. Nothing is remembered between two calls, so there is nothing to resume: *after a
crash*, a failure or a cancellation, the same call does what is left, since what was copied does not differ any more.
Memory does not grow with the number of files, but for the names of one directory.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable
from itertools import islice
from pathlib import Path
from typing import TypeVar

import anyio

from changelog.base.errors import InvalidRequestError, TieredError, UnavailableError
from changelog.base.threads import in_thread
from tiered.bulk import Bulk, bounded_concurrency
from tiered.directories.pairs import Pair, pairs, whole_prefix
from tiered.directories.transfer import FileResult, Kind, Transfer, failed
from tiered.directories.tree import LocalEntry, LocalTree
from tiered.limits.policies import IN_BULK
from tiered.object_id import ObjectPrefix
from tiered.storage import TieredStorage
from tiered.text import check_flags, quoted

T = TypeVar("T")
OnResult = Callable[[FileResult], object]

FAILURES_KEPT = 100
UNAVAILABLE_MAX = 100
"""After so many files in a row that could not be copied because something does not answer, a call gives up."""
_WALKED_AT_ONCE = 1000


@dataclass(slots=True)
class DirectoryReport:
    """How many files were copied, and so on; in a dry run, how many would be.

    `bytes_copied`: the sizes of what was copied. `failures`: the first hundred. `deletes_nothing`: why nothing was
    deleted although it was asked for.
    """

    copied: int = 0
    unchanged: int = 0
    deleted: int = 0
    skipped: int = 0
    failed: int = 0
    bytes_copied: int = 0
    failures: list[FileResult] = field(default_factory=list)
    deletes_nothing: str | None = None

    def add(self, result: FileResult) -> None:
        """Counts a result."""
        name = result.kind.value
        setattr(self, name, getattr(self, name) + 1)
        if result.kind is Kind.COPIED:
            self.bytes_copied += result.size or 0
        elif result.kind is Kind.FAILED and len(self.failures) < FAILURES_KEPT:
            self.failures.append(result)


async def upload_directory(
    storage: TieredStorage, directory: str | os.PathLike[str], prefix: ObjectPrefix, *, delete: bool = False, allow_empty: bool = False,
    dry_run: bool = False, size_only: bool = False, concurrency: int | None = None, on_result: OnResult | None = None,
) -> DirectoryReport:
    """Stores each regular file below a directory whose object differs. The file `a/b` is the object of the key `a/b`
    after that of the prefix.

    `prefix`: has a usecase, all scopes, and a key that is empty or ends with `/` (which is added). `delete`: afterwards
    deletes the objects of the prefix whose files are not there, but only if nothing failed. An empty directory is
    refused then, since it may be a disk that is not mounted, unless `allow_empty`. `dry_run`: changes nothing, and
    tells what would be done. `size_only`: a file differs only if its size does; without it, checksums are compared,
    too. `concurrency`: how many files at once, as for `put_many`. `on_result` is called in the event loop with each
    `FileResult`, and may be an async function; what it raises ends the call.

    A file has the bytes that are stored, also of a compressed object, whose size a listing tells.

    Links are not followed, and neither they nor special files are copied: they are `SKIPPED`, and so is what hides
    behind them. Modes, times and empty directories are not kept. A file that cannot be read, has a name that no key
    may have, or changes meanwhile is `FAILED`, and the others go on: look at `failed` of the report. An object that
    somebody else replaced after it was compared is not overwritten, and fails with `ConditionFailedError`.

    Raises `InvalidRequestError` (there is no such directory, or it is empty), `ConfigurationError` (it is in a store,
    or this store is in it), and what a listing raises.
    """
    source = _Sync(storage, directory, prefix, delete, allow_empty, dry_run, size_only, concurrency, on_result)
    return await source.carry_out(uploads=True)


async def download_directory(
    storage: TieredStorage, prefix: ObjectPrefix, directory: str | os.PathLike[str], *, delete: bool = False, allow_empty: bool = False,
    dry_run: bool = False, size_only: bool = False, concurrency: int | None = None, on_result: OnResult | None = None,
) -> DirectoryReport:
    """Fetches each object of a prefix whose file differs, into a directory, which is made if need be.

    The arguments and the report are those of `upload_directory`, the other way round: `delete` deletes regular files
    without an object, and directories that are empty then. So a name may change from a file to a directory, or back:
    that is copied after the deletion. A file has its old bytes or all of the new ones. No file
    outside of the directory is touched, whatever a key is: `..` or an empty part of a key, a name that is a file here
    and a directory there, or one that differs from another only in case where these are one file, is `FAILED`, and so
    is what would replace a link or a directory. A file that somebody changed after it was compared is not replaced.
    """
    source = _Sync(storage, directory, prefix, delete, allow_empty, dry_run, size_only, concurrency, on_result)
    return await source.carry_out(uploads=False)


class _Sync:
    """One call."""

    def __init__(
        self, storage: TieredStorage, directory: str | os.PathLike[str], prefix: ObjectPrefix, delete: bool, allow_empty: bool,
        dry_run: bool, size_only: bool, concurrency: int | None, on_result: OnResult | None,
    ) -> None:
        try:
            name = os.fsdecode(directory)
        except TypeError:
            raise InvalidRequestError(f"a directory is a path, not {quoted(directory)}") from None
        if not name:  # such as a variable that was not set: `Path` takes it for the current directory
            raise InvalidRequestError("the directory is empty text: name it, or write '.' for the current one")
        self._directory = Path(name)
        self._storage = storage
        self._prefix = whole_prefix(prefix)
        check_flags(delete=delete, allow_empty=allow_empty, dry_run=dry_run, size_only=size_only)
        self._delete, self._allow_empty, self._dry_run, self._size_only = delete, allow_empty, dry_run, size_only
        self._concurrency = bounded_concurrency(concurrency, storage._settings.store)
        self._threads = anyio.CapacityLimiter(self._concurrency + 1)  # one walks
        self._on_result = on_result
        self._report = DirectoryReport()
        self._unavailable = 0

    async def carry_out(self, *, uploads: bool) -> DirectoryReport:
        tree = await self._open(make=not uploads and not self._dry_run)
        if tree is None and uploads:
            raise InvalidRequestError(f"there is no directory {quoted(str(self._directory))}")
        in_bulk = IN_BULK.set(True)
        try:
            await self._both_steps(tree, uploads)
        finally:
            IN_BULK.reset(in_bulk)
            if tree is not None:
                tree.close()
        return self._report

    async def _open(self, *, make: bool) -> LocalTree | None:
        try:
            opened = partial(LocalTree, self._directory, make=make, own=self._storage._settings.directory)
            return await in_thread(opened, self._threads, undo=LocalTree.close)
        except FileNotFoundError:
            return None

    async def _both_steps(self, tree: LocalTree | None, uploads: bool) -> None:
        transfer = Transfer(self._storage, tree, self._prefix, self._size_only, self._dry_run, self._threads, waits=self._delete)
        sweeps = not uploads and not self._dry_run
        folds = tree is not None and sweeps and await in_thread(tree.takes_case_for_nothing, self._threads)
        await self._each(self._pairs(tree, metadata=True, sweep=sweeps, folds=folds), transfer.upload if uploads else transfer.download)
        if not self._delete:
            return
        if self._report.failed:
            room = f", and {transfer.waiting} wait until what is in their place is deleted" if transfer.waiting else ""
            self._report.deletes_nothing = f"{self._report.failed} could not be copied{room}"
            return
        # Asked again, and not remembered: the disk may have gone in between.
        if not self._allow_empty and await self._is_empty(tree, uploads):
            what = str(self._directory) if uploads else self._prefix.path
            raise InvalidRequestError(
                f"{quoted(what)} is empty, and to delete all of the other side is refused: look whether it is there at all, "
                "or pass allow_empty=True (--allow-empty)"
            )
        await self._each(self._pairs(tree, metadata=False), transfer.delete_object if uploads else transfer.delete_file)
        if transfer.waiting:
            transfer.waits = False
            await self._each(self._pairs(tree, metadata=True), transfer.download_what_waited)

    async def _is_empty(self, tree: LocalTree | None, uploads: bool) -> bool:
        if uploads:
            async with aclosing(self._walked(tree)) as files:
                async for file in files:
                    if file.skipped is None and file.fault is None:
                        return False
            return True
        return not (await self._storage.list_page(self._prefix, limit=1)).entries

    # --- one step --------------------------------------------------------------------------------

    async def _pairs(
        self, tree: LocalTree | None, *, metadata: bool, sweep: bool = False, folds: bool = False
    ) -> AsyncGenerator[Pair, None]:
        async with (
            aclosing(self._walked(tree, sweep=sweep)) as files,
            aclosing(self._storage.list(self._prefix, metadata=metadata)) as objects,
            aclosing(pairs(self._prefix, files, objects, folds=folds)) as merged,
        ):
            async for pair in merged:
                yield pair

    async def _walked(self, tree: LocalTree | None, *, sweep: bool = False) -> AsyncGenerator[LocalEntry, None]:
        if tree is None:
            return
        walk = tree.walk(sweep=sweep)
        while some := await in_thread(partial(_next_of, walk), self._threads):
            for each in some:
                yield each

    async def _each(self, source: AsyncGenerator[Pair, None], work: Callable[[Pair], Awaitable[FileResult | None]]) -> None:
        async with Bulk(source, Pair, work, self._concurrency) as results:
            async for result in results:
                if result.error is None:
                    done = result.value
                elif isinstance(result.error, TieredError):
                    done = failed(result.request.path, result.error)
                else:
                    raise result.error
                if done is not None:
                    await self._tell(done)

    async def _tell(self, result: FileResult) -> None:
        self._report.add(result)
        if self._on_result is not None:
            answer = self._on_result(result)
            if isawaitable(answer):
                await answer
        self._unavailable = self._unavailable + 1 if isinstance(result.error, UnavailableError) else 0
        if self._unavailable == UNAVAILABLE_MAX:
            raise UnavailableError(
                f"given up after {UNAVAILABLE_MAX} files in a row that could not be copied, the last one: {result.why}; "
                "try again, which does what is left"
            )


def _next_of(walk: Iterator[LocalEntry]) -> list[LocalEntry]:
    return list(islice(walk, _WALKED_AT_ONCE))
