"""The counts of a range: those of the join, less the candidates, which are counted when they are judged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from recovery.audit.finding import Summary
from recovery.audit.finding_classes import FindingClass
from recovery.audit.inventory import engine
from recovery.audit.inventory.engine import JoinedCounts
from recovery.audit.inventory.lines import CANDIDATE, LineCount


def candidate(**facts: Any) -> dict[str, Any]:
    return dict.fromkeys(CANDIDATE.names) | facts


def told(*count: Any) -> dict[str, Any]:
    return candidate(range=0, told=json.dumps(LineCount(0, *count)))


def row(key: bytes, target: str | None, fault: str | None = None) -> dict[str, Any]:
    return candidate(name=target, key=key, target=target, fault=fault)


def counted(summary: Summary) -> dict[str, tuple[int, int]]:
    assert all(list(kinds) == [FindingClass.REFERENCED] for kinds in summary.counts.values())
    return {usecase: (each.number, each.size) for usecase, kinds in summary.counts.items() for each in kinds.values()}


def test_what_is_judged_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CHUNK", 2)
    joined = JoinedCounts()
    lines = [
        told("a", 5, 500), candidate(name="a/1", size=100, generation="7"), candidate(name="a/2", generation="7"), row(b"a", "a/3"),
        row(b"a", "a/3"), row(b"\xff", None, "no text"), told(None, 4, 0), told("a", 2, 50), told("b", 1, 9), candidate(range=0),
        told(None, 3, 0),
    ]  # fmt: skip
    chunks = list(joined.chunks(lines))
    assert [(len(suspects), len(rows)) for suspects, rows in chunks] == [(2, 0), (0, 2)]
    summary = joined.rest()
    assert (summary.names, summary.redirects) == (6, 6) and counted(summary) == {"a": (5, 450), "b": (1, 9)}


def test_what_some_task_counted_as_of_others_is_of_others() -> None:
    joined = JoinedCounts()
    list(joined.chunks([told("a", 5, 500), told("(others)", 10, 30), candidate(name="b/1", size=10), candidate(name="a/1", size=20)]))
    summary = joined.rest()
    assert summary.names == 13 and counted(summary) == {"(others)": (13, 500)}
