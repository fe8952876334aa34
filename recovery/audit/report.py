"""`report.html`: the run on one page that somebody can send to a colleague.

    Manifest, dangling findings, price --render--> one file: no network, no script; light and dark; prints

The page first says the verdict, then what makes it doubtful, then the figures. Every name is escaped and may break
anywhere. It cannot change the direction of the text around it, because it is isolated and control characters are spelt
out. Lists that have no limit in a manifest are cut here, and the page says so: usecases, ranges that failed, dangling
tombstones, notes. *Failure*: only a wrong template fails. The module reads nothing but its template.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from recovery.audit import words
from recovery.audit.finding import AGES, Finding
from recovery.audit.manifest import Counted, Manifest
from recovery.audit.verdicts import FINDINGS, MEANING, Kind
from recovery.audit.words import PRICE_DEFAULT

TEMPLATE = "report.html.j2"
DANGLING_MAX = 1000
RANGES_MAX = 100
USECASES_SHOWN = 50
NOTES_MAX = 50


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of the histogram. `percent`: its length, in percent of the longest bar."""

    label: str
    number: int
    percent: float


@dataclass(frozen=True, slots=True)
class _Usecase:
    """One line of the table of usecases.

    Everything that was counted for the usecase is in exactly one of these columns.
    """

    name: str
    referenced: Counted
    passing: Counted
    orphans: Counted
    dangling: Counted
    others: Counted

    @classmethod
    def of(cls, name: str, found: Mapping[Kind, Counted]) -> _Usecase:
        def added(kinds: Iterable[Kind]) -> Counted:
            counted = [found[kind] for kind in kinds if kind in found]
            return Counted(number=sum(each.number for each in counted), size=sum(each.size for each in counted))

        passing = set(Kind) - FINDINGS - {Kind.REFERENCED}
        others = FINDINGS - {*words.ORPHANS, Kind.DANGLING}
        return cls(name, added([Kind.REFERENCED]), added(passing), added(words.ORPHANS), added([Kind.DANGLING]), added(others))


def render(
    manifest: Manifest, dangling: Sequence[Finding], price_per_gib_month: float = PRICE_DEFAULT, directory: str | None = None
) -> str:
    """Returns the page as HTML.

    `dangling`: the first dangling findings; at most `DANGLING_MAX` are shown. `price_per_gib_month`: in US dollars.
    `directory`: the path or URI of the run, for commands that a reader can copy; None: the commands say RUN.
    """
    where = directory or "RUN"
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page.filters |= {
        "name": _name, "size": words.size, "moment": words.moment, "duration": words.duration, "span": words.span,
        "sentence": words.sentence, "visible": words.visible,
        "money": lambda size: words.money(size, price_per_gib_month),
    }
    page.globals["count"] = words.count
    template = page.from_string((files(__package__) / TEMPLATE).read_text("utf-8"))
    kinds = words.shown_kinds(manifest)
    usecases = _usecases(manifest.usecases)
    return template.render(
        run=manifest,
        verdict=words.verdict(manifest, price_per_gib_month),
        reasons=words.reasons(manifest),
        consequence=words.consequence(manifest, price_per_gib_month),
        orphan_cost=words.cost(words.total(manifest, words.ORPHANS).size, price_per_gib_month),
        price=price_per_gib_month,
        price_is_assumed=price_per_gib_month == PRICE_DEFAULT,
        seconds=manifest.work_s,
        rate=manifest.names / manifest.work_s if manifest.work_s else 0.0,
        listed=sum(count.size for count in manifest.totals.values()),
        orphans=words.total(manifest, words.ORPHANS),
        losses=words.total(manifest, [Kind.DANGLING]).number,
        findings=[kind for kind in kinds if kind in FINDINGS],
        others=[kind for kind in kinds if kind not in FINDINGS],
        kinds=kinds,
        meaning=MEANING,
        ages=_ages(manifest),
        usecases=[_Usecase.of(name, found) for name, found in usecases[:USECASES_SHOWN]],
        usecases_left=len(usecases) - USECASES_SHOWN,
        dangling=dangling[:DANGLING_MAX],
        audited=words.audited(manifest),
        missing=words.missing(manifest),
        ranges_max=RANGES_MAX,
        notes_max=NOTES_MAX,
        show=_command("tiered", "audit", "show", _example(dangling), "--from", where),
        go_on=_command("tiered", "audit", "run", "--to", where),
        findings_path=json.dumps(words.visible(f"{where.rstrip('/')}/findings"), ensure_ascii=False),
    )


def _name(name: str) -> Markup:
    """Returns a name that somebody else chose as HTML. It cannot affect the text around it."""
    return Markup('<bdi class="name">{}</bdi>').format(escape(words.visible(name)))


def _ages(manifest: Manifest) -> Sequence[Bar]:
    """Returns the bars for orphans of both kinds, or nothing if there are none."""
    counted = [manifest.ages.get(kind, ()) for kind in words.ORPHANS]
    numbers = [sum(ages[place] for ages in counted if place < len(ages)) for place in range(len(AGES))]
    longest = max(numbers)
    return [Bar(label, number, 100 * number / longest) for (label, _), number in zip(AGES, numbers, strict=True)] if longest else []


def _usecases(usecases: Mapping[str, Mapping[Kind, Counted]]) -> Sequence[tuple[str, Mapping[Kind, Counted]]]:
    """Sorts the usecases: those with the most to look at come first."""

    def weight(item: tuple[str, Mapping[Kind, Counted]]) -> tuple[int, int, int, int, str]:
        name, kinds = item
        dangling = kinds.get(Kind.DANGLING, Counted()).number
        orphaned = sum(kinds[kind].size for kind in words.ORPHANS if kind in kinds)
        found = sum(count.number for kind, count in kinds.items() if kind in FINDINGS)
        return -dangling, -orphaned, -found, -sum(count.number for count in kinds.values()), name

    return sorted(usecases.items(), key=weight)


def _example(dangling: Sequence[Finding]) -> str:
    """Returns a name for the example command. It must be short, and it must look the same when it is shown."""
    name = dangling[0].name if dangling else "NAME"
    return name if len(name) < 200 and words.visible(name) == name else "NAME"


def _command(*parts: str) -> str:
    """Returns the command, quoted for a shell."""
    return words.visible(shlex.join(parts))
