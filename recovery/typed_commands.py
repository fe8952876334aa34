"""Commands that people are told to type, with what means the same store. Pure.

All code writes a command as `tiered …`, and quoted as 'tiered …' within a sentence. What shows it says how commands
begin: with the `--config` or the `--directory` that was given. Otherwise they would mean another store, or none.
"""

from __future__ import annotations

import re

TIERED = "tiered"
"""How every command begins that is not shown yet."""

_QUOTED = re.compile(r"'tiered ((?:audit|check|feed|get|head|log|provision|put|recover|rm|status)\b[^']*)'")


def typed(command: str | None, tiered: str) -> str | None:
    """Returns the command as it is typed. `tiered`: how commands for this store begin, quoted for a shell."""
    return None if command is None else f"{tiered}{command.removeprefix(TIERED)}"


def with_typed(sentence: str, tiered: str) -> str:
    """Returns the sentence with its quoted commands as they are typed, in backticks: a path may hold a quote."""
    return sentence if tiered == TIERED else _QUOTED.sub(lambda found: f"`{tiered} {found[1]}`", sentence)
