"""The pages of the project: lines that fit, and links and paths that lead somewhere.

Each check is tried on a small tree with one planted violation too: a check that cannot fail proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.given.repository import ROOT

WIDTH_MAX = 120

GENERATED = re.compile(r"<!-- (?!end of)(?:figures |::: )?[\w. ]+(?:\{.*\} )?-->")
"""Begins what a program writes, up to `<!-- end of ... -->`."""

LINK = re.compile(r"\]\(([^)\s]+)\)")
FOLDERS = "benchmarks|changelog|deploy|docs|emulators|examples|recovery|tests|tiered"
NAMED = re.compile(rf"(?<![\w./-])(?:{FOLDERS})/[\w./*-]*[\w*]")

Check = Callable[[Path], list[str]]


def pages(root: Path) -> Iterator[Path]:
    yield from sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])


def written(page: Path) -> Iterator[tuple[int, str]]:
    """The lines that somebody wrote: nothing that a program did, such as figures, which stay as they were measured."""
    generated = False
    for number, line in enumerate(page.read_text("utf-8").splitlines(), start=1):
        generated = generated or GENERATED.match(line) is not None
        if not generated:
            yield number, line
        generated = generated and not line.startswith("<!-- end of")


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Of these, the lines that can be broken: no code and no table."""
    fenced = False
    for number, line in written(page):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("|"):
            yield number, line


def too_wide(root: Path) -> list[str]:
    return [
        f"{page.relative_to(root)}:{number} has {len(line)} characters" for page in pages(root) for number, line in prose(page)
        if len(line) > WIDTH_MAX and not _is_link_only(line)
    ]


def _is_link_only(line: str) -> bool:
    """Whether a link that cannot be broken fills the line: the text of one may have spaces, its address has none."""
    return re.fullmatch(r"\W*\[[^\]]*\]\(\S+\)\W*", line) is not None


def dead_links(root: Path) -> list[str]:
    """Links within the project that lead to no file, or to no heading of it."""
    return [
        f"{page.relative_to(root)} links to {target}" for page in pages(root) for target in LINK.findall(page.read_text("utf-8"))
        if "://" not in target and not _leads_somewhere(page, target)
    ]


def _leads_somewhere(page: Path, target: str) -> bool:
    file, _, anchor = target.partition("#")
    there = page.parent / file if file else page
    return there.exists() and (not anchor or anchor in anchors(there))


def anchors(page: Path) -> set[str]:
    """How links address the page's headings: lower case, hyphens for spaces, no other punctuation."""
    return {
        re.sub(r"[^\w -]", "", line.lstrip("# ")).strip().lower().replace(" ", "-") for _, line in prose(page) if line.startswith("#")
    }


def dead_paths(root: Path) -> list[str]:
    """Paths such as `folder/file.py` or `folder/folder/` that lead nowhere. A `*` stands for anything."""
    named = {(page, path) for page in pages(root) for _, line in written(page) for path in NAMED.findall(line)}
    return [f"{page.relative_to(root)} names {path}" for page, path in sorted(named) if not any(root.glob(path))]


def defined_twice(root: Path) -> list[str]:
    """Words that the glossary defines in more than one row."""
    rows = re.findall(r"^\| (?!word |-)([^|]+) \|", (root / "docs/glossary.md").read_text("utf-8"), re.M)
    words = [word.strip("*` ") for row in rows for word in re.split(r"[,;:]", row)]
    return [f"{word} is defined {words.count(word)} times" for word in dict.fromkeys(words) if words.count(word) > 1]


CHECKS: list[Check] = [too_wide, dead_links, dead_paths, defined_twice]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_pages_have_nothing(check: Check) -> None:
    assert check(ROOT) == []


# --- the checks themselves -----------------------------------------------------------------------

WIDE = "word " * 30

CLEAN = f"""# A page

Prose that [links](other.md#some-of-it) and names `tiered/storage.py`, `tests/*/test_*.py`,
`tests/unit/` and tiered/storage.py.
[{WIDE}](other.md)

| {WIDE} |
|---|

```
{WIDE}
```

<!-- figures speed -->
{WIDE} `tiered/as_it_was_measured.py`
<!-- end of speed -->
<!-- guards -->
{WIDE}
<!-- end of guards -->
"""
LAST = CLEAN.count("\n") + 1


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    for file in ("docs/page.md", "docs/other.md", "docs/glossary.md", "README.md", "tiered/storage.py", "tests/unit/test_text.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / "docs/page.md").write_text(CLEAN)
    (tmp_path / "docs/other.md").write_text("## Some of it!\n")
    return tmp_path


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_clean_pages_have_nothing(check: Check, clean: Path) -> None:
    assert check(clean) == []


@pytest.mark.parametrize(
    ("check", "line", "found"),
    [
        (too_wide, WIDE, f"docs/page.md:{LAST} has 150 characters"),
        (too_wide, f"- {WIDE}", f"docs/page.md:{LAST} has 152 characters"),
        (dead_links, "[gone](gone.md)", "docs/page.md links to gone.md"),
        (dead_links, "[gone](../docs/other.md#all-of-it)", "docs/page.md links to ../docs/other.md#all-of-it"),
        (dead_links, "[gone](#nowhere)", "docs/page.md links to #nowhere"),
        (dead_paths, "`tiered/gone.py`", "docs/page.md names tiered/gone.py"),
        (dead_paths, "`tiered/gone/`.", "docs/page.md names tiered/gone"),
        (dead_paths, "(tests/*/gone_*.py)", "docs/page.md names tests/*/gone_*.py"),
    ],
)
def test_a_planted_violation_is_found(check: Check, line: str, found: str, clean: Path) -> None:
    (clean / "docs/page.md").write_text(f"{CLEAN}{line}\n")
    assert check(clean) == [found]


def test_a_word_that_is_defined_twice_is_found(clean: Path) -> None:
    (clean / "docs/glossary.md").write_text("| word | is |\n|---|---|\n| **mark**: *won* | a |\n| page token, `mark` | b |\n")
    assert defined_twice(clean) == ["mark is defined 2 times"]


def test_a_violation_after_a_generated_part_is_found(clean: Path) -> None:
    """Whatever is left out of the check ends again."""
    (clean / "README.md").write_text(f"```\n```\n<!-- guards -->\n<!-- end of guards -->\n{WIDE}\n")
    assert too_wide(clean) == ["README.md:5 has 150 characters"]
