"""What the writer keeps in the changelog: values, of which the one with the highest version counts.

    feed/{G}/began                                   the epoch that began it; without this value, the index is lost
    feed/{G}/index/{object}                          the blob that is published for the object, after a checksum
    feed/{G}/staged/{time}/{epoch}-{seq}.{form}/{part}
                                                     the bytes of a staged file, in parts
    feed/{G}/journal/{time}                          a committed file that some sink does not have yet
    feed/{G}/withheld/{time}                         how many updates a transaction has that no progress told of

G is the generation. The version of a value is the time of its transaction. So when a writer that was fenced wakes up
and writes its part of an old transaction again, that changes nothing that a later one wrote. A name under `staged` is
used once: epoch and seq are its own. What is read back is checked against the checkpoint's digest.

*Crash* after the commit: `apply` is repeated from the staged file, first thing after opening. *Crash* before it: the
staged file is garbage, which `sweep` removes.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import cast

from changelog.base.errors import CorruptRecordError
from changelog.key_values import VALUE_BYTES_MAX, KeyValueStore
from recovery.feed.files import FileFormat, encoded, read
from recovery.feed.index_value import blob_of, index_value
from recovery.feed.messages import Message, Update, Updates
from recovery.feed.sinks.sink import Segment, Suffix
from recovery.feed.writer.changes import after
from recovery.feed.writer.checkpoint import FIX, Checkpoint, Staged, staged_of
from tiered.notes.note_fields import NoteFields, canonical

PREFIX = "feed/"
PREFIX_END = "feed0"
VALUES_AT_ONCE = 500
PAGE = 1000
PARTS_AT_ONCE = 16
"""A part may be a whole megabyte."""


def _end(prefix: str) -> str:
    """The first key after all that begin with the prefix, which ends with a slash."""
    return f"{prefix[:-1]}0"


@dataclass(frozen=True, slots=True)
class Journaled:
    """A committed file that waits for sinks. `records`: of all transactions up to this one.

    `before`: the time of the transaction before it; -1: it is the first. A sink must have that one first.
    """

    time: int
    staged: Staged
    records: int
    before: int


class StoredFeed:
    """The values of one generation. Every write is safe to repeat, also late."""

    def __init__(self, log: KeyValueStore, generation: int) -> None:
        self.generation = generation
        self._log = log
        self._prefix = f"{PREFIX}{generation}/"

    # --- the generation --------------------------------------------------------------------------

    async def begin(self, epoch: int) -> None:
        await self._log.write_values({f"{self._prefix}began": str(epoch).encode()}, self.generation)

    @staticmethod
    async def newest(log: KeyValueStore) -> int | None:
        """Returns the newest generation of which anything is stored. None: there is nothing."""
        newest, start = None, PREFIX
        while key := next(iter((await log.scan_values(start, PREFIX_END, 1)).values), None):
            number = key.removeprefix(PREFIX).partition("/")[0]
            start = f"{PREFIX}{number}0"  # the first key after all of this one
            newest = max(newest or 0, int(number)) if number.isdecimal() else newest
        return newest

    async def has_begun(self) -> bool:
        return bool(await self._log.read_values([f"{self._prefix}began"]))

    # --- staged files ----------------------------------------------------------------------------

    async def stage(self, messages: Sequence[Message], count: int, time: int, form: FileFormat, epoch: int, seq: int) -> Staged:
        """Writes the file of a transaction under a name of its own. Nobody reads it before the commit."""
        data = encoded(messages, form, self.generation)
        parts = [data[begin : begin + VALUE_BYTES_MAX] for begin in range(0, len(data), VALUE_BYTES_MAX)]
        name = f"staged/{time:019d}/{epoch}-{seq}.{form}"
        staged = Staged(name, hashlib.sha256(data).hexdigest(), count, len(data), len(parts))
        for number, part in enumerate(parts):
            await self._log.write_values({self._part(staged, number): part}, max(1, time))
        return staged

    async def load(self, staged: Staged) -> bytes:
        """Returns the bytes of a staged file. `CorruptRecordError`: they are not those that were committed."""
        keys = [self._part(staged, number) for number in range(min(staged.parts, staged.bytes))]
        data = b""
        for key in keys:
            data += (await self._log.read_values([key])).get(key, b"")
        whole = staged.parts == -(-staged.bytes // VALUE_BYTES_MAX) and len(data) == staged.bytes
        if not whole or hashlib.sha256(data).hexdigest() != staged.sha256:
            raise CorruptRecordError(
                f"the staged file {self._prefix}{staged.object} has {len(data)} bytes, and not the {staged.bytes} that were"
                " committed, or others: the feed cannot go on; begin a new generation with 'tiered feed run --new-generation'"
            )
        return data

    async def segment(self, journaled: Journaled) -> Segment:
        data = await self.load(journaled.staged)
        return Segment(self.generation, journaled.time, data, cast(Suffix, _form(journaled.staged).value), journaled.staged.sha256)

    async def updates_of(self, staged: Staged) -> list[Update]:
        """Returns the updates of a committed file."""
        data = await self.load(staged)
        found = read(staged.object, _form(staged), open_file=lambda path: cast(io.RawIOBase, io.BytesIO(data)))
        return [update for located in found if isinstance(located.message, Updates) for update in located.message.updates]

    # --- the index and the journal ---------------------------------------------------------------

    async def apply(self, checkpoint: Checkpoint, updates: Iterable[Update], *, tells: bool) -> None:
        """Does what follows from the commit, before the next one: index, journal, and what no progress tells yet.

        `tells`: its progress may tell what was withheld before.
        """
        assert checkpoint.staged is not None, "a transaction with a file was committed"
        time, staged = checkpoint.timestamp, checkpoint.staged
        values: dict[str, bytes | None] = {
            f"{self._prefix}index/{path}": None if blob is None else index_value(path, blob) for path, blob in after(updates).items()
        }
        if checkpoint.lower <= time:
            values[self._withheld(time)] = index_value(f"{time:019d}", str(staged.count))
        journaled = {"staged": asdict(staged), "records": checkpoint.records, "before": checkpoint.before}
        values[self._journaled(time)] = canonical(journaled)
        keys = list(values)
        for begin in range(0, len(keys), VALUES_AT_ONCE):
            await self._log.write_values({key: values[key] for key in keys[begin : begin + VALUES_AT_ONCE]}, max(1, time))
        if tells and checkpoint.lower > time:
            prefix = f"{self._prefix}withheld/"
            published = [key for key in await self._all(prefix) if int(key.removeprefix(prefix)) < checkpoint.lower]
            await self._erase(published)  # a later writer may withhold again, and write down later times

    async def published(self, objects: Iterable[str]) -> dict[str, str]:
        """Returns the blob that is published for each of these objects, if one is."""
        prefix = f"{self._prefix}index/"
        keys = [f"{prefix}{path}" for path in sorted(set(objects))]
        found: dict[str, str] = {}
        for begin in range(0, len(keys), VALUES_AT_ONCE):
            values = await self._log.read_values(keys[begin : begin + VALUES_AT_ONCE])
            found |= _blobs(values, prefix)
        return found

    async def published_within(self, start: str, end: str | None, limit: int) -> tuple[dict[str, str], str | None]:
        """Returns up to `limit` published references of a range of objects, and where the rest begins, if there is any.
        """
        prefix = f"{self._prefix}index/"
        page = await self._log.scan_values(f"{prefix}{start}", _end(prefix) if end is None else f"{prefix}{end}", limit)
        return _blobs(page.values, prefix), None if page.next_start is None else page.next_start.removeprefix(prefix)

    async def withheld(self, lower: int) -> dict[int, int]:
        """Returns how many updates each transaction from `lower` on has. No progress told of these.

        A writer that was fenced may write down an earlier one again.
        """
        prefix = f"{self._prefix}withheld/"
        counts = {int(time): int(count) for time, count in _blobs(await self._all(prefix), prefix).items()}
        return {time: count for time, count in counts.items() if time >= lower and count}

    async def journal(self) -> list[Journaled]:
        """Returns the committed files that are kept for sinks, in the order of their times."""
        prefix = f"{self._prefix}journal/"
        found = []
        for key, raw in (await self._all(prefix)).items():
            value = NoteFields.parse(raw, key, FIX)
            value.only("staged", "records", "before")
            time, staged, before = key.removeprefix(prefix), staged_of(value.child("staged")), value.optional_number("before")
            if staged is None or not time.isdecimal():
                raise value.wrong("it names no file")
            found.append(Journaled(int(time), staged, value.number("records"), -1 if before is None else before))
        return found

    async def drop(self, journaled: Journaled) -> None:
        """Forgets a file that every sink has acknowledged.

        A writer that was fenced may write its journal once more, with the file's time as version. So this one is later.
        """
        await self._log.write_values({self._journaled(journaled.time): None}, journaled.time + 2)
        await self._log.erase_values([self._part(journaled.staged, number) for number in range(journaled.staged.parts)])

    async def sweep(self, keep: Iterable[Staged], epoch: int) -> None:
        """Removes staged files that were never committed, and those whose removal was interrupted.

        `epoch`: that of the writer. Only files of earlier writers are removed: a later one may be at work by now.
        """
        prefix, names = f"{self._prefix}staged/", {staged.object.removeprefix("staged/") for staged in keep}
        start: str | None = prefix
        while start is not None:
            page = await self._log.scan_values(start, _end(prefix), PARTS_AT_ONCE)
            unknown = [key for key in page.values if key.removeprefix(prefix).rpartition("/")[0] not in names]
            await self._erase([key for key in unknown if _epoch_of(key) < epoch])
            start = page.next_start

    async def sweep_others(self, limit: int, epoch: int) -> bool:
        """Removes up to `limit` values of other generations. Returns whether there may be more.

        `epoch`: that of the writer. What a later writer has written stays: this one may be fenced by now. Of a later
        generation that a writer of an earlier epoch could not begin, the few values are removed.
        """
        for start, end in ((PREFIX, self._prefix), (_end(self._prefix), PREFIX_END)):
            page = await self._log.scan_values(start, end, limit)
            if garbage := [key for key, value in page.values.items() if self._is_garbage(key, value, epoch)]:
                await self._erase(garbage)
                return True
        return False

    def _is_garbage(self, key: str, value: bytes, epoch: int) -> bool:
        generation, _, name = key.removeprefix(PREFIX).partition("/")
        if int(generation) < self.generation:
            return True
        begun_by = int(value) if name == "began" else _epoch_of(key) if name.startswith("staged/") else epoch + 1
        return begun_by <= epoch

    # --- details -----------------------------------------------------------------------------------

    def _part(self, staged: Staged, number: int) -> str:
        return f"{self._prefix}{staged.object}/{number:04d}"

    def _journaled(self, time: int) -> str:
        return f"{self._prefix}journal/{time:019d}"

    def _withheld(self, time: int) -> str:
        return f"{self._prefix}withheld/{time:019d}"

    async def _all(self, prefix: str) -> Mapping[str, bytes]:
        found: dict[str, bytes] = {}
        start: str | None = prefix
        while start is not None:
            page = await self._log.scan_values(start, _end(prefix), PAGE)
            found |= page.values
            start = page.next_start
        return found

    async def _erase(self, keys: Iterable[str]) -> None:
        each = list(keys)
        for begin in range(0, len(each), VALUES_AT_ONCE):
            await self._log.erase_values(each[begin : begin + VALUES_AT_ONCE])


def _epoch_of(key: str) -> int:
    """Returns the epoch of the writer that staged the file of this part."""
    return int(key.split("/")[4].partition("-")[0])


def _blobs(values: Mapping[str, bytes], prefix: str) -> dict[str, str]:
    """Returns what the values hold, by their keys without the prefix."""
    return {(path := key.removeprefix(prefix)): blob_of(path, value) for key, value in values.items()}


def _form(staged: Staged) -> FileFormat:
    return FileFormat(staged.object.rpartition(".")[2])
