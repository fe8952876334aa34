"""`python -m emulators demo`: kill real processes while they work on a real disk, and check that nothing is lost.

    writers (N processes)     put, overwrite, delete and read; they are killed with SIGKILL, or stopped past their lease
    daemons (M processes)     recover, as in production; they are killed and stopped, too, but less often
    feed                      publishes which object references which blob; it is killed and stopped, too
    director (this process)   kills, stops and restarts the others; prints once a second what happens

Then the writers finish, the daemons empty the log, and an independent check judges what is stored and what each caller
was told (`checking/check.py`). What the change feed says must be what the rows hold (`staging/feed_processes.py`). At
the end the store is audited, after something was planted for the audit to find (`audit.py`).

The store is in a directory, or on the emulators of Bigtable and GCS, or in PostgreSQL and S3. Emulators and servers are
frozen and cut off meanwhile, and servers are killed, too (`staging/emulators.py`, `staging/servers.py`). Two things are
not real: the network between a writer and its tiers is simulated (`players/network.py`), and a lease lasts one second
instead of half a minute.

The seed decides the operations, their payloads and the order of the faults. It does not decide when a process is
killed, nor what it was doing then. With `unfenced` the processes run the published protocol of
`emulators.demo.players.unfenced`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich.console import Console

from changelog.base.errors import ConfigurationError
from emulators.demo.director import Director
from emulators.demo.soak import SAMPLES_MIN
from emulators.demo.staging.interpreters import Interpreter, of_release
from emulators.demo.staging.stage import EMBEDDED, EMULATORS, DemoOptions, DemoStage, EmbeddedStage
from emulators.demo.staging.troupe import undisturbed
from emulators.demo.staging.weather import CRASHES, CUTS, FREEZES, STALLS
from emulators.released import NotReleasedError, other

__all__ = ["DemoOptions", "run_demo"]


def run_demo(options: DemoOptions, as_json: bool) -> int:
    """Runs the demo, and prints what happens and the verdict. Returns 0 if nothing was wrong, else 1.

    With `as_json`, stdout gets one JSON document and stderr gets the rest. Raises `ConfigurationError` if a package or
    the other code is missing, `UnavailableError` if the processes cannot run, and `KeyboardInterrupt` on SIGINT or
    SIGTERM. When it returns or raises, all its processes have ended, and nothing is left of a temporary directory. Only
    a run that found something or failed keeps it, and says where.
    """
    said = Console(stderr=as_json, soft_wrap=True, markup=False, highlight=False)
    beside = _interpreter(options.beside)
    with _directory(options.directory) as run:
        try:
            with _stage(options.backend, run.root, with_feed=not options.unfenced) as stage:
                report = Director(options, stage, said, beside).run()
                if not as_json:
                    _show(report, stage, said)
                if options.audit and report["ok"] and not options.unfenced:
                    _audit(report, stage, said)
            run.kept |= not report["ok"]
        except Exception:
            if not run.kept and any(log.stat().st_size for log in run.root.glob("log/*")):  # the logs say why it failed
                run.kept = True
                said.print(f"The logs are kept: {run.root}")
            raise
    report["directory"] = str(run.root) if run.kept else None
    if "audit" in report and not run.kept:
        report["audit"]["report"] = None
    if as_json:
        sys.stdout.write(json.dumps(report, ensure_ascii=False, indent=2) + "\n")
    else:
        _show_end(report, stage, said)
    return 0 if report["ok"] else 1


@dataclass
class DemoDirectory:
    """The directory of a run. `kept`: it stays."""

    root: Path
    kept: bool


@contextmanager
def _directory(given: Path | None) -> Iterator[DemoDirectory]:
    """Yields a run's directory: the given one, which is kept, or a new one. SIGINT and SIGTERM interrupt the block.

    The temporary folder of the run's processes is below it, so what a killed one leaves there goes with it.
    """
    before, run = signal.signal(signal.SIGTERM, signal.default_int_handler), None
    try:
        run = DemoDirectory(given.absolute() if given else Path(tempfile.mkdtemp(prefix="tiered-demo-")), kept=given is not None)
        folder = run.root / "tmp"
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.gettempdir()  # that of this process stays: the user of PostgreSQL may not enter ours
        java = f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} -XX:-UsePerfData"  # which are files in /tmp, whatever TMPDIR is
        with patch.dict(os.environ, {"TMPDIR": str(folder), "JAVA_TOOL_OPTIONS": java.strip()}):
            yield run
    finally:
        with undisturbed():
            if run:
                shutil.rmtree(run.root / "tmp" if run.kept else run.root, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)


def _interpreter(beside: str | None) -> Interpreter | None:
    if beside is None:
        return None
    try:
        return of_release(other(beside))
    except NotReleasedError as error:
        raise ConfigurationError(f"the demo cannot run beside {beside}: {error}") from error


def _audit(report: dict[str, Any], stage: DemoStage, said: Console) -> None:
    try:
        from emulators.demo.audit import run_demo_audit
    except ModuleNotFoundError as missing:
        said.print(f"The audit is left out, because it needs {missing.name}: pip install '.[audit]' in the checkout")
        return
    audited = run_demo_audit(stage, said)
    report["audit"] = audited.shown()
    if audited.flaws:
        report |= {"ok": False, "verdict": "; ".join(audited.flaws)}


def _stage(backend: str, root: Path, *, with_feed: bool) -> DemoStage:
    """Returns the stage. Without the fence there is no feed: its writer settles changes, which is the fence."""
    if backend == EMBEDDED:
        return EmbeddedStage(root, with_feed=with_feed)
    extras = "gcp" if backend == EMULATORS else "postgres,s3"
    try:
        if backend == EMULATORS:
            from emulators.demo.staging.emulators import EmulatorStage

            return EmulatorStage(root, with_feed=with_feed)
        from emulators.demo.staging.servers import ServerStage

        return ServerStage(root, with_feed=with_feed)
    except ModuleNotFoundError as missing:
        raise ConfigurationError(f"the demo on {backend} needs {missing.name}: pip install '.[{extras}]' in the checkout") from missing


MEANING = {
    "dangling": "rows whose blob is gone: data loss",
    "orphans": "blobs that no row names: a leak",
    "entries": "left in the changelog",
    "uploads": "left half-way",
    "parked": "entries that recovery gave up",
    "lost": "acknowledged writes that are gone",
    "false_no": "took effect though the caller was told no",
    "mixed_up": "contents that nobody wrote there",
    "errors": "answers that no caller should get",
    "feed": "things that the change feed says and that are not so",
    "crashes": "processes that ended by themselves",
    "untrue": "statements of the status that were not so",
    "growth": "things of which a spared process had more and more",
}


def _show(report: dict[str, Any], stage: DemoStage, said: Console) -> None:
    told, happened, flaws = report["operations"], report["happened"], report["flaws"]
    lines = (
        ("objects", report["objects"], f"stored at the end: {report['inline']:,} inline, {report['blobs']:,} in blobs"),
        ("operations", told["begun"], f"{told['ok']:,} acknowledged, {told['no']:,} refused, {told['failed']:,} whose condition "
                                      f"was false, {told['unknown']:,} unknown, {told['unanswered']:,} cut off by a kill"),
        ("kills", happened["writer_kills"], f"writers, in the middle of their work; and {happened['daemon_kills']:,} daemons"),
        ("stops", happened["writer_stops"],
         f"writers that stood still past their lease, and went on; and {happened['daemon_stops']:,} daemons"),
        *(("freezes", happened[f"{name}_{FREEZES}"],
           f"of {name}, past every deadline; {happened[f'{name}_{STALLS}']:,} times half of its requests were held back so long,"
           f" {happened[f'{name}_{CUTS}']:,} times all its connections were cut"
           + (f", {happened[f'{name}_{CRASHES}']:,} times it was killed and started again" if f"{name}_{CRASHES}" in happened else ""))
          for name in (service.name for service in stage.services)),
        *([("late", happened["late"], "writes that landed after they had timed out")] if stage.services else []),
        ("recovered", happened["recovered"], "changes that were cleaned up after the dead"),
        *(_of_feed(report) if "feed" in report else []),
        *((name.replace("_", "-"), flaws[name], meaning) for name, meaning in MEANING.items() if name in flaws),
        *([("looks", report["soak"]["looks"], f"at the status; {report['soak']['stuck_looks']:,} while an entry was stuck")]
          if "soak" in report else []),
    )
    said.print()
    for name, count, meaning in lines:
        said.print(f"{name:<12}{count:>8,}   {meaning}", style="bold red" if name.replace("-", "_") in flaws and count else None)
    said.print()
    if lives := report.get("lives"):
        said.print(f"  Processes by code: {', '.join(f'{times:,} {name}' for name, times in lives.items())}")
    for name, has in report.get("soak", {}).get("processes", {}).items():
        grown = ", ".join(f"{what} {early:g} -> {late:g}" for what, (early, late) in has.items())
        said.print(f"  {name}, second quarter -> last quarter: {grown} (memory in MiB)")
    if "soak" in report and not report["soak"]["processes"]:
        said.print(f"  The run was too short to say whether a process grows: that takes {SAMPLES_MIN} s.")
    for sentence in report["details"]:
        said.print(f"  {sentence}")
    said.print(_verdict(report), style="bold green" if report["ok"] else "bold red")
    said.print(f"Operations and payloads repeat with --seed {report['seed']}; the moments of the kills do not.")


def _of_feed(report: dict[str, Any]) -> list[tuple[str, int, str]]:
    """Returns the lines about the feed: what it has published, how its processes were treated, and what its view is."""
    feed, happened = report["feed"], report["happened"]
    struck = f"its writer was killed {happened['feed_kills']:,} times and stopped {happened['feed_stops']:,} times"
    if "receiver_kills" in happened:
        struck += f", its receiver {happened['receiver_kills']:,} and {happened['receiver_stops']:,} times"
    places, agreed = ", ".join(feed["places"]), "not as" if report["flaws"]["feed"] else "as"
    return [
        ("published", feed["updates"], f"updates of the change feed, in {feed['files']:,} files; {struck}"),
        ("references", feed["references"], f"in the view of the feed ({places}), {agreed} in the rows"),
    ]


def _show_end(report: dict[str, Any], stage: DemoStage, said: Console) -> None:
    if "audit" in report and not report["ok"]:
        said.print(_verdict(report), style="bold red")
    elif "audit" in report:
        said.print("PASSED: nothing was lost, and the audit found just what was planted.", style="bold green")
    if report["directory"]:
        said.print(stage.farewell())


def _verdict(report: dict[str, Any]) -> str:
    match report["ok"], report["unfenced"]:
        case True, False:
            return "PASSED: nothing was lost, leaked or mixed up."
        case True, _:
            return "Nothing was found this time: without the fence that is luck. Run it for longer."
        case _, True:
            return f"FAILED without the fence: {report['verdict']}. The same mix passes with it."
        case _:
            return f"FAILED: {report['verdict']}."
