"""`report.html`: the run on one page that somebody can send to a colleague.

    Manifest, some findings, price, an earlier run --render--> one file: no network, no script; light and dark; prints

The page first says the verdict, then what makes it doubtful, then the figures. Every name is escaped and may break
anywhere. It cannot change the direction of the text around it, because it is isolated and control characters are spelt
out. Lists that have no limit are cut here: names, usecases, ranges that failed, doubts, notes. The page says so,
and has a query to copy for the names that it leaves out. *Failure*: only a wrong template fails. The module reads
nothing but its template.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from recovery import display
from recovery.audit.finding import AGES, OTHERS, USECASES_MAX, Finding
from recovery.audit.finding_classes import ACCUSED, FINDINGS, IN_USE, LOSSES, ORPHANS, RECLAIMABLE, SIZED, FindingClass
from recovery.audit.manifest import Manifest, ManifestTally
from recovery.audit.reporting import run_verdict
from recovery.audit.reporting.run_verdict import PRICE_DEFAULT
from recovery.audit.reporting.since import EarlierRun, changes

TEMPLATE = "report.html.j2"
LOST_MAX = 1000
NAMES_MAX = 50
"""How many names of each other class are shown."""
RANGES_MAX = 100
USECASES_SHOWN = 50
DRAWN_MAX = 15
"""How many usecases are drawn."""
NOTES_MAX = 50
DOUBTS_MAX = 50
_PASSING = tuple(each for each in FindingClass if each.finding is None and each not in IN_USE)


def names_max(class_: FindingClass) -> int:
    """Returns how many findings of this class a page shows."""
    return LOST_MAX if class_ in LOSSES else NAMES_MAX


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of the histogram. `size`: bytes. `percent`: its length, in percent of the longest bar."""

    label: str
    number: int
    size: int
    percent: float


@dataclass(frozen=True, slots=True)
class _UsecaseBar:
    """One usecase, drawn: its bytes that are in use, in passing and to reclaim.

    `percents`: each of them in percent of the longest bar.
    """

    name: str
    in_use: int
    passing: int
    reclaim: int
    percents: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    """Orphans that are below no prefix that is shown. `size`: bytes."""

    number: int
    size: int


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of one class. `left`: how many more there are, and `query` finds them."""

    class_: FindingClass
    findings: Sequence[Finding]
    left: int
    query: str


@dataclass(frozen=True, slots=True)
class _Usecase:
    """One line of the table of usecases.

    Everything that was counted for the usecase is in exactly one of these columns.
    """

    name: str
    in_use: ManifestTally
    passing: ManifestTally
    orphans: ManifestTally
    lost: ManifestTally
    others: ManifestTally

    @classmethod
    def of(cls, name: str, found: Mapping[FindingClass, ManifestTally]) -> _Usecase:
        def added(classes: Iterable[FindingClass]) -> ManifestTally:
            counted = [found[class_] for class_ in classes if class_ in found]
            return ManifestTally(number=sum(each.number for each in counted), size=sum(each.size for each in counted))

        others = [each for each in FINDINGS if each not in (*ORPHANS, *LOSSES, *IN_USE)]
        return cls(name, added(IN_USE), added(_PASSING), added(ORPHANS), added(LOSSES), added(others))


def render(
    manifest: Manifest, findings: Sequence[Finding], price_per_gib_month: float = PRICE_DEFAULT, directory: str | None = None,
    earlier: EarlierRun | None = None, tiered: Sequence[str] = ("tiered",),
) -> str:  # fmt: skip
    """Returns the page as HTML.

    `findings`: the first of each class; of each, at most `names_max` are shown. `price_per_gib_month`: in US dollars.
    `directory`: the path or URI of the run, for commands that a reader can copy; None: the commands say RUN. `earlier`:
    the run to compare this one with. `tiered`: how a command begins that means the same store.
    """
    where = directory or "RUN"
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page.filters |= {
        "name": _name, "size": display.size, "moment": display.moment, "duration": display.elapsed, "span": display.span,
        "sentence": run_verdict.sentence, "visible": display.escape_controls, "signed": _signed, "signed_size": _signed_size,
        "money": lambda size: run_verdict.money(size, price_per_gib_month),
    }
    page.globals["count"] = display.count
    template = page.from_string((files(__package__) / TEMPLATE).read_text("utf-8"))
    classes = run_verdict.shown_classes(manifest)
    usecases = _usecases(manifest.usecases)
    named = [_names(manifest, class_, findings, where) for class_ in classes if class_ in FINDINGS]
    return template.render(
        run=manifest,
        verdict=run_verdict.verdict(manifest, price_per_gib_month),
        as_of=run_verdict.as_of(manifest),
        reasons=run_verdict.reasons(manifest),
        doubts_max=DOUBTS_MAX,
        consequence=run_verdict.consequence(manifest, price_per_gib_month),
        orphan_cost=run_verdict.cost(run_verdict.total(manifest, ORPHANS).size, price_per_gib_month),
        price=price_per_gib_month,
        price_is_assumed=price_per_gib_month == PRICE_DEFAULT,
        seconds=manifest.work_s,
        rate=manifest.names / manifest.work_s if manifest.work_s else 0.0,
        listed=sum(count.size for count in manifest.totals.values()),
        orphans=run_verdict.total(manifest, ORPHANS),
        losses=run_verdict.losses(manifest),
        findings=[class_ for class_ in classes if class_ in FINDINGS],
        others=[class_ for class_ in classes if class_ not in FINDINGS],
        classes=classes,
        loss_classes=LOSSES,
        sized=SIZED,
        ages=_ages(manifest),
        stacks=_stacks(manifest.usecases),
        together=_together(manifest),
        prefixes_left=_elsewhere(manifest),
        stacks_left=max(0, len(manifest.usecases) - DRAWN_MAX),
        usecases=[_Usecase.of(name, found) for name, found in usecases[:USECASES_SHOWN]],
        usecases_left=len(usecases) - USECASES_SHOWN,
        lost=[each for each in named if each.class_ in LOSSES],
        named=[each for each in named if each.class_ not in LOSSES],
        looked=run_verdict.looked(manifest),
        sourced=run_verdict.sourced(manifest),
        unseen=run_verdict.unseen(manifest),
        earlier=earlier,
        changes=[] if earlier is None else changes(manifest, earlier.manifest),
        query_new=None if earlier is None else _query_new(where, earlier.where),
        audited=run_verdict.audited(manifest),
        missing=run_verdict.missing(manifest),
        ranges_max=RANGES_MAX,
        notes_max=NOTES_MAX,
        commands=_commands(manifest, findings, where, tiered),
        go_on=_command(*tiered, "audit", "run", *_as_before(manifest), "--to", where),
        findings_path=json.dumps(display.escape_controls(f"{where.rstrip('/')}/findings"), ensure_ascii=False),
    )


def _as_before(manifest: Manifest) -> Sequence[str]:
    """Returns the options that a run is gone on with: its engine. It keeps the others."""
    return ["--engine", "local"] if manifest.engine.rpartition("; ")[2].startswith("local") else []


def _commands(manifest: Manifest, findings: Sequence[Finding], where: str, tiered: Sequence[str]) -> Sequence[tuple[str, str]]:
    """Returns what a reader may do next: a sentence, and the command to copy."""
    has = {class_ for class_, counted in manifest.totals.items() if counted.number}
    sentences = []
    same = [*_as_before(manifest), *(["--prefix", manifest.scope] if manifest.scope else [])]
    known = "All that is known of one object or blob, now and in this run"
    if FindingClass.DANGLING in has:
        known += "; of a blob that is gone, it says how to restore what the bucket still keeps"
    sentences.append((f"{known}:", ["audit", "show", _example(findings), "--from", where]))
    if FindingClass.DANGLING in has and "bucket" in manifest.inputs:
        sentences.append((
            "Say which of the blobs that are gone the bucket still keeps (soft delete). With --yes, they are restored:",
            ["audit", "restore", where, "--class", "dangling"],
        ))  # fmt: skip
    if FindingClass.ORPHAN in has and manifest.complete:
        sentences.append((
            "Say which orphans would be deleted. With --yes, each is looked at again and deleted; with --quarantine LABEL, a copy is kept:",
            ["audit", "delete", where, "--class", "orphan"],
        ))  # fmt: skip
        sentences.append(("Bring the copies back that a deletion of this run has kept:", ["audit", "restore", where]))
    if {FindingClass.OVERDUE, FindingClass.STALE_UPLOAD} & has:
        bucket = "bucket" in manifest.inputs
        why = "See whether the bucket has the rule that removes expired blobs:" if bucket else "Let recovery remove what has expired:"
        sentences.append((why, ["check"] if bucket else ["recover"]))
    if manifest.stuck:
        sentences.append(("See which entries are stuck, and why:", ["log", "list", "--stuck"]))
    if manifest.references is not None:
        sentences.append(("Scan the rows themselves, too:", ["audit", "run", *same, "--references", "rows"]))
    if manifest.verify is None:
        sentences.append(("Read a tenth of the payloads, too:", ["audit", "run", *same, "--verify", "--verify-share", "0.1"]))
    return [(why, _command(*tiered, *parts)) for why, parts in sentences]


def _names(manifest: Manifest, class_: FindingClass, findings: Sequence[Finding], where: str) -> _Names:
    shown = [finding for finding in findings if finding.class_ is class_][: names_max(class_)]
    path = _sql(f"{where.rstrip('/')}/findings/*.parquet")
    query = f"SELECT name, object, size, created, detail FROM read_parquet({path}) WHERE class = '{class_}' ORDER BY size DESC;"
    return _Names(class_, shown, max(0, manifest.totals[class_].number - len(shown)), display.escape_controls(query))


def _together(manifest: Manifest) -> str:
    """Returns that some usecases have no line of their own. Empty: each has one."""
    if OTHERS not in manifest.usecases:
        return ""
    return f"A run counts {USECASES_MAX:,} usecases by name. The others were counted together, as {OTHERS}."


def _elsewhere(manifest: Manifest) -> _Elsewhere:
    """Returns the orphans outside of the prefixes that a run keeps."""
    orphans = run_verdict.total(manifest, ORPHANS)
    number, size = sum(each.number for each in manifest.prefixes), sum(each.size for each in manifest.prefixes)
    return _Elsewhere(orphans.number - number, max(0, orphans.size - size))


def _query_new(where: str, before: str) -> str:
    now, then = (_sql(f"{each.rstrip('/')}/findings/*.parquet") for each in (where, before))
    return display.escape_controls(
        f"SELECT class, name FROM read_parquet({now}) EXCEPT SELECT class, name FROM read_parquet({then}) ORDER BY class, name;"
    )


def _sql(text: str) -> str:
    """Returns the text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _signed(number: int) -> str:
    return f"{number:+,}" if number else "±0"


def _signed_size(size: int) -> str:
    return f"{'+' if size > 0 else '-'}{display.size(abs(size))}" if size else "±0 B"


def _name(name: str) -> Markup:
    """Returns a name that somebody else chose as HTML. It cannot affect the text around it."""
    return Markup('<bdi class="name">{}</bdi>').format(escape(display.escape_controls(name)))


def _ages(manifest: Manifest) -> Sequence[Bar]:
    """Returns the bars for orphans of both classes and overdue blobs, by bytes. Nothing if there are none."""

    def added(by_class: Mapping[FindingClass, Sequence[int]]) -> list[int]:
        return [sum(by_class[class_][place] for class_ in ACCUSED if place < len(by_class.get(class_, ()))) for place in range(len(AGES))]

    numbers, sizes = added(manifest.ages), added(manifest.age_sizes)
    lengths = sizes if any(sizes) else numbers
    longest = max(lengths)
    return [
        Bar(label, number, size, 100 * length / longest)
        for (label, _), number, size, length in zip(AGES, numbers, sizes, lengths, strict=True)
    ] if longest else []  # fmt: skip


def _stacks(usecases: Mapping[str, Mapping[FindingClass, ManifestTally]]) -> Sequence[_UsecaseBar]:
    """Returns the usecases with the most bytes, drawn. Nothing if there are no bytes."""
    def size(found: Mapping[FindingClass, ManifestTally], classes: Iterable[FindingClass]) -> int:
        return sum(found[class_].size for class_ in classes if class_ in found)

    sizes = {name: (size(found, IN_USE), size(found, _PASSING), size(found, RECLAIMABLE)) for name, found in usecases.items()}
    most = sorted(sizes, key=lambda name: (-sum(sizes[name]), name))[:DRAWN_MAX]
    longest = max((sum(sizes[name]) for name in most), default=0)
    if not longest:
        return []
    return [
        _UsecaseBar(name, in_use, waits, reclaim, (100 * in_use / longest, 100 * waits / longest, 100 * reclaim / longest))
        for name in most if sum(sizes[name]) for in_use, waits, reclaim in [sizes[name]]
    ]  # fmt: skip


def _usecases(usecases: Mapping[str, Mapping[FindingClass, ManifestTally]]) -> Sequence[tuple[str, Mapping[FindingClass, ManifestTally]]]:
    """Sorts the usecases: those with the most to look at come first."""

    def weight(item: tuple[str, Mapping[FindingClass, ManifestTally]]) -> tuple[int, int, int, int, str]:
        name, classes = item
        lost = sum(classes[class_].number for class_ in LOSSES if class_ in classes)
        orphaned = sum(classes[class_].size for class_ in ORPHANS if class_ in classes)
        found = sum(count.number for class_, count in classes.items() if class_ in FINDINGS)
        return -lost, -orphaned, -found, -sum(count.number for count in classes.values()), name

    return sorted(usecases.items(), key=weight)


def _example(findings: Sequence[Finding]) -> str:
    """Returns a name for the example command. It is short, no option, and looks as it is when it is shown."""
    name = findings[0].name if findings else "NAME"
    return name if len(name) < 200 and display.escape_controls(name) == name and not name.startswith("-") else "NAME"


def _command(*parts: str) -> str:
    """Returns the command, quoted for a shell."""
    return display.escape_controls(shlex.join(parts))
