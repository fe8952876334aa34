"""Takes the references from a change feed: from the index that its writer publishes, instead of a scan of the rows.

    note  feed                         the checkpoint of the feed's writer: generation, frontier, gap, pass
    value feed/{G}/began               without it, the index of generation G is lost
    value feed/{G}/index/{object}      the blob that is published for this object

    references_of(log, ...)    which index a run takes, or one sentence that says why there is none that it can take
    FeedIndex                  reads that index by ranges of objects, and checks that it is still the same index

The index may be behind the rows. Still, the index and the changelog together are as new as the rows: where a feed is
configured, the entry of a change stays in the changelog until the index has what the change did. So the audit reads the
changelog first and the index after that, and reads the row of every object that an entry names (`sweep.py`). This
does not hold after a *gap*, when recovery has cleaned up without the feed, and in the first pass of a generation, when
the index is not complete yet. In both cases the writer withholds progress, and such a feed is refused.

*Failure*: `ConfigurationError`, one sentence with the fix, if the feed cannot be used. `CorruptRecordError` if the
checkpoint cannot be read. `UnavailableError` if the changelog does not answer. This module only reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from changelog.base.errors import ConfigurationError, CorruptRecordError
from changelog.log import ChangeLog
from recovery.audit.manifest import CLOCKS_NS, FeedAtEnd, FeedReferences
from recovery.display import elapsed, moment, span
from recovery.feed.index_value import IndexDamagedError, blob_of
from recovery.feed.writer.checkpoint import NOTE, NOTHING_YET, Checkpoint
from tiered.metadata import NS_PER_MS, NS_PER_S
from tiered.text import quoted

ROWS_INSTEAD = "leave --references feed out, and the rows are scanned"

Reference = tuple[str, str | None]
"""An object's path, and the blob that is published for it. None: the value cannot be read."""


async def read_checkpoint(log: ChangeLog) -> Checkpoint:
    """Returns the checkpoint of the feed. Raises the errors that the module names."""
    raw = await log.read_note(NOTE)
    if raw is None:
        raise ConfigurationError(f"the changelog knows of no change feed: start its writer ('tiered feed run'), or {ROWS_INSTEAD}")
    try:
        return Checkpoint.from_bytes(raw)
    except CorruptRecordError as error:
        raise CorruptRecordError(f"{error}; or {ROWS_INSTEAD}") from None


async def references_of(log: ChangeLog, store: str, now_ns: int, age_max_s: float) -> FeedReferences:
    """Returns which index a run takes that begins now. Raises the errors that the module names.

    `store`: what the feed must be of. `now_ns`: the service's clock. `age_max_s`: how old its frontier may be.
    """
    found = await read_checkpoint(log)
    if found.store != store:
        raise ConfigurationError(
            f"the change feed in the changelog is of {quoted(found.store)}, and this store is {quoted(store)}: check the settings, or"
            f" {ROWS_INSTEAD}"
        )
    check_progress(found)
    await check_began(log, found.generation)
    frontier_ns = found.frontier * NS_PER_MS
    _check_age(frontier_ns, now_ns, age_max_s)
    return FeedReferences(
        generation=found.generation, store=found.store, frontier_ns=frontier_ns,
        passed_ns=None if found.passed is None else found.passed * NS_PER_MS,
        live=found.live, records=found.records, last=found.num_records, age_max_s=age_max_s,
    )  # fmt: skip


def check_progress(found: Checkpoint) -> None:
    """Refuses a feed whose index is not complete."""
    if found.gap:
        raise ConfigurationError(
            "the change feed has a gap, because recovery has cleaned up changes that the feed had not published: wait until its writer"
            f" has read all rows again, or {ROWS_INSTEAD}"
        )
    if found.withheld:
        raise ConfigurationError(
            f"the change feed has not read all rows yet: wait until its pass is complete ('tiered status' shows how far it is), or"
            f" {ROWS_INSTEAD}"
        )
    if found.frontier <= NOTHING_YET:
        raise ConfigurationError(f"the change feed has no frontier yet: wait until its writer has published one, or {ROWS_INSTEAD}")


def _check_age(frontier_ns: int, now_ns: int, age_max_s: float) -> None:
    age_s = (now_ns - frontier_ns) / NS_PER_S
    if age_s > age_max_s:
        raise ConfigurationError(
            f"the change feed is complete up to {moment(frontier_ns)}, which is {elapsed(age_s)} ago, and {span(age_max_s)} are allowed:"
            f" see whether its writer runs ('tiered status'), allow more (--feed-age-max), or {ROWS_INSTEAD}"
        )
    if frontier_ns > now_ns + CLOCKS_NS:
        raise ConfigurationError(
            f"the change feed says that it is complete up to {moment(frontier_ns)}, which lies {elapsed(-age_s)} ahead, so nobody knows"
            f" how old it is: set the clock of its writer right, or {ROWS_INSTEAD}"
        )


async def check_began(log: ChangeLog, generation: int) -> None:
    """Refuses a generation whose index is lost."""
    key = f"{_prefix(generation)}began"
    if key not in await log.read_values([key]):
        raise ConfigurationError(
            f"the index of the change feed (generation {generation}) is lost: start its writer, which begins a new generation, or"
            f" {ROWS_INSTEAD}"
        )


async def at_end(log: ChangeLog, references: FeedReferences) -> FeedAtEnd:
    """Returns what the checkpoint says when a run ends. Raises the errors that the module names."""
    found = await read_checkpoint(log)
    check_same(found, references)
    return FeedAtEnd(live=found.live, records=found.records)


def check_same(found: Checkpoint, references: FeedReferences) -> None:
    """Refuses a feed that is not the one that the run began with, or whose index is not complete any more."""
    if (found.generation, found.store) != (references.generation, references.store):
        raise ConfigurationError(
            f"the run took its references from generation {references.generation} of the change feed, and there is generation"
            f" {found.generation} now: begin another run, in another directory"
        )
    check_progress(found)


@dataclass(frozen=True, slots=True)
class IndexPage:
    """References in the order of their objects. `next_start`: where the next page begins; None: there are no more."""

    references: Sequence[Reference]
    next_start: str | None


class FeedIndex:
    """The index of one generation of a feed. It is read as it is now, which may be newer than at the run's beginning.
    """

    def __init__(self, log: ChangeLog, references: FeedReferences) -> None:
        self._log = log
        self._references = references
        self._prefix = f"{_prefix(references.generation)}index/"

    async def page(self, start: str, end: str | None, limit: int) -> IndexPage:
        """Returns up to `limit` references of the objects from `start` (inclusive) to `end` (exclusive; None: all)."""
        last = f"{self._prefix[:-1]}0" if end is None else f"{self._prefix}{end}"
        page = await self._log.scan_values(f"{self._prefix}{start}", last, limit)
        following = None if page.next_start is None else page.next_start.removeprefix(self._prefix)
        return IndexPage(list(self._references_in(page.values)), following)

    async def at(self, paths: Sequence[str]) -> Sequence[Reference]:
        """Returns the references of these objects (some hundred at most). An object without one is left out."""
        return list(self._references_in(await self._log.read_values([f"{self._prefix}{path}" for path in paths])))

    async def check(self) -> None:
        """Raises `ConfigurationError` if what was read before this call may not be the whole index of the run's feed.
        """
        check_same(await read_checkpoint(self._log), self._references)
        await check_began(self._log, self._references.generation)

    def _references_in(self, values: Any) -> Iterator[Reference]:
        for key, value in values.items():
            try:
                yield key.removeprefix(self._prefix), blob_of(key.removeprefix(self._prefix), value)
            except IndexDamagedError:
                yield key.removeprefix(self._prefix), None


def _prefix(generation: int) -> str:
    return f"feed/{generation}/"
