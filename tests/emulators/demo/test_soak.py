"""The soak can fail: a process that grows is found, and so is each thing that a status says and that is not so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest

from changelog.base.errors import InvalidRequestError
from changelog.lease import EntryState
from emulators.demo.command import DemoOptions, run_demo
from emulators.demo.director import what_is_wrong
from emulators.demo.players.object_writer import TURNED_AWAY
from emulators.demo.soak import LIMITS, SAMPLES_MIN, Footprint, footprint, growth
from emulators.demo.staging.troupe import environment
from emulators.demo.status_check import EntryKeys, SeenOffsets, untrue, went_back
from recovery import states
from recovery.statistics.columns import SourceRow
from recovery.statistics.verdict import SourceVerdict
from recovery.status.known import CountedEntries as Counted
from recovery.status.known import Daemon, SourceStatus, Status, StoreIdentity, StuckEntries, StuckEntry

STUCK = StuckEntry("1", "stuck", "o", "torn", None, None)
SOUND = Status(
    at_ms=0, store=StoreIdentity("embedded", "store"), durable=True, answers=True,
    sources={"recovery": SourceStatus(SourceRow("recovery", "w", "", updates_committed=7), {}, SourceVerdict(states.HEALTHY), 0)},
    entries=Counted(counted=2, complete=True), stuck=StuckEntries(1, True, (STUCK,)), daemons=[Daemon("d", 1.0, alive=True)],
    audits=None, problems=(),
)  # fmt: skip
BEFORE = EntryKeys(frozenset({"stuck", "open", "finished"}), frozenset({"stuck"}))
AFTER = EntryKeys(frozenset({"stuck", "open", "new"}), frozenset({"stuck"}))


def judged(found: Status, before: EntryKeys = BEFORE, after: EntryKeys = AFTER) -> list[str]:
    return untrue(before, found, after, recovered=7, daemons=(1, 2))


def test_a_status_that_is_true_is_accepted() -> None:
    assert judged(SOUND) == []


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (replace(SOUND, entries=Counted(counted=1, complete=True)), "it counted 1 entries, and 2 were there"),
        (replace(SOUND, stuck=StuckEntries(0, True)), "it shows [] as stuck"),
        (replace(SOUND, stuck=StuckEntries(1, True, (replace(STUCK, key="open"),))), "it shows ['open'] as stuck"),
        (replace(SOUND, daemons=[]), "it shows 0 daemons as alive, and there are 1 to 2"),
        (replace(SOUND, daemons=[Daemon(name, 1.0, alive=True) for name in "abc"]), "it shows 3 daemons"),
        (
            replace(SOUND, sources={"recovery": replace(
                SOUND.sources["recovery"], total=SourceRow("recovery", "w", "", updates_committed=8)
            )}),
            "it says that 8 entries were cleaned up, and the daemons logged 7",
        ),
        (
            replace(
                SOUND, answers=False, stuck=StuckEntries(), sources={}, daemons=[], entries=Counted(by_state={EntryState.CLAIMABLE: 1})
            ),
            "the changelog did not answer, and the level is behind",
        ),
    ],
)  # fmt: skip
def test_what_is_not_so_is_found(found: Status, says: str) -> None:
    assert any(says in sentence for sentence in judged(found)), judged(found)


def test_what_was_read_of_recovery_may_make_it_behind_while_the_entries_were_not_read() -> None:
    """They were asked for over connections of their own, and one of these was cut off."""
    stalled = replace(SOUND.sources["recovery"], verdict=SourceVerdict(states.STALLED))
    assert judged(replace(SOUND, answers=False, stuck=StuckEntries(), sources={"recovery": stalled})) == []


def test_a_status_that_calls_nothing_stuck_while_something_is_has_the_wrong_level_too() -> None:
    found = judged(replace(SOUND, stuck=StuckEntries(0, True)))
    assert "its level is ok, and 1 entries are stuck" in found


def test_what_changed_during_the_look_is_no_fault_of_it() -> None:
    changing = EntryKeys(AFTER.all, frozenset())
    assert judged(SOUND, after=changing) == [] and judged(replace(SOUND, stuck=StuckEntries(0, True)), after=changing) == []
    assert judged(replace(SOUND, entries=Counted(counted=1, complete=False))) == []


def test_offsets_that_go_back_are_found() -> None:
    assert went_back(SeenOffsets(5, 3), SeenOffsets(5, 3)) == [] == went_back(SeenOffsets(5, 3), SeenOffsets(9, 9))
    assert len(went_back(SeenOffsets(5, 3), SeenOffsets(4, 3))) == len(went_back(SeenOffsets(5, 3), SeenOffsets(5, 2))) == 1
    assert len(went_back(SeenOffsets(5, 3), SeenOffsets(5, 6))) == 1


# --- growth --------------------------------------------------------------------------------------


def samples(at: Callable[[int], Footprint], number: int = 2 * SAMPLES_MIN) -> list[Footprint]:
    return [at(index) for index in range(number)]


def test_a_process_that_warms_up_and_has_peaks_does_not_grow() -> None:
    warm = samples(lambda index: Footprint(60.0 if index < 10 else 120.0, 20, 8))
    peaks = samples(lambda index: Footprint(400.0 if index % 10 == 0 else 120.0, 90 if index % 10 == 0 else 20, 8))
    assert growth(warm) == [] == growth(peaks)


@pytest.mark.parametrize(("what", "step"), [("memory", 1.0), ("descriptors", 1), ("threads", 1)])
def test_a_process_that_grows_is_found(what: str, step: float) -> None:
    steady = Footprint(60.0, 20, 8)
    growing = samples(lambda index: replace(steady, **{what: getattr(steady, what) + index * step}))
    [phrase] = growth(growing)
    assert phrase.startswith(f"its {what} grew from ")
    assert growth(growing[: SAMPLES_MIN - 1]) == [], "too short to say"


def test_a_footprint_is_what_a_process_has(tmp_path: Path) -> None:
    before, done = footprint(os.getpid()), Event()
    with ExitStack() as stack:
        for number in range(50):
            stack.enter_context((tmp_path / str(number)).open("w"))
        ballast = bytearray(os.urandom(64 << 20))
        thread = Thread(target=done.wait)
        thread.start()
        after = footprint(os.getpid())
        done.set()
        thread.join()
    assert before is not None and after is not None
    assert after.descriptors - before.descriptors >= 50 and after.threads - before.threads >= 1
    assert after.memory - before.memory > 50 and len(ballast) == 64 << 20
    assert footprint(2**22 + 1) is None, "there is no such process"
    assert set(LIMITS) == {"memory", "descriptors", "threads"}


# --- in a run ------------------------------------------------------------------------------------


@pytest.mark.night
def test_a_run_looks_at_the_status_all_along_and_at_a_stuck_entry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = DemoOptions(seconds=4, writers=1, daemons=1, seed=3, soak=True, directory=tmp_path / "soak")
    code = run_demo(options, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert (code, report["verdict"], report["details"]) == (0, "nothing was wrong", [])
    assert report["soak"]["looks"] > 3 and report["soak"]["stuck_looks"] > 0 and report["soak"]["asked"] > 0


def test_a_command_that_reaches_no_service_is_turned_away_and_has_not_crashed(tmp_path: Path) -> None:
    nowhere = {"emulator_host": "127.0.0.1:9", "timeout_s": 0.1, "project": "tiered-demo", "instance": "demo", "table": "tiered"}
    settings = {"bigtable": nowhere, "gcs": {"bucket": "bucket", "endpoint": "http://127.0.0.1:9"}, "store": {"answer_budget_s": 0.2}}
    (tmp_path / "tiered.yaml").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "emulators.demo.players.product", str(os.getpid()), "--config", str(tmp_path / "tiered.yaml")]
    done = subprocess.run([*command, "recover"], capture_output=True, text=True, env=environment(), timeout=120, check=False)
    assert done.returncode == TURNED_AWAY, done.stderr
    assert subprocess.run([*command, "recover", "--limit", "1"], env=environment(), timeout=120, check=False).returncode == 3


def test_a_run_whose_status_was_not_true_fails() -> None:
    assert what_is_wrong({"untrue": 2, "growth": 0}, 5, []) == "2 untrue"


def test_a_soak_without_the_fence_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="both soak and unfenced"):
        DemoOptions(soak=True, unfenced=True)
