"""After a change: what took effect, what is garbage, and its removal. Shared by the writer and by recovery.

    settle(change) -> live?          refuse its token for ever, unless the row shows it
      not live: cancel its upload, doom its new blob
    settle(old)    -> live?          not live: doom the old blob
    delete the doomed -> forget      or, after a single-request upload: wait out the grace, then once more

I2: a blob is deleted only after its revision was settled and found not live. I5: every step may be
repeated, by anyone, in any order. *Crash* anywhere: the entry is still there, and whoever claims it begins
again. *Failure*: raises; nothing is forgotten. It finishes no put and points no tombstone anywhere.
The fence is the rollback record of Percolator and TiKV, fitted to the atomicity of a single row.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from changelog.base.errors import CorruptRecordError, LeaseLostError
from changelog.change import Change, ChangeId
from changelog.heartbeat import Heartbeat
from changelog.lease import Lease
from changelog.log import ChangeLog
from tiered.object_id import revision_of
from tiered.protocol.backends import Row, Tiers


class Ending(Enum):
    """How a clean-up ended."""

    FORGOTTEN = "done: there was no garbage; the entry is removed"
    SWEPT = "done: its garbage is deleted, and the entry is removed"
    DEFERRED = "done but for the late-upload grace: the entry waits"


def may_tell_ok(change: Change, live: bool, row: Row) -> bool:
    """Step 4 for a swap that was not told ok, after `settle` said `live` and `row` was read with its marks.

    Ok iff it is live, or won (and was replaced since), or another tombstone than `old` is present: then it
    was superseded, and the last writer wins. Otherwise it did not take effect and never will (I4).
    """
    return live or change.id in row.won or (row.target is not None and row.target != change.old)


def may_delete_legacy(change: Change, row: Row) -> bool:
    """Whether an old blob without a revision is garbage. It has no token that could be refused.

    Only another state that is present proves it, or this change having won: then the row was seen to leave it.
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
    """Step 5: removes what the change leaves behind; whether that was anything. `live`: its new state took effect, so only `old` may be.

    `go_on` is asked before each effect and raises to stop: a change that lost its lease cleans up nothing.
    """
    doomed: list[str] = []
    if not live:
        if change.upload is not None:
            go_on()
            await tiers.long_term.cancel(change.upload)
        doomed += [change.new] if change.new is not None else []
    if change.old is not None:
        go_on()
        doomed += [change.old] if await _is_garbage(tiers, change, change.old) else []
    for blob in doomed:
        go_on()
        await tiers.long_term.delete(blob)
    return bool(doomed)


async def finish(
    tiers: Tiers, log: ChangeLog, heartbeat: Heartbeat, lease: Lease, live: bool | None, grace_ms: int | None
) -> Ending:
    """Steps 5 and 6 for the holder of `lease`. `live` None: not known, so the change is settled first.

    `grace_ms`: how long an upload without a session may still land, once its blob was deleted; None: it cannot, which only its owner
    can know: its end was never sent, or the service answered. Raises `LeaseLostError` when the lease has ended: the rest is others'.
    """
    entry, change = lease.entry, lease.entry.change

    def go_on() -> None:
        if not heartbeat.held(lease):
            raise LeaseLostError(f"the clean-up of change {change.id} of {change.object} is left to recovery: {lease.end()}")

    if live is None:
        go_on()
        live = await settle_change(tiers, change)
    swept = await clean_up(tiers, change, live, go_on)
    if grace_ms is not None and waits_for_late_upload(change, live) and entry.cleanup_after_ms is None:
        go_on()
        await log.release(entry, await log.announce(heartbeat.owner) + grace_ms)
        return Ending.DEFERRED
    await log.forget(entry)
    return Ending.SWEPT if swept else Ending.FORGOTTEN


def waits_for_late_upload(change: Change, live: bool) -> bool:
    """A single-request upload has no session that could be cancelled: it may land after its blob was deleted."""
    return not live and change.new is not None and change.upload is None


async def _is_garbage(tiers: Tiers, change: Change, old: str) -> bool:
    if (token := revision_of(change.object, old)) is not None:
        return not await tiers.high_volume.settle(change.object, token)
    if old != change.object:
        raise CorruptRecordError(f"change {change.id} of {change.object} names the old blob {old!r}, which is not one of its own")
    return may_delete_legacy(change, await tiers.high_volume.read(change.object, marks=change.id))
