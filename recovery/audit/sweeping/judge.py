"""Judges blobs and rows by what was read of them, counts them, and writes down the findings. No reads.

    Judge.suspects       the first look: judges what no row names; returns what must be looked at again
    Judge.conclude       what a blob is found to be
    Judge.judge_missing, Judge.judge_broken, Judge.note_corrupt_rows    the other findings

Which facts make which class is decided in `recovery.audit.finding_classes`. `second_look.py` gathers the facts again
before a blob is accused.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from changelog.base.errors import CorruptRecordError
from changelog.base.runtime import Runtime
from changelog.change import ChangeId
from recovery.audit.finding import NO_USECASE, Finding, FindingDraft, Summary, Tally
from recovery.audit.finding_classes import (
    ACCUSED,
    ORPHANS,
    Deadline,
    Facts,
    FindingClass,
    Logged,
    MissingBlob,
    NameForm,
    Redirected,
    classify,
    classify_missing,
)
from recovery.audit.manifest import Cutoff
from recovery.audit.names import ParsedName, is_of, read_name, usecase_of
from recovery.audit.sweeping.tier_reads import Head
from recovery.audit.sweeping.window import LoggedNames, Window
from tiered.metadata import NS_PER_MS, NS_PER_S
from tiered.services.backends import BlobHead
from tiered.services.scans import BlobInfo, CorruptRow, ListedBlob, Oddity, Redirect, RedirectPage

FindingSink = Callable[[Sequence[Finding]], None]

FLUSHED_AT = 1000
"""So many findings are held back before the sink gets them. Most calls would have one finding otherwise."""

UPLOAD_STALE_NS = 8 * 86_400 * NS_PER_S
"""A part of an upload that is older than this belongs to none that can be finished: a session lives a week."""

LISTED_AFTER_NS = 3600 * NS_PER_S
"""A blob that was created this long before the audit began was visible to the listing, however slow its writer was."""

SKEW_MAX_NS = 60 * NS_PER_S
"""A clock that differs by more than this is wrong."""

AHEAD_NS = 3600 * NS_PER_S
"""A blob is counted as `dated_ahead` if its date lies more than this in the future."""

_NAME, _SIZE = attrgetter("name"), attrgetter("size")


class SuspectBlob(NamedTuple):
    """A blob that gets a second look, and what was known after the first one."""

    blob: BlobInfo
    reading: ParsedName
    facts: Facts


class Judge:
    """`sink` is called with findings as they are found; `flush` calls it with those that are held back."""

    def __init__(self, cutoff: Cutoff, runtime: Runtime, sink: FindingSink) -> None:
        self.summary = Summary()
        self.cutoff = cutoff
        self._young_from_ns = cutoff.created_before_ns
        self._runtime = runtime
        self._sink = sink
        self._held: list[Finding] = []
        self._ahead_ns = 0

    # --- clocks ----------------------------------------------------------------------------------

    def set_service_time(self, asked_ns: int, service_ns: int) -> None:
        """Notes how far this machine's clock is ahead of the service's. `asked_ns`: when it was asked, by our clock.

        A small difference counts as none: the service's clock has whole seconds, and the question takes time itself.
        """
        ahead_ns = asked_ns - service_ns
        self._ahead_ns = ahead_ns if ahead_ns > SKEW_MAX_NS else 0

    def has_expired(self, deadline_ns: int | None) -> bool:
        """Tells whether the deadline has passed by now, by the service's clock.

        The start of the audit is not enough: an audit may take longer than a bucket keeps what has expired.
        """
        return deadline_ns is not None and deadline_ns <= max(self.cutoff.as_of_ns, self._runtime.wall_ns() - self._ahead_ns)

    def deadline(self, deadline_ns: int | None) -> Deadline:
        if deadline_ns is None or not self.has_expired(deadline_ns):
            return Deadline.AHEAD
        return Deadline.OVERDUE if deadline_ns <= self.cutoff.overdue_by_ns else Deadline.PASSED

    def redirected(self, row: Redirect | None) -> Redirected:
        if row is None:
            return Redirected.NOT
        return Redirected.EXPIRED if self.has_expired(row.deadline_ns) else Redirected.LIVE

    # --- what was listed -------------------------------------------------------------------------

    def count_listed(self, window: Window) -> None:
        """Counts each blob as referenced. Later steps correct the count for those that are not.

        A blob that cannot be read is a name like the others. It is counted when it is judged.
        """
        blobs, first = window.blobs, 0
        self.summary.names += len(blobs) + len(window.broken)
        while first < len(blobs):
            usecase = usecase_of(blobs[first].name)
            # All names of a usecase are next to each other, up to `{usecase}0`, because 0 comes right after the slash.
            last = first + 1 if usecase == NO_USECASE else bisect_left(blobs, f"{usecase}0", lo=first + 1, key=_NAME)
            self.summary.count(usecase, FindingClass.REFERENCED, last - first, sum(map(_SIZE, blobs[first:last])))
            first = last

    def count(self, blob: BlobInfo) -> None:
        """Assumes of one blob what `count_listed` assumes of many: that a live tombstone names it."""
        self.summary.count(usecase_of(blob.name), FindingClass.REFERENCED, 1, blob.size)

    def uncount(self, blob: BlobInfo) -> None:
        """Takes back what `count_listed` or `count` assumed of this blob."""
        self.summary.count(usecase_of(blob.name), FindingClass.REFERENCED, -1, -blob.size)

    def note_foreign(self, window: Window, oddities: Iterable[Oddity]) -> None:
        for oddity in oddities:
            if not oddity.is_blob:
                self._add(window, FindingDraft(
                    class_=FindingClass.FOREIGN, name=oddity.name, size=oddity.size, created_ns=oddity.created_ns, detail=oddity.fault
                ))  # fmt: skip

    # --- blobs -----------------------------------------------------------------------------------

    def suspects(self, window: Window, logged: LoggedNames) -> list[SuspectBlob]:
        """Judges the blobs that no row names, and those that only an expired tombstone names.

        Returns those that seem to be orphans or overdue: they are not judged yet.
        """
        for name in window.misfiled:
            window.unnamed.pop(name, None)
            window.named_by_expired.pop(name, None)
        suspects: list[SuspectBlob] = []
        for redirected, blobs in ((Redirected.EXPIRED, window.named_by_expired), (Redirected.NOT, window.unnamed)):
            for name, listed in blobs.items():
                reading, blob = read_name(name), _with_times(listed)
                date_ns = _date_ns(reading.revision, blob.created_ns)
                facts = self._facts(blob, reading, logged, redirected, date_ns)
                if classify(facts) in ACCUSED:
                    suspects.append(SuspectBlob(blob, reading, facts))
                else:
                    self.conclude(window, blob, reading, classify(facts))
                if date_ns > window.listed_ns + AHEAD_NS:
                    self.summary.dated_ahead += 1
        return suspects

    def classify(self, blob: BlobInfo, reading: ParsedName, logged: LoggedNames, redirected: Redirected) -> FindingClass:
        return classify(self._facts(blob, reading, logged, redirected, _date_ns(reading.revision, blob.created_ns)))

    def _facts(self, blob: BlobInfo, reading: ParsedName, logged: LoggedNames, redirected: Redirected, date_ns: int) -> Facts:
        return Facts(
            form=reading.form,
            logged=logged.of(blob.name, reading.revision),
            redirected=redirected,
            young=date_ns >= self._young_from_ns,
            stale=reading.form is NameForm.UPLOAD and blob.created_ns < self.cutoff.as_of_ns - UPLOAD_STALE_NS,
            deadline=self.deadline(blob.deadline_ns),
        )

    def conclude(self, window: Window, blob: BlobInfo, reading: ParsedName, class_: FindingClass, confirmed_ns: int | None = None) -> None:
        """Counts the blob as what it is, and no longer as referenced. `confirmed_ns`: when it was looked at again."""
        if class_ is FindingClass.REFERENCED:
            return
        self.uncount(blob)
        self.summary.age(class_, (self.cutoff.as_of_ns - blob.created_ns) / NS_PER_S, blob.size)
        if class_.finding is None:
            self.summary.count(usecase_of(blob.name), class_, 1, blob.size)
            return
        self._add(window, FindingDraft(
            class_=class_, name=blob.name, object=reading.object, revision=reading.revision, size=blob.size, created_ns=blob.created_ns,
            generation=blob.generation, deadline_ns=blob.deadline_ns, detail=self._why(class_, blob), confirmed_ns=confirmed_ns,
        ))  # fmt: skip

    def accuse(self, window: Window, accused: Sequence[tuple[BlobInfo, ParsedName, FindingClass]], confirmed_ns: int) -> None:
        """Does what `conclude` does for these blobs, and counts them together: they may be most of a window."""
        listed_ns, logged_ns, scanned_ns, as_of_ns = window.listed_ns, window.logged_ns, window.scanned_ns, self.cutoff.as_of_ns
        counts: dict[tuple[str, FindingClass], Tally] = {}
        for blob, reading, class_ in accused:
            name, size, created_ns, deadline_ns = blob.name, blob.size, blob.created_ns, blob.deadline_ns
            key = usecase_of(name), class_
            if key not in counts:
                counts[key] = Tally()
            counts[key].add(1, size)
            self.summary.age(class_, (as_of_ns - created_ns) / NS_PER_S, size)
            self._held.append(Finding(
                class_, name, reading.object, reading.revision, size, created_ns, deadline_ns, blob.generation, self._why(class_, blob),
                listed_ns, logged_ns, scanned_ns, confirmed_ns,
            ))  # fmt: skip
        for (usecase, class_), count in counts.items():
            self.summary.count(usecase, FindingClass.REFERENCED, -count.number, -count.size)
            self.summary.count(usecase, class_, count.number, count.size)
        self.flush()

    def _why(self, class_: FindingClass, blob: BlobInfo) -> str:
        if class_ is FindingClass.OVERDUE:
            days = (self.cutoff.as_of_ns - (blob.deadline_ns or 0)) // (86_400 * NS_PER_S)
            return f"its deadline passed {days} days before the audit began"
        return "no tombstone and no entry of the changelog names it" if class_ in ORPHANS else ""

    # --- blobs that are missing, or that cannot be read --------------------------------------------

    def judge_missing(
        self, window: Window, redirect: Redirect, head: Head, named: Mapping[str, Redirect], confirmed_ns: int, *,
        never_listed: bool = False,
    ) -> None:  # fmt: skip
        """Judges a tombstone whose blob was not listed. `head`: the blob now. `named`: the tombstones now, by blob.

        `never_listed`: it was not listed either when this was asked for once more, after it was seen.
        """
        path, target, deadline_ns = redirect
        seen = head if isinstance(head, BlobHead) else None
        now = named.get(target)
        class_ = classify_missing(MissingBlob(
            expired=now is not None and self.has_expired(now.deadline_ns),
            there=head is not None,
            readable=seen is not None,
            listable=seen is not None and (never_listed or self._was_listable(seen)),
            shown=now is not None,
        ))  # fmt: skip
        if class_ is None:
            return
        if class_.finding is None:
            self.summary.count(usecase_of(path), class_, 1, 0 if seen is None else seen.size)
            return
        detail = "its row names it, and it is not there" if head is None else "it is there, and was not listed"
        if isinstance(head, CorruptRecordError):
            detail = str(head)
        draft = FindingDraft(
            class_=class_, name=target, object=path, revision=read_name(target).revision, deadline_ns=deadline_ns, detail=detail,
            confirmed_ns=confirmed_ns,
        )  # fmt: skip
        if seen is not None:
            draft.size, draft.created_ns, draft.generation = seen.size, seen.created_ns, seen.generation
        self._add(window, draft)

    def _was_listable(self, head: BlobHead) -> bool:
        """Tells whether the blob was there so long before the audit began that every listing must hold it.

        The writer's clock alone proves nothing: if it is behind, a new blob seems to be old.
        """
        there_ns = max(head.created_ns, head.changed_ns or 0)
        return there_ns < min(self.cutoff.created_before_ns, self.cutoff.as_of_ns - LISTED_AFTER_NS)

    def judge_broken(
        self, window: Window, oddity: Oddity, row: Redirect | None, logged: LoggedNames, row_is_corrupt: bool, confirmed_ns: int,
        shown: Mapping[str, Any],
    ) -> bool:  # fmt: skip
        """Judges a blob that has a fault. Returns whether it is a finding; if not, it is not counted.

        If it cannot be read, it is lost if a live tombstone names it, otherwise garbage.

        `row`: its tombstone. `row_is_corrupt`: a row that may name it cannot be read. `shown`: the fault among `Facts`.
        """
        reading = read_name(oddity.name)
        garbage = self._why_garbage(reading, oddity.name, logged, self.redirected(row), row_is_corrupt)
        class_ = classify(Facts(reading.form, Logged.NOT, Redirected.NOT if garbage else Redirected.LIVE, **shown))
        if class_.finding is None:
            return False
        self._add(window, FindingDraft(
            class_=class_, name=oddity.name, object=reading.object if row is None else row.path, revision=reading.revision,
            size=oddity.size, created_ns=oddity.created_ns, generation=oddity.generation,
            deadline_ns=None if row is None else row.deadline_ns,
            detail=f"{oddity.fault}; {garbage}" if garbage else oddity.fault, confirmed_ns=confirmed_ns,
        ))  # fmt: skip
        return True

    def _why_garbage(self, reading: ParsedName, name: str, logged: LoggedNames, redirected: Redirected, row_is_corrupt: bool) -> str:
        """Returns who names a blob that has a fault, in words. Empty: a live tombstone, so the blob is lost."""
        if redirected is Redirected.LIVE:
            return ""
        if row_is_corrupt:
            return "the row of its object is corrupt, so nobody can tell whether it names it"
        if logged.of(name, reading.revision) is not Logged.NOT:
            return "an entry of the changelog names it"
        return "nothing names it" if redirected is Redirected.NOT else "only an expired tombstone names it"

    # --- rows ------------------------------------------------------------------------------------

    def note_corrupt_rows(self, window: Window, page: RedirectPage) -> None:
        """Writes down which rows of the page are damaged, and which name a blob that is not their own."""
        for row in page.corrupt:
            self._row(window, FindingClass.CORRUPT_ROW, row)
            if (name := misfiled(row)) is not None:
                window.misfiled.add(name)
                reading = read_name(name)
                self._add(window, FindingDraft(
                    class_=FindingClass.MISFILED, name=name, object=reading.object, revision=reading.revision,
                    detail=f"the row {row.path} names it, which nobody finds by its key; {row.fault}",
                ))  # fmt: skip
        for path, target, _ in page.redirects:
            if not target.startswith(f"{path}/") and not is_of(path, target):
                self._row(window, FindingClass.MISDIRECTED, CorruptRow(path, f"it names {target!r}, a blob that is not its own"))

    def _row(self, window: Window, class_: FindingClass, row: CorruptRow) -> None:
        self._add(window, FindingDraft(class_=class_, name=row.path, object=row.path, detail=row.fault))

    # --- findings --------------------------------------------------------------------------------

    def _add(self, window: Window, draft: FindingDraft) -> None:
        self.summary.count(usecase_of(draft.name), draft.class_, 1, draft.size or 0)
        self._held.append(draft.read_at(window.listed_ns, window.logged_ns, window.scanned_ns))
        if len(self._held) >= FLUSHED_AT:
            self.flush()

    def flush(self) -> None:
        if self._held:
            self._sink(self._held)
            self._held = []


def misfiled(row: CorruptRow) -> str | None:
    """Returns the blob that a damaged row names, if the row is not at the key of the blob's object.

    A blob at the key of its object needs no such care: if that row is damaged, the blob is accused of nothing.
    """
    if row.target is None or is_of(row.path, row.target) or read_name(row.target).object is None:
        return None
    return row.target


def _date_ns(revision: ChangeId | None, created_ns: int) -> int:
    """Returns the later of two times: the blob's creation (service's clock) and its change's id (writer's clock)."""
    return created_ns if revision is None else max(created_ns, revision.created_ms * NS_PER_MS)


def _with_times(blob: BlobInfo) -> ListedBlob:
    """Returns the blob with its times decoded, because a verdict asks for them several times."""
    if isinstance(blob, ListedBlob):
        return blob
    return ListedBlob(blob.name, blob.size, blob.created_ns, blob.deadline_ns, blob.generation)
