"""What `tiered audit plan` and `run` print: the result on stdout, everything else on stderr."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from rich.console import Console
from rich.table import Table

from recovery import display
from recovery.audit.finding_classes import LOSSES, SIZED, FindingClass
from recovery.audit.manifest import Manifest
from recovery.audit.reporting import run_verdict
from recovery.audit.running.jobs import AuditOptions, AuditProgress
from recovery.audit.running.plan import Plan
from recovery.cli.audit.console import console, showing
from recovery.cli.output import dump, write
from recovery.cli.shared import say
from recovery.states import COLOURS

RATE_SHOWN_MIN = 100.0
"""Blobs a second. A lower rate is not shown: of few blobs it would only tell how fast Spark starts."""

SENTENCES_MAX = 20
"""So many doubts are shown, and so many notes."""

PIPE_WIDTH = 4096
"""Columns where stdout is no terminal: each class of findings is one line."""

def show_plan(plan: Plan, slots: int, as_json: bool) -> None:
    if as_json:
        write(_plan_json(plan, slots))
        return
    said = console()
    _show_inputs(said, plan.inputs)
    before, grace = display.moment(plan.cutoff.created_before_ns), display.span(plan.cutoff.grace_s)
    said.print(f"cut-off    {before}: what is younger than {grace} is never called an orphan")
    if plan.ranges[0].start:
        said.print(f"names      only those that begin with {display.escape_controls(plan.ranges[0].start)}")
    said.print(f"blobs      {'more than were looked at' if plan.blobs is None else f'{plan.blobs:,}'}")
    if plan.list_requests is not None:
        said.print(f"requests   about {plan.list_requests:,} to list them, of 1,000 names each")
    if (feed := plan.references) is not None:
        said.print(f"references the change feed, generation {feed.generation}, complete up to {display.moment(feed.frontier_ns)}")
    said.print(f"ranges     {len(plan.ranges):,}, {min(slots, len(plan.ranges)):,} at once")
    for note in plan.notes:
        said.print(f"note       {note}")


def show_start(inputs: Mapping[str, str], options: AuditOptions, engine: str) -> None:
    """Says what is compared. To be called before an engine starts, which takes a while."""
    said = console(stderr=True)
    compared = ", ".join(f"{key} {display.escape_controls(value)}" for key, value in inputs.items())
    said.print(f"audit of {compared}{f', only names that begin with {display.escape_controls(options.prefix)}' if options.prefix else ''}")
    said.print(f"to {display.escape_controls(options.directory)}, on {engine}")


def showing_run() -> AbstractContextManager[Callable[[AuditProgress], None]]:
    """Yields a function that shows how far a run is."""
    return showing("ranges", _place, _how_far)


def _place(progress: AuditProgress) -> tuple[int, int, float]:
    return progress.ranges_done, progress.ranges, progress.seconds


def _how_far(progress: AuditProgress) -> str:
    parts = [f"{display.count(progress.names, 'blob')}", f"{progress.names_per_s:,.0f}/s"]
    if progress.seconds_left is not None:
        parts.append(f"{display.elapsed(progress.seconds_left)} left")
    parts += [f"{number:,} {class_}" for class_, number in progress.findings.items()]
    if progress.ranges_failed:
        parts.append(f"{display.count(progress.ranges_failed, 'range')} failed")
    return "  ".join(parts)


def say_old(manifest: Manifest, options: AuditOptions) -> None:
    """Says that the run had ended before this call. Otherwise its result would pass for that of today."""
    assert manifest.ended_ns is not None
    where, ended = display.escape_controls(options.directory), display.moment(manifest.ended_ns)
    say(f"the run in {where} ended at {ended}, and nothing was audited now: name another directory for a new run")


def show_manifest(manifest: Manifest, options: AuditOptions, as_json: bool) -> None:
    if as_json:
        write(dump(manifest.model_dump(mode="json")))
        return
    show_summary(console(), manifest, options.directory, run_verdict.PRICE_DEFAULT if options.price is None else options.price)


def show_summary(said: Console, manifest: Manifest, directory: str, price: float) -> None:
    """Prints the table of classes, what makes the run doubtful, the verdict, and where the files are."""
    if not said.is_terminal:
        said.width = PIPE_WIDTH
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("class", no_wrap=True)
    table.add_column("count", justify="right", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("what it is", style="dim")
    for class_ in run_verdict.shown_classes(manifest):
        counted = manifest.totals[class_]
        size = display.size(counted.size) if counted.size or class_ in SIZED else ""
        table.add_row(class_, f"{counted.number:,}", size, class_.meaning, style=_style(class_))
    said.print(table)
    per_s = manifest.names / manifest.work_s if manifest.work_s else 0.0
    rate = f", {per_s:,.0f} a second" if per_s >= RATE_SHOWN_MIN else ""
    rows = display.count(manifest.redirects, "tombstone" if manifest.references is None else "reference")
    said.print(
        f"\n{display.count(manifest.names, 'blob')} and {rows}"
        f" in {display.elapsed(manifest.work_s)}{rate}, on {manifest.engine}"
    )
    said.print(run_verdict.as_of(manifest))
    if sourced := run_verdict.sourced(manifest):
        said.print(sourced)
    found, looked = run_verdict.verdict(manifest, price), run_verdict.looked(manifest)
    if manifest.names and looked not in found.sentence:
        said.print(looked)
    _show_each(said, "doubt", run_verdict.reasons(manifest), directory)
    _show_each(said, "note", manifest.notes, directory)
    said.print(found.sentence, style=COLOURS[found.state.level])
    said.print(f"report    {_below(directory, 'report.html')}")
    said.print(f"findings  {_below(directory, 'findings')}")
    if manifest.failures:
        said.print(f"The same command goes on with the ranges that are missing: --to {display.escape_controls(directory)}")


def _style(class_: FindingClass) -> str | None:
    return "bold red" if class_ in LOSSES else "bold" if class_.finding is not None else None


def _show_each(said: Console, word: str, sentences: Sequence[str], directory: str) -> None:
    for sentence in sentences[:SENTENCES_MAX]:
        said.print(f"{word:<10}{display.escape_controls(sentence)}")
    if (left := len(sentences) - SENTENCES_MAX) > 0:
        said.print(f"{word:<10}and {left:,} more, in {_below(directory, 'manifest.json')}")


def _show_inputs(said: Console, inputs: Mapping[str, str]) -> None:
    for key, value in inputs.items():
        said.print(f"{key:<10} {display.escape_controls(value)}")


def _below(directory: str, name: str) -> str:
    return display.escape_controls(f"{directory.rstrip('/')}/{name}")


def _plan_json(plan: Plan, slots: int) -> str:
    return dump({
        "inputs": plan.inputs, "log_is_durable": plan.log_is_durable, "cutoff": plan.cutoff.model_dump(),
        "ranges": [bounds.model_dump() for bounds in plan.ranges], "slots": slots, "blobs": plan.blobs,
        "list_requests": plan.list_requests, "notes": list(plan.notes),
        "references": None if plan.references is None else plan.references.model_dump(),
    })  # fmt: skip
