"""Each gate: what it refuses, in which sentence, and what it lets pass."""

from __future__ import annotations

from typing import Any

import pytest

from changelog.base.errors import ConfigurationError, InvalidRequestError
from recovery.audit.deleting.gates import NUMBER_MAX, DeletionRequest, check_class, refusals
from recovery.audit.deleting.quarantine import check_label
from recovery.audit.files.evidence import Evidence
from recovery.audit.finding import DAY_S
from recovery.audit.finding_classes import FINDINGS, FindingClass
from tests.given.findings import MANIFEST, NOW_NS

INPUTS = {"bucket": "blobs", "table": "p/i/objects", "changelog": "p/i/changelog"}
HOUR_NS = 3600 * 10**9


def refused(number: int = 1, *, asked: DeletionRequest | None = None, now_ns: int = NOW_NS + HOUR_NS, inputs: dict[str, str] | None = None,
            durable: bool = True, doubts: tuple[str, ...] = (), **facts: Any) -> list[str]:  # fmt: skip
    told = {"inputs": INPUTS, "names": 1_000_000, "redirects": 900_000, "complete": not doubts, "ended_ns": NOW_NS, **facts}
    evidence = Evidence(MANIFEST.model_copy(update=told), not doubts, doubts)
    return list(refusals(evidence, inputs or INPUTS, asked or DeletionRequest("run"), number, now_ns, log_is_durable=durable))


def test_a_fresh_and_complete_run_of_this_store_passes() -> None:
    assert refused() == []
    assert refused(0) == []


def test_doubtful_evidence_is_refused_with_each_doubt() -> None:
    assert refused(doubts=("range 3 is missing", "a file was changed")) == [
        "the evidence is doubtful: range 3 is missing; run the audit again",
        "the evidence is doubtful: a file was changed; run the audit again",
    ]


def test_a_run_that_is_not_complete_is_refused_even_if_nothing_says_why() -> None:
    evidence = Evidence(MANIFEST.model_copy(update={"inputs": INPUTS, "names": 1000, "redirects": 10}), False, ())
    assert "the evidence is doubtful: the run is not complete; run the audit again" in list(
        refusals(evidence, INPUTS, DeletionRequest("run"), 1, NOW_NS, log_is_durable=True)
    )


@pytest.mark.parametrize(("key", "sentence"), [
    ("bucket", "the run is of another bucket: its bucket is blobs, and that of the settings is other"),
    ("table", "the run is of another store: its table is p/i/objects, and that of the settings is other"),
    ("emulators", "the run is of another store: its emulators is not set, and that of the settings is other"),
])  # fmt: skip
def test_another_bucket_or_store_is_refused(key: str, sentence: str) -> None:
    assert refused(inputs={**INPUTS, key: "other"}) == [sentence]


def test_a_run_is_refused_when_it_is_more_than_seven_days_old() -> None:
    assert refused(now_ns=NOW_NS + 7 * DAY_S * 10**9) == []
    [sentence] = refused(now_ns=NOW_NS + 8 * DAY_S * 10**9)
    assert sentence == "the run began 8 d 0 h ago, and after 7 days too much has changed: run the audit again"


def test_a_run_from_the_future_is_refused() -> None:
    assert refused(now_ns=NOW_NS - 30 * 10**9) == []  # within what clocks differ
    assert refused(now_ns=NOW_NS - HOUR_NS) == ["the run began in the future, by the clock of the service: run the audit again"]


def test_a_table_without_tombstones_is_refused() -> None:
    assert refused(redirects=0) == ["the run saw not a single tombstone, so it was almost certainly the wrong table: check the settings"]


def test_a_run_that_has_not_ended_is_not_taken_for_one_of_the_wrong_table() -> None:
    [sentence] = refused(redirects=0, ended_ns=None, doubts=("the run has not ended, or was interrupted",))
    assert sentence == "the evidence is doubtful: the run has not ended, or was interrupted; run the audit again"


@pytest.mark.parametrize(("now", "then"), [(False, True), (True, False), (False, False)])
def test_no_changelog_is_refused_unless_it_is_insisted_on(now: bool, then: bool) -> None:
    [sentence] = refused(durable=now, log_is_durable=then)
    assert sentence == "there is no changelog, so a deletion may fail a change that is under way: insist on it with --insist"
    assert refused(durable=now, log_is_durable=then, asked=DeletionRequest("run", insist=True)) == []


def test_more_than_ten_thousand_or_one_percent_is_refused_unless_a_number_is_told() -> None:
    assert refused(NUMBER_MAX, names=100 * NUMBER_MAX) == []
    [sentence] = refused(NUMBER_MAX + 1, names=10**9)
    assert sentence == "the run found 10,001 orphans, more than 10,000: say that it is meant with --at-most 10001"
    assert refused(10, names=1000) == []
    assert refused(11, names=1000) == ["the run found 11 orphans among 1,000 blobs, more than 1%: say that it is meant with --at-most 11"]
    assert refused(11, names=1000, asked=DeletionRequest("run", at_most=11)) == []
    assert refused(10**6, names=10**6, asked=DeletionRequest("run", at_most=10**6)) == []


def test_a_number_that_is_too_small_is_refused_and_nothing_is_cut() -> None:
    assert refused(6, asked=DeletionRequest("run", at_most=5)) == [
        "the run found 6 orphans, and --at-most says 5: give a larger number if all are to be deleted"
    ]


def test_several_reasons_are_told_together() -> None:
    assert len(refused(11, names=1000, redirects=0, durable=False, inputs={**INPUTS, "bucket": "b"}, doubts=("one", "two"))) == 6


def test_only_orphans_are_deleted_and_each_other_class_says_why() -> None:
    assert check_class("orphan") is FindingClass.ORPHAN
    for kind in set(FINDINGS) - {FindingClass.ORPHAN}:
        with pytest.raises(ConfigurationError, match=f"findings of the class {kind} are never deleted, because "):
            check_class(kind)
    for other in ("referenced", "orphans", ""):
        with pytest.raises(ConfigurationError, match="give --class orphan"):
            check_class(other)


@pytest.mark.parametrize("label", ["", "/", "/a", "a/", "x" * 101, "a\nb"])
def test_a_label_that_no_name_can_begin_with_is_refused(label: str) -> None:
    with pytest.raises(InvalidRequestError):
        check_label(label)
    assert check_label("2026/11") == "2026/11"
