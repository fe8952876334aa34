"""The tables of judgement: each row judges a planted status, and command, JSON, page and metrics say the same of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from changelog.lease import DUE, EntryState
from recovery import states
from recovery.cli.exit_codes import OWN
from recovery.cli.status_lines import status_lines
from recovery.dangling import LostReads
from recovery.http.app import PAGE
from recovery.last_audit import Audits, LastAudit
from recovery.metrics import StatusMetrics
from recovery.states import CODES, COLOURS, TABLE, Level, State
from recovery.statistics.persisted import SOURCES
from recovery.statistics.verdict import SourceVerdict
from recovery.status.as_json import as_json
from recovery.status.judgement import REASONS, SUBJECTS, judge
from recovery.status.known import DISK_FULL_BYTES, Daemon, DiskStatus, Status, StuckEntries
from tests.given.repository import ROOT
from tests.given.shown_status import NOW_MS, ShownStatus, fed, healthy
from tests.recovery.status.test_levels import ONE, audit, entries, verdict

pytestmark = pytest.mark.anyio

FULL, READ_ONLY = DiskStatus(DISK_FULL_BYTES - 1, 10**9), DiskStatus(0, 10**9, True)
DEAD = [Daemon("recovery-gone", 4000.0, False)]


def paced(state: State, **parts: Any) -> dict[str, Any]:
    return {**verdict(state), "entries": entries(CLAIMABLE=1), **parts}


def fed_in(state: State) -> dict[str, Any]:
    known = fed().feed
    assert known is not None
    return {"feed": replace(known, state=state, why="So it is.")}


PLANTED: tuple[tuple[dict[str, Any], str, Level, int], ...] = (
    ({"audits": Audits((audit(dangling=2),))}, "data", Level.LOST, 6),
    ({"lost_reads": LostReads((ONE,)), "stuck": StuckEntries(1, True), "disk": FULL}, "data", Level.LOST, 6),
    ({"audits": Audits((audit(complete=False, destroyed=1),))}, "evidence", Level.UNKNOWN, 4),
    ({"disk": FULL}, "store", Level.STUCK, 6),
    ({"stuck": StuckEntries(1, False)}, "store", Level.STUCK, 6),
    ({"disk": READ_ONLY}, "store", Level.UNKNOWN, 4),
    ({"stuck": StuckEntries(0, False)}, "store", Level.UNKNOWN, 0),
    ({"away": ("long-term tier",)}, "services", Level.UNKNOWN, 4),
    ({"refusing": ("long-term tier",)}, "recovery", Level.UNKNOWN, 4),
    ({"old_s": 300.0, "answers": False, "complete": False, "stuck": StuckEntries(1, True)}, "age", Level.UNKNOWN, 4),
    ({"old_s": 300.0, "answers": False, "complete": False, "audits": Audits((audit(dangling=1),))}, "data", Level.LOST, 6),
    (paced(states.STALLED, daemons=DEAD), "recovery", Level.BEHIND, 1),
    (paced(states.STALLED), "recovery", Level.BEHIND, 1),
    (paced(states.FALLING_BEHIND), "recovery", Level.BEHIND, 1),
    ({"answers": False}, "recovery", Level.UNKNOWN, 4),
    ({"durable": False}, "recovery", Level.UNKNOWN, 0),
    ({"entries": entries(NEWER=1)}, "recovery", Level.UNKNOWN, 0),
    (paced(states.CATCHING_UP), "recovery", Level.OK, 0),
    (paced(states.HEALTHY), "recovery", Level.OK, 0),
    (verdict(states.UNKNOWN), "recovery", Level.OK, 0),
    (paced(states.UNKNOWN), "recovery", Level.UNKNOWN, 0),
    ({**verdict(states.UNKNOWN), "daemons": DEAD}, "daemons", Level.OK, 0),
    *((fed_in(state), "feed", state.level, CODES[state.level]) for state in TABLE["feed"]),
    ({"complete": False, "problems": ("why",)}, "look", Level.UNKNOWN, 4),
    ({"problems": ("why",)}, "look", Level.OK, 0),
    ({"still_s": 400.0}, "this daemon", Level.UNKNOWN, 4),
)


def planted(parts: dict[str, Any]) -> Status:
    return replace(healthy(), **parts)


def scraped(value: dict[str, Any]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(StatusMetrics(lambda: value, lambda: 1.0))
    return registry


def held(registry: CollectorRegistry, name: str, **labels: str) -> list[str]:
    """The values of the one other label for which the metric is 1."""
    samples = [sample for family in registry.collect() if family.name == name for sample in family.samples if sample.value]
    return [value for sample in samples if labels.items() <= sample.labels.items() for value in sample.labels.values()
            if value not in labels.values()]  # fmt: skip


def test_each_row_judges_a_status() -> None:
    """Who adds a row plants a status in which it judges."""
    judging = {id(reason) for parts, *_ in PLANTED for reason in judge(planted(parts)).judging.values()}
    assert [reason for reason in REASONS if id(reason) not in judging] == []
    assert {reason.subject for reason in REASONS} == set(SUBJECTS)


@pytest.mark.parametrize(("parts", "subject", "level", "code"), PLANTED)
async def test_all_views_of_a_row_agree(parts: dict[str, Any], subject: str, level: Level, code: int) -> None:
    found = planted(parts)
    judged, value, lines = judge(found), as_json(found), status_lines(found, None)
    reason = judged.judging[subject]
    assert (judged.level, judged.code) == (level, code)
    assert reason.sentence(found) in judged.headline
    assert list(Level).index(reason.level) <= list(Level).index(level)
    # the command
    assert (lines[0].text, lines[0].level) == (judged.headline, level)
    texts = [line.text for line in lines]
    assert [text.removeprefix("do        ") for text in texts if text.startswith("do        ")] == [order.why for order in judged.orders]
    # the JSON
    assert (value["level"], value["headline"]) == (level.value, judged.headline)
    assert value["orders"] == [{"why": order.why, "type": order.type} for order in judged.orders]
    # the metrics
    assert held(scraped(value), "tiered_status_level") == [level.value]
    # the page: what the daemon's server gives it, if it looked and saw this
    shown = ShownStatus(found, show_objects=True)
    await shown.sample()
    if shown.sampler.error is None and found.old_s is None and found.still_s is None:
        assert shown.view.status() == value


@pytest.mark.parametrize("state", TABLE["pace"], ids=lambda state: state.word)
@pytest.mark.parametrize("source", SOURCES)
def test_all_views_of_a_pace_agree(source: str, state: State) -> None:
    known = healthy().sources["audit"]
    found = planted({"feed": fed().feed, "sources": {source: replace(known, verdict=SourceVerdict(state))}})
    value = as_json(found)
    told = value["sources"][source]
    assert (told["verdict"]["kind"], told["level"]) == (state.word, state.level.value)
    assert held(scraped(value), "tiered_source_verdict", source=source) == [state.word]
    label = {"recovery": "recovery", "feed": "updates", "audit": "auditing"}[source]
    assert f"{label:<10}{state.word}" in [line.text for line in status_lines(found, None)]
    if source == "recovery" and state.level is not Level.UNKNOWN:
        assert judge(found).judging["recovery"].level is state.level and state.says in judge(found).headline


@pytest.mark.parametrize("state", TABLE["feed"], ids=lambda state: state.word)
def test_all_views_of_a_state_of_the_feed_agree(state: State) -> None:
    found = planted(fed_in(state))
    value, judged = as_json(found), judge(found)
    assert (value["feed"]["state"], value["feed"]["level"]) == (state.word, state.level.value)
    assert held(scraped(value), "tiered_feed_state") == [state.word]
    assert f"feed      {state.word}: So it is." in [line.text for line in status_lines(found, None)]
    assert judged.judging["feed"].level is state.level and state.says in judged.headline


AUDITED: dict[str, tuple[LastAudit, Level]] = {
    "clean": (audit(), Level.OK), "findings": (audit(orphan=1), Level.OK), "loss": (audit(dangling=1), Level.LOST),
    "incomplete": (audit(complete=False, dangling=1), Level.UNKNOWN),
}  # fmt: skip


@pytest.mark.parametrize("state", TABLE["audit"], ids=lambda state: state.word)
def test_all_views_of_how_an_audit_ended_agree(state: State) -> None:
    """Findings beside no loss are a matter of the audit: they change no answer about recovery."""
    run, level = AUDITED[state.word]
    found = planted({"audits": Audits((run,))})
    [told] = as_json(found)["audits"]
    assert (told["state"], told["level"]) == (state.word, state.level.value)
    assert judge(found).level is level
    begins = {"loss": "DATA LOSS"}.get(state.word, state.word)
    assert any(line.text.startswith(f"audit     {begins}: ") for line in status_lines(found, None))
    assert run.ended_ns < NOW_MS * 10**6


def test_the_page_knows_levels_and_no_state() -> None:
    """It had levels of its own for states: a feed that stood still was red there, and yellow in the answer above."""
    script, style = (PAGE / "page.js").read_text(), (PAGE / "page.css").read_text()
    [named] = re.findall(r"^const LEVELS = (\{.*\});", script, re.MULTILINE)
    assert set(json.loads(re.sub(r"(\w+):", r'"\1":', named))) == set(Level)
    words = {state.word for found in TABLE.values() for state in found} - set(Level)
    assert [word for word in sorted(words) if re.search(rf'[=!]==? "{word}"|[{{,] "?{word}"?:', script)] == []
    assert [level for level in Level if level is not Level.UNKNOWN and f'[data-level="{level}"]' not in style] == []
    assert set(CODES) == set(COLOURS) == set(Level)


def test_the_pages_list_each_word() -> None:
    """The page of metrics lacked a state of entries. Who adds a row of a table adds its word to both pages."""
    metrics, status = ((ROOT / "docs" / f"{name}.md").read_text() for name in ("metrics", "status"))
    lines = {name: next(line for line in metrics.splitlines() if line.startswith(f"| `{name}`")) for name in (
        "tiered_source_verdict", "tiered_feed_state", "tiered_entries", "tiered_status_level",
    )}  # fmt: skip
    missing = [
        (name, word) for name, words in (
            ("tiered_source_verdict", states.words(TABLE["pace"])), ("tiered_feed_state", states.words(TABLE["feed"])),
            ("tiered_entries", [each.name.lower() for each in EntryState]), ("tiered_status_level", list(Level)),
        ) for word in words if f"`{word}`" not in lines[name]
    ]  # fmt: skip
    assert missing == []
    assert [state.word for state in TABLE["feed"] if f"\n| {state.word} | " not in status] == []
    assert [state.word for state in TABLE["pace"] if f"*{state.word}*" not in status] == []
    assert [state.word for state in TABLE["audit"] if f"`{state.word}`" not in status] == []


def test_what_is_due_is_told_and_not_counted_by_the_page() -> None:
    found = planted({"entries": entries(**{each.name: 10 ** number for number, each in enumerate(EntryState)})})
    told = as_json(found)["entries"]["due"]
    assert told == sum(10 ** number for number, each in enumerate(EntryState) if each in DUE)
    assert "EXHAUSTED" not in re.sub(r"^const STATES = \{.*?\};", "", (PAGE / "page.js").read_text(), flags=re.MULTILINE | re.DOTALL)


def test_the_page_is_told_how_far_a_first_pass_is() -> None:
    """The page had the rule of its own that caps an estimate."""
    sources = as_json(healthy())["sources"]
    assert {name: source["percentage"] for name, source in sources.items()} == {"recovery": 100.0, "audit": 31.25}
    assert "Math.min(99" not in (PAGE / "page.js").read_text()


def test_the_help_lists_the_exit_codes_of_the_table() -> None:
    assert set(OWN["status"]) == set(CODES.values())
    assert set(OWN["feed status"]) == {CODES[state.level] for state in TABLE["feed"]}
