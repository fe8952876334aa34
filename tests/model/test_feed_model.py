"""The feed's writer on paper (docs/protocol/feed_model.py) holds; the published order leaks. Each guard is needed."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest

from docs.protocol.feed_model import check_without, main
from docs.protocol.feed_reader import frontier, misled
from docs.protocol.feed_scenarios import KNOCK_OUTS, SCENARIOS
from docs.protocol.feed_state import GUARDS, OURS, PUBLISHED, Message
from docs.protocol.feed_world import World
from docs.protocol.search import Result, check
from tests.given.heard_model import HeardScenario
from tests.given.repository import ROOT
from tests.suites import share

SMALL = [name for name, scenario in SCENARIOS.items() if scenario.small]
PAGE = (ROOT / "docs" / "feed-model.md").read_text()


def rows(table: str) -> list[list[str]]:
    """The cells of a generated table of the page."""
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in generated(table).strip().splitlines()[2:]]


def generated(name: str) -> str:
    """What the command has written between two marks of the page."""
    return PAGE.partition(f"<!-- {name} -->")[2].partition(f"<!-- end of {name} -->")[0]


@cache
def searched(name: str) -> tuple[Result, set[str]]:
    heard = HeardScenario(World(SCENARIOS[name]))
    return check(heard), heard.labels


@cache
def searched_without(guard: str) -> Result:
    return check_without(guard)


@pytest.mark.parametrize("name", share(SMALL, 6))
def test_the_design_holds_in_every_interleaving(name: str) -> None:
    result, _ = searched(name)
    assert str(result) == "holds", "\n".join(line for trace in result.found.values() for line in trace)


@pytest.mark.parametrize("guard", share(list(GUARDS), 6))
def test_a_guard_that_is_knocked_out_is_missed(guard: str) -> None:
    knock_out = KNOCK_OUTS[guard]
    assert knock_out.kind in searched_without(guard).found
    if SCENARIOS[knock_out.scenario].small:
        assert str(searched(knock_out.scenario)[0]) == "holds"
    else:
        assert str(check(World(SCENARIOS[knock_out.scenario]))) == "holds"


def test_the_published_order_leaks_what_a_failed_transaction_sent() -> None:
    assert list(check(World(SCENARIOS["sink, staged again"], PUBLISHED)).found) == ["LEAKED"]


def test_progress_that_begins_at_0_needs_no_bootstrap() -> None:
    """docs/decisions/feed.md, 95: trusting progress alone needs the first interval to begin at 0, and no empty one."""
    scenario = replace(SCENARIOS["sink"], first_lower=0)
    assert str(check(World(scenario, OURS.without("bootstrap")))) == "holds"


@pytest.mark.parametrize("guard", ["raise_epoch", "own_epoch", "reopen"])
@pytest.mark.parametrize("name", ["from nothing", "commit without an answer"])
def test_a_commit_without_a_difference_that_raises_seq_fences_too(name: str, guard: str) -> None:
    """These three guards then protect the names of staged bytes alone, and are a second fence for the rest."""
    scenario = replace(SCENARIOS[name], counts_each=True)
    assert str(check(World(scenario, OURS.without(guard)))) == "holds"


HAPPENS = (
    "takes effect", "begins over nothing", "is kept", "is fenced", "finds the checkpoint changed", "is told that the gap is set",
    "no difference", "commits nothing new", "commits no update", "commits -1", "without an answer: begins anew", "arrives late",
    "has no answer to its commit", "writes its index: nothing", "writes the journal of time 1", "finds time 0 delivered",
    "the sink gets time 1", "is acknowledged and removed", "deletes 1, 3 for change", "forgets change 2", "and looks at object",
    "recovery sets the gap", "recovery deletes 3", "recovery forgets", "lands", "is lost", "opens: epoch 2",
)  # fmt: skip


@pytest.mark.night
def test_what_the_model_is_about_happens_in_the_small_scenarios() -> None:
    """With all guards on: a writer that never does anything would be safe, too."""
    text = "\n".join(set().union(*(searched(name)[1] for name in SMALL)))
    assert [each for each in HAPPENS if each not in text] == []


def progress(lower: int, upper: int, *counts: tuple[int, int]) -> Message:
    return ("progress", upper, lower, tuple((time, count, 0) for time, count in counts))


def updates(time: int, *some: tuple[int, int, int]) -> Message:
    return ("update", time, 0, some)


PUT = (0, 1, 1)
OTHER = (0, 2, 1)


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        ({progress(0, 2, (1, 1)), updates(1, PUT)}, ""),
        ({progress(0, 2, (1, 1))}, ""),
        ({updates(1, OTHER)}, ""),
        ({progress(0, 2, (1, 1)), updates(1, OTHER)}, "LEAKED: a reader takes"),
        ({progress(0, 2, (1, 1)), updates(1, PUT), updates(1, OTHER)}, "LEAKED: of 2 updates at time 1"),
        ({progress(0, 2, (1, 1)), progress(1, 2)}, "LEAKED: two progress messages"),
    ],
)
def test_what_misleads_a_reader_is_found(sent: set[Message], found: str) -> None:
    said = misled(frozenset(sent), ((1, (PUT,)),))
    assert said.startswith(found) and bool(said) == bool(found)


def test_a_reader_goes_as_far_as_progress_and_updates_reach() -> None:
    assert frontier(frozenset({progress(1, 2)})) == 0
    assert frontier(frozenset({progress(0, 1), progress(1, 3, (1, 1))})) == 1
    assert frontier(frozenset({progress(0, 1), progress(1, 3, (1, 1)), updates(1, PUT)})) == 3


@pytest.mark.night
def test_the_page_tells_what_the_model_finds() -> None:
    """Those rows of its tables that are quickly checked."""
    told = dict(re.findall(r"([^;:]+): (\d+)", " ".join(generated("scenarios").split())))
    told = {name.strip(): states for name, states in told.items()}
    assert set(told) == set(SCENARIOS)
    for name in SMALL:
        result, _ = searched(name)
        assert (told[name], "holds") == (str(result.states), str(result))
    guards = {guard: (scenario, kind, int(steps)) for guard, _, scenario, kind, steps in rows("guards")}
    assert set(guards) == set(GUARDS) == set(KNOCK_OUTS)
    for guard, (scenario, kind, steps) in guards.items():
        assert scenario == KNOCK_OUTS[guard].scenario
        assert len(searched_without(guard).found[kind]) - 1 == steps, guard


def test_the_page_names_every_file_of_the_model() -> None:
    files = {path.name for path in (ROOT / "docs" / "protocol").glob("feed_*.py")}
    assert files <= set(re.findall(r"\w+\.py", PAGE))


def test_the_command_says_one_line_for_each_scenario_and_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sink, staged again", "-v"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^sink, staged again +ours +\d+ states  holds$", out, re.MULTILINE)
    assert "LEAKED: of 3 updates at time 1" in out


def test_the_command_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snik"]) == 2
    assert capsys.readouterr().out.startswith("there is no scenario 'snik'; choose among: put, ")
    assert main(["--al"]) == 2
    assert main(["--docs"]) == 2
