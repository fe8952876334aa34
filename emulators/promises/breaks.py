"""What breaks a promise of the last release, and when that is allowed.

A `Break` is one promised thing that is gone, or that is no longer what it was. It is allowed if users were told twice:

- the release warned: its HISTORY.md lists the name under **Deprecated**. What programs call and people type (Python
  names, settings, commands) also warned when it was used: the release's code calls `deprecated("NAME", …)`;
- today's HISTORY.md lists it in its first section, under **Removed or changed**.

An item of these lists begins with the name, as the break has it: "- `setting lease.expiry_s`: what to do".
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGES = ("changelog", "tiered", "recovery")
DEPRECATED, REMOVED = "Deprecated", "Removed or changed"
CALLED = ("setting ", "command ")
"""With Python names, what can warn by itself."""

_SECTION = re.compile(r"^## (?P<heading>.*)\n(?P<text>(?:(?!## ).*\n)*)", re.MULTILINE)
_LIST = re.compile(r"^\*\*(?P<title>.*)\*\*\n+(?P<items>(?:(?!\*\*|## ).*\n)*)", re.MULTILINE)
_ITEM = re.compile(r"^- `(?P<name>[^`]+)`", re.MULTILINE)

Surface = Mapping[str, Mapping[str, Any]]


class UndescribedError(Exception):
    """A source tree cannot be described. The message says why."""


@dataclass(frozen=True, order=True)
class Break:
    """`name`: of the thing, as HISTORY.md spells it. `what`: the end of a sentence that begins with the name."""

    name: str
    what: str
    is_python: bool = False

    @property
    def can_warn(self) -> bool:
        return self.is_python or self.name.startswith(CALLED)


# --- beside Python names -------------------------------------------------------------------------------


def surface_breaks(old: Surface, new: Surface) -> Iterator[Break]:
    """What of the one surface is not in the other. What is there besides breaks nothing, unless it must be given."""
    gone = old.keys() - new.keys()
    for name in sorted(gone):
        if not any(each in gone for each in _above(name)):
            yield Break(name, "was removed")
    for name in sorted(new.keys() - old.keys()):
        above = next(_above(name), None)
        if new[name].get("required") and (above is None or above in old):
            yield Break(name, "is new and must be given")
    for name in sorted(old.keys() & new.keys()):
        yield from (Break(name, what) for what in _changes(old[name], new[name]))


def _above(name: str) -> Iterator[str]:
    """The names of what it is a part of, the nearest first: `command tiered ls` of `command tiered ls --limit`."""
    for at in range(len(name) - 1, 0, -1):
        if name[at] in " .:[" and name[:at].rstrip(" :") != name[:name.find(" ")]:
            yield name[:at].rstrip(" :")


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    if gone := [each for each in old.get("choices", ()) if each not in new.get("choices", ())]:
        yield f"no longer has {', '.join(gone)}"
    if new.get("from") is not None and (old.get("from") is None or new["from"] > old["from"]):
        yield f"begins at {new['from']}, and began at {old.get('from', 'any value')}"
    if new.get("to") is not None and (old.get("to") is None or new["to"] < old["to"]):
        yield f"ends at {new['to']}, and ended at {old.get('to', 'any value')}"
    if new.get("required") and not old.get("required"):
        yield "must be given now"
    if old.get("default") != new.get("default"):
        yield f"is {new.get('default', 'nothing')} by default, and was {old.get('default', 'nothing')}"
    for facet in sorted((old.keys() & new.keys()) - {"choices", "from", "to", "required", "default"}):
        if old[facet] != new[facet]:
            yield f"has the {facet} {new[facet]}, and had {old[facet]}"


# --- what is allowed ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Announcements:
    """What users were told. `warned`: by the release's HISTORY.md; `called`: by its code; `announced`: by today's."""

    version: str
    is_out: bool
    warned: frozenset[str]
    called: frozenset[str]
    announced: frozenset[str]

    def refusal(self, found: Break) -> str | None:
        """What to do about it, or None if it is allowed."""
        name = found.name
        missing = []
        if name not in self.warned:
            missing.append(f"{self.version} lists it under **{DEPRECATED}** in HISTORY.md")
        if found.can_warn and name not in self.called:
            missing.append(f'the code of {self.version} calls deprecated("{name}", …)')
        if missing:
            keep = f"Keep it, and warn of it in the release that comes: it may only go if {' and '.join(missing)}."
            return f"{name} {found.what}. {keep}{self._candidate}"
        if name not in self.announced:
            return f"{name} {found.what}. Tell users: begin an item of **{REMOVED}** in the first section of HISTORY.md with `{name}`."
        return None

    @property
    def _candidate(self) -> str:
        return "" if self.is_out else f" Or, as {self.version} is not out yet: name a later commit in .ci/released."


def told(version: str, old: Path, new: Path) -> Announcements:
    """Reads what users were told in the release's tree `old`, and in today's. Raises `UndescribedError`."""
    before, after = _sections(old), _sections(new)
    return Announcements(
        version, "(unreleased)" not in before[0][0], frozenset(_listed(DEPRECATED, before)), frozenset(_calls(old)),
        frozenset(_listed(REMOVED, after[:1])),
    )


def _sections(root: Path) -> list[tuple[str, str]]:
    path = root / "HISTORY.md"
    sections = [(each["heading"], each["text"]) for each in _SECTION.finditer(path.read_text("utf-8") + "\n")]
    if not sections:
        raise UndescribedError(f"{path} has no section that begins with '## ' and a version")
    return sections


def _listed(title: str, sections: Iterable[tuple[str, str]]) -> Iterator[str]:
    for _, text in sections:
        for each in _LIST.finditer(text):
            if each["title"] == title:
                yield from _ITEM.findall(each["items"])


def _calls(root: Path) -> Iterator[str]:
    """The names with which the tree calls `deprecated`."""
    for path in (path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))):
        text = path.read_text("utf-8")
        if "deprecated(" in text:
            for node in ast.walk(ast.parse(text)):
                match node:
                    case ast.Call(ast.Name("deprecated"), [ast.Constant(str() as name), *_]):
                        yield name
