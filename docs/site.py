"""What the site needs beyond the pages in docs/: a hook of MkDocs. `make docs` builds the site; mkdocs.yml has its nav.

Pages of this project link to each other as files of the checkout, so that they can be read there. The site holds some
pages that are outside of docs/ (`OUTSIDE`). So a link is translated: to the page that shows the file, or to the bare
name of the file if no page shows it.

Three parts of the site are written here, because a copy of them would become wrong: the list of decisions, the table of
the settings, and the commands.

The guides hold code of examples/, so that they can be read as files. After a change of an example,
`python docs/site.py --write` brings it into them; a test compares.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any, get_args, get_origin

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer import Context
from typer.cli import get_docs_for_click
from typer.main import get_command

from recovery.cli.app import app
from tiered.settings import Settings

ROOT = Path(__file__).parent.parent

OUTSIDE = {
    "README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "HISTORY.md": "history.md", "deploy/README.md": "deploy.md",
}
"""Pages outside of docs/, by their path in the checkout, and their names in the site."""

DECISIONS = "decisions/"
DECISIONS_INDEX = "decisions/README.md"

_CODE = re.compile(r"(?P<mark><!-- code (?P<path>[\w./]+)(?::(?P<part>\w+))? -->\n```\w+\n).*?^```$", re.DOTALL | re.MULTILINE)
"""A block of code, after a comment that names its file, and the part of it between two marks."""

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
    name = page.file.src_uri
    for mark, write in WRITTEN.items():
        if mark in markdown:
            markdown = markdown.replace(mark, write())
    return translated(markdown, source_of(name))


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


# --- code in the guides --------------------------------------------------------------------------------


def with_code(markdown: str) -> str:
    """The page with the code of the examples as it is now. `ValueError`: a file, or a part of it, is not there."""
    return _CODE.sub(lambda match: f"{match['mark']}{_code(match['path'], match['part'])}```", markdown)


def _code(path: str, part: str | None) -> str:
    text = (ROOT / path).read_text("utf-8") if (ROOT / path).is_file() else ""
    marks = rf" *# --8<-- \[start:{part}\]\n(.*?) *# --8<-- \[end:{part}\]\n" if part else r"(.+)"
    if (found := re.search(marks, text, re.DOTALL)) is None:
        raise ValueError(f"{path} has no part {part!r}, which a guide shows")
    return f"{dedent(found[1]).strip()}\n"


# --- what is written from the code ---------------------------------------------------------------------


def settings_tables() -> str:
    """A table for each section of the settings: name, type and bounds, default, whether it is for tuning.

    The docstrings stand before the tables.
    """
    lines: list[str] = []
    alone = {name: field for name, field in Settings.model_fields.items() if _section(field.annotation) is None}
    lines += _table("", alone)
    for name, field in Settings.model_fields.items():
        if (section := _section(field.annotation)) is not None:
            prefix = f"{name}.NAME." if get_origin(field.annotation) is Mapping else f"{name}."
            lines += ["", f"## {name}", "", _docstring(section), "", *_table(prefix, section.model_fields)]
    return "\n".join(lines)


def _section(annotation: Any) -> Any:
    """The class of a section. None: the setting is a value of its own."""
    for each in (annotation, *get_args(annotation)):
        if hasattr(each, "model_fields"):
            return each
    return None


def _docstring(kind: type) -> str:
    return "\n".join(line.removeprefix("    ") for line in (kind.__doc__ or "").strip().split("\n"))


def _table(prefix: str, fields: dict[str, Any]) -> list[str]:
    tuning = Settings.tuning()
    rows = [
        f"| `{prefix}{name}` | {_kind(field)} | {_default(field)} | {'tuning' if f'{prefix}{name}' in tuning else ''} |"
        for name, field in fields.items()
    ]
    return ["| setting | type | default | for |", "|---|---|---|---|", *rows]


def _kind(field: Any) -> str:
    return f"{_type(field.annotation)}{_bounds(field.metadata)}"


def _type(annotation: Any) -> str:
    if annotation is type(None):
        return "nothing"
    name = getattr(get_origin(annotation), "__name__", "")
    if name == "Annotated":
        inner, *notes = get_args(annotation)
        return f"{_type(inner)}{_bounds(notes)}"
    if name == "Literal":
        return " or ".join(f"`{each}`" for each in get_args(annotation))
    if name in ("Union", "UnionType"):
        return " or ".join(_type(each) for each in get_args(annotation) if each is not type(None))
    return _WORDS.get(annotation) or str(annotation.__name__)


_WORDS: dict[Any, str] = {float: "number", int: "whole number", str: "text", bool: "true or false", Path: "path"}


def _bounds(notes: Any) -> str:
    """The bounds of a number, such as ` from 1 to 64`."""
    parts = [each for note in notes for each in (getattr(note, "metadata", None) or [note])]
    low = next((f"{part.ge:,g}" for part in parts if hasattr(part, "ge")), None)
    above = next((f"{part.gt:,g}" for part in parts if hasattr(part, "gt")), None)
    high = next((f"{part.le:,g}" if part.le < 1e6 else f"{part.le:,.0f}" for part in parts if hasattr(part, "le")), None)
    words = [word for word in (low and f"from {low}", above and f"above {above}", high and f"to {high}") if word]
    return " " + " ".join(words) if words else ""


def _default(field: Any) -> str:
    if field.is_required():
        return "must be given"
    if field.default_factory is not None:
        return "see above"
    return "none" if field.default is None else f"`{str(field.default).lower() if isinstance(field.default, bool) else field.default}`"


def commands() -> str:
    """Every command with its options, as typer writes it. The options that all commands have are listed once."""
    command = get_command(app)
    text = get_docs_for_click(obj=command, ctx=Context(command, info_name="tiered"), name="tiered")
    first, *others = text.removeprefix("# `tiered`\n").split("\n## ")
    shared = set(re.findall(r"(?m)^\* `-.*\n", first)) - {"* `--help`: Show this message and exit.\n"}
    return "\n## ".join([first, *("".join(line for line in each.splitlines(True) if line not in shared) for each in others)])


WRITTEN: dict[str, Callable[[], str]] = {"<!-- settings -->": settings_tables, "<!-- commands -->": commands}


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python docs/site.py --write, which brings the code of examples/ into the guides")
    for guide, written in {path: with_code(path.read_text("utf-8")) for path in (ROOT / "docs/guides").glob("*.md")}.items():
        guide.write_text(written, "utf-8")
