"""What a run comes to in words: each verdict's sentence, what it means, and figures without nonsense."""

from __future__ import annotations

import pytest

from recovery import display, states
from recovery.audit.finding_classes import FINDINGS, ORPHANS, FindingClass
from recovery.audit.manifest import Bounds, Cutoff, Failure, Manifest, ManifestTally
from recovery.audit.reporting import run_verdict
from recovery.audit.reporting.run_verdict import GIB

PRICE = 0.02
UNREAD = "No payload was read (--verify reads them)."
THERE = "No loss was found: every live tombstone's blob is there."


def ended(totals: dict[FindingClass, ManifestTally] | None = None, **more: object) -> Manifest:
    known = {
        "run": "r", "inputs": {}, "log_is_durable": True, "cutoff": Cutoff(as_of_ns=0, grace_s=3600), "started_ns": 0, "ended_ns": 1,
        "ranges": (Bounds(start="", end=None),), "names_by_range": (3,), "names": 3, "redirects": 2, "complete": True,
        "totals": totals or {},
    }  # fmt: skip
    return Manifest.model_validate(known | more)


def counted(number: int, gib: float = 0) -> ManifestTally:
    return ManifestTally(number=number, size=round(gib * GIB))


@pytest.mark.parametrize(("manifest", "state", "sentence"), [
    (ended(), states.AUDIT_CLEAN, f"Clean: 3 blobs and 2 tombstones are accounted for by name. {UNREAD}"),
    (ended(names=1, redirects=1), states.AUDIT_CLEAN, f"Clean: 1 blob and 1 tombstone are accounted for by name. {UNREAD}"),
    (
        ended(verify={"share": 1}, verified=2, verified_bytes=2048), states.AUDIT_CLEAN,
        "Clean: 3 blobs and 2 tombstones are accounted for by name. 2 payloads (2.0 KiB) were read and match their checksums.",
    ),
    (
        ended(verify={"share": 0.1}, verified=1, verified_bytes=9, scope="media/\x1b"), states.AUDIT_CLEAN,
        "Clean: 3 blobs and 2 tombstones are accounted for by name. 1 payload (9 B) was read and matches its checksum, a share of 0.1;"
        " the others were not read. Only names that begin with media/\\u001b were looked at.",
    ),
    (
        ended({FindingClass.TOO_YOUNG: counted(1), FindingClass.REFERENCED: counted(2)}), states.AUDIT_CLEAN,
        f"Clean: 2 blobs and 2 tombstones are accounted for by name; 1 blob that nothing names was too young to judge. {UNREAD}",
    ),
    (ended(names=0, redirects=0), states.AUDIT_CLEAN, "Clean: there is no blob and no tombstone."),
    (ended({FindingClass.ORPHAN: counted(1, 100)}), states.AUDIT_FINDINGS, "1 orphan: 100 GiB, about $2.00 a month."),
    (
        ended({FindingClass.ORPHAN: counted(1200, 100), FindingClass.LEGACY_ORPHAN: counted(34, 50)}), states.AUDIT_FINDINGS,
        "1,234 orphans: 150 GiB, about $3.00 a month.",
    ),
    (ended({FindingClass.ORPHAN: ManifestTally(number=2, size=5)}), states.AUDIT_FINDINGS, "2 orphans: 5 B, less than $0.01 a month."),
    (ended({FindingClass.ORPHAN: counted(2)}), states.AUDIT_FINDINGS, "2 orphans: 0 B, at no cost."),
    (
        ended({FindingClass.FOREIGN: counted(3), FindingClass.CORRUPT_BLOB: counted(1)}), states.AUDIT_FINDINGS,
        "No orphan and no loss was found, but somebody should look at 1 corrupt blob, 3 foreign.",
    ),
    (
        ended({FindingClass.FOREIGN: counted(3), FindingClass.CORRUPT_ROW: counted(1)}), states.AUDIT_FINDINGS,
        "1 row cannot be read, so it is not known whether its object is lost. Somebody should look at 1 corrupt row, 3 foreign.",
    ),
    (
        ended({FindingClass.MIXED_WRITERS: counted(2), FindingClass.ORPHAN: counted(1, 100)}), states.AUDIT_FINDINGS,
        "Other software writes beside this one, so objects can be lost: let only one of them write.",
    ),
    (
        ended({FindingClass.CORRUPT_ROW: counted(2)}), states.AUDIT_FINDINGS,
        "2 rows cannot be read, so it is not known whether their objects are lost. Somebody should look at 2 corrupt row.",
    ),
    (ended({FindingClass.DANGLING: counted(1)}), states.AUDIT_LOSS, "DATA LOSS: 1 dangling tombstone names a blob that is gone."),
    (
        ended({FindingClass.DANGLING: counted(2), FindingClass.ORPHAN: counted(9, 9)}), states.AUDIT_LOSS,
        "DATA LOSS: 2 dangling tombstones name blobs that are gone.",
    ),
    (ended({FindingClass.DESTROYED: counted(1)}), states.AUDIT_LOSS, "DATA LOSS: 1 blob that a live tombstone names cannot be read."),
    (
        ended({FindingClass.DESTROYED: counted(50), FindingClass.DANGLING: counted(1)}, scope="media/"), states.AUDIT_LOSS,
        "DATA LOSS: 1 dangling tombstone names a blob that is gone and 50 blobs that live tombstones name cannot be read."
        " Only names that begin with media/ were looked at.",
    ),
    (
        ended({FindingClass.OVERDUE: counted(500, 100), FindingClass.FOREIGN: counted(1)}), states.AUDIT_FINDINGS,
        "500 expired blobs that nothing removes: 100 GiB, about $2.00 a month.",
    ),
    (ended({FindingClass.OVERDUE: counted(1), FindingClass.ORPHAN: counted(1)}), states.AUDIT_FINDINGS, "1 orphan: 0 B, at no cost."),
    (ended(complete=False, doubts=("it broke",)), states.AUDIT_INCOMPLETE, "Incomplete: it broke."),
    (
        ended({FindingClass.DESTROYED: counted(2), FindingClass.DANGLING: counted(1)}, complete=False, doubts=("it broke",)),
        states.AUDIT_INCOMPLETE,
        "Incomplete: it broke. It found 1 dangling tombstone and 2 live blobs that cannot be read: data loss, if the evidence holds.",
    ),
    (
        ended({FindingClass.ORPHAN: counted(1)}, complete=False, doubts=("it broke",)), states.AUDIT_INCOMPLETE,
        "Incomplete: it broke. It has 1 finding, which may be wrong.",
    ),
    (
        ended({FindingClass.DANGLING: counted(1)}, complete=False, doubts=("it broke",)), states.AUDIT_INCOMPLETE,
        "Incomplete: it broke. It found 1 dangling tombstone: data loss, if the evidence holds.",
    ),
    (
        ended(complete=False, ended_ns=None, names_by_range=()), states.AUDIT_INCOMPLETE,
        "Incomplete: the run has not ended, or was interrupted; 0 of 1 range was audited.",
    ),
])  # fmt: skip
def test_verdict_says_what_weighs_most(manifest: Manifest, state: states.State, sentence: str) -> None:
    assert run_verdict.verdict(manifest, PRICE) == run_verdict.RunVerdict(state, sentence)


@pytest.mark.parametrize(("manifest", "meaning"), [
    (ended(), f"{THERE} No orphan was found, and nothing to reclaim."),
    (ended({FindingClass.TOO_YOUNG: counted(1)}), f"{THERE} No orphan was found among the blobs that were old enough to judge."),
    (
        ended({FindingClass.ORPHAN: counted(1, 1), FindingClass.CORRUPT_ROW: counted(2)}),
        "The blob of every live tombstone that can be read is there. 2 rows cannot be read, so it is not known whether their objects are"
        f" lost. {UNREAD} Nobody",
    ),
    (ended(names=0, redirects=0), "look at what was compared"),
    (ended({FindingClass.ORPHAN: counted(1, 1), FindingClass.REFERENCED: counted(1, 3)}), f"{THERE} {UNREAD} Nobody"),
    (ended({FindingClass.ORPHAN: counted(1, 1), FindingClass.REFERENCED: counted(1, 3)}), "They are 25.0 % of the bytes in the bucket."),
    (ended({FindingClass.FOREIGN: counted(1)}), f"{THERE} {UNREAD}"),
    (ended({FindingClass.OVERDUE: counted(1)}), "see whether the bucket has its lifecycle rule (tiered check)"),
    (ended({FindingClass.DESTROYED: counted(1)}), "Its object cannot be read. No payload was read (--verify reads them)."),
    (ended({FindingClass.DANGLING: counted(1)}), "Its object cannot be read."),
    (ended({FindingClass.DANGLING: counted(2), FindingClass.ORPHAN: counted(1, 100)}),
     "Their objects cannot be read. Besides, 1 orphan: 100 GiB, about $2.00 a month. No payload was read"),
    (ended({FindingClass.DANGLING: counted(2)}, complete=False), "Nothing may be deleted on the word of this run."),
])  # fmt: skip
def test_what_a_verdict_means_is_said(manifest: Manifest, meaning: str) -> None:
    assert meaning in run_verdict.consequence(manifest, PRICE)


@pytest.mark.parametrize("kind", [None, *FindingClass])
def test_nothing_is_claimed_of_payloads_that_nobody_read_and_of_names_nobody_looked_at(kind: FindingClass | None) -> None:
    manifest = ended({} if kind is None else {kind: counted(1)}, scope="media/")
    told = f"{run_verdict.verdict(manifest, PRICE).sentence} {run_verdict.consequence(manifest, PRICE)}"
    assert (run_verdict.verdict(manifest, PRICE).state is states.AUDIT_CLEAN) == (kind not in FINDINGS)
    assert "No payload was read" in told and "Only names that begin with media/ were looked at." in told
    for claim in ("no data loss", "nothing is wrong", "No data is lost", "all is well"):
        assert claim.lower() not in told.lower()
    unseen = " ".join(run_verdict.unseen(manifest))
    assert "media/" in unseen and "Payloads: none was read" in unseen
    assert "Upload sessions" in " ".join(run_verdict.unseen(ended(inputs={"bucket": "b"})))
    assert "outside of the share of 0.1" in " ".join(run_verdict.unseen(ended(verify={"share": 0.1})))


def test_a_verdict_repeats_so_much_of_an_error_as_can_be_read_and_nothing_that_steers() -> None:
    sentence = run_verdict.verdict(ended(complete=False, doubts=("\x1b[2J" + "x" * 5000,)), PRICE).sentence
    assert len(sentence) < 300 and sentence.endswith("x…") and "\\u001b[2J" in sentence and "\x1b" not in sentence


def test_ranges_that_are_missing_say_why() -> None:
    ranges = tuple(Bounds(start=start, end=None) for start in ("", "a", "b"))
    manifest = ended(ranges=ranges, names_by_range=(1, None, None), failures=(Failure(range=2, error="forbidden"),), complete=False)
    assert run_verdict.missing(manifest) == [(1, "not reached"), (2, "forbidden")] and run_verdict.audited(manifest) == 1
    assert run_verdict.reasons(manifest) == ("1 of 3 ranges were audited",)


def test_totals_add_up_and_classes_come_worst_first() -> None:
    manifest = ended({
        FindingClass.REFERENCED: counted(9), FindingClass.FOREIGN: counted(1), FindingClass.ORPHAN: counted(2, 1),
        FindingClass.LEGACY_ORPHAN: counted(3, 2), FindingClass.DANGLING: counted(1), FindingClass.TOO_YOUNG: counted(0),
    })  # fmt: skip
    assert run_verdict.total(manifest, ORPHANS) == counted(5, 3)
    assert run_verdict.shown_classes(manifest) == [
        FindingClass.DANGLING, FindingClass.ORPHAN, FindingClass.LEGACY_ORPHAN, FindingClass.FOREIGN, FindingClass.REFERENCED,
    ]  # fmt: skip
    kinds = run_verdict.shown_classes(ended(dict.fromkeys(FindingClass, counted(1))))
    assert len(kinds) == len(FindingClass) and set(kinds[: len(FINDINGS)]) == set(FINDINGS) and kinds[1] is FindingClass.DESTROYED


@pytest.mark.parametrize(("told", "expected"), [
    (display.size(0), "0 B"), (display.size(1023), "1023 B"), (display.size(1536), "1.5 KiB"), (display.size(1024**2 - 1), "1.0 MiB"),
    (display.size(5000 * 1024**5), "5,000 PiB"), (run_verdict.money(0, PRICE), "$0"), (run_verdict.money(1, PRICE), "less than $0.01"),
    (run_verdict.money(GIB * 50, PRICE), "$1.00"), (run_verdict.money(GIB * 10**6, PRICE), "$20,000"),
    (run_verdict.cost(GIB * 50, PRICE), "about $1.00 a month"),
    (run_verdict.cost(GIB, 0.0), "at no cost"), (display.elapsed(0.42), "0.4 s"), (display.elapsed(59.9), "1 min 00 s"),
    (display.elapsed(3600), "1 h 00 min"), (display.elapsed(51 * 3600), "2 d 3 h"), (display.span(86_400), "24 h"),
    (display.span(5400), "1 h 30 min"),
    (display.moment(0), "1970-01-01 00:00:00 UTC"), (display.moment(10**30), "beyond any calendar"), (display.count(1, "blob"), "1 blob"),
    (display.count(0, "blob"), "0 blobs"), (display.count(1234, "blob"), "1,234 blobs"),
    (display.escape_controls("a\u202eb\n"), "a\\u202eb\\u000a"),
    (display.escape_controls("長い名前"), "長い名前"), (run_verdict.sentence("it broke"), "It broke."), (run_verdict.sentence(""), "."),
])  # fmt: skip
def test_figures_read_well(told: str, expected: str) -> None:
    assert told == expected


@pytest.mark.parametrize(("rows", "said"), [(0, "0 rows were read."), (1, "1 row was read."), (2, "2 rows were read.")])
def test_rows_that_were_read_beside_a_feed_are_told_in_good_english(rows: int, said: str) -> None:
    feed = {"generation": 1, "store": "s", "frontier_ns": 0, "passed_ns": None, "live": 2, "records": 2, "last": 0, "age_max_s": 60}
    assert run_verdict.sourced(ended(references=feed, looked_up=rows)).endswith(f" before the audit began; besides, {said}")
