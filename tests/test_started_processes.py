"""What a test starts: it is of this checkout, it ignores no signal, and it ends with the test."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ENDING_SIGNALS
from tests.given.command_line import Command
from tests.given.processes import StartedProcess
from tests.given.repository import ROOT

IGNORED = "import signal, sys; print([each for each in sys.argv[1:] if signal.getsignal(int(each)) == signal.SIG_IGN])"
SLEEPS = (sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(600)")


@pytest.fixture(scope="module")
def _below_nohup() -> Iterator[None]:
    """All is ignored before a test begins, as in a shell's background."""
    before = {each: signal.signal(each, signal.SIG_IGN) for each in ENDING_SIGNALS}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.usefixtures("_below_nohup")
def test_what_a_test_starts_ignores_no_signal() -> None:
    said = subprocess.run([sys.executable, "-c", IGNORED, *(str(int(each)) for each in ENDING_SIGNALS)], capture_output=True, check=True)
    assert said.stdout == b"[]\n"


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


def test_a_command_in_a_process_of_its_own_was_that_of_whatever_checkout_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    loaded = "import tiered, recovery; print(tiered.__file__, recovery.__file__)"
    said = Command(tmp_path, store=False)(python=("-c", loaded))
    assert said.split() == [str(ROOT / package / "__init__.py") for package in ("tiered", "recovery")]
