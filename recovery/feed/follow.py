"""Reads a directory of feed files while they grow.

    lines (json, text)    from where the last look ended, up to the last line that is whole
    avro, and all gzip    when the file has changed, and then from its beginning

So a message may come more than once: `CdcReader` does not mind. Writers append lines to a file, or put whole files into
the directory. What has no end yet is waited for, and `unfinished` names it. A file that is replaced or cut is read
again. Directories are left out, and files whose names begin with a dot or an underscore.

*Crash.* Nothing is written. Whoever begins again reads everything again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from changelog.base.errors import InvalidRequestError
from recovery.feed.errors import FeedError, Rule
from recovery.feed.files import LINE_BYTES_MAX, Generations, LocatedMessage, is_left_out, read, text_of
from recovery.feed.spelling import from_line, from_text, is_text

if TYPE_CHECKING:
    from recovery.feed.avro import Schema

GZIP, AVRO = b"\x1f\x8b", b"Obj\x01"


class Following:
    """The files of a directory. `schema`: what its Avro files must have; None: they say it themselves."""

    def __init__(self, directory: str | Path, schema: Schema | None = None) -> None:
        self._directory = Path(directory)
        self._schema = schema
        self._files: dict[str, _FollowedFile] = {}
        self._generations = Generations()

    def look(self) -> Iterator[LocatedMessage]:
        """Yields what has come since the last look.

        Raises `FeedError` where a file is foreign or damaged, and `InvalidRequestError` if something cannot be read.
        """
        try:
            names = sorted(each.name for each in os.scandir(self._directory) if each.is_file() and not is_left_out(each.name))
        except OSError as error:
            raise InvalidRequestError(f"{self._directory} cannot be read: {error.strerror}") from None
        for name in names:
            file = self._files.setdefault(name, _FollowedFile(self._directory / name))
            for located in file.look(self._schema):
                self._generations.check(located)
                yield located

    @property
    def unfinished(self) -> list[str]:
        """The files that end in the middle of a line or of a block, by name."""
        return sorted(name for name, file in self._files.items() if file.unfinished)


def _mark(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(slots=True)
class _FollowedFile:
    """`known`: the inode, size and time of change at the last look. `offset`, `line`: where its next line begins."""

    path: Path
    known: tuple[int, int, int] = (0, 0, 0)
    offset: int = 0
    line: int = 0
    unfinished: bool = False

    def look(self, schema: Schema | None) -> Iterator[LocatedMessage]:
        try:
            if _mark(os.stat(self.path)) == self.known:  # of thousands of files, few have changed
                return
            source = self.path.open("rb")
        except FileNotFoundError:  # it was taken away just now
            return
        except OSError as error:
            raise InvalidRequestError(f"{self.path} cannot be read: {error.strerror}") from None
        with source:
            found = os.fstat(source.fileno())
            now = _mark(found)
            if now[0] != self.known[0] or found.st_size < self.offset:
                self.offset = self.line = 0
            self.known = now
            start = source.read(len(AVRO))
            if not start or (len(start) < len(AVRO) and (GZIP.startswith(start[:2]) or AVRO.startswith(start))):
                self.unfinished = bool(start)
            elif start.startswith((GZIP, AVRO)):
                yield from self._whole(schema)
            else:
                source.seek(self.offset)
                yield from self._lines(source)

    def _whole(self, schema: Schema | None) -> Iterator[LocatedMessage]:
        try:
            yield from read(self.path, schema=schema)
            self.unfinished = False
        except FeedError as error:
            if error.rule is not Rule.WHOLE:
                raise
            self.unfinished = True

    def _lines(self, source: BinaryIO) -> Iterator[LocatedMessage]:
        self.unfinished = False
        while raw := source.readline(LINE_BYTES_MAX + 1):
            if not raw.endswith(b"\n") and len(raw) <= LINE_BYTES_MAX:
                self.unfinished = True
                return
            self.offset += len(raw)
            self.line += 1
            if len(raw) > LINE_BYTES_MAX or not raw.isspace():
                yield self._located(raw)

    def _located(self, raw: bytes) -> LocatedMessage:
        try:
            text = text_of(raw)
            message = from_text(text) if is_text(text) else from_line(text)
        except FeedError as error:
            raise error.at(f"{self.path}, line {self.line}") from None
        return LocatedMessage(message, str(self.path), self.line, self.line, "line")
