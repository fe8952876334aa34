"""The order in which the audit reads, alone: one object, writers and recovery that work on it, and an audit.

The audit reads in the product's order, or in another one.

    writer    reads the row -> records the change -> finalises its blob -> swaps
              -> settles and deletes what lost -> forgets
    recovery  takes any entry at any moment, even if its writer is alive:
              refuses the change, deletes what is not live, forgets
    audit     L lists, C reads the log, R reads the row, in the order of the scenario;
              then looks again at what it suspects: c the log, h whether the blob is there, r the row

Each reading is a moment of its own. In this model nothing is ever lost, and somebody cleans everything up. So the audit
may not do this:

    LIVE      call a blob an orphan that the row names, or names later
    CLEANED   call a blob an orphan that an entry names, or that is gone
    LOST      call a tombstone dangling

Age protects nothing here: no blob is too young.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

Names = frozenset[str]
NONE: Names = frozenset()


class Writer(NamedTuple):
    """A writer. `new` is the blob that it puts and also its token. A deletion puts no blob."""

    token: str
    puts: bool
    pc: str = "read"            # read | record | finalise | swap | settle | delete | forget | end
    old: str = ""
    garbage: Names = NONE


class Entry(NamedTuple):
    token: str
    new: str
    old: str
    pc: str = ""                # how far recovery is with it: "" | clean-up | forget
    garbage: Names = NONE


class Audited(NamedTuple):
    row: str
    blobs: Names
    writers: tuple[Writer, ...]
    log: frozenset[Entry] = frozenset()
    done: Names = NONE          # tokens that won or were refused
    steps: str = ""             # what the audit has still to read
    listed: Names = NONE
    logged: Names = NONE
    shown: str = ""
    suspects: Names = NONE
    missing: str = ""           # a tombstone's blob that was neither listed nor found
    accused: Names = NONE
    broken: str = ""            # what the audit said that is not true


@dataclass(frozen=True, slots=True)
class Readings:
    """One order of reading, as a `Checked` of search.py.

    `order`: such as LCRchr. A second look only at the blobs and rows is LCRhr. No second look is LCR. `against`: the
    one violation that is searched for; empty: all. The search does not go beyond a violation that it meets, so others
    need their own search.
    """

    order: str
    against: str = ""
    writers: tuple[tuple[str, bool], ...] = (("a", True), ("b", False))
    row: str = "x"

    def first(self) -> Audited:
        blobs = frozenset({self.row} - {""})
        return Audited(self.row, blobs, tuple(Writer(*writer) for writer in self.writers), steps=self.order)

    def steps(self, s: object) -> Iterator[tuple[str, object]]:
        assert isinstance(s, Audited)
        for label, after in work(s):
            yield label, _seen(after)
        if s.steps:
            yield f"audit {s.steps[0]}", _read(s._replace(steps=s.steps[1:]), s.steps[0])

    def verdict(self, s: object, stuck: bool) -> str:
        assert isinstance(s, Audited)
        return s.broken if s.broken.startswith(self.against) else ""


def _seen(s: Audited) -> Audited:
    """Checks after each step that the row does not name what was accused."""
    return s._replace(broken=f"LIVE: {s.row} was called an orphan") if s.row in s.accused else s


# --- writers and recovery ----------------------------------------------------------------------------


def work(s: Audited) -> Iterator[tuple[str, Audited]]:
    """Yields what writers and recovery may do next."""
    for number, writer in enumerate(s.writers):
        if writer.pc != "end":
            label, world, after = _write(s, writer)
            yield label, world._replace(writers=(*s.writers[:number], after, *s.writers[number + 1 :]))
    for entry in s.log:
        yield _recover(s, entry)


def _write(s: Audited, w: Writer) -> tuple[str, Audited, Writer]:
    new = w.token if w.puts else ""
    match w.pc:
        case "read":
            return f"{w.token} reads {s.row or 'nothing'}", s, w._replace(pc="record", old=s.row)
        case "record":
            return f"{w.token} records", s._replace(log=s.log | {Entry(w.token, new, w.old)}), w._replace(pc="finalise" if new else "swap")
        case "finalise":
            if w.token in s.done:  # recovery has cancelled the upload
                return f"{w.token} is cancelled", s, w._replace(pc="end")
            return f"{w.token} finalises", s._replace(blobs=s.blobs | {new}), w._replace(pc="swap")
        case "swap":
            if w.token in s.done or s.row not in ("", w.old):
                return f"{w.token} conflicts", s, w._replace(pc="settle")
            return f"{w.token} swaps", s._replace(row=new, done=s.done | {w.token}), w._replace(pc="settle")
        case "settle":
            settled, garbage = _settle(s, new, w.token, w.old)
            return f"{w.token} settles", settled, w._replace(pc="delete", garbage=garbage)
        case "delete":
            return f"{w.token} deletes", s._replace(blobs=s.blobs - w.garbage), w._replace(pc="forget", garbage=NONE)
        case _:
            return f"{w.token} forgets", s._replace(log=frozenset(e for e in s.log if e.token != w.token)), w._replace(pc="end")


def _recover(s: Audited, entry: Entry) -> tuple[str, Audited]:
    others = s.log - {entry}
    match entry.pc:
        case "":
            settled, garbage = _settle(s, entry.new, entry.token, entry.old)
            return f"recovery settles {entry.token}", settled._replace(log=others | {entry._replace(pc="clean-up", garbage=garbage)})
        case "clean-up":
            cleaned = s._replace(blobs=s.blobs - entry.garbage, log=others | {entry._replace(pc="forget", garbage=NONE)})
            return f"recovery deletes for {entry.token}", cleaned
        case _:
            return f"recovery forgets {entry.token}", s._replace(log=others)


def _settle(s: Audited, new: str, token: str, old: str) -> tuple[Audited, Names]:
    """Refuses the change and what it replaced, unless the row shows them. Returns what may be deleted."""
    garbage = frozenset({new, old} - {"", s.row})
    return s._replace(done=s.done | {token} | garbage), garbage


# --- the audit -----------------------------------------------------------------------------------------


def _read(s: Audited, step: str) -> Audited:
    match step:
        case "L":
            s = s._replace(listed=s.blobs)
        case "C" | "c":
            s = s._replace(logged=logged(s))
        case "R":
            s = s._replace(shown=s.row)
        case "h":
            s = s._replace(suspects=s.suspects & s.blobs, missing="" if s.missing in s.blobs else s.missing)
        case "r":
            s = s._replace(suspects=s.suspects - {s.row}, missing=s.missing if s.missing == s.row else "")
    if step in "LCR" and not set(s.steps) & set("LCR"):
        s = s._replace(suspects=s.listed - s.logged - {s.shown}, missing="" if s.shown in s.listed else s.shown)
    if step == "c":
        s = s._replace(suspects=s.suspects - s.logged)
    return _seen(_judge(s)) if not s.steps else s


def _judge(s: Audited) -> Audited:
    s = s._replace(accused=s.suspects)
    if s.missing:
        return s._replace(broken=f"LOST: the tombstone of {s.missing} was called dangling")
    if cleaned := s.suspects & logged(s) or s.suspects - s.blobs:
        return s._replace(broken=f"CLEANED: {min(cleaned)} was called an orphan")
    return s


def logged(s: Audited) -> Names:
    return frozenset(name for entry in s.log for name in (entry.new, entry.old) if name)
