"""The decisions: each has a number of its own, a status, and a line in the index of the folder."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.given.repository import ROOT

FOLDER = ROOT / "docs" / "decisions"
_HEADING = re.compile(r"^## (\d+)\. (.+)$", re.M)
_STATUS = re.compile(r"\*(?:In force|Replaced by \[(\d+)\]\([^)]+\))\.\*")


def wrong(folder: Path) -> list[str]:
    index = (folder / "README.md").read_text()
    listed = Counter(re.findall(r"^- \[(\d+)\. [^\]]+\]\([\w-]+\.md#", index, re.M))
    pages = {page.name: page.read_text() for page in sorted(folder.glob("*.md")) if page.name != "README.md"}
    numbers = Counter(number for text in pages.values() for number, _ in _HEADING.findall(text))
    found = [f"{number} stands {times} times" for number, times in sorted(numbers.items()) if times > 1]
    found += [f"{number} is in the index {listed[number]} times" for number in sorted({*numbers,
    *listed}) if listed[number] != numbers[number]]
    for name, text in pages.items():
        if f"]({name})" not in index:
            found.append(f"{name} is not in the index")
        for number, body in zip(_HEADING.findall(text), _HEADING.split(text)[3::3], strict=True):
            status = _STATUS.match(body.lstrip())
            if status is None:
                found.append(f"{name}: {number[0]} has no status")
            elif status[1] and status[1] not in numbers:
                found.append(f"{name}: {number[0]} is replaced by {status[1]}, which is not there")
    return found


def test_the_decisions_have_nothing_wrong() -> None:
    assert wrong(FOLDER) == []


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("## 3. One\n\n*In force.* a", []),
        ("## 3. One\n\n*Replaced by [3](a.md#3-one).* a", []),
        ("## 3. One\n\na", ["a.md: 3 has no status"]),
        ("## 3. One\n\n*Replaced by [4](a.md#4-two).* a", ["a.md: 3 is replaced by 4, which is not there"]),
        ("## 3. One\n\n*In force.* a\n\n## 3. Two\n\n*In force.* a", ["3 stands 2 times", "3 is in the index 1 times"]),
        ("## 4. One\n\n*In force.* a", ["3 is in the index 1 times", "4 is in the index 0 times"]),
    ],
)
def test_what_is_wrong_is_found(tmp_path: Path, page: str, said: list[str]) -> None:
    (tmp_path / "README.md").write_text("# Decisions\n\n## [A](a.md)\n\n- [3. One](a.md#3-one)\n")
    (tmp_path / "a.md").write_text(f"# A\n\n{page}\n")
    assert wrong(tmp_path) == said


def test_a_page_without_a_line_is_found(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Decisions\n")
    (tmp_path / "a.md").write_text("# A\n")
    assert wrong(tmp_path) == ["a.md is not in the index"]
