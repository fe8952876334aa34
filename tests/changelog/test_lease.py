"""The lease rules as tables: every combination of facts has exactly one state."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from changelog.change import Change, ChangeId, Entry, Stuck, Unreadable
from changelog.lease import SET_BACK_MS, EntryState, Lease, Renewal, entry_state, is_stale

EXPIRY_MS = 30_000
NOW_MS = 1_700_000_000_000
ATTEMPTS_MAX = 5
CHANGE = Change(ChangeId("018bcfe5-6800-7000-8000-000000000001"), "notes/objects/k")
STUCK = Stuck("why", 1)
ENTRY_KEPT = Entry(CHANGE, CHANGE.id.row_key(), "", kept_ms=1)

HEARTBEATS = {
    "fresh": NOW_MS, "at the expiry": NOW_MS - EXPIRY_MS, "silent": NOW_MS - EXPIRY_MS - 1,
    "ahead": NOW_MS + SET_BACK_MS, "far ahead": NOW_MS + SET_BACK_MS + 1,
}
SILENT = ("silent", "far ahead")
CLEANUPS = {"none": None, "past": NOW_MS - 1, "now": NOW_MS, "ahead": NOW_MS + 1}


def expected(parked: bool, owned: bool, heartbeat: str, cleanup: str, failures: int) -> EntryState:
    """The rules in words: parked before all; an owner who beats holds it; then the grace; then the attempts."""
    if parked:
        return EntryState.PARKED
    if owned and heartbeat not in SILENT:
        return EntryState.HELD
    if cleanup == "ahead":
        return EntryState.WAITING
    return EntryState.EXHAUSTED if failures >= ATTEMPTS_MAX else EntryState.CLAIMABLE


@pytest.mark.parametrize(("parked", "owned", "heartbeat", "cleanup"), list(product([False, True], [False, True], HEARTBEATS, CLEANUPS)))
def test_every_entry_has_one_standing(parked: bool, owned: bool, heartbeat: str, cleanup: str) -> None:
    for attempt in range(ATTEMPTS_MAX + 3):
        entry = Entry(
            CHANGE, CHANGE.id.row_key(), "me" if owned else "", attempt, CLEANUPS[cleanup], HEARTBEATS[heartbeat], STUCK if parked else None
        )
        assert entry_state(entry, NOW_MS, EXPIRY_MS, ATTEMPTS_MAX) is expected(parked, owned, heartbeat, cleanup, attempt), attempt


@pytest.mark.parametrize("entry", [ENTRY_KEPT, Unreadable("~changelog/x", b"", "why", kept_ms=1)], ids=["readable", "unreadable"])
def test_what_is_kept_for_the_change_feed_is_nobodys_work_however_old_it_is(entry: Entry | Unreadable) -> None:
    assert entry_state(entry, NOW_MS, EXPIRY_MS, ATTEMPTS_MAX) is EntryState.KEPT
    assert entry_state(replace(entry, stuck=STUCK), NOW_MS, EXPIRY_MS, ATTEMPTS_MAX) is EntryState.PARKED


@pytest.mark.parametrize(("stuck", "verdict"), [(None, EntryState.UNREADABLE), (STUCK, EntryState.PARKED)])
def test_what_cannot_be_read_is_to_be_parked_once(stuck: Stuck | None, verdict: EntryState) -> None:
    assert entry_state(Unreadable("~changelog/x", b"", "why", stuck), NOW_MS, EXPIRY_MS, ATTEMPTS_MAX) is verdict


def test_what_newer_software_wrote_is_left_to_it() -> None:
    assert entry_state(Unreadable("~changelog/x", b"", "why", newer=True), NOW_MS, EXPIRY_MS, ATTEMPTS_MAX) is EntryState.NEWER


@pytest.mark.parametrize(("heartbeat", "stale"), [(name, name in SILENT) for name in HEARTBEATS])
def test_a_heartbeat_is_stale_beyond_the_expiry_or_when_only_a_clock_set_back_explains_it(heartbeat: str, stale: bool) -> None:
    assert is_stale(HEARTBEATS[heartbeat], NOW_MS, EXPIRY_MS) is stale


# --- the owner's side --------------------------------------------------------------------------------


def lease() -> Lease:
    return Lease(Entry(CHANGE, CHANGE.id.row_key(), "me"), renewed_at=100.0, expiry_s=30.0)


def test_a_lease_is_held_until_the_expiry_and_not_at_it() -> None:
    assert lease().held(100.0) and lease().held(129.999)
    assert not lease().held(130.0)


@pytest.mark.parametrize(("renewal", "held_until"), [(Renewal.RENEWED, 140.0), (Renewal.FAILED, 130.0), (Renewal.NOT_YOURS, 0.0)])
def test_each_answer_moves_the_end_of_the_lease(renewal: Renewal, held_until: float) -> None:
    one = lease()
    one.after(renewal, sent_at=110.0)
    for now in (110.0, 129.0, 130.0, 139.0, 140.0, 200.0):
        assert one.held(now) is (now < held_until)


def test_a_lease_says_no_more_of_its_end_than_its_owner_knows() -> None:
    told, silent = lease(), lease()
    told.after(Renewal.NOT_YOURS, sent_at=110.0)
    assert told.end() == "the changelog said that its entry was taken over or is gone"
    assert silent.end() == "its entry was not renewed for 30 s: the event loop or the machine stood, or the changelog did not answer"


def test_an_answer_that_comes_late_does_not_shorten_the_lease() -> None:
    one = lease()
    one.after(Renewal.RENEWED, sent_at=120.0)
    one.after(Renewal.RENEWED, sent_at=110.0)
    assert one.held(149.0)


@pytest.mark.parametrize("ending", list(product(Renewal, [115.0, 131.0])))
def test_a_lease_that_ended_never_comes_back(ending: tuple[Renewal, float]) -> None:
    renewal, sent_at = ending
    told, silent = lease(), lease()
    told.after(Renewal.NOT_YOURS, sent_at=110.0)
    assert not silent.held(130.0)
    for one in (told, silent):
        one.after(renewal, sent_at)
        assert not one.held(132.0) and not one.held(100.0)


def test_a_renewal_that_was_sent_in_time_counts_even_if_it_is_told_after_the_expiry() -> None:
    """Nobody asked meanwhile, so the lease had not ended: the log took the renewal, and nobody can have claimed."""
    one = lease()
    one.after(Renewal.RENEWED, sent_at=129.0)
    assert one.held(131.0)
