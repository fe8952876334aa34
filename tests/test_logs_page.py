"""docs/logs.md and the code name the same events, with the same fields and levels; and nobody logs in another way.

Each check is tried on a small planted text too: a check that cannot fail proves nothing.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

import pytest

from recovery.logs import OTHER_LOG
from recovery.loop import RecoveryReport
from tests.given.repository import ROOT

PACKAGES = ("changelog", "tiered", "recovery")
LEVELS = {"debug", "info", "warning", "error"}
LOGGING = {*LEVELS, "exception", "critical", "log", "basicConfig"}
DOOR = "changelog/base/events.py"

COMPUTED: dict[str, set[str]] = {
    "tiered/protocol/writing.py": {"write_not_settled", "upload_not_aborted"},
    "tiered/embedded/blobs.py": {"foreign_file", "corrupt_blob", "garbage_left"},
}
"""Events whose name is computed, by the file that writes them. Each is a string of the folder's code."""

COUNTS = {each.name for each in fields(RecoveryReport)}
RESERVED = {"time", "level", "event", "why", "traceback", "logger", "message", "upload", "session"}
"""What a JSON line has for itself, and what would be a secret."""

LINE = re.compile(r"\| `(\w+)` \| (\w+(?:, \w+)*) \| ([^|]*) \| [^|]+ \|")


@dataclass
class LoggedEvent:
    levels: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)


@dataclass
class LoggedEvents:
    events: dict[str, LoggedEvent] = field(default_factory=lambda: defaultdict(LoggedEvent))
    wrong: list[str] = field(default_factory=list)


def in_code(files: dict[str, str]) -> LoggedEvents:
    found = LoggedEvents()
    for file, text in files.items():
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and file != DOOR:
                _look(file, tree, node, found)
    return found


def _look(file: str, tree: ast.Module, call: ast.Call, found: LoggedEvents) -> None:
    match call.func:
        case ast.Attribute(ast.Name("logger" | "logging" | "log"), name) if name in LOGGING:
            if (file, name) != ("recovery/logs.py", "basicConfig"):
                found.wrong.append(f"{file}:{call.lineno} logs without an event")
            return
        case ast.Attribute(ast.Name("events"), level) if level in LEVELS:
            levels = {level}
        case ast.IfExp(_, ast.Attribute(ast.Name("events"), one), ast.Attribute(ast.Name("events"), other)):
            levels = {one, other}
        case ast.Name("write") if file == "recovery/loop.py":
            levels = {"info", "debug"}
        case _:
            return
    first = call.args[0] if call.args else None
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        names = {first.value}
    elif file in COMPUTED:
        names = COMPUTED[file]
    else:
        found.wrong.append(f"{file}:{call.lineno} computes an event's name")
        return
    for name in names:
        found.events[name].levels |= levels
        for keyword in call.keywords:
            if keyword.arg != "exc_info":
                found.events[name].fields |= {keyword.arg} if keyword.arg else _expanded(file, tree, keyword.value)


def _expanded(file: str, tree: ast.Module, value: ast.expr) -> set[str]:
    """The fields of `**asdict(report)`, or of `**self._facts(…)`: the keys of the dict that this function returns."""
    assert isinstance(value, ast.Call), f"{file}:{value.lineno}"
    name = value.func.id if isinstance(value.func, ast.Name) else value.func.attr if isinstance(value.func, ast.Attribute) else ""
    if name == "asdict":
        return COUNTS
    [function] = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]
    [returned] = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    assert isinstance(returned, ast.Dict), f"{file}: {name}"
    return {str(key.value) for key in returned.keys if isinstance(key, ast.Constant)}


def in_page(text: str) -> dict[str, LoggedEvent]:
    return {
        name: LoggedEvent(set(levels.split(", ")), set(re.findall(r"`(\w+)`", named))) for name, levels, named in LINE.findall(text)
    }


def differences(code: dict[str, LoggedEvent], page: dict[str, LoggedEvent]) -> Iterator[str]:
    yield from (f"{name} is only in {'the code' if name in code else 'the page'}" for name in sorted(code.keys() ^ page.keys()))
    for name in sorted(code.keys() & page.keys()):
        for what in ("levels", "fields"):
            if (one := getattr(code[name], what)) != (other := getattr(page[name], what)):
                yield f"{name} has the {what} {sorted(one)} in the code and {sorted(other)} in the page"


def sources(root: Path) -> dict[str, str]:
    return {
        path.relative_to(root).as_posix(): path.read_text() for package in PACKAGES for path in sorted((root / package).rglob("*.py"))
    }


@pytest.fixture(scope="module")
def found() -> LoggedEvents:
    return in_code(sources(ROOT))


def test_the_page_lists_every_event_of_the_code_and_no_other(found: LoggedEvents) -> None:
    page = in_page((ROOT / "docs" / "logs.md").read_text())
    page.pop(OTHER_LOG)
    assert found.wrong == []
    assert list(differences(found.events, page)) == []


def test_no_field_has_a_name_that_a_line_has_for_itself_or_that_is_a_secret(found: LoggedEvents) -> None:
    assert {name: event.fields & RESERVED for name, event in found.events.items() if event.fields & RESERVED} == {}


def test_events_with_computed_names_are_in_the_code() -> None:
    files = sources(ROOT)
    for file, names in COMPUTED.items():
        folder = file.rpartition("/")[0]
        text = "".join(text for name, text in files.items() if name.startswith(folder))
        assert {name for name in names if f'"{name}"' not in text} == set()


PLANTED = 'events.warning("gone", error, key=1)\nevents.info("gone", count=2, **self._facts(x))\ndef _facts(): return {"id": 1}\n'


def test_events_are_found_with_their_fields_and_levels() -> None:
    found = in_code({"tiered/a.py": PLANTED})
    assert found.events == {"gone": LoggedEvent({"warning", "info"}, {"key", "count", "id"})} and found.wrong == []
    page = in_page("| `gone` | info, warning | `key`, `count`, `id` | It is gone. |")
    assert list(differences(found.events, page)) == []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("| `gone` | info, warning | `key`, `count` | It is gone. |", "gone has the fields"),
        ("| `gone` | warning | `key`, `count`, `id` | It is gone. |", "gone has the levels"),
        ("| `left` | info, warning | `key`, `count`, `id` | It is gone. |", "gone is only in the code"),
    ],
)
def test_a_page_that_differs_is_found(line: str, told: str) -> None:
    assert any(each.startswith(told) for each in differences(in_code({"tiered/a.py": PLANTED}).events, in_page(line)))


@pytest.mark.parametrize("line", ['logger.warning("gone")', "logging.basicConfig()", "events.info(name)"])
def test_another_way_to_log_is_found(line: str) -> None:
    assert len(in_code({"tiered/a.py": line}).wrong) == 1
