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
from recovery.cli.feed.inputs import STDIN, FormOption, SchemaOption, finish, form_of, messages_of, schema_of
from recovery.cli.output import dump, write
from recovery.cli.shared import choice, shared
from tiered.whose import refuse_store

if TYPE_CHECKING:
    from recovery.feed.files import FileFormat
    from recovery.feed.messages import Message

OPEN_FILES = ("/dev/fd/", "/dev/std", "/proc/")

In = Annotated[str, typer.Argument(metavar="IN", help="A file; - is stdin.")]
Out = Annotated[str, typer.Argument(metavar="OUT", help="A file, which is replaced as a whole; - is stdout.")]
To = Annotated[str, typer.Option("--to", metavar="FORM", help="avro, json, text, delta, bare or framed.")]
SchemaId = Annotated[int, typer.Option("--schema-id", min=0, max=2**31 - 1, help="With framed: the id of the schema in the registry.")]


@shared
def convert(
    source: In, target: Out, to: To, form: FormOption = None, schema: SchemaOption = None, schema_id: SchemaId = 0
) -> None:
    """Writes the messages of a file in another form, one for one. It does not check what they say together."""

    def command() -> int:
        from recovery.feed.files import FileFormat

        form_to = form_of("--to", to)
        assert form_to is not None
        if schema_id and form_to is not FileFormat.FRAMED:
            raise InvalidRequestError(f"--schema-id is of framed: leave it out, or write --to framed instead of {to}")
        count = _write(source, _target(target), form_to, form, schema, schema_id)
        if target != STDIN:
            written = {"messages": count, "to": target, "form": form_to.value}
            write(dump(written) if choice.json else f"{count:,} messages written to {target}")
        return 0

    finish(command)


def _target(name: str) -> str:
    """Returns the file to replace, behind symbolic links. Refuses a device or a pipe, which must not be replaced."""
    if name == STDIN:
        if sys.stdout is None:
            raise InvalidRequestError("stdout is closed; name a file")
        return name
    target = os.path.realpath(name)
    is_other = os.path.exists(target) and not os.path.isfile(target)
    if not name or "://" in name or is_other or os.path.abspath(name).startswith(OPEN_FILES):
        raise InvalidRequestError(f"{name!r} is no file that can be replaced: name another, or - for stdout")
    refuse_store(name)
    return target


def _write(source: str, target: str, to: FileFormat, form: str | None, schema: str | None, schema_id: int) -> int:
    from recovery.feed import files

    located = messages_of([source], form, schema)
    first = next(located, None)
    generation = None if first is None else first.generation

    def messages() -> Iterator[Message]:
        if first is not None:
            yield first.message
        yield from (each.message for each in located)

    try:
        return files.write(target, messages(), to, schema_of(schema), schema_id, generation=generation)
    except InvalidRequestError as error:
        if schema is None and "does not fit the schema" in str(error):
            raise InvalidRequestError(f"{error}; say with --schema which schema the records have") from None
        raise
