"""The worlds on record: a line for each long run of fresh seeds, in a file of this repository (docs/worlds.tsv).

    date        commit       first       last        calls   CPU s   violations
    2026-11-28  2c1855d8[…]  756225190   756227189   650000  180     -

A run is written down only if the code was exactly that of the commit, before and after. One that found a violation is
written down, too, with its seeds: the file says what was looked at, and not what went well. A world is a seed at a
commit, so what was run twice counts once; the commit is the last one that changed the code. A run that was interrupted,
or whose worker died, is not there: how many worlds it had is not known.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from emulators.simulation.explore import ExploredSeeds

COLUMNS = ("date", "commit", "first", "last", "calls", "CPU s", "violations")
CODE = ("changelog", "tiered", "recovery", "emulators")
"""What a world depends on."""
NONE = "-"


class LedgerError(Exception):
    """A run cannot be written down, or a line of the file is damaged. The text says which, and why."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One line. `commit`: whole, because a shorter form may grow.

    `calls`: of the actors. `violations`: the seeds that violated an invariant.
    """

    date: str
    commit: str
    first: int
    last: int
    calls: int
    cpu_s: int
    violations: tuple[int, ...]

    @classmethod
    def of(cls, explored: ExploredSeeds, commit: str, now_ns: int) -> RecordedRun:
        totals = explored.totals
        return cls(
            datetime.fromtimestamp(now_ns / 1e9, UTC).date().isoformat(), commit, explored.first, explored.last, totals.calls,
            round(totals.cpu_s), tuple(sorted({seed for seed, _ in totals.violations})),
        )  # fmt: skip

    @classmethod
    def parse(cls, line: str) -> RecordedRun:
        """Raises `ValueError` if this is not what `line` returns."""
        day, commit, first, last, calls, cpu_s, violations = line.split("\t")
        found = cls(
            date.fromisoformat(day).isoformat(), f"{int(commit, 16):040x}", int(first), int(last), int(calls), int(cpu_s),
            () if violations == NONE else tuple(map(int, violations.split(","))),
        )  # fmt: skip
        if not 0 <= found.first <= found.last:
            raise ValueError(f"the last seed, {found.last}, is before the first, {found.first}")
        if found.calls < 0 or found.cpu_s < 0:
            raise ValueError(f"it has {found.calls} calls in {found.cpu_s} seconds")
        if found.violations != tuple(sorted({*found.violations})):
            raise ValueError("its violations are not in order, each once")
        if outside := [seed for seed in found.violations if not found.first <= seed <= found.last]:
            raise ValueError(f"seed {outside[0]} is none of its seeds")
        if found.line() != line:
            raise ValueError(f"it is written {found.line()!r}")
        return found

    def line(self) -> str:
        violations = ",".join(map(str, self.violations)) or NONE
        return "\t".join(map(str, (self.date, self.commit, self.first, self.last, self.calls, self.cpu_s, violations)))


@dataclass(frozen=True, slots=True)
class RecordedSum:
    """`worlds`: different ones. `calls`: of all runs. `violations`: the worlds that violated an invariant."""

    runs: int
    worlds: int
    calls: int
    violations: int

    def sentence(self) -> str:
        found = "no invariant was violated" if not self.violations else f"{self.violations} violated an invariant"
        runs = "1 run" if self.runs == 1 else f"{self.runs} runs"
        return f"{self.worlds:,} worlds in {runs}, which made {self.calls:,} calls: {found}"


def read(file: Path) -> list[RecordedRun]:
    """Raises `LedgerError`, with the number of the line, if one is damaged."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise LedgerError(f"{file} cannot be read: {error}") from error
    lines = text.splitlines()
    if lines[:1] != ["\t".join(COLUMNS)]:
        raise LedgerError(f"{file} does not begin with the names of its columns")
    runs = []
    for number, line in enumerate(lines[1:], 2):
        try:
            runs.append(RecordedRun.parse(line))
        except ValueError as error:
            raise LedgerError(f"line {number} of {file} is damaged: {error}") from error
    if not text.endswith("\n"):
        raise LedgerError(f"line {len(lines)} of {file} is damaged: it has no end")
    return runs


def add_up(runs: Iterable[RecordedRun]) -> RecordedSum:
    runs = list(runs)
    worlds, seen_to = 0, {run.commit: -1 for run in runs}
    for run in sorted(runs, key=lambda run: run.first):
        first = max(run.first, seen_to[run.commit] + 1)
        worlds += max(0, run.last - first + 1)
        seen_to[run.commit] = max(run.last, seen_to[run.commit])
    violations = {(run.commit, seed) for run in runs for seed in run.violations}
    return RecordedSum(len(runs), worlds, sum(run.calls for run in runs), len(violations))


def committed(root: Path, of: Sequence[str] = CODE) -> str:
    """Returns the last commit that changed the code in this checkout. `LedgerError`: the code is not exactly that."""
    changed = _git(root, "status", "--porcelain", "--", *of)
    if changed:
        first = changed.splitlines()[0].strip()
        raise LedgerError(f"what is not committed cannot be run again, so it is not recorded: {first}; commit first")
    return _git(root, "log", "-1", "--format=%H", "--", *of)


def begin(file: Path) -> None:
    """Makes a file without runs. Raises `LedgerError` if it cannot be written."""
    try:
        file.write_text("\t".join(COLUMNS) + "\n")
    except OSError as error:
        raise LedgerError(f"{file} cannot be written: {error.strerror}") from error


def append(file: Path, run: RecordedRun) -> None:
    with file.open("a") as lines:
        lines.write(run.line() + "\n")


def _git(root: Path, *arguments: str) -> str:
    try:
        return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise LedgerError(f"git cannot say which commit this is: {getattr(error, 'stderr', '') or error}") from error
