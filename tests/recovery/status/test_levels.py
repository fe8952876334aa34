"""The answer of a status, as tables: the level, the headline and the orders of each thing that may be wrong. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from changelog.lease import EntryState
from recovery import states
from recovery.dangling import LostReads
from recovery.last_audit import Audits, LastAudit
from recovery.states import Level
from recovery.statistics.verdict import SourceVerdict
from recovery.status.as_json import as_json
from recovery.status.judgement import feed_orders, judge
from recovery.status.known import (
    DISK_FULL_BYTES,
    CountedEntries,
    Daemon,
    DiskStatus,
    FeedSink,
    FeedStatus,
    Status,
    StoreIdentity,
    StuckEntries,
)
from tests.given.shown_status import NOW_MS, STUCK_ID, fed, healthy, stuck
from tiered.notes.dangling import Dangling

ONE, TWO = Dangling("a/objects/k", "a/objects/k/1", NOW_MS - 5000), Dangling("a/objects/l", "a/objects/l/2", NOW_MS)
DEAD = [Daemon("recovery-gone", 4000.0, False)]
FULL, ROOMY, READ_ONLY = DiskStatus(DISK_FULL_BYTES - 1, 10**9), DiskStatus(DISK_FULL_BYTES, 10**9), DiskStatus(0, 10**9, True)


def audit(run: str = "r1", *, complete: bool = True, scope: str = "", **findings: int) -> LastAudit:
    found = {kind: (number, 10 * number) for kind, number in findings.items()}
    return LastAudit(run, f"/audits/{run}", 10**9, 2 * 10**9, complete, 9, 8, found, 6, 0 if complete else 1, 0, scope)


def entries(complete: bool = True, **numbers: int) -> CountedEntries:
    return replace(healthy().entries, by_state={each: numbers.get(each.name, 0) for each in EntryState}, complete=complete)


def verdict(kind: states.State) -> dict[str, Any]:
    sources = healthy().sources
    return {"sources": {**sources, "recovery": replace(sources["recovery"], verdict=SourceVerdict(kind))}}


def feed(state: states.State, **values: Any) -> dict[str, Any]:
    known = fed().feed
    assert known is not None
    return {"feed": replace(known, state=state, **values)}


def status(**parts: Any) -> Status:
    return replace(healthy(), **parts)


LOSS, SUSPICION = Audits((audit(dangling=2),)), Audits((audit(complete=False, destroyed=1),))
NEITHER = Audits((audit("r2", orphan=3),))
UNKNOWN_VERDICT = verdict(states.UNKNOWN)


@pytest.mark.parametrize(("parts", "level"), [
    ({}, Level.OK),
    # lost
    ({"audits": LOSS}, Level.LOST), ({"audits": Audits((audit(destroyed=1),))}, Level.LOST),
    ({"audits": Audits((audit("r2", scope="b/"), audit(scope="a/", dangling=1)))}, Level.LOST),
    ({"audits": NEITHER}, Level.OK), ({"audits": SUSPICION}, Level.UNKNOWN), ({"audits": None}, Level.OK),
    ({"lost_reads": LostReads((ONE,))}, Level.LOST), ({"lost_reads": LostReads(more=True)}, Level.LOST),
    ({"lost_reads": LostReads()}, Level.OK), ({"lost_reads": LostReads((ONE,), 1, "down")}, Level.LOST),
    ({"lost_reads": LostReads((ONE,)), "stuck": StuckEntries(1, True), "disk": FULL}, Level.LOST),
    ({"audits": LOSS, "answers": False, "complete": False, **verdict(states.STALLED)}, Level.LOST),
    # stuck
    ({"stuck": StuckEntries(1, True)}, Level.STUCK), ({"stuck": StuckEntries(1, False)}, Level.STUCK),
    ({"disk": FULL}, Level.STUCK), ({"disk": ROOMY}, Level.OK),
    ({"disk": replace(FULL, is_read_only=True)}, Level.UNKNOWN),
    ({"stuck": StuckEntries(1, True), **verdict(states.STALLED)}, Level.STUCK),
    ({"disk": FULL, "complete": False}, Level.STUCK),
    # behind
    ({"daemons": DEAD, "entries": entries(CLAIMABLE=1)}, Level.BEHIND),
    ({"daemons": [], "entries": entries(UNREADABLE=1)}, Level.BEHIND),
    ({"entries": entries(NEWER=1)}, Level.UNKNOWN),
    ({"daemons": DEAD, "entries": entries(EXHAUSTED=1), "complete": False}, Level.BEHIND),
    ({"daemons": DEAD, "entries": entries(HELD=1, WAITING=1, KEPT=1)}, Level.OK),
    ({"daemons": None, "entries": entries(CLAIMABLE=1)}, Level.OK),
    (verdict(states.FALLING_BEHIND), Level.BEHIND), (verdict(states.STALLED), Level.BEHIND),
    (verdict(states.CATCHING_UP), Level.OK),
    ({"answers": False, **verdict(states.STALLED)}, Level.BEHIND),
    # the feed
    *((feed(state), Level.BEHIND) for state in (states.FEED_BEHIND, states.FEED_STALLED, states.FEED_NO_WRITER)),
    *((feed(state), Level.OK) for state in (states.FEED_LIVE, states.FEED_FIRST_PASS, states.FEED_ENDED, states.FEED_OFF)),
    (feed(states.FEED_UNKNOWN), Level.UNKNOWN),
    # not known
    ({"answers": False}, Level.UNKNOWN), ({"durable": False}, Level.UNKNOWN), ({"complete": False}, Level.UNKNOWN),
    ({"disk": READ_ONLY}, Level.UNKNOWN), ({"stuck": StuckEntries(0, False)}, Level.UNKNOWN),
    ({"away": ("long-term tier",)}, Level.UNKNOWN), ({"refusing": ("long-term tier",)}, Level.UNKNOWN),
    ({"away": ("long-term tier",), "stuck": StuckEntries(2, True)}, Level.STUCK),
    ({"stuck": StuckEntries()}, Level.UNKNOWN), (UNKNOWN_VERDICT, Level.OK), ({"sources": {}}, Level.OK),
    ({"entries": entries(CLAIMABLE=1), **UNKNOWN_VERDICT}, Level.UNKNOWN), ({"entries": entries(CLAIMABLE=1)}, Level.OK),
    ({"entries": entries(complete=False), **UNKNOWN_VERDICT}, Level.UNKNOWN), ({"entries": entries(complete=False)}, Level.OK),
])  # fmt: skip
def test_the_level(parts: dict[str, Any], level: Level) -> None:
    assert judge(status(**parts)).level is level


KEEPS_UP = "Recovery keeps up."
UNTOLD = "It is not known whether recovery keeps up: that takes two reports of a daemon that lives."
TOO_MANY = "It is not known whether recovery keeps up: more entries wait than can be counted in time."


def uncounted() -> dict[str, Any]:
    sources = healthy().sources
    total = replace(sources["recovery"].total, outstanding_values=None, processed_values=None)
    return {"sources": {"recovery": replace(sources["recovery"], total=total, verdict=SourceVerdict(states.UNKNOWN))}}


@pytest.mark.parametrize(("parts", "said"), [
    ({}, KEEPS_UP),
    ({"audits": LOSS}, f"DATA IS LOST: an audit found 2 objects whose blob is gone or cannot be read. {KEEPS_UP}"),
    (
        {"audits": Audits((audit("r2", scope="b/", dangling=2), audit(scope="a/", destroyed=1000)))},
        f"DATA IS LOST: an audit found 1,002 objects whose blob is gone or cannot be read. {KEEPS_UP}",
    ),
    (  # the second one read payloads, so the first one did not replace it; both looked at the same names
        {"audits": Audits((audit("r2", dangling=2), audit(dangling=1, destroyed=2)))},
        f"DATA IS LOST: an audit found at least 3 objects whose blob is gone or cannot be read. {KEEPS_UP}",
    ),
    (
        {"audits": Audits((audit("r3", scope="a/", dangling=2), audit("r2", scope="b/", dangling=4), audit(dangling=1)))},
        f"DATA IS LOST: an audit found at least 6 objects whose blob is gone or cannot be read. {KEEPS_UP}",
    ),
    ({"lost_reads": LostReads((ONE, TWO))}, f"DATA IS LOST: readers found 2 objects whose blob is gone. {KEEPS_UP}"),
    ({"lost_reads": LostReads((ONE,), more=True)}, f"DATA IS LOST: readers found 1 object, and more, whose blob is gone. {KEEPS_UP}"),
    ({"lost_reads": LostReads(more=True)}, f"DATA IS LOST: readers found objects whose blob is gone. {KEEPS_UP}"),
    (
        {"audits": Audits((audit(dangling=1),)), "lost_reads": LostReads((ONE,))},
        "DATA IS LOST: an audit found 1 object whose blob is gone or cannot be read, and readers found 1 object whose blob is gone."
        f" {KEEPS_UP}",
    ),
    ({"audits": SUSPICION}, f"{KEEPS_UP} An audit found lost data, but its evidence is not complete."),
    ({"stuck": StuckEntries(1, True)}, f"1 entry is stuck and waits for you. {KEEPS_UP}"),
    ({"stuck": StuckEntries(1, False)}, f"1 or more entries are stuck and wait for you. {KEEPS_UP}"),
    ({"stuck": StuckEntries(2000, True)}, f"2,000 entries are stuck and wait for you. {KEEPS_UP}"),
    ({"disk": FULL}, f"The disk is full: 2,097,151 bytes are free, and puts fail. {KEEPS_UP}"),
    ({"disk": READ_ONLY}, f"The disk is read-only: nothing can be stored, and nothing is cleaned up. {KEEPS_UP}"),
    ({"disk": ROOMY}, KEEPS_UP),
    ({"answers": False}, "The changelog cannot be read, so it is not known whether recovery keeps up."),
    (
        {"durable": False},
        "No changelog is kept, so nobody cleans up after a process that dies. Only an audit finds what it leaves.",
    ),
    (
        {"answers": False, "away": ("changelog", "high-volume tier")},
        "The changelog and the high-volume tier do not answer. It is not known whether recovery keeps up.",
    ),
    (
        {"away": ("long-term tier",), "complete": False, "problems": ("why",)},
        "The long-term tier does not answer, so recovery waits. It is not known whether recovery keeps up. See the problems, too.",
    ),
    (
        {"refusing": ("long-term tier",)},
        "The long-term tier refuses what is asked of it, so entries wait. It is not known whether recovery keeps up.",
    ),
    ({"problems": ("why",)}, f"{KEEPS_UP} See the problems, too."),
    ({"problems": ("why",), "answers": False}, "The changelog cannot be read, so it is not known whether recovery keeps up."),
    (
        {"daemons": DEAD, "entries": entries(CLAIMABLE=1)},
        "Nobody works on 1 entry that waits for recovery: no daemon lives.",
    ),
    (
        {"daemons": DEAD, "entries": entries(complete=False, EXHAUSTED=2, UNREADABLE=1000, HELD=9)},
        "Nobody works on at least 1,002 entries that wait for recovery: no daemon lives.",
    ),
    (verdict(states.CATCHING_UP), "Recovery is catching up."),
    (verdict(states.FALLING_BEHIND), "Recovery falls behind: entries come in at least as fast as it deals with them."),
    (verdict(states.STALLED), "Recovery stands still: entries wait, and it deals with none."),
    (UNKNOWN_VERDICT, "Nothing waits for recovery."),
    ({"daemons": DEAD, **UNKNOWN_VERDICT}, "Nothing waits for recovery, and no daemon lives."),
    ({"daemons": None, **UNKNOWN_VERDICT}, "Nothing waits for recovery."),
    ({"sources": {}, "entries": entries(CLAIMABLE=1)}, UNTOLD),
    ({"entries": entries(complete=False), **UNKNOWN_VERDICT}, UNTOLD),
    ({"entries": entries(CLAIMABLE=1), **uncounted()}, TOO_MANY),
    ({"entries": entries(complete=False), "daemons": DEAD, **uncounted()}, UNTOLD),
    (feed(states.FEED_STALLED), f"{KEEPS_UP} The change feed stands still."),
    (feed(states.FEED_BEHIND), f"{KEEPS_UP} The change feed is behind."),
    (feed(states.FEED_NO_WRITER), f"{KEEPS_UP} Nobody takes up what the change feed must publish."),
    (feed(states.FEED_ENDED), f"{KEEPS_UP} The writer of the change feed has ended, and no other one works now."),
    (feed(states.FEED_UNKNOWN), f"{KEEPS_UP} It is not known whether the change feed keeps up."),
    *((feed(state), KEEPS_UP) for state in (states.FEED_LIVE, states.FEED_FIRST_PASS, states.FEED_OFF)),
    (
        {"disk": FULL, "stuck": StuckEntries(1, True), "problems": ("why",), "audits": SUSPICION, **feed(states.FEED_BEHIND)},
        f"The disk is full: 2,097,151 bytes are free, and puts fail. {KEEPS_UP} The change feed is behind."
        " An audit found lost data, but its evidence is not complete. See the problems, too.",
    ),
])  # fmt: skip
def test_the_headline(parts: dict[str, Any], said: str) -> None:
    assert judge(status(**parts)).headline == said


def given_orders(**parts: Any) -> list[tuple[str, str | None]]:
    return [(order.why.partition(".")[0], order.type) for order in judge(status(**parts)).orders]


NAMES_THEM = "tiered audit show --from /audits/r1"
READERS = "Readers found live objects whose blob is gone; 'tiered status' names them"
FULL_ORDER = ("The disk is full", None)
STUCK_ORDER = ("Entries are stuck", "tiered log list --stuck")


@pytest.mark.parametrize(("parts", "ordered"), [
    ({}, []), ({"audits": NEITHER}, []), ({"lost_reads": LostReads()}, []), ({"disk": ROOMY}, []), (verdict(states.CATCHING_UP), []),
    ({"audits": LOSS}, [("An audit found live objects that are lost", NAMES_THEM)]),
    ({"audits": Audits((audit(scope="a/", dangling=1),))}, [("An audit found live objects below a/ that are lost", NAMES_THEM)]),
    (
        {"audits": Audits((replace(audit(dangling=1), run="several-r1"),))},
        [("An audit found live objects that are lost", "tiered audit run")],
    ),
    ({"audits": SUSPICION}, [("An audit found lost data, but its evidence is not complete", NAMES_THEM)]),
    ({"lost_reads": LostReads(more=True)}, [(READERS, "tiered audit run")]),
    ({"disk": FULL}, [FULL_ORDER]), ({"disk": FULL, "daemons": []}, [FULL_ORDER]),
    ({"disk": READ_ONLY, "daemons": []}, [("The disk is read-only", None)]),
    ({"disk": ROOMY, "daemons": []}, [("No daemon lives", "tiered recover")]), ({"daemons": None}, []),
    ({"stuck": StuckEntries(1, True)}, [STUCK_ORDER]), ({"stuck": StuckEntries(0, True)}, []),
    ({"answers": False}, [("The changelog cannot be read", "tiered check")]),
    (
        {"answers": False, "durable": False, "daemons": []},
        [("The changelog cannot be read", "tiered check"), ("No daemon lives", "tiered recover")],
    ),
    ({"answers": False, "daemons": None, "away": ("changelog",)}, [("The changelog does not do what is asked", "tiered check")]),
    ({"durable": False, "daemons": []}, [("No changelog is kept", None)]),
    (verdict(states.STALLED), [("The daemon deals with no entry", "tiered check")]),
    ({"daemons": [], "entries": entries(CLAIMABLE=1), **verdict(states.STALLED)}, [("No daemon lives", "tiered recover")]),
    (verdict(states.FALLING_BEHIND), [("Recovery is too slow", "tiered recover")]),
    ({"daemons": [], "entries": entries(CLAIMABLE=1), **verdict(states.FALLING_BEHIND)}, [("No daemon lives", "tiered recover")]),
    (
        {"audits": LOSS, "lost_reads": LostReads((ONE,)), "disk": FULL, "stuck": StuckEntries(1, True), **verdict(states.STALLED)},
        [
            ("An audit found live objects that are lost", NAMES_THEM),
            (READERS, "tiered audit run"), FULL_ORDER, STUCK_ORDER,
            ("The daemon deals with no entry", "tiered check"),
        ],
    ),
])  # fmt: skip
def test_the_orders_the_most_urgent_first(parts: dict[str, Any], ordered: list[tuple[str, str | None]]) -> None:
    assert given_orders(**parts) == ordered


def test_a_store_without_a_changelog_is_told_which_one_to_set() -> None:
    [embedded] = judge(status(durable=False, daemons=[])).orders
    [google] = judge(status(durable=False, daemons=[], store=StoreIdentity("bigtable+gcs", "bigtable:p/i/t+gcs:b"))).orders
    assert "'changelog: sqlite'" in embedded.why and "'changelog: bigtable'" in google.why
    [full] = judge(status(disk=FULL)).orders
    [read_only] = judge(status(disk=READ_ONLY)).orders
    assert "/var/lib/tiered" in full.why and "/var/lib/tiered" in read_only.why


WELL, FAILS = FeedSink("/srv/feed"), FeedSink("gs://b/feed", failing_since_ms=1, error="503")


def a_feed(
    state: states.State, *, closed: bool = False, sinks: tuple[FeedSink, ...] = (WELL,), kept_age_s: float | None = 1.0,
) -> FeedStatus:
    known = fed().feed
    assert known is not None and known.checkpoint is not None
    checkpoint = None if state is states.FEED_NO_WRITER else replace(known.checkpoint, closed=closed)
    return replace(known, state=state, why="So it is.", checkpoint=checkpoint, sinks=sinks, kept_age_s=kept_age_s)


START = ("So it is. See the log of the writer, or start one.", "tiered feed run")
GOES_ON = ("The sink gs://b/feed takes nothing. Mend the cause; the writer goes on by itself.", None)
START_THEN = ("The sink gs://b/feed takes nothing. Mend the cause; then start the writer.", None)


@pytest.mark.parametrize(("found", "ordered"), [
    (a_feed(states.FEED_LIVE), []), (a_feed(states.FEED_BEHIND), []), (a_feed(states.FEED_ENDED, closed=True), []),
    (
        a_feed(states.FEED_NO_WRITER),
        [("The change feed is configured, and no writer has ever begun it. Start one.", "tiered feed run")],
    ),
    (a_feed(states.FEED_STALLED), [START]), (a_feed(states.FEED_STALLED, closed=True), [START]),
    (a_feed(states.FEED_BEHIND, closed=True), [START]),
    (a_feed(states.FEED_STALLED, sinks=(FAILS,)), [GOES_ON]), (a_feed(states.FEED_BEHIND, sinks=(WELL, FAILS)), [GOES_ON]),
    (a_feed(states.FEED_STALLED, closed=True, sinks=(FAILS,)), [START, START_THEN]),
    (a_feed(states.FEED_LIVE, kept_age_s=0.8 * 86_400 - 1), []), (a_feed(states.FEED_LIVE, kept_age_s=None), []),
])  # fmt: skip
def test_the_orders_about_a_feed(found: FeedStatus, ordered: list[tuple[str, str | None]]) -> None:
    assert [(order.why, order.type) for order in feed_orders(status(feed=found))] == ordered
    assert [(order.why, order.type) for order in judge(status(feed=found)).orders] == ordered


def test_entries_that_waited_almost_as_long_as_they_may_are_an_order() -> None:
    [order] = feed_orders(status(feed=a_feed(states.FEED_LIVE, kept_age_s=0.8 * 86_400)))
    assert order.why.startswith("Deletions have waited for the change feed for almost feed.hold_max_s.") and order.type is None


# --- what a program reads ------------------------------------------------------------------------------


def test_the_json_has_what_is_known_and_null_for_the_rest() -> None:
    found = as_json(replace(
        status(audits=Audits((replace(audit("r9", dangling=2, orphan=3), scope="a/", verified=4, young=1),))),
        feed=fed().feed, disk=DiskStatus(5, 10), stuck=stuck().stuck, problems=("why",), complete=False,
        lost_reads=LostReads((ONE,), 1, "down", True),
    ))  # fmt: skip
    assert found["at"] == "2026-11-22T08:00:00Z" and found["level"] == "lost" and found["headline"].startswith("DATA IS LOST: ")
    assert found["orders"][0]["type"] == "tiered audit show --from /audits/r9" and "/audits/r9" in found["orders"][0]["why"]
    assert found["store"] == {"kind": "embedded", "name": "/var/lib/tiered", "durable": True, "answers": True}
    assert found["entries"] == {
        "by_state": {each.name: 14 if each is EntryState.HELD else 0 for each in EntryState},
        "by_age": {each.name: [0, 0, 0, 0, 0] for each in EntryState}, "ages_s": [60.0, 600.0, 3600.0, 86_400.0], "undated": 0,
        "oldest_age_s": 5.0, "oldest_id": STUCK_ID, "counted": 14, "due": 0, "complete": True,
    }  # fmt: skip
    assert (found["stuck"]["count"], found["stuck"]["complete"]) == (2, True)
    entry = found["stuck"]["entries"][0]
    assert (entry["id"], entry["since"], entry["attempt"]) == (STUCK_ID, "2026-11-22T05:55:00Z", 5)
    assert entry["type"] == f"tiered log retry {STUCK_ID}" and entry["key"] == f"~changelog/01/{STUCK_ID}"
    assert found["daemons"][0] == {"instance": "recovery-3f9c0a1b2c3d4e5f", "seen_s_ago": 1.2, "alive": True, "ended": False}
    assert found["audits"] == [{
        "run": "r9", "where": "/audits/r9", "started": "1970-01-01T00:00:01Z", "ended": "1970-01-01T00:00:02Z",
        "age_s": NOW_MS / 1000 - 2, "complete": True, "state": "loss", "level": "lost", "blobs": 9,
        "tombstones": 8, "references": "rows", "scope": "a/", "payloads_read": 4,
        "sentence": audit("r9", dangling=2, orphan=3).sentence + "; only names that begin with a/ were looked at", "lost": 2,
        "findings": {"dangling": {"number": 2, "bytes": 20}, "orphan": {"number": 3, "bytes": 30}},
    }]  # fmt: skip
    assert found["lost_reads"] == {
        "objects": [{"object": "a/objects/k", "blob": "a/objects/k/1", "found": "2026-11-22T07:59:55Z"}], "not_looked_at": 1, "more": True,
    }  # fmt: skip
    assert found["disk"] == {"free_bytes": 5, "size_bytes": 10, "full": True, "read_only": False}
    assert (found["problems"], found["complete"]) == (["why"], False)
    feed_of = found["feed"]
    assert (feed_of["state"], feed_of["enabled"], feed_of["frontier_age_s"], feed_of["records"]) == ("behind", True, 2.0, 9120)
    assert (feed_of["frontier"], feed_of["generation"], feed_of["live"]) == ("2026-11-22T07:59:58Z", NOW_MS - 3_600_000, 7433)
    assert (feed_of["epoch"], feed_of["gap"], feed_of["pass"], feed_of["passed"]) == (1, False, None, "2026-11-22T07:10:00Z")
    assert feed_of["kept"] == {
        "entries": 3, "estimated": False, "since": "2026-11-22T07:59:59Z", "age_s": 1.0, "hold_max_s": 86_400.0
    }  # fmt: skip
    assert feed_of["sinks"][1] == {
        "name": "gs://my-bucket/feed", "known": True, "acknowledged": "2026-11-22T07:58:58Z", "records": 9116, "behind_records": 4,
        "behind_s": 60.0, "failing_since": "2026-11-22T07:55:00Z", "error": "it answered <b>503</b>", "unasked": None,
    }  # fmt: skip


def test_an_audit_that_ended_ahead_of_the_clock_is_no_negative_age() -> None:
    [found] = as_json(status(audits=Audits((replace(audit(), ended_ns=(NOW_MS + 9000) * 10**6),))))["audits"]
    assert found["age_s"] == 0
    empty = as_json(status(audits=None, daemons=None))
    assert (empty["audits"], empty["daemons"], empty["feed"], empty["disk"], empty["lost_reads"]) == (None, None, None, None, None)


def test_what_was_not_counted_is_not_due() -> None:
    assert CountedEntries().due == 0 and entries(CLAIMABLE=2, HELD=5).due == 2


def test_sentence_of_an_audit_tells_no_bytes_of_what_has_none() -> None:
    found = replace(audit(), findings={"orphan": (2, 40), "overdue": (3, 0), "corrupt_row": (1, 0), "foreign": (1, 0), "newer": (1, 0)})
    assert found.sentence == "findings: 2 orphan (40 bytes), 3 overdue (0 bytes), 1 corrupt_row, 1 foreign, 1 newer"
