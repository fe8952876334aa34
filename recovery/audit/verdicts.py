"""What a blob, or a row that redirects to one, is found to be: decision tables without I/O, tested exhaustively.

The order of the lines is the table: the first line that holds decides. What protects a blob comes before what accuses
it. So a blob is an orphan only if nothing protects it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import NamedTuple


class Kind(StrEnum):
    """The verdict on one thing that was looked at."""

    # no findings: these are only counted
    REFERENCED = "referenced"
    IN_FLIGHT = "in_flight"
    SUPERSEDED = "superseded"
    TOO_YOUNG = "too_young"
    EXPIRED = "expired"
    UPLOAD = "upload"
    QUARANTINED = "quarantined"
    # findings: these are counted, and written down one by one
    ORPHAN = "orphan"
    LEGACY_ORPHAN = "legacy_orphan"
    OVERDUE = "overdue"
    STALE_UPLOAD = "stale_upload"
    DANGLING = "dangling"
    DESTROYED = "destroyed"
    CORRUPT_ROW = "corrupt_row"
    MISDIRECTED = "misdirected"
    MISFILED = "misfiled"
    CORRUPT_BLOB = "corrupt_blob"
    UNPARSEABLE = "unparseable"
    FOREIGN = "foreign"
    UNLISTED = "unlisted"


MEANING: dict[Kind, str] = {
    Kind.REFERENCED: "a live tombstone names it",
    Kind.IN_FLIGHT: "a change that is under way, or waits for recovery, is writing it",
    Kind.SUPERSEDED: "an entry of the changelog names it as replaced; its clean-up is under way, or waits for recovery",
    Kind.TOO_YOUNG: "nothing names it, but it is younger than the grace",
    Kind.EXPIRED: "its deadline has passed; it is left to the lifecycle",
    Kind.UPLOAD: "belongs to a resumable upload of older software",
    Kind.QUARANTINED: "a copy of what tiered audit delete has deleted; it stays until somebody restores or deletes it",
    Kind.ORPHAN: "nothing names it: it costs money and nobody can read it",
    Kind.LEGACY_ORPHAN: "nothing names it, and its name has no revision, so no token that could be refused: never deleted by us",
    Kind.OVERDUE: "no live tombstone names it, and its deadline passed days ago: what should remove expired blobs does not",
    Kind.STALE_UPLOAD: "belongs to an upload that nobody can finish any more",
    Kind.DANGLING: "a live tombstone names a blob that is gone: data loss",
    Kind.DESTROYED: "a live tombstone names a blob that is there and cannot be read: data loss",
    Kind.CORRUPT_ROW: "a row breaks the format",
    Kind.MISDIRECTED: "a tombstone names a blob of another object; that blob may seem to be an orphan",
    Kind.MISFILED: "a row that cannot be read names it, under a key that is not its object's: mend the row; never deleted",
    Kind.CORRUPT_BLOB: "a blob cannot be read, and no live tombstone names it: garbage",
    Kind.UNPARSEABLE: "its name is almost a blob's, but breaks the format",
    Kind.FOREIGN: "this software did not put it there",
    Kind.UNLISTED: "a blob is there, but a listing that should hold it does not: the listing cannot be trusted",
}

FINDINGS = frozenset({
    Kind.ORPHAN, Kind.LEGACY_ORPHAN, Kind.OVERDUE, Kind.STALE_UPLOAD, Kind.DANGLING, Kind.DESTROYED, Kind.CORRUPT_ROW,
    Kind.MISDIRECTED, Kind.MISFILED, Kind.CORRUPT_BLOB, Kind.UNPARSEABLE, Kind.FOREIGN, Kind.UNLISTED,
})  # fmt: skip
"""What somebody should look at. The other kinds are normal in a store that is in use."""

LOSSES = (Kind.DANGLING, Kind.DESTROYED)
"""Findings that mean that the data of a live object are lost."""

DOUBTS = frozenset({Kind.MISDIRECTED, Kind.UNLISTED})
"""Findings that make the run's evidence incomplete: because of them, other findings may be wrong."""


class Form(StrEnum):
    """What a blob's name looks like."""

    REVISION = "revision"  # {path}/{change id}
    UNSUFFIXED = "unsuffixed"  # {path}: a blob of older software
    UPLOAD = "upload"  # `uploads` where a path has `objects`
    QUARANTINE = "quarantine"  # `~quarantine/`: a copy of what was deleted
    UNPARSEABLE = "unparseable"  # has an `objects` segment, but breaks the format
    FOREIGN = "foreign"  # is no storage path at all


class Logged(StrEnum):
    """In which role an entry of the changelog names a blob."""

    NOT = "not"
    NEW = "new"  # or an entry that cannot be read has the blob's revision as its id
    OLD = "old"


class Redirected(StrEnum):
    """The state of the tombstone that names a blob. If there are several, the state that protects the blob most."""

    NOT = "not"
    EXPIRED = "expired"
    LIVE = "live"


class Deadline(StrEnum):
    """How a blob's own deadline stands."""

    AHEAD = "ahead"  # or it has none
    PASSED = "passed"
    OVERDUE = "overdue"  # it passed so long ago that the lifecycle should have removed the blob


class Facts(NamedTuple):
    """All that is known about a blob that was listed.

    `readable`: nothing that was read of it breaks the format. `young`: the later of its revision's time and its
    creation is not before the cut-off. `stale`: it is older than any upload can last.
    """

    form: Form
    logged: Logged
    redirected: Redirected
    readable: bool
    young: bool
    stale: bool
    deadline: Deadline


@cache
def classify(facts: Facts) -> Kind:
    """Returns what a listed blob is."""
    if facts.redirected is Redirected.LIVE:
        return Kind.REFERENCED if facts.readable else Kind.DESTROYED
    if not facts.readable:
        return Kind.CORRUPT_BLOB
    if facts.redirected is Redirected.EXPIRED:
        overdue = facts.deadline is Deadline.OVERDUE and facts.logged is Logged.NOT
        return Kind.OVERDUE if overdue else Kind.EXPIRED
    if facts.logged is Logged.NEW:
        return Kind.IN_FLIGHT
    if facts.logged is Logged.OLD:
        return Kind.SUPERSEDED
    match facts.form:
        case Form.FOREIGN:
            return Kind.FOREIGN
        case Form.UNPARSEABLE:
            return Kind.UNPARSEABLE
        case Form.UPLOAD:
            return Kind.STALE_UPLOAD if facts.stale else Kind.UPLOAD
        case Form.QUARANTINE:
            return Kind.QUARANTINED
    if facts.young:
        return Kind.TOO_YOUNG
    match facts.deadline:
        case Deadline.PASSED:
            return Kind.EXPIRED
        case Deadline.OVERDUE:
            return Kind.OVERDUE
    return Kind.LEGACY_ORPHAN if facts.form is Form.UNSUFFIXED else Kind.ORPHAN


@dataclass(frozen=True, slots=True)
class Missing:
    """All that is known about a tombstone whose blob is not in the listing.

    `expired`: the row's deadline has passed. `there`: a point read finds the blob now. `readable`: what it finds does
    not break the format. `listable`: that blob was created long enough ago that the listing should have held it.
    `shown`: the row, read once more after that, still names the blob.
    """

    expired: bool
    there: bool
    readable: bool
    listable: bool
    shown: bool


def classify_missing(facts: Missing) -> Kind | None:
    """Returns what a tombstone without a listed blob is.

    None: the row has changed meanwhile, so there is nothing to say.
    """
    if facts.there and not facts.readable:
        return Kind.DESTROYED if facts.shown and not facts.expired else Kind.CORRUPT_BLOB
    if facts.there:
        return Kind.UNLISTED if facts.listable else Kind.REFERENCED
    if facts.expired:
        return Kind.EXPIRED
    return Kind.DANGLING if facts.shown else None
