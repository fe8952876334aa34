"""What the product says of a store, as its source has it: sentences, enums, exit codes and alerts.

A saying is `where: text`. `{}` stands for a value. What a `raise` says, or why a class of finding is never deleted,
refuses something, and an argument's help or a log line claims nothing of a store, so they are left out; of a look at a
deployment, only what it finds well is a claim.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from recovery import states
from recovery.cli.exit_codes import EXIT_CODES
from tests.given.repository import ROOT

SPEAKERS = (
    "recovery/states.py", "recovery/status/known.py",
    "recovery/status/judgement.py", "recovery/status/feed.py", "recovery/http/server_view.py", "recovery/last_audit.py",
    "recovery/audit/reporting/run_verdict.py", "recovery/audit/finding_classes.py", "recovery/audit/files/conclusion.py",
    "recovery/cli/status_lines.py", "recovery/display.py", "recovery/cli/feed/status.py", "recovery/cli/audit/delete.py",
    "recovery/audit/reporting/one_name.py", "recovery/cli/backup.py", "recovery/cli/export.py",
)  # fmt: skip
"""Every sentence of them is a saying."""

LOOKS = ("tiered/provision/*.py", "tiered/kinds/*.py", "recovery/cli/deployment.py")
"""Of them, the sentences of findings that all is well, or that something was done."""

ENUMS = {
    "recovery/audit/finding_classes.py": ("FindingClass",),
    "tiered/provision/findings.py": ("NoticeKind",),
}  # fmt: skip

WORDS_MIN = 5
"""A text of so many words and values is a sentence, and one of three that begins as a sentence does."""

_EXIT_CODE = re.compile(r"^    (\d+)  +\w")
_NOT_WELL = {"NOTE", "PROBLEM", "PLANNED"}


def sayings() -> set[str]:
    return {*_sentences(), *_states(), *_members(), *_exit_codes(), *_alerts(), *_page()}


def _sentences() -> Iterator[str]:
    for file in SPEAKERS:
        yield from (f"{file}: {text}" for text in sentences(_parsed(file)))
    for file in sorted(path.relative_to(ROOT).as_posix() for pattern in LOOKS for path in ROOT.glob(pattern)):
        for node in ast.walk(_parsed(file)):
            if (isinstance(node, ast.Call) and is_well(node)) or _is_deed(node):
                yield from (f"{file}: {text}" for text in sentences(node))


def is_well(call: ast.Call) -> bool:
    """`ok(…)`, `Notice(NoticeKind.OK, …)`, or of a kind under another name, which hides what it is."""
    kind = call.args[0] if call.args else None
    is_not = isinstance(kind, ast.Attribute) and kind.attr in _NOT_WELL
    return isinstance(call.func, ast.Name) and (call.func.id == "ok" or (call.func.id == "Notice" and not is_not))


def _is_deed(node: ast.AST) -> bool:
    """`what = …`, `Mend((would, did), …)`: what was done is told by it."""
    assigned = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "what"
    return assigned or (isinstance(node, ast.Call) and _name(node) == "Mend")


def sentences(tree: ast.AST) -> Iterator[str]:
    """Yields the sentences, but no docstring, and nothing of a `raise`, a log line, an option or a pattern."""
    if isinstance(tree, ast.Raise | ast.Expr) and not _is_call(tree, "text", "more", "whole", "say", "write", "append"):
        return
    if isinstance(tree, ast.Call) and _name(tree) in ("Option", "Argument", "Typer", "compile"):
        return
    if isinstance(tree, ast.Call) and _name(tree) == "Consequences":
        inner = [each.value for each in tree.keywords]  # without the first argument: why it is never deleted
    elif isinstance(tree, ast.JoinedStr | ast.Constant):
        text = _reduced(tree)
        if _is_sentence(text):
            yield text
        inner = [value.value for value in tree.values if isinstance(value, ast.FormattedValue)] if isinstance(tree, ast.JoinedStr) else []
    else:
        inner = list(ast.iter_child_nodes(tree))  # type: ignore[arg-type]
    for node in inner:
        yield from sentences(node)


def _is_sentence(text: str) -> bool:
    words = re.findall(r"[A-Za-z]{2,}|\{\}", text)
    if len(words) - words.count("{}") < 2:
        return False
    begins = text.strip()[0].isupper() or text.startswith("{}")
    return len(words) >= WORDS_MIN or (len(words) >= 3 and begins and not text.endswith("}"))


def _is_call(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Expr) and (
        isinstance(node.value, ast.Yield | ast.YieldFrom) or (isinstance(node.value, ast.Call) and _name(node.value) in names)
    )


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""


def _reduced(node: ast.JoinedStr | ast.Constant) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(str(each.value) if isinstance(each, ast.Constant) else "{}" for each in node.values)


def _members() -> Iterator[str]:
    for file, names in ENUMS.items():
        for node in _parsed(file).body:
            if isinstance(node, ast.ClassDef) and node.name in names:
                values = [each.value for each in node.body if isinstance(each, ast.Assign)]
                named = [value.elts[0] if isinstance(value, ast.Tuple) else value for value in values]  # a row begins with its name
                yield from (f"{file}: {node.name} {ast.literal_eval(value)}" for value in named)


def _states() -> Iterator[str]:
    """The levels, and the words of the states that a source may be in."""
    yield from (f"state: level {level}" for level in states.Level)
    yield from (f"state: {source} {state.word}" for source, found in states.TABLE.items() for state in found)


def _exit_codes() -> Iterator[str]:
    """Those that the docstring of a command lists, and those of every command."""
    yield from (f"recovery/cli/exit_codes.py: exit code {code}" for code in EXIT_CODES)
    for path in sorted((ROOT / "recovery" / "cli").rglob("*.py")):
        lines = (ast.get_docstring(ast.parse(path.read_text()), clean=False) or "").splitlines()
        yield from (f"{path.relative_to(ROOT).as_posix()}: exit code {found[1]}" for line in lines if (found := _EXIT_CODE.match(line)))


def _alerts() -> Iterator[str]:
    for group in yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yaml").read_text())["groups"]:
        yield from (f"alert: {rule['alert']}" for rule in group["rules"] if "alert" in rule)


def _page() -> Iterator[str]:
    """The page's own words for each level. Its other sentences are the status's, or figures."""
    source = (ROOT / "recovery" / "http" / "page" / "page.js").read_text()
    [levels] = re.findall(r"^const LEVELS = \{(.*?)\};", source, re.MULTILINE | re.DOTALL)
    yield from (f"page.js: {level}" for level, _ in re.findall(r"(\w+): (\"[^\"]*\")", levels))


def _parsed(file: str) -> ast.Module:
    return ast.parse(Path(ROOT / file).read_text())
