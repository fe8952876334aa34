"""`make release` refuses what is no release, stops at a failure, and its last words say what was done, no more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from emulators.release.__main__ import main
from emulators.release.steps import STEPS, ReleaseStep
from tests.given.processes import StartedProcess, is_running
from tests.given.repository import ROOT
from tests.given.small_project import commit, git

BUILD = ReleaseStep(
    "build", "mkdir -p dist && echo wheel > dist/small-1.2.0.whl && cd dist && sha256sum small-1.2.0.whl > SHA256SUMS", 1, "it is built"
)
FINE = ReleaseStep("fine", "echo it is fine", 1, "all is fine")
READY = 'name = "small"\nlicense = "MIT"\nauthors = [{name = "Nobody"}]\nurls = {Source = "https://example.com"}'

NOBODY = {"GIT_AUTHOR_NAME": "n", "GIT_AUTHOR_EMAIL": "n", "GIT_COMMITTER_NAME": "n", "GIT_COMMITTER_EMAIL": "n"}

Release = Callable[..., tuple[int, str]]


@pytest.fixture
def release(small: Path, capsys: pytest.CaptureFixture[str]) -> Release:
    def run(*steps: ReleaseStep, asked: tuple[str, ...] = ()) -> tuple[int, str]:
        code = main(asked, small, steps)
        return code, capsys.readouterr().out

    return run


def step(name: str, command: str) -> ReleaseStep:
    return ReleaseStep(name, command, 1, f"{name} holds")


def ready(small: Path) -> None:
    commit(small, pyproject__toml=(small / "pyproject.toml").read_text().replace('name = "small"', READY))


def test_all_steps_passed_and_only_an_upload_is_missing(small: Path, release: Release) -> None:
    ready(small)
    code, said = release(BUILD, FINE)
    assert code == 0
    at = git(small, "rev-parse", "HEAD").strip()
    assert f"tiered 1.2.0, commit {at}" in said and "Only an upload is missing." in said and "it is fine\n" in said
    assert f"git tag -s v1.2.0 {at} -m 'tiered 1.2.0'" in said and "twine upload dist/small-1.2.0.whl" in said
    assert said.count("all is fine") == 1 and said.index("Proved:") < said.index("all is fine") < said.index("Not proved:")


def test_what_the_owner_has_not_decided_is_asked_before_the_upload(small: Path, release: Release) -> None:
    commit(
        small, HISTORY__md="# History\n\n## 1.2.0 (unreleased)\n", SECURITY__md="No address is named\nyet.\n",
        README__md="Nothing is\nreleased yet.\n",
    )
    code, said = release(BUILD, FINE)
    decisions = said.partition("The owner decides first.")[2].partition("Then only an upload is missing.")[0]
    assert code == 0 and "Only an upload is missing" not in said
    for what in ("a licence", "authors", "urls", "1.2.0 is unreleased", "an address in SECURITY.md", "'Nothing is released yet'"):
        assert what in decisions


@pytest.mark.parametrize(("command", "code"), [("echo half; exit 3", 3), ("there-is-no-such-command", 127), ("kill -9 $$", -9)])
def test_a_step_that_fails_is_the_last_and_there_is_no_release(release: Release, command: str, code: int) -> None:
    ended, said = release(BUILD, step("broken", command), FINE)
    assert ended == 1 and f"broken holds: it failed with {code}" in said and "all is fine: it did not run" in said
    assert "This is no release" in said and "upload" not in said and "\nit is fine\n" not in said


@pytest.mark.parametrize("asked", [("--only", "build"), ("--without", "fine")])
def test_some_steps_are_no_release(release: Release, asked: tuple[str, ...]) -> None:
    code, said = release(BUILD, FINE, asked=asked)
    assert code == 0 and "all is fine: it did not run" in said and "This is no release" in said and "upload" not in said


def test_a_run_that_did_not_build_does_not_speak_of_what_lies_in_dist(small: Path, release: Release) -> None:
    release(BUILD, FINE)
    _, said = release(BUILD, FINE, asked=("--only", "fine"))
    assert "Built: nothing in this run." in said and "  dist/small-1.2.0.whl" not in said


def test_what_a_step_left_out_comes_back_at_the_end(release: Release) -> None:
    _, said = release(BUILD, step("some", "echo not proved: the other half; echo 'SKIPPED [2] tests/test_it.py:1: no such server'"))
    last = said.partition("Not proved:")[2]
    assert "some: the other half" in last and "some: SKIPPED [2] tests/test_it.py:1: no such server" in last


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("echo '# more' >> README.md", " M README.md"), ("touch left", "?? left"), ("git tag v1.2.0", "1.2.0 is released"),
        ("echo >> dist/small-1.2.0.whl", "small-1.2.0.whl was changed"), ("rm dist/small-1.2.0.whl", "small-1.2.0.whl is missing"),
        ("touch dist/more.whl", "more.whl is not named in SHA256SUMS"),
    ],
)
def test_a_step_that_changes_what_is_proved_spoils_it(release: Release, command: str, told: str) -> None:
    code, said = release(BUILD, step("careless", command))
    assert code == 1 and told in said.partition("the steps changed what they prove")[2] and "upload" not in said


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ("echo more >> small/other.py", " M small/other.py"), ("touch left", "?? left"),
        ("git tag v1.2.0", "1.2.0 is released: v1.2.0 is the commit"),
        ("for n in $(seq 30); do touch left$n; done", "and 10 more"),
        ("echo > HISTORY.md && git commit -aqm notes", "HISTORY.md has no notes of 1.2.0: add a section `## 1.2.0 (unreleased)`"),
        ("echo '## 1.2.0 (soon)' > HISTORY.md && git commit -aqm notes", "dates 1.2.0 'soon'"),
        ("rm -rf .git", "is no clone that git can read"),
    ],
)
def test_a_checkout_that_cannot_be_released_is_refused_before_anything_runs(
    small: Path, release: Release, changed: str, told: str
) -> None:
    above = {"GIT_CEILING_DIRECTORIES": str(small.parent)}
    subprocess.run(["sh", "-c", changed], cwd=small, env=os.environ | NOBODY | above, check=True)
    code, said = release(BUILD)
    assert code == 2 and told in said and not (small / "dist").exists()


OUTSIDE = step("outside", "test -e build/network")


def test_a_run_goes_on_where_the_last_one_failed(small: Path, release: Release) -> None:
    ready(small)
    once = step("once", "test ! -e build/once && touch build/once && echo not proved: the rest")
    assert release(BUILD, once, OUTSIDE, FINE)[0] == 1
    (small / "build" / "network").touch()
    code, said = release(BUILD, once, OUTSIDE, FINE, asked=("--go-on", "--only", "outside"))
    assert code == 0 and "This is no release" in said
    code, said = release(BUILD, once, OUTSIDE, FINE, asked=("--go-on",))
    assert code == 0 and "Only an upload is missing." in said and "once: the rest" in said.partition("Not proved:")[2]
    assert said.count("in an earlier run:") == 3 and "\n=== fine: passed\n" in said and "  dist/small-1.2.0.whl" in said


def test_a_step_that_adds_to_what_was_built_takes_nothing_from_it(release: Release) -> None:
    adds = step("adds", "cd dist && echo bill > bill.json && sha256sum bill.json >> SHA256SUMS")
    for asked in ("--only", "build"), ("--go-on", "--only", "adds"):
        release(BUILD, adds, FINE, asked=asked)
    code, said = release(BUILD, adds, FINE, asked=("--go-on",))
    assert code == 0 and said.count("in an earlier run:") == 2


def test_what_another_run_passes_meanwhile_counts_too(small: Path, release: Release) -> None:
    program = "import sys; from pathlib import Path; from tests.emulators.release.test_driver import *; "
    program += f"sys.exit(main(['--go-on', '--only', 'fine'], Path('{small}'), (BUILD, FINE)))"
    long = step("long", f'cd {ROOT} && {sys.executable} -c "{program}"')
    assert release(BUILD, long, FINE, asked=("--only", "build", "--only", "long"))[0] == 0
    _, said = release(BUILD, long, FINE, asked=("--go-on",))
    assert said.count("in an earlier run:") == 3 and "not every step" not in said


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ("rm build/release/passed.json", "passed.json is missing"), ("echo half > build/release/passed.json", "cannot be read"),
        ("echo '{\"steps\": 1}' > build/release/passed.json", "cannot be read"),
        ("git commit -q --allow-empty -m more", "passed.json is of the commit"),
        ("echo >> dist/small-1.2.0.whl", "dist/ is no longer what was built"), ("rm -r dist", "dist/ is no longer what was built"),
        ("echo other > dist/small-1.2.0.whl; cd dist; sha256sum *.whl > SHA256SUMS", "dist/ is no longer what was built"),
    ],
)
def test_what_passed_earlier_counts_for_this_commit_and_these_files_alone(
    small: Path, release: Release, changed: str, told: str
) -> None:
    release(BUILD, OUTSIDE)
    subprocess.run(["sh", "-c", changed], cwd=small, env=os.environ | NOBODY, check=True)
    code, said = release(BUILD, OUTSIDE, asked=("--go-on",))
    assert code == 2 and told in said and "begin anew, without --go-on" in said and "=== " not in said


def test_a_run_that_built_nothing_is_not_gone_on_with(release: Release) -> None:
    release(BUILD, FINE, asked=("--only", "fine"))
    code, said = release(BUILD, FINE, asked=("--go-on",))
    assert code == 2 and "has no build that passed: begin anew" in said


@pytest.mark.parametrize("asked", [("--only", "nothing"), ("--without", "nothing"), ("--only", "fine", "--without", "fine")])
def test_a_step_that_there_is_not_is_refused(release: Release, asked: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        release(BUILD, FINE, asked=asked)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and ("'nothing' is no step; the steps are build, fine" in said or "no step is left" in said)


def test_the_arguments_of_the_release_reached_each_make_of_a_step(release: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARGS", "--only build")
    monkeypatch.setenv("MAKEFLAGS", " -- ARGS=--only\\ build")
    _, said = release(BUILD, step("makes", "printf 'all:\\n\\t@echo heard $(ARGS).\\n' > build/Makefile; make -f build/Makefile"))
    assert "\nheard .\n" in said


def test_a_process_that_a_step_leaves_behind_holds_nothing_up(small: Path, release: Release) -> None:
    code, said = release(BUILD, step("leaves", "sleep 600 & echo $! > build/left; echo done"))
    os.kill(int((small / "build" / "left").read_text()), 9)
    assert code == 0 and "leaves holds" in said.partition("Proved:")[2].partition("Not proved:")[0]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_release_that_was_ended_left_its_step_running(small: Path, sent: signal.Signals) -> None:
    """A step of half an hour went on beside the next release."""
    program = "import signal, sys; from pathlib import Path; from tests.emulators.release.test_driver import *; "
    program += "from emulators.release.running import let_signals_end_it; let_signals_end_it(); "
    program += "signal.signal(signal.SIGINT, signal.default_int_handler); "
    cleans = "trap 'touch build/cleaned; exit 1' INT; sleep 600 & echo $! > build/began; echo begun; wait"
    program += f"sys.exit(main([], Path('{small}'), (BUILD, step('long', \"{cleans}\"))))"
    began = small / "build" / "began"
    with StartedProcess([sys.executable, "-u", "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        assert running.stdout is not None
        assert any(line == b"begun\n" for line in running.stdout)  # so the release looks after its step now
        running.send_signal(sent)
        assert running.wait() != 0
    assert (small / "build" / "cleaned").exists()
    while is_running(int(began.read_text())):  # until it was reaped
        time.sleep(0.05)


def test_a_second_signal_left_a_step_running_that_was_cleaning_up(small: Path) -> None:
    program = "import signal, sys; from pathlib import Path; from tests.emulators.release.test_driver import *; "
    program += "signal.signal(signal.SIGINT, signal.default_int_handler); "
    deaf = "trap 'touch build/cleaning' INT; echo $$ > build/began; echo begun; while :; do sleep 0.1; done"
    program += f"sys.exit(main([], Path('{small}'), (BUILD, step('long', \"{deaf}\"))))"
    began = small / "build" / "began"
    with StartedProcess([sys.executable, "-u", "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        assert running.stdout is not None
        assert any(line == b"begun\n" for line in running.stdout)
        running.send_signal(signal.SIGINT)
        while not (small / "build" / "cleaning").exists():
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        assert running.wait() != 0
    while is_running(int(began.read_text())):  # until it was reaped
        time.sleep(0.05)


def test_each_step_of_the_project_names_a_command_that_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    said = capsys.readouterr().out
    assert len({each.name for each in STEPS}) == len(STEPS) and STEPS[0].name == "build"
    targets = (ROOT / "Makefile").read_text()
    for each in STEPS:
        assert each.name in said and each.command in said
        program, *words = [word for word in each.command.split() if not word.startswith("TIERED_")]
        if program == "make":
            assert f"\n{words[0]}:" in targets
        elif words[:1] == ["-m"]:
            place = ROOT / words[1].replace(".", "/")
            assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file() or words[1] == "pytest"
        else:
            assert os.access(ROOT / program, os.X_OK)


def test_ci_refuses_an_environment_of_another_python_than_it_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_bytes((ROOT / ".ci" / "run").read_bytes())
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (other := tmp_path / "python3.99").write_text("#!/bin/sh\necho 3.99\n")
    other.chmod(0o755)
    env = os.environ | {"PYTHON": str(other)}
    done = subprocess.run(["bash", tmp_path / ".ci" / "run"], env=env, capture_output=True, text=True, check=False)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert done.returncode == 2 and f".venv has Python {here}, and PYTHON is {other}: remove .venv" in done.stderr
