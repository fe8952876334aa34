"""`tiered status`: does recovery keep up, is anything wrong, and what should be typed?

It writes nothing to the store. *Failure* of a service: what is known is shown, and the exit code says it. Exit codes:

    0    nothing is known to be wrong
    1    recovery or the change feed falls behind or stands still, or entries wait and no daemon lives
    4    something is not known, such as from a changelog that does not answer or an audit whose evidence is incomplete,
         or the disk or the database is read-only
    6    data is lost, or an entry is stuck
"""

from __future__ import annotations

import shutil
import sys
from typing import Annotated

import anyio
import typer

from changelog.base.errors import InvalidRequestError
from changelog.base.runtime import SystemRuntime
from recovery.cli.output import dump, write
from recovery.cli.shared import choice, guard, shared, stay
from recovery.cli.status_lines import StatusLine, status_lines
from recovery.states import COLOURS
from recovery.status.as_json import as_json
from recovery.status.judgement import judge
from recovery.status.known import Status
from recovery.status.look import gather
from recovery.status.opened import open_to_look

WATCH_S = 5.0
WATCH_MIN_S = 0.2
TOP_LEFT_AND_CLEAR = "\x1b[H\x1b[2J"


@shared
def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again every SECONDS, until Ctrl-C.")] = False,
    seconds: Annotated[
        float | None,
        typer.Argument(metavar="SECONDS", min=WATCH_MIN_S, max=86_400, help=f"With --watch: how often; by default {WATCH_S:g}."),
    ] = None,
) -> None:
    """Says whether recovery keeps up, whether anything is wrong, and what to type. Writes nothing."""

    async def command() -> int:
        if seconds is not None and not watch:
            raise InvalidRequestError("SECONDS goes with --watch")
        settings, runtime = choice.existing(), SystemRuntime()
        while True:
            async with open_to_look(settings, runtime) as (backends, opened):
                while True:
                    found = await gather(backends, settings, runtime)
                    _show(found, watching=watch)
                    if not watch:
                        return judge(found).code
                    stay()
                    await runtime.sleep(WATCH_S if seconds is None else seconds)
                    if not opened:
                        break  # what was away may be back

    raise typer.Exit(guard(lambda: anyio.run(command)))


def _show(found: Status, *, watching: bool) -> None:
    if choice.json:
        write(dump(as_json(found, tiered=choice.typed())))
    elif sys.stdout is not None and sys.stdout.isatty():
        columns, rows = shutil.get_terminal_size()
        lines = status_lines(found, columns, choice.typed())
        _draw(_cut(lines, columns, rows) if watching else lines, afresh=watching)
    else:
        for line in status_lines(found, None, choice.typed()):
            write(line.text)
        if watching:
            write("")
    if watching and sys.stdout is not None:
        sys.stdout.flush()


def _draw(lines: list[StatusLine], *, afresh: bool) -> None:
    from rich.console import Console  # imported here: a pipe and all other commands do without it

    if afresh:
        sys.stdout.write(TOP_LEFT_AND_CLEAR)
    console = Console(soft_wrap=True, markup=False, highlight=False, emoji=False)
    for line in lines:
        console.print(line.text, style=None if line.level is None else COLOURS[line.level])


def _cut(lines: list[StatusLine], columns: int, rows: int) -> list[StatusLine]:
    """Returns what fits on the terminal. The answer stands at the top, so it must not scroll away."""
    room, shown = rows - 2, 0
    for number, line in enumerate(lines):
        shown += max(1, -(-len(line.text) // max(1, columns)))  # the terminal breaks a line that is too long
        if shown > room and number:
            return [*lines[:number], StatusLine(f"… {len(lines) - number:,} more lines")]
    return lines
