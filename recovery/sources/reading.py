"""Reads one partition of a table, page by page, through the backends that the audit uses.

    plan(table, settings, parallel) -> partitions       on the driver: ranges of names, or of the changelog's keys
    rows(table, settings, partition) -> pages of rows   on an executor: opens the backends, reads, closes them

Nothing is written (`writes=False`). Memory holds one page. A page that the service does not answer is asked for again
for `READ_BUDGET_S`. A damaged record is a row with an error, and ends nothing.

*Failure*: `ConfigurationError` with the fix if something is set up wrongly, `UnavailableError` if the service stays
away. Spark then tries the partition again, as often as it is told to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, overload

import anyio
from anyio.from_thread import start_blocking_portal

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import Runtime, SystemRuntime
from changelog.change import Unreadable
from recovery.audit.manifest import Bounds
from recovery.audit.names import read_name, usecase_of
from recovery.audit.running.jobs import AuditOptions, check_there
from recovery.audit.running.plan import plan_audit, split
from recovery.audit.sweeping.verify import READ_BUDGET_S
from recovery.sources.columns import BLOBS, CHANGES, OBJECTS, TOMBSTONES, TableRow, us_of, us_of_ms
from recovery.sources.stored_objects import read_objects
from tiered.object_id import ObjectPrefix
from tiered.open import Backends, open_backends
from tiered.services.retry import retry_read
from tiered.settings import Settings

PAGE = 10_000
ENTRIES_PAGE = 1000

Page = tuple[list[TableRow], str | bytes | None]
"""Rows, and where the next page begins; None: the partition has no more."""


@dataclass(frozen=True, slots=True)
class TablePartition:
    """A partition: the names or keys from `start` (inclusive) to `end` (exclusive; None: no end).

    `blobs`: whether `tiered.objects` asks for the blobs of large objects.
    """

    start: str
    end: str | None
    blobs: bool = True


async def read_blobs(backends: Backends, start: str | bytes, part: TablePartition) -> Page:
    assert isinstance(start, str)
    page = await backends.tiers.long_term.list(start, part.end, PAGE)
    rows: list[TableRow] = []
    for blob in page.blobs:
        reading = read_name(blob.name)
        rows.append((
            blob.name, reading.object, reading.revision, usecase_of(blob.name), reading.form.value, blob.size,
            us_of(blob.created_ns), us_of(blob.deadline_ns), blob.generation, None,
        ))  # fmt: skip
    for oddity in page.oddities:
        reading = read_name(oddity.name)
        rows.append((
            oddity.name, reading.object, reading.revision, usecase_of(oddity.name), reading.form.value, None, None, None, None,
            oddity.fault,
        ))  # fmt: skip
    return rows, page.next_start


async def read_tombstones(backends: Backends, start: str | bytes, part: TablePartition) -> Page:
    page = await backends.tiers.high_volume.redirects(_key(start), _key(part.end), PAGE)
    rows: list[TableRow] = [
        (path, target, read_name(target).revision, usecase_of(path), us_of(deadline_ns), None)
        for path, target, deadline_ns in page.redirects
    ]
    rows += [(row.path, row.target, None, usecase_of(row.path), None, row.fault) for row in page.corrupt]
    return rows, page.next_start


async def read_changes(backends: Backends, start: str | bytes, part: TablePartition) -> Page:
    assert isinstance(start, str)
    page = await backends.log.entries(start, ENTRIES_PAGE)
    rows: list[TableRow] = []
    for entry in page.entries:
        if part.end is not None and entry.key >= part.end:
            return rows, None
        stuck, stuck_at = (None, None) if entry.stuck is None else (entry.stuck.error, us_of_ms(entry.stuck.at_ms))
        if isinstance(entry, Unreadable):
            rows.append((entry.key, *(None,) * (len(CHANGES) - 4), stuck, stuck_at, entry.error))
            continue
        change = entry.change
        rows.append((
            entry.key, change.id, change.object, usecase_of(change.object), change.new, change.old, entry.owner, entry.attempt,
            us_of_ms(change.id.created_ms), us_of_ms(entry.heartbeat_ms or None), us_of_ms(entry.cleanup_after_ms), stuck, stuck_at,
            None,
        ))  # fmt: skip
    return rows, page.next_start


async def read_objects_of(backends: Backends, start: str | bytes, part: TablePartition) -> Page:
    return await read_objects(backends.tiers, SystemRuntime(), _key(start), _key(part.end), blobs=part.blobs)


@overload
def _key(name: str | bytes) -> bytes: ...
@overload
def _key(name: None) -> None: ...
def _key(name: str | bytes | None) -> bytes | None:
    return name.encode() if isinstance(name, str) else name


@dataclass(frozen=True, slots=True)
class StoreTable:
    """One table of a store. `name`: its format in Spark. `read`: reads one page."""

    name: str
    columns: Mapping[str, str]
    read: Callable[[Backends, str | bytes, TablePartition], Awaitable[Page]]


TABLES: Mapping[str, StoreTable] = {
    table.name: table for table in (
        StoreTable("tiered.objects", OBJECTS, read_objects_of),
        StoreTable("tiered.blobs", BLOBS, read_blobs),
        StoreTable("tiered.tombstones", TOMBSTONES, read_tombstones),
        StoreTable("tiered.changes", CHANGES, read_changes),
    )
}  # fmt: skip


def plan(table: str, settings: Settings, parallel: int, prefix: str = "", blobs: bool = True) -> list[TablePartition]:
    """Returns the partitions of a table. `parallel`: about how many of them are read at once.

    Blobs and tombstones are cut as the audit cuts its ranges, objects as the table's rows are, changes by the shards of
    the log. `prefix`, `blobs`: of `tiered.objects` only. Raises `ConfigurationError`, `InvalidRequestError` or
    `UnavailableError`.
    """
    return anyio.run(_plan, table, settings, parallel, prefix, blobs)


def bounds_of(prefix: str) -> Bounds:
    """The keys of the objects that `tiered ls PREFIX` lists, and of damaged rows among them. `InvalidRequestError`."""
    return Bounds.of_prefix(ObjectPrefix.parse(prefix).path)


async def _plan(table: str, settings: Settings, parallel: int, prefix: str, blobs: bool) -> list[TablePartition]:
    check_there(settings)
    runtime = SystemRuntime()
    if table == "tiered.changes":
        return await _shards(settings, parallel, runtime)
    if table == "tiered.objects":
        scope = bounds_of(prefix)
        async with open_backends(settings, runtime, writes=False) as backends:
            cuts = await backends.tiers.high_volume.boundaries(parallel) if parallel > 1 else []
        return [TablePartition(bounds.start, bounds.end, blobs) for bounds in split(cuts, scope)]
    planned = await plan_audit(settings, AuditOptions(directory="", insist=True), parallel, runtime)
    return [TablePartition(bounds.start, bounds.end) for bounds in planned.ranges]


async def _shards(settings: Settings, parallel: int, runtime: Runtime) -> list[TablePartition]:
    if settings.changelog in (None, "noop"):
        raise ConfigurationError(
            "this store keeps no changelog (changelog: noop), so tiered.changes has nothing to read: read tiered.blobs or tiered.tombstones"
        )
    async with open_backends(settings, runtime, writes=False) as backends:
        starts = sorted(each.start for each in backends.log.ranges())
    step = max(1, -(-len(starts) // parallel))
    cuts = starts[step::step]
    return [TablePartition(start, end) for start, end in zip(["", *cuts], [*cuts, None], strict=True)]


def rows(table: str, settings: str, part: TablePartition) -> Iterator[list[TableRow]]:
    """Yields the rows of a partition, page by page. `settings`: those of the store, as JSON.

    Call it in a thread without an event loop. Raises `TieredError` if the partition cannot be read to its end.
    """
    opened = Settings.unpacked(settings)
    check_there(opened)
    read, runtime = TABLES[table].read, SystemRuntime()
    backends: Any
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(
        open_backends(opened, runtime, writes=False, verify=False)
    ) as backends:
        start: str | bytes | None = part.start
        while start is not None:
            page, start = portal.call(retry_read, partial(read, backends, start, part), runtime, READ_BUDGET_S)
            if page:
                yield page
