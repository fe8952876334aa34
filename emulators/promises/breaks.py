"""What breaks a promise of the last release, and when that is allowed.

A table has each promised thing by its name, with its facets. A break is a thing that is gone, or that is no longer what
it was: its name, and the end of a sentence. It is allowed if users were told twice:

- the release warned: its HISTORY.md lists the name under **Deprecated**. What programs call and people type (Python
  names, settings, commands) also warned when it was used: the release's code calls `deprecated("NAME", …)`;
- today's HISTORY.md lists it in its first section, under **Removed or changed**.

An item of these lists begins with the name, as the break has it: "- `setting lease.expiry_s`: what to do".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

DEPRECATED, REMOVED = "Deprecated", "Removed or changed"
PACKAGES = ("changelog", "tiered", "recovery")
MAY_GROW = {
    "choices": "no longer has", "takes": "no longer takes", "ways": "is no longer passed", "bases": "is no longer a kind of",
}  # fmt: skip
"""Facets that are lists, and how it is said that one has lost something. `returns` is one that may shrink."""

Facets = Mapping[str, Any]
Table = Mapping[str, Facets]
Break = tuple[str, str]


def breaks(old: Table, new: Table) -> Iterator[Break]:
    """What of the one table is not in the other. What is there besides breaks nothing, unless it must be given."""
    gone = old.keys() - new.keys()
    for name in sorted(gone):
        if not any(each in gone for each in _above(name)):
            yield name, "was removed"
    for name in sorted(new.keys() - old.keys()):
        above = next(_above(name), None)
        if new[name].get("required") and (above is None or above in old):
            yield name, "is new and must be given"
    for name in sorted(old.keys() & new.keys()):
        yield from ((name, what) for what in _changes(old[name], new[name]))


def _above(name: str) -> Iterator[str]:
    """The names of what it is a part of, the nearest first: `command tiered ls` of `command tiered ls --limit`."""
    for at in range(len(name) - 1, 0, -1):
        if name[at] in " .:[(" and name[:at].rstrip(" :") != name[:name.find(" ")]:
            yield name[:at].rstrip(" :")


def _changes(old: Facets, new: Facets) -> Iterator[str]:
    if old.get("kind") != new.get("kind"):
        yield f"has the kind {new.get('kind')}, and had {old.get('kind')}"
        return
    for facet, says in MAY_GROW.items():
        has = new.get(facet, [])
        unknown = facet == "takes" and (not has or {"Any", "object"} & {*has})
        if gone := [each for each in old.get(facet, ()) if each not in has and not unknown]:
            yield f"{says} {', '.join(gone)}"
    if returned := old.get("returns"):
        more = [each for each in new["returns"] if each not in returned and not {"Any", "object"} & {*returned}]
        if more or not new["returns"]:
            yield f"can also be {' or '.join(more)}" if more else "no longer has a type"
    if new.get("from") is not None and (old.get("from") is None or new["from"] > old["from"]):
        yield f"begins at {new['from']}, and began at {old.get('from', 'any value')}"
    if new.get("to") is not None and (old.get("to") is None or new["to"] < old["to"]):
        yield f"ends at {new['to']}, and ended at {old.get('to', 'any value')}"
    if new.get("required") and not old.get("required"):
        yield "must be given now"
    if not old.get("required") and old.get("default") != new.get("default"):
        yield f"is {new.get('default', 'nothing')} by default, and was {old.get('default', 'nothing')}"
    for facet in sorted((old.keys() & new.keys()) - {*MAY_GROW, "returns", "from", "to", "required", "default"}):
        if old[facet] != new[facet]:
            yield f"has the {facet} {new[facet]}, and had {old[facet]}"


# --- what is allowed ---------------------------------------------------------------------------------------


def refusal(found: Break, version: str, old: Path, new: Path) -> str | None:
    """What to do about a break between the release's tree `old` and today's; None if users were told of it."""
    (name, what), (before, after) = found, ((tree / "HISTORY.md").read_text("utf-8") for tree in (old, new))
    missing = []
    if name not in listed(DEPRECATED, before):
        missing.append(f"{version} lists it under **{DEPRECATED}** in HISTORY.md")
    if (" " not in name or name.startswith(("setting ", "command "))) and name not in _warned(old):
        missing.append(f'the code of {version} calls deprecated("{name}", …)')
    if missing:
        keep = f"Keep it, and warn of it in the release that comes: it may only go if {' and '.join(missing)}."
        is_out = "(unreleased)" not in _first_section(before).partition("\n")[0]
        return f"{name} {what}. {keep}" + ("" if is_out else f" Or, as {version} is not out yet: name a later commit in .ci/released.")
    if name not in listed(REMOVED, _first_section(after)):
        return f"{name} {what}. Tell users: begin an item of **{REMOVED}** in the first section of HISTORY.md with `{name}`."
    return None


def _first_section(history: str) -> str:
    return re.split(r"(?m)^## ", history + "\n")[1]


def listed(title: str, history: str) -> set[str]:
    """The names with which the items of all lists of this title begin."""
    lists = re.findall(rf"(?m)^\*\*{title}\*\*\n+((?:(?!\*\*|## ).*\n)*)", history + "\n")
    return {name for items in lists for name in re.findall(r"(?m)^- `([^`]+)`", items)}


def _warned(tree: Path) -> set[str]:
    """The names with which the tree calls `deprecated`."""
    texts = (path.read_text("utf-8") for package in PACKAGES for path in (tree / package).rglob("*.py"))
    return {name for text in texts for name in re.findall(r'\bdeprecated\(\s*"([^"]+)"', text)}
