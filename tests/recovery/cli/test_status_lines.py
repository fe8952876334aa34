"""What `tiered status` shows: the answer first, nothing that is not known, nothing that could control a terminal."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from changelog.lease import EntryState
from recovery import states
from recovery.cli.status_lines import AGE_WORDS, snapshot_bar, snapshot_words, status_lines
from recovery.display import duration, rate
from recovery.last_audit import Audits, LastAudit
from recovery.statistics.columns import SourceRow
from recovery.statistics.verdict import SourceVerdict
from recovery.status.as_json import COLUMNS, as_json
from recovery.status.judgement import judge
from recovery.status.known import AGES_S, CountedEntries, Daemon, SourceStatus, Status, StoreIdentity, StuckEntries, StuckEntry
from tests.given.repository import ROOT

NOW_MS = 1_700_000_000_000
ID = "018bcfe5-6800-7000-8000-000000000001"
ROW = SourceRow(
    "recovery", "", "1", snapshot_records_known=1000, snapshot_progress=450, outstanding_values=500, processed_values=465
)
HEALTHY = SourceStatus(
    ROW, {"recovery-a": replace(ROW, worker="recovery-a")}, SourceVerdict(states.HEALTHY, 12.0, 14.1, 2.0), NOW_MS - 4000
)
STUCK = StuckEntry(ID, f"~changelog/01/{ID}", "a/objects/k", "failed 5 times, at last with: 403 forbidden", NOW_MS - 60_000, 5)
AUDIT = LastAudit("run", "gs://audits/1", (NOW_MS - 3660_000) * 1_000_000, (NOW_MS - 3600_000) * 1_000_000, True, 10, 4, {}, 6, 0, 0)


def entries(**numbers: int) -> CountedEntries:
    by_state = {each: numbers.get(each.name, 0) for each in EntryState}
    by_age = {each: (number, 0, 0, 0, 0) for each, number in by_state.items()}
    return CountedEntries(by_state, by_age, 0, 12.0 if numbers else None, ID if numbers else None, sum(numbers.values()), True)


def status(**parts: object) -> Status:
    """Of a store that is well."""
    well = Status(
        NOW_MS, StoreIdentity("embedded", "/srv/store"), True, True, {"recovery": HEALTHY}, entries(HELD=3), StuckEntries(0, True),
        (Daemon("recovery-a", 3.2, True),), Audits((AUDIT,)), (),
    )  # fmt: skip
    return replace(well, **parts)  # type: ignore[arg-type]


def shown(found: Status, width: int | None = None, tiered: str = "tiered") -> str:
    return "\n".join(line.text for line in status_lines(found, width, tiered))


def source(kind: states.State, *rates: float | None, **columns: object) -> dict[str, SourceStatus]:
    return {"recovery": replace(HEALTHY, total=replace(ROW, **columns), verdict=SourceVerdict(kind, *rates))}  # type: ignore[arg-type]


def test_a_store_that_is_well() -> None:
    assert shown(status()) == f"""\
Recovery keeps up.

store     embedded, /srv/store
contents  10 blobs in all, by the audit that ended 1 h ago (small objects are not counted)
at        2023-11-14T22:13:20Z
recovery  healthy, caught up in about 2 s
snapshot  [############----------------] 45 %, at least 450 of 1,000 entries read
rates     12/s come in, 14/s are dealt with
lag       35 entries
reported  4 s ago
entries   3
          held 3 (its owner renewed it lately): 3 under 1 min old
oldest    12 s old: change {ID}
stuck     0
daemons   1 seen within the last 1 min
          recovery-a, seen 3 s ago
audit     clean: 10 blobs and 4 tombstones are accounted for by name; no payload was read (ended 1 h ago)
          in gs://audits/1"""


def test_a_stuck_entry_comes_with_its_error_and_what_to_type() -> None:
    found = status(stuck=StuckEntries(1, True, (STUCK,)), entries=entries(PARKED=1))
    lines = shown(found, tiered="tiered -d store").splitlines()
    assert lines[:3] == [
        "1 entry is stuck and waits for you. Recovery keeps up.",
        "do        Entries are stuck. Mend the cause of each, then give it back to recovery.",
        "          $ tiered -d store log list --stuck",
    ]
    at = lines.index("stuck     1")
    assert lines[at + 1 : at + 6] == [
        "-         a/objects/k",
        "          stuck since 2023-11-14T22:12:20Z, claimed 5 times",
        "          failed 5 times, at last with: 403 forbidden",
        "          The daemon's account may not do it. Grant it the role; then retry the entry.",
        f"          $ tiered -d store log retry {ID}",
    ]


def test_many_stuck_entries_are_counted_and_not_cut_silently() -> None:
    found = shown(status(stuck=StuckEntries(10_000, True, (STUCK,) * 100)))
    assert "10,000 entries are stuck and wait for you." in found
    assert found.count("log retry") == 10 and "and 9,990 more:\n          $ tiered log list --stuck" in found
    assert "10,000 or more entries are stuck" in shown(status(stuck=StuckEntries(10_000, False, (STUCK,))))


@pytest.mark.parametrize("parts", [
    {}, {"answers": False, "away": ("changelog",)}, {"stuck": StuckEntries(2, True)},
    {"audits": Audits((replace(AUDIT, findings={"dangling": (2, 0)}),)), "problems": ("x",)},
    {"sources": source(states.STALLED, 3.0, 0.0)},
], ids=["it is well", "nothing answers", "entries are stuck", "data is lost", "it stands still"])  # fmt: skip
def test_the_answer_stands_first(parts: dict[str, object]) -> None:
    """Which answer it is: `tests/recovery/status/test_levels.py`."""
    found = status(**parts)
    [first, *_] = status_lines(found, None)
    assert first.level is judge(found).level and first.text == judge(found).headline


def test_lost_data_is_the_first_thing_to_look_at() -> None:
    lost = status(audits=Audits((replace(AUDIT, findings={"dangling": (2, 0)}),)), stuck=StuckEntries(2, True), daemons=())
    first = next(line for line in shown(lost).splitlines() if line.startswith("do "))
    assert first.startswith("do        An audit found live objects that are lost.")


def test_what_is_not_known_is_called_unknown_and_never_0() -> None:
    nothing = status(
        answers=False, sources={}, entries=CountedEntries(), stuck=StuckEntries(), daemons=None, audits=None, problems=("why",)
    )
    lines = shown(nothing).splitlines()
    for label in ("recovery", "entries", "stuck", "daemons", "audit"):
        [line] = [line for line in lines if line.startswith(label)]
        assert line[10:].startswith("unknown"), line
    assert not any(" 0" in line for line in lines) and lines[-1] == "problem   why"
    bare = source(states.UNKNOWN, snapshot_records_known=None, snapshot_progress=None, outstanding_values=None, processed_values=None)
    lines = shown(status(sources=bare)).splitlines()
    for label in ("recovery", "snapshot", "rates", "lag"):
        [line] = [line for line in lines if line.startswith(label)]
        assert line[10:].startswith("unknown"), line


@pytest.mark.parametrize("columns", [
    {"snapshot_committed": True, "snapshot_progress": 0, "processed_values": 500},
    {"snapshot_records_known": 0, "snapshot_progress": 0, "processed_values": 500},
], ids=["its first pass is complete", "there was nothing to read"])  # fmt: skip
def test_an_idle_store_has_no_lines_of_nothing(columns: dict[str, object]) -> None:
    idle = status(sources=source(states.HEALTHY, 0.0, 0.0, **columns), entries=entries())
    labels = [line.partition(" ")[0] for line in shown(idle).splitlines()]
    assert {"recovery", "rates", "entries"} <= {*labels} and not {"snapshot", "lag"} & {*labels}


@pytest.mark.parametrize("parts", [{"daemons": ()}, {"at_ms": NOW_MS + 60_000}])
def test_a_lag_of_the_past_is_not_shown_as_todays(parts: dict[str, object]) -> None:
    assert "lag       unknown; it was 35 entries at the last report" in shown(status(**parts))


def test_what_was_not_all_counted_is_at_least_so_much() -> None:
    found = status(sources={}, daemons=(), entries=replace(entries(CLAIMABLE=5), complete=False), stuck=StuckEntries(0, True))
    assert shown(found).startswith("Nobody works on at least 5 entries that wait for recovery: no daemon lives.")
    assert "entries   5 or more: not all were counted" in shown(found)


@pytest.mark.parametrize(("columns", "bar", "words"), [
    ({}, "[####------]", "45 %, at least 450 of 1,000 entries read"),
    ({"snapshot_known_estimated": True}, "[####------]", "about 45 % (estimate), at least 450 read of about 1,000 entries"),
    (
        {"snapshot_known_estimated": True, "snapshot_progress": 2000},
        "[#########-]", "about 99 % (estimate), at least 2,000 read of about 1,000 entries",
    ),
    ({"snapshot_records_known": None}, "", "at least 450 entries read, of a number that is not known yet"),
    ({"snapshot_progress": None}, "", "unknown"),
])  # fmt: skip
def test_the_bar_of_the_first_pass(columns: dict[str, object], bar: str, words: str) -> None:
    row = replace(ROW, **columns)  # type: ignore[arg-type]
    assert (snapshot_bar(row, 12), snapshot_words(row, "entry", "entries")) == (bar, words)


def test_names_and_errors_cannot_steer_a_terminal() -> None:
    evil = "\x1b[2J\r\n\u202eevil"
    entry = replace(STUCK, id=evil, key=evil, object=evil, error=evil)
    found = status(
        store=StoreIdentity("embedded", evil),
        stuck=StuckEntries(1, True, (entry,)),
        daemons=(Daemon(evil, 1.0, True), Daemon(evil, 1e5, False)),
        audits=Audits((replace(AUDIT, where=evil, findings={evil: (1, 1)}),)),
        problems=(evil,),
        entries=replace(entries(HELD=1), oldest_id=evil),
    )
    for width in (None, 40, 100):
        for line in status_lines(found, width, f"tiered -d {evil}"):
            assert line.text.isprintable(), line
    assert "$ tiered log retry --all" in shown(found), "nobody can type such an ID"


def test_a_key_that_a_shell_would_change_is_quoted() -> None:
    entry = replace(STUCK, id="~changelog/x y", key="~changelog/x y", object=None)
    assert "$ tiered log retry '~changelog/x y'" in shown(status(stuck=StuckEntries(1, True, (entry,))))


@pytest.mark.parametrize("width", [1, 40, 80, 200])
def test_text_is_wrapped_but_names_and_commands_stay_whole(width: int) -> None:
    entry = replace(STUCK, error="a long error " * 100, object="usecase/org.17/objects/a  b" + "n" * 100)
    found = status(stuck=StuckEntries(1, True, (entry,)), problems=("a problem of many words " * 10,), sources={})
    lines = [line.text for line in status_lines(found, width)]
    assert f"          $ tiered log retry {ID}" in lines
    assert any(entry.object is not None and line.endswith(entry.object) for line in lines)
    for line in lines:
        assert len(line) <= max(width, 20) or line.lstrip(" -").startswith(("$ ", "usecase/", "in gs:")) or " " not in line[10:], line


def test_daemons_that_are_gone_are_counted_beyond_a_few() -> None:
    gone = tuple(Daemon(f"recovery-{number}", 3600.0, False) for number in range(30))
    found = shown(status(daemons=gone))
    assert "daemons   none lives" in found and "do        No daemon lives. Start one.\n          $ tiered recover" in found
    assert "recovery-0, seen 1 h ago: probably killed, or out of reach" in found and "and 25 more that were seen within a day" in found


@pytest.mark.parametrize(("seconds", "words"), [
    (0, "0 s"), (0.4, "0 s"), (59.6, "1 min"), (61, "1 min 1 s"), (3600, "1 h"), (3661, "1 h 1 min"), (90_000, "1 d 1 h"),
    (86_400 * 4000, "4,000 d"),
])  # fmt: skip
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_rates_and_ages_in_words() -> None:
    assert [rate(each) for each in (0.0, 0.0123, 1.5, 10.4, 12_345.6)] == ["0/s", "0.012/s", "1.5/s", "10/s", "12,346/s"]
    assert len(AGE_WORDS) == len(AGES_S) + 1
    assert AGE_WORDS == ("under 1 min old", "under 10 min old", "under 1 h old", "under 1 d old", "over 1 d old")


# --- docs/status.md ----------------------------------------------------------------------------------

PAGE = (ROOT / "docs/status.md").read_text("utf-8")


def test_the_page_shows_what_is_printed() -> None:
    at_ms = int(datetime(2026, 11, 22, 8, tzinfo=UTC).timestamp() * 1000)
    row = replace(
        ROW, snapshot_records_known=10_000, snapshot_known_estimated=True, snapshot_progress=4712, outstanding_values=500,
        processed_values=494,
    )
    numbers = dict.fromkeys(EntryState, 0) | {EntryState.HELD: 2, EntryState.CLAIMABLE: 6, EntryState.PARKED: 1}
    ages = {EntryState.HELD: (2, 0, 0, 0, 0), EntryState.CLAIMABLE: (0, 6, 0, 0, 0), EntryState.PARKED: (0, 0, 0, 1, 0)}
    stuck = StuckEntry(
        "01a20218-11aa-7c31-9c1d-6f1f4e6f0a55", "key", "photos/org.17/objects/2026/cat.jpg",
        "failed 5 times, at last with: deleting blob 'x' failed: 403; grant roles/storage.objectUser on the bucket",
        int(datetime(2026, 11, 22, 5, 12, 9, tzinfo=UTC).timestamp() * 1000), 5,
    )
    found = Status(
        at_ms=at_ms, store=StoreIdentity("google", "my-project/tiered/objects and gs://my-blobs"), durable=True, answers=True,
        sources={"recovery": SourceStatus(row, {"a": row}, SourceVerdict(states.HEALTHY, 12.0, 14.0, 3.0), at_ms - 4000)},
        entries=CountedEntries(numbers, ages, 0, 200.0, "01a20240-88a3-7222-a8f7-a95a1ed378e8", 9, True),
        stuck=StuckEntries(1, True, (stuck,)),
        daemons=(
            Daemon("recovery-3f9c0d1e2b4a5968", 2.0, True), Daemon("recovery-77b0c1d2e3f4a5b6", 5.0, True),
            Daemon("recovery-0a1b2c3d4e5f6071", 10_920.0, False),
        ),
        audits=Audits((LastAudit(
            "run", "gs://my-audits/2026-11-22", (at_ms - 27_000_000) * 1_000_000,
                (at_ms - 26_040_000) * 1_000_000, True, 1_204_551, 1_198_020, {}, 100, 0, 0
        ),)),
        problems=(),
    )  # fmt: skip
    assert shown(found, 200, "tiered -c tiered.yaml") in PAGE
    for key in keys_of(as_json(found)):
        assert f"`{key}`" in PAGE or f'"{key}"' in PAGE, key


def keys_of(value: object) -> set[str]:
    """All but the names of states, of workers and of columns, which `docs/statistics.md` explains."""
    if isinstance(value, list):
        return set().union(*map(keys_of, value))
    if not isinstance(value, dict):
        return set()
    told = {key for key in value if key.islower() and len(key) > 1 and key not in COLUMNS}
    return told.union(*(keys_of(each) for each in value.values()))


def test_the_page_has_every_state() -> None:
    for each in EntryState:
        assert f"| {each.name.lower()} |" in PAGE


def test_an_audit_that_took_days_says_when_it_began() -> None:
    began = replace(AUDIT, started_ns=AUDIT.ended_ns - 9 * 86_400 * 10**9)
    shown = [line.text for line in status_lines(status(audits=Audits((began,))), None)]
    assert any(line.endswith("(began 9 d 1 h ago, ended 1 h ago)") for line in shown), shown
