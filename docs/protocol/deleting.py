"""The deletion of orphans, alone: one object, its writers and recovery, older software, deletions and restorations.

    writers, recovery   as in readings.py
    older               older software: an object whose key is the object's key and a revision, so that its blob, which
                        has no suffix, has the name of a revision: writes the blob x over what is there -> names it
    deletion            takes any blob that is listed, so its finding may be wrong
                        -> the log -> both rows -> settles the revision -> deletes the generation that was listed
                        with a quarantine, it first copies that generation; all deletions of a run list the same
    restoration         of a run: makes the blob anew from the copy, or finds one -> removes the copy, or leaves it

Each step is a moment of its own. A process may stop for ever between two steps. These are violations:

    DANGLING    a row names a blob that is gone: the deletion lost data (I1)
    UNSETTLED   a blob was deleted, and its revision was not refused before (I2)
    SPOILT      the deletion refused a change that an entry of the changelog names: its writer fails
    LOST        with a quarantine: neither the blob x nor a copy of it is there

One assumption about time is in the model. Older software names a blob within the grace after it wrote it. So a blob
that older software has written and not named yet is never a finding. Nothing else depends on a clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from docs.protocol.readings import Audited, Writer, logged, work


@dataclass(frozen=True, slots=True)
class Guards:
    """What a deletion does to be safe. All on is ours."""

    log: bool = True            # spares what an entry of the changelog names
    both_readings: bool = True  # reads the row of the other reading of the name, too; off: only the object's
    settle: bool = True         # refuses the revision, and spares it if it is live; off: only reads the row
    generation: bool = True     # deletes only the generation that was listed
    new_generation: bool = True  # what a restoration makes has a generation of its own; off: that of the copied blob
    copy_stays: bool = True     # as long as the blob is the generation that was listed; off: a blob that is there is enough
    own_copies: bool = True     # each run has copies of its own; off: one name for all

    def without(self, guard: str) -> Guards:
        return replace(self, **{guard: False})


OURS = Guards()
GUARDS = tuple(field.name for field in fields(Guards))


class Deletion(NamedTuple):
    pc: str = "list"            # list | log | rows | settle | aside | delete | end
    blob: str = ""
    generation: int = 0
    run: int = 0


class Restoration(NamedTuple):
    """It restores the blob x, and no other."""

    run: int
    pc: str = "back"            # back | remove | end


class Deleted(NamedTuple):
    """`other`: what the row of the other reading names. `generation`: that of the blob x; all others have one only.

    `copies`: the runs that have a copy of x. `listed`: by run, the generation of x that it has listed; 0: none yet.
    """

    store: Audited
    other: str
    generation: int
    older: str                  # older software: write | name | end
    deletions: tuple[Deletion, ...]
    restorations: tuple[Restoration, ...] = ()
    copies: frozenset[int] = frozenset()
    listed: tuple[int, ...] = ()
    broken: str = ""


@dataclass(frozen=True, slots=True)
class Deletions:
    """A scenario, as a `Checked` of search.py.

    `row`, `other`: what the rows of the two readings name at first. The blob x is always there at first. `older`:
    whether older software works. `deletions`: how many deletions work at once. `runs`: instead, there is a quarantine,
    and a deletion for each of these numbers of runs. They list only x. `restorations`: the runs that are restored.
    """

    guards: Guards = OURS
    row: str = ""
    other: str = ""
    writers: tuple[tuple[str, bool], ...] = (("a", True), ("b", False))
    older: bool = False
    deletions: int = 1
    runs: tuple[int, ...] = ()
    restorations: tuple[int, ...] = ()

    def first(self) -> Deleted:
        store = Audited(self.row, frozenset({"x"}), tuple(Writer(*writer) for writer in self.writers))
        deletions = tuple(Deletion(run=run) for run in self.runs) or (Deletion(),) * self.deletions
        restorations = tuple(map(Restoration, self.restorations))
        listed = (0,) * (max(self.runs, default=-1) + 1)
        return Deleted(store, self.other, 1, "write" if self.older else "end", deletions, restorations, listed=listed)

    def steps(self, s: object) -> Iterator[tuple[str, Deleted]]:
        assert isinstance(s, Deleted)
        for label, store in work(s.store):
            yield label, s._replace(store=store)
        if s.older == "write":
            store = s.store._replace(blobs=s.store.blobs | {"x"})
            yield "older software writes x", s._replace(store=store, generation=s.generation + 1, older="name")
        if s.older == "name":
            yield "older software names x", s._replace(other="x", older="end")
        for number, deletion in enumerate(s.deletions):
            for label, world, after in _delete(s, deletion, self.guards):
                yield label, world._replace(deletions=(*s.deletions[:number], after, *s.deletions[number + 1 :]))
        for number, restoration in enumerate(s.restorations):
            for label, world, pc in _restore(s, restoration, self.guards):
                then = restoration._replace(pc=pc)
                yield label, world._replace(restorations=(*s.restorations[:number], then, *s.restorations[number + 1 :]))

    def verdict(self, s: object, stuck: bool) -> str:
        assert isinstance(s, Deleted)
        for row in (s.store.row, s.other):
            if row and row not in s.store.blobs:
                return f"DANGLING: a row names {row}, which does not exist"
        if self.runs and "x" not in s.store.blobs and not s.copies:
            return "LOST: neither x nor a copy of it is there"
        return s.broken


def _delete(s: Deleted, d: Deletion, g: Guards) -> Iterator[tuple[str, Deleted, Deletion]]:
    """Yields what a deletion may do next: with the label, the world after it, and the deletion after it."""
    ended = Deletion("end")
    match d.pc:
        case "list" if s.listed:
            generation = s.listed[d.run] or (s.generation if "x" in s.store.blobs else 0)
            if generation:
                listed = (*s.listed[: d.run], generation, *s.listed[d.run + 1 :])
                yield f"deletion of run {d.run}: lists x", s._replace(listed=listed), d._replace(pc="log", blob="x", generation=generation)
        case "list":
            for blob in sorted(s.store.blobs):
                if blob != "x" or s.older != "name":
                    yield f"deletion: lists {blob}", s, Deletion("log", blob, _generation(s, blob))
        case "log":
            is_named = g.log and d.blob in logged(s.store)
            yield "deletion: reads the log", s, ended if is_named else d._replace(pc="rows")
        case "rows":
            shown = {s.store.row, s.other} if g.both_readings else {s.store.row}
            yield "deletion: reads the rows", s, ended if d.blob in shown else d._replace(pc="settle" if g.settle else "delete")
        case "settle":
            if d.blob == s.store.row:
                yield f"deletion: settles {d.blob}, live", s, ended
            else:
                settled = _refuse(s, d.blob)
                yield f"deletion: settles {d.blob}, refused", settled, d._replace(pc="aside" if s.listed else "delete")
        case "aside":
            if "x" in s.store.blobs and s.generation == d.generation:
                copied = s._replace(copies=s.copies | {_shelf(d.run, g)})
                yield f"deletion of run {d.run}: copies x", copied, d._replace(pc="delete")
            else:
                yield f"deletion of run {d.run}: x is another generation, or gone", s, ended
        case "delete":
            yield _remove(s, d, g)


def _restore(s: Deleted, r: Restoration, g: Guards) -> Iterator[tuple[str, Deleted, str]]:
    """Yields what a restoration may do next, as `_delete`; the last is where the restoration is then."""
    shelf = _shelf(r.run, g)
    match r.pc:
        case "back" if shelf in s.copies and "x" not in s.store.blobs:
            generation = s.generation + 1 if g.new_generation else s.listed[r.run]
            made = s._replace(store=s.store._replace(blobs=s.store.blobs | {"x"}), generation=generation)
            yield f"restoration of run {r.run}: makes x", made, "remove"
        case "back" if shelf in s.copies and g.copy_stays and s.generation == s.listed[r.run]:
            yield f"restoration of run {r.run}: leaves the copy of x", s, "end"
        case "back" if shelf in s.copies:
            yield f"restoration of run {r.run}: finds x", s, "remove"
        case "remove":
            yield f"restoration of run {r.run}: removes its copy", s._replace(copies=s.copies - {shelf}), "end"


def _shelf(run: int, g: Guards) -> int:
    return run if g.own_copies else 0


def _refuse(s: Deleted, blob: str) -> Deleted:
    settled = s._replace(store=s.store._replace(done=s.store.done | {blob}))
    if any(entry.new == blob and not entry.pc for entry in s.store.log) and blob not in s.store.done:
        return settled._replace(broken=f"SPOILT: the change {blob} was refused, and its entry is in the log")
    return settled


def _remove(s: Deleted, d: Deletion, g: Guards) -> tuple[str, Deleted, Deletion]:
    if d.blob not in s.store.blobs:
        return f"deletion: {d.blob} is gone", s, Deletion("end")
    if g.generation and _generation(s, d.blob) != d.generation:
        return f"deletion: {d.blob} is another generation", s, Deletion("end")
    t = s._replace(store=s.store._replace(blobs=s.store.blobs - {d.blob}))
    if d.blob not in s.store.done:
        t = t._replace(broken=f"UNSETTLED: {d.blob} was deleted, and was not refused before")
    return f"deletion: deletes {d.blob}", t, Deletion("end")


def _generation(s: Deleted, blob: str) -> int:
    return s.generation if blob == "x" else 1
