"""`tiered prove`: whether the user's services do what the store rests on, tried before the first byte is at stake.

*Crash*: the trial stays, and a later run removes it. *Failure*, and SIGINT or SIGTERM: the trial is removed, and what
was tried by then is shown, and written. A second signal ends it at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from changelog.base.errors import ConfigurationError, InvalidRequestError, TieredError, UnavailableError
from changelog.base.runtime import SystemRuntime
from recovery.audit.running.interrupts import heed_signals
from recovery.cli.output import dump, write
from recovery.cli.shared import choice, run_async, say, shared
from recovery.display import escape_controls
from tiered.text import quoted
from tiered.whose import refuse_store

if TYPE_CHECKING:
    from recovery.prove.report import ProveReport

INTERRUPTED = 130
_FILES = ("report.json", "report.html")


@shared
def prove(
    yes: Annotated[bool, typer.Option("--yes", help="Begin. Without it, only the plan is shown.")] = False,
    only: Annotated[str | None, typer.Option(
        metavar="PARTS", help="Leave out all parts but these, such as promises,contracts. What is left out was not tried."
    )] = None,
    out: Annotated[Path | None, typer.Option(
        metavar="DIR", help="Write report.json and report.html there: a directory that has none of them yet."
    )] = None,
) -> None:
    """
    Tries on these services what a store rests on, in names that nobody else uses, and removes them again.

    The report has no name, key or secret of yours, so it can be sent to others.
    """

    async def command() -> None:
        from recovery.prove.plan import plan_of
        from recovery.prove.plan import text_of as text_of_plan
        from recovery.prove.probes.bench import Sizes
        from recovery.prove.report import ProveVerdict, text_of
        from recovery.prove.run import PARTS, initial
        from recovery.prove.run import prove as run

        settings, runtime, sizes = choice.settings(), SystemRuntime(), Sizes()
        parts = _chosen(only, tuple(PARTS))
        if not yes:
            plan = plan_of(settings, sizes, parts)
            for line in [dump(plan)] if choice.json else [*text_of_plan(plan), "nothing was tried: add --yes to begin"]:
                write(line)
            return
        if out is not None:
            _make(out)
        at = datetime.fromtimestamp(runtime.wall_ns() / 1e9, UTC).isoformat(timespec="minutes")
        report = initial(settings, version("tiered"), at)
        was_interrupted = await _heeding(lambda: run(settings, runtime, report, sizes, _tell, parts))
        failed = None if out is None else _write(out, report)
        try:
            for line in [dump(report.as_json())] if choice.json else map(escape_controls, text_of(report)):
                write(line)
        except OSError as error:  # nobody reads it; the verdict is the exit code nevertheless
            failed = failed or error
        if was_interrupted:
            raise typer.Exit(INTERRUPTED)
        match report.verdict:
            case ProveVerdict.MUST_NOT:
                raise ConfigurationError(report.sentence())
            case ProveVerdict.UNKNOWN:
                raise UnavailableError(report.sentence())
        if failed is not None:
            raise failed

    run_async(command)


async def _heeding(work: Callable[[], Awaitable[None]]) -> bool:
    """Whether a signal ended the work, which has removed then what it made."""
    failed: TieredError | None = None
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:

            def stop() -> None:
                say("removing what was tried; another signal leaves it there, until a run two hours later removes it")
                scope.cancel()

            tasks.start_soon(heed_signals, stop)
            try:
                await work()
            except TieredError as error:
                failed = error
        tasks.cancel_scope.cancel()
    if failed is not None:
        raise failed
    return scope.cancelled_caught


def _chosen(only: str | None, known: Sequence[str]) -> Sequence[str]:
    """The parts that `--only` names. `InvalidRequestError`: one of them is none."""
    named = known if only is None else [part for each in only.split(",") if (part := each.strip())]
    if wrong := [each for each in named if each not in known]:
        raise InvalidRequestError(f"--only names {quoted(wrong[0])}, which is no part: give some of {','.join(known)}")
    if not named:
        raise InvalidRequestError(f"--only names no part: give some of {','.join(known)}")
    return named


def _make(out: Path) -> None:
    """Makes the directory, for this user alone. `ConfigurationError`: it cannot hold a report."""
    refuse_store(out)
    try:
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        if there := [name for name in _FILES if os.path.lexists(out / name)]:
            raise ConfigurationError(f"--out {out} has {there[0]} already: give another directory, or move it away")
        if not os.access(out, os.W_OK | os.X_OK):
            raise ConfigurationError(f"--out {out} cannot be written to: give another directory")
    except (FileExistsError, NotADirectoryError):
        raise ConfigurationError(f"--out {out} is no directory: give another name") from None


def _write(out: Path, report: ProveReport) -> OSError | None:
    """Why a file could not be written, which is said, too; what there was of it is removed."""
    from recovery.prove.page import page_of

    for name, text in zip(_FILES, (f"{json.dumps(report.as_json(), indent=1, ensure_ascii=False)}\n", page_of(report)), strict=True):
        at = out / name
        try:
            made = os.open(at, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            try:
                with open(made, "w", encoding="utf-8") as file:
                    file.write(text)
            except OSError:
                at.unlink(missing_ok=True)
                raise
        except OSError as error:
            say(f"{at} could not be written: {error.strerror}")
            return error
    return None


def _tell(sentence: str) -> None:
    """Progress is for people: with `--json` there is none."""
    if not choice.json:
        say(sentence)
