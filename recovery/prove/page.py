"""A report as a page: one file of HTML without a script, which looks like the daemon's page, also on a phone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from recovery.display import count, elapsed
from recovery.prove.report import CALL_COLUMNS, Line, ProveReport, ProveVerdict, call_rows, shown_kind
from tiered.provision.probes import Result

STYLE = Path(__file__).parents[1] / "http" / "page" / "page.css"
_LEVELS = {ProveVerdict.MAY: "ok", ProveVerdict.MAY_BUT: "ok", ProveVerdict.UNKNOWN: "unknown", ProveVerdict.MUST_NOT: "stuck"}
_TONES = {"held": "ok", "not held": "stuck", "limit": "behind", "not tried": "unknown"}
_TITLES = {
    "held": ("Held", ""), "not held": ("Not held", "this loses data, or hides them"), "not tried": ("Not tried", ""),
    "limit": ("Limits", "each says what it costs"),
}
"""The cards of lines, by `Line.shown`, with what that means."""


def page_of(report: ProveReport) -> str:
    lines = {shown: [each for each in report.lines if each.shown == shown] for shown in _TITLES}
    counts = ", ".join(f"{len(found)} {shown}" for shown, found in lines.items() if shown != "limit")
    usd = sum(each.usd or 0 for each in report.calls)
    calls = f"{sum(each.count for each in report.calls):,} in all{f', {usd:.2f} US$' if usd else ''}"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>tiered prove</title>
<style>
{STYLE.read_text("utf-8")}
td.result {{ white-space: nowrap; width: 5.5em; color: var(--tone); font-weight: 600; }}
td.about {{ white-space: nowrap; width: 6em; }}
td {{ overflow-wrap: anywhere; }}
@media (max-width: 520px) {{ .stacked td.result, .stacked td.about {{ display: inline; margin-right: 8px; }} }}
</style>
</head>
<body>
<header>
  <p class="brand"><b>tiered prove</b> <span class="muted">{escape(report.tiered)}</span></p>
  <p class="muted">{escape(report.at)}, after {escape(elapsed(report.seconds))}</p>
</header>
<main>
<section class="card answer" data-level="{_LEVELS[report.verdict]}">
  <div class="mark" aria-hidden="true"></div>
  <div class="said"><p class="level">{counts}, {count(len(lines["limit"]), "limit")}</p>
  <h1>{escape(report.headline())}</h1>
  {_items(report.losses(), "problems") if report.losses() else ""}</div>
</section>
{"".join(_card(*_TITLES[shown], _lines(lines[shown])) for shown in ("not held", "not tried", "limit") if lines[shown])}
{_card("Left behind", "", _items(report.left)) if report.left else ""}
{_card("Services", "", _table(("", "", ""), _services(report)))}
{_card(*_TITLES["held"], _lines(lines["held"])) if lines["held"] else ""}
{_card("Calls", calls, _table(CALL_COLUMNS, call_rows(report.calls), numbers=True)) if report.calls else ""}
</main>
<footer class="muted">The latencies are those of calls that came one after the other; most of the count came many at once.
Nothing here names a bucket, a table, a host, a key or a user.</footer>
</body>
</html>
"""


def _services(report: ProveReport) -> list[tuple[str, ...]]:
    told = [(tier, each) for tier, each in report.services.items()]
    return [
        (tier if name == "kind" else "", name, shown_kind(value) if name == "kind" else value) for tier, each in told
        for name, value in each.items()
    ]  # fmt: skip


def _card(title: str, means: str, inner: str) -> str:
    beside = f' <span class="muted">{escape(means)}</span>' if means else ""
    return f'<section class="card"><h2>{title}{beside}</h2>\n{inner}\n</section>'


def _items(sentences: Iterable[str], kind: str = "items") -> str:
    return f'<ul class="{kind}">{"".join(f"<li>{escape(each)}</li>" for each in sentences)}</ul>'


def _lines(lines: Sequence[Line]) -> str:
    cells = "".join(
        f'<tr class="tone" data-level="{_TONES[each.shown]}"><td class="result">{each.shown}</td>'
        f'<td class="about">{escape(each.about)}</td>'
        f"<td>{escape(each.promise)}{_details(each)}</td></tr>\n"
        for each in lines
    )
    return f'<div class="scroll"><table class="stacked"><tbody>\n{cells}</tbody></table></div>'


def _details(line: Line) -> str:
    is_broken = line.result is Result.BROKEN
    muted = [line.todo()] if is_broken else [line.said]
    said = f"<br>{escape(line.seen())}" if is_broken else ""
    return said + "".join(f'<br><span class="muted">{escape(each)}</span>' for each in muted if each)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> str:
    def cell(number: int, name: str, text: str) -> str:
        kind = f' class="n{" zero" if text in ("0", "-") else ""}"' if numbers and number else ""
        return f'<td{kind} data-head="{escape(name)}">{escape(text)}</td>'

    head = "".join(f"<th{' class=n' if numbers and number else ''}>{escape(each)}</th>" for number, each in enumerate(columns))
    cells = "".join(
        f"<tr>{''.join(cell(number, *each) for number, each in enumerate(zip(columns, row, strict=True)))}</tr>\n" for row in rows
    )
    header = f"<thead><tr>{head}</tr></thead>" if any(columns) else ""
    return f'<div class="scroll"><table class="stacked">{header}<tbody>\n{cells}</tbody></table></div>'
