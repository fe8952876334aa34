"""`python -m emulators.release`: builds, checks and proves a release, up to the upload. `make release` calls it.

    --only NAME       this step alone; may be repeated
    --without NAME    all but this one; may be repeated
    --go-on           runs what has not passed yet for this commit: after a cut, or a failure from outside, or beside
                      another run of other steps
    --list            shows the steps, and runs none

Exit codes: 0: every chosen step passed; the last lines say whether that is a release. 1: a step failed, and those after
it did not run; or a step changed what is committed. 2: nothing ran: the command line is wrong, files are not committed,
this version is released already, or no run of this commit is there to go on with.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from emulators.release.checkout import ROOT, Checkout, NotReadyError, checkout
from emulators.release.passed import keep_passed, passed_earlier
from emulators.release.running import EndedStep, let_signals_end_it, run_all
from emulators.release.steps import STEPS, ReleaseStep, UnknownStepError, chosen
from emulators.release.summary import is_built, summary
from emulators.release.tools import not_as_summed


def main(arguments: Sequence[str] | None = None, root: Path = ROOT, steps: Sequence[ReleaseStep] = STEPS) -> int:
    parser = argparse.ArgumentParser(prog="make release", description="Builds, checks and proves a release, up to the upload.")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this step alone; may be repeated")
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help="all but this one; may be repeated")
    parser.add_argument("--go-on", action="store_true", help="runs what has not passed yet for this commit")
    parser.add_argument("--list", action="store_true", help="shows the steps, and runs none")
    asked = parser.parse_args(arguments)
    try:
        wanted = chosen(steps, asked.only, asked.without)
        if not wanted:
            parser.error("no step is left to run")
    except UnknownStepError as failed:
        parser.error(str(failed))
    if asked.list:
        _say("".join(f"{step.name:<14}{step.minutes:>5g} min   {step.command}\n{'':<24}{step.proves}\n" for step in wanted))
        return 0
    place = root / "build" / "release"
    kept = place / "passed.json"
    try:
        of = checkout(root)
        earlier = passed_earlier(kept, of, steps) if asked.go_on else []
    except NotReadyError as failed:
        _say(f"{failed}\n")
        return 2
    place.mkdir(parents=True, exist_ok=True)
    if not asked.go_on:
        kept.unlink(missing_ok=True)
    ran = run_all(wanted, earlier, root, place, _say, partial(keep_passed, kept, of, steps))
    faults = spoilt(of, ran)
    _say("\n" + "".join(f"{line}\n" for line in summary(of, steps, ran, faults)))
    return 0 if not faults and len(ran) == len(wanted) and all(each.code == 0 for each in ran) else 1


def spoilt(of: Checkout, ran: Sequence[EndedStep]) -> list[str]:
    """Returns what the steps changed that they must not: the commit, its files, or what was built before them."""
    try:
        found = [] if checkout(of.root) == of else [f"the commit is no longer {of.commit}, or is tagged now"]
    except NotReadyError as failed:
        found = [str(failed)]
    return found + (not_as_summed(of.root / "dist") if is_built(ran) else [])


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    let_signals_end_it()
    sys.exit(main())
