"""Made from `tiered/exports/exporting.py` and `tiered/exports/importing.py` by `python -m tests.tiered.sync.twins`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tiered.object_id import ALL
from tiered.sync.calls import calls_of

if TYPE_CHECKING:
    import os

    from tiered.directories.calls import DirectoryReport, OnResult
    from tiered.exports.exporting import ExportReport, OnExported
    from tiered.exports.importing import Existing
    from tiered.exports.patterns import NamePattern
    from tiered.object_id import ObjectPrefix
    from tiered.sync.storage import SyncTieredStorage


def export_objects(
    storage: SyncTieredStorage, to: str | os.PathLike[str], prefix: ObjectPrefix = ALL, *, update: bool = False,
    verify: bool = False, concurrency: int | None = None, on_result: OnExported | None = None,
) -> ExportReport:  # fmt: skip
    """Exports the objects of a prefix to a directory, `gs://BUCKET/PREFIX` or `s3://BUCKET/PREFIX`, or goes on with it.

    Payloads are written as they are stored: those that `compress` made stay compressed. `update`: an export that has
    ended is brought up to date: all is listed again, what has changed is read, and files of what is gone are removed if
    it is complete. `verify`: what an earlier call wrote is read again and compared, and fetched anew if it differs;
    without it, only sizes in a directory are. `concurrency`: how many objects at once, as for `put_many`. `on_result`
    is called in your own thread with the row of each object that this call read; what it raises ends the call.

    Open the store with `writes=False`, or each read extends a time to idle.

    Raises `ConfigurationError` (the place holds something else, or cannot be written), `UnavailableError` (the place or
    the store does not answer, or the disk is full: call again), `CorruptRecordError` (`begun.json` or `manifest.json`
    is damaged), and what a listing raises.
    """
    from tiered.exports.exporting import export_objects as asynchronous

    calls = calls_of(storage)
    thread = calls.thread()
    call = partial(
        asynchronous, storage._storage, to, prefix, update=update, verify=verify, concurrency=concurrency,
        on_result=thread.callback(on_result),
    )
    return calls.call(call, thread)


def import_objects(
    storage: SyncTieredStorage, source: str | os.PathLike[str], into: ObjectPrefix | NamePattern | None = None, *,
    existing: Existing | None = None, incomplete: bool = False, dry_run: bool = False, concurrency: int | None = None,
    on_result: OnResult | None = None,
) -> DirectoryReport:  # fmt: skip
    """Stores the objects of an export, or with `into` the files of a directory or the objects of a bucket's prefix.

    `source`: a path, `gs://BUCKET/PREFIX` or `s3://BUCKET/PREFIX`. `into`: has a usecase, all scopes, and a key that is
    empty or ends with `/` (which is added); the file `a/b` below the source becomes the object of the key `a/b` after
    that. Or it is a `NamePattern`, which makes the id of the name, with its scopes. `existing` (None:
    `Existing.REFUSE`): what to do where another object is. `incomplete`: takes an export that misses objects, or parts
    of its manifest, each of which is `FAILED` then. `dry_run`: stores nothing, and tells what would be, and what would
    be refused. `concurrency`: how many objects at once, as for `put_many`. `on_result` is called in your own thread
    with a `FileResult` for everything that the source has; what it raises ends the call. Nothing is ever deleted, so
    `deleted` of the report stays 0.

    What has expired is `SKIPPED`, and so are links and special files, and what stands for a directory. A name that no
    object may have, and bytes that are not those of the manifest, are `FAILED`: look at `failed` of the report.

    Raises `ConfigurationError` (there is no such source, it is not complete, it belongs to a store, or newer software
    wrote it), `CorruptRecordError` (the manifest is damaged), `InvalidRequestError` and `UnavailableError`.
    """
    from tiered.exports.importing import Existing
    from tiered.exports.importing import import_objects as asynchronous

    calls = calls_of(storage)
    thread = calls.thread()
    call = partial(
        asynchronous, storage._storage, source, into, existing=Existing.REFUSE if existing is None else existing, incomplete=incomplete,
        dry_run=dry_run, concurrency=concurrency, on_result=thread.callback(on_result),
    )
    return calls.call(call, thread)
