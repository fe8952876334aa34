"""`python -m emulators.simulation`: seeded worlds of the real code, from the command line. `make sim` calls it.

    run       explores many seeds on all cores; a table at the end (--record adds it to docs/worlds.tsv, or --ledger)
    recorded  checks that file, and adds it up
    seed      replays one seed; if it shows a violation, prints the smallest run that shows it
    beside    explores worlds in which processes of the last release, or of a commit, work beside those of this checkout
    guards    knocks out each guard of the protocol in turn, and counts the seeds until a violation shows it

Exit codes: 0: all invariants held, everything required was met, and every missing guard was found. 1: a violation, or
something required was not met or not found. 2: the command line is wrong. 130: interrupted. Tables and traces go to
stdout, progress to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from changelog.base.runtime import SystemRuntime

if TYPE_CHECKING:
    from emulators.simulation.explore import ExploredSeeds, Tell

LEDGER = Path(__file__).parents[2] / "docs" / "worlds.tsv"
PLAIN_EVERY_S = 10.0
PLAIN_COLUMNS = 160

app = typer.Typer(help="Seeded worlds of the real code.", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)


@app.command("run")
def run_seeds(
    seeds: Annotated[int | None, typer.Option(min=1, help="How many; 1000 unless --minutes is given.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0.01, help="For how long.")] = None,
    first: Annotated[int | None, typer.Option(min=0, help="The first seed; a random one unless given.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; one for each core unless given.")] = None,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Go on after a violation.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the totals into this file, too.")] = None,
    record: Annotated[bool, typer.Option("--record", help="Add the run to the ledger, if the code is committed.")] = False,
    ledger: Annotated[Path | None, typer.Option(help="That of --record; docs/worlds.tsv unless given.")] = None,
) -> None:
    """Explores seeds. At the end, one table; of the first violation, the smallest run that shows it."""
    from emulators.simulation import seed_report as report
    from emulators.simulation.explore import WorkerError, explore
    from emulators.simulation.ledger import LedgerError, RecordedRun, append, begin, committed, read

    commit = ""
    if record:
        try:  # fail now, and not after everything has run
            if ledger is not None and not ledger.exists():
                begin(ledger)
            read(ledger or LEDGER)
            commit = committed(LEDGER.parent.parent)
        except LedgerError as error:
            raise typer.BadParameter(str(error), param_hint="--record") from error
    if json_file is not None:
        try:
            json_file.touch()  # fail now, and not after everything has run
        except OSError as error:
            raise typer.BadParameter(f"{json_file} cannot be written: {error.strerror}", param_hint="--json") from error
    seeds = 1000 if seeds is None and minutes is None else seeds
    seconds = None if minutes is None else minutes * 60
    try:
        explored = explore(seeds, seconds, first, jobs, keep_going=keep_going, tell=_progress(seeds, seconds))
    except WorkerError as error:
        sys.exit(_failed(f"simulation: {error}"))
    _clear()
    _table(explored)
    if json_file is not None:
        json_file.write_text(json.dumps(report.record(explored), indent=2, sort_keys=True) + "\n")
    changed = None
    if record:
        try:
            if (now := committed(LEDGER.parent.parent)) != commit:
                raise LedgerError(f"the code was that of {commit} when it began, and is that of {now} now")
            append(ledger or LEDGER, RecordedRun.of(explored, commit, SystemRuntime().wall_ns()))
        except (LedgerError, OSError) as error:
            changed = f"not recorded: {error}"
    found = report.problems(explored)
    _write(found or ["every invariant holds in every world"])
    if (sentence := report.too_short(explored)) is not None:
        _write([sentence])
    _write(report.first_violation(explored))
    _write([report.sentence(explored)])
    sys.exit(_failed(f"simulation: {changed}") if changed is not None else 1 if found else 0)


@app.command("recorded")
def add_up_recorded(file: Annotated[Path | None, typer.Argument(help="docs/worlds.tsv unless given.")] = None) -> None:
    """Checks the file of recorded runs, and adds it up."""
    from emulators.simulation.ledger import LedgerError, add_up, read

    try:
        found = add_up(read(file or LEDGER))
    except LedgerError as error:
        sys.exit(_failed(f"simulation: {error}"))
    _write([found.sentence()])


@app.command("seed")
def replay_seed(
    seed: Annotated[int, typer.Argument(help="Which.")],
    whole: Annotated[bool, typer.Option("--whole", help="Of a violation, the whole run instead of the smallest that shows it.")] = False,
) -> None:
    """Replays one seed: what it chose, all calls, and the verdict."""
    from emulators.simulation.seed_report import replayed

    well, lines = replayed(seed, whole=whole)
    _write(lines)
    sys.exit(0 if well else 1)


@app.command("beside")
def run_two_codes(
    other: Annotated[str, typer.Argument(help="released: the last release; else a commit.")] = "released",
    seeds: Annotated[int, typer.Option(min=1, help="How many.")] = 300,
    first: Annotated[int | None, typer.Option(min=0, help="The first seed; a random one unless given.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; one for each core unless given.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Replay only this one: all calls, and the verdict.")] = None,
) -> None:
    """Explores seeds with processes of two codes on one store."""
    from emulators.released import NotReleasedError
    from emulators.simulation import beside
    from emulators.simulation.coverage import Coverage
    from emulators.simulation.explore import WorkerError, explore
    from emulators.simulation.worker import command
    from emulators.world.code import CodeError

    try:
        code = beside.other_code(other)  # fail now, with one sentence
        if seed is not None:
            result = beside.run_both(seed, Coverage(), code)
            _write([*result.trace, "every invariant holds" if result.violation is None else str(result.violation)])
            sys.exit(0 if result.violation is None else 1)
        explored = explore(seeds, first=first, jobs=jobs, tell=_progress(seeds, None), worker=command(beside=other))
    except (NotReleasedError, CodeError, WorkerError) as error:
        sys.exit(_failed(f"simulation: {error}"))
    _clear()
    totals = explored.totals
    _write(f"{times:>10} {name}" for name, times in sorted(totals.coverage.sections["lives"].items()))
    _write([f"{totals.worlds} worlds of today and {code.name} from seed {explored.first}, {totals.calls} calls"])
    found = [f"seed {number}: {what}" for number, what in totals.violations]
    found += [f"never met: {each}" for each in beside.missing(totals.coverage, totals.worlds, code.name)]
    _write(found or ["every invariant holds in every world"])
    sys.exit(1 if found else 0)


@app.command("guards")
def knock_out_guards(
    seeds: Annotated[int, typer.Option(min=1, help="At most so many for each guard.")] = 10_000,
    only: Annotated[list[str] | None, typer.Option("--only", help="Only this guard, by its name; may be repeated.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; one for each core unless given.")] = None,
    docs: Annotated[Path | None, typer.Option("--docs", help="Put the table into this page, too: docs/guards.md.")] = None,
) -> None:
    """Runs seeds 1, 2, 3, … without each guard until one violates an invariant."""
    from emulators.simulation.explore import WorkerError
    from emulators.simulation.guard_search import COLUMNS, put_into, search
    from emulators.simulation.guards import GUARDS

    if unknown := [name for name in only or () if name not in GUARDS]:
        raise typer.BadParameter(f"there is no guard {unknown[0]!r}; there are: {', '.join(GUARDS)}", param_hint="--only")
    found = []
    for name in only or GUARDS:
        try:
            found.append(search(name, seeds, jobs, _progress(seeds, None, f"without {name}: ")))
        except WorkerError as error:
            sys.exit(_failed(f"simulation, without {name}: {error}"))
        _clear()
    _show(COLUMNS, [each.cells() for each in found])
    if docs is not None:
        put_into(docs, found)
    missed = [each.guard for each in found if each.seed is None]
    _write(f"nobody noticed in {seeds} seeds that this guard was missing: {name}" for name in missed)
    sys.exit(1 if missed else 0)


def _progress(seeds: int | None, seconds: float | None, prefix: str = "") -> Tell:
    """Returns a function that shows the progress: on a terminal one line, elsewhere a line from time to time.
    """
    terminal, told_at = sys.stderr.isatty(), 0.0
    goal = "" if seeds is None else f" of {seeds}"
    time = "" if seconds is None else f" of {seconds:.0f} s"

    def tell(explored: ExploredSeeds) -> None:
        nonlocal told_at
        if not terminal and explored.elapsed_s - told_at < PLAIN_EVERY_S:
            return
        told_at = explored.elapsed_s
        totals, hours = explored.totals, explored.totals.simulated_s / 3600
        line = (
            f"{prefix}{totals.worlds}{goal} worlds from seed {explored.first}, {explored.elapsed_s:.0f} s{time},"
            f" {hours:.1f} simulated h, {explored.seeds_per_s:.0f} seeds/s and core, {len(totals.violations)} violations"
        )
        sys.stderr.write(f"\r\x1b[2K{line}" if terminal else f"{line}\n")
        sys.stderr.flush()

    return tell


def _clear() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[2K")


def _table(explored: ExploredSeeds) -> None:
    from rich.console import Console
    from rich.table import Table

    from emulators.simulation.seed_report import counts, figures

    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in figures(explored):
        table.add_row(name, value)
    for section, names in counts(explored):
        table.add_section()
        for number, (name, times) in enumerate(names):
            table.add_row(section if number == 0 else "", f"{times:>10} {name}")
    Console(soft_wrap=True, highlight=False).print(table)


def _show(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False)
    Console(highlight=False, width=console.width if console.is_terminal else PLAIN_COLUMNS).print(table)


def _write(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")


def _failed(sentence: str) -> int:
    sys.stderr.write(sentence + "\n")
    return 1


if __name__ == "__main__":
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of the pipe has closed it and wants no more
        sys.stderr.close()
        sys.exit(0)
