"""Lifecycle rules of the GCS emulator's buckets: which there may be, and what they delete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from emulators.gcs.answers import GcsError
from emulators.gcs.bodies import object_in

CONDITIONS_OF_UPLOADS = {"age", "matchesPrefix", "matchesSuffix"}
ABORT, CONDITIONS = "AbortIncompleteMultipartUpload", {"daysSinceCustomTime", *CONDITIONS_OF_UPLOADS}


def lifecycle_rules(settings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the rules of a bucket's settings.

    Raises 400 for a rule that this emulator lacks, so that no test depends on it.
    """
    rules = object_in(settings, "lifecycle").get("rule") or []
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise GcsError(400, "Invalid value for lifecycle.rule: it must be a list of objects")
    for rule in rules:
        object_in(rule, "action"), object_in(rule, "condition")
        unknown = set(rule.get("condition", {})) - CONDITIONS
        kind = rule.get("action", {}).get("type")
        if kind == ABORT and not set(rule.get("condition", {})) - CONDITIONS_OF_UPLOADS:
            continue
        if kind != "Delete" or not rule.get("condition") or unknown:
            raise GcsError(400, f"Invalid lifecycle rule {rule}: only {ABORT}, and Delete by {', '.join(sorted(CONDITIONS))}")
    return rules


def applies(condition: Mapping[str, Any], name: str, created: datetime, now: datetime, custom: datetime | None = None) -> bool:
    """Tells whether all of the condition holds. `custom`: the custom time of an object."""
    tests: dict[str, Callable[[Any], bool]] = {
        "age": lambda days: now >= created + timedelta(days=int(days)),
        "daysSinceCustomTime": lambda days: custom is not None and now >= custom + timedelta(days=int(days)),
        "matchesPrefix": lambda prefixes: name.startswith(tuple(prefixes)),
        "matchesSuffix": lambda suffixes: name.endswith(tuple(suffixes)),
    }
    return all(tests[key](wanted) for key, wanted in condition.items())


def conditions_of(settings: Mapping[str, Any], action: str) -> list[Mapping[str, Any]]:
    """Returns the conditions of all rules with this action."""
    return [rule.get("condition", {}) for rule in lifecycle_rules(settings) if rule["action"]["type"] == action]
