"""All objects written elsewhere, and back, for blocking callers. The rules are those of `tiered/exports`.

`on_result` runs in the thread of the caller. The extra `audit` is needed when a function is called.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from changelog.base.errors import InvalidRequestError
from tiered.object_id import ALL, ObjectPrefix
from tiered.storage import TieredStorage
from tiered.sync.directory_calls import carried_out
from tiered.sync.storage import SyncTieredStorage
from tiered.text import quoted

if TYPE_CHECKING:
    from tiered.directories import DirectoryReport
    from tiered.directories.calls import OnResult
    from tiered.exports import Existing, ExportReport, NamePattern
    from tiered.exports.exporting import OnExported


def export_objects(
    storage: SyncTieredStorage, to: str | os.PathLike[str], prefix: ObjectPrefix = ALL, *, update: bool = False,
    verify: bool = False, concurrency: int | None = None, on_result: OnExported | None = None,
) -> ExportReport:  # fmt: skip
    """`tiered.exports.export_objects`, blocking, with `on_result` in this thread.

    Raises `ConfigurationError` (the place holds something else, or cannot be written), `UnavailableError` (call again)
    and `CorruptRecordError` (`begun.json` or `manifest.json` is damaged).
    """
    from tiered import exports

    begin = partial(exports.export_objects, _asynchronous(storage), to, prefix, update=update, verify=verify, concurrency=concurrency)
    return carried_out(storage, begin, on_result)


def import_objects(
    storage: SyncTieredStorage, source: str | os.PathLike[str], into: ObjectPrefix | NamePattern | None = None, *,
    existing: Existing | None = None, incomplete: bool = False, dry_run: bool = False, concurrency: int | None = None,
    on_result: OnResult | None = None,
) -> DirectoryReport:  # fmt: skip
    """`tiered.exports.import_objects`, blocking, with `on_result` in this thread. `existing` None: `Existing.REFUSE`.

    Raises `ConfigurationError` (there is no such source, or it may not be taken), `CorruptRecordError` (the manifest is
    damaged), `InvalidRequestError` and `UnavailableError`.
    """
    from tiered import exports

    begin = partial(
        exports.import_objects, _asynchronous(storage), source, into, existing=exports.Existing.REFUSE if existing is None else existing,
        incomplete=incomplete, dry_run=dry_run, concurrency=concurrency,
    )  # fmt: skip
    return carried_out(storage, begin, on_result)


def _asynchronous(storage: SyncTieredStorage) -> TieredStorage:
    if not isinstance(storage, SyncTieredStorage):
        raise InvalidRequestError(f"pass an open storage of tiered.sync, not {quoted(storage)}")
    return storage._storage
