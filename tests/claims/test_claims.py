"""The table of claims is whole: every saying of the source is in it, and every line has a fault."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.claims import faults
from tests.claims.faults_on_servers import ON_SERVERS
from tests.claims.sayings import is_well, sayings, sentences
from tests.claims.table import CLAIMS, Claim
from tests.given.repository import ROOT

FAULTS = faults.FAULTS | ON_SERVERS
STARTS = [f"{where}: {start}" for claim in CLAIMS for where, starts in claim.says.items() for start in starts]


def test_every_saying_has_a_line_with_a_fault() -> None:
    """Add a line to tests/claims/table.py, with a fault that makes the saying false."""
    missing = sorted(saying for saying in sayings() if not saying.startswith(tuple(STARTS)))
    assert not missing, "\n".join(missing)


def test_no_line_is_of_a_saying_that_is_gone_or_of_another_lines() -> None:
    said = sayings()
    gone = [start for start in STARTS if not any(each.startswith(start) for each in said)]
    assert not gone, "\n".join(gone)
    assert [start for start, number in Counter(STARTS).items() if number > 1] == []


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.claim)
def test_a_line_has_a_fault_that_a_test_plants(claim: Claim) -> None:
    assert claim.faults or claim.tests
    assert set(claim.faults) <= set(FAULTS)
    assert [test for test in claim.tests if not _is_collected(test)] == []


def test_every_fault_makes_a_claim_false() -> None:
    assert set(FAULTS) - {fault for claim in CLAIMS for fault in claim.faults} == set()


def _is_collected(test: str) -> bool:
    """A function of that name at the top of a file that pytest collects, without a mark that leaves it out always."""
    file, _, name = test.partition("::")
    path = ROOT / file
    assert path.name.startswith("test_") and name.startswith("test_")
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    found = [node for node in functions if node.name == name]
    marks = [ast.unparse(mark) for each in found for mark in each.decorator_list]
    return len(found) == 1 and not any(mark.startswith(("pytest.mark.skip(", "pytest.mark.xfail")) for mark in marks)


@pytest.mark.parametrize(("call", "is_claim"), [
    ("Notice(NoticeKind.OK, 'x')", True), ("Notice(NoticeKind.DONE, 'x')", True), ("Notice(NoticeKind.NOTE, 'x')", False),
    ("Notice(_OK, 'x')", True), ("Notice(ok, 'x')", True), ("ok('x')", True), ("note('x')", False), ("problem('x')", False),
])  # fmt: skip
def test_what_was_found_well_under_another_name_was_no_claim(call: str, is_claim: bool) -> None:
    """Those of PostgreSQL's server and of the bucket of S3 had no fault."""
    node = ast.parse(call, mode="eval").body
    assert isinstance(node, ast.Call) and is_well(node) is is_claim


def test_what_is_a_sentence() -> None:
    said = '''
"""A docstring is no claim of anything."""
def headline(n):
    """Nor is this one of a function."""
    if n:
        raise ValueError("what an error says refuses something else")
    events.warning("log_line", "a log line is not a claim of ours")
    page.text("do", f"all {n:,} of them are known to be {'well and whole and fine' if n else 'bad'}")
    return "Green." if n else "All is well."
'''
    assert list(sentences(ast.parse(said))) == ["all {} of them are known to be {}", "well and whole and fine", "All is well."]
