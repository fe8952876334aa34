"""The workflow of a public forge runs what CI runs, on what pyproject.toml names. No forge has run it."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml

from emulators.go import NotBuiltError
from emulators.release.workflow import WORKFLOW, actionlint, look
from tests.given.repository import ROOT

TEXT = WORKFLOW.read_text()
READ: dict[Any, Any] = yaml.safe_load(TEXT)
JOB = READ["jobs"]["run"]


def test_it_runs_ci_on_each_python_of_the_project_from_a_clone_with_all_history() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    named = [each.rpartition(" :: ")[2] for each in classifiers if each.startswith("Programming Language :: Python :: 3.")]
    assert JOB["strategy"]["matrix"] == {"python": named}
    assert JOB["steps"][0]["with"] == {"fetch-depth": 0, "persist-credentials": False}
    last = JOB["steps"][-1]
    assert last == {"run": ".ci/run", "env": {"PYTHON": "python${{ matrix.python }}"}} and os.access(ROOT / last["run"], os.X_OK)
    [java] = [step["with"]["java-version"] for step in JOB["steps"] if "java-version" in step.get("with", {})]
    assert java == "17"


def test_it_may_read_and_nothing_else_it_ends_and_its_actions_are_pinned_by_commit() -> None:
    assert READ["permissions"] == {"contents": "read"} and all("permissions" not in job for job in READ["jobs"].values())
    assert all(job["timeout-minutes"] <= 90 for job in READ["jobs"].values())
    used = re.findall(r"uses: (.*)", TEXT)
    assert len(used) == sum("uses" in step for step in JOB["steps"]) >= 3
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} +# v\d+\.\d+\.\d+", each) for each in used)


@pytest.mark.sim
def test_actionlint_has_nothing_against_it_and_finds_planted_faults(tmp_path: Path) -> None:
    try:
        program = anyio.run(actionlint)
    except NotBuiltError as failed:
        pytest.skip(str(failed))
    assert look(program, WORKFLOW) == (0, "")
    for old, new, told in (
        ("timeout-minutes: 60", "timeout-minute: 60", 'unexpected key "timeout-minute"'),
        ("matrix.python }}", "matrix.pythons }}", 'property "pythons" is not defined'),
        ("contents: read", "contents: all", '"all" is invalid'),
    ):
        assert old in TEXT
        (planted := tmp_path / "planted.yml").write_text(TEXT.replace(old, new))
        code, said = look(program, planted)
        assert code == 1 and told in said
