"""`manifest.json`: what a run is, and what it found. Version 2.

It is written before the first range is read, with `ended_ns` null, and again at the end. What is fixed at the beginning
(the cut-off, the ranges) never changes. So an interrupted run goes on with the ranges that are missing, and with the
same cut-off. The manifest does not say which ranges are done while it runs: a range is done if and only if its file of
findings is there (`recovery.audit.files.ledger`).

`contradictions` says what in a manifest cannot be true. It needs nothing but the manifest. The files beside it are
checked by `recovery.audit.files.evidence`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from changelog.base.errors import ConfigurationError, CorruptRecordError
from recovery.audit.finding_classes import FindingClass

VERSION = 2
RELEASE = re.compile(r"\d[0-9A-Za-z.+-]{0,30}")
"""How a release is called, so that no other text of a file gets into a sentence that names one."""
CLOCKS_NS = 60_000_000_000
"""Two clocks may differ by this much. Times that are in the wrong order by more than this are wrong."""

OVERDUE_S = 7 * 86_400.0
"""How long after its deadline a blob is called overdue, in seconds.

The lifecycle rule of a bucket as provisioned deletes a blob one day after its deadline, and the service may take
another day or two. An embedded store deletes it an hour after its deadline, if a recovery runs.
"""


Time = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""Nanoseconds since 1970. Files and services keep times in 64 bits."""
Seconds = Annotated[float, Field(ge=-1e15, le=1e15, allow_inf_nan=False)]
Number = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""How many, or how many bytes."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Bounds(_Frozen):
    """The names of blobs from `start` (inclusive) to `end` (exclusive; None: no end), in the byte order of their UTF-8.
    """

    start: str
    end: str | None

    def holds(self, name: str) -> bool:
        return self.start <= name and (self.end is None or name < self.end)

    @classmethod
    def of_prefix(cls, prefix: str) -> Self:
        """Returns the bounds of all names that begin with `prefix`."""
        for length in range(len(prefix), 0, -1):
            last = ord(prefix[length - 1])
            if last < sys.maxunicode:
                following = 0xE000 if last == 0xD7FF else last + 1  # the code points between them are no characters
                return cls(start=prefix, end=prefix[: length - 1] + chr(following))
        return cls(start=prefix, end=None)


class Cutoff(_Frozen):
    """The cut-off of a run, fixed before the first read.

    `as_of_ns`: that moment by the service's clock, in nanoseconds since 1970. `overdue_s`: how many seconds after its
    deadline a blob is overdue.
    """

    as_of_ns: Time
    grace_s: Seconds
    overdue_s: Seconds = OVERDUE_S

    @property
    def created_before_ns(self) -> int:
        """Only what was created before this moment is judged. Nanoseconds since 1970."""
        return self.as_of_ns - round(self.grace_s * 1e9)

    @property
    def overdue_by_ns(self) -> int:
        """A blob whose deadline is not after this moment is overdue. Nanoseconds since 1970."""
        return self.as_of_ns - round(self.overdue_s * 1e9)


class Verify(_Frozen):
    """Which payloads are read: those of a `share` (above 0, at most 1) of the blobs that live tombstones name.

    `bytes_per_s`: at most so many bytes in a second; None: no limit.
    """

    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    bytes_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class ManifestTally(_Frozen):
    """How many there are, and how many bytes."""

    number: Number = 0
    size: Number = 0


class Failure(_Frozen):
    """A range that was not audited, and why, in one sentence."""

    range: int
    error: str


class Prefix(_Frozen):
    """How many orphans (of both classes) there are below a prefix of names, and how many bytes."""

    prefix: str
    number: Number
    size: Number


class FeedReferences(_Frozen):
    """The change feed whose published index tells a run the references, instead of a scan of the rows.

    `generation`: of the feed. `store`: the store that the feed names. `frontier_ns`: up to which moment the feed was
    complete when the run began; `passed_ns`: when it had last compared all rows with its index; None: not known. Both
    are nanoseconds since 1970, by the clock of the feed's writer. `live`: how many references the index had then.
    `records`: how many updates the feed had committed then; `last`: how many of them with its last transaction, which
    the index may not have had yet. `age_max_s`: the oldest frontier that was allowed, in seconds.
    """

    generation: Number
    store: str
    frontier_ns: Time
    passed_ns: Time | None
    live: Number
    records: Number
    last: Number
    age_max_s: Seconds


class FeedAtEnd(_Frozen):
    """What the checkpoint of the feed said when the run ended: as in `FeedReferences`."""

    live: Number
    records: Number


class ManifestPart(_Frozen):
    """A file of findings that the run counted. A range is one part, or several if it was too long for one task.

    `file`: its name below `findings/`. `range`: the number of its range. `start`, `end`: the names that it audited, as
    in `Bounds`. `names`: how many blobs were listed there. `rows`: how many findings it holds. `sha256`: the checksum
    in its footer, which covers its rows and what the footer says of them.
    """

    file: str
    range: int
    start: str
    end: str | None
    names: Number
    rows: Number
    sha256: str


class ManifestStuckEntry(_Frozen):
    """An entry of the changelog that waits for an operator. `object`: None if the entry cannot be read.

    `since_ms`: since when (Unix milliseconds); None: nobody has parked it yet.
    """

    key: str
    object: str | None
    error: str
    since_ms: Number | None


def differing_inputs(was: Mapping[str, str], now: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Tells whether two `inputs` are of one store: empty if they are. Otherwise what differs: by key, was and now."""
    return {key: (was.get(key, "not set"), now.get(key, "not set")) for key in {**was, **now} if was.get(key) != now.get(key)}


class Manifest(_Frozen):
    """A run. `inputs`: what was compared, by name (`bucket`, `table`, `changelog`, `directory`, `emulators`).

    Sizes are in bytes.

    `complete`: every range was audited, and nothing makes the evidence doubtful. `doubts` says in sentences what makes
    it doubtful. Nothing may be deleted because of a run that is not complete. `notes`: what else a reader should know.
    """

    version: Literal[2] = 2
    run: str
    inputs: dict[str, str]
    log_is_durable: bool
    references: FeedReferences | None = None
    """None: the rows were scanned."""
    feed_at_end: FeedAtEnd | None = None
    """None: the rows were scanned, the run has not ended, or the feed could not be read then."""
    cutoff: Cutoff
    ranges: tuple[Bounds, ...]
    engine: str = ""
    versions: dict[str, str] = {}
    """The versions of tiered, python, pyarrow, pyspark and java, if they were used."""
    started_ns: Time
    ahead_ns: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] = 0
    """How far the clock of the machine that began the run was ahead of the service's. `started_ns` is by that clock."""
    ended_ns: Time | None = None
    work_s: Annotated[Seconds, Field(ge=0)] = 0.0
    """The seconds that all calls for this run took together, without the pauses between them."""
    scope: str = ""
    """Only names that begin with this were looked at. Empty: all names."""
    verify: Verify | None = None
    """Which payloads are read. None: none, so nothing is known about the bytes of blobs."""
    names: Number = 0
    redirects: Number = 0
    indexed: Number = 0
    looked_up: Number = 0
    """With a feed: how many references its index had, and how many rows were read beside it."""
    entries_max: Number = 0
    verified: Number = 0
    verified_bytes: Number = 0
    """How many blobs were read to their last byte, and how many bytes that were."""
    complete: bool = False
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    names_by_range: tuple[Number | None, ...] = ()
    """How many blobs each range held. None: the range was not audited to its end."""
    parts: tuple[ManifestPart, ...] = ()
    """The files that the counts are from, in the order of names."""
    totals: dict[FindingClass, ManifestTally] = {}
    usecases: dict[str, dict[FindingClass, ManifestTally]] = {}
    ages: dict[FindingClass, tuple[Number, ...]] = {}
    """For each class, how many blobs are of each age, in the order of `recovery.audit.finding.AGES`."""
    age_sizes: dict[FindingClass, tuple[Number, ...]] = {}
    """The same, but how many bytes."""
    kept: dict[str, ManifestTally | None] = {}
    """What the service keeps of deleted blobs, `soft_deleted` and `noncurrent`. None: not known; a note says why."""
    stuck: Number | None = None
    """How many entries of the changelog were stuck at the end. None: not known."""
    stuck_entries: tuple[ManifestStuckEntry, ...] = ()
    """The first of them."""
    open_uploads: Number | None = None
    """How many uploads were open at the end: their parts are no blobs yet. None: not known."""
    prefixes: tuple[Prefix, ...] = ()
    """The prefixes that hold the most bytes of orphans."""

    @property
    def findings(self) -> int:
        return sum(count.number for class_, count in self.totals.items() if class_.finding is not None)


def parse_manifest(text: bytes, where: str) -> Manifest:
    """Reads a manifest. `where` names the file in errors.

    Raises `CorruptRecordError` if the text is no manifest, and `ConfigurationError` if it is of another version.
    """
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptRecordError(f"{where} is no manifest of an audit: {error}") from None
    version = fields.get("version") if isinstance(fields, dict) else None
    if isinstance(version, int) and version > VERSION:
        told = fields.get("versions")
        by = told.get("tiered") if isinstance(told, dict) else None
        to = f" to tiered {by} or later" if isinstance(by, str) and RELEASE.fullmatch(by) else ""
        raise ConfigurationError(f"{where} is of version {version}, and this software reads {VERSION}: update it{to}")
    if version == 1:
        raise ConfigurationError(f"{where} is of version 1, of older software, and this software reads {VERSION}: run the audit anew")
    if isinstance(fields, dict) and fields.pop("inventory", None) is not None:
        raise ConfigurationError(f"{where} took its blobs from an inventory report, which this software does not read: run the audit anew")
    try:
        return Manifest.model_validate_json(json.dumps(fields))  # which refuses what no JSON can hold
    except ValidationError as error:
        [first, *_] = error.errors(include_url=False)
        place = ".".join(map(str, first["loc"])) or "it"
        raise CorruptRecordError(f"{where} is no manifest of an audit: {place}: {first['msg'].lower()}") from None


# --- what cannot be true ---------------------------------------------------------------------------


def contradictions(manifest: Manifest, now_ns: int) -> Iterator[str]:
    """Yields a sentence for everything in the manifest that cannot be true.

    `now_ns`: the time in nanoseconds since 1970, by the service's clock if the caller knows it.
    """
    yield from _untiled(manifest.ranges, Bounds.of_prefix(manifest.scope))
    yield from _untimely(manifest, now_ns)
    if manifest.ended_ns is not None:
        yield from _miscounted(manifest)


def _untiled(ranges: tuple[Bounds, ...], scope: Bounds) -> Iterator[str]:
    """Every name of the run's scope must be in exactly one range, and the ranges must be in order."""
    if not ranges:
        yield "the manifest has no ranges"
        return
    if ranges[0].start != scope.start:
        yield f"its ranges begin at {ranges[0].start!r}, and its scope at {scope.start!r}: no range holds the names before"
    if ranges[-1].end != scope.end:
        yield f"its ranges end at {ranges[-1].end!r}, and its scope at {scope.end!r}: no range holds the names after that"
    for number, each in enumerate(ranges):
        if each.end is not None and each.end <= each.start:
            yield f"its range {number} ends at {each.end!r}, before it begins at {each.start!r}"
    for number, (each, following) in enumerate(pairwise(ranges)):
        if each.end is None or following.start < each.end:
            yield f"its ranges {number} and {number + 1} overlap at {following.start!r}"
        elif following.start > each.end:
            yield f"its ranges {number} and {number + 1} leave a gap between {each.end!r} and {following.start!r}"


def _untimely(manifest: Manifest, now_ns: int) -> Iterator[str]:
    cutoff = manifest.cutoff
    begun_ns = manifest.started_ns - manifest.ahead_ns  # by the service's clock
    if cutoff.grace_s < 0:
        yield f"its grace is {cutoff.grace_s} seconds"
    if cutoff.as_of_ns > now_ns + CLOCKS_NS:
        yield "its cut-off lies in the future: blobs that were not old enough may be called orphans"
    if cutoff.as_of_ns > begun_ns + CLOCKS_NS:
        yield "its cut-off was fixed after the run began: blobs that were being written may be called orphans"
    if manifest.started_ns > now_ns + abs(manifest.ahead_ns) + CLOCKS_NS:
        yield "it began in the future"
    if manifest.ended_ns is not None and manifest.ended_ns < manifest.started_ns - CLOCKS_NS:
        yield "it ended before it began"
    feed = manifest.references
    if feed is not None and cutoff.as_of_ns - feed.frontier_ns > feed.age_max_s * 1e9 + CLOCKS_NS:
        yield "the feed that its references came from was older than it allows"
    if feed is not None and feed.frontier_ns > cutoff.as_of_ns + 2 * CLOCKS_NS:
        yield "the feed that its references came from was complete up to a moment after the run began"


def index_not_whole(manifest: Manifest) -> str | None:
    """Returns why the index of the feed cannot be trusted: it did not have as many references as its writer counts.

    None: there is no feed, or nothing is wrong with it. While the audit reads, the feed goes on. So the numbers may
    differ by as many updates as it has committed meanwhile, and by its last transaction before that. Of a part of all
    names nobody counts the references.
    """
    began, ended = manifest.references, manifest.feed_at_end
    if began is None or manifest.scope:
        return None
    if ended is None:
        return "the change feed could not be read at the end, so it is not known whether its index was whole"
    committed = ended.records - began.records
    if committed < 0 or abs(manifest.indexed - began.live) > committed + began.last:
        return (
            f"the index of the change feed had {manifest.indexed} references, and its writer counts {began.live}, with"
            f" {max(0, committed)} updates during the audit: a part of the index is lost, so begin a new generation of the feed, or scan"
            " the rows"
        )
    return None


def _miscounted(manifest: Manifest) -> Iterator[str]:
    counted = [number for number, names in enumerate(manifest.names_by_range) if names is not None]
    if len(manifest.names_by_range) != len(manifest.ranges):
        yield f"it has {len(manifest.ranges)} ranges, and counts the names of {len(manifest.names_by_range)}"
    if manifest.complete and (manifest.doubts or manifest.failures or len(counted) != len(manifest.ranges)):
        yield "it is marked as complete, and names ranges that were not audited, or doubts"
    if manifest.complete and (why := index_not_whole(manifest)) is not None:
        yield why
    if manifest.names != sum(part.names for part in manifest.parts):
        yield f"it counts {manifest.names} blobs, and its files {sum(part.names for part in manifest.parts)}"
