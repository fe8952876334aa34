"""What a program writes into the pages is what it would write now, so they are true and whole on any forge."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import site
from docs.written import PART, TABLES, by_hand, depth, pages, reference, written
from tests.given.repository import ROOT

LIBRARY = ROOT / "docs/reference/library.md"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_has_what_would_be_written_now(page: Path) -> None:
    text = page.read_text("utf-8")
    assert written(text) == text, "run python -m docs.written"
    assert "--8<--" not in text and not re.search("^::: ", text, re.MULTILINE), "whoever reads the file does not see it"


@pytest.mark.parametrize(("page", "is_now", "was"), [
    ("guides/fastapi.md", "async with open_storage(", "async with opened_otherwise("),
    ("reference/library.md", "    revision: ChangeId\n", "    revision: str\n"),
    ("reference/library.md", "Stores the payload under the id", "Keeps the payload"),
    ("reference/sync.md", "### `SyncTieredStorage.put`", "### `SyncTieredStorage.store`"),
    ("reference/settings.md", "| `lease.expiry_s` |", "| `lease.ends_s` |"),
    ("reference/command.md", "## `tiered put`", "## `tiered store`"),
    ("audit.md", "**finding**, doubt |", "counted |"),
])  # fmt: skip
def test_a_page_of_other_code_becomes_that_of_now(page: str, is_now: str, was: str) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    old = text.replace(is_now, was)
    assert old != text == written(old)


@pytest.mark.parametrize(("page", "told"), [
    ("<!-- code examples/fastapi_app.py:gone -->\n```python\n```", r"examples/fastapi_app.py has no part 'gone', which a guide shows"),
    ("<!-- code examples/gone.py:life -->\n```python\n```", "examples/gone.py has no part"),
    ("<!-- ::: tiered.gone -->\n<!-- end of tiered.gone -->", "there is no tiered.gone"),
    ("<!-- ::: tiered.Tier -->\n\ntext", "the mark has no end: <!-- ::: tiered.Tier -->"),
    ("<!-- settings -->\n<!-- end of commands -->", "the mark has no end: <!-- settings -->"),
])  # fmt: skip
def test_a_mark_that_cannot_be_followed_is_an_error(page: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        written(f"# A page\n\n{page}\n")


def test_what_others_write_between_marks_stays() -> None:
    page = "# A page\n\n<!-- scenarios -->\n\nlarge: 245\n\n<!-- end of scenarios -->\n"
    assert "scenarios" not in TABLES and written(page) == page


@pytest.mark.parametrize(("name", "options", "shown"), [
    ("tiered.TieredStorage.put", {}, ["# `put`", "async def put(\n    self, object_id: ObjectId,", ") -> PutResult\n"]),
    ("tiered.TieredStorage.put", {}, ["- `if_absent`: Only if", "Raises:\n\n- `ConditionFailedError`: "]),
    ("tiered.TieredStorage", {}, ["# `TieredStorage`", "## `TieredStorage.put`", "@property\ndef services_away(self)", "def __init__("]),
    ("tiered.TieredStorage", {}, ["metadata: bool = ...,\n) -> AsyncGenerator[ListEntry, None]\n@overload\ndef list("]),
    ("tiered.PutResult", {}, ["@dataclass(frozen=True, slots=True)\nclass PutResult:\n    revision: ChangeId\n    tier: Tier\n"]),
    ("tiered.Tier", {}, ['class Tier(Enum):\n    HIGH_VOLUME = "high-volume"\n']),
    ("tiered.UnavailableError", {}, ["```python\nclass UnavailableError("]),
    ("tiered.Progress", {}, ["Progress = Callable[[int, int | None], object]\n"]),
    ("tiered.sync.SyncStoredObject", {"inherited_members": True}, ["## `SyncStoredObject.read`"]),
    ("tiered.testing.fixtures", {"show_root_heading": False}, ["\n# `memory_store`"]),
])  # fmt: skip
def test_a_name_is_shown_as_its_source_has_it(name: str, options: dict[str, bool], shown: list[str]) -> None:
    text = reference(name, options, 1)
    assert [each for each in shown if each not in text] == []


@pytest.mark.parametrize(("options", "left_out"), [
    ({"filters": ["!^put$"]}, "put"), ({"members": ["get"]}, "put"), ({"members": False}, "put"), ({}, "_put"), ({}, "__aenter__"),
])  # fmt: skip
def test_what_a_page_leaves_out_is_not_shown(options: dict[str, object], left_out: str) -> None:
    assert f"`TieredStorage.{left_out}`" not in reference("tiered.TieredStorage", options, 1)


def test_a_heading_is_one_deeper_than_that_of_its_section() -> None:
    page = LIBRARY.read_text("utf-8")
    assert depth(page[: page.index("<!-- ::: tiered.open_storage")]) == 2
    assert depth("# A page\n\n```python\n# no heading\n```\n<!-- scenarios -->\n### Not by hand\n<!-- end of scenarios -->\n") == 1


@pytest.mark.parametrize("page", ["benchmarks.md", "feed.md", "sizing.md"])
def test_no_table_that_a_program_makes_counts_as_written_by_hand(page: str) -> None:
    """Also where the mark has two words."""
    assert "<!-- end of" not in by_hand((ROOT / "docs" / page).read_text("utf-8"))


def test_the_site_lets_mkdocstrings_show_what_the_page_shows() -> None:
    page = LIBRARY.read_text("utf-8")
    shown = site.with_directives(page)
    assert '\n::: tiered.ByteRange\n    options: {"heading_level": 3, "filters": ["!^_", "!^within$"]}\n' in shown
    assert len(re.findall("^::: ", shown, re.MULTILINE)) == len([match for match in PART.finditer(page) if match["shows"]]) > 50
    assert site.with_directives(by_hand(page)) == by_hand(page)
    settings = (ROOT / "docs/reference/settings.md").read_text("utf-8")
    assert "| `lease.expiry_s` |" in site.with_directives(settings)
