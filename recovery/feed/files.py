"""Feeds as files: read as a stream, in bounded memory, and written.

    avro     an object container file: knows its schema; may name the generation of its feed
    json     one message of Avro-JSON a line
    text     one `update (…)` or `progress (…)` a line

The form of a file is found out from its first bytes, not from its name. gzip is undone. `-` is standard input or
output. Positions count lines from 1, or bytes from 0 of what gzip holds. Empty lines are skipped.

A file that is cut off, foreign or damaged raises `FeedError` with its name, the position and the rule. What was yielded
before it was in the file, so a caller that must not half-apply a file reads it to its end first. Lines that are missing
as a whole cannot be seen here: a reader then waits for them.

*Crash.* `write` writes beside the file and renames, so that a file is there as a whole or not at all. If the process is
killed, a file `.NAME.….partial` stays. It is no part of a feed and may be deleted.
"""

from __future__ import annotations

import gzip
import io
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, BinaryIO, Literal, TypeAlias, TypeVar, cast

from changelog.base.directories import sync_file
from changelog.base.errors import InvalidRequestError
from recovery.feed.errors import FeedError, Rule
from recovery.feed.messages import Message, Progress, Updates, canonical
from recovery.feed.spelling import from_line, from_text, is_text, parsed, to_line, to_text
from tiered.text import quoted

if TYPE_CHECKING:
    from recovery.feed.avro import Schema

STANDARD = "-"
"""Standard input, or standard output."""
LINE_BYTES_MAX = 64 * 2**20
UPDATES_MAX = 10_000
MESSAGE_CHARACTERS = 4 * 2**20
"""In one message that is written, about, so that readers need little memory."""
BUFFER_BYTES = 2**18
FIRST_BYTES = 64
GENERATION = "tiered.feed.generation"
"""The entry in the header of a container that says of which generation of its feed it is."""

Unit: TypeAlias = Literal["line", "byte"]


class FileFormat(StrEnum):
    """What a file looks like: see the top of this file."""

    AVRO = "avro"
    JSON = "json"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class LocatedMessage:
    """A message, and where it is.

    `file`: its name. `number`: of the message in the file, from 1. `position`: its line, from 1, or a byte, from 0: its
    own, or that of its block in a container. `generation`: None: the file does not say it.
    """

    message: Message
    file: str
    number: int
    position: int
    unit: Unit
    generation: int | None = None

    @property
    def where(self) -> str:
        """The place as an error names it."""
        return _where(self.file, self.position, self.unit, self.number)


def _where(file: str, position: int, unit: Unit, number: int) -> str:
    return f"{file}, {unit} {position}" if unit == "line" else f"{file}, byte {position}, message {number}"


# --- reading ---------------------------------------------------------------------------------------


def read(
    path: str | Path, form: FileFormat | None = None, schema: Schema | None = None, on_read: Callable[[int], None] | None = None,
    open_file: Callable[[str | Path], io.RawIOBase] = io.FileIO,
) -> Iterator[LocatedMessage]:  # fmt: skip
    """Yields the messages of a file, each with its place.

    `form`: None: found out. `schema`: what a container must have; None: it says it itself. `on_read` is told how many
    bytes of the file were read, whenever some were. `open_file` opens the path, such as one in a bucket, and raises
    `OSError` or an error of this project.

    Raises `InvalidRequestError`: the file cannot be opened. `FeedError`: see the top of this file.
    `ConfigurationError`: the file is Avro, and fastavro is not installed.
    """
    _check_path(path)
    form = None if form is None else _form_of(form)
    file = "standard input" if str(path) == STANDARD else str(path)
    with _opened(path, file, on_read, open_file) as source:
        form = form or _form(source, file)
        if form is FileFormat.AVRO:
            yield from _container(source, file, schema)
        else:
            parse = from_text if form is FileFormat.TEXT else from_line
            for number, (line, message) in enumerate(_lines(source, file, parse), start=1):
                yield LocatedMessage(message, file, number, line, "line")


def is_left_out(name: str) -> bool:
    """Returns whether a file of this name is no part of the feed in its directory: a writer is still busy with it."""
    return name.startswith((".", "_"))


def read_all(paths: Iterable[str | Path], **options: object) -> Iterator[LocatedMessage]:
    """Yields the messages of several files of one feed, as `read` does. `options`: those of `read`.

    Raises `FeedError`, too, if two containers say that they are of different generations.
    """
    generations = Generations()
    for path in paths:
        for located in read(path, **options):  # type: ignore[arg-type]
            generations.check(located)
            yield located


class Generations:
    """Sees to it that all files are of one generation, where they say it."""

    def __init__(self) -> None:
        self._first: LocatedMessage | None = None

    def check(self, located: LocatedMessage) -> None:
        """Raises `FeedError` if the file of the message says something else than the first one that said it."""
        if located.generation is not None:
            self._first = self._first or located
            if located.generation != self._first.generation:
                why = f"the file is of generation {located.generation}, and {self._first.file} is of generation {self._first.generation}"
                raise FeedError(Rule.GENERATION, why, located.where)


def _check_path(path: object) -> None:
    if not isinstance(path, str | Path):
        raise InvalidRequestError(f"{quoted(path)} is no path of a file: use text or a Path")


def _form_of(form: str) -> FileFormat:
    try:
        return FileFormat(form)
    except ValueError:
        raise InvalidRequestError(f"{quoted(form)} is no form of a feed: use {', '.join(FileFormat)}") from None


class _Stream(io.RawIOBase):
    """Counts what is read, because a pipe does not, and translates the errors of a file that is damaged."""

    def __init__(self, source: io.RawIOBase | io.BufferedIOBase, file: str, on_read: Callable[[int], None] | None = None) -> None:
        # Of standard input, what is there: it would wait until the whole buffer is full.
        self._readinto = source.readinto1 if isinstance(source, io.BufferedReader) else source.readinto
        self._file = file
        self._on_read = on_read
        self._count = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._count

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = self._some(buffer)
        # The form is found out from the first bytes, and a pipe may give them one by one.
        while 0 < self._count + count < FIRST_BYTES and b"\n" not in bytes(buffer[:count]):
            if not (more := self._some(buffer[count:])):
                break
            count += more
        self._count += count
        return count

    def _some(self, buffer: memoryview) -> int:
        try:
            count = self._readinto(buffer)
        except EOFError:
            raise FeedError(Rule.WHOLE, "the gzip file ends too early", f"{self._file}, byte {self._count}") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise FeedError(Rule.FORM, f"the gzip file is damaged: {error}", f"{self._file}, byte {self._count}") from None
        except OSError as error:
            raise InvalidRequestError(f"{self._file} cannot be read after byte {self._count}: {error.strerror or error}") from None
        if count is None:
            why = "it does not block, and has nothing right now: give a file or a pipe that blocks"
            raise InvalidRequestError(f"{self._file} cannot be read after byte {self._count}: {why}")
        if self._on_read is not None and count:
            self._on_read(count)
        return cast(int, count)


@contextmanager
def _opened(
    path: str | Path, file: str, on_read: Callable[[int], None] | None, open_file: Callable[[str | Path], io.RawIOBase]
) -> Iterator[io.BufferedReader]:
    if str(path) == STANDARD:
        yield _unzipped(_Stream(cast(io.BufferedIOBase, sys.stdin.buffer), file, on_read), file)
        return
    try:
        raw = open_file(path)
    except (OSError, ValueError) as error:  # a name with a null character is a ValueError
        raise InvalidRequestError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    with raw:
        yield _unzipped(_Stream(raw, file, on_read), file)


def _unzipped(stream: _Stream, file: str) -> io.BufferedReader:
    source: io.BufferedReader = io.BufferedReader(stream, BUFFER_BYTES)
    if source.peek(2)[:2] != b"\x1f\x8b":
        return source
    return io.BufferedReader(_Stream(gzip.GzipFile(fileobj=source), file), BUFFER_BYTES)


def _form(source: io.BufferedReader, file: str) -> FileFormat:
    """The form of a file, by its first bytes. Nothing of it is consumed."""
    start = source.peek(1)
    if start[:4] == b"Obj\x01" or (start and b"Obj\x01".startswith(start)) or (not start and file.endswith(".avro")):
        return FileFormat.AVRO
    line = start.lstrip().split(b"\n", 1)[0]
    if is_text(line[:20].decode("latin-1")):
        return FileFormat.TEXT
    if line.startswith(b"{"):
        return FileFormat.JSON
    if line.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise FeedError(Rule.FORM, "the file begins with a byte order mark: save it as UTF-8 without one", f"{file}, byte 0")
    if line:
        raise FeedError(
            Rule.FORM, f"the file begins with {quoted(start[:20])}, and neither with an Avro header nor with a message", f"{file}, byte 0"
        )
    return FileFormat.JSON


T = TypeVar("T")


def _lines(source: io.BufferedReader, file: str, parse: Callable[[str], T]) -> Iterator[tuple[int, T]]:
    """Yields each line that is not empty, parsed, with its number from 1."""
    number = 0
    while raw := source.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(raw) > LINE_BYTES_MAX or not raw.isspace():
            try:
                yield number, parse(text_of(raw))
            except FeedError as error:
                cut_off = len(raw) <= LINE_BYTES_MAX and not raw.endswith(b"\n") and not _is_json(raw)
                raise (FeedError(Rule.WHOLE, error.why) if cut_off else error).at(f"{file}, line {number}") from None


def _is_json(raw: bytes) -> bool:
    try:
        parsed(raw)
    except FeedError:
        return False
    return True


def text_of(raw: bytes) -> str:
    """Returns a line of a file as text. `FeedError`: it is too long, or not UTF-8."""
    if len(raw) > LINE_BYTES_MAX:
        raise FeedError(Rule.FORM, f"the line is longer than {LINE_BYTES_MAX} bytes, beginning with {quoted(raw[:20])}")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise FeedError(Rule.FORM, f"the line is not UTF-8: {error.reason} at its byte {error.start}") from None


def _container(source: io.BufferedReader, file: str, schema: Schema | None) -> Iterator[LocatedMessage]:
    from recovery.feed.avro import ContainerReader

    number, block = 0, 0
    try:
        reader = ContainerReader(source, schema)
        generation = _generation(reader.metadata.get(GENERATION))
        for message, block in reader:
            number += 1
            yield LocatedMessage(message, file, number, block, "byte", generation)
    except FeedError as error:
        raise error.at(_where(file, block, "byte", number + 1)) from None


def _generation(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise FeedError(Rule.GENERATION, f"the header of the file says generation {quoted(text)}, which is no number")
    return int(text)


# --- writing ---------------------------------------------------------------------------------------


def write(
    path: str | Path, messages: Iterable[Message], form: FileFormat = FileFormat.JSON, schema: Schema | None = None,
    codec: Literal["deflate", "null"] = "deflate", generation: int | None = None,
) -> int:  # fmt: skip
    """Writes messages to a file, and returns how many it was given. A file that is there is replaced as a whole.

    `schema`, `codec`: of Avro; `schema` None is `REFERENCES`. `generation`: which a container tells its readers. A name
    that ends with `.gz` is compressed. Equal messages give equal bytes. A message of very many updates is written as
    several: how updates are cut means nothing.

    Raises `InvalidRequestError`: a message does not fit, or the file cannot be written. Then there is no new file.
    """
    _check_path(path)
    form = _form_of(form)
    if generation is not None and (type(generation) is not int or not 0 <= generation < 10**19):
        raise InvalidRequestError(f"the generation is {quoted(generation)}, not an integer from 0 with at most 19 digits")
    if str(path) == STANDARD:
        return _write(sys.stdout.buffer, messages, form, schema, codec, generation)
    path = Path(path)
    if path.exists() and not path.is_file():
        raise InvalidRequestError(f"{path} is no plain file, and cannot be replaced: name another file")
    # Of this process and thread: another writer of the same file must not write into it.
    partial = path.with_name(f".{path.name}.{os.getpid()}-{get_ident()}.partial")
    try:
        with open(partial, "wb") as to:
            if path.suffix == ".gz":
                # No name and no time: these would make each file of the same messages a different one.
                with gzip.GzipFile("", "wb", fileobj=to, mtime=0) as zipped:
                    count = _write(cast(BinaryIO, zipped), messages, form, schema, codec, generation)
            else:
                count = _write(to, messages, form, schema, codec, generation)
            to.flush()
            sync_file(to.fileno())
        os.replace(partial, path)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise InvalidRequestError(f"{path} cannot be written: {error.strerror or error}") from None
        raise
    return count


def encoded(messages: Iterable[Message], form: FileFormat, generation: int) -> bytes:
    """Returns the bytes of a file with these messages. Equal messages give equal bytes."""
    to = io.BytesIO()
    _write(to, messages, form, None, "deflate", generation)
    return to.getvalue()


def _write(
    to: BinaryIO, messages: Iterable[Message], form: FileFormat, schema: Schema | None, codec: Literal["deflate", "null"],
    generation: int | None,
) -> int:  # fmt: skip
    count = 0
    write_one, finish = _writer(to, form, schema, codec, generation)
    for message in messages:
        for part in _parts(message):
            write_one(part)
        count += 1
    finish()
    to.flush()
    return count


def _parts(message: Message) -> Iterator[Message]:
    if not isinstance(message, Updates | Progress):
        raise InvalidRequestError(f"{quoted(message)} is no message: use Updates or Progress")
    if isinstance(message, Progress) or not message.updates:
        yield message
        return
    begin = characters = 0
    for at, update in enumerate(message.updates):
        more = len(update.key) if type(update.key) is str else len(update.key[0])
        if at > begin and (at - begin == UPDATES_MAX or characters + more > MESSAGE_CHARACTERS):
            yield Updates(message.updates[begin:at])
            begin, characters = at, 0
        characters += more
    yield message if begin == 0 else Updates(message.updates[begin:])


def _writer(
    to: BinaryIO, form: FileFormat, schema: Schema | None, codec: Literal["deflate", "null"], generation: int | None
) -> tuple[Callable[[Message], object], Callable[[], None]]:
    """What writes one message, and what writes the rest at the end."""
    if form is FileFormat.JSON:
        return lambda message: to.write(_line(to_line(message))), to.flush
    if form is FileFormat.TEXT:
        return lambda message: to.write(b"".join(map(_line, to_text(message)))), to.flush
    from recovery.feed.avro import REFERENCES, ContainerWriter

    container = ContainerWriter(to, schema or REFERENCES, codec, {} if generation is None else {GENERATION: str(generation)})
    return lambda message: container.write(_not_too_long(message)), container.flush


def _line(line: str) -> bytes:
    content = f"{line}\n".encode()
    if len(content) > LINE_BYTES_MAX:
        raise InvalidRequestError(f"{quoted(line)} has {len(content)} bytes, and a line of a feed may have {LINE_BYTES_MAX} bytes")
    return content


def _not_too_long(message: Message) -> Message:
    """The message, if a reader takes it as Avro. Only one record can make it too long."""
    most = LINE_BYTES_MAX * 15 // 16
    for update in message.updates if isinstance(message, Updates) and len(message.updates) == 1 else ():
        text = update.key if type(update.key) is str else update.key[0]
        if len(text) > most // 8 and (size := len(canonical(update.data).encode())) > most:
            raise InvalidRequestError(f"data {quoted(update.data)} has {size} bytes, and a message of a feed may have about {most} bytes")
    return message
