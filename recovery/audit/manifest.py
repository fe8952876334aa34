"""`manifest.json`, what a run is and what came of it; version 1.

Written before the first read, with `ended` null, and once more at the end: what is fixed at the beginning (the cut-off, the ranges)
never changes, so that an interrupted run goes on with the ranges that are missing, by the same cut-off. The ledger is not in here:
a range is done iff its file of findings is there (`recovery.audit.ledger`).
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
    """Names of blobs from `start` (inclusive) to `end` (exclusive; None: no end), in the byte order of their UTF-8."""

    start: str
    end: str | None


class Cutoff(_Part):
    """Fixed before the first read. `as_of_ns`: then, by the service's clock, in nanoseconds since 1970."""

    as_of_ns: int
    grace_s: float

    @property
    def created_before_ns(self) -> int:
        """What is not older is never judged."""
        return self.as_of_ns - round(self.grace_s * 1e9)


class Counted(_Part):
    """How many, and how many bytes."""

    number: int = 0
    size: int = 0


class Failure(_Part):
    """A range that was not audited, and why, in a sentence."""

    range: int
    error: str


class Prefix(_Part):
    """Orphans (of both kinds) below a prefix of names."""

    prefix: str
    number: int
    size: int


class Manifest(_Part):
    """A run. `inputs`: what was compared, by name (`bucket`, `table`, `changelog`, `directory`). Sizes in bytes.

    `complete`: every range was audited and nothing makes the evidence doubtful; `doubts` says in sentences what does. Nothing
    may be deleted on the word of a run that is not complete. `notes`: what else a reader should know.
    """

    version: Literal[1] = 1
    run: str
    inputs: dict[str, str]
    log_is_durable: bool
    cutoff: Cutoff
    ranges: tuple[Bounds, ...]
    engine: str = ""
    versions: dict[str, str] = {}
    """Of what it ran on: tiered, python, pyarrow, pyspark, java."""
    started_ns: int
    ended_ns: int | None = None
    work_s: float = 0.0
    """Seconds that runs of this audit took in all, interruptions left out."""
    names: int = 0
    redirects: int = 0
    entries_max: int = 0
    complete: bool = False
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    names_by_range: tuple[int | None, ...] = ()
    """How many blobs each range held; None: it was not audited."""
    totals: dict[Kind, Counted] = {}
    usecases: dict[str, dict[Kind, Counted]] = {}
    ages: dict[Kind, tuple[int, ...]] = {}
    """Blobs of a kind by class of age, in the order of `recovery.audit.finding.AGES`."""
    prefixes: tuple[Prefix, ...] = ()
    """Where most bytes of orphans are."""

    @property
    def findings(self) -> int:
        return sum(count.number for kind, count in self.totals.items() if kind in FINDINGS)


def parse_manifest(text: bytes, where: str) -> Manifest:
    """Of a file, named in errors. `CorruptRecordError`; `ConfigurationError` where newer software wrote it."""
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
