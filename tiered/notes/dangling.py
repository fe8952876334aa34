"""The note `reads/dangling` in the changelog: tombstones whose blob a reader found gone, so that a loss stays known.

    a read finds one -> DanglingNotes.add -> run, beside the store -> read note, compare-and-swap

    {"v":1,"listed":[{"path":…,"blob":…,"found_ms":n},…],"unlisted_ms":n|null}       the oldest first

A find is noted within a moment, beside the read, which neither waits for it nor fails with it. Before, it was known to
the process alone, and forgotten with it. At most `LISTED_MAX` are listed; of one more, only the time is kept. Recovery
takes out what is whole again (`recovery.dangling`). A log that keeps nothing keeps no note, and a store that was opened
for reading writes none.

*Crash*: what was not noted yet is found by the next read, or by an audit. *Failure*: it is logged once for a row of
failures, and tried again every `EVERY_S` seconds as long as the store is open. A note that is damaged, or that newer
software wrote, stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace

import anyio

from changelog.base.errors import CorruptRecordError, TieredError, UnavailableError
from changelog.base.events import events
from changelog.base.runtime import Runtime
from changelog.key_values import NOTE_BYTES_MAX, KeyValueStore
from changelog.log import ChangeLog
from tiered.metadata import NS_PER_MS
from tiered.notes.note_fields import NoteFields

NOTE = "reads/dangling"
VERSION = 1
FIX = "nothing replaces it"
LISTED_MAX = 32
"""So many are listed, or fewer if their names are long."""

TRIES = 4
EVERY_S = 10.0
"""The note is written at most so often, in seconds."""
WRITE_S = 5.0
"""Seconds within which it must be written. The end of a store waits for it."""
AGAIN_S = 600.0
"""One and the same find is noted again after so many seconds: it may have been mended, and lost again."""
NOTED_MAX = 1_000
"""Of so many finds it is remembered when they were noted."""


@dataclass(frozen=True, slots=True)
class Dangling:
    """A tombstone whose blob is gone. `path`: of the object. `found_ms`: when, by the reader's clock (Unix ms)."""

    path: str
    blob: str
    found_ms: int

    def is_same(self, other: Dangling) -> bool:
        """Whether it is the same tombstone, found at another time."""
        return (self.path, self.blob) == (other.path, other.blob)


@dataclass(frozen=True, slots=True)
class DanglingNote:
    """What the note says. `unlisted_ms`: when one was found last that had no place (Unix ms); None: none was."""

    listed: tuple[Dangling, ...] = ()
    unlisted_ms: int | None = None

    def with_more(self, found: Collection[Dangling], unlisted_ms: int | None = None) -> DanglingNote:
        """Returns it with these, as far as there is a place. What is listed keeps the time when it was first found.

        `unlisted_ms`: when one was found that is not among them.
        """
        note = replace(self, unlisted_ms=_later(self.unlisted_ms, unlisted_ms))
        for each in found:
            if any(each.is_same(other) for other in note.listed):
                continue
            longer = replace(note, listed=(*note.listed, each))
            fits = len(longer.listed) <= LISTED_MAX and len(encode(longer)) <= NOTE_BYTES_MAX - _ROOM
            note = longer if fits else replace(note, unlisted_ms=_later(note.unlisted_ms, each.found_ms))
        return note

    def without(self, mended: Collection[Dangling]) -> DanglingNote:
        """Returns it without these."""
        return replace(self, listed=tuple(each for each in self.listed if each not in mended))


_ROOM = 32
"""Bytes for a time that is added later."""


def _later(one_ms: int | None, other_ms: int | None) -> int | None:
    return max((ms for ms in (one_ms, other_ms) if ms is not None), default=None)


def encode(note: DanglingNote) -> bytes:
    """Returns the stored form."""
    value = {"v": VERSION, "listed": [asdict(each) for each in note.listed], "unlisted_ms": note.unlisted_ms}
    return json.dumps(value, separators=(",", ":")).encode()


def decode(raw: bytes) -> DanglingNote:
    """Reads the stored form. Raises `CorruptRecordError`, which says what is wrong, and guesses nothing."""
    note = NoteFields.parse(raw, NOTE, FIX)
    note.version(VERSION)
    listed = tuple(Dangling(_name(each, "path"), _name(each, "blob"), each.number("found_ms")) for each in note.objects("listed"))
    return DanglingNote(listed, note.optional_number("unlisted_ms"))


def _name(fields: NoteFields, field: str) -> str:
    if not (found := fields.text(field)):
        raise fields.no(field, "a name")
    return found


async def read_dangling(log: KeyValueStore) -> DanglingNote:
    """Returns what the note says. Raises `CorruptRecordError` if it is damaged, or as `KeyValueStore.read_note`."""
    raw = await log.read_note(NOTE)
    return DanglingNote() if raw is None else decode(raw)


class DanglingNotes:
    """Notes what the reads of one store find. `add` says whether somebody must call `run`, which ends by itself."""

    def __init__(self, log: ChangeLog, runtime: Runtime) -> None:
        self._log = log
        self._runtime = runtime
        self._waiting: list[Dangling] = []
        self._unlisted_ms: int | None = None
        self._noted: dict[tuple[str, str], float] = {}
        self._runs = False
        self._fails = False
        self._closing = anyio.Event()

    def add(self, path: str, blob: str) -> bool:
        """Takes up a find. True: call `run`, once. A log that keeps nothing takes up none."""
        now = self._runtime.monotonic()
        if not self._log.durable or now - self._noted.get((path, blob), -AGAIN_S) < AGAIN_S:
            return False
        if len(self._noted) >= NOTED_MAX:
            self._noted.clear()
        self._noted[path, blob] = now
        found = Dangling(path, blob, self._runtime.wall_ns() // NS_PER_MS)
        if len(self._waiting) < LISTED_MAX:
            self._waiting.append(found)
        else:
            self._unlisted_ms = _later(self._unlisted_ms, found.found_ms)
        begins, self._runs = not self._runs, True
        return begins

    def close(self) -> None:
        """The store is being closed: what waits is noted at once, and what fails is not tried again."""
        self._closing.set()

    async def run(self) -> None:
        """Notes what waits, and what is found meanwhile."""
        try:
            while self._waiting or self._unlisted_ms is not None:
                last = self._closing.is_set()
                await self._write()
                if last and self._fails:
                    return
                with anyio.move_on_after(EVERY_S):
                    await self._closing.wait()
        finally:
            self._runs = False

    async def _write(self) -> None:
        found, unlisted_ms = tuple(self._waiting), self._unlisted_ms
        try:
            with anyio.fail_after(WRITE_S):
                await self._swap(found, unlisted_ms)
        except CorruptRecordError as error:
            events.warning("dangling_not_noted", error, count=len(found))
        except (TieredError, TimeoutError) as error:
            if not self._fails:
                events.warning("dangling_not_noted", error, count=len(found))
            self._fails = True
            return
        self._fails = False
        self._waiting = self._waiting[len(found):]
        self._unlisted_ms = None if self._unlisted_ms == unlisted_ms else self._unlisted_ms

    async def _swap(self, found: Collection[Dangling], unlisted_ms: int | None) -> None:
        for _ in range(TRIES):
            raw = await self._log.read_note(NOTE)
            before = DanglingNote() if raw is None else decode(raw)
            after = before.with_more(found, unlisted_ms)
            if after == before or await self._log.swap_note(NOTE, raw, encode(after)):
                return
        raise UnavailableError(f"others changed the note {NOTE} {TRIES} times meanwhile")
