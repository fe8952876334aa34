"""What a test starts: it ignores no signal, and it ends with the test."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.conftest import ENDING_SIGNALS
from tests.given.processes import StartedProcess
from tests.given.repository import ROOT

IGNORED = "import signal, sys; print(signal.getsignal(int(sys.argv[1])) == signal.SIG_IGN)"
SLEEPS = (sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(600)")


@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_what_a_test_starts_ignores_no_signal(number: signal.Signals) -> None:
    said = subprocess.run([sys.executable, "-c", IGNORED, str(int(number))], capture_output=True, text=True, check=True).stdout
    assert said == "False\n"


def test_a_shell_in_the_background_and_nohup_made_tests_start_what_could_not_be_ended() -> None:
    def ignore() -> None:
        for each in ENDING_SIGNALS:
            signal.signal(each, signal.SIG_IGN)

    case = f"{__file__}::{test_what_a_test_starts_ignores_no_signal.__name__}"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", case], cwd=ROOT, capture_output=True, text=True,
        check=False, preexec_fn=ignore, timeout=120,
    )  # fmt: skip
    assert f"{len(ENDING_SIGNALS)} passed" in run.stdout, run.stdout


@pytest.mark.parametrize("failure", [AssertionError, KeyboardInterrupt])
def test_a_test_that_fails_ends_what_it_started(failure: type[BaseException]) -> None:
    with pytest.raises(failure), StartedProcess(SLEEPS, stdout=subprocess.PIPE) as running:
        raise failure
    assert running.returncode == -signal.SIGKILL


def test_a_wait_that_is_interrupted_ends_what_was_waited_for() -> None:
    """As by the time limit of a test. `Popen` waits for ever at the end of its block."""
    def interrupt(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        running = StartedProcess(SLEEPS, stdout=subprocess.PIPE)
        assert running.stdout is not None and running.stdout.readline() == b"begun\n"
        with pytest.raises(TimeoutError), running:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert running.wait() == -signal.SIGKILL


def test_each_process_in_a_block_is_ended_with_it() -> None:
    bare = "with subprocess." + "Popen("
    assert [str(path) for path in sorted((ROOT / "tests").rglob("*.py")) if bare in path.read_text()] == []
