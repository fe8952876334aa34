"""Makes the blocking API from the asynchronous one, so that a signature and its docstring are written once.

    python -m tests.tiered.sync.twins          after a change of the asynchronous API, or of what is below

`MODULES` has a row for each class and function that has a *twin* in `tiered/sync`. The rest is derived: which methods
there are, and how each one blocks.

    the method                        its twin
      is async                          runs it in the loop, and waits
      takes a payload, a function, ids  whatever code of the caller's runs, runs in the caller's thread
      returns what has a twin           returns the twin of that; of a `Bulk`, `SyncBulk`; of a generator, an iterator
      has a `_name` in the base         calls that, which is written by hand because it does something else
      has a `name` in the base          is not made at all
"""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, get_origin

import tiered.directories.calls
import tiered.exports.exporting
import tiered.exports.importing
import tiered.multipart
import tiered.storage
import tiered.stored

Function = ast.FunctionDef | ast.AsyncFunctionDef

FOLDER = Path(__file__).parents[3] / "tiered" / "sync"
CODE, PROSE = 140, 120
CALLABLE = get_origin(Callable[[], None])

RENAMED = {"aclose": "close"}
ELSEWHERE = {
    "Iterable": "collections.abc", "Iterator": "collections.abc", "TYPE_CHECKING": "typing", "dataclass": "dataclasses",
    "io": "io", "os": "os", "partial": "functools",
}  # fmt: skip
TYPES = [
    (r"AsyncGenerator\[([\w| ]+), None\]", r"Iterator[\1]"), (r"(\w+) \| Awaitable\[\1\]", r"\1"), (r"\bRequests\[", "Iterable["),
    (r"\b(Bulk\[|ObjectWriter\b)", r"Sync\1"), (r"\basync def\b", "def"), (r"\baclose\b", "close"),
    (r": Existing = Existing\.REFUSE", ": Existing | None = None"),
]  # fmt: skip
WORDS = [
    (r"\basync (with|for)\b", r"\1"), (r"\bawait ", ""), (r"\biterator or async iterator\b", "iterator"),
    (r"(,)? and may be an async function", ""), (r" It may be an async function\.", ""),
    (r"\bin the event loop\b", "in your own thread"), (r"\ba thread of its own\b", "your own thread"),
    (r"`existing`:", "`existing` (None: `Existing.REFUSE`):"),
    (r"\bcaller is cancelled\b", "caller is interrupted"), (r"\ba cancellation\b", "an interruption"),
]  # fmt: skip
"""What is said in another way where calls block."""


@dataclass(frozen=True)
class Twin:
    """What is made of `name`. `base`: what is written by hand for it, in `tiered/sync`; empty: nothing, so it is a
    function, or a class of fields alone. `attribute`: where the base has the asynchronous object. `own_words`: the
    docstring is that of the base.
    """

    module: ModuleType
    name: str
    base: str = ""
    attribute: str = ""
    own_words: bool = False

    @property
    def text(self) -> str:
        return Path(str(self.module.__file__)).read_text()

    @property
    def node(self) -> Any:
        return definitions(self.text)[self.name]


MODULES = {
    "storage": [Twin(tiered.storage, "TieredStorage", "BlockingStorage", "_storage", own_words=True)],
    "multipart": [
        Twin(tiered.multipart, "MultipartUpload", "BlockingUpload", "_upload"),
        Twin(tiered.multipart, "ResumableUpload", "BlockingUpload", "_upload"),
        Twin(tiered.multipart, "SignedPut"),
    ],
    "stored": [Twin(tiered.stored, "StoredObject", "ObjectFile", "_stored", own_words=True)],
    "directory_calls": [Twin(tiered.directories.calls, "upload_directory"), Twin(tiered.directories.calls, "download_directory")],
    "exports": [Twin(tiered.exports.exporting, "export_objects"), Twin(tiered.exports.importing, "import_objects")],
}  # fmt: skip
TWINS = {twin.name: twin for twins in MODULES.values() for twin in twins if twin.name[0].isupper()}


def definitions(text: str) -> dict[str, Any]:
    """What a module defines at its top."""
    found: dict[str, Any] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node
    return found


BY_HAND = {
    name: (path.stem, node) for path in sorted(FOLDER.glob("*.py")) if path.stem not in MODULES
    for name, node in definitions(path.read_text()).items()
}  # fmt: skip


# --- words and types -----------------------------------------------------------------------------


def changed(text: str, rules: list[tuple[str, str]]) -> str:
    for pattern, other in [*rules, (rf"\b({'|'.join(TWINS)})\b", r"Sync\1")]:
        text = re.sub(pattern, other, text)
    return text


def docstring(text: str | None, indent: int, *, own_words: bool = False) -> list[str]:
    """The lines of a docstring for blocking callers."""
    blocks: list[str] = []
    for line in f'"""{text}'.splitlines() if text else ():
        goes_on = blocks and blocks[-1] and not blocks[-1].endswith("s:") and line and (line[0] != " " or line.startswith(" " * 8))
        blocks[-1:] = [f"{blocks[-1]} {line.strip()}"] if goes_on and not own_words else [*blocks[-1:], line]
    lines = []
    for block in blocks:
        begin, rest = (" " * (indent + deep) for deep in (4, 8)) if block.startswith(" ") else [" " * indent] * 2
        said = block if own_words else changed(block, WORDS)
        fill = textwrap.TextWrapper(PROSE, begin, rest, break_long_words=False, break_on_hyphens=False)
        lines += fill.wrap(said.strip()) or [""]
    fits = len(lines) == 1 and len(lines[0]) + 3 <= PROSE
    return [lines[0] + '"""'] if fits else [*lines, " " * indent + '"""'] if lines else []


def laid_out(before: str, items: list[str], after: str) -> list[str]:
    """A call or a signature, in as many lines as it needs."""
    if len(line := before + ", ".join(items) + after) <= CODE:
        return [line]
    space = " " * (len(before) - len(before.lstrip()))
    rows = [f"{space}   "]
    for item in items:
        if len(rows[-1]) + len(item) + 2 > CODE:
            rows.append(f"{space}   ")
        rows[-1] += f" {item},"
    return [before, *rows, space + after]


# --- methods -------------------------------------------------------------------------------------


def signature(twin: Twin, node: Function) -> list[str]:
    """As it is written, with other types."""
    lines = twin.text.splitlines()[node.lineno - 1:node.body[0].lineno - (ast.unparse(node.body[0]) != "...")]
    text = changed("\n".join(lines), TYPES)
    if max(map(len, text.splitlines())) <= CODE:
        return text.splitlines()
    before, inner, after = re.fullmatch(r"(.*?\()(.*)(\) -> .*)", re.sub(r"\s*\n\s*", " ", text)).groups()  # type: ignore[union-attr]
    return laid_out(before, re.split(r",\s*(?![^\[]*\])", inner.strip().removesuffix(",")), after)


def arguments(twin: Twin, node: Function, *, as_they_are: bool = False) -> list[str]:
    """What is passed on. Code of the caller's is wrapped, so that it runs in the caller's thread."""
    given = []
    by_name = dict(zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True))
    for each in [*node.args.args, *by_name]:
        assert each.annotation or each.arg == "self"
        types = {name.id for name in ast.walk(each) if isinstance(name, ast.Name)}
        value, default = each.arg, by_name.get(each)
        if "Payload" in types:
            value = f"body({value}, thread)"
        elif "Callable" in types or any(get_origin(getattr(twin.module, name, None)) is CALLABLE for name in types):
            value = f"thread.callback({value})"
        elif "TieredStorage" in types:
            value += "._storage"
        elif "Requests" in types and "Bulk" not in ast.unparse(node.returns or node):
            value = f"requests_of({value}, thread)"
        elif isinstance(default, ast.Attribute):  # of a class that is imported only now
            value = f"{ast.unparse(default)} if {value} is None else {value}"
        value = each.arg if as_they_are else value
        given.append(f"{each.arg}={value}" if each in by_name else value)
    return given[1:] if given[0] == "self" else given


def twin_of(kind: str, made: str) -> str:
    """The expression for the twin of what was made."""
    if kind == "ObjectWriter":
        return f"SyncObjectWriter(self._loop, {made}, thread)"
    if kind not in TWINS:
        return made
    if TWINS[kind].base:
        return f"Sync{kind}({made}, self._calls)"
    fields = [each for each in TWINS[kind].node.body if isinstance(each, ast.AnnAssign)]
    return f"Sync{kind}({', '.join(twin_of(ast.unparse(each.annotation), f'{made}.{ast.unparse(each.target)}') for each in fields)})"


def method(twin: Twin, node: Function, by_hand: set[str]) -> Iterator[str]:
    name, returns = RENAMED.get(node.name, node.name), ast.unparse(node.returns) if node.returns else "None"
    decorators = [ast.unparse(each) for each in node.decorator_list]
    yield from (f"    @{each}" for each in decorators)
    yield from signature(twin, node)
    if "overload" in decorators:
        return
    yield from docstring(ast.get_docstring(node), 8)
    back, asynchronous = "" if returns == "None" else "return ", f"self.{twin.attribute}.{name}"
    if "property" in decorators:
        yield f"        return {asynchronous}"
    elif f"_{name}" in by_hand:
        yield from laid_out(f"        {back}self._{name}(", arguments(twin, node, as_they_are=True), ")")
    else:
        yield from blocking(node, returns, asynchronous, arguments(twin, node), back)


def blocking(node: Function, returns: str, asynchronous: str, given: list[str], back: str) -> Iterator[str]:
    thread = ", thread" if any("thread" in each for each in given) else ""
    if thread:
        yield "        thread = self._calls.thread()"
    first, *rest = given or [""]
    if returns.startswith("Bulk["):
        yield "        self._calls.check()"
        yield from laid_out("        call = partial(", [asynchronous, *rest], ")")
        yield f"        return SyncBulk(self._loop, {first}, call{', put_request' if returns.startswith('Bulk[PutRequest') else ''})"
    elif isinstance(node, ast.AsyncFunctionDef) or returns.startswith("AsyncGenerator["):
        if given:
            yield from laid_out("        call = partial(", [asynchronous, *given], ")")
        how = "each" if isinstance(node, ast.FunctionDef) else "call"
        call = f"self._calls.{how}({'call' if given else asynchronous}{thread})"
        made = twin_of(returns, "made")
        yield from [f"        {back}{call}"] if made == "made" else [f"        made = {call}", f"        return {made}"]
    else:
        yield from laid_out(f"        made = {asynchronous}(", given, ")")
        yield f"        return {twin_of(returns, 'made')}"


def function(twin: Twin) -> Iterator[str]:
    """What it calls, it imports only then: most callers need neither it nor its extra."""
    node, homes = twin.node, imported(twin.module)
    yield from signature(twin, node)
    yield from docstring(ast.get_docstring(node), 4)
    for late in (ast.unparse(each.value) for each in node.args.kw_defaults if isinstance(each, ast.Attribute)):
        yield f"    from {homes[late]} import {late}"
    yield f"    from {twin.module.__name__} import {twin.name} as asynchronous"
    yield ""
    yield "    calls = calls_of(storage)"
    yield "    thread = calls.thread()"
    yield from laid_out("    call = partial(", ["asynchronous", *arguments(twin, node)], ")")
    yield "    return calls.call(call, thread)"


def written(twin: Twin) -> Iterator[str]:
    node = twin.node
    if not isinstance(node, ast.ClassDef):
        yield from function(twin)
        return
    base: Any = BY_HAND[twin.base][1] if twin.base else None
    by_hand = {each.name for each in getattr(base, "body", ()) if isinstance(each, ast.FunctionDef)}
    if base is None:
        yield from (f"@{ast.unparse(each)}" for each in node.decorator_list)
        yield f"class Sync{twin.name}:"
    else:
        above = [ast.unparse(each) for each in base.bases]
        generic = f"[{twin.module.__name__}.{twin.name}]" if any(each.startswith("Generic[") for each in above) else ""
        yield f"class Sync{twin.name}({', '.join([twin.base + generic, *(each for each in above if not each.startswith('Generic['))])}):"
    yield from docstring(ast.get_docstring(base if twin.own_words else node), 4, own_words=twin.own_words)
    yield from [] if base else [""]
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and not (name := ast.unparse(each.target)).startswith("_"):
            kind = changed(ast.unparse(each.annotation), TYPES)
            getter = "", "    @property", f"    def {name}(self) -> {kind}:", f"        return self.{twin.attribute}.{name}"
            yield from getter if base else [f"    {name}: {kind}"]
        elif isinstance(each, Function) and each.name[0] != "_" and RENAMED.get(each.name, each.name) not in by_hand:
            yield from ("", *method(twin, each, by_hand))


# --- modules -------------------------------------------------------------------------------------


def imported(module: ModuleType) -> dict[str, str]:
    """The modules from which a module has its names."""
    text = Path(str(module.__file__)).read_text()
    found = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.ImportFrom)]
    return {each.name: str(line.module) for line in found for each in line.names} | dict.fromkeys(definitions(text), module.__name__)


def imports(names: set[str], homes: dict[str, str], indent: int = 0) -> str:
    """The lines that import the names, in the order that ruff wants."""
    by_home: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name)):
        by_home.setdefault(homes[name], []).append(name)
    parts: dict[bool, list[str]] = {False: [], True: []}
    for home in sorted(by_home):
        is_module = by_home[home] == [home.partition(".")[0]]
        line = f"import {home}" if is_module else f"from {home} import {', '.join(by_home[home])}"
        if indent + len(line) > CODE:
            line = f"from {home} import (\n" + "".join(f"    {name},\n" for name in by_home[home]) + ")"
        parts[home.startswith(("changelog", "tiered"))].append(line)
    blocks = ["\n".join(sorted(part, key=lambda line: line[:4] == "from")) for part in parts.values() if part]
    return textwrap.indent("\n\n".join(blocks), " " * indent)


def named(code: ast.AST) -> set[str]:
    """The names that code has from elsewhere."""
    each = list(ast.walk(code))
    own = {name.id for name in each if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
    own |= {node.arg if isinstance(node, ast.arg) else node.name for node in each if isinstance(node, ast.arg | ast.ClassDef)}
    own |= {alias.asname or alias.name for node in each if isinstance(node, ast.ImportFrom) for alias in node.names}
    return {name.id for name in each if isinstance(name, ast.Name)} - own - set(vars(builtins))


def source(stem: str) -> str:
    """The text of a module of `tiered/sync`."""
    twins, late = MODULES[stem], ""
    code = "\n".join(line for twin in twins for line in ("", "", *written(twin)))
    homes = ELSEWHERE | {"tiered": twins[0].module.__name__}
    homes |= {name: home for twin in twins for name, home in imported(twin.module).items()}
    homes |= {name: f"tiered.sync.{module}" for name, (module, _) in BY_HAND.items()}
    homes |= {f"Sync{twin.name}": f"tiered.sync.{module}" for module in MODULES for twin in MODULES[module]}
    tree = ast.parse(code)
    noted = set().union(*(named(note) for each in ast.walk(tree) for note in [getattr(each, "annotation", None)
                          or getattr(each, "returns", None)] if note))
    for each in ast.walk(tree):
        if isinstance(each, ast.arg):
            each.annotation = None
        elif isinstance(each, ast.FunctionDef):
            each.returns = None
    used = named(tree)
    if twins[0].base:
        used |= noted - {f"Sync{twin.name}" for twin in twins}
    else:  # most callers call none of these functions
        used.add("TYPE_CHECKING")
        late = f"\nif TYPE_CHECKING:\n{imports(noted - used, homes, 4)}\n"
    origin = " and ".join(dict.fromkeys(f"`{twin.module.__name__.replace('.', '/')}.py`" for twin in twins))
    head = f'"""Made from {origin} by `python -m tests.tiered.sync.twins`."""'
    return f"{head}\n\nfrom __future__ import annotations\n\n{imports(used, homes)}\n{late}{code}\n"


def write() -> None:
    for stem in MODULES:
        (FOLDER / f"{stem}.py").write_text(source(stem))


if __name__ == "__main__":
    write()
