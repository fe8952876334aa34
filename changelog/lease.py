"""The lease rules, without I/O: may its owner go on, may others take it over?

Safety depends on none of this (design: the model of the protocol knows no lease at all). Leases decide
only how soon recovery acts and how much work is done twice. Staleness is judged by the log's own clock
(`heartbeat_ms` against `now_ms`, both server-assigned); an owner judges itself by its boot-time clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from changelog.change import Entry, Unreadable

SET_BACK_MS = 3_600_000


class Standing(Enum):
    """Where an entry stands in the eyes of recovery."""

    HELD = "its owner renews it"
    WAITING = "waits out the late-upload grace"
    CLAIMABLE = "nobody works on it"
    EXHAUSTED = "failed too often: park it"
    UNREADABLE = "cannot be read: park it"
    PARKED = "parked: an operator must look"


def standing(entry: Entry | Unreadable, now_ms: int, expiry_ms: int, attempts_max: int) -> Standing:
    """The first rule that applies, top to bottom."""
    stale = isinstance(entry, Entry) and (not entry.owner or is_stale(entry.heartbeat_ms, now_ms, expiry_ms))
    match entry:
        case Entry(stuck=stuck) | Unreadable(stuck=stuck) if stuck is not None:
            return Standing.PARKED
        case Unreadable():
            return Standing.UNREADABLE
        case Entry() if not stale:
            return Standing.HELD
        case Entry(cleanup_after_ms=after) if after is not None and after > now_ms:
            return Standing.WAITING
        case Entry() if entry.attempt >= attempts_max:
            return Standing.EXHAUSTED
        case _:
            return Standing.CLAIMABLE


def is_stale(heartbeat_ms: int, now_ms: int, expiry_ms: int) -> bool:
    """Older than the expiry; or so far ahead that only a clock that was set back explains it.

    A little ahead is a living owner's: it beat after `now_ms` was asked for.
    """
    return now_ms - heartbeat_ms > expiry_ms or heartbeat_ms - now_ms > SET_BACK_MS


class Renewal(Enum):
    """What the log said to one renewal."""

    RENEWED = "renewed"
    NOT_YOURS = "not yours"
    FAILED = "failed"


@dataclass(slots=True)
class Lease:
    """An owner's right to go on with an entry: until told otherwise, or `expiry_s` without a renewal.

    `renewed_at` is the owner's boot-time clock just *before* the last successful request was sent, so
    the owner gives up no later than others may take over (clocks running at the same rate).
    """

    entry: Entry
    renewed_at: float
    expiry_s: float
    ended: bool = False
    not_yours: bool = False

    def after(self, renewal: Renewal, sent_at: float) -> None:
        """One renewal's answer: renewed extends, not yours ends it for ever, failed changes nothing."""
        if renewal is Renewal.RENEWED:
            self.renewed_at = max(self.renewed_at, sent_at)
        elif renewal is Renewal.NOT_YOURS:
            self.ended = self.not_yours = True

    def held(self, now: float) -> bool:
        """Whether the owner may go on. Once it may not, it never may again."""
        if now - self.renewed_at >= self.expiry_s:
            self.ended = True
        return not self.ended

    def end(self) -> str:
        """Why it ended, in words: what its owner knows of it, which is not whether anybody took the entry over."""
        if self.not_yours:
            return "the changelog said that its entry was taken over or is gone"
        return f"its entry was not renewed for {self.expiry_s:g} s: the event loop or the machine stood, or the changelog did not answer"
