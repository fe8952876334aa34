"""What exists in the feed model, and the guards. feed_world.py has the steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

NOTHING = 0
"""Stands for no blob. Blobs are 1, 2, ...: change number i puts blob i + 1. Those that are there at first follow."""

IDLE, BEGUN, KEPT, GONE = range(4)
WON, REFUSED = 1, 2

Update = tuple[int, int, int]
"""Object, blob, diff."""
Message = tuple[str, int, int, tuple[tuple[int, int, int], ...]]
"""("update", time, 0, updates), or ("progress", upper, lower, ((time, count, 0), ...))."""


@dataclass(frozen=True, slots=True)
class Guards:
    """What the design does to be right. All on is ours."""

    compare: bool = True          # a commit compares the checkpoint; off: it overwrites it
    raise_epoch: bool = True      # opening changes the checkpoint, which fences older lives
    own_epoch: bool = True        # the value that opening writes is this life's alone; off: two may open with one value
    compare_unchanged: bool = True  # hints without a difference are forgotten only after the checkpoint was compared
    commit_first: bool = True     # updates go out after the commit; off: before it, as in the published sketch
    bootstrap: bool = True        # progress [0,1) goes out first
    versions: bool = True         # of an index entry the highest time counts; off: the last write
    redo: bool = True             # opening applies the last commit again
    wait: bool = True             # a blob is deleted after the feed has committed; off: once the change is over
    doomed_by_row: bool = True    # only what the row that was read did not show; off: what is not live at the clean-up
    gap_first: bool = True        # recovery sets the gap before its own clean-up
    gap_anew: bool = True         # also if it is set already, so that the pass begins anew
    settle_before_gap: bool = True  # recovery finds what is garbage before it sets the gap; off: after it
    withhold: bool = True         # no progress before the pass is complete
    settle_before_keep: bool = True  # a change that is kept can not take effect any more
    forward: bool = True          # a time is never used again
    new_names: bool = True        # each attempt stages under a new name
    journal_removed: bool = True  # a removed journal entry shadows late writes of it
    last_bytes: bool = True       # the bytes of the last commit stay, though each sink has them
    grace: bool = True            # a refused change is forgotten when its upload cannot land any more
    reopen: bool = True           # who is not told of its commit opens anew; off: it begins its transaction anew
    all_hints: bool = True        # progress speaks of all hints that are kept; off: of some

    def without(self, *guards: str) -> Guards:
        return replace(self, **dict.fromkeys(guards, False))


OURS = Guards()
PUBLISHED = OURS.without("commit_first")
GUARDS = tuple(field.name for field in fields(Guards))


class Change(NamedTuple):
    phase: int = IDLE           # IDLE | BEGUN | KEPT | GONE
    old: int = NOTHING
    fate: int = 0               # 0: its swap may still land | WON | REFUSED
    uploading: bool = False     # its blob may still appear


class Note(NamedTuple):
    """The checkpoint. `updates`: the content of the last commit, which the real one stores as a hash and a name."""

    epoch: int = 0
    seq: int = 0
    time: int = 0
    lower: int = 1
    updates: tuple[Update, ...] = ()
    name: tuple[int, ...] = ()
    cursor: int = -1            # the object that the pass takes up next; -1: there is no pass
    withheld: bool = False      # no progress until the pass is complete
    gap: int = 0                # how often recovery has set it since the last whole pass


class Life(NamedTuple):
    """One life of a writer.

    `known`: the checkpoint as it was last read or written. `todo`: what the index still has to get. `hints`: changes
    whose entries it has taken up. `shown`: per key that it looks at, the blob of the row. `floors`: per object, from
    where on the states of its row may be in the view. `new`: the checkpoint that it wants to commit. `attempt`: how
    often it has begun the transaction anew.
    """

    pc: str = "read"            # read | open | apply | journal | hints | rows | send | commit | progress | delete | forget | end
    known: Note = Note()
    todo: tuple[Update, ...] = ()
    hints: tuple[int, ...] = ()
    shown: tuple[tuple[int, int], ...] = ()
    floors: tuple[int, ...] = ()
    new: Note = Note()
    attempt: int = 0


class Recovery(NamedTuple):
    change: int
    stage: str                  # gap | delete | forget
    doomed: tuple[int, ...]


class State(NamedTuple):
    rows: tuple[tuple[int, ...], ...]       # per object, what its row has held, the present state last
    changes: tuple[Change, ...]
    blobs: frozenset[int]
    note: Note
    entries: tuple[tuple[int, int], ...]    # the index: per object, time and blob
    view: tuple[int, ...]                   # ghost: per object, what the committed updates sum up to
    lives: tuple[Life, ...]
    recovery: Recovery | None = None
    calm: bool = False                      # nothing begins any more, and whoever was under way is dead
    extra: tuple[int, int, int] = (0, 0, 0)  # how many reconciliations, gaps and repeated stagings may still happen
    staged: frozenset[tuple[tuple[int, ...], tuple[Update, ...]]] = frozenset()
    late: frozenset[tuple[tuple[int, ...], tuple[Update, ...]]] = frozenset()
    swaps: frozenset[Life] = frozenset()    # commits that were sent, whose sender has stopped waiting
    journal: frozenset[tuple[int, tuple[int, ...]]] = frozenset()
    acknowledged: int = -1
    done: tuple[tuple[int, int, tuple[Update, ...]], ...] = ()   # ghost: time, lower or -1, updates of each commit
    sent: frozenset[Message] = frozenset()  # what the sink has
    broken: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Who meets whom.

    `rows`: per object whether a blob is there at first. `indexed`: whether the feed has published it; if not, the first
    pass is the snapshot. `changes`: object, and whether it puts a blob (or deletes). `sink`: whether deliveries are
    modelled. `first_lower`: where the first progress begins. `single`: blobs are uploaded in a single request, which
    may land late. `batches`: a transaction takes up some of the hints that are kept, and not always all. `counts_each`:
    a commit without a difference raises `seq`, too; otherwise it only compares. `small`: `make test` searches it.

    So many times may happen: `reconciliations`: the writer looks at a row without a hint. `gaps`: recovery has waited
    too long for the feed. `retries`: a call of the writer has no answer, and takes effect later or never.
    """

    rows: tuple[bool, ...] = (True,)
    changes: tuple[tuple[int, bool], ...] = ((0, True), (0, True))
    lives: int = 2
    indexed: bool = True
    sink: bool = False
    reconciliations: int = 0
    gaps: int = 0
    retries: int = 0
    first_lower: int = 1
    single: bool = False
    batches: bool = False
    counts_each: bool = False
    small: bool = True


def named(numbers: Iterable[int]) -> str:
    return ", ".join(str(each or "nothing") for each in numbers) or "none"


def spelt(updates: tuple[Update, ...]) -> str:
    return ", ".join(f"{diff:+d} ({k}, {blob})" for k, blob, diff in updates) or "no update"
