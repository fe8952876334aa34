"""`tiered log list`, `show`, `retry` and `abort`: the changelog for an operator.

`list` judges by this machine's clock whether an entry is stale. Recovery judges by the clock of the log, which it
learns by a write. If this machine's clock is wrong, `list` may call an entry held that recovery would claim, or the
reverse.
"""

from __future__ import annotations

from typing import Annotated

import typer

from changelog.base.errors import InvalidRequestError
from changelog.base.runtime import SystemRuntime
from changelog.change import LOG_PREFIX, ChangeId, Entry, Unreadable
from changelog.lease import EntryState, entry_state
from recovery.cli.entries import Listed, fields_of, open_logged, show_listed, show_nothing, state_words
from recovery.cli.output import show, show_fields
from recovery.cli.shared import AbsentError, choice, run_async, shared
from recovery.entries import all_entries, count_open
from tiered.metadata import NS_PER_MS
from tiered.object_id import ObjectId
from tiered.open import Backends, open_storage

log_app = typer.Typer(help="The changelog: changes under way, and those that are stuck.", no_args_is_help=True)

EntryArgument = Annotated[str, typer.Argument(metavar="ID", help="A change's id, or an entry's key.")]


@log_app.callback()
@shared
def choose_log() -> None:
    """The changelog: changes under way, and those that are stuck."""


@log_app.command("list")
@shared
def log_list(
    stuck: Annotated[bool, typer.Option("--stuck", help="Only entries that wait for an operator.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most so many; by default all.")] = None,
) -> None:
    """Lists the entries of the changelog, of each what it waits for. Judges their age by this machine's clock."""

    async def command() -> None:
        async with open_logged(choice.existing(), writes=False) as (backends, settings):
            now_ms = SystemRuntime().wall_ns() // NS_PER_MS
            rules = (now_ms, round(settings.lease.expiry_s * 1000), settings.recovery.attempts_max)

            def cells(listed: Listed) -> tuple[str, ...]:
                entry, where = listed
                name = entry.change.id if isinstance(entry, Entry) else entry.key
                return name, state_words(where), _last_beat(entry, now_ms), *_object_and_error(entry)

            found = ((entry, entry_state(entry, *rules)) async for entry in all_entries(backends.log, stuck_only=stuck))
            if not await show_listed(found, ("id", "entry_state", "last beat", "object", "error"), cells, limit, choice.json):
                nothing = f"no stuck entries ({await count_open(backends.log)} open)" if stuck else "the changelog is empty"
                show_nothing(nothing, choice.json)

    run_async(command)


@log_app.command("show")
@shared
def log_show(change_id: EntryArgument) -> None:
    """Shows one entry and what the row says of its change."""

    async def command() -> None:
        async with open_logged(choice.existing(), writes=False) as (backends, _):
            entry = await _entry(backends, change_id)
            value = fields_of(entry)
            if isinstance(entry, Entry):
                token = entry.change.id
                row = await backends.tiers.high_volume.read(entry.change.object, marks=token)
                shown = row.state is not None and (row.state.token == token or row.target == entry.change.new)
                value["row"] = {"shows_it": shown, "won": token in row.won, "refused": token in row.refused}
            show_fields(value, choice.json)

    run_async(command)


@log_app.command("retry")
@shared
def log_retry(
    change_id: Annotated[str | None, typer.Argument(metavar="ID", help="A change's id, or an entry's key.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every stuck entry.")] = False,
) -> None:
    """Gives a stuck entry back to recovery, after its cause was mended."""

    async def command() -> None:
        if (change_id is None) != everything:
            raise InvalidRequestError("give the ID of one stuck entry, or --all")
        async with open_logged(choice.existing()) as (backends, _):
            if change_id is not None:
                entries = [await _entry(backends, change_id)]
                if entries[0].stuck is None:
                    has_it = "recovery has it anyway" if entries[0].kept_ms is None else EntryState.KEPT.value
                    raise AbsentError(f"the entry {change_id} is not stuck: {has_it}")
            else:
                entries = [entry async for entry in all_entries(backends.log, stuck_only=True)]
            retried = [entry.key for entry in entries if await backends.log.retry(entry)]
        show({"retried": retried}, f"{len(retried)} given back to recovery", choice.json)

    run_async(command)


@log_app.command("abort")
@shared
def log_abort(change_id: EntryArgument) -> None:
    """Gives an open upload up, and removes its parts. The object stays as it is."""

    async def command() -> None:
        async with open_logged(choice.existing(), writes=False) as (backends, _):
            entry = await _entry(backends, change_id)
        if not isinstance(entry, Entry) or entry.assembling is None:
            raise AbsentError(f"the entry {change_id} is no open upload")
        async with open_storage(choice.existing()) as storage:
            await storage.multipart(ObjectId.parse(entry.change.object), entry.change.id).abort()
        show({"aborted": entry.change.id}, f"the upload {entry.change.id} of {entry.change.object} is given up", choice.json)

    run_async(command)


async def _entry(backends: Backends, change_id: str) -> Entry | Unreadable:
    entry: Entry | Unreadable | None
    if not change_id.isprintable():
        raise InvalidRequestError(f"{change_id!r} is neither a change's id nor an entry's key")
    if change_id.startswith(LOG_PREFIX):
        page = await backends.log.entries(change_id, 1)
        entry = next((each for each in page.entries if each.key == change_id), None)
    else:
        entry = await backends.log.read(ChangeId(change_id))
    if entry is None:
        raise AbsentError(f"there is no entry of change {change_id}: it was finished, or never recorded")
    return entry


def _last_beat(entry: Entry | Unreadable, now_ms: int) -> str:
    if entry.kept_ms is not None:
        return f"kept for {max(0, now_ms - entry.kept_ms) / 1000:.0f} s"
    if isinstance(entry, Unreadable) or not entry.owner:
        return "-"
    return f"{max(0, now_ms - entry.heartbeat_ms) / 1000:.0f} s ago"


def _object_and_error(entry: Entry | Unreadable) -> tuple[str, str]:
    if isinstance(entry, Unreadable):
        return "-", entry.error
    return entry.change.object, entry.stuck.error if entry.stuck else ""
