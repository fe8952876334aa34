"""`python -m emulators.release.metadata`: what an index would show of dist/, looked at before anybody else does.

twine reads the metadata as an index does. readme_renderer makes the page of the README; no link on it may lead into
the checkout, where an index has nothing. What the owner has not named is told, and does not fail.

Exit codes: 0: nothing is wrong. 1: something is, as a sentence.
"""

from __future__ import annotations

import sys
import tarfile
from email.message import Message
from email.parser import Parser
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit
from zipfile import ZipFile

from emulators.release.tools import ToolError, built, command, tools

NEEDED = ("Name", "Version", "Summary", "Keywords", "Requires-Python", "Classifier", "Description-Content-Type")
OWNERS = ("License-Expression", "Author-email", "Project-URL")
RENDER = "import sys; from readme_renderer.markdown import render; print(render(sys.argv[1]) or '')"


def main() -> int:
    try:
        wheel, sdist = built("*.whl"), built("*.tar.gz")
        sys.stdout.write(command(tools() / "twine", "check", "--strict", wheel, sdist))
        shown = of_wheel(wheel)
        page = command(tools() / "python", "-W", "error", "-c", RENDER, str(shown.get_payload()))
        found = wrong(shown, of_source(sdist), page)
    except (ToolError, OSError) as failed:
        found = [str(failed)]
    else:
        sys.stdout.writelines(f"not named yet: {field}\n" for field in OWNERS if field not in shown)
    sys.stdout.writelines(f"{sentence}\n" for sentence in found)
    return 1 if found else 0


def of_wheel(wheel: Path) -> Message:
    """Returns the metadata of a wheel; the payload is the README."""
    with ZipFile(wheel) as opened:
        [name] = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(opened.read(name).decode("utf-8"))


def of_source(archive: Path) -> Message:
    """Returns the metadata of a source distribution."""
    with tarfile.open(archive) as opened:
        [entry] = [entry for entry in opened if entry.name.count("/") == 1 and entry.name.endswith("/PKG-INFO")]
        held = opened.extractfile(entry)
        assert held is not None
        return Parser().parsestr(held.read().decode("utf-8"))


def wrong(wheel: Message, source: Message, page: str) -> list[str]:
    """Returns what is wrong with the metadata and with the page of the README, as sentences."""
    found = [f"the metadata have no {field}" for field in NEEDED if not wheel.get(field)]
    if (wheel.items(), wheel.get_payload()) != (source.items(), source.get_payload()):
        found.append("wheel and source distribution have different metadata")
    found += [] if page.strip() else ["the README cannot be shown as a page"]
    return found + [f"the README's page links to {target!r}, which is nowhere on an index" for target in leading_nowhere(page)]


def leading_nowhere(page: str) -> list[str]:
    """Returns the links and pictures of a page that are neither addresses nor places on the page itself."""
    links = _Links()
    links.feed(page)
    return [target for target in links.targets if not target.startswith("#") and urlsplit(target).scheme not in {"https", "http", "mailto"}]


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.targets += [value or "" for name, value in attrs if (tag, name) in {("a", "href"), ("img", "src")}]


if __name__ == "__main__":
    sys.exit(main())
