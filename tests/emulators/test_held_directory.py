"""What a killed process leaves on the disk."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.given.held_directory import held_directory
from tests.given.processes import StartedProcess

HOLD = """
import sys
from pathlib import Path
from tests.given.held_directory import held_directory
with held_directory("tiered-x-", Path(sys.argv[1])) as directory:
    (directory / "file").write_text("x")
    print(directory, flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_held_is_removed_by_the_next_and_what_is_held_stays(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with StartedProcess(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        with held_directory("tiered-x-", tmp_path) as ours:
            assert ours.is_dir() and (theirs / "file").read_text() == "x", "it is held"
        assert not ours.exists()
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert theirs.is_dir()
        with held_directory("tiered-x-", tmp_path):
            assert not theirs.exists()
