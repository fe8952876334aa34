"""`tiered feed convert`: one file into another form.

*Crash*, *failure*: the file is as it was, unless it writes to stdout.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from changelog.base.errors import InvalidRequestError
from recovery.cli.feed.inputs import STDIN, SchemaOption, finish, messages_of, schema_of
from recovery.cli.output import dump, write
from recovery.cli.shared import choice, shared
from tiered.text import refuse_password
from tiered.whose import refuse_store

if TYPE_CHECKING:
    from recovery.feed.files import FileFormat
    from recovery.feed.messages import Message

OPEN_FILES = ("/dev/fd/", "/dev/std", "/proc/")

In = Annotated[str, typer.Argument(metavar="IN", help="A file; - is stdin.")]
Out = Annotated[str, typer.Argument(metavar="OUT", help="A file, which is replaced as a whole; - is stdout.")]
To = Annotated[str, typer.Option("--to", metavar="FORM", help="avro, json or text.")]


@shared
def convert(source: In, target: Out, to: To, schema: SchemaOption = None) -> None:
    """Writes the messages of a file in another form, one for one. It does not check what they say together."""

    def command() -> int:
        from recovery.feed.files import FileFormat

        if to not in tuple(FileFormat):
            raise InvalidRequestError(f"--to {to!r} is no form: use {', '.join(FileFormat)}")
        count = _write(source, _target(target), FileFormat(to), schema)
        if target != STDIN:
            written = {"messages": count, "to": target, "form": to}
            write(dump(written) if choice.json else f"{count:,} messages written to {target}")
        return 0

    finish(command)


def _target(name: str) -> str:
    """Returns the file to replace, behind symbolic links. Refuses a device or a pipe, which must not be replaced."""
    if name == STDIN:
        if sys.stdout is None:
            raise InvalidRequestError("stdout is closed; name a file")
        return name
    refuse_password("the file", name)
    target = os.path.realpath(name)
    is_other = os.path.exists(target) and not os.path.isfile(target)
    if not name or "://" in name or is_other or os.path.abspath(name).startswith(OPEN_FILES):
        raise InvalidRequestError(f"{name!r} is no file that can be replaced: name another, or - for stdout")
    refuse_store(name)
    return target


def _write(source: str, target: str, to: FileFormat, schema: str | None) -> int:
    from recovery.feed import files
    from recovery.feed.errors import SchemaMismatchError

    located = messages_of([source], schema)
    first = next(located, None)
    generation = None if first is None else first.generation

    def messages() -> Iterator[Message]:
        if first is not None:
            yield first.message
        yield from (each.message for each in located)

    try:
        return files.write(target, messages(), to, schema_of(schema), generation=generation)
    except SchemaMismatchError as error:
        if schema is None:
            raise InvalidRequestError(f"{error}; say with --schema which schema the records have") from None
        raise
