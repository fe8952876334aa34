"""What `tiered recover` and `tiered log` share: a store that keeps a changelog, and lists of its entries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from changelog.base.errors import InvalidRequestError
from changelog.base.runtime import SystemRuntime
from changelog.change import Entry, Unreadable
from changelog.lease import EntryState
from recovery.cli.output import List, PrintedTable, iso_of_ms, write
from recovery.cli.shared import say_cut
from tiered.open import Backends, open_backends
from tiered.settings import Settings

if TYPE_CHECKING:
    from tiered.telemetry.telemetry import Telemetry

TABLE_ROWS = 100
"""So many rows are gathered before they are printed, to find the widths of the columns."""

Listed = tuple[Entry | Unreadable, EntryState]


@asynccontextmanager
async def open_logged(
    settings: Settings, *, writes: bool = True, collecting: bool = False, telemetry: Telemetry | None = None
) -> AsyncIterator[tuple[Backends, Settings]]:
    """Opens a store's backends. Raises `InvalidRequestError` if it keeps no changelog.

    `collecting`: an embedded store without a changelog is opened, too, because it also has garbage to collect.
    """
    async with open_backends(settings, SystemRuntime(), writes=writes, telemetry=telemetry) as backends:
        if not backends.log.durable and not (collecting and settings.embedded):
            raise InvalidRequestError(
                f"no changelog is kept here, so there is nothing to recover or to show; set changelog: {settings.changelog_kept}"
            )
        yield backends, settings


async def show_listed(
    found: AsyncIterator[Listed], columns: Sequence[str], cells: Callable[[Listed], tuple[str, ...]], limit: int | None, as_json: bool
) -> bool:
    """Prints entries as they come, as a table or a JSON list. Returns whether there was any.

    If `limit` cuts the list, the JSON list ends with {"more": true}, and stderr says so.
    """
    table = List() if as_json else PrintedTable(columns)
    rows: list[Any] = []
    count, cut = 0, False
    async for listed in found:
        cut = count == limit
        if cut:
            break
        count += 1
        rows.append(fields_of(listed[0]) | {"state": listed[1].name.lower()} if as_json else cells(listed))
        if len(rows) == TABLE_ROWS:
            table.add(rows)
            rows = []
    if cut and as_json:
        rows.append({"more": True})
    table.add(rows)
    table.end()
    if cut:
        say_cut(count)
    return count > 0


def state_words(state: EntryState) -> str:
    """Returns the name of a state, as the docs and JSON have it, and what it means."""
    return f"{state.name.lower()}: {state.value}"


def show_nothing(sentence: str, as_json: bool) -> None:
    """Prints a sentence instead of an empty table. An empty JSON list needs none."""
    if not as_json:
        write(sentence)


def fields_of(entry: Entry | Unreadable) -> dict[str, Any]:
    """Returns all that an entry says, as JSON shows it."""
    stuck = None if entry.stuck is None else {"error": entry.stuck.error, "at": iso_of_ms(entry.stuck.at_ms)}
    kept = {"kept": iso_of_ms(entry.kept_ms)}
    if isinstance(entry, Unreadable):
        raw = entry.raw.decode(errors="backslashreplace")
        return {"key": entry.key, "unreadable": entry.error, "raw": raw, "stuck": stuck, **kept}
    change = entry.change
    return {
        "key": entry.key, "id": change.id, "object": change.object, "new": change.new, "old": change.old,
        # Whoever has an upload session can end the upload, so it is never printed.
        "upload": None if change.upload is None else "(session)",
        "owner": entry.owner, "attempt": entry.attempt, "heartbeat": iso_of_ms(entry.heartbeat_ms),
        "cleanup_after": iso_of_ms(entry.cleanup_after_ms), "stuck": stuck, **kept,
    }
