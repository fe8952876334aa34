"""What the help of each command ends with: its exit codes. `docs/failures.md` has the same list: a test compares."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import cleandoc
from typing import Any

EXIT_CODES: Mapping[int, str] = {
    0: "done",
    1: "there is no such object, or no such (stuck) entry, or status found that recovery does not keep up",
    2: "the command line is wrong",
    3: "the request or the settings are wrong, a library is missing, or check, provision or hand-back found a problem",
    4: "something is unavailable, or an output cannot be written: try again",
    5: "the outcome is unknown: it may have happened",
    6: "stored data is corrupt or lost, an entry is stuck, or a change feed is not sound: an operator must look",
    7: "a condition (--if-absent, --if-revision) does not hold: nothing was changed",
    130: "interrupted",
}

_ABSENT, _NO_ENTRY, _CONDITION = {1: "there is no such object"}, {1: "there is no such entry"}, {7: "a condition does not hold"}
_PROBLEM, _UNSOUND = {3: "there is a problem"}, {6: "a file is damaged or foreign, or the feed breaks a rule"}
_WORST = {
    3: "something is refused", 4: "another attempt may do", 6: "something is damaged",
    7: "another writer was faster, or another object is there",
}  # fmt: skip
_DAMAGED = {6: "not all is there, or something is damaged"}
_AUDIT = {2: "it was refused, or could not be completed, whatever the reason", 130: "interrupted"}

OWN: Mapping[str, Mapping[int, str]] = {
    "put": _CONDITION, "get": _ABSENT, "head": _ABSENT, "rm": _CONDITION, "sync": _WORST, "cp": _ABSENT | _CONDITION,
    "mv": _ABSENT | _CONDITION, "update-metadata": _ABSENT | _CONDITION, "set-expiry": _ABSENT | _CONDITION,
    "status": {
        0: "nothing is known to be wrong", 1: "recovery or the feed does not keep up, or entries wait and no daemon lives",
        4: "something is not known, or the disk is read-only", 6: "data is lost, or an entry is stuck",
    },
    "recover": {4: "with --once: an entry or a file failed", 6: "with --once: data is lost, or an entry is stuck"},
    "provision": _PROBLEM, "hand-back": _PROBLEM,
    "check": _PROBLEM | {4: "it is not known whether data is lost, or another attempt may do", 6: "data is lost, or an entry is stuck"},
    "prove": {0: "these services may hold a store, or only the plan was shown", 3: "a promise is not kept, or nothing could be tried",
              4: "something was not tried, so nobody knows"},
    "log show": _NO_ENTRY, "log retry": _NO_ENTRY, "log abort": _NO_ENTRY,
    "audit": {0: "clean, or done", 1: "findings"} | _AUDIT,
    "audit plan": _AUDIT, "audit run": {0: "clean", 1: "findings"} | _AUDIT,
    "audit show": {0: "nothing is wrong with it", 1: "it has a finding"} | _AUDIT,
    "audit delete": {0: "done, or nothing is in the way"} | _AUDIT, "audit restore": {0: "done, or nothing is in the way"} | _AUDIT,
    "feed status": {0: "it keeps up, or there is none", 1: "it does not keep up, or nobody has started a writer", 4: "it is not known"},
    "feed view": _UNSOUND, "feed convert": _UNSOUND, "feed follow": _UNSOUND,
    "feed check": {0: "it is sound", 1: "it is sound as far as it goes, and something in between is missing"} | _UNSOUND,
    "export objects": _DAMAGED, "export verify": _DAMAGED, "export table": _DAMAGED, "import": _WORST,
}  # fmt: skip
"""By command, the exit codes that say something of this command. The others are as everywhere."""


def finish_help(command: Any, name: str = "") -> Any:
    """Adds the exit codes to the help of a command of typer, and of all that are in it. Returns the command.

    A paragraph of the help becomes one line, which the terminal breaks. An option that takes no value gets no
    placeholder for one: newer versions of typer print `<bool>`.
    """
    parameters = command.get_params
    command.get_params = lambda context: [_without_placeholder(each) for each in parameters(context)]
    command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in cleandoc(command.help or "").split("\n\n"))
    own = {0: EXIT_CODES[0], **OWN.get(name, {})} if name else EXIT_CODES
    codes = "; ".join(f"{code} {means}" for code, means in sorted(own.items()))
    others = "" if name.startswith("audit") else " `tiered --help` has all." if name else " Those of audit are its own."
    command.epilog = f"Exit codes: {codes}.{others}"
    if name:
        for each, inner in getattr(command, "commands", {}).items():
            finish_help(inner, f"{name} {each}")
    return command


def _without_placeholder(option: Any) -> Any:
    if getattr(option, "is_flag", False) and option.metavar is None:
        option.metavar = ""
    return option
