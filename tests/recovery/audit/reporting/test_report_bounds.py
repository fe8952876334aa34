"""`report.html` and the words of a run: what is said first, what is cut, and that names command nothing."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser

import pytest

from recovery.audit.finding import Finding
from recovery.audit.finding_classes import FINDINGS, FindingClass
from recovery.audit.manifest import Bounds, Cutoff, Failure, Manifest, ManifestTally, Prefix
from recovery.audit.reporting import run_verdict
from recovery.audit.reporting.report import LOST_MAX, RANGES_MAX, USECASES_SHOWN, render
from recovery.audit.reporting.run_verdict import AuditLevel

NOW_NS = 1_790_000_000_000_000_000
BEGUN = Manifest(
    run="a-run", inputs={"bucket": "blobs"}, log_is_durable=True, cutoff=Cutoff(as_of_ns=NOW_NS, grace_s=86_400), started_ns=NOW_NS,
    ranges=(Bounds(start="", end=None),), names_by_range=(7,),
)  # fmt: skip
EVIL = "m/objects/$(touch pwned)\"'`<script>alert(1)</script>\u202e\x1b[31m\n&"


def ended(totals: dict[FindingClass, tuple[int, int]] | None = None, **facts: object) -> Manifest:
    counted = {kind: ManifestTally(number=number, size=size) for kind, (number, size) in (totals or {}).items()}
    return BEGUN.model_copy(update={"ended_ns": NOW_NS + 10**9, "complete": True, "names": 7, "redirects": 6, "totals": counted, **facts})


def dangling(name: str) -> Finding:
    return Finding(FindingClass.DANGLING, name, name, None, None, None, None, None, "gone", NOW_NS, NOW_NS, NOW_NS, NOW_NS)


class Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


# --- the verdict -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(FINDINGS))
def test_no_finding_is_clean(kind: FindingClass) -> None:
    assert run_verdict.verdict(ended({kind: (1, 1)}), 0).level is not AuditLevel.CLEAN


def test_findings_are_shown_before_what_is_as_it_should_be_and_the_worst_first() -> None:
    kinds = run_verdict.shown_kinds(ended(dict.fromkeys(FindingClass, (1, 1))))
    assert kinds[:4] == [FindingClass.DANGLING, FindingClass.DESTROYED, FindingClass.ORPHAN, FindingClass.LEGACY_ORPHAN]
    assert set(kinds) == set(FindingClass) and len(kinds) == len(FindingClass)
    assert set(kinds[: len(FINDINGS)]) == FINDINGS
    assert run_verdict.shown_kinds(ended({FindingClass.ORPHAN: (0, 0)})) == []


def test_ranges_that_were_not_audited_are_told_with_their_reason() -> None:
    three = tuple(Bounds(start=start, end=end) for start, end in (("", "a"), ("a", "b"), ("b", None)))
    manifest = ended(ranges=three, names_by_range=(1, None, None), failures=(Failure(range=2, error="forbidden"),), complete=False)
    assert run_verdict.missing(manifest) == [(1, "not reached"), (2, "forbidden")]
    assert run_verdict.reasons(manifest) == ("1 of 3 ranges were audited",)
    assert "forbidden" in render(manifest, []).lower()


# --- names -----------------------------------------------------------------------------------------


def test_page_is_of_itself_and_no_name_becomes_part_of_it() -> None:
    manifest = ended(
        {FindingClass.DANGLING: (1, 0), FindingClass.ORPHAN: (1, 5)}, inputs={"bucket": EVIL}, doubts=(EVIL,), notes=(EVIL,),
        complete=False,
        usecases={EVIL: {FindingClass.ORPHAN: ManifestTally(number=1, size=5)}}, prefixes=(Prefix(prefix=EVIL, number=1, size=5),),
        failures=(Failure(range=0, error=EVIL),), ages={FindingClass.ORPHAN: (1, 0, 0, 0, 0, 0, 0)},
    )  # fmt: skip
    page = render(manifest, [dangling(EVIL)])
    harmless = render(manifest.model_copy(update={
        "inputs": {"bucket": "b"}, "doubts": ("b",), "notes": ("b",), "usecases": {"b": manifest.usecases[EVIL]},
        "prefixes": (Prefix(prefix="b", number=1, size=5),), "failures": (Failure(range=0, error="b"),),
    }), [dangling("b")])  # fmt: skip
    assert Elements(page).found == Elements(harmless).found
    assert {"script", "link", "img", "iframe"}.isdisjoint(tag for tag, _ in Elements(page).found)
    assert not any({"src", "href", "onclick"} & attributes.keys() for _, attributes in Elements(page).found)


@pytest.mark.parametrize(("name", "argument"), [
    ("m/objects/k/r", "m/objects/k/r"), ("m/objects/$(rm -rf ~)", "'m/objects/$(rm -rf ~)'"), ("m/objects/it's", "'m/objects/it'\"'\"'s'"),
    ("m/objects/\n", "NAME"), ("m/objects/\u202e", "NAME"), ("m/objects/" + "k" * 200, "NAME"),
    ("-rf/objects/k", "NAME"),
])  # fmt: skip
def test_command_to_be_copied_carries_out_nothing_of_a_name(name: str, argument: str) -> None:
    [command] = re.findall(r"tiered audit show (.*) --from RUN", unescape(render(ended({FindingClass.DANGLING: (1, 0)}), [dangling(name)])))
    assert command == argument


def test_page_has_a_bound_and_says_what_it_leaves_out() -> None:
    many = 5000
    manifest = ended(
        {FindingClass.DANGLING: (many, 0)}, complete=False, ranges=BEGUN.ranges * many, names_by_range=(None,) * many,
        usecases={f"usecase-{number:05}": {FindingClass.DANGLING: ManifestTally(number=1)} for number in range(many)},
        failures=tuple(Failure(range=number, error=f"fault-{number:05}") for number in range(many)),
    )  # fmt: skip
    page = render(manifest, [dangling(f"gone-{number:05}") for number in range(many)]).lower()
    for word, most in (("gone", LOST_MAX), ("usecase", USECASES_SHOWN), ("fault", RANGES_MAX)):
        shown = set(re.findall(rf"{word}-\d{{5}}", page))
        assert len(shown) == most, word
    assert f"{many - USECASES_SHOWN:,}" in page and f"{many:,}" in page
