"""`SinkPlace`, one kind of place to which a feed is delivered, with what readers of it find."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from recovery.feed import Message
from recovery.feed.files import read, read_all
from recovery.feed.sinks.sink import Sink
from tests.given.segments import segments


class SinkPlace(ABC):
    """`by_name`: it keeps files, so it can refuse other bytes, and keeps a segment once. `large`: how large one is.

    A place that keeps records and no files is a `RecordPlace`.
    """

    by_name = True
    large = 8 * 2**20

    @abstractmethod
    def sink(self) -> Sink:
        """A new sink for this place, as a process that starts has it."""

    def put(self, name: str, content: bytes) -> None:
        """Somebody else puts a file beside those of the feed, or in the place of one."""
        pytest.skip("this place cannot be asked")

    def empty(self, number: int) -> None:
        """Takes all bytes away from a file."""
        self.put(segments()[number].name, b"")

    @abstractmethod
    def files(self) -> dict[str, bytes]:
        """What readers find, by name, with partial files that nobody reads left out."""

    def messages(self, tmp_path: Path) -> list[Message]:
        """What readers read, by the project's own reader of files."""
        copy = tmp_path / "read"
        copy.mkdir(exist_ok=True)
        for name, content in self.files().items():
            (copy / name).write_bytes(content)
        return [located.message for located in read_all(sorted(copy.iterdir()))]


class RecordPlace(SinkPlace):
    by_name = False

    @abstractmethod
    def values(self) -> list[bytes]:
        """Those of all records, in their order."""

    def files(self) -> dict[str, bytes]:
        return {str(number): value for number, value in enumerate(self.values())}

    def messages(self, tmp_path: Path) -> list[Message]:
        """As a tool of the service writes them to a file (`kcat`): a line each."""
        (tmp_path / "consumed").write_bytes(b"".join(value + b"\n" for value in self.values()))
        return [located.message for located in read(tmp_path / "consumed")]
