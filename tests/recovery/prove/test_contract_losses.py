"""What follows from a contract test that fails: each row names a test that there is, and what has no row loses data."""

from __future__ import annotations

import ast
import json
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from recovery.prove import contracts
from recovery.prove.contract_losses import ROWS, cost_of, is_limit
from recovery.prove.contracts import SUITES, Suite, SuiteTold
from recovery.prove.report import Line, ProveReport, ProveVerdict
from tiered.provision.probes import Result
from tiered.settings import Settings

TWICE = "test_of_deletions_of_one_generation_at_once_one_tells_that_it_deleted"
TOLD_TWICE = "assert ['DELETED', '...D', 'DELETED'] == ['ABSENT', '...T', 'DELETED']"
ODD = "test_any_name_is_stored_listed_and_deleted_as_it_is"
BROKEN = "test_of_uploads_finalised_at_once_under_one_name_exactly_one_wins"
BLOBS = SUITES[1]


def those_of(suite: Suite) -> list[str]:
    spec = find_spec(f"tiered.testing.contracts.{suite.module}")
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text("utf-8"))
    return [each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test_")]


def told(tmp_path: Path, failed: dict[str, str], why: str = "") -> Line:
    """The line of a suite whose tests failed so, as its process tells it."""
    events = [{"is": "collected", "tests": 60}]
    for test, said in failed.items():
        events += [{"is": "begun", "test": test}, {"is": "failed", "test": test, "why": said}, {"is": "ended", "test": test}]
    file = tmp_path / "events"
    file.write_text("".join(f"{json.dumps(each)}\n" for each in events))
    heard = SuiteTold()
    heard.take(file)
    return contracts._line(BLOBS, heard, why, Settings(directory=tmp_path / "store"))


def verdict(line: Line) -> ProveVerdict:
    services = {"rows": {"kind": "postgres"}, "blobs": {"kind": "s3"}}
    return ProveReport("0.1.0", "2026-12-01", services, [line]).verdict


def test_each_row_names_tests_that_there_are_each_once() -> None:
    there = Counter(test for suite in SUITES for test in those_of(suite))
    named = Counter(test for row in ROWS for test in row.tests)
    assert set(there.values()) == set(named.values()) == {1}
    assert named.keys() <= there.keys()


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.module)
def test_no_test_without_a_row_that_says_so_is_harmless(suite: Suite) -> None:
    limits = {test for row in ROWS if row.is_limit for test in row.tests}
    for test in those_of(suite):
        for why in ("assert 1 == 2", "setup: UnavailableError: no answer", "InvalidRequestError: refused"):
            assert not is_limit(test, why) or test in limits
        assert cost_of(test, "assert 1 == 2") or test not in {each for row in ROWS for each in row.tests} - limits


def test_what_harms_nothing_is_a_limit(tmp_path: Path) -> None:
    line = told(tmp_path, {TWICE: TOLD_TWICE})
    assert (line.result, line.is_limit, line.cost) == (Result.BROKEN, True, "what was deleted is counted more than once")
    assert verdict(line) is ProveVerdict.MAY_BUT


def test_the_loss_is_that_of_the_tests_that_lose_something_and_they_are_named_first(tmp_path: Path) -> None:
    line = told(tmp_path, {TWICE: TOLD_TWICE, ODD: "UnavailableError: refused", BROKEN: "assert 2 == 1"})
    assert not line.is_limit and verdict(line) is ProveVerdict.MUST_NOT
    assert line.cost == "a write that arrives late replaces a blob, or brings back one that was deleted"
    assert line.said.startswith(f"3 of 60 tests failed: {BROKEN} (")


@pytest.mark.parametrize("why", ["assert ['a', 'b'] == ['b']", "UnavailableError: no answer", f"setup: {TOLD_TWICE}"])
def test_a_harmless_test_that_fails_in_another_way_loses_nobody_knows_what(tmp_path: Path, why: str) -> None:
    line = told(tmp_path, {TWICE: why})
    assert not line.is_limit and line.cost == BLOBS.cost


def test_of_the_cases_of_a_test_the_one_that_loses_something_counts(tmp_path: Path) -> None:
    file = tmp_path / "events"
    lines = [{"is": "failed", "test": TWICE, "why": each} for each in (TOLD_TWICE, "assert ['a'] == ['b']", TOLD_TWICE)]
    file.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    heard = SuiteTold()
    heard.take(file)
    assert not is_limit(TWICE, heard.failed[TWICE])


def test_a_suite_that_did_not_end_is_not_tried_if_only_harmless_tests_failed(tmp_path: Path) -> None:
    line = told(tmp_path, {TWICE: TOLD_TWICE}, "the time for all suites was over")
    assert line.result is Result.UNTRIED and TWICE in line.said and "the time for all suites was over" in line.said
    assert verdict(line) is ProveVerdict.UNKNOWN
    assert told(tmp_path, {BROKEN: "assert 2 == 1"}, "the time for all suites was over").result is Result.BROKEN
