"""The last release is had from the history, whole, once, by any number of processes; else it is said why not."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest

from emulators.demo.staging.interpreters import Interpreter, chosen, of_release
from emulators.demo.staging.troupe import environment
from emulators.released import NotReleasedError, Release, other, released
from tests.given.repository import ROOT


def test_its_source_is_what_its_commit_holds() -> None:
    release = released()
    named = subprocess.run(["git", "ls-tree", "-r", "--name-only", "-z", release.commit], cwd=ROOT, capture_output=True, check=True)
    source = release.source()
    held = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert held >= set(named.stdout.decode().rstrip("\0").split("\0"))


def test_processes_that_make_it_at_the_same_time_all_get_it(tmp_path: Path) -> None:
    program = "import emulators.released as it, pathlib, sys; it.ROOT = pathlib.Path(sys.argv[1]); print(it.released(it.NAMED_IN).wheel())"
    (tmp_path / ".git").symlink_to(ROOT / ".git")
    commands = [[sys.executable, "-c", program, str(tmp_path)]] * 3
    processes = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for command in commands]
    wheels = {process.communicate()[0].strip() for process in processes}
    assert {process.returncode for process in processes} == {0} and len(wheels) == 1
    with ZipFile(wheels.pop()) as wheel:
        assert {"tiered/storage.py", "recovery/loop.py", "changelog/log.py"} <= set(wheel.namelist())
    assert not list((tmp_path / "build" / "released" / released().commit).glob("tmp*"))


def test_a_commit_that_is_not_here_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotReleasedError, match=r"commit 0{40} of 0\.1\.0 is not here: clone with all history"):
        replace(released(), commit="0" * 40).source()
    assert not list(Release("0.1.0", "0" * 40).kept.iterdir())


@pytest.mark.slow
def test_its_interpreter_imports_its_wheel_wherever_it_is_started_and_the_demo_from_here() -> None:
    interpreter = of_release(released())
    program = "import tiered, recovery.loop, emulators.demo.players.daemon as daemon; print(tiered.__file__, daemon.__file__, sep='\\n')"
    done = subprocess.run(
        [interpreter.python, "-c", program], cwd=ROOT, env=environment(interpreter), capture_output=True, text=True, check=True
    )
    product, demo = map(Path, done.stdout.split())
    assert product.is_relative_to(released().kept) and not product.is_relative_to(released().source())
    assert demo.samefile(ROOT / "emulators" / "demo" / "players" / "daemon.py")


def test_each_restart_of_a_process_changes_its_code_and_neighbours_differ() -> None:
    both = Interpreter("today", "python", ""), Interpreter("0.1.0", "python", "")
    assert [chosen(both, "w0", incarnation).code for incarnation in range(3)] == ["today", "0.1.0", "today"]
    assert chosen(both, "w0", 0) != chosen(both, "w1", 0)
    assert {chosen(both[:1], "w11", incarnation).code for incarnation in range(3)} == {"today"}


def test_any_commit_stands_for_a_release_and_what_is_none_is_named() -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert other("HEAD") == Release(head[:8], head) and other("released") == released()
    for named in ("nothing", "", "--help", "HEAD:README.md"):
        with pytest.raises(NotReleasedError, match=r"there is no commit .* here: name one that `git log` lists"):
            other(named)


@pytest.mark.parametrize("line", ["", "0.1.0\n", "0.1.0 main\n", f"0.1 {'0' * 40}\n", f"0.1.0 {'0' * 40}"])
def test_a_file_that_names_no_release_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "released").write_text(line)
    with pytest.raises(NotReleasedError, match="must be one line, a version and the 40 digits of its commit"):
        released(tmp_path / "released")
