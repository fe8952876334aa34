"""The result of a run in words and figures, for the report and for the terminal.

    verdict(manifest) -> its state (`recovery/states.py`), and one sentence

No sentence claims anything of what was not looked at: payloads that nobody read (`looked`), names outside of the run's
scope (`scoped`), and the rest (`unseen`).

No I/O. Names go through `escape_controls`. So whatever an object is called, its name cannot control a terminal
or change the direction of a line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recovery import states
from recovery.audit.finding_classes import FINDINGS, LOSSES, ORPHANS, FindingClass
from recovery.audit.manifest import Manifest, ManifestTally
from recovery.display import count, elapsed, escape_controls, moment, size, span

GIB = 1024**3
PRICE_DEFAULT = 0.020
"""US dollars per GiB and month: what GCS Standard in one region is assumed to cost."""

SENTENCE_MAX = 240
"""How many characters of a reason a verdict repeats. The text of an error has no limit."""

BY_WEIGHT = tuple(dict.fromkeys([*LOSSES, *ORPHANS, *FINDINGS, *FindingClass]))
"""All classes: findings first, the most serious before the others."""

_LOSSES = {
    FindingClass.DANGLING: ("dangling tombstone names a blob that is gone", "dangling tombstones name blobs that are gone"),
    FindingClass.DESTROYED: ("blob that a live tombstone names cannot be read", "blobs that live tombstones name cannot be read"),
}
_LOST = {
    FindingClass.DANGLING: ("dangling tombstone", "dangling tombstones"),
    FindingClass.DESTROYED: ("live blob that cannot be read", "live blobs that cannot be read"),
}


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """The verdict on a run. `sentence`: the result, shown before everything else."""

    state: states.State
    sentence: str


def verdict(manifest: Manifest, price_per_gib_month: float) -> RunVerdict:
    """Returns the verdict. It names only the most serious result. The table of classes shows the rest."""
    state, sentence = _verdict(manifest, price_per_gib_month)
    return RunVerdict(state, f"{sentence}{scoped(manifest)}")


def _verdict(manifest: Manifest, price_per_gib_month: float) -> tuple[states.State, str]:
    lost, overdue = total(manifest, ORPHANS), total(manifest, [FindingClass.OVERDUE])
    if not manifest.complete:
        found = f" It has {count(manifest.findings, 'finding')}, which may be wrong." if manifest.findings else ""
        if losses(manifest):
            found = f" It found {_lost(manifest, _LOST)}: data loss, if the evidence holds."
        return states.AUDIT_INCOMPLETE, f"Incomplete: {_ended(_short(escape_controls(reasons(manifest)[0])))}{found}"
    if losses(manifest):
        return states.AUDIT_LOSS, f"DATA LOSS: {_lost(manifest, _LOSSES)}."
    if total(manifest, [FindingClass.MIXED_WRITERS]).number:
        return states.AUDIT_FINDINGS, "Other software writes beside this one, so objects can be lost: let only one of them write."
    if lost.number:
        return states.AUDIT_FINDINGS, f"{count(lost.number, 'orphan')}: {size(lost.size)}, {cost(lost.size, price_per_gib_month)}."
    if overdue.number:
        costs = f"{size(overdue.size)}, {cost(overdue.size, price_per_gib_month)}"
        return states.AUDIT_FINDINGS, f"{count(overdue.number, 'expired blob')} that nothing removes: {costs}."
    if unread := unread_rows(manifest):
        return states.AUDIT_FINDINGS, f"{unread} Somebody should look at {_listed(manifest)}."
    if manifest.findings:
        return states.AUDIT_FINDINGS, f"No orphan and no loss was found, but somebody should look at {_listed(manifest)}."
    if not manifest.names and not manifest.redirects:
        return states.AUDIT_CLEAN, "Clean: there is no blob and no tombstone."
    young = total(manifest, [FindingClass.TOO_YOUNG]).number
    blobs, rows = count(max(0, manifest.names - young), "blob"), _references(manifest)
    waits = f"; {count(young, 'blob')} that nothing names {'was' if young == 1 else 'were'} too young to judge" if young else ""
    return states.AUDIT_CLEAN, f"Clean: {blobs} and {rows} are accounted for by name{waits}. {looked(manifest)}"


def consequence(manifest: Manifest, price_per_gib_month: float) -> str:
    """Returns what the verdict means for the reader: is anything lost, and what does it cost?

    It claims nothing of what was not looked at.
    """
    lost = total(manifest, ORPHANS)
    unread = unread_rows(manifest)
    there = f"The blob of every live tombstone that can be read is there. {unread}" if unread else (
        "No loss was found: every live tombstone's blob is there."
    )
    if manifest.references is not None:
        there = f"No loss was found: the blob of every reference of the change feed is there.{f' {unread}' if unread else ''}"
    match verdict(manifest, price_per_gib_month).state:
        case states.AUDIT_INCOMPLETE:
            return "What was found may be wrong, and there may be more. Nothing may be deleted on the word of this run."
        case states.AUDIT_LOSS:
            lose = "Its object cannot be read." if losses(manifest) == 1 else "Their objects cannot be read."
            also = f" Besides, {count(lost.number, 'orphan')}: {size(lost.size)}, {cost(lost.size, price_per_gib_month)}."
            return f"{lose}{also if lost.number else ''}{f' {unread}' if unread else ''} {looked(manifest)}"
        case states.AUDIT_FINDINGS if total(manifest, [FindingClass.MIXED_WRITERS]).number:
            return f"{there} {looked(manifest)} Its writers wipe the marks that keep a late or repeated change from taking effect."
        case states.AUDIT_FINDINGS if lost.number:
            listed = sum(each.size for each in manifest.totals.values())
            share = f" They are {_share(lost.size, listed)} of the bytes in the bucket." if lost.size else ""
            return f"{there} {looked(manifest)} Nobody can read an orphan.{share}"
        case states.AUDIT_FINDINGS if total(manifest, [FindingClass.OVERDUE]).number:
            rule = "Their deadline passed days ago: see whether the bucket has its lifecycle rule (tiered check)."
            if "directory" in manifest.inputs:
                rule = "Their deadline passed days ago: see whether a recovery runs, which removes them (tiered status)."
            return f"{there} {looked(manifest)} {rule}"
        case states.AUDIT_FINDINGS:
            return f"{there} {looked(manifest)} What was found is listed by class."
        case states.AUDIT_CLEAN if total(manifest, [FindingClass.TOO_YOUNG]).number:
            return f"{there} No orphan was found among the blobs that were old enough to judge."
        case states.AUDIT_CLEAN if manifest.names or manifest.redirects:
            return f"{there} No orphan was found, and nothing to reclaim."
        case _:
            return "If there should be, look at what was compared."


def unread_rows(manifest: Manifest) -> str:
    """Returns that some rows cannot be read, and so what they name is not known. Empty: all rows can be read."""
    number = total(manifest, [FindingClass.CORRUPT_ROW]).number
    objects = "its object is" if number == 1 else "their objects are"
    return f"{count(number, 'row')} cannot be read, so it is not known whether {objects} lost." if number else ""


def losses(manifest: Manifest) -> int:
    """Returns how many live objects are lost, as far as it was looked at."""
    return total(manifest, LOSSES).number


def _lost(manifest: Manifest, words: Mapping[FindingClass, tuple[str, str]]) -> str:
    """Returns how many of each class of loss there are. `words`: of one and of several; else the name of the class."""
    counted = [(total(manifest, [each]).number, words.get(each, (_words(each), _words(each)))) for each in LOSSES]
    return " and ".join(f"{number:,} {one if number == 1 else more}" for number, (one, more) in counted if number)


def as_of(manifest: Manifest) -> str:
    """Returns the time that the result is true of. That of a run that went on later is the time when it was begun."""
    begun, grace = moment(manifest.cutoff.as_of_ns), span(manifest.cutoff.grace_s)
    number = manifest.open_uploads or 0
    held = f" {count(number, 'upload')} {_were(number)} open: the parts are in no figure." if number else ""
    return f"As of {begun}; blobs younger than {grace} then were not judged.{held}"


def sourced(manifest: Manifest) -> str:
    """Returns where the references came from, and how old that was, if not from a scan of the rows. Empty: a scan."""
    feed = manifest.references
    if feed is None:
        return ""
    age_s = max(0.0, (manifest.cutoff.as_of_ns - feed.frontier_ns) / 1e9)
    return (
        f"The references came from the change feed (generation {feed.generation}), which was complete up to {moment(feed.frontier_ns)},"
        f" {elapsed(age_s)} before the audit began; besides, {count(manifest.looked_up, 'row')} {_were(manifest.looked_up)} read."
    )


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _references(manifest: Manifest) -> str:
    noun = "tombstone" if manifest.references is None else "reference"
    return count(manifest.redirects, noun) + (" of the change feed" if manifest.references is not None else "")


def looked(manifest: Manifest) -> str:
    """Returns what is known of the payloads, in one sentence."""
    if manifest.verify is None:
        return "No payload was read (--verify reads them)."
    were = "was read and matches its checksum" if manifest.verified == 1 else "were read and match their checksums"
    share = "" if manifest.verify.share >= 1 else f", a share of {manifest.verify.share:.4g}; the others were not read"
    return f"{count(manifest.verified, 'payload')} ({size(manifest.verified_bytes)}) {were}{share}."


def scoped(manifest: Manifest) -> str:
    """Returns, with a space before it, that only a part of the store was looked at. Empty: all of it was."""
    return f" Only names that begin with {escape_controls(manifest.scope)} were looked at." if manifest.scope else ""


def unseen(manifest: Manifest) -> Sequence[str]:
    """Returns what this run says nothing about, each in one sentence."""
    found = []
    if manifest.scope:
        found.append(f"Names that do not begin with {escape_controls(manifest.scope)}.")
    if manifest.verify is None:
        found.append("Payloads: none was read. A blob whose bytes were changed on the disk counts as referenced.")
    elif manifest.verify.share < 1:
        found.append(f"Payloads of live blobs outside of the share of {manifest.verify.share:.4g} that was read.")
    found.append("Who wrote a row, but for some rows of each range: another writer that writes seldom may not be seen.")
    found.append("Payloads of blobs that no live tombstone names, inline objects, and parts of rows that name no blob.")
    if manifest.cutoff.grace_s:
        found.append(f"Blobs that were younger than {span(manifest.cutoff.grace_s)} when the run began: they are counted, and not judged.")
    if manifest.references is not None:
        passed_ns = manifest.references.passed_ns
        since = "" if passed_ns is None else f" ({moment(passed_ns)})"
        found.append(
            "Rows: they were not scanned. So a row that breaks the format is found only if its blob is in doubt. The same holds for a row"
            f" that was changed without an entry of the changelog since the feed last compared all rows{since}."
        )
        found.append("Whether a tombstone has expired whose blob has no deadline: its blob counts as referenced.")
    if "bucket" in manifest.inputs:
        found.append("Upload sessions that are open: a bucket does not list them. It ends them after a week.")
    return found


def reasons(manifest: Manifest) -> Sequence[str]:
    """Returns why a run is not complete. Empty if it is complete."""
    if manifest.complete:
        return ()
    done, all_ = audited(manifest), len(manifest.ranges)
    short = () if done == all_ else (f"{done:,} of {count(all_, 'range')} {'was' if all_ == 1 else 'were'} audited",)
    if manifest.ended_ns is None:
        return (f"the run has not ended, or was interrupted{''.join(f'; {each}' for each in short)}", *manifest.doubts)
    return manifest.doubts or short or ("the evidence is marked as incomplete, and nothing says why",)


def audited(manifest: Manifest) -> int:
    """Returns how many ranges were audited."""
    return sum(names is not None for names in manifest.names_by_range)


def missing(manifest: Manifest) -> Sequence[tuple[int, str]]:
    """Returns the ranges that were not audited, each with the reason."""
    errors = {failure.range: failure.error for failure in manifest.failures}
    done = {number for number, names in enumerate(manifest.names_by_range) if names is not None}
    return [(number, errors.get(number, "not reached")) for number in range(len(manifest.ranges)) if number in errors or number not in done]


def total(manifest: Manifest, classes: Sequence[FindingClass]) -> ManifestTally:
    found = [manifest.totals.get(class_, ManifestTally()) for class_ in classes]
    return ManifestTally(number=sum(each.number for each in found), size=sum(each.size for each in found))


def shown_classes(manifest: Manifest) -> Sequence[FindingClass]:
    """Returns the classes that were found: findings first, the most serious before the others."""
    return [class_ for class_ in BY_WEIGHT if manifest.totals.get(class_, ManifestTally()).number]


# --- figures -------------------------------------------------------------------------------------




def money(size_bytes: int, price_per_gib_month: float) -> str:
    """Returns what so many bytes cost per month: $0; less than $0.01; $1.25; $12,345."""
    dollars = size_bytes / GIB * price_per_gib_month
    if dollars == 0:
        return "$0"
    if dollars < 0.01:
        return "less than $0.01"
    return f"${dollars:,.0f}" if dollars >= 999.5 else f"${dollars:,.2f}"


def cost(size_bytes: int, price_per_gib_month: float) -> str:
    """Returns the same for use in a sentence: about $1.25 a month; less than $0.01 a month; at no cost."""
    cost = money(size_bytes, price_per_gib_month)
    if cost == "$0":
        return "at no cost"
    return f"{cost} a month" if cost.startswith("less") else f"about {cost} a month"




def sentence(text: str) -> str:
    """Returns somebody else's text as a sentence.

    It begins with a capital, ends with a full stop and has no control characters.
    """
    return _ended(escape_controls(text[:1].upper() + text[1:]))


def _short(text: str) -> str:
    return text if len(text) <= SENTENCE_MAX else f"{text[:SENTENCE_MAX]}…"


def _share(part: int, whole: int) -> str:
    percent = 100 * part / whole
    return "less than 0.1 %" if percent < 0.1 else f"{percent:.1f} %"


def _listed(manifest: Manifest) -> str:
    """Returns the findings by class, such as: 3 foreign, 1 corrupt row."""
    return ", ".join(f"{manifest.totals[each].number:,} {_words(each)}" for each in shown_classes(manifest) if each in FINDINGS)


def _words(each: FindingClass) -> str:
    return each.value.replace("_", " ")


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?", "…")) else f"{sentence}."
