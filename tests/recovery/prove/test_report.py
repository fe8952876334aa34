"""A report: its verdict follows from its lines, its JSON is read back and nothing else, and its views say all of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from changelog.base.errors import InvalidRequestError
from changelog.base.runtime import SystemRuntime
from recovery.prove.page import page_of
from recovery.prove.prices import PRICES, READS, WRITES, usd_max, usd_of
from recovery.prove.probes.bench import Measured
from recovery.prove.report import CallFigures, Line, ProveReport, ProveVerdict, calls_of, kind_of, read, text_of
from tiered.provision.probes import Result
from tiered.services.breaker import LONG_TERM
from tiered.telemetry.observed import METHODS, UPLOAD_METHODS

HELD = Line("rows", "one winner", "of many swaps, one wins", Result.HELD, "", "a change is lost")
BROKEN = Line("blobs", "deletions", "what is deleted is gone", Result.BROKEN, "shows <it> & more", "deleted things come back", "mend it")
LIMIT = Line("blobs", "checksums", "tells checksums", Result.BROKEN, "tells none", "copies are read twice", is_limit=True)
UNTRIED = Line("kills", "safe", "nothing is lost", Result.UNTRIED, "left out by --only", "a write is lost")


def report_of(*lines: Line) -> ProveReport:
    services = {"rows": {"kind": "postgres", "version": "PostgreSQL 16.10"}, "blobs": {"kind": "s3"}}
    calls = [CallFigures("blobs", "open", 7, 2, 1.5, None, 0.0000028), CallFigures("rows", "read", 1200, 100, 0.5, 9.0, None)]
    return ProveReport("0.1.0", "2026-11-30T20:00+00:00", services, list(lines), calls, 12.34, ["the trial … is left"])


@pytest.mark.parametrize(("lines", "verdict"), [
    ((HELD,), ProveVerdict.MAY), ((HELD, LIMIT), ProveVerdict.MAY_BUT), ((HELD, UNTRIED), ProveVerdict.UNKNOWN),
    ((), ProveVerdict.UNKNOWN), ((HELD, BROKEN), ProveVerdict.MUST_NOT), ((UNTRIED, BROKEN), ProveVerdict.MUST_NOT),
    ((HELD, replace(UNTRIED, is_limit=True)), ProveVerdict.MAY),
])  # fmt: skip
def test_verdict_follows_from_the_lines(lines: tuple[Line, ...], verdict: ProveVerdict) -> None:
    assert report_of(*lines).verdict is verdict


def test_a_line_takes_the_place_of_the_one_that_was_expected() -> None:
    report = report_of(UNTRIED, HELD)
    report.tell(replace(UNTRIED, result=Result.HELD))
    report.tell(BROKEN)
    assert [(each.about, each.result) for each in report.lines] == [("kills", "held"), ("rows", "held"), ("blobs", "not held")]


def test_json_is_read_back_whole() -> None:
    report = report_of(HELD, BROKEN, LIMIT, UNTRIED)
    again = read(json.dumps(report.as_json()))
    assert again == replace(report, seconds=12.3)
    assert again.as_json() == report.as_json()


def _newer(said: dict[str, Any]) -> None:
    said["v"] = 2


def _true(said: dict[str, Any]) -> None:
    said["v"] = True


def _no_version(said: dict[str, Any]) -> None:
    del said["v"]


def _unknown_field(said: dict[str, Any]) -> None:
    said["lines"][0]["colour"] = "red"


def _missing_field(said: dict[str, Any]) -> None:
    del said["calls"][0]["count"]


def _another_type(said: dict[str, Any]) -> None:
    said["seconds"] = "12"


def _another_result(said: dict[str, Any]) -> None:
    said["lines"][0]["result"] = "perhaps"


def _better(said: dict[str, Any]) -> None:
    said["lines"][1]["result"] = "held"


def _no_blobs(said: dict[str, Any]) -> None:
    del said["services"]["blobs"]


@pytest.mark.parametrize(("change", "says"), [
    (_newer, "install a newer tiered"), (_true, "is no report"), (_no_version, "is no report"), (_unknown_field, "lines.0.colour"),
    (_missing_field, "calls.0.count"), (_another_type, "seconds"), (_another_result, "lines.0.result"),
    (_better, "its verdict does not follow"), (_no_blobs, "services"),
])  # fmt: skip
def test_a_wrong_report_is_refused_by_a_sentence(change: Any, says: str) -> None:
    said = report_of(HELD, BROKEN).as_json()
    change(said)
    with pytest.raises(InvalidRequestError, match=says):
        read(json.dumps(said))


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", "[" * 100_000, '{"v": "1"}'])
def test_what_is_no_report_is_refused_by_a_sentence(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="is no report"):
        read(text)


def test_text_and_page_say_all_of_it() -> None:
    report = report_of(HELD, BROKEN, LIMIT, UNTRIED)
    text, page = "\n".join(text_of(report)), page_of(report)
    for each in (
        report.headline(), *report.losses(), "of many swaps, one wins", "deleted things come back", "left out by --only",
        "PostgreSQL 16.10", "1,200", "9.0", "the trial … is left",
    ):  # fmt: skip
        assert each in text, each
        assert each in page, each
    assert "shows <it> & more" in text
    assert "shows &lt;it&gt; &amp; more" in page and "<it>" not in page
    assert "<script" not in page and "http://" not in page and "https://" not in page, "it is one file, and asks for nothing"
    assert [page.count(f">{shown}</td>") for shown in ("held", "not held", "limit", "not tried")] == [1, 1, 1, 1], "each is there once"
    assert page.index(BROKEN.promise) < page.index(UNTRIED.promise) < page.index(LIMIT.promise) < page.index(HELD.promise)
    assert "1 held, 1 not held, 1 not tried, 1 limit" in page


def test_latencies_are_those_of_calls_that_came_one_after_the_other() -> None:
    measured, calm = Measured(SystemRuntime()), Measured(SystemRuntime())
    measured.took["high_volume", "read"] = [9.0] * 640
    measured.took["high_volume", "scan"] = [1.0]
    calm.took["high_volume", "read"] = [0.001 * number for number in range(1, 101)]
    calm.took["long_term", "open"] = [0.002] * 99
    assert calls_of(measured, calm, {"rows": "postgres", "blobs": "s3"}) == [
        CallFigures("rows", "read", 740, 100, 50.5, 99.01, None), CallFigures("rows", "scan", 1, 0, None, None, None),
        CallFigures("blobs", "open", 99, 99, 2.0, None, 0.00004),
    ]  # fmt: skip


def test_prices_are_of_methods_that_there_are_and_only_a_bucket_bills_calls() -> None:
    assert METHODS[LONG_TERM] | {name for name, _ in UPLOAD_METHODS.values()} >= WRITES | READS
    assert not WRITES & READS
    for kind, price in PRICES.items():
        assert usd_of(kind, "upload_finalise", 1000) == price.write
        assert usd_of(kind, "head", 1000) == price.read
        assert usd_of(kind, "delete", 1000) is None
        assert usd_max(kind, 1000) == pytest.approx(max(price.write, price.read), abs=0.01)
    assert usd_of("directory", "upload_finalise", 1000) is None


def test_the_kind_of_another_package_is_not_named() -> None:
    assert [kind_of(name) for name in ("postgres", "s3", "acme-blobs")] == ["postgres", "s3", "another package"]
