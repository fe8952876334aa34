"""Finishes a change: finds its garbage, deletes it, then forgets the entry. The writer and recovery share this.

    settle(change) -> live?          refuse its token for ever, unless the row shows it
      not live: cancel its upload; its new blob is garbage
    settle(old)    -> live?          not live: the old blob is garbage
    delete the garbage -> forget     or, after a single-request upload: wait out the grace, then do it once more

Where a change feed is configured, the feed does this once it has committed what the change did to the references. Until
then the entry is *kept*:

    settle(change), unless it is known to be over -> keep

Where the feed is off, the log is told of that before anything is cleaned up (`feed_off.py`).

I2: a blob is deleted only after its revision was settled and found not live. I5: every step may be repeated, by
anyone, in any order. *Crash* anywhere: the entry is still there, and whoever claims it begins again. *Failure*: an
error is raised, and nothing is forgotten. Nothing here completes a put or changes what a row redirects to. The fence is
the rollback record of Percolator and TiKV, fitted to the atomicity of a single row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from changelog.base.errors import CorruptRecordError, LeaseLostError
from changelog.change import Change, ChangeId
from changelog.heartbeat import Heartbeat
from changelog.lease import Lease
from changelog.log import ChangeLog
from tiered.notes.feed_off import FeedOffNotifier
from tiered.object_id import revision_of
from tiered.services.backends import Row, Tiers, Tombstone
from tiered.services.capabilities import PARTS_SESSION


class Ending(Enum):
    """How a clean-up ended."""

    FORGOTTEN = "done: there was no garbage; the entry is removed"
    CLEANED = "done: its garbage is deleted, and the entry is removed"
    DEFERRED = "done but for the late-upload grace: the entry waits"
    KEPT = "settled: the change feed cleans up, once it has published the change"


def took_effect(change: Change, live: bool, row: Row) -> bool:
    """Whether the change is live, or won and was replaced since. A write with a condition is told ok only then."""
    return live or change.id in row.won


def may_tell_ok(change: Change, live: bool, row: Row) -> bool:
    """Step 4 of a swap that was not told ok. `live`: what `settle` said; `row`: read afterwards, with its marks.

    True if the change is live, or if it won and was replaced since, or if another tombstone than `old` is present. In
    the last case it was superseded, and the last writer wins. False: it did not take effect and never will (I4).

    Nobody is superseded by a write with a condition: a change just before it would have broken its condition.
    """
    superseded = isinstance(row.state, Tombstone) and row.target != change.old and not row.state.conditional
    return took_effect(change, live, row) or superseded


def may_delete_legacy(change: Change, row: Row) -> bool:
    """Whether an old blob without a revision is garbage. It has no token that could be refused.

    Two things prove that it is: the row holds something else, or this change won, so the row has moved on from it.
    """
    another = row.state is not None and row.target != change.old
    return another or (change.id in row.won and row.target != change.old)


def token_of_new(change: Change) -> ChangeId:
    """The token to settle for what the change would have written."""
    if change.new is None:
        return change.id
    token = revision_of(change.object, change.new)
    if token is None:
        raise CorruptRecordError(f"change {change.id} of {change.object} names the new blob {change.new!r}, which is no revision of it")
    return token


async def settle_change(tiers: Tiers, change: Change) -> bool:
    """Refuses the change for ever unless the row shows it; True: it is live."""
    return await tiers.high_volume.settle(change.object, token_of_new(change))


async def clean_up(tiers: Tiers, change: Change, live: bool, go_on: Callable[[], None]) -> bool:
    """Cleans up: removes the garbage of the change. Returns whether there was any.

    `live`: its new state took effect, so only `old` may be garbage. `go_on` is called before each effect and raises to
    stop it: who lost the lease of a change cleans up nothing.
    """
    go_on()
    doomed = await garbage_of(tiers, change, live)
    await remove_garbage(tiers, change, live, doomed, go_on)
    return bool(doomed)


async def garbage_of(tiers: Tiers, change: Change, live: bool) -> Sequence[str]:
    """Returns the blobs of a settled change that no row shows, and none ever will. It may settle `old`."""
    doomed = [] if live or change.new is None else [change.new]
    if change.old is not None and await _is_garbage(tiers, change, change.old):
        doomed.append(change.old)
    return doomed


async def remove_garbage(tiers: Tiers, change: Change, live: bool, doomed: Sequence[str], go_on: Callable[[], None] = lambda: None) -> None:
    """Cancels the upload of a change that is not live, and deletes what `garbage_of` returned."""
    if not live and change.upload is not None:
        go_on()
        await tiers.long_term.cancel(change.upload)
    for blob in doomed:
        go_on()
        await tiers.long_term.delete(blob)


async def finish(
    tiers: Tiers, log: ChangeLog, heartbeat: Heartbeat, lease: Lease, live: bool | None, grace_ms: int | None,
    feed_off: FeedOffNotifier | None,
) -> Ending:  # fmt: skip
    """Finishes the change, by the holder of `lease`. `live` None: not known, so the change is settled first.

    `feed_off` None: a change feed is configured, so the entry is kept for it, with all that is left to do.

    `grace_ms`: for how long an upload without a session may still land after its blob was deleted. None: it cannot
    land. Only the owner may pass None: it knows that it never sent the end, or that the service answered. Raises
    `LeaseLostError` when the lease has ended: somebody else does the rest.
    """
    entry, change = lease.entry, lease.entry.change

    def go_on() -> None:
        if not heartbeat.held(lease):
            raise LeaseLostError(f"the clean-up of change {change.id} of {change.object} is left to recovery: {lease.end()}")

    if live is None:
        go_on()
        live = await settle_change(tiers, change)
    if feed_off is None:
        go_on()
        if not await log.keep(entry):
            raise LeaseLostError(f"change {change.id} of {change.object} was taken over by recovery before it was kept for the feed")
        return Ending.KEPT
    await feed_off.tell()
    had_garbage = await clean_up(tiers, change, live, go_on)
    if grace_ms is not None and waits_for_late_upload(change, live) and entry.cleanup_after_ms is None:
        go_on()
        await log.release(entry, await log.now_ms() + grace_ms)
        return Ending.DEFERRED
    await log.forget(entry)
    return Ending.CLEANED if had_garbage else Ending.FORGOTTEN


def waits_for_late_upload(change: Change, live: bool) -> bool:
    """Whether its blob may land after it was deleted. A single request has no session that could be cancelled. And of
    an upload in parts nobody promises that a completion which is under way fails when the upload is cancelled.
    """
    return not live and change.new is not None and (change.upload is None or change.upload.startswith(PARTS_SESSION))


async def _is_garbage(tiers: Tiers, change: Change, old: str) -> bool:
    if (token := revision_of(change.object, old)) is not None:
        return not await tiers.high_volume.settle(change.object, token)
    if old != change.object:
        raise CorruptRecordError(f"change {change.id} of {change.object} names the old blob {old!r}, which is not one of its own")
    return may_delete_legacy(change, await tiers.high_volume.read(change.object, marks=change.id))
