"""What the site needs beyond the pages in docs/: a hook of MkDocs. `make docs` builds the site; mkdocs.yml has its nav.

Pages of this project link to each other as files of the checkout, so that they can be read there. The site holds some
pages that are outside of docs/ (`OUTSIDE`). So a link is translated: to the page that shows the file, or to the bare
name of the file if no page shows it.

What `docs/written.py` writes into the pages is in the site, too. Only the reference of the names is made anew by
mkdocstrings: it links types, and shows what is inherited.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.written import PART, depth

ROOT = Path(__file__).parent.parent

OUTSIDE = {
    "README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "HISTORY.md": "history.md", "deploy/README.md": "deploy.md",
}
"""Pages outside of docs/, by their path in the checkout, and their names in the site."""

DECISIONS = "decisions/"
DECISIONS_INDEX = "decisions/README.md"

_LINK = re.compile(r"\[(?P<label>[^\]]*)\]\((?P<target>[^)\s]+)\)")


# --- hooks -----------------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = _expanded(config.nav or [])
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    for path, name in OUTSIDE.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    return translated(with_directives(markdown), source_of(page.file.src_uri))


def with_directives(markdown: str) -> str:
    """The page with a line for mkdocstrings instead of each reference that is written in it."""
    return PART.sub(lambda match: _directive(match, depth(markdown[: match.start()])) if match["shows"] else match[0], markdown)


def _directive(match: re.Match[str], depth: int) -> str:
    options = {"heading_level": depth + 1, **yaml.safe_load(match["options"] or "{}")}
    return f"::: {match['name']}\n    options: {json.dumps(options)}"


# --- the pages and their links -----------------------------------------------------------------------


def _expanded(entry: Any) -> Any:
    """An entry of the navigation, with the list of decisions where `decisions/` stands."""
    if entry == DECISIONS:
        return [DECISIONS_INDEX, *decisions()]
    if isinstance(entry, list):
        return [_expanded(each) for each in entry]
    if isinstance(entry, dict):
        return {title: _expanded(each) for title, each in entry.items()}
    return entry


def decisions() -> list[str]:
    """The pages of decisions, one for each area, in the order of their index."""
    index = (ROOT / "docs" / DECISIONS_INDEX).read_text("utf-8")
    return [f"{DECISIONS}{name}" for name in re.findall(r"^\| \[.*\]\(([\w-]+\.md)\)", index, re.M)]


def source_of(name: str) -> str:
    """The path in the checkout of the page that the site calls `name`."""
    return next((path for path, shown in OUTSIDE.items() if shown == name), f"docs/{name}")


def shown_as(path: str) -> str | None:
    """The name in the site of a file of the checkout. None: the site does not have it."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if path == f"docs/{DECISIONS}".rstrip("/"):
        return DECISIONS_INDEX
    return path.removeprefix("docs/") if path.startswith("docs/") and (ROOT / path).is_file() else None


def translated(markdown: str, source: str) -> str:
    """The page at the path `source` of the checkout, with the links that it needs in the site."""
    here = posixpath.dirname(shown_as(source) or source.removeprefix("docs/"))

    def link(match: re.Match[str]) -> str:
        label, (file, _, anchor) = match["label"], match["target"].partition("#")
        if "://" in match["target"] or not file:
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), file))
        name = shown_as(path)
        if name is not None:
            return f"[{label}]({posixpath.relpath(name, here or '.')}{'#' + anchor if anchor else ''})"
        if not (ROOT / path).exists():
            return match[0]  # MkDocs says that it leads nowhere
        return label if path in label else f"{label} (`{path}`)"

    return "\n".join(_LINK.sub(link, text) if prose else text for prose, text in _parts(markdown))


def _parts(markdown: str) -> Iterator[tuple[bool, str]]:
    """The lines of prose and of code, in turn. A link may span two lines of prose."""
    kept: list[str] = []
    fenced = False
    for line in markdown.split("\n"):
        if line.lstrip().startswith("```"):
            if not fenced and kept:
                yield True, "\n".join(kept)
                kept = []
            kept.append(line)
            fenced = not fenced
            if not fenced:
                yield False, "\n".join(kept)
                kept = []
        else:
            kept.append(line)
    if kept:
        yield not fenced, "\n".join(kept)
