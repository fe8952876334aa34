"""The protocol on paper (docs/protocol) holds; the published one breaks.

Each guard is needed for what the page says.
"""

from __future__ import annotations

import re
from functools import cache

import pytest

from docs.protocol.leases import Claims, ClaimScenario
from docs.protocol.model import main
from docs.protocol.scenarios import KNOCK_OUTS, SCENARIOS, world
from docs.protocol.search import ANY, Result, World, check
from docs.protocol.state import GUARDS, OURS, PUBLISHED
from tests.given.heard_model import HeardScenario
from tests.given.repository import ROOT

SMALL = [name for name, scenario in SCENARIOS.items() if scenario.small]
PAGE = (ROOT / "docs" / "protocol.md").read_text()


def rows(table: str) -> list[list[str]]:
    """The cells of a generated table of the page."""
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in generated(table).strip().splitlines()[2:]]


def generated(name: str) -> str:
    """What the command has written between two marks of the page."""
    return PAGE.partition(f"<!-- {name} -->")[2].partition(f"<!-- end of {name} -->")[0]


@cache
def searched(name: str) -> tuple[Result, set[str]]:
    heard = HeardScenario(world(name, OURS))
    return check(heard), heard.labels


@cache
def searched_without(guard: str, scenario: str, kind: str) -> Result:
    return check(world(scenario, OURS.without(guard)), until=kind)


@pytest.mark.parametrize("name", SMALL)
def test_the_protocol_holds_in_every_interleaving(name: str) -> None:
    result, _ = searched(name)
    assert str(result) == "holds", "\n".join(line for trace in result.found.values() for line in trace)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_published_protocol_breaks_in_every_scenario(name: str) -> None:
    assert check(world(name, PUBLISHED), until=ANY).found


@pytest.mark.parametrize("guard", GUARDS)
def test_a_guard_that_is_knocked_out_is_missed(guard: str) -> None:
    knock_out = KNOCK_OUTS[guard]
    assert SCENARIOS[knock_out.scenario].small, "where it holds with all guards is searched through in these tests"
    assert knock_out.kind in searched_without(guard, knock_out.scenario, knock_out.kind).found


def test_requests_that_could_only_conflict_may_be_dropped() -> None:
    """The reduction that the search uses hides nothing: without it, more states and the same result."""
    for name in ("large", "large over blob", "single", "delete", "small over blob", "two days"):
        reduced, whole = world(name, OURS), world(name, OURS)
        assert isinstance(whole, World)
        whole._drops = False
        few, many = check(reduced), check(whole)
        assert (str(few), str(many)) == ("holds", "holds")
        assert few.states < many.states


HAPPENS = (
    "claims _, settles _, live", "claims _ after the grace", "leaves _ to wait out the grace", "cancels the upload", "stops",
    "lease has ended before its swap", "lease has ended before its upload", "is too old to swap", "sends its swap again",
    "won; caller told ok", "superseded by _; caller told ok", "neither won nor superseded; caller told no", "caller told over",
    "settles _, live; caller told ok", "refused; caller told that it is over", "reads the row; caller told ok",
    "is gone", "the row has changed", "extends the row", "told that _ took effect", "told that _ had no effect", "told nothing",
    "lifecycle deletes the expired blob", "the expired object is collected", "the old mark w:_ is collected", "arrives late",
    "swap _ (_ -> _) conflicts; _ is told", "put_inline _ conflicts", "end of upload _ takes effect; no answer",
)  # fmt: skip


def test_what_the_model_is_about_happens_in_the_small_scenarios() -> None:
    """With all guards on: a protocol that never does anything would hold, too."""
    labels = set().union(*(searched(name)[1] for name in SMALL))
    text = "\n".join(re.sub(r"\b([A-Z]|old(?! mark| to))\b", "_", label) for label in labels)
    assert [each for each in HAPPENS if each not in text] == []


def test_a_release_lets_an_instance_renew_what_it_has_claimed_twice() -> None:
    """docs/decisions/recovery.md, 6: known, and harmless, because leases are."""
    assert list(check(Claims(ClaimScenario(("R1", "R2", "S"), releases=True), OURS)).found) == ["SHARED"]


def test_the_page_tells_what_the_model_finds() -> None:
    """Those rows of its tables that are quickly checked."""
    told = dict(re.findall(r"([^;:]+): (\d+)", " ".join(generated("scenarios").split())))
    told = {name.strip(): states for name, states in told.items()}
    assert set(told) == set(SCENARIOS)
    for name in SMALL:
        result, _ = searched(name)
        assert (told[name], "holds") == (str(result.states), str(result))
    guards = {guard: (scenario, kind, int(steps)) for guard, _, scenario, kind, steps in rows("guards")}
    assert set(guards) == set(GUARDS)
    for guard, (scenario, kind, steps) in guards.items():
        found = searched_without(guard, scenario, kind).found
        assert len(found[kind]) - 1 == steps, guard


def test_the_page_names_every_guard_and_nothing_that_is_gone() -> None:
    assert {"model.py", "state.py", "services.py", "writer.py", "others.py", "leases.py", "scenarios.py", "search.py"} <= set(
        re.findall(r"\w+\.py", PAGE)
    )


def test_the_command_says_one_line_for_each_scenario_and_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["large", "-v"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^large +ours +\d+ states  holds$", out, re.MULTILINE)
    assert "DANGLING: the row names A, which does not exist" in out


def test_the_command_refuses_a_scenario_that_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lagre"]) == 2
    assert capsys.readouterr().out.startswith("there is no scenario 'lagre'; choose among: large, ")
    assert main(["--al"]) == 2
