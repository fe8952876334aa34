"""`Code`: the packages that a simulated process runs. `TODAY` is this checkout; `beside` loads another tree as well.

    changelog, tiered, recovery       of the other tree, under other names: `_beside1_tiered.storage`
    OF_PROCESS                        modules of this checkout that speak to the product from inside of a process:
                                      loaded a second time, on the packages of that tree
    all else of `emulators`           is there once: services, network, history and judges

So two codes share nothing but what they send to a service: bytes, as two processes do. That takes adapters that make
messages: `BigtableStack` and `WorldBucket`. The simulated services take and return objects of today's classes.

Knows nothing of versions and of git.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
PRODUCT = ("changelog", "tiered", "recovery")
SIMULATORS = "emulators"
OF_PROCESS = frozenset({
    "emulators.bigtable.adapters", "emulators.feed_worlds.inside", "emulators.s3.adapter", "emulators.simulation.actors",
    "emulators.world.by_link", "emulators.world.client", "emulators.world.inside", "emulators.world.rewrite",
})  # fmt: skip

_numbers = count(1)


class CodeError(Exception):
    """The other tree cannot be loaded. The message says what is missing."""


@dataclass(frozen=True, slots=True)
class Code:
    """The code of a process. `name`: for reports. `prefix`: of the names of its packages."""

    name: str
    prefix: str = ""

    def module(self, name: str) -> Any:
        """Returns the module of this name, as this code has it."""
        return import_module(self.prefix + name)

    def own(self, thing: T) -> T:
        """Returns the function or class of the same name and module, as this code has it."""
        if not self.prefix:
            return thing
        return cast(T, getattr(self.module(thing.__module__), cast(Any, thing).__name__))


TODAY = Code("today")


def beside(name: str, source: Path, edits: Mapping[str, Sequence[tuple[str, str]]] | None = None) -> Code:
    """Loads the code of another tree, and returns it.

    `source`: the directory with its packages. `edits`: for a file, such as `changelog/change.py`, the texts to replace,
    each of which must be there once: so a next version is this one with a few lines changed. Raises `CodeError`, also
    if the simulators of this checkout do not fit that tree.
    """
    for package in PRODUCT:
        if not (source / package / "__init__.py").is_file():
            raise CodeError(f"{source} has no package {package}: name the root of a checkout")
    code = Code(name, f"_beside{next(_numbers)}_")
    finder = _Finder(code.prefix, source, dict(edits or {}))
    sys.meta_path.insert(0, finder)  # before the finder of files, which knows its folders, too
    try:
        for module in sorted(OF_PROCESS):
            code.module(module)
    except ImportError as error:
        raise CodeError(f"the simulators of this checkout cannot run {name}: {str(error).replace(code.prefix, '')}") from error
    if unused := finder.edits.keys() - finder.edited:
        raise CodeError(f"nothing has loaded {min(unused)}, so its edits say nothing: edit what a process of a world runs")
    return code


@dataclass(slots=True, eq=False)
class _Finder(MetaPathFinder):
    prefix: str
    source: Path
    edits: dict[str, Sequence[tuple[str, str]]]
    edited: set[str] = field(default_factory=set)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        name = fullname.removeprefix(self.prefix)
        if name == fullname:
            return None
        root = ROOT if name.partition(".")[0] == SIMULATORS else self.source
        whole = root.joinpath(*name.split("."))
        for file, places in ((whole / "__init__.py", [str(whole)]), (whole.with_suffix(".py"), None)):
            if file.is_file():
                path_in_tree = file.relative_to(root).as_posix()
                self.edited |= {path_in_tree} & self.edits.keys()
                loader = _Renaming(self.prefix, file, self.edits.get(path_in_tree, ()))
                return spec_from_file_location(fullname, file, loader=loader, submodule_search_locations=places)
        return None


@dataclass(slots=True, eq=False)
class _Renaming(Loader):
    prefix: str
    file: Path
    edits: Sequence[tuple[str, str]]

    def exec_module(self, module: ModuleType) -> None:
        text = self.file.read_text("utf-8")
        for before, after in self.edits:
            if text.count(before) != 1:
                raise CodeError(f"{self.file} has {before!r} {text.count(before)} times: an edit replaces what is there once")
            text = text.replace(before, after)
        tree = _Imports(self.prefix).visit(ast.parse(text, str(self.file)))
        exec(compile(ast.fix_missing_locations(tree), self.file, "exec", dont_inherit=True), module.__dict__)


@dataclass(slots=True, eq=False)
class _Imports(ast.NodeTransformer):
    """Gives the packages of the code their other names, wherever they are imported."""

    prefix: str

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if node.level == 0 and node.module is not None:
            node.module = self._renamed(node.module)
        return node

    def visit_Import(self, node: ast.Import) -> list[ast.stmt]:
        """`import tiered.open` binds `tiered`, and so does what comes of it."""
        made: list[ast.stmt] = []
        for alias in node.names:
            name, top = self._renamed(alias.name), alias.name.partition(".")[0]
            if name == alias.name or alias.asname is not None:
                made.append(ast.Import([ast.alias(name, alias.asname)]))
                continue
            made += [ast.Import([ast.alias(name)]), ast.Import([ast.alias(self.prefix + top, top)])]
        return [ast.copy_location(each, node) for each in made]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """A module that is imported by its name, with `import_module` or `own`, is renamed, too."""
        if isinstance(node.func, ast.Name) and node.func.id in ("import_module", "own"):
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    argument.value = self._renamed(argument.value)
        return self.generic_visit(node)

    def _renamed(self, name: str) -> str:
        is_of_code = name.partition(".")[0] in PRODUCT or name in OF_PROCESS
        return self.prefix + name if is_of_code else name
