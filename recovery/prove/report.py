"""`ProveReport`: what a run has found, and the sentence at its end. JSON, text and page (`page.py`) are views of it.

    expect    the lines of a table, none of them tried yet          so it is complete whenever a run ends
    tell      what became of one
    hide      takes out what names something of the user's (`hiding.py`), before anybody sees it

`read` is strict: it takes what `as_json` writes, whole, and nothing else. *Failure*: `InvalidRequestError`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from statistics import quantiles
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from changelog.base.errors import InvalidRequestError, newer_version
from recovery.display import elapsed
from recovery.prove.hiding import hidden
from recovery.prove.prices import usd_of
from recovery.prove.probes.bench import Measured
from tiered.provision.findings import Notice, NoticeKind
from tiered.provision.probes import Probe, ProbeOutcome, Result
from tiered.services.breaker import HIGH_VOLUME, LONG_TERM
from tiered.settings import Settings

VERSION = 1
P99_CALLS_MIN = 100
_STRICT = ConfigDict(extra="forbid", strict=True)
_SHOWN = {"directory": "a directory", "bigtable": "Bigtable", "postgres": "PostgreSQL", "gcs": "GCS", "s3": "S3"}
_TIERS = {HIGH_VOLUME: "rows", LONG_TERM: "blobs"}
ANOTHER = "another package"
"""Instead of the name of a kind that is none of ours."""


class ProveVerdict(StrEnum):
    """What is known of these services."""

    MAY = "may hold a store"
    MAY_BUT = "may hold a store, with limits"
    UNKNOWN = "may not be trusted yet: not all was tried"
    MUST_NOT = "must not hold a store"


@dataclass(frozen=True, slots=True)
class Line:
    """One promise. `about`: rows, blobs, changelog, settings, rights, contracts or kills. `said`: what was seen, or why
    it was not tried. `cost`: what is lost without it. `is_limit`: without it the store does less, and loses nothing.
    """

    __pydantic_config__ = _STRICT
    about: str
    name: str
    promise: str
    result: Result
    said: str
    cost: str
    cure: str = ""
    is_limit: bool = False

    @property
    def shown(self) -> str:
        """Its result in a word or two: what is not held is told apart by whether it loses data."""
        return "limit" if self.result is Result.BROKEN and self.is_limit else self.result

    def todo(self) -> str:
        """What is lost by what is not held, and what to do; empty where `said` has both."""
        return "" if self.about == "settings" else f"Without it: {self.cost}. What to do: {self.cure or 'use another service'}."

    def seen(self) -> str:
        """`said` as a sentence: of a promise it is the rest of one."""
        return f"The service {self.said}." if self.about in ("rows", "blobs", "changelog") else self.said

    @classmethod
    def of(cls, about: str, outcome: ProbeOutcome[Any]) -> Line:
        return replace(cls.untried(about, outcome.probe, outcome.said), result=outcome.result)

    @classmethod
    def untried(cls, about: str, probe: Probe[Any], why: str) -> Line:
        is_limit = probe.kind is not NoticeKind.PROBLEM
        return cls(about, probe.name, probe.promise, Result.UNTRIED, why, probe.cost, probe.cure, is_limit)


    @classmethod
    def of_notice(cls, number: int, notice: Notice) -> Line:
        """What `tiered check` finds of the settings and the rights. What `tiered provision` would mend is no fault."""
        is_limit = notice.kind is not NoticeKind.PROBLEM or notice.mend is not None
        result = Result.HELD if notice.kind is NoticeKind.OK else Result.BROKEN if notice.mend is None else Result.UNTRIED
        called = "notes is not as good as it could be" if is_limit else "calls a problem loses data, or hides them"
        cost = f"what 'tiered check' {called}"
        return cls("settings", f"finding {number}", "'tiered check' finds nothing amiss", result, notice.sentence, cost,
                   "do what the sentence says", is_limit)


@dataclass(frozen=True, slots=True)
class CallFigures:
    """All calls of one method of a service: rows, blobs or changelog.

    `count`: of the whole run, most of them many at once. `calm`: how many came one after the other, alone; `p50_ms`,
    `p99_ms`: how long these took; None: there were too few. `usd`: what all cost by the list of prices; None: a call
    has no price there.
    """

    __pydantic_config__ = _STRICT
    service: str
    method: str
    count: int
    calm: int
    p50_ms: float | None
    p99_ms: float | None
    usd: float | None


@dataclass(slots=True)
class ProveReport:
    """`at`: when it began. `services`: of rows and blobs: the kind, and what the service tells of itself. `left`: what
    could not be removed, each a sentence.
    """

    __pydantic_config__ = _STRICT
    tiered: str
    at: str
    services: Mapping[str, Mapping[str, str]]
    lines: list[Line] = field(default_factory=list)
    calls: list[CallFigures] = field(default_factory=list)
    seconds: float = 0.0
    left: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> ProveVerdict:
        broken = [each for each in self.lines if each.result is Result.BROKEN]
        if any(not each.is_limit for each in broken):
            return ProveVerdict.MUST_NOT
        if not self.lines or any(each.result is Result.UNTRIED and not each.is_limit for each in self.lines):
            return ProveVerdict.UNKNOWN
        return ProveVerdict.MAY_BUT if broken else ProveVerdict.MAY

    def expect(self, lines: Iterable[Line]) -> None:
        self.lines += lines

    def tell(self, line: Line) -> None:
        """Takes the place of the line that was expected, or of none."""
        for number, each in enumerate(self.lines):
            if (each.about, each.name) == (line.about, line.name):
                self.lines[number] = line
                return
        self.lines.append(line)

    def drop(self, lines: Iterable[tuple[str, str]]) -> None:
        """These were expected, by what they are about and their names, and these services need none of them."""
        unneeded = set(lines)
        self.lines = [each for each in self.lines if (each.about, each.name) not in unneeded]

    def hide(self, settings: Settings) -> None:
        """Takes out what names something of the user's. It may be repeated."""
        self.lines = [replace(each, said=hidden(each.said, settings)) for each in self.lines]
        self.left = [hidden(each, settings) for each in self.left]

    def losses(self) -> list[str]:
        """What is lost, each once."""
        return list(dict.fromkeys(each.cost for each in self.lines if each.result is Result.BROKEN and not each.is_limit))

    def headline(self) -> str:
        rows, blobs = (shown_kind(self.services[tier]["kind"]) for tier in ("rows", "blobs"))
        return f"Rows in {rows} and blobs in {blobs} {self.verdict}"

    def sentence(self) -> str:
        """The sentence at the end: the verdict, and which loss follows."""
        losses = "; ".join(self.losses())
        return f"{self.headline()}{losses and f': {losses}'}."

    def as_json(self) -> dict[str, Any]:
        return {
            "v": VERSION, "verdict": self.verdict.name.lower(), "sentence": self.sentence(), "tiered": self.tiered, "at": self.at,
            "seconds": round(self.seconds, 1), "services": {tier: dict(each) for tier, each in self.services.items()},
            "lines": [asdict(each) for each in self.lines], "calls": [asdict(each) for each in self.calls], "left": self.left,
        }  # fmt: skip


def read(text: str) -> ProveReport:
    """The report whose JSON this is. `InvalidRequestError`: it is none, or newer, or was changed by hand."""
    try:
        said = json.loads(text)
        version = said.pop("v")
        derived = {name: said.pop(name) for name in ("verdict", "sentence")} if type(version) is int and version == VERSION else {}
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        raise InvalidRequestError("this is no report of 'tiered prove': give its report.json") from None
    if isinstance(version, int) and version > VERSION:
        raise InvalidRequestError(newer_version("this report of 'tiered prove'", version, f"version {VERSION}"))
    if type(version) is not int or version != VERSION:
        raise InvalidRequestError(f"this is no report of 'tiered prove': it has version {version!r}, and there is only {VERSION}")
    try:
        report = TypeAdapter(ProveReport).validate_json(json.dumps(said))
        told = report.as_json()
    except (ValidationError, KeyError) as error:
        where = ".".join(map(str, error.errors()[0]["loc"])) if isinstance(error, ValidationError) else "services"
        raise InvalidRequestError(f"this report of 'tiered prove' is damaged: {where} is not what a report has there") from None
    if any(told[name] != value for name, value in derived.items()):
        raise InvalidRequestError("this report of 'tiered prove' was changed: its verdict does not follow from its lines")
    return report


def shown_kind(kind: str) -> str:
    return _SHOWN.get(kind, ANOTHER)


def kind_of(name: str) -> str:
    """How a report calls a kind: another package's may have the user's name."""
    return name if name in _SHOWN else ANOTHER


def calls_of(measured: Measured, calm: Measured, kinds: Mapping[str, str]) -> list[CallFigures]:
    """`measured`: all calls but those of `calm`. `kinds`: of rows and blobs."""
    found = []
    for service, method in sorted({*measured.took, *calm.took}):
        took = calm.took.get((service, method), [])
        count = len(took) + len(measured.took.get((service, method), ()))
        cuts = [round(cut * 1000, 2) for cut in quantiles(took, n=100, method="inclusive")] if len(took) > 1 else None
        p50 = None if cuts is None else cuts[49]
        p99 = None if cuts is None or len(took) < P99_CALLS_MIN else cuts[98]
        usd = usd_of(kinds["blobs"], method, count) if service == LONG_TERM else None
        found.append(CallFigures(_TIERS.get(service, service), method, count, len(took), p50, p99, usd))
    return found


# --- as text -----------------------------------------------------------------------------------------


def text_of(report: ProveReport) -> Sequence[str]:
    """The lines of the report, as the command prints them."""
    lines = [f"tiered {report.tiered}, {report.at}, after {elapsed(report.seconds)}"]
    for tier, told in report.services.items():
        rest = [f"{name} {value}" for name, value in told.items() if name != "kind"]
        lines.append(f"{tier:10}{', '.join([shown_kind(told['kind']), *rest])}")
    lines.append("")
    wide = max((len(each.about) for each in report.lines), default=0) + 2
    for each in report.lines:
        lines.append(f"{each.shown:10}{each.about:{wide}}{each.promise}")
        if each.result is Result.BROKEN:
            lines += [f"{'':{wide + 10}}{sentence}" for sentence in (each.seen(), each.todo()) if sentence]
        elif each.said:
            lines.append(f"{'':{wide + 10}}{each.said}")
    if report.calls:
        lines += ["", *_calls(report.calls)]
    return [*lines, *(["", *report.left] if report.left else []), "", report.sentence()]


CALL_COLUMNS = ("calls", "count", "one after the other", "p50 ms", "p99 ms", "US$")


def call_rows(calls: Sequence[CallFigures]) -> list[tuple[str, ...]]:
    """The cells of a table of them."""
    return [
        (
            f"{each.service}.{each.method}", f"{each.count:,}", f"{each.calm:,}", _shown(each.p50_ms, ".1f"), _shown(each.p99_ms, ".1f"),
            "< 0.0001" if each.usd and each.usd < 0.0001 else _shown(each.usd, ".4f"),
        )
        for each in calls
    ]  # fmt: skip


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _calls(calls: Sequence[CallFigures]) -> list[str]:
    rows = [CALL_COLUMNS, *call_rows(calls)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]) for row in rows
    ]
