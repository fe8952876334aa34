"""The audit's decision tables: every combination of facts, against rules that do not depend on their order."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from enum import Enum
from typing import get_type_hints

import pytest

from recovery.audit.finding_classes import (
    ACCUSED,
    DOUBTS,
    FINDINGS,
    IN_USE,
    LOSSES,
    ORPHANS,
    RECLAIMABLE,
    Deadline,
    Facts,
    FindingClass,
    Logged,
    MissingBlob,
    NameForm,
    Redirected,
    Subject,
    classify,
    classify_missing,
)
from tests.given.repository import ROOT

NO_YES = (False, True)


def all_facts() -> Iterator[Facts]:
    """Every combination: a fact is an answer of yes or no, or a member of an enum."""
    yield from itertools.starmap(Facts, itertools.product(*map(values, get_type_hints(Facts).values())))


def values(fact: type) -> tuple[object, ...]:
    return NO_YES if fact is bool else tuple(fact) if issubclass(fact, Enum) else ()


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
        assert (kind in IN_USE) == (facts.redirected is Redirected.LIVE and facts.readable), facts


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
    assert all(kind.meaning for kind in FindingClass)
    assert set(DOUBTS) < set(FINDINGS) < set(FindingClass)
    assert set(LOSSES) == {kind for kind in FindingClass if "data loss" in kind.meaning} < set(FINDINGS)
    assert all(kind.finding is None or not (kind.finding.is_in_use and kind.finding.is_loss) for kind in FindingClass)
    assert FindingClass.ORPHAN in ORPHANS and set(ORPHANS) < set(ACCUSED) < set(RECLAIMABLE)
    assert [kind for kind in FindingClass if kind.finding is not None and not kind.finding.never_deleted] == [FindingClass.ORPHAN]


def test_of_every_loss_somebody_is_told_what_to_do_and_whom_to_wake() -> None:
    runbook = (ROOT / "docs" / "runbook.md").read_text("utf-8")
    advice = runbook.partition("## TieredAuditFailed")[2].partition("\n## ")[0]
    assert all(f"`{kind}`" in advice.partition("**Wake someone**")[place] for kind in LOSSES for place in (0, 2))
    assert all(kind.finding is not None and (kind.finding.remedy or kind.finding.of is Subject.LOST_BLOB) for kind in LOSSES)


def test_what_is_in_use_is_asked_of_the_table_and_not_of_one_class() -> None:
    """A blob in use may be a finding, too. Who sorts by `REFERENCED` alone forgets it."""
    assert FindingClass.REFERENCED in IN_USE
    sorts = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "recovery").rglob("*.py")) if path.name not in ("finding_classes.py", "judge.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Attribute) and node.attr == "REFERENCED"
    ]  # fmt: skip
    assert not sorts, "IN_USE of recovery/audit/finding_classes.py has them; only the judge counts a blob as referenced"

