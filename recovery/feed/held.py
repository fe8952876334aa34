"""The distinct updates that a reader holds, by time: in memory, and beyond a number in a temporary file.

When there are more than `in_memory`, all of them move to the file, and those that follow are in memory again. What
becomes complete out of the file is put in order into a second one, which lives as long as its batch. `temporary.py`
says what the files are. Without `in_memory` there are none.
"""

from __future__ import annotations

from collections.abc import Iterable

from changelog.sqlite.temporary import TemporaryTable
from recovery.feed.batch import bytes_of, in_order
from recovery.feed.messages import Key, Update
from recovery.feed.temporary import Delivered, LargeBatch, columns_of, data_of
from recovery.feed.times import Times


class HeldUpdates:
    """Updates by time. `in_memory`: from so many on they go to a file; None: they never do.

    `updates`, `bytes`: how many are at times that were not delivered, and the memory that these take, about.
    """

    def __init__(self, in_memory: int | None = None) -> None:
        self.updates = 0
        self.bytes = 0
        self._in_memory = in_memory
        self._recent: dict[int, dict[Key, Update]] = {}
        self._number_of_recent = 0
        self._bytes: dict[int, int] = {}
        """By time: the memory of what is not delivered."""
        self._numbers: dict[int, int] = {}
        """By time: how many updates there are, wherever they are."""
        self._times = Times()
        self._file: TemporaryTable | None = None
        self._number_in_file = 0

    def __len__(self) -> int:
        """How many times there are."""
        return len(self._numbers)

    def number(self, time: int) -> int:
        """Returns how many updates a time has."""
        return self._numbers.get(time, 0)

    def between(self, lower: int, upper: int) -> Iterable[int]:
        """Returns the times from `lower` up to, but not with, `upper`, sorted. Use them before anything changes."""
        return self._times.between(lower, upper)

    def get(self, time: int, key: Key) -> Update | None:
        """Returns the update with this key, if it is there."""
        recent = self._recent.get(time)
        if recent is not None and (found := recent.get(key)) is not None:
            return found
        if self._file is None or self.number(time) == len(recent or ()):
            return None
        columns = columns_of(key)
        for (diff,) in self._file.execute("SELECT diff FROM held WHERE time = ? AND key = ? AND is_text = ?", (time, *columns)):
            return Update(data_of(*columns), time, diff)
        return None

    def add(self, time: int, found: dict[Key, Update]) -> None:
        """Adds updates that are not there yet."""
        if time not in self._numbers:
            self._times.add(time)
            self._numbers[time] = 0
        self._numbers[time] += len(found)
        if (recent := self._recent.get(time)) is None:
            self._recent[time] = found
        else:
            recent.update(found)
        self._number_of_recent += len(found)
        self.updates += len(found)
        size = sum(map(bytes_of, found))
        self.bytes += size
        self._bytes[time] = self._bytes.get(time, 0) + size
        if self._in_memory is not None and self._number_of_recent > self._in_memory:
            self._to_file()

    def deliver(self, lower: int, upper: int) -> Delivered:
        """Returns the updates from `lower` up to, but not with, `upper`. They do not count as held any more."""
        complete: list[Update] = []
        is_in_file = False
        for time in self.between(lower, upper):
            recent, number = self._recent.get(time, {}), self._numbers[time]
            complete += recent.values()
            is_in_file = is_in_file or number > len(recent)
            self.updates -= number
            self.bytes -= self._bytes.pop(time, 0)
        if not is_in_file:
            return in_order(complete)
        self._to_file()
        assert self._file is not None, "it was just written"
        return LargeBatch(self._file.execute(
            "SELECT key, is_text, time, diff FROM held WHERE time BETWEEN ? AND ? ORDER BY key, is_text DESC, time", (lower, upper - 1)
        ))  # fmt: skip

    def forget_before(self, end: int) -> None:
        """Takes away all that is before `end`."""
        forgotten = 0
        for time in self._times.remove_before(end):
            recent = len(self._recent.pop(time, ()))
            self._number_of_recent -= recent
            forgotten += self._numbers.pop(time) - recent
        if not forgotten:
            return
        assert self._file is not None, "what is not in memory is there"
        self._number_in_file -= forgotten
        if self._number_in_file:
            self._file.write("DELETE FROM held WHERE time <= ?", [(end - 1,)])
        else:
            self._file.close()
            self._file = None

    def _to_file(self) -> None:
        """Moves all that is in memory."""
        if self._file is None:
            self._file = TemporaryTable("CREATE TABLE held (time, key, is_text, diff, PRIMARY KEY (time, key, is_text)) WITHOUT ROWID")
        self._file.write("INSERT INTO held VALUES (?, ?, ?, ?)", (
            (time, *columns_of(key), update.diff) for time, found in self._recent.items() for key, update in found.items()
        ))  # fmt: skip
        self._number_in_file += self._number_of_recent
        self.bytes -= sum(self._bytes.values())
        self._bytes.clear()
        self._recent.clear()
        self._number_of_recent = 0
