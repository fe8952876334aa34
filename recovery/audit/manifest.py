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


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Bounds(_Part):
    """The names of blobs from `start` (inclusive) to `end` (exclusive; None: no end), in the byte order of their UTF-8.
    """

    start: str
    end: str | None


class Cutoff(_Part):
    """The cut-off of a run, fixed before the first read.

    `as_of_ns`: that moment by the service's clock, in nanoseconds since 1970.
    """

    as_of_ns: int
    grace_s: float

    @property
    def created_before_ns(self) -> int:
        """Only what was created before this moment is judged. Nanoseconds since 1970."""
        return self.as_of_ns - round(self.grace_s * 1e9)


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


class Inventory(_Part):
    """The inventory report from which a run took its blobs, instead of listing the bucket.

    `report`: its manifest. `snapshot_ns`: the moment that it shows, in nanoseconds since 1970. `records`: its rows.
    `export`: where the rows of the table came from; None: from the table itself. `notes`: what was odd about it.
    """

    report: str
    snapshot_ns: int
    records: int
    export: str | None = None
    notes: tuple[str, ...] = ()


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
    inventory: Inventory | None = None
    """None: the bucket was listed."""
    cutoff: Cutoff
    ranges: tuple[Bounds, ...]
    engine: str = ""
    versions: dict[str, str] = {}
    """The versions of tiered, python, pyarrow, pyspark and java, if they were used."""
    started_ns: int
    ended_ns: int | None = None
    work_s: float = 0.0
    """The seconds that all calls for this run took together, without the pauses between them."""
    names: int = 0
    redirects: int = 0
    entries_max: int = 0
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
