"""The site of the documentation: every page is in it once, and every link and anchor leads somewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

import tiered
import tiered.asgi
import tiered.exports
import tiered.sync
import tiered.testing
from docs import site
from docs.written import settings_tables
from tests.given.repository import ROOT
from tiered import Settings

pytestmark = pytest.mark.filterwarnings("default")  # what the site's tools warn of is theirs

PAGES = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setitem(os.environ, "NO_MKDOCS_2_WARNING", "1")


def configured(**others: Any) -> Any:
    return load_config(str(ROOT / "mkdocs.yml"), **others)


def named(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for each in entry.values() if isinstance(entry, dict) else entry:
            yield from named(each)


def test_the_navigation_names_every_page_once() -> None:
    pages = list(named(site.on_config(configured()).nav))
    assert sorted(pages) == sorted([*PAGES, *site.OUTSIDE.values()])


def test_what_only_maintainers_need_stands_under_their_entry() -> None:
    [maintainers] = (entry for entry in site.on_config(configured()).nav or () if "For maintainers" in entry)
    needed = {"callers.md", "contributing.md", "feed-model.md", "guards.md", "mutants.md", "protocol.md", "simulation.md"}
    assert (needed | {*site.decisions()}) - {*named(maintainers)} == set()


@pytest.mark.night
def test_the_site_is_built_and_no_link_in_it_is_dead(tmp_path: Path) -> None:
    build(configured(site_dir=str(tmp_path)))
    reference = (tmp_path / "reference/library.html").read_text()
    assert "Stores the payload under the id" in reference
    guide = (tmp_path / "guides/flask-celery.html").read_text()
    assert '<span class="k">class</span><span class="w"> </span><span class="nc">ProcessStore</span>' in guide
    testing = (tmp_path / "reference/testing.html").read_text()
    for words in ("calls of an operation end with this error", "blocking_memory_store", "What every backend must do"):
        assert words in testing
    assert "A write becomes visible when the file is closed" in (tmp_path / "reference/filesystem.html").read_text()
    assert "tiered audit delete" in (tmp_path / "reference/command.html").read_text()


@pytest.mark.parametrize("link", ["gone.md", "other.md#nowhere", "/other.md"])
def test_a_planted_dead_link_ends_the_build(link: str, tmp_path: Path) -> None:
    """The rules are those of mkdocs.yml. The rest of the site is left out, so that this takes no time."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text(f"# Here\n\n[there]({link})\n")
    (tmp_path / "docs/other.md").write_text("# Other\n\n[back](index.md#here)\n")
    rest = {"docs_dir": str(tmp_path / "docs"), "site_dir": str(tmp_path / "site"), "hooks": [], "plugins": [], "theme": "mkdocs"}
    with pytest.raises(Abort):
        build(configured(nav=["index.md", "other.md"], **rest))


@pytest.mark.parametrize(
    ("source", "written", "shown"),
    [
        ("README.md", "[a](docs/audit.md#classes)", "[a](audit.md#classes)"),
        ("README.md", "[a](docs/decisions/)", "[a](decisions/README.md)"),
        ("docs/audit.md", "[a](../README.md)", "[a](index.md)"),
        ("docs/decisions/embedded.md", "[a](../../deploy/README.md)", "[a](../deploy.md)"),
        ("docs/audit.md", "[rights](../deploy/iam)", "rights (`deploy/iam`)"),
        ("docs/audit.md", "[`deploy/iam`](../deploy/iam)", "`deploy/iam`"),
        ("docs/audit.md", "[a](#b), [a](https://example.org/x.md)", "[a](#b), [a](https://example.org/x.md)"),
        ("docs/audit.md", "```\n[a](../README.md)\n```", "```\n[a](../README.md)\n```"),
        ("docs/audit.md", "[a](gone.md)", "[a](gone.md)"),
    ],
)
def test_a_link_to_a_file_becomes_one_to_the_page_that_shows_it(source: str, written: str, shown: str) -> None:
    assert site.translated(written, source) == shown


def test_the_reference_has_every_setting_and_every_public_name() -> None:
    tables = settings_tables()
    assert [key for key in Settings(directory="store").model_dump() if f"`{key}" not in tables] == []
    pages = "".join((ROOT / f"docs/reference/{name}.md").read_text() for name in ("library", "settings"))
    shown = re.findall(r"^<!-- ::: tiered\.(?:[a-z.]+\.)?(\w+) .*-->$", pages, re.MULTILINE)
    assert sorted(shown) == sorted([
        *tiered.__all__, *tiered.directories.__all__, *tiered.exports.__all__, *tiered.asgi.__all__, "Telemetry",
    ])  # fmt: skip
    blocking = re.findall(r"^<!-- ::: tiered\.sync\.(\w+) .*-->$", (ROOT / "docs/reference/sync.md").read_text(), re.MULTILINE)
    assert sorted(blocking) == sorted(tiered.sync.__all__)
    for_tests = re.findall(r"^<!-- ::: tiered\.testing\.(\w+) .*-->$", (ROOT / "docs/reference/testing.md").read_text(), re.MULTILINE)
    assert sorted(for_tests) == sorted([*tiered.testing.__all__, "fixtures", "contracts"])


def test_the_reference_has_the_file_system_that_fsspec_finds() -> None:
    [entry] = [each for each in entry_points(group="fsspec.specs") if each.name == "tiered"]
    page = (ROOT / "docs/reference/filesystem.md").read_text()
    assert re.findall(r"^<!-- ::: (\S+) .*-->$", page, re.MULTILINE) == [entry.value.replace(":", ".")]
