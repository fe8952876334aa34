"""What Python programs may rely on: the names that docs/reference shows, as rows of the table that is compared.

A name is promised if a page of docs/reference shows it (`<!-- ::: tiered.TieredStorage -->`), or if it is in the
`__all__` of a package in `PACKAGES`; and so are the public members of a class, but for those that the page leaves out.
Where the code of a name is, is promised to nobody: so `griffe check`, which compares code, would tell of other things,
and of no `async`, type of a union or value of an enum. griffe reads the tree, and imports nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import griffe
import yaml

PACKAGES = ("tiered", "tiered.sync", "tiered.testing", "tiered.asgi", "tiered.directories", "recovery.feed")
NOT_PROMISED = "tiered.testing.contracts"
"""Shown, and not kept: a suite for backends demands more when the protocols do."""

LOADED = ("changelog", "tiered", "recovery/__init__.py", "recovery/feed")
"""What griffe reads: all of `recovery` would take as long as the rest."""

CALLS = ("async", "staticmethod", "classmethod")
WAYS = {
    griffe.ParameterKind.positional_only: ["by position"], griffe.ParameterKind.keyword_only: ["by name"],
    griffe.ParameterKind.positional_or_keyword: ["by name", "by position"],
}  # fmt: skip

_SHOWN = re.compile(r"^(?:<!-- )?::: (?P<name>\S+)(?: (?P<options>\{.*\}))?(?: -->)?\n(?P<rest>(?: {4}.*\n)*)", re.MULTILINE)
"""In 0.1.0, the line was without a comment, and its options were below it."""

Rows = Iterator[tuple[str, dict[str, Any]]]
Has = Callable[[str], bool]
"""Whether a member of this name is promised with the name that is shown."""


def finder(root: Path) -> Callable[[str], Any]:
    """What finds a public name in a tree, where it is defined; None: it is not there."""
    with TemporaryDirectory() as aside:
        for part in LOADED:
            (there := Path(aside, part)).parent.mkdir(exist_ok=True)
            there.symlink_to((root / part).resolve())
        loader = griffe.GriffeLoader(search_paths=[aside], allow_inspection=False)
        for package in dict.fromkeys(part.partition("/")[0] for part in LOADED):
            loader.load(package, try_relative_path=False)  # else the current directory is looked at first
    loader.resolve_aliases(implicit=False)

    def find(name: str) -> Any:
        try:
            return _itself(loader.modules_collection.get_member(name))
        except (KeyError, griffe.AliasResolutionError):
            return None

    return find


def python_names(root: Path) -> Rows:
    """Yields each promised name of a tree with its facets. A name that is shown and is not there is left out."""
    find = finder(root)
    shown: dict[str, Has] = {
        f"{package}.{name}": _public for package in PACKAGES for name in map(str, getattr(find(package), "exports", None) or ())
    }
    for page in sorted((root / "docs" / "reference").glob("*.md")):
        for match in _SHOWN.finditer(page.read_text("utf-8") + "\n"):
            below = yaml.safe_load(match["rest"]) or {}
            shown[match["name"]] = _shown(below.get("options", {}) | yaml.safe_load(match["options"] or "{}"))
    shown.pop(NOT_PROMISED, None)
    things = {name: thing for name in shown if (thing := find(name)) is not None}
    paths = {thing.path for thing in things.values()}
    for name, thing in things.items():
        yield from _described(name, thing, shown[name], paths)


def _itself(found: Any) -> Any:
    return found.final_target if found.is_alias else found


def _public(member: str) -> bool:
    return not member.startswith("_") or (member.startswith("__") and member.endswith("__"))  # what `with` and `==` call


def _shown(options: dict[str, Any]) -> Has:
    left_out = [each.removeprefix("!") for each in options.get("filters", ()) if each != "!^_"]
    alone = options.get("members")

    def has(member: str) -> bool:
        if member.startswith("__") or not _public(member):
            return _public(member)
        return (not isinstance(alone, list) or member in alone) and not any(re.search(each, member) for each in left_out)

    return has


def _described(name: str, thing: Any, has: Has, promised: set[str]) -> Rows:
    """`promised`: where the code of promised classes is. What such a base has is told of the base alone."""
    if thing.is_module:
        yield name, {"kind": "module"}
        for member, each in thing.members.items():
            if not each.is_alias and has(member):
                yield from _described(f"{name}.{member}", each, _public, promised)
    elif thing.is_class:
        bases = [str(base).rpartition(".")[2] for base in thing.bases]
        yield name, {"kind": "class", "bases": bases + ["dataclass"] * ("dataclass" in thing.labels)}
        inherited = {member: each for member, each in thing.inherited_members.items() if each.final_target.parent.path not in promised}
        for member, each in (inherited | thing.members).items():
            if has(member) and not (each := _itself(each)).is_class:
                yield from _described(f"{name}.{member}", each, _public, promised)
                if each.is_attribute and any(base.endswith(("Enum", "Flag")) for base in bases):
                    yield f"{name}.{member}", {"kind": "attribute", "value": str(each.value)}
    elif thing.is_function:
        yield name, {"kind": "function", "call": " ".join(sorted(thing.labels & {*CALLS})) or "plain", "returns": _types(thing.returns)}
        parameters = [each for each in thing.parameters if each.name not in ("self", "cls")]
        for position, each in enumerate(parameters):
            if each.kind in WAYS:
                facets = {"required": each.required, "ways": WAYS[each.kind], "takes": _types(each.annotation)}
                facets |= {} if each.kind is griffe.ParameterKind.keyword_only else {"position": position}
                facets |= {} if each.required else {"default": str(each.default)}
                yield f"{name.removesuffix('.__init__')}({each.name})", facets
    elif thing.is_attribute:
        is_alias_of_types = thing.parent.is_module
        yield name, {"kind": "attribute", "returns": _types(thing.annotation), "choices": _types(thing.value) if is_alias_of_types else []}


def _types(annotation: Any) -> list[str]:
    """The parts of a union, in one spelling."""
    if annotation is None:
        return []
    try:
        return sorted({*_parts(ast.parse(str(annotation), mode="eval").body)})
    except SyntaxError:
        return [str(annotation)]


def _parts(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.BinOp(left, ast.BitOr(), right):
            yield from _parts(left)
            yield from _parts(right)
        case ast.Constant(str() as quoted):
            yield from _types(quoted)
        case ast.Subscript(ast.Name("Literal"), allowed):
            yield from (f"Literal[{ast.unparse(each)}]" for each in (allowed.elts if isinstance(allowed, ast.Tuple) else [allowed]))
        case _:
            yield ast.unparse(node)
