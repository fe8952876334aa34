"""`Position`, how far one sink is: a note of the changelog for each sink, which only goes forward.

    note   feed-sink-{first 16 hex digits of the SHA-256 of the sink's name}
    value  {"sink":name,"generation":G,"acknowledged":T|null,"records":n,"failing_since":ms|null,"error":text|null,
            "files":{"number":n,"sum":s}}      the last one is left out where nobody counted them

Within a generation a position never goes back, whoever writes it: a writer that was fenced may come late. A new
generation begins anew. *Crash*: a position may be behind what the sink has. Then segments are delivered again, and that
is harmless.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from changelog.base.errors import UnavailableError, UnconfirmedError
from changelog.key_values import KeyValueStore
from recovery.feed.writer.checkpoint import FIX
from tiered.notes.note_fields import NoteFields, canonical
from tiered.settings import Settings
from tiered.sinks import Place

TRIES = 8
SUM_MODULUS = 1 << 62
ERROR_MAX = 500
"""Characters of an error that are kept. The writer's log has all of it."""


@dataclass(frozen=True, slots=True)
class FileCount:
    """How many files of a generation a sink has, and the sum of their times. So one that is missing is noticed."""

    number: int = 0
    sum: int = 0

    @classmethod
    def of(cls, times: Sequence[int]) -> FileCount:
        return cls(len(times), sum(times) % SUM_MODULUS)

    def plus(self, time: int) -> FileCount:
        return FileCount(self.number + 1, (self.sum + time) % SUM_MODULUS)


@dataclass(frozen=True, slots=True)
class Position:
    """How far a sink is. `sink`: its name.

    `acknowledged`: it has all transactions of the generation up to this time (ms since 1970, inclusive); None: none
    yet. `records`: how many updates these have. `failing_since`: since when no delivery succeeds (ms since 1970, by
    the writer's clock); None: the last one did. `error`: why the last one failed, at most `ERROR_MAX` characters.
    `files`: of those it has acknowledged; None: older software did not count them.
    """

    sink: str
    generation: int
    acknowledged: int | None = None
    records: int = 0
    failing_since: int | None = None
    error: str | None = None
    files: FileCount | None = None

    def to_bytes(self) -> bytes:
        """Returns the stored form."""
        error = None if self.error is None else self.error.encode(errors="replace").decode()  # the name of a file may be no Unicode
        if error is not None and len(error) > ERROR_MAX:
            error = f"{error[: ERROR_MAX - 1]}…"
        return canonical({
            "sink": self.sink, "generation": self.generation, "acknowledged": self.acknowledged, "records": self.records,
            "failing_since": self.failing_since, "error": error,
            **({} if self.files is None else {"files": {"number": self.files.number, "sum": self.files.sum}}),
        })  # fmt: skip

    @classmethod
    def from_bytes(cls, raw: bytes, name: str) -> Position:
        """Reads the stored form of the sink `name`. `CorruptRecordError`: it is damaged, or newer software wrote it."""
        found = NoteFields.parse(raw, f"{note_name(name)} (the position of the sink {name})", FIX)
        found.only("sink", "generation", "acknowledged", "records", "failing_since", "error", optional="files")
        position = cls(
            found.text("sink"), found.number("generation"), found.optional_number("acknowledged"), found.number("records"),
            found.optional_number("failing_since"), found.optional_text("error"), _files(found.optional_child("files")),
        )
        if position.sink != name:
            raise found.wrong(f"it is about the sink {position.sink!r}")
        if position.acknowledged is None and position.records:
            raise found.wrong(f"nothing is acknowledged, and records is {position.records}")
        return position


def _files(found: NoteFields | None) -> FileCount | None:
    if found is None:
        return None
    found.only("number", "sum")
    return FileCount(found.number("number"), found.number("sum"))


def note_name(sink: str) -> str:
    """Returns the name of the note with the position of a sink."""
    return f"feed-sink-{hashlib.sha256(sink.encode()).hexdigest()[:16]}"


def sink_name(to: str) -> str:
    """Returns what a person calls the sink of one setting `feed.to`. `ConfigurationError`: it is none."""
    return Place.parse(to).name


async def positions(log: KeyValueStore, settings: Settings) -> Mapping[str, Position]:
    """Returns the position of each sink that the settings name. A sink that has none yet is left out. See `read`."""
    return await read(log, [sink_name(to) for to in settings.feed.to])


async def read(log: KeyValueStore, names: Iterable[str]) -> Mapping[str, Position]:
    """Returns the position of each of these sinks. A sink that has none yet is left out.

    Raises as `KeyValueStore.read_note`. `CorruptRecordError`: a note is damaged; the message names it.
    """
    found = {name: await log.read_note(note_name(name)) for name in names}
    return {name: Position.from_bytes(raw, name) for name, raw in found.items() if raw is not None}


async def advance(log: KeyValueStore, position: Position) -> Position:
    """Writes the position of a sink, unless that is a step back. Returns what is stored then.

    A step back is an older generation, or in the same one fewer transactions. What is stored then stays whole, with
    its error. Safe to repeat, also late. Raises as `KeyValueStore.swap_note`; `UnavailableError`: others were faster
    `TRIES` times; `CorruptRecordError`: what is stored is damaged, and it stays as it is.
    """
    unconfirmed: UnconfirmedError | None = None
    for _ in range(TRIES):
        raw = await log.read_note(note_name(position.sink))
        stored = None if raw is None else Position.from_bytes(raw, position.sink)
        if stored is not None and _far(stored) > _far(position):
            return stored
        new = position if stored is None or stored.generation < position.generation else _not_less(position, stored)
        try:
            if await log.swap_note(note_name(position.sink), raw, new.to_bytes()):
                return new
        except UnconfirmedError as error:
            unconfirmed = error
    if unconfirmed is not None:
        raise unconfirmed
    raise UnavailableError(f"the position of the sink {position.sink} was not written: others were faster {TRIES} times")


async def renew(log: KeyValueStore, position: Position) -> None:
    """Replaces a note that is damaged. Raises as `KeyValueStore.swap_note`. If another was faster, writes nothing."""
    raw = await log.read_note(note_name(position.sink))
    await log.swap_note(note_name(position.sink), raw, position.to_bytes())


def _far(position: Position) -> tuple[int, int]:
    return position.generation, -1 if position.acknowledged is None else position.acknowledged


def _not_less(position: Position, stored: Position) -> Position:
    same = stored.files if stored.acknowledged == position.acknowledged else None
    return replace(position, records=max(position.records, stored.records), files=position.files or same)
