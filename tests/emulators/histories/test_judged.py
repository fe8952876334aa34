"""What real processes were told is linearizable, and Porcupine refuses it as soon as one answer is another one.

A run of the demo records a history. In it, each row of `CHANGES` finds an answer whose change no order of effects can
explain, and changes that one alone.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from emulators.demo.command import DemoOptions, run_demo
from emulators.demo.director import HISTORY
from emulators.histories.judged import main
from tests.given.judged_histories import judged, refused

pytestmark = pytest.mark.slow

RUNS_MAX = 8

Call = dict[str, Any]
Change = Callable[[Call, Sequence[Call]], dict[str, str] | None]
"""Given a call and all calls for its object: what to change of the call. None: that would prove nothing here."""


def before(one: Call, other: Call) -> bool:
    return one["return"] is not None and one["return"] < other["call"]


def acknowledged(operation: str, calls: Sequence[Call]) -> Iterator[Call]:
    return (each for each in calls if each["operation"] == operation and each["answer"] == "ok")


def is_read(call: Call) -> bool:
    return (call["operation"], call["answer"]) == ("get", "ok")


def is_seen(call: Call, calls: Sequence[Call]) -> bool:
    return any(each["value"] == call["value"] for each in acknowledged("get", calls))


def show_an_old_value(call: Call, calls: Sequence[Call]) -> dict[str, str] | None:
    puts = list(acknowledged("put", calls)) if is_read(call) else []
    pairs = ((old, new) for old in puts for new in puts if before(old, new) and before(new, call))
    return next(({"value": old["value"]} for old, _ in pairs), None)


def show_nothing(call: Call, calls: Sequence[Call]) -> dict[str, str] | None:
    deletes = [each for each in calls if each["operation"] == "delete" and each["answer"] in ("ok", "unknown")]
    puts = (each for each in acknowledged("put", calls) if is_read(call) and before(each, call))
    alone = (put for put in puts if all(before(each, put) or before(call, each) for each in deletes))
    return {"value": ""} if next(alone, None) else None


def show_what_was_deleted(call: Call, calls: Sequence[Call]) -> dict[str, str] | None:
    deletes = [each for each in acknowledged("delete", calls) if is_read(call) and before(each, call)]
    return next(({"value": put["value"]} for put in acknowledged("put", calls) for each in deletes if before(put, each)), None)


def show_what_nobody_wrote(call: Call, calls: Sequence[Call]) -> dict[str, str] | None:
    return {"value": "what nobody wrote"} if is_read(call) else None


def acknowledge_a_lost_update(call: Call, calls: Sequence[Call]) -> dict[str, str] | None:
    """Another update over the same was acknowledged as well."""
    if call["answer"] != "failed" or not call["over"]:
        return None
    others = (each for each in calls if each["over"] == call["over"] and each["answer"] == "ok")
    return {"answer": "ok"} if next(others, None) else None


def acknowledge_what_had_no_effect(call: Call, calls: Sequence[Call]) -> dict[str, str] | None:
    """What was there before is read after it."""
    if call["operation"] == "get" or call["answer"] in ("ok", "failed"):
        return None
    still = {put["value"] for put in acknowledged("put", calls) if before(put, call)}
    return {"answer": "ok"} if any(each["value"] in still and before(call, each) for each in acknowledged("get", calls)) else None


def refuse_what_took_effect(call: Call, calls: Sequence[Call]) -> dict[str, str] | None:
    taken = (call["operation"], call["answer"]) == ("put", "ok") and is_seen(call, calls)
    return {"answer": "no"} if taken else None


def call_the_condition_of_what_took_effect_false(call: Call, calls: Sequence[Call]) -> dict[str, str] | None:
    taken = (call["operation"], call["answer"]) == ("put", "ok") and call["over"] is not None and is_seen(call, calls)
    return {"answer": "failed"} if taken else None


CHANGES: tuple[Change, ...] = (
    show_an_old_value, show_nothing, show_what_was_deleted, show_what_nobody_wrote, acknowledge_a_lost_update,
    acknowledge_what_had_no_effect, refuse_what_took_effect, call_the_condition_of_what_took_effect_false,
)  # fmt: skip


def places(change: Change, recorded: Sequence[Call]) -> Iterator[tuple[int, Call]]:
    """Returns where an answer may be changed, and the call with another answer."""
    of_object = defaultdict[str, list[Call]](list)
    for each in recorded:
        of_object[each["object"]].append(each)
    for position, each in enumerate(recorded):
        if (changed := change(each, of_object[each["object"]])) is not None:
            yield position, each | changed


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    """Of few objects, so that callers meet. Chance has a say in how they do: one run may lack what a change needs."""
    for seed in range(RUNS_MAX):
        directory = tmp_path_factory.mktemp("recorded") / "demo"
        assert run_demo(DemoOptions(seconds=6, writers=3, objects=12, seed=seed, directory=directory), as_json=True) == 0
        assert refused(directory / HISTORY) == set()
        calls = [json.loads(line) for line in (directory / HISTORY).read_text("utf-8").splitlines()]
        if all(any(places(change, calls)) for change in CHANGES):
            return calls
    pytest.fail(f"in {RUNS_MAX} runs callers never met in all ways that are to be changed")


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_history_with_one_other_answer_is_refused(change: Change, recorded: list[Call], tmp_path: Path) -> None:
    position, other = next(places(change, recorded))
    path = tmp_path / HISTORY
    path.write_text("".join(f"{json.dumps(each)}\n" for each in [*recorded[:position], other, *recorded[position + 1 :]]))
    assert refused(path) == {other["object"]}


def test_the_history_has_calls_of_processes_that_were_killed_and_of_all_answers(recorded: list[Call]) -> None:
    assert {each["answer"] for each in recorded} == {"ok", "no", "failed", "unknown"}
    assert {each["operation"] for each in recorded} == {"put", "get", "delete"}
    assert "check" in {each["process"] for each in recorded}


def test_a_history_without_calls_proves_nothing_and_is_no_history(tmp_path: Path) -> None:
    (path := tmp_path / HISTORY).touch()
    assert judged(path) == (2, f"{path} has no calls\n")


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 3)])
def test_where_there_is_no_go_the_command_says_what_was_not_proved_and_only_ci_fails(
    ci: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("emulators.go.which", lambda command: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CI", ci)
    assert main() == code
    assert capsys.readouterr().out.startswith("not proved: that histories are linearizable, by Porcupine: none is installed")


GOOD = {"process": "w0.0", "object": "o", "operation": "put", "value": "a", "over": None, "call": 1, "return": 2, "answer": "ok"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"operation": "copy"}, {"answer": "error"}, {"value": ""}, {"return": 0}, {"answer": "failed"}, {"more": "than is known"},
        {"operation": "delete"}, {"operation": "get", "over": ""}, {"operation": "get", "answer": "failed"}, {"call": None, "return": -1},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_call_is_not_taken_for_one(wrong: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / HISTORY
    path.write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD | wrong) + "\n")
    code, said = judged(path)
    assert code == 2 and f"{path}, call 2" in said
