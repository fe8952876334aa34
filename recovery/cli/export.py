"""`tiered export objects`: the table of all objects, for those who ask questions of a store.

*Crash*: the same command goes on after the last part that was written. *Failure*: each error is one sentence and an
exit code (`recovery.cli.app`); what is not whole never has the name that was asked for. If objects are damaged, the
table is whole, they are rows with an `error`, and the exit code is 6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import SystemRuntime
from recovery.cli.output import dump, write
from recovery.cli.shared import choice, guard, say, shared

if TYPE_CHECKING:
    from recovery.sources.parquet import ObjectCounts, ObjectsExport

DAMAGED = 6

export_app = typer.Typer(help="What a store holds, for other programs.", no_args_is_help=True)


@export_app.callback()
@shared
def choose_export() -> None:
    """What a store holds, for other programs."""


@export_app.command("objects")
@shared
def export_objects(
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="A directory that is not there yet; it gets Parquet files.")],
    prefix: Annotated[str, typer.Option(metavar="PREFIX", help="Only objects below it: a PREFIX of `ls`.")] = "",
    blobs: Annotated[bool, typer.Option("--blobs/--no-blobs", help="Ask for the sizes and times of large objects.")] = True,
) -> None:
    """Writes a table of all objects, small and large: path, scopes, size, times, expiry. No payload is read.

    If it is interrupted, give it again: it goes on. DIR appears when the table is whole; until then it is
    DIR.unfinished.
    """

    def command() -> int:
        try:
            from recovery.sources import parquet
        except ModuleNotFoundError as error:
            raise ConfigurationError(f"an export needs {error.name}: pip install 'tiered[audit]'") from None

        async def export() -> ObjectsExport:
            return await parquet.export_objects(choice.existing(), to, SystemRuntime(), prefix=prefix, blobs=blobs, told=_say_so_far)

        done = anyio.run(export)
        counts = done.counts
        write(dump(done.told()) if choice.json else _line(counts))
        if counts.damaged:
            say(f"{counts.damaged:,} of them are damaged, or lost their blob: see the column error, and run 'tiered audit run'")
        return DAMAGED if counts.damaged else 0

    raise typer.Exit(guard(command))


def _say_so_far(counts: ObjectCounts) -> None:
    if not choice.json:
        say(f"{counts.objects:,} objects so far")


def _line(counts: ObjectCounts) -> str:
    unknown = f"; the size of {counts.without_size:,} is not known" if counts.without_size else ""
    return (
        f"{counts.objects:,} objects with {counts.bytes:,} bytes: {counts.small:,} in rows, {counts.large:,} in blobs;"
        f" {counts.expired:,} have expired{unknown}"
    )
