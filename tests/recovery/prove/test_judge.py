"""The rules by which the demo and `tiered prove` judge: what may be seen of an object, by what callers were told."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable

import pytest

from recovery.prove.judge import ABSENT, CallAnswer, Content, JournaledCall, JournaledKind, ObjectHistory, calls_of, flaws_of


def put(name: str, began: float, ended: float = math.inf, answer: CallAnswer = CallAnswer.OK) -> JournaledCall:
    return JournaledCall(name, "o", JournaledKind.PUT, name, began, ended, answer)


def delete(began: float, ended: float = math.inf, answer: CallAnswer = CallAnswer.OK) -> JournaledCall:
    return JournaledCall("d", "o", JournaledKind.DELETE, None, began, ended, answer)


def seen(name: str) -> Content:
    return Content(name, name)


@pytest.mark.parametrize(
    ("calls", "found", "flaw"),
    [
        ([], None, None),
        ([put("a", 1, 2)], seen("a"), None),
        ([put("a", 1, 2)], None, "lost"),
        ([put("a", 1, 2), put("b", 3, 4)], seen("b"), None),
        ([put("a", 1, 2), put("b", 3, 4)], seen("a"), "lost"),
        ([put("a", 1, 3), put("b", 2, 4)], seen("a"), None),  # they overlap: either may be the last
        ([put("a", 1, 2, CallAnswer.NONE), put("b", 3, 4)], seen("a"), "lost"),
        ([put("a", 1, 3, CallAnswer.NONE), put("b", 2, 4)], seen("a"), None),  # killed, after it had taken effect
        ([put("a", 1, 2), put("b", 3, 4, CallAnswer.NO)], seen("a"), None),
        ([put("a", 1, 2), put("b", 3, 4, CallAnswer.NO)], seen("b"), "false_no"),
        ([put("a", 1, 2), put("b", 3, 4, CallAnswer.FAILED)], seen("a"), None),
        ([put("a", 1, 2), put("b", 3, 4, CallAnswer.FAILED)], seen("b"), "false_no"),
        ([put("a", 1, 2, CallAnswer.SETTLED), put("b", 3, 4)], seen("a"), "lost"),
        ([put("a", 1, math.inf, CallAnswer.UNKNOWN), put("b", 3, 4)], seen("a"), None),  # it may still have landed
        ([put("a", 1, 2)], seen("z"), "mixed_up"),
        ([put("a", 1, 2), delete(3, 4)], None, None),
        ([put("a", 1, 2), delete(3, 4)], seen("a"), "lost"),
        ([delete(1, 2), put("a", 3, 4)], None, "lost"),
        ([delete(1, 4), put("a", 2, 3)], None, None),
        ([put("a", 1, 2), delete(3, 4, CallAnswer.NONE)], None, None),
        ([put("a", 1, 2), delete(3, 4, CallAnswer.NO)], None, "false_no"),
        ([put("a", 1, 2), delete(3, 4, CallAnswer.FAILED)], None, "false_no"),
        ([put("a", 1, 2, CallAnswer.NONE)], None, None),
    ],
)
def test_what_is_stored_is_judged_by_what_callers_were_told(
    calls: list[JournaledCall], found: Content | None, flaw: str | None
) -> None:
    assert ObjectHistory(calls).flaw(found) == flaw


@pytest.mark.parametrize(
    ("looked", "until", "found", "flaw"),
    [
        (0, 0.5, None, None),
        (0, 0.5, seen("a"), "mixed_up"),  # it had not begun
        (1, 2, None, None),
        (1, 2, seen("a"), None),
        (3, 4, None, "lost"),
        (3, 6, seen("a"), None),
        (3, 6, seen("b"), None),
        (9, 10, seen("a"), "lost"),
        (9, 10, seen("b"), None),
    ],
)
def test_what_a_reader_saw_is_judged_by_when_it_looked(looked: float, until: float, found: Content | None, flaw: str | None) -> None:
    assert ObjectHistory([put("a", 1, 2), put("b", 5, 8)]).flaw(found, looked, until) == flaw


# --- copies and conditions -----------------------------------------------------------------------


def copy(began: float, ended: float, answer: CallAnswer = CallAnswer.OK) -> JournaledCall:
    return JournaledCall("c", "copied", JournaledKind.COPY, None, began, ended, answer, source="o")


def on_a_revision(name: str, revision: str, wanted: str, began: float, ended: float) -> JournaledCall:
    return JournaledCall(name, "o", JournaledKind.PUT, name, began, ended, CallAnswer.OK, condition=revision, wanted=wanted)


@pytest.mark.parametrize(
    ("call", "found", "flaws"),
    [
        (copy(3, 4), "a", []),
        (copy(3, 4), None, ["lost"]),
        (copy(3, 4, CallAnswer.NONE), None, []),
        (copy(3, 4, CallAnswer.NO), "a", ["false_no"]),
        (copy(7, 8), "a", ["mixed_up"]),  # the source had been replaced before the copy began
        (copy(7, 8), "b", []),
        (copy(0, 0.5), "a", ["mixed_up"]),  # it had not been written yet
        (copy(5, 8), "a", []),  # it was replaced meanwhile
    ],
)
def test_a_copy_is_what_its_source_held_meanwhile(call: JournaledCall, found: str | None, flaws: list[str]) -> None:
    contents = {"o": seen("b"), **({} if found is None else {"copied": seen(found)})}
    assert [flaw for flaw, _ in flaws_of(contents, [put("a", 1, 2), put("b", 5, 6), call])] == flaws


@pytest.mark.parametrize(
    ("calls", "found", "flaws"),
    [
        ([put("a", 1, 2), on_a_revision("b", "r", "a", 3, 4)], "b", 0),
        ([put("a", 1, 2), put("x", 3, 4), on_a_revision("b", "r", "a", 5, 6)], "b", 1),  # it replaced x, which it never saw
        ([put("a", 1, 2), put("x", 3, 6), on_a_revision("b", "r", "a", 5, 7)], "b", 0),
        ([put("a", 1, 2), on_a_revision("b", "r", "a", 3, 6), on_a_revision("c", "r", "a", 4, 7)], "c", 1),  # one of them was replaced
        ([on_a_revision("b", ABSENT, "", 1, 2)], "b", 0),
        ([put("a", 1, 2), on_a_revision("b", ABSENT, "", 3, 4)], "b", 1),
        ([put("a", 1, 2), delete(3, 4), on_a_revision("b", ABSENT, "", 3, 5)], "b", 0),
    ],
)
def test_a_write_that_was_told_ok_found_what_its_condition_wants(calls: Iterable[JournaledCall], found: str, flaws: int) -> None:
    assert [flaw for flaw, _ in flaws_of({"o": seen(found)}, calls)] == ["lost"] * flaws


def test_what_is_there_and_cannot_be_read_is_said_elsewhere() -> None:
    assert list(flaws_of({"o": None}, [put("a", 1, 2)])) == []


def test_a_call_without_an_answer_ends_when_nothing_of_its_process_takes_effect_any_more() -> None:
    lines: tuple[dict[str, object], ...] = (
        {"at": 1.0, "begin": "a", "object": "o", "kind": "copy", "digest": None, "source": "s"},
        {"at": 2.0, "begin": "b", "object": "o", "kind": "delete", "digest": None, "condition": "r", "wanted": "w"},
        {"at": 3.0, "end": "b", "answer": "unknown", "detail": "why"},
    )
    journal = b"".join(json.dumps(line).encode() + b"\n" for line in lines) + b'{"at":4.0,"end":"a","ans'
    first, second = calls_of(journal, 9.0)
    assert (first.answer, first.ended, first.source) == (CallAnswer.NONE, 9.0, "s")
    assert (second.answer, second.ended, second.condition, second.wanted) == (CallAnswer.UNKNOWN, 9.0, "r", "w")
