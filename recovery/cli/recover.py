"""`tiered recover`: the daemon, one pass of it, or a look at what a pass would do.

*Crash*: as in `recovery.loop`, another daemon takes over. *Failure*: one pass ends with an exit code as long as
something is stuck, could not be collected or could not be recovered, so that a cron job notices it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from changelog.base.runtime import SystemRuntime
from changelog.change import Entry
from recovery.cli.entries import Listed, open_logged, show_listed, show_nothing
from recovery.cli.output import show
from recovery.cli.shared import choice, run_async, shared
from recovery.entries import count_open, count_stuck, stuck_sentence
from tiered.errors import CorruptRecordError, InvalidRequestError, TieredError, UnavailableError

if TYPE_CHECKING:
    from recovery.loop import Report


@shared
def recover(
    once: Annotated[bool, typer.Option("--once", help="One pass over the log, then exit.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what a pass would work on.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="With --once or --dry-run: at most so many entries.")] = None,
) -> None:
    """Runs the recovery daemon: cleans up after processes that died. Any number may run side by side."""

    async def command() -> None:
        if limit is not None and not (once or dry_run):
            raise InvalidRequestError("--limit goes with --once or --dry-run")
        from recovery.daemon import collect, run_daemon
        from recovery.loop import RecoveryLoop

        chosen = choice.existing() if once or dry_run else choice.settings()
        async with open_logged(chosen, writes=not dry_run, collecting=not dry_run) as (backends, settings):
            loop = RecoveryLoop(backends.tiers, backends.log, SystemRuntime(), settings, backends.observer)
            if dry_run:
                if not await show_listed(loop.survey(), ("key", "standing", "object"), _cells, limit, choice.json):
                    show_nothing(_nothing_yet(await count_open(backends.log)), choice.json)
            elif once:
                collected = await collect(backends)  # before recovery, which may need the space
                report = await loop.run_once(limit)
                stuck = await count_stuck(backends.log)
                cut = {"more": "maybe"} if report.seen == limit else {}
                _show_report(report, {"collected": collected.removed, "stuck": stuck} | cut)
                _raise_unless_clean(report, stuck, collected.failures)
            else:
                logging.getLogger("tiered").setLevel(logging.INFO)
                _show_report(await run_daemon(backends, SystemRuntime(), settings), {})

    run_async(command)


def _cells(listed: Listed) -> tuple[str, ...]:
    entry, standing = listed
    return entry.key, standing.value, entry.change.object if isinstance(entry, Entry) else entry.error


def _nothing_yet(open_count: int) -> str:
    """Say that nothing can be recovered now. `open_count`: all entries, also those that somebody holds."""
    yet = f" yet: 'tiered log list' says what each of {open_count} open changes waits for" if open_count else ""
    return f"nothing to recover{yet}"


def _show_report(report: Report, more: Mapping[str, Any]) -> None:
    value = asdict(report) | dict(more)
    show(value, "  ".join(f"{name} {count}" for name, count in value.items()), choice.json)


def _raise_unless_clean(report: Report, stuck: int, failures: Iterable[TieredError]) -> None:
    """Raise an error as long as something is left to do. `failures`: of the collection."""
    if stuck:
        raise CorruptRecordError(stuck_sentence(stuck))
    for failure in failures:
        raise failure
    if report.failed:
        raise UnavailableError(f"{report.failed} entries could not be recovered now; try again")
