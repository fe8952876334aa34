"""`.ci/release` says what was done, and no more; `.ci/build` takes no build that depends on where it is made."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.given.repository import ROOT

FILES = {
    ".gitignore": "/build/\n/dist/\n/.venv\n",
    "Makefile": "setup:\n",
    "pyproject.toml": '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n\n'
    '[project]\nname = "small"\nversion = "1.2.0"\nlicense = "MIT"\nauthors = [{name = "Nobody"}]\n'
    'urls = {Source = "https://example.com"}\n\n[tool.hatch.build]\nonly-include = ["small.py"]\n',
    "HISTORY.md": "# History\n\n## 1.2.0 (2026-11-28)\n",
    "README.md": "# small\n",
    "SECURITY.md": "Write to somebody.\n",
    "small.py": "ANSWER = 42\n",
    "test_it.py": 'import pytest\n\n\ndef test_it() -> None:\n    pytest.skip("no server")\n',
}
NOBODY = {f"GIT_{who}_{what}": "nobody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
BUILD = "mkdir -p dist; cd dist; echo wheel > small.whl; echo source > small.tar.gz; sha256sum small* > SHA256SUMS"
COMMIT = "git add --all; git commit --quiet --message more"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A project that can be released, in a repository of its own, with the steps `build` and `next`."""
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    (tmp_path / ".ci").mkdir()
    for name in ("build", "interpreters", "release"):
        (tmp_path / ".ci" / name).write_bytes((ROOT / ".ci" / name).read_bytes())
        (tmp_path / ".ci" / name).chmod(0o755)
    (tmp_path / "constraints.txt").write_bytes((ROOT / "constraints.txt").read_bytes())
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    steps(tmp_path, "true")
    do(tmp_path, f"git init --quiet; {COMMIT}")
    return tmp_path


def steps(small: Path, following: str) -> None:
    script = small / ".ci" / "release"
    listed = f'steps=(\n    "build: {BUILD}"\n    "next: {following}"\n)\n'
    changed, count = re.subn(r"(?ms)^steps=\(\n.*?^\)\n", listed.replace("\\", r"\\"), script.read_text())
    assert count == 1
    script.write_text(changed)


def do(small: Path, command: str) -> tuple[int, str]:
    """The exit code, and all that was said."""
    done = subprocess.run(
        ["bash", "-c", command], cwd=small, env=os.environ | NOBODY, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("following", "code", "told"),
    [
        ("true", 0, "passed: build next; failed: none; did not run: none\nonly an upload is missing: git tag -s v1.2.0"),
        ("exit 3", 1, "passed: build; failed: next; did not run: none\nno release: not every step has passed"),
        ("there-is-no-such-command", 1, "there-is-no-such-command: command not found\n=== next: failed"),
        (f"echo 'not proved: the half'; .venv/bin/python -m pytest -p no:cacheprovider -c {ROOT}/pyproject.toml test_it.py", 0,
         "test_it.py:5: no server\nnot proved by next: the half\n--- tiered 1.2.0"),
        ("echo '#' >> README.md", 1, "no release: the steps changed what they prove"),
        ("touch left", 1, "?? left"),
        ("git tag v1.2.0", 1, "no release: the steps changed what they prove"),
        ("echo >> dist/small.whl", 1, "small.whl: FAILED"),
        ("sleep 600 & echo $! > build/left", 0, "only an upload is missing"),
    ],
)  # fmt: skip
def test_the_last_words_say_what_passed_and_what_was_not_proved(small: Path, following: str, code: int, told: str) -> None:
    steps(small, following.replace("$", "\\$"))
    do(small, COMMIT)
    ended, said = do(small, ".ci/release")
    do(small, "[ ! -e build/left ] || kill $(cat build/left)")
    assert (ended, told in said) == (code, True), said
    assert code == 0 or "upload" not in said


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ("echo >> small.py", " M small.py"), ("touch left", "?? left"), ("git tag v1.2.0", "a version that has its tag is released"),
        (f"echo > HISTORY.md; {COMMIT}", "HISTORY.md has no section '## 1.2.0 (unreleased)'"), ("rm -rf .git", "no clone"),
        ("set -- nothing", "'nothing' is no step: build next"),
    ],
)  # fmt: skip
def test_what_is_no_release_is_refused_before_any_step(small: Path, changed: str, told: str) -> None:
    code, said = do(small, f'{changed}; .ci/release "$@"')
    assert code == 2 and told in said and "===" not in said


def test_a_step_that_failed_from_outside_runs_again_for_the_same_commit_alone(small: Path) -> None:
    steps(small, "[ -e build/network ]")
    do(small, COMMIT)
    assert do(small, ".ci/release")[0] == 1
    code, said = do(small, "touch build/network; .ci/release next")
    assert code == 0 and "=== build" not in said and "passed: build next" in said
    code, said = do(small, f"echo '# more' >> small.py; {COMMIT}; .ci/release next")
    assert code == 1 and "passed: next; failed: none; did not run: build" in said


def test_what_the_owner_has_not_decided_is_asked_before_the_upload(small: Path) -> None:
    (small / "pyproject.toml").write_text(re.sub(r"(?m)^(license|authors|urls) = .*\n", "", FILES["pyproject.toml"]))
    (small / "HISTORY.md").write_text("# History\n\n## 1.2.0 (unreleased)\n")
    (small / "SECURITY.md").write_text("No address is named yet.\n")
    (small / "README.md").write_text("Nothing is\nreleased yet.\n")
    code, said = do(small, f"{COMMIT}; .ci/release")
    decisions = said.partition("the owner decides first")[2].partition("only an upload is missing")[0]
    wanted = ("license", "authors", "urls", "the day", "who is told of a vulnerability", "README.md says: Nothing is released yet")
    assert code == 0 and all(each in decisions for each in wanted), said


def test_each_step_names_a_command_that_is_there() -> None:
    listed = subprocess.run([ROOT / ".ci/release", "--list"], text=True, capture_output=True, check=True).stdout.splitlines()
    assert len(listed) > 10 and listed[0] == "build: .ci/build"
    for step in listed:
        program, *words = [word for word in step.partition(": ")[2].split() if not word.startswith("TIERED_")]
        if program == "make":
            assert f"\n{words[0]}:" in (ROOT / "Makefile").read_text()
        elif program != "go":
            assert os.access(ROOT / program, os.X_OK), step
        assert all((ROOT / word).exists() for word in words if word.startswith("tests/")), step


# --- what is built ---------------------------------------------------------------------------------


def test_a_build_that_heeds_the_times_of_files_is_refused(small: Path) -> None:
    code, said = do(small, ".ci/build && cd dist && sha256sum --check SHA256SUMS")
    assert code == 0 and len(list((small / "dist").iterdir())) == 3, said
    (small / "pyproject.toml").write_text(FILES["pyproject.toml"].replace("[tool.hatch.build]", "[tool.hatch.build]\nreproducible = false"))
    code, said = do(small, f"{COMMIT}; rm dist/SHA256SUMS; .ci/build")
    assert code == 1 and re.search(r"small-1\.2\.0\S* differ", said) and not (small / "dist" / "SHA256SUMS").exists()


def test_the_wheel_and_the_source_distribution_of_this_commit_are_built_in_three_ways_to_the_same_bytes(tmp_path: Path) -> None:
    done = subprocess.run([ROOT / ".ci/build", tmp_path / "dist"], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel], [source] = (tmp_path / "dist").glob("*.whl"), (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(source) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    shipped = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == shipped | {"pyproject.toml", "README.md", "HISTORY.md", "SECURITY.md", "PKG-INFO", ".gitignore"}


def test_ci_refuses_an_environment_of_another_python_than_it_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_bytes((ROOT / ".ci" / "run").read_bytes())
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name, version in ((".venv/bin/python", "3.11"), ("python3.99", "3.99")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {version}\n")
        (tmp_path / name).chmod(0o755)
    code, said = do(tmp_path, "PYTHON=./python3.99 bash .ci/run")
    assert code == 2 and ".venv has Python 3.11, and PYTHON is ./python3.99: remove .venv" in said
