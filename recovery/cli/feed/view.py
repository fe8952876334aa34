"""`tiered feed view`: which records are there, at the frontier or at an earlier time.

*Failure*: it prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from changelog.base.errors import InvalidRequestError
from recovery.cli.feed.inputs import (
    IN_MEMORY,
    FilesArgument,
    Rollback,
    SchemaOption,
    feed_message,
    finish,
    messages_of,
    reader_of,
    updates_are,
)
from recovery.cli.output import PrintedTable, dump, iso_of_ms, write
from recovery.cli.shared import choice, say, shared

if TYPE_CHECKING:
    from recovery.feed import CdcReader, RollbackReader
    from recovery.feed.view import FeedView

TABLE_ROWS = 1000

At = Annotated[int | None, typer.Option(metavar="TIME", min=0, help="At this time, which must be complete; by default at the last one.")]
Dates = Annotated[bool, typer.Option("--dates", help="The feed's times are milliseconds since 1970: show them as dates.")]


@shared
def view(
    files: FilesArgument,
    at: At = None,
    dates: Dates = False,
    schema: SchemaOption = None,
    rollback: Rollback = False,
) -> None:
    """Shows which records are there, how often, and since when. It shows nothing of a time that is not complete."""

    def command() -> int:
        from recovery.feed.view import FeedView

        shown, reader = FeedView(at, IN_MEMORY), reader_of(rollback)
        for located in messages_of(files, schema):
            if (batch := feed_message(reader, located)) is not None:
                shown.add(batch)
        if not shown.complete:
            raise InvalidRequestError(_not_complete(at, shown.frontier))
        _show_view(shown, at, reader, (lambda time: iso_of_ms(time) or str(time)) if dates else str)
        return 0

    finish(command)


def _not_complete(at: int | None, frontier: tuple[int, ...]) -> str:
    if frontier == (0,):
        return f"--at {at} is not complete, and no time is: the frontier is 0; 'tiered feed check' says what it waits for"
    return f"--at {at} is not complete: the frontier is {frontier[0]}, so give {frontier[0] - 1} or an earlier time, or leave it out"


def _show_view(shown: FeedView, at: int | None, reader: CdcReader | RollbackReader, moment: Callable[[int], str]) -> None:
    held = reader.held
    if choice.json:
        value = {"frontier": shown.frontier, "at": at, "held": {"updates": held.updates, "times": held.times}}
        write(f'{dump(value)[:-1]}, "records": [')
        before = ""
        for row in shown:
            write(before + dump({"record": row.record, "multiplicity": row.multiplicity, "since": row.since}))
            before = ","
        write("]}")
        return
    table = PrintedTable(("multiplicity", "since", "record"))
    rows: list[tuple[str, ...]] = []
    for row in shown:
        rows.append((str(row.multiplicity), moment(row.since), _record(row.record)))
        if len(rows) == TABLE_ROWS:
            table.add(rows)
            rows = []
    table.add(rows)
    what = f"{len(shown):,} record{'' if len(shown) == 1 else 's'}"
    frontier = f"the frontier, time {moment(shown.frontier[0])}" if shown.frontier else "the end of the feed"
    write(f"{what} at {frontier if at is None else f'time {moment(at)}'}")
    if held.updates and at is None:
        say(f"{updates_are(held.updates)} not complete yet, and left out: 'tiered feed check' says what is missing")


def _record(data: Any) -> str:
    from recovery.feed.spelling import record_to_text

    return record_to_text(data)
