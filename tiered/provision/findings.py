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
from typing import Any

from changelog.base.errors import TieredError

CLOCK_APART_S = 300.0
"""How far the clock of a service may be from this machine's, in seconds, before a note says so."""


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

    `call` makes the change. It blocks, or is awaited where the look is. It raises `MendFailedError`.
    """

    verb: tuple[str, str]
    what: str
    call: Callable[[], Any]

    def planned(self) -> Notice:
        return Notice(NoticeKind.PLANNED, f"would {self.verb[0]} {self.what}")

    def done(self) -> Notice:
        return Notice(NoticeKind.DONE, f"{self.verb[1]} {self.what}")

    def failed(self, error: TieredError) -> Notice:
        return problem(f"could not {self.verb[0]} {self.what}: {error}")


@dataclass(frozen=True, slots=True)
class Notice:
    """One sentence about a deployment. A problem says what to run, and most notes do.

    `lasts`: a note that says the same at each look, until a service gets another version.
    """

    kind: NoticeKind
    sentence: str
    mend: Mend | None = field(default=None, compare=False, repr=False)
    lasts: bool = field(default=False, compare=False)


def ok(sentence: str) -> Notice:
    return Notice(NoticeKind.OK, sentence)


def note(sentence: str, mend: Mend | None = None) -> Notice:
    return Notice(NoticeKind.NOTE, sentence, mend)


def problem(sentence: str, mend: Mend | None = None) -> Notice:
    return Notice(NoticeKind.PROBLEM, sentence, mend)


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
        found[problem(str(error))] = None
    return list(found)


def carry_out(finding: Notice, *, dry_run: bool) -> Notice:
    """Makes the finding's mend, if it has one. With `dry_run` it only says what the mend would be."""
    if finding.mend is None:
        return finding
    if dry_run:
        return finding.mend.planned()
    try:
        finding.mend.call()
    except MendFailedError as error:
        return finding.mend.failed(error)
    return finding.mend.done()


def problems(findings: Iterable[Notice]) -> list[str]:
    """The sentences of the findings that are problems."""
    return [finding.sentence for finding in findings if finding.kind is NoticeKind.PROBLEM]


def clocks_apart(what: str, service_ns: int, ours_ns: int) -> list[Notice]:
    """A note if two clocks are far apart. `what`: whose the other one is. Times are nanoseconds since 1970."""
    apart_s = abs(service_ns - ours_ns) / 1e9
    if apart_s <= CLOCK_APART_S:
        return []
    return [note(
        f"the clock of {what} and that of this machine are {apart_s:.0f} s apart: set both right, because objects expire by the one and"
        " are judged expired by the other"
    )]  # fmt: skip


def no_changelog(durable: str) -> Notice:
    """The note that no changelog is kept. `durable`: the value to set."""
    return note(f"no changelog is kept, so what a killed process leaves behind stays: set changelog: {durable}")
