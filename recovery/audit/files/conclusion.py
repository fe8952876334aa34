"""What a run writes in its manifest when its ranges have ended: totals, doubts, notes, and where the orphans are.

No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import nlargest

from recovery.audit.finding import AGES, Summary, Tally
from recovery.audit.finding_classes import DOUBTS, NAMED_BY_LIVE, FindingClass
from recovery.audit.manifest import Failure, Manifest, ManifestTally, Prefix, index_not_whole
from recovery.audit.sweeping.beside_blobs import UPLOADS, WRITERS

_NOT_KEPT = {UPLOADS: "which uploads are left", WRITERS: "whether other software writes beside this one"}
"""What besides deleted blobs a summary may say it does not know."""

PREFIXES = 20
PREFIXES_KEPT = 10_000


def conclude(
    manifest: Manifest, summary: Summary, names: Mapping[int, int], failures: tuple[Failure, ...], faults: Iterable[str],
    doubts: Iterable[str] = (),
) -> Manifest:
    """Returns the manifest with everything that was counted.

    `names`: the number of names in each range that is done. `failures`: the ranges that failed. `faults`: sentences
    about files that did not count and were written again. `doubts`: what is wrong with the files that count, and that
    nobody knows whose the blobs are.
    """
    counted = manifest.model_copy(update={"indexed": summary.indexed, "looked_up": summary.looked_up})
    doubts = (*_doubts(counted, summary, failures), *doubts)
    return counted.model_copy(update={
        "names": summary.names,
        "redirects": summary.redirects,
        "entries_max": summary.entries_max,
        "verified": summary.verified,
        "verified_bytes": summary.verified_bytes,
        "complete": not doubts,
        "doubts": doubts,
        "notes": tuple(dict.fromkeys([*manifest.notes, *_notes(manifest, summary, faults)])),
        "failures": failures,
        "names_by_range": tuple(names.get(number) for number in range(len(manifest.ranges))),
        "totals": counted_by_class(summary.totals()),
        "usecases": counted_by_usecase(summary),
        "ages": {class_: tuple(ages[age] for age in range(len(AGES))) for class_, ages in summary.ages.items()},
        "kept": {
            what: None if what in summary.unknown else ManifestTally(number=count.number, size=count.size)
            for what, count in sorted({**dict.fromkeys(summary.unknown, Tally()), **summary.kept}.items()) if what not in _NOT_KEPT
        },
        "age_sizes": {class_: tuple(sizes[age] for age in range(len(AGES))) for class_, sizes in summary.age_sizes.items()},
    })  # fmt: skip


def _doubts(manifest: Manifest, summary: Summary, failures: tuple[Failure, ...]) -> Iterator[str]:
    """Yields the doubts. One is enough to make the evidence incomplete."""
    totals = summary.totals()
    if failures:
        yield f"{len(failures)} of {len(manifest.ranges)} ranges could not be audited; the first: {failures[0].error}"
    for class_ in sorted(DOUBTS):
        if class_ in totals:
            yield f"{totals[class_].number} times {class_}: {class_.meaning}"
    if not failures and (why := index_not_whole(manifest)) is not None:
        yield why
    if not failures and summary.names and not summary.redirects:
        if manifest.scope:
            yield (
                f"there are {summary.names} blobs and not one tombstone below {manifest.scope}: it is the wrong table, or all of these"
                " objects are gone; an audit of the whole store tells which"
            )
        else:
            yield f"there are {summary.names} blobs and not one tombstone: almost certainly the wrong table"
    if not failures and not summary.names and FindingClass.DANGLING in totals:
        yield f"there are {totals[FindingClass.DANGLING].number} tombstones and not one blob: almost certainly the wrong bucket"
    named = any(totals.get(each, Tally()).number for each in NAMED_BY_LIVE)
    if not failures and summary.names and FindingClass.DANGLING in totals and not named:
        yield (
            f"there are {summary.names} blobs, and not one of {summary.redirects} tombstones names any of them:"
            " almost certainly the wrong table, or the wrong bucket"
        )


def _notes(manifest: Manifest, summary: Summary, faults: Iterable[str]) -> Iterator[str]:
    if not manifest.log_is_durable:
        yield "there is no changelog, so only the grace protects a change that is under way"
    if summary.unreadable_max:
        yield (
            f"{summary.unreadable_max} entries of the changelog cannot be read; a blob that only they name may seem to be an orphan"
            " if it is not named after the entry"
        )
    if misfiled := summary.totals().get(FindingClass.MISFILED):
        yield (
            f"{misfiled.number} blobs are named by rows that cannot be read, under keys that are not their objects'; if such a row is far"
            " from its blob, the blob is called an orphan, too, and a deletion spares it"
        )
    if summary.dated_ahead:
        yield f"{summary.dated_ahead} blobs are dated after the audit began: a writer's clock is ahead"
    for what, why in sorted(summary.unknown.items()):
        named = _NOT_KEPT.get(what) or f"how much the service keeps of deleted blobs ({what.replace('_', '-')})"
        yield f"{named} is not known: {why}"
    for fault in faults:
        yield f"{fault}; it did not count, and its range was audited again"


def counted_by_usecase(summary: Summary) -> dict[str, dict[FindingClass, ManifestTally]]:
    return {usecase: counted for usecase, classes in sorted(summary.counts.items()) if (counted := counted_by_class(classes))}


def counted_by_class(classes: Mapping[FindingClass, Tally]) -> dict[FindingClass, ManifestTally]:
    """Returns the counts as the manifest holds them. A class that was not found is left out."""
    counts = ((class_, classes[class_]) for class_ in FindingClass if class_ in classes)
    return {class_: ManifestTally(number=count.number, size=count.size) for class_, count in counts if count.number}


class Prefixes:
    """Finds the prefixes that hold the most bytes, from names given one by one.

    It holds at most `PREFIXES_KEPT` prefixes.

    Up to that many prefixes, the result is exact. With more, it forgets the half with the fewest bytes from time to
    time. Names come in order, so almost only prefixes that would not be shown are lost.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, int]] = {}

    def add(self, name: str, path: str | None, size: int) -> None:
        """Counts a blob of `size` bytes. `path`: the path of its object, or None if the name has no object."""
        prefix = prefix_of(path or name)
        number, total = self._found.get(prefix, (0, 0))
        self._found[prefix] = (number + 1, total + size)
        if len(self._found) > PREFIXES_KEPT:
            self._found = dict(nlargest(PREFIXES_KEPT // 2, self._found.items(), key=_by_size))

    def top(self) -> tuple[Prefix, ...]:
        most = nlargest(PREFIXES, self._found.items(), key=_by_size)
        return tuple(Prefix(prefix=prefix, number=number, size=size) for prefix, (number, size) in most)


def prefix_of(path: str) -> str:
    """Returns the usecase and scopes, `objects/`, and the first segment of the key if the key has more than one.
    """
    before, objects, key = path.partition("/objects/")
    first, slash, _ = key.partition("/")
    return f"{before}{objects}{first}/" if slash else f"{before}{objects}"


def _by_size(item: tuple[str, tuple[int, int]]) -> tuple[int, int]:
    number, size = item[1]
    return size, number
