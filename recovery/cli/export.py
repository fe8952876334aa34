"""`tiered export`: what a store holds, for other programs: all objects with their bytes, or the table of all objects.

*Crash*: the same command goes on. *Failure*: each error is one sentence and an exit code (`recovery.cli.app`). The exit
code is 6 if something is damaged, could not be exported, or is no object; 0 only if all that was asked for is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import SystemRuntime
from recovery.cli.objects import reading
from recovery.cli.output import dump, write
from recovery.cli.progress import CountLine
from recovery.cli.shared import choice, guard, guarded_packages, say, shared
from recovery.cli.syncing import JobsOption
from tiered.object_id import ObjectPrefix

if TYPE_CHECKING:
    from recovery.sources.parquet import ObjectCounts, ObjectsExport
    from tiered.exports import ExportReport, VerifyReport
    from tiered.exports.manifest import ExportRow

DAMAGED = 6

export_app = typer.Typer(help="What a store holds, for other programs.", no_args_is_help=True)

PlaceOption = Annotated[str, typer.Option("--to", metavar="PLACE", help="A new directory, gs://BUCKET/PREFIX or s3://BUCKET/PREFIX.")]
PrefixOption = Annotated[str, typer.Option("--prefix", metavar="PREFIX", help="Only objects below it: a PREFIX of `ls`.")]


@export_app.callback()
@shared
def choose_export() -> None:
    """What a store holds, for other programs."""


@export_app.command("objects")
@shared
def objects(
    to: PlaceOption,
    prefix: PrefixOption = "",
    update: Annotated[bool, typer.Option("--update", help="Bring an export that has ended up to date: read what changed.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Read what is there already, and fetch again what differs.")] = False,
    jobs: JobsOption = None,
) -> None:
    """Writes all objects: a file for each payload, and all that is known of them in a manifest of Parquet files.

    If it is interrupted, give it again: it goes on, and tries again what failed. manifest.json is there when it has
    ended, and says whether the export is complete; if not, or if the store has rows that are no objects, the exit code
    is 6.
    """

    def command() -> int:
        with guarded_packages():
            from tiered.exports import export_objects
        line = CountLine("objects read")

        def tell(row: ExportRow) -> None:
            line.add(0 if row.sums is None else row.sums.size)
            if row.state == "failed":
                line.clear()
                say(f"{row.path} was not exported: {row.why}")

        async def export() -> ExportReport:
            async with reading() as storage:
                return await export_objects(
                    storage, to, ObjectPrefix.parse(prefix), update=update, verify=verify, concurrency=jobs, on_result=tell
                )

        try:
            done = anyio.run(export)
        finally:
            line.clear()
        if choice.json:
            write(dump({name: getattr(done, name) for name in done.__slots__}))
        else:
            write(_exported(done))
        _say_if_none(prefix, done.exported + done.failed + done.vanished)
        if done.failed:
            say(f"not in it: {done.failed:,} of the objects; the column why of the manifest tells the reason; the same command tries again")
        return _code(done)

    raise typer.Exit(guard(command))


def _code(done: ExportReport | VerifyReport) -> int:
    if done.left_out:
        say(f"not in it: {done.left_out:,} rows of the store that are no objects; the log of `export objects` names them")
    return 0 if done.complete and not done.left_out else DAMAGED


def _exported(done: ExportReport) -> str:
    changed = f"; {done.changed:,} were replaced after they were listed" if done.changed else ""
    vanished = f"; {done.vanished:,} vanished after they were listed" if done.vanished else ""
    mended = f"; {done.mended:,} were mended" if done.mended else ""
    return (
        f"{'complete' if done.complete else 'NOT COMPLETE'}: {done.exported:,} objects with {done.bytes:,} bytes, of which"
        f" {done.fetched:,} were read now{mended}{changed}{vanished}"
    )


@export_app.command("verify")
@shared
def verify(place: Annotated[str, typer.Argument(metavar="PLACE", help="What `export objects` wrote to.")], jobs: JobsOption = None) -> None:
    """Reads an export again, and compares each file with the manifest. It needs no store.

    The settings, if there are any, tell the endpoint of a bucket.
    """

    def command() -> int:
        with guarded_packages():
            from tiered.exports import verify_export
        line = CountLine("files are wrong")

        def tell(wrong: str) -> None:
            line.clear()
            say(wrong)

        async def run() -> VerifyReport:
            try:
                settings = choice.settings()
            except ConfigurationError:
                if choice.config is not None or choice.directory is not None:
                    raise
                settings = None
            return await verify_export(place, settings=settings, on_wrong=tell, concurrency=jobs)

        done = anyio.run(run)
        if choice.json:
            write(dump({name: getattr(done, name) for name in ("whole", "wrong", "bytes", "complete", "left_out")}))
        else:
            said = "complete" if done.complete else "NOT COMPLETE"
            write(f"{said}: {done.whole:,} files with {done.bytes:,} bytes are as the manifest says, {done.wrong:,} are not")
        return _code(done)

    raise typer.Exit(guard(command))


@export_app.command("table")
@shared
def table(
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="A directory that is not there yet; it gets Parquet files.")],
    prefix: PrefixOption = "",
    blobs: Annotated[
        bool, typer.Option("--blobs/--no-blobs", help="Ask blobs, too: for what older rows do not tell, and whether one is lost.")
    ] = True,
) -> None:
    """Writes a table of all objects, small and large: path, scopes, size, times, expiry. No payload is read.

    If it is interrupted, give it again: it goes on. DIR appears when the table is whole; until then it is
    DIR.unfinished.
    """

    def command() -> int:
        with guarded_packages():
            from recovery.sources import parquet

        async def export() -> ObjectsExport:
            return await parquet.export_table(choice.existing(), to, SystemRuntime(), prefix=prefix, blobs=blobs, told=_say_so_far)

        done = anyio.run(export)
        counts = done.counts
        write(dump(done.told()) if choice.json else _line(counts))
        _say_if_none(prefix, counts.objects + counts.damaged)
        if counts.damaged:
            say(f"{counts.damaged:,} of them are damaged, or lost their blob: see the column error, and run 'tiered audit run'")
        return DAMAGED if counts.damaged else 0

    raise typer.Exit(guard(command))


def _say_if_none(prefix: str, found: int) -> None:
    if prefix and not found:
        say(f"no object is below {prefix}: look how it is spelled")


def _say_so_far(counts: ObjectCounts) -> None:
    if not choice.json:
        say(f"{counts.objects:,} objects so far")


def _line(counts: ObjectCounts) -> str:
    unknown = f"; the size of {counts.without_size:,} is not known" if counts.without_size else ""
    return (
        f"{counts.objects:,} objects with {counts.bytes:,} bytes: {counts.small:,} in rows, {counts.large:,} in blobs;"
        f" {counts.expired:,} have expired{unknown}"
    )
