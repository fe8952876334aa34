"""The worlds on record: what is written down, what counts, and what is refused."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from emulators.simulation import __main__ as command
from emulators.simulation.explore import ExploredSeeds
from emulators.simulation.ledger import COLUMNS, LedgerError, RecordedRun, add_up, append, committed, read
from emulators.simulation.totals import Totals
from tests.given.repository import ROOT

HEADER = "\t".join(COLUMNS) + "\n"
COMMIT, OTHER = "2c1855d8" * 5, "0badc0de" * 5
RUN = RecordedRun("2026-11-28", COMMIT, 100, 199, 5000, 12, ())


def ledger(directory: Path, *runs: RecordedRun) -> Path:
    file = directory / "worlds.tsv"
    file.write_text(HEADER)
    for run in runs:
        append(file, run)
    return file


def of(first: int, last: int, commit: str = COMMIT, violations: tuple[int, ...] = ()) -> RecordedRun:
    return RecordedRun("2026-11-28", commit, first, last, 10, 1, violations)


def test_a_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    explored = ExploredSeeds(100, 2, Totals(worlds=100, cpu_s=12.4, calls=5000, violations=[(150, "I1"), (150, "I3"), (120, "I1")]))
    run = RecordedRun.of(explored, COMMIT, 1_795_824_000 * 10**9)
    assert run == RecordedRun("2026-11-28", COMMIT, 100, 199, 5000, 12, (120, 150))
    assert read(ledger(tmp_path, RUN, run)) == [RUN, run]


@pytest.mark.parametrize(
    ("runs", "worlds", "violations"),
    [
        ([], 0, 0),
        ([of(0, 9), of(10, 19)], 20, 0),
        ([of(0, 9), of(0, 9)], 10, 0),  # the same worlds again
        ([of(0, 9), of(0, 9, OTHER)], 20, 0),  # another commit
        ([of(5, 30), of(0, 9), of(8, 12), of(31, 31)], 32, 0),
        ([of(0, 99), of(10, 19), of(50, 149)], 150, 0),
        ([of(0, 9, violations=(3, 4)), of(0, 9, violations=(3,))], 10, 2),
    ],
)
def test_a_world_counts_once(runs: list[RecordedRun], worlds: int, violations: int) -> None:
    found = add_up(runs)
    assert (found.worlds, found.violations, found.runs) == (worlds, violations, len(runs))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (f"2026-11-28\t{COMMIT}\t100\t199\t5000\t12", "unpack"), ("", "unpack"), (RUN.line() + "\t-", "unpack"),
        (RUN.line().replace("-28", "-31"), "day"), (RUN.line().replace("2c18", "main"), "invalid literal"),
        (RUN.line().replace(COMMIT, COMMIT[:8]), "it is written"), (RUN.line().replace("5000", "-5000"), "-5000 calls"),
        (RUN.line()[:-1] + "120,120", "each once"), (RUN.line()[:-1] + "130,120", "each once"),
        (RUN.line().replace("199", "99"), "before the first"), (RUN.line().replace("100", "0100"), "it is written"),
        (RUN.line()[:-1] + "7", "none of its seeds"), (RUN.line() + " ", "invalid literal"),
    ],
)  # fmt: skip
def test_a_damaged_line_is_named(tmp_path: Path, line: str, why: str) -> None:
    file = ledger(tmp_path, RUN)
    file.write_text(f"{file.read_text()}{line}\n")
    with pytest.raises(LedgerError, match=f"line 3 of .* is damaged: .*{why}"):
        read(file)
    outcome = CliRunner().invoke(command.app, ["recorded", str(file)])
    assert outcome.exit_code == 1 and "line 3" in outcome.stderr


def test_a_file_without_its_columns_is_refused(tmp_path: Path) -> None:
    for text in ("", RUN.line() + "\n"):
        (tmp_path / "worlds.tsv").write_text(text)
        with pytest.raises(LedgerError, match="columns"):
            read(tmp_path / "worlds.tsv")
    (tmp_path / "worlds.tsv").write_text(HEADER + RUN.line())
    with pytest.raises(LedgerError, match=r"line 2 .* no end"):
        read(tmp_path / "worlds.tsv")
    with pytest.raises(LedgerError, match="cannot be read"):
        read(tmp_path / "missing")


def test_only_committed_code_is_recorded_and_its_seeds_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "checkout"
    (root / "docs").mkdir(parents=True)
    (root / "tiered").mkdir()
    file = ledger(root / "docs")
    monkeypatch.setattr(command, "LEDGER", file)
    run = ["run", "--seeds", "2", "--first", "5", "--jobs", "1", "--record"]
    assert "git cannot say" in " ".join(CliRunner().invoke(command.app, run).stderr.split())  # this is no checkout
    (root / "tiered" / "code.py").write_text("")
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    with pytest.raises(LedgerError, match=r"not recorded: \?\? tiered/"):
        committed(root)
    subprocess.run([*git, "add", "tiered"], check=True)
    subprocess.run([*git, "commit", "-qm", "code"], check=True)

    done = CliRunner().invoke(command.app, run)
    assert done.exit_code == 0
    [recorded] = read(file)
    assert (recorded.commit, recorded.first, recorded.last, recorded.violations) == (committed(root), 5, 6, ())
    assert recorded.calls > 0
    assert re.fullmatch(
        rf"seeds: 5 to 6, 2 worlds of the simulation, {recorded.calls} calls, \d+ s of CPU, 0 violations", done.stdout.splitlines()[-1]
    )
    elsewhere = tmp_path / "night.tsv"
    for _ in range(2):
        assert CliRunner().invoke(command.app, [*run, "--ledger", str(elsewhere)]).exit_code == 0
    assert [found.first for found in read(elsewhere)] == [5, 5] and read(file) == [recorded]
    assert CliRunner().invoke(command.app, [*run, "--ledger", str(tmp_path / "missing" / "night.tsv")]).exit_code == 2
    assert CliRunner().invoke(command.app, ["recorded"]).stdout.startswith("2 worlds in 1 run,")

    subprocess.run([*git, "add", "docs"], check=True)
    subprocess.run([*git, "commit", "-qm", "the ledger"], check=True)
    assert committed(root) == recorded.commit  # no code was changed


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_run_during_which_the_code_changed_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_committed: bool) -> None:
    monkeypatch.setattr(command, "LEDGER", file := ledger(tmp_path))
    commits = iter([COMMIT, OTHER])

    def told(root: Path) -> str:
        commit = next(commits)
        if commit == COMMIT or is_committed:
            return commit
        raise LedgerError("what is not committed")

    monkeypatch.setattr("emulators.simulation.ledger.committed", told)
    outcome = CliRunner().invoke(command.app, ["run", "--seeds", "2", "--first", "5", "--jobs", "1", "--record"])
    assert outcome.exit_code == 1 and "simulation: not recorded: " in outcome.stderr
    assert read(file) == []


def test_a_violation_on_record_is_said(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(command.app, ["recorded", str(ledger(tmp_path, RUN, of(0, 9, violations=(3,))))])
    assert outcome.exit_code == 0 and "1 violated an invariant" in outcome.stdout


def test_the_page_tells_what_is_on_record() -> None:
    page = " ".join((ROOT / "docs/simulation.md").read_text().split())
    assert add_up(read(ROOT / "docs/worlds.tsv")).sentence() in page
