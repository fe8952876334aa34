"""The audit's decision tables: every combination of facts, against rules that do not depend on their order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from recovery.audit.finding_classes import (
    DOUBTS,
    FINDINGS,
    LOSSES,
    MEANING,
    Deadline,
    Facts,
    FindingClass,
    Logged,
    MissingBlob,
    NameForm,
    Redirected,
    classify,
    classify_missing,
)
from tests.recovery.audit import class_table

NO_YES = (False, True)


def all_facts() -> Iterator[Facts]:
    for each in itertools.product(NameForm, Logged, Redirected, NO_YES, NO_YES, NO_YES, Deadline):
        yield Facts(*each)


def nothing_speaks_for(facts: Facts) -> bool:
    return (
        facts.redirected is Redirected.NOT and facts.logged is Logged.NOT and facts.readable and not facts.young
        and facts.deadline is Deadline.AHEAD and facts.form in (NameForm.REVISION, NameForm.UNSUFFIXED)
    )


def test_a_blob_is_an_orphan_exactly_where_nothing_speaks_for_it() -> None:
    for facts in all_facts():
        kind = classify(facts)
        assert (kind in (FindingClass.ORPHAN, FindingClass.LEGACY_ORPHAN)) == nothing_speaks_for(facts), facts
        assert (kind is FindingClass.ORPHAN) == (nothing_speaks_for(facts) and facts.form is NameForm.REVISION), facts


def test_a_blob_that_cannot_be_read_is_loss_exactly_where_a_live_tombstone_names_it() -> None:
    for facts in all_facts():
        kind = classify(facts)
        assert (kind is FindingClass.DESTROYED) == (facts.redirected is Redirected.LIVE and not facts.readable), facts
        assert (kind is FindingClass.CORRUPT_BLOB) == (facts.redirected is not Redirected.LIVE and not facts.readable), facts
        assert (kind is FindingClass.REFERENCED) == (facts.redirected is Redirected.LIVE and facts.readable), facts


def test_each_kind_of_a_readable_blob_has_its_one_reason() -> None:
    for facts in all_facts():
        if facts.readable:
            check_reasons(facts)


def check_reasons(facts: Facts) -> None:
    named = facts.redirected is not Redirected.NOT
    ours = facts.form in (NameForm.REVISION, NameForm.UNSUFFIXED)
    unspoken = not named and facts.logged is Logged.NOT
    unlogged_expired = facts.redirected is Redirected.EXPIRED and facts.logged is Logged.NOT
    overdue = facts.deadline is Deadline.OVERDUE
    old = unspoken and ours and not facts.young
    reasons = {
        FindingClass.REFERENCED: facts.redirected is Redirected.LIVE,
        FindingClass.EXPIRED: (facts.redirected is Redirected.EXPIRED and not (unlogged_expired and overdue))
        or (old and facts.deadline is Deadline.PASSED),
        FindingClass.OVERDUE: overdue and (unlogged_expired or old),
        FindingClass.IN_FLIGHT: not named and facts.logged is Logged.NEW,
        FindingClass.SUPERSEDED: not named and facts.logged is Logged.OLD,
        FindingClass.FOREIGN: unspoken and facts.form is NameForm.FOREIGN,
        FindingClass.UNPARSEABLE: unspoken and facts.form is NameForm.UNPARSEABLE,
        FindingClass.UPLOAD: unspoken and facts.form is NameForm.UPLOAD and not facts.stale,
        FindingClass.STALE_UPLOAD: unspoken and facts.form is NameForm.UPLOAD and facts.stale,
        FindingClass.QUARANTINED: unspoken and facts.form is NameForm.QUARANTINE,
        FindingClass.TOO_YOUNG: unspoken and ours and facts.young,
        FindingClass.ORPHAN: nothing_speaks_for(facts) and facts.form is NameForm.REVISION,
        FindingClass.LEGACY_ORPHAN: nothing_speaks_for(facts) and facts.form is NameForm.UNSUFFIXED,
    }
    assert [kind for kind, holds in reasons.items() if holds] == [classify(facts)], facts


@pytest.mark.parametrize("facts", [MissingBlob(*each) for each in itertools.product(NO_YES, repeat=5)], ids=str)
def test_a_tombstone_is_loss_exactly_where_it_is_live_and_stands_after_its_blob_was_not_found_whole(facts: MissingBlob) -> None:
    kind = classify_missing(facts)
    broken = facts.there and not facts.readable
    whole = facts.there and facts.readable
    assert (kind is FindingClass.DANGLING) == (not facts.there and not facts.expired and facts.shown)
    assert (kind is FindingClass.DESTROYED) == (broken and not facts.expired and facts.shown)
    assert (kind is FindingClass.CORRUPT_BLOB) == (broken and (facts.expired or not facts.shown))
    assert (kind is FindingClass.UNLISTED) == (whole and facts.listable)
    assert (kind is FindingClass.REFERENCED) == (whole and not facts.listable)
    assert (kind is FindingClass.EXPIRED) == (not facts.there and facts.expired)


def test_every_kind_has_a_meaning_and_every_doubt_and_loss_is_a_finding() -> None:
    assert set(MEANING) == set(FindingClass)
    assert DOUBTS < FINDINGS < set(FindingClass)
    assert set(LOSSES) == {kind for kind in FindingClass if "data loss" in MEANING[kind]} < FINDINGS


def test_the_page_has_the_table_of_the_code() -> None:
    """`python -m tests.recovery.audit.class_table`"""
    page = class_table.PAGE.read_text("utf-8")
    assert page == class_table.written(page)


def test_a_page_with_another_definition_is_told_from_it() -> None:
    page = class_table.PAGE.read_text("utf-8")
    assert class_table.written(page.replace(MEANING[FindingClass.ORPHAN], "garbage")) == page
    with pytest.raises(ValueError, match="lacks"):
        class_table.written("no marks")
