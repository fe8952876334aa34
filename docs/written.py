"""What a program writes into the pages, so that they are whole on any forge and in an editor.

    python -m docs.written      after a change of an example, a docstring, a signature, a setting, a command, or a class
                                of finding; a test compares

A mark in a page, a comment in HTML, says what is written below it. This is all that there is:

    <!-- code PATH:PART -->          the code of a file, or of the part of it between two marks, in the block below
    <!-- ::: NAME {OPTIONS} -->      the reference of a public name, up to `<!-- end of NAME -->`; on the site
                                     mkdocstrings makes its own of the same mark, so the options are those that it has
    <!-- settings -->, <!-- commands -->, <!-- classes -->      up to `<!-- end of … -->`: a row of `TABLES` below
"""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from textwrap import dedent, indent
from typing import Any, get_args, get_origin

import griffe
import yaml
from typer import Context
from typer.cli import get_docs_for_click
from typer.main import get_command

from emulators.promises.python_names import finder
from recovery.audit.finding_classes import FindingClass
from recovery.cli.app import app
from tiered.settings import Settings

ROOT = Path(__file__).parent.parent

PART = re.compile(
    r"^<!-- (?:(?P<shows>::: )|figures )?(?P<name>[\w.]+(?: [\w.]+)*)(?: (?P<options>\{.*\}))? -->\n(?P<body>.*?)"
    r"^<!-- end of (?P=name) -->$",
    re.DOTALL | re.MULTILINE,
)
"""What is between two marks. Others write some of it: figures, and tables of the model."""

_CODE = re.compile(r"(?P<mark><!-- code (?P<path>[\w./]+)(?::(?P<part>\w+))? -->\n```\w+\n).*?^```$", re.DOTALL | re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)

Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


def pages() -> list[Path]:
    return sorted((ROOT / "docs").rglob("*.md"))


def written(markdown: str) -> str:
    """The page as it is to be now.

    `ValueError`: a mark has no end, a file or a part of it is not there, or a docstring has what this cannot show.
    """
    parts = {match.start(): match for match in PART.finditer(markdown)}
    for mark in re.finditer(rf"^<!-- (?:::: \S+|{'|'.join(TABLES)})\b.*$", markdown, re.MULTILINE):
        if mark.start() not in parts:
            raise ValueError(f"the mark has no end: {mark[0]}")
    whole = PART.sub(lambda match: _between(match, depth(markdown[: match.start()])), markdown)
    return _CODE.sub(lambda match: f"{match['mark']}{_code(match['path'], match['part'])}```", whole)


def by_hand(markdown: str) -> str:
    """The page without what programs write between two marks."""
    return PART.sub("", markdown)


def depth(markdown: str) -> int:
    """How deep the last heading is that somebody wrote."""
    return max((len(marks) for marks in re.findall(r"^(#+) ", _FENCED.sub("", by_hand(markdown)), re.MULTILINE)[-1:]), default=0)


def _between(match: re.Match[str], depth: int) -> str:
    if match["shows"]:
        body = reference(match["name"], yaml.safe_load(match["options"] or "{}"), depth + 1)
    elif match["name"] in TABLES:
        body = TABLES[match["name"]]()
    else:
        return match[0]
    first, body = match[0].partition("\n")[0], re.sub(r"\n{3,}", "\n\n", body.strip())
    return f"{first}\n\n{body}\n\n<!-- end of {match['name']} -->"


def _code(path: str, part: str | None) -> str:
    text = (ROOT / path).read_text("utf-8") if (ROOT / path).is_file() else ""
    marks = rf" *# --8<-- \[start:{part}\]\n(.*?) *# --8<-- \[end:{part}\]\n" if part else r"(.+)"
    if (found := re.search(marks, text, re.DOTALL)) is None:
        raise ValueError(f"{path} has no part {part!r}, which a guide shows")
    return f"{dedent(found[1]).strip()}\n"


# --- names ---------------------------------------------------------------------------------------------

_DECORATORS = ("asynccontextmanager", "contextmanager", "classmethod", "dataclass", "overload", "property", "staticmethod")
"""Which of them tell a caller something."""


def reference(name: str, options: Mapping[str, Any], level: int) -> str:
    """What the docstring says of a public name and of its members, and their signatures. `level`: of its heading."""
    thing = _finder()(name)
    if thing is None:
        raise ValueError(f"there is no {name}")
    heads = options.get("show_root_heading", True)
    title = name.rpartition(".")[2]
    lines = [f"{'#' * level} `{title}`", ""] if heads else []
    lines += _shown(thing, options)
    under = level + 1 if heads else level
    for member in _members(thing, options):
        if not member.docstring or (thing.is_class and not _is_call(member)):
            continue
        qualified = member.name if thing.is_module else f"{title}.{member.name}"
        lines += ["", f"{'#' * under} `{qualified}`", "", *_shown(member, {})]
    return "\n".join(lines)


def _is_call(member: Any) -> bool:
    """Whether it has a signature and a heading of its own: a method or a property, and no field."""
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in _nodes(member))


@cache
def _finder() -> Callable[[str], Any]:
    logging.getLogger("griffe").setLevel(logging.ERROR)  # it warns of what a signature does not have
    return finder(ROOT)


def _members(thing: Any, options: Mapping[str, Any]) -> Iterator[Any]:
    """Its own and, if they are asked for, those of its bases, in their order in the source."""
    alone, filters = options.get("members"), [each.removeprefix("!") for each in options.get("filters", ["!^_[^_]"])]
    if alone is False or not (thing.is_class or thing.is_module):
        return
    inherited = thing.inherited_members if options.get("inherited_members") else {}
    for name, member in (*thing.members.items(), *inherited.items()):
        if (name in alone if isinstance(alone, list) else not any(re.search(each, name) for each in filters)) and name != "__init__":
            if thing.is_module and member.is_alias:
                continue  # it is from elsewhere
            yield member.final_target if member.is_alias else member


def _shown(thing: Any, options: Mapping[str, Any]) -> Iterator[str]:
    if not thing.is_module:
        yield from ["```python", *_signature(thing, options), "```", ""]
    for docstring in _docstrings(thing, options):
        yield from _sections(docstring)


def _docstrings(thing: Any, options: Mapping[str, Any]) -> Iterator[Any]:
    """That of the thing, and those of how a class is made and of its fields."""
    if thing.docstring:
        yield thing.docstring
    if thing.is_class:
        init = thing.members.get("__init__")
        if init is not None and init.docstring:
            yield init.docstring
        for member in _members(thing, options):
            if member.docstring and not _is_call(member):
                text = " ".join(member.docstring.value.split())
                yield griffe.Docstring(f"`{member.name}`: {text}", parent=thing)


def _sections(docstring: Any) -> Iterator[str]:
    """The text as it is; arguments, errors and fields as lists."""
    for section in docstring.parse("google", warnings=False):
        match section.kind.value:
            case "text":
                yield from [*section.value.splitlines(), ""]
            case "parameters" | "attributes":
                yield from [*(f"- `{each.name}`: {_one_line(each.description)}" for each in section.value), ""]
            case "raises":
                yield from ["Raises:", "", *(f"- `{each.annotation}`: {_one_line(each.description)}" for each in section.value), ""]
            case other:
                raise ValueError(f"a docstring has a section of the kind {other}, which this cannot show: {docstring.value[:60]!r}")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _signature(thing: Any, options: Mapping[str, Any]) -> Iterator[str]:
    """As it is in the source."""
    source, nodes = _source(thing.module.path), _nodes(thing)
    overloads = [node for node in nodes if "overload" in _decorators(node)]
    for node in overloads or nodes[-1:]:
        yield from _decorated(node, source)
        match node:
            case ast.ClassDef():
                yield from _class(thing, node, source, options)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield _head(node, source)
            case _:
                yield dedent(" " * node.col_offset + (ast.get_source_segment(source, node) or ""))


def _class(thing: Any, node: ast.ClassDef, source: str, options: Mapping[str, Any]) -> Iterator[str]:
    bases = ", ".join(ast.unparse(each) for each in node.bases) if options.get("show_bases", True) else ""
    fields = [each for member in _members(thing, options) if not _is_call(member) for each in _nodes(member)[-1:]]
    lines = [ast.get_source_segment(source, each) or "" for each in fields if each in node.body]
    init = next((each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None)
    if init is not None:
        lines += [""] * bool(lines) + [_head(init, source)]
    yield f"class {node.name}{f'({bases})' if bases else ''}{':' if lines else ''}"
    yield from (indent(each, "    ") for each in lines)


def _decorated(node: Node, source: str) -> Iterator[str]:
    told = {name: each for name, each in _decorators(node).items() if name in _DECORATORS}
    yield from (f"@{ast.get_source_segment(source, each)}" for each in told.values())


def _decorators(node: Node) -> dict[str, ast.expr]:
    """By the last part of their names."""
    return {ast.unparse(each).partition("(")[0].rpartition(".")[2]: each for each in getattr(node, "decorator_list", ())}


def _head(node: ast.FunctionDef | ast.AsyncFunctionDef, source: str) -> str:
    """A function up to its body."""
    lines = source.splitlines()[node.lineno - 1 : node.body[0].lineno]
    lines[-1] = lines[-1].encode()[: node.body[0].col_offset].decode()
    return re.sub(r":\s*(#[^\n]*)?\s*\Z", "", dedent("\n".join(lines)))


@cache
def _source(module: str) -> str:
    path = ROOT / module.replace(".", "/")
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8")


def _nodes(thing: Any) -> list[Node]:
    """Where the source defines it: the overloads, and then the thing. Nowhere, if a method sets it."""
    found: list[Any] = [_parsed(thing.module.path)]
    for name in thing.path.removeprefix(f"{thing.module.path}.").split("."):
        found = [each for outer in found[-1:] for each in outer.body if _is_named(each, name)]
    return found


@cache
def _parsed(module: str) -> ast.Module:
    return ast.parse(_source(module))


def _is_named(node: ast.AST, name: str) -> bool:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return node.name == name
        case ast.AnnAssign(target=ast.Name(id=found)) | ast.Assign(targets=[ast.Name(id=found)]):
            return found == name
        case _:
            return False


# --- tables --------------------------------------------------------------------------------------------


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


def classes() -> str:
    """A line for each class of finding: what it means, and what follows from it."""
    rows = [f"| `{kind}` | {kind.meaning} | {_follows(kind)} |" for kind in FindingClass]
    return "\n".join(["| class | what it is | |", "|---|---|---|", *rows])


def _follows(kind: FindingClass) -> str:
    if kind.finding is None:
        return "counted"
    return "**finding**, doubt" if kind.finding.is_doubt else "**finding**"


def commands() -> str:
    """Every command with its options, as typer writes it. The options that all commands have are listed once."""
    command = get_command(app)
    text = get_docs_for_click(obj=command, ctx=Context(command, info_name="tiered"), name="tiered")
    first, *others = text.removeprefix("# `tiered`\n").split("\n## ")
    shared = set(re.findall(r"(?m)^\* `-.*\n", first)) - {"* `--help`: Show this message and exit.\n"}
    return "\n## ".join([first, *("".join(line for line in each.splitlines(True) if line not in shared) for each in others)])


TABLES: dict[str, Callable[[], str]] = {"settings": settings_tables, "commands": commands, "classes": classes}


if __name__ == "__main__":
    for page, text in {page: written(page.read_text("utf-8")) for page in pages()}.items():
        page.write_text(text, "utf-8")
