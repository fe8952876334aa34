"""What a look at a deployment finds, and what would mend it: the words of `tiered check` and `tiered provision`.

    look at a table, a bucket, …  -->  Notice   ok | note | problem, one sentence, and perhaps a Mend
    carry_out(finding)            -->  Notice   done | planned where there was a mend; all others as they were

A look changes nothing; only a mend does. So a dry run is a look. *Crash* between two mends: the next run finds the
rest. *Failure*: a mend that fails is a problem that says so, and the others are still carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from changelog.base.errors import TieredError


class NoticeKind(StrEnum):
    """What a finding means. `NOTE`: it works, but costs something or could not be verified.

    `PROBLEM`: it must be mended.
    """

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"
    PLANNED = "planned"
    DONE = "done"


class MendFailedError(TieredError):
    """A mend failed. It changed nothing, or all that it should. Never leaves `carry_out`."""


@dataclass(frozen=True, slots=True)
class Mend:
    """A change that would mend something.

    `verb`, such as ("create", "created"), and `what`, such as "the table objects".

    `call` makes the change and blocks. It raises `MendFailedError`.
    """

    verb: tuple[str, str]
    what: str
    call: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Notice:
    """One sentence about a deployment. A problem says what to run, and most notes do."""

    kind: NoticeKind
    sentence: str
    mend: Mend | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Provisioning:
    """What `tiered provision` was asked for. `dry_run`: the notices say what would be done.

    `location`: of a new bucket, such as EU or europe-west1; only a real service needs it. `adopt`: blobs that have no
    owner become this store's. `adopt_from`: so do those of this owner, which no store uses any more. `writer`: the role
    of a database with which services and daemons connect; `reader`: that of whoever only reads.
    """

    dry_run: bool = False
    location: str | None = None
    adopt: bool = False
    adopt_from: str | None = None
    writer: str | None = None
    reader: str | None = None


def findings_of(look: Callable[[], Iterable[Notice]]) -> list[Notice]:
    """All findings of a look, each once. If it ends with an error, that is a problem among them."""
    found: dict[Notice, None] = {}
    try:
        found.update((finding, None) for finding in look())
    except TieredError as error:
        found[Notice(NoticeKind.PROBLEM, str(error))] = None
    return list(found)


def carry_out(finding: Notice, *, dry_run: bool) -> Notice:
    """Makes the finding's mend, if it has one. With `dry_run` it only says what the mend would be."""
    if finding.mend is None:
        return finding
    (would, did), what = finding.mend.verb, finding.mend.what
    if dry_run:
        return Notice(NoticeKind.PLANNED, f"would {would} {what}")
    try:
        finding.mend.call()
    except MendFailedError as error:
        return Notice(NoticeKind.PROBLEM, f"could not {would} {what}: {error}")
    return Notice(NoticeKind.DONE, f"{did} {what}")


def problems(findings: Iterable[Notice]) -> list[str]:
    """The sentences of the findings that are problems."""
    return [finding.sentence for finding in findings if finding.kind is NoticeKind.PROBLEM]


def no_changelog(durable: str) -> Notice:
    """The note that no changelog is kept. `durable`: the value to set."""
    return Notice(NoticeKind.NOTE, f"no changelog is kept, so what a killed process leaves behind stays: set changelog: {durable}")
