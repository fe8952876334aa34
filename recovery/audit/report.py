"""`report.html`: the run on one page that somebody can send to a colleague.

    Manifest, dangling findings, price --render--> one file: no network, no script; light and dark; prints

The page says the verdict first, then what makes it doubtful, then the figures. Every name is escaped, cannot turn the line around
it (it is isolated, and what steers is spelt out), and breaks anywhere. What has no bound in a manifest is cut here, and the page says so:
usecases, ranges that failed, dangling tombstones. *Failure*: none but a template that is wrong; pure.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class Bar:
    """One line of the histogram: `percent` of the longest."""

    label: str
    number: int
    percent: float


def render(manifest: Manifest, dangling: Sequence[Finding], price_per_gib_month: float = PRICE_DEFAULT) -> str:
    """The page. `dangling`: the first of them, `DANGLING_MAX` at most are shown; price in US dollars."""
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page.filters |= {
        "name": _name, "size": words.size, "moment": words.moment, "duration": words.duration, "span": words.span,
        "money": lambda size: words.money(size, price_per_gib_month),
        "monthly": lambda size: words.monthly(size, price_per_gib_month),
    }
    page.globals["count"] = words.count
    template = page.from_string((files(__package__) / TEMPLATE).read_text("utf-8"))
    kinds = words.shown_kinds(manifest)
    usecases = _usecases(manifest.usecases)
    return template.render(
        run=manifest,
        verdict=words.verdict(manifest, price_per_gib_month),
        reasons=words.reasons(manifest),
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
        usecases=usecases[:USECASES_SHOWN],
        usecases_left=len(usecases) - USECASES_SHOWN,
        nothing=Counted(),
        dangling=dangling[:DANGLING_MAX],
        audited=words.audited(manifest),
        missing=words.missing(manifest),
        ranges_max=RANGES_MAX,
        example=_example(dangling),
    )


def _name(name: str) -> Markup:
    """A name that somebody else chose, as text that stays where it is put."""
    return Markup('<bdi class="name">{}</bdi>').format(escape(words.visible(name)))


def _ages(manifest: Manifest) -> Sequence[Bar]:
    """Of orphans of both kinds; empty where there are none."""
    counted = [manifest.ages.get(kind, ()) for kind in words.ORPHANS]
    numbers = [sum(ages[place] for ages in counted if place < len(ages)) for place in range(len(AGES))]
    longest = max(numbers)
    return [Bar(label, number, 100 * number / longest) for (label, _), number in zip(AGES, numbers, strict=True)] if longest else []


def _usecases(usecases: Mapping[str, Mapping[Kind, Counted]]) -> Sequence[tuple[str, Mapping[Kind, Counted]]]:
    """Those with most to look at first."""

    def weight(item: tuple[str, Mapping[Kind, Counted]]) -> tuple[int, int, int, int, str]:
        name, kinds = item
        dangling = kinds.get(Kind.DANGLING, Counted()).number
        orphaned = sum(kinds[kind].size for kind in words.ORPHANS if kind in kinds)
        found = sum(count.number for kind, count in kinds.items() if kind in FINDINGS)
        return -dangling, -orphaned, -found, -sum(count.number for count in kinds.values()), name

    return sorted(usecases.items(), key=weight)


def _example(dangling: Sequence[Finding]) -> str:
    """For a command that people copy: quoted, since a name is chosen by others and a shell would carry out what is in it."""
    name = dangling[0].name if dangling else ""
    return shlex.quote(name) if 0 < len(name) < 200 and words.visible(name) == name else "NAME"
