"""What the commands that read a feed share: the files that they name, their schemas, and how they end.

Several files are one feed, in any order. A directory stands for its files.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Annotated, cast

import typer

from changelog.base.errors import ConfigurationError, InvalidRequestError
from changelog.base.extras import installing
from changelog.base.runtime import SystemRuntime
from recovery.cli.shared import guard, say
from tiered.text import refuse_password

if TYPE_CHECKING:
    import recovery.audit.files.directory as audit
    from recovery.feed import CdcReader, FeedBatch, RollbackReader
    from recovery.feed.avro import Schema
    from recovery.feed.files import LocatedMessage

UNSOUND = 6
STDIN = "-"
LONG_BYTES = 16 * 2**20
"""Of an input that is longer, progress is shown on a terminal."""
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "string")

FilesArgument = Annotated[list[str], typer.Argument(
    metavar="FILE...", help="Files of one feed, in any order, also gs://… and s3://…; a directory stands for its files; - is stdin."
)]  # fmt: skip
SchemaOption = Annotated[str | None, typer.Option("--schema", metavar="SCHEMA", help=(
    "The Avro schema of the records: string or another primitive type, JSON, or a file with JSON."
))]  # fmt: skip
Rollback = Annotated[bool, typer.Option("--rollback", help=(
    "By the rule of the published sketch (docs/feed.md): a progress that is repeated discards the updates since then. "
    "Only for channels that keep the order."
))]  # fmt: skip


IN_MEMORY = 250_000
"""So many updates, and so many records of a view, are in memory: some 200 MB each. Others are in a temporary file."""


def finish(command: Callable[[], int]) -> None:
    def call() -> int:
        from recovery.feed.errors import FeedError

        try:
            return command()
        except FeedError as error:
            say(str(error))
            return UNSOUND

    raise typer.Exit(guard(call))


def reader_of(rollback: bool, *, remember: bool = False) -> CdcReader | RollbackReader:
    from recovery.feed import CdcReader, RollbackReader

    return RollbackReader() if rollback else CdcReader(remember=remember, in_memory=IN_MEMORY)


def feed_message(reader: CdcReader | RollbackReader, located: LocatedMessage) -> FeedBatch | None:
    from recovery.feed.errors import FeedError

    try:
        return reader.feed(located.message)
    except FeedError as error:
        raise error.at(located.where) from None


def messages_of(files: list[str], schema: str | None) -> Iterator[LocatedMessage]:
    from recovery.feed.files import read_all

    paths = _paths(files)
    with _showing(paths) as on_read:
        yield from read_all(paths, schema=schema_of(schema), on_read=on_read, open_file=_open_file)


def _paths(files: list[str]) -> list[str]:
    """Returns the files that were named, with each directory's files in its place."""
    paths: list[str] = []
    for name in files:
        refuse_password("the feed", name)
        if name == STDIN and (STDIN in paths or sys.stdin is None):
            raise InvalidRequestError("stdin is closed; name a file" if sys.stdin is None else "- stands for stdin, and is given twice")
        if (inside := _of_uri(name) if "://" in name else _of_directory(name)) == []:
            raise InvalidRequestError(f"there is no file of a feed in the directory {name}{generation_hint(name)}")
        paths += [name] if inside is None else inside
    _check_generations(paths)
    return paths


def _check_generations(paths: list[str]) -> None:
    """Refuses files from the folders of two generations: each is a feed of its own, from time 0."""
    from recovery.feed.sinks.sink import generation_of

    folders = {path.rpartition("/")[0].rpartition("/")[2] for path in paths}
    if len(found := sorted(folder for folder in folders if generation_of(folder) is not None)) > 1:
        raise InvalidRequestError(f"the files are of the generations {found[0]} and {found[-1]}, and each is a feed of its own: give one")


def generation_hint(name: str) -> str:
    """Returns what to give instead of a directory that has the folders of generations. Empty: it has none."""
    from recovery.feed.sinks.sink import generation_of

    if "://" in name or not os.path.isdir(name):
        return ""
    found = [each.path for each in os.scandir(name) if generation_of(each.name) is not None and each.is_dir()]
    return f": give the folder of a generation, such as {max(found)}" if found else ""


def _of_directory(name: str) -> list[str] | None:
    """Returns the files of a directory, or None if it is none."""
    from recovery.feed.files import is_left_out

    if not os.path.isdir(name):
        return None
    return sorted(each.path for each in os.scandir(name) if each.is_file() and not is_left_out(each.name))


def _of_uri(uri: str) -> list[str] | None:
    """Returns the files of a directory such as gs://bucket/feed, or None if the URI is one of a file."""
    from recovery.feed.files import is_left_out

    place = _place(uri)
    with place.explained("be read"):
        if place.filesystem.get_file_info(place.path).is_file:
            return None
    return [f"{uri.rstrip('/')}/{each.name}" for each in place.list() if each.is_file and not is_left_out(each.name)]


def _open_file(path: str | Path) -> io.RawIOBase:
    if "://" not in str(path):
        return io.FileIO(path)
    place = _place(str(path))
    with place.explained("be read"):
        return cast(io.RawIOBase, place.filesystem.open_input_stream(place.path, compression=None))


def _place(uri: str) -> audit.DirectoryFiles:
    try:
        from recovery.audit.files.directory import DirectoryFiles
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"to read {uri}, {error.name} is needed: {installing('audit')}") from None
    return DirectoryFiles.at(uri, SystemRuntime(), "the feed")


def schema_of(text: str | None) -> Schema | None:
    if text is None:
        return None
    from recovery.feed.avro import schema

    if text in PRIMITIVES:
        return schema(text)
    if not text.lstrip().startswith(("{", "[", '"')):
        try:
            text = Path(text).read_text("utf-8")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise InvalidRequestError(f"--schema {text!r} is neither a primitive type, nor JSON, nor a file with JSON: {why}") from None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"--schema is not JSON: {error}") from None
    return schema(data)


@contextmanager
def _showing(paths: list[str]) -> Iterator[Callable[[int], None] | None]:
    """Shows on a terminal how much of a long input is read. Yields what is told of the bytes."""
    total = _bytes_of(paths) if sys.stderr is not None and sys.stderr.isatty() else None
    if total is None or total < LONG_BYTES:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    with Progress(BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=total)
        yield lambda count: bar.update(task, advance=count)


def _bytes_of(paths: list[str]) -> int | None:
    """Returns the size of all files together, or None if something is no plain file."""
    total = 0
    for path in paths:
        try:
            found = os.stat(path)
        except (OSError, ValueError):
            return None
        if path == STDIN or not S_ISREG(found.st_mode):
            return None
        total += found.st_size
    return total


def updates_are(number: int) -> str:
    return "1 update is" if number == 1 else f"{number:,} updates are"
