"""What Python programs may rely on: the names that docs/reference shows, as two source trees have them.

A name is promised if a page of docs/reference shows it (`::: tiered.TieredStorage`), or if it is in the `__all__` of a
package in `PACKAGES`; and so are the public members of a class, but for those that the page leaves out. Where the code
of a name is, is promised to nobody. griffe reads both trees, and imports neither.

griffe finds what is gone, and what a call with the old arguments no longer fits. It compares no types, no `async`, and
no base that was exchanged: `_also` does that. A union may grow where callers pass it in, and shrink where they get it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import griffe
import yaml

from emulators.promises.breaks import Break, UndescribedError

PACKAGES = ("tiered", "tiered.sync", "tiered.testing", "tiered.asgi", "tiered.directories", "recovery.feed")
NOT_PROMISED = ("tiered.testing.contracts",)
"""PromisedName, and not kept: a suite for backends demands more when the protocols do."""

LOADED = ("changelog", "tiered", "recovery/__init__.py", "recovery/feed")
"""What griffe reads: all of `recovery` would take as long as the rest."""

_SHOWN = re.compile(r"^::: (?P<name>\S+)\n(?P<rest>(?: {4}.*\n)*)", re.MULTILINE)

_KINDS = {
    griffe.BreakageKind.OBJECT_REMOVED: "was removed",
    griffe.BreakageKind.OBJECT_CHANGED_KIND: "is another kind of thing",
    griffe.BreakageKind.CLASS_REMOVED_BASE: "lost a base class",
    griffe.BreakageKind.PARAMETER_REMOVED: "was removed",
    griffe.BreakageKind.PARAMETER_MOVED: "has another position",
    griffe.BreakageKind.PARAMETER_CHANGED_KIND: "is passed in another way",
    griffe.BreakageKind.PARAMETER_CHANGED_DEFAULT: "has another default",
    griffe.BreakageKind.PARAMETER_CHANGED_REQUIRED: "must be given now",
    griffe.BreakageKind.PARAMETER_ADDED_REQUIRED: "is new and must be given",
    griffe.BreakageKind.RETURN_CHANGED_TYPE: "tells no longer what it returns",
}


@dataclass(frozen=True)
class PromisedName:
    """A promised name, and which of its members are left out (`filters`), or are alone promised (`members`)."""

    name: str
    filters: tuple[str, ...] = ()
    members: tuple[str, ...] | None = None

    def has(self, member: str) -> bool:
        if member.startswith("__") and member.endswith("__"):
            return True  # what `with`, `==` and the constructor call
        if member.startswith("_") or (self.members is not None and member not in self.members):
            return False
        return not any(re.search(each.removeprefix("!"), member) for each in self.filters)


def python_breaks(old: Path, new: Path) -> Iterator[Break]:
    """What programs written for the tree `old` cannot rely on in the tree `new`. Raises `UndescribedError`."""
    then, now = _Tree(old), _Tree(new)
    shown_now = then.shown.keys() & now.shown.keys()
    for name in sorted(then.shown.keys() - shown_now):
        yield Break(name, "was removed" if now.find(name) is None else "is no longer shown in docs/reference", is_python=True)
    found = {}
    for name in sorted(shown_now):
        before, after = then.find(name), now.find(name)
        if before is None:
            raise UndescribedError(f"{old} shows {name} in docs/reference, and does not have it")
        if after is None:
            yield Break(name, "was removed", is_python=True)
        else:
            found[name] = (before, after)
    yield from _of_griffe(found, _public_names(found), then.shown)
    for name, (before, after) in found.items():
        yield from _also(name, before, after, then.shown[name])


class _Tree:
    """One source tree, read by griffe."""

    def __init__(self, root: Path) -> None:
        with TemporaryDirectory() as aside:
            for package in LOADED:
                there = Path(aside, package)
                there.parent.mkdir(exist_ok=True)
                there.symlink_to((root / package).resolve())
            loader = griffe.GriffeLoader(search_paths=[aside], allow_inspection=False)
            for package in dict.fromkeys(each.partition("/")[0] for each in LOADED):
                found = loader.load(package, try_relative_path=False)  # else the current directory is looked at first
                if not Path(str(found.filepath)).is_relative_to(aside):
                    raise UndescribedError(f"griffe found {package} at {found.filepath}, and not in {root}")
        loader.resolve_aliases(implicit=False)
        self._all = loader.modules_collection
        self.shown = _shown_in(root / "docs" / "reference")
        for package in PACKAGES:
            exports = getattr(self.find(package), "exports", None) or ()
            self.shown = {f"{package}.{name}": PromisedName(f"{package}.{name}") for name in map(str, exports)} | self.shown
        self.shown = {name: each for name, each in self.shown.items() if name not in NOT_PROMISED}

    def find(self, name: str) -> Any:
        """The thing itself, wherever its code is. None: there is none of this name."""
        try:
            found = self._all.get_member(name)
            return found.final_target if found.is_alias else found
        except (KeyError, griffe.AliasResolutionError):
            return None


def _shown_in(pages: Path) -> dict[str, PromisedName]:
    shown = {}
    for page in sorted(pages.glob("*.md")):
        for match in _SHOWN.finditer(page.read_text("utf-8") + "\n"):
            options = (yaml.safe_load(match["rest"]) or {}).get("options", {})
            members = options.get("members")
            shown[match["name"]] = PromisedName(
                match["name"], tuple(each for each in options.get("filters", ()) if each != "!^_"),
                tuple(members) if isinstance(members, list) else None,
            )
    return shown


# --- what griffe finds -------------------------------------------------------------------------------


def _of_griffe(found: Mapping[str, tuple[Any, Any]], public: Mapping[str, str], shown: Mapping[str, PromisedName]) -> Iterator[Break]:
    sides = (griffe.Module("promised"), griffe.Module("promised"))
    for side, module in enumerate(sides):
        names = {name: name.replace(".", "__") for name in found}
        module.exports = list(names.values())
        for name, key in names.items():
            module.set_member(key, griffe.Alias(key, target=found[name][side], parent=module))
    for each in griffe.find_breaking_changes(*sides):
        name = _public_name(each.obj.path, public)
        top, member = _split(name, shown)
        if (member and not shown[top].has(member)) or each.kind.name.startswith("ATTRIBUTE_"):
            continue  # older versions of griffe find any change of a value; `_also` finds those that matter
        parameter = each.new_value if each.old_value is None else each.old_value
        if isinstance(parameter, griffe.Parameter):
            name = f"{name}({parameter.name})"
        yield Break(name, _KINDS.get(each.kind, each.kind.value), is_python=True)


def _public_names(found: Mapping[str, tuple[Any, Any]]) -> dict[str, str]:
    """The names that users know, by the paths of the code. A class also has what its bases have, shown or not."""
    inherited: dict[str, str] = {}
    own: dict[str, str] = {}
    for name, sides in found.items():
        for side in sides:
            own[side.path] = name
            if side.is_class:
                inherited |= {each.target_path: f"{name}.{member}" for member, each in side.all_members.items() if each.is_alias}
    return {path: name for path, name in inherited.items() if path.rpartition(".")[0] not in own} | own


def _public_name(path: str, public: Mapping[str, str]) -> str:
    """The name under which users know what is at `path`."""
    begin = path
    while begin and begin not in public:
        begin = begin.rpartition(".")[0]
    return public[begin] + path[len(begin):] if begin else path


def _split(name: str, shown: Mapping[str, PromisedName]) -> tuple[str, str]:
    """The promised name to which this belongs, and which of its members it is or is in."""
    top = name
    while top not in shown:
        top = top.rpartition(".")[0]
        if not top:
            raise UndescribedError(f"{name} belongs to nothing that docs/reference shows")
    return top, name[len(top) + 1:].partition(".")[0]


# --- what griffe does not look at ----------------------------------------------------------------------


def _also(name: str, old: Any, new: Any, shown: PromisedName) -> Iterator[Break]:
    if old.kind is not new.kind:
        return
    if old.is_class:
        yield from _of_class(name, old, new, shown)
    elif old.is_module:
        for member, before in old.members.items():
            if not before.is_alias and shown.has(member) and member in new.members:
                yield from _also(f"{name}.{member}", before, new.members[member], PromisedName(member))
    elif old.is_function:
        yield from _of_function(name, old, new)
    elif old.is_attribute:
        if lost := _lost(_types(new.annotation), _types(old.annotation)):
            yield Break(name, f"can also be {lost}", is_python=True)
        if old.parent.is_module and (lost := _lost(_types(old.value), _types(new.value))):
            yield Break(name, f"is no longer {lost}", is_python=True)


def _of_class(name: str, old: Any, new: Any, shown: PromisedName) -> Iterator[Break]:
    bases = [{str(base).rpartition(".")[2] for base in each.bases} for each in (old, new)]
    if gone := bases[0] - bases[1]:
        yield Break(name, f"is no longer a kind of {', '.join(sorted(gone))}", is_python=True)
    if "dataclass" in old.labels and "dataclass" not in new.labels:
        yield Break(name, "is no longer a dataclass", is_python=True)
    is_enum = any(base.endswith(("Enum", "Flag")) for base in bases[0])
    for member, before in old.all_members.items():
        after = new.all_members.get(member)
        if after is None or not shown.has(member):
            continue
        before, after = (each.final_target if each.is_alias else each for each in (before, after))
        yield from _also(f"{name}.{member}", before, after, shown)
        if is_enum and before.is_attribute and str(before.value) != str(after.value):
            yield Break(f"{name}.{member}", f"is {after.value} and was {before.value}", is_python=True)


def _of_function(name: str, old: Any, new: Any) -> Iterator[Break]:
    for label, words in (("async", "awaited"), ("staticmethod", "a static method"), ("classmethod", "a method of the class")):
        if (label in old.labels) is not (label in new.labels):
            yield Break(name, f"is {'no longer' if label in old.labels else 'now'} {words}", is_python=True)
    if lost := _lost(_types(new.returns), _types(old.returns)):
        yield Break(name, f"can also return {lost}", is_python=True)
    after = {each.name: each for each in new.parameters}
    for parameter in old.parameters:
        if parameter.name in after and (lost := _lost(_types(parameter.annotation), _types(after[parameter.name].annotation))):
            yield Break(f"{name}({parameter.name})", f"no longer takes {lost}", is_python=True)


def _lost(had: set[str], has: set[str]) -> str:
    """What of the union `had` is not in the union `has`. Without a type on one side nothing can be said."""
    return " or ".join(sorted(had - has)) if had and has and "Any" not in has and "object" not in has else ""


def _types(annotation: Any) -> set[str]:
    """The parts of a union, in one spelling."""
    if annotation is None:
        return set()
    try:
        return set(_parts(ast.parse(str(annotation), mode="eval").body))
    except SyntaxError:
        return {str(annotation)}


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
