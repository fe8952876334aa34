"""The command line: the store by hand, the recovery daemon, the changelog, the settings, the schema, the demo.

Every command has `--json`; results go to stdout, everything else to stderr. An error is one sentence with its
fix. Exit codes:

    0    done
    1    there is no such object or (stuck) entry; or the demo's check found something
    2    the command line itself is wrong
    3    the request or the settings are wrong, or `check` or `provision` found a problem
    4    unavailable, or an output cannot be written: try again
    5    the outcome is unknown: it may have happened
    6    stored data is corrupt or lost, or an entry is stuck: an operator must look
    130  interrupted

`tiered audit` has its own: 0 clean, 1 findings, 2 it could not be completed, whatever the reason.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import anyio
import typer

from changelog.change import LOG_PREFIX, ChangeId, Entry, Unreadable
from changelog.runtime import SystemRuntime
from recovery import cli_output as output
from recovery.cli_audit import audit_app
from recovery.cli_shared import Json, choice, guard, lifetime
from recovery.daemon import collect, run_daemon
from recovery.loop import RecoveryLoop
from tiered.backends import ByteRange
from tiered.compose import DATABASE_NAME, Backends, open_backends, open_storage
from tiered.embedded_check import inspect_directory
from tiered.errors import (
    InvalidRequestError,
)
from tiered.findings import Finding, Kind
from tiered.metadata import CONTENT_TYPE_DEFAULT, Expiration, Metadata, TimeToIdle, TimeToLive
from tiered.object_id import ObjectId
from tiered.settings import Settings

PAGE = 500
app = typer.Typer(
    help="A blob store over two tiers whose every write survives a kill.", no_args_is_help=True, pretty_exceptions_enable=False
)
log_app = typer.Typer(help="The changelog: changes under way, and those that are stuck.", no_args_is_help=True)
config_app = typer.Typer(help="The settings.", no_args_is_help=True)
app.add_typer(log_app, name="log")
app.add_typer(audit_app, name="audit")
app.add_typer(config_app, name="config")

EntryArgument = Annotated[str, typer.Argument(metavar="ID", help="A change's id, or an entry's key.")]
ObjectArgument = Annotated[str, typer.Argument(metavar="OBJECT", help="USECASE/[NAME.VALUE/…]objects/KEY")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tiered {version('tiered')}")
        raise typer.Exit


@app.callback()
def choose(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option("--config", "-c", envvar="TIERED_CONFIG", help="Settings file (YAML).")] = None,
    directory: Annotated[Path | None, typer.Option("--directory", "-d", help="Instead: an embedded store in this directory.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say on stderr what happens.")] = False,
    _version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Settings come from --config, or from --directory alone; TIERED_… variables go over them."""
    if directory is not None and config is not None:
        source = context.get_parameter_source("config")
        if source is None or source.name != "ENVIRONMENT":
            raise typer.BadParameter("give either --config or --directory, not both")
        config = None
    choice.config, choice.directory = config, directory
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)


# --- objects ---------------------------------------------------------------------------------------


@app.command()
def put(
    object_id: ObjectArgument,
    file: Annotated[str, typer.Argument(help="The payload's file; - is stdin.")],
    content_type: Annotated[str, typer.Option(help="MIME type.")] = CONTENT_TYPE_DEFAULT,
    ttl: Annotated[str | None, typer.Option(help="Expire this long after writing: 90s, 15m, 36h, 30d.")] = None,
    tti: Annotated[str | None, typer.Option(help="Expire this long after the last read: 90s, 15m, 36h, 30d.")] = None,
    custom: Annotated[list[str] | None, typer.Option(help="KEY=VALUE, repeatable.")] = None,
    as_json: Json = False,
) -> None:
    """Stores a file or stdin, replacing what is there."""

    async def command() -> None:
        metadata = Metadata(expiration=_expiration(ttl, tti), content_type=content_type, custom=_custom(custom or []))
        payload = output.read_stdin() if file == "-" else Path(file)
        async with open_storage(choice.settings()) as storage:
            result = await storage.put(ObjectId.parse(object_id), payload, metadata)
        output.show_put(result, object_id, as_json)

    _run(command)


@app.command()
def get(
    object_id: ObjectArgument,
    file: Annotated[str, typer.Option("--output", "-o", help="Where the payload goes; - is stdout.")] = "-",
    range_: Annotated[str | None, typer.Option("--range", help="FIRST:END in bytes, END excluded; also :END, FIRST: and -LAST:.")] = None,
    as_json: Json = False,
) -> None:
    """Fetches an object's payload. With --json, prints its head; the payload then needs --output FILE.

    A file gets the whole payload or none of it; stdout may have got a part when an error is told.
    """

    async def command() -> None:
        if as_json and file == "-":
            raise InvalidRequestError("--json takes stdout for the head; add --output FILE for the payload")
        async with open_storage(choice.existing()) as storage:
            stored = await storage.get(ObjectId.parse(object_id), _range(range_))
            if stored is None:
                raise output.absent(object_id)
            async with stored:
                await output.save(stored, file)
        if as_json:
            output.show_head(stored.head, as_json)

    _run(command)


@app.command()
def head(object_id: ObjectArgument, as_json: Json = False) -> None:
    """Shows all that is known of an object but its payload."""

    async def command() -> None:
        async with open_storage(choice.existing()) as storage:
            found = await storage.head(ObjectId.parse(object_id))
        if found is None:
            raise output.absent(object_id)
        output.show_head(found, as_json)

    _run(command)


@app.command()
def rm(object_id: ObjectArgument, as_json: Json = False) -> None:
    """Deletes an object; one that is absent is deleted already."""

    async def command() -> None:
        async with open_storage(choice.existing()) as storage:
            await storage.delete(ObjectId.parse(object_id))
        output.show_deleted(object_id, as_json)

    _run(command)


@app.command()
def ls(
    prefix: Annotated[str, typer.Argument(help="What the objects' paths begin with; nothing lists all.")] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = None,
    as_json: Json = False,
) -> None:
    """Lists objects in byte order, one a line; with --json, one JSON string a line."""

    async def command() -> None:
        left = limit
        async with open_storage(choice.existing()) as storage:
            async for object_id in storage.list(prefix):
                output.show_line(str(object_id), as_json)
                left = None if left is None else left - 1
                if left == 0:
                    return

    _run(command)


# --- recovery --------------------------------------------------------------------------------------


@app.command()
def recover(
    once: Annotated[bool, typer.Option("--once", help="One pass over the log, then exit.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what a pass would work on.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="With --once or --dry-run: at most so many entries.")] = None,
    as_json: Json = False,
) -> None:
    """Runs the recovery daemon: cleans up after processes that died. Any number may run side by side."""

    async def command() -> None:
        if limit is not None and not (once or dry_run):
            raise InvalidRequestError("--limit goes with --once or --dry-run")
        async with _backends(choice.existing() if once or dry_run else choice.settings()) as (backends, settings):
            loop = RecoveryLoop(backends.tiers, backends.log, SystemRuntime(), settings)
            if dry_run:
                found = await loop.survey(limit or PAGE)
                output.show_survey(found, await _count_open(backends), as_json)
            elif once:
                report = await loop.run_once(limit)
                output.show_report(report, await collect(backends), as_json)
                output.raise_unless_clean(report)
            else:
                logging.getLogger("tiered").setLevel(logging.INFO)
                output.show_report(await run_daemon(backends, SystemRuntime(), settings), None, as_json)

    _run(command)


# --- the log ---------------------------------------------------------------------------------------


@log_app.command("list")
def log_list(
    stuck: Annotated[bool, typer.Option("--stuck", help="Only entries that wait for an operator.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = PAGE,
    as_json: Json = False,
) -> None:
    """Lists the entries of changes under way, dead or stuck."""

    async def command() -> None:
        async with _backends(choice.existing()) as (backends, settings):
            entries = [entry async for entry in _entries(backends, stuck, limit)]
            output.show_entries(entries, SystemRuntime().wall_ns() // 1_000_000, settings, as_json)

    _run(command)


@log_app.command("show")
def log_show(change_id: EntryArgument, as_json: Json = False) -> None:
    """Shows one entry and what the row says of its change."""

    async def command() -> None:
        async with _backends(choice.existing()) as (backends, _):
            entry = await _entry(backends, change_id)
            row = await backends.tiers.high_volume.read(entry.change.object, marks=entry.change.id) if isinstance(entry, Entry) else None
            output.show_entry(entry, row, as_json)

    _run(command)


@log_app.command("retry")
def log_retry(
    change_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="A change's id, or an entry's key.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every stuck entry.")] = False,
    as_json: Json = False,
) -> None:
    """Gives a stuck entry back to recovery, after its cause was mended."""

    async def command() -> None:
        if (change_id is None) != everything:
            raise InvalidRequestError("give the ID of one stuck entry, or --all")
        async with _backends(choice.existing()) as (backends, _):
            if change_id is not None:
                entries = [await _entry(backends, change_id)]
                if entries[0].stuck is None:
                    raise output.AbsentError(f"the entry {change_id} is not stuck: recovery has it anyway")
            else:
                entries = [entry async for entry in _entries(backends, True, None)]
            retried = [entry.key for entry in entries if await backends.log.retry(entry)]
        output.show_retried(retried, as_json)

    _run(command)


# --- the deployment --------------------------------------------------------------------------------


@app.command()
def provision(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    location: Annotated[str | None, typer.Option(help="Where a new bucket is made for good: EU, US, europe-west1, …")] = None,
    as_json: Json = False,
) -> None:
    """Creates what is missing in Bigtable and GCS: tables, families, GC rules, app profile, bucket. Nothing is removed."""

    async def command() -> None:
        settings = choice.settings()
        if settings.directory is not None:
            output.show_findings([Finding(Kind.OK, f"nothing is needed: the store makes {settings.directory} itself")], as_json)
            return
        from tiered.provision import provision as provision_all

        output.show_findings(await provision_all(settings, dry_run=dry_run, location=location), as_json)

    _run(command)


@app.command()
def check(as_json: Json = False) -> None:
    """Looks whether everything that the store needs is there, and says in a sentence each what is not. Changes nothing."""

    async def command() -> None:
        settings = choice.existing()
        if settings.directory is not None:
            found = await inspect_directory(settings.directory, DATABASE_NAME, settings.changelog, SystemRuntime())
        else:
            from tiered.provision import inspect

            found = await inspect(settings)
        output.show_findings(found, as_json)

    _run(command)


# --- settings and demo -----------------------------------------------------------------------------


@config_app.command("show")
def config_show(as_json: Json = False) -> None:
    """Prints the settings that apply, where each comes from, and no secrets."""
    async def command() -> None:
        output.show_settings(choice.settings().shown(), as_json)

    _run(command)


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=1, help="How long the writers write.")] = 30.0,
    writers: Annotated[int, typer.Option(min=1, help="Writer processes.")] = 4,
    daemons: Annotated[int, typer.Option(min=1, help="Recovery daemons.")] = 2,
    objects: Annotated[int, typer.Option(min=1, help="How many objects they fight over.")] = 200,
    seed: Annotated[int | None, typer.Option(help="Of operations and payloads; printed when it is not given.")] = None,
    backend: Annotated[str, typer.Option(help="embedded, or emulators of Bigtable and GCS.")] = "embedded",
    unfenced: Annotated[bool, typer.Option("--unfenced", help="For comparison: the naive protocol, and what it loses.")] = False,
    audit: Annotated[bool, typer.Option(help="At the end, audit what is left, with something planted for it to find.")] = True,
    as_json: Json = False,
) -> None:
    """Kills writers in the middle of their work, recovers, and checks that nothing was lost."""
    from emulators.demo import DemoOptions, run_demo

    def command() -> int:
        options = DemoOptions(
            writers=writers, daemons=daemons, seconds=seconds, seed=seed, objects=objects, directory=choice.directory, unfenced=unfenced,
            backend=backend, audit=audit,
        )
        return run_demo(options, as_json)

    raise typer.Exit(guard(command))


# --- shared ----------------------------------------------------------------------------------------


def run() -> None:
    """The console script."""
    app()


def _run(command: Callable[[], Awaitable[None]]) -> None:
    def call() -> int:
        anyio.run(command)
        return 0

    raise typer.Exit(guard(call))


@asynccontextmanager
async def _backends(settings: Settings) -> AsyncIterator[tuple[Backends, Settings]]:
    async with open_backends(settings, SystemRuntime()) as backends:
        if not backends.log.durable:
            raise InvalidRequestError("no changelog is kept here, so there is nothing to recover or to show; set changelog: sqlite")
        yield backends, settings


async def _entries(backends: Backends, stuck_only: bool, limit: int | None) -> AsyncIterator[Entry | Unreadable]:
    start: str | None = ""
    left = sys.maxsize if limit is None else limit
    while start is not None and left > 0:
        page = await backends.log.entries(start, min(left, PAGE), stuck_only=stuck_only)
        for entry in page.entries:
            yield entry
        left -= len(page.entries)
        start = page.next_start


async def _count_open(backends: Backends) -> int:
    return len([entry async for entry in _entries(backends, False, None) if entry.stuck is None])


async def _entry(backends: Backends, change_id: str) -> Entry | Unreadable:
    entry: Entry | Unreadable | None
    if change_id.startswith(LOG_PREFIX):
        page = await backends.log.entries(change_id, 1)
        entry = next((each for each in page.entries if each.key == change_id), None)
    else:
        entry = await backends.log.read(ChangeId(change_id))
    if entry is None:
        raise output.AbsentError(f"there is no entry of change {change_id}: it was finished, or never recorded")
    return entry


def _expiration(ttl: str | None, tti: str | None) -> Expiration:
    if ttl is not None and tti is not None:
        raise InvalidRequestError("an object has either --ttl or --tti, not both")
    if ttl is not None:
        return TimeToLive(lifetime(ttl))
    return None if tti is None else TimeToIdle(lifetime(tti))


def _custom(pairs: list[str]) -> dict[str, str]:
    parted = [pair.partition("=") for pair in pairs]
    for key, equals, _ in parted:
        if not key or not equals:
            raise InvalidRequestError(f"--custom {key!r} is not KEY=VALUE")
    return {key: value for key, _, value in parted}


def _range(text: str | None) -> ByteRange | None:
    if text is None:
        return None
    start, colon, stop = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return ByteRange(int(start or 0), int(stop) if stop else None)
    except ValueError:
        raise InvalidRequestError(f"{text!r} is not a range: write FIRST:END, such as 0:100, 100: or -100:") from None
