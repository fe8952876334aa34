"""Lifecycle rules of the GCS emulator's buckets: which there may be, and what they delete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from emulators.gcs.answers import GcsError
from emulators.gcs.bodies import object_in
from emulators.gcs.objects import ObjectGeneration

CONDITIONS = {"age", "createdBefore", "customTimeBefore", "daysSinceCustomTime", "isLive", "matchesPrefix", "matchesSuffix"}
ABORT, CONDITIONS_OF_UPLOADS = "AbortIncompleteMultipartUpload", {"age", "matchesPrefix", "matchesSuffix"}


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


def applies_to_upload(settings: Mapping[str, Any], name: str, begun: datetime, now: datetime) -> bool:
    """Tells whether a rule ends an upload of several parts."""
    return any(
        all(tests[key](wanted) for key, wanted in rule["condition"].items())
        for rule in lifecycle_rules(settings) if rule["action"]["type"] == ABORT
        for tests in [_of_name(name) | {"age": lambda days: now >= begun + timedelta(days=int(days))}]
    )  # fmt: skip


def _of_name(name: str) -> dict[str, Callable[[Any], bool]]:
    return {
        "matchesPrefix": lambda prefixes: name.startswith(tuple(prefixes)),
        "matchesSuffix": lambda suffixes: name.endswith(tuple(suffixes)),
    }


def applies(condition: Mapping[str, Any], stored: ObjectGeneration, now: datetime, *, live: bool = True) -> bool:
    """Tells whether all of the condition holds."""
    custom = stored.custom_time
    tests: dict[str, Callable[[Any], bool]] = {
        "age": lambda days: now >= stored.created + timedelta(days=int(days)),
        "createdBefore": lambda day: stored.created.date() < date.fromisoformat(day),
        "customTimeBefore": lambda day: custom is not None and custom.astimezone(UTC).date() < date.fromisoformat(day),
        "daysSinceCustomTime": lambda days: custom is not None and now >= custom + timedelta(days=int(days)),
        "isLive": lambda wanted: bool(wanted) is live,
        **_of_name(stored.name),
    }
    return all(tests[key](wanted) for key, wanted in condition.items())
