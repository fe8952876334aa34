"""Worker processes: what is told, who dies and what it costs."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import pytest

from recovery.audit.files.partitions import Partition
from recovery.audit.manifest import Bounds, Cutoff
from recovery.audit.running.jobs import Job, PartResult
from recovery.audit.running.local import DEATHS_MAX, LocalEngine
from tests.given import audit_workers as works
from tests.given.processes import is_running
from tests.given.repository import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(str(tmp_path), "run", "{}", (Partition(0, Bounds(start="", end=None)),) * 5, Cutoff(as_of_ns=0, grace_s=0))


def by_range(outcomes: Iterator[PartResult]) -> dict[int, PartResult]:
    found = list(outcomes)
    assert len({outcome.range for outcome in found}) == len(found)
    return {outcome.range: outcome for outcome in found}


def test_every_range_is_carried_out_once_by_processes_that_are_none_of_ours_and_print_nothing(
    job: Job, capfd: pytest.CaptureFixture[str]
) -> None:
    outcomes = by_range(LocalEngine(2, works.chatter).run(job, [4, 1, 3]))
    assert outcomes == {number: PartResult(number, number * 10, number, 1.0) for number in (1, 3, 4)}
    workers = [pid for number in (1, 3, 4) for pid in works.starts(job.directory, number)]
    assert len(workers) == 3 and os.getpid() not in workers and not any(map(is_running, workers))
    assert capfd.readouterr() == ("", "")


def test_no_more_workers_are_started_than_there_are_ranges_and_they_do_without_pandas(job: Job) -> None:
    assert find_spec("pandas") is not None, "else this shows nothing"
    with patch.object(subprocess, "Popen", wraps=subprocess.Popen) as start:
        assert by_range(LocalEngine(5, works.write_a_finding).run(job, [0])) == {0: PartResult(0, names=1, findings=0)}
        assert by_range(LocalEngine(5, works.succeed).run(job, [])) == {}
    assert start.call_count == 1


@pytest.mark.night
def test_workers_look_for_garbage_seldom_and_this_process_as_before(job: Job) -> None:
    before = gc.get_threshold(), gc.get_freeze_count()
    outcomes = by_range(LocalEngine(1, works.tell_collections).run(job, range(3)))
    assert all(outcome.names > before[0][0] for outcome in outcomes.values())
    # What the ranges themselves leave behind is not kept for ever.
    assert len({outcome.findings for outcome in outcomes.values()}) == 1 and outcomes[0].findings > 10_000
    assert (gc.get_threshold(), gc.get_freeze_count()) == before


def test_killed_worker_costs_its_range_a_second_try_and_the_others_nothing(job: Job) -> None:
    outcomes = by_range(LocalEngine(2, works.die_once).run(job, range(5)))
    assert [outcome.error for outcome in outcomes.values()] == [None] * 5
    assert [len(works.starts(job.directory, number)) for number in range(5)] == [1, 1, 2, 1, 1]


@pytest.mark.night
def test_range_that_kills_every_worker_fails_alone(job: Job) -> None:
    outcomes = by_range(LocalEngine(2, works.die_always).run(job, range(5)))
    assert len(works.starts(job.directory, works.ODD_ONE)) == DEATHS_MAX
    assert outcomes.pop(works.ODD_ONE).error == (
        "its worker process was killed by SIGKILL, 3 times: if memory is short, use fewer processes"
    )
    assert [outcome.error for outcome in outcomes.values()] == [None] * 4


@pytest.mark.night
def test_worker_that_ends_by_itself_is_told_by_its_exit_code(job: Job) -> None:
    error = by_range(LocalEngine(1, works.leave_always).run(job, range(3)))[works.ODD_ONE].error
    assert error is not None and "ended with exit code 7, 3 times" in error


def test_stop_ends_the_workers_in_the_middle_of_their_work(job: Job) -> None:
    os.mkfifo(Path(job.directory) / "life")
    engine = LocalEngine(2, works.wait_for_ever)
    outcomes: list[PartResult] = []
    running = threading.Thread(target=lambda: outcomes.extend(engine.run(job, range(5))))
    running.start()
    with (Path(job.directory) / "life").open() as life:
        workers = [int(life.readline()), int(life.readline())]
        assert os.getpgid(0) not in map(os.getpgid, workers), "an interrupt of the terminal would reach them"
        engine.stop()
        engine.stop()
        running.join()
        assert life.read() == ""
    assert outcomes == [] and not any(map(is_running, workers))
    assert list(engine.run(job, range(5))) == [], "for good"


DRIVER = """
import sys
from recovery.audit.running.local import LocalEngine
from recovery.audit.manifest import Bounds, Cutoff
from recovery.audit.files.partitions import Partition
from recovery.audit.running.jobs import Job
from tests.given import audit_workers as works
job = Job(sys.argv[1], "run", "{}", (Partition(0, Bounds(start="", end=None)),) * 5, Cutoff(as_of_ns=0, grace_s=0))
list(LocalEngine(2, works.wait_for_ever).run(job, range(5)))
"""


def test_workers_end_with_a_driver_that_is_killed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "life")
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    with driver, (tmp_path / "life").open() as life:
        assert len({life.readline(), life.readline()}) == 2
        driver.send_signal(signal.SIGKILL)
        assert life.read() == ""  # comes when the last of them has ended


def test_process_that_cannot_be_started_is_said_in_a_sentence(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(Exception, match=r"no worker process can be started \(No such file or directory\)"):
        list(LocalEngine(1, works.succeed).run(job, [0]))


@pytest.mark.night
def test_a_worker_loads_nothing_that_only_administers() -> None:
    """Every worker of a cluster would ask for the tables' schema, and hold 20 MiB of messages for it."""
    loaded = "recovery.audit.running.jobs, tiered.bigtable.rows, tiered.gcs.owned, tiered.kinds.bigtable, tiered.kinds.gcs"
    code = f"import sys, {loaded}; print([name for name in sys.modules if 'admin' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
