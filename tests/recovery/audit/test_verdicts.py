"""The audit's decision tables: every combination of facts, against rules that do not depend on their order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from recovery.audit.verdicts import (
    DOUBTS,
    FINDINGS,
    MEANING,
    Facts,
    Form,
    Kind,
    Logged,
    Missing,
    Redirected,
    classify,
    classify_missing,
)


def all_facts() -> Iterator[Facts]:
    for form, logged, redirected, young, expired in itertools.product(Form, Logged, Redirected, (False, True), (False, True)):
        yield Facts(form, logged, redirected, young, expired)


def nothing_speaks_for(facts: Facts) -> bool:
    return (
        facts.redirected is Redirected.NOT and facts.logged is Logged.NOT and not facts.young and not facts.expired
        and facts.form in (Form.REVISION, Form.UNSUFFIXED)
    )


@pytest.mark.parametrize("facts", list(all_facts()), ids=str)
def test_a_blob_is_an_orphan_exactly_where_nothing_speaks_for_it(facts: Facts) -> None:
    kind = classify(facts)
    assert (kind in (Kind.ORPHAN, Kind.LEGACY_ORPHAN)) == nothing_speaks_for(facts)
    assert (kind is Kind.ORPHAN) == (nothing_speaks_for(facts) and facts.form is Form.REVISION)


@pytest.mark.parametrize("facts", list(all_facts()), ids=str)
def test_each_kind_of_a_blob_has_its_one_reason(facts: Facts) -> None:
    named = facts.redirected is not Redirected.NOT
    ours = facts.form in (Form.REVISION, Form.UNSUFFIXED)
    unspoken = not named and facts.logged is Logged.NOT
    reasons = {
        Kind.REFERENCED: facts.redirected is Redirected.LIVE,
        Kind.EXPIRED: facts.redirected is Redirected.EXPIRED or (unspoken and ours and facts.expired and not facts.young),
        Kind.IN_FLIGHT: not named and facts.logged is Logged.NEW,
        Kind.SUPERSEDED: not named and facts.logged is Logged.OLD,
        Kind.FOREIGN: unspoken and facts.form is Form.FOREIGN,
        Kind.UNPARSEABLE: unspoken and facts.form is Form.UNPARSEABLE,
        Kind.UPLOAD: unspoken and facts.form is Form.UPLOAD,
        Kind.QUARANTINED: unspoken and facts.form is Form.QUARANTINE,
        Kind.TOO_YOUNG: unspoken and ours and facts.young,
        Kind.ORPHAN: nothing_speaks_for(facts) and facts.form is Form.REVISION,
        Kind.LEGACY_ORPHAN: nothing_speaks_for(facts) and facts.form is Form.UNSUFFIXED,
    }
    assert [kind for kind, holds in reasons.items() if holds] == [classify(facts)]


@pytest.mark.parametrize("facts", [Missing(*each) for each in itertools.product((False, True), repeat=4)], ids=str)
def test_a_tombstone_dangles_exactly_where_it_is_live_and_stands_after_its_blob_was_not_found(facts: Missing) -> None:
    kind = classify_missing(facts)
    assert (kind is Kind.DANGLING) == (not facts.there and not facts.expired and facts.shown)
    assert (kind is Kind.UNLISTED) == (facts.there and facts.listable)
    assert (kind is Kind.REFERENCED) == (facts.there and not facts.listable)
    assert (kind is Kind.EXPIRED) == (not facts.there and facts.expired)


def test_every_kind_has_a_meaning_and_every_doubt_is_a_finding() -> None:
    assert set(MEANING) == set(Kind)
    assert DOUBTS < FINDINGS < set(Kind)
