"""`tiered audit run` and `plan` as their users meet them, in embedded mode: exit codes, and what they print where."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path

import pytest
import typer

from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Bounds, Cutoff, ManifestTally, parse_manifest
from recovery.audit.running.plan import Plan
from recovery.cli.audit.console import PipedConsole
from recovery.cli.audit.ending import finish
from recovery.cli.audit.output import SENTENCES_MAX, show_plan, show_summary
from tests.given.audited_store import AuditedStore
from tests.given.command_line import shell, unwritable

RUN = ("audit", "run", "--engine", "local", "--parallel", "1", "--to", "run")
NOW = ("--grace", "0s", "--insist")


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> AuditedStore:
    """With a run that has ended in `run`: what is asked of it again takes no worker."""
    store = AuditedStore(tmp_path_factory.mktemp("command"))
    assert "DATA LOSS: 1 dangling tombstone" in store(*RUN, *NOW, code=1)
    return store


def test_a_plan_of_emulators_ran_names_and_addresses_together(capsys: pytest.CaptureFixture[str]) -> None:
    inputs, cutoff = {"GCS emulator": "http://127.0.0.1:1"}, Cutoff(as_of_ns=10**18, grace_s=3600)
    names = (Bounds.of_prefix(""),)
    show_plan(Plan(inputs, log_is_durable=True, cutoff=cutoff, ranges=names, notes=(), blobs=1, list_requests=1), 1, as_json=False)
    assert "GCS emulator http://127.0.0.1:1\n" in capsys.readouterr().out


@pytest.mark.slow
def test_manifest_is_printed_as_json_and_the_rest_on_stderr(tiered: AuditedStore) -> None:
    assert json.loads(tiered(*RUN, "--json", code=1)) == json.loads((tiered.directory / "run" / "manifest.json").read_text())
    audit_of, to, again = tiered.errors.splitlines()
    assert [audit_of, to] == [f"audit of directory {tiered.store}, changelog sqlite", "to run, on local"]
    assert again.startswith("tiered: the run in run ended at 20") and again.endswith(
        "UTC, and nothing was audited now: name another directory for a new run"
    )
    assert json.loads(tiered("audit", "plan", "--json"))["cutoff"]["grace_s"] == 86_400 and tiered.errors == ""


def test_run_keeps_its_grace_and_who_asks_for_another_hears_of_it(tiered: AuditedStore) -> None:
    assert tiered(*RUN, "--grace", "48h", code=2) == ""
    assert "holds a run with a grace of 0 s, fixed when it began: leave the grace out" in tiered.errors
    tiered(*RUN, *NOW, code=1)
    tiered(*RUN, code=1)


@pytest.mark.parametrize(("arguments", "says"), [
    (["--to", ""], "--to is empty"), (["--price", "inf"], "--price inf is no price"), (["--price", "nan"], "'--price'"),
    (["--grace", "soon"], "'soon'"), (["--grace", "59m"], "--insist"), (["--to", "store/blobs/x"], "is in the store"),
    (["--parallel", "0"], "'--parallel'"), (["--master", "local[1]"], "leave --engine local out"), (["--engine", "dask"], "'local'"),
    (["--to", "foo://x/y"], "cannot be opened"), (["--to", "."], "and no run of an audit"),
    (["--to", " "], "--to is empty"), (["--to", "gs:/bucket/run"], "gs://"), (["--to", "s3:bucket/run"], "s3://"),
    (["--to", "file://run/1"], "file:///"), (["--verify-rate", "5"], "--verify-rate 5 is of --verify"),
    (["--verify-rate", "nan", "--verify"], "--verify-rate nan is no rate"), (["--price", "1e300"], "--price 1e+300 is no price"),
    (["--since", "run"], "is the run itself"), (["--since", " "], "is empty"),
])  # fmt: skip
def test_nonsense_ends_with_2_and_says_what_is_wrong_with_it(tiered: AuditedStore, arguments: list[str], says: str) -> None:
    assert tiered(*RUN, *arguments, code=2) == ""
    assert says in tiered.errors


@pytest.mark.parametrize("arguments", [
    "run --to run --engine local", "run --to run --engine local --json", "plan", "plan --json", "show x",
])  # fmt: skip
@pytest.mark.parametrize("how", ["closed", "full"])
def test_verdict_that_nobody_could_read_is_none(tiered: AuditedStore, arguments: str, how: str) -> None:
    """Neither clean (0) nor findings (1), the codes that Python and rich have for this."""
    with unwritable(how) as stdout:
        tiered("audit", *arguments.split(), stdout=stdout, code=2)


@pytest.mark.slow
def test_stdout_that_is_closed_is_no_error(tiered: AuditedStore) -> None:
    done = shell(tiered, f"cd {tiered.directory}; tiered audit run --engine local --to run >&-")
    assert done.returncode == 1 and done.stderr.decode().splitlines()[1] == "to run, on local"


def test_names_that_would_steer_a_terminal_are_spelt_out(tiered: AuditedStore, tmp_path: Path) -> None:
    (tmp_path / "\x1b[31m").symlink_to(tiered.directory / "run")
    shown = tiered("audit", "run", "--engine", "local", "--to", str(tmp_path / "\x1b[31m"), code=1)
    assert "\x1b" not in shown + tiered.errors and "\\u001b[31m/report.html" in shown


def test_pipe_gets_a_line_for_each_class_whatever_the_width(tiered: AuditedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiered.environment, "COLUMNS", "10")
    shown = tiered(*RUN, code=1)
    assert "DATA LOSS: 1 dangling tombstone names a blob that is gone." in shown
    for kind in (FindingClass.DANGLING, FindingClass.ORPHAN, FindingClass.REFERENCED):
        assert [line for line in shown.splitlines() if line.startswith(kind) and line.rstrip().endswith(kind.meaning)], kind


@pytest.mark.parametrize("width", [36, 60, 200])
def test_narrow_terminal_cuts_no_class_and_no_figure(tiered: AuditedStore, width: int) -> None:
    said = PipedConsole(file=StringIO(), width=width, force_terminal=True, color_system=None, soft_wrap=True)
    manifest = parse_manifest((tiered.directory / "run" / "manifest.json").read_bytes(), "run")
    show_summary(said, manifest, "run", 0.02)
    shown = said.file.getvalue()  # type: ignore[attr-defined]
    for figures in ("dangling        1         ", "orphan          2   40 B", "referenced      9  180 B"):
        assert figures in shown


def test_summary_tells_0_bytes_from_bytes_that_nobody_knows(tiered: AuditedStore) -> None:
    said = PipedConsole(file=StringIO(), width=200)
    manifest = parse_manifest((tiered.directory / "run" / "manifest.json").read_bytes(), "run")
    show_summary(said, manifest.model_copy(update={"totals": dict.fromkeys(FindingClass, ManifestTally(number=3))}), "run", 0.02)
    shown = said.file.getvalue()  # type: ignore[attr-defined]
    for each in (FindingClass.ORPHAN, FindingClass.REFERENCED):
        assert re.search(rf"^{each} +3  +0 B  {each.meaning}", shown, re.MULTILINE)
    for each in (FindingClass.DANGLING, FindingClass.DESTROYED, FindingClass.FOREIGN):
        assert re.search(rf"^{each} +3  +{each.meaning}", shown, re.MULTILINE)


def test_commands_of_the_report_name_the_store_that_was_named(tiered: AuditedStore) -> None:
    assert f"tiered -d {tiered.store} audit delete" in (tiered.directory / "run" / "report.html").read_text()


def test_summary_says_of_which_time_it_is(tiered: AuditedStore) -> None:
    assert "\nAs of 20" in tiered(*RUN, code=1) and "blobs younger than 0 s then were not judged." in tiered(*RUN, code=1)


def test_summary_of_a_clean_run_says_once_what_was_read(tiered: AuditedStore) -> None:
    said = PipedConsole(file=StringIO(), width=200)
    manifest = parse_manifest((tiered.directory / "run" / "manifest.json").read_bytes(), "run")
    show_summary(said, manifest.model_copy(update={"totals": {}}), "run", 0.02)
    shown = said.file.getvalue()  # type: ignore[attr-defined]
    assert "\nClean: " in shown and shown.count("No payload was read") == 1


def test_summary_has_a_bound_and_says_what_it_leaves_out(tiered: AuditedStore) -> None:
    said = PipedConsole(file=StringIO(), width=200)
    manifest = parse_manifest((tiered.directory / "run" / "manifest.json").read_bytes(), "run")
    many = tuple(f"it-{number}" for number in range(SENTENCES_MAX + 9))
    show_summary(said, manifest.model_copy(update={"complete": False, "doubts": many, "notes": many}), "run", 0.02)
    shown = said.file.getvalue()  # type: ignore[attr-defined]
    for word in ("doubt", "note"):
        assert f"{word:<10}it-{SENTENCES_MAX - 1}\n{word:<10}and 9 more, in run/manifest.json\n" in shown


@pytest.mark.parametrize("command", [["delete", "", "--class", "orphan"], ["restore", " "], ["show", "x", "--from", ""]])
def test_directory_without_a_name_is_not_the_current_one(tiered: AuditedStore, command: list[str]) -> None:
    """As of a variable of the shell that is not set."""
    assert tiered("audit", *command, code=2) == ""
    assert "the run directory is empty: give a path" in tiered.errors


@pytest.mark.parametrize("command", [
    ["run", "--engine", "local", "--to", "\udcff"], ["run", "--engine", "local", "--to", "new", "--since", "\udcff"],
    ["delete", "\udcff", "--class", "orphan"], ["restore", "\udcff"], ["show", "x", "--from", "\udcff"],
    ["run", "--engine", "local", "--usecase", "\udcff"], ["run", "--engine", "local", "--usecase", "u" * 1024],
    ["run", "--engine", "local", "--prefix", "u" * 1025], ["delete", "run", "--class", "orphan", "--quarantine", "\udcff"],
    ["delete", "run", "--class", "orphan", "--quarantine", "a/../b"], ["delete", "run", "--class", "orphan", "--quarantine", "a//b"],
])  # fmt: skip
def test_text_that_can_name_nothing_ends_with_a_sentence(tiered: AuditedStore, command: list[str]) -> None:
    """The first ones are bytes that are no UTF-8. `AuditedStore` sees to it that there is no traceback."""
    assert tiered("audit", *command, code=2) == ""
    assert tiered.errors.splitlines()[-1].startswith("tiered: ") and "\udcff" not in tiered.errors


def test_bug_is_no_finding(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        raise ZeroDivisionError

    with pytest.raises(typer.Exit) as ended:
        finish(command)
    assert ended.value.exit_code == 2 and "ZeroDivisionError" in capsys.readouterr().err
