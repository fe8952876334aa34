"""The schema on Bigtable and GCS: the families of a table, what may be collected of each, and how a bucket is made.

    family  what is in it             GC rule             its newest cell must live
    fg      objects that expire       max age 1 s         until its deadline, which is its timestamp
    fm      objects that do not       none                for ever
    ff      marks                     max age 2 d         longer than a swap can be under way
    fc      entries of the changelog  max versions 1      for ever

A store that only reads needs no `ff`: a table of other software has none. `fc` is needed if the changelog is in
Bigtable. All that make tables or judge them use this module: `tiered provision`, `tiered check`, the opening of a
storage, the emulators and the tests.

A rule that differs is judged by its effect, not by its text. It is *harmful* if it may collect a cell that is still
needed. It is *wasteful* if it never collects what nobody needs. Families that are not in this table are ignored. Pure;
the rules are messages of the client package.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from google.cloud.bigtable_admin_v2.types import GcRule

from changelog.bigtable.log import FAMILY as ENTRIES
from tiered.bigtable.cells import EXPIRING, MANUAL, MARKS
from tiered.services.backends import MARK_AGE_MAX_S, MARK_AGE_MIN_S
from tiered.services.capabilities import PARTS_DAYS_MAX
from tiered.settings import BigtableSettings

OBJECT_FAMILIES: Mapping[str, GcRule] = {
    EXPIRING: GcRule(max_age=timedelta(seconds=1)),
    MANUAL: GcRule(),
    MARKS: GcRule(max_age=timedelta(seconds=MARK_AGE_MAX_S)),
}
CHANGELOG_FAMILIES: Mapping[str, GcRule] = {ENTRIES: GcRule(max_num_versions=1)}
FAMILIES: Mapping[str, GcRule] = {**OBJECT_FAMILIES, **CHANGELOG_FAMILIES}

DAYS_AFTER_DEADLINE = 1
_END_PARTS = "AbortIncompleteMultipartUpload"
"""How many days after a blob's deadline, its Custom-Time, the bucket may delete it.

With 0 the blob could go as soon as the service's clock, or its calendar day, reaches the deadline. A reader whose clock
is behind would then find a row without its blob.
"""

_SPARES_LIVE_BLOBS = {"daysSinceCustomTime", "numNewerVersions", "daysSinceNoncurrentTime", "noncurrentTimeBefore"}
_ONLY_SOME_NAMES = {"matchesPrefix", "matchesSuffix"}


def tables_of(bigtable: BigtableSettings, *, writes: bool = True, logged: bool = True) -> dict[str, dict[str, GcRule]]:
    """Each table with its families and their rules. If the settings name one table twice, it gets all of them.

    `writes` False: only what reading needs. `logged`: whether the changelog is in Bigtable.
    """
    tables = {bigtable.table: {family: rule for family, rule in OBJECT_FAMILIES.items() if writes or family != MARKS}}
    if logged:
        tables[bigtable.changelog_table] = tables.get(bigtable.changelog_table, {}) | dict(CHANGELOG_FAMILIES)
    return tables


def lives_s(rule: GcRule) -> float:
    """The age in seconds at which the rule may collect the newest cell of a column; infinite: it never does."""
    match rule._pb.WhichOneof("rule"):
        case "max_age":
            return float(rule.max_age.total_seconds())
        case "union":  # collects as soon as one of its rules does
            return min((lives_s(each) for each in rule.union.rules), default=math.inf)
        case "intersection":
            return max((lives_s(each) for each in rule.intersection.rules), default=math.inf)
        case _:
            return math.inf


def harm(family: str, rule: GcRule) -> str | None:
    """What the rule destroys in one of our families; None: nothing."""
    if family == MARKS and lives_s(rule) <= MARK_AGE_MIN_S:
        return f"collects marks before the {MARK_AGE_MIN_S:g} s are over in which a swap may still arrive"
    if family == MANUAL and lives_s(rule) < math.inf:
        return "deletes objects that do not expire"
    if family == ENTRIES and lives_s(rule) < math.inf:
        return "deletes entries of changes that are not finished"
    return None


def waste(family: str, rule: GcRule) -> str | None:
    """What the rule keeps for ever although nobody needs it; None: nothing."""
    if family == EXPIRING and lives_s(rule) == math.inf:
        return "never collects expired objects"
    if family == MARKS and lives_s(rule) == math.inf:
        return "never collects old marks"
    if family == ENTRIES and not rule._pb.WhichOneof("rule"):
        return "never collects superseded heartbeats"
    return None


def describe(rule: GcRule) -> str:
    """The rule in the form that `cbt setgcpolicy` takes, such as `maxage=2d`; `none` if there is no rule."""
    match rule._pb.WhichOneof("rule"):
        case "max_age":
            return f"maxage={_duration(rule.max_age.total_seconds())}"
        case "max_num_versions":
            return f"maxversions={rule.max_num_versions}"
        case "union":
            return "(" + " or ".join(map(describe, rule.union.rules)) + ")"
        case "intersection":
            return "(" + " and ".join(map(describe, rule.intersection.rules)) + ")"
        case _:
            return "none"


def _duration(seconds: float) -> str:
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= unit and seconds % unit == 0:
            return f"{seconds / unit:g}{name}"
    return f"{seconds:g}s"


# --- the bucket ----------------------------------------------------------------------------------


def lifecycle_rule(prefix: str = "") -> Mapping[str, Any]:
    """The rule that deletes expired blobs of a store. `prefix`: how their names begin."""
    return {"action": {"type": "Delete"}, "condition": {"daysSinceCustomTime": DAYS_AFTER_DEADLINE, **_below(prefix)}}


def parts_rule(prefix: str = "") -> Mapping[str, Any]:
    """The rule that ends uploads in parts of a store that nobody completed: they are billed, and end by nothing else.
    """
    return {"action": {"type": _END_PARTS}, "condition": {"age": PARTS_DAYS_MAX, **_below(prefix)}}


def _below(prefix: str) -> Mapping[str, Any]:
    return {"matchesPrefix": [prefix]} if prefix else {}


def may_concern(rule: Mapping[str, Any], prefix: str) -> bool:
    """Whether the rule may act on a name that begins with `prefix`."""
    among = rule.get("condition", {}).get("matchesPrefix")
    return not among or any(each.startswith(prefix) or prefix.startswith(each) for each in among)


def collects_expired(rules: Sequence[Mapping[str, Any]], prefix: str = "") -> bool:
    """Whether every blob whose name begins with `prefix` is deleted in the end, after its deadline has passed."""
    return any(
        _deletes(rule) and set(rule["condition"]) - _ONLY_SOME_NAMES == {"daysSinceCustomTime"} and not concerns_some_names(rule, prefix)
        for rule in rules
    )


def collects_parts(rules: Sequence[Mapping[str, Any]], prefix: str = "") -> bool:
    """Whether every upload in parts of a blob whose name begins with `prefix` is ended, if it grows old."""
    return any(_ends_parts(rule) and not concerns_some_names(rule, prefix) for rule in rules)


def ends_parts_early(rule: Mapping[str, Any]) -> bool:
    """Whether the rule ends uploads in parts that somebody may still go on with."""
    return _ends_parts(rule) and int(rule.get("condition", {}).get("age", 0)) < PARTS_DAYS_MAX


def deletes_live_blobs(rule: Mapping[str, Any]) -> bool:
    """Whether the lifecycle rule may delete a blob before its deadline, or a blob without one.

    A rule acts only where all of its conditions hold.
    """
    condition = rule.get("condition", {})
    return _deletes(rule) and condition.get("isLive") is not False and not _SPARES_LIVE_BLOBS & set(condition)


def deletes_at_deadline(rule: Mapping[str, Any]) -> bool:
    """Whether the rule deletes blobs at their deadline, which leaves no room for clocks that differ."""
    return _deletes(rule) and rule.get("condition", {}).get("daysSinceCustomTime") == 0


def concerns_some_names(rule: Mapping[str, Any], prefix: str = "") -> bool:
    """Whether the rule may act on some only of the names that begin with `prefix`."""
    condition = rule.get("condition", {})
    chosen = _ONLY_SOME_NAMES & set(condition)
    return bool(chosen) and not (chosen == {"matchesPrefix"} and any(prefix.startswith(each) for each in condition["matchesPrefix"]))


def _ends_parts(rule: Mapping[str, Any]) -> bool:
    return bool(rule.get("action", {}).get("type") == _END_PARTS)


def _deletes(rule: Mapping[str, Any]) -> bool:
    return bool(rule.get("action", {}).get("type") == "Delete")
