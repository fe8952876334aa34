"""The rules of a lease, without I/O: may the owner of an entry go on, and may others take the entry over?

Safety depends on none of this; the model of the protocol knows no lease at all. Leases decide only how soon recovery
acts, and how much work is done twice. An entry is stale by the log's own clock (`heartbeat_ms` against `now_ms`, both
assigned by the server). An owner judges its own lease by its boot-time clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from changelog.change import Entry, Unreadable

SET_BACK_MS = 3_600_000


class EntryState(Enum):
    """What recovery may do with an entry."""

    HELD = "its owner renewed it lately"
    WAITING = "an upload may still arrive"
    ASSEMBLING = "its upload is open, and may be completed"
    CLAIMABLE = "nobody works on it"
    EXHAUSTED = "it failed too often, and recovery will park it"
    UNREADABLE = "recovery will park it"
    NEWER = "newer software wrote it, and has to deal with it"
    PARKED = "an operator must look"
    KEPT = "its change is over, and it waits for the change feed"


DUE = (EntryState.CLAIMABLE, EntryState.EXHAUSTED, EntryState.UNREADABLE)
"""Entries of these states are work for recovery, now."""


def entry_state(entry: Entry | Unreadable, now_ms: int, expiry_ms: int, attempts_max: int) -> EntryState:
    """Judges an entry: the first rule that applies, from top to bottom."""
    stale = isinstance(entry, Entry) and (not entry.owner or is_stale(entry.heartbeat_ms, now_ms, expiry_ms))
    match entry:
        case Entry(stuck=stuck) | Unreadable(stuck=stuck) if stuck is not None:
            return EntryState.PARKED
        case Entry(kept_ms=since) | Unreadable(kept_ms=since) if since is not None:
            return EntryState.KEPT
        case Unreadable():
            return EntryState.NEWER if entry.newer else EntryState.UNREADABLE
        case Entry(cleanup_after_ms=after) if entry.assembling is not None and after is not None and after > now_ms:
            return EntryState.ASSEMBLING
        case Entry() if not stale:
            return EntryState.HELD
        case Entry(cleanup_after_ms=after) if after is not None and after > now_ms:
            return EntryState.WAITING
        case Entry() if entry.attempt >= attempts_max and entry.assembling is None:
            return EntryState.EXHAUSTED
        case _:
            return EntryState.CLAIMABLE


def is_stale(heartbeat_ms: int, now_ms: int, expiry_ms: int) -> bool:
    """Whether the heartbeat is older than the expiry, or so far ahead that the clock must have been set back.

    A heartbeat that is a little ahead is from a living owner, which renewed after `now_ms` was asked for.
    """
    return now_ms - heartbeat_ms > expiry_ms or heartbeat_ms - now_ms > SET_BACK_MS


class Renewal(Enum):
    """What the log said to one renewal."""

    RENEWED = "renewed"
    NOT_YOURS = "not yours"
    FAILED = "failed"


@dataclass(slots=True)
class Lease:
    """An owner's right to go on with an entry. It ends when the log says so, or `expiry_s` s after the last renewal.

    `renewed_at`: the owner's boot-time clock just *before* the last successful request was sent. So the owner gives up
    no later than others may take over, if both clocks run at the same rate.
    """

    entry: Entry
    renewed_at: float
    expiry_s: float
    ended: bool = False
    not_yours: bool = False

    def after(self, renewal: Renewal, sent_at: float) -> None:
        """Takes in the answer to a renewal: RENEWED extends the lease, NOT_YOURS ends it, FAILED changes nothing."""
        if renewal is Renewal.RENEWED:
            self.renewed_at = max(self.renewed_at, sent_at)
        elif renewal is Renewal.NOT_YOURS:
            self.ended = self.not_yours = True

    def held(self, now: float) -> bool:
        """Whether the owner may go on. A lease that has ended never holds again."""
        if now - self.renewed_at >= self.expiry_s:
            self.ended = True
        return not self.ended

    def end(self) -> str:
        """Why it ended, in words. Says what the owner knows, which is not whether somebody took the entry over."""
        if self.not_yours:
            return "the changelog said that its entry was taken over or is gone"
        return f"its entry was not renewed for {self.expiry_s:g} s: the event loop or the machine stood, or the changelog did not answer"
