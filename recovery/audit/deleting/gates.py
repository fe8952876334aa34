"""Whether anything may be deleted because of a run. Each reason why not is one sentence. No I/O.

    refusals(...) -> sentences; none: go on

A gate looks at the run as a whole. It is no proof that a candidate is an orphan: `candidates.py` looks at each again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass

from changelog.base.errors import ConfigurationError
from recovery.audit.files.evidence import Evidence
from recovery.audit.finding import DAY_S
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import differing_inputs
from recovery.display import count, elapsed
from tiered.metadata import NS_PER_S

AGE_MAX_S = 7 * DAY_S
SHARE_MAX = 0.01
NUMBER_MAX = 10_000
AHEAD_MAX_S = 60.0
RATE_PER_S = 200.0


@dataclass(frozen=True, slots=True)
class DeletionRequest:
    """What the person who deletes chooses. `directory`: of the run.

    `at_most`: how many blobs may be deleted; None: not told. `insist`: go on without a changelog.
    `despite_corrupt_rows`: go on although the run found rows that cannot be read. `rate_per_s`: how many blobs a
    second. `quarantine`: a prefix for copies; None: none are kept.
    """

    directory: str
    _: KW_ONLY
    at_most: int | None = None
    insist: bool = False
    despite_corrupt_rows: bool = False
    rate_per_s: float = RATE_PER_S
    quarantine: str | None = None


def check_class(text: str) -> FindingClass:
    """Returns the class. Raises `ConfigurationError` if such findings are never deleted."""
    if text == FindingClass.ORPHAN:
        return FindingClass.ORPHAN
    if (why := next((each.finding.never_deleted for each in FindingClass if each == text and each.finding is not None), None)) is None:
        raise ConfigurationError(f"{text!r} is no class of findings that can be deleted: give --class orphan")
    raise ConfigurationError(f"findings of the class {text} are never deleted, because {why}")


def refusals(
    evidence: Evidence, inputs: Mapping[str, str], request: DeletionRequest, number: int, now_ns: int, *, log_is_durable: bool
) -> Iterator[str]:
    """Yields why nothing may be deleted.

    `inputs`: what the settings name now. `number`: how many candidates there are. `now_ns`: by the service's clock.
    `log_is_durable`: whether the settings name a changelog now.
    """
    manifest = evidence.manifest
    yield from _of_another(manifest.inputs, inputs)
    if not evidence.complete:
        for doubt in evidence.doubts or ("the run is not complete",):
            yield f"the evidence is doubtful: {doubt}; run the audit again"
    age_s = (now_ns - manifest.cutoff.as_of_ns) / NS_PER_S
    if age_s > AGE_MAX_S:
        yield f"the run began {elapsed(age_s)} ago, and after {AGE_MAX_S // DAY_S} days too much has changed: run the audit again"
    if age_s < -AHEAD_MAX_S:
        yield "the run began in the future, by the clock of the service: run the audit again"
    if not manifest.redirects and manifest.ended_ns is not None:
        yield "the run saw not a single tombstone, so it was almost certainly the wrong table: check the settings"
    if not (log_is_durable and manifest.log_is_durable) and not request.insist:
        yield "there is no changelog, so a deletion may fail a change that is under way: insist on it with --insist"
    if (corrupt := manifest.totals.get(FindingClass.CORRUPT_ROW)) and not request.despite_corrupt_rows:
        yield (
            f"the run found {count(corrupt.number, 'row')} that cannot be read, and what only such a row names may be called an orphan:"
            " mend the rows and run the audit again, or say that it is meant with --despite-corrupt-rows"
        )
    yield from _too_many(number, manifest.names, request.at_most)


def _of_another(found: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for key, (was, is_now) in sorted(differing_inputs(found, now).items()):
        what = "bucket" if key == "bucket" else "store"
        yield f"the run is of another {what}: its {key} is {was}, and that of the settings is {is_now}"


def _too_many(number: int, names: int, at_most: int | None) -> Iterator[str]:
    if at_most is not None:
        if number > at_most:
            yield f"the run found {count(number, 'orphan')}, and --at-most says {at_most:,}: give a larger number if all are to be deleted"
        return
    if number > NUMBER_MAX:
        yield f"the run found {count(number, 'orphan')}, more than {NUMBER_MAX:,}: say that it is meant with --at-most {number}"
    elif number > names * SHARE_MAX:
        yield (
            f"the run found {count(number, 'orphan')} among {count(names, 'blob')}, more than {SHARE_MAX:.0%}:"
            f" say that it is meant with --at-most {number}"
        )
