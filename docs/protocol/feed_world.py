"""The steps of the feed model. feed_model.py is the command, and docs/feed-model.md says what is modelled.

    store      a change: begin -> (its swap takes effect) -> kept -> forgotten
    recovery   keeps what is open; and of a kept change: settle -> set the gap -> delete -> forget
    writer     read the checkpoint -> open -> redo -> hints -> rows, difference, stage -> commit
               -> index -> journal -> delete -> forget -> hints ...
    sink       the first time of the journal is delivered -> acknowledged and removed

A process may stop for ever between two steps, so a crash is no step. These are violations:

    WRONG      at a frontier, a key shows no state that its row had after all changes that were over
    GONE       at a frontier, a key shows a blob that does not exist
    TWICE      the multiplicity of a reference is not 0 or 1, or an object has two blobs
    EARLY      a blob is deleted, its -1 is not committed, and the gap is not set
    LEAKED     a reader of the sink may take something for a transaction that is none
    SPOILT     a committed transaction cannot be read any more
    DANGLING   a blob is deleted, and a row names it
    LOST, LEAK, STUCK   if now all writers die, recovery keeps what is open, and one new writer goes on alone: then it
               comes to rest with a wrong view, with a blob that nobody names, or before its work is done

The last three are asked in every state. So from every state the system can come to rest with the right view.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from docs.protocol.feed_reader import frontier, misled
from docs.protocol.feed_state import (
    BEGUN,
    GONE,
    IDLE,
    KEPT,
    NOTHING,
    OURS,
    REFUSED,
    WON,
    Change,
    Guards,
    Life,
    Message,
    Note,
    Recovery,
    Scenario,
    State,
    Update,
    named,
    spelt,
)  # fmt: skip

T = TypeVar("T")
Step = tuple[str, State]
Turn = tuple[str, State, Life]


class World:
    """A scenario with these guards, as a `Checked` of search.py."""

    def __init__(self, scenario: Scenario, guards: Guards = OURS, heals: bool = True) -> None:
        self._scenario = scenario
        self._g = guards
        self._heals = heals
        self._healed: dict[State, str] = {}

    def first(self) -> State:
        c = self._scenario
        first = tuple(len(c.changes) + 1 + k if there else NOTHING for k, there in enumerate(c.rows))
        known = first if c.indexed else (NOTHING,) * len(first)
        withheld = not c.indexed
        note = Note(lower=c.first_lower, name=(0,), cursor=0 if withheld else -1, withheld=withheld)
        done: tuple[tuple[int, int, tuple[Update, ...]], ...] = ()
        if c.sink and self._g.bootstrap:
            done = ((0, 0, ()),)
        return State(
            rows=tuple((each,) for each in first), changes=(Change(),) * len(c.changes),
            blobs=frozenset(first) - {NOTHING}, note=note, entries=tuple((0, each) for each in known), view=known,
            lives=(Life(),) * c.lives, extra=(c.reconciliations, c.gaps, c.retries),
            staged=frozenset({((0,), ())}) if c.sink else frozenset(), done=done,
        )  # fmt: skip

    def steps(self, state: object) -> Iterator[Step]:
        assert isinstance(state, State)
        s = state
        yield from self._store(s)
        yield from self._sink(s)
        if not s.calm:
            yield from self._late(s)
        last = None
        for k, life in enumerate(s.lives):
            if life is not last and life != last and life.pc != "end":
                for label, after, then in self._write(s, life):
                    others = s.lives[:k] + s.lives[k + 1 :]
                    yield label, after._replace(lives=tuple(sorted((*others, then))) if others else (then,))
            last = life
        if not s.calm or s.recovery:
            yield from self._recover(s)

    def verdict(self, state: object, stuck: bool) -> str:
        assert isinstance(state, State)
        if state.broken or not self._heals:
            return state.broken
        return self._heal(state)

    # --- the store -------------------------------------------------------------------------------------

    def _store(self, s: State) -> Iterator[Step]:
        for i, change in enumerate(s.changes):
            k, puts = self._scenario.changes[i]
            new, row = i + 1 if puts else NOTHING, s.rows[k][-1]
            if change.phase == BEGUN:
                yield f"change {i + 1} is kept", self._keep(s, i, change)
            if s.calm:
                continue
            if change.phase == IDLE and (puts or row) and not self._waits(s, i):
                late = puts and self._scenario.single
                t = _changed(s, i, Change(BEGUN, row, uploading=late))
                yield f"change {i + 1} begins over {row or 'nothing'}", t._replace(blobs=t.blobs | {new}) if puts and not late else t
            if change.uploading:
                over = change._replace(uploading=False)
                yield f"the upload of change {i + 1} lands", _changed(s, i, over)._replace(blobs=s.blobs | {new})
                yield f"the upload of change {i + 1} is lost", _changed(s, i, over._replace(fate=REFUSED))
            may_land = change.phase == BEGUN or (change.phase != IDLE and not self._g.settle_before_keep)
            if may_land and not (change.fate or change.uploading) and row in (NOTHING, change.old):
                t = _changed(s, i, change._replace(fate=WON))
                yield f"change {i + 1} takes effect", t._replace(rows=_put(t.rows, k, (*t.rows[k], new)))

    def _waits(self, s: State, i: int) -> bool:
        """Whether a change of the same kind begins first: of states that differ in names alone, one is searched."""
        return i > 0 and s.changes[i - 1].phase == IDLE and self._scenario.changes[i - 1] == self._scenario.changes[i]

    def _keep(self, s: State, i: int, change: Change) -> State:
        """Settles the change and keeps its entry: its writer does, or recovery."""
        settled = REFUSED if self._g.settle_before_keep and not change.fate else change.fate
        t = _changed(s, i, change._replace(phase=KEPT, fate=settled))
        return t if self._g.wait else self._delete(t, self._garbage(t, i))

    def _garbage(self, s: State, i: int) -> tuple[int, ...]:
        """Settles both blobs of a change. Returns those that are there and not live."""
        k, puts = self._scenario.changes[i]
        both = {s.changes[i].old, i + 1 if puts else NOTHING} - {NOTHING, s.rows[k][-1]}
        return tuple(sorted(both & s.blobs))

    def _delete(self, s: State, doomed: tuple[int, ...]) -> State:
        for blob in doomed:
            if blob in s.view and blob in s.blobs and not s.note.gap:
                return s._replace(broken=f"EARLY: blob {blob} is deleted, and its -1 is not committed")
            if any(blob == row[-1] for row in s.rows):
                return s._replace(broken=f"DANGLING: blob {blob} is deleted, and a row names it")
        return s._replace(blobs=s.blobs.difference(doomed))

    def _recover(self, s: State) -> Iterator[Step]:
        """Yields what recovery does with an entry that was kept for too long."""
        g, r = self._g, s.recovery
        if r is None:
            if s.extra[1] and not s.calm:
                for i, change in enumerate(s.changes):
                    if change.phase == KEPT and not (change.uploading and g.grace):
                        begun = s._replace(extra=(s.extra[0], s.extra[1] - 1, s.extra[2]))
                        doomed = self._garbage(s, i) if g.settle_before_gap else ()
                        yield f"recovery has waited for change {i + 1}, and settles", begun._replace(recovery=Recovery(i, "gap", doomed))
            return
        match r.stage:
            case "gap":
                note = s.note
                if g.gap_first and (g.gap_anew or not note.gap):
                    note = note._replace(gap=note.gap + 1, withheld=True, cursor=0)
                yield "recovery sets the gap", s._replace(note=note, recovery=r._replace(stage="delete"))
            case "delete":
                doomed = r.doomed if g.settle_before_gap else self._garbage(s, r.change)
                label = f"recovery deletes {', '.join(map(str, doomed)) or 'nothing'}"
                yield label, self._delete(s, doomed)._replace(recovery=r._replace(stage="forget", doomed=()))
            case _:
                forgotten = s.changes[r.change]._replace(phase=GONE)
                yield f"recovery forgets change {r.change + 1}", _changed(s, r.change, forgotten)._replace(recovery=None)

    # --- a writer of the feed --------------------------------------------------------------------------

    def _write(self, s: State, w: Life) -> Iterator[Turn]:
        """Yields what this life may do next: with the label, the world after it, and the life after it."""
        g = self._g
        me = "a new writer" if w.pc in ("read", "open") else f"writer {w.known.epoch}"
        match w.pc:
            case "read":
                yield f"{me} reads the checkpoint", s, Life("open", s.note)
            case "open":
                mine = w.known._replace(epoch=w.known.epoch + 1, seq=0) if g.raise_epoch else w.known
                if s.note == w.known or (s.note == mine and not g.own_epoch):
                    needed = self._scenario.sink and g.commit_first and g.redo
                    lacks = needed and mine.time > 0 and mine.name not in dict(s.staged)
                    spoilt = f"SPOILT: time {mine.time} cannot be redone, because its bytes are gone" if lacks else ""
                    yield f"{me} opens: epoch {mine.epoch}", s._replace(note=mine, broken=spoilt), self._redo(s, mine)
                else:
                    yield f"{me} finds the checkpoint changed", s, Life()
            case "apply":
                yield self._apply(s, w, me)
            case "journal":
                yield self._enter(s, w, me)
            case "hints":
                yield from self._read_hints(s, w, me)
            case "rows":
                yield from self._read_rows(s, w, me)
            case "send":
                told = s._replace(sent=s.sent | {("update", w.new.time, 0, w.new.updates)})
                yield f"{me} sends updates of time {w.new.time}", self._seen(told), w._replace(pc="commit")
            case "commit":
                yield self._commit(s, w, me)
                if s.extra[2] and not s.calm and w.new.name != w.known.name:
                    sent = Life(known=w.known, floors=w.floors, new=w.new)
                    t = s._replace(extra=(*s.extra[:2], s.extra[2] - 1), swaps=s.swaps | {sent})
                    yield f"{me} has no answer to its commit", t, Life() if g.reopen else _after(w)
            case "progress":
                told = s._replace(sent=s.sent | self._progress(s, w.known.time))
                yield f"{me} sends progress up to {w.known.time + 1}", self._seen(told), self._next(s, w)
            case "delete":
                yield self._clean_up(s, w, me)
            case _:
                i = w.hints[0]
                t = _changed(s, i, s.changes[i]._replace(phase=GONE))
                yield f"{me} forgets change {i + 1}", t, self._next(t, w._replace(hints=w.hints[1:]))

    def _redo(self, s: State, note: Note) -> Life:
        """Returns the life that has just opened, or read that recovery set the gap."""
        w = Life("apply", note, todo=note.updates)
        return self._skip(s, w) if self._g.redo else _after(w)

    def _skip(self, s: State, w: Life) -> Life:
        """Leaves out what would change nothing: index entries that are there already."""
        if self._g.versions:
            w = w._replace(todo=tuple(each for each in w.todo if s.entries[each[0]][0] < w.known.time))
        if w.todo:
            return w
        if self._scenario.sink and (self._g.bootstrap or w.known.time):
            return w._replace(pc="journal" if self._g.commit_first else "progress")
        return self._next(s, w)

    def _apply(self, s: State, w: Life, me: str) -> Turn:
        k = w.todo[0][0]
        ours = [each for each in w.todo if each[0] == k]
        blob = next((blob for _, blob, diff in ours if diff > 0), NOTHING)
        t = s
        if not self._g.versions or s.entries[k][0] <= w.known.time:
            t = s._replace(entries=_put(s.entries, k, (w.known.time, blob)))
        then = w._replace(todo=tuple(each for each in w.todo if each[0] != k))
        return f"{me} writes its index: {blob or 'nothing'} at {w.known.time}", t, self._skip(t, then)

    def _enter(self, s: State, w: Life, me: str) -> Turn:
        time = w.known.time
        if self._g.journal_removed and time <= s.acknowledged:
            return f"{me} finds time {time} delivered", s, self._next(s, w)
        return f"{me} writes the journal of time {time}", s._replace(journal=s.journal | {(time, w.known.name)}), self._next(s, w)

    def _read_hints(self, s: State, w: Life, me: str) -> Iterator[Turn]:
        g = self._g
        kept = tuple(i for i, c in enumerate(s.changes) if c.phase == KEPT and not (c.uploading and g.grace))
        batches = [kept]
        if self._scenario.batches or not g.all_hints:
            batches += [(i,) for i in kept if len(kept) > 1 and not s.calm]
        for hints in batches:
            keys = {self._scenario.changes[i][0] for i in hints}
            if w.known.cursor >= 0:
                keys.add(w.known.cursor)
            yield from self._take(s, w, me, hints, keys)

    def _take(self, s: State, w: Life, me: str, hints: tuple[int, ...], keys: set[int]) -> Iterator[Turn]:
        """Takes up these hints and keys; or, for a reconciliation, another key besides."""
        looks = [(s, keys, "")] if keys else []
        if s.extra[0] and not s.calm and w.known.cursor < 0:
            t = s._replace(extra=(s.extra[0] - 1, *s.extra[1:]))
            looks += [(t, keys | {k}, f", and looks at object {k}, too") for k in range(len(s.rows)) if k not in keys]
        for t, some, text in looks:
            floors = tuple(0 if self._scenario.batches and k not in some else self._floor(s, k) for k in range(len(s.rows)))
            read = w._replace(pc="rows", hints=hints, floors=floors, shown=tuple((k, NOTHING) for k in sorted(some)))
            yield f"{me} reads the hints {named(i + 1 for i in hints)}{text}", t, read

    def _floor(self, s: State, k: int) -> int:
        """Returns from where on the states of the row may be in a view that is read now.

        All changes whose entries were kept or forgotten must be in it.
        """
        ours = [i for i, (each, _) in enumerate(self._scenario.changes) if each == k]
        over = {i for i in ours if s.changes[i].phase >= KEPT and s.changes[i].fate == WON}
        return max((self._position(s, i) for i in over), default=0)

    def _position(self, s: State, i: int) -> int:
        """Returns how many changes of the object took effect up to this one."""
        k, puts = self._scenario.changes[i]
        row = s.rows[k]
        if puts:
            return row.index(i + 1)
        old = s.changes[i].old
        return row.index(NOTHING, row.index(old) if old in row else 0)

    def _read_rows(self, s: State, w: Life, me: str) -> Iterator[Turn]:
        """Reads the rows and the index, takes the difference, and stages it."""
        g, known = self._g, w.known
        shown = tuple((k, s.rows[k][-1]) for k, _ in w.shown)
        updates: list[Update] = []
        for k, row in shown:
            if (has := s.entries[k][1]) != row:
                updates += [(k, has, -1)] if has else []
                updates += [(k, row, 1)] if row else []
        then = w._replace(shown=shown)
        text = f"{me} reads the rows {named(each for _, each in shown)}"
        if not updates and known.cursor < 0:
            new = known._replace(seq=known.seq + 1) if self._scenario.counts_each else known
            yield f"{text}: no difference", s, then._replace(pc="commit", new=new)
            return
        cursor, withheld, gap = known.cursor, known.withheld, known.gap
        if cursor >= 0:
            cursor += 1
        if cursor == len(s.rows):
            cursor, withheld, gap = -1, False, 0
        ahead = known.time + 1
        for time in (ahead,) if g.forward or known.time < 1 else (ahead, known.time):
            speaks = not withheld or not g.withhold
            attempt = (w.attempt,) if g.new_names else ()
            new = Note(
                known.epoch, known.seq + 1, time, time + 1 if speaks else known.lower, tuple(updates),
                (time, known.epoch, known.seq + 1, *attempt), cursor, withheld, gap,
            )  # fmt: skip
            t, what = s, f"{text}, takes time {time}"
            if self._scenario.sink and g.commit_first:
                t = _stage(s, new.name, new.updates)
                what = f"{what} and stages {spelt(new.updates)}"
                if s.extra[2] and not s.calm:
                    again = s._replace(extra=(*s.extra[:2], s.extra[2] - 1))
                    if not g.new_names:
                        again = again._replace(late=s.late | {(new.name, new.updates)})
                    yield f"{what}, without an answer: begins anew", again, _after(w)._replace(attempt=w.attempt + 1)
            pc = "send" if self._scenario.sink and not g.commit_first and new.updates else "commit"
            yield what, t, then._replace(pc=pc, new=new)

    def _commit(self, s: State, w: Life, me: str) -> Turn:
        g = self._g
        unchanged = w.new._replace(seq=w.known.seq) == w.known
        if unchanged and not g.compare_unchanged:
            return f"{me} has nothing to commit", s, self._next(s, w)
        if s.note != w.known and g.compare and not (s.note == w.new and not g.own_epoch):
            if s.note.epoch == w.known.epoch and s.note.gap != w.known.gap:
                return f"{me} is told that the gap is set", s, self._redo(s, s.note)
            if s.note.epoch == w.known.epoch:
                return f"{me} is told that the checkpoint has changed, and opens anew", s, Life()
            return f"{me} is fenced", s, Life("end")
        if unchanged:
            return f"{me} commits nothing new", s._replace(note=w.new), self._next(s, w._replace(known=w.new))
        t = s if s.note == w.new else self._published(s._replace(note=w.new), w)
        then = w._replace(pc="apply", known=w.new, todo=w.new.updates, new=Note(), attempt=0)
        return f"{me} commits {spelt(w.new.updates)} at {w.new.time}", t, self._skip(t, then)

    def _published(self, s: State, w: Life) -> State:
        """Adds a commit to the ghosts, and judges the view that it gives.

        Every key must show a state that its row had after all changes that were over when the hints were read.
        """
        note = w.new
        view = list(s.view)
        for k, blob, diff in note.updates:
            if view[k] != (blob if diff < 0 else NOTHING):
                return s._replace(broken=f"TWICE: object {k} shows {view[k] or 'nothing'} when {spelt(((k, blob, diff),))} is committed")
            view[k] = blob if diff > 0 else NOTHING
        speaks = not note.withheld or not self._g.withhold
        if self._scenario.sink:
            lower = w.known.lower if speaks else -1
            s = s._replace(done=(*s.done, (note.time, lower, note.updates)))
        if speaks:
            for k, blob in enumerate(view):
                if blob not in s.rows[k][w.floors[k] :]:
                    return s._replace(broken=f"WRONG: object {k} shows {blob or 'nothing'} at frontier {note.time + 1}")
                if blob and blob not in s.blobs:
                    return s._replace(broken=f"GONE: object {k} shows {blob} at frontier {note.time + 1}, which does not exist")
        return s._replace(view=tuple(view))

    def _next(self, s: State, w: Life) -> Life:
        """Returns the life at the clean-up of its next hint. It leaves out a hint that is gone, with what it named."""
        while w.hints:
            i = w.hints[0]
            doomed = self._doomed(s, w, i)
            if doomed or s.changes[i].phase != GONE:
                return w._replace(pc="delete" if doomed else "forget", new=Note(), floors=())
            w = w._replace(hints=w.hints[1:])
        return _after(w)

    def _doomed(self, s: State, w: Life, i: int) -> tuple[int, ...]:
        k, puts = self._scenario.changes[i]
        if not self._g.doomed_by_row:
            return self._garbage(s, i)
        both = {s.changes[i].old, i + 1 if puts else NOTHING} - {NOTHING, dict(w.shown)[k]}
        return tuple(sorted(both & s.blobs))

    def _clean_up(self, s: State, w: Life, me: str) -> Turn:
        i = w.hints[0]
        doomed = self._doomed(s, w, i)
        t = self._delete(s, doomed)
        return f"{me} deletes {named(doomed)} for change {i + 1}", t, w._replace(pc="forget")

    def _late(self, s: State) -> Iterator[Step]:
        """Yields what arrives after its sender has stopped waiting. A commit that could only fail is left out."""
        for name, updates in s.late:
            late = s.late - {(name, updates)}
            yield f"an old copy of {spelt(updates)} is staged late", _stage(s, name, updates)._replace(late=late)
        for sent in s.swaps:
            if s.note == sent.known:
                t = s._replace(note=sent.new, swaps=s.swaps - {sent})
                yield f"a commit arrives late: {spelt(sent.new.updates)} at {sent.new.time}", self._published(t, sent)

    # --- the sink --------------------------------------------------------------------------------------

    def _sink(self, s: State) -> Iterator[Step]:
        """Yields the deliveries. Whoever makes them, a writer or a zombie, they are the same."""
        if not s.journal:
            return
        time, name = min(s.journal)
        content = dict(s.staged).get(name)
        if content is None:
            yield f"time {time} is read", s._replace(broken=f"SPOILT: the bytes of time {time} are gone")
            return
        segment = self._progress(s, time)
        if self._g.commit_first and content:
            segment |= {("update", time, 0, content)}
        if not self._g.commit_first:
            segment = frozenset()
        if not segment <= s.sent:
            yield f"the sink gets time {time}", self._seen(s._replace(sent=s.sent | segment))
            return
        t = s._replace(journal=s.journal - {(time, name)}, acknowledged=max(time, s.acknowledged))
        if name != s.note.name or not self._g.last_bytes:
            t = t._replace(staged=frozenset(each for each in s.staged if each[0] != name))
        yield f"time {time} is acknowledged and removed", t

    def _progress(self, s: State, time: int) -> frozenset[Message]:
        lower = max((lower for each, lower, _ in s.done if each == time), default=-1)
        if lower < 0:
            return frozenset()
        counts = tuple((each, len(updates), 0) for each, _, updates in s.done if lower <= each <= time and updates)
        return frozenset({("progress", time + 1, lower, counts)})

    def _seen(self, s: State) -> State:
        """Judges what a reader may make of a part of what the sink has, in any order."""
        wrong = misled(s.sent, tuple((time, updates) for time, _, updates in s.done))
        return s._replace(broken=wrong) if wrong else s

    # --- from here to rest -----------------------------------------------------------------------------

    def _heal(self, s: State) -> str:
        """Returns what is wrong after this: all die, recovery keeps what is open, and a new writer goes on alone."""
        changes = tuple(change._replace(uploading=False) for change in s.changes)
        calm = s._replace(changes=changes, recovery=None, calm=True, extra=(0, 0, 0))
        alone = calm._replace(lives=(Life(),), late=frozenset(), swaps=frozenset())
        seen: list[State] = []
        while alone not in self._healed:
            seen.append(alone)
            after = next(self.steps(alone), None)
            if after is None or after[1].broken or len(seen) > 200:
                self._healed[alone] = after[1].broken if after else self._rest(alone)
                break
            alone = after[1]
        verdict = self._healed[alone]
        for each in seen:
            self._healed[each] = verdict
        return verdict

    def _rest(self, s: State) -> str:
        rows = tuple(row[-1] for row in s.rows)
        if any(change.phase in (BEGUN, KEPT) for change in s.changes) or s.note.withheld or s.journal:
            return "STUCK: there is work left, and nobody does it"
        if s.view != rows:
            return f"LOST: at rest the view is {named(s.view)}, and the rows name {named(rows)}"
        if s.blobs != frozenset(rows) - {NOTHING}:
            return f"LEAK: at rest there are the blobs {named(sorted(s.blobs))}, and the rows name {named(rows)}"
        if self._scenario.sink and (reached := frontier(s.sent)) != s.note.lower:
            return f"STUCK: a reader reaches the frontier {reached}, and progress was committed up to {s.note.lower}"
        return ""


def _stage(s: State, name: tuple[int, ...], updates: tuple[Update, ...]) -> State:
    return s._replace(staged=frozenset(each for each in s.staged if each[0] != name) | {(name, updates)})


def _changed(s: State, i: int, change: Change) -> State:
    return s._replace(changes=(*s.changes[:i], change, *s.changes[i + 1 :]))


def _put(values: tuple[T, ...], k: int, value: T) -> tuple[T, ...]:
    return (*values[:k], value, *values[k + 1 :])


def _after(w: Life) -> Life:
    return Life("hints", w.known, attempt=w.attempt)


