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
_TONES = {Result.HELD: "ok", Result.BROKEN: "stuck", Result.UNTRIED: "unknown"}


def page_of(report: ProveReport) -> str:
    held = sum(each.result is Result.HELD for each in report.lines)
    broken = [each for each in report.lines if each.result is Result.BROKEN]
    untried = [each for each in report.lines if each.result is Result.UNTRIED]
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
td.result {{ white-space: nowrap; color: var(--tone); font-weight: 600; }}
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
  <div class="said"><p class="level">{count(held, "promise")} held, {len(broken)} not held, {len(untried)} not tried</p>
  <h1>{escape(report.headline())}</h1>
  {_items(report.losses(), "problems") if report.losses() else ""}</div>
</section>
{_card("Not held", _lines(broken)) if broken else ""}
{_card("Not tried", _lines(untried)) if untried else ""}
{_card("Left behind", _items(report.left)) if report.left else ""}
{_card("Services", _table(("", "", ""), _services(report)))}
{_card("Promises", _lines(report.lines))}
{_card("Calls", _table(CALL_COLUMNS, call_rows(report.calls), numbers=True)) if report.calls else ""}
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


def _card(title: str, inner: str) -> str:
    return f'<section class="card"><h2>{title}</h2>\n{inner}\n</section>'


def _items(sentences: Iterable[str], kind: str = "items") -> str:
    return f'<ul class="{kind}">{"".join(f"<li>{escape(each)}</li>" for each in sentences)}</ul>'


def _lines(lines: Sequence[Line]) -> str:
    cells = "".join(
        f'<tr class="tone" data-level="{_TONES[each.result]}"><td class="result">{each.result}</td><td>{escape(each.about)}</td>'
        f"<td>{escape(each.promise)}{_details(each)}</td></tr>\n"
        for each in lines
    )
    return f'<div class="scroll"><table class="stacked"><tbody>\n{cells}</tbody></table></div>'


def _details(line: Line) -> str:
    if line.result is Result.HELD:
        return f'<br><span class="muted">{escape(line.said)}</span>' if line.said else ""
    if line.result is Result.UNTRIED:
        return f'<br><span class="muted">{escape(line.said)}</span>'
    todo = f"Without it: {line.cost}. What to do: {line.cure or 'use another service'}."
    return f'<br>{escape(line.seen())}<br><span class="muted">{escape(todo)}</span>'


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> str:
    kinds = ["", *([' class="n"'] * (len(columns) - 1) if numbers else [""] * (len(columns) - 1))]
    head = "".join(f"<th{kind}>{escape(each)}</th>" for kind, each in zip(kinds, columns, strict=True))
    cells = "".join(
        "<tr>" + "".join(
            f'<td{kind} data-head="{escape(name)}">{escape(each)}</td>' for kind, name, each in zip(kinds, columns, row, strict=True)
        ) + "</tr>\n"
        for row in rows
    )  # fmt: skip
    header = f"<thead><tr>{head}</tr></thead>" if any(columns) else ""
    return f'<div class="scroll"><table class="stacked">{header}<tbody>\n{cells}</tbody></table></div>'
