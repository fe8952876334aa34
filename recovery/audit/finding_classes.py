"""What a blob, or a row that redirects to one, is found to be: decision tables without I/O, tested exhaustively.

The order of the lines is the table: the first line that holds decides. What protects a blob comes before what accuses
it. So a blob is an orphan only if nothing protects it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import NamedTuple


class FindingClass(StrEnum):
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
    MIXED_WRITERS = "mixed_writers"
    MISDIRECTED = "misdirected"
    MISFILED = "misfiled"
    CORRUPT_BLOB = "corrupt_blob"
    UNPARSEABLE = "unparseable"
    FOREIGN = "foreign"
    UNLISTED = "unlisted"


MEANING: dict[FindingClass, str] = {  # docs/audit.md has it: python -m tests.recovery.audit.class_table
    FindingClass.REFERENCED: "a live tombstone names it",
    FindingClass.IN_FLIGHT: "an entry of the changelog names it as new; its change is under way, or waits for recovery",
    FindingClass.SUPERSEDED: "an entry of the changelog names it as replaced; its clean-up is under way, or waits for recovery",
    FindingClass.TOO_YOUNG: "nothing names it, but it is younger than the grace",
    FindingClass.EXPIRED: "its deadline, or its tombstone's, has passed; it is left to the lifecycle",
    FindingClass.UPLOAD: "belongs to a resumable upload of older software",
    FindingClass.QUARANTINED: "a copy of what tiered audit delete has deleted; it stays until somebody restores or deletes it",
    FindingClass.ORPHAN: "nothing names it: it costs money and nobody can read it",
    FindingClass.LEGACY_ORPHAN: "nothing names it, and its name has no revision, so no token that could be refused: never deleted by us",
    FindingClass.OVERDUE: "no live tombstone and no entry names it, and its deadline passed days ago: what should remove it does not",
    FindingClass.STALE_UPLOAD: "belongs to an upload that nobody can finish any more",
    FindingClass.DANGLING: "a live tombstone names a blob that is gone: data loss",
    FindingClass.DESTROYED: "a live tombstone names a blob that is there and cannot be read: data loss",
    FindingClass.CORRUPT_ROW: "a row breaks the format",
    FindingClass.MIXED_WRITERS: "a row that other software wrote while this one wrote: its writers wipe marks, so objects can be lost",
    FindingClass.MISDIRECTED: "a tombstone names a blob of another object; that blob may seem to be an orphan",
    FindingClass.MISFILED: "a row that cannot be read names it, under a key that is not its object's: mend the row; never deleted",
    FindingClass.CORRUPT_BLOB: "a blob cannot be read, and no live tombstone names it: garbage",
    FindingClass.UNPARSEABLE: "its name is almost a blob's, but breaks the format",
    FindingClass.FOREIGN: "this software did not put it there",
    FindingClass.UNLISTED: "a tombstone names it and it is there, but the listing that should hold it does not: it cannot be trusted",
}

FINDINGS = frozenset({
    FindingClass.ORPHAN, FindingClass.LEGACY_ORPHAN, FindingClass.OVERDUE, FindingClass.STALE_UPLOAD, FindingClass.DANGLING,
    FindingClass.DESTROYED, FindingClass.CORRUPT_ROW, FindingClass.MIXED_WRITERS,
    FindingClass.MISDIRECTED, FindingClass.MISFILED, FindingClass.CORRUPT_BLOB, FindingClass.UNPARSEABLE, FindingClass.FOREIGN,
    FindingClass.UNLISTED,
})  # fmt: skip
"""What somebody should look at. The other kinds are normal in a store that is in use."""

LOSSES = (FindingClass.DANGLING, FindingClass.DESTROYED)
"""Findings that mean that the data of a live object are lost."""

DOUBTS = frozenset({FindingClass.MISDIRECTED, FindingClass.UNLISTED})
"""Findings that make the run's evidence incomplete: because of them, other findings may be wrong."""


class NameForm(StrEnum):
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

    form: NameForm
    logged: Logged
    redirected: Redirected
    readable: bool
    young: bool
    stale: bool
    deadline: Deadline


@cache
def classify(facts: Facts) -> FindingClass:
    """Returns what a listed blob is."""
    if facts.redirected is Redirected.LIVE:
        return FindingClass.REFERENCED if facts.readable else FindingClass.DESTROYED
    if not facts.readable:
        return FindingClass.CORRUPT_BLOB
    if facts.redirected is Redirected.EXPIRED:
        overdue = facts.deadline is Deadline.OVERDUE and facts.logged is Logged.NOT
        return FindingClass.OVERDUE if overdue else FindingClass.EXPIRED
    if facts.logged is Logged.NEW:
        return FindingClass.IN_FLIGHT
    if facts.logged is Logged.OLD:
        return FindingClass.SUPERSEDED
    match facts.form:
        case NameForm.FOREIGN:
            return FindingClass.FOREIGN
        case NameForm.UNPARSEABLE:
            return FindingClass.UNPARSEABLE
        case NameForm.UPLOAD:
            return FindingClass.STALE_UPLOAD if facts.stale else FindingClass.UPLOAD
        case NameForm.QUARANTINE:
            return FindingClass.QUARANTINED
    if facts.young:
        return FindingClass.TOO_YOUNG
    match facts.deadline:
        case Deadline.PASSED:
            return FindingClass.EXPIRED
        case Deadline.OVERDUE:
            return FindingClass.OVERDUE
    return FindingClass.LEGACY_ORPHAN if facts.form is NameForm.UNSUFFIXED else FindingClass.ORPHAN


@dataclass(frozen=True, slots=True)
class MissingBlob:
    """All that is known about a tombstone whose blob is not in the listing.

    `expired`: the row's deadline has passed. `there`: a point read finds the blob now. `readable`: what it finds does
    not break the format. `listable`: that blob was created long enough ago that the listing should have held it, or the
    same listing does not hold it now.
    `shown`: the row, read once more after that, still names the blob.
    """

    expired: bool
    there: bool
    readable: bool
    listable: bool
    shown: bool


def classify_missing(facts: MissingBlob) -> FindingClass | None:
    """Returns what a tombstone without a listed blob is.

    None: the row has changed meanwhile, so there is nothing to say.
    """
    if facts.there and not facts.readable:
        return FindingClass.DESTROYED if facts.shown and not facts.expired else FindingClass.CORRUPT_BLOB
    if facts.there:
        return FindingClass.UNLISTED if facts.listable else FindingClass.REFERENCED
    if facts.expired:
        return FindingClass.EXPIRED
    return FindingClass.DANGLING if facts.shown else None
