"""What `tiered status` and `tiered feed status` say of the change feed, and how its state is judged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from prometheus_client import CollectorRegistry

from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from recovery import states
from recovery.audit.finding_classes import FindingClass
from recovery.cli.status_lines import feed_lines, status_lines
from recovery.feed.writer.checkpoint import NOTE, Checkpoint, Pass
from recovery.feed.writer.positions import Position, note_name
from recovery.feed.writer.source import RetainedEntries
from recovery.last_audit import Audits, LastAudit
from recovery.metrics import StatusMetrics
from recovery.states import Level
from recovery.statistics.columns import SourceRow
from recovery.statistics.verdict import SourceVerdict
from recovery.status.as_json import as_json
from recovery.status.feed import off_reason, state_of
from recovery.status.judgement import judge
from recovery.status.known import FeedSink, FeedStatus, SourceStatus, Status, StoreIdentity
from tests.given.command_line import Command
from tests.given.shown_status import healthy
from tiered import Settings
from tiered.notes.feed_off import FeedOffNotice
from tiered.open import open_backends
from tiered.settings import FeedSettings

NOW_MS = 1_795_334_400_000
G = NOW_MS - 3_600_000
ONE, TWO = FeedSink("/var/feed", NOW_MS - 2000, 9, 0, 0.0), FeedSink("gs://bucket/feed", NOW_MS - 62_000, 5, 4, 60.0)
FAILING = replace(TWO, failing_since_ms=NOW_MS - 300_000, error="status 500")
CHECKPOINT = replace(
    Checkpoint.begin(G, "directory", "w", epoch=2), timestamp=NOW_MS - 2000, next=NOW_MS - 1999, lower=NOW_MS - 1999,
    bindings=((NOW_MS - 2000, 9),), live=7, passed=G + 1,
)  # fmt: skip
SCAN = Pass(b"k", 40, 100, estimated=True, withheld=True, began=G, scanned=3)
SETTINGS = FeedSettings(enabled=True, to=(ONE.name, TWO.name))
ROW = SourceRow("feed", "w", "r")
WORKS = SourceStatus(ROW, {"w": ROW}, SourceVerdict(states.HEALTHY), NOW_MS)


def feed(checkpoint: Checkpoint | None = CHECKPOINT, *, sinks: tuple[FeedSink, ...] = (ONE, TWO), **values: Any) -> FeedStatus:
    """A feed that is well."""
    frontier_ms = checkpoint.frontier or None if checkpoint is not None else None
    well = FeedStatus(
        states.FEED_LIVE, "", True, checkpoint, frontier_ms, None if frontier_ms is None else (NOW_MS - frontier_ms) / 1000,
        RetainedEntries(3, False, NOW_MS - 1000), 1.0, 86_400.0, sinks, "directory",
    )  # fmt: skip
    return replace(well, **values)


def judged(found: FeedStatus, source: SourceStatus | None = WORKS) -> FeedStatus:
    state, why = state_of(found, SETTINGS, source)
    return replace(found, state=state, why=why)


OLD = replace(CHECKPOINT, lower=NOW_MS - 900_000)
FIRST = replace(CHECKPOINT, lower=0, passed=None, scan=SCAN)


@pytest.mark.parametrize(("found", "source", "state", "why"), [
    (feed(), WORKS, "live", ""),
    (feed(), None, "live", ""),
    (feed(enabled=False), WORKS, "off", "feed.enabled"),
    (feed(None), None, "no writer yet", "No writer has ever begun it."),
    (feed(FIRST), WORKS, "first pass", "about 40 % are read"),
    (feed(replace(FIRST, scan=None)), WORKS, "first pass", "before it has read all rows."),
    (feed(FIRST), None, "stalled", "No writer gives a sign of life."),
    (feed(FIRST), replace(WORKS, fresh=False), "stalled", "no sign of life any more"),
    (feed(OLD), replace(WORKS, workers={}), "stalled", "Its writer has ended, and no other one works."),
    (feed(replace(CHECKPOINT, closed=True)), WORKS, "ended", "ended in good order, and no other one works."),
    (feed(replace(CHECKPOINT, closed=True), sinks=(ONE,), kept_age_s=18 * 3600.0), None, "ended", "and no other one works."),
    (feed(replace(OLD, closed=True), kept_age_s=20 * 3600.0), None, "stalled", "although entries wait"),
    (feed(replace(OLD, closed=True), kept_age_s=27 * 3600.0, hold_max_s=7 * 86_400.0), None, "stalled", "although entries wait"),
    (feed(sinks=(FAILING,)), WORKS, "stalled", "No sink takes anything: gs://bucket/feed: status 500"),
    (feed(sinks=(ONE, FAILING)), WORKS, "behind", "A sink fails: gs://bucket/feed: status 500"),
    (feed(), replace(WORKS, verdict=SourceVerdict(states.STALLED)), "stalled", "not every sink acknowledges any."),
    (feed(sinks=(ONE,)), replace(WORKS, verdict=SourceVerdict(states.STALLED)), "stalled",
    "Every sink has all updates, and entries wait that nobody finishes."),
    (feed(sinks=(ONE, FAILING)), replace(WORKS, verdict=SourceVerdict(states.STALLED)), "behind",
    "A sink fails: gs://bucket/feed: status 500"),
    (feed(FIRST, sinks=(ONE, FAILING)), WORKS, "behind", "A sink fails: gs://bucket/feed: status 500"),
    (feed(replace(CHECKPOINT, closed=True, gap=True), sinks=(ONE,)), None, "behind", "no progress before a writer has read all rows."),
    (feed(replace(FIRST, closed=True), sinks=(ONE,)), None, "behind", "no progress before a writer has read all rows."),
    (feed(), replace(WORKS, verdict=SourceVerdict(states.FALLING_BEHIND)), "behind", "falling behind"),
    (feed(), replace(WORKS, verdict=SourceVerdict(states.STALLED), fresh=False), "live", ""),
    (feed(replace(CHECKPOINT, gap=True)), WORKS, "behind", "before it publishes progress."),
    (feed(replace(CHECKPOINT, scan=SCAN)), WORKS, "behind", "about 40 % are read"),
    (feed(replace(CHECKPOINT, scan=replace(SCAN, withheld=False))), WORKS, "live", ""),
    (feed(replace(CHECKPOINT, gap=True, scan=replace(SCAN, known=None))), WORKS, "behind", "before it publishes progress."),
    (feed(OLD), WORKS, "behind", "Its frontier is old."),
    (feed(replace(CHECKPOINT, store="bigtable:p/i/t+gcs:b")), WORKS, "stalled", "feed of the store 'bigtable:p/i/t+gcs:b', and this"),
    (feed(replace(CHECKPOINT, closed=True), sinks=(ONE, FAILING)), WORKS, "behind", "although a sink fails: gs://bucket/feed: status"),
    (feed(replace(CHECKPOINT, closed=True), sinks=(FAILING,)), WORKS, "stalled", "although a sink fails: gs://bucket/feed: status"),
    (feed(replace(CHECKPOINT, closed=True)), None, "ended", "A sink does not have all updates yet."),
    (feed(replace(CHECKPOINT, closed=True), frontier_age_s=27 * 3600.0), None, "stalled", "although a sink does not have all updates."),
    (feed(sinks=(ONE, replace(TWO, known=False))), WORKS, "unknown", "How far a sink is could not be read."),
    (feed(frontier_age_s=0.0, ahead_s=7200.0), replace(WORKS, fresh=False), "unknown", "Its frontier lies 7,200 s ahead"),
    (feed(frontier_age_s=0.0, ahead_s=7200.0), WORKS, "live", ""),
])  # fmt: skip
def test_each_state_has_its_reason(found: FeedStatus, source: SourceStatus | None, state: str, why: str) -> None:
    now = judged(found, source)
    assert now.state.word == state
    assert why in now.why and bool(why) == bool(now.why)


def test_processes_with_the_feed_off_are_counted() -> None:
    over, *working = [FeedOffNotice(name, NOW_MS - 1000, ended=name == "over") for name in ("over", "one", "two", "three")]
    assert off_reason([over, *working], NOW_MS).endswith("set feed.enabled there ('one', and 2 others).")
    assert off_reason(working[:2], NOW_MS).endswith("('one', and 1 other).") and off_reason(working[:1], NOW_MS).endswith("there ('one').")
    assert off_reason([over], NOW_MS).startswith("Changes were made") and off_reason([], NOW_MS) == ""


@pytest.mark.parametrize(("age_s", "every_s", "young"), [
    (30.0, 2.0, True), (31.0, 2.0, False), (90.0, 30.0, True), (91.0, 30.0, False), (None, 30.0, False),
])  # fmt: skip
def test_how_old_a_young_frontier_is(age_s: float | None, every_s: float, young: bool) -> None:
    settings = SETTINGS.model_copy(update={"progress_every_s": every_s})
    found = feed(frontier_age_s=age_s)
    assert state_of(found, settings, None)[0] is (states.FEED_LIVE if young else states.FEED_STALLED)
    assert state_of(found, settings, WORKS)[0] is (states.FEED_LIVE if young else states.FEED_BEHIND)


def test_a_checkpoint_that_cannot_be_read_is_said_to_be_so() -> None:
    assert state_of(feed(None, unread=True), SETTINGS, WORKS) == (states.FEED_UNKNOWN, "Its checkpoint could not be read.")


def status(found: FeedStatus) -> Status:
    return replace(healthy(), at_ms=NOW_MS, store=StoreIdentity("embedded", "s"), feed=found)


def test_a_feed_that_is_well_changes_no_answer_and_has_its_lines() -> None:
    found = status(feed())
    assert (judge(found).level, judge(found).headline) == (Level.OK, "Recovery keeps up.")
    shown = "\n".join(line.text for line in feed_lines(found, feed(), None))
    assert shown == """\
feed      live
frontier  complete up to 2026-11-22T07:59:58Z, 2 s ago
          generation 1795330800000, begun 2026-11-22T07:00:00Z; epoch 2
          9 updates committed, 7 live references
gap       no
waiting   3 entries, the oldest for 1 s; at most 1 d, then recovery cleans up without the feed
sink      /var/feed
          has all up to 2026-11-22T07:59:58Z, 0 updates behind
sink      gs://bucket/feed
          has all up to 2026-11-22T07:58:58Z, 4 updates behind and 1 min"""
    assert all(line in [each.text for each in status_lines(found, None)] for line in shown.splitlines())


def test_a_feed_that_stands_still_is_in_the_answer_with_what_to_do() -> None:
    found = status(judged(feed(OLD), replace(WORKS, workers={})))
    assert judge(found).level is Level.BEHIND
    assert judge(found).headline == "Recovery keeps up. The change feed stands still."
    assert [order.type for order in judge(found).orders] == ["tiered feed run"]
    waits = status(judged(feed(None)))
    now = judge(waits)
    assert (now.level, now.headline) == (Level.BEHIND, "Recovery keeps up. Nobody takes up what the change feed must publish.")


HAS_ENDED = "The writer of the change feed has ended, and no other one works now."


@pytest.mark.parametrize(("feed_of", "level", "code", "said"), [
    (judged(feed(OLD)), Level.BEHIND, 1, "The change feed is behind."),
    (judged(feed(sinks=(ONE, FAILING))), Level.BEHIND, 1, "The change feed is behind."),
    (judged(feed(None, kept=RetainedEntries(0, False, None), kept_age_s=None)), Level.BEHIND, 1,
    "Nobody takes up what the change feed must publish."),
    (judged(feed(frontier_age_s=0.0, ahead_s=7200.0), None), Level.UNKNOWN, 4, "It is not known whether the change feed keeps up."),
    (judged(feed(FIRST)), Level.OK, 0, ""),
    (judged(feed(replace(CHECKPOINT, closed=True)), None), Level.OK, 0, HAS_ENDED),
    (judged(feed(enabled=False)), Level.OK, 0, ""),
])  # fmt: skip
def test_status_was_greener_than_feed_status(feed_of: FeedStatus, level: Level, code: int, said: str) -> None:
    found = status(feed_of)
    assert (judge(found).level, judge(found).code) == (level, code)
    assert judge(found).headline == f"Recovery keeps up. {said}".strip()


def test_a_failing_sink_and_a_near_bound_are_told() -> None:
    found = status(judged(feed(sinks=(ONE, FAILING), kept_age_s=80_000.0)))
    assert [order.why.partition(".")[0] for order in judge(found).orders] == [
        "The sink gs://bucket/feed takes nothing", "Deletions have waited for the change feed for almost feed",
    ]
    shown = [line.text.strip() for line in status_lines(found, None)]
    assert "has all up to 2026-11-22T07:58:58Z, 4 updates behind and 1 min; it fails since 5 min ago:" in shown
    assert "status 500" in shown
    lost = status(judged(feed(sinks=(replace(FAILING, error="run 'tiered feed run --new-generation'"),))))
    assert "run `tiered -d s feed run --new-generation`" in [line.text.strip() for line in status_lines(lost, None, "tiered -d s")]


def test_what_is_not_known_is_called_unknown() -> None:
    found = feed(None, sinks=(FeedSink("/var/feed", known=False),), kept=None, kept_age_s=None, state=states.FEED_UNKNOWN, why="why")
    shown = [line.text for line in feed_lines(status(found), found, None)]
    assert shown == [
        "feed      unknown: why", "waiting   unknown", "sink      /var/feed", "          unknown: its position could not be read",
    ]


def test_the_metrics_show_the_feed_and_leave_out_what_is_not_known() -> None:
    def shown(found: FeedStatus) -> CollectorRegistry:
        registry = CollectorRegistry()
        registry.register(StatusMetrics(lambda: as_json(status(found)), lambda: 1.0))
        return registry

    well = shown(feed(sinks=(ONE, FAILING)))
    assert well.get_sample_value("tiered_feed_state", {"state": "live"}) == 1
    assert well.get_sample_value("tiered_feed_frontier_age_seconds") == 1.999
    assert well.get_sample_value("tiered_feed_waiting_oldest_age_seconds") == 1
    assert well.get_sample_value("tiered_feed_hold_max_seconds") == 86_400
    assert well.get_sample_value("tiered_feed_sink_failing", {"sink": "gs://bucket/feed"}) == 1
    assert well.get_sample_value("tiered_feed_sink_behind_updates", {"sink": "gs://bucket/feed"}) == 4
    unknown = shown(feed(None, sinks=(FeedSink("s", known=False),), kept=None, kept_age_s=None))
    for name in ("tiered_feed_epoch", "tiered_feed_waiting_entries", "tiered_feed_frontier_age_seconds"):
        assert unknown.get_sample_value(name) is None
    assert unknown.get_sample_value("tiered_feed_sink_failing", {"sink": "s"}) is None


def test_an_error_that_may_name_an_object_is_hidden_with_the_names() -> None:
    sink = replace(FAILING, error="cannot write photos/objects/cat.jpg: full")
    found = as_json(status(judged(feed(sinks=(sink,)))), show_objects=False)["feed"]
    assert "cat.jpg" not in json.dumps(found)
    assert "cat.jpg" in json.dumps(as_json(status(judged(feed(sinks=(sink,)))))["feed"])


# --- the command ---------------------------------------------------------------------------------------


@pytest.fixture
def tiered(tmp_path: Path) -> Command:
    return Command(tmp_path)


def planted(store: Path, notes: dict[str, bytes]) -> None:
    """Stores notes, and keeps one entry."""
    async def run() -> None:
        runtime = SystemRuntime()
        async with open_backends(Settings(directory=store), runtime) as backends:
            for name, value in notes.items():
                assert await backends.log.swap_note(name, None, value)
            entry = await backends.log.record(Change(ChangeId.new(runtime), "notes/objects/k"), "writer")
            assert await backends.log.keep(entry)

    anyio.run(run)


def test_the_command_says_what_the_notes_say(tiered: Command, tmp_path: Path) -> None:
    tiered.environment |= {"TIERED_FEED__ENABLED": "1", "TIERED_FEED__TO": json.dumps([ONE.name, TWO.name])}
    broken = Position(TWO.name, G).to_bytes()[:-1]
    good = Position(ONE.name, G, 5, 4).to_bytes()
    planted(tiered.store, {NOTE: CHECKPOINT.to_bytes(), note_name(ONE.name): good, note_name(TWO.name): broken})
    value = json.loads(tiered("--json", "feed", "status", code=1))
    assert (value["state"], value["kept"]["entries"], value["records"]) == ("stalled", 1, 9)
    assert [sink["known"] for sink in value["sinks"]] == [True, False]
    text = tiered("feed", "status", code=1)
    assert f"problem   the position of the sink {TWO.name} could not be read: the note {note_name(TWO.name)}" in text
    assert json.loads(tiered("--json", "status", code=1))["feed"]["state"] == "stalled"


def test_a_feed_that_has_published_nothing_has_no_frontier(tiered: Command) -> None:
    """Frontier 1 is the beginning of every generation, and no moment of 1970."""
    tiered.environment |= {"TIERED_FEED__ENABLED": "1"}
    first = replace(CHECKPOINT, timestamp=0, next=1, lower=1, bindings=(), passed=None, scan=SCAN)
    planted(tiered.store, {NOTE: first.to_bytes()})
    value = json.loads(tiered("--json", "feed", "status", code=1))
    assert (value["frontier"], value["frontier_age_s"], value["pass"]["percentage"]) == (None, None, 40.0)
    assert "1970" not in tiered("feed", "status", code=1)


@pytest.mark.parametrize("enabled", ["0", "1"])
def test_a_damaged_checkpoint_is_unknown_also_where_the_feed_is_off(tiered: Command, enabled: str) -> None:
    tiered.environment |= {"TIERED_FEED__ENABLED": enabled}
    planted(tiered.store, {NOTE: CHECKPOINT.to_bytes()[:-1]})
    assert json.loads(tiered("--json", "feed", "status", code=4))["state"] == "unknown"
    assert "the note feed is damaged" in tiered("feed", "status", code=4)


def test_without_a_feed_the_command_says_so(tiered: Command) -> None:
    planted(tiered.store, {})
    assert tiered("feed", "status") == "There is no change feed: feed.enabled is not set, and no writer has ever begun one.\n"
    assert json.loads(tiered("--json", "feed", "status"))["state"] is None
    assert json.loads(tiered("--json", "status"))["feed"] is None


def test_an_incomplete_audit_that_found_lost_data_ended_status_with_0() -> None:
    audit = LastAudit("r", "/a", 1, 2, False, 1, 1, {FindingClass.DANGLING.value: (1, 1)}, 2, 1, 0)
    found = replace(healthy(), audits=Audits((audit,)))
    assert (judge(found).level, judge(found).code) == (Level.UNKNOWN, 4)
