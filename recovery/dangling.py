"""Looks again at the tombstones whose blob a reader found gone, by the note that `tiered.notes.dangling` describes.

    row absent, expired, or another state than was found     it went in good order: the object was deleted or replaced
    the same tombstone, and its blob is there                it was restored
    the same tombstone before and after its blob was gone    it is lost
    no answer, or a damaged row or blob                      not known, so it stays known as lost

Whoever shows a status looks, and writes nothing. Recovery also takes out of the note what is not lost any more. Of what
had no place in the note, nobody knows the names. A clean audit of the whole store ends that, if it began
`AUDIT_LATER_MS` later: the clocks are those of two machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import anyio

from changelog.base.errors import TieredError, UnavailableError
from changelog.base.events import events
from changelog.base.runtime import Runtime
from changelog.key_values import KeyValueStore
from recovery.last_audit import Audits, read_audits
from recovery.redaction import redact_names
from tiered.metadata import NS_PER_MS, is_expired
from tiered.notes.dangling import NOTE, Dangling, DanglingNote, decode, encode, read_dangling
from tiered.services.backends import Tiers, Tombstone
from tiered.services.concurrent import map_concurrently

LOOKS_AT_ONCE = 8
LOOK_S = 2.0
"""Seconds within which one tombstone must be looked at."""
AUDIT_LATER_MS = 3_600_000


class SecondLook(Enum):
    """What a second look finds."""

    LOST = "lost"
    MENDED = "mended"
    NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class LostReads:
    """What readers found lost, as far as it is not mended.

    `objects`: those that are lost, or that could not be looked at again. `not_looked_at`: how many of these could not,
    and `reason`: why. `more`: readers found others, for which there was no place in the note.
    """

    objects: Sequence[Dangling] = ()
    not_looked_at: int = 0
    reason: str = ""
    more: bool = False

    @property
    def is_loss(self) -> bool:
        """Whether data are known to be lost."""
        return bool(self.objects) or self.more


async def look_at_lost_reads(tiers: Tiers, log: KeyValueStore, runtime: Runtime, audits: Audits | None) -> LostReads:
    """Returns what readers found lost, after a look at each. It writes nothing.

    `audits`: None: they are not known. Raises as `read_dangling`.
    """
    note = await read_dangling(log)
    looks = await look_at_all(tiers, runtime, note.listed)
    not_known = [reason for found, reason in looks if found is SecondLook.NOT_KNOWN]
    objects = [each for each, (found, _) in zip(note.listed, looks, strict=True) if found is not SecondLook.MENDED]
    return LostReads(objects, len(not_known), next(iter(not_known), ""), has_more(note, audits))


def has_more(note: DanglingNote, audits: Audits | None) -> bool:
    """Whether readers found something that the note does not list, and no clean audit began later."""
    if note.unlisted_ms is None:
        return False
    later_ns = (note.unlisted_ms + AUDIT_LATER_MS) * NS_PER_MS
    runs = () if audits is None else audits.runs
    return not any(run.complete and not run.scope and not run.is_loss and run.started_ns > later_ns for run in runs)


async def look_at_all(tiers: Tiers, runtime: Runtime, listed: Sequence[Dangling]) -> list[tuple[SecondLook, str]]:
    """Returns what there is to each, with the reason if it is not known."""

    async def look(each: Dangling) -> tuple[SecondLook, str]:
        try:
            with anyio.fail_after(LOOK_S):
                return await look_again(tiers, runtime, each), ""
        except TimeoutError:
            return SecondLook.NOT_KNOWN, f"no answer within {LOOK_S:g} s"
        except TieredError as error:
            # A problem of a status is shown also where no object may be named.
            return SecondLook.NOT_KNOWN, redact_names("; ".join(str(error).splitlines()), (each.path, each.blob))

    return await map_concurrently(look, listed, LOOKS_AT_ONCE)


async def look_again(tiers: Tiers, runtime: Runtime, each: Dangling) -> SecondLook:
    """Looks at one of them. Raises as the tiers do."""
    if not await _is_shown(tiers, runtime, each) or await tiers.long_term.head(each.blob) is not None:
        return SecondLook.MENDED
    # A writer may have replaced it between the two answers. A revision that was replaced never comes back.
    return SecondLook.LOST if await _is_shown(tiers, runtime, each) else SecondLook.MENDED


async def _is_shown(tiers: Tiers, runtime: Runtime, each: Dangling) -> bool:
    state = (await tiers.high_volume.read(each.path)).state
    return isinstance(state, Tombstone) and state.target == each.blob and not is_expired(state.deadline_ns, runtime.wall_ns())


async def forget_mended(tiers: Tiers, log: KeyValueStore, runtime: Runtime) -> None:
    """Takes out of the note what is not lost any more. Whatever fails is logged, and the next call tries again."""
    try:
        await _forget_mended(tiers, log, runtime)
    except TieredError as error:
        events.warning("dangling_not_looked_at", error)


async def _forget_mended(tiers: Tiers, log: KeyValueStore, runtime: Runtime) -> None:
    note = await read_dangling(log)
    if note == DanglingNote():
        return
    looks = await look_at_all(tiers, runtime, note.listed)
    mended = [each for each, (found, _) in zip(note.listed, looks, strict=True) if found is SecondLook.MENDED]
    unlisted_ms = note.unlisted_ms if has_more(note, await read_audits(log)) else None
    raw = await log.read_note(NOTE)
    after = DanglingNote() if raw is None else decode(raw).without(mended)
    if after.unlisted_ms == note.unlisted_ms:
        after = replace(after, unlisted_ms=unlisted_ms)
    if raw is not None and encode(after) != raw and not await log.swap_note(NOTE, raw, encode(after)):
        raise UnavailableError(f"a reader changed the note {NOTE} meanwhile")
    for each in mended:
        events.info("dangling_mended", object=each.path, blob=each.blob)
