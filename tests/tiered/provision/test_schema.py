"""The schema's judgement of GC rules and lifecycle rules that it finds: by what they do."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from google.cloud.bigtable_admin_v2.types import GcRule

from tiered.provision.schema import (
    FAMILIES,
    collects_expired,
    concerns_some_names,
    deletes_at_deadline,
    deletes_live_blobs,
    describe,
    harm,
    lifecycle_rule,
    lives_s,
    may_concern,
    tables_of,
    waste,
)
from tiered.services.backends import MARK_AGE_MAX_S, MARK_AGE_MIN_S, SWAP_AGE_MAX_S, SWAP_DEADLINE_S
from tiered.settings import BigtableSettings


def age(seconds: float) -> GcRule:
    return GcRule(max_age=timedelta(seconds=seconds))


def either(*rules: GcRule) -> GcRule:
    return GcRule(union=GcRule.Union(rules=rules))


def both(*rules: GcRule) -> GcRule:
    return GcRule(intersection=GcRule.Intersection(rules=rules))


NONE, ONE = GcRule(), GcRule(max_num_versions=1)


def test_the_rules_are_those_of_the_stored_format() -> None:
    said = {family: describe(rule) for family, rule in FAMILIES.items()}
    assert said == {"fg": "maxage=1s", "fm": "none", "ff": "maxage=2d", "fc": "maxversions=1"}


def test_two_tables_share_the_families_and_one_table_has_them_all() -> None:
    two = BigtableSettings(project="project", instance="i", table="a", changelog_table="b")
    assert {name: set(families) for name, families in tables_of(two).items()} == {"a": {"fg", "fm", "ff"}, "b": {"fc"}}
    one = BigtableSettings(project="project", instance="i", table="a", changelog_table="a")
    assert {name: set(families) for name, families in tables_of(one).items()} == {"a": {"fg", "fm", "ff", "fc"}}


def test_reading_needs_no_marks_and_no_changelog_but_one_that_is_kept() -> None:
    two = BigtableSettings(project="project", instance="i", table="a", changelog_table="b")
    assert {name: set(families) for name, families in tables_of(two, writes=False, logged=False).items()} == {"a": {"fg", "fm"}}
    assert {name: set(families) for name, families in tables_of(two, writes=False).items()} == {"a": {"fg", "fm"}, "b": {"fc"}}
    assert {name: set(families) for name, families in tables_of(two, logged=False).items()} == {"a": {"fg", "fm", "ff"}}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_rule_of_ours_neither_harms_nor_wastes(family: str) -> None:
    assert (harm(family, FAMILIES[family]), waste(family, FAMILIES[family])) == (None, None)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (NONE, math.inf), (ONE, math.inf), (age(60), 60), (either(age(60), ONE), 60), (both(age(60), ONE), math.inf),
        (either(age(60), age(30)), 30), (both(age(60), age(30)), 60), (either(both(age(60), ONE), age(90)), 90), (either(), math.inf),
    ],
)
def test_the_newest_cell_lives_until_the_rule_may_take_it(rule: GcRule, expected: float) -> None:
    assert lives_s(rule) == expected


@pytest.mark.parametrize(
    ("family", "rule", "harms"),
    [
        ("fm", age(10**9), True), ("fm", either(age(60), ONE), True), ("fm", ONE, False), ("fm", both(age(60), ONE), False),
        ("fc", age(10**9), True), ("fc", NONE, False), ("fc", GcRule(max_num_versions=9), False), ("fc", either(ONE, age(60)), True),
        ("fg", age(0.001), False), ("fg", NONE, False),
        ("ff", age(86_400 + 30 + 3600), True), ("ff", age(86_400 + 30 + 3600 + 1), False), ("ff", NONE, False), ("ff", ONE, False),
    ],
)
def test_a_rule_harms_iff_it_may_collect_what_is_still_needed(family: str, rule: GcRule, harms: bool) -> None:
    assert (harm(family, rule) is not None) is harms


def test_marks_live_longer_than_any_swap_is_under_way() -> None:
    assert SWAP_AGE_MAX_S + SWAP_DEADLINE_S + 3600 <= MARK_AGE_MIN_S < MARK_AGE_MAX_S


@pytest.mark.parametrize(
    ("family", "rule", "wastes"),
    [
        ("fg", NONE, True), ("fg", ONE, True), ("fg", age(10**9), False), ("ff", NONE, True), ("ff", ONE, True), ("ff", age(10**9), False),
        ("fc", NONE, True), ("fc", GcRule(max_num_versions=9), False), ("fm", NONE, False), ("fm", ONE, False),
    ],
)
def test_a_rule_wastes_iff_it_never_collects_what_nobody_needs(family: str, rule: GcRule, wastes: bool) -> None:
    assert (waste(family, rule) is not None) is wastes


@pytest.mark.parametrize(
    ("rule", "said"),
    [(age(90), "maxage=90s"), (age(7200), "maxage=2h"), (either(age(60), ONE), "(maxage=1m or maxversions=1)"),
     (both(ONE, age(0.5)), "(maxversions=1 and maxage=0.5s)")],
)
def test_a_rule_reads_as_cbt_takes_it(rule: GcRule, said: str) -> None:
    assert describe(rule) == said


def deleting(**condition: Any) -> dict[str, Any]:
    return {"action": {"type": "Delete"}, "condition": condition}


@pytest.mark.parametrize(
    ("rule", "deletes"),
    [
        (lifecycle_rule(), False), (deleting(age=30), True), (deleting(age=30, daysSinceCustomTime=0), False),
        (deleting(isLive=False), False), (deleting(isLive=True), True), (deleting(numNewerVersions=3), False),
        (deleting(customTimeBefore="2099-01-01"), True),
        (deleting(age=1, matchesPrefix=["tmp/"]), True),
        ({"action": {"type": "SetStorageClass", "storageClass": "NEARLINE"}, "condition": {"age": 30}}, False),
        ({"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 1}}, False),
    ],
)
def test_a_lifecycle_rule_deletes_live_blobs_unless_a_condition_spares_them(rule: dict[str, Any], deletes: bool) -> None:
    assert deletes_live_blobs(rule) is deletes


def test_expired_blobs_go_only_by_a_rule_that_spares_none_of_them() -> None:
    assert collects_expired([deleting(age=30), lifecycle_rule()])
    assert collects_expired([deleting(daysSinceCustomTime=30)])
    assert not collects_expired([deleting(daysSinceCustomTime=1, matchesPrefix=["a/"])])
    assert not collects_expired([{"action": {"type": "SetStorageClass"}, "condition": {"daysSinceCustomTime": 1}}])
    assert not collects_expired([])


def test_a_lifecycle_rule_is_judged_by_what_it_does_below_the_prefix() -> None:
    rule, other = lifecycle_rule("a/"), deleting(age=1, matchesPrefix=["b/", "a/x"])
    assert rule == deleting(daysSinceCustomTime=1, matchesPrefix=["a/"])
    assert [collects_expired([rule], prefix) for prefix in ("a/", "a/b/", "", "b/", "aa/")] == [True, True, False, False, False]
    assert collects_expired([lifecycle_rule()], "a/")
    assert not collects_expired([deleting(daysSinceCustomTime=1, matchesPrefix=["a/"], matchesSuffix=["x"])], "a/")
    assert [may_concern(other, prefix) for prefix in ("b/", "b/c/", "a/", "", "c/")] == [True, True, True, True, False]
    assert [concerns_some_names(other, prefix) for prefix in ("b/", "a/")] == [False, True]


def test_only_a_rule_of_no_day_leaves_clocks_no_room() -> None:
    assert deletes_at_deadline(deleting(daysSinceCustomTime=0))
    assert not deletes_at_deadline(lifecycle_rule()) and not deletes_at_deadline(deleting(age=0))
