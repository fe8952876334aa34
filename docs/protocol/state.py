"""The words of the model: what exists in one state of the world, and which guards of the protocol are on.

There is one object: its row, its blobs, the changelog, the requests under way, and a few processes. A state is a tuple,
so that states can be compared and looked up quickly. Tokens are short names. `A` is the token of process A's change. If
A uploads a blob, it is also that blob's revision. `old` is what was there first.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

Token = str
NOBODY = ""
"""No blob, no object, no token."""
UPLOAD = "M"
"""The token of the multipart upload."""


@dataclass(frozen=True, slots=True)
class Guards:
    """What the protocol does to be safe. Each comment says what is done when the guard is on.

    All on is our protocol. All off is the published protocol.
    """

    refused_in_swap: bool = True        # a swap (and an inline write) conflicts with a refused mark of its token
    won_in_swap: bool = True            # a swap conflicts with a won mark of its token
    settle_before_delete: bool = True   # a blob is deleted only after its token was settled; off: after the row was read
    presence: bool = True               # writes ask whether a tombstone is present; off: whether it is unexpired
    settle_before_answer: bool = True   # a swap that was not told ok is settled before the caller is answered
    row_before_answer: bool = True      # ... and the row is read with its marks; off: the settle alone decides
    young_marks_answer: bool = True     # ... and "no" is said only while the change is young enough for its marks to be there
    young_marks_outcome: bool = True    # the same for whoever asks later
    age_bound: bool = True              # a swap is sent only while its change is young
    touch_if_shown: bool = True         # a touch changes the row only if it still shows what was read
    touch_blob_first: bool = True       # a touch extends the blob before the row
    create_only: bool = True            # an upload never replaces a blob
    record_before_finalise: bool = True  # an upload is finalised only when its entry is recorded
    held_before_finalise: bool = True   # ... and only while the lease is held
    cancel_session: bool = True         # the clean-up of a change that is not live cancels its upload session
    late_cleanup: bool = True           # an upload without a session may arrive late: wait, and delete once more
    settle_unknown_inline: bool = True  # an inline write without an answer is settled before the caller is answered
    inline_once: bool = True            # an inline write is sent once
    absent_in_swap: bool = True         # the swap of `if_absent` conflicts with an object that is there; off: only the read judged
    reserved_in_swap: bool = True       # the swap of `if_revision` needs the reservation of its token; off: only the read judged
    write_ends_reservation: bool = True  # whatever changes the row's state removes all reservations
    condition_in_answer: bool = True    # a conditional write is never told ok because it was superseded
    condition_shown: bool = True        # ... and nobody is told ok because a conditional write superseded him
    false_after_refusal: bool = True    # "the condition is false" is told from a read after the token was refused, or was never sent
    reread: bool = True                 # a reader whose blob disappeared reads the row again
    seal_before_refusal: bool = True    # the token of an upload is refused only when nobody can claim its entry any more
    first_claim_young: bool = True      # an upload is claimed only while its first claim is young enough for its marks to be there
    count_in_claim: bool = True         # an attempt to complete an upload has a number, so no value of its entry returns
    token_in_acknowledgement: bool = True  # a part is acknowledged only by whoever has the token  (docs/protocol/appends.py)
    number_left_out: bool = True        # whoever takes a token over leaves out the number that may be under way
    chain_in_completion: bool = True    # an upload is completed only with the parts that were acknowledged
    heartbeat_if_same: bool = True      # a renewal is a compare-and-swap            (docs/protocol/leases.py)
    attempt_in_claim: bool = True       # a claim or renewal compares the attempt, too (docs/protocol/leases.py)

    def without(self, guard: str) -> Guards:
        return replace(self, **{guard: False})


GUARDS = tuple(field.name for field in fields(Guards))
OURS = Guards()
PUBLISHED = Guards(**dict.fromkeys(GUARDS, False))


class Entry(NamedTuple):
    """A change in the changelog. The model does not say who holds it: any recovery may claim any entry at any moment.
    """

    token: Token
    upload: str                 # session | single | nothing
    old: Token
    waits: bool = False         # released until the late-upload grace is over
    assembling: bool = False    # a multipart upload that may be completed
    claimed: bool = False       # somebody has claimed it to complete it
    over: bool = False          # ... two days ago
    tries: int = 0              # how many have


class Request(NamedTuple):
    """A request under way to a service. It may arrive at any time, or never."""

    kind: str                   # swap | put | delete | reserve | upload | record
    token: Token
    expected: Token = NOBODY    # of a swap; of a record the old blob; of a reserve what must be shown
    writes: str = ""            # of a swap: blob | inline | nothing; of an upload and a record: session | single | nothing
    only: str = ""              # of a swap: its condition: revision | absent
    at: int = 0                 # of a swap with `absent`: the time by which the row must hold nothing that lives


class Proc(NamedTuple):
    """One process, and where it is. A process that crashes is one whose turn never comes again."""

    kind: str                   # large | single | small | delete | complete | recover | read | touch | ask | audit
    name: Token                 # a writer's is its token
    pc: str = "start"
    old: Token = NOBODY         # writer: the target it read; reader, touch: what it saw; ask: the change it asks about
    gone: tuple[Token, ...] = ()  # blobs that it is going to delete
    floor: int = 0              # how many writes had taken effect when it began
    answer: str = ""            # what its caller was told: ok | no | false (the condition) | over | unknown
    again: bool = False         # it has sent its request a second time
    late: bool = False          # its upload may arrive late
    aged: bool = False          # its change is too old: marks of its age may be gone
    lapsed: bool = False        # its lease has certainly ended
    entry: Entry | None = None  # recovery: what it works on
    before: Entry | None = None  # completer: what its entry was before its claim
    only: str = ""              # writer: its condition: revision | absent; empty: none
    wants: Token = NOBODY       # writer with `revision`: what must be there
    bare: bool = False          # writer with a condition: it needs no entry, because no tombstone is in the way

    @property
    def token(self) -> Token:
        """The token of its change. All who complete the upload have one."""
        return UPLOAD if self.kind == "complete" else self.name

    def ended(self) -> Proc:
        return Proc(self.kind, self.name, "end", answer=self.answer, aged=self.aged, only=self.only, wants=self.wants)


class State(NamedTuple):
    """Everything. `until` and a blob's deadline: 0: it lives for ever; 1: the first deadline; 2: a later one."""

    target: Token               # the blob that the row's tombstone names
    inline: Token               # or the write whose object is in the row
    until: int                  # the row's deadline
    marks: frozenset[str]       # w:A won, r:A refused
    fresh: frozenset[str]       # marks that are too young to be collected
    blobs: frozenset[tuple[Token, int]]
    lapsed: frozenset[Token]    # blobs that the bucket's lifecycle deleted
    sessions: frozenset[Token]  # uploads that can still be finalised
    entries: frozenset[Entry]
    net: tuple[Request, ...]    # sorted
    now: int                    # the deadlines up to this one have passed
    aged: bool                  # two days have passed
    effects: tuple[Token, ...]  # ghost: the writes in the order in which they took effect
    procs: tuple[Proc, ...]
    broken: str = ""            # ghost: what went wrong
    reserved: frozenset[Token] = frozenset()  # the tokens for which the row's state is reserved


@dataclass(frozen=True, slots=True)
class Scenario:
    """Who is there, and what may happen. `shows`: what the row holds first: blob, inline or nothing."""

    shows: str
    procs: tuple[Proc, ...]
    net: tuple[Request, ...] = ()
    mortal: bool = False        # what is there first, and what is put, has a deadline that may pass
    ages: bool = False          # two days may pass
    twice: bool = False         # an upload may arrive twice
    echoes: bool = False        # the first record of a change may arrive once more, at any later time
    begun: Entry | None = None  # a multipart upload; if it was claimed, it has won, and who claimed it is dead
    drains: bool = True         # somebody recovers what is left; if not, entries may stay
    small: bool = True          # checked by `make test`

    def first(self) -> State:
        begun = self.begun
        won = begun is not None and begun.claimed
        old = UPLOAD if won else NOBODY if self.shows == "nothing" else "old"
        large, deadline = self.shows == "blob", 1 if self.mortal and old else 0
        return State(
            target=old if large else NOBODY, inline=NOBODY if large else old, until=deadline,
            # If a swap made the first object, that write has won.
            marks=frozenset({f"w:{old}"} if large else ()), fresh=frozenset(),
            blobs=frozenset({(old, deadline)} if large else ()), lapsed=frozenset(),
            sessions=frozenset({UPLOAD} if begun and not won else ()),
            entries=frozenset({begun} if begun else ()), net=self.net, now=0, aged=False, effects=(old,), procs=self.procs,
        )  # fmt: skip


def send(s: State, request: Request) -> State:
    return s._replace(net=tuple(sorted((*s.net, request))))


def move(s: State, k: int, p: Proc) -> State:
    """Returns the state in which process `k` has become `p`."""
    return s._replace(procs=(*s.procs[:k], p, *s.procs[k + 1 :]))


def broken(s: State, sentence: str) -> State:
    return s if s.broken else s._replace(broken=sentence)


def expired(until: int, now: int) -> bool:
    return 0 < until <= now
