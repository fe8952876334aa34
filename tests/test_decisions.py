"""The decisions: each has a number of its own, a date, and a place in the index of the folder. All are in force."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.given.repository import ROOT

FOLDER = ROOT / "docs" / "decisions"
_HEADING = re.compile(r"^## (\d+)\. (.+)$", re.M)
_CITATION = re.compile(r"decisions/([\w-]+\.md)(?:,\s+(?:# +)?|#)(\d+)\b")
_DATE = re.compile(r"\*\d{4}-[01]\d-[0-3]\d\.\*\n")


def wrong(folder: Path) -> list[str]:
    index = (folder / "README.md").read_text()
    listed = Counter(
        (page, number) for page, cell in re.findall(r"^\| \[[^\]]+\]\(([\w-]+\.md)\) \| (.*) \|$", index, re.M)
        for number in cell.split(", ")
    )
    pages = {page.name: page.read_text() for page in sorted(folder.glob("*.md")) if page.name != "README.md"}
    numbers = Counter(number for text in pages.values() for number, _ in _HEADING.findall(text))
    found = [f"{number} stands {times} times" for number, times in sorted(numbers.items()) if times > 1]
    stands = Counter((name, number) for name, text in pages.items() for number, _ in _HEADING.findall(text))
    found += [
        f"{number} is in the index {listed[page, number]} times" for page, number in sorted({*stands, *listed})
        if listed[page, number] != stands[page, number]
    ]
    for name, text in pages.items():
        if f"]({name})" not in index:
            found.append(f"{name} is not in the index")
        for number, body in zip(_HEADING.findall(text), _HEADING.split(text)[3::3], strict=True):
            if _DATE.match(body.lstrip()) is None:
                found.append(f"{name}: {number[0]} has no line with its date alone")
    return found


def dead(text: str, folder: Path) -> list[str]:
    """The citations in a text, as `store.md, 8`, of decisions that are not on the page which they name."""
    cited = dict.fromkeys(_CITATION.findall(text))
    pages = {name: folder / name for name, _ in cited}
    numbers = {name: {number for number, _ in _HEADING.findall(page.read_text())} for name, page in pages.items() if page.is_file()}
    return [f"{name}, {number}" for name, number in cited if number not in numbers.get(name, set())]


def test_the_decisions_have_nothing_wrong() -> None:
    assert wrong(FOLDER) == []


def test_each_decision_that_is_cited_stands_on_the_page_that_is_named() -> None:
    places = ("benchmarks", "changelog", "docs", "emulators", "recovery", "tests", "tiered")
    files = [file for place in places for kind in ("py", "md", "txt") for file in sorted((ROOT / place).rglob(f"*.{kind}"))]
    citing = {file: text for file in files if file != Path(__file__) and _CITATION.search(text := file.read_text())}
    assert len(citing) > 10
    assert {str(file.relative_to(ROOT)): gone for file, text in citing.items() if (gone := dead(text, FOLDER))} == {}


def test_a_citation_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A\n\n## 3. One\n\na\n")
    cited = "docs/decisions/a.md, 3; docs/decisions/a.md, 4; docs/decisions/b.md, 3; [5](decisions/a.md#5-x); [3](decisions/a.md#3-one)"
    assert dead(cited, tmp_path) == ["a.md, 4", "b.md, 3", "a.md, 5"]


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("## 3. One\n\n*2026-11-30.*\na", []),
        ("## 3. One\n\na", ["a.md: 3 has no line with its date alone"]),
        ("## 3. One\n\n*2026-11-30. Replaced by [4](a.md#4-two).*\na", ["a.md: 3 has no line with its date alone"]),
        (
            "## 3. One\n\n*2026-11-30.*\na\n\n## 3. Two\n\n*2026-11-30.*\na",
            ["3 stands 2 times", "3 is in the index 1 times"],
        ),
        ("## 4. One\n\n*2026-11-30.*\na", ["3 is in the index 1 times", "4 is in the index 0 times"]),
    ],
)
def test_what_is_wrong_is_found(tmp_path: Path, page: str, said: list[str]) -> None:
    (tmp_path / "README.md").write_text("# Decisions\n\n| [A](a.md) | 3 |\n")
    (tmp_path / "a.md").write_text(f"# A\n\n{page}\n")
    assert wrong(tmp_path) == said


def test_a_page_without_a_line_is_found(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Decisions\n")
    (tmp_path / "a.md").write_text("# A\n")
    assert wrong(tmp_path) == ["a.md is not in the index"]
