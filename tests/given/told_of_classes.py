"""What the audit tells of each class, wherever it tells something: files, verdict, report, note, deletion, page."""

from __future__ import annotations

from collections import Counter
from io import StringIO
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from changelog.base.errors import ConfigurationError
from docs.written import classes
from recovery.audit.deleting.candidates import Candidate
from recovery.audit.deleting.gates import check_class
from recovery.audit.files.conclusion import conclude
from recovery.audit.files.evidence import evidence, parts_of
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.finding import Summary, Tally
from recovery.audit.finding_classes import ACCUSED, NAMED_BY_LIVE, FindingClass
from recovery.audit.manifest import parse_manifest
from recovery.audit.reporting.one_name import LookedBlob, NameReport
from recovery.audit.reporting.one_name import verdict as verdict_on_name
from recovery.audit.reporting.report import render
from recovery.audit.reporting.run_verdict import PRICE_DEFAULT, shown_classes, verdict
from recovery.audit.running.run import last_audit_of
from recovery.cli.audit.output import show_summary
from recovery.last_audit import Audits, decode, encode
from tests.given.findings import NOW_NS, RUN, finding, manifest, write

PLANTED = "planted_"
NUMBER, SIZE = 2, 30


def told() -> dict[str, dict[str, Any]]:
    """By class: what is told of a run that found two of them, beside a blob in use."""
    return {each.value.removeprefix(PLANTED): _told(each) for each in FindingClass if each.startswith(PLANTED)}


def _told(class_: FindingClass) -> dict[str, Any]:
    summary = Summary(names=3, redirects=2, counts={"media": {FindingClass.REFERENCED: Tally(1, 5), class_: Tally(NUMBER, SIZE)}})
    summary.ages[class_], summary.age_sizes[class_] = Counter({3: NUMBER}), Counter({3: SIZE})
    name = "media/objects/a/0190aaaa-0000-7000-8000-000000000002"
    findings = [] if class_.finding is None else [finding(class_, name, confirmed_ns=NOW_NS + 3000, created_ns=0)] * NUMBER
    with TemporaryDirectory() as directory:
        run = RunDirectory.open(directory)
        run.begin(manifest())
        write(run, 0, *findings, summary=summary)
        ended = conclude(manifest(), summary, {0: 3}, (), ()).model_copy(
            update={"ended_ns": NOW_NS + 1, "parts": parts_of(run.tiling(manifest()))}
        )
        run.write_manifest(ended)
        read = parse_manifest(ended.model_dump_json().encode(), "run")
        proof = evidence(run, NOW_NS + 10**9)
        stored = [each.class_ for each in run.findings(RUN, {class_})]
    page, terminal = render(read, findings), StringIO()
    show_summary(Console(file=terminal, width=4096), read, "run", PRICE_DEFAULT)
    last = decode(encode(Audits((last_audit_of(read, "run"),)))).runs[0]
    blob = LookedBlob(name, True, class_, "")
    return {
        "table": next(line for line in classes().splitlines() if f"`{class_}`" in line),
        "stored": stored == [class_] * len(findings),
        "read": read == ended,
        "findings": read.findings,
        "complete": read.complete,
        "evidence": list(proof.doubts),
        "verdict": verdict(read, PRICE_DEFAULT).sentence,
        "place": [each.value for each in shown_classes(read)].index(class_.value),
        "page": class_.value.replace("_", " ") in page and class_.meaning in page,
        "to_reclaim": f"{SIZE} B to reclaim" in page,
        "by_age": f"{SIZE} B in {NUMBER} blobs" in page,
        "terminal": f"{class_} " in terminal.getvalue() and class_.meaning in terminal.getvalue(),
        "note": last.findings.get(class_.value),
        "lost": last.lost,
        "size": last.size,
        "note_says": last.sentence,
        "name_says": verdict_on_name(NameReport(name, NOW_NS, 0, (), (blob,), False, (), True)),
        "looked_at_twice": class_ in ACCUSED,
        "named": class_ in NAMED_BY_LIVE,
        "in_use": last.live,
        "in_use_on_page": f'data-label="In use">{NUMBER + 1}<' in page,
        "drawn_in_use_or_passing": f'<span class="n">{SIZE + 5} B</span>' in page,
        "deleted": any(Candidate.of(each) is not None for each in findings),
        "refused": _refused(class_.value),
    }


def _refused(class_: str) -> str:
    try:
        return check_class(class_)
    except ConfigurationError as error:
        return str(error)
