"""The check of what callers were told.

Tiny histories with their verdicts, the same by brute force, and planted violations.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from emulators.histories.written import NOTHING, HistoryAnswer, HistoryCall, write_history
from emulators.world.history import Need, Read, RegisterHistory, RegisterWrite, WriteAnswer
from tests.given.judged_histories import refused

PATH = "attachments/objects/key"
OK, NO, FAILED, OVER, UNKNOWN = WriteAnswer

Operations = Sequence[RegisterWrite | Read]


def put(
    value: str | None, began: int, ended: int | None, answer: WriteAnswer = OK, mortal_at_s: float = inf, path: str = PATH
) -> RegisterWrite:
    return RegisterWrite(path, value, began, ended, answer, mortal_at_s)


def delete(began: int, ended: int | None, answer: WriteAnswer = OK) -> RegisterWrite:
    return put(None, began, ended, answer)


def over(value: str | None, write: RegisterWrite, ended_s: float = 0.0) -> RegisterWrite:
    """The same write, on the condition that the register holds this."""
    return replace(write, needs=Need(value), ended_s=ended_s)


def read(found: str | None, began: int, ended: int | None, ended_s: float = 0.0, path: str = PATH) -> Read:
    return Read(path, began, ended, found, ended_s)


def history_of(operations: Operations) -> RegisterHistory:
    return RegisterHistory(
        [each for each in operations if isinstance(each, RegisterWrite)], [each for each in operations if isinstance(each, Read)]
    )


def unexplained(*operations: RegisterWrite | Read) -> list[str]:
    return history_of(operations).unexplained()


# --- verdicts ------------------------------------------------------------------------------------

EXPLAINED: dict[str, Operations] = {
    "nothing was done": [],
    "nothing was there": [read(None, 1, 2)],
    "a put is read": [put("a", 1, 2), read("a", 3, 4)],
    "a put that is under way is read": [put("a", 1, 4), read("a", 2, 3)],
    "a put that is under way is not read yet": [put("a", 1, 4), read(None, 2, 3)],
    "a superseded put is never read": [put("a", 1, 4), put("b", 2, 3), read("b", 5, 6)],
    "of two puts at once the first to end is the last": [put("a", 1, 4), put("b", 2, 3), read("a", 5, 6)],
    "puts at once are read one after the other": [put("a", 1, 8), put("b", 2, 9), read("b", 3, 4), read("a", 5, 6)],
    "reads at once disagree while a put takes effect": [put("a", 1, 6), read("a", 2, 5), read(None, 3, 4)],
    "a put over what was there": [put("a", 1, 2), over("a", put("b", 3, 4)), read("b", 5, 6)],
    "one of two puts over the same wins": [over(None, put("a", 1, 4)), over(None, put("b", 2, 3, FAILED)), read("a", 5, 6)],
    "a put over what nobody has read": [put("a", 1, 6), put("c", 2, 7), over("a", put("b", 3, 8)), read("b", 9, 10)],
    "a put over nothing, after an expiry": [put("a", 1, 2, mortal_at_s=5), over(None, put("b", 3, 4), ended_s=6), read("b", 5, 6)],
    "a put over what an unknown put may have left": [put("a", 1, 2, UNKNOWN), over("a", put("b", 3, 4)), read("b", 5, 6)],
    "a condition that was false for a moment": [put("a", 1, 6), over("a", put("b", 2, 3, FAILED)), read("a", 7, 8)],
    "a refused put is not read": [put("a", 1, 2, NO), read(None, 3, 4)],
    "a put that is over had its effect": [put("a", 1, 2, OVER), read("a", 3, 4)],
    "a put that is over had none": [put("a", 1, 2, OVER), read(None, 3, 4)],
    "a put that is over was replaced at once": [put("a", 1, 4, OVER), put("b", 2, 3), read("b", 5, 6)],
    "an unknown put takes effect late": [put("a", 1, 2, UNKNOWN), put("b", 3, 4), read("b", 5, 6), read("a", 7, 8)],
    "an unknown put never takes effect": [put("a", 1, 2, UNKNOWN), put("b", 3, 4), read("b", 5, 6), read("b", 7, 8)],
    "the put of a dead process takes effect late": [put("a", 1, None, UNKNOWN), put("b", 3, 4), read("a", 7, 8)],
    "an unknown delete takes effect late": [put("a", 1, 2), delete(3, 4, UNKNOWN), read("a", 5, 6), read(None, 7, 8)],
    "a delete in vain": [delete(1, 2), read(None, 3, 4)],
    "two deletes, each needed": [put("a", 1, 2), delete(3, 4), read(None, 5, 6), put("b", 7, 8), delete(9, 10), read(None, 11, 12)],
    "an expired put is not read": [put("a", 1, 2, mortal_at_s=5), read("a", 3, 4, 4.9), read(None, 5, 6, 5.0)],
    "a touched put is read past its first deadline": [put("a", 1, 2, mortal_at_s=5), read(None, 3, 4, 6), read("a", 5, 6, 7)],
    "a read that is under way says nothing": [put("a", 1, 2), read("b", 3, None)],
    # The late read of None would be placed at once, were it not for the put that is over and must come before it.
    "a put that is over comes before a read that could be placed at once": [
        delete(1, 10), put("a", 2, 3, OVER), read("a", 4, 8), read(None, 5, 9),
    ],
    # The put of b, which nobody reads, would be placed with the next one, were it not for the put that is over.
    "a put that is over comes before one that is never read": [
        put("a", 1, 2, OVER), put("c", 3, 9), put("b", 4, 10), read("a", 5, 6), read("c", 11, 12),
    ],
    "of two deletes that are alike the one that is over is placed": [
        put("a", 1, 2), delete(3, None, UNKNOWN), delete(4, 7, OVER), read(None, 5, 6), put("b", 8, 9), read(None, 10, 11),
        put("c", 12, 13), read("c", 14, 15),
    ],
}  # fmt: skip

UNEXPLAINED: dict[str, tuple[Operations, str]] = {
    "a value that nobody wrote": ([read("a", 1, 2)], "read of 'a' [1, 2]"),
    "a value that is written later": ([read("a", 1, 2), put("a", 3, 4)], "read of 'a' [1, 2]"),
    "a lost acknowledged put": ([put("a", 1, 2), read(None, 3, 4)], "read of None [3, 4]"),
    "a stale read": ([put("a", 1, 2), put("b", 3, 4), read("a", 5, 6)], "read of 'a' [5, 6]"),
    "a refused put is read": ([put("a", 1, 2, NO), read("a", 3, 4)], "read of 'a' [3, 4]"),
    "a put is refused after it was read": ([put("a", 1, 4, NO), read("a", 2, 3)], "put of 'a' [1, 4] NO"),
    "a put is acknowledged, and nobody saw it": ([put("a", 1, 2), read("a", 3, 4), put("b", 5, 6), read("a", 7, 8)], "read of 'a' [7, 8]"),
    "a put that is over takes effect late": (
        [put("a", 1, 2, OVER), put("b", 3, 4), read("b", 5, 6), read("a", 7, 8)], "read of 'a' [7, 8]"
    ),
    "a put that is over comes back": ([put("a", 1, 2, OVER), put("b", 3, 4), read("a", 5, 6)], "read of 'a' [5, 6]"),
    "a put takes effect twice": (
        [put("a", 1, 2, UNKNOWN), read("a", 3, 4), put("b", 5, 6), read("b", 7, 8), read("a", 9, 10)], "read of 'a' [9, 10]"
    ),
    "two puts over the same": ([over(None, put("a", 1, 4)), over(None, put("b", 2, 3))], "put of 'a' over None [1, 4] OK"),
    "a put over what was deleted": (
        [put("a", 1, 2), delete(3, 4), over("a", put("b", 5, 6))], "put of 'b' over 'a' [5, 6] OK"
    ),
    "a put over nothing, where something is": ([put("a", 1, 2), over(None, put("b", 3, 4))], "put of 'b' over None [3, 4] OK"),
    "a condition that is called false, and was true all the time": (
        [put("a", 1, 2), over("a", put("b", 3, 4, FAILED))], "put of 'b' over 'a' [3, 4] FAILED"
    ),
    "a put that was superseded by one whose condition it would break": (
        [put("a", 1, 2), put("b", 3, 6), over("a", put("c", 4, 5)), read("c", 7, 8), read("c", 9, 10)], "read of 'c' [7, 8]"
    ),
    "a delete takes effect twice": (
        [delete(1, 2, UNKNOWN), put("a", 3, 4), read(None, 5, 6), put("b", 7, 8), read(None, 9, 10)], "read of None [9, 10]"
    ),
    "two readers see two puts in two orders": (
        [put("a", 1, 20), put("b", 2, 21), read("a", 3, 5), read("b", 4, 6), read("b", 7, 9), read("a", 8, 10)],
        "read of 'a' [8, 10]",
    ),
    "a reader goes back in time": ([put("a", 1, 8), read("a", 2, 3), read(None, 4, 5)], "read of None [4, 5]"),
    "a deleted value is read": ([put("a", 1, 2), delete(3, 4), read("a", 5, 6)], "read of 'a' [5, 6]"),
    "a put expires early": ([put("a", 1, 2, mortal_at_s=5), read(None, 3, 4, 4.9)], "read of None [3, 4]"),
    "an immortal put expires": ([put("z", 1, 2, mortal_at_s=5), put("a", 3, 4), read(None, 5, 6, 9)], "read of None [5, 6]"),
    "the read before was explained, and this one is not": (
        [put("a", 1, 2), read("a", 3, 4), read("c", 5, 6), read("d", 7, 8)], "read of 'c' [5, 6]"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPLAINED)
def test_a_history_is_explained_when(name: str) -> None:
    assert unexplained(*EXPLAINED[name]) == []
    assert is_explained_by_brute_force(EXPLAINED[name])


@pytest.mark.parametrize("name", UNEXPLAINED)
def test_a_history_is_not_explained_and_the_first_answer_to_blame_is_named_when(name: str) -> None:
    operations, accused = UNEXPLAINED[name]
    [sentence] = unexplained(*operations)
    assert sentence.startswith(f"{PATH}: no order of its operations explains the {accused}\n")
    assert not is_explained_by_brute_force(operations)


def test_each_path_is_a_register_of_its_own() -> None:
    assert unexplained(put("a", 1, 2), put("b", 3, 4, path="other"), read("a", 5, 6), read("b", 7, 8, path="other")) == []
    [sentence] = unexplained(put("a", 1, 2), put("b", 3, 4, path="other"), read("a", 5, 6), read("a", 7, 8, path="other"))
    assert sentence.startswith("other: ") and PATH not in sentence


def test_the_sentence_shows_the_operations_up_to_there_and_an_order_of_those_that_are_explained() -> None:
    operations: Operations = [put("b", 2, 9), put("a", 1, 4), read("a", 3, 5), put("c", 6, 7, NO), read("c", 8, 10), delete(11, 12)]
    assert unexplained(*operations) == [
        f"{PATH}: no order of its operations explains the read of 'c' [8, 10]\n"
        "    in order up to there: put of 'b' [2, 9], put of 'a' [1, 4], read of 'a' [3, 5]\n"
        "    operation: put of 'a' [1, 4] OK\n"
        "    operation: put of 'b' [2, 9] OK\n"
        "    operation: read of 'a' [3, 5]\n"
        "    operation: put of 'c' [6, 7] NO\n"
        "    operation: read of 'c' [8, 10]"
    ]


# --- by brute force --------------------------------------------------------------------------------


def is_explained_by_brute_force(operations: Operations) -> bool:
    """Tries every choice of the writes that had an effect, and every order of it all."""
    reads = [each for each in operations if isinstance(each, Read) and each.ended is not None]
    writes = [each for each in operations if isinstance(each, RegisterWrite) and each.answer is not NO]
    certain: list[RegisterWrite | Read] = [*reads, *(each for each in writes if each.answer in (OK, FAILED))]
    possible = [each for each in writes if each.answer not in (OK, FAILED)]
    return any(
        respects_time(order) and register_agrees(order)
        for count in range(len(possible) + 1)
        for chosen in itertools.combinations(possible, count)
        for order in itertools.permutations([*certain, *chosen])
    )


def end_of(each: RegisterWrite | Read) -> float:
    return inf if each.ended is None or (isinstance(each, RegisterWrite) and each.answer is UNKNOWN) else each.ended


def respects_time(order: Operations) -> bool:
    return all(end_of(later) >= earlier.began for earlier, later in itertools.combinations(order, 2))


def register_agrees(order: Operations) -> bool:
    value, mortal_at_s = None, inf
    for each in order:
        if isinstance(each, RegisterWrite):
            before = RegisterWrite(PATH, value, 0, 0, OK, mortal_at_s)
            at_s = inf if each.answer is UNKNOWN else each.ended_s
            if each.needs is not None and not (each.needs.may_fail if each.answer is FAILED else each.needs.may_hold)(before, at_s):
                return False
            if each.answer is not FAILED:
                value, mortal_at_s = each.value, each.mortal_at_s
        elif each.found != value and not (each.found is None and mortal_at_s <= each.ended_s):
            return False
    return True


@st.composite
def histories(draw: st.DrawFn, deadlines: Sequence[float] = (inf, inf, 1.0, 2.0)) -> list[RegisterWrite | Read]:
    """Up to six operations whose values may repeat, and whose ends may be anywhere after their beginnings."""
    count = draw(st.integers(1, 6))
    events = draw(st.permutations(range(2 * count)))
    values, seconds = st.sampled_from(["a", "b", "c", None]), st.integers(0, 3)
    def write(began: int, ended: int) -> RegisterWrite:
        answer = draw(st.sampled_from(WriteAnswer))
        drawn = put(draw(values), began, ended, answer, draw(st.sampled_from(deadlines)))
        return over(draw(values), drawn, float(draw(seconds))) if answer is FAILED or draw(st.booleans()) else drawn

    return [
        write(began, ended) if draw(st.booleans()) else read(draw(values), began, ended, float(draw(seconds)))
        for began, ended in (sorted(events[2 * index : 2 * index + 2]) for index in range(count))
    ]


@settings(max_examples=600, deadline=None)
@given(histories())
def test_the_search_finds_an_order_iff_there_is_one(operations: list[RegisterWrite | Read]) -> None:
    explained = is_explained_by_brute_force(operations)
    event(f"explained: {explained}")
    assert (unexplained(*operations) == []) == explained


# --- beside a judge that others wrote ---------------------------------------------------------------


ANSWERS = {
    OK: HistoryAnswer.OK, NO: HistoryAnswer.NO, FAILED: HistoryAnswer.FAILED, OVER: HistoryAnswer.UNKNOWN, UNKNOWN: HistoryAnswer.UNKNOWN,
}  # fmt: skip


def calls(name: str, operations: Operations) -> Iterator[HistoryCall]:
    """The history of an object of that name, for others to judge. They know nothing of expiry."""
    for each in operations:
        if isinstance(each, RegisterWrite):
            kind, over = "delete" if each.value is None else "put", None if each.needs is None else value_of(each.needs.value)
            yield HistoryCall("p", name, kind, value_of(each.value), each.began, end_of(each), ANSWERS[each.answer], over)
        elif each.ended is not None:
            yield HistoryCall("p", name, "get", value_of(each.found), each.began, each.ended, HistoryAnswer.OK)


def value_of(held: object) -> str:
    return NOTHING if held is None else str(held)


def compare_with_porcupine(named: Mapping[str, Operations], path: Path) -> None:
    write_history(path, (call for name, operations in named.items() for call in calls(name, operations)))
    assert refused(path) == {name for name, operations in named.items() if unexplained(*operations)}


def has_deadline(operations: Operations) -> bool:
    return any(isinstance(each, RegisterWrite) and each.mortal_at_s != inf for each in operations)


@pytest.mark.slow
def test_porcupine_says_the_same_of_each_history_with_a_verdict(tmp_path: Path) -> None:
    every = {**EXPLAINED, **{name: operations for name, (operations, _) in UNEXPLAINED.items()}}
    named = {name: operations for name, operations in every.items() if not has_deadline(operations)}
    assert len(named) > 40
    compare_with_porcupine(named, tmp_path / "history.jsonl")


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.lists(histories(deadlines=[inf]), min_size=60, max_size=60))
def test_porcupine_says_the_same_of_any_history(many: list[list[RegisterWrite | Read]]) -> None:
    with TemporaryDirectory() as directory:
        compare_with_porcupine({f"o{number}": each for number, each in enumerate(many)}, Path(directory) / "history.jsonl")


# --- histories as they come ------------------------------------------------------------------------


def one_register(chance: random.Random, length: int, callers: int, unknown: float = 0.2, label: str = "") -> list[RegisterWrite | Read]:
    """What `callers` at once do to one real register, and what they are told.

    `unknown`: the share of writes that take effect late or never.
    """
    clock, value = itertools.count(), None
    begun: list[RegisterWrite | Read] = []
    decided: list[RegisterWrite | Read] = []
    late: list[RegisterWrite] = []
    operations: list[RegisterWrite | Read] = []
    while len(operations) < length or begun or decided:
        match chance.choice(["begin", "effect", "answer", "late"]):
            case "begin" if len(operations) < length and len(begun) + len(decided) < callers:
                began = next(clock)
                kinds: Operations = [read(None, began, None), delete(began, None), put(f"{label}{began}", began, None)]
                [new] = chance.choices(kinds, [2, 1, 3])
                operations.append(new)
                begun.append(new)
            case "effect" if begun:
                each = begun.pop(chance.randrange(len(begun)))
                if isinstance(each, Read):
                    each.found = value
                elif chance.random() < unknown:
                    each.answer = UNKNOWN
                    late.append(each)
                elif chance.random() < 0.2:
                    each.answer = chance.choice([NO, OVER])
                else:
                    each.answer = chance.choice([OK, OK, OVER])
                    value = each.value
                if not (isinstance(each, RegisterWrite) and each.answer is UNKNOWN and chance.random() < 0.5):
                    decided.append(each)
            case "answer" if decided:
                decided.pop(chance.randrange(len(decided))).ended = next(clock)
            case "late" if late and chance.random() < 0.2:
                value = late.pop(chance.randrange(len(late))).value
    return operations


@pytest.mark.parametrize(("length", "callers"), [(20, 3), (60, 5), (60, 10)])
def test_what_a_real_register_answers_is_explained(length: int, callers: int) -> None:
    for seed in range(300):
        assert unexplained(*one_register(random.Random(seed), length, callers)) == [], f"seed {seed}"


def test_many_unknown_writes_do_not_slow_the_search_down() -> None:
    """Each subset of them would be a state of its own, were they placed where nobody reads them."""
    chance = random.Random(1)
    unread = [put(f"u{number}", number, None, UNKNOWN) for number in range(200)]
    deletes = [delete(200 + number, None, UNKNOWN) for number in range(40)]
    puts = [
        each for at in range(300, 660, 9) for each in (put(f"p{at}", at, at + 1), read(None, at + 2, at + 3))
    ]  # fmt: skip
    chance.shuffle(unread)
    assert unexplained(*unread, *deletes, *puts) == []
    [sentence] = unexplained(*unread, *deletes, *puts, put("last", 1000, 1001), read(None, 1002, 1003))
    assert "explains the read of None [1002, 1003]" in sentence


def test_every_order_of_many_writes_at_once_is_not_tried_again() -> None:
    """11 writes and their reads in any order.

    40 million orders lead to 6,000 states, and none of them to the stale read.
    """
    writes = [put(f"p{number}", number, 200 + number) for number in range(11)]
    reads = [read(f"p{number}", 100 + number, 300 + number) for number in range(11)]
    [sentence] = unexplained(*writes, *reads, put("z", 400, 401), read("p0", 402, 403))
    assert "explains the read of 'p0' [402, 403]" in sentence


# --- planted violations ----------------------------------------------------------------------------


PLANTED: dict[str, Operations] = {
    "a stale read": [put("x", 1, 2), put("y", 3, 4), read("y", 5, 6), read("x", 7, 8)],
    "a lost acknowledged put": [put("x", 1, 2), put("y", 3, 5), read("x", 6, 7)],
    "a lost acknowledged put, and nothing instead": [put("x", 1, 2), read(None, 3, 4)],
    "a refused put is read": [put("x", 1, 3, NO), read("x", 4, 5)],
    "a put that was over comes back": [put("x", 1, 2, OVER), put("y", 3, 4), read("y", 5, 6), read("x", 7, 8)],
    "two readers see two puts in two orders": [
        put("x", 1, 8), put("y", 2, 9), read("x", 3, 5), read("y", 4, 6), read("y", 10, 12), read("x", 11, 13), read("y", 14, 15),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_violation_is_found_amid_what_a_real_register_answered(name: str) -> None:
    for seed in range(50):
        chance = random.Random(seed)
        before, after = (one_register(chance, 20, 4, unknown=0.0, label=label) for label in ("before", "after"))
        planted = [*before, *moved(PLANTED[name], 1000), *moved(after, 2000)]
        # After the plant the register is back at None, as `after` takes it to be.
        planted.append(delete(1990, 1991))
        chance.shuffle(planted)
        [sentence] = unexplained(*planted)
        assert " [10" in sentence.splitlines()[0], f"seed {seed}: {sentence}"


def moved(operations: Operations, by: int) -> list[RegisterWrite | Read]:
    return [replace(each, began=each.began + by, ended=None if each.ended is None else each.ended + by) for each in operations]
