"""`Checkpoint`, how far the feed is: the note `feed` of the changelog, changed by compare-and-swap. Pure.

    {"progress":{"timestamp":T,"num_records":N},"next":T+1,"lower":L,"epoch":E,"seq":S,"generation":G,
     "staged":{"object":…,"sha256":…,"count":N,"bytes":n,"parts":n} | null,"bindings":[[T,{"records":n}],…],
     "store":…,"live":n,
     "pass":{"cursor":hex,"read":n,"known":n|null,"estimated":b,"withheld":b,"began":ms,"scanned":n} | null,
     "passed":ms|null,"gap":b,"closed":b,"writer":…}

The first two keys are those of Estuary's "materialize CDC format". Times are ms since 1970. A checkpoint has one
spelling: what was read is written back as the same bytes, so a compare-and-swap may use `to_bytes`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from changelog.key_values import NOTE_BYTES_MAX
from tiered.notes.feed_off import FEED_NOTE
from tiered.notes.note_fields import NUMBER_MAX, NoteFields, canonical

NOTE = FEED_NOTE
FIX = "if newer software wrote it, update this software; otherwise begin a new generation with 'tiered feed run --new-generation'"

NOTHING_YET = 1
"""The frontier of a generation that has published nothing but its beginning. Its view is empty, and says nothing."""

BINDINGS_MAX = 32
"""So many transactions of the past are remembered with their number of records. The latest stay."""

CURSOR_BYTES_MAX = 4096
"""The longest cursor of a pass. A row key of Bigtable has no more bytes."""

TEXT_BYTES_MAX = 1600
"""The longest `store`, `writer` and name of a staged file, as JSON in UTF-8. With it a checkpoint fits into a note."""


@dataclass(frozen=True, slots=True)
class Staged:
    """The file of the last transaction that was committed.

    `object`: the prefix of its keys among the values of the changelog. `sha256`: of the file, in hex. `count`: how many
    updates it holds. `bytes`: its size. `parts`: in how many values it is stored.
    """

    object: str
    sha256: str
    count: int
    bytes: int
    parts: int


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass over all rows that is under way.

    `cursor`: the row key that comes next. `read`: how many rows it has read. `known`: how many rows there are; None:
    not known yet. `estimated`: `known` is an estimate. `withheld`: no progress is published before the pass is
    complete. `began`: when it began (ms since 1970). `scanned`: how many values of the index it has read.
    """

    cursor: bytes
    read: int
    known: int | None
    estimated: bool
    withheld: bool
    began: int
    scanned: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far the feed is.

    `timestamp`: the time of the last transaction that was committed; `num_records`: of how many updates it is. `next`:
    the least time that the next one may have. `lower`: up to here (exclusive) progress is published. `epoch`: raised by
    each writer that opens the feed. `seq`: raised by each change of the checkpoint. `generation`: when the feed was
    begun from nothing (ms since 1970). `staged`: the file of the last transaction; None: there was none yet.
    `bindings`: times of transactions, with the number of all records up to there. `store`: which store it is about.
    `live`: how many entries the index has. `scan`: the pass under way (`pass` in the note); None: there is none.
    `passed`: when the last complete pass ended (ms since 1970); None: none did. `gap`: recovery has cleaned up
    entries that the feed had not published, or a process has worked with the feed off. So no progress is published
    before a pass is complete that began after that. `closed`: the writer has ended in good order, so another one need
    not wait. `writer`: the name of who opened the feed last, which no other writer has. So two that open it at the same
    moment do not write the same bytes, and only one of them wins.

    The constructor raises `ValueError` for figures that no checkpoint can have.
    """

    timestamp: int
    num_records: int
    next: int
    lower: int
    epoch: int
    seq: int
    generation: int
    staged: Staged | None
    bindings: tuple[tuple[int, int], ...]
    store: str
    live: int
    scan: Pass | None
    passed: int | None
    gap: bool
    closed: bool
    writer: str

    def __post_init__(self) -> None:
        if wrong := next(_contradictions(self), None):
            raise ValueError(wrong)

    @classmethod
    def begin(cls, generation: int, store: str, writer: str, *, epoch: int = 1) -> Checkpoint:
        """Returns the first checkpoint of a generation, before anything is committed. `generation`: ms since 1970."""
        return cls(0, 0, 0, 0, epoch, 1, generation, None, (), store, 0, None, None, gap=False, closed=False, writer=writer)

    @property
    def before(self) -> int | None:
        """The time of the transaction before the last one; None: the last one is the first of its generation."""
        if not self.timestamp:
            return None
        return self.bindings[-2][0] if len(self.bindings) > 1 else 0

    @property
    def frontier(self) -> int:
        """Up to this time (exclusive) the feed is complete, once its files are delivered (ms since 1970)."""
        return self.lower

    @property
    def records(self) -> int:
        """How many updates were committed in this generation."""
        return self.bindings[-1][1] if self.bindings else self.num_records

    @property
    def withheld(self) -> bool:
        """Whether no progress is published at present: in the first pass, or after a gap."""
        return self.gap or (self.scan is not None and self.scan.withheld)

    def opened(self, writer: str) -> Checkpoint:
        """Returns what a writer writes first. It raises the epoch, which stops every earlier writer."""
        return replace(self, epoch=self.epoch + 1, seq=self.seq + 1, closed=False, writer=writer)

    def ended(self) -> Checkpoint:
        """Returns what a writer writes last."""
        return replace(self, seq=self.seq + 1, closed=True)

    def with_gap(self) -> Checkpoint:
        """Returns it with a gap, and without the pass under way: that one may be past the rows that the gap is about.

        So a new pass begins. Whoever is about to commit by the checkpoint before must read it again.
        """
        return replace(self, seq=self.seq + 1, gap=True, scan=None)

    def bound(self, time: int, records: int) -> tuple[tuple[int, int], ...]:
        """Returns the bindings with one more transaction. `records`: how many all transactions up to it have."""
        return (*self.bindings, (time, records))[-BINDINGS_MAX:]

    def to_bytes(self) -> bytes:
        """Returns the stored form. It is never larger than a note may be."""
        staged, scan = self.staged, self.scan
        return canonical({
            "progress": {"timestamp": self.timestamp, "num_records": self.num_records}, "next": self.next, "lower": self.lower,
            "epoch": self.epoch, "seq": self.seq, "generation": self.generation,
            "staged": None if staged is None else {
                "object": staged.object, "sha256": staged.sha256, "count": staged.count, "bytes": staged.bytes, "parts": staged.parts,
            },
            "bindings": [[time, {"records": records}] for time, records in self.bindings],
            "store": self.store, "live": self.live,
            "pass": None if scan is None else {
                "cursor": scan.cursor.hex(), "read": scan.read, "known": scan.known, "estimated": scan.estimated,
                "withheld": scan.withheld, "began": scan.began, "scanned": scan.scanned,
            },
            "passed": self.passed, "gap": self.gap, "closed": self.closed, "writer": self.writer,
        })  # fmt: skip

    @classmethod
    def from_bytes(cls, raw: bytes) -> Checkpoint:
        """Reads the stored form. `CorruptRecordError`: damaged, or written by newer software; it says what to do."""
        found = NoteFields.parse(raw, NOTE, FIX)
        found.only(*_KEYS)
        progress = found.child("progress")
        progress.only("timestamp", "num_records")
        try:
            checkpoint = cls(
                timestamp=progress.number("timestamp"), num_records=progress.number("num_records"), next=found.number("next"),
                lower=found.number("lower"), epoch=found.number("epoch", least=1), seq=found.number("seq", least=1),
                generation=found.number("generation"), staged=staged_of(found.optional_child("staged")),
                bindings=tuple(_binding(found, each) for each in found.items("bindings")), store=found.text("store"),
                live=found.number("live"), scan=_pass(found.optional_child("pass")), passed=found.optional_number("passed"),
                gap=found.truth("gap"), closed=found.truth("closed"), writer=found.text("writer"),
            )  # fmt: skip
            same = checkpoint.to_bytes() == raw
        except ValueError as error:
            raise found.wrong(str(error)) from None
        if not same:
            raise found.wrong("its JSON is not spelled as the writer spells it")
        return checkpoint


_KEYS = (
    "progress", "next", "lower", "epoch", "seq", "generation", "staged", "bindings", "store", "live", "pass", "passed", "gap", "closed",
    "writer",
)  # fmt: skip


def staged_of(found: NoteFields | None) -> Staged | None:
    """Returns the description of a staged file. `CorruptRecordError`: it is none."""
    if found is None:
        return None
    found.only("object", "sha256", "count", "bytes", "parts")
    return Staged(found.text("object"), found.text("sha256"), found.number("count"), found.number("bytes"), found.number("parts", least=1))


def _pass(found: NoteFields | None) -> Pass | None:
    if found is None:
        return None
    found.only("cursor", "read", "known", "estimated", "withheld", "began", "scanned")
    return Pass(
        found.hexadecimal("cursor"), found.number("read"), found.optional_number("known"), found.truth("estimated"),
        found.truth("withheld"), found.number("began"), found.number("scanned"),
    )  # fmt: skip


def _binding(within: NoteFields, value: object) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2 or type(value[0]) is not int:
        raise within.wrong("an item of bindings is not a time with its records")
    records = within.inside(value[1], "an item of bindings")
    records.only("records")
    return value[0], records.number("records")


def _contradictions(found: Checkpoint) -> Iterator[str]:
    """Yields what in a checkpoint cannot be true, one clause each."""
    if found.next != found.timestamp + 1 and (found.next, found.timestamp) != (0, 0):
        yield f"next is {found.next}, and the last transaction has the time {found.timestamp}: it is the time after it"
    if found.lower > found.next:
        yield f"lower is {found.lower}, and no later than next, which is {found.next}"
    if len(found.bindings) > BINDINGS_MAX:
        yield f"bindings has {len(found.bindings)} items, and may have {BINDINGS_MAX}"
    before = (-1, 0)
    for time, records in found.bindings:
        if not before[0] < time <= found.timestamp or not before[1] <= records <= NUMBER_MAX:
            yield "bindings goes back, or beyond the last transaction"
        before = (time, records)
    if found.staged is not None and len(found.staged.sha256) != 64:
        yield "staged.sha256 is not 64 hex digits"
    if found.scan is not None and not _is_text(found.scan.cursor):
        yield "pass.cursor is no text in UTF-8"
    if found.scan is not None and len(found.scan.cursor) > CURSOR_BYTES_MAX:
        yield f"pass.cursor has {len(found.scan.cursor)} bytes, and may have {CURSOR_BYTES_MAX}"
    staged = "" if found.staged is None else found.staged.object
    for name, text in (("store", found.store), ("writer", found.writer), ("staged.object", staged)):
        if (size := _size(text)) > TEXT_BYTES_MAX:
            yield f"{name} has {size} bytes, and may have {TEXT_BYTES_MAX}"


def _is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def _size(text: str) -> int:
    """Returns how many bytes the text has as JSON. `ValueError`: it is no Unicode."""
    return len(json.dumps(text, ensure_ascii=False).encode())


LARGEST_BYTES = 2 * CURSOR_BYTES_MAX + 3 * TEXT_BYTES_MAX + BINDINGS_MAX * 60 + 1000
"""No checkpoint is larger: an item of `bindings` has 19 + 19 digits, and all other figures and keys 1,000 bytes."""
assert LARGEST_BYTES <= NOTE_BYTES_MAX, "a checkpoint must fit into a note"
