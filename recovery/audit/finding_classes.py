"""What a blob, or a row that redirects to one, is found to be. Two decision tables without I/O, tested exhaustively.

    FindingClass                  begin here: one row for each class; what others know of a class derives from it
    classify, classify_missing    what makes a blob, or a tombstone whose blob was not listed, one of a class

The order of the lines of `classify` is the table: the first line that holds decides. What protects a blob comes before
what accuses it. So a blob is an orphan only if nothing protects it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from functools import cache
from typing import NamedTuple, Self


class Subject(StrEnum):
    """What the name of a finding is."""

    BLOB = "blob"
    LOST_BLOB = "lost blob"  # it is gone, so it has no bytes
    ROW = "row"  # its blob, if it has one, is counted by itself


@dataclass(frozen=True, slots=True)
class Consequences:
    """What follows from a finding.

    `never_deleted`: why `tiered audit delete` leaves such things alone; only of the class `orphan` it is empty.
    `remedy`: what mends it, as `tiered audit show` says it; of a blob that is gone it asks the bucket instead.
    `is_orphan`: no row and no entry names it. `is_accused`: somebody may delete it because of the verdict, so it is
    looked at twice. `is_reclaimable`: its bytes are paid for, and nobody can read them. `is_in_use`: a live tombstone
    names it, and `get` gives its bytes. `is_loss`: the data of a live object are lost. `is_doubt`: because of it, other
    findings may be wrong, so the run's evidence is incomplete. `is_sized`: of a blob, whether its size is always known.
    """

    never_deleted: str
    _: KW_ONLY
    of: Subject = Subject.BLOB
    remedy: str = ""
    is_orphan: bool = False
    is_accused: bool = False
    is_reclaimable: bool = False
    is_in_use: bool = False
    is_loss: bool = False
    is_doubt: bool = False
    is_sized: bool = True


class FindingClass(StrEnum):
    """The verdict on one thing that was looked at: its name, its sentence, and what follows from it.

    `meaning`: the sentence, which docs/audit.md prints (`python -m docs.written`). `finding`: None if it is normal
    in a store that is in use. Then it is only counted; a finding is counted, and written down.
    """

    meaning: str
    finding: Consequences | None

    def __new__(cls, name: str, meaning: str = "", finding: Consequences | None = None) -> Self:
        found = str.__new__(cls, name)
        found._value_ = name
        found.meaning, found.finding = meaning, finding
        return found

    REFERENCED = "referenced", "a live tombstone names it"
    IN_FLIGHT = "in_flight", "an entry of the changelog names it as new; its change is under way, or waits for recovery"
    SUPERSEDED = "superseded", "an entry of the changelog names it as replaced; its clean-up is under way, or waits for recovery"
    TOO_YOUNG = "too_young", "nothing names it, but it is younger than the grace"
    EXPIRED = "expired", "its deadline, or its tombstone's, has passed; it is left to the lifecycle"
    UPLOAD = "upload", "belongs to a resumable upload of older software"
    QUARANTINED = "quarantined", "a copy of what tiered audit delete has deleted; it stays until somebody restores or deletes it"
    ORPHAN = (
        "orphan", "nothing names it: it costs money and nobody can read it",
        Consequences("", is_orphan=True, is_accused=True, is_reclaimable=True),
    )  # fmt: skip
    LEGACY_ORPHAN = (
        "legacy_orphan", "nothing names it, and its name has no revision, so no token that could be refused: never deleted by us",
        Consequences(
            "it has no revision, so there is no token that could be refused, and a late writer could still name it",
            is_orphan=True, is_accused=True, is_reclaimable=True,
        ),
    )  # fmt: skip
    OVERDUE = (
        "overdue", "no live tombstone and no entry names it, and its deadline passed days ago: what should remove it does not",
        Consequences(
            "what should remove it does not: set the lifecycle rule right (tiered check), or run a recovery, and it is removed",
            is_accused=True, is_reclaimable=True,
        ),
    )  # fmt: skip
    STALE_UPLOAD = (
        "stale_upload", "belongs to an upload that nobody can finish any more",
        Consequences(
            "what should remove it does not: in embedded mode run a recovery, in a bucket it is left to the lifecycle rule",
            is_reclaimable=True,
        ),
    )  # fmt: skip
    DANGLING = (
        "dangling", "a live tombstone names a blob that is gone: data loss",
        Consequences(
            "its blob is gone already, and its tombstone is all that is left of the object: look at it with tiered audit show",
            of=Subject.LOST_BLOB, is_loss=True,
        ),
    )  # fmt: skip
    DESTROYED = (
        "destroyed", "a live tombstone names a blob that is there and cannot be read: data loss",
        Consequences(
            "a live tombstone names it: what is left of its bytes may still be repaired or restored", is_loss=True, is_sized=False,
            remedy="its bytes are damaged where they are stored: put the blob back from a backup; until then get refuses it",
        ),
    )  # fmt: skip
    CORRUPT_ROW = (
        "corrupt_row", "a row breaks the format",
        Consequences("nobody can tell which blob it names", of=Subject.ROW),
    )  # fmt: skip
    MIXED_WRITERS = (
        "mixed_writers", "a row that other software wrote while this one wrote: its writers wipe marks, so objects can be lost",
        Consequences("it is an object: stop the writers of one kind", of=Subject.ROW),
    )  # fmt: skip
    MISDIRECTED = (
        "misdirected", "a tombstone names a blob of another object; that blob may seem to be an orphan",
        Consequences("a tombstone names it", of=Subject.ROW, is_doubt=True),
    )  # fmt: skip
    MISFILED = (
        "misfiled", "a row that cannot be read names it, under a key that is not its object's: mend the row; never deleted",
        Consequences("a row that cannot be read names it: mend the row"),
    )  # fmt: skip
    CORRUPT_BLOB = (
        "corrupt_blob", "a blob cannot be read, and no live tombstone names it: garbage",
        Consequences("it may be an object that somebody can still repair or restore", is_reclaimable=True, is_sized=False),
    )  # fmt: skip
    UNPARSEABLE = (
        "unparseable", "its name is almost a blob's, but breaks the format",
        Consequences("this software did not give it its name"),
    )  # fmt: skip
    FOREIGN = (
        "foreign", "this software did not put it there",
        Consequences("this software did not put it there", is_sized=False),
    )  # fmt: skip
    UNLISTED = (
        "unlisted", "a tombstone names it and it is there, but the listing that should hold it does not: it cannot be trusted",
        Consequences("a tombstone names it", is_doubt=True),
    )  # fmt: skip


def _where(holds: Callable[[Consequences], bool]) -> tuple[FindingClass, ...]:
    return tuple(each for each in FindingClass if each.finding is not None and holds(each.finding))


FINDINGS = _where(lambda _: True)
"""What somebody should look at."""
LOSSES = _where(lambda finding: finding.is_loss)
DOUBTS = _where(lambda finding: finding.is_doubt)
ORPHANS = _where(lambda finding: finding.is_orphan)
ACCUSED = _where(lambda finding: finding.is_accused)
RECLAIMABLE = _where(lambda finding: finding.is_reclaimable)
OF_ROWS = _where(lambda finding: finding.of is Subject.ROW)
LOST_BLOBS = _where(lambda finding: finding.of is Subject.LOST_BLOB)
SIZED = tuple(each for each in FindingClass if each.finding is None or (each.finding.of is Subject.BLOB and each.finding.is_sized))
"""The bytes of each are known, so a sum of 0 is one. Of other classes it means that nobody knows: it is left out."""
IN_USE = (FindingClass.REFERENCED, *_where(lambda finding: finding.is_in_use))
"""Blobs that a live tombstone names, and that `get` gives."""
NAMED_BY_LIVE = (*IN_USE, *_where(lambda finding: finding.is_loss and finding.of is Subject.BLOB))
"""Blobs that are there, and that a live tombstone names, whether `get` gives them or not."""


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

    A fact has a default if a look may not ask for it. The default accuses the blob of nothing.
    """

    form: NameForm
    logged: Logged
    redirected: Redirected
    readable: bool = True
    young: bool = True
    stale: bool = False
    deadline: Deadline = Deadline.AHEAD


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
