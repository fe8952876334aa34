"""docs/failures.md: it has every error, every answer and every exit code, and says of each what the program does."""

from __future__ import annotations

import re

import pytest

import tiered
from recovery.cli import exit_codes
from recovery.cli.shared import EXIT_CODES
from tests.given.repository import ROOT
from tiered import Outcome, TieredError

PAGE = (ROOT / "docs/failures.md").read_text("utf-8")
ERRORS: dict[str, type[TieredError]] = {
    name: kind for name in tiered.__all__ if isinstance(kind := getattr(tiered, name), type) and issubclass(kind, TieredError)
}
SECTIONS: dict[str, str] = dict(re.findall(r"^### (\w+Error)\n(.*?)(?=^##)", PAGE, re.DOTALL | re.MULTILINE))
OVERVIEW = PAGE.partition("## The errors")[0]


def test_the_page_has_a_section_for_each_error() -> None:
    assert set(SECTIONS) == set(ERRORS)


@pytest.mark.parametrize("name", sorted(set(ERRORS) - {"TieredError"}))
def test_a_section_says_all_that_it_must(name: str) -> None:
    section, kind = SECTIONS[name], ERRORS[name]
    for part in ("**Means:**", "**Known:**", "**Do:**"):
        assert part in section
    code = next((code for kinds, code in EXIT_CODES if issubclass(kind, kinds)), 4)
    assert f"**Exit code:** {code}\n" in section
    above = kind.__bases__[0].__name__
    assert (f"A kind of `{above}`" in section) == (above != "TieredError")
    assert f"| [`{name}`](#{name.lower()}) |" in OVERVIEW


def test_the_page_has_every_answer_of_outcome() -> None:
    assert re.findall(r"^\| `([A-Z_]+)` \|", PAGE, re.MULTILINE) == [each.name for each in Outcome]


def test_the_page_has_the_exit_codes_of_the_command() -> None:
    shown = re.findall(r"^\| (\d+) \| (.*) \|$", PAGE, re.MULTILINE)
    assert {int(code): means.replace("`", "") for code, means in shown} == exit_codes.EXIT_CODES
    assert {code for _, code in EXIT_CODES} <= exit_codes.EXIT_CODES.keys()
