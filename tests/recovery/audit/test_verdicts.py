"""The audit's decision tables: every combination of facts, against rules that do not depend on their order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from recovery.audit.verdicts import (
    DOUBTS,
    FINDINGS,
    LOSSES,
    MEANING,
    Deadline,
    Facts,
    Form,
    Kind,
    Logged,
    Missing,
    Redirected,
    classify,
    classify_missing,
)

NO_YES = (False, True)


def all_facts() -> Iterator[Facts]:
    for each in itertools.product(Form, Logged, Redirected, NO_YES, NO_YES, NO_YES, Deadline):
        yield Facts(*each)


def nothing_speaks_for(facts: Facts) -> bool:
    return (
        facts.redirected is Redirected.NOT and facts.logged is Logged.NOT and facts.readable and not facts.young
        and facts.deadline is Deadline.AHEAD and facts.form in (Form.REVISION, Form.UNSUFFIXED)
    )


def test_a_blob_is_an_orphan_exactly_where_nothing_speaks_for_it() -> None:
    for facts in all_facts():
        kind = classify(facts)
        assert (kind in (Kind.ORPHAN, Kind.LEGACY_ORPHAN)) == nothing_speaks_for(facts), facts
        assert (kind is Kind.ORPHAN) == (nothing_speaks_for(facts) and facts.form is Form.REVISION), facts


def test_a_blob_that_cannot_be_read_is_loss_exactly_where_a_live_tombstone_names_it() -> None:
    for facts in all_facts():
        kind = classify(facts)
        assert (kind is Kind.DESTROYED) == (facts.redirected is Redirected.LIVE and not facts.readable), facts
        assert (kind is Kind.CORRUPT_BLOB) == (facts.redirected is not Redirected.LIVE and not facts.readable), facts
        assert (kind is Kind.REFERENCED) == (facts.redirected is Redirected.LIVE and facts.readable), facts


def test_each_kind_of_a_readable_blob_has_its_one_reason() -> None:
    for facts in all_facts():
        if facts.readable:
            check_reasons(facts)


def check_reasons(facts: Facts) -> None:
    named = facts.redirected is not Redirected.NOT
    ours = facts.form in (Form.REVISION, Form.UNSUFFIXED)
    unspoken = not named and facts.logged is Logged.NOT
    unlogged_expired = facts.redirected is Redirected.EXPIRED and facts.logged is Logged.NOT
    overdue = facts.deadline is Deadline.OVERDUE
    old = unspoken and ours and not facts.young
    reasons = {
        Kind.REFERENCED: facts.redirected is Redirected.LIVE,
        Kind.EXPIRED: (facts.redirected is Redirected.EXPIRED and not (unlogged_expired and overdue))
        or (old and facts.deadline is Deadline.PASSED),
        Kind.OVERDUE: overdue and (unlogged_expired or old),
        Kind.IN_FLIGHT: not named and facts.logged is Logged.NEW,
        Kind.SUPERSEDED: not named and facts.logged is Logged.OLD,
        Kind.FOREIGN: unspoken and facts.form is Form.FOREIGN,
        Kind.UNPARSEABLE: unspoken and facts.form is Form.UNPARSEABLE,
        Kind.UPLOAD: unspoken and facts.form is Form.UPLOAD and not facts.stale,
        Kind.STALE_UPLOAD: unspoken and facts.form is Form.UPLOAD and facts.stale,
        Kind.QUARANTINED: unspoken and facts.form is Form.QUARANTINE,
        Kind.TOO_YOUNG: unspoken and ours and facts.young,
        Kind.ORPHAN: nothing_speaks_for(facts) and facts.form is Form.REVISION,
        Kind.LEGACY_ORPHAN: nothing_speaks_for(facts) and facts.form is Form.UNSUFFIXED,
    }
    assert [kind for kind, holds in reasons.items() if holds] == [classify(facts)], facts


@pytest.mark.parametrize("facts", [Missing(*each) for each in itertools.product(NO_YES, repeat=5)], ids=str)
def test_a_tombstone_is_loss_exactly_where_it_is_live_and_stands_after_its_blob_was_not_found_whole(facts: Missing) -> None:
    kind = classify_missing(facts)
    broken = facts.there and not facts.readable
    whole = facts.there and facts.readable
    assert (kind is Kind.DANGLING) == (not facts.there and not facts.expired and facts.shown)
    assert (kind is Kind.DESTROYED) == (broken and not facts.expired and facts.shown)
    assert (kind is Kind.CORRUPT_BLOB) == (broken and (facts.expired or not facts.shown))
    assert (kind is Kind.UNLISTED) == (whole and facts.listable)
    assert (kind is Kind.REFERENCED) == (whole and not facts.listable)
    assert (kind is Kind.EXPIRED) == (not facts.there and facts.expired)


def test_every_kind_has_a_meaning_and_every_doubt_and_loss_is_a_finding() -> None:
    assert set(MEANING) == set(Kind)
    assert DOUBTS < FINDINGS < set(Kind)
    assert set(LOSSES) == {kind for kind in Kind if "data loss" in MEANING[kind]} < FINDINGS
