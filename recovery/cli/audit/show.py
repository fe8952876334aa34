"""`tiered audit show NAME`: show all that is known about one object or blob, now. Without NAME: what a run found lost.

Exit codes: 0 nothing is wrong with it, 1 something shown is a finding, 2 it could not be found out, or the run of
`--from` is not complete or its evidence is doubtful.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import anyio

from changelog.base.runtime import SystemRuntime
from recovery.audit.finding_classes import IN_USE, LOSSES
from recovery.audit.manifest import Cutoff
from recovery.audit.reporting.one_name import (
    BLOBS_MAX,
    PAYLOAD_MAX,
    LookedBlob,
    LookedRow,
    NameReport,
    RunRecord,
    look_at,
    told_by,
    verdict,
)
from recovery.audit.sweeping.verify import READ_BUDGET_S
from recovery.cli.output import dump, write
from recovery.cli.shared import lifetime, say
from recovery.display import count, escape_controls, moment, size, span
from tiered.open import open_backends
from tiered.services.retry import retry_read
from tiered.settings import Settings

if TYPE_CHECKING:
    from recovery.audit.files.evidence import Evidence
    from recovery.audit.files.ledger import RunDirectory

NOTHING_WRONG, A_FINDING, DOUBTFUL = 0, 1, 2
GRACE = "24h"
DOUBTS_MAX = 10


def show_name(settings: Settings, name: str, run: str | None, grace: str | None, verify: bool, as_json: bool) -> int:
    """Looks at one name, prints what was found, and returns the exit code.

    `run`: the directory of an audit's run, whose findings are shown as well, or None. `verify`: read payloads of any
    size.
    """
    record = None if run is None else _run_record(run, name, settings)
    grace_s = record.grace_s if record is not None and grace is None else lifetime(grace or GRACE).total_seconds()
    looked = anyio.run(_look, settings, name, grace_s, verify)
    show_looked(looked, record, as_json)
    if record is not None and not record.complete:
        return DOUBTFUL
    return A_FINDING if looked.findings else NOTHING_WRONG


def show_losses(settings: Settings, where: str, as_json: bool) -> int:
    """Prints a line for each object that this run found lost, of any number, and returns the exit code."""
    from recovery.audit.files.ledger import RunDirectory  # needs Arrow

    directory = RunDirectory.open(where)
    proof = _evidence(directory, settings)
    number = 0
    for lost in directory.findings(proof.manifest.run, LOSSES):
        number += 1
        why = lost.detail or lost.class_.meaning
        write(dump(_plain(lost._asdict().items())) if as_json else _field(lost.class_, f"{lost.object or lost.name}  {why}"))
    for doubt in proof.doubts[:DOUBTS_MAX]:
        say(f"the run may be wrong: {doubt}")
    counted = max(number, sum(total.number for class_, total in proof.manifest.totals.items() if class_ in LOSSES))
    named = f", of which {number:,} can be named" if counted > number else ""
    more = "" if proof.complete else "; its evidence is not complete, so there may be more"
    shows = "; 'tiered audit show NAME' shows what is known of one now" if number else ""
    say(f"the run of {moment(proof.manifest.started_ns)} found {count(counted, 'object')} lost{named}{more}{shows}")
    return DOUBTFUL if not proof.complete else A_FINDING if number else NOTHING_WRONG


def show_looked(looked: NameReport, told: RunRecord | None, as_json: bool) -> None:
    if as_json:
        write(dump(plain(looked, told)))
        return
    for line in lines(looked, told):
        write(line)


# --- for people and for programs -----------------------------------------------------------------


def plain(looked: NameReport, told: RunRecord | None) -> dict[str, Any]:
    """Returns what `--json` shows: plain values by the names of the fields. Times are nanoseconds since 1970."""
    run = None if told is None else asdict(told) | {"findings": [_plain(finding._asdict().items()) for finding in told.findings]}
    return {**asdict(looked, dict_factory=_plain), "verdict": verdict(looked), "findings": list(looked.findings), "run": run}


def _plain(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {name.rstrip("_"): value for name, value in fields}


def lines(looked: NameReport, told: RunRecord | None) -> Iterator[str]:
    """Yields the lines for people. What a terminal would act on is escaped (`escape_controls`)."""
    yield escape_controls(f"{looked.name}: {verdict(looked)}")
    yield _field("as of", f"{moment(looked.as_of_ns)}; nothing younger than {span(looked.grace_s)} is called an orphan")
    for row in looked.rows:
        yield from _row_lines(row, looked.as_of_ns)
    for blob in looked.blobs:
        yield from _blob_lines(blob, looked.as_of_ns)
    if looked.more:
        yield _field("blobs", f"there are more; the first {BLOBS_MAX} are shown")
    if not looked.log_is_durable:
        yield _field("changelog", "none is kept")
    for entry in looked.entries:
        named = ", ".join(f"{role} {value}" for role, value in (("new", entry.new), ("old", entry.old)) if value is not None)
        yield _field("entry", f"{entry.key}  {entry.state}")
        yield from _fields({"object": entry.object, "names": named or None, "error": entry.error})
    if told is not None:
        yield from _told_lines(told)


def _row_lines(row: LookedRow, as_of_ns: int) -> Iterator[str]:
    yield _field("row", f"{row.path}  {row.state}")
    yield from _fields({
        "finding": None if row.class_ is None else f"{row.class_}: {row.detail}",
        "target": row.target,
        "size": None if row.size is None else size(row.size),
        "deadline": _deadline(row.deadline_ns, as_of_ns) if row.state in ("tombstone", "inline") else None,
        "token": row.token,
        "won": ", ".join(row.won) or None,
        "refused": ", ".join(row.refused) or None,
    })  # fmt: skip


def _blob_lines(blob: LookedBlob, as_of_ns: int) -> Iterator[str]:
    yield _field("blob", f"{blob.name}  {'gone' if blob.class_ is None else blob.class_}")
    yield from _fields({"why": blob.detail, "size": None if blob.size is None else size(blob.size)})
    if blob.created_ns is not None:
        deadline = _deadline(blob.deadline_ns, as_of_ns)
        yield from _fields({"created": moment(blob.created_ns), "deadline": deadline, "generation": blob.generation})
    if blob.class_ in IN_USE:
        yield from _fields({"payload": "was read, and matches its checksum" if blob.was_read else "was not read (--verify reads it)"})
    for each in blob.remedy:
        yield from _fields({"remedy": each})


def _told_lines(told: RunRecord) -> Iterator[str]:
    evidence = "" if told.complete else "; it is not complete, so its findings may be wrong"
    audited = "" if told.audited else "; it did not get to this name"
    found = count(len(told.findings), "finding") + (" and more" if told.more else "")
    yield _field("run", f"{told.run} of {moment(told.started_ns)}: {found}{audited}{evidence}")
    for doubt in told.doubts[:DOUBTS_MAX]:
        yield from _fields({"doubt": doubt})
    if len(told.doubts) > DOUBTS_MAX:
        yield from _fields({"doubt": f"and {count(len(told.doubts) - DOUBTS_MAX, 'more doubt')}"})
    for each in told.findings:
        yield _field("finding", f"{each.name}  {each.class_}")
        times = {"listed": each.listed_ns, "logged": each.logged_ns, "scanned": each.scanned_ns, "confirmed": each.confirmed_ns}
        yield from _fields({"why": each.detail or each.class_.meaning})
        yield from _fields({name: None if at is None else moment(at) for name, at in times.items()})
        yield from _fields({"generation": each.generation})


def _deadline(deadline_ns: int | None, as_of_ns: int) -> str:
    if deadline_ns is None:
        return "none"
    return f"{moment(deadline_ns)}{', which has passed' if deadline_ns <= as_of_ns else ''}"


def _field(name: str, value: str) -> str:
    return escape_controls(f"{name:11}{value}")


def _fields(values: dict[str, str | None]) -> Sequence[str]:
    return [escape_controls(f"  {name:11}{value}") for name, value in values.items() if value is not None]


# --- what is looked at ---------------------------------------------------------------------------


async def _look(settings: Settings, name: str, grace_s: float, verify: bool) -> NameReport:
    runtime = SystemRuntime()
    async with open_backends(settings, runtime, writes=False) as backends:
        as_of_ns = await retry_read(backends.tiers.long_term.now_ns, runtime, READ_BUDGET_S)
        return await look_at(backends, name, settings, Cutoff(as_of_ns=as_of_ns, grace_s=grace_s), runtime, None if verify else PAYLOAD_MAX)


def _run_record(where: str, name: str, settings: Settings) -> RunRecord:
    from recovery.audit.files.ledger import RunDirectory  # needs Arrow

    directory = RunDirectory.open(where)
    return told_by(directory, _evidence(directory, settings), name)


def _evidence(directory: RunDirectory, settings: Settings) -> Evidence:
    """What may be doubted about the run. `ConfigurationError`: there is none, or it is of another store."""
    from recovery.audit.files.evidence import evidence
    from recovery.audit.running.plan import check_same, inputs_of

    proof = evidence(directory, SystemRuntime().wall_ns())
    check_same(proof.manifest.inputs, inputs_of(settings), directory.uri)
    return proof
