"""The metadata are whole, the README's page has no dead link, and no licence is in them that nobody has chosen."""

from __future__ import annotations

import copy
import re
import sys
import tomllib
from email.message import Message
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from emulators.release.build import build
from emulators.release.metadata import NEEDED, OWNERS, leading_nowhere, of_source, of_wheel, wrong
from emulators.release.owner import NO_ADDRESS
from emulators.release.tools import plain_environment
from tests.given.repository import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> tuple[Message, Message]:
    into = tmp_path_factory.mktemp("built")
    wheel = next(WheelBuilder(str(ROOT)).build(directory=str(into)))
    source = next(SdistBuilder(str(ROOT)).build(directory=str(into)))
    return of_wheel(Path(wheel)), of_source(Path(source))


def test_those_of_the_project_are_whole_and_their_readme_has_its_words_without_its_links(metadata: tuple[Message, Message]) -> None:
    assert wrong(*metadata, page="<p>shown</p>") == []
    shown = str(metadata[0].get_payload())
    readme = (ROOT / "README.md").read_text()
    assert "](docs/" in readme and "](docs/" not in shown and "](CONTRIBUTING" not in shown
    assert "The architecture has the protocol and its invariants" in " ".join(shown.split())
    assert (code := re.findall(r"```.*?```", readme, re.DOTALL)) and code == re.findall(r"```.*?```", shown, re.DOTALL)


def test_each_python_that_is_named_is_one_that_may_install_it() -> None:
    named = [each.rpartition(" :: ")[2] for each in PROJECT["classifiers"] if each.startswith("Programming Language :: Python :: 3.")]
    assert PROJECT["requires-python"] == f">={named[0]}"


@pytest.mark.parametrize("field", NEEDED)
def test_a_field_that_is_missing_is_told(field: str, metadata: tuple[Message, Message]) -> None:
    less = copy.deepcopy(metadata[0])
    del less[field]
    assert wrong(less, less, "<p>shown</p>") == [f"the metadata have no {field}"]


def test_metadata_that_differ_and_a_readme_without_a_page_are_told(metadata: tuple[Message, Message]) -> None:
    (other := copy.deepcopy(metadata[0])).set_payload("other")
    assert wrong(metadata[0], other, "\n") == [
        "wheel and source distribution have different metadata", "the README cannot be shown as a page",
    ]


@pytest.mark.parametrize(
    ("page", "dead"),
    [
        ('<a href="docs/audit.md">', ["docs/audit.md"]), ('<img src="docs/pictures/a.svg">', ["docs/pictures/a.svg"]),
        ('<a href="/docs">', ["/docs"]), ("<a href>", [""]), ('<a href="#use-it">', []), ('<a href="https://example.com/a.md">', []),
        ('<a href="mailto:nobody@example.com">', []),
    ],
)
def test_a_link_that_leads_nowhere_on_an_index_is_found(page: str, dead: list[str]) -> None:
    assert leading_nowhere(page) == dead


# --- what the owner has not said ----------------------------------------------------------------

PAGES = ("README.md", "SECURITY.md", "CONTRIBUTING.md")


def test_no_licence_is_in_the_metadata_as_long_as_the_pages_say_that_none_is_chosen(metadata: tuple[Message, Message]) -> None:
    """Whoever chooses one changes all of these, and this test."""
    assert not {"license", "license-files", "authors", "maintainers", "urls"} & PROJECT.keys()
    assert not [field for field in (*OWNERS, "License", "License-File", "Author", "Home-page") if field in metadata[0]]
    assert not [each for each in PROJECT["classifiers"] if each.startswith("License")]
    assert not [*ROOT.glob("LICEN[CS]E*"), *ROOT.glob("COPYING*")]
    for page in PAGES:
        assert "No licence is chosen yet" in " ".join((ROOT / page).read_text().split()), page
    assert NO_ADDRESS in " ".join((ROOT / "SECURITY.md").read_text().split())


def test_metadata_of_a_project_without_a_readme_are_told(small: Path, tmp_path: Path) -> None:
    built = build(Path(sys.executable), small, tmp_path / "built", plain_environment())
    [wheel], [source] = built.glob("*.whl"), built.glob("*.tar.gz")
    told = wrong(of_wheel(wheel), of_source(source), "")
    assert "the metadata have no Summary" in told and "the README cannot be shown as a page" in told
