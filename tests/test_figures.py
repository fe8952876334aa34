"""Every table of figures is made by a part of `make bench`, and docs/benchmarks.md has the same as the results."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from itertools import pairwise

import pytest

from benchmarks.harness import RESULTS, places
from benchmarks.production import PARTS
from tests.given.repository import ROOT

DOCS = (ROOT / "docs/benchmarks.md").read_text("utf-8")
PAGES = [page.read_text("utf-8") for page in sorted(RESULTS.glob("*.txt"))]
WRITTEN = re.compile(r"<!-- figures (\w+(?: \d+)?) -->(.*?)<!-- end of \1 -->", re.DOTALL)


def tables(text: str) -> list[str]:
    return [each.strip() for each in re.findall(r"^### .*?(?=^### |\Z)", text, re.DOTALL | re.MULTILINE)]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_can_be_imported_and_begun(part: str) -> None:
    assert [*inspect.signature(import_module(f"benchmarks.{part}").figures).parameters] == ["size"]


def test_every_part_has_one_place_among_the_results() -> None:
    assert sorted(place for page in PAGES for place in places(page)) == sorted(PARTS)


def test_the_page_for_users_has_the_tables_of_the_results() -> None:
    measured = {part: tables(text) for page in PAGES for part, text in WRITTEN.findall(page)}
    shown = {place: tables(text) for place, text in WRITTEN.findall(DOCS)}
    assert shown == {"client_cpu 2": measured["client_cpu"][1:2], "audit": measured["audit"]}


def test_no_table_was_made_by_hand() -> None:
    for page in (DOCS, *PAGES):
        lines = ["", *WRITTEN.sub("", page).splitlines()]
        assert [line for before, line in pairwise(lines) if line.startswith("|") and not before.startswith("|")] == []
