"""`manifest.json`: what a run is, and what it found. Version 1.

It is written before the first range is read, with `ended_ns` null, and again at the end. What is fixed at the beginning
(the cut-off, the ranges) never changes. So an interrupted run goes on with the ranges that are missing, and with the
same cut-off. The manifest does not say which ranges are done while it runs: a range is done if and only if its file of
findings is there (`recovery.audit.ledger`).
"""

from __future__ import annotations

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from changelog.base.errors import ConfigurationError, CorruptRecordError
from recovery.audit.verdicts import FINDINGS, Kind

VERSION = 1

OVERDUE_S = 7 * 86_400.0
"""How long after its deadline a blob is called overdue, in seconds.

The lifecycle rule of a bucket as provisioned deletes a blob one day after its deadline, and the service may take
another day or two. An embedded store deletes it an hour after its deadline, if a recovery runs.
"""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Bounds(_Part):
    """The names of blobs from `start` (inclusive) to `end` (exclusive; None: no end), in the byte order of their UTF-8.
    """

    start: str
    end: str | None


class Cutoff(_Part):
    """The cut-off of a run, fixed before the first read.

    `as_of_ns`: that moment by the service's clock, in nanoseconds since 1970. `overdue_s`: how many seconds after its
    deadline a blob is overdue.
    """

    as_of_ns: int
    grace_s: float
    overdue_s: float = OVERDUE_S

    @property
    def created_before_ns(self) -> int:
        """Only what was created before this moment is judged. Nanoseconds since 1970."""
        return self.as_of_ns - round(self.grace_s * 1e9)

    @property
    def overdue_by_ns(self) -> int:
        """A blob whose deadline is not after this moment is overdue. Nanoseconds since 1970."""
        return self.as_of_ns - round(self.overdue_s * 1e9)


class Verify(_Part):
    """Which payloads are read: those of a `share` (above 0, at most 1) of the blobs that live tombstones name.

    `bytes_per_s`: at most so many bytes in a second; None: no limit.
    """

    share: float = 1.0
    bytes_per_s: float | None = None


class Counted(_Part):
    """How many there are, and how many bytes."""

    number: int = 0
    size: int = 0


class Failure(_Part):
    """A range that was not audited, and why, in one sentence."""

    range: int
    error: str


class Prefix(_Part):
    """How many orphans (of both kinds) there are below a prefix of names, and how many bytes."""

    prefix: str
    number: int
    size: int


class StuckEntry(_Part):
    """An entry of the changelog that waits for an operator. `object`: None if the entry cannot be read.

    `since_ms`: since when (Unix milliseconds); None: nobody has parked it yet.
    """

    key: str
    object: str | None
    error: str
    since_ms: int | None


class Manifest(_Part):
    """A run. `inputs`: what was compared, by name (`bucket`, `table`, `changelog`, `directory`, `emulators`).

    Sizes are in bytes.

    `complete`: every range was audited, and nothing makes the evidence doubtful. `doubts` says in sentences what makes
    it doubtful. Nothing may be deleted because of a run that is not complete. `notes`: what else a reader should know.
    """

    version: Literal[1] = 1
    run: str
    inputs: dict[str, str]
    log_is_durable: bool
    cutoff: Cutoff
    ranges: tuple[Bounds, ...]
    engine: str = ""
    versions: dict[str, str] = {}
    """The versions of tiered, python, pyarrow, pyspark and java, if they were used."""
    started_ns: int
    ended_ns: int | None = None
    work_s: float = 0.0
    """The seconds that all calls for this run took together, without the pauses between them."""
    scope: str = ""
    """Only names that begin with this were looked at. Empty: all names."""
    verify: Verify | None = None
    """Which payloads are read. None: none, so nothing is known about the bytes of blobs."""
    names: int = 0
    redirects: int = 0
    entries_max: int = 0
    verified: int = 0
    verified_bytes: int = 0
    """How many blobs were read to their last byte, and how many bytes that were."""
    complete: bool = False
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    names_by_range: tuple[int | None, ...] = ()
    """How many blobs each range held. None: the range was not audited."""
    totals: dict[Kind, Counted] = {}
    usecases: dict[str, dict[Kind, Counted]] = {}
    ages: dict[Kind, tuple[int, ...]] = {}
    """For each kind, how many blobs are in each class of age, in the order of `recovery.audit.finding.AGES`."""
    age_sizes: dict[Kind, tuple[int, ...]] = {}
    """The same, but how many bytes."""
    kept: dict[str, Counted | None] = {}
    """What the service keeps of deleted blobs, `soft_deleted` and `noncurrent`. None: not known; a note says why."""
    stuck: int | None = None
    """How many entries of the changelog were stuck at the end. None: not known."""
    stuck_entries: tuple[StuckEntry, ...] = ()
    """The first of them."""
    prefixes: tuple[Prefix, ...] = ()
    """The prefixes that hold the most bytes of orphans."""

    @property
    def findings(self) -> int:
        return sum(count.number for kind, count in self.totals.items() if kind in FINDINGS)


def parse_manifest(text: bytes, where: str) -> Manifest:
    """Reads a manifest. `where` names the file in errors.

    Raises `CorruptRecordError` if the text is no manifest, and `ConfigurationError` if newer software wrote it.
    """
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptRecordError(f"{where} is no manifest of an audit: {error}") from None
    version = told.get("version") if isinstance(told, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise ConfigurationError(f"{where} is of version {version}, and this software reads {VERSION}: update it")
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        [first, *_] = error.errors(include_url=False)
        place = ".".join(map(str, first["loc"])) or "it"
        raise CorruptRecordError(f"{where} is no manifest of an audit: {place}: {first['msg'].lower()}") from None
