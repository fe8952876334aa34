"""The protocol in TLA+ (docs/protocol) holds, says TLC; the published one breaks.

Each guard is needed for what the page says.
"""

from __future__ import annotations

import os
import re
from functools import cache

import pytest

from docs.protocol.check import (
    GUARDS,
    HERE,
    KNOCK_OUTS,
    SCENARIOS,
    SMALL,
    VERDICTS,
    KnockOut,
    NoTlcError,
    Result,
    check,
    check_without,
    claims,
    find_tlc,
    lines_taken,
    main,
)  # fmt: skip
from tests.given.repository import ROOT
from tests.suites import share

PAGE = (ROOT / "docs" / "protocol.md").read_text()


@pytest.fixture(scope="module")
def _tlc() -> None:
    """Where there is no TLC, what needs it is skipped; where CI is set, it fails."""
    try:
        find_tlc()
    except NoTlcError as missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(missing))


needs_tlc = pytest.mark.usefixtures("_tlc")
pytestmark = pytest.mark.slow


def generated(name: str) -> str:
    """What the command has written between two marks of the page."""
    return PAGE.partition(f"<!-- {name} -->")[2].partition(f"<!-- end of {name} -->")[0]


@cache
def searched(name: str) -> Result:
    return check(SCENARIOS[name])


@cache
def searched_without(knock_out: KnockOut) -> Result:
    return check_without(knock_out)


@needs_tlc
@pytest.mark.parametrize("name", share(SMALL, 24))
def test_the_protocol_holds_in_every_interleaving(name: str) -> None:
    result = searched(name)
    assert result.verdict == "", "\n".join(result.trace)


@needs_tlc
@pytest.mark.parametrize("name", share(list(SCENARIOS), 32))
def test_the_published_protocol_breaks_in_every_scenario(name: str) -> None:
    assert check(SCENARIOS[name], ()).verdict


@needs_tlc
@pytest.mark.parametrize("knock_out", share(KNOCK_OUTS, 16), ids=lambda knock_out: "-".join(knock_out.guards))
def test_what_follows_without_a_guard(knock_out: KnockOut) -> None:
    assert SCENARIOS[knock_out.scenario].small, "where it holds with all guards is searched through in these tests"
    assert searched_without(knock_out).verdict == knock_out.verdict


@needs_tlc
def test_a_release_lets_an_instance_renew_what_it_has_claimed_twice() -> None:
    """docs/decisions/recovery.md, 6: known, and harmless, because leases are."""
    released = claims(releases=True)
    assert check(released).verdict == "SHARED"
    assert check(released, tuple(GUARDS), set(VERDICTS["Claims"]) - {"SHARED"}).verdict == ""


WITHOUT_GUARDS = {"records its change", "finds its upload done", "no answer: told over", "sends its inline write again"}
"""Steps that only a protocol without one of the guards takes."""


@needs_tlc
@pytest.mark.night
def test_every_step_of_the_module_is_taken_in_a_small_scenario() -> None:
    """With all guards on: a protocol that never does anything would hold, too."""
    lines = (HERE / "Protocol.tla").read_text().splitlines()
    steps = {number: found[1] for number, line in enumerate(lines, 1) if (found := re.search(r'/\\ Does\(.*?<<.*?"([^"]+)"', line))}
    assert len(steps) > 50
    taken = set().union(*(lines_taken(SCENARIOS[name]) for name in SMALL if SCENARIOS[name].module == "Protocol"))
    assert set(steps.values()) - {steps[number] for number in steps.keys() & taken} == WITHOUT_GUARDS


def test_the_page_tells_what_the_command_would_write() -> None:
    """Its tables name what there is. The night's command fails where a verdict is another one."""
    told = re.findall(r"([^;:]+): (\d+)", " ".join(generated("scenarios").split()))
    assert {name.strip() for name, _ in told} == set(SCENARIOS)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in generated("guards").strip().splitlines()[2:]]
    assert [(row[0], row[3]) for row in rows] == [(" and ".join(f"`{g}`" for g in k.guards), k.scenario) for k in KNOCK_OUTS]


def test_every_guard_stands_in_a_module_and_in_a_row() -> None:
    modules = "".join(path.read_text() for path in HERE.glob("*.tla"))
    assert set(GUARDS) == {guard for knock_out in KNOCK_OUTS for guard in knock_out.guards}
    assert [guard for guard in GUARDS if f'"{guard}"' not in modules] == []


@needs_tlc
def test_the_command_says_one_line_for_each_scenario_and_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["large", "-v"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^large +ours +245 states  holds$", out, re.MULTILINE)
    assert re.search(r"^large +published +LEAK in 3 steps$", out, re.MULTILINE)
    assert "    A: sends the end of its upload" in out


def test_the_command_refuses_a_scenario_that_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lagre"]) == 2
    assert capsys.readouterr().out.startswith("there is no scenario 'lagre'; choose among: large, ")
    assert main(["--al"]) == 2
