"""The command line: the store by hand, the recovery daemon, the changelog, the settings, the schema, the demo.

Every command has `--json`; results go to stdout, everything else to stderr. An error is one sentence with its
fix. `--config`, `--directory`, `--json` and `--verbose` stand before a command's name or behind it. Exit codes:

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
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from changelog.base.runtime import SystemRuntime
from changelog.change import LOG_PREFIX, ChangeId, Entry, Unreadable
from recovery.cli import output
from recovery.cli.audit import audit_app
from recovery.cli.shared import AbsentError, choice, guard, lifetime, say, shared
from recovery.entries import all_entries, count_open, count_stuck, stuck_sentence
from tiered.errors import InvalidRequestError, TieredError
from tiered.metadata import CONTENT_TYPE_DEFAULT, Expiration, Metadata, TimeToIdle, TimeToLive
from tiered.object_id import ObjectId
from tiered.open import DATABASE_NAME, Backends, open_backends, open_storage
from tiered.protocol.backends import ByteRange
from tiered.settings import Settings

if TYPE_CHECKING:
    from tiered.provision.findings import Finding

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
        from importlib.metadata import version

        output.write(f"tiered {version('tiered')}")
        raise typer.Exit


@app.callback()
@shared
def choose(
    _version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Settings come from --config, or from --directory alone; TIERED_… variables go over them."""


@log_app.callback()
@shared
def choose_log() -> None:
    """The changelog: changes under way, and those that are stuck."""


@config_app.callback()
@shared
def choose_config() -> None:
    """The settings."""


# --- objects ---------------------------------------------------------------------------------------


@app.command()
@shared
def put(
    object_id: ObjectArgument,
    file: Annotated[str, typer.Argument(help="The payload's file; - is stdin.")],
    content_type: Annotated[str | None, typer.Option(help="MIME type; by default what the file's name says.")] = None,
    ttl: Annotated[str | None, typer.Option(help="Expire this long after writing: 90s, 15m, 36h, 30d.")] = None,
    tti: Annotated[str | None, typer.Option(help="Expire this long after the last read: 90s, 15m, 36h, 30d.")] = None,
    custom: Annotated[list[str] | None, typer.Option(help="KEY=VALUE, repeatable.")] = None,
) -> None:
    """Stores a file or stdin, replacing what is there."""

    async def command() -> None:
        kind = content_type if content_type is not None else CONTENT_TYPE_DEFAULT if file == "-" else output.content_type_of(file)
        metadata = Metadata(expiration=_expiration(ttl, tti), content_type=kind, custom=_custom(custom or []))
        payload = output.read_stdin() if file == "-" else Path(file)
        async with open_storage(choice.settings()) as storage:
            result = await storage.put(ObjectId.parse(object_id), payload, metadata)
        output.show_put(result, object_id, choice.json)

    _run(command)


@app.command()
@shared
def get(
    object_id: ObjectArgument,
    file: Annotated[str, typer.Option("--output", "-o", help="Where the payload goes; - is stdout.")] = "-",
    range_: Annotated[str | None, typer.Option("--range", help="FIRST:END in bytes, END excluded; also :END, FIRST: and -LAST:.")] = None,
) -> None:
    """Fetches an object's payload. With --json, prints its head; the payload then needs --output FILE.

    A file gets the whole payload or none of it; stdout may have got a part when an error is told.
    """

    async def command() -> None:
        if choice.json and file == "-":
            raise InvalidRequestError("--json takes stdout for the head; add --output FILE for the payload")
        async with open_storage(choice.existing(), writes=False) as storage:
            stored = await storage.get(ObjectId.parse(object_id), _range(range_))
            if stored is None:
                raise output.absent(object_id)
            async with stored:
                await output.save(stored, file)
        if choice.json:
            output.show_head(stored.head, choice.json)

    _run(command)


@app.command()
@shared
def head(object_id: ObjectArgument) -> None:
    """Shows all that is known of an object but its payload."""

    async def command() -> None:
        async with open_storage(choice.existing(), writes=False) as storage:
            found = await storage.head(ObjectId.parse(object_id))
        if found is None:
            raise output.absent(object_id)
        output.show_head(found, choice.json)

    _run(command)


@app.command()
@shared
def rm(object_id: ObjectArgument) -> None:
    """Deletes an object; one that is absent is deleted already."""

    async def command() -> None:
        async with open_storage(choice.existing()) as storage:
            await storage.delete(ObjectId.parse(object_id))
        output.show_deleted(object_id, choice.json)

    _run(command)


@app.command()
@shared
def ls(
    prefix: Annotated[str, typer.Argument(help="What the objects' paths begin with; nothing lists all.")] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = None,
) -> None:
    """Lists objects in byte order, one a line; with --json, one JSON string a line."""

    async def command() -> None:
        count = 0
        async with open_storage(choice.existing(), writes=False) as storage:
            async for object_id in storage.list(prefix):
                if count == limit:
                    output.say_cut(count)
                    return
                output.show_line(str(object_id), choice.json)
                count += 1

    _run(command)


# --- recovery --------------------------------------------------------------------------------------


@app.command()
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
        async with _backends(chosen, writes=not dry_run, collecting=not dry_run) as (backends, settings):
            loop = RecoveryLoop(backends.tiers, backends.log, SystemRuntime(), settings)
            if dry_run:
                if not await output.show_survey(loop.survey(), limit, choice.json):
                    output.show_nothing(_nothing_yet(await count_open(backends.log)), choice.json)
            elif once:
                collected = await collect(backends)  # first: recovery may need the space
                report = await loop.run_once(limit)
                stuck = await count_stuck(backends.log)
                cut = {"more": "maybe"} if report.seen == limit else {}
                output.show_report(report, {"collected": collected.removed, "stuck": stuck} | cut, choice.json)
                output.raise_unless_clean(report, stuck, collected.failures)
            else:
                logging.getLogger("tiered").setLevel(logging.INFO)
                output.show_report(await run_daemon(backends, SystemRuntime(), settings), {}, choice.json)

    _run(command)


def _nothing_yet(open_count: int) -> str:
    """`open_count`: of all entries, also those that are held."""
    yet = f" yet: 'tiered log list' says what each of {open_count} open changes waits for" if open_count else ""
    return f"nothing to recover{yet}"


# --- the log ---------------------------------------------------------------------------------------


@log_app.command("list")
@shared
def log_list(
    stuck: Annotated[bool, typer.Option("--stuck", help="Only entries that wait for an operator.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = None,
) -> None:
    """Lists the entries of changes under way, dead or stuck."""

    async def command() -> None:
        async with _backends(choice.existing(), writes=False) as (backends, settings):
            entries, now_ms = all_entries(backends.log, stuck_only=stuck), SystemRuntime().wall_ns() // 1_000_000
            if not await output.show_entries(entries, now_ms, settings, limit, choice.json):
                nothing = f"no stuck entries ({await count_open(backends.log)} open)" if stuck else "the changelog is empty"
                output.show_nothing(nothing, choice.json)

    _run(command)


@log_app.command("show")
@shared
def log_show(change_id: EntryArgument) -> None:
    """Shows one entry and what the row says of its change."""

    async def command() -> None:
        async with _backends(choice.existing(), writes=False) as (backends, _):
            entry = await _entry(backends, change_id)
            row = await backends.tiers.high_volume.read(entry.change.object, marks=entry.change.id) if isinstance(entry, Entry) else None
            output.show_entry(entry, row, choice.json)

    _run(command)


@log_app.command("retry")
@shared
def log_retry(
    change_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="A change's id, or an entry's key.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every stuck entry.")] = False,
) -> None:
    """Gives a stuck entry back to recovery, after its cause was mended."""

    async def command() -> None:
        if (change_id is None) != everything:
            raise InvalidRequestError("give the ID of one stuck entry, or --all")
        async with _backends(choice.existing()) as (backends, _):
            if change_id is not None:
                entries = [await _entry(backends, change_id)]
                if entries[0].stuck is None:
                    raise AbsentError(f"the entry {change_id} is not stuck: recovery has it anyway")
            else:
                entries = [entry async for entry in all_entries(backends.log, stuck_only=True)]
            retried = [entry.key for entry in entries if await backends.log.retry(entry)]
        output.show_retried(retried, choice.json)

    _run(command)


# --- the deployment --------------------------------------------------------------------------------


@app.command()
@shared
def provision(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    location: Annotated[str | None, typer.Option(help="Where a new bucket is made for good: EU, US, europe-west1, …")] = None,
) -> None:
    """Creates what is missing in Bigtable and GCS: tables, families, GC rules, app profile, bucket. Nothing is removed."""

    async def command() -> None:
        from tiered.provision.findings import Finding, Kind

        settings = choice.settings()
        if settings.directory is not None:
            output.show_findings([Finding(Kind.OK, f"nothing is needed: the store makes {settings.directory} itself")], choice.json)
            return
        from tiered.provision.production import provision as provision_all

        output.show_findings(await provision_all(settings, dry_run=dry_run, location=location), choice.json)

    _run(command)


@app.command()
@shared
def check() -> None:
    """Looks whether everything that the store needs is there, and says in a sentence each what is not. Changes nothing."""

    async def command() -> None:
        settings = choice.existing()
        if settings.directory is not None:
            from tiered.provision.directory import inspect_directory

            found = await inspect_directory(settings.directory, DATABASE_NAME, settings.changelog, SystemRuntime())
        else:
            from tiered.provision.production import inspect

            found = await inspect(settings)
        stuck = await _stuck(settings, found)
        output.show_findings(found, choice.json, stuck)

    _run(command)


async def _stuck(settings: Settings, found: list[Finding]) -> int:
    """How many entries are; adds what it finds. What is wrong already is not waited for a second time."""
    from tiered.provision.findings import Finding, Kind, problems

    if problems(found) and settings.directory is None:
        return 0
    try:
        # To read: of what only writers need, or are warned of, the findings have spoken.
        async with open_backends(settings, SystemRuntime(), writes=False, verify=False) as backends:
            count = await count_stuck(backends.log)
    except TieredError as error:
        if not problems(found):
            found.append(Finding(Kind.PROBLEM, str(error)))
        return 0
    if count:
        found.append(Finding(Kind.PROBLEM, stuck_sentence(count)))
    return count


# --- settings and demo -----------------------------------------------------------------------------


@config_app.command("show")
@shared
def config_show() -> None:
    """Prints the settings that apply, where each comes from, and no secrets."""

    async def command() -> None:
        output.show_settings(choice.settings().shown(), choice.json)

    _run(command)


@app.command()
@shared
def demo(
    seconds: Annotated[float, typer.Option(min=1, help="How long the writers write.")] = 30.0,
    writers: Annotated[int, typer.Option(min=1, help="Writer processes.")] = 4,
    daemons: Annotated[int, typer.Option(min=1, help="Recovery daemons.")] = 2,
    objects: Annotated[int, typer.Option(min=1, help="How many objects they fight over.")] = 200,
    seed: Annotated[int | None, typer.Option(help="Of operations and payloads; printed when it is not given.")] = None,
    backend: Annotated[str, typer.Option(help="embedded, or emulators of Bigtable and GCS.")] = "embedded",
    unfenced: Annotated[bool, typer.Option("--unfenced", help="For comparison: the naive protocol, and what it loses.")] = False,
    audit: Annotated[bool, typer.Option(help="At the end, audit what is left, with something planted for it to find.")] = True,
) -> None:
    """Kills writers in the middle of their work, recovers, and checks that nothing was lost."""
    def command() -> int:
        from emulators.demo.command import DemoOptions, run_demo

        if choice.config is not None:
            raise InvalidRequestError("the demo makes a store of its own: leave --config out")
        options = DemoOptions(
            writers=writers, daemons=daemons, seconds=seconds, seed=seed, objects=objects, directory=choice.directory, unfenced=unfenced,
            backend=backend, audit=audit,
        )
        return run_demo(options, choice.json)

    raise typer.Exit(guard(command))


# --- shared ----------------------------------------------------------------------------------------


def run() -> int:
    """Runs what the command line says; returns the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    return guard(_parse)


def _parse() -> int:
    try:
        return app(standalone_mode=False, prog_name="tiered") or 0
    except SystemExit:  # so rich ends the program where nobody reads the help
        raise BrokenPipeError from None
    except Exception as error:
        if not (hasattr(error, "format_message") and hasattr(error, "ctx")):
            raise
        if sentence := error.format_message():  # without a command, the help was printed
            where = error.ctx.command_path if error.ctx is not None else "tiered"
            say(f"{sentence}{'' if sentence.endswith(('.', '?')) else '.'} See '{where} --help'.")
        return 2


def _run(command: Callable[[], Awaitable[None]]) -> None:
    def call() -> int:
        anyio.run(command)
        return 0

    raise typer.Exit(guard(call))


@asynccontextmanager
async def _backends(settings: Settings, *, writes: bool = True, collecting: bool = False) -> AsyncIterator[tuple[Backends, Settings]]:
    """`collecting`: an embedded store has something to collect without a changelog, too."""
    async with open_backends(settings, SystemRuntime(), writes=writes) as backends:
        if not backends.log.durable and not (collecting and settings.directory is not None):
            kind = "sqlite" if settings.directory is not None else "bigtable"
            raise InvalidRequestError(f"no changelog is kept here, so there is nothing to recover or to show; set changelog: {kind}")
        yield backends, settings


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
