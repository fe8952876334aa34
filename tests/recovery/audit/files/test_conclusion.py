"""What a run says in its manifest: which doubts make it incomplete, and what is only noted."""

from __future__ import annotations

import pytest

from recovery.audit.files import conclusion
from recovery.audit.files.conclusion import Prefixes, conclude, prefix_of
from recovery.audit.finding import AGES, Summary
from recovery.audit.finding_classes import DOUBTS, FINDINGS, FindingClass
from recovery.audit.manifest import Bounds, Cutoff, Failure, Manifest

BEGUN = Manifest(
    run="r", inputs={}, log_is_durable=True, cutoff=Cutoff(as_of_ns=0, grace_s=3600), started_ns=0, notes=("begun",),
    ranges=(Bounds(start="", end="m"), Bounds(start="m", end=None)),
)  # fmt: skip


def seen(*kinds: FindingClass, names: int = 5, redirects: int = 5) -> Summary:
    summary = Summary(names=names, redirects=redirects)
    for kind in kinds:
        summary.count("media", kind, 2, 10)
    return summary


def concluded(summary: Summary, *failures: Failure, begun: Manifest = BEGUN, faults: tuple[str, ...] = ()) -> Manifest:
    return conclude(begun, summary, {0: 3, 1: 2}, failures, faults)


def test_run_without_doubts_is_complete_and_says_what_it_counted() -> None:
    summary = seen(FindingClass.REFERENCED, FindingClass.ORPHAN)
    summary.age(FindingClass.ORPHAN, 10, 7)
    summary.verified, summary.verified_bytes = 4, 40
    summary.count("media", FindingClass.TOO_YOUNG, 0, 0)  # as the counting of what was taken back leaves it
    manifest = concluded(summary)
    assert manifest.complete and manifest.doubts == () and manifest.notes == ("begun",)
    assert list(manifest.totals) == [FindingClass.REFERENCED, FindingClass.ORPHAN] and manifest.usecases == {"media": manifest.totals}
    assert manifest.age_sizes == {FindingClass.ORPHAN: (7, *[0] * (len(AGES) - 1))}
    assert (manifest.verified, manifest.verified_bytes) == (4, 40)
    assert manifest.ages == {FindingClass.ORPHAN: (1, *[0] * (len(AGES) - 1))} and manifest.names_by_range == (3, 2)


@pytest.mark.parametrize("kind", list(FindingClass))
def test_only_findings_that_make_others_doubtful_are_doubts(kind: FindingClass) -> None:
    manifest = concluded(seen(FindingClass.REFERENCED, kind))
    assert manifest.complete == (kind not in DOUBTS)
    if kind in DOUBTS:
        assert kind in FINDINGS and manifest.doubts[0].startswith(f"2 times {kind}: ")


def test_range_that_failed_is_a_doubt() -> None:
    manifest = concluded(seen(names=5, redirects=0), Failure(range=1, error="forbidden"))
    assert not manifest.complete and manifest.doubts == ("1 of 2 ranges could not be audited; the first: forbidden",)


def test_blobs_without_any_tombstone_are_of_the_wrong_table() -> None:
    assert concluded(seen(redirects=0)).doubts == ("there are 5 blobs and not one tombstone: almost certainly the wrong table",)
    assert concluded(seen(names=0, redirects=0)).complete
    [doubt] = concluded(seen(redirects=0), begun=BEGUN.model_copy(update={"scope": "media/"})).doubts
    assert doubt.startswith("there are 5 blobs and not one tombstone below media/: it is the wrong table, or all of these objects are gone")


def test_tombstones_without_any_blob_are_of_the_wrong_bucket() -> None:
    assert concluded(seen(FindingClass.DANGLING, names=0)).doubts == (
        "there are 2 tombstones and not one blob: almost certainly the wrong bucket",
    )
    assert len(concluded(seen(FindingClass.DANGLING, names=0), Failure(range=1, error="forbidden")).doubts) == 1, (
        "they may be in the other range"
    )
    assert concluded(seen(FindingClass.EXPIRED, names=0)).complete, "what has expired was removed by the lifecycle"


def test_tombstones_that_name_none_of_the_blobs_are_of_the_wrong_table_or_bucket() -> None:
    assert concluded(seen(FindingClass.DANGLING, FindingClass.ORPHAN)).doubts == (
        "there are 5 blobs, and not one of 5 tombstones names any of them: almost certainly the wrong table, or the wrong bucket",
    )
    assert concluded(seen(FindingClass.DANGLING, FindingClass.TOO_YOUNG)).doubts, "blobs that are young are nobody's either"
    assert concluded(seen(FindingClass.DANGLING, FindingClass.ORPHAN, FindingClass.REFERENCED)).complete
    assert concluded(seen(FindingClass.DANGLING, FindingClass.ORPHAN, FindingClass.DESTROYED)).complete, "what is destroyed was named"
    assert concluded(seen(FindingClass.ORPHAN, FindingClass.EXPIRED)).complete, "all that was named may have expired"
    failed = concluded(seen(FindingClass.DANGLING, FindingClass.ORPHAN), Failure(range=1, error="forbidden"))
    assert len(failed.doubts) == 1, "who knows what is in the range that failed"


def test_what_a_reader_should_know_is_noted_once() -> None:
    summary = seen()
    summary.unreadable_max, summary.dated_ahead = 3, 4
    begun = BEGUN.model_copy(update={"log_is_durable": False})
    manifest = concluded(summary, begun=begun, faults=("file 3 is cut off",))
    assert manifest.complete
    assert [note.split(",")[0].split(";")[0] for note in manifest.notes] == [
        "begun", "there is no changelog", "3 entries of the changelog cannot be read",
        "4 blobs are dated after the audit began: a writer's clock is ahead", "file 3 is cut off",
    ]  # fmt: skip
    assert concluded(summary, begun=manifest, faults=("file 3 is cut off",)).notes == manifest.notes


# --- prefixes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "prefix"), [
    ("media/org.1/objects/a", "media/org.1/objects/"), ("media/org.1/objects/day/1/a", "media/org.1/objects/day/"),
    ("media/objects/objects/a", "media/objects/objects/"), ("media/objects//a", "media/objects//"),
])  # fmt: skip
def test_prefix_is_the_scope_and_the_first_directory_of_the_key(path: str, prefix: str) -> None:
    assert prefix_of(path) == prefix


def test_prefixes_with_most_bytes_come_first() -> None:
    prefixes = Prefixes()
    for number in range(50):
        prefixes.add(f"m/objects/{number}/a/r", f"m/objects/{number}/a", number)
        prefixes.add(f"m/objects/{number}/b/r", f"m/objects/{number}/b", 1)
    top = prefixes.top()
    assert [each.size for each in top] == [number + 1 for number in range(49, 29, -1)] and {each.number for each in top} == {2}
    assert top[0].prefix == "m/objects/49/"


def test_prefixes_have_a_bound_and_keep_the_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conclusion, "PREFIXES_KEPT", 100)
    prefixes = Prefixes()
    for number in range(10_000):
        prefixes.add(f"m/objects/{number:05}/a", None, 1000 if number % 1000 == 0 else 1)
        assert len(prefixes._found) <= 100
    assert [each.size for each in prefixes.top()][:11] == [1000] * 10 + [1]
