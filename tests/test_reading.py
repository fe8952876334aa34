"""How much somebody must read before a change, in words: CONTRIBUTING.md names it, and this counts it.

250 words take a minute. Of a module, everything counts, its code too.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.given.repository import ROOT

PAGE = ROOT / "CONTRIBUTING.md"
WORDS_A_MINUTE = 250
FIRST, KINDS = "Read first: ten minutes", "What each kind of change needs"
TEN_MINUTES, TWENTY_FIVE_MINUTES = 10 * WORDS_A_MINUTE, 25 * WORDS_A_MINUTE


def anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def section(page: Path, title: str) -> str:
    """The text below a heading, up to the next one of its level or above. `title`: as text or as an anchor."""
    lines, level = [], 0
    for line in page.read_text().splitlines():
        if heading := re.match(r"(#+) (.*)", line):
            if level and len(heading[1]) <= level:
                break
            if not level and title in (heading[2], anchor(heading[2])):
                level = len(heading[1])
        if level:
            lines.append(line)
    assert lines, f"{page.name} has no section {title}"
    return "\n".join(lines)


def named(text: str) -> list[str]:
    """What a text tells to read: sections of pages, modules, and classes (`C` in `module.py`)."""
    found = re.findall(r"\]\(([^)]+)\)|(?:`(\w+)` in )?`([\w/]+\.py)`", text)
    return [link or f"{module}{name and '#'}{name}" for link, name, module in found]


def words(what: str) -> int:
    path, _, title = what.partition("#")
    page = ROOT / path if path else PAGE
    if title and page.suffix == ".py":
        source = page.read_text()
        [found] = [each for each in ast.parse(source).body if isinstance(each, ast.ClassDef) and each.name == title]
        return len((ast.get_source_segment(source, found) or "").split())
    return len((section(page, title) if title else page.read_text()).split())


def first() -> int:
    listed = section(PAGE, FIRST).partition("Then read")[0]
    return sum(words(what) for what in named(listed))


def kinds() -> dict[str, str]:
    """The paragraph of each kind of change that says what to read."""
    blocks = re.split(r"^### (.*)$", section(PAGE, KINDS), flags=re.M)[1:]
    read = ((title, re.search(r"^Read .*?\n\n", text, re.M | re.S)) for title, text in zip(blocks[::2], blocks[1::2], strict=True))
    return {title: found[0] for title, found in read if found}


def test_ten_minutes_are_enough_to_begin() -> None:
    assert 1500 < first() <= TEN_MINUTES


@pytest.mark.parametrize("kind", kinds())
def test_a_kind_of_change_takes_25_minutes_of_reading_in_all(kind: str) -> None:
    needed = {what: words(what) for what in named(kinds()[kind])}
    assert needed and all(needed.values())
    assert first() + len(section(PAGE, kind).split()) + sum(needed.values()) <= TWENTY_FIVE_MINUTES, needed


def test_the_changes_that_newcomers_make_are_there() -> None:
    assert [kind.split(",")[0] for kind in kinds()] == [
        "The protocol", "A field of metadata", "A sink of the change feed", "A class of finding of the audit", "A backend",
    ]  # fmt: skip


def test_what_is_too_long_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n## Its part\n\n" + "word " * 30 + "\n\n### Of it\n\nmore\n\n## Another\n\nnot this\n")
    assert len(section(page, "its-part").split()) == 3 + 30 + 3 + 1
    with pytest.raises(AssertionError, match="no section of-nothing"):
        section(page, "of-nothing")
